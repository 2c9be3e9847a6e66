//! What can be chosen about a cluster.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::conf::Settings;
use super::install::Installed;
use super::{Auth, Cipher, Cluster, Mgr, Mode, Store, Version};

/// A cluster to be. Made by [`Cluster::builder`]; unset, each choice is what its method says.
#[derive(Debug, Clone)]
pub struct Builder {
    version: Version,
    osds: usize,
    mons: usize,
    mgr: Mgr,
    store: Store,
    store_bytes: Option<u64>,
    auth: Auth,
    cipher: Cipher,
    mode: Mode,
    msgr1: bool,
    pool_size: Option<usize>,
    min_size: Option<usize>,
    pg_num: Option<u32>,
    ec: Option<(usize, usize)>,
    extra: Vec<String>,
    timeout: Duration,
    pub(super) dir: Option<PathBuf>,
    pub(super) detached: bool,
    pub(super) concurrent: bool,
}

/// As many OSDs as the block of ports is good for: each takes up to 8, the manager 2.
const MAX_OSDS: usize = 10;
const MAX_MONS: usize = 5;

impl Default for Builder {
    fn default() -> Builder {
        Builder {
            version: Version::V16,
            osds: 1,
            mons: 1,
            mgr: Mgr::default(),
            store: Store::default(),
            store_bytes: None,
            auth: Auth::default(),
            cipher: Cipher::default(),
            mode: Mode::default(),
            msgr1: true,
            pool_size: None,
            min_size: None,
            pg_num: None,
            ec: None,
            extra: Vec::new(),
            timeout: Duration::from_secs(120),
            dir: None,
            detached: false,
            concurrent: false,
        }
    }
}

impl Builder {
    /// 16.
    pub fn version(mut self, version: Version) -> Builder {
        self.version = version;
        self
    }

    /// 1.
    pub fn osds(mut self, count: usize) -> Builder {
        self.osds = count;
        self
    }

    /// 1. With 3, one may be killed.
    pub fn mons(mut self, count: usize) -> Builder {
        self.mons = count;
        self
    }

    /// Lite.
    pub fn mgr(mut self, mgr: Mgr) -> Builder {
        self.mgr = mgr;
        self
    }

    /// Memstore.
    pub fn store(mut self, store: Store) -> Builder {
        self.store = store;
        self
    }

    /// Capacity of each OSD: 4 GiB in memory, 10 GiB (a sparse file) on disk.
    pub fn store_bytes(mut self, bytes: u64) -> Builder {
        self.store_bytes = Some(bytes);
        self
    }

    /// Cephx.
    pub fn auth(mut self, auth: Auth) -> Builder {
        self.auth = auth;
        self
    }

    /// The version's own.
    pub fn cipher(mut self, cipher: Cipher) -> Builder {
        self.cipher = cipher;
        self
    }

    /// The version's own.
    pub fn mode(mut self, mode: Mode) -> Builder {
        self.mode = mode;
        self
    }

    /// Whether daemons have msgr1 addresses besides those of msgr2: they do.
    pub fn msgr1(mut self, bind: bool) -> Builder {
        self.msgr1 = bind;
        self
    }

    /// Replicas in pool `rbd`: as many as there are OSDs, 3 at most.
    pub fn pool_size(mut self, size: usize) -> Builder {
        self.pool_size = Some(size);
        self
    }

    /// Replicas that pool `rbd` needs to serve I/O: one less than its size.
    pub fn min_size(mut self, size: usize) -> Builder {
        self.min_size = Some(size);
        self
    }

    /// Placement groups of pool `rbd`: 8 with one OSD, else 32.
    pub fn pg_num(mut self, count: u32) -> Builder {
        self.pg_num = Some(count);
        self
    }

    /// Also makes the erasure coded pool `rbd-ec`, for `rbd create --data-pool rbd-ec`. Ceph allows
    /// overwrites in such a pool on bluestore only.
    pub fn ec(mut self, k: usize, m: usize) -> Builder {
        self.ec = Some((k, m));
        self
    }

    /// A line for the `[global]` section of ceph.conf. May be called again.
    pub fn extra_conf(mut self, line: impl Into<String>) -> Builder {
        self.extra.push(line.into());
        self
    }

    /// How long the cluster may take to be ready: 120 s.
    pub fn timeout(mut self, timeout: Duration) -> Builder {
        self.timeout = timeout;
        self
    }

