use crate::codec::{DecodeError, EntityType};

use super::{AuthName, ConMode, KeyType, Method};

pub(super) const EPERM: i32 = 1;
pub(super) const EACCES: i32 = 13;
pub(super) const EBUSY: i32 = 16;
pub(super) const EINVAL: i32 = 22;
pub(super) const EOPNOTSUPP: i32 = 95;

/// Why authentication failed. Each is one line for the person at the terminal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// Nothing in the configuration can be used.
    #[error("no usable authentication method for {name}: cephx needs a key (set keyring or key)")]
    NoKey { name: AuthName },
    #[error("no connection mode is left for auth {method}: allow {needs} in {option}")]
    NoMode {
        method: Method,
        needs: ConMode,
        option: &'static str,
    },
    /// The peer allows none of the methods we have.
    #[error("the {peer} accepts only {}; {}", list(allowed), what_to_do(name, *have_key, ours))]
    MethodRefused {
        peer: EntityType,
        name: AuthName,
        have_key: bool,
        ours: Vec<Method>,
        allowed: Vec<u32>,
    },
    #[error(
        "the {peer} accepts only connection modes {}, we offer {}",
        modes(allowed),
        names(ours)
    )]
    ModeRefused {
        peer: EntityType,
        ours: Vec<ConMode>,
        allowed: Vec<u32>,
    },
    #[error(
        "the monitor refused {name}: no such user, wrong key, or key type {key_type} is not allowed by the cluster"
    )]
    KeyRefused { name: AuthName, key_type: KeyType },
    /// A known identity came back and the monitor does not believe it.
    #[error(
        "the monitor does not let {name} keep its global id {global_id}: its ticket is too old, or its key has changed"
    )]
    ReclaimRefused { name: AuthName, global_id: u64 },
    /// An OSD or a mgr has no secret for our ticket any more. [`super::Client::service_refused`]
    /// makes the next renewal fetch a new one.
    #[error("the {service} refused our ticket ({})", errno(*result))]
    TicketRefused { service: EntityType, result: i32 },
    #[error("the monitor has no quorum yet")]
    NotReady,
    #[error("the {peer} refused authentication: {}", errno(*result))]
    Refused { peer: EntityType, result: i32 },
    /// Not a fault: the ticket is yet to be fetched.
    #[error("no ticket for the {service} yet")]
    NoTicket { service: EntityType },
    #[error("cannot decrypt the {what}: the key does not fit")]
    Decrypt { what: &'static str },
    #[error("the {service} did not prove that it knows our ticket's secret")]
    NotProven { service: EntityType },
    #[error("the monitor changed our global id from {ours} to {theirs}")]
    GlobalIdChanged { ours: u64, theirs: u64 },
    #[error("the {peer} chose connection mode {mode}, which we did not offer")]
    ModeNotOffered { peer: EntityType, mode: u32 },
    #[error("authentication out of order: {what}")]
    OutOfOrder { what: &'static str },
    #[error("authentication: {0}")]
    Decode(#[from] DecodeError),
}

fn what_to_do(name: &AuthName, have_key: bool, ours: &[Method]) -> String {
    if !have_key {
        format!("there is no key for {name} (set keyring or key)")
    } else if ours == [Method::Cephx] {
        "auth_client_required names cephx alone".into()
    } else {
        format!("auth_client_required names {}", names(ours))
    }
}

fn names<T: ToString>(items: &[T]) -> String {
    let mut out = String::new();
    for item in items {
        if !out.is_empty() {
            out.push_str(", ");
        }
        out.push_str(&item.to_string());
    }
    if out.is_empty() {
        "none of ours".into()
    } else {
        out
    }
}

fn list(raw: &[u32]) -> String {
    let named: Vec<String> = raw
        .iter()
        .map(|&m| match Method::from_raw(m) {
            Some(Method::None) => "auth none".into(),
            Some(m) => m.to_string(),
            None => format!("auth method {m}"),
        })
        .collect();
    names(&named)
}

fn modes(raw: &[u32]) -> String {
    let named: Vec<String> = raw
        .iter()
        .map(|&m| ConMode::from_raw(m).map_or_else(|| format!("mode {m}"), |m| m.to_string()))
        .collect();
    names(&named)
}

fn errno(result: i32) -> String {
    match result.wrapping_neg() {
        EPERM => "not permitted (EPERM)".into(),
        EACCES => "access denied (EACCES)".into(),
        EBUSY => "busy (EBUSY)".into(),
        EINVAL => "invalid request (EINVAL)".into(),
        EOPNOTSUPP => "not supported (EOPNOTSUPP)".into(),
        n => format!("error {n}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_to_do() {
        let name = AuthName::client("vm1");
        let e = AuthError::MethodRefused {
            peer: EntityType::MON,
            name: name.clone(),
            have_key: false,
            ours: vec![Method::None],
            allowed: vec![2],
        };
        assert_eq!(
            e.to_string(),
            "the mon accepts only cephx; there is no key for client.vm1 (set keyring or key)"
        );
        let e = AuthError::KeyRefused {
            name,
            key_type: KeyType::Aes,
        };
        assert_eq!(
            e.to_string(),
            "the monitor refused client.vm1: no such user, wrong key, or key type aes is not allowed by the cluster"
        );
        let e = AuthError::TicketRefused {
            service: EntityType::OSD,
            result: -13,
        };
        assert_eq!(
            e.to_string(),
            "the osd refused our ticket (access denied (EACCES))"
        );
        let e = AuthError::ModeRefused {
            peer: EntityType::OSD,
            ours: vec![ConMode::Crc],
            allowed: vec![2],
        };
        assert_eq!(
            e.to_string(),
            "the osd accepts only connection modes secure, we offer crc"
        );
    }
}
