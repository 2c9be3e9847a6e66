//! Ceph's versions on this machine: finding them, and putting them there.
//!
//! The version of the host's own Debian release is installed as packages. Every other is unpacked
//! into a root of its own below `$UBLK_RBD_CEPH_ROOTS` (/var/cache/ublk-rbd/ceph) and used by chroot,
//! so that all of them are at hand on one machine.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use nix::unistd::geteuid;

use super::Version;
use super::apt::{Apt, unpack};
use super::sandbox::Sandbox;
use crate::Need;
use crate::tools::{self, FileLock, find_program};

/// What a cluster is made of.
const PACKAGES: [&str; 4] = ["ceph-mon", "ceph-osd", "ceph-mgr", "ceph-common"];

/// Ceph's own test programs, which `ceph-suites` runs against our server.
const SUITES: &str = "ceph-test";

/// Programs that tests drive and compare with; each of them with its Debian package.
const TOOLS: [(&str, &str); 9] = [
    ("fio", "fio"),
    ("qemu-img", "qemu-utils"),
    ("qemu-io", "qemu-utils"),
    ("nbdinfo", "libnbd-bin"),
    ("nbdkit", "nbdkit"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("mkfs.btrfs", "btrfs-progs"),
    ("nbd-client", "nbd-client"),
];

/// A version of Ceph that is there.
#[derive(Debug, Clone)]
pub struct Installed {
    pub(crate) sandbox: Sandbox,
}

impl Installed {
    /// Finds a version: in its root, or else on the host. The error says how to install it.
    pub fn find(version: Version) -> Result<Installed> {
        let root = root_of(version);
        let sandbox = if is_complete(version, &root) {
            Sandbox::Root(root)
        } else if host_version() == Some(version.major()) {
            Sandbox::Host
        } else {
            bail!("Ceph {version} is missing (install with `ceph-cluster install {version}`)");
        };
        if matches!(sandbox, Sandbox::Root(_)) && !geteuid().is_root() {
            bail!("Ceph {version} is in a root of its own, which takes the rights of root to use");
        }
        Ok(Installed { sandbox })
    }

    /// Where it is, for people.
    pub fn place(&self) -> String {
        match &self.sandbox {
            Sandbox::Host => "the host".to_owned(),
            Sandbox::Root(root) => root.display().to_string(),
        }
    }
}

fn roots() -> PathBuf {
    std::env::var_os("UBLK_RBD_CEPH_ROOTS")
        .map_or_else(|| PathBuf::from("/var/cache/ublk-rbd/ceph"), PathBuf::from)
}

fn root_of(version: Version) -> PathBuf {
    roots().join(version.to_string())
}

/// Whether the version's test programs are installed with it: of the newest only, as every version
/// brings the same ones and they are large.
fn has_suites(version: Version) -> bool {
    version == Version::V20
}

/// The list of packages is written last, and the root gets its name by a rename.
fn is_complete(version: Version, root: &Path) -> bool {
    let has = |program: &str| root.join("usr/bin").join(program).is_file();
    root.join(".packages").is_file()
        && has("ceph-mon")
        && (!has_suites(version) || has("ceph_test_librbd"))
}

/// The major version of the host's own Ceph.
fn host_version() -> Option<u32> {
    static VERSION: OnceLock<Option<u32>> = OnceLock::new();
    *VERSION.get_or_init(|| {
        if PACKAGES[..3]
            .iter()
            .any(|daemon| find_program(daemon).is_none())
        {
            return None;
        }
        find_program("rbd")?;
        let command = Sandbox::Host.command("ceph-mon", Path::new("/")).ok()?;
        major_version(command).ok()
    })
}

/// The number in "ceph version 16.2.15 (...) pacific (stable)".
fn major_version(mut ceph_mon: Command) -> Result<u32> {
    ceph_mon.arg("--version");
    let text = tools::run(ceph_mon, Duration::from_secs(30))?;
    parse_version(&text).with_context(|| format!("no version: {text}"))
}

fn parse_version(text: &str) -> Option<u32> {
    text.strip_prefix("ceph version ")?
        .split('.')
        .next()?
        .parse()
        .ok()
}

/// Installs a version if it is not there yet. Says on stderr what it does.
pub fn install(version: Version) -> Result<Installed> {
    if let Ok(installed) = Installed::find(version) {
        return Ok(installed);
    }
    if host_suite().as_deref() == Some(version.suite()) {
        install_packages(&PACKAGES)?;
        // Not Installed::find, which remembers that the host had none.
        return Ok(Installed {
            sandbox: Sandbox::Host,
        });
    }
    install_root(version)?;
    Installed::find(version)
}

/// Installs the tools that tests use besides Ceph's, if they are not there yet.
pub fn install_tools() -> Result<()> {
    let mut missing: BTreeSet<&str> = TOOLS
        .iter()
        .filter(|(program, _)| find_program(program).is_none())
        .map(|(_, package)| *package)
        .collect();
    if Need::QemuRbd.missing().is_some() {
        missing.insert("qemu-block-extra");
    }
    if missing.is_empty() {
        return Ok(());
    }
    install_packages(&missing.into_iter().collect::<Vec<_>>())
}

fn host_suite() -> Option<String> {
    let text = fs::read_to_string("/etc/os-release").ok()?;
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))?;
    Some(name.trim_matches('"').to_owned())
}

