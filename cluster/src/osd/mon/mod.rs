//! The cluster's only monitor.
//!
//! Sans-IO, but for the store it saves to: messages, commands and moments come in, answers leave by
//! an [`Outbox`], and what the OSDs' threads must know by [`Mon::poll_event`]. It keeps the map of
//! the cluster, changes it by [`Incremental`]s, saves each before anybody hears of it, and answers
//! the commands of `ceph`, `rados`, `rbd` and the libraries below them.
//!
//! There is one monitor, so there is no election and no Paxos: what it has saved is agreed on.
//! There is no manager either; what Ceph's managers answer, the monitor answers here, and
//! `get_command_descriptions` says so, which makes `ceph` send it here.
//!
//! Rules come from `src/mon/{Monitor,OSDMonitor,AuthMonitor,ConfigMonitor,KVMonitor}.cc`.

mod command;
mod first_map;
mod maps;
mod osds;
mod pool_op;
mod rates;
mod reshape;
mod session;
mod state;
mod store;
mod time;
mod usage;
mod wire;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tools;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

pub use session::Ask;
pub use store::{Change, DirMonStore, MemoryMonStore, MonStore, MonStoreError};
pub use usage::{OsdUsage, PoolUsage};
pub use wire::{MGetPoolStats, MStatfs, MStatfsReply};

use crate::auth::server::{KeyServer, KeyServerConfig, MonAuth, Policy, RotatingSecrets};
use crate::auth::{AuthName, KeyType};
use crate::codec::{EntityAddrVec, EntityType, Now};
use crate::osdmap::{Incremental, OsdMap, SnapIntervals};

use super::outbox::{Link, Outbox};
use maps::Maps;
use rates::Rates;
use session::Session;
use usage::Usage;

/// What the cluster is to be.
#[derive(Debug, Clone)]
pub struct MonConfig {
    /// Of a new cluster; one that is loaded must have the same.
    pub fsid: [u8; 16],
    /// Of the monitor, `a` by custom.
    pub name: String,
    /// Where clients reach the monitor.
    pub addrs: EntityAddrVec,
    pub host: String,
    pub osds: u32,
    /// `hdd`, `ssd` or `nvme`.
    pub device_class: String,
    /// CRUSH weight of each OSD, 16.16; in Ceph it is the size in TiB.
    pub osd_weight: u32,
    /// The OSDs share one store, whose size counts once.
    pub shared_store: bool,
    /// `osd_pool_default_pg_num`.
    pub pg_num: u32,
    pub policy: Policy,
    pub keys: KeyServerConfig,
    /// Of keys that are made here. Clients before Ceph 20 know only `aes`.
    pub key_type: KeyType,
    /// Text of `ceph version`.
    pub version: String,
}

/// What others in the process must know.
#[derive(Debug, Clone)]
pub enum MonEvent {
    /// A new epoch. It is saved; clients hear of it at the same time.
    Map {
        epoch: u32,
        map: Arc<OsdMap>,
        full: Arc<[u8]>,
        /// None of the first epoch after a start.
        incremental: Option<Arc<[u8]>>,
    },
    /// The secrets by which OSDs check tickets.
    Secrets(RotatingSecrets),
}

/// Fills a buffer with random bytes, for keys, challenges and confounders.
pub type EntropySource = Box<dyn FnMut(&mut [u8]) + Send>;

/// How often the monitor looks for what time has made due.
const TICK: Duration = Duration::from_secs(1);
/// Global ids saved as given out before they are.
const ID_BATCH: u64 = 256;
/// Most handshakes that are remembered.
const MAX_LINKS: usize = 4096;

/// See the module's documentation.
pub struct Mon {
    config: MonConfig,
    store: Box<dyn MonStore>,
    entropy: EntropySource,
    maps: Maps,
    keys: KeyServer,
    saved_ids: u64,
    /// Handshakes and renewals, by connection.
    auths: BTreeMap<Link, MonAuth>,
    sessions: BTreeMap<Link, Session>,
    events: VecDeque<MonEvent>,
    /// Sections (`global`, `client`, `client.admin`) and their options.
    options: BTreeMap<String, BTreeMap<String, String>>,
    /// `config-key`.
    values: BTreeMap<String, Vec<u8>>,
    /// Counts changes of the two above.
    settings_version: u64,
    /// Of each pool, what its placement groups have trimmed of what is to be.
    trimmed: BTreeMap<i64, BTreeMap<u32, SnapIntervals>>,
    /// Snapshots that are gone for good, so that removing them again does nothing.
    purged: BTreeMap<i64, SnapIntervals>,
    /// By pool, the epoch in which the number of its placement groups changed last.
    reshaped: BTreeMap<i64, u32>,
    usage: Usage,
    rates: Rates,
    started: Now,
    next_tick: u64,
}

