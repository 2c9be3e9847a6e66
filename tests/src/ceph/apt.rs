//! Packages of another Debian suite, unpacked into a directory. apt resolves against an empty
//! state of its own, no maintainer script runs, and the host's packages stay as they are.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::tools::{self, Process};

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const UPDATE_LIMIT: Duration = Duration::from_secs(300);
const DOWNLOAD_LIMIT: Duration = Duration::from_secs(1800);
const UNPACK_LIMIT: Duration = Duration::from_secs(120);

/// An apt with a private state.
pub(crate) struct Apt {
    dir: PathBuf,
}

impl Apt {
    /// Sets up the state in `dir`, which must not exist, for one suite.
    pub(crate) fn new(dir: &Path, suite: &str) -> Result<Apt> {
        if !Path::new(KEYRING).exists() {
            bail!("{KEYRING} is missing (install with `apt-get install debian-archive-keyring`)");
        }
        let mirror = mirror()?;
        for sub in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(dir.join(sub))?;
        }
        fs::write(dir.join("status"), "")?;
        let source = format!("deb [signed-by={KEYRING}] {mirror} {suite} main\n");
        fs::write(dir.join("sources.list"), source)?;
        Ok(Apt {
            dir: dir.to_owned(),
        })
    }

    fn command(&self) -> Command {
        let at = |name: &str| self.dir.join(name).display().to_string();
        let mut command = Command::new("apt-get");
        command
            .env("LC_ALL", "C")
            .env("DEBIAN_FRONTEND", "noninteractive");
        for option in [
            format!("Dir::Etc::sourcelist={}", at("sources.list")),
            "Dir::Etc::sourceparts=/dev/null".to_owned(),
            "Dir::Etc::preferences=/dev/null".to_owned(),
            "Dir::Etc::preferencesparts=/dev/null".to_owned(),
            format!("Dir::State::lists={}", at("lists")),
            format!("Dir::State::status={}", at("status")),
            format!("Dir::State::extended_states={}", at("extended_states")),
            format!("Dir::Cache={}", at("cache")),
            "APT::Default-Release=".to_owned(),
            "APT::Sandbox::User=root".to_owned(),
            "APT::Install-Recommends=false".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            "Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled=false".to_owned(),
            "Acquire::Retries=3".to_owned(),
            // The locks of the host's apt are not ours to take.
            "Debug::NoLocking=1".to_owned(),
        ] {
            command.arg("-o").arg(option);
        }
        command
    }

    /// Downloads `packages` and all they depend on; returns the .deb files.
    pub(crate) fn download(&self, packages: &[&str]) -> Result<Vec<PathBuf>> {
        let mut update = self.command();
        update.arg("update");
        tools::run(update, UPDATE_LIMIT)?;
        let mut download = self.command();
        download
            .args(["install", "-y", "--download-only"])
            .args(packages);
        tools::run(download, DOWNLOAD_LIMIT)?;
        let mut debs = Vec::new();
        for entry in fs::read_dir(self.dir.join("cache/archives"))? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "deb") {
                debs.push(path);
            }
        }
        if debs.is_empty() {
            bail!("apt downloaded nothing");
        }
        debs.sort();
        Ok(debs)
    }
}

/// Unpacks a package into `root`, without its documentation.
pub(crate) fn unpack(deb: &Path, root: &Path) -> Result<()> {
    let mut reader = Command::new("dpkg-deb");
    reader
        .arg("--fsys-tarfile")
        .arg(deb)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut reader = Process::spawn(reader)?;
    let archive = reader.take_stdout().context("no pipe")?;

    let mut writer = Command::new("tar");
    // /bin, /lib... are links into /usr and stay so, though packages may bring directories.
    writer
        .args(["-x", "--no-same-owner", "--keep-directory-symlink", "-C"])
        .arg(root);
    for part in ["doc", "man", "locale", "info", "lintian"] {
        writer.arg(format!("--exclude=./usr/share/{part}"));
    }
    writer.stdin(archive);
    let mut writer = Process::spawn(writer)?;
    let written = writer.wait(UNPACK_LIMIT)?;
    let read = reader.wait(UNPACK_LIMIT)?;
    if !written.success() || !read.success() {
        bail!(
            "unpacking {} failed (dpkg-deb: {read}, tar: {written})",
            deb.display()
        );
    }
    Ok(())
}

/// The Debian mirror that this machine uses itself, or `$UBLK_RBD_DEBIAN_MIRROR`.
fn mirror() -> Result<String> {
    if let Ok(mirror) = std::env::var("UBLK_RBD_DEBIAN_MIRROR") {
        return Ok(mirror);
    }
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(parts) = fs::read_dir("/etc/apt/sources.list.d") {
        files.extend(parts.filter_map(|entry| Some(entry.ok()?.path())));
    }
    files.sort();
    files
        .iter()
        .filter_map(|file| fs::read_to_string(file).ok())
        .find_map(|text| mirror_in(&text))
        .context(
            "no Debian mirror in /etc/apt/sources.list*: name one in UBLK_RBD_DEBIAN_MIRROR, \
             such as http://deb.debian.org/debian",
        )
}

/// The first mirror of the Debian archive in a sources file of either format: the one-line style
/// (`deb [options] URI suite component...`) or deb822 (`URIs: URI...`). Debian's archive is told
/// from others by its customary name; its security archive has no other suites.
fn mirror_in(sources: &str) -> Option<String> {
    let is_archive = |word: &&str| {
        let url = word.trim_end_matches('/');
        url.contains("://") && url.ends_with("/debian")
    };
    sources.lines().map(str::trim).find_map(|line| {
        let mut words = line.split_whitespace();
        match words.next()? {
            "deb" => words.find(is_archive),
            key if key.eq_ignore_ascii_case("URIs:") => words.find(is_archive),
            _ => None,
        }
        .map(str::to_owned)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirrors_of_both_formats() {
        let found = |text: &str| mirror_in(text);
        let one_line = "\
# deb http://old.example/debian bookworm main
deb-src http://source.example/debian bookworm main
deb http://security.example/debian-security bookworm-security main
deb [arch=amd64 signed-by=/k.gpg] https://mirror.example/debian/ bookworm main
";
        assert_eq!(
            found(one_line).as_deref(),
            Some("https://mirror.example/debian/")
        );
        let deb822 = "\
Types: deb
# a comment
URIs: http://deb.example/debian-security http://deb.example/debian
Suites: bookworm
";
        assert_eq!(found(deb822).as_deref(), Some("http://deb.example/debian"));
        assert_eq!(
            found("Types: deb\nURIs: https://other.example/node_20.x\n"),
            None
        );
        assert_eq!(found(""), None);
    }
}
