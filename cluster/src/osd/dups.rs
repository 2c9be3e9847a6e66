//! Which requests a pg has answered (`PGLog::IndexedLog::get_request`, `src/osd/PGLog.h`).

use std::collections::{HashMap, VecDeque};

use crate::objecter::msg::ReqId;

use super::store::{LOG_LEN, LogEntry, Seq};

/// The newest entries of a pg's log, found by the id of their request.
#[derive(Debug, Default)]
pub(super) struct Dups {
    log: VecDeque<(LogEntry, Seq)>,
    /// Number of the oldest entry, counted over the pg's life.
    first: u64,
    index: HashMap<ReqId, u64>,
}

impl Dups {
    /// From a stored log, whose entries are durable once `seq` is.
    pub(super) fn load(log: Vec<LogEntry>, seq: Seq) -> Dups {
        let mut dups = Dups::default();
        for entry in log {
            dups.add(entry, seq);
        }
        dups
    }

    pub(super) fn add(&mut self, entry: LogEntry, seq: Seq) {
        // What the OSD does of its own accord has no request.
        if entry.reqid == ReqId::default() {
            return;
        }
        if self.log.len() == LOG_LEN
            && let Some((old, _)) = self.log.pop_front()
        {
            if self.index.get(&old.reqid) == Some(&self.first) {
                self.index.remove(&old.reqid);
            }
            self.first += 1;
        }
        self.index
            .insert(entry.reqid, self.first + self.log.len() as u64);
        self.log.push_back((entry, seq));
    }

    pub(super) fn find(&self, reqid: &ReqId) -> Option<&(LogEntry, Seq)> {
        let at = self.index.get(reqid)?;
        self.log.get((at - self.first) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{EntityName, EntityType};

    fn entry(tid: u64) -> LogEntry {
        LogEntry {
            reqid: ReqId {
                name: EntityName::new(EntityType::CLIENT, 7),
                tid,
                inc: 0,
            },
            result: tid as i32,
            ..LogEntry::default()
        }
    }

    #[test]
    fn the_newest_requests_are_known_and_no_others() {
        let mut dups = Dups::default();
        let n = 2 * LOG_LEN as u64 + 17;
        for tid in 1..=n {
            dups.add(entry(tid), tid);
            dups.add(LogEntry::default(), tid);
        }
        for tid in 1..=n {
            let found = dups
                .find(&entry(tid).reqid)
                .map(|(e, seq)| (e.result, *seq));
            let kept = tid > n - LOG_LEN as u64;
            assert_eq!(found, kept.then_some((tid as i32, tid)));
        }
        assert!(dups.find(&ReqId::default()).is_none());
        assert_eq!(dups.index.len(), LOG_LEN);
    }

    #[test]
    fn of_two_entries_of_a_request_the_later_one_counts() {
        let mut dups = Dups::default();
        dups.add(entry(1), 1);
        dups.add(
            LogEntry {
                result: -5,
                ..entry(1)
            },
            2,
        );
        for tid in 2..=LOG_LEN as u64 {
            dups.add(entry(tid), 3);
        }
        // The first of the two has left the log.
        assert_eq!(dups.find(&entry(1).reqid).map(|(e, _)| e.result), Some(-5));
    }
}
