//! A disk that forgets: what was not synced when the power went is there, gone or torn, by seed.
//!
//! Each sector of a file has, after a power cut, what it had at the last sync or after any of the
//! writes since, whatever became of its neighbours. Length, and each name in a directory, likewise.
//! The disk can also be small, or say by chance that it is.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use super::vfs::{File, Vfs};

const SECTOR: usize = 512;

/// The longest file.
const LARGEST: u64 = 32 << 20;

#[derive(Debug, Clone, Default)]
pub(super) struct Disk {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Clone, Default)]
struct State {
    rng: u64,
    files: Vec<Inode>,
    /// Names to files as they are now, and as a power cut leaves them at least.
    names: BTreeMap<String, usize>,
    durable: BTreeMap<String, usize>,
    dirs: Vec<String>,
    /// Power goes after this many more changes.
    fuse: Option<u64>,
    dark: bool,
    /// An error for the next write, or the next sync, of a file whose name begins so.
    pub(super) broken: Option<(&'static str, String, io::ErrorKind)>,
    full: bool,
    /// Bytes that files can have, holes not counted.
    size: Option<u64>,
    /// One write or creation in so many finds no room, of files whose name begins so.
    hungry: Option<(&'static str, u64)>,
    /// Counts openings, so that a lock ends with its store.
    locked: bool,
}

#[derive(Debug, Clone, Default)]
struct Inode {
    name: String,
    now: Vec<u8>,
    durable: Vec<u8>,
    /// Sectors since the last sync, by number, each with all that it has been.
    writes: BTreeMap<usize, Vec<[u8; SECTOR]>>,
    lengths: Vec<usize>,
    /// Sectors that take up room.
    sectors: BTreeSet<usize>,
}

impl Inode {
    fn sector(&self, n: usize) -> [u8; SECTOR] {
        let mut out = [0; SECTOR];
        let from = (n * SECTOR).min(self.now.len());
        let to = (from + SECTOR).min(self.now.len());
        out[..to - from].copy_from_slice(&self.now[from..to]);
        out
    }

    fn touched(&mut self, from: usize, to: usize) {
        for n in from / SECTOR..to.div_ceil(SECTOR) {
            let sector = self.sector(n);
            self.writes.entry(n).or_default().push(sector);
        }
    }

    fn resize(&mut self, len: usize) {
        if len != self.now.len() {
            let old = self.now.len();
            self.now.resize(len, 0);
            self.lengths.push(len);
            let (from, to) = (len.min(old), len.max(old));
            if len < old {
                self.touched(from, to);
                self.sectors.split_off(&len.div_ceil(SECTOR));
            }
        }
    }

    /// Costs what was changed, not what the file has.
    fn sync(&mut self) {
        let len = self.now.len();
        self.durable.resize(len, 0);
        for n in std::mem::take(&mut self.writes).into_keys() {
            let from = (n * SECTOR).min(len);
            let to = (from + SECTOR).min(len);
            self.durable[from..to].copy_from_slice(&self.now[from..to]);
        }
        self.lengths.clear();
    }

    fn cut(&mut self, mut chance: impl FnMut(usize) -> usize) {
        let pick = chance(self.lengths.len() + 1);
        let len = match pick.checked_sub(1) {
            Some(i) => self.lengths[i],
            None => self.durable.len(),
        };
        self.durable.resize(len, 0);
        for (n, states) in std::mem::take(&mut self.writes) {
            let Some(i) = chance(states.len() + 1).checked_sub(1) else {
                continue;
            };
            let from = (n * SECTOR).min(len);
            let to = (from + SECTOR).min(len);
            self.durable[from..to].copy_from_slice(&states[i][..to - from]);
        }
        self.lengths.clear();
        self.sectors = (0..len.div_ceil(SECTOR)).collect();
        self.now.clone_from(&self.durable);
    }
}

impl State {
    /// splitmix64.
    fn random(&mut self) -> u64 {
        self.rng = self.rng.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.rng;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Every change passes here, and none once the power is gone.
    fn change(&mut self, kind: &'static str, name: &str) -> io::Result<()> {
        if let Some(left) = &mut self.fuse {
            match left.checked_sub(1) {
                Some(rest) => *left = rest,
                None => self.dark = true,
            }
        }
        self.alive()?;
        if self.full && kind == "write" {
            return Err(io::ErrorKind::StorageFull.into());
        }
        match &self.broken {
            Some((k, prefix, error)) if *k == kind && name.starts_with(prefix.as_str()) => {
                Err((*error).into())
            }
            _ => Ok(()),
        }
    }

    /// Whether these sectors of a file find room.
    fn fits(&self, inode: usize, sectors: std::ops::Range<usize>) -> bool {
        let Some(size) = self.size else {
            return true;
        };
        let there = self.files[inode].sectors.range(sectors.clone()).count();
        let new = (sectors.len() - there) * SECTOR;
        self.used() + new as u64 <= size
    }

    fn used(&self) -> u64 {
        let inodes: BTreeSet<usize> = self.names.values().copied().collect();
        let sectors: usize = inodes.iter().map(|i| self.files[*i].sectors.len()).sum();
        (sectors * SECTOR) as u64
    }

    fn is_hungry(&mut self, name: &str) -> bool {
        match self.hungry {
            Some((prefix, n)) if name.starts_with(prefix) => self.random().is_multiple_of(n),
            _ => false,
        }
    }

    fn alive(&self) -> io::Result<()> {
        if self.dark {
            return Err(io::Error::other("the power is gone"));
        }
        Ok(())
    }
}

impl Disk {
    pub(super) fn new(seed: u64) -> Disk {
        let disk = Disk::default();
        disk.with(|s| s.rng = seed);
        disk
    }

    /// Another disk with the same content.
    #[cfg(feature = "testing")]
    pub(super) fn copy(&self) -> Disk {
        let state = self.with(|s| s.clone());
        Disk {
            state: Arc::new(Mutex::new(state)),
        }
    }

    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self
            .state
            .lock()
            .expect("no test holds the disk in a panic"))
    }

    #[cfg(test)]
    /// The power goes after that many more changes.
    pub(super) fn fuse(&self, changes: u64) {
        self.with(|s| s.fuse = Some(changes));
    }

    #[cfg(test)]
    /// Lets writes (`"write"`) or syncs (`"sync"`) of files fail whose path begins with `prefix`.
    pub(super) fn break_it(&self, kind: &'static str, prefix: &str, error: io::ErrorKind) {
        self.with(|s| s.broken = Some((kind, prefix.to_owned(), error)));
    }

    #[cfg(test)]
    pub(super) fn set_full(&self, full: bool) {
        self.with(|s| s.full = full);
    }

    #[cfg(test)]
    /// So many bytes more find room.
    pub(super) fn leave_room(&self, bytes: u64) {
        self.with(|s| s.size = Some(s.used() + bytes));
    }

    #[cfg(test)]
    /// One write or creation in so many finds no room.
    pub(super) fn starve(&self, prefix: &'static str, one_in: u64) {
        self.with(|s| s.hungry = Some((prefix, one_in)));
    }

    #[cfg(test)]
    /// Room for everything.
    pub(super) fn feed(&self) {
        self.with(|s| (s.size, s.hungry) = (None, None));
    }

    /// Ends what has the disk open, and brings the disk back as a power cut leaves it; a `crash`
    /// only of the process loses nothing.
    pub(super) fn restart(&self, power_cut: bool) {
        self.with(|s| {
            s.fuse = None;
            s.dark = false;
            s.broken = None;
            s.locked = false;
            (s.size, s.hungry) = (None, None);
            if !power_cut {
                return;
            }
            // All that was in flight is lost, or none of it, or each for itself.
            let mood = s.random() % 4;
            let State {
                rng,
                files,
                names,
                durable,
                ..
            } = s;
            let mut dice = State {
                rng: *rng,
                ..State::default()
            };
            let mut chance = |n: usize| match mood {
                0 => 0,
                1 => n - 1,
                _ => dice.random() as usize % n,
            };
            let all: std::collections::BTreeSet<String> =
                names.keys().chain(durable.keys()).cloned().collect();
            for name in all {
                let (old, new) = (durable.get(&name).copied(), names.get(&name).copied());
                if old != new && chance(2) == 1 {
                    match new {
                        Some(file) => durable.insert(name, file),
                        None => durable.remove(&name),
                    };
                }
            }
            names.clone_from(durable);
            for inode in files.iter_mut() {
                inode.cut(&mut chance);
            }
            *rng = dice.rng ^ 1;
        });
    }

    fn inode(&self, s: &State, path: &str) -> io::Result<Arc<dyn File>> {
        s.alive()?;
        let inode = *s.names.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(Handle {
            disk: self.clone(),
            inode,
        }))
    }
}

