//! A byte stream from its banner on, in both roles.

#![no_main]

use cluster::codec::{EntityType, Now};
use cluster::msgr::{Connection, Policy};
use fuzz::{Mode, NOW, SECOND, addr, client_config, feed, server_config};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let [how, piece, stream @ ..] = data else {
        return;
    };
    let mode = Mode::of(how & 1 != 0);
    let lossless = how & 2 != 0;
    let mut conn = if how & 4 != 0 {
        let mut config = server_config(EntityType::OSD, 3);
        if lossless {
            config.policy = Policy::LOSSLESS_PEER;
        }
        Connection::server(config, addr(2))
    } else {
        let mut config = client_config();
        if lossless {
            config.policy = Policy::LOSSLESS_CLIENT;
        }
        Connection::client(config, addr(1), EntityType(how >> 3))
    };
    conn.start(NOW);
    for piece in stream.chunks(usize::from(*piece) + 1) {
        if feed(&mut conn, piece, mode, |_| ()).is_err() {
            break;
        }
        assert!(fuzz::output(&mut conn).len() < 4 << 20);
    }
    let later = Now {
        mono: NOW.mono + 60 * SECOND,
        ..NOW
    };
    let _ = conn.tick(later);
    if conn.lost() {
        let _ = conn.reconnect(7, later);
        let _ = feed(&mut conn, stream, mode, |_| ());
    }
});
