//! An OSD's half of a conversation: requests it was asked, answers that fit them, and a check that
//! each request ends once.

use std::collections::BTreeSet;

use arbitrary::Arbitrary;
use cluster::objecter::msg::{
    EVersion, Locator, MOsdOp, MOsdOpReply, OsdFlags, OsdOp, PgId, Redirect, WireList,
};
use cluster::objecter::{Completions, ObjectOp, OpError, OpReply, WatchEvent};
use cluster::payload::Payload;

/// A request as an OSD received it.
#[derive(Debug, Clone)]
pub struct Asked {
    pub tid: u64,
    pub oid: Vec<u8>,
    pub pgid: PgId,
    pub epoch: u32,
    retry: i32,
    flags: OsdFlags,
    ops: Vec<OsdOp>,
}

/// What an answer is to be.
#[derive(Debug, Arbitrary)]
pub struct Answer {
    result: i32,
    /// One for each operation, as far as there are any.
    outs: Vec<Vec<u8>>,
    /// Off from the attempt that was made.
    retry: i8,
    redirect: Option<(i64, Vec<u8>)>,
    /// More or less data than the operations claim.
    spoil: i8,
}

impl Asked {
    /// Decodes a request, which must be one: it is ours.
    pub fn of(tid: u64, front: &[u8], data: usize) -> Asked {
        let m = MOsdOp::decode(MOsdOp::VERSION, front).expect("our own request");
        let ops: Vec<OsdOp> = m.ops.iter().collect();
        let claimed: usize = ops.iter().map(|op| op.payload_len as usize).sum();
        assert_eq!(claimed, data, "a request's data is what its operations say");
        Asked {
            tid,
            oid: m.oid.to_vec(),
            pgid: m.pgid.pg,
            epoch: m.epoch,
            retry: m.retry_attempt,
            flags: m.flags,
            ops,
        }
    }

    /// Front and data of a reply.
    pub fn answer(&self, how: &Answer) -> (Vec<u8>, Vec<u8>) {
        let mut ops = self.ops.clone();
        let mut data = Vec::new();
        for (i, op) in ops.iter_mut().enumerate() {
            let out = how.outs.get(i).map_or(&[][..], |o| o);
            op.payload_len = out.len() as u32;
            data.extend_from_slice(out);
        }
        let len = data.len().saturating_add_signed(how.spoil.into());
        data.resize(len, 0);
        let rvals = vec![how.result; ops.len()];
        let redirect = how.redirect.as_ref().map(|(pool, object)| Redirect {
            locator: Locator {
                pool: *pool,
                key: &[],
                namespace: &[],
                hash: -1,
            },
            object,
        });
        let mut front = Vec::new();
        MOsdOpReply {
            oid: &self.oid,
            pgid: self.pgid,
            flags: MOsdOpReply::flags_for(self.flags, OsdFlags::ONDISK),
            result: how.result,
            bad_replay_version: EVersion::default(),
            epoch: self.epoch,
            ops: WireList::Native(&ops),
            retry_attempt: self.retry.wrapping_add(how.retry.into()),
            rvals: WireList::Native(&rvals),
            replay_version: EVersion::default(),
            user_version: 1,
            redirect,
            trace: [0; 24],
        }
        .encode(&mut front);
        (front, data)
    }
}

/// A request of the kinds the product makes.
pub fn ops(kind: u8, len: u16) -> ObjectOp {
    let len64 = u64::from(len);
    let data = Payload::from(vec![0x5a; len.into()]);
    match kind % 7 {
        0 => ObjectOp::new().read(512, len64),
        1 => ObjectOp::new().sparse_read(0, len64),
        2 => ObjectOp::new()
            .set_alloc_hint(1 << 22, 1 << 22, 0)
            .write(len64, data),
        3 => ObjectOp::new().delete(),
        4 => ObjectOp::new().call("rbd", "get_size", data),
        5 => ObjectOp::new()
            .stat()
            .getxattrs()
            .omap_get_vals(b"a", b"", 9),
        _ => ObjectOp::new().zero(len64, 1).truncate(len64),
    }
}

/// Requests that were taken and have not ended.
#[derive(Default)]
pub struct Ledger {
    ops: BTreeSet<u64>,
    notifies: BTreeSet<u64>,
}

impl Ledger {
    pub fn took(&mut self, token: u64) {
        assert!(self.ops.insert(token));
    }

    pub fn took_notify(&mut self, token: u64) {
        assert!(self.notifies.insert(token));
    }

    pub fn open(&self) -> usize {
        self.ops.len()
    }

    pub fn assert_empty(&self) {
        let Ledger { ops, notifies } = self;
        assert!(ops.is_empty(), "requests that never ended: {ops:?}");
        assert!(
            notifies.is_empty(),
            "notifies that never ended: {notifies:?}"
        );
    }
}

impl Completions for Ledger {
    fn op_done(&mut self, token: u64, reply: OpReply<'_>) {
        assert!(self.ops.remove(&token), "request {token} ended twice");
        for result in reply.results.iter() {
            std::hint::black_box(result.data.iter().map(|b| u64::from(*b)).sum::<u64>());
        }
        if let Err(e) = reply.result {
            assert!(e.errno() > 0);
        }
    }

    fn watch_event(&mut self, _: u64, event: WatchEvent<'_>) {
        std::hint::black_box(&event);
    }

    fn notify_done(&mut self, token: u64, _: Result<(), OpError>, replies: &[u8]) {
        assert!(self.notifies.remove(&token), "notify {token} ended twice");
        let _ = cluster::objecter::results::NotifyReplies::decode(replies);
    }
}
