//! What clients show to the monitor's and the OSD's side of cephx.

#![no_main]

use std::time::Duration;

use cluster::auth::server::{KeyServer, KeyServerConfig, MonAuth, Policy, ServiceAuth, Step};
use cluster::auth::{
    AuthName, Client, ClientConfig, ConMode, CryptoKey, KeyType, Keyring, Method, Secret,
};
use cluster::codec::{EntityType, Now, UTime};
use fuzz::{Edits, NOW, SECOND};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((how, rest)) = data.split_first() else {
        return;
    };
    let kind = |newer| match newer {
        true => KeyType::Aes256k,
        false => KeyType::Aes,
    };
    let user = CryptoKey::new(
        kind(how & 1 != 0),
        UTime::default(),
        Secret::new(vec![1; 32]),
    )
    .expect("long enough");
    let mut counter = 0u8;
    let entropy = &mut |bytes: &mut [u8]| {
        for b in bytes {
            counter = counter.wrapping_mul(77).wrapping_add(13);
            *b = counter;
        }
    };
    let name = AuthName::client("vm");
    let mut users = Keyring::default();
    users.insert(name.clone(), user.clone(), &[("mon", "allow r")]);
    let config = KeyServerConfig {
        service_cipher: kind(how & 2 != 0),
        service_ttl: Duration::from_secs(60),
        ..KeyServerConfig::default()
    };
    let mut keys = KeyServer::new(config, users, NOW, entropy);
    if how & 4 != 0 {
        let mut edits = Edits::new(rest);
        let saved = keys.save().to_vec();
        let _ = keys.restore(&edits.of(saved));
    }
    let policy = Policy {
        methods: vec![Method::Cephx, Method::None],
        modes: vec![ConMode::Crc, ConMode::Secure],
    };
    let mut edits = Edits::new(rest);
    let mut client = Client::new(ClientConfig::new(name, Some(user))).expect("a key");

    let mut mon = MonAuth::new(policy.clone());
    let mut hs = client.mon_handshake(&[1; 40]);
    let request = hs.request();
    let modes = request.raw_modes();
    let payload = edits.of(request.payload.clone());
    let method = u32::from(edits.u8() % 4 != 1) + 1;
    let step = mon.request(&mut keys, method, &modes, &payload, entropy);
    let Step::More(challenge) = step else {
        return;
    };
    let answer = hs.more(&challenge, NOW).expect("an honest challenge");
    let answer = edits.of(answer);
    let Step::Done(granted) = mon.more(&mut keys, &answer, NOW, entropy) else {
        return;
    };
    let mode = granted.con_mode.raw();
    if hs
        .done(granted.global_id, mode, &granted.payload, NOW)
        .is_err()
    {
        // Not its own challenge came back.
        return;
    }
    client.adopt(hs);

    if let Ok(mut hs) = client.service_handshake(EntityType::OSD, &[2; 40]) {
        let secrets = keys.service_secrets(EntityType::OSD);
        let mut osd = ServiceAuth::new(policy);
        let request = hs.request();
        let payload = edits.of(request.payload.clone());
        let method = request.method.raw();
        let step = osd.request(&secrets, method, &request.raw_modes(), &payload, entropy);
        if let Step::More(challenge) = step
            && let Ok(answer) = hs.more(&challenge)
        {
            let answer = edits.of(answer);
            if let Step::Done(granted) = osd.more(&secrets, &answer, entropy) {
                let _ = hs.done(granted.con_mode.raw(), &granted.payload);
            }
        }
    }
    let later = Now {
        mono: NOW.mono + 50 * SECOND,
        wall: NOW.wall + 50 * SECOND,
    };
    if let Some(front) = client.renewal_request(&[3; 40], later) {
        let front = edits.of(front);
        let (reply, _) = mon.renew(&mut keys, &front, later, entropy);
        let _ = client.renewal_reply(&reply, later);
    }
});
