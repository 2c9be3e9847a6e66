//! The server of one iothread: accepts, serves, and drains when asked to stop.
//!
//! Everything runs on the ring, the handshake included: it is a few messages, and the state
//! machine does not care what carries it.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::Shutdown;
use std::rc::Rc;
use std::time::Duration;

use iothread::{JoinHandle, Listener, Stream};
use slab::Slab;
use tracing::{debug, warn};

use super::super::arena::Arena;
use super::super::disk::Disk;
use super::connection::{self, ConnectionError, Input};
use super::negotiate::{Export, Tls};
use super::socket::Socket;
use super::transmit::{Session, served_info};

#[derive(Debug, Clone)]
pub struct Config {
    pub handshake_timeout: Duration,
    /// How long a client may stop in the middle of a request (to be exact: up to twice that).
    pub stuck_timeout: Duration,
    /// How long a stopping server waits for requests in flight and for clients to take replies.
    pub drain_timeout: Duration,
    pub max_connections: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            handshake_timeout: Duration::from_secs(10),
            stuck_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(10),
            max_connections: 64,
        }
    }
}

/// An export and the disk behind it.
pub struct Served {
    pub name: String,
    pub description: String,
    pub disk: Rc<dyn Disk>,
    /// Request memory, shared by all connections to the export.
    pub arena: Rc<Arena>,
}

struct Connection {
    stream: Stream,
    /// Once the handshake is over.
    chosen: Option<(Rc<Served>, Rc<Session>)>,
}

struct Shared {
    config: Config,
    exports: RefCell<Vec<Rc<Served>>>,
    connections: RefCell<Slab<Connection>>,
    accepted: Cell<u64>,
}

/// An NBD server. It belongs to the runtime it is used on; dropping it stops the listening, and
/// leaves the connections there are to their clients.
pub struct Server {
    shared: Rc<Shared>,
    listening: RefCell<Vec<(Socket, JoinHandle<()>)>>,
}

impl Server {
    pub fn new(config: Config) -> Server {
        Server {
            shared: Rc::new(Shared {
                config,
                exports: RefCell::default(),
                connections: RefCell::default(),
                accepted: Cell::new(0),
            }),
            listening: RefCell::default(),
        }
    }

    /// Offers an export to clients that connect from now on. The name must be new.
    pub fn add(&self, export: Served) {
        let mut exports = self.shared.exports.borrow_mut();
        assert!(exports.iter().all(|e| e.name != export.name));
        exports.push(Rc::new(export));
    }

    /// Withdraws an export: requests in flight are answered, then its connections are closed.
    /// False if there is none of that name.
    pub async fn remove(&self, name: &str) -> bool {
        let removed = {
            let mut exports = self.shared.exports.borrow_mut();
            let at = exports.iter().position(|e| e.name == name);
            at.map(|at| exports.remove(at))
        };
        let Some(export) = removed else { return false };
        self.shared
            .drain(|c| matches!(&c.chosen, Some((e, _)) if Rc::ptr_eq(e, &export)))
            .await;
        true
    }

    /// Accepts connections on a socket, until the server stops.
    pub fn listen(&self, socket: Socket) -> io::Result<()> {
        let listener = Listener::from_fd(socket.descriptor()?)?;
        let task = iothread::spawn(accept(Rc::clone(&self.shared), listener));
        self.listening.borrow_mut().push((socket, task));
        Ok(())
    }

    /// Connections now, and accepted ever.
    pub fn connections(&self) -> (usize, u64) {
        let now = self.shared.connections.borrow().len();
        (now, self.shared.accepted.get())
    }

    /// Stops listening, answers what is in flight and closes all connections.
    pub async fn stop(&self) {
        self.stop_listening();
        self.shared.drain(|_| true).await;
    }

