//! Tasks, timers, hooks, remotes, commands, files.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use io_uring::{opcode, types};

use super::*;
use crate::*;

fn runtime() -> Runtime {
    Runtime::new(&small()).unwrap()
}

#[test]
fn tasks_join_and_reuse_slots() {
    on_all_kernels(|rt| {
        let sum = rt.block_on(async {
            let mut sum = 0;
            for round in 0..50u64 {
                let handles: Vec<_> = (0..20)
                    .map(|i| {
                        spawn(async move {
                            if i % 3 == 0 {
                                yield_now().await;
                            }
                            round * i
                        })
                    })
                    .collect();
                for h in handles {
                    sum += h.await.unwrap();
                }
            }
            sum
        });
        assert_eq!(sum, (0..50).sum::<u64>() * (0..20).sum::<u64>());
    });
}

#[test]
fn spawning_reuses_memory() {
    let rt = runtime();
    rt.block_on(async {
        let place = |n: usize| async move {
            let big = [n; 40];
            yield_now().await;
            (&raw const big) as usize
        };
        let first = spawn(place(1)).await.unwrap();
        for n in 0..10 {
            assert_eq!(spawn(place(n)).await.unwrap(), first);
        }
    });
}

#[test]
fn outputs_and_futures_are_dropped_once_wherever_the_handle_goes() {
    struct Count(Rc<Cell<i32>>);
    impl Drop for Count {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    let drops = Rc::new(Cell::new(0));
    let rt = runtime();
    rt.block_on(async {
        let make = || Count(Rc::clone(&drops));
        let (a, b) = (make(), make());
        // Detached, finished, output dropped.
        drop(spawn(async move { a }));
        yield_now().await;
        yield_now().await;
        assert_eq!(drops.get(), 1);
        // Finished, handle dropped later.
        let h = spawn(async move { b });
        yield_now().await;
        yield_now().await;
        assert!(h.is_finished());
        assert_eq!(drops.get(), 1);
        drop(h);
        assert_eq!(drops.get(), 2);
        // Aborted before it ran, while waiting, and by itself.
        let c = make();
        let h = spawn(async move { c });
        h.abort();
        assert_eq!(drops.get(), 3);
        assert_eq!(h.await.map(drop), Err(Aborted));
        let d = make();
        let h = spawn(async move {
            std::future::pending::<()>().await;
            d
        });
        yield_now().await;
        yield_now().await;
        h.abort();
        h.abort();
        assert_eq!(drops.get(), 4);
        assert_eq!(h.await.map(drop), Err(Aborted));
        let e = make();
        let own = Rc::new(RefCell::new(None::<JoinHandle<()>>));
        let own2 = Rc::clone(&own);
        *own.borrow_mut() = Some(spawn(async move {
            let _e = e;
            own2.borrow().as_ref().unwrap().abort();
            std::future::pending::<()>().await;
        }));
        yield_now().await;
        yield_now().await;
        assert_eq!(drops.get(), 5);
        let h = own.borrow_mut().take().unwrap();
        assert_eq!(h.await, Err(Aborted));
        // Still there at the end of the runtime.
        let f = make();
        drop(spawn(async move {
            std::future::pending::<()>().await;
            drop(f);
        }));
        yield_now().await;
    });
    assert_eq!(drops.get(), 5);
    drop(rt);
    assert_eq!(drops.get(), 6);
}

#[test]
fn a_handle_outlives_its_runtime() {
    let rt = runtime();
    let waiting = rt.spawn(std::future::pending::<()>());
    let never_ran = rt.spawn(async { 1 });
    drop(rt);
    let other = runtime();
    assert_eq!(other.block_on(waiting), Err(Aborted));
    assert_eq!(other.block_on(never_ran), Err(Aborted));
}

#[test]
fn a_panic_in_a_task_comes_out_and_the_runtime_ends_cleanly() {
    let rt = runtime();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        rt.block_on(async {
            let event = EventFd::new().unwrap();
            drop(spawn(async move { event.read().await }));
            yield_now().await;
            let event = EventFd::new().unwrap();
            spawn(async move {
                let read = event.read();
                let mut read = std::pin::pin!(read);
                std::future::poll_fn(|cx| read.as_mut().poll(cx).map(drop)).await;
            });
            spawn(async { panic!("as planned") });
            std::future::pending::<()>().await;
        });
    }));
    assert!(caught.is_err());
    assert_eq!(rt.block_on(async { 7 }), 7, "not inside block_on any more");
    assert_eq!(rt.shutdown(), 0);
}

