//! Tests that need drivers of the kernel. Where the host's kernel has them, such a test runs as any
//! other; elsewhere its own executable is run again in the guest of `tests/guest/run`, for this one
//! test:
//!
//! ```no_run
//! use harness::guest::{Driver, Guest};
//!
//! // #[test]
//! fn disks_on_nbd() -> anyhow::Result<()> {
//!     Guest::with(&[Driver::Nbd]).run(|| {
//!         // As root, on a machine that has /dev/nbd0.
//!         Ok(())
//!     })
//! }
//! ```
//!
//! In the guest the harness works as it does outside: servers, clusters of real Ceph, clients. A system
//! call costs some 11 us there, and reading the clock is one, so amounts of work are to be modest.
//!
//! `UBLK_RBD_GUEST_ENGINE=uml` (or `tcg`) chooses a guest even where the host would do.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{any, env, fs};

use anyhow::{Context, Result, bail, ensure};

use crate::ceph::Turn;
use crate::product::{self, text};
use crate::tools::{self, last_lines};
use crate::{Need, require};

/// Names, in the guest, the file by which a test tells that it has run.
const INSIDE: &str = "UBLK_RBD_INSIDE";
const ENGINE: &str = "UBLK_RBD_GUEST_ENGINE";

/// What is passed on into the guest.
const VARIABLES: [&str; 4] = [
    "CI",
    "RUST_BACKTRACE",
    "UBLK_RBD_LONG",
    "UBLK_RBD_CEPH_ROOTS",
];

/// Of a guest's output, this much is shown when its test has failed.
const SHOWN: usize = 80;

/// For starting a guest on a busy machine, and for ending it.
const AROUND: Duration = Duration::from_secs(120);

/// A kernel may just be in the making.
const BUILD_LIMIT: Duration = Duration::from_secs(1800);

/// A driver of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Driver {
    Ublk,
    Nbd,
    /// krbd.
    Rbd,
    DeviceMapper,
}

impl Driver {
    /// Its module, and what there is once it is loaded or where it is built in.
    fn names(self) -> (&'static str, &'static Path) {
        let (module, sign) = match self {
            Driver::Ublk => ("ublk_drv", "/dev/ublk-control"),
            Driver::Nbd => ("nbd", "/dev/nbd0"),
            Driver::Rbd => ("rbd", "/sys/bus/rbd"),
            Driver::DeviceMapper => ("dm_mod", "/dev/mapper/control"),
        };
        (module, Path::new(sign))
    }

    /// Loads it if need be; says whether it is there.
    fn load(self) -> bool {
        let (module, sign) = self.names();
        if !sign.exists() {
            let mut command = Command::new("modprobe");
            command.args(["-q", module]);
            // A kernel without the module is what the guest is for.
            let _ = tools::output(command, AROUND);
        }
        sign.exists()
    }
}

/// Where a test is to run.
#[derive(Debug, Clone)]
pub struct Guest {
    drivers: &'static [Driver],
    needs: Vec<Need>,
    memory_mib: u32,
    cpus: Option<u32>,
    udev: bool,
    limit: Duration,
}

impl Guest {
    /// On a kernel with these drivers.
    pub fn with(drivers: &'static [Driver]) -> Guest {
        Guest {
            drivers,
            needs: Vec::new(),
            memory_mib: 2048,
            cpus: None,
            udev: false,
            limit: Duration::from_secs(300),
        }
    }

    /// What else the test cannot do without. In the guest is what is on the host.
    pub fn needs(mut self, needs: &[Need]) -> Guest {
        self.needs.extend_from_slice(needs);
        self
    }

    /// 2048.
    pub fn memory_mib(mut self, mib: u32) -> Guest {
        self.memory_mib = mib;
        self
    }

    /// As many processors, for tests of several queues: in UML threads that wake each other on two
    /// processors are slow.
    pub fn cpus(mut self, cpus: u32) -> Guest {
        self.cpus = Some(cpus);
        self
    }

    /// With udevd.
    pub fn udev(mut self) -> Guest {
        self.udev = true;
        self
    }

    /// 300 s.
    pub fn limit(mut self, limit: Duration) -> Guest {
        self.limit = limit;
        self
    }

    /// Runs `body`: here, or in a guest that runs the calling test again and gets here. To be called by
    /// the test's own function: the closure's name says which test that is.
    #[track_caller]
    pub fn run<F: FnOnce() -> Result<()>>(self, body: F) -> Result<()> {
        if let Some(told) = env::var_os(INSIDE) {
            for driver in self.drivers {
                ensure!(driver.load(), "the guest's kernel has no driver {driver:?}");
            }
            body()?;
            return fs::write(&told, "").context("telling that the test has run");
        }
        let guest = match env::var_os(ENGINE) {
            Some(_) => true,
            None => !self.drivers.iter().all(|driver| driver.load()),
        };
        let mut needs = self.needs.clone();
        needs.push(match guest {
            true => Need::Guest,
            false => Need::Root,
        });
        if !require(&needs) {
            return Ok(());
        }
        if !guest {
            return body();
        }
        self.boot(test_of::<F>()?)
    }

