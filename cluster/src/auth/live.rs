//! Against a running cluster: logs in to a monitor, renews over the session, comes back with the
//! same global id, shows its tickets to an OSD.
//!
//! ```text
//! CEPH_TEST_MON=127.0.0.1:3300 CEPH_TEST_OSD=127.0.0.1:6800 CEPH_TEST_KEYRING=keyring \
//!     cargo test -p cluster auth::live -- --ignored
//! ```

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::*;
use crate::codec::{EntityAddr, EntityAddrVec, EntityType, Now, Put, Reader};

const HELLO: u8 = 1;
const AUTH_REQUEST: u8 = 2;
const AUTH_BAD_METHOD: u8 = 3;
const AUTH_REPLY_MORE: u8 = 4;
const AUTH_REQUEST_MORE: u8 = 5;
const AUTH_DONE: u8 = 6;
const AUTH_SIGNATURE: u8 = 7;
const CLIENT_IDENT: u8 = 8;
const SERVER_IDENT: u8 = 9;
const MESSAGE: u8 = 17;

/// Blocking msgr2.1 in crc mode, just enough to carry a handshake and one message each way.
struct Wire {
    stream: TcpStream,
    peer: SocketAddr,
    sent: Vec<u8>,
    received: Vec<u8>,
}

impl Wire {
    fn connect(peer: SocketAddr) -> Wire {
        let stream = TcpStream::connect(peer).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        let mut wire = Wire {
            stream,
            peer,
            sent: Vec::new(),
            received: Vec::new(),
        };
        let mut banner = b"ceph v2\n".to_vec();
        banner.put_u16(16);
        banner.put_u64(1);
        banner.put_u64(0);
        wire.write(&banner);
        let banner = wire.read(26);
        assert_eq!(&banner[..8], b"ceph v2\n");
        let mut hello = Vec::new();
        hello.put_u8(EntityType::CLIENT.0);
        EntityAddr::msgr2(peer, 0).encode(&mut hello);
        wire.send(HELLO, &[&hello]);
        wire.expect(HELLO);
        wire
    }

    fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
        self.sent.extend_from_slice(bytes);
    }

    fn read(&mut self, n: usize) -> Vec<u8> {
        let mut bytes = vec![0; n];
        self.stream.read_exact(&mut bytes).unwrap();
        self.received.extend_from_slice(&bytes);
        bytes
    }

    /// Ceph's CRCs are not inverted at the end.
    fn crc(seed: u32, bytes: &[u8]) -> u32 {
        !crc32c::crc32c_append(!seed, bytes)
    }

    fn send(&mut self, tag: u8, segments: &[&[u8]]) {
        let mut out = vec![tag, segments.len() as u8];
        for i in 0..4 {
            out.put_u32(segments.get(i).map_or(0, |s| s.len() as u32));
            out.put_u16(if i < segments.len() { 8 } else { 0 });
        }
        out.put_u16(0);
        let crc = Wire::crc(0, &out);
        out.put_u32(crc);
        out.put_bytes(segments[0]);
        out.put_u32(Wire::crc(!0, segments[0]));
        for segment in &segments[1..] {
            out.put_bytes(segment);
        }
        if segments.len() > 1 {
            out.put_u8(0xe);
            for i in 1..4 {
                out.put_u32(segments.get(i).map_or(0, |s| Wire::crc(!0, s)));
            }
        }
        self.write(&out);
    }

    fn receive(&mut self) -> (u8, Vec<Vec<u8>>) {
        let preamble = self.read(32);
        let count = usize::from(preamble[1]);
        let mut lengths = Reader::new(&preamble[2..]);
        let mut segments = Vec::new();
        for i in 0..count {
            let len = lengths.u32().unwrap() as usize;
            lengths.skip(2).unwrap();
            segments.push(self.read(len));
            if i == 0 && len > 0 {
                self.read(4);
            }
        }
        if count > 1 {
            self.read(13);
        }
        (preamble[0], segments)
    }

    fn expect(&mut self, tag: u8) -> Vec<u8> {
        let (got, mut segments) = self.receive();
        assert_eq!(got, tag, "{segments:?}");
        segments.swap_remove(0)
    }

    fn send_request(&mut self, request: &AuthRequest) {
        let mut out = Vec::new();
        out.put_u32(request.method.raw());
        out.put_list(request.raw_modes().iter(), |out, m| out.put_u32(*m));
        out.put_blob(&request.payload);
        self.send(AUTH_REQUEST, &[&out]);
    }

    /// After AUTH_DONE both sides sign what they received.
    fn sign(&mut self, secrets: &Secrets, received: &[u8], sent: &[u8]) {
        let key = secrets.session_key.as_bytes();
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, key);
        let signature = ring::hmac::sign(&key, received);
        self.send(AUTH_SIGNATURE, &[signature.as_ref()]);
        let theirs = self.expect(AUTH_SIGNATURE);
        assert_eq!(theirs, ring::hmac::sign(&key, sent).as_ref());
    }

    fn authenticate_to_mon(&mut self, client: &mut Client, seed: &Seed) -> Result<(), AuthError> {
        let mut hs = client.mon_handshake(seed);
        self.send_request(&hs.request());
        loop {
            let (tag, segments) = self.receive();
            let mut r = Reader::new(&segments[0]);
            match tag {
                AUTH_BAD_METHOD => {
                    let (method, result) = (r.u32().unwrap(), r.i32().unwrap());
                    let methods = r.list(4, |r| r.u32()).unwrap();
                    let modes = r.list(4, |r| r.u32()).unwrap();
                    let next = hs.bad_method(method, result, &methods, &modes)?;
                    self.send_request(&next);
                }
                AUTH_REPLY_MORE => {
                    let mut out = Vec::new();
                    out.put_blob(&hs.more(r.blob().unwrap(), now())?);
                    self.send(AUTH_REQUEST_MORE, &[&out]);
                }
                AUTH_DONE => {
                    let (id, mode) = (r.u64().unwrap(), r.u32().unwrap());
                    let secrets = hs.done(id, mode, r.blob().unwrap(), now())?;
                    let (received, sent) = (self.received.clone(), self.sent.clone());
                    self.sign(&secrets, &received, &sent);
                    client.adopt(hs);
                    return Ok(());
                }
                tag => panic!("unexpected frame {tag}"),
            }
        }
    }

    fn authenticate_to_osd(&mut self, client: &Client, seed: &Seed) -> Result<(), AuthError> {
        let mut hs = client.service_handshake(EntityType::OSD, seed)?;
        self.send_request(&hs.request());
        loop {
            let (tag, segments) = self.receive();
            let mut r = Reader::new(&segments[0]);
            match tag {
                AUTH_REPLY_MORE => {
                    let mut out = Vec::new();
                    out.put_blob(&hs.more(r.blob().unwrap())?);
                    self.send(AUTH_REQUEST_MORE, &[&out]);
                }
                AUTH_DONE => {
                    let (id, mode) = (r.u64().unwrap(), r.u32().unwrap());
                    assert_eq!(id, client.global_id());
                    let secrets = hs.done(mode, r.blob().unwrap())?;
                    let (received, sent) = (self.received.clone(), self.sent.clone());
                    self.sign(&secrets, &received, &sent);
                    return Ok(());
                }
                AUTH_BAD_METHOD => {
                    let (method, result) = (r.u32().unwrap(), r.i32().unwrap());
                    let methods = r.list(4, |r| r.u32()).unwrap();
                    let modes = r.list(4, |r| r.u32()).unwrap();
                    return Err(hs.bad_method(method, result, &methods, &modes));
                }
                tag => panic!("unexpected frame {tag}"),
            }
        }
    }

    fn identify(&mut self) {
        let mut out = Vec::new();
        let me = EntityAddr::msgr2(self.stream.local_addr().unwrap(), 77);
        EntityAddrVec(vec![me]).encode(&mut out);
        EntityAddr::msgr2(self.peer, 0).encode(&mut out);
        out.put_i64(-1);
        out.put_u64(1);
        out.put_u64(0x3f01_cfbd_fffd_ffff);
        out.put_u64(0);
        out.put_u64(1);
        out.put_u64(0);
        self.send(CLIENT_IDENT, &[&out]);
        self.expect(SERVER_IDENT);
    }

    /// Sends an `MAuth` and returns the front of the reply.
    fn exchange(&mut self, seq: u64, front: &[u8]) -> Vec<u8> {
        let mut header = Vec::new();
        header.put_u64(seq);
        header.put_u64(0);
        header.put_u16(MSG_AUTH);
        header.put_u16(127);
        header.put_u16(1);
        header.put_bytes(&[0; 4 + 2 + 8 + 1]);
        header.put_u16(1);
        header.put_u16(0);
        self.send(MESSAGE, &[&header, front]);
        loop {
            let (tag, mut segments) = self.receive();
            if tag == MESSAGE && segments[0][16..18] == MSG_AUTH_REPLY.to_le_bytes() {
                return segments.swap_remove(1);
            }
        }
    }
}

