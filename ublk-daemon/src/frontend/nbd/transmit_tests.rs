use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use super::*;
use crate::frontend::memdisk::{GRANULE, MemDisk, Order};
use crate::frontend::nbd::wire::{self, Fields, PutBe, chunk, flag};
use proptest::prelude::*;

const SIZE: u64 = 16 * GRANULE as u64;
const ALL_FLAGS: u16 = flag::HAS_FLAGS
    | flag::SEND_FLUSH
    | flag::SEND_FUA
    | flag::SEND_TRIM
    | flag::SEND_WRITE_ZEROES
    | flag::SEND_FAST_ZERO;

/// A reply put together from its parts, with the data in place.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Answer {
    error: u32,
    message: String,
    data: Vec<u8>,
    holes: usize,
    chunks: usize,
    extents: Vec<(u64, u64)>,
}

/// A client: encodes requests, decodes replies, and refuses what the protocol forbids.
struct Client {
    style: ReplyStyle,
    disk: Rc<MemDisk>,
    arena: Rc<Arena>,
    session: Rc<Session>,
    /// Requests by cookie: kind, flags, offset, length.
    asked: HashMap<u64, (u16, u16, u64, u64)>,
    partial: HashMap<u64, Answer>,
    answers: HashMap<u64, Answer>,
    order: Vec<u64>,
    next_cookie: u64,
}

fn styles() -> impl Strategy<Value = ReplyStyle> {
    prop_oneof![
        Just(ReplyStyle::Simple),
        Just(ReplyStyle::Structured),
        Just(ReplyStyle::Extended)
    ]
}

const STYLES: [ReplyStyle; 3] = [
    ReplyStyle::Simple,
    ReplyStyle::Structured,
    ReplyStyle::Extended,
];

impl Client {
    fn new(style: ReplyStyle, order: Order) -> Client {
        Client::of(style, MemDisk::new(SIZE, order), ALL_FLAGS)
    }

    fn of(style: ReplyStyle, disk: MemDisk, flags: u16) -> Client {
        Client::with_arena(style, disk, flags, Arena::new(64 << 20, 300).unwrap())
    }

    fn with_arena(style: ReplyStyle, disk: MemDisk, flags: u16, arena: Arena) -> Client {
        let (disk, arena) = (Rc::new(disk), Rc::new(arena));
        let agreement = Agreement {
            export: 0,
            reply: style,
            allocation: style != ReplyStyle::Simple,
            flags,
        };
        let served: Rc<dyn Disk> = Rc::<MemDisk>::clone(&disk);
        Client {
            style,
            session: Session::new(served, Rc::clone(&arena), &agreement),
            disk,
            arena,
            asked: HashMap::new(),
            partial: HashMap::new(),
            answers: HashMap::new(),
            order: Vec::new(),
            next_cookie: 1000,
        }
    }

    fn encode(&mut self, kind: u16, flags: u16, offset: u64, len: u64, data: &[u8]) -> Vec<u8> {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        self.asked.insert(cookie, (kind, flags, offset, len));
        let mut out = Vec::new();
        let extended = self.style == ReplyStyle::Extended;
        out.put32(if extended {
            wire::EXTENDED_REQUEST_MAGIC
        } else {
            wire::REQUEST_MAGIC
        });
        let payload = if extended && kind == cmd::WRITE {
            cmd::FLAG_PAYLOAD_LEN
        } else {
            0
        };
        out.put16(flags | payload);
        out.put16(kind);
        out.put64(cookie);
        out.put64(offset);
        if extended {
            out.put64(len);
        } else {
            out.put32(len as u32);
        }
        out.extend_from_slice(data);
        out
    }

    fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> Vec<u8> {
        self.encode(cmd::WRITE, flags, offset, data.len() as u64, data)
    }

    /// Feeds all of `bytes`, completing requests when the session stalls.
    fn feed(&mut self, bytes: &[u8]) -> Result<Progress, TransmitError> {
        let mut input = bytes;
        loop {
            match self.session.poll_receive(&mut input, Waker::noop()) {
                Poll::Ready(result) => return result,
                Poll::Pending => {
                    let moved = self.disk.complete(3) > 0;
                    assert!(self.collect() || moved, "stalled with nothing to wait for");
                }
            }
        }
    }

    /// Takes and decodes the output there is.
    fn collect(&mut self) -> bool {
        let mut batch = Batch::default();
        if self.session.poll_output(&mut batch, Waker::noop()) != Poll::Ready(true) {
            return false;
        }
        let bytes: Vec<u8> = batch.slices().flatten().copied().collect();
        assert_eq!(bytes.len(), batch.len());
        self.session.sent(&mut batch);
        let mut fields = Fields(&bytes);
        while !fields.is_empty() {
            self.decode(&mut fields).expect("a whole reply");
        }
        true
    }

