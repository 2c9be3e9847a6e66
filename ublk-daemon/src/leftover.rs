//! ublk devices whose server has died: found, described, or removed without one.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::cli::Frontend;
use crate::control::DiskInfo;
use crate::disk::Left;
use crate::frontend::ublk::{Control, ControlError, State, in_use, path, usage_of};
use crate::record::Record;
use crate::run_dir::RunDir;

/// How long a server that was killed may take until the kernel has noticed.
const NOTICED: Duration = Duration::from_secs(30);

/// What has become of a recorded device.
pub enum Leftover {
    /// It waits for a server.
    Device(Box<Left>),
    /// It is not there any more, or never was seen.
    Gone,
    /// Another process has it.
    Served(i32),
}

/// Looks for the device of a record.
pub async fn find(record: &Record) -> Result<Leftover> {
    let control = Control::open().await?;
    let begin = Instant::now();
    loop {
        let info = match control.info(record.device).await {
            Ok(info) if info.cookie == record.cookie => info,
            // The number is another device's by now.
            Ok(_) | Err(ControlError::Gone(_)) => return Ok(Leftover::Gone),
            Err(e) => return Err(e.into()),
        };
        match info.state {
            State::Quiesced | State::FailIo => {
                let record = record.clone();
                let left = Left {
                    control,
                    info,
                    record,
                };
                return Ok(Leftover::Device(Box::new(left)));
            }
            // Its server died before it was started, or after it was stopped.
            State::Dead => {
                control.delete(record.device, false).await?;
                return Ok(Leftover::Gone);
            }
            State::Live | State::Other(_) => {
                if is_alive(info.server_pid) {
                    return Ok(Leftover::Served(info.server_pid));
                }
                if begin.elapsed() > NOTICED {
                    bail!("the kernel does not give /dev/ublkb{} free", record.device);
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

/// A process that has not begun to exit.
fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    // `PID (NAME) STATE ...`, and the name may hold anything.
    let state = stat.as_deref().ok().and_then(|s| s.rsplit_once(") "));
    state.is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Removes a device that has no server: requests that wait for one fail.
pub async fn remove(run_dir: &RunDir, record: &Record, force: bool) -> Result<()> {
    match find(record).await? {
        Leftover::Gone => {}
        Leftover::Served(pid) => {
            bail!(
                "process {pid} serves /dev/ublkb{}: end it first",
                record.device
            )
        }
        Leftover::Device(left) => {
            let used = usage_of(&format!("ublkb{}", record.device));
            if let (Some(by), false) = (&used, force) {
                return Err(in_use(record.device, by));
            }
            left.control.stop(record.device).await?;
            left.control.delete(record.device, used.is_some()).await?;
        }
    }
    Record::remove(run_dir, record.device);
    Ok(())
}

/// What `list` shows of it.
pub fn info(record: &Record, state: String) -> DiskInfo {
    let image = record.image();
    let device = path(record.device);
    let sectors = std::fs::read_to_string(format!("/sys/block/ublkb{}/size", record.device));
    let sectors: u64 = sectors
        .ok()
        .and_then(|s| s.trim().parse().ok())
        .unwrap_or(0);
    DiskInfo {
        id: record.device,
        pool: record.pool.clone(),
        namespace: image.namespace,
        image: image.image,
        snap: image.snap,
        frontend: Frontend::Ublk,
        device: device.display().to_string(),
        socket: None,
        size: sectors * 512,
        read_only: record.spec.read_only || record.spec.image.snap.is_some(),
        state,
    }
}
