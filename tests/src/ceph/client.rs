//! Ceph's own client programs, in a version of choice, against any cluster.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::{Installed, Version};
use crate::tools::{self, Output};

/// How long a command may take unless told otherwise.
const COMMAND_LIMIT: Duration = Duration::from_secs(120);

/// `rbd`, `rados`, `ceph` and the rest of one version, with the configuration of one cluster.
#[derive(Debug, Clone)]
pub struct Client {
    installed: Installed,
    version: Version,
    conf: PathBuf,
    env: &'static [(&'static str, &'static str)],
}

impl Client {
    /// `conf` and whatever it names must be below /tmp, or in one directory.
    pub fn new(version: Version, conf: &Path) -> Result<Client> {
        Ok(Client {
            installed: Installed::find(version)?,
            version,
            conf: conf.to_owned(),
            env: &[],
        })
    }

    /// Variables that every program sees from now on.
    pub fn set_env(&mut self, env: &'static [(&'static str, &'static str)]) {
        self.env = env;
    }

    pub fn version(&self) -> Version {
        self.version
    }

    /// A program as a command, with the cluster's ceph.conf.
    pub fn command<S: AsRef<OsStr>>(&self, argv: impl IntoIterator<Item = S>) -> Result<Command> {
        let mut argv = argv.into_iter();
        let program = argv.next().context("no command given")?;
        let program = program
            .as_ref()
            .to_str()
            .context("a program's name is not UTF-8")?;
        let dir = self.conf.parent().context("ceph.conf has no directory")?;
        let mut command = self.installed.sandbox.command(program, dir)?;
        command
            .env("CEPH_CONF", &self.conf)
            .envs(self.env.iter().copied())
            .args(argv);
        Ok(command)
    }

    /// Runs a program and returns what it printed. Failure is an error with the end of its stderr.
    pub fn run<S: AsRef<OsStr>>(&self, argv: impl IntoIterator<Item = S>) -> Result<String> {
        tools::run(self.command(argv)?, COMMAND_LIMIT)
    }

    /// Likewise, however it ends, with a limit of its own.
    pub fn output<S: AsRef<OsStr>>(
        &self,
        argv: impl IntoIterator<Item = S>,
        timeout: Duration,
    ) -> Result<Output> {
        tools::output(self.command(argv)?, timeout)
    }
}
