//! Everything between an RBD image and a Ceph OSD.
//!
//! The protocol core is sans-IO: [`msgr`], [`auth`], [`mon`], [`osdmap`] and [`objecter`] are state
//! machines. A step takes an input (bytes, a timer tick, a request) and yields outputs (bytes to
//! send, connections to open, completions). They own no socket, read no clock and spawn nothing,
//! so the simulator and the fuzzers drive the very code that production drives.

pub mod client;
pub mod codec;
pub mod payload;
pub mod rados;
pub mod rbd;
pub mod transport;

pub mod auth;
pub mod conf;
pub mod mon;
pub mod msgr;
pub mod objecter;
pub mod osd;
pub mod osdmap;

/// Fills `seed` with random bytes of the system.
pub fn random_seed(seed: &mut [u8]) -> Result<(), rados::RadosError> {
    random_bytes(seed)
        .map_err(|_| rados::RadosError::Connect("the system has no random numbers".to_owned()))
}

fn random_bytes(bytes: &mut [u8]) -> Result<(), ring::error::Unspecified> {
    use ring::rand::SecureRandom;
    ring::rand::SystemRandom::new().fill(bytes)
}
