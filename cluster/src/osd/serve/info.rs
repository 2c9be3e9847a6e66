//! What a request does, as its operations say (`OpInfo`, `src/osd/osd_op_util.cc`).

use smallvec::SmallVec;

use crate::objecter::msg::{MOsdOp, OpCode, OsdFlags, WatchOp};

use super::super::caps::ClassUse;
use super::super::cls::Method;
use super::super::exec::LEGACY_WATCH;

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
    /// It may add a watch.
    pub watches: bool,
    pub has_notify: bool,
    pub calls: SmallVec<[ClassUse<'a>; 2]>,
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
        method: fn(&str, &str) -> Option<&'static Method>,
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
            if code == OpCode::WATCH {
                let op = o.watch().op;
                info.watches |= op == WatchOp::Watch as u8 || op == LEGACY_WATCH;
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
                info.calls.push(ClassUse {
                    class,
                    method,
                    read: flags.reads,
                    write: flags.writes,
                    listed: true,
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