impl Vfs for Disk {
    fn create_dir(&self, path: &str) -> io::Result<()> {
        self.with(|s| {
            s.change("dir", path)?;
            if !s.dirs.iter().any(|d| d == path) {
                s.dirs.push(path.to_owned());
            }
            Ok(())
        })
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.with(|s| {
            s.alive()?;
            let prefix = if path.is_empty() {
                String::new()
            } else {
                format!("{path}/")
            };
            Ok(s.names
                .keys()
                .chain(&s.dirs)
                .filter_map(|name| name.strip_prefix(&prefix))
                .filter(|name| !name.contains('/'))
                .map(str::to_owned)
                .collect())
        })
    }

    fn open(&self, path: &str) -> io::Result<Arc<dyn File>> {
        self.with(|s| self.inode(s, path))
    }

    fn create(&self, path: &str) -> io::Result<Arc<dyn File>> {
        self.with(|s| {
            s.change("create", path)?;
            if s.is_hungry(path) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            if !s.names.contains_key(path) {
                s.names.insert(path.to_owned(), s.files.len());
                s.files.push(Inode {
                    name: path.to_owned(),
                    ..Inode::default()
                });
            }
            self.inode(s, path)
        })
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.with(|s| {
            s.change("remove", path)?;
            s.names
                .remove(path)
                .map(drop)
                .ok_or(io::ErrorKind::NotFound.into())
        })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.with(|s| {
            s.change("rename", from)?;
            let inode = s.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
            s.names.insert(to.to_owned(), inode);
            Ok(())
        })
    }