    fn finish(&mut self) {
        while self.disk.complete(1) > 0 || self.collect() {}
        assert!(self.partial.is_empty());
        assert_eq!(self.session.in_flight(), 0);
    }

    fn decode(&mut self, f: &mut Fields<'_>) -> Option<()> {
        let magic = f.u32()?;
        if magic == wire::SIMPLE_REPLY_MAGIC {
            assert_ne!(self.style, ReplyStyle::Extended);
            let (error, cookie) = (f.u32()?, f.u64()?);
            let (kind, _, _, len) = self.asked[&cookie];
            let mut answer = Answer {
                error,
                ..Answer::default()
            };
            if kind == cmd::READ {
                assert_eq!(self.style, ReplyStyle::Simple);
                if error == 0 {
                    answer.data = f.bytes(len as usize)?.to_vec();
                }
            }
            assert_ne!(kind, cmd::BLOCK_STATUS);
            self.finished(cookie, answer);
            return Some(());
        }
        assert_ne!(self.style, ReplyStyle::Simple);
        let (done, kind, cookie) = (f.u16()?, f.u16()?, f.u64()?);
        let (asked, flags, offset, len) = self.asked[&cookie];
        let payload = if self.style == ReplyStyle::Extended {
            assert_eq!(magic, wire::EXTENDED_REPLY_MAGIC);
            assert_eq!(f.u64()?, offset);
            f.u64()?
        } else {
            assert_eq!(magic, wire::STRUCTURED_REPLY_MAGIC);
            u64::from(f.u32()?)
        };
        let mut p = Fields(f.bytes(payload as usize)?);
        let answer = self.partial.entry(cookie).or_insert_with(|| Answer {
            data: vec![0xaa; if asked == cmd::READ { len as usize } else { 0 }],
            ..Answer::default()
        });
        answer.chunks += 1;
        match kind {
            chunk::NONE => assert_eq!(done, chunk::FLAG_DONE),
            chunk::OFFSET_DATA => {
                let at = (p.u64()? - offset) as usize;
                let data = std::mem::take(&mut p.0);
                assert!(!data.is_empty() && asked == cmd::READ);
                answer.data[at..at + data.len()].copy_from_slice(data);
            }
            chunk::OFFSET_HOLE => {
                let (at, n) = ((p.u64()? - offset) as usize, p.u32()? as usize);
                assert!(n > 0 && asked == cmd::READ);
                answer.data[at..at + n].fill(0);
                answer.holes += 1;
            }
            chunk::ERROR => {
                answer.error = p.u32()?;
                let n = p.u16()?;
                answer.message = String::from_utf8(p.bytes(n.into())?.to_vec()).unwrap();
                assert!(answer.error != 0 && !answer.message.is_empty());
                answer.data.clear();
            }
            chunk::BLOCK_STATUS if self.style == ReplyStyle::Structured => {
                assert_eq!(p.u32()?, wire::CONTEXT_ALLOCATION_ID);
                while !p.is_empty() {
                    answer.extents.push((p.u32()?.into(), p.u32()?.into()));
                }
            }
            chunk::BLOCK_STATUS_EXT if self.style == ReplyStyle::Extended => {
                assert_eq!(p.u32()?, wire::CONTEXT_ALLOCATION_ID);
                for _ in 0..p.u32()? {
                    answer.extents.push((p.u64()?, p.u64()?));
                }
            }
            other => panic!("chunk type {other}"),
        }
        assert!(p.is_empty());
        if flags & cmd::FLAG_DF != 0 {
            assert_eq!(answer.chunks, 1);
        }
        if done & chunk::FLAG_DONE != 0 {
            let answer = self.partial.remove(&cookie)?;
            self.finished(cookie, answer);
        }
        Some(())
    }

    fn finished(&mut self, cookie: u64, answer: Answer) {
        assert!(self.answers.insert(cookie, answer).is_none());
        self.order.push(cookie);
    }

    /// One request to its answer.
    fn ask(&mut self, kind: u16, flags: u16, offset: u64, len: u64, data: &[u8]) -> Answer {
        let cookie = self.next_cookie;
        let bytes = self.encode(kind, flags, offset, len, data);
        assert_eq!(self.feed(&bytes), Ok(Progress::Hungry));
        self.finish();
        self.answers.remove(&cookie).expect("an answer")
    }

    fn error(&mut self, kind: u16, flags: u16, offset: u64, len: u64) -> u32 {
        let data = match kind {
            cmd::WRITE => vec![7; len as usize],
            _ => vec![],
        };
        self.ask(kind, flags, offset, len, &data).error
    }
}

