//! What clients ask of pools, per second (`PGMap::update_pool_deltas`).

use std::collections::{BTreeMap, VecDeque};

use crate::codec::Now;

use super::{Mon, PoolUsage};

/// Samples that a rate is taken over (`mon_stat_smooth_intervals`), one at each tick.
const SAMPLES: usize = 6;

/// Counters of a pool at a moment.
#[derive(Debug, Clone, Copy, Default)]
struct Sample {
    mono: u64,
    reads: u64,
    read_bytes: u64,
    writes: u64,
    written_bytes: u64,
}

/// Per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Rate {
    pub(super) reads: u64,
    pub(super) read_bytes: u64,
    pub(super) writes: u64,
    pub(super) written_bytes: u64,
}

impl Rate {
    pub(super) fn is_idle(&self) -> bool {
        self.reads == 0 && self.writes == 0
    }

    pub(super) fn add(&mut self, other: Rate) {
        self.reads += other.reads;
        self.read_bytes += other.read_bytes;
        self.writes += other.writes;
        self.written_bytes += other.written_bytes;
    }
}

/// The newest samples of each pool.
#[derive(Debug, Default)]
pub(super) struct Rates(BTreeMap<i64, VecDeque<Sample>>);

impl Rates {
    /// A group on its way from one OSD to another is missing from both their reports, or in both,
    /// and brings its counters back: they are taken never to fall.
    fn sample(&mut self, id: i64, usage: &PoolUsage, mono: u64) {
        let samples = self.0.entry(id).or_default();
        let last = samples.back().copied().unwrap_or_default();
        samples.push_back(Sample {
            mono,
            reads: usage.read_ops.max(last.reads),
            read_bytes: usage.read_bytes.max(last.read_bytes),
            writes: usage.write_ops.max(last.writes),
            written_bytes: usage.write_bytes.max(last.written_bytes),
        });
        if samples.len() > SAMPLES {
            samples.pop_front();
        }
    }

    pub(super) fn of(&self, id: i64) -> Rate {
        let Some((first, last)) = self
            .0
            .get(&id)
            .and_then(|s| s.front().zip(s.back()))
            .filter(|(first, last)| first.mono < last.mono)
        else {
            return Rate::default();
        };
        let nanos = u128::from(last.mono - first.mono);
        let rate = |from: u64, to: u64| {
            let per_second = u128::from(to - from) * 1_000_000_000 / nanos;
            u64::try_from(per_second).unwrap_or(u64::MAX)
        };
        Rate {
            reads: rate(first.reads, last.reads),
            read_bytes: rate(first.read_bytes, last.read_bytes),
            writes: rate(first.writes, last.writes),
            written_bytes: rate(first.written_bytes, last.written_bytes),
        }
    }
}

impl Mon {
    pub(super) fn sample_rates(&mut self, now: Now) {
        let map = self.maps.current();
        let Mon { rates, usage, .. } = self;
        rates.0.retain(|id, _| map.pool(*id).is_some());
        for (id, _) in map.pools() {
            rates.sample(id, &usage.pool(id), now.mono);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn usage(reads: u64) -> PoolUsage {
        PoolUsage {
            read_ops: reads,
            read_bytes: reads * 4096,
            ..PoolUsage::default()
        }
    }

    #[test]
    fn a_rate_follows_the_load() {
        let mut rates = Rates::default();
        assert!(rates.of(1).is_idle());
        for second in 0..10 {
            rates.sample(1, &usage(second * 100), second * SECOND);
        }
        let rate = rates.of(1);
        assert_eq!((rate.reads, rate.read_bytes), (100, 409_600));
        for second in 10..20 {
            rates.sample(1, &usage(900), second * SECOND);
        }
        assert!(rates.of(1).is_idle());
    }

    #[test]
    fn a_group_that_moves_makes_no_rate() {
        let mut rates = Rates::default();
        for (second, reads) in [1000, 1000, 200, 1000].into_iter().enumerate() {
            rates.sample(1, &usage(reads), second as u64 * SECOND);
            assert!(rates.of(1).is_idle());
        }
    }
}