fn install_packages(packages: &[&str]) -> Result<()> {
    let list = packages.join(" ");
    if !geteuid().is_root() {
        bail!("to be run as root: apt-get install --no-install-recommends {list}");
    }
    eprintln!("installing {list}");
    let apt = |words: &[&str]| {
        let mut command = Command::new("apt-get");
        command
            .env("DEBIAN_FRONTEND", "noninteractive")
            .env("LC_ALL", "C")
            .args(words);
        tools::run(command, Duration::from_secs(1800))
    };
    apt(&["update"])?;
    apt(&[&["install", "-y", "--no-install-recommends"], packages].concat())?;
    Ok(())
}

fn install_root(version: Version) -> Result<()> {
    let root = root_of(version);
    let roots = roots();
    fs::create_dir_all(&roots).with_context(|| {
        format!(
            "creating {} (UBLK_RBD_CEPH_ROOTS names another place)",
            roots.display()
        )
    })?;
    let lock = roots.join(format!(".{version}.lock"));
    let _lock = FileLock::wait(&lock, "another installation")?;
    if is_complete(version, &root) {
        return Ok(());
    }
    let partial = roots.join(format!("{version}.partial"));
    if partial.exists() {
        fs::remove_dir_all(&partial).with_context(|| format!("removing {}", partial.display()))?;
    }
    fs::create_dir_all(&partial)?;

    eprintln!("downloading Ceph {version} of Debian {}", version.suite());
    let apt = Apt::new(&partial.join("apt"), version.suite())?;
    // rbd runs date(1); essential packages that nothing depends on do not come by themselves.
    let mut packages = [&PACKAGES[..], &["coreutils", "dash"]].concat();
    if has_suites(version) {
        packages.push(SUITES);
    }
    let debs = apt.download(&packages)?;

    eprintln!("unpacking {} packages into {}", debs.len(), root.display());
    let tree = partial.join("root");
    prepare_tree(&tree)?;
    for deb in &debs {
        unpack(deb, &tree)?;
    }
    finish_tree(&tree)?;
    // A suite in development may have moved on.
    let found = major_version(Sandbox::Root(tree.clone()).command("ceph-mon", Path::new("/tmp"))?)?;
    if found != version.major() {
        bail!(
            "Debian {} has Ceph {found} now, not {version}",
            version.suite()
        );
    }
    let names: Vec<_> = debs
        .iter()
        .filter_map(|deb| deb.file_name()?.to_str())
        .collect();
    fs::write(tree.join(".packages"), names.join("\n") + "\n")?;

    if root.exists() {
        fs::remove_dir_all(&root).with_context(|| format!("removing {}", root.display()))?;
    }
    fs::rename(&tree, &root).with_context(|| format!("renaming to {}", root.display()))?;
    fs::remove_dir_all(&partial).with_context(|| format!("removing {}", partial.display()))
}

/// The links of a merged /usr must be there before the first package.
fn prepare_tree(tree: &Path) -> Result<()> {
    for name in ["bin", "sbin", "lib", "lib64"] {
        fs::create_dir_all(tree.join("usr").join(name))?;
        symlink(Path::new("usr").join(name), tree.join(name))?;
    }
    for name in ["dev", "etc", "proc", "root", "run", "sys", "tmp", "var/tmp"] {
        fs::create_dir_all(tree.join(name))?;
    }
    fs::set_permissions(tree.join("tmp"), fs::Permissions::from_mode(0o1777))?;
    Ok(())
}

/// What maintainer scripts would have done, as far as Ceph needs it.
fn finish_tree(tree: &Path) -> Result<()> {
    let etc = tree.join("etc");
    for name in ["passwd", "group"] {
        if !etc.join(name).exists() {
            fs::copy(Path::new("/etc").join(name), etc.join(name))?;
        }
    }
    fs::write(etc.join("hosts"), "127.0.0.1 localhost\n")?;
    fs::write(
        etc.join("nsswitch.conf"),
        "passwd: files\ngroup: files\nhosts: files\n",
    )?;
    let ldconfig = find_program("ldconfig").ok_or_else(|| anyhow!("no ldconfig"))?;
    let mut command = Command::new(ldconfig);
    command.arg("-r").arg(tree);
    tools::run(command, Duration::from_secs(60))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_parsed() {
        let text = "ceph version 20.2.4 (7f79) tentacle (stable - RelWithDebInfo)\n";
        assert_eq!(parse_version(text), Some(20));
        assert_eq!(parse_version("ceph version x"), None);
        assert_eq!(parse_version(""), None);
    }

    #[test]
    fn half_made_roots_do_not_count() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("usr/bin")).unwrap();
        fs::write(root.path().join("usr/bin/ceph-mon"), "").unwrap();
        assert!(!is_complete(Version::V18, root.path()));
        fs::write(root.path().join(".packages"), "").unwrap();
        assert!(is_complete(Version::V18, root.path()));
        assert!(!is_complete(Version::V20, root.path()));
    }
}
