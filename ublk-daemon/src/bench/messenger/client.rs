//! The asking side: one connection on an iothread's ring.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use cluster::auth::{self, ConMode, MonHandshake};
use cluster::codec::{EntityAddr, EntityAddrVec, EntityName, EntityType, Now};
use cluster::msgr::{self, Connection, Event, MsgHeader, OutBatch};
use cluster::payload::Payload;
use iothread::{IoThread, Refill, Signal, Stream};

use super::server::{Server, key, user};
use super::{Costs, Mode, Plan, Run, WARM_UP, cpu_time, this_thread};

/// Kind of the message, of no meaning to Ceph.
const MESSAGE: u16 = 1000;

/// Keeps messages in flight and counts the answers, from a thread of its own.
pub(super) fn run(plan: &Plan, server: &Server) -> Result<Run> {
    let (addr, plan) = (server.addr, *plan);
    let (answer, progress) = mpsc::channel();
    let config = plan.ring("bench-client", plan.client_cpu);
    let thread = IoThread::spawn(config, move || async move {
        let done = exchange(addr, &plan, &answer).await;
        if let Err(e) = done {
            let _ = answer.send(Err(e));
        }
    })?;
    let measured = measure(&plan, server, &thread, &progress);
    let _ = thread.remote().spawn(|| STOP.with(Signal::raise));
    if thread.join().is_err() {
        bail!("the client's thread panicked");
    }
    measured
}

/// How far the client is.
type Progress = Result<libc::pid_t>;

thread_local! {
    static STOP: Signal = Signal::new();
    static ANSWERS: Cell<u64> = const { Cell::new(0) };
}

fn measure(
    plan: &Plan,
    server: &Server,
    client: &IoThread<()>,
    progress: &mpsc::Receiver<Progress>,
) -> Result<Run> {
    let id = progress.recv().context("the client's thread ended")??;
    let remote = client.remote();
    // Asks the client's own thread, so that counting costs no shared memory.
    let count = || -> Result<u64> {
        let (tell, told) = mpsc::channel();
        remote.spawn(move || {
            // Whoever asked waits for it below.
            let _ = tell.send(ANSWERS.with(Cell::get));
        })?;
        told.recv().context("the client's thread ended")
    };
    let costs = || -> Result<(Costs, Costs)> {
        let client = Costs {
            cpu: cpu_time(id)?,
            calls: remote.stats().enters,
        };
        Ok((server.costs()?, client))
    };
    std::thread::sleep(WARM_UP);
    let (from, start, before) = (count()?, Instant::now(), costs()?);
    std::thread::sleep(plan.runtime);
    let (to, seconds, after) = (count()?, start.elapsed().as_secs_f64(), costs()?);
    if let Ok(Err(e)) = progress.try_recv() {
        return Err(e);
    }
    Ok(Run {
        messages: to - from,
        seconds,
        server: after.0.since(before.0),
        client: after.1.since(before.1),
    })
}

struct Client {
    conn: RefCell<Connection>,
    auth: auth::Client,
    handshake: RefCell<Option<MonHandshake>>,
    output: Signal,
    payload: Payload,
    next_tid: Cell<u64>,
    qd: usize,
    tell: mpsc::Sender<Progress>,
}

