//! The daemon: serves attached images and answers the control socket.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use cluster::client::MapCache;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::control::server::{Caller, ControlSocket};
use crate::control::{Answer, DiskInfo, MapSpec, Request};
use crate::disk::{Disk, Stop};
use crate::leftover::{self, Leftover};
use crate::record::Record;
use crate::run_dir::RunDir;

/// How long until a device that could not be served is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// A device that a dead daemon has left, on its way to be served again.
struct Recovering {
    record: Record,
    /// Why the last attempt failed.
    trouble: RefCell<Option<String>>,
    task: RefCell<Option<AbortHandle>>,
}

struct Daemon {
    run_dir: RunDir,
    disks: RefCell<BTreeMap<u32, Rc<Disk>>>,
    recovering: RefCell<BTreeMap<u32, Rc<Recovering>>>,
    next_id: Cell<u32>,
    /// Requests being answered; the daemon is not idle while one runs.
    busy: Cell<usize>,
    changed: Notify,
    stopping: Cell<bool>,
    /// Maps of the clusters, decoded once for all disks.
    maps: Arc<MapCache>,
}

/// Serves until stopped by a signal or a request or, with `exit_when_idle`, until the last image is
/// detached.
pub fn run(run_dir: RunDir, exit_when_idle: bool) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, serve(run_dir, exit_when_idle))
}

/// What to say of a run directory that another daemon has.
pub(crate) fn taken(dir: &Path) -> anyhow::Error {
    anyhow!(
        "another daemon serves {}: use it, or another --run-dir",
        dir.display()
    )
}

async fn serve(run_dir: RunDir, exit_when_idle: bool) -> Result<()> {
    let socket = ControlSocket::bind(&run_dir, taken)?;
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    let daemon = Rc::new(Daemon {
        run_dir,
        disks: RefCell::default(),
        recovering: RefCell::default(),
        next_id: Cell::new(0),
        busy: Cell::new(0),
        changed: Notify::new(),
        stopping: Cell::new(false),
        maps: Arc::default(),
    });
    daemon.recover_all();
    // Not being run by systemd is no error.
    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]);
    tracing::info!(socket = %daemon.run_dir.control_socket().display(), "serving");
    let mut served = false;
    loop {
        tokio::select! {
            caller = socket.accept() => {
                let caller = caller.context("the control socket failed")?;
                served = true;
                daemon.busy.set(daemon.busy.get() + 1);
                let daemon = Rc::clone(&daemon);
                tokio::task::spawn_local(async move {
                    daemon.answer(caller).await;
                    daemon.busy.set(daemon.busy.get() - 1);
                    daemon.changed.notify_one();
                });
            }
            () = daemon.changed.notified() => {}
            _ = term.recv() => break,
            _ = int.recv() => break,
        }
        let idle = daemon.disks.borrow().is_empty()
            && daemon.recovering.borrow().is_empty()
            && daemon.busy.get() == 0;
        if idle && (daemon.stopping.get() || (exit_when_idle && served)) {
            break;
        }
    }
    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Stopping]);
    let disks = std::mem::take(&mut *daemon.disks.borrow_mut());
    for (id, disk) in disks {
        if let Err(e) = disk.stop(Stop::Leave).await {
            tracing::warn!(id, "detaching failed: {e:#}");
        }
    }
    Ok(())
}

impl Daemon {
    async fn answer(&self, mut caller: Caller) {
        let request = match caller.request().await {
            Ok(request) => request,
            Err(e) => {
                tracing::debug!("unreadable request: {e:#}");
                return;
            }
        };
        let result = match request {
            Request::Map(spec) => {
                tokio::select! {
                    mapped = self.map(*spec) => mapped,
                    // Whoever asked has gone: nothing may stay half attached.
                    () = caller.hung_up() => return,
                }
            }
            Request::Unmap { target, force } => self.unmap(&target, force).await,
            Request::List => Ok(self.list().await),
            Request::Attach => {
                self.recovered().await;
                Ok(self.list().await)
            }
            Request::Stop { force } => self.stop(force).await,
        };
        let answer = result.unwrap_or_else(|e| Answer::Error {
            message: format!("{e:#}"),
        });
        if let Err(e) = caller.answer(&answer).await {
            tracing::debug!("an answer was not taken: {e:#}");
        }
    }

    async fn map(&self, spec: MapSpec) -> Result<Answer> {
        if self.stopping.get() {
            bail!("the daemon is stopping");
        }
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        let disk = Rc::new(Disk::start(id, spec, &self.run_dir, Arc::clone(&self.maps)).await?);
        let info = disk.info();
        tracing::info!(id, image = %info.spec(), device = info.device, "attached");
        self.disks.borrow_mut().insert(id, disk);
        Ok(Answer::Mapped(info))
    }

    async fn unmap(&self, target: &str, force: bool) -> Result<Answer> {
        let abandoned = {
            let recovering = self.recovering.borrow();
            let mut found = recovering.values().filter(|r| matches(&r.info(), target));
            found.next().cloned()
        };
        if let Some(recovering) = abandoned {
            return self.abandon(&recovering, force).await;
        }
        let (id, disk) = self.find(target)?;
        disk.stop(how(force)).await?;
        self.disks.borrow_mut().remove(&id);
        tracing::info!(id, "detached");
        Ok(Answer::Unmapped)
    }

    async fn list(&self) -> Answer {
        let attached: Vec<_> = self.disks.borrow().values().cloned().collect();
        let mut disks = Vec::with_capacity(attached.len());
        for disk in attached {
            disks.push(disk.current_info().await);
        }
        let recovering = self.recovering.borrow();
        disks.extend(recovering.values().map(|r| r.info()));
        Answer::Disks { disks }
    }

