//! The handshake, sans-IO: fixed newstyle, from the greeting to the chosen export.
//!
//! The owner feeds received bytes to [`Negotiation::receive`], sends what it appends to `out`, and
//! enters the transmission phase when told. Whoever it is that connects, memory stays bounded: an
//! option's data is kept only up to [`MAX_OPTION_DATA`], and only [`MAX_OPTIONS`] are answered.

use super::super::disk::DiskInfo;
use super::wire::{self, Fields, MAX_STRING, PutBe, flag, info, opt, rep};

/// Longer option data is skipped and refused. The longest legitimate option asks for metadata
/// contexts: one export name and a few queries.
pub const MAX_OPTION_DATA: usize = 64 << 10;
/// Beyond this a peer is not skipping an option but flooding us.
const MAX_SKIPPED: u32 = 1 << 20;
/// Real clients need about ten options; tools that list all exports, one or two per export.
pub const MAX_OPTIONS: u32 = 4096;

/// One export as clients see it.
#[derive(Debug, Clone)]
pub struct Export {
    pub name: String,
    /// Empty for none.
    pub description: String,
    pub info: DiskInfo,
}

/// Whether connections are, may be or must be encrypted. Our answer to `NBD_OPT_STARTTLS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tls {
    /// We cannot (NOTLS).
    #[default]
    Off,
    /// The client may (SELECTIVETLS without TLS-only exports).
    Offered,
    /// No other option is answered before it (FORCEDTLS).
    Required,
}

/// What the two sides agreed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agreement {
    /// The export's index in the list of the call that returned this.
    pub export: usize,
    pub reply: ReplyStyle,
    /// `base:allocation` was selected for this export.
    pub allocation: bool,
    /// The transmission flags the client was told.
    pub flags: u16,
}

/// The shape of headers in the transmission phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum ReplyStyle {
    #[default]
    Simple,
    Structured,
    /// Structured, and 32-byte headers with 64-bit lengths both ways.
    Extended,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// All input was consumed.
    More,
    /// Send the output and begin transmission; input not consumed belongs to it.
    Enter(Agreement),
    /// Send the output, start TLS, call [`Negotiation::tls_started`] and go on.
    StartTls,
    /// The client is done: send the output and close.
    Close,
}

/// Why a connection is given up during the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NegotiationError {
    #[error("client sent unknown handshake flags {0:#x}")]
    ClientFlags(u32),
    #[error("client sent {0:#x} in place of an option")]
    Magic(u64),
    #[error("client without fixed newstyle sent option {0}")]
    NotFixed(u32),
    #[error("client sent {len} bytes of data with option {option}")]
    TooLong { option: u32, len: u32 },
    #[error("client sent more than {MAX_OPTIONS} options")]
    TooMany,
    #[error("client asked for an export that does not exist")]
    NoSuchExport,
    #[error("client asked for an export without starting TLS")]
    TlsRequired,
    #[error("client sent data in the clear behind its request for TLS")]
    DataBeforeTls,
}

enum State {
    ClientFlags,
    Option,
    Data { option: u32, len: usize },
    Skip { option: u32, left: u32 },
}

/// One connection's handshake.
pub struct Negotiation {
    state: State,
    /// The bytes of a field that came in parts.
    partial: Vec<u8>,
    options: u32,
    fixed: bool,
    no_zeroes: bool,
    tls: Tls,
    encrypted: bool,
    closing: bool,
    reply: ReplyStyle,
    /// The export for which `base:allocation` is selected.
    allocation: Option<String>,
}

impl Negotiation {
    /// Begins with the greeting.
    pub fn new(tls: Tls, out: &mut Vec<u8>) -> Negotiation {
        out.put64(wire::NBDMAGIC);
        out.put64(wire::IHAVEOPT);
        out.put16(wire::FLAG_FIXED_NEWSTYLE | wire::FLAG_NO_ZEROES);
        Negotiation {
            state: State::ClientFlags,
            partial: Vec::new(),
            options: 0,
            fixed: false,
            no_zeroes: false,
            tls,
            encrypted: false,
            closing: false,
            reply: ReplyStyle::Simple,
            allocation: None,
        }
    }

    /// The server is going down: refuse every further option.
    pub fn shut_down(&mut self) {
        self.closing = true;
    }

    /// TLS runs; what was negotiated before it is void.
    pub fn tls_started(&mut self) {
        self.encrypted = true;
        self.reply = ReplyStyle::Simple;
        self.allocation = None;
    }

