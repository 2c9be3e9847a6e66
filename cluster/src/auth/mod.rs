//! How a client proves who it is: none and cephx.
//!
//! Sans-IO: a handshake is a value that turns what the peer sent into what to send next. Time comes
//! in as [`Now`](crate::codec::Now) and randomness as a [`Seed`], so a run can be repeated to the
//! byte.
//!
//! One [`Client`] is one RADOS identity: a name, a key, the global id the monitors gave it and the
//! tickets that came with it.
//!
//! ```text
//! monitor   AUTH_REQUEST ->            mode 10, name, global id         MonHandshake::request
//!           <- AUTH_REPLY_MORE         server challenge
//!           AUTH_REQUEST_MORE ->       proof of the key, old ticket     MonHandshake::more
//!           <- AUTH_DONE               session key, tickets             MonHandshake::done
//! OSD, mgr  AUTH_REQUEST ->            ticket, sealed nonce             ServiceHandshake::request
//!           <- AUTH_REPLY_MORE         sealed challenge
//!           AUTH_REQUEST_MORE ->       ticket, nonce, challenge + 1     ServiceHandshake::more
//!           <- AUTH_DONE               nonce + 1, connection secret     ServiceHandshake::done
//! ```
//!
//! Tickets age: [`Client::renewal_due`] says when to send [`Client::renewal_request`] over the open
//! monitor session. The facts come from `src/auth/cephx/*`, `src/auth/none/*` and
//! `src/mon/MonClient.cc`; [`server`] holds the other side.

mod aes128;
mod base64;
mod client;
mod envelope;
mod error;
mod key;
mod keyring;
mod krb5;
mod method;
mod mon;
mod name;
mod secret;
pub mod server;
mod service;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod ticket;
mod wire;

#[cfg(test)]
mod captured;
#[cfg(test)]
mod exchange;
#[cfg(test)]
mod live;

pub use client::{Client, ClientConfig, Renewal};
pub use error::AuthError;
pub use key::{CryptoKey, KeyError, KeyType};
pub use keyring::{Keyring, KeyringError, Problem as KeyringProblem};
pub use method::{ConMode, Method};
pub use mon::MonHandshake;
pub use name::{AuthName, NameError};
pub use secret::{Secret, Secrets};
pub use service::ServiceHandshake;
pub use wire::{MSG_AUTH, MSG_AUTH_REPLY};

/// Random bytes for one handshake or one renewal. Each must be fresh: nonces, challenges and
/// confounders are cut from it.
pub type Seed = [u8; 40];

/// What a client puts into an AUTH_REQUEST frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthRequest {
    pub method: Method,
    /// Acceptable connection modes, the preferred one first.
    pub modes: Vec<ConMode>,
    pub payload: Vec<u8>,
}

impl AuthRequest {
    pub fn raw_modes(&self) -> Vec<u32> {
        self.modes.iter().map(|m| m.raw()).collect()
    }
}
