//! In which order monitors are tried (`MonClient::_add_conns`, `src/mon/MonClient.cc`).

use std::collections::BTreeSet;
use std::net::SocketAddr;

use super::monmap::MonMap;
use crate::codec::EntityAddrVec;

/// A monitor that can be dialed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) addrs: EntityAddrVec,
    pub(super) dial: SocketAddr,
    priority: u16,
    weight: u16,
}

/// The monitors of a map that have an msgr2 address. Those of `seeds` while there is no map, or
/// when it names none.
pub(super) fn candidates(map: Option<&MonMap>, seeds: &[EntityAddrVec]) -> Vec<Candidate> {
    let dialable = |addrs: &EntityAddrVec, priority, weight| {
        Some(Candidate {
            addrs: addrs.clone(),
            dial: addrs.msgr2()?.addr?,
            priority,
            weight,
        })
    };
    let known: Vec<_> = map
        .iter()
        .flat_map(|m| m.mons.values())
        .filter_map(|m| dialable(&m.addrs, m.priority, m.weight))
        .collect();
    if !known.is_empty() {
        return known;
    }
    seeds.iter().filter_map(|s| dialable(s, 0, 0)).collect()
}

/// The next up to `n` of `all` to dial at a time: not tried yet, of the lowest priority that is
/// left, in an order drawn by weight. `n` of 0 is all of them.
pub(super) fn next_batch(
    all: &[Candidate],
    tried: &BTreeSet<SocketAddr>,
    n: usize,
    random: &mut SplitMix64,
) -> Vec<Candidate> {
    let untried = || all.iter().filter(|c| !tried.contains(&c.dial));
    let Some(priority) = untried().map(|c| c.priority).min() else {
        return Vec::new();
    };
    let mut pool: Vec<_> = untried()
        .filter(|c| c.priority == priority)
        .cloned()
        .collect();
    let n = if n == 0 {
        pool.len()
    } else {
        n.min(pool.len())
    };
    (0..n).map(|_| draw(&mut pool, random)).collect()
}

/// Takes one of `pool`, which is not empty. A monitor without weight among others that have some
/// comes last; where none has any, all are equal.
fn draw(pool: &mut Vec<Candidate>, random: &mut SplitMix64) -> Candidate {
    let total: u64 = pool.iter().map(|c| u64::from(c.weight)).sum();
    if total == 0 {
        let at = random.below(pool.len() as u64) as usize;
        return pool.swap_remove(at);
    }
    let mut ticket = random.below(total);
    let at = pool.iter().position(|c| {
        let weight = u64::from(c.weight);
        let hit = ticket < weight;
        ticket = ticket.saturating_sub(weight);
        hit
    });
    pool.swap_remove(at.expect("the ticket is below the sum of the weights"))
}

/// Steele, Lea and Flood's generator: enough to spread clients over monitors, and the same for
/// the same seed.
#[derive(Debug)]
pub(super) struct SplitMix64(pub(super) u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, which is not 0.
    fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::EntityAddr;
    use crate::mon::monmap::MonInfo;

    fn map(mons: &[(u16, u16)]) -> MonMap {
        let mut map = MonMap::default();
        for (i, (priority, weight)) in mons.iter().enumerate() {
            let addr = SocketAddr::from(([10, 0, 0, i as u8], 3300));
            map.mons.insert(
                format!("m{i}"),
                MonInfo {
                    addrs: EntityAddrVec(vec![EntityAddr::msgr2(addr, 0)]),
                    priority: *priority,
                    weight: *weight,
                    ..MonInfo::default()
                },
            );
        }
        map
    }

    fn last(c: &Candidate) -> u8 {
        match c.dial.ip() {
            std::net::IpAddr::V4(ip) => ip.octets()[3],
            std::net::IpAddr::V6(_) => unreachable!(),
        }
    }

    #[test]
    fn the_lowest_priority_is_tried_first() {
        let all = candidates(Some(&map(&[(1, 0), (0, 0), (1, 0), (0, 0)])), &[]);
        let mut random = SplitMix64(1);
        let mut tried = BTreeSet::new();
        let mut first: Vec<_> = next_batch(&all, &tried, 3, &mut random)
            .iter()
            .inspect(|c| assert!(tried.insert(c.dial)))
            .map(last)
            .collect();
        first.sort();
        assert_eq!(first, [1, 3]);
        let second = next_batch(&all, &tried, 1, &mut random);
        assert!([0, 2].contains(&last(&second[0])));
        tried.extend(all.iter().map(|c| c.dial));
        assert!(next_batch(&all, &tried, 3, &mut random).is_empty());
    }

    #[test]
    fn weights_are_shares() {
        let all = candidates(Some(&map(&[(0, 30), (0, 10), (0, 0)])), &[]);
        let mut counts = [0; 3];
        let mut random = SplitMix64(7);
        for _ in 0..4000 {
            let batch = next_batch(&all, &BTreeSet::new(), 0, &mut random);
            assert_eq!(batch.len(), 3);
            assert_eq!(last(&batch[2]), 2, "no weight comes last");
            counts[last(&batch[0]) as usize] += 1;
        }
        assert!((2850..3150).contains(&counts[0]), "{counts:?}");
        // Without weights all are equal.
        let all = candidates(Some(&map(&[(0, 0), (0, 0)])), &[]);
        let first = (0..4000)
            .filter(|_| last(&next_batch(&all, &BTreeSet::new(), 1, &mut random)[0]) == 0)
            .count();
        assert!((1850..2150).contains(&first), "{first}");
    }

    #[test]
    fn seeds_serve_until_a_map_names_someone() {
        let seeds = [EntityAddrVec(vec![EntityAddr::msgr2(
            "10.0.0.9:3300".parse().unwrap(),
            0,
        )])];
        assert_eq!(last(&candidates(None, &seeds)[0]), 9);
        assert_eq!(last(&candidates(Some(&map(&[])), &seeds)[0]), 9);
        assert_eq!(last(&candidates(Some(&map(&[(0, 0)])), &seeds)[0]), 0);
    }
}
