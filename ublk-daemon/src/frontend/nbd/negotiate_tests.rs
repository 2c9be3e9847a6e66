use super::*;
use crate::frontend::disk::Discard;
use proptest::prelude::*;

fn disk() -> DiskInfo {
    DiskInfo {
        size: 1 << 30,
        block_size: 1,
        preferred_io: 4 << 20,
        max_io: 32 << 20,
        read_only: false,
        discard: Some(Discard {
            granularity: 64 << 10,
            max_len: u64::MAX,
        }),
        fast_zero: false,
    }
}

fn exports(names: &[&str]) -> Vec<Export> {
    names
        .iter()
        .map(|name| Export {
            name: (*name).to_owned(),
            description: format!("about {name}"),
            info: disk(),
        })
        .collect()
}

/// A client that writes options and reads replies.
struct Peer {
    server: Negotiation,
    exports: Vec<Export>,
}

type Replies = Vec<(u32, u32, Vec<u8>)>;

impl Peer {
    fn new(names: &[&str], tls: Tls, client_flags: u32) -> Peer {
        let mut out = Vec::new();
        let mut server = Negotiation::new(tls, &mut out);
        assert_eq!(&out[..8], b"NBDMAGIC");
        assert_eq!(&out[8..16], b"IHAVEOPT");
        assert_eq!(out[16..], [0, 3]);
        let exports = exports(names);
        let flags = client_flags.to_be_bytes();
        let step = server.receive(&mut &flags[..], &exports, &mut Vec::new());
        assert_eq!(step, Ok(Step::More));
        Peer { server, exports }
    }

    fn fixed(names: &[&str]) -> Peer {
        Peer::new(names, Tls::Off, 3)
    }

    fn raw(&mut self, bytes: &[u8]) -> (Result<Step, NegotiationError>, Vec<u8>) {
        let mut out = Vec::new();
        let mut input = bytes;
        let step = self.server.receive(&mut input, &self.exports, &mut out);
        if step.is_ok() {
            assert!(input.is_empty());
        }
        (step, out)
    }

    fn option(&mut self, option: u32, data: &[u8]) -> (Result<Step, NegotiationError>, Replies) {
        let (step, out) = self.raw(&encode(option, data));
        (step, parse(&out))
    }

    /// The types of the replies to an option that leaves the handshake going.
    fn kinds(&mut self, option: u32, data: &[u8]) -> Vec<u32> {
        let (step, replies) = self.option(option, data);
        assert_eq!(step, Ok(Step::More));
        assert!(replies.iter().all(|r| r.0 == option));
        replies.iter().map(|r| r.1).collect()
    }

    fn enter(&mut self, option: u32, data: &[u8]) -> Agreement {
        match self.option(option, data).0 {
            Ok(Step::Enter(agreement)) => agreement,
            other => panic!("no transmission phase: {other:?}"),
        }
    }
}

fn encode(option: u32, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    out.put64(wire::IHAVEOPT);
    out.put32(option);
    out.put32(data.len() as u32);
    out.extend_from_slice(data);
    out
}

fn parse(bytes: &[u8]) -> Replies {
    let mut fields = Fields(bytes);
    let mut replies = Vec::new();
    while !fields.is_empty() {
        assert_eq!(fields.u64(), Some(wire::REPLY_MAGIC));
        let (option, kind) = (fields.u32().unwrap(), fields.u32().unwrap());
        replies.push((option, kind, fields.string().unwrap().to_vec()));
    }
    replies
}

fn go(name: &str, wanted: &[u16]) -> Vec<u8> {
    let mut data = Vec::new();
    data.put32(name.len() as u32);
    data.extend_from_slice(name.as_bytes());
    data.put16(wanted.len() as u16);
    for kind in wanted {
        data.put16(*kind);
    }
    data
}

fn queries(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = Vec::new();
    data.put32(name.len() as u32);
    data.extend_from_slice(name.as_bytes());
    data.put32(queries.len() as u32);
    for q in queries {
        data.put32(q.len() as u32);
        data.extend_from_slice(q.as_bytes());
    }
    data
}

