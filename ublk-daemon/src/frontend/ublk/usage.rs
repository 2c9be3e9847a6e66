//! Who uses a block device: what keeps it from being removed without harm.

use std::fs;

/// The first use of `/dev/NAME` or one of its partitions that is found: a mount, a swap area, or
/// another block device on top (device-mapper, md, loop with direct access).
pub fn of(name: &str) -> Option<String> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let mounts = read("/proc/self/mountinfo");
    let swaps = read("/proc/swaps");
    let folder = format!("/sys/block/{name}");
    let mut folders = vec![(name.to_owned(), folder.clone())];
    for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
        let part = entry.file_name().to_string_lossy().into_owned();
        if entry.path().join("partition").exists() {
            folders.push((part, entry.path().display().to_string()));
        }
    }
    folders.iter().find_map(|(name, folder)| {
        let dev = read(&format!("{folder}/dev"));
        mount_of(&mounts, dev.trim())
            .map(|place| format!("mounted on {place}"))
            .or_else(|| swaps_has(&swaps, name).then(|| "swap space".to_owned()))
            .or_else(|| {
                let mut holders = fs::read_dir(format!("{folder}/holders")).ok()?.flatten();
                let holder = holders.next()?.file_name();
                Some(format!("{} is on it", holder.to_string_lossy()))
            })
    })
}

/// Where `/proc/PID/mountinfo` has the device of this number (`proc_pid_mountinfo(5)`).
fn mount_of(mounts: &str, dev: &str) -> Option<String> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        // Some file systems (btrfs) have numbers of their own, and name the device after the dash.
        let (number, place) = (fields.nth(2)?, fields.nth(1)?);
        let source = line.split_once(" - ")?.1.split(' ').nth(1)?;
        let same = number == dev || number_of(source).is_some_and(|n| n == dev);
        (!dev.is_empty() && same).then(|| place.replace("\\040", " "))
    })
}

/// `MAJOR:MINOR` of a device node.
fn number_of(path: &str) -> Option<String> {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    if !path.starts_with("/dev/") {
        return None;
    }
    let meta = fs::metadata(path)
        .ok()
        .filter(|m| m.file_type().is_block_device())?;
    let dev = meta.rdev();
    Some(format!("{}:{}", libc::major(dev), libc::minor(dev)))
}

fn swaps_has(swaps: &str, name: &str) -> bool {
    let path = format!("/dev/{name}");
    swaps
        .lines()
        .skip(1)
        .any(|line| line.split_whitespace().next() == Some(&path))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 254:0 / / rw,relatime - ext4 /dev/root rw
30 22 0:25 / /proc rw - proc proc rw
41 22 259:3 / /mnt/my\\040disk rw,noatime shared:1 - xfs /dev/ublkb0 rw
";

    #[test]
    fn a_mount_is_found_by_number() {
        assert_eq!(mount_of(MOUNTS, "259:3").as_deref(), Some("/mnt/my disk"));
        assert_eq!(mount_of(MOUNTS, "259:30"), None);
        assert_eq!(mount_of(MOUNTS, ""), None);
        assert_eq!(mount_of("nonsense\n\n1 2", "259:3"), None);
    }

    #[test]
    fn a_swap_area_is_found_by_path() {
        let swaps = "Filename Type Size Used Priority\n/dev/ublkb1 partition 1 0 -2\n";
        assert!(swaps_has(swaps, "ublkb1"));
        assert!(!swaps_has(swaps, "ublkb"));
    }
}
