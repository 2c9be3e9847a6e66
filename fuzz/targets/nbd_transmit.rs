//! The NBD transmission phase with all reply styles, over a disk that completes in any order.

#![no_main]

use std::rc::Rc;
use std::task::{Poll, Waker};

use libfuzzer_sys::fuzz_target;
use ublk_rbd::frontend::arena::Arena;
use ublk_rbd::frontend::disk::Disk;
use ublk_rbd::frontend::memdisk::{MemDisk, Order};
use ublk_rbd::frontend::nbd::negotiate::{Agreement, ReplyStyle};
use ublk_rbd::frontend::nbd::reply::Batch;
use ublk_rbd::frontend::nbd::transmit::{Progress, Session};

thread_local! {
    static ARENA: Rc<Arena> = Rc::new(Arena::new(1 << 20, 300).expect("a megabyte"));
}

fuzz_target!(|data: &[u8]| {
    let [how, piece, flags, stream @ ..] = data else {
        return;
    };
    let arena = ARENA.with(Rc::clone);
    let order = match how & 4 {
        0 => Order::Immediate,
        _ => Order::Shuffled {
            seed: u64::from(*how),
        },
    };
    let disk = Rc::new(MemDisk::new(256 << 10, order));
    let reply = [
        ReplyStyle::Simple,
        ReplyStyle::Structured,
        ReplyStyle::Extended,
    ][usize::from(how % 3)];
    let agreement = Agreement {
        export: 0,
        reply,
        allocation: reply != ReplyStyle::Simple && how & 8 != 0,
        flags: u16::from(*flags) | 1,
    };
    let served: Rc<dyn Disk> = Rc::<MemDisk>::clone(&disk);
    let session = Session::new(served, Rc::clone(&arena), &agreement);
    'stream: for piece in stream.chunks((usize::from(*piece) + 1) * 8) {
        let mut input = piece;
        loop {
            match session.poll_receive(&mut input, Waker::noop()) {
                Poll::Ready(Ok(Progress::Hungry)) => {
                    assert!(input.is_empty());
                    break;
                }
                Poll::Ready(_) => break 'stream,
                Poll::Pending => {
                    let moved = disk.complete(1 + usize::from(how >> 4)) > 0;
                    let sent = send(&session);
                    assert!(moved || sent, "stalled with nothing to wait for");
                }
            }
        }
        if how & 0x40 != 0
            && let Some(direct) = session.take_direct(512)
        {
            let n = direct.missing().len().min(600);
            session.give_direct(direct, n);
        }
        session.flush();
    }
    if how & 0x80 != 0 {
        session.close();
    }
    while disk.complete(7) > 0 || send(&session) {}
    assert_eq!(session.in_flight(), 0);
    session.close();
    drop(session);
    assert_eq!(arena.in_use(), 0, "request memory that nobody gave back");
});

fn send(session: &Session) -> bool {
    let mut batch = Batch::default();
    let ready = session.poll_output(&mut batch, Waker::noop()) == Poll::Ready(true);
    let len: usize = batch.slices().map(<[u8]>::len).sum();
    assert_eq!(len, batch.len());
    session.sent(&mut batch);
    ready
}
