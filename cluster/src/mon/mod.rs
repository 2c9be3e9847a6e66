//! The monitor session: hunting, subscriptions, commands.
//!
//! [`MonClient`] is sans-IO: it says which monitors to dial and what to send, and is told what
//! happened. Connections, handshakes and authentication are the owner's.
//!
//! Ceph's tools open two sessions: a first one only to fetch monitor map and configuration, and
//! the lasting one after they have applied them. We open one. The first exists because Ceph's
//! messenger and threads are set up from the configuration before it can connect for good; ours
//! are not. What the monitors' options change for us (timeouts, modes and checksums of OSD
//! sessions) is not used before [`MonEvent::Ready`], which comes after both. Only options of the
//! monitor session itself take effect when that session is next opened rather than at once.

mod client;
pub mod command;
mod config;
mod error;
mod hunt;
pub mod kind;
pub mod message;
mod monmap;
mod request;
mod subscribe;

#[cfg(test)]
mod captures;
#[cfg(test)]
mod tests;

pub use client::{Incoming, MonAction, MonClient, MonEvent, Outgoing};
pub use command::Command;
pub use config::MonConfig;
pub use error::{DialError, MonError};
pub use monmap::{AuthCiphers, MonInfo, MonMap};
pub use request::{CommandReply, PoolOpReply, Versions};