    /// Runs one test of this executable in a guest.
    fn boot(&self, test: &str) -> Result<()> {
        let _turn = Turn::wait()?;
        let scratch = tempfile::Builder::new().prefix("ug.").tempdir_in("/tmp")?;
        let told = scratch.path().join("told");
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let root = fs::canonicalize(&root)?;

        let mut command = runner();
        command.args(["--share", text(&root), "--share", text(scratch.path())]);
        let seen = |program: PathBuf| match is_seen(&program, &root) {
            true => Ok(program),
            false => copy_into(scratch.path(), &program),
        };
        let product = seen(product::binary()?)?;
        let this = seen(env::current_exe()?)?;
        let mut set = |name: &str, value: &str| {
            command.args(["--env", &format!("{name}={value}")]);
        };
        set(INSIDE, text(&told));
        set("UBLK_RBD_BIN", text(&product));
        for name in VARIABLES {
            if let Ok(value) = env::var(name) {
                set(name, &value);
            }
        }
        if let Some(cpus) = self.cpus {
            command.args(["--cpus", &cpus.to_string()]);
        }
        if self.udev {
            command.arg("--udev");
        }
        command.args(["--mem", &self.memory_mib.to_string()]);
        command.args(["--timeout", &self.limit.as_secs().to_string(), "--"]);
        command.arg(this);
        command.args(["--exact", test, "--nocapture", "--test-threads=1"]);

        let out = tools::output(command, self.limit + AROUND)?;
        let said = out.stdout_str() + &out.stderr_str();
        if !out.status.success() {
            bail!(
                "{test} in the guest: {}\n{}",
                out.status,
                last_lines(&said, SHOWN)
            );
        }
        ensure!(told.exists(), "{test} did not run in the guest:\n{said}");
        Ok(())
    }
}

/// What is not there for a guest to be started, with the engine of choice.
pub(crate) fn missing(engine: Option<&str>) -> Option<String> {
    let mut command = runner();
    command.arg("--check");
    if let Some(engine) = engine {
        command.args(["--engine", engine]);
    }
    let out = match tools::output(command, BUILD_LIMIT) {
        Ok(out) => out,
        Err(error) => return Some(format!("{error:#}")),
    };
    let said = out.stderr_str();
    let why = said.trim_end().trim_start_matches("guest: ");
    (!out.status.success()).then(|| why.to_owned())
}

fn runner() -> Command {
    let mut command = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/guest/run"));
    if let Ok(engine) = env::var(ENGINE) {
        command.args(["--engine", &engine]);
    }
    command
}

fn copy_into(dir: &Path, file: &Path) -> Result<PathBuf> {
    let copy = dir.join(file.file_name().context("no file name")?);
    fs::copy(file, &copy).with_context(|| format!("copying {}", file.display()))?;
    Ok(copy)
}

/// Whether the guest sees a file of the host. Its /tmp and /run are its own.
fn is_seen(file: &Path, shared: &Path) -> bool {
    let file = fs::canonicalize(file).unwrap_or_else(|_| PathBuf::from(file));
    let hidden = ["/tmp", "/run", "/dev", "/proc", "/sys"];
    file.starts_with(shared) || !hidden.iter().any(|dir| file.starts_with(dir))
}

/// The name of the test whose function made the closure `F`, as the test's executable knows it.
fn test_of<F>() -> Result<&'static str> {
    let name = any::type_name::<F>();
    name.strip_suffix("::{{closure}}")
        .and_then(|name| name.split_once("::"))
        .map(|(_crate, test)| test)
        .with_context(|| format!("{name} is no closure of a test's own function"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name_of<F: FnOnce()>(_: F) -> &'static str {
        test_of::<F>().unwrap()
    }

    #[test]
    fn a_test_is_known_by_its_closure() {
        let name = name_of(|| {});
        assert_eq!(name, "guest::tests::a_test_is_known_by_its_closure");
    }

    #[test]
    fn files_in_memory_are_not_seen() {
        let root = Path::new("/tmp/project");
        assert!(is_seen(Path::new("/tmp/project/target/x"), root));
        assert!(is_seen(Path::new("/usr/bin/env"), root));
        assert!(!is_seen(Path::new("/tmp/other"), root));
    }
}
