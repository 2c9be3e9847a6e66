//! Waiting for a cluster to be in a state. Errors say what it was instead.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::conf::socket_path;
use super::daemon::DaemonId;
use super::{Cluster, Mgr, asok};
use crate::tools::{self, wait_for};

impl Cluster {
    /// What a daemon itself says to a command of its admin socket, such as `status`.
    pub fn ask_daemon(&self, id: DaemonId, command: &str) -> Result<Value> {
        asok::ask(&socket_path(self.dir(), &id.to_string()), command)
    }

    pub(super) fn wait_ready(&mut self, end: Instant) -> Result<()> {
        self.wait_quorum_until(self.mons(), end)?;
        self.wait_osds_active(end)?;
        if self.settings.mgr != Mgr::None {
            self.wait_clean_once(end)?;
        }
        let command = self.command(["rbd", "pool", "init", "rbd"])?;
        tools::run(command, left(end)).context("pool rbd serves no I/O")?;
        Ok(())
    }

    /// Waits until `count` monitors are in quorum.
    pub fn wait_quorum(&self, count: usize, timeout: Duration) -> Result<()> {
        self.wait_quorum_until(count, Instant::now() + timeout)
    }

    pub(super) fn wait_quorum_until(&self, count: usize, end: Instant) -> Result<()> {
        let mut seen = Vec::new();
        let quorum = wait_for(&format!("a quorum of {count}"), left(end), || {
            seen.clear();
            let mut members = 0;
            for mon in 0..self.mons() {
                let id = DaemonId::Mon(mon);
                match self.ask_daemon(id, "mon_status") {
                    Ok(status) => {
                        members +=
                            usize::from(status["quorum"].as_array().map(Vec::len) == Some(count));
                        seen.push(format!(
                            "{id} is {}, quorum {}",
                            status["state"], status["quorum"]
                        ));
                    }
                    Err(error) => seen.push(format!("{error:#}")),
                }
            }
            // One monitor may still believe in a quorum that has just fallen apart.
            Ok(members >= count)
        });
        quorum.with_context(|| seen.join("; "))
    }

    /// The OSDs that can answer.
    fn answering_osds(&self) -> Vec<usize> {
        let number = |id: &DaemonId| match id {
            DaemonId::Osd(osd) if !self.paused.contains(osd) => Some(*osd),
            _ => None,
        };
        self.daemons.keys().filter_map(number).collect()
    }

    /// Waits until every OSD that runs is in the map, knows it, and has the newest map any has.
    fn wait_osds_active(&mut self, end: Instant) -> Result<()> {
        let mut last = String::new();
        let active = wait_for("all OSDs up", left(end), || {
            let mut newest = Vec::new();
            for osd in self.answering_osds() {
                let id = DaemonId::Osd(osd);
                if !self.is_running(id) {
                    bail!("{id} has ended");
                }
                let state = match self.ask_daemon(id, "status") {
                    Ok(status) if status["state"] == "active" => {
                        newest.push(status["newest_map"].as_u64());
                        continue;
                    }
                    Ok(status) => status["state"].to_string(),
                    Err(error) => format!("{error:#}"),
                };
                last = format!("{id}: {state}");
                return Ok(false);
            }
            last = format!("epochs {newest:?}");
            Ok(newest.windows(2).all(|pair| pair[0] == pair[1]))
        });
        active.with_context(|| last.clone())
    }

    /// Waits until all placement groups are active+clean, by statistics that are newer than this
    /// call. OSDs that were started just before are waited for.
    pub fn wait_clean(&mut self, timeout: Duration) -> Result<()> {
        if self.settings.mgr == Mgr::None {
            bail!("without a manager the states of placement groups are unknown");
        }
        let end = Instant::now() + timeout;
        self.wait_osds_active(end)?;
        self.wait_clean_once(end)?;
        // An OSD has a map before each of its placement groups has acted on it. What a second
        // look finds clean was not merely about to change.
        self.wait_osds_active(end)?;
        self.wait_clean_once(end)
    }