    /// Keeps the cluster in `dir`, which outlives it. Unset, it lives in a temporary directory that
    /// goes with it. At most 80 characters long, since it holds unix sockets.
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Builder {
        self.dir = Some(dir.into());
        self
    }

    /// Leaves the daemons running when this process ends. Needs [`Builder::dir`].
    pub fn detached(mut self) -> Builder {
        self.detached = true;
        self.concurrent = true;
        self
    }

    /// Starts at once, whatever other tests run.
    pub fn concurrent(mut self) -> Builder {
        self.concurrent = true;
        self
    }

    /// Makes the cluster and waits until it serves RBD images: all OSDs are up, all placement
    /// groups active+clean, and pool `rbd` is initialised.
    pub fn start(self) -> Result<Cluster> {
        Cluster::create(self)
    }

    pub(super) fn time_limit(&self) -> Duration {
        self.timeout
    }

    /// Checks the choices and fills in the rest.
    pub(super) fn settle(&self) -> Result<Settings> {
        if !(1..=MAX_OSDS).contains(&self.osds) || !(1..=MAX_MONS).contains(&self.mons) {
            bail!("a cluster here has 1 to {MAX_OSDS} OSDs and 1 to {MAX_MONS} monitors");
        }
        if self.auth == Auth::None && self.mode == Mode::Secure {
            bail!("auth none has no session key, so no secure mode: nothing would ever connect");
        }
        if self.cipher == Cipher::Aes256k && self.version < Version::V20 {
            bail!("Ceph {} does not know the cipher aes256k", self.version);
        }
        if let Some((k, m)) = self.ec {
            if self.store != Store::Bluestore {
                bail!("Ceph allows overwrites in erasure coded pools on bluestore only");
            }
            if k < 2 || m < 1 || k + m > self.osds {
                bail!(
                    "an erasure code {k}+{m} needs k >= 2, m >= 1 and {} OSDs",
                    k + m
                );
            }
        }
        if self.detached && self.dir.is_none() {
            bail!("a detached cluster needs a directory");
        }
        if let Some(line) = self.extra.iter().find(|line| !line.contains('=')) {
            bail!("not a line of ceph.conf: {line}");
        }
        let pool_size = self.pool_size.unwrap_or(self.osds.min(3));
        if !(1..=self.osds).contains(&pool_size) {
            bail!("{pool_size} replicas do not fit on {} OSDs", self.osds);
        }
        let store_bytes = self.store_bytes.unwrap_or(match self.store {
            Store::Memstore => 4 << 30,
            Store::Bluestore => 10 << 30,
        });
        let osds = (0..self.osds).map(|_| uuid()).collect::<Result<_>>()?;
        Ok(Settings {
            version: self.version,
            sandbox: Installed::find(self.version)?.sandbox,
            fsid: uuid()?,
            port: 0,
            msgr1: self.msgr1,
            mons: self.mons,
            mgr: self.mgr,
            osds,
            store: self.store,
            store_bytes,
            auth: self.auth,
            cipher: self.cipher,
            mode: self.mode,
            pool_size,
            min_size: self.min_size.unwrap_or(pool_size.saturating_sub(1).max(1)),
            pg_num: self.pg_num.unwrap_or(if self.osds == 1 { 8 } else { 32 }),
            ec: self.ec,
            extra: self.extra.clone(),
        })
    }
}

fn uuid() -> Result<String> {
    let path = "/proc/sys/kernel/random/uuid";
    let uuid = std::fs::read_to_string(path).with_context(|| format!("reading {path}"))?;
    Ok(uuid.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_choices_are_refused() {
        let refused = |builder: Builder, why: &str| {
            let error = builder.settle().unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        };
        let plain = Builder::default;
        refused(plain().osds(0), "1 to 10 OSDs");
        refused(plain().mons(9), "1 to 5 monitors");
        refused(
            plain().auth(Auth::None).mode(Mode::Secure),
            "no secure mode",
        );
        refused(plain().cipher(Cipher::Aes256k), "does not know");
        refused(plain().osds(3).ec(2, 1), "bluestore only");
        refused(plain().osds(2).store(Store::Bluestore).ec(2, 1), "3 OSDs");
        refused(plain().pool_size(2), "do not fit");
        refused(plain().detached(), "needs a directory");
        refused(plain().extra_conf("debug_ms 1"), "debug_ms 1");
    }
}
