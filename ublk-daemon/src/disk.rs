//! An attached image: its iothread, its front end, and how the daemon talks to it.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use cluster::client::{Client, ClientConfig, MapCache};
use cluster::conf::{Conf, Environment, Options, options};
use cluster::rados::IoCtx;
use cluster::rbd::image::{Access, Image, header_oid};
use cluster::transport::ring::Driver;
use iothread::{IoThread, Remote, Signal};
use tokio::sync::oneshot;

use crate::cli::Frontend;
use crate::control::{ClusterSpec, DiskInfo, MapSpec};
use crate::frontend::arena::Arena;
use crate::frontend::disk::{Disk as _, Errno};
use crate::frontend::nbd::server::{Config as NbdConfig, Served, Server};
use crate::frontend::nbd::socket::Socket;
use crate::image_disk::{ImageDisk, Notice};
use crate::run_dir::RunDir;

/// Memory for requests in flight on one disk.
const ARENA_BYTES: usize = 64 << 20;
/// Requests in flight on one disk, over all its connections.
const ARENA_REQUESTS: usize = 1024;
/// The watch on the header.
const WATCH_COOKIE: u64 = 1;
/// How long until a watch that failed is tried again.
const WATCH_RETRY: Duration = Duration::from_secs(5);
/// How long a disk may take over an answer that needs no cluster.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a cluster may take to hear that a disk is detached by force.
const FORCE_TIMEOUT: Duration = Duration::from_secs(1);

enum Command {
    /// What it waits for, if anything, and its size.
    State(oneshot::Sender<(String, u64)>),
    Stop {
        force: bool,
        done: oneshot::Sender<Result<(), String>>,
    },
}

/// What other threads have asked of the disk on this one.
#[derive(Default)]
struct Control {
    commands: RefCell<Vec<Command>>,
    signal: Signal,
}

thread_local! {
    static CONTROL: Rc<Control> = Rc::default();
}

impl Control {
    async fn next(&self) -> Command {
        loop {
            let first = {
                let mut commands = self.commands.borrow_mut();
                (!commands.is_empty()).then(|| commands.remove(0))
            };
            match first {
                Some(command) => return command,
                None => self.signal.wait().await,
            }
        }
    }
}

fn send(remote: &Remote, command: Command) -> Result<()> {
    let put = move || {
        CONTROL.with(|c| {
            c.commands.borrow_mut().push(command);
            c.signal.raise();
        });
    };
    remote.spawn(put).map_err(|_| anyhow!("the disk has ended"))
}

/// A handle on an attached image. Dropping it detaches the image at once.
pub struct Disk {
    remote: Remote,
    thread: RefCell<Option<IoThread<()>>>,
    info: RefCell<Option<DiskInfo>>,
}

impl Disk {
    /// Attaches an image. Dropping the future undoes whatever it has done.
    pub async fn start(
        id: u32,
        spec: MapSpec,
        run_dir: &RunDir,
        maps: Arc<MapCache>,
    ) -> Result<Disk> {
        let conf = conf(&spec)?;
        let client = ClientConfig::from_conf(&conf)?;
        let pool = match &spec.image.pool {
            Some(pool) => pool.clone(),
            None => conf.get(&options::RBD_DEFAULT_POOL)?,
        };
        let socket = match (&spec.socket, spec.tcp) {
            (Some(path), _) => Some(path.clone()),
            (None, Some(_)) => None,
            (None, None) => Some(run_dir.disk_socket(&format!(
                "{}",
                crate::spec::ImageSpec {
                    pool: Some(pool.clone()),
                    ..spec.image.clone()
                }
            ))),
        };
        let config = iothread::Config {
            name: format!("disk-{id}"),
            cpu: spec.cpu,
            ..iothread::Config::default()
        };
        let (ready, started) = oneshot::channel();
        let plan = Plan {
            id,
            spec,
            client,
            pool,
            socket,
            maps,
        };
        let thread = IoThread::spawn(config, move || run(plan, ready))?;
        let disk = Disk {
            remote: thread.remote().clone(),
            thread: RefCell::new(Some(thread)),
            info: RefCell::default(),
        };
        let info = started.await.context("the disk's thread ended")??;
        *disk.info.borrow_mut() = Some(info);
        Ok(disk)
    }

