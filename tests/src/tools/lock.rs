//! Locks between processes. The kernel drops them with the process that held them.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;

use anyhow::{Context, Result};

/// An exclusive `flock(2)` on a file, held until dropped.
#[derive(Debug)]
pub struct FileLock {
    file: File,
}

impl FileLock {
    /// Waits for the lock; says on stderr what it waits for if it has to.
    pub fn wait(path: &Path, what: &str) -> Result<FileLock> {
        let file = open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                eprintln!("waiting for {what} ({})", path.display());
                file.lock()
                    .with_context(|| format!("locking {}", path.display()))?;
            }
            Err(TryLockError::Error(e)) => {
                return Err(e).with_context(|| format!("locking {}", path.display()));
            }
        }
        Ok(FileLock { file })
    }

    /// The lock, or `None` when another holds it.
    pub fn try_take(path: &Path) -> Result<Option<FileLock>> {
        let file = open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(FileLock { file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(e)) => {
                Err(e).with_context(|| format!("locking {}", path.display()))
            }
        }
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // Closing alone would not do: a child that another thread has just forked shares the lock
        // until it executes its program.
        let _ = self.file.unlock();
    }
}

fn open(path: &Path) -> Result<File> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(path)
        .with_context(|| format!("opening {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = FileLock::wait(&path, "nothing").unwrap();
        assert!(FileLock::try_take(&path).unwrap().is_none());
        drop(held);
        assert!(FileLock::try_take(&path).unwrap().is_some());
    }
}