#[test]
fn go_tells_size_flags_block_sizes_and_names() {
    let mut peer = Peer::fixed(&["vm1", "vm2"]);
    let data = go(
        "vm2",
        &[info::NAME, info::DESCRIPTION, 77, info::BLOCK_SIZE],
    );
    let (step, replies) = peer.option(opt::GO, &data);
    let Ok(Step::Enter(agreement)) = step else {
        panic!("{step:?}");
    };
    assert_eq!(agreement.export, 1);
    assert_eq!(agreement.reply, ReplyStyle::Simple);
    assert!(!agreement.allocation);
    let mut export = vec![0, 0];
    export.put64(1 << 30);
    export.put16(agreement.flags);
    let mut sizes = vec![0, 3];
    sizes.put32(1);
    sizes.put32(4 << 20);
    sizes.put32(32 << 20);
    assert_eq!(
        replies,
        vec![
            (opt::GO, rep::INFO, export),
            (opt::GO, rep::INFO, sizes),
            (opt::GO, rep::INFO, b"\0\x01vm2".to_vec()),
            (opt::GO, rep::INFO, b"\0\x02about vm2".to_vec()),
            (opt::GO, rep::ACK, vec![]),
        ]
    );
    assert_eq!(
        agreement.flags,
        flag::HAS_FLAGS
            | flag::SEND_FLUSH
            | flag::SEND_FUA
            | flag::SEND_TRIM
            | flag::SEND_WRITE_ZEROES
            | flag::CAN_MULTI_CONN
            | flag::SEND_CACHE
    );
}

#[test]
fn info_answers_as_go_and_stays() {
    let mut peer = Peer::fixed(&["vm1"]);
    let (step, from_info) = peer.option(opt::INFO, &go("", &[info::NAME]));
    assert_eq!(step, Ok(Step::More));
    let (step, from_go) = peer.option(opt::GO, &go("", &[info::NAME]));
    assert!(matches!(step, Ok(Step::Enter(_))));
    let bodies = |r: Replies| r.into_iter().map(|r| (r.1, r.2)).collect::<Vec<_>>();
    assert_eq!(bodies(from_info), bodies(from_go));
}

#[test]
fn the_empty_name_is_the_only_export_or_none() {
    assert_eq!(Peer::fixed(&["a"]).enter(opt::GO, &go("", &[])).export, 0);
    let mut two = Peer::fixed(&["a", "b"]);
    assert_eq!(two.kinds(opt::GO, &go("", &[])), [rep::ERR_UNKNOWN]);
    assert_eq!(two.kinds(opt::GO, &go("c", &[])), [rep::ERR_UNKNOWN]);
    let mut named_empty = Peer::fixed(&["a", ""]);
    assert_eq!(named_empty.enter(opt::GO, &go("", &[])).export, 1);
}

#[test]
fn export_name_pads_unless_told_not_to() {
    for (flags, len) in [(3, 10), (1, 134), (0, 134), (2, 10)] {
        let mut peer = Peer::new(&["vm"], Tls::Off, flags);
        let (step, out) = peer.raw(&encode(opt::EXPORT_NAME, b"vm"));
        assert!(matches!(step, Ok(Step::Enter(_))));
        assert_eq!(out.len(), len);
        assert_eq!(out[..8], (1u64 << 30).to_be_bytes());
    }
    let mut peer = Peer::fixed(&["vm"]);
    let (step, _) = peer.raw(&encode(opt::EXPORT_NAME, b"other"));
    assert_eq!(step, Err(NegotiationError::NoSuchExport));
}

#[test]
fn without_fixed_newstyle_only_export_name_is_taken() {
    let mut peer = Peer::new(&["vm"], Tls::Off, 0);
    let (step, _) = peer.raw(&encode(opt::LIST, b""));
    assert_eq!(step, Err(NegotiationError::NotFixed(opt::LIST)));
}

#[test]
fn unknown_client_flags_end_it() {
    let mut server = Negotiation::new(Tls::Off, &mut Vec::new());
    let step = server.receive(&mut &[0, 0, 0, 4][..], &[], &mut Vec::new());
    assert_eq!(step, Err(NegotiationError::ClientFlags(4)));
}

