//! Block requests of any kind, and outcomes of their object operations in any order.

#![no_main]

use std::collections::BTreeMap;

use arbitrary::Arbitrary;
use cluster::payload::Payload;
use cluster::rbd::Layout;
use cluster::rbd::engine::{
    Action, Engine, Geometry, Kind, ObjectOp, Outcome, ReadBuffer, Request,
};
use libfuzzer_sys::fuzz_target;

/// Enough for some objects of the smallest order.
const LONGEST: u64 = 100_000;

#[derive(Debug, Arbitrary)]
struct Input {
    order: u8,
    unit: u8,
    count: u8,
    size: u32,
    read_only: bool,
    granularity: u8,
    steps: Vec<Step>,
}

#[derive(Debug, Arbitrary)]
enum Step {
    Submit(What, u32, u32),
    /// A request whose length and offset may be of any size.
    Wild(What, u64, u64),
    Done(u8, Result),
    FailAll,
    Resize(u32),
}

#[derive(Debug, Arbitrary)]
enum What {
    Read,
    Write,
    Discard,
    WriteZeroes,
    Flush,
    Status,
}

#[derive(Debug, Arbitrary)]
enum Result {
    Ok,
    Errno(i32),
    /// Bytes, so many off the length that was asked for.
    Data(i8),
    Extents(Vec<(u16, u16)>),
}

/// Memory in which each byte may be written once.
#[derive(Debug)]
struct Once(Vec<bool>);

impl Once {
    fn mark(&mut self, at: usize, len: usize) {
        for seen in &mut self.0[at..at + len] {
            assert!(!*seen, "a byte is filled twice");
            *seen = true;
        }
    }
}

impl ReadBuffer for Once {
    fn fill(&mut self, at: usize, bytes: &[u8]) {
        self.mark(at, bytes.len());
    }

    fn zero(&mut self, at: usize, len: usize) {
        self.mark(at, len);
    }
}

struct Asked {
    kind: What,
    len: u64,
}

fuzz_target!(|input: Input| {
    let order = 12 + input.order % 4;
    let unit = 1 << (9 + u32::from(input.unit) % 7);
    let Ok(layout) = Layout::new(order, unit, u64::from(input.count % 7)) else {
        return;
    };
    let mut engine = Engine::new(Geometry {
        layout,
        size: u64::from(input.size) % (1 << 20),
        read_only: input.read_only,
        discard_granularity: 1 << (input.granularity % 20),
    });
    let mut open: BTreeMap<u64, Asked> = BTreeMap::new();
    let mut ops: Vec<ObjectOp> = Vec::new();
    for (token, step) in input.steps.into_iter().enumerate() {
        let token = token as u64;
        match step {
            Step::Submit(kind, offset, len) => {
                let len = u64::from(len) % LONGEST;
                let offset = u64::from(offset) % (1 << 20);
                submit(&mut engine, &mut open, token, kind, offset, len);
            }
            Step::Wild(kind, offset, len) => {
                let past = offset
                    .checked_add(len)
                    .is_none_or(|end| end > engine.geometry().size);
                if past || matches!(kind, What::Flush) {
                    submit(&mut engine, &mut open, token, kind, offset, len);
                }
            }
            Step::Done(n, result) => {
                if !ops.is_empty() {
                    let op = ops.swap_remove(usize::from(n) % ops.len());
                    complete(&mut engine, &op, result);
                }
            }
            // What was handed out may still come back.
            Step::FailAll => engine.fail_all(5),
            Step::Resize(size) => engine.set_size(u64::from(size) % (1 << 20)),
        }
        drain(&mut engine, &mut open, &mut ops);
    }
    while let Some(op) = ops.pop() {
        complete(&mut engine, &op, Result::Errno(2));
        drain(&mut engine, &mut open, &mut ops);
    }
    assert!(open.is_empty(), "requests that never completed");
    assert_eq!(engine.in_flight(), 0);
});

fn submit(
    engine: &mut Engine<Once>,
    open: &mut BTreeMap<u64, Asked>,
    token: u64,
    what: What,
    offset: u64,
    len: u64,
) {
    let short = len.min(LONGEST) as usize;
    let kind = match what {
        What::Read => Kind::Read(Once(vec![false; short])),
        What::Write => Kind::Write(Payload::from(vec![0; short])),
        What::Discard => Kind::Discard,
        What::WriteZeroes => Kind::WriteZeroes,
        What::Flush => Kind::Flush,
        What::Status => Kind::Status,
    };
    open.insert(token, Asked { kind: what, len });
    engine.submit(Request {
        kind,
        offset,
        len,
        token,
    });
}

fn complete(engine: &mut Engine<Once>, op: &ObjectOp, result: Result) {
    let asked = match op.action {
        Action::Read { len, .. } => len,
        _ => 0,
    };
    match result {
        Result::Ok => engine.op_done(op.token, Outcome::Result(Ok(()))),
        Result::Errno(e) => engine.op_done(op.token, Outcome::Result(Err(e))),
        Result::Data(off) => {
            let len = asked.saturating_add_signed(off.into());
            engine.op_done(op.token, Outcome::Data(&vec![1; len as usize]));
        }
        Result::Extents(list) => {
            let list = list.into_iter().map(|(o, l)| (o.into(), l.into()));
            let list: Vec<(u64, u64)> = list.collect();
            engine.op_done(op.token, Outcome::Extents(&list));
        }
    }
}

fn drain(engine: &mut Engine<Once>, open: &mut BTreeMap<u64, Asked>, ops: &mut Vec<ObjectOp>) {
    let layout = engine.geometry().layout;
    while let Some(op) = engine.poll_op() {
        let inside = match &op.action {
            Action::Read { offset, len }
            | Action::Zero { offset, len }
            | Action::Map { offset, len } => *offset + *len,
            Action::Write { offset, data } => {
                *offset + data.iter().map(|p| p.len() as u64).sum::<u64>()
            }
            Action::Remove => 0,
            Action::Truncate { size } => *size,
        };
        assert!(
            inside <= layout.object_size(),
            "an operation beyond its object"
        );
        ops.push(op);
    }
    while let Some(done) = engine.poll_done() {
        let asked = open.remove(&done.token).expect("a request completes once");
        assert_eq!(done.buffer.is_some(), matches!(asked.kind, What::Read));
        if done.result.is_err() {
            continue;
        }
        if let Some(Once(seen)) = done.buffer {
            assert!(seen.iter().all(|s| *s), "a byte was not filled");
        }
        if matches!(asked.kind, What::Status) {
            let told = done.extents.iter().map(|e| e.len).sum::<u64>();
            assert!(told <= asked.len && (told > 0 || asked.len == 0));
        }
    }
}