    /// What `list` shows, less its state.
    pub fn info(&self) -> DiskInfo {
        self.info.borrow().clone().expect("start filled it in")
    }

    /// [`Disk::info`] with the state of the moment.
    pub async fn current_info(&self) -> DiskInfo {
        let (tell, told) = oneshot::channel();
        let asked = send(&self.remote, Command::State(tell));
        let told = match asked {
            Ok(()) => tokio::time::timeout(ANSWER_TIMEOUT, told).await,
            Err(_) => {
                return DiskInfo {
                    state: "ended".into(),
                    ..self.info()
                };
            }
        };
        match told {
            Ok(Ok((state, size))) => DiskInfo {
                state,
                size,
                ..self.info()
            },
            Ok(Err(_)) => DiskInfo {
                state: "ended".into(),
                ..self.info()
            },
            Err(_) => DiskInfo {
                state: "its thread does not answer".into(),
                ..self.info()
            },
        }
    }

    /// Detaches the image: in order, or at once with `force`.
    pub async fn stop(&self, force: bool) -> Result<()> {
        let (done, stopped) = oneshot::channel();
        // A disk that has ended is as detached as it can be.
        if send(&self.remote, Command::Stop { force, done }).is_ok() {
            match stopped.await {
                Ok(Ok(())) | Err(_) => {}
                Ok(Err(why)) => bail!(why),
            }
        }
        let thread = self.thread.borrow_mut().take();
        if let Some(thread) = thread {
            let joined = tokio::task::spawn_blocking(move || thread.join().is_ok()).await;
            if !matches!(joined, Ok(true)) {
                bail!("the disk's thread panicked: see the daemon's log");
            }
        }
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            let (done, _) = oneshot::channel();
            let _ = send(&self.remote, Command::Stop { force: true, done });
            // The process may be about to exit, and its socket has to be removed before. A stop by
            // force waits for nobody.
            let _ = thread.join();
        }
    }
}

/// The cluster's configuration as the caller of `map` would see it.
pub fn conf(spec: &MapSpec) -> Result<Conf> {
    let mut settings = Vec::new();
    if let Some(seconds) = spec.request_timeout {
        settings.push(("rados_osd_op_timeout".to_owned(), seconds.to_string()));
    }
    load_conf(&spec.cluster, settings)
}

/// Loads a configuration for `cluster`, with options on top.
pub fn load_conf(cluster: &ClusterSpec, mut settings: Vec<(String, String)>) -> Result<Conf> {
    let text = |p: &PathBuf| p.to_string_lossy().into_owned();
    if let Some(keyring) = &cluster.keyring {
        settings.push(("keyring".to_owned(), text(keyring)));
    }
    if let Some(hosts) = &cluster.mon_host {
        settings.push(("mon_host".to_owned(), hosts.clone()));
    }
    if let Some(seconds) = cluster.connect_timeout {
        settings.push(("client_mount_timeout".to_owned(), seconds.to_string()));
    }
    let var = |name: &str| {
        let found = cluster.env.iter().find(|(n, _)| n == name);
        found.map(|(_, value)| value.clone())
    };
    let options = Options {
        conf: cluster.conf.as_ref().map(text),
        cluster: cluster.cluster.clone(),
        name: cluster.name.clone(),
        id: None,
        settings,
        env: Environment {
            conf: var("CEPH_CONF"),
            args: var("CEPH_ARGS"),
            keyring: var("CEPH_KEYRING"),
            ..Environment::of_process()
        },
    };
    Ok(Conf::load(&options)?)
}