impl Mon {
    /// Takes up what `store` has, or makes a cluster in it.
    pub fn new(
        config: MonConfig,
        store: Box<dyn MonStore>,
        now: Now,
        mut entropy: EntropySource,
    ) -> Result<Mon, MonStoreError> {
        let keys = state::load_keys(&config, &*store, now, &mut *entropy)?;
        let maps = Maps::load(&*store)?;
        let mut mon = Mon {
            saved_ids: 0,
            auths: BTreeMap::new(),
            sessions: BTreeMap::new(),
            events: VecDeque::new(),
            options: state::load_options(&*store)?,
            values: state::load_values(&*store),
            settings_version: 1,
            trimmed: BTreeMap::new(),
            reshaped: BTreeMap::new(),
            rates: Rates::default(),
            purged: state::load_purged(&*store)?,
            usage: Usage {
                shared: config.shared_store,
                ..Usage::default()
            },
            started: now,
            next_tick: now.after(TICK),
            config,
            store,
            entropy,
            maps,
            keys,
        };
        mon.save_keys()?;
        match mon.maps.is_empty() {
            true => mon.make_first_map(now)?,
            false => mon.take_up(now)?,
        }
        mon.announce_secrets();
        Ok(mon)
    }

    pub fn fsid(&self) -> [u8; 16] {
        self.config.fsid
    }

    pub fn map(&self) -> &Arc<OsdMap> {
        self.maps.current()
    }

    /// An epoch's encoded map, if it is still kept.
    pub fn full_map(&self, epoch: u32) -> Option<Arc<[u8]>> {
        self.maps.full(epoch)
    }

    /// Users' keys, for the files that clients read.
    pub fn keyring(&self) -> &crate::auth::Keyring {
        self.keys.users()
    }

    /// The keyring file of one user, as `ceph-authtool` writes it.
    pub fn keyring_text(&self, name: &AuthName) -> Option<zeroize::Zeroizing<String>> {
        let key = self.keys.users().get(name)?;
        let caps: Vec<(&str, &str)> = self.keys.users().caps(name).collect();
        let mut one = crate::auth::Keyring::default();
        one.insert(name.clone(), key.clone(), &caps);
        Some(one.to_text())
    }

    pub fn poll_event(&mut self) -> Option<MonEvent> {
        self.events.pop_front()
    }

    /// When to call [`Mon::tick`].
    pub fn next_deadline(&self) -> Option<u64> {
        Some(self.next_tick)
    }

    /// Lets blocklist entries expire, rotates secrets, ends the removal of snapshots, watches quotas,
    /// splits and merges placement groups, measures rates.
    pub fn tick(&mut self, now: Now, out: &mut Outbox) {
        if now.mono < self.next_tick {
            return;
        }
        self.next_tick = now.after(TICK);
        let Mon { keys, entropy, .. } = self;
        if keys.rotate(now, &mut **entropy) {
            // Unsaved secrets are of no use: tickets must outlive the process.
            if self.save_keys().is_ok() {
                self.announce_secrets();
            }
        }
        let mut inc = Incremental::default();
        let mut changed = self.expire_blocklist(now, &mut inc);
        changed |= self.watch_quotas(&mut inc);
        changed |= self.step_pgs(&mut inc);
        self.sample_rates(now);
        let purged = self.collect_purged(&mut inc);
        changed |= purged.is_some();
        if changed {
            // A failing store is reported by the command that meets it; the next tick tries again.
            let extra: Vec<Change> = purged.iter().flatten().map(state::purged_change).collect();
            if self.propose_with(inc, &extra, now).is_ok()
                && let Some(purged) = purged
            {
                self.forget_purged(purged);
            }
        }
        self.publish(out);
    }

    fn announce_secrets(&mut self) {
        let secrets = self.keys.service_secrets(EntityType::OSD);
        self.events.push_back(MonEvent::Secrets(secrets));
    }

    /// Users, secrets and the next global id.
    fn save_keys(&mut self) -> Result<(), MonStoreError> {
        self.store
            .commit(&state::keys_changes(&self.keys, ID_BATCH))?;
        self.saved_ids = self.keys.last_global_id() + ID_BATCH;
        Ok(())
    }
}