#[test]
fn timers_fire_in_order_and_not_early() {
    on_all_kernels(|rt| {
        rt.block_on(async {
            let order = Rc::new(RefCell::new(Vec::new()));
            let start = now().mono;
            let mut handles = Vec::new();
            for ms in [9, 3, 7, 3, 1, 5, 0, 2] {
                let order = Rc::clone(&order);
                handles.push(spawn(async move {
                    let at = start + ms * 1_000_000;
                    sleep_until(at).await;
                    assert!(now().mono >= at);
                    order.borrow_mut().push(ms);
                }));
            }
            for h in handles {
                h.await.unwrap();
            }
            assert_eq!(*order.borrow(), [0, 1, 2, 3, 3, 5, 7, 9]);
        });
    });
}

#[test]
fn timeouts_cut_off_and_leave_nothing() {
    on_all_kernels(|rt| {
        rt.block_on(async {
            let event = EventFd::new().unwrap();
            let before = Instant::now();
            let cut = timeout(Duration::from_millis(5), event.read()).await;
            assert!(matches!(cut, Err(Elapsed)));
            assert!(before.elapsed() >= Duration::from_millis(5));
            let fine = timeout(Duration::from_secs(60), async { 3 }).await;
            assert_eq!(fine, Ok(3));
            let mut sleep = std::pin::pin!(sleep(Duration::from_secs(60)));
            let pending = std::future::poll_fn(|cx| {
                std::task::Poll::Ready(sleep.as_mut().poll(cx).is_pending())
            });
            assert!(pending.await);
            sleep.as_mut().get_mut().reset(now().mono + 1_000_000);
            sleep.await;
        });
    });
}

#[test]
fn the_clock_moves_with_turns_only() {
    let rt = runtime();
    rt.block_on(async {
        let a = now();
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(now(), a);
        yield_now().await;
        let b = now();
        assert!(b.mono >= a.mono + 2_000_000);
        assert_eq!(b.wall - a.wall, b.mono - a.mono);
        let wall = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap();
        assert!(wall.as_nanos().abs_diff(u128::from(b.wall)) < 2_000_000_000);
    });
}

#[test]
fn hooks_run_after_tasks_once_per_turn() {
    let rt = runtime();
    rt.block_on(async {
        let queued = Rc::new(Cell::new(0));
        let flushes = Rc::new(RefCell::new(Vec::new()));
        let hook = {
            let (queued, flushes) = (Rc::clone(&queued), Rc::clone(&flushes));
            on_turn_end(move || {
                let n = queued.take();
                if n > 0 {
                    flushes.borrow_mut().push(n);
                }
            })
        };
        for _ in 0..5 {
            let queued = Rc::clone(&queued);
            drop(spawn(async move { queued.set(queued.get() + 1) }));
        }
        yield_now().await;
        assert_eq!(*flushes.borrow(), [5], "one flush for all five tasks");
        drop(hook);
        queued.set(1);
        yield_now().await;
        assert_eq!(queued.get(), 1, "gone");
    });
}

