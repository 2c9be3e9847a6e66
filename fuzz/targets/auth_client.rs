//! What monitors and OSDs answer to a client, including what lies inside their envelopes.

#![no_main]

use cluster::auth::testing::{self, seal};
use cluster::auth::{
    AuthName, Client, ClientConfig, CryptoKey, KeyType, MonHandshake, Secret, ServiceHandshake,
};
use cluster::codec::{EntityType, Now, Put, UTime};
use cluster::mon::message::{MAuthReply, Message};
use fuzz::{Edits, NOW, SECOND};
use libfuzzer_sys::fuzz_target;

const GLOBAL_ID: u64 = 4242;
const SERVICES: [EntityType; 3] = [EntityType::MON, EntityType::OSD, EntityType::MGR];

fuzz_target!(|data: &[u8]| {
    let Some((how, rest)) = data.split_first() else {
        return;
    };
    let mut peer = Peer {
        user: key(*how & 1 != 0, 1),
        session: key(*how & 2 != 0, 2),
        // As the preferred mode of each connection asks.
        secure: how & 4 != 0,
        edits: Edits::new(rest),
    };
    let config = ClientConfig::new(AuthName::client("vm"), Some(peer.user.clone()));
    let mut client = Client::new(config).expect("a key and its modes");
    for seed in 0..2 {
        let mut hs = client.mon_handshake(&[seed; 40]);
        if peer.monitor(&mut hs) {
            client.adopt(hs);
        }
        if let Ok(mut hs) = client.service_handshake(EntityType::OSD, &[seed; 40]) {
            peer.osd(&mut hs);
            client.service_refused(&hs);
        }
        let later = Now {
            mono: NOW.mono + 50 * SECOND,
            ..NOW
        };
        let _ = client.next_deadline(later);
        if client.renewal_request(&[seed; 40], later).is_some() {
            let front = peer.renewal();
            let _ = client.renewal_reply(&front, later);
        }
        let _ = client.tickets_expired(later);
        client.invalidate_tickets();
        client.session_lost();
    }
    if peer.edits.input.is_empty() && rest.is_empty() {
        assert_eq!(client.global_id(), GLOBAL_ID, "an honest login");
    }
});

struct Peer<'a> {
    user: CryptoKey,
    session: CryptoKey,
    secure: bool,
    edits: Edits<'a>,
}

impl Peer<'_> {
    /// Says whether the client is in.
    fn monitor(&mut self, hs: &mut MonHandshake) -> bool {
        let _ = hs.request();
        if self.edits.u8() % 16 == 1 {
            let method = self.edits.u32() % 3;
            let result = -i32::from(self.edits.u8());
            let methods = [self.edits.u32() % 3, self.edits.u32() % 3];
            let _ = hs.bad_method(method, result, &methods, &[1]);
        }
        let challenge = self.edits.of(challenge(77));
        if hs.more(&challenge, NOW).is_err() {
            return false;
        }
        let user = self.user.clone();
        let mut out = Vec::new();
        out.put_u16(0x0100);
        out.put_i32(0);
        let auth = self.tickets(&user, &[EntityType::AUTH]);
        out.put_bytes(&auth);
        if self.secure {
            let mut secret = Vec::new();
            secret.put_blob(&[7; 64]);
            let secret = self.edits.of(secret);
            let sealed = seal(&self.session, testing::AUTH_CONNECTION_SECRET, &secret);
            let mut blob = Vec::new();
            blob.put_blob(&sealed);
            out.put_blob(&self.edits.of(blob));
        } else {
            out.put_blob(&[]);
        }
        let session = self.session.clone();
        let services = self.tickets(&session, &SERVICES);
        out.put_blob(&services);
        let payload = self.edits.of(out);
        let mode = if self.secure { 2 } else { 1 };
        hs.done(GLOBAL_ID, mode, &payload, NOW).is_ok()
    }

    fn osd(&mut self, hs: &mut ServiceHandshake) {
        let _ = hs.request();
        let challenge = self.edits.of(challenge(78));
        let sealed = seal(&self.session, testing::AUTHORIZE_CHALLENGE, &challenge);
        let _ = hs.more(&self.edits.of(sealed));
        let mut reply = Vec::new();
        reply.put_u8(2);
        // The nonce is from the seed.
        reply.put_u64(1);
        reply.put_blob(&[7; 64]);
        let reply = self.edits.of(reply);
        let mut out = Vec::new();
        out.put_blob(&seal(&self.session, testing::AUTHORIZE_REPLY, &reply));
        let _ = hs.done(1 + u32::from(self.secure), &self.edits.of(out));
    }

    fn renewal(&mut self) -> Vec<u8> {
        let mut payload = Vec::new();
        payload.put_u16(0x0200);
        payload.put_i32(0);
        let session = self.session.clone();
        let tickets = self.tickets(&session, &SERVICES);
        payload.put_bytes(&tickets);
        let reply = MAuthReply {
            protocol: 2,
            global_id: GLOBAL_ID,
            payload: self.edits.of(payload),
            ..MAuthReply::default()
        };
        let mut front = Vec::new();
        reply.encode(&mut front);
        self.edits.of(front)
    }

    /// Version, count, and for each ticket the sealed session key and the blob.
    fn tickets(&mut self, key: &CryptoKey, services: &[EntityType]) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u8(1);
        out.put_u32(services.len() as u32);
        for service in services {
            let mut ticket = Vec::new();
            ticket.put_u8(1);
            put_key(&mut ticket, &self.session);
            UTime { sec: 60, nsec: 0 }.encode(&mut ticket);
            let ticket = self.edits.of(ticket);
            let mut blob = Vec::new();
            blob.put_u8(1);
            blob.put_u64(3);
            blob.put_blob(&[9; 40]);
            let mut blob = self.edits.of(blob);
            // Sealed once more, with the key of the ticket it replaces.
            let twice = self.edits.u8() % 4 == 1;
            if twice {
                let mut inner = Vec::new();
                inner.put_blob(&blob);
                blob = seal(&self.session, testing::TICKET_BLOB, &self.edits.of(inner));
            }
            out.put_u32(service.0.into());
            out.put_u8(1);
            out.put_blob(&seal(key, testing::TICKET_SESSION_KEY, &ticket));
            out.put_bool(twice);
            out.put_blob(&blob);
        }
        self.edits.of(out)
    }
}

fn key(newer: bool, byte: u8) -> CryptoKey {
    let kind = if newer {
        KeyType::Aes256k
    } else {
        KeyType::Aes
    };
    CryptoKey::new(kind, UTime::default(), Secret::new(vec![byte; 32])).expect("long enough")
}

fn put_key(out: &mut Vec<u8>, key: &CryptoKey) {
    out.put_u16(key.kind().raw());
    key.created().encode(out);
    out.put_u16(key.secret().len() as u16);
    out.put_bytes(key.secret().as_bytes());
}

fn challenge(n: u64) -> Vec<u8> {
    let mut out = Vec::new();
    out.put_u8(1);
    out.put_u64(n);
    out
}
