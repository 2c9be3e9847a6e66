//! Where the monitor keeps what must outlive it: maps, keys, settings.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::codec::{Put, Reader};

/// A change of one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Put(String, Vec<u8>),
    Remove(String),
}

/// Why the monitor cannot save or load.
#[derive(Debug, thiserror::Error)]
pub enum MonStoreError {
    #[error("monitor store {path}: {error}")]
    Io {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("monitor store: {what} is damaged: {why}")]
    Damaged { what: String, why: String },
    #[error("monitor store belongs to cluster {have}, not {want}")]
    OtherCluster { have: String, want: String },
    /// An earlier write failed; what is on disk is not known any more.
    #[error("monitor store is broken by an earlier write error")]
    Broken,
}

/// Entries by name. A commit is durable, and applied as a whole, when it returns: the monitor
/// tells nobody of a change before.
pub trait MonStore: Send {
    fn get(&self, key: &str) -> Option<&[u8]>;

    /// Keys that start with `prefix`, ascending.
    fn keys(&self, prefix: &str) -> Vec<String>;

    fn commit(&mut self, changes: &[Change]) -> Result<(), MonStoreError>;
}

/// Keeps nothing beyond its own life.
#[derive(Debug, Clone, Default)]
pub struct MemoryMonStore {
    entries: BTreeMap<String, Vec<u8>>,
}

impl MemoryMonStore {
    pub fn new() -> MemoryMonStore {
        MemoryMonStore::default()
    }

    fn apply(&mut self, changes: &[Change]) {
        for change in changes {
            match change {
                Change::Put(key, value) => {
                    self.entries.insert(key.clone(), value.clone());
                }
                Change::Remove(key) => {
                    self.entries.remove(key);
                }
            }
        }
    }

    fn size(&self) -> usize {
        self.entries.iter().map(|(k, v)| k.len() + v.len()).sum()
    }
}

impl MonStore for MemoryMonStore {
    fn get(&self, key: &str) -> Option<&[u8]> {
        self.entries.get(key).map(Vec::as_slice)
    }

    fn keys(&self, prefix: &str) -> Vec<String> {
        self.entries
            .range(prefix.to_owned()..)
            .take_while(|(k, _)| k.starts_with(prefix))
            .map(|(k, _)| k.clone())
            .collect()
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), MonStoreError> {
        self.apply(changes);
        Ok(())
    }
}

/// A log in a directory, read whole at the start. One record is one commit:
///
/// ```text
/// le32 length of the body
/// le32 crc32c of the body
/// body: le32 count, then for each change
///     u8 1 (put) or 0 (remove), string key, blob value (put only)
/// ```
///
/// A record that is cut short or has the wrong checksum ends the log, if it is the last: the
/// process died while writing it, and nobody was told. The log is written anew when most of it is
/// outdated: into another file, which then takes its name.
#[derive(Debug)]
pub struct DirMonStore {
    path: PathBuf,
    log: File,
    len: u64,
    memory: MemoryMonStore,
    broken: bool,
}

const LOG: &str = "mon.log";
const HEAD: usize = 8;
/// Below this size the log is not worth rewriting.
const COMPACT_ABOVE: u64 = 8 << 20;

impl DirMonStore {
    /// Opens the store in `dir`, which is made if it is not there.
    pub fn open(dir: &Path) -> Result<DirMonStore, MonStoreError> {
        let path = dir.join(LOG);
        DirMonStore::open_log(dir, path.clone()).map_err(|error| MonStoreError::Io { path, error })
    }

    fn open_log(dir: &Path, path: PathBuf) -> io::Result<DirMonStore> {
        use std::os::unix::fs::OpenOptionsExt;
        std::fs::create_dir_all(dir)?;
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&path)?;
        let bytes = std::fs::read(&path)?;
        let mut memory = MemoryMonStore::new();
        let mut rest = bytes.as_slice();
        while let Some((changes, after)) = read_record(rest) {
            memory.apply(&changes);
            rest = after;
        }
        let len = (bytes.len() - rest.len()) as u64;
        if !rest.is_empty() {
            log.set_len(len)?;
            log.sync_all()?;
        }
        File::open(dir)?.sync_all()?;
        Ok(DirMonStore {
            path,
            log,
            len,
            memory,
            broken: false,
        })
    }

    fn append(&mut self, changes: &[Change]) -> io::Result<()> {
        let record = record(changes);
        self.log.write_all(&record)?;
        self.log.sync_data()?;
        self.len += record.len() as u64;
        Ok(())
    }

    fn compact(&mut self) -> io::Result<()> {
        use std::os::unix::fs::OpenOptionsExt;
        let all: Vec<Change> = self
            .memory
            .entries
            .iter()
            .map(|(k, v)| Change::Put(k.clone(), v.clone()))
            .collect();
        let record = record(&all);
        let next = self.path.with_extension("new");
        let mut file = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(true)
            .mode(0o600)
            .open(&next)?;
        file.write_all(&record)?;
        file.sync_all()?;
        drop(file);
        let log = OpenOptions::new().append(true).open(&next)?;
        std::fs::rename(&next, &self.path)?;
        if let Some(dir) = self.path.parent() {
            File::open(dir)?.sync_all()?;
        }
        self.log = log;
        self.len = record.len() as u64;
        Ok(())
    }
}