    pub fn receive(
        &mut self,
        input: &mut &[u8],
        exports: &[Export],
        out: &mut Vec<u8>,
    ) -> Result<Step, NegotiationError> {
        loop {
            let need = match self.state {
                State::ClientFlags => 4,
                State::Option => 16,
                State::Data { len, .. } => len,
                State::Skip {
                    option,
                    ref mut left,
                } => {
                    let n = (*left).min(u32::try_from(input.len()).unwrap_or(u32::MAX));
                    *input = &input[n as usize..];
                    *left -= n;
                    if *left > 0 {
                        return Ok(Step::More);
                    }
                    self.state = State::Option;
                    error(out, option, rep::ERR_TOO_BIG, "too much option data");
                    continue;
                }
            };
            let n = (need - self.partial.len()).min(input.len());
            self.partial.extend_from_slice(&input[..n]);
            *input = &input[n..];
            if self.partial.len() < need {
                return Ok(Step::More);
            }
            // Taken out for the borrow checker and put back for its capacity.
            let field = std::mem::take(&mut self.partial);
            let step = self.field(&field, exports, out)?;
            self.partial = field;
            self.partial.clear();
            match step {
                Step::More => {}
                Step::StartTls if !input.is_empty() => return Err(NegotiationError::DataBeforeTls),
                step => return Ok(step),
            }
        }
    }

    fn field(
        &mut self,
        field: &[u8],
        exports: &[Export],
        out: &mut Vec<u8>,
    ) -> Result<Step, NegotiationError> {
        let mut fields = Fields(field);
        match self.state {
            State::ClientFlags => {
                let flags = fields.u32().expect("four bytes");
                let known = u32::from(wire::FLAG_FIXED_NEWSTYLE | wire::FLAG_NO_ZEROES);
                if flags & !known != 0 {
                    return Err(NegotiationError::ClientFlags(flags));
                }
                self.fixed = flags & u32::from(wire::FLAG_FIXED_NEWSTYLE) != 0;
                self.no_zeroes = flags & u32::from(wire::FLAG_NO_ZEROES) != 0;
                self.state = State::Option;
            }
            State::Option => {
                let magic = fields.u64().expect("sixteen bytes");
                let option = fields.u32().expect("sixteen bytes");
                let len = fields.u32().expect("sixteen bytes");
                if magic != wire::IHAVEOPT {
                    return Err(NegotiationError::Magic(magic));
                }
                self.options += 1;
                if self.options > MAX_OPTIONS {
                    return Err(NegotiationError::TooMany);
                }
                if !self.fixed && option != opt::EXPORT_NAME {
                    return Err(NegotiationError::NotFixed(option));
                }
                let longest = if option == opt::EXPORT_NAME {
                    MAX_STRING
                } else {
                    MAX_OPTION_DATA
                };
                if len as usize <= longest {
                    self.state = State::Data {
                        option,
                        len: len as usize,
                    };
                } else if option == opt::EXPORT_NAME || len > MAX_SKIPPED {
                    return Err(NegotiationError::TooLong { option, len });
                } else {
                    self.state = State::Skip { option, left: len };
                }
            }
            State::Data { option, .. } => {
                self.state = State::Option;
                return self.option(option, field, exports, out);
            }
            State::Skip { .. } => unreachable!("skipped bytes are not collected"),
        }
        Ok(Step::More)
    }

    fn option(
        &mut self,
        option: u32,
        data: &[u8],
        exports: &[Export],
        out: &mut Vec<u8>,
    ) -> Result<Step, NegotiationError> {
        let locked = self.tls == Tls::Required && !self.encrypted;
        match option {
            opt::ABORT => {
                reply(out, option, rep::ACK, |_| {});
                return Ok(Step::Close);
            }
            opt::EXPORT_NAME => return self.export_name(data, locked, exports, out),
            _ if self.closing => {
                error(out, option, rep::ERR_SHUTDOWN, "the server is going down");
            }
            opt::STARTTLS => return Ok(self.start_tls(data, out)),
            _ if locked => error(out, option, rep::ERR_TLS_REQD, "TLS is required"),
            opt::LIST if data.is_empty() => {
                for export in exports {
                    reply(out, option, rep::SERVER, |out| {
                        out.put32(export.name.len() as u32);
                        out.extend_from_slice(export.name.as_bytes());
                        out.extend_from_slice(export.description.as_bytes());
                    });
                }
                reply(out, option, rep::ACK, |_| {});
            }
            opt::STRUCTURED_REPLY if data.is_empty() => {
                if self.reply == ReplyStyle::Extended {
                    error(
                        out,
                        option,
                        rep::ERR_EXT_HEADER_REQD,
                        "extended headers are in use",
                    );
                } else {
                    self.reply = ReplyStyle::Structured;
                    reply(out, option, rep::ACK, |_| {});
                }
            }
            opt::EXTENDED_HEADERS if data.is_empty() => {
                self.reply = ReplyStyle::Extended;
                reply(out, option, rep::ACK, |_| {});
            }
            opt::LIST | opt::STRUCTURED_REPLY | opt::EXTENDED_HEADERS => {
                error(out, option, rep::ERR_INVALID, "this option takes no data");
            }
            opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT => {
                self.meta_context(option, data, exports, out);
            }
            opt::INFO | opt::GO => return Ok(self.info(option, data, exports, out)),
            _ => error(out, option, rep::ERR_UNSUP, "unknown option"),
        }
        Ok(Step::More)
    }