#[test]
fn hooks_may_change_hooks() {
    let rt = runtime();
    rt.block_on(async {
        let ran = Rc::new(RefCell::new(Vec::new()));
        let slots = Rc::new(RefCell::new([const { None::<TurnHook> }; 4]));
        for i in 0..3 {
            let (ran, slots2) = (Rc::clone(&ran), Rc::clone(&slots));
            let hook = on_turn_end(move || {
                ran.borrow_mut().push(i);
                match i {
                    // Removes itself, and the next one.
                    0 => {
                        let own = slots2.borrow_mut()[0].take();
                        let next = slots2.borrow_mut()[1].take();
                        drop((own, next));
                    }
                    // Adds one, which runs in the same turn.
                    2 if slots2.borrow()[3].is_none() => {
                        let ran = Rc::clone(&ran);
                        let new = on_turn_end(move || ran.borrow_mut().push(3));
                        slots2.borrow_mut()[3] = Some(new);
                    }
                    _ => {}
                }
            });
            slots.borrow_mut()[i] = Some(hook);
        }
        yield_now().await;
        yield_now().await;
        assert_eq!(ran.borrow()[..5], [0, 2, 3, 2, 3]);
        slots.take();
    });
}

#[test]
fn remotes_bring_work_from_other_threads() {
    on_all_kernels(|rt| {
        let done = Arc::new(AtomicUsize::new(0));
        let remote = rt.remote();
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (remote, done) = (remote.clone(), Arc::clone(&done));
                std::thread::spawn(move || {
                    for i in 0..100 {
                        let done = Arc::clone(&done);
                        remote
                            .spawn(move || {
                                drop(spawn(async move {
                                    if i % 10 == 0 {
                                        sleep(Duration::from_micros(50)).await;
                                    }
                                    done.fetch_add(1, Ordering::Relaxed);
                                }));
                            })
                            .unwrap();
                    }
                })
            })
            .collect();
        rt.block_on(async {
            while done.load(Ordering::Relaxed) < 300 {
                sleep(Duration::from_millis(1)).await;
            }
        });
        for t in threads {
            t.join().unwrap();
        }
    });
}

#[test]
fn a_waker_works_from_another_thread() {
    let rt = runtime();
    let flag = Arc::new(AtomicUsize::new(0));
    let elsewhere = Arc::clone(&flag);
    let mut started = false;
    rt.block_on(spawn_in(&rt, async move {
        std::future::poll_fn(move |cx| {
            if flag.load(Ordering::Acquire) == 1 {
                return std::task::Poll::Ready(());
            }
            if !std::mem::replace(&mut started, true) {
                let (waker, elsewhere) = (cx.waker().clone(), Arc::clone(&elsewhere));
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(5));
                    elsewhere.store(1, Ordering::Release);
                    waker.wake();
                });
            }
            std::task::Poll::Pending
        })
        .await;
    }))
    .unwrap();
}

fn spawn_in<F: Future + 'static>(rt: &Runtime, f: F) -> JoinHandle<F::Output> {
    rt.spawn(f)
}

#[test]
fn an_iothread_serves_and_ends() {
    let (tx, rx) = std::sync::mpsc::channel();
    let thread = IoThread::spawn(small(), move || async move {
        let stop = Signal::new();
        let raise = stop.clone();
        thread_local!(static STOP: RefCell<Option<Signal>> = const { RefCell::new(None) });
        STOP.set(Some(raise));
        tx.send(|| STOP.with(|s| s.borrow().as_ref().unwrap().raise()))
            .unwrap();
        stop.wait().await;
        42
    })
    .unwrap();
    let stop = rx.recv().unwrap();
    let remote = thread.remote().clone();
    remote.spawn(stop).unwrap();
    assert_eq!(thread.join().unwrap(), 42);
    assert_eq!(remote.spawn(|| ()), Err(Closed));
    remote.wake();
    assert!(remote.stats().turns > 0);
}

