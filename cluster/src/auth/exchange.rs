//! Our client against our server: what captures do not show, such as renewal, age, refusal and
//! tampering.

use std::time::Duration;

use proptest::prelude::*;

use super::server::{Granted, KeyServer, KeyServerConfig, MonAuth, Policy, ServiceAuth, Step};
use super::wire::AuthReply;
use super::*;
use crate::codec::{EntityType, Now, Put, UTime};

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const SERVICE_TTL: u64 = HOUR;
const AUTH_TTL: u64 = 10 * HOUR;

fn at(secs: u64) -> Now {
    Now {
        mono: (1_000 + secs) * 1_000_000_000,
        wall: (1_700_000_000 + secs) * 1_000_000_000,
    }
}

/// A monitor, an OSD and a source of bytes that never repeats itself.
struct World {
    keys: KeyServer,
    mon: Policy,
    osd: Policy,
    counter: u64,
}

impl World {
    fn new(user_key: &CryptoKey, service_cipher: KeyType) -> World {
        let config = KeyServerConfig {
            auth_ttl: Duration::from_secs(AUTH_TTL),
            service_ttl: Duration::from_secs(SERVICE_TTL),
            service_cipher,
            ..KeyServerConfig::default()
        };
        let mut users = Keyring::default();
        let caps = [("mon", "allow r"), ("osd", "allow rwx pool=rbd")];
        users.insert(AuthName::client("vm"), user_key.clone(), &caps);
        let mut counter = 0;
        let keys = KeyServer::new(config, users, at(0), &mut |b| fill(&mut counter, b));
        let policy = |modes: [ConMode; 2]| Policy {
            methods: vec![Method::Cephx],
            modes: modes.to_vec(),
        };
        World {
            keys,
            mon: policy([ConMode::Secure, ConMode::Crc]),
            osd: policy([ConMode::Crc, ConMode::Secure]),
            counter,
        }
    }

    fn seed(&mut self) -> Seed {
        let mut seed = [0; 40];
        fill(&mut self.counter, &mut seed);
        seed
    }

    fn rotate(&mut self, now: Now) -> bool {
        let counter = &mut self.counter;
        self.keys.rotate(now, &mut |b| fill(counter, b))
    }

    /// Runs a monitor handshake to its end and checks that both sides hold the same keys.
    fn login(&mut self, client: &mut Client, now: Now) -> Result<(MonAuth, Granted), AuthError> {
        let mut hs = client.mon_handshake(&self.seed());
        let mut server = MonAuth::new(self.mon.clone());
        let mut request = hs.request();
        loop {
            let modes = request.raw_modes();
            let counter = &mut self.counter;
            let entropy = &mut |b: &mut [u8]| fill(counter, b);
            let method = request.method.raw();
            let mut step =
                server.request(&mut self.keys, method, &modes, &request.payload, entropy);
            if let Step::More(challenge) = &step {
                let answer = hs.more(challenge, now)?;
                step = server.more(&mut self.keys, &answer, now, entropy);
            }
            match step {
                Step::BadMethod {
                    method,
                    result,
                    allowed_methods,
                    allowed_modes,
                } => request = hs.bad_method(method, result, &allowed_methods, &allowed_modes)?,
                Step::More(_) => panic!("a monitor challenges once"),
                Step::Done(granted) => {
                    let mode = granted.con_mode.raw();
                    let ours = hs.done(granted.global_id, mode, &granted.payload, now)?;
                    same(&ours, &granted.secrets);
                    client.adopt(hs);
                    return Ok((server, *granted));
                }
            }
        }
    }

    /// The same with the OSD.
    fn osd(&mut self, client: &Client) -> Result<Granted, AuthError> {
        let mut hs = self.osd_handshake(client);
        self.osd_login(&mut hs)
    }

    fn osd_handshake(&mut self, client: &Client) -> ServiceHandshake {
        let seed = self.seed();
        client.service_handshake(EntityType::OSD, &seed).unwrap()
    }

