//! A client's sockets on an iothread's ring: the data path.
//!
//! What a turn of the loop has queued leaves at its end, one send per connection; what a receive
//! has brought is handled in place, in the ring's own buffers.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;

use iothread::{JoinHandle, Refill, Signal, Stream, TurnHook};

use crate::client::{Action, Client, ConnId};
use crate::msgr::OutBatch;
use crate::rados::Rados;

use super::turn::{Alarm, now};

/// A client that runs on the current iothread, until this is dropped.
pub struct Driver {
    rados: Rados,
    _hook: TurnHook,
    timer: JoinHandle<()>,
    sockets: Rc<Sockets>,
}

impl Driver {
    /// Starts a client on the current runtime.
    pub fn start(client: Client) -> Driver {
        let rados = Rados::new(client, now, || {});
        rados.with(|client, now, _| client.start(now));
        let sockets = Rc::new(Sockets::default());
        let alarm = Rc::new(Alarm::default());
        let timer = iothread::spawn(keep_time(rados.clone(), Rc::clone(&alarm)));
        let hook = iothread::on_turn_end({
            let (rados, sockets) = (rados.clone(), Rc::clone(&sockets));
            move || {
                pump(&rados, &sockets);
                alarm.set(rados.with(|client, _, _| client.next_deadline()));
            }
        });
        Driver {
            rados,
            _hook: hook,
            timer,
            sockets,
        }
    }

    pub fn rados(&self) -> &Rados {
        &self.rados
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.timer.abort();
        for socket in self.sockets.0.borrow_mut().drain() {
            socket.1.task.abort();
        }
    }
}

#[derive(Default)]
struct Sockets(RefCell<HashMap<ConnId, Socket>>);

struct Socket {
    task: JoinHandle<()>,
    /// There is something to send.
    output: Rc<Signal>,
}

/// Carries out what a turn has queued.
fn pump(rados: &Rados, sockets: &Rc<Sockets>) {
    rados.flush();
    while let Some(action) = rados.with(|client, _, _| client.poll_action()) {
        match action {
            Action::Connect { conn, addr } => {
                let output = Rc::new(Signal::default());
                let serve = serve(rados.clone(), conn, addr, Rc::clone(&output));
                let task = iothread::spawn(serve);
                sockets.0.borrow_mut().insert(conn, Socket { task, output });
            }
            Action::Close { conn } => {
                if let Some(socket) = sockets.0.borrow_mut().remove(&conn) {
                    socket.task.abort();
                }
            }
        }
    }
    while let Some(conn) = rados.with(|client, _, _| client.poll_dirty()) {
        if let Some(socket) = sockets.0.borrow().get(&conn) {
            socket.output.raise();
        }
    }
}

async fn keep_time(rados: Rados, alarm: Rc<Alarm>) {
    loop {
        alarm.wait().await;
        // The hook sets the next one at the end of this turn.
        rados.with(|client, now, sink| client.tick(now, sink));
    }
}

/// One connection, from dialling to its end.
async fn serve(rados: Rados, conn: ConnId, addr: SocketAddr, output: Rc<Signal>) {
    let why = match exchange(&rados, conn, addr, &output).await {
        Ok(()) => "the peer closed the connection".to_owned(),
        Err(e) => e.to_string(),
    };
    rados.with(|client, now, sink| client.closed(conn, &why, now, sink));
}

async fn exchange(
    rados: &Rados,
    conn: ConnId,
    addr: SocketAddr,
    output: &Signal,
) -> std::io::Result<()> {
    let stream = Stream::connect(addr).await?;
    stream.set_nodelay(true)?;
    rados.with(|client, now, _| client.connected(conn, now));
    let mut incoming = stream.recv_stream();
    let receive = async {
        while let Some(piece) = incoming.next().await? {
            let mut piece = Some(piece);
            while let Some(bytes) = piece.take() {
                rados.with(|client, now, sink| client.received(conn, &bytes, now, sink));
                piece = match incoming.try_next() {
                    Some(next) => match next? {
                        Some(next) => Some(next),
                        None => return Ok(()),
                    },
                    None => None,
                };
            }
        }
        Ok(())
    };
    let send = iothread::pump(&stream, output, OutBatch::new(), |batch| {
        batch.clear();
        rados.with(|client, _, _| client.take_output(conn, batch));
        if batch.is_empty() {
            Refill::Idle
        } else {
            Refill::Send
        }
    });
    iothread::race(receive, send).await
}
