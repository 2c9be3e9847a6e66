//! Envelopes of any content, for fuzzers that play a peer who holds the keys.

use super::CryptoKey;
use super::envelope;
use super::key::Usage;

/// What an envelope is for: `CEPHX_KEY_USAGE_*` (`src/auth/cephx/CephxProtocol.h`).
pub const AUTH_CONNECTION_SECRET: u32 = Usage::AuthConnectionSecret.raw();
pub const TICKET_SESSION_KEY: u32 = Usage::TicketSessionKey.raw();
pub const TICKET_BLOB: u32 = Usage::TicketBlob.raw();
pub const AUTHORIZE: u32 = Usage::Authorize.raw();
pub const AUTHORIZE_CHALLENGE: u32 = Usage::AuthorizeChallenge.raw();
pub const AUTHORIZE_REPLY: u32 = Usage::AuthorizeReply.raw();

/// `body` behind the magic number, sealed. Panics when `usage` is none of the above.
pub fn seal(key: &CryptoKey, usage: u32, body: &[u8]) -> Vec<u8> {
    let usages = [
        Usage::AuthConnectionSecret,
        Usage::TicketSessionKey,
        Usage::TicketBlob,
        Usage::Authorize,
        Usage::AuthorizeChallenge,
        Usage::AuthorizeReply,
    ];
    let usage = usages.into_iter().find(|u| u.raw() == usage);
    let usage = usage.expect("a usage of this module");
    envelope::seal(key, usage, &[0; 16], |out| out.extend_from_slice(body))
}