#[test]
fn a_write_is_read_back() {
    for style in STYLES {
        let mut c = Client::new(style, Order::Immediate);
        let data: Vec<u8> = (0..100_000u32).map(|n| n as u8).collect();
        let len = data.len() as u64;
        assert_eq!(c.ask(cmd::WRITE, 0, 12345, len, &data).error, 0);
        let answer = c.ask(cmd::READ, 0, 12345, len, &[]);
        assert_eq!(answer.data, data);
        assert_eq!(answer.holes, 0);
    }
}

#[test]
fn holes_are_chunks_unless_small_simple_or_unfragmented() {
    let whole = 4 * GRANULE as u64;
    for style in STYLES {
        let mut c = Client::new(style, Order::Immediate);
        c.ask(cmd::WRITE, 0, GRANULE as u64, 10, &[9; 10]);
        let answer = c.ask(cmd::READ, 0, 0, whole, &[]);
        let mut expected = vec![0; whole as usize];
        expected[GRANULE..GRANULE + 10].fill(9);
        assert_eq!(answer.data, expected);
        let structured = style != ReplyStyle::Simple;
        assert_eq!(answer.holes, if structured { 2 } else { 0 });
        // Below the size that is worth a chunk.
        let near = GRANULE as u64 - 100;
        let answer = c.ask(cmd::READ, 0, near, 200, &[]);
        assert_eq!(answer.data, expected[near as usize..near as usize + 200]);
        assert_eq!(answer.holes, 0);
        if structured {
            let answer = c.ask(cmd::READ, cmd::FLAG_DF, 0, whole, &[]);
            assert_eq!((answer.chunks, answer.holes), (1, 0));
            assert_eq!(answer.data, expected);
            let answer = c.ask(cmd::READ, cmd::FLAG_DF, whole, 8192, &[]);
            assert_eq!((answer.chunks, answer.holes), (1, 1));
        }
    }
}

#[test]
fn replies_come_in_the_order_of_completion() {
    let mut c = Client::new(ReplyStyle::Structured, Order::Shuffled { seed: 7 });
    for n in 0..40 {
        let bytes = c.write(0, n * 4096, &[n as u8; 4096]);
        c.feed(&bytes).unwrap();
    }
    assert_eq!(c.disk.pending(), 40);
    c.finish();
    let mut sorted = c.order.clone();
    sorted.sort_unstable();
    assert_ne!(c.order, sorted, "nothing overtook anything");
    assert_eq!(sorted.len(), 40);
    assert!(c.disk.counters.overtaken.get() > 0);
    let answer = c.ask(cmd::READ, 0, 0, 40 * 4096, &[]);
    assert!((0..40 * 4096).all(|i| answer.data[i] == (i / 4096) as u8));
}

#[test]
fn errors_are_those_of_the_protocol() {
    const PERM: u32 = NbdError::Perm as u32;
    const INVAL: u32 = NbdError::Inval as u32;
    const NOSPC: u32 = NbdError::NoSpc as u32;
    const NOTSUP: u32 = NbdError::NotSup as u32;
    for style in STYLES {
        let mut c = Client::new(style, Order::Immediate);
        assert_eq!(c.error(cmd::READ, 0, SIZE - 1, 2), INVAL);
        assert_eq!(c.error(cmd::READ, 0, u64::MAX, 2), INVAL);
        assert_eq!(c.error(cmd::WRITE, 0, SIZE - 1, 2), NOSPC);
        assert_eq!(c.error(cmd::WRITE_ZEROES, 0, SIZE, 1), NOSPC);
        assert_eq!(c.error(cmd::TRIM, 0, SIZE, 1), INVAL);
        assert_eq!(c.error(cmd::CACHE, 0, SIZE - 1, 2), INVAL);
        assert_eq!(c.error(cmd::FLUSH, 0, 1, 0), INVAL);
        assert_eq!(c.error(cmd::FLUSH, 0, 0, 1), INVAL);
        assert_eq!(c.error(8, 0, 0, 512), INVAL);
        assert_eq!(c.error(0xffff, 0, 0, 0), INVAL);
        for (kind, flags) in [
            (cmd::READ, cmd::FLAG_NO_HOLE),
            (cmd::WRITE, cmd::FLAG_DF),
            (cmd::TRIM, cmd::FLAG_FAST_ZERO),
            (cmd::FLUSH, cmd::FLAG_REQ_ONE),
            (cmd::WRITE_ZEROES, 1 << 14),
        ] {
            let len = if kind == cmd::FLUSH { 0 } else { 512 };
            assert_eq!(c.error(kind, flags, 0, len), INVAL, "command {kind}");
            assert_eq!(c.error(kind, cmd::FLAG_FUA, 0, len), 0, "command {kind}");
        }
        // Not a whole granule: not fast here. A whole one is.
        let fast = cmd::FLAG_FAST_ZERO;
        assert_eq!(c.error(cmd::WRITE_ZEROES, fast, 0, 512), NOTSUP);
        assert_eq!(c.error(cmd::WRITE_ZEROES, fast, 0, GRANULE as u64), 0);

        let info = DiskInfo {
            read_only: true,
            ..c.disk.info()
        };
        let disk = MemDisk::with_info(info, Order::Immediate);
        let mut ro = Client::of(style, disk, flag::HAS_FLAGS | flag::READ_ONLY);
        for kind in [cmd::WRITE, cmd::TRIM, cmd::WRITE_ZEROES] {
            assert_eq!(ro.error(kind, 0, 0, 512), PERM);
        }
        assert_eq!(ro.error(cmd::READ, 0, 0, 512), 0);

        // Not announced: no such command, no such flag.
        let disk = MemDisk::new(SIZE, Order::Immediate);
        let mut plain = Client::of(style, disk, flag::HAS_FLAGS | flag::SEND_WRITE_ZEROES);
        assert_eq!(plain.error(cmd::TRIM, 0, 0, 512), INVAL);
        assert_eq!(
            plain.error(cmd::WRITE_ZEROES, fast, 0, GRANULE as u64),
            INVAL
        );
    }
}