#[test]
fn list_names_every_export() {
    let mut peer = Peer::fixed(&["a", "bc"]);
    let (_, replies) = peer.option(opt::LIST, b"");
    assert_eq!(replies[0].2, b"\0\0\0\x01aabout a");
    assert_eq!(replies[1].2, b"\0\0\0\x02bcabout bc");
    assert_eq!(replies[2].1, rep::ACK);
    assert_eq!(peer.kinds(opt::LIST, b"x"), [rep::ERR_INVALID]);
}

#[test]
fn unknown_options_are_refused_and_skipped() {
    let mut peer = Peer::fixed(&["a"]);
    assert_eq!(peer.kinds(4, b""), [rep::ERR_UNSUP]);
    assert_eq!(peer.kinds(0xdead_beef, &[7; 1000]), [rep::ERR_UNSUP]);
    assert_eq!(
        peer.kinds(99, &vec![7; MAX_OPTION_DATA + 1]),
        [rep::ERR_TOO_BIG]
    );
    assert_eq!(peer.kinds(opt::LIST, b"").last(), Some(&rep::ACK));
    let (step, replies) = peer.option(opt::ABORT, b"bye");
    assert_eq!(step, Ok(Step::Close));
    assert_eq!(replies[0].1, rep::ACK);
}

#[test]
fn floods_end_the_connection() {
    let mut peer = Peer::fixed(&["a"]);
    let mut header = Vec::new();
    header.put64(wire::IHAVEOPT);
    header.put32(99);
    header.put32(u32::MAX);
    assert_eq!(
        peer.raw(&header).0,
        Err(NegotiationError::TooLong {
            option: 99,
            len: u32::MAX
        })
    );
    let mut peer = Peer::fixed(&["a"]);
    for _ in 0..MAX_OPTIONS {
        peer.kinds(99, b"");
    }
    assert_eq!(peer.raw(&encode(99, b"")).0, Err(NegotiationError::TooMany));
    let mut peer = Peer::fixed(&["a"]);
    assert!(matches!(
        peer.raw(&encode(opt::EXPORT_NAME, &[b'a'; MAX_STRING + 1]))
            .0,
        Err(NegotiationError::TooLong { .. })
    ));
    let mut peer = Peer::fixed(&["a"]);
    assert!(matches!(
        peer.raw(&[0; 16]).0,
        Err(NegotiationError::Magic(0))
    ));
}

#[test]
fn contexts_need_structured_replies_first() {
    let mut peer = Peer::fixed(&["a"]);
    let q = queries("a", &["base:allocation"]);
    assert_eq!(peer.kinds(opt::SET_META_CONTEXT, &q), [rep::ERR_INVALID]);
    assert_eq!(peer.kinds(opt::LIST_META_CONTEXT, &q), [rep::ERR_INVALID]);
    assert_eq!(peer.kinds(opt::STRUCTURED_REPLY, b"x"), [rep::ERR_INVALID]);
    assert_eq!(peer.kinds(opt::STRUCTURED_REPLY, b""), [rep::ACK]);
    let (_, replies) = peer.option(opt::SET_META_CONTEXT, &q);
    assert_eq!(replies[0].1, rep::META_CONTEXT);
    assert_eq!(replies[0].2, b"\0\0\0\x01base:allocation");
    let agreement = peer.enter(opt::GO, &go("a", &[]));
    assert!(agreement.allocation);
    assert_eq!(agreement.reply, ReplyStyle::Structured);
    assert_ne!(agreement.flags & flag::SEND_DF, 0);
    assert_eq!(agreement.flags & flag::BLOCK_STATUS_PAYLOAD, 0);
}