/// What the disk's thread is started with.
struct Plan {
    id: u32,
    spec: MapSpec,
    client: ClientConfig,
    pool: String,
    socket: Option<PathBuf>,
    maps: Arc<MapCache>,
}

/// The life of a disk, on its iothread.
async fn run(plan: Plan, ready: oneshot::Sender<Result<DiskInfo>>) {
    let control = CONTROL.with(Rc::clone);
    let attached = iothread::race(async { Some(attach(&plan).await) }, async {
        // Whoever asked for it has gone before it was attached.
        loop {
            if let Command::Stop { done, .. } = control.next().await {
                let _ = done.send(Ok(()));
                return None;
            }
        }
    })
    .await;
    let attached = match attached {
        None => return,
        Some(Ok(attached)) => attached,
        Some(Err(e)) => {
            let _ = ready.send(Err(e));
            return;
        }
    };
    if ready.send(Ok(attached.info(&plan))).is_err() {
        attached.detach(true).await;
        return;
    }
    let done = iothread::race(attached.serve(&control), attached.follow_header()).await;
    let _ = done.send(Ok(()));
}

struct Attached {
    driver: Driver,
    io: IoCtx,
    image: Image,
    disk: Rc<ImageDisk>,
    server: Server,
    address: String,
    watched: bool,
}

async fn attach(plan: &Plan) -> Result<Attached> {
    let mut seed = [0; 32];
    cluster::random_seed(&mut seed)?;
    let client = Client::new(plan.client.clone(), Arc::clone(&plan.maps), &seed)?;
    // The socket comes first: a path in use should not need a cluster to be found out.
    let socket = match (&plan.socket, plan.spec.tcp) {
        (_, Some(addr)) => Socket::tcp(addr, plan.spec.allow_remote)?,
        (Some(path), None) => Socket::unix(path, 0o600)?,
        (None, None) => unreachable!("a socket path was chosen"),
    };
    let driver = Driver::start(client);
    let rados = driver.rados().clone();
    rados.ready().await?;
    let spec = &plan.spec.image;
    let io = rados.io_ctx(&plan.pool, &spec.namespace).await?;
    let image = Image::open(&io, &spec.image, spec.snap.as_deref()).await?;
    let label = format!("{}/{}", io.place(), spec.image);
    let read_only = plan.spec.read_only || image.snap.is_some();
    image.check(
        &label,
        if read_only {
            Access::ReadOnly
        } else {
            Access::ReadWrite
        },
    )?;
    let disk = ImageDisk::start(&io, &image, read_only);
    // Seen by `rbd status`, and keeps `rbd rm` from removing an image in use. A reader may lack
    // the right to watch, and a snapshot does not change.
    let watched = image.snap.is_none();
    if watched {
        let watch = rados
            .watch(io.target(&header_oid(&image.id)), WATCH_COOKIE)
            .await;
        match watch {
            Ok(()) => {}
            Err(e) if read_only => tracing::info!("{label}: cannot watch its header: {e}"),
            Err(e) => bail!("{label}: cannot watch its header: {e}"),
        }
    }
    let server = Server::new(NbdConfig::default());
    server.add(Served {
        name: label.clone(),
        description: format!("RBD image {label}"),
        disk: Rc::clone(&disk) as Rc<_>,
        arena: Rc::new(Arena::new(ARENA_BYTES, ARENA_REQUESTS).context("no memory for requests")?),
    });
    let address = socket.address().to_owned();
    server.listen(socket).context("cannot accept connections")?;
    Ok(Attached {
        driver,
        io,
        image,
        disk,
        server,
        address,
        watched,
    })
}

impl Attached {
    fn info(&self, plan: &Plan) -> DiskInfo {
        let device = match &plan.socket {
            Some(path) => format!("nbd+unix:///?socket={}", escape(&path.to_string_lossy())),
            None => format!("nbd://{}/", self.address),
        };
        DiskInfo {
            id: plan.id,
            pool: plan.pool.clone(),
            namespace: plan.spec.image.namespace.clone(),
            image: self.image.name.clone(),
            snap: plan.spec.image.snap.clone(),
            frontend: Frontend::Nbd,
            device,
            socket: plan.socket.clone(),
            size: self.image.size,
            read_only: self.disk.info().read_only,
            state: "ok".to_owned(),
        }
    }