    fn start_tls(&mut self, data: &[u8], out: &mut Vec<u8>) -> Step {
        let option = opt::STARTTLS;
        if !data.is_empty() {
            error(out, option, rep::ERR_INVALID, "this option takes no data");
        } else if self.encrypted {
            error(out, option, rep::ERR_INVALID, "TLS is already in use");
        } else if self.tls == Tls::Off {
            error(out, option, rep::ERR_POLICY, "TLS is not configured");
        } else {
            reply(out, option, rep::ACK, |_| {});
            return Step::StartTls;
        }
        Step::More
    }

    /// The old way to choose an export, which has no way to refuse but closing.
    fn export_name(
        &mut self,
        name: &[u8],
        locked: bool,
        exports: &[Export],
        out: &mut Vec<u8>,
    ) -> Result<Step, NegotiationError> {
        if locked {
            return Err(NegotiationError::TlsRequired);
        }
        let export = match find(exports, name) {
            Some(n) if !self.closing => n,
            _ => return Err(NegotiationError::NoSuchExport),
        };
        let agreement = self.agreement(export, exports);
        out.put64(exports[export].info.size);
        out.put16(agreement.flags);
        if !self.no_zeroes {
            out.extend_from_slice(&[0; 124]);
        }
        Ok(Step::Enter(agreement))
    }

    fn agreement(&self, export: usize, exports: &[Export]) -> Agreement {
        let allocation = self.allocation.as_deref() == Some(&exports[export].name);
        Agreement {
            export,
            reply: self.reply,
            allocation,
            flags: transmission_flags(&exports[export].info, self.reply, allocation),
        }
    }

    fn info(&self, option: u32, data: &[u8], exports: &[Export], out: &mut Vec<u8>) -> Step {
        let mut fields = Fields(data);
        let Some((name, wanted)) = parse_info(&mut fields) else {
            error(out, option, rep::ERR_INVALID, "malformed option data");
            return Step::More;
        };
        let Some(n) = find(exports, name) else {
            error(out, option, rep::ERR_UNKNOWN, "no such export");
            return Step::More;
        };
        let export = &exports[n];
        let agreement = self.agreement(n, exports);
        reply(out, option, rep::INFO, |out| {
            out.put16(info::EXPORT);
            out.put64(export.info.size);
            out.put16(agreement.flags);
        });
        // Sent without being asked, too: clients ignore what they do not know, and kernel tools
        // take their block size from it.
        reply(out, option, rep::INFO, |out| {
            let (min, preferred, max) = block_sizes(&export.info);
            out.put16(info::BLOCK_SIZE);
            out.put32(min);
            out.put32(preferred);
            out.put32(max);
        });
        for item in wanted.chunks_exact(2) {
            let (kind, text) = match u16::from_be_bytes([item[0], item[1]]) {
                info::NAME => (info::NAME, &export.name),
                info::DESCRIPTION if !export.description.is_empty() => {
                    (info::DESCRIPTION, &export.description)
                }
                _ => continue,
            };
            reply(out, option, rep::INFO, |out| {
                out.put16(kind);
                out.extend_from_slice(text.as_bytes());
            });
        }
        reply(out, option, rep::ACK, |_| {});
        if option == opt::GO {
            Step::Enter(agreement)
        } else {
            Step::More
        }
    }