#[test]
fn pinning_and_protection_report() {
    std::thread::spawn(|| {
        pin_to_cpu(0).unwrap();
        assert!(pin_to_cpu(1 << 20).is_err());
        let config = Config {
            cpu: Some(1023),
            ..small()
        };
        let refused = Runtime::new(&config).unwrap_err();
        assert!(refused.to_string().contains("pin the thread"));
        let failed = protect_from_reclaim();
        // SAFETY: takes no pointers; undone for the other tests of the process.
        unsafe { libc::munlockall() };
        // Either outcome is legitimate; what must hold is that the report tells.
        assert_eq!(
            failed.is_empty(),
            failed.io_flusher.is_none() && failed.memory_lock.is_none()
        );
    })
    .join()
    .unwrap();
}

#[test]
fn files_read_what_was_written() {
    on_all_kernels(|rt| {
        let dir = tempfile::tempdir().unwrap();
        let mut options = std::fs::OpenOptions::new();
        options.read(true).write(true).create(true);
        rt.block_on(async {
            let file = File::open(dir.path().join("f"), &options).unwrap();
            let data: Vec<u8> = (0..100_000u32).map(|i| (i * 7) as u8).collect();
            let (done, data) = file.write_all_at(data, 0..100_000, 5).await;
            done.unwrap();
            file.fdatasync().await.unwrap();
            file.fsync().await.unwrap();
            let (done, back) = file.read_exact_at(vec![0; 100_010], 10..100_010, 5).await;
            done.unwrap();
            assert_eq!(back[10..], data[..]);
            assert_eq!(back[..10], [0; 10]);
            let (done, _) = file.read_exact_at(vec![0; 10], 0..10, 100_000).await;
            assert_eq!(done.unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
            let (n, _) = file.read_at(vec![0; 10], 0..10, 100_000).await;
            assert_eq!(n.unwrap(), 5);
        });
    });
}

#[test]
fn event_fds_and_poll() {
    on_all_kernels(|rt| {
        rt.block_on(async {
            let event = EventFd::new().unwrap();
            let writer = event.clone();
            drop(spawn(async move {
                sleep(Duration::from_millis(1)).await;
                nix_write(writer.fd(), 5);
            }));
            assert_eq!(event.fd().poll(libc::POLLIN).await.unwrap(), libc::POLLIN);
            assert_eq!(event.read().await.unwrap(), 5);
        });
    });
}

fn nix_write(fd: &Fd, n: u64) {
    use std::os::fd::AsRawFd;
    let bytes = n.to_ne_bytes();
    // SAFETY: eight readable bytes.
    let done = unsafe { libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), 8) };
    assert_eq!(done, 8);
}

#[test]
fn raw_entries_complete() {
    on_all_kernels(|rt| {
        rt.block_on(async {
            // SAFETY: a no-op names no memory.
            let (cqe, back) = unsafe { submit_raw(opcode::Nop::new().build(), "kept") }.await;
            assert_eq!((cqe.check().unwrap(), back), (0, Some("kept")));
            let wide = io_uring::squeue::Entry128::from(opcode::Nop::new().build());
            // SAFETY: as above.
            let (cqe, _) = unsafe { submit_raw128(wide, ()) }.await;
            // Only the ring that was asked for it takes it.
            let expect = if rt.is_wide() { 0 } else { -libc::EINVAL };
            assert_eq!(cqe.result, expect);
        });
    });
}

struct Sink {
    done: RefCell<Vec<(u32, i32)>>,
    signal: Signal,
    value: Box<std::cell::UnsafeCell<[u64; 4]>>,
    dropped: Rc<Cell<bool>>,
}

impl CommandSink for Sink {
    fn complete(&self, tag: u32, cqe: Cqe) {
        self.done.borrow_mut().push((tag, cqe.result));
        self.signal.raise();
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.dropped.set(true);
    }
}

