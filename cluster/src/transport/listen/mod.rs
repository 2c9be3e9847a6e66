//! A server's sockets on an iothread's ring: accepted connections and the state machine that they
//! talk to.
//!
//! One task serves one connection. What a receive has brought is handled in place, in the ring's
//! own buffers; what it makes the service send goes straight into the connections it is for, and
//! leaves when the turn ends, one send per connection.
//!
//! A peer costs what [`Limits`] say at most, and others nothing: unfinished handshakes end and give
//! way to newer ones, nothing more is read from a peer that does not take its answers, and a peer
//! that breaks a rule loses its connection only.

mod links;

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use iothread::{JoinHandle, Listener, RecvStream, Refill, Stream, TurnHook};

use crate::auth::server::Step;
use crate::codec::{EntityAddr, Now};
use crate::msgr::{self, Message, OutBatch};
use crate::osd::{Link, Outbox, Peer};

use super::turn::{Alarm, now};
use links::{Links, Wire};

/// What the connections of an iothread talk to.
///
/// Links are numbered by the listener. A link that was authenticated or opened is closed once,
/// whatever ends it; after that nothing more is heard of it.
pub trait Service: 'static {
    /// How a new connection is to behave. The listener gives it its number and its cookies.
    fn config(&mut self) -> msgr::Config;
    fn authenticate(&mut self, link: Link, ask: Ask<'_>, now: Now) -> Step;
    fn opened(&mut self, link: Link, peer: Peer, now: Now, out: &mut Outbox);
    fn closed(&mut self, link: Link, now: Now, out: &mut Outbox);
    fn message(&mut self, link: Link, message: &Message<'_>, now: Now, out: &mut Outbox);
    /// Nothing more is read from a peer while so much of what it asked for is under way.
    fn busy(&self, _link: Link) -> bool {
        false
    }
    /// The end of each turn of the loop: a place to look at what other threads have left.
    fn turn(&mut self, _now: Now, _out: &mut Outbox) {}
    fn next_deadline(&self) -> Option<u64>;
    fn tick(&mut self, now: Now, out: &mut Outbox);
}

/// A peer's step of the authentication.
#[derive(Debug, Clone, Copy)]
pub enum Ask<'a> {
    Request {
        method: u32,
        modes: &'a [u32],
        payload: &'a [u8],
    },
    More(&'a [u8]),
}

/// What peers may cost.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Links, open or not; more are refused.
    pub links: usize,
    /// Handshakes under way. The oldest gives way to a new one, so that connections which say
    /// nothing keep nobody out.
    pub half_open: usize,
    /// Nothing more is read from a peer while so many bytes wait to be sent to it.
    pub output: usize,
    /// A peer is given up when so many bytes wait that it did not ask for at that moment: map
    /// changes, notifications, late answers.
    pub output_max: usize,
    /// `ms_connection_idle_timeout`: a peer is given up after so long a silence.
    pub idle: Duration,
    /// How long a connection that the service has closed may take to send what is left.
    pub linger: Duration,
    /// How long a lossless session waits for its peer to come back.
    pub standby: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            links: 4096,
            half_open: 64,
            output: 16 << 20,
            output_max: 256 << 20,
            idle: Duration::from_secs(900),
            linger: Duration::from_secs(5),
            standby: Duration::from_secs(60),
        }
    }
}

/// What has become of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    pub open: usize,
    pub half_open: usize,
    pub accepted: u64,
    /// Accepted and dropped at once, since there were too many.
    pub refused: u64,
    /// Ended before their handshake did.
    pub failed: u64,
}

/// The pause after a failed accept: too many open files do not go away sooner.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How often handshakes and idle connections are looked at.
const SWEEP: Duration = Duration::from_secs(1);

/// A service and its connections on the current iothread, until this is dropped.
pub struct Acceptor<S: Service> {
    shared: Rc<Shared<S>>,
    accept: RefCell<Option<JoinHandle<()>>>,
    timer: JoinHandle<()>,
    _hook: TurnHook,
}

struct Shared<S> {
    links: RefCell<Links<S>>,
    alarm: Alarm,
}

impl<S: Service> Acceptor<S> {
    /// Nobody can connect before [`Acceptor::listen`].
    pub fn new(service: S, limits: Limits) -> Acceptor<S> {
        let shared = Rc::new(Shared {
            links: RefCell::new(Links::new(service, limits)),
            alarm: Alarm::default(),
        });
        let timer = iothread::spawn(keep_time(Rc::clone(&shared)));
        let hook = iothread::on_turn_end({
            let shared = Rc::clone(&shared);
            move || {
                let mut links = shared.links.borrow_mut();
                links.end_turn(now());
                shared.alarm.set(links.next_deadline());
            }
        });
        Acceptor {
            shared,
            accept: RefCell::default(),
            timer,
            _hook: hook,
        }
    }

    /// Takes connections from `listener`, in place of the one before.
    pub fn listen(&self, listener: Listener) {
        let task = iothread::spawn(accept(Rc::clone(&self.shared), listener));
        if let Some(before) = self.accept.replace(Some(task)) {
            before.abort();
        }
    }