    fn osd_login(&mut self, hs: &mut ServiceHandshake) -> Result<Granted, AuthError> {
        let secrets = self.keys.service_secrets(EntityType::OSD);
        let mut server = ServiceAuth::new(self.osd.clone());
        let request = hs.request();
        let modes = request.raw_modes();
        let counter = &mut self.counter;
        let entropy = &mut |b: &mut [u8]| fill(counter, b);
        let method = request.method.raw();
        let mut step = server.request(&secrets, method, &modes, &request.payload, entropy);
        if let Step::More(challenge) = &step {
            let answer = hs.more(challenge)?;
            step = server.more(&secrets, &answer, entropy);
        }
        match step {
            Step::Done(granted) => {
                let ours = hs.done(granted.con_mode.raw(), &granted.payload)?;
                same(&ours, &granted.secrets);
                Ok(*granted)
            }
            Step::BadMethod {
                method,
                result,
                allowed_methods,
                allowed_modes,
            } => Err(hs.bad_method(method, result, &allowed_methods, &allowed_modes)),
            Step::More(_) => panic!("a service challenges once"),
        }
    }

    fn renew(
        &mut self,
        client: &mut Client,
        session: &mut MonAuth,
        now: Now,
    ) -> Result<Renewal, AuthError> {
        let front = client.renewal_request(&self.seed(), now).expect("due");
        let counter = &mut self.counter;
        let entropy = &mut |b: &mut [u8]| fill(counter, b);
        let (reply, _) = session.renew(&mut self.keys, &front, now, entropy);
        client.renewal_reply(&reply, now)
    }
}

fn fill(counter: &mut u64, bytes: &mut [u8]) {
    for b in bytes {
        *counter = counter
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        *b = (*counter >> 56) as u8;
    }
}

fn same(a: &Secrets, b: &Secrets) {
    assert_eq!(a.session_key.as_bytes(), b.session_key.as_bytes());
    let (a, b) = (&a.connection_secret, &b.connection_secret);
    assert_eq!(a.as_bytes(), b.as_bytes());
}

fn key(kind: KeyType, byte: u8) -> CryptoKey {
    let secret = Secret::new(vec![byte; kind.secret_len()]);
    CryptoKey::new(kind, UTime::default(), secret).unwrap()
}

fn client(key: &CryptoKey) -> Client {
    Client::new(ClientConfig::new(AuthName::client("vm"), Some(key.clone()))).unwrap()
}

const KINDS: [KeyType; 2] = [KeyType::Aes, KeyType::Aes256k];

#[test]
fn both_key_types_log_in_with_both_service_ciphers() {
    for kind in KINDS {
        for service_cipher in KINDS {
            for mode in [ConMode::Crc, ConMode::Secure] {
                let key = key(kind, 1);
                let mut w = World::new(&key, service_cipher);
                w.osd.modes = vec![mode];
                let mut c = client(&key);
                let (_, granted) = w.login(&mut c, at(0)).unwrap();
                assert_eq!(granted.con_mode, ConMode::Secure);
                assert_eq!(granted.secrets.connection_secret.len(), 64);
                assert_eq!(granted.caps.text(), "allow r");
                assert_eq!(c.global_id(), granted.global_id);

                let granted = w.osd(&c).unwrap();
                assert_eq!(granted.name, AuthName::client("vm"));
                assert_eq!(granted.global_id, c.global_id());
                assert_eq!(granted.caps.text(), "allow rwx pool=rbd");
                assert_eq!(granted.con_mode, mode);
                assert_eq!(granted.secrets.connection_secret.len(), mode.secret_len());
                let weaker = kind.min(service_cipher);
                let key_len = granted.secrets.session_key.len();
                assert_eq!(
                    key_len,
                    weaker.secret_len(),
                    "session key of the weaker cipher"
                );
            }
        }
    }
}

