//! What is kept of a ublk device on disk, so that another daemon can serve it when this one dies.
//!
//! One file per device, `ublk-N.json` in the run directory, made before the device is seen and
//! removed after it is gone. The directory is on a memory file system and so forgotten with the
//! devices themselves when the machine restarts.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::control::MapSpec;
use crate::run_dir::RunDir;
use crate::spec::ImageSpec;

/// Of the file's form. A daemon leaves files of a later version alone.
const VERSION: u32 = 1;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub version: u32,
    /// The number in the device's path.
    pub device: u32,
    /// Tells it from another device that got the same number.
    pub cookie: u64,
    pub pool: String,
    /// The client that served it, as the cluster knows it: `ADDRESS/NONCE`. Empty when it has left
    /// nothing behind.
    pub client: String,
    pub spec: MapSpec,
}

/// What all versions of a record have.
#[derive(Deserialize)]
struct Version {
    version: u32,
}

impl Record {
    pub fn new(device: u32, cookie: u64, pool: String, client: String, spec: MapSpec) -> Record {
        Record {
            version: VERSION,
            device,
            cookie,
            pool,
            client,
            spec,
        }
    }

    /// The image with its pool.
    pub fn image(&self) -> ImageSpec {
        ImageSpec {
            pool: Some(self.pool.clone()),
            ..self.spec.image.clone()
        }
    }

    /// Writes it, whole or not at all.
    pub fn save(&self, run_dir: &RunDir) -> Result<()> {
        let path = run_dir.device_record(self.device);
        let new = path.with_extension("new");
        let shown = path.display();
        let write = || -> std::io::Result<()> {
            let mut options = fs::OpenOptions::new();
            options.create(true).write(true).truncate(true).mode(0o600);
            let mut file = options.open(&new)?;
            file.write_all(&serde_json::to_vec(self)?)?;
            file.sync_data()?;
            fs::rename(&new, &path)
        };
        write().with_context(|| format!("cannot write {shown}"))
    }

    pub fn remove(run_dir: &RunDir, device: u32) {
        let path = run_dir.device_record(device);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                tracing::warn!("cannot remove {}: {e}", path.display());
            }
            _ => {}
        }
    }

    pub fn load(path: &Path) -> Result<Record> {
        let shown = path.display();
        let text = fs::read(path).with_context(|| format!("cannot read {shown}"))?;
        let Version { version } =
            serde_json::from_slice(&text).with_context(|| format!("{shown} is damaged"))?;
        if version != VERSION {
            bail!("{shown} is of version {version}; this program knows version {VERSION}");
        }
        serde_json::from_slice(&text).with_context(|| format!("{shown} is damaged"))
    }

    /// All that can be read; the others are told of in the log.
    pub fn load_all(run_dir: &RunDir) -> Vec<Record> {
        let mut found = Vec::new();
        for path in record_files(run_dir) {
            match Record::load(&path) {
                Ok(record) => found.push(record),
                Err(e) => tracing::error!("{e:#}"),
            }
        }
        found.sort_by_key(|r| r.device);
        found
    }
}

fn record_files(run_dir: &RunDir) -> Vec<PathBuf> {
    let entries = fs::read_dir(run_dir.path()).into_iter().flatten().flatten();
    let files = entries.filter(|e| {
        let name = e.file_name();
        let name = name.to_string_lossy();
        name.starts_with("ublk-") && name.ends_with(".json")
    });
    files.map(|e| e.path()).collect()
}

/// What to call a block device or a partition of one (`ublkb0`, `ublkb0p1`): the image, with what
/// a path must not hold made harmless.
pub fn device_name(run_dir: &RunDir, kernel_name: &str) -> Result<String> {
    let number = kernel_name.strip_prefix("ublkb").map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit());
        &rest[..end.unwrap_or(rest.len())]
    });
    let Some(device) = number.and_then(|n| n.parse().ok()) else {
        bail!("{kernel_name} is no ublk device");
    };
    let record = Record::load(&run_dir.device_record(device))?;
    let plain = |text: &str| -> String {
        let ok = |c: char| c.is_ascii_alphanumeric() || "#+-.:=@_".contains(c);
        text.chars().map(|c| if ok(c) { c } else { '_' }).collect()
    };
    let image = record.image();
    let mut name = plain(&record.pool);
    if !image.namespace.is_empty() {
        name = format!("{name}/{}", plain(&image.namespace));
    }
    name = format!("{name}/{}", plain(&image.image));
    if let Some(snap) = &image.snap {
        name = format!("{name}@{}", plain(snap));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Frontend;
    use crate::control::ClusterSpec;

    fn record(device: u32, image: &str) -> Record {
        let spec = MapSpec {
            image: image.parse().unwrap(),
            cluster: ClusterSpec::default(),
            frontend: Frontend::Ublk,
            socket: None,
            tcp: None,
            allow_remote: false,
            read_only: false,
            request_timeout: None,
            cpu: None,
            device: None,
            queues: 1,
            queue_depth: 128,
        };
        Record::new(device, u64::MAX, "rbd".into(), "127.0.0.1:0/7".into(), spec)
    }

    fn run_dir() -> (tempfile::TempDir, RunDir) {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(Some(dir.path())).unwrap();
        (dir, run_dir)
    }

    #[test]
    fn a_record_is_read_back_and_removed() {
        let (_dir, run_dir) = run_dir();
        let (two, ten) = (record(2, "vm"), record(10, "vm2@s"));
        ten.save(&run_dir).unwrap();
        two.save(&run_dir).unwrap();
        assert_eq!(Record::load_all(&run_dir), [two, ten.clone()]);
        Record::remove(&run_dir, 2);
        Record::remove(&run_dir, 2);
        assert_eq!(Record::load_all(&run_dir), [ten]);
    }

    #[test]
    fn another_version_and_damage_are_told() {
        let (_dir, run_dir) = run_dir();
        let path = run_dir.device_record(0);
        fs::write(&path, br#"{"version":2,"what":"ever"}"#).unwrap();
        let e = format!("{:#}", Record::load(&path).unwrap_err());
        assert!(e.contains("version 2"), "{e}");
        for text in ["", "{}", r#"{"version":1}"#, "\u{0}"] {
            fs::write(&path, text).unwrap();
            let e = format!("{:#}", Record::load(&path).unwrap_err());
            assert!(e.contains("damaged"), "{e}");
        }
        assert!(Record::load_all(&run_dir).is_empty());
    }

    #[test]
    fn a_device_is_called_after_its_image() {
        let (_dir, run_dir) = run_dir();
        record(0, "vm 1").save(&run_dir).unwrap();
        record(12, "rbd/ns/vm@s").save(&run_dir).unwrap();
        assert_eq!(device_name(&run_dir, "ublkb0").unwrap(), "rbd/vm_1");
        assert_eq!(device_name(&run_dir, "ublkb12p3").unwrap(), "rbd/ns/vm@s");
        for bad in ["ublkb", "ublkb1", "sda", "ublkbx", ""] {
            assert!(device_name(&run_dir, bad).is_err(), "{bad}");
        }
    }
}