#[test]
fn commands_complete_by_tag_and_keep_their_sink() {
    on_all_kernels(|rt| {
        let dropped = Rc::new(Cell::new(false));
        let event = rt.block_on(async {
            let sink = Rc::new(Sink {
                done: RefCell::default(),
                signal: Signal::new(),
                value: Box::default(),
                dropped: Rc::clone(&dropped),
            });
            let commands = Commands::new(Rc::clone(&sink) as Rc<dyn CommandSink>);
            for tag in 0..100 {
                // SAFETY: a no-op names no memory.
                unsafe { commands.push(opcode::Nop::new().build(), tag) }.unwrap();
            }
            while sink.done.borrow().len() < 100 {
                sink.signal.wait().await;
            }
            let mut tags: Vec<_> = sink.done.borrow().iter().map(|d| d.0).collect();
            tags.sort_unstable();
            assert!(tags.into_iter().eq(0..100));
            assert_eq!(commands.in_flight(), 0);
            // One that waits, cancelled by tag; one that is left behind.
            let event = EventFd::new().unwrap();
            let fd = types::Fd(std::os::fd::AsRawFd::as_raw_fd(event.fd()));
            for tag in [7, 8] {
                let to = sink.value.get().cast::<u8>();
                // SAFETY: the memory belongs to the sink, in a box; the fd stays open below.
                unsafe { commands.push(opcode::Read::new(fd, to, 8).build(), tag) }.unwrap();
            }
            sink.done.borrow_mut().clear();
            commands.cancel(7);
            while sink.done.borrow().is_empty() {
                sink.signal.wait().await;
            }
            assert_eq!(*sink.done.borrow(), [(7, -libc::ECANCELED)]);
            assert_eq!(commands.in_flight(), 1);
            event
        });
        assert!(!dropped.get(), "a command is in flight");
        rt.block_on(async {
            nix_write(event.fd(), 1);
            while !dropped.get() {
                sleep(Duration::from_micros(100)).await;
            }
        });
    });
}

#[test]
fn shutdown_ends_commands_in_flight() {
    for (_, config) in kernels() {
        let dropped = Rc::new(Cell::new(false));
        let rt = Runtime::new(&config).unwrap();
        let kept = rt.block_on(async {
            let sink = Rc::new(Sink {
                done: RefCell::default(),
                signal: Signal::new(),
                value: Box::default(),
                dropped: Rc::clone(&dropped),
            });
            let event = EventFd::new().unwrap();
            let fd = types::Fd(std::os::fd::AsRawFd::as_raw_fd(event.fd()));
            let to = sink.value.get().cast::<u8>();
            let commands = Commands::new(sink);
            // SAFETY: the memory belongs to the sink, in a box; the event is returned.
            unsafe { commands.push(opcode::Read::new(fd, to, 8).build(), 3) }.unwrap();
            (commands, event)
        });
        assert_eq!(rt.shutdown(), 0);
        assert!(dropped.get());
        // SAFETY: a no-op names no memory.
        let late = unsafe { kept.0.push(opcode::Nop::new().build(), 1) };
        assert!(late.is_err());
    }
}

#[test]
fn the_best_flags_are_taken() {
    let rt = runtime();
    let best = rt.features();
    let plain = Config {
        force_plain_flags: true,
        ..small()
    };
    let plain = Runtime::new(&plain).unwrap().features();
    assert!(!plain.single_issuer && !plain.defer_taskrun && !plain.coop_taskrun);
    // Newer flags imply the older ones.
    assert!(!best.defer_taskrun || best.single_issuer);
    assert!(!best.single_issuer || best.coop_taskrun);
}

#[test]
fn a_busy_task_does_not_starve_the_ring() {
    on_all_kernels(|rt| {
        rt.block_on(async {
            let stop = Rc::new(Cell::new(false));
            let stopped = Rc::clone(&stop);
            // Wakes itself at once, forever.
            let busy = spawn(std::future::poll_fn(move |cx| {
                if stopped.get() {
                    return std::task::Poll::Ready(());
                }
                cx.waker().wake_by_ref();
                std::task::Poll::Pending
            }));
            sleep(Duration::from_millis(2)).await;
            let event = EventFd::new().unwrap();
            nix_write(event.fd(), 1);
            event.read().await.unwrap();
            stop.set(true);
            busy.await.unwrap();
        });
    });
}