    async fn stop(&self, force: bool) -> Result<Answer> {
        let disks: Vec<_> = self
            .disks
            .borrow()
            .iter()
            .map(|(i, d)| (*i, Rc::clone(d)))
            .collect();
        for (id, disk) in disks {
            disk.stop(how(force)).await?;
            self.disks.borrow_mut().remove(&id);
        }
        self.stopping.set(true);
        Ok(Answer::Stopping)
    }

    /// Begins to serve what a daemon before this one has left.
    fn recover_all(self: &Rc<Self>) {
        for record in Record::load_all(&self.run_dir) {
            let id = self.next_id.get();
            self.next_id.set(id + 1);
            let recovering = Rc::new(Recovering {
                record,
                trouble: RefCell::default(),
                task: RefCell::default(),
            });
            let task =
                tokio::task::spawn_local(Rc::clone(self).recover(id, Rc::clone(&recovering)));
            *recovering.task.borrow_mut() = Some(task.abort_handle());
            self.recovering.borrow_mut().insert(id, recovering);
        }
    }

    async fn recover(self: Rc<Self>, id: u32, recovering: Rc<Recovering>) {
        let record = &recovering.record;
        let device = crate::frontend::ublk::path(record.device);
        loop {
            match self.try_recover(id, record).await {
                Ok(disk) => {
                    if let Some(disk) = disk {
                        tracing::info!(id, image = %record.image(), "serving {} again", device.display());
                        self.disks.borrow_mut().insert(id, Rc::new(disk));
                    }
                    self.recovering.borrow_mut().remove(&id);
                    self.changed.notify_one();
                    return;
                }
                Err(e) => {
                    tracing::warn!(id, "cannot serve {} yet: {e:#}", device.display());
                    *recovering.trouble.borrow_mut() = Some(format!("{e:#}"));
                }
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// `None` when there is nothing to be served.
    async fn try_recover(&self, id: u32, record: &Record) -> Result<Option<Disk>> {
        match leftover::find(record).await? {
            Leftover::Device(left) => {
                let maps = Arc::clone(&self.maps);
                Ok(Some(Disk::recover(id, *left, &self.run_dir, maps).await?))
            }
            Leftover::Gone => {
                Record::remove(&self.run_dir, record.device);
                Ok(None)
            }
            Leftover::Served(pid) => {
                tracing::info!("process {pid} serves /dev/ublkb{}", record.device);
                Ok(None)
            }
        }
    }

    /// Waits until each device that was left is served or has met trouble.
    async fn recovered(&self) {
        let pending = || {
            let recovering = self.recovering.borrow();
            recovering.values().any(|r| r.trouble.borrow().is_none())
        };
        while pending() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Gives a device up that waits to be served again.
    async fn abandon(&self, recovering: &Recovering, force: bool) -> Result<Answer> {
        if let Some(task) = &*recovering.task.borrow() {
            task.abort();
        }
        leftover::remove(&self.run_dir, &recovering.record, force).await?;
        self.recovering
            .borrow_mut()
            .retain(|_, r| r.record.device != recovering.record.device);
        Ok(Answer::Unmapped)
    }

    fn find(&self, target: &str) -> Result<(u32, Rc<Disk>)> {
        let disks = self.disks.borrow();
        let found: Vec<_> = disks
            .iter()
            .filter(|(_, d)| matches(&d.info(), target))
            .collect();
        match found[..] {
            [(id, disk)] => Ok((*id, Rc::clone(disk))),
            [] => Err(anyhow!(
                "'{target}' is not attached: `ublk-rbd list` shows what is"
            )),
            _ => Err(anyhow!(
                "'{target}' is attached more than once: name it by id or socket"
            )),
        }
    }
}

fn how(force: bool) -> Stop {
    if force { Stop::Force } else { Stop::Unused }
}

impl Recovering {
    fn info(&self) -> DiskInfo {
        let state = match &*self.trouble.borrow() {
            Some(why) => format!("recovering: {why}"),
            None => "recovering".to_owned(),
        };
        leftover::info(&self.record, state)
    }
}

/// Whether a user who writes `target` means this disk.
pub(crate) fn matches(info: &DiskInfo, target: &str) -> bool {
    let spec = info.spec();
    let short = crate::spec::ImageSpec {
        pool: None,
        ..spec.clone()
    };
    target == info.device
        || target == info.id.to_string()
        || target == spec.to_string()
        || (info.namespace.is_empty() && target == short.to_string())
        || info.socket.as_deref() == Some(Path::new(target))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Frontend;

    #[test]
    fn a_disk_answers_to_each_of_its_names() {
        let info = DiskInfo {
            id: 3,
            pool: "rbd".into(),
            namespace: String::new(),
            image: "vm1".into(),
            snap: None,
            frontend: Frontend::Nbd,
            device: "nbd+unix:///?socket=/run/x.sock".into(),
            socket: Some("/run/x.sock".into()),
            size: 1,
            read_only: false,
            state: "ok".into(),
        };
        for name in [
            "3",
            "rbd/vm1",
            "vm1",
            "/run/x.sock",
            "nbd+unix:///?socket=/run/x.sock",
        ] {
            assert!(matches(&info, name), "{name}");
        }
        for name in ["", "rbd", "rbd/vm1@s", "vm", "/run/y.sock"] {
            assert!(!matches(&info, name), "{name}");
        }
    }
}