    /// Closes the listening socket and resets all links; the service stays.
    pub fn shut(&self) {
        if let Some(task) = self.accept.take() {
            task.abort();
        }
        self.shared.links.borrow_mut().end_all(now());
    }

    /// Lets someone of this thread use the service. What it wants sent leaves when the turn ends.
    pub fn with<R>(&self, f: impl FnOnce(&mut S, Now, &mut Outbox) -> R) -> R {
        self.shared.links.borrow_mut().with(now(), f)
    }

    /// Ends a link without sending what is left.
    pub fn reset(&self, link: Link) {
        let why = "reset by the service";
        self.shared.links.borrow_mut().end(link, &why, now());
    }

    pub fn counts(&self) -> Counts {
        self.shared.links.borrow().counts()
    }
}

impl<S: Service> Drop for Acceptor<S> {
    fn drop(&mut self) {
        if let Some(task) = self.accept.take() {
            task.abort();
        }
        self.timer.abort();
        self.shared.links.borrow_mut().end_all(now());
    }
}

async fn keep_time<S: Service>(shared: Rc<Shared<S>>) {
    loop {
        shared.alarm.wait().await;
        // The hook sets the next one at the end of this turn.
        shared.links.borrow_mut().tick(now());
    }
}

async fn accept<S: Service>(shared: Rc<Shared<S>>, mut listener: Listener) {
    loop {
        match listener.accept().await {
            Ok(stream) => admit(&shared, stream),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                iothread::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Starts to serve a connection, unless its peer has left already.
fn admit<S: Service>(shared: &Rc<Shared<S>>, stream: Stream) {
    let Ok(from) = stream.peer_addr() else { return };
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let mut links = shared.links.borrow_mut();
    let Some(wire) = links.accept(EntityAddr::msgr2(from, 0), now()) else {
        return;
    };
    let task = iothread::spawn(serve(Rc::clone(shared), Rc::clone(&wire), stream));
    links.set_task(&wire, task);
}

/// One connection, to its end.
async fn serve<S: Service>(shared: Rc<Shared<S>>, wire: Rc<Wire>, stream: Stream) {
    let receive = async {
        let mut incoming = stream.recv_stream();
        loop {
            // An error of the messenger comes as text: it ends this connection and nothing else.
            if let Err(why) = receive(&shared, &wire, &mut incoming).await {
                return why;
            }
        }
    };
    let send = async {
        let sent = iothread::pump(&stream, &wire.output, OutBatch::new(), |batch| {
            refill(&shared, &wire, batch)
        });
        if let Err(e) = sent.await {
            return e.to_string();
        }
        // The last word is said. The peer may still be sending: closing now could cost it what it
        // has not read yet.
        match stream.shutdown(std::net::Shutdown::Write).await {
            Ok(()) => std::future::pending().await,
            Err(e) => e.to_string(),
        }
    };
    let why = iothread::race(receive, send).await;
    shared.links.borrow_mut().lost(&wire, &why, now());
}

/// Takes the next piece and those that have arrived behind it.
async fn receive<S: Service>(
    shared: &Shared<S>,
    wire: &Wire,
    incoming: &mut RecvStream,
) -> Result<(), String> {
    let text = |e: io::Error| e.to_string();
    let over = || "the peer closed the connection".to_owned();
    let mut piece = incoming.next().await.map_err(text)?;
    loop {
        let bytes = piece.ok_or_else(over)?;
        let left = take(shared, wire, &bytes)?;
        if left > 0 {
            let held = bytes[bytes.len() - left..].to_vec();
            drop(bytes);
            return hold_back(shared, wire, incoming, held).await;
        }
        piece = match incoming.try_next() {
            Some(next) => next.map_err(text)?,
            None => return Ok(()),
        };
    }
}

fn take<S: Service>(shared: &Shared<S>, wire: &Wire, bytes: &[u8]) -> Result<usize, String> {
    let mut input = bytes;
    let mut links = shared.links.borrow_mut();
    match links.received(wire, &mut input, now()) {
        Ok(()) => Ok(input.len()),
        Err(e) => Err(e.to_string()),
    }
}

/// The peer asks faster than it takes the answers. What has been received leaves the ring's
/// buffers, which are there for all; the rest stays in the socket until the answers are gone.
async fn hold_back<S: Service>(
    shared: &Shared<S>,
    wire: &Wire,
    incoming: &mut RecvStream,
    mut held: Vec<u8>,
) -> Result<(), String> {
    incoming.pause().await;
    while let Some(next) = incoming.try_next() {
        match next.map_err(|e| e.to_string())? {
            Some(bytes) => held.extend_from_slice(&bytes),
            None => break,
        }
    }
    let mut done = 0;
    while done < held.len() {
        wire.room.wait().await;
        done = held.len() - take(shared, wire, &held[done..])?;
    }
    Ok(())
}

/// Hands over what waits for the wire.
fn refill<S: Service>(shared: &Shared<S>, wire: &Wire, batch: &mut OutBatch) -> Refill {
    batch.clear();
    shared.links.borrow_mut().take_output(wire, batch)
}

#[cfg(test)]
mod tests;
