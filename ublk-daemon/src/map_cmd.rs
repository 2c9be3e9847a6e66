//! `map`, `unmap` and `list`: the daemon's commands, from the caller's side.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{ClusterArgs, Format, Frontend, MapArgs, UnmapArgs};
use crate::control::{Answer, ClusterSpec, DiskInfo, MapSpec, Request, client};
use crate::daemon;
use crate::disk::{Disk, Stop, conf, pool_of};
use crate::leftover::{self, Leftover};
use crate::output;
use crate::record::Record;
use crate::run_dir::RunDir;
use crate::spec::{self, ImageSpec};

impl ClusterSpec {
    /// The cluster that a command line and the environment name, in a form that means the same to
    /// another process.
    pub fn of(args: &ClusterArgs) -> Result<ClusterSpec> {
        let absolute = |path: &Option<PathBuf>| {
            path.as_deref()
                .map(std::path::absolute)
                .transpose()
                .context("bad path")
        };
        let name = match (&args.name, &args.id) {
            (Some(name), _) => Some(name.clone()),
            (None, Some(id)) => Some(format!("client.{id}")),
            (None, None) => None,
        };
        let env = ["CEPH_CONF", "CEPH_ARGS", "CEPH_KEYRING"];
        let value = |n: &str| std::env::var(n).ok().filter(|v| !v.is_empty());
        Ok(ClusterSpec {
            conf: absolute(&args.conf)?,
            keyring: absolute(&args.keyring)?,
            name,
            mon_host: args.mon_host.clone(),
            cluster: args.cluster.clone(),
            connect_timeout: Some(args.connect_timeout),
            env: env
                .iter()
                .filter_map(|n| Some(((*n).to_owned(), value(n)?)))
                .collect(),
        })
    }
}

pub fn map(
    run_dir: &RunDir,
    cluster: ClusterSpec,
    args: MapArgs,
    verbose: u8,
    format: Format,
) -> Result<()> {
    let foreground = args.foreground;
    let frontend = args.frontend();
    let socket = args
        .socket
        .as_deref()
        .map(std::path::absolute)
        .transpose()?;
    let spec = MapSpec {
        image: args.image,
        cluster,
        frontend,
        socket,
        tcp: args.tcp,
        allow_remote: args.allow_remote,
        read_only: args.read_only,
        request_timeout: args.request_timeout,
        cpu: args.cpu,
        device: args.device,
        queues: args.queues,
        queue_depth: args.queue_depth,
    };
    if foreground {
        return serve_here(run_dir, spec, format);
    }
    // What this process can find out alone needs no daemon.
    cluster::client::ClientConfig::from_conf(&conf(&spec)?)?;
    let request = Request::Map(Box::new(spec));
    match client::ask_or_start(run_dir, verbose, &request)? {
        Answer::Mapped(info) => print_mapped(format, &info),
        _ => bail!("the daemon answers another question"),
    }
}

fn print_mapped(format: Format, info: &DiskInfo) -> Result<()> {
    output::print(format, info, |out| {
        let _ = writeln!(out, "{}", info.device);
    })
}

/// `map --foreground`: one disk, in this process, until a signal.
fn serve_here(run_dir: &RunDir, spec: MapSpec, format: Format) -> Result<()> {
    if spec.frontend == Frontend::Ublk || (spec.socket.is_none() && spec.tcp.is_none()) {
        run_dir.create()?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut term = signal(SignalKind::terminate())?;
        let mut int = signal(SignalKind::interrupt())?;
        let disk = tokio::select! {
            disk = start_here(run_dir, spec) => disk?,
            _ = term.recv() => return Ok(()),
            _ = int.recv() => return Ok(()),
        };
        print_mapped(format, &disk.info())?;
        let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]);
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        if disk.info().frontend == Frontend::Nbd {
            return disk.stop(Stop::Force).await;
        }
        // A block device that is in use waits for the next server rather than failing its users.
        match disk.stop(Stop::Unused).await {
            Ok(()) => Ok(()),
            Err(e) => {
                tracing::warn!("{e:#}; `ublk-rbd attach` serves it again");
                disk.stop(Stop::Leave).await
            }
        }
    })
}

