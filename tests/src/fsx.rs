//! Random operations on a file or a block device, compared with a copy in memory: what fsx of
//! xfstests does, from a seed.

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use nix::fcntl::{FallocateFlags, PosixFadviseAdvice, fallocate, posix_fadvise};

use crate::tools::Pattern;

/// What is worked on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A file, which may grow up to the limit, shrink and have holes.
    File,
    /// A block device, of which the first bytes up to the limit are used.
    Device,
}

#[derive(Debug)]
pub struct Fsx {
    path: PathBuf,
    file: File,
    kind: Kind,
    model: Vec<u8>,
    limit: usize,
    rng: u64,
    /// Operations so far.
    done: u64,
}

/// The longest read or write.
const LONGEST: usize = 96 << 10;

impl Fsx {
    /// The contents of a device are taken as they are.
    pub fn new(path: &Path, kind: Kind, limit: usize, seed: u64) -> Result<Fsx> {
        let file = open(path, kind)?;
        let mut model = Vec::new();
        if kind == Kind::Device {
            model.resize(limit, 0);
            file.read_exact_at(&mut model, 0)?;
        }
        Ok(Fsx {
            path: path.to_owned(),
            file,
            kind,
            model,
            limit,
            rng: seed,
            done: 0,
        })
    }

    /// Carries out `count` operations.
    pub fn run(&mut self, count: u64) -> Result<()> {
        for _ in 0..count {
            let op = self.below(100);
            let step = self.step(op);
            step.with_context(|| {
                format!("operation {} ({op}) on {}", self.done, self.path.display())
            })?;
            self.done += 1;
        }
        self.reopen()?;
        self.compare(0, self.model.len())
    }

    /// splitmix64.
    fn below(&mut self, n: usize) -> usize {
        self.rng = self.rng.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.rng;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n.max(1) as u64) as usize
    }

    /// A range within `end` bytes, not empty unless there is no room.
    fn range(&mut self, end: usize) -> (usize, usize) {
        let at = self.below(end);
        let len = 1 + self.below(LONGEST.min((end - at).max(1)));
        (at, len.min(end - at))
    }

    fn step(&mut self, op: usize) -> Result<()> {
        match op {
            0..38 => {
                let (at, len) = self.range(self.limit);
                let mut data = vec![0; len];
                Pattern::new(self.done).fill(at as u64, &mut data);
                self.file.write_all_at(&data, at as u64)?;
                if self.model.len() < at + len {
                    self.model.resize(at + len, 0);
                }
                self.model[at..at + len].copy_from_slice(&data);
            }
            38..70 => {
                let (at, len) = self.range(self.model.len());
                self.compare(at, len)?;
            }
            70..80 => {
                let (at, len) = self.range(self.model.len());
                self.clear(FallocateFlags::FALLOC_FL_PUNCH_HOLE, at, len)?;
            }
            80..88 => {
                let (at, len) = self.range(self.model.len());
                self.clear(FallocateFlags::FALLOC_FL_ZERO_RANGE, at, len)?;
            }
            88..95 if self.kind == Kind::File => {
                let len = self.below(self.limit);
                self.file.set_len(len as u64)?;
                self.model.resize(len, 0);
            }
            88..98 => self.file.sync_data()?,
            _ => self.reopen()?,
        }
        Ok(())
    }

    /// Zeroes a range by way of the file system or the device.
    fn clear(&mut self, how: FallocateFlags, at: usize, len: usize) -> Result<()> {
        // Devices take whole sectors.
        let unit = if self.kind == Kind::Device { 512 } else { 1 };
        let (from, to) = (at.next_multiple_of(unit), (at + len) / unit * unit);
        if from >= to {
            return Ok(());
        }
        let flags = how | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        match fallocate(&self.file, flags, from as i64, (to - from) as i64) {
            Ok(()) => self.model[from..to].fill(0),
            // Not every file system can do all of it.
            Err(nix::Error::EOPNOTSUPP) => {}
            Err(e) => bail!("fallocate({flags:?}, {from}, {}): {e}", to - from),
        }
        Ok(())
    }

    fn compare(&self, at: usize, len: usize) -> Result<()> {
        let mut data = vec![0; len];
        self.file.read_exact_at(&mut data, at as u64)?;
        let expected = &self.model[at..at + len];
        let differs = data.iter().zip(expected).position(|(a, b)| a != b);
        if let Some(n) = differs {
            let (is, should) = (data[n], expected[n]);
            bail!("byte {} is {is:#04x}, not {should:#04x}", at + n);
        }
        let size = self.file.metadata()?.len();
        ensure!(
            self.kind == Kind::Device || size == self.model.len() as u64,
            "the file has {size} bytes, not {}",
            self.model.len()
        );
        Ok(())
    }

    /// Opens it anew with nothing cached, so that reads come from the disk.
    fn reopen(&mut self) -> Result<()> {
        self.file.sync_all()?;
        let advice = PosixFadviseAdvice::POSIX_FADV_DONTNEED;
        posix_fadvise(self.file.as_fd(), 0, 0, advice)?;
        self.file = open(&self.path, self.kind)?;
        Ok(())
    }
}

fn open(path: &Path, kind: Kind) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(kind == Kind::File);
    let file = options.truncate(false).open(path);
    file.with_context(|| format!("opening {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_that_works_passes_and_a_wrong_byte_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut fsx = Fsx::new(&path, Kind::File, 300_000, 1).unwrap();
        fsx.run(2000).unwrap();
        assert!(fsx.model.len() > 1);
        let last = fsx.model.len() as u64 - 1;
        let mut byte = [0];
        fsx.file.read_exact_at(&mut byte, last).unwrap();
        fsx.file.write_all_at(&[!byte[0]], last).unwrap();
        let e = format!("{:#}", fsx.compare(0, fsx.model.len()).unwrap_err());
        assert!(e.starts_with(&format!("byte {last} is")), "{e}");
    }
}
