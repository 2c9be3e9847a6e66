//! Making a cluster from nothing.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use super::conf::mon_name;
use super::daemon::DaemonId;
use super::keyring::{self, KeyType};
use super::{Cipher, Cluster, Mgr, Version};
use crate::tools;

const MKFS_LIMIT: Duration = Duration::from_secs(60);

impl Cluster {
    pub(super) fn make(&mut self, end: Instant) -> Result<()> {
        self.make_dirs()?;
        fs::write(self.conf_path(), self.settings.conf(self.dir()))?;
        self.make_keyrings()?;
        self.make_monmap()?;
        self.mkfs((0..self.mons()).map(DaemonId::Mon))?;
        for mon in 0..self.mons() {
            self.launch(DaemonId::Mon(mon))?;
        }
        if self.settings.mgr != Mgr::None {
            self.launch(DaemonId::Mgr)?;
        }
        // An OSD's mkfs needs no monitor.
        thread::scope(|scope| {
            let mkfs = scope.spawn(|| self.mkfs((0..self.osds()).map(DaemonId::Osd)));
            self.wait_quorum_until(self.mons(), end)?;
            self.ceph_batch(&self.first_commands())?;
            mkfs.join().map_err(|_| anyhow!("mkfs panicked"))?
        })?;
        for osd in 0..self.osds() {
            self.launch(DaemonId::Osd(osd))?;
        }
        if let Some((k, m)) = self.settings.ec {
            self.make_ec_pool(k, m)?;
        }
        self.wait_ready(end)
    }

    fn make_dirs(&self) -> Result<()> {
        let daemons = self.all_daemons().into_iter().map(|id| id.to_string());
        let others = ["run", "log", "crash", "no-modules"].map(str::to_owned);
        for name in daemons.chain(others) {
            let dir = self.dir().join(name);
            fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
        }
        Ok(())
    }

    fn key_type(&self) -> KeyType {
        match (self.settings.cipher, self.settings.version) {
            (Cipher::Aes, _) | (Cipher::Default, Version::V16 | Version::V18) => KeyType::Aes,
            (Cipher::Aes256k, _) | (Cipher::Default, Version::V20) => KeyType::Aes256k,
        }
    }

    /// The keyring that a monitor is made with holds the keys of all daemons, so none has to be
    /// registered later.
    fn make_keyrings(&self) -> Result<()> {
        let mut known_to_mons = String::new();
        let all = [
            ("mon", "allow *"),
            ("osd", "allow *"),
            ("mgr", "allow *"),
            ("mds", "allow *"),
        ];
        let mgr = [
            ("mon", "allow profile mgr"),
            ("osd", "allow *"),
            ("mds", "allow *"),
        ];
        let osd = [
            ("mon", "allow profile osd"),
            ("mgr", "allow profile osd"),
            ("osd", "allow *"),
        ];
        let mut add = |entity: &str, file: Option<String>, caps: &[(&str, &str)]| -> Result<()> {
            let entry = keyring::entry(entity, self.key_type(), caps)?;
            known_to_mons.push_str(&entry);
            if let Some(file) = file {
                let path = self.dir().join(file);
                fs::write(&path, &entry).with_context(|| format!("writing {}", path.display()))?;
            }
            Ok(())
        };
        add("mon.", None, &all[..1])?;
        add("client.admin", Some("keyring".to_owned()), &all)?;
        if self.settings.mgr != Mgr::None {
            add("mgr.x", Some("mgr.x/keyring".to_owned()), &mgr)?;
        }
        for n in 0..self.osds() {
            add(&format!("osd.{n}"), Some(format!("osd.{n}/keyring")), &osd)?;
        }
        fs::write(self.dir().join("mon.keyring"), known_to_mons)?;
        Ok(())
    }

    fn make_monmap(&self) -> Result<()> {
        let mut command = self.command(["monmaptool", "--create", "--enable-all-features"])?;
        command.args(["--fsid", &self.settings.fsid]);
        for mon in 0..self.mons() {
            command.args([
                "--addv",
                &mon_name(mon).to_string(),
                &self.settings.mon_addrvec(mon),
            ]);
        }
        // Ceph 20 keeps the ciphers it accepts in the monitor map; the others know but one.
        let cipher = match self.settings.cipher {
            Cipher::Default => None,
            Cipher::Aes => Some("aes"),
            Cipher::Aes256k => Some("aes256k"),
        };
        if let Some(cipher) = cipher.filter(|_| self.settings.version >= Version::V20) {
            for option in [
                "auth-service-cipher",
                "auth-allowed-ciphers",
                "auth-preferred-cipher",
            ] {
                command.args([&format!("--{option}"), cipher]);
            }
        }
        command.arg(self.dir().join("monmap"));
        tools::run(command, MKFS_LIMIT)?;
        Ok(())
    }

    /// Makes the stores of several daemons of one kind at once.
    fn mkfs(&self, ids: impl Iterator<Item = DaemonId>) -> Result<()> {
        thread::scope(|scope| {
            let runs: Vec<_> = ids
                .map(|id| scope.spawn(move || self.mkfs_one(id)))
                .collect();
            for run in runs {
                run.join().map_err(|_| anyhow!("mkfs panicked"))??;
            }
            Ok(())
        })
    }

    fn mkfs_one(&self, id: DaemonId) -> Result<()> {
        let mut command = self.command([id.program(), "--mkfs", "-i", &id.short(), "-c"])?;
        command.arg(self.conf_path());
        match id {
            DaemonId::Osd(osd) => {
                command.args(["--osd-uuid", &self.settings.osds[osd]]);
            }
            _ => {
                command.arg("--monmap").arg(self.dir().join("monmap"));
                command.arg("--keyring").arg(self.dir().join("mon.keyring"));
            }
        }
        let out = tools::output(command, MKFS_LIMIT)?;
        let log = self.dir().join("log").join(format!("{id}.mkfs"));
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)?
            .write_all(&out.stderr)?;
        if !out.status.success() {
            let said = tools::last_lines(&out.stderr_str(), 15);
            return Err(anyhow!("mkfs of {id} failed ({}): {said}", out.status));
        }
        Ok(())
    }

    fn first_commands(&self) -> Vec<String> {
        let pgs = self.settings.pg_num;
        let uuids = self.settings.osds.iter().enumerate();
        let mut commands: Vec<_> = uuids
            .map(|(n, uuid)| format!("osd new {uuid} {n}"))
            .collect();
        if self.settings.mgr == Mgr::Lite {
            commands.push("health mute MGR_MODULE_ERROR --sticky".to_owned());
        }
        commands.push(format!("osd pool create rbd {pgs} {pgs} replicated"));
        commands.push("osd pool application enable rbd rbd".to_owned());
        commands
    }

    fn make_ec_pool(&self, k: usize, m: usize) -> Result<()> {
        let pgs = self.settings.pg_num;
        self.ceph_batch(&[
            format!("osd erasure-code-profile set rbd-ec k={k} m={m} crush-failure-domain=osd"),
            format!("osd pool create rbd-ec {pgs} {pgs} erasure rbd-ec"),
            "osd pool set rbd-ec allow_ec_overwrites true".to_owned(),
            "osd pool application enable rbd-ec rbd".to_owned(),
        ])?;
        Ok(())
    }
}