#[test]
fn a_wrong_key_an_unknown_user_and_a_forbidden_cipher_are_refused() {
    for kind in KINDS {
        let right = key(kind, 1);
        let refused = |key_type| AuthError::KeyRefused {
            name: AuthName::client("vm"),
            key_type,
        };
        let mut w = World::new(&right, KeyType::Aes256k);
        for wrong in KINDS {
            let result = w.login(&mut client(&key(wrong, 2)), at(0));
            assert_eq!(result.err(), Some(refused(wrong)));
        }
        let mut config = ClientConfig::new(AuthName::client("who"), Some(right.clone()));
        config.methods = vec![Method::Cephx];
        let result = w.login(&mut Client::new(config).unwrap(), at(0));
        assert!(matches!(result.err(), Some(AuthError::KeyRefused { .. })));

        let config = KeyServerConfig {
            allowed_ciphers: KINDS.into_iter().filter(|k| *k != kind).collect(),
            ..KeyServerConfig::default()
        };
        let users = w.keys.users().clone();
        w.keys = KeyServer::new(config, users, at(0), &mut |b| b.fill(3));
        let result = w.login(&mut client(&right), at(0));
        assert_eq!(result.err(), Some(refused(kind)));
    }
}

#[test]
fn methods_and_modes_are_negotiated() {
    let k = key(KeyType::Aes, 1);
    let mut w = World::new(&k, KeyType::Aes);
    // A cluster without cephx takes us with none.
    w.mon.methods = vec![Method::None];
    w.osd.methods = vec![Method::None];
    let mut c = client(&k);
    w.login(&mut c, at(0)).unwrap();
    assert_eq!(c.method(), Some(Method::None));
    let granted = w.osd(&c).unwrap();
    assert_eq!(granted.global_id, c.global_id());
    assert!(granted.caps.allow_all && granted.secrets.session_key.is_empty());
    assert_eq!(c.next_deadline(at(0)), None);
    let id = c.global_id();
    c.session_lost();
    let between = c.service_handshake(EntityType::OSD, &[0; 40]).unwrap();
    assert_eq!(between.request().method, Method::None);
    w.login(&mut c, at(9)).unwrap();
    assert_eq!(c.global_id(), id);

    // Without a key there is only none, and the error says so.
    w.mon.methods = vec![Method::Cephx];
    let config = ClientConfig::new(AuthName::client("vm"), None);
    let e = w.login(&mut Client::new(config.clone()).unwrap(), at(0));
    assert_eq!(
        e.err().unwrap().to_string(),
        "the mon accepts only cephx; there is no key for client.vm (set keyring or key)"
    );
    let config = ClientConfig {
        methods: vec![Method::Cephx],
        ..config
    };
    let e = Client::new(config).err().unwrap();
    assert!(matches!(e, AuthError::NoKey { .. }));

    // No mode in common is no reason to go without cephx.
    w.mon.methods = vec![Method::Cephx, Method::None];
    w.mon.modes = vec![ConMode::Crc];
    let mut config = ClientConfig::new(AuthName::client("vm"), Some(k.clone()));
    config.mon_modes = vec![ConMode::Secure];
    let e = w.login(&mut Client::new(config.clone()).unwrap(), at(0));
    assert_eq!(
        e.err().unwrap().to_string(),
        "the mon accepts only connection modes crc, we offer secure"
    );
    // Nor is a wrong key.
    let e = w.login(&mut client(&key(KeyType::Aes, 2)), at(0)).err();
    assert!(matches!(e, Some(AuthError::KeyRefused { .. })), "{e:?}");

    config.methods = vec![Method::None];
    let e = Client::new(config).err().unwrap();
    assert_eq!(
        e.to_string(),
        "no connection mode is left for auth none: allow crc in ms_mon_client_mode"
    );

    let mut hs = client(&k).mon_handshake(&[0; 40]);
    assert_eq!(
        hs.bad_method(2, -16, &[2], &[1, 2]),
        Err(AuthError::NotReady)
    );
    assert!(hs.bad_method(1, -95, &[2], &[1]).is_err());
}

