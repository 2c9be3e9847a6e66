//! The other side of cephx: a monitor's key server and a service that checks tickets. For the
//! single-node server, the simulator and the tests.
//!
//! Sans-IO like the client. Time comes in as [`Now`](crate::codec::Now) (its wall clock, since
//! secrets outlive a process), randomness as [`Entropy`].

mod keys;
mod mon;
mod service;

pub use super::wire::Caps;
pub use keys::{KeyServer, KeyServerConfig, RotatingSecrets};
pub use mon::MonAuth;
pub use service::ServiceAuth;

use super::method::modes_of;
use super::{AuthName, ConMode, Method, Secrets};

/// Fills a buffer with random bytes. A seeded one makes a run repeatable.
pub type Entropy<'a> = &'a mut dyn FnMut(&mut [u8]);

/// What a server accepts (`auth_service_required`, `ms_service_mode`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    pub methods: Vec<Method>,
    pub modes: Vec<ConMode>,
}

impl Policy {
    /// The first mode the client prefers that is allowed here (`AuthRegistry::pick_mode`).
    fn pick_mode(&self, method: Method, preferred: &[u32]) -> Option<ConMode> {
        let allowed = modes_of(method, &self.modes);
        preferred
            .iter()
            .filter_map(|&raw| ConMode::from_raw(raw))
            .find(|m| allowed.contains(m))
    }

    fn refuse(&self, method: u32, result: i32) -> Step {
        Step::BadMethod {
            method,
            result,
            allowed_methods: self.methods.iter().map(|m| m.raw()).collect(),
            allowed_modes: self.modes.iter().map(|m| m.raw()).collect(),
        }
    }
}

/// What to send next.
#[derive(Debug)]
pub enum Step {
    /// AUTH_BAD_METHOD.
    BadMethod {
        method: u32,
        result: i32,
        allowed_methods: Vec<u32>,
        allowed_modes: Vec<u32>,
    },
    /// AUTH_REPLY_MORE.
    More(Vec<u8>),
    /// AUTH_DONE.
    Done(Box<Granted>),
}

/// A peer that has proven who it is.
#[derive(Debug)]
pub struct Granted {
    pub name: AuthName,
    pub global_id: u64,
    pub caps: Caps,
    pub con_mode: ConMode,
    pub payload: Vec<u8>,
    pub secrets: Secrets,
}

fn random<const N: usize>(entropy: Entropy<'_>) -> [u8; N] {
    let mut bytes = [0; N];
    entropy(&mut bytes);
    bytes
}