/// Attaches the image, or takes over the device that the last process for it has left.
async fn start_here(run_dir: &RunDir, spec: MapSpec) -> Result<Disk> {
    let maps = Arc::default();
    if spec.frontend == Frontend::Ublk {
        let image = ImageSpec {
            pool: Some(pool_of(&spec, &conf(&spec)?)?),
            ..spec.image.clone()
        };
        for record in Record::load_all(run_dir) {
            if record.image() == image
                && let Leftover::Device(left) = leftover::find(&record).await?
            {
                return Disk::recover(0, *left, run_dir, maps).await;
            }
        }
    }
    Disk::start(0, spec, run_dir, maps).await
}

pub fn attach(run_dir: &RunDir, verbose: u8, format: Format) -> Result<()> {
    match client::ask_or_start(run_dir, verbose, &Request::Attach)? {
        Answer::Disks { disks } => {
            print_list(format, &disks)?;
            let failed = disks
                .iter()
                .filter(|d| d.state.starts_with("recovering"))
                .count();
            if failed > 0 {
                bail!(
                    "{failed} of {} devices cannot be served yet, and are tried again",
                    disks.len()
                );
            }
            Ok(())
        }
        _ => bail!("the daemon answers another question"),
    }
}

pub fn unmap(run_dir: &RunDir, args: &UnmapArgs) -> Result<()> {
    // A path may be given as seen from here.
    let target = match Path::new(&args.target) {
        path if args.target.starts_with('.') => std::path::absolute(path)?.display().to_string(),
        // A name that udev has given.
        path if args.target.starts_with("/dev/") => {
            let real = std::fs::canonicalize(path);
            real.map_or(args.target.clone(), |p| p.display().to_string())
        }
        _ => args.target.clone(),
    };
    let request = Request::Unmap {
        target: target.clone(),
        force: args.force,
    };
    match client::ask(run_dir, &request)? {
        Some(Answer::Unmapped) => Ok(()),
        Some(_) => bail!("the daemon answers another question"),
        None => unmap_leftover(run_dir, &target, args.force),
    }
}

/// Removes a device that a dead daemon has left, without another.
fn unmap_leftover(run_dir: &RunDir, target: &str, force: bool) -> Result<()> {
    let records = Record::load_all(run_dir);
    let found = records
        .iter()
        .find(|r| daemon::matches(&leftover::info(r, String::new()), target));
    let Some(record) = found else {
        bail!("'{target}' is not attached: no daemon is running");
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(leftover::remove(run_dir, record, force))
}

pub fn list(run_dir: &RunDir, format: Format) -> Result<()> {
    let disks = match client::ask(run_dir, &Request::List)? {
        Some(Answer::Disks { disks }) => disks,
        Some(_) => bail!("the daemon answers another question"),
        None => {
            let left = Record::load_all(run_dir);
            let state = "no daemon: `ublk-rbd attach` serves it again";
            left.iter()
                .map(|r| leftover::info(r, state.to_owned()))
                .collect()
        }
    };
    print_list(format, &disks)
}

fn print_list(format: Format, disks: &[DiskInfo]) -> Result<()> {
    output::print(format, &disks, |out| {
        if disks.is_empty() {
            return;
        }
        let row = |d: &DiskInfo| {
            let dash = |s: &str| {
                if s.is_empty() {
                    "-".to_owned()
                } else {
                    s.to_owned()
                }
            };
            vec![
                d.id.to_string(),
                d.pool.clone(),
                dash(&d.namespace),
                d.image.clone(),
                dash(d.snap.as_deref().unwrap_or_default()),
                spec::human(d.size),
                if d.read_only { "ro" } else { "rw" }.to_owned(),
                d.device.clone(),
                d.state.clone(),
            ]
        };
        let header = [
            "id",
            "pool",
            "namespace",
            "image",
            "snap",
            "size",
            "mode",
            "device",
            "state",
        ];
        output::table(out, &header, &disks.iter().map(row).collect::<Vec<_>>());
    })
}