#[test]
fn tickets_are_renewed_before_they_expire() {
    for kind in KINDS {
        let k = key(kind, 1);
        let mut w = World::new(&k, KeyType::Aes256k);
        let mut c = client(&k);
        let (mut session, _) = w.login(&mut c, at(0)).unwrap();
        assert!(c.renewal_request(&w.seed(), at(0)).is_none());

        // Service tickets after three quarters of an hour.
        let due = 45 * MINUTE;
        assert_eq!(c.next_deadline(at(0)), Some(at(due).mono));
        assert!(!c.renewal_due(at(due - 1)) && c.renewal_due(at(due)));
        assert!(!c.tickets_expired(at(SERVICE_TTL - 1)) && c.tickets_expired(at(SERVICE_TTL)));
        assert_eq!(w.renew(&mut c, &mut session, at(due)), Ok(Renewal::Done));
        assert_eq!(c.next_deadline(at(due)), Some(at(2 * due).mono));
        w.osd(&c).unwrap();

        // Everything at once when the auth ticket is due, its blob sealed with the old key.
        let auth = || c.service_ticket(EntityType::AUTH).unwrap().blob.clone();
        let (before, later) = (auth(), 8 * HOUR);
        w.rotate(at(later));
        assert_eq!(w.renew(&mut c, &mut session, at(later)), Ok(Renewal::Done));
        assert_ne!(c.service_ticket(EntityType::AUTH).unwrap().blob, before);
        assert!(!c.renewal_due(at(later)));
        w.osd(&c).unwrap();

        // The new auth ticket proves the global id to the next monitor.
        let id = c.global_id();
        c.session_lost();
        assert!(!c.renewal_due(at(9 * HOUR)) && c.next_deadline(at(9 * HOUR)).is_none());
        let (_, granted) = w.login(&mut c, at(9 * HOUR)).unwrap();
        assert_eq!((granted.global_id, c.global_id()), (id, id));
    }
}

#[test]
fn one_renewal_is_under_way_at_a_time() {
    let k = key(KeyType::Aes, 1);
    let mut w = World::new(&k, KeyType::Aes);
    let mut c = client(&k);
    let (mut session, _) = w.login(&mut c, at(0)).unwrap();
    c.invalidate_tickets();
    assert_eq!(
        c.service_handshake(EntityType::OSD, &[0; 40]).err(),
        Some(AuthError::NoTicket {
            service: EntityType::OSD
        })
    );
    let lost = c.renewal_request(&w.seed(), at(1));
    assert!(lost.is_some());
    assert!(!c.renewal_due(at(HOUR)) && c.next_deadline(at(HOUR)).is_none());
    // The session ends before the reply: the next one begins by itself with new tickets.
    c.session_lost();
    assert!(c.renewal_reply(&[], at(2)).is_err());
    w.login(&mut c, at(2)).unwrap();
    w.osd(&c).unwrap();
    assert!(!c.renewal_due(at(2)));

    // The reply to a request of a bygone session is not taken.
    let front = lost.unwrap();
    let (reply, _) = session.renew(&mut w.keys, &front, at(3), &mut |b| b.fill(9));
    assert!(matches!(
        c.renewal_reply(&reply, at(3)),
        Err(AuthError::OutOfOrder { .. })
    ));
}

#[test]
fn a_monitor_without_tickets_is_not_asked_in_a_circle() {
    let k = key(KeyType::Aes, 1);
    let mut w = World::new(&k, KeyType::Aes);
    let mut c = client(&k);
    let (mut session, _) = w.login(&mut c, at(0)).unwrap();
    let due = 50 * MINUTE;
    c.renewal_request(&w.seed(), at(due)).unwrap();
    let mut payload = Vec::new();
    wire::put_response_header(&mut payload, wire::GET_PRINCIPAL_SESSION_KEY, 0);
    payload.put_u8(1);
    payload.put_u32(0);
    let mut reply = Vec::new();
    AuthReply {
        method: 2,
        result: 0,
        global_id: c.global_id(),
        payload: &payload,
    }
    .encode(&mut reply);
    assert_eq!(c.renewal_reply(&reply, at(due)), Ok(Renewal::Done));
    assert!(!c.renewal_due(at(due)) && !c.renewal_due(at(due + 4)));
    assert_eq!(c.next_deadline(at(due)), Some(at(due + 5).mono));
    assert_eq!(
        w.renew(&mut c, &mut session, at(due + 5)),
        Ok(Renewal::Done)
    );
}