#[test]
fn wildcards_list_and_do_not_select() {
    let mut peer = Peer::fixed(&["a"]);
    peer.kinds(opt::STRUCTURED_REPLY, b"");
    let listed = [rep::META_CONTEXT, rep::ACK];
    for q in [&[][..], &["base:"], &["x-y:z", "base:allocation"]] {
        assert_eq!(peer.kinds(opt::LIST_META_CONTEXT, &queries("a", q)), listed);
    }
    for q in [&["qemu:dirty-bitmap:b"][..], &["base:other"], &["nonsense"]] {
        for option in [opt::LIST_META_CONTEXT, opt::SET_META_CONTEXT] {
            assert_eq!(peer.kinds(option, &queries("a", q)), [rep::ACK]);
        }
    }
    for q in [&[][..], &["base:"]] {
        assert_eq!(
            peer.kinds(opt::SET_META_CONTEXT, &queries("a", q)),
            [rep::ACK]
        );
    }
    // Asked for twice, selected once.
    let twice = queries("a", &["base:allocation", "base:allocation"]);
    assert_eq!(peer.kinds(opt::SET_META_CONTEXT, &twice), listed);
    assert!(peer.enter(opt::GO, &go("a", &[])).allocation);
}

#[test]
fn a_context_belongs_to_its_export_and_the_last_request_counts() {
    let structured = |names| {
        let mut peer = Peer::fixed(names);
        peer.kinds(opt::STRUCTURED_REPLY, b"");
        peer.kinds(opt::SET_META_CONTEXT, &queries("a", &["base:allocation"]));
        peer
    };
    assert!(
        !structured(&["a", "b"])
            .enter(opt::GO, &go("b", &[]))
            .allocation
    );
    let mut peer = structured(&["a"]);
    // Under its other name it is the same export.
    peer.kinds(opt::SET_META_CONTEXT, &queries("", &["base:allocation"]));
    assert!(peer.enter(opt::GO, &go("a", &[])).allocation);
    for failing in [queries("nowhere", &["base:allocation"]), vec![0, 0]] {
        let mut peer = structured(&["a"]);
        peer.kinds(opt::SET_META_CONTEXT, &failing);
        assert!(!peer.enter(opt::GO, &go("a", &[])).allocation);
    }
}

#[test]
fn extended_headers_outrank_structured_replies() {
    let mut peer = Peer::fixed(&["a"]);
    assert_eq!(peer.kinds(opt::EXTENDED_HEADERS, b"x"), [rep::ERR_INVALID]);
    assert_eq!(peer.kinds(opt::EXTENDED_HEADERS, b""), [rep::ACK]);
    assert_eq!(
        peer.kinds(opt::STRUCTURED_REPLY, b""),
        [rep::ERR_EXT_HEADER_REQD]
    );
    peer.kinds(opt::SET_META_CONTEXT, &queries("a", &["base:allocation"]));
    let agreement = peer.enter(opt::GO, &go("a", &[]));
    assert_eq!(agreement.reply, ReplyStyle::Extended);
    assert_ne!(agreement.flags & flag::BLOCK_STATUS_PAYLOAD, 0);
}

#[test]
fn tls_is_refused_required_or_begun() {
    let mut off = Peer::new(&["a"], Tls::Off, 3);
    assert_eq!(off.kinds(opt::STARTTLS, b""), [rep::ERR_POLICY]);

    let mut required = Peer::new(&["a"], Tls::Required, 3);
    assert_eq!(required.kinds(opt::LIST, b""), [rep::ERR_TLS_REQD]);
    assert_eq!(required.kinds(opt::GO, &go("a", &[])), [rep::ERR_TLS_REQD]);
    let (step, _) = required.raw(&encode(opt::EXPORT_NAME, b"a"));
    assert_eq!(step, Err(NegotiationError::TlsRequired));

    let mut offered = Peer::new(&["a"], Tls::Offered, 3);
    assert_eq!(offered.kinds(opt::STARTTLS, b"x"), [rep::ERR_INVALID]);
    offered.kinds(opt::STRUCTURED_REPLY, b"");
    let (step, replies) = offered.option(opt::STARTTLS, b"");
    assert_eq!((step, replies[0].1), (Ok(Step::StartTls), rep::ACK));
    offered.server.tls_started();
    assert_eq!(offered.kinds(opt::STARTTLS, b""), [rep::ERR_INVALID]);
    assert_eq!(
        offered.enter(opt::GO, &go("a", &[])).reply,
        ReplyStyle::Simple
    );

    // What came in the clear must not be taken for what came encrypted.
    let mut injected = Peer::new(&["a"], Tls::Required, 3);
    let mut bytes = encode(opt::STARTTLS, b"");
    bytes.extend(encode(opt::LIST, b""));
    assert_eq!(injected.raw(&bytes).0, Err(NegotiationError::DataBeforeTls));
}

