//! A single-threaded executor on one io_uring.
//!
//! # Contract
//! - **One thread.** A [`Runtime`] and all that belongs to it stay on the thread that made it;
//!   nothing here takes a lock. Other threads reach it through a [`Remote`] only, which costs a
//!   lock and perhaps a system call: it is for control, not for requests.
//! - **One turn, one system call.** A turn reads the clocks once ([`now`]), takes completions,
//!   runs what woke until nothing is ready, runs the end-of-turn hooks ([`on_turn_end`]), and
//!   submits everything queued meanwhile with one `io_uring_enter`, in which it also sleeps when
//!   idle. [`Stats`] count turns, enters, submissions and completions.
//! - **Operations own what they use.** Buffers, batches and descriptors are moved into an
//!   operation and come back with its result. Drop its future at any time: the operation is
//!   cancelled, and its resources are dropped when the kernel is done with them, not before.
//!   What a late completion carries (a received buffer, an accepted socket) is given back.
//! - **An ended runtime has nothing in flight.** Dropping it drops all tasks, cancels the rest
//!   and waits for the kernel, then closes the ring. What the kernel does not return in time is
//!   leaked rather than freed.
//! - **Nothing is allocated in a steady state.** Tasks and operations live in recycled blocks and
//!   table slots, wakers belong to the slots, buffers exist from the start.
//! - **Bounded.** Received bytes wait in a fixed set of buffers that all sockets of the ring
//!   share. When all are in use, receiving waits until one is dropped. So take what was received,
//!   every turn; whoever cannot [pauses](RecvStream::pause) or does without
//!   [multishot](RecvStream::set_multishot).
//!
//! Linux 5.19 is the oldest kernel meant to work; what newer ones add (multishot receive 6.0,
//! deferred task work 6.1, minimum waits 6.12) is used where found. [`Config`] can hide each.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let runtime = iothread::Runtime::new(&iothread::Config::default())?;
//! runtime.block_on(async {
//!     let stream = iothread::Stream::connect(([127, 0, 0, 1], 7).into()).await?;
//!     let mut pieces = stream.recv_stream();
//!     let (sent, _batch) = stream.send_batch(b"hello".to_vec()).await;
//!     sent?;
//!     while let Some(piece) = pieces.next().await? {
//!         println!("{} bytes", piece.len());
//!     }
//!     std::io::Result::Ok(())
//! })?;
//! # Ok(())
//! # }
//! ```

mod buf;
mod command;
mod config;
mod core;
mod fd;
mod memory;
mod net;
mod ops;
mod pool;
mod recv;
mod remote;
mod ring;
mod runtime;
mod send;
mod signal;
mod task;
mod thread;
mod timer;

#[cfg(test)]
mod tests;

/// The crate whose entries [`submit_raw`] and [`Commands`] take.
pub use io_uring;

pub use buf::{IoBuf, IoBufMut};
pub use command::{CommandSink, Commands, submit_raw, submit_raw128};
pub use config::{Config, Features, SetupError};
pub use fd::{EventFd, Fd, File};
pub use net::{Listener, Stream};
pub use ops::Cqe;
pub use pool::{BufPool, BufPoolConfig, Get, PoolBuf};
pub use recv::{RecvBuf, RecvStream};
pub use remote::{Closed, Remote, Stats};
pub use runtime::{
    Runtime, TurnHook, features, now, on_turn_end, race, remote, sleep, sleep_until, spawn, stats,
    timeout, timeout_at, yield_now,
};
pub use send::{Batch, Refill, SendQueue, StableBatch, pump};
pub use signal::Signal;
pub use task::{Aborted, JoinHandle};
pub use thread::{IoThread, Unprotected, pin_to_cpu, protect_from_reclaim};
pub use timer::{Elapsed, Now, Sleep};
