//! The NBD handshake, from the client's flags on.

#![no_main]

use libfuzzer_sys::fuzz_target;
use ublk_rbd::frontend::disk::{Discard, DiskInfo};
use ublk_rbd::frontend::nbd::negotiate::{Export, Negotiation, Step, Tls};

fuzz_target!(|data: &[u8]| {
    let [how, piece, stream @ ..] = data else {
        return;
    };
    let export = |name: &str, read_only| Export {
        name: name.into(),
        description: "an image".into(),
        info: DiskInfo {
            size: 1 << 30,
            block_size: 512,
            preferred_io: 4096,
            max_io: 32 << 20,
            read_only,
            discard: Some(Discard {
                granularity: 4096,
                max_len: 1 << 30,
            }),
            fast_zero: !read_only,
        },
    };
    let exports = [export("rbd/a", false), export("", true)];
    let tls = [Tls::Off, Tls::Offered, Tls::Required][usize::from(how % 3)];
    let mut out = Vec::new();
    let mut negotiation = Negotiation::new(tls, &mut out);
    for piece in stream.chunks(usize::from(*piece) + 1) {
        let mut input = piece;
        loop {
            let before = input.len();
            match negotiation.receive(&mut input, &exports, &mut out) {
                Ok(Step::More) => {
                    assert!(input.is_empty());
                    break;
                }
                Ok(Step::StartTls) => {
                    assert_ne!(tls, Tls::Off);
                    negotiation.tls_started();
                }
                Ok(Step::Enter(agreement)) => {
                    assert!(agreement.export < exports.len());
                    return;
                }
                Ok(Step::Close) | Err(_) => return,
            }
            assert!(input.len() < before || input.is_empty());
        }
        // An option names at most a few exports.
        assert!(out.len() <= 64 * (stream.len() + 64));
        if how & 0x80 != 0 {
            negotiation.shut_down();
        }
    }
});
