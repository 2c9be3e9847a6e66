//! What an OSD needs from the rooms beside it: carrying out operations, and judging capabilities.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::auth::server::Caps;
use crate::codec::Now;
use crate::objecter::msg::{EVersion, HObject, MOsdOp, OpCode, OsdFlags, PgId, WatchOp};
use crate::osdmap::OsdMap;

use super::super::exec::{Outcome, Request};
use super::super::store::{Store, Transaction};

/// What a method of an object class does (`ClassHandler::get_method_flags`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MethodFlags {
    pub reads: bool,
    pub writes: bool,
}

pub trait Engine<S: Store> {
    /// What a peer may do.
    type Access;

    fn access(&self, caps: &Caps) -> Self::Access;

    fn allows(&self, access: &Self::Access, ask: &Ask<'_>) -> bool;

    fn method(&self, class: &str, method: &str) -> Option<MethodFlags>;

    /// Appends to `reply` what the operations return, one after the other. The transaction is not
    /// applied.
    fn execute<'a>(
        &mut self,
        store: &mut S,
        map: &OsdMap,
        request: &Request<'a>,
        reply: &mut Vec<u8>,
    ) -> Outcome<'a>;

    /// Takes removed snapshots from a clone; nothing when it serves none of those.
    fn trim(
        &mut self,
        store: &mut S,
        pg: PgId,
        clone: &HObject,
        removed: &dyn Fn(u64) -> bool,
        version: EVersion,
        now: Now,
    ) -> Option<Transaction<'static>>;
}

/// What a request wants to do, in the terms of capabilities (`OSDCap::is_capable`).
#[derive(Debug)]
pub struct Ask<'a> {
    pub pool: &'a str,
    pub application: &'a BTreeMap<String, BTreeMap<String, String>>,
    pub namespace: &'a [u8],
    /// The locator key, or the object's name where there is none.
    pub object: &'a [u8],
    pub reads: bool,
    pub writes: bool,
    pub calls: &'a [Call<'a>],
}

/// A call of a class's method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call<'a> {
    pub class: &'a str,
    pub method: &'a str,
    pub reads: bool,
    pub writes: bool,
}

/// What a request does, as its operations say (`OpInfo`, `src/osd/osd_op_util.cc`).
#[derive(Debug, Default)]
pub(super) struct OpInfo<'a> {
    /// Operations of its own read or write: what `r` and `w` capabilities are for.
    pub reads: bool,
    pub writes: bool,
    /// Methods do.
    pub class_reads: bool,
    pub class_writes: bool,
    pub ordered: bool,
    /// It is about a pg.
    pub of_pg: bool,
    pub has_ping: bool,
    pub has_notify: bool,
    pub calls: SmallVec<[Call<'a>; 2]>,
}

pub(super) const EINVAL: i32 = 22;
pub(super) const EOPNOTSUPP: i32 = 95;
const TYPE_MASK: u16 = 0x0f00;
const TYPE_PG: u16 = 0x0500;

/// Why a request cannot be understood.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unfit {
    /// It breaks the protocol.
    Malformed,
    /// It is answered with minus this.
    Errno(i32),
}

impl<'a> OpInfo<'a> {
    pub(super) fn of(
        op: &MOsdOp<'_>,
        data: &'a [u8],
        method: impl Fn(&str, &str) -> Option<MethodFlags>,
    ) -> Result<OpInfo<'a>, Unfit> {
        let mut info = OpInfo {
            ordered: op.flags.has(OsdFlags::RWORDERED),
            ..OpInfo::default()
        };
        for part in op.split(data) {
            let (o, input) = part.map_err(|_| Unfit::Malformed)?;
            let code = o.code;
            let ping = code == OpCode::WATCH && o.watch().op == WatchOp::Ping as u8;
            if ping {
                // No write, but its answer comes after those of earlier writes.
                info.ordered = true;
                info.has_ping = true;
            }
            info.writes |= code.is_write() && !ping;
            info.reads |= code.is_read() || code == OpCode::WATCH;
            info.has_notify |= code == OpCode::NOTIFY;
            info.of_pg |= code.0 & TYPE_MASK == TYPE_PG;
            if code == OpCode::CALL {
                let call = o.call();
                let (c, m) = (usize::from(call.class_len), usize::from(call.method_len));
                let names = input.get(..c + m).ok_or(Unfit::Errno(EINVAL))?;
                let text = |b: &'a [u8]| std::str::from_utf8(b).ok();
                let names = text(&names[..c]).zip(text(&names[c..]));
                let found = names.and_then(|(c, m)| Some((c, m, method(c, m)?)));
                let Some((class, method, flags)) = found else {
                    return Err(Unfit::Errno(EOPNOTSUPP));
                };
                info.class_reads |= flags.reads;
                info.class_writes |= flags.writes;
                info.calls.push(Call {
                    class,
                    method,
                    reads: flags.reads,
                    writes: flags.writes,
                });
            }
        }
        let any = info.may_read() || info.may_write() || info.of_pg || info.ordered;
        any.then_some(info).ok_or(Unfit::Errno(EINVAL))
    }

    pub(super) fn may_read(&self) -> bool {
        self.reads || self.class_reads
    }

    pub(super) fn may_write(&self) -> bool {
        self.writes || self.class_writes
    }

    /// Ordered with writes (`OpInfo::rwordered`).
    pub(super) fn write_ordered(&self) -> bool {
        self.may_write() || self.ordered
    }
}