#[test]
fn a_server_going_down_refuses_options() {
    let mut peer = Peer::fixed(&["a"]);
    peer.server.shut_down();
    assert_eq!(peer.kinds(opt::GO, &go("a", &[])), [rep::ERR_SHUTDOWN]);
    assert_eq!(peer.option(opt::ABORT, b"").0, Ok(Step::Close));
}

#[test]
fn read_only_disks_offer_no_writes() {
    let info = DiskInfo {
        read_only: true,
        fast_zero: true,
        ..disk()
    };
    let flags = transmission_flags(&info, ReplyStyle::Simple, false);
    assert_ne!(flags & flag::READ_ONLY, 0);
    let writes = flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
    assert_eq!(flags & writes, 0);
}

proptest! {
    /// Block sizes obey the protocol whatever a disk says.
    #[test]
    fn block_sizes_are_legal(shift in 0u32..17, preferred: u32, max: u32) {
        let info = DiskInfo { block_size: 1 << shift, preferred_io: preferred, max_io: max, ..disk() };
        let (min, preferred, max) = block_sizes(&info);
        prop_assert!(min.is_power_of_two() && min <= 65536);
        prop_assert!(preferred.is_power_of_two() && preferred >= min && preferred >= 512);
        prop_assert!(max >= preferred && max <= 32 << 20);
    }

    #[test]
    fn truncated_options_are_invalid_not_fatal(
        option in prop_oneof![Just(opt::INFO), Just(opt::GO), Just(opt::LIST_META_CONTEXT), Just(opt::SET_META_CONTEXT)],
        data in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut peer = Peer::fixed(&["a"]);
        peer.kinds(opt::STRUCTURED_REPLY, b"");
        let (step, replies) = peer.option(option, &data);
        prop_assert!(matches!(step, Ok(Step::More | Step::Enter(_))));
        prop_assert!(!replies.is_empty());
    }

    #[test]
    fn hostile_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), tls in 0u8..3) {
        let tls = [Tls::Off, Tls::Offered, Tls::Required][usize::from(tls)];
        let mut server = Negotiation::new(tls, &mut Vec::new());
        let _ = server.receive(&mut &bytes[..], &exports(&["a"]), &mut Vec::new());
    }

    /// How bytes are cut makes no difference, and what follows the handshake is left alone.
    #[test]
    fn chunking_makes_no_difference(
        options in proptest::collection::vec((0u32..13, proptest::collection::vec(any::<u8>(), 0..30)), 0..8),
        cuts in proptest::collection::vec(1usize..40, 1..60),
        tail in proptest::collection::vec(any::<u8>(), 0..50),
    ) {
        let mut bytes = 3u32.to_be_bytes().to_vec();
        for (option, data) in &options {
            if !matches!(*option, opt::ABORT | opt::EXPORT_NAME) {
                bytes.extend(encode(*option, data));
            }
        }
        bytes.extend(encode(opt::STRUCTURED_REPLY, b""));
        bytes.extend(encode(opt::GO, &go("vm", &[info::NAME])));
        bytes.extend(&tail);
        let exports = exports(&["vm"]);
        let run = |cuts: &[usize]| {
            let mut out = Vec::new();
            let mut server = Negotiation::new(Tls::Off, &mut out);
            let mut rest = &bytes[..];
            for cut in cuts.iter().cycle() {
                let n = (*cut).min(rest.len());
                let mut input = &rest[..n];
                let step = server.receive(&mut input, &exports, &mut out);
                rest = &rest[n - input.len()..];
                match step {
                    Ok(Step::More) => assert!(n > 0, "out of input"),
                    other => return (other, rest.to_vec(), out),
                }
            }
            unreachable!("cuts are not empty")
        };
        let whole = run(&[bytes.len()]);
        prop_assert_eq!(&whole.1, &tail);
        prop_assert!(matches!(whole.0, Ok(Step::Enter(_))));
        prop_assert_eq!(run(&cuts), whole);
    }
}