#[test]
fn unaligned_requests_are_refused_where_blocks_matter() {
    for style in STYLES {
        let info = DiskInfo {
            block_size: 4096,
            ..MemDisk::new(SIZE, Order::Immediate).info()
        };
        let disk = MemDisk::with_info(info, Order::Immediate);
        let mut c = Client::of(style, disk, ALL_FLAGS);
        for kind in [cmd::READ, cmd::WRITE, cmd::TRIM, cmd::WRITE_ZEROES] {
            assert_eq!(c.error(kind, 0, 512, 4096), NbdError::Inval as u32);
            assert_eq!(c.error(kind, 0, 4096, 512), NbdError::Inval as u32);
            assert_eq!(c.error(kind, 0, 4096, 8192), 0);
        }
    }
}

#[test]
fn oversized_requests_are_refused_and_their_payload_skipped() {
    let max = 64 << 10;
    for style in STYLES {
        let info = DiskInfo {
            max_io: max,
            ..MemDisk::new(SIZE, Order::Immediate).info()
        };
        let disk = MemDisk::with_info(info, Order::Immediate);
        let mut c = Client::of(style, disk, ALL_FLAGS);
        let too_long = u64::from(max) + 1;
        let read_error = match style {
            ReplyStyle::Simple => NbdError::Inval,
            _ => NbdError::Overflow,
        };
        assert_eq!(c.error(cmd::READ, 0, 0, too_long), read_error as u32);
        assert_eq!(c.error(cmd::WRITE, 0, 0, too_long), NbdError::Inval as u32);
        assert_eq!(c.error(cmd::WRITE, 0, 0, too_long - 1), 0);
        // The length of what carries no payload has no such bound.
        assert_eq!(c.error(cmd::WRITE_ZEROES, 0, 0, SIZE), 0);
        assert_eq!(c.error(cmd::TRIM, 0, 0, SIZE), 0);
        // More than anyone may send ends the connection.
        let flood = c.encode(cmd::WRITE, 0, 0, (64 << 20) + 1, &[]);
        assert_eq!(c.feed(&flood), Err(TransmitError::Payload((64 << 20) + 1)));
    }
}

#[test]
fn what_never_fits_the_memory_is_refused_at_once() {
    let disk = MemDisk::new(SIZE, Order::Immediate);
    let arena = Arena::new(128 << 10, 10).unwrap();
    let mut c = Client::with_arena(ReplyStyle::Simple, disk, ALL_FLAGS, arena);
    assert_eq!(c.error(cmd::READ, 0, 0, 128 << 10), 0);
    let inval = NbdError::Inval as u32;
    assert_eq!(c.error(cmd::READ, 0, 0, (128 << 10) + 1), inval);
    assert_eq!(c.error(cmd::WRITE, 0, 0, (128 << 10) + 1), inval);
}

#[test]
fn empty_requests_succeed_without_the_disk() {
    for style in STYLES {
        let mut c = Client::new(style, Order::Immediate);
        for kind in [
            cmd::READ,
            cmd::WRITE,
            cmd::TRIM,
            cmd::CACHE,
            cmd::WRITE_ZEROES,
        ] {
            assert_eq!(c.error(kind, 0, SIZE, 0), 0);
        }
        let n = &c.disk.counters;
        assert_eq!(n.reads.get() + n.writes.get() + n.discards.get(), 0);
    }
}

