use std::time::Duration;

/// Why a request to the monitors has no answer, or why there is no session.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MonError {
    #[error("no monitor to dial: none of the addresses given is an msgr2 address")]
    NoMonitors,
    #[error("no session with a monitor within {} s ({tried})", after.as_secs())]
    MountTimeout { after: Duration, tried: String },
    #[error("the monitors refuse us ({tried})")]
    Denied { tried: String },
    #[error("no answer from the monitors to {what} within {} s", after.as_secs())]
    TimedOut { what: String, after: Duration },
    /// The monitors answered with an error number.
    #[error("{what} failed: {status} (error {code})")]
    Refused {
        what: String,
        code: i32,
        status: String,
    },
    #[error("too many requests to the monitors are waiting for an answer")]
    Busy,
    #[error("the monitor session was closed")]
    Closed,
}

/// Why a monitor that was dialed gave us no session.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DialError {
    /// Another monitor, or the same one later, may answer: refused, unreachable, reset.
    #[error("{0}")]
    Unreachable(String),
    /// It answered, and said no to who we are or how we speak.
    #[error("{0}")]
    Denied(String),
}