    fn meta_context(&mut self, option: u32, data: &[u8], exports: &[Export], out: &mut Vec<u8>) {
        let set = option == opt::SET_META_CONTEXT;
        if set {
            // A failing request, too, replaces what was selected before.
            self.allocation = None;
        }
        if self.reply == ReplyStyle::Simple {
            error(
                out,
                option,
                rep::ERR_INVALID,
                "structured replies come first",
            );
            return;
        }
        let mut fields = Fields(data);
        let Some((name, selected)) = parse_queries(&mut fields, set) else {
            error(out, option, rep::ERR_INVALID, "malformed option data");
            return;
        };
        let Some(n) = find(exports, name) else {
            error(out, option, rep::ERR_UNKNOWN, "no such export");
            return;
        };
        if selected {
            reply(out, option, rep::META_CONTEXT, |out| {
                // In a list the id is reserved.
                out.put32(if set { wire::CONTEXT_ALLOCATION_ID } else { 0 });
                out.extend_from_slice(wire::CONTEXT_ALLOCATION.as_bytes());
            });
            if set {
                self.allocation = Some(exports[n].name.clone());
            }
        }
        reply(out, option, rep::ACK, |_| {});
    }
}

/// The export of that name. The empty name is the default export: the only one there is.
fn find(exports: &[Export], name: &[u8]) -> Option<usize> {
    exports
        .iter()
        .position(|e| e.name.as_bytes() == name)
        .or_else(|| (name.is_empty() && exports.len() == 1).then_some(0))
}

/// The name and the list of 16-bit information requests of `NBD_OPT_INFO` and `NBD_OPT_GO`.
fn parse_info<'a>(fields: &mut Fields<'a>) -> Option<(&'a [u8], &'a [u8])> {
    let name = fields.string().filter(|n| n.len() <= MAX_STRING)?;
    let count = fields.u16()?;
    let wanted = fields.bytes(usize::from(count) * 2)?;
    fields.is_empty().then_some((name, wanted))
}

/// The export name of a metadata context option, and whether its queries match `base:allocation`,
/// the one context there is.
fn parse_queries<'a>(fields: &mut Fields<'a>, set: bool) -> Option<(&'a [u8], bool)> {
    let name = fields.string().filter(|n| n.len() <= MAX_STRING)?;
    let count = fields.u32()?;
    // No query at all lists everything, and selects nothing.
    let mut selected = !set && count == 0;
    for _ in 0..count {
        let query = fields.string()?;
        selected |= query == wire::CONTEXT_ALLOCATION.as_bytes() || (!set && query == b"base:");
    }
    fields.is_empty().then_some((name, selected))
}

/// What an export can do, told truthfully.
fn transmission_flags(disk: &DiskInfo, reply: ReplyStyle, allocation: bool) -> u16 {
    // All connections of an export meet at one disk, and a flush covers what completed on any.
    let mut flags = flag::HAS_FLAGS
        | flag::SEND_FLUSH
        | flag::SEND_FUA
        | flag::SEND_CACHE
        | flag::CAN_MULTI_CONN;
    if disk.read_only {
        flags |= flag::READ_ONLY;
    } else {
        flags |= flag::SEND_WRITE_ZEROES;
        if disk.discard.is_some() {
            flags |= flag::SEND_TRIM;
        }
        if disk.fast_zero {
            flags |= flag::SEND_FAST_ZERO;
        }
    }
    if reply >= ReplyStyle::Structured {
        flags |= flag::SEND_DF;
    }
    if reply == ReplyStyle::Extended && allocation {
        flags |= flag::BLOCK_STATUS_PAYLOAD;
    }
    flags
}

/// Minimum, preferred and maximum, within what the protocol allows them to be.
pub(super) fn block_sizes(disk: &DiskInfo) -> (u32, u32, u32) {
    let min = disk.block_size.clamp(1, 64 << 10);
    let max = disk.max_io.min(wire::DEFAULT_MAX_PAYLOAD).max(min).max(512);
    // A power of two, since what is not divides no alignment.
    let preferred = 1 << disk.preferred_io.clamp(min.max(512), max).ilog2();
    (min, preferred, max)
}

fn reply(out: &mut Vec<u8>, option: u32, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    out.put64(wire::REPLY_MAGIC);
    out.put32(option);
    out.put32(kind);
    let at = out.len();
    out.put32(0);
    body(out);
    let len = (out.len() - at - 4) as u32;
    out[at..at + 4].copy_from_slice(&len.to_be_bytes());
}

fn error(out: &mut Vec<u8>, option: u32, kind: u32, message: &str) {
    reply(out, option, kind, |out| {
        out.extend_from_slice(message.as_bytes());
    });
}

#[cfg(test)]
#[path = "negotiate_tests.rs"]
mod tests;