    /// Answers the daemon until it asks for the end; gives back where to say that it has come.
    async fn serve(&self, control: &Control) -> oneshot::Sender<Result<(), String>> {
        loop {
            match control.next().await {
                Command::State(tell) => {
                    let trouble = self.driver.rados().trouble();
                    let state = trouble.unwrap_or_else(|| "ok".to_owned());
                    let _ = tell.send((state, self.disk.info().size));
                }
                Command::Stop { force, done } => {
                    let (clients, _) = self.server.connections();
                    if clients > 0 && !force {
                        let plural = if clients == 1 {
                            "client is"
                        } else {
                            "clients are"
                        };
                        let _ = done.send(Err(format!(
                            "{clients} {plural} connected: disconnect, or use --force"
                        )));
                        continue;
                    }
                    self.detach(force).await;
                    return done;
                }
            }
        }
    }

    async fn detach(&self, force: bool) {
        if force {
            self.disk.stop(Errno::SHUTDOWN);
        }
        self.server.stop().await;
        self.disk.stop(Errno::SHUTDOWN);
        if self.watched {
            // Left alone, the watch would keep the image from being removed for half a minute.
            let patience = if force { FORCE_TIMEOUT } else { ANSWER_TIMEOUT };
            let unwatch = self.driver.rados().unwatch(WATCH_COOKIE);
            let _ = iothread::timeout(patience, unwatch).await;
        }
        self.driver.rados().shutdown().await;
        // One turn more, so that the sockets are closed.
        iothread::yield_now().await;
    }

    /// Looks at the header again whenever somebody says that it has changed.
    async fn follow_header<T>(&self) -> T {
        loop {
            match self.disk.notice().await {
                Notice::Changed { notify_id, cookie } => {
                    self.reread_header().await;
                    // Whoever made a snapshot takes the answer to mean that it will not change any
                    // more: so no write may be under way that does not know of it.
                    self.disk.written().await;
                    let target = self.io.target(&header_oid(&self.image.id));
                    let ack = self
                        .driver
                        .rados()
                        .notify_ack(target, notify_id, cookie, &[]);
                    if let Err(e) = ack.await {
                        tracing::debug!("a notification was not answered: {e}");
                    }
                }
                Notice::Lost => {
                    self.watch_again().await;
                    self.reread_header().await;
                }
            }
        }
    }

    async fn reread_header(&self) {
        match self.image.reopen(&self.io).await {
            Ok(image) => self.disk.refresh(&image),
            Err(e) => tracing::warn!("cannot read the changed header: {e}"),
        }
    }

    /// Puts a watch in the place of one that the OSD has dropped, as it does when we were away for
    /// longer than `osd_client_watch_timeout`.
    async fn watch_again(&self) {
        let rados = self.driver.rados();
        loop {
            // The OSD has forgotten it; this is for our own side.
            let _ = rados.unwatch(WATCH_COOKIE).await;
            let header = self.io.target(&header_oid(&self.image.id));
            match rados.watch(header, WATCH_COOKIE).await {
                Ok(()) => {
                    tracing::info!("the watch on the image's header is back");
                    return;
                }
                Err(e) => tracing::warn!("cannot watch the image's header: {e}"),
            }
            iothread::sleep(WATCH_RETRY).await;
        }
    }
}

/// Percent-encodes what a URI's query must not hold plain.
fn escape(path: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"/._-~".contains(&b);
    path.bytes().fold(String::new(), |mut out, b| {
        if plain(b) {
            out.push(char::from(b));
        } else {
            out.push_str(&format!("%{b:02X}"));
        }
        out
    })
}
