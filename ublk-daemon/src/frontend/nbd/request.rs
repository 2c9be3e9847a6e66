//! Requests: their headers, and what is allowed in them.

use super::super::disk::DiskInfo;
use super::negotiate::{Agreement, ReplyStyle, block_sizes};
use super::wire::{self, Fields, NbdError, cmd, flag};

/// The header of a request, either size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub flags: u16,
    pub kind: u16,
    pub cookie: u64,
    pub offset: u64,
    pub len: u64,
}

impl Header {
    pub const fn size(style: ReplyStyle) -> usize {
        match style {
            ReplyStyle::Extended => wire::EXTENDED_REQUEST_SIZE,
            _ => wire::REQUEST_SIZE,
        }
    }

    /// Parses exactly [`Header::size`] bytes.
    pub fn parse(bytes: &[u8], style: ReplyStyle) -> Result<Header, TransmitError> {
        let mut fields = Fields(bytes);
        let mut parse = || {
            let magic = fields.u32()?;
            let header = Header {
                flags: fields.u16()?,
                kind: fields.u16()?,
                cookie: fields.u64()?,
                offset: fields.u64()?,
                len: match style {
                    ReplyStyle::Extended => fields.u64()?,
                    _ => u64::from(fields.u32()?),
                },
            };
            Some((magic, header))
        };
        let (magic, header) = parse().expect("callers hand in a whole header");
        let expected = match style {
            ReplyStyle::Extended => wire::EXTENDED_REQUEST_MAGIC,
            _ => wire::REQUEST_MAGIC,
        };
        if magic != expected {
            return Err(TransmitError::Magic(magic));
        }
        Ok(header)
    }

    /// Whether the reply must be made of chunks even when it carries nothing.
    pub fn wants_chunks(&self) -> bool {
        matches!(self.kind, cmd::READ | cmd::BLOCK_STATUS)
    }

    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// Why a connection is given up in the transmission phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TransmitError {
    #[error("client sent {0:#x} in place of a request")]
    Magic(u32),
    #[error("client announced a payload of {0} bytes")]
    Payload(u64),
}

/// What is allowed on a connection.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub size: u64,
    pub block_size: u32,
    pub max_payload: u32,
    pub flags: u16,
    pub style: ReplyStyle,
    pub allocation: bool,
}

impl Limits {
    pub fn new(info: &DiskInfo, agreement: &Agreement) -> Limits {
        let (block_size, _, max_payload) = block_sizes(info);
        Limits {
            size: info.size,
            block_size,
            max_payload,
            flags: agreement.flags,
            style: agreement.reply,
            allocation: agreement.allocation,
        }
    }
}

/// An error reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    pub error: NbdError,
    pub message: &'static str,
}

/// What to do with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Hand it to the disk; a write once its payload is there.
    Run,
    /// Nothing to do: succeed.
    Trivial,
    /// Read the payload of a block status request, then ask [`check_filter`].
    Filter,
    /// Skip that many bytes of payload, then refuse.
    Refuse(Refusal, u64),
    /// The client says goodbye.
    Disconnect,
}

/// A filtered block status request names each wanted context once, and there is one.
pub const FILTER_SIZE: usize = 8 + 4;

const fn refuse(error: NbdError, message: &'static str) -> Refusal {
    Refusal { error, message }
}

/// How many bytes of payload follow a header.
///
/// With extended headers a write has to carry the payload flag, but QEMU (seen with 10.0) sends
/// the payload and not the flag. A write without payload does not exist, so it is taken for what
/// it is.
pub fn payload_len(h: &Header, style: ReplyStyle) -> u64 {
    let flagged = style == ReplyStyle::Extended && h.has(cmd::FLAG_PAYLOAD_LEN);
    if flagged || h.kind == cmd::WRITE {
        h.len
    } else {
        0
    }
}

/// Judges a request by its header.
pub fn check(h: &Header, limits: &Limits) -> Result<Verdict, TransmitError> {
    let extended = limits.style == ReplyStyle::Extended;
    let payload = payload_len(h, limits.style);
    // A client that may not know our limit is forgiven up to twice the protocol's; one that speaks
    // the extended headers knows what it announces.
    let bearable = match extended {
        true => u64::from(limits.max_payload.max(wire::DEFAULT_MAX_PAYLOAD)),
        false => 2 * u64::from(wire::DEFAULT_MAX_PAYLOAD),
    };
    if payload > bearable {
        return Err(TransmitError::Payload(payload));
    }
    if h.kind == cmd::DISC {
        return Ok(Verdict::Disconnect);
    }
    Ok(match judge(h, limits) {
        Ok(verdict) => verdict,
        Err(refusal) => Verdict::Refuse(refusal, payload),
    })
}

