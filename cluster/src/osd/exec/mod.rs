//! Carrying out a request's operations on one object.

use smallvec::SmallVec;

use crate::codec::{Now, UTime};
use crate::objecter::msg::{EVersion, HObjectRef, MOsdOp, OsdFlags, PgId, ReqId};

use super::outbox::Peer;
use super::store::Transaction;

/// A request on one object, as the pg hands it over.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    pub pg: PgId,
    pub peer: &'a Peer,
    pub reqid: ReqId,
    /// The object's head.
    pub head: HObjectRef<'a>,
    /// Operations, snapshot to read and snap context.
    pub op: &'a MOsdOp<'a>,
    /// All operations' data, one after the other.
    pub data: &'a [u8],
    pub flags: OsdFlags,
    pub mtime: UTime,
    /// The version a change gets.
    pub version: EVersion,
    /// The pg's newest.
    pub last_user_version: u64,
    pub now: Now,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Outcome<'a> {
    /// Zero or above on success, minus an errno otherwise.
    pub result: i32,
    /// Per operation: its result and the length of its part of the output.
    pub ops: SmallVec<[(i32, u32); 4]>,
    /// What to make durable; absent when nothing changes.
    pub txn: Option<Transaction<'a>>,
    /// Of the object as it is now.
    pub user_version: u64,
    pub version: EVersion,
    /// What a change means for watchers; to be done once it is durable.
    pub effects: Vec<Effect>,
}

/// What is beyond one object's store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// The peer watches from now on, or has come back to its watch.
    Watch {
        cookie: u64,
        timeout_seconds: u32,
    },
    Unwatch {
        cookie: u64,
    },
    /// The object is gone: its watchers are told.
    Disconnect,
    Notify {
        cookie: u64,
        timeout_seconds: u32,
        payload: Vec<u8>,
    },
    NotifyAck {
        notify_id: u64,
        cookie: u64,
        payload: Vec<u8>,
    },
}
