//! What carries a client's bytes: TCP under tokio for the control plane, TCP on an iothread's ring
//! for the data path.

pub mod ring;
pub mod tokio;
