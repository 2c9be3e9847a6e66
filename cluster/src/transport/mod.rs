//! What carries messages: for clients, TCP under tokio (control plane) or on an iothread's ring
//! (data path); for servers, on an iothread's ring.

pub mod listen;
pub mod ring;
pub mod tokio;
mod turn;
