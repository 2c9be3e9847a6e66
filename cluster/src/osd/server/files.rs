//! Files that clients read, and what the machine says of itself.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;

use crate::auth::Method;

/// A `ceph.conf` that Ceph's own tools accept. The monitor speaks msgr2 alone, so no other address
/// is named.
pub(super) fn conf(fsid: &str, mon: SocketAddr, auth: Method, keyring: Option<&Path>) -> String {
    let mut text = format!(
        "[global]\n\
         fsid = {fsid}\n\
         mon_host = [v2:{mon}/0]\n\
         auth_cluster_required = {auth}\n\
         auth_service_required = {auth}\n\
         auth_client_required = {auth}\n"
    );
    if let Some(path) = keyring {
        let _ = writeln!(text, "keyring = {}", path.display());
    }
    text
}

pub(super) fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "localhost".to_owned(),
        name => name.to_owned(),
    }
}

/// Bytes of memory (`MemTotal`).
pub(super) fn memory_size() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Bytes of the file system that `path` is on.
pub(super) fn disk_size(path: &Path) -> Option<u64> {
    let stat = nix::sys::statvfs::statvfs(path).ok()?;
    stat.blocks().checked_mul(stat.fragment_size())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_says_what_it_has() {
        assert!(memory_size().unwrap() > 1 << 20);
        assert!(disk_size(Path::new("/")).unwrap() > 1 << 20);
        assert!(!hostname().is_empty());
    }
}
