//! Serves a disk in memory over NBD, to try clients on and to measure the protocol with:
//! `nbd-memory SOCKET SIZE_IN_MIB`. It prints the ring's counters when its input ends.

use std::io::Read;
use std::path::PathBuf;
use std::rc::Rc;

use anyhow::Context;
use iothread::{IoThread, Signal};
use ublk_rbd::frontend::arena::Arena;
use ublk_rbd::frontend::memdisk::{MemDisk, Order};
use ublk_rbd::frontend::nbd::server::{Config, Served, Server};
use ublk_rbd::frontend::nbd::socket::Socket;

thread_local! {
    static STOP: Signal = Signal::new();
}

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args_os().skip(1);
    let path = PathBuf::from(args.next().context("the path of a socket is missing")?);
    let size = args.next().context("the size in MiB is missing")?;
    let size: u64 = size.to_string_lossy().parse().context("size")?;
    let thread = IoThread::spawn(iothread::Config::default(), move || serve(path, size << 20))?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    let before = thread.remote().stats();
    thread.remote().spawn(|| STOP.with(Signal::raise))?;
    thread.join().expect("the server thread panicked")?;
    println!("{before:?}");
    Ok(())
}

async fn serve(path: PathBuf, size: u64) -> anyhow::Result<()> {
    let disk = MemDisk::new(size, Order::Immediate);
    // A disk that was never written would be answered as one hole.
    disk.fill(0x5a);
    let server = Server::new(Config::default());
    server.add(Served {
        name: "memory".to_owned(),
        description: String::new(),
        disk: Rc::new(disk),
        arena: Rc::new(Arena::new(64 << 20, 1024)?),
    });
    server.listen(Socket::unix(&path, 0o600)?)?;
    STOP.with(Signal::clone).wait().await;
    server.stop().await;
    Ok(())
}
