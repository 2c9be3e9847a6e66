//! An attached image: its iothread, its front end, and how the daemon talks to it.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use cluster::client::{Client, ClientConfig, MapCache};
use cluster::conf::{Conf, Environment, Options, options};
use cluster::mon::{Command as MonCommand, MonError};
use cluster::payload::Payload;
use cluster::rados::{IoCtx, Rados, RadosError};
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
use crate::frontend::ublk;
use crate::image_disk::{ImageDisk, Notice};
use crate::record::Record;
use crate::run_dir::RunDir;
use crate::spec::ImageSpec;

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
        how: Stop,
        done: oneshot::Sender<Result<(), String>>,
    },
}

/// How a disk is detached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Unless somebody uses it.
    Unused,
    /// At once: requests in flight fail, and the cluster is not needed.
    Force,
    /// For another daemon to go on, where the front end can; else at once.
    Leave,
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
        Disk::begin(id, spec, run_dir, maps, None).await
    }

    /// Takes over the ublk device that another process has served. Dropping the future leaves it
    /// as it was.
    pub async fn recover(
        id: u32,
        left: Left,
        run_dir: &RunDir,
        maps: Arc<MapCache>,
    ) -> Result<Disk> {
        Disk::begin(id, left.record.spec.clone(), run_dir, maps, Some(left)).await
    }

    async fn begin(
        id: u32,
        spec: MapSpec,
        run_dir: &RunDir,
        maps: Arc<MapCache>,
        left: Option<Left>,
    ) -> Result<Disk> {
        let conf = conf(&spec)?;
        let client = ClientConfig::from_conf(&conf)?;
        let pool = pool_of(&spec, &conf)?;
        let image = ImageSpec {
            pool: Some(pool.clone()),
            ..spec.image.clone()
        };
        let socket = match (spec.frontend, &spec.socket, spec.tcp) {
            (Frontend::Ublk, ..) | (_, None, Some(_)) => None,
            (_, Some(path), _) => Some(path.clone()),
            (_, None, None) => Some(run_dir.disk_socket(&image.to_string())),
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
            run_dir: run_dir.clone(),
            left,
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

    /// Detaches the image.
    pub async fn stop(&self, how: Stop) -> Result<()> {
        let (done, stopped) = oneshot::channel();
        // A disk that has ended is as detached as it can be.
        if send(&self.remote, Command::Stop { how, done }).is_ok() {
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
            let how = Stop::Force;
            let _ = send(&self.remote, Command::Stop { how, done });
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

/// The pool that is named, or the configured one.
pub fn pool_of(spec: &MapSpec, conf: &Conf) -> Result<String> {
    Ok(match &spec.image.pool {
        Some(pool) => pool.clone(),
        None => conf.get(&options::RBD_DEFAULT_POOL)?,
    })
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

/// A ublk device without a server, and what is known of it.
pub struct Left {
    pub control: ublk::Control,
    pub info: ublk::DevInfo,
    pub record: Record,
}

/// What the disk's thread is started with.
struct Plan {
    id: u32,
    spec: MapSpec,
    client: ClientConfig,
    pool: String,
    socket: Option<PathBuf>,
    maps: Arc<MapCache>,
    run_dir: RunDir,
    left: Option<Left>,
}

/// The life of a disk, on its iothread.
async fn run(plan: Plan, ready: oneshot::Sender<Result<DiskInfo>>) {
    if plan.spec.frontend == Frontend::Ublk {
        protect();
    }
    let control = CONTROL.with(Rc::clone);
    let opened = iothread::race(async { Some(open(&plan).await) }, async {
        // Whoever asked for it has gone before it was attached.
        loop {
            if let Command::Stop { done, .. } = control.next().await {
                let _ = done.send(Ok(()));
                return None;
            }
        }
    })
    .await;
    let (door, opened) = match opened {
        None => return,
        Some(Ok(opened)) => opened,
        Some(Err(e)) => {
            let _ = ready.send(Err(e));
            return;
        }
    };
    let (front, stopping) = start(&plan, door, &opened, &control).await;
    let attached = match front {
        Ok(front) => Attached { opened, front },
        Err(e) => {
            opened.close(Stop::Force).await;
            let _ = ready.send(Err(e));
            stopping
                .into_iter()
                .for_each(|done| drop(done.send(Ok(()))));
            return;
        }
    };
    let wanted = stopping.is_empty() && ready.send(Ok(attached.info(&plan))).is_ok();
    let done = if wanted {
        iothread::race(
            attached.serve(&plan, &control),
            attached.opened.follow_header(&attached.front),
        )
        .await
    } else {
        attached.detach(&plan, Stop::Force).await;
        stopping
    };
    done.into_iter().for_each(|done| drop(done.send(Ok(()))));
}

/// Keeps memory reclaim from waiting for the device that this thread serves.
fn protect() {
    let unprotected = iothread::protect_from_reclaim();
    if let Some(e) = unprotected.io_flusher {
        tracing::warn!("writeback may wait for this disk, and it for writeback: {e} (run as root)");
    }
    if let Some(e) = unprotected.memory_lock {
        tracing::warn!("the daemon's memory may be paged out: {e} (raise LimitMEMLOCK=)");
    }
}

type Stopping = Vec<oneshot::Sender<Result<(), String>>>;

/// Starts the front end, to its end: a device must not be left half made. Gives back who wants the
/// disk stopped already.
async fn start(
    plan: &Plan,
    door: Door,
    opened: &Opened,
    control: &Control,
) -> (Result<Front>, Stopping) {
    let mut stopping = Vec::new();
    let mut starting = pin!(Front::start(plan, door, opened));
    loop {
        let next = iothread::race(async { Ok(starting.as_mut().await) }, async {
            Err(control.next().await)
        });
        match next.await {
            Ok(front) => return (front, stopping),
            Err(Command::State(tell)) => {
                let _ = tell.send(("starting".to_owned(), opened.disk.info().size));
            }
            Err(Command::Stop { done, .. }) => {
                // The kernel reads the first blocks before it is done.
                opened.disk.stop(Errno::SHUTDOWN);
                stopping.push(done);
            }
        }
    }
}

/// An image that can be served.
struct Opened {
    driver: Driver,
    io: IoCtx,
    image: Image,
    disk: Rc<ImageDisk>,
    watched: bool,
}

/// What a front end needs that does not hang on a cluster: found out first, since it should not
/// take one to hear that a path is in use.
enum Door {
    Nbd(Socket),
    Ublk(ublk::Control),
}

impl Door {
    async fn open(plan: &Plan) -> Result<Door> {
        Ok(match (plan.spec.frontend, &plan.socket, plan.spec.tcp) {
            (Frontend::Ublk, ..) => Door::Ublk(match &plan.left {
                Some(left) => left.control.clone(),
                None => ublk::Control::open().await?,
            }),
            (Frontend::Nbd, _, Some(addr)) => Door::Nbd(Socket::tcp(addr, plan.spec.allow_remote)?),
            (Frontend::Nbd, Some(path), None) => Door::Nbd(Socket::unix(path, 0o600)?),
            (Frontend::Nbd, None, None) => unreachable!("a socket path was chosen"),
        })
    }
}

async fn open(plan: &Plan) -> Result<(Door, Opened)> {
    let mut seed = [0; 32];
    cluster::random_seed(&mut seed)?;
    let client = Client::new(plan.client.clone(), Arc::clone(&plan.maps), &seed)?;
    let door = Door::open(plan).await?;
    let driver = Driver::start(client);
    let rados = driver.rados().clone();
    rados.ready().await?;
    if let Some(left) = &plan.left {
        fence(&rados, &left.record.client).await?;
    }
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
    let opened = Opened {
        driver,
        io,
        image,
        disk,
        watched,
    };
    Ok((door, opened))
}

/// Has the cluster take nothing more from a client that has died: a write of its own that is still
/// on its way must not land after those that follow it.
async fn fence(rados: &Rados, client: &str) -> Result<()> {
    if client.is_empty() {
        return Ok(());
    }
    let command = MonCommand::new("osd blocklist")
        .arg("blocklistop", "add")
        .arg("addr", client);
    match rados.command(command, Payload::default()).await {
        Ok(_) => rados.latest_map().await?,
        // Most users of one image have the right (`profile rbd`). For the others it is as it was
        // before: what their dead client has sent is likely to have arrived.
        Err(RadosError::Mon(MonError::Refused { code, status, .. }))
            if [libc::EACCES, libc::EPERM].contains(&code.abs()) =>
        {
            tracing::warn!("cannot blocklist {client}, which served the device before: {status}");
        }
        Err(e) => bail!("cannot blocklist {client}, which served the device before: {e}"),
    }
    Ok(())
}

impl Opened {
    async fn close(&self, how: Stop) {
        self.disk.stop(Errno::SHUTDOWN);
        if self.watched {
            // Left alone, the watch would keep the image from being removed for half a minute.
            let patience = match how {
                Stop::Force => FORCE_TIMEOUT,
                Stop::Unused | Stop::Leave => ANSWER_TIMEOUT,
            };
            let unwatch = self.driver.rados().unwatch(WATCH_COOKIE);
            let _ = iothread::timeout(patience, unwatch).await;
        }
        self.driver.rados().shutdown().await;
        // One turn more, so that the sockets are closed.
        iothread::yield_now().await;
    }

    /// Looks at the header again whenever somebody says that it has changed.
    async fn follow_header<T>(&self, front: &Front) -> T {
        loop {
            match self.disk.notice().await {
                Notice::Changed { notify_id, cookie } => {
                    self.reread_header(front).await;
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
                    self.reread_header(front).await;
                }
            }
        }
    }

    async fn reread_header(&self, front: &Front) {
        match self.image.reopen(&self.io).await {
            Ok(image) => {
                self.disk.refresh(&image);
                front.resize(image.size).await;
            }
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

/// How an image is offered to others.
enum Front {
    Nbd {
        server: Server,
        address: String,
    },
    Ublk {
        device: ublk::Device,
        record: Box<RefCell<Record>>,
        /// What the kernel was told.
        size: Cell<u64>,
    },
}

impl Front {
    async fn start(plan: &Plan, door: Door, opened: &Opened) -> Result<Front> {
        match door {
            Door::Nbd(socket) => Front::nbd(socket, opened),
            Door::Ublk(control) => Front::ublk(plan, control, opened).await,
        }
    }

    fn nbd(socket: Socket, opened: &Opened) -> Result<Front> {
        let label = format!("{}/{}", opened.io.place(), opened.image.name);
        let server = Server::new(NbdConfig::default());
        let arena = Arena::new(ARENA_BYTES, ARENA_REQUESTS).context("no memory for requests")?;
        server.add(Served {
            name: label.clone(),
            description: format!("RBD image {label}"),
            disk: Rc::clone(&opened.disk) as Rc<_>,
            arena: Rc::new(arena),
        });
        let address = socket.address().to_owned();
        server.listen(socket).context("cannot accept connections")?;
        Ok(Front::Nbd { server, address })
    }

    async fn ublk(plan: &Plan, control: ublk::Control, opened: &Opened) -> Result<Front> {
        let disk = Rc::clone(&opened.disk) as Rc<_>;
        let rados = opened.driver.rados();
        let record = |device, cookie| {
            let (pool, spec) = (plan.pool.clone(), plan.spec.clone());
            Record::new(device, cookie, pool, rados.address(), spec)
        };
        let (device, record) = match &plan.left {
            Some(left) => {
                // From here on requests are ours, and so is what they leave behind.
                let record = record(left.info.id, left.info.cookie);
                record.save(&plan.run_dir)?;
                let recovered = ublk::Device::recover(control, disk, left.info);
                let device = recovered.await?;
                // It may have changed while nobody served the device.
                let size = opened.disk.info().size;
                if let Err(e) = device.resize(size).await {
                    tracing::warn!("{e:#}");
                }
                (device, record)
            }
            None => {
                let options = ublk::Options {
                    id: plan.spec.device,
                    queues: plan.spec.queues,
                    depth: plan.spec.queue_depth,
                    cookie: rados.random(),
                };
                let device = ublk::Device::add(control, disk, &options).await?;
                // Before the device is seen, since udev asks for its name then.
                let record = record(device.id(), options.cookie);
                if let Err(e) = record.save(&plan.run_dir) {
                    device.end(false).await;
                    return Err(e);
                }
                if let Err(e) = device.start().await {
                    Record::remove(&plan.run_dir, device.id());
                    return Err(e);
                }
                (device, record)
            }
        };
        Ok(Front::Ublk {
            device,
            record: Box::new(RefCell::new(record)),
            size: Cell::new(opened.disk.info().size),
        })
    }

    /// Tells whoever has the disk of its size.
    async fn resize(&self, to: u64) {
        let Front::Ublk { device, size, .. } = self else {
            return;
        };
        if size.replace(to) == to {
            return;
        }
        match device.resize(to).await {
            Ok(()) => tracing::info!("the device has {to} bytes now"),
            Err(e) => tracing::warn!("{e:#}"),
        }
    }

    /// What it is attached as.
    fn device(&self, plan: &Plan) -> String {
        match (self, &plan.socket) {
            (Front::Ublk { device, .. }, _) => ublk::path(device.id()).display().to_string(),
            (Front::Nbd { .. }, Some(path)) => {
                format!("nbd+unix:///?socket={}", escape(&path.to_string_lossy()))
            }
            (Front::Nbd { address, .. }, None) => format!("nbd://{address}/"),
        }
    }

    /// Fails while somebody uses it.
    async fn release(&self) -> Result<()> {
        match self {
            Front::Ublk { device, .. } => device.stop_unless_used().await,
            Front::Nbd { server, .. } => match server.connections().0 {
                0 => Ok(()),
                1 => bail!("1 client is connected: disconnect, or use --force"),
                n => bail!("{n} clients are connected: disconnect, or use --force"),
            },
        }
    }
}

struct Attached {
    opened: Opened,
    front: Front,
}

impl Attached {
    fn info(&self, plan: &Plan) -> DiskInfo {
        let image = &self.opened.image;
        DiskInfo {
            id: plan.id,
            pool: plan.pool.clone(),
            namespace: plan.spec.image.namespace.clone(),
            image: image.name.clone(),
            snap: plan.spec.image.snap.clone(),
            frontend: plan.spec.frontend,
            device: self.front.device(plan),
            socket: plan.socket.clone(),
            size: image.size,
            read_only: self.opened.disk.info().read_only,
            state: "ok".to_owned(),
        }
    }

    fn tell_state(&self, tell: oneshot::Sender<(String, u64)>) {
        let trouble = self.opened.driver.rados().trouble();
        let state = trouble.unwrap_or_else(|| "ok".to_owned());
        let _ = tell.send((state, self.opened.disk.info().size));
    }

    /// Answers the daemon until it asks for the end; gives back where to say that it has come.
    async fn serve(&self, plan: &Plan, control: &Control) -> Stopping {
        loop {
            match control.next().await {
                Command::State(tell) => self.tell_state(tell),
                Command::Stop { how, done } => {
                    if let Some(stopping) = self.stop(plan, control, how, done).await {
                        return stopping;
                    }
                }
            }
        }
    }

    /// Detaches, or says why not.
    async fn stop(
        &self,
        plan: &Plan,
        control: &Control,
        how: Stop,
        done: oneshot::Sender<Result<(), String>>,
    ) -> Option<Stopping> {
        if how != Stop::Unused {
            self.detach(plan, how).await;
            return Some(vec![done]);
        }
        // The device writes what is dirty, which may wait for a cluster that does not come back.
        let mut release = pin!(self.front.release());
        loop {
            let next = iothread::race(async { Ok(release.as_mut().await) }, async {
                Err(control.next().await)
            });
            match next.await {
                Ok(Ok(())) => {
                    self.detach(plan, Stop::Unused).await;
                    return Some(vec![done]);
                }
                Ok(Err(why)) => {
                    let _ = done.send(Err(format!("{why:#}")));
                    return None;
                }
                Err(Command::State(tell)) => self.tell_state(tell),
                Err(Command::Stop {
                    how: Stop::Unused,
                    done,
                }) => {
                    let _ = done.send(Err("it is being detached already".to_owned()));
                }
                Err(Command::Stop { how, done: second }) => {
                    self.detach(plan, how).await;
                    return Some(vec![done, second]);
                }
            }
        }
    }

    async fn detach(&self, plan: &Plan, how: Stop) {
        let disk = &self.opened.disk;
        match &self.front {
            Front::Nbd { server, .. } => {
                if how != Stop::Unused {
                    disk.stop(Errno::SHUTDOWN);
                }
                server.stop().await;
            }
            Front::Ublk { device, record, .. } => {
                if how == Stop::Leave && device.is_recoverable() {
                    if device.leave().await {
                        // Nothing of this client is on its way.
                        let mut record = record.borrow_mut();
                        record.client.clear();
                        if let Err(e) = record.save(&plan.run_dir) {
                            tracing::warn!("{e:#}");
                        }
                    }
                } else {
                    if how != Stop::Unused {
                        disk.stop(Errno::SHUTDOWN);
                    }
                    device.end(how != Stop::Unused).await;
                    Record::remove(&plan.run_dir, device.id());
                }
            }
        }
        self.opened.close(how).await;
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