#[test]
fn an_osd_that_refuses_an_old_ticket_gets_a_new_one() {
    let k = key(KeyType::Aes256k, 1);
    let mut w = World::new(&k, KeyType::Aes256k);
    let mut c = client(&k);
    let (mut session, _) = w.login(&mut c, at(0)).unwrap();
    // The host slept: to our monotonic clock the ticket is fresh, its secret is long gone.
    let woke = Now {
        mono: at(10).mono,
        ..at(31 * HOUR)
    };
    while w.rotate(woke) {}
    let mut hs = w.osd_handshake(&c);
    assert_eq!(
        w.osd_login(&mut hs).err().unwrap().to_string(),
        "the osd refused our ticket (access denied (EACCES))"
    );
    assert!(!c.renewal_due(woke));
    c.service_refused(&hs);
    assert!(c.renewal_due(woke));
    assert!(c.service_handshake(EntityType::OSD, &[0; 40]).is_err());
    // The auth ticket has aged as well: the monitor ends the session, the identity stays.
    let refused = w.renew(&mut c, &mut session, woke);
    assert!(matches!(
        refused,
        Err(AuthError::Refused { result: -13, .. })
    ));

    // A monitor that still knows us gives a new one.
    let mut w = World::new(&k, KeyType::Aes256k);
    let mut c = client(&k);
    let (mut session, _) = w.login(&mut c, at(0)).unwrap();
    let woke = Now {
        mono: at(10).mono,
        ..at(3 * HOUR)
    };
    while w.rotate(woke) {}
    let mut hs = w.osd_handshake(&c);
    let refused = w.osd_login(&mut hs);
    assert!(matches!(refused, Err(AuthError::TicketRefused { .. })));
    c.service_refused(&hs);
    assert_eq!(w.renew(&mut c, &mut session, woke), Ok(Renewal::Done));
    w.osd(&c).unwrap();
    // Late news about the old ticket does not harm the new one.
    c.service_refused(&hs);
    let soon = |millis: u64| Now {
        mono: woke.mono + millis * 1_000_000,
        ..woke
    };
    assert!(!c.renewal_due(soon(1_000)));
    // An OSD that refuses the new one as well costs the monitor a request a second at most.
    c.service_refused(&w.osd_handshake(&c));
    assert!(!c.renewal_due(soon(999)) && c.renewal_due(soon(1_000)));
    assert_eq!(c.next_deadline(woke), Some(soon(1_000).mono));
}

#[test]
fn a_global_id_is_kept_only_by_its_owner() {
    let k = key(KeyType::Aes256k, 1);
    let mut w = World::new(&k, KeyType::Aes256k);
    let mut owner = client(&k);
    w.login(&mut owner, at(0)).unwrap();
    let id = owner.global_id();

    // Another process of the same user has a ticket, but for another id.
    let mut thief = client(&k);
    w.login(&mut thief, at(0)).unwrap();
    assert_ne!(thief.global_id(), id);
    thief.claim(id);
    let refused = w.login(&mut thief, at(1)).err();
    let expected = AuthError::ReclaimRefused {
        name: AuthName::client("vm"),
        global_id: id,
    };
    assert_eq!(refused, Some(expected.clone()));
    // A ticketless newcomer gets no further.
    let mut stranger = client(&k);
    stranger.claim(id);
    assert_eq!(w.login(&mut stranger, at(1)).err(), Some(expected.clone()));

    // The owner comes back, twice, and over a restart of a monitor that saved its state.
    for t in [1, 2] {
        owner.session_lost();
        w.login(&mut owner, at(t)).unwrap();
        assert_eq!(owner.global_id(), id);
    }
    let saved = w.keys.save();
    w.keys = World::new(&k, KeyType::Aes256k).keys;
    w.keys.restore(&saved).unwrap();
    owner.session_lost();
    w.login(&mut owner, at(3)).unwrap();
    assert_eq!(owner.global_id(), id);

    // Away for longer than the monitor remembers: only a new identity is left.
    owner.session_lost();
    let late = at(100 * HOUR);
    while w.rotate(late) {}
    assert_eq!(w.login(&mut owner, late).err(), Some(expected));
    owner.forget();
    w.login(&mut owner, late).unwrap();
    assert!(owner.global_id() != id && owner.global_id() != 0);
}