#[test]
fn block_status_reports_extents() {
    for style in [ReplyStyle::Structured, ReplyStyle::Extended] {
        let mut c = Client::new(style, Order::Immediate);
        let g = GRANULE as u64;
        c.error(cmd::WRITE, 0, 2 * g, 1);
        let hole = u64::from(wire::STATE_HOLE | wire::STATE_ZERO);
        let all = c.ask(cmd::BLOCK_STATUS, 0, 100, SIZE - 100, &[]);
        assert_eq!(
            all.extents,
            [(2 * g - 100, hole), (g, 0), (SIZE - 3 * g, hole)]
        );
        let one = c.ask(
            cmd::BLOCK_STATUS,
            cmd::FLAG_REQ_ONE,
            2 * g,
            SIZE - 2 * g,
            &[],
        );
        assert_eq!(one.extents, [(g, 0)]);
        let inval = NbdError::Inval as u32;
        assert_eq!(c.ask(cmd::BLOCK_STATUS, 0, 0, 0, &[]).error, inval);
        assert_eq!(c.ask(cmd::BLOCK_STATUS, 0, 1, SIZE, &[]).error, inval);
    }
    let mut simple = Client::new(ReplyStyle::Simple, Order::Immediate);
    let bytes = simple.encode(cmd::BLOCK_STATUS, 0, 0, 512, &[]);
    simple.asked.get_mut(&1000).unwrap().0 = cmd::FLUSH;
    simple.feed(&bytes).unwrap();
    simple.finish();
    assert_eq!(simple.answers[&1000].error, NbdError::Inval as u32);
}

#[test]
fn block_status_is_filtered_by_payload() {
    let mut c = Client::new(ReplyStyle::Extended, Order::Immediate);
    let filter = |len: u64, ids: &[u32]| {
        let mut p = Vec::new();
        p.put64(len);
        ids.iter().for_each(|id| p.put32(*id));
        p
    };
    let inval = NbdError::Inval as u32;
    let mut ask = |offset, payload: &[u8]| {
        c.ask(
            cmd::BLOCK_STATUS,
            cmd::FLAG_PAYLOAD_LEN,
            offset,
            payload.len() as u64,
            payload,
        )
    };
    let answer = ask(512, &filter(SIZE - 512, &[wire::CONTEXT_ALLOCATION_ID]));
    assert_eq!(answer.extents.len(), 1);
    assert_eq!(answer.extents[0].0, SIZE - 512);
    let id = wire::CONTEXT_ALLOCATION_ID;
    for bad in [
        filter(512, &[]),
        filter(512, &[id, id]),
        filter(512, &[id + 1]),
        filter(SIZE, &[id]),
        filter(0, &[id]),
        vec![1; 5],
    ] {
        assert_eq!(ask(512, &bad).error, inval);
    }
    // No other command has a payload form, yet the payload is consumed.
    let answer = c.ask(cmd::READ, cmd::FLAG_PAYLOAD_LEN, 0, 100, &[3; 100]);
    assert_eq!(answer.error, inval);
    // A write has its payload whether flagged (as it should be) or not (as QEMU does).
    let cookie = c.next_cookie;
    let mut bytes = c.write(0, 0, &[1; 16]);
    bytes[5] &= !(cmd::FLAG_PAYLOAD_LEN as u8);
    c.feed(&bytes).unwrap();
    c.finish();
    assert_eq!(c.answers[&cookie].error, 0);
    assert_eq!(c.error(cmd::WRITE, 0, 0, 512), 0);
}

#[test]
fn extended_lengths_pass_32_bits() {
    // Judged by the size told to the session, not by memory: nothing here is written.
    let info = DiskInfo {
        size: 1 << 40,
        ..MemDisk::new(0, Order::Immediate).info()
    };
    let agreement = Agreement {
        export: 0,
        reply: ReplyStyle::Extended,
        allocation: true,
        flags: ALL_FLAGS,
    };
    let limits = Limits::new(&info, &agreement);
    let mut h = Header {
        flags: 0,
        kind: cmd::TRIM,
        cookie: 1,
        offset: 1 << 20,
        len: (1 << 40) - (1 << 20),
    };
    assert_eq!(request::check(&h, &limits), Ok(Verdict::Run));
    h.len += 1;
    assert!(matches!(
        request::check(&h, &limits),
        Ok(Verdict::Refuse(_, 0))
    ));
    h.flags = cmd::FLAG_PAYLOAD_LEN;
    assert_eq!(
        request::check(&h, &limits),
        Err(TransmitError::Payload(h.len))
    );
}