    fn stop_listening(&self) {
        for (_, task) in self.listening.borrow_mut().drain(..) {
            task.abort();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop_listening();
    }
}

async fn accept(shared: Rc<Shared>, mut listener: Listener) {
    loop {
        match listener.accept().await {
            Ok(stream) => {
                shared.accepted.set(shared.accepted.get() + 1);
                if shared.connections.borrow().len() >= shared.config.max_connections {
                    warn!("NBD client turned away: too many connections");
                    continue;
                }
                iothread::spawn(Rc::clone(&shared).serve(stream));
            }
            Err(error) => {
                // Out of descriptors, most likely; others will be closed.
                warn!(%error, "cannot accept an NBD connection");
                iothread::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

impl Shared {
    async fn serve(self: Rc<Self>, stream: Stream) {
        // For TCP; a Unix socket has no such option.
        let _ = stream.set_nodelay(true);
        let key = self.connections.borrow_mut().insert(Connection {
            stream: stream.clone(),
            chosen: None,
        });
        match self.converse(&stream, key).await {
            Ok(()) => debug!("NBD client left"),
            Err(ConnectionError::Io(error)) => debug!(%error, "NBD connection lost"),
            Err(error) => warn!(%error, "NBD connection ended"),
        }
        self.connections.borrow_mut().remove(key);
    }

    async fn converse(&self, stream: &Stream, key: usize) -> Result<(), ConnectionError> {
        let exports = self.exports.borrow().clone();
        let offers: Vec<Export> = exports
            .iter()
            .map(|e| Export {
                name: e.name.clone(),
                description: e.description.clone(),
                info: served_info(&*e.disk, &e.arena),
            })
            .collect();
        let mut input = Input::new();
        let limit = self.config.handshake_timeout;
        let agreed = connection::handshake(stream, &mut input, Tls::Off, &offers, limit).await?;
        let Some(agreement) = agreed else {
            return Ok(());
        };
        let export = &exports[agreement.export];
        let session = Session::new(export.disk.clone(), export.arena.clone(), &agreement);
        debug!(export = export.name, reply = ?agreement.reply, "NBD client chose an export");
        if !self.exports.borrow().iter().any(|e| Rc::ptr_eq(e, export)) {
            // Withdrawn during the handshake.
            session.drain();
        }
        self.connections.borrow_mut()[key].chosen = Some((export.clone(), session.clone()));
        connection::transmit(stream, &session, input, self.config.stuck_timeout).await
    }

    /// Ends the connections that `which` picks: further requests are refused, those in flight
    /// are answered as long as the drain timeout allows.
    async fn drain(&self, which: impl Fn(&Connection) -> bool) {
        const POLL: Duration = Duration::from_millis(5);
        let deadline = iothread::now().after(self.config.drain_timeout);
        let late = || iothread::now().mono >= deadline;
        let streams = |ready: &dyn Fn(&Connection) -> bool| -> Vec<Stream> {
            let connections = self.connections.borrow();
            let picked = connections.iter().map(|(_, c)| c);
            picked
                .filter(|c| which(c) && ready(c))
                .map(|c| c.stream.clone())
                .collect()
        };
        let busy = |c: &Connection| c.chosen.as_ref().is_some_and(|(_, s)| s.in_flight() > 0);
        for (_, connection) in self.connections.borrow().iter() {
            if let Some((_, session)) = &connection.chosen
                && which(connection)
            {
                session.drain();
            }
        }
        while !streams(&busy).is_empty() && !late() {
            iothread::sleep(POLL).await;
        }
        // An end of input lets a connection send what it has, and end.
        for stream in streams(&|_| true) {
            let _ = stream.shutdown(Shutdown::Read).await;
        }
        while !streams(&|_| true).is_empty() && !late() {
            iothread::sleep(POLL).await;
        }
        for (_, connection) in self.connections.borrow().iter() {
            if let Some((export, session)) = &connection.chosen
                && which(connection)
            {
                let abandoned = session.in_flight();
                warn!(
                    export = export.name,
                    abandoned, "NBD client did not take its replies in time"
                );
                session.close();
            }
        }
        for stream in streams(&|_| true) {
            let _ = stream.shutdown(Shutdown::Both).await;
        }
    }
}
