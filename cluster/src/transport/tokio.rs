//! A client's sockets on tokio, for the control plane. Runs on a current-thread runtime inside a
//! `LocalSet`.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::client::{Action, Client, ClientConfig, ConnId};
use crate::codec::Now;
use crate::conf::Conf;
use crate::msgr::OutBatch;
use crate::rados::{Rados, RadosError};

/// Connects to the cluster of `conf` and waits until its maps are there.
pub async fn connect(conf: &Conf) -> Result<Rados, RadosError> {
    let config = ClientConfig::from_conf(conf).map_err(|e| RadosError::Config(Arc::new(e)))?;
    let mut seed = [0; 32];
    crate::random_seed(&mut seed)?;
    let client =
        Client::new(config, Arc::default(), &seed).map_err(|e| RadosError::Auth(Arc::new(e)))?;
    let rados = start(client);
    rados.ready().await?;
    Ok(rados)
}

/// Runs a client until its last handle is gone.
pub fn start(client: Client) -> Rados {
    let origin = Instant::now();
    let clock = move || Now {
        // Zero is the origin of some deadlines; be past it.
        mono: 1_000_000_000 + u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX / 2),
        wall: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)),
    };
    let kick = Rc::new(Notify::new());
    let kicked = Rc::clone(&kick);
    let rados = Rados::new(client, clock, move || kicked.notify_one());
    rados.with(|client, now, _| client.start(now));
    let driver = Rc::new(Driver {
        rados: rados.clone(),
        kick: Rc::clone(&kick),
        sockets: RefCell::default(),
    });
    tokio::task::spawn_local(run(driver, clock));
    kick.notify_one();
    rados
}

struct Driver {
    rados: Rados,
    kick: Rc<Notify>,
    sockets: RefCell<HashMap<ConnId, Socket>>,
}

struct Socket {
    task: JoinHandle<()>,
    /// There is something to send.
    output: Rc<Notify>,
}

async fn run(driver: Rc<Driver>, clock: impl Fn() -> Now) {
    loop {
        driver.pump();
        let deadline = driver.rados.with(|client, _, _| client.next_deadline());
        match deadline {
            None => driver.kick.notified().await,
            Some(at) => {
                let wait = Duration::from_nanos(at.saturating_sub(clock().mono));
                let kicked = tokio::time::timeout(wait, driver.kick.notified()).await;
                if kicked.is_err() {
                    driver
                        .rados
                        .with(|client, now, sink| client.tick(now, sink));
                }
            }
        }
    }
}

impl Driver {
    fn pump(self: &Rc<Driver>) {
        self.rados.flush();
        loop {
            let action = self.rados.with(|client, _, _| client.poll_action());
            match action {
                Some(Action::Connect { conn, addr }) => {
                    let output = Rc::new(Notify::new());
                    let serve = serve(Rc::clone(self), conn, addr, Rc::clone(&output));
                    let task = tokio::task::spawn_local(serve);
                    self.sockets
                        .borrow_mut()
                        .insert(conn, Socket { task, output });
                }
                Some(Action::Close { conn }) => {
                    if let Some(socket) = self.sockets.borrow_mut().remove(&conn) {
                        socket.task.abort();
                    }
                }
                None => break,
            }
        }
        while let Some(conn) = self.rados.with(|client, _, _| client.poll_dirty()) {
            if let Some(socket) = self.sockets.borrow().get(&conn) {
                socket.output.notify_one();
            }
        }
    }
}

/// One connection, from dialling to its end.
async fn serve(driver: Rc<Driver>, conn: ConnId, addr: std::net::SocketAddr, output: Rc<Notify>) {
    let why = match exchange(&driver, conn, addr, &output).await {
        Ok(()) => "the peer closed the connection".to_owned(),
        Err(e) => e.to_string(),
    };
    driver
        .rados
        .with(|client, now, sink| client.closed(conn, &why, now, sink));
    driver.kick.notify_one();
}

async fn exchange(
    driver: &Driver,
    conn: ConnId,
    addr: std::net::SocketAddr,
    output: &Notify,
) -> std::io::Result<()> {
    let stream = TcpStream::connect(addr).await?;
    stream.set_nodelay(true)?;
    let (mut rx, mut tx) = stream.into_split();
    driver
        .rados
        .with(|client, now, _| client.connected(conn, now));
    driver.kick.notify_one();
    let receive = async {
        let mut buf = vec![0; 256 << 10];
        loop {
            let n = rx.read(&mut buf).await?;
            if n == 0 {
                return Ok(());
            }
            driver
                .rados
                .with(|client, now, sink| client.received(conn, &buf[..n], now, sink));
            driver.kick.notify_one();
        }
    };
    let send = async {
        let mut batch = OutBatch::new();
        loop {
            output.notified().await;
            driver
                .rados
                .with(|client, _, _| client.take_output(conn, &mut batch));
            for slice in batch.slices() {
                tx.write_all(slice).await?;
            }
            batch.clear();
        }
    };
    tokio::select! {
        ended = receive => ended,
        ended = send => ended,
    }
}