    fn sync_dir(&self, path: &str) -> io::Result<()> {
        self.with(|s| {
            s.change("sync", path)?;
            let within = |name: &String| name.rsplit_once('/').map_or("", |(dir, _)| dir) == path;
            s.durable.retain(|name, _| !within(name));
            let now = s.names.iter().filter(|(name, _)| within(name));
            let now: Vec<_> = now.map(|(n, i)| (n.clone(), *i)).collect();
            s.durable.extend(now);
            Ok(())
        })
    }

    fn sync_all(&self) -> io::Result<()> {
        self.with(|s| {
            s.change("sync", "")?;
            s.files.iter_mut().for_each(Inode::sync);
            s.durable.clone_from(&s.names);
            Ok(())
        })
    }

    fn free(&self) -> io::Result<u64> {
        self.with(|s| {
            s.alive()?;
            Ok(match s.size {
                _ if s.full => 0,
                Some(size) => size.saturating_sub(s.used()),
                None => 1 << 40,
            })
        })
    }
}

#[derive(Debug)]
struct Handle {
    disk: Disk,
    inode: usize,
}

impl Handle {
    fn with<T>(&self, kind: &'static str, f: impl FnOnce(&mut Inode) -> T) -> io::Result<T> {
        self.disk.with(|s| {
            let name = s.files[self.inode].name.clone();
            s.change(kind, &name)?;
            Ok(f(&mut s.files[self.inode]))
        })
    }
}

