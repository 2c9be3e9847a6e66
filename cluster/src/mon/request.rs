//! What waits for an answer from the monitors.

use super::{MonError, MonEvent};
use crate::codec;
use crate::payload::Payload;

/// What a command that succeeded has to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandReply {
    /// Not negative.
    pub code: i32,
    pub status: String,
    pub output: Vec<u8>,
}

/// The newest version of a map and the oldest that the monitors keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    pub newest: u64,
    pub oldest: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolOpReply {
    /// The OSD map that has the change; wait for it before relying on the change.
    pub epoch: u32,
    /// The encoded id of a new snapshot.
    pub response: Vec<u8>,
}

impl PoolOpReply {
    /// The id of the self-managed snapshot that was made.
    pub fn snapid(&self) -> codec::Result<u64> {
        codec::Reader::new(&self.response).u64()
    }
}

#[derive(Debug)]
pub(super) struct Request {
    pub(super) token: u64,
    pub(super) what: What,
    pub(super) deadline: Option<u64>,
}

#[derive(Debug)]
pub(super) enum What {
    Command { cmd: Vec<String>, input: Payload },
    Version { map: String },
    PoolOp { pool: u32, op: u32, snapid: u64 },
}

impl What {
    pub(super) fn describe(&self) -> String {
        match self {
            What::Command { cmd, .. } => format!("command {}", prefix(cmd)),
            What::Version { map } => format!("get version of {map}"),
            What::PoolOp { pool, op, .. } => format!("pool operation {op:#x} on pool {pool}"),
        }
    }
}

/// A command's name. Its arguments may hold secrets and stay out of errors.
fn prefix(cmd: &[String]) -> String {
    cmd.first()
        .and_then(|c| serde_json::from_str::<serde_json::Value>(c).ok())
        .and_then(|c| c.get("prefix")?.as_str().map(|p| format!("\"{p}\"")))
        .unwrap_or_else(|| "without a prefix".into())
}

/// What a monitor answered.
pub(super) enum Answer {
    Command {
        code: i32,
        status: String,
        output: Vec<u8>,
    },
    Version(Versions),
    PoolOp {
        code: i32,
        reply: PoolOpReply,
    },
}

impl Request {
    /// What to tell of `answer`; nothing if it answers another sort of request.
    pub(super) fn answered(&self, answer: Answer) -> Option<MonEvent> {
        let token = self.token;
        Some(match (&self.what, answer) {
            (
                What::Command { .. },
                Answer::Command {
                    code,
                    status,
                    output,
                },
            ) => MonEvent::CommandDone {
                token,
                result: self.check(code, &status).map(|()| CommandReply {
                    code,
                    status,
                    output,
                }),
            },
            (What::Version { .. }, Answer::Version(versions)) => MonEvent::Version {
                token,
                result: Ok(versions),
            },
            (What::PoolOp { .. }, Answer::PoolOp { code, reply }) => MonEvent::PoolOpDone {
                token,
                result: self.check(code, "").map(|()| reply),
            },
            _ => return None,
        })
    }

    pub(super) fn failed(&self, error: MonError) -> MonEvent {
        let token = self.token;
        match &self.what {
            What::Command { .. } => MonEvent::CommandDone {
                token,
                result: Err(error),
            },
            What::Version { .. } => MonEvent::Version {
                token,
                result: Err(error),
            },
            What::PoolOp { .. } => MonEvent::PoolOpDone {
                token,
                result: Err(error),
            },
        }
    }

    fn check(&self, code: i32, status: &str) -> Result<(), MonError> {
        if code >= 0 {
            return Ok(());
        }
        // What the monitors say is for one line of ours.
        let status = status.split_whitespace().collect::<Vec<_>>().join(" ");
        Err(MonError::Refused {
            what: self.what.describe(),
            code,
            status: match status.is_empty() {
                true => "no reason given".into(),
                false => status,
            },
        })
    }
}
