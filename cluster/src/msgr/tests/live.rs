//! `CEPH_MON=127.0.0.1:3300 cargo test -p cluster msgr::tests::live -- --ignored --nocapture`
//! against a monitor of a real cluster with `auth_client_required = none`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant, SystemTime};

use crate::codec::{Put, Reader};

use super::super::{MsgHeader, OutBatch};
use super::*;

/// `AUTH_MODE_MON` and `CEPH_AUTH_NONE` (`src/auth/Auth.h`, `src/include/ceph_fs.h`).
const AUTH_MODE_MON: u8 = 10;
const AUTH_NONE: u32 = 1;
const MSG_MON_MAP: u16 = 4;
const MSG_MON_GET_MAP: u16 = 5;
const MSG_MON_GET_VERSION: u16 = 19;
const MSG_MON_GET_VERSION_REPLY: u16 = 20;

/// A connection and its socket.
struct Dial {
    conn: Connection,
    socket: TcpStream,
    batch: OutBatch,
    start: Instant,
}

impl Dial {
    fn new(addr: SocketAddr) -> Dial {
        let socket = TcpStream::connect(addr).unwrap();
        let timeout = Some(Duration::from_secs(5));
        socket.set_read_timeout(timeout).unwrap();
        let mut cfg = client_config();
        cfg.me.num = -1;
        let peer = EntityAddr::msgr2(addr, 0);
        let mut dial = Dial {
            conn: Connection::client(cfg, peer, EntityType::MON),
            socket,
            batch: OutBatch::new(),
            start: Instant::now(),
        };
        let now = dial.now();
        dial.conn.start(now);
        dial
    }

    fn now(&self) -> Now {
        let wall = SystemTime::UNIX_EPOCH.elapsed().unwrap();
        Now {
            mono: self.start.elapsed().as_nanos() as u64,
            wall: wall.as_nanos() as u64,
        }
    }

    /// Runs until `done` says so about an event.
    fn until(&mut self, mut done: impl FnMut(&Event<'_>) -> bool) {
        let mut buf = vec![0; 1 << 16];
        loop {
            self.conn.take_output(&mut self.batch);
            for slice in self.batch.slices() {
                self.socket.write_all(slice).unwrap();
            }
            self.batch.clear();
            let n = self.socket.read(&mut buf).unwrap();
            assert!(n > 0, "the monitor hung up");
            let now = self.now();
            let mut input = &buf[..n];
            let mut finished = false;
            loop {
                let (request, finish) = match self.conn.next_event(&mut input, now).unwrap() {
                    None => break,
                    Some(e) => {
                        println!("{e:?}");
                        finished |= done(&e);
                        let request = matches!(e, Event::AuthStart);
                        (request, matches!(e, Event::AuthDone { .. }))
                    }
                };
                if request {
                    let mut payload = vec![AUTH_MODE_MON];
                    payload.put_u32(u32::from(EntityType::CLIENT.0));
                    payload.put_string("admin");
                    payload.put_u64(0);
                    let modes = [CON_MODE_CRC];
                    self.conn.auth_request(AUTH_NONE, &modes, &payload).unwrap();
                }
                if finish {
                    self.conn.auth_finish(&[], &[]).unwrap();
                }
            }
            if finished {
                return;
            }
        }
    }
}

#[test]
#[ignore = "needs a real monitor, named by CEPH_MON"]
fn a_real_monitor_answers() {
    let addr = std::env::var("CEPH_MON").expect("CEPH_MON=ip:port");
    let mut dial = Dial::new(addr.parse().unwrap());
    dial.until(|e| matches!(e, Event::Ready(r) if r.peer.kind == EntityType::MON && r.lossy));
    let header = MsgHeader::new(MSG_MON_GET_MAP, 1, 1);
    dial.conn.send(&header, |_| (), &[], &[]).unwrap();
    dial.until(|e| matches!(e, Event::Message(m) if m.header.kind == MSG_MON_MAP));

    let header = MsgHeader {
        tid: 77,
        ..MsgHeader::new(MSG_MON_GET_VERSION, 1, 0)
    };
    let front = |b: &mut Vec<u8>| {
        b.put_u64(77);
        b.put_string("osdmap");
    };
    dial.conn.send(&header, front, &[], &[]).unwrap();
    let mut newest = 0;
    dial.until(|e| match e {
        Event::Message(m) if m.header.kind == MSG_MON_GET_VERSION_REPLY => {
            let mut r = Reader::new(m.front);
            assert_eq!(r.u64().unwrap(), 77);
            newest = r.u64().unwrap();
            true
        }
        _ => false,
    });
    println!("newest osdmap: {newest}");
    assert!(newest > 0);

    let now = dial.now();
    dial.conn.keepalive(now);
    dial.until(|e| matches!(e, Event::KeepaliveAck(_)));
    let ack = dial.conn.last_keepalive_ack().unwrap();
    assert_eq!(ack.as_nanos(), now.wall);
}