/// A length that a file may have. All its bytes are in memory, and a record of a damaged journal may
/// name any offset.
fn within_limits(len: u64) -> io::Result<usize> {
    if len > LARGEST {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(len as usize)
}

impl File for Handle {
    fn len(&self) -> io::Result<u64> {
        self.disk.with(|s| {
            s.alive()?;
            Ok(s.files[self.inode].now.len() as u64)
        })
    }

    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<usize> {
        self.disk.with(|s| {
            s.alive()?;
            let now = &s.files[self.inode].now;
            let from = (offset as usize).min(now.len());
            let n = out.len().min(now.len() - from);
            out[..n].copy_from_slice(&now[from..from + n]);
            Ok(n)
        })
    }

    fn write_at(&self, mut data: &[u8], offset: u64) -> io::Result<()> {
        within_limits(offset.saturating_add(data.len() as u64))?;
        let from = offset as usize;
        let sectors = from / SECTOR..(from + data.len()).div_ceil(SECTOR);
        let fits = self.disk.with(|s| {
            let name = s.files[self.inode].name.clone();
            if s.is_hungry(&name) {
                data = &data[..s.random() as usize % (data.len() + 1)];
                return false;
            }
            s.fits(self.inode, sectors)
        });
        if !fits && self.disk.with(|s| s.size.is_some()) {
            data = &[];
        }
        self.with("write", |inode| {
            let to = from + data.len();
            if data.is_empty() {
                return;
            }
            if inode.now.len() < to {
                inode.resize(to);
            }
            inode.now[from..to].copy_from_slice(data);
            inode.touched(from, to);
            inode.sectors.extend(from / SECTOR..to.div_ceil(SECTOR));
        })?;
        match fits {
            true => Ok(()),
            // After some of it.
            false => Err(io::ErrorKind::StorageFull.into()),
        }
    }

    fn write_all_at(&self, parts: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        let all: Vec<u8> = parts.iter().flat_map(|p| p.iter().copied()).collect();
        self.write_at(&all, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let len = within_limits(len)?;
        self.with("write", |inode| inode.resize(len))
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        let sectors = 0..within_limits(len)?.div_ceil(SECTOR);
        if !self.disk.with(|s| s.fits(self.inode, sectors.clone())) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.set_len(len)?;
        self.with("write", |inode| inode.sectors.extend(sectors))
    }

    fn punch(&self, offset: u64, length: u64) -> io::Result<()> {
        self.with("write", |inode| {
            let to = ((offset + length) as usize).min(inode.now.len());
            let from = (offset as usize).min(to);
            inode.now[from..to].fill(0);
            inode.touched(from, to);
            for whole in from.div_ceil(SECTOR)..to / SECTOR {
                inode.sectors.remove(&whole);
            }
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.with("sync", Inode::sync)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.disk
            .with(|s| Ok(!std::mem::replace(&mut s.locked, true)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_synced_stays_and_the_rest_is_torn() {
        let (mut lost, mut kept, mut torn, mut unnamed) = (0, 0, 0, 0);
        for seed in 0..200 {
            let disk = Disk::new(seed);
            let file = disk.create("a").unwrap();
            file.write_at(&[1; 2048], 0).unwrap();
            file.sync().unwrap();
            disk.sync_dir("").unwrap();
            file.write_at(&[2; 2048], 0).unwrap();
            disk.create("b").unwrap();
            disk.restart(true);
            let mut now = [0; 2048];
            assert_eq!(disk.open("a").unwrap().read_at(&mut now, 0).unwrap(), 2048);
            for sector in now.chunks(SECTOR) {
                assert!(
                    sector
                        .iter()
                        .all(|b| *b == sector[0] && (1..=2).contains(b))
                );
            }
            match now.iter().filter(|b| **b == 2).count() {
                0 => lost += 1,
                2048 => kept += 1,
                _ => torn += 1,
            }
            unnamed += usize::from(disk.open("b").is_err());
        }
        assert!(lost > 20 && kept > 20 && torn > 20, "{lost} {kept} {torn}");
        assert!((20..180).contains(&unnamed), "{unnamed}");
    }

    #[test]
    fn a_length_by_the_word_of_a_damaged_journal_takes_no_memory() {
        let disk = Disk::new(1);
        let file = disk.create("a").unwrap();
        for result in [
            file.set_len(7 << 30),
            file.allocate(u64::MAX),
            file.write_at(b"x", LARGEST),
            file.write_at(b"x", u64::MAX),
        ] {
            assert_eq!(result.unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        }
        file.write_at(b"x", LARGEST - 1).unwrap();
        assert_eq!(file.len().unwrap(), LARGEST);
    }
}