fn now() -> Now {
    Now { mono: 1, wall: 1 }
}

fn setting(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("set {name}"))
}

fn new_client(key: CryptoKey) -> Client {
    let mut config = ClientConfig::new(AuthName::client("admin"), Some(key));
    // Frames in the clear are all that this test speaks.
    config.mon_modes = vec![ConMode::Crc];
    config.client_modes = vec![ConMode::Crc];
    Client::new(config).unwrap()
}

#[test]
#[ignore = "needs a cluster: see the module's comment"]
fn a_real_cluster_lets_us_in_and_renews() {
    let mon: SocketAddr = setting("CEPH_TEST_MON").parse().unwrap();
    let osd: SocketAddr = setting("CEPH_TEST_OSD").parse().unwrap();
    let file = setting("CEPH_TEST_KEYRING");
    let ring = Keyring::parse(&file, &std::fs::read(&file).unwrap()).unwrap();
    let key = ring.get(&AuthName::client("admin")).unwrap().clone();
    let kind = key.kind();
    let mut client = new_client(key);
    let mut wire = Wire::connect(mon);
    wire.authenticate_to_mon(&mut client, &[1; 40]).unwrap();
    wire.identify();
    let id = client.global_id();
    let show = |client: &Client| {
        let mut wire = Wire::connect(osd);
        wire.authenticate_to_osd(client, &[9; 40]).unwrap();
    };
    show(&client);

    // A service's ticket by showing the auth ticket.
    let refused = client.service_handshake(EntityType::OSD, &[2; 40]).unwrap();
    client.service_refused(&refused);
    assert!(client.service_handshake(EntityType::OSD, &[2; 40]).is_err());
    let front = client.renewal_request(&[3; 40], now()).unwrap();
    let reply = wire.exchange(1, &front);
    assert_eq!(client.renewal_reply(&reply, now()), Ok(Renewal::Done));
    show(&client);

    // All tickets, the auth ticket sealed with the key of the one before.
    client.invalidate_tickets();
    let front = client.renewal_request(&[4; 40], now()).unwrap();
    let reply = wire.exchange(2, &front);
    assert_eq!(client.renewal_reply(&reply, now()), Ok(Renewal::Done));
    assert!(!client.renewal_due(now()));
    show(&client);

    // Another session keeps the global id.
    client.session_lost();
    drop(wire);
    let mut wire = Wire::connect(mon);
    wire.authenticate_to_mon(&mut client, &[5; 40]).unwrap();
    wire.identify();
    assert_eq!(client.global_id(), id);
    show(&client);

    // Without its ticket nobody keeps it.
    let mut thief = new_client(ring.get(client.name()).unwrap().clone());
    thief.claim(id);
    let refused = Wire::connect(mon).authenticate_to_mon(&mut thief, &[6; 40]);
    assert!(matches!(refused, Err(AuthError::ReclaimRefused { .. })));

    let secret = Secret::new(vec![1; kind.secret_len()]);
    let wrong = CryptoKey::new(kind, Default::default(), secret).unwrap();
    let mut wrong = new_client(wrong);
    let refused = Wire::connect(mon).authenticate_to_mon(&mut wrong, &[7; 40]);
    assert!(matches!(refused, Err(AuthError::KeyRefused { .. })));
}