async fn exchange(addr: SocketAddr, plan: &Plan, tell: &mpsc::Sender<Progress>) -> Result<()> {
    let mode = match plan.mode {
        Mode::Secure => ConMode::Secure,
        _ => ConMode::Crc,
    };
    let identity = auth::ClientConfig {
        mon_modes: vec![mode],
        ..auth::ClientConfig::new(user(), Some(key()))
    };
    let me = EntityName::new(EntityType::CLIENT, -1);
    let blank = EntityAddr {
        nonce: 1,
        ..EntityAddr::default()
    };
    let mut config = msgr::Config::client(me, EntityAddrVec(vec![blank]));
    config.crc_data = plan.mode != Mode::NoCrc;
    let peer = EntityAddr::msgr2(addr, 0);
    let client = Rc::new(Client {
        conn: RefCell::new(Connection::client(config, peer, EntityType::MON)),
        auth: auth::Client::new(identity)?,
        handshake: RefCell::default(),
        output: Signal::new(),
        payload: Payload::from(vec![0x5a; plan.bs]),
        next_tid: Cell::new(0),
        qd: plan.qd,
        tell: tell.clone(),
    });
    let stream = Stream::connect(addr).await?;
    client.conn.borrow_mut().start(now());
    // What a turn has queued leaves at its end, as the client of images does it.
    let _hook = iothread::on_turn_end({
        let client = Rc::clone(&client);
        move || {
            if client.conn.borrow().has_output() {
                client.output.raise();
            }
        }
    });
    let receive = async {
        let mut incoming = stream.recv_stream();
        loop {
            let mut piece = incoming.next().await?;
            loop {
                let Some(bytes) = piece else {
                    bail!("the server closed the connection");
                };
                client.received(&bytes)?;
                piece = match incoming.try_next() {
                    Some(next) => next?,
                    None => break,
                };
            }
        }
    };
    let send = async {
        let sent = iothread::pump(&stream, &client.output, OutBatch::new(), |batch| {
            batch.clear();
            client.conn.borrow_mut().take_output(batch);
            if batch.is_empty() {
                Refill::Idle
            } else {
                Refill::Send
            }
        });
        sent.await.map_err(anyhow::Error::from)
    };
    let stop = STOP.with(Signal::clone);
    let stopped = async {
        stop.wait().await;
        Ok(())
    };
    iothread::race(stopped, iothread::race(receive, send)).await
}

fn now() -> Now {
    let now = iothread::now();
    Now {
        mono: now.mono,
        wall: now.wall,
    }
}

impl Client {
    fn received(&self, mut input: &[u8]) -> Result<()> {
        let mut answers = 0;
        let mut conn = self.conn.borrow_mut();
        while let Some(event) = conn.next_event(&mut input, now())? {
            let mut handshake = self.handshake.borrow_mut();
            match event {
                Event::Message(_) => {
                    answers += 1;
                    self.send(&mut conn)?;
                }
                Event::Ready(_) => {
                    for _ in 0..self.qd {
                        self.send(&mut conn)?;
                    }
                    let _ = self.tell.send(Ok(this_thread()));
                }
                Event::AuthStart => {
                    let mut seed = [0; 40];
                    cluster::random_seed(&mut seed)?;
                    let begun = handshake.insert(self.auth.mon_handshake(&seed));
                    let request = begun.request();
                    let modes = request.raw_modes();
                    conn.auth_request(request.method.raw(), &modes, &request.payload)?;
                }
                Event::AuthBadMethod(bad) => {
                    let begun = handshake.as_mut().ok_or_else(out_of_order)?;
                    let (methods, modes) = (&bad.allowed_methods, &bad.allowed_modes);
                    let request = begun.bad_method(bad.method, bad.result, methods, modes)?;
                    let modes = request.raw_modes();
                    conn.auth_request(request.method.raw(), &modes, &request.payload)?;
                }
                Event::AuthMore(payload) => {
                    let begun = handshake.as_mut().ok_or_else(out_of_order)?;
                    let proof = begun.more(payload, now())?;
                    conn.auth_more(&proof)?;
                }
                Event::AuthDone {
                    global_id,
                    con_mode,
                    payload,
                } => {
                    let begun = handshake.as_mut().ok_or_else(out_of_order)?;
                    let secrets = begun.done(global_id, con_mode, payload, now())?;
                    conn.auth_finish(
                        secrets.session_key.as_bytes(),
                        secrets.connection_secret.as_bytes(),
                    )?;
                }
                _ => {}
            }
        }
        ANSWERS.with(|n| n.set(n.get() + answers));
        Ok(())
    }

    fn send(&self, conn: &mut Connection) -> Result<()> {
        let tid = self.next_tid.get();
        self.next_tid.set(tid + 1);
        let header = MsgHeader {
            tid,
            ..MsgHeader::new(MESSAGE, 1, 1)
        };
        let data = std::slice::from_ref(&self.payload);
        conn.send(&header, |_| (), &[], data)?;
        Ok(())
    }
}

fn out_of_order() -> anyhow::Error {
    anyhow!("the server answers what was not asked")
}