    fn wait_clean_once(&self, end: Instant) -> Result<()> {
        let mut last = "no answer".to_owned();
        let clean = wait_for("all placement groups active+clean", left(end), || {
            let mut flushed = BTreeMap::new();
            for osd in self.answering_osds() {
                match self.ask_daemon(DaemonId::Osd(osd), "flush_pg_stats") {
                    Ok(answer) => {
                        // A bare number.
                        let sequence = answer.as_u64();
                        flushed.insert(osd as u64, sequence.context("flush_pg_stats: no number")?);
                    }
                    Err(error) => {
                        last = format!("{error:#}");
                        return Ok(false);
                    }
                }
            }
            match self.ceph_json(["pg", "dump"]) {
                Ok(dump) => match judge(&dump, &flushed) {
                    Ok(()) => Ok(true),
                    Err(why) => {
                        last = why;
                        Ok(false)
                    }
                },
                // The manager may not be there yet.
                Err(error) => {
                    last = format!("{error:#}");
                    Ok(false)
                }
            }
        });
        clean.with_context(|| last.clone())
    }

    /// Whether an OSD is up in the OSD map.
    pub fn osd_is_up(&self, osd: usize) -> Result<bool> {
        let info = self.ceph_json(["osd", "info", &osd.to_string()])?;
        Ok(info["up"] == 1)
    }

    pub fn wait_osd_up(&self, osd: usize, timeout: Duration) -> Result<()> {
        wait_for(&format!("osd.{osd} up"), timeout, || self.osd_is_up(osd))
    }

    pub fn wait_osd_down(&self, osd: usize, timeout: Duration) -> Result<()> {
        wait_for(&format!("osd.{osd} down"), timeout, || {
            Ok(!self.osd_is_up(osd)?)
        })
    }
}

/// Whether `pg dump` shows all placement groups active+clean and takes into account what each OSD
/// had sent when it was flushed.
fn judge(dump: &Value, flushed: &BTreeMap<u64, u64>) -> Result<(), String> {
    let map = dump.get("pg_map").unwrap_or(dump);
    let array = |key: &str| map[key].as_array().cloned().unwrap_or_default();
    let seen: BTreeMap<u64, u64> = array("osd_stats")
        .iter()
        .filter_map(|stat| Some((stat["osd"].as_u64()?, stat["seq"].as_u64()?)))
        .collect();
    for (osd, sequence) in flushed {
        // Its upper half is the epoch of the boot, so a number from an earlier life is smaller.
        if seen.get(osd).is_none_or(|seen| seen < sequence) {
            return Err(format!("the manager has not heard from osd.{osd}"));
        }
    }
    let pgs = array("pg_stats");
    let mut other: BTreeMap<&str, usize> = BTreeMap::new();
    for pg in &pgs {
        let state = pg["state"].as_str().unwrap_or("without a state");
        // Scrubbing may add to it.
        if !state.starts_with("active+clean") {
            *other.entry(state).or_default() += 1;
        }
    }
    match other.is_empty() && !pgs.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "{} placement groups, of which {other:?}",
            pgs.len()
        )),
    }
}

fn left(end: Instant) -> Duration {
    end.saturating_duration_since(Instant::now())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn stale_or_unclean_statistics_do_not_pass() {
        let dump = |state: &str, seq: u64| {
            json!({"pg_ready": true, "pg_map": {
                "osd_stats": [{"osd": 0, "seq": seq}, {"osd": 1, "seq": 9}],
                "pg_stats": [{"state": "active+clean+scrubbing"}, {"state": state}],
            }})
        };
        let flushed = BTreeMap::from([(0, 5), (1, 9)]);
        assert_eq!(judge(&dump("active+clean", 5), &flushed), Ok(()));
        assert!(
            judge(&dump("active+clean", 4), &flushed)
                .unwrap_err()
                .contains("osd.0")
        );
        assert!(
            judge(&dump("active+undersized", 5), &flushed)
                .unwrap_err()
                .contains("undersized")
        );
        assert!(judge(&json!({"pg_map": {}}), &BTreeMap::new()).is_err());
        let missing = BTreeMap::from([(7, 1)]);
        assert!(
            judge(&dump("active+clean", 5), &missing)
                .unwrap_err()
                .contains("osd.7")
        );
    }
}