fn judge(h: &Header, limits: &Limits) -> Result<Verdict, Refusal> {
    use NbdError::{Inval, Overflow};
    if h.flags & !allowed_flags(h.kind, limits).ok_or(refuse(Inval, "unknown command"))? != 0 {
        return Err(refuse(Inval, "flag not allowed for this command"));
    }
    match h.kind {
        cmd::FLUSH => {
            return if h.offset == 0 && h.len == 0 {
                Ok(Verdict::Run)
            } else {
                Err(refuse(Inval, "a flush has no offset and no length"))
            };
        }
        cmd::BLOCK_STATUS if !limits.allocation => {
            return Err(refuse(Inval, "no metadata context was selected"));
        }
        cmd::BLOCK_STATUS if h.has(cmd::FLAG_PAYLOAD_LEN) => {
            return if h.len == FILTER_SIZE as u64 {
                Ok(Verdict::Filter)
            } else {
                Err(refuse(Inval, "unknown or repeated metadata context"))
            };
        }
        cmd::READ if h.len > u64::from(limits.max_payload) => {
            return Err(refuse(
                if limits.style == ReplyStyle::Simple {
                    Inval
                } else {
                    Overflow
                },
                "read longer than the maximum payload",
            ));
        }
        cmd::WRITE if h.len > u64::from(limits.max_payload) => {
            return Err(refuse(Inval, "write longer than the maximum payload"));
        }
        cmd::WRITE | cmd::WRITE_ZEROES | cmd::TRIM if limits.flags & flag::READ_ONLY != 0 => {
            return Err(refuse(NbdError::Perm, "the export is read-only"));
        }
        _ => {}
    }
    check_range(h, limits)?;
    Ok(match h.len {
        0 => Verdict::Trivial,
        _ => Verdict::Run,
    })
}

/// The flags a command may carry, `None` for a command we do not know.
fn allowed_flags(kind: u16, limits: &Limits) -> Option<u16> {
    let structured = limits.style >= ReplyStyle::Structured;
    let extended = limits.style == ReplyStyle::Extended;
    let when = |yes: bool, flag: u16| if yes { flag } else { 0 };
    // FUA is valid for all commands; existing clients set it where it means nothing.
    let extra = match kind {
        cmd::READ => when(structured, cmd::FLAG_DF),
        cmd::WRITE => when(extended, cmd::FLAG_PAYLOAD_LEN),
        cmd::FLUSH | cmd::CACHE => 0,
        cmd::TRIM if limits.flags & (flag::SEND_TRIM | flag::READ_ONLY) != 0 => 0,
        cmd::WRITE_ZEROES => {
            cmd::FLAG_NO_HOLE
                | when(
                    limits.flags & flag::SEND_FAST_ZERO != 0,
                    cmd::FLAG_FAST_ZERO,
                )
        }
        cmd::BLOCK_STATUS => cmd::FLAG_REQ_ONE | when(extended, cmd::FLAG_PAYLOAD_LEN),
        _ => return None,
    };
    Some(extra | cmd::FLAG_FUA)
}

fn check_range(h: &Header, limits: &Limits) -> Result<(), Refusal> {
    if h.offset > limits.size || h.len > limits.size - h.offset {
        let error = match h.kind {
            cmd::WRITE | cmd::WRITE_ZEROES => NbdError::NoSpc,
            _ => NbdError::Inval,
        };
        return Err(refuse(error, "beyond the end of the export"));
    }
    let mask = u64::from(limits.block_size) - 1;
    if (h.offset | h.len) & mask != 0 {
        return Err(refuse(
            NbdError::Inval,
            "not aligned to the minimum block size",
        ));
    }
    if h.kind == cmd::BLOCK_STATUS && h.len == 0 {
        return Err(refuse(NbdError::Inval, "block status of nothing"));
    }
    Ok(())
}

/// Judges a block status request by its payload: the 64-bit effect length and the context ids.
/// The header's length becomes the effect length.
pub fn check_filter(
    h: &mut Header,
    payload: &[u8; FILTER_SIZE],
    limits: &Limits,
) -> Result<(), Refusal> {
    let mut fields = Fields(payload);
    let parsed = fields.u64().zip(fields.u32());
    let (len, context) = parsed.expect("the payload has that size");
    if context != wire::CONTEXT_ALLOCATION_ID {
        return Err(refuse(NbdError::Inval, "unknown metadata context"));
    }
    h.len = len;
    check_range(h, limits)
}