#[test]
fn fua_reaches_the_disk_and_disk_errors_the_client() {
    for style in STYLES {
        let mut c = Client::new(style, Order::Immediate);
        assert_eq!(c.error(cmd::WRITE, 0, 0, 512), 0);
        assert_eq!(c.disk.counters.fua.get(), 0);
        for kind in [cmd::WRITE, cmd::WRITE_ZEROES, cmd::TRIM] {
            assert_eq!(c.error(kind, cmd::FLAG_FUA, 0, 512), 0);
        }
        assert_eq!(c.error(cmd::READ, cmd::FLAG_FUA, 0, 512), 0);
        assert_eq!(c.disk.counters.fua.get(), 3);
        for (errno, expected) in [
            (Errno::IO, NbdError::Io),
            (Errno::TIMED_OUT, NbdError::Io),
            (Errno::NO_SPACE, NbdError::NoSpc),
            (Errno::READ_ONLY, NbdError::Perm),
            (Errno::NOT_SUPPORTED, NbdError::Inval),
        ] {
            c.disk.break_range(8192..8193, errno);
            assert_eq!(c.error(cmd::READ, 0, 4096, 8192), expected as u32);
            assert_eq!(c.error(cmd::WRITE, 0, 4096, 8192), expected as u32);
            assert_eq!(c.error(cmd::READ, 0, 0, 8192), 0);
        }
        assert_eq!(c.arena.in_use(), 0);
    }
}

#[test]
fn goodbye_waits_for_what_is_in_flight() {
    let mut c = Client::new(ReplyStyle::Simple, Order::Shuffled { seed: 3 });
    let mut bytes = c.write(0, 0, &[5; 512]);
    bytes.extend(c.encode(cmd::DISC, 0, 0, 0, &[]));
    bytes.extend([0xff; 40]);
    assert_eq!(c.feed(&bytes), Ok(Progress::Over));
    let mut batch = Batch::default();
    assert!(
        c.session
            .poll_output(&mut batch, Waker::noop())
            .is_pending()
    );
    c.finish();
    assert_eq!(c.answers.len(), 1);
    assert_eq!(
        c.session.poll_output(&mut batch, Waker::noop()),
        Poll::Ready(false)
    );
}

#[test]
fn draining_refuses_what_comes_and_answers_what_came() {
    for style in STYLES {
        let mut c = Client::new(style, Order::Shuffled { seed: 3 });
        let bytes = c.write(0, 0, &[5; 512]);
        c.feed(&bytes).unwrap();
        c.session.drain();
        let shutdown = NbdError::Shutdown as u32;
        let mut bytes = c.write(0, 512, &[5; 512]);
        bytes.extend(c.encode(cmd::FLUSH, 0, 0, 0, &[]));
        c.feed(&bytes).unwrap();
        c.finish();
        assert_eq!(c.answers[&1000].error, 0);
        assert_eq!(c.answers[&1001].error, shutdown);
        assert_eq!(c.answers[&1002].error, shutdown);
    }
}

#[test]
fn a_closed_session_gives_all_memory_back() {
    let mut c = Client::new(ReplyStyle::Structured, Order::Shuffled { seed: 9 });
    for n in 0..10 {
        // Too short to be answered as holes, which need no memory.
        let bytes = c.encode(cmd::READ, 0, n * 4096, 1000, &[]);
        c.feed(&bytes).unwrap();
    }
    // In the middle of a payload.
    let bytes = c.write(0, 0, &[1; 8192]);
    c.feed(&bytes[..5000]).unwrap();
    c.disk.complete(4);
    assert_eq!(c.arena.in_use(), 11);
    c.session.close();
    assert_eq!(c.arena.in_use(), 6);
    assert_eq!(c.feed(&bytes[5000..]), Ok(Progress::Over));
    c.disk.complete(10);
    assert_eq!(c.arena.in_use(), 0);
    let mut batch = Batch::default();
    assert_eq!(
        c.session.poll_output(&mut batch, Waker::noop()),
        Poll::Ready(false)
    );
}

#[test]
fn receiving_stops_when_memory_requests_or_replies_pile_up() {
    let ready = |c: &Client, bytes: &[u8]| {
        let mut input = bytes;
        let poll = c.session.poll_receive(&mut input, Waker::noop());
        (poll.is_ready(), input.len())
    };
    // Memory.
    let disk = MemDisk::new(SIZE, Order::Shuffled { seed: 1 });
    let arena = Arena::new(64 << 10, 100).unwrap();
    let mut c = Client::with_arena(ReplyStyle::Simple, disk, ALL_FLAGS, arena);
    c.error(cmd::WRITE, 0, 0, 1);
    let first = c.encode(cmd::READ, 0, 0, 64 << 10, &[]);
    assert!(ready(&c, &first).0);
    let second = c.encode(cmd::READ, 0, 0, 64 << 10, &[]);
    assert_eq!(ready(&c, &second), (false, 0));
    c.disk.complete(1);
    assert!(!ready(&c, &[]).0, "the reply still holds the memory");
    c.collect();
    assert!(ready(&c, &[]).0);
    c.finish();
    // Requests.
    let mut c = Client::new(ReplyStyle::Simple, Order::Shuffled { seed: 1 });
    for _ in 0..MAX_IN_FLIGHT {
        let flush = c.encode(cmd::FLUSH, 0, 0, 0, &[]);
        assert!(ready(&c, &flush).0);
    }
    let flush = c.encode(cmd::FLUSH, 0, 0, 0, &[]);
    assert_eq!(ready(&c, &flush), (false, flush.len()));
    c.disk.complete(1);
    assert!(ready(&c, &flush).0);
    c.finish();
    // Replies that nobody reads.
    let mut c = Client::new(ReplyStyle::Structured, Order::Immediate);
    let bad = c.encode(99, 0, 0, 0, &[]);
    let sent = (0..100_000).take_while(|_| ready(&c, &bad).0).count();
    assert!(sent < 10_000, "{sent} replies piled up");
    let mut batch = Batch::default();
    let poll = c.session.poll_output(&mut batch, Waker::noop());
    assert_eq!(poll, Poll::Ready(true));
    assert!(ready(&c, &bad).0);
}

