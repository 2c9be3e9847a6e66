//! fsx of librbd as a load: image after image, with clones, each checked to the last byte.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};

use crate::ceph::Client;
use crate::product::text;
use crate::tools::last_lines;

/// Operations on an image before it is checked as a whole and removed.
const OPERATIONS: &str = "300";
/// For one run, while much happens to the server.
const LIMIT: Duration = Duration::from_secs(300);

/// Runs of fsx, one after the other, until it is dropped or one fails.
pub struct Fsx {
    enough: Arc<AtomicBool>,
    runs: Option<JoinHandle<Result<u32>>>,
}

impl Fsx {
    /// In a pool of `client`'s cluster; its files go to `dir`, below /tmp.
    pub fn start(client: Client, pool: &'static str, dir: PathBuf) -> Fsx {
        let enough = Arc::new(AtomicBool::new(false));
        let told = enough.clone();
        let runs = thread::spawn(move || {
            fs::create_dir_all(&dir)?;
            let mut seed = 0;
            while !told.load(Ordering::Relaxed) {
                seed += 1;
                run(&client, pool, &dir, seed).with_context(|| format!("fsx with seed {seed}"))?;
            }
            Ok(seed)
        });
        Fsx {
            enough,
            runs: Some(runs),
        }
    }

    pub fn is_running(&self) -> bool {
        self.runs.as_ref().is_some_and(|runs| !runs.is_finished())
    }

    /// Lets the last run come to its end. How many there were; an error when one has failed.
    pub fn end(mut self) -> Result<u32> {
        self.stop().context("ended already")?
    }

    fn stop(&mut self) -> Option<Result<u32>> {
        self.enough.store(true, Ordering::Relaxed);
        let ended = self.runs.take()?.join();
        Some(ended.unwrap_or_else(|_| Err(anyhow!("fsx's thread has panicked"))))
    }
}

impl Drop for Fsx {
    fn drop(&mut self) {
        // Whoever drops it has another error to tell.
        let _ = self.stop();
    }
}

fn run(client: &Client, pool: &str, dir: &Path, seed: u32) -> Result<()> {
    let seed = seed.to_string();
    let image = format!("fsx-{seed}");
    let argv = ["ceph_test_librbd_fsx", "-q", "-l", "4194304", "-N"];
    let files = ["-S", &seed, "-P", text(dir), pool, &image];
    let argv = argv.iter().chain(&[OPERATIONS]).chain(&files);
    let out = client.output(argv, LIMIT)?;
    let said = out.stdout_str() + &out.stderr_str();
    let last = last_lines(&said, 12);
    ensure!(out.status.success(), "{}: {last}", out.status);
    Ok(())
}
