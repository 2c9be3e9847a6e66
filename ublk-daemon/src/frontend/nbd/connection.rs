//! One connection on the ring: handshake, then a receiving and a sending end.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::net::Shutdown;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use iothread::Stream;

use super::negotiate::{Agreement, Export, Negotiation, NegotiationError, Step, Tls};
use super::reply::Batch;
use super::request::TransmitError;
use super::transmit::{Progress, Session};

/// One receive brings many small requests; they are copied out of here.
const RECEIVE: usize = 128 << 10;
/// From this much missing payload on it is received where it belongs, without that copy.
const DIRECT: usize = 32 << 10;
/// How often a receive that waits for memory looks for itself. It is woken when memory is freed
/// in the usual ways; this is for a disk that drops a payload late.
const RECHECK: Duration = Duration::from_millis(20);

/// Why a connection ended otherwise than by a goodbye.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionError {
    #[error(transparent)]
    Negotiation(#[from] NegotiationError),
    #[error(transparent)]
    Transmit(#[from] TransmitError),
    #[error("client did not finish the handshake in time")]
    HandshakeTimeout,
    #[error("client stopped in the middle of a request")]
    Stuck,
    #[error("connection lost: {0}")]
    Io(#[from] io::Error),
}

/// Received bytes that are not consumed yet.
pub(super) struct Input {
    buf: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    pub(super) fn new() -> Input {
        Input {
            buf: vec![0; RECEIVE],
            start: 0,
            end: 0,
        }
    }

    fn bytes(&self) -> &[u8] {
        &self.buf[self.start..self.end]
    }

    /// Receives when all was consumed. False at the end of the stream.
    async fn refill(&mut self, stream: &Stream) -> io::Result<bool> {
        let (result, buf) = stream.recv(std::mem::take(&mut self.buf), 0..RECEIVE).await;
        self.buf = buf;
        self.start = 0;
        self.end = *result.as_ref().unwrap_or(&0);
        Ok(result? > 0)
    }
}

/// Runs the handshake. `None`: the client left politely.
pub(super) async fn handshake(
    stream: &Stream,
    input: &mut Input,
    tls: Tls,
    exports: &[Export],
    limit: Duration,
) -> Result<Option<Agreement>, ConnectionError> {
    let run = async {
        let mut out = Vec::new();
        let mut negotiation = Negotiation::new(tls, &mut out);
        loop {
            let (sent, mut batch) = stream.send_batch(out).await;
            sent?;
            batch.clear();
            out = batch;
            if !input.refill(stream).await? {
                return Ok(None);
            }
            let mut bytes = input.bytes();
            let step = negotiation.receive(&mut bytes, exports, &mut out);
            input.start = input.end - bytes.len();
            match step? {
                Step::More => {}
                Step::Enter(agreement) => {
                    stream.send_batch(out).await.0?;
                    return Ok(Some(agreement));
                }
                Step::Close => {
                    // The client may be gone without waiting for the reply.
                    let _ = stream.send_batch(out).await;
                    return Ok(None);
                }
                Step::StartTls => unreachable!("no server offers TLS yet"),
            }
        }
    };
    match iothread::timeout(limit, run).await {
        Ok(result) => result,
        Err(_) => Err(ConnectionError::HandshakeTimeout),
    }
}

/// Runs the transmission phase, until everything is answered or the connection is lost.
pub(super) async fn transmit(
    stream: &Stream,
    session: &Rc<Session>,
    input: Input,
    stuck: Duration,
) -> Result<(), ConnectionError> {
    let flushed = Rc::clone(session);
    let _hook = iothread::on_turn_end(move || flushed.flush());
    let sender = iothread::spawn(send(stream.clone(), Rc::clone(session)));
    let was_stuck = Rc::new(Cell::new(false));
    let watched = watch(stream.clone(), Rc::clone(session), stuck, was_stuck.clone());
    let watch = iothread::spawn(watched);
    let received = receive(stream, session, input).await;
    match &received {
        // What is in flight is answered, also when the client has closed its end.
        Ok(()) => session.end(),
        Err(_) => session.close(),
    }
    let sent = match received {
        Ok(()) => sender.await,
        Err(_) => {
            sender.abort();
            Ok(Ok(()))
        }
    };
    watch.abort();
    received?;
    if was_stuck.get() {
        return Err(ConnectionError::Stuck);
    }
    match sent {
        Ok(result) => Ok(result?),
        Err(aborted) => Err(io::Error::other(aborted.to_string()).into()),
    }
}

async fn receive(
    stream: &Stream,
    session: &Rc<Session>,
    mut input: Input,
) -> Result<(), ConnectionError> {
    while consume(session, &mut input).await? == Progress::Hungry {
        if let Some(direct) = session.take_direct(DIRECT) {
            let range = direct.missing();
            let (result, direct) = stream.recv(direct, range).await;
            let n = *result.as_ref().unwrap_or(&0);
            session.give_direct(direct, n);
            if result? == 0 {
                break;
            }
        } else if !input.refill(stream).await? {
            break;
        }
    }
    Ok(())
}

/// Hands the input to the session, waiting while it is full.
async fn consume(session: &Rc<Session>, input: &mut Input) -> Result<Progress, ConnectionError> {
    loop {
        let mut attempt = poll_fn(|cx| {
            let mut bytes = &input.buf[input.start..input.end];
            let result = session.poll_receive(&mut bytes, cx.waker());
            input.start = input.end - bytes.len();
            result
        });
        let first = poll_fn(|cx| Poll::Ready(std::pin::Pin::new(&mut attempt).poll(cx))).await;
        let result = match first {
            Poll::Ready(result) => result,
            Poll::Pending => match iothread::timeout(RECHECK, attempt).await {
                Ok(result) => result,
                Err(_) => continue,
            },
        };
        return Ok(result?);
    }
}

async fn send(stream: Stream, session: Rc<Session>) -> io::Result<()> {
    let mut batch = Batch::default();
    loop {
        let more = poll_fn(|cx| session.poll_output(&mut batch, cx.waker())).await;
        if !more {
            return Ok(());
        }
        let (result, back) = stream.send_batch(batch).await;
        batch = back;
        session.sent(&mut batch);
        if let Err(e) = result {
            session.close();
            // Ends the receive that may be in flight.
            let _ = stream.shutdown(Shutdown::Both).await;
            return Err(e);
        }
    }
}

/// Ends the connection of a peer that stops in the middle of a request for longer than `limit`,
/// since it holds memory that others wait for.
async fn watch(stream: Stream, session: Rc<Session>, limit: Duration, stuck: Rc<Cell<bool>>) {
    let mut seen = None;
    loop {
        iothread::sleep(limit).await;
        let now = session.awaits_peer().then(|| session.consumed());
        if now.is_some() && now == seen {
            stuck.set(true);
            let _ = stream.shutdown(Shutdown::Both).await;
            return;
        }
        seen = now;
    }
}