#[test]
fn an_authorizer_cannot_be_replayed() {
    let k = key(KeyType::Aes256k, 1);
    let mut w = World::new(&k, KeyType::Aes256k);
    let mut c = client(&k);
    w.login(&mut c, at(0)).unwrap();
    let secrets = w.keys.service_secrets(EntityType::OSD);
    let mut n = 77;
    let entropy = &mut |b: &mut [u8]| fill(&mut n, b);
    let seeds = [w.seed(), w.seed()];
    let mut hs = seeds.map(|s| c.service_handshake(EntityType::OSD, &s).unwrap());
    let open = |hs: &ServiceHandshake, entropy: server::Entropy<'_>| {
        let mut server = ServiceAuth::new(w.osd.clone());
        let request = hs.request();
        let step = server.request(&secrets, 2, &request.raw_modes(), &request.payload, entropy);
        match step {
            Step::More(challenge) => (server, challenge),
            other => panic!("{other:?}"),
        }
    };
    let (mut first, challenge) = open(&hs[0], entropy);
    let answer = hs[0].more(&challenge).unwrap();
    let granted = match first.more(&secrets, &answer, entropy) {
        Step::Done(granted) => granted,
        other => panic!("{other:?}"),
    };
    // The challenge is spent, and another connection has another.
    let refused = |step| matches!(step, Step::BadMethod { result: -13, .. });
    assert!(refused(first.more(&secrets, &answer, entropy)));
    let (mut second, challenge) = open(&hs[1], entropy);
    assert!(refused(second.more(&secrets, &answer, entropy)));
    // Nor does a first message pass for an answer.
    let (mut third, _) = open(&hs[1], entropy);
    let request = hs[1].request();
    assert!(refused(third.more(&secrets, &request.payload, entropy)));
    // And the client does not take one service's reply for another's.
    hs[1].more(&challenge).unwrap();
    assert_eq!(
        hs[1].done(1, &granted.payload).err(),
        Some(AuthError::NotProven {
            service: EntityType::OSD
        })
    );
    assert!(
        hs[1].more(&challenge).is_err(),
        "one challenge per connection"
    );
}

#[test]
fn nobody_gets_in_out_of_order() {
    let k = key(KeyType::Aes, 1);
    let mut w = World::new(&k, KeyType::Aes);
    let mut c = client(&k);
    // Refused before the challenge, as a man in the middle without the key would try.
    let mut hs = c.mon_handshake(&w.seed());
    for payload in [&[][..], &[0, 1, 0, 0, 0, 0]] {
        let e = hs.done(4100, 1, payload, at(0)).err();
        assert!(matches!(e, Some(AuthError::OutOfOrder { .. })), "{e:?}");
    }
    let e = hs.done(4100, 3, &[], at(0)).err();
    assert!(matches!(e, Some(AuthError::ModeNotOffered { mode: 3, .. })));
    assert!(hs.more(&[1, 2], at(0)).is_err());
    hs.more(&[1; 9], at(0)).unwrap();
    assert!(hs.more(&[1; 9], at(0)).is_err());

    let (mut session, _) = w.login(&mut c, at(0)).unwrap();
    let mut hs = c.mon_handshake(&w.seed());
    let e = hs.done(c.global_id() + 1, 1, &[], at(0)).err();
    assert!(matches!(e, Some(AuthError::GlobalIdChanged { .. })));
    // A server that was not asked properly either.
    let entropy = &mut |b: &mut [u8]| b.fill(1);
    let mut fresh = MonAuth::new(w.mon.clone());
    let step = fresh.more(&mut w.keys, &[0, 1], at(0), entropy);
    assert!(matches!(step, Step::BadMethod { result: -13, .. }));
    let (_, outcome) = fresh.renew(&mut w.keys, &[], at(0), entropy);
    assert_eq!(outcome, Err(-22));
    let (_, outcome) = session.renew(&mut w.keys, &[0; 30], at(0), entropy);
    assert_eq!(outcome, Err(-22));
}

