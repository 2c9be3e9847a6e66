//! What a test cannot do without.

use std::fmt;

use crate::ceph::{Installed, Version};
use crate::tools::find_program;

/// Something a machine may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Ceph's daemons and tools in a version.
    Ceph(Version),
    /// A program and the Debian package that has it.
    Tool {
        program: &'static str,
        package: &'static str,
    },
    /// The rbd driver of QEMU's tools.
    QemuRbd,
    /// The rights of root.
    Root,
    /// The guest of `tests/guest/run`.
    Guest,
    /// Its other engine, a PC in emulation.
    EmulatedGuest,
}

/// Where Debian's qemu-block-extra puts the driver.
pub(crate) fn qemu_rbd_driver() -> std::path::PathBuf {
    let arch = std::env::consts::ARCH;
    format!("/usr/lib/{arch}-linux-gnu/qemu/block-rbd.so").into()
}

impl Need {
    pub const FIO: Need = Need::Tool {
        program: "fio",
        package: "fio",
    };
    pub const MKFS_EXT4: Need = Need::Tool {
        program: "mkfs.ext4",
        package: "e2fsprogs",
    };
    pub const NBDCOPY: Need = Need::Tool {
        program: "nbdcopy",
        package: "libnbd-bin",
    };
    pub const NBDINFO: Need = Need::Tool {
        program: "nbdinfo",
        package: "libnbd-bin",
    };
    pub const NBDKIT: Need = Need::Tool {
        program: "nbdkit",
        package: "nbdkit",
    };
    pub const QEMU_IMG: Need = Need::Tool {
        program: "qemu-img",
        package: "qemu-utils",
    };
    pub const QEMU_IO: Need = Need::Tool {
        program: "qemu-io",
        package: "qemu-utils",
    };

    /// What is missing and how to get it, or `None` when all is there.
    pub fn missing(self) -> Option<String> {
        match self {
            Need::Ceph(version) => Installed::find(version).err().map(|e| e.to_string()),
            Need::Tool { program, package } => find_program(program).is_none().then(|| {
                format!("{program} is missing (install with `apt-get install {package}`)")
            }),
            Need::QemuRbd => (!qemu_rbd_driver().exists()).then(|| {
                "QEMU's rbd driver is missing (install with `apt-get install qemu-block-extra`)"
                    .to_string()
            }),
            Need::Root => (!nix::unistd::geteuid().is_root())
                .then(|| "the right to be root is missing (run with sudo)".to_string()),
            Need::Guest => crate::guest::missing(None),
            Need::EmulatedGuest => crate::guest::missing(Some("tcg")),
        }
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Need::Ceph(version) => write!(f, "Ceph {version}"),
            Need::Tool { program, .. } => f.write_str(program),
            Need::QemuRbd => f.write_str("QEMU's rbd driver"),
            Need::Root => f.write_str("root"),
            Need::Guest => f.write_str("the guest"),
            Need::EmulatedGuest => f.write_str("the emulated guest"),
        }
    }
}

/// Whether this runs in continuous integration, where nothing may be missing.
pub fn in_ci() -> bool {
    std::env::var("CI").is_ok_and(|ci| ci == "true" || ci == "1")
}

/// Whether `UBLK_RBD_LONG=1` asks for the long forms of tests: more data, more faults.
pub fn long() -> bool {
    std::env::var("UBLK_RBD_LONG").is_ok_and(|long| long == "1")
}

/// True when all `needs` are there. Otherwise says what is missing and returns false: the test
/// returns. In CI, where a skipped test would be a hole nobody sees, it panics instead.
#[must_use = "the test has to return when this is false"]
#[track_caller]
pub fn require(needs: &[Need]) -> bool {
    let missing: Vec<String> = needs.iter().filter_map(|need| need.missing()).collect();
    if missing.is_empty() {
        return true;
    }
    let missing = missing.join("; ");
    if in_ci() {
        panic!("not to be skipped in CI: {missing}");
    }
    eprintln!("skipped: {missing}");
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_tool_names_its_package() {
        let need = Need::Tool {
            program: "no-such-program-here",
            package: "some-package",
        };
        let missing = need.missing().unwrap();
        assert!(
            missing.contains("no-such-program-here is missing"),
            "{missing}"
        );
        assert!(
            missing.contains("apt-get install some-package"),
            "{missing}"
        );
        assert_eq!(
            Need::Tool {
                program: "sh",
                package: "dash"
            }
            .missing(),
            None
        );
    }
}