#[test]
fn a_payload_may_be_received_in_place() {
    let mut c = Client::new(ReplyStyle::Structured, Order::Immediate);
    let data: Vec<u8> = (0..50_000u32).map(|n| (n * 7) as u8).collect();
    let bytes = c.write(0, 333, &data);
    assert!(c.session.take_direct(1).is_none());
    c.feed(&bytes[..1000]).unwrap();
    assert!(c.session.awaits_peer());
    assert!(c.session.take_direct(data.len()).is_none());
    let mut at = 1000;
    while let Some(mut direct) = c.session.take_direct(2000) {
        let missing = direct.missing();
        let n = missing.len().min(7777);
        direct.as_mut_slice()[missing.start..missing.start + n].copy_from_slice(&bytes[at..at + n]);
        c.session.give_direct(direct, n);
        at += n;
    }
    c.feed(&bytes[at..]).unwrap();
    assert!(!c.session.awaits_peer());
    assert_eq!(c.session.consumed(), bytes.len() as u64);
    c.finish();
    assert_eq!(c.answers[&1000].error, 0);
    c.disk
        .with_bytes(|b| assert_eq!(b[333..333 + data.len()], data));
}

/// One random request inside `room`, with what it does to a model of the disk.
#[derive(Debug, Clone)]
struct Action {
    kind: u16,
    flags: u16,
    from: f64,
    len: f64,
    fill: u8,
}

fn actions() -> impl Strategy<Value = Vec<Vec<Action>>> {
    let action = (
        prop_oneof![
            4 => Just(cmd::READ), 4 => Just(cmd::WRITE), 1 => Just(cmd::TRIM), 1 => Just(cmd::FLUSH),
            2 => Just(cmd::WRITE_ZEROES), 1 => Just(cmd::BLOCK_STATUS), 1 => Just(cmd::CACHE), 1 => Just(50u16),
        ],
        any::<u16>(),
        0.0..1.0,
        0.0..1.0,
        1u8..,
    )
        .prop_map(|(kind, flags, from, len, fill)| Action { kind, flags, from, len, fill });
    proptest::collection::vec(proptest::collection::vec(action, 1..16), 1..6)
}

impl Action {
    /// Keeps to the flags the command takes.
    fn flags(&self, style: ReplyStyle) -> u16 {
        let allowed = match self.kind {
            cmd::READ if style != ReplyStyle::Simple => cmd::FLAG_DF,
            cmd::WRITE_ZEROES => cmd::FLAG_NO_HOLE | cmd::FLAG_FAST_ZERO,
            cmd::BLOCK_STATUS => cmd::FLAG_REQ_ONE,
            _ => 0,
        };
        self.flags & (allowed | cmd::FLAG_FUA)
    }