fn record(changes: &[Change]) -> Vec<u8> {
    let mut out = vec![0; HEAD];
    out.put_list(changes.iter(), |out, change| match change {
        Change::Put(key, value) => {
            out.put_u8(1);
            out.put_string(key);
            out.put_blob(value);
        }
        Change::Remove(key) => {
            out.put_u8(0);
            out.put_string(key);
        }
    });
    let len = (out.len() - HEAD) as u32;
    let crc = crc32c::crc32c(&out[HEAD..]);
    out[..4].copy_from_slice(&len.to_le_bytes());
    out[4..8].copy_from_slice(&crc.to_le_bytes());
    out
}

/// The first record of `bytes` and what follows it.
fn read_record(bytes: &[u8]) -> Option<(Vec<Change>, &[u8])> {
    let mut r = Reader::new(bytes);
    let len = r.u32().ok()? as usize;
    let crc = r.u32().ok()?;
    let body = r.bytes(len).ok()?;
    if crc32c::crc32c(body) != crc {
        return None;
    }
    let changes = Reader::new(body)
        .list(5, |r| {
            let put = r.bool()?;
            let key = r.string()?.to_owned();
            Ok(match put {
                true => Change::Put(key, r.blob()?.to_vec()),
                false => Change::Remove(key),
            })
        })
        .ok()?;
    Some((changes, r.rest()))
}

impl MonStore for DirMonStore {
    fn get(&self, key: &str) -> Option<&[u8]> {
        self.memory.get(key)
    }

    fn keys(&self, prefix: &str) -> Vec<String> {
        self.memory.keys(prefix)
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), MonStoreError> {
        if self.broken {
            return Err(MonStoreError::Broken);
        }
        let written = self.append(changes);
        let compacted = written.and_then(|()| {
            self.memory.apply(changes);
            let outdated = self.len > COMPACT_ABOVE && self.len / 4 > self.memory.size() as u64;
            if outdated { self.compact() } else { Ok(()) }
        });
        compacted.map_err(|error| {
            // After a failed fsync nobody knows what is on disk; the next start will see.
            self.broken = true;
            MonStoreError::Io {
                path: self.path.clone(),
                error,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn put(key: &str, value: &[u8]) -> Change {
        Change::Put(key.to_owned(), value.to_vec())
    }

    #[test]
    fn what_is_committed_is_there_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = DirMonStore::open(dir.path()).unwrap();
        store
            .commit(&[put("a/1", b"x"), put("a/2", b"y"), put("b", b"z")])
            .unwrap();
        store
            .commit(&[Change::Remove("a/1".to_owned()), put("b", b"w")])
            .unwrap();
        drop(store);
        let store = DirMonStore::open(dir.path()).unwrap();
        assert_eq!(store.keys("a/"), ["a/2"]);
        assert_eq!((store.get("a/1"), store.get("b")), (None, Some(&b"w"[..])));
    }

    #[test]
    fn a_record_cut_short_is_forgotten_whole() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = DirMonStore::open(dir.path()).unwrap();
        store.commit(&[put("a", b"1")]).unwrap();
        let first = store.len;
        store.commit(&[put("a", b"2"), put("b", b"2")]).unwrap();
        drop(store);
        let path = dir.path().join(LOG);
        let bytes = std::fs::read(&path).unwrap();
        for cut in first as usize..bytes.len() {
            std::fs::write(&path, &bytes[..cut]).unwrap();
            let mut store = DirMonStore::open(dir.path()).unwrap();
            assert_eq!((store.get("a"), store.get("b")), (Some(&b"1"[..]), None));
            store.commit(&[put("c", b"3")]).unwrap();
            let store = DirMonStore::open(dir.path()).unwrap();
            assert_eq!(store.get("c"), Some(&b"3"[..]));
        }
    }

    #[test]
    fn the_log_does_not_grow_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = DirMonStore::open(dir.path()).unwrap();
        let value = vec![7; 1 << 20];
        for _ in 0..20 {
            store.commit(&[put("a", &value), put("b", b"x")]).unwrap();
        }
        assert!(store.len <= COMPACT_ABOVE + (2 << 20), "{}", store.len);
        drop(store);
        let store = DirMonStore::open(dir.path()).unwrap();
        assert_eq!(store.get("a"), Some(value.as_slice()));
    }

    proptest! {
        #[test]
        fn hostile_records_never_panic(bytes: Vec<u8>, at: usize, xor: u8) {
            let _ = read_record(&bytes);
            let mut good = record(&[put("key", &bytes), Change::Remove("k".to_owned())]);
            let at = at % good.len();
            good[at] ^= xor;
            let _ = read_record(&good);
        }
    }
}