proptest! {
    /// Any one byte changed on its way: nobody panics, and whoever gets through holds the keys
    /// that the server holds.
    #[test]
    fn tampering_is_noticed(which in 0usize..4, at_byte: usize, flip in 1u8..) {
        let k = key(KeyType::Aes256k, 1);
        let mut w = World::new(&k, KeyType::Aes256k);
        let c = client(&k);
        let tamper = |step: usize, mut bytes: Vec<u8>| {
            if step == which {
                let n = bytes.len();
                bytes[at_byte % n] ^= flip;
            }
            bytes
        };
        let mut hs = c.mon_handshake(&w.seed());
        let mut server = MonAuth::new(w.mon.clone());
        let counter = &mut w.counter;
        let entropy = &mut |b: &mut [u8]| fill(counter, b);
        let request = hs.request();
        let payload = tamper(0, request.payload.clone());
        let modes = request.raw_modes();
        let Step::More(challenge) = server.request(&mut w.keys, 2, &modes, &payload, entropy) else {
            return Ok(());
        };
        let Ok(answer) = hs.more(&tamper(1, challenge), at(0)) else { return Ok(()) };
        let step = server.more(&mut w.keys, &tamper(2, answer), at(0), entropy);
        let Step::Done(granted) = step else { return Ok(()) };
        let mode = granted.con_mode.raw();
        if let Ok(ours) = hs.done(granted.global_id, mode, &tamper(3, granted.payload), at(0)) {
            same(&ours, &granted.secrets);
        }
    }

    #[test]
    fn hostile_peers_never_panic(a: Vec<u8>, b: Vec<u8>, mode in 0u32..4) {
        for kind in KINDS {
            let k = key(kind, 1);
            let mut w = World::new(&k, kind);
            let mut c = client(&k);
            let mut hs = c.mon_handshake(&w.seed());
            let _ = hs.more(&a, at(0));
            prop_assert!(hs.done(4100, mode, &b, at(0)).is_err());
            w.login(&mut c, at(0)).unwrap();
            let seed = w.seed();
            let mut osd = c.service_handshake(EntityType::OSD, &seed).unwrap();
            prop_assert!(osd.more(&a).is_err());
            prop_assert!(osd.done(mode, &b).is_err());
            c.invalidate_tickets();
            c.renewal_request(&seed, at(1)).unwrap();
            prop_assert!(c.renewal_reply(&b, at(1)).is_err());
            let entropy = &mut |b: &mut [u8]| b.fill(5);
            let mut mon = MonAuth::new(w.mon.clone());
            let _ = mon.request(&mut w.keys, 2, &[1, 2], &a, entropy);
            let _ = mon.more(&mut w.keys, &b, at(0), entropy);
            let _ = mon.renew(&mut w.keys, &b, at(0), entropy);
            let secrets = w.keys.service_secrets(EntityType::OSD);
            let mut osd = ServiceAuth::new(w.osd.clone());
            let _ = osd.request(&secrets, 2, &[1, 2], &a, entropy);
            let _ = osd.more(&secrets, &b, entropy);
            w.osd.methods = vec![Method::None];
            let _ = ServiceAuth::new(w.osd.clone()).request(&secrets, 1, &[1], &a, entropy);
        }
    }
}