    fn range(&self, room: &Range<u64>) -> Range<u64> {
        let width = room.end - room.start;
        let from = room.start + (self.from * (width - 1) as f64) as u64;
        from..from + 1 + (self.len * (room.end - from - 1) as f64) as u64
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Random requests, cut anywhere, completed in any order: every one is answered once, reads
    /// see what the model holds, and the disk ends up as the model does.
    #[test]
    fn the_disk_behaves_as_a_model(
        style in styles(),
        seed: u64,
        rounds in actions(),
        cuts in proptest::collection::vec(1usize..70_000, 1..50),
        small_arena: bool,
    ) {
        let disk = MemDisk::new(SIZE, Order::Shuffled { seed });
        let arena = Arena::new(if small_arena { 2 << 20 } else { 64 << 20 }, 20).unwrap();
        let mut c = Client::with_arena(style, disk, ALL_FLAGS, arena);
        let mut model = vec![0u8; SIZE as usize];
        let mut cuts = cuts.iter().cycle();
        for round in rounds {
            // Rooms that do not overlap: the order within a round does not matter.
            let width = SIZE / round.len() as u64;
            let mut bytes = Vec::new();
            let mut expect = Vec::new();
            let mut after = model.clone();
            for (n, action) in round.iter().enumerate() {
                let room = n as u64 * width..(n as u64 + 1) * width;
                let Range { start, end } = action.range(&room);
                let (at, len) = (start as usize..end as usize, end - start);
                let flags = action.flags(style);
                let cookie = c.next_cookie;
                let mut error = 0;
                match action.kind {
                    cmd::WRITE => {
                        let data = vec![action.fill; len as usize];
                        bytes.extend(c.write(flags, start, &data));
                        after[at].fill(action.fill);
                        expect.push((cookie, error, None));
                        continue;
                    }
                    cmd::FLUSH => {
                        bytes.extend(c.encode(cmd::FLUSH, flags, 0, 0, &[]));
                        expect.push((cookie, error, None));
                        continue;
                    }
                    cmd::WRITE_ZEROES => {
                        let whole = (start as usize).div_ceil(GRANULE) < end as usize / GRANULE;
                        let slow = flags & cmd::FLAG_NO_HOLE != 0 || !whole;
                        if flags & cmd::FLAG_FAST_ZERO != 0 && slow {
                            error = NbdError::NotSup as u32;
                        } else {
                            after[at.clone()].fill(0);
                        }
                    }
                    cmd::TRIM => {
                        let first = (start as usize).div_ceil(GRANULE) * GRANULE;
                        let last = end as usize / GRANULE * GRANULE;
                        if first < last {
                            after[first..last].fill(0);
                        }
                    }
                    cmd::BLOCK_STATUS if style == ReplyStyle::Simple => continue,
                    cmd::READ | cmd::CACHE | cmd::BLOCK_STATUS => {}
                    _ => error = NbdError::Inval as u32,
                }
                bytes.extend(c.encode(action.kind, flags, start, len, &[]));
                let data = (action.kind == cmd::READ).then(|| model[at].to_vec());
                expect.push((cookie, error, data));
            }
            let mut rest: VecDeque<u8> = bytes.into();
            while !rest.is_empty() {
                let n = rest.len().min(*cuts.next().unwrap());
                let piece: Vec<u8> = rest.drain(..n).collect();
                prop_assert_eq!(c.feed(&piece), Ok(Progress::Hungry));
            }
            c.finish();
            for (cookie, error, data) in expect {
                let answer = c.answers.remove(&cookie).expect("every request is answered");
                prop_assert_eq!(answer.error, error);
                if let Some(data) = data {
                    prop_assert!(answer.data == data, "a read differs from the model");
                }
                let (kind, flags, _, len) = c.asked[&cookie];
                if kind == cmd::BLOCK_STATUS {
                    let sum: u64 = answer.extents.iter().map(|e| e.0).sum();
                    let one = flags & cmd::FLAG_REQ_ONE != 0;
                    prop_assert!(!answer.extents.is_empty() && sum <= len);
                    let complete = if one { answer.extents.len() == 1 } else { sum == len };
                    prop_assert!(complete);
                }
            }
            prop_assert!(c.answers.is_empty());
            prop_assert!(c.disk.with_bytes(|b| *b == after[..]));
            prop_assert_eq!(c.arena.in_use(), 0);
            model = after;
        }
    }

    #[test]
    fn hostile_requests_never_panic(
        style in styles(),
        seed: u64,
        // A valid magic now and then, or nothing gets past the first check.
        parts in proptest::collection::vec((any::<u16>(), 0u16..10, any::<u64>(), prop_oneof![any::<u64>(), 0u64..2 * SIZE], prop_oneof![any::<u64>(), 0u64..4096], proptest::collection::vec(any::<u8>(), 0..60)), 0..20),
        close_at in 0usize..30,
    ) {
        let c = Client::new(style, Order::Shuffled { seed });
        for (n, (flags, kind, cookie, offset, len, junk)) in parts.into_iter().enumerate() {
            if n == close_at {
                c.session.close();
            }
            let mut bytes = Vec::new();
            if style == ReplyStyle::Extended {
                bytes.put32(wire::EXTENDED_REQUEST_MAGIC);
            } else {
                bytes.put32(wire::REQUEST_MAGIC);
            }
            bytes.put16(flags);
            bytes.put16(kind);
            bytes.put64(cookie);
            bytes.put64(offset);
            if style == ReplyStyle::Extended {
                bytes.put64(len);
            } else {
                bytes.put32(len as u32);
            }
            bytes.extend(junk);
            let mut input = &bytes[..];
            match c.session.poll_receive(&mut input, Waker::noop()) {
                Poll::Ready(Err(_)) => break,
                _ => { c.disk.complete(2); }
            }
        }
        c.session.close();
        c.disk.complete(1000);
        prop_assert_eq!(c.session.in_flight(), 0);
        prop_assert_eq!(c.arena.in_use(), 0);
    }
}
