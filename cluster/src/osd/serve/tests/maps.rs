use std::collections::BTreeMap;

use super::rig::{Got, POOL, Rig, SECOND, method, pg, set_pg_num};
use crate::objecter::ObjectOp;
use crate::objecter::msg::{PgId, SNAPDIR};
use crate::objecter::results::SnapSet;
use crate::osd::outbox::Outbox;
use crate::osd::serve::{Osd, OsdConfig, OsdEvent};
use crate::osd::store::Store;
use crate::osdmap::{Incremental, SnapIntervals};
use crate::payload::Payload;

fn append(r: &Rig, tid: u64, name: &str) -> super::rig::Ask {
    r.ask(
        tid,
        name,
        ObjectOp::new().append(Payload::from(name.as_bytes().to_vec())),
    )
}

fn replies(got: &[Got]) -> Vec<u64> {
    got.iter()
        .filter_map(|g| match g {
            Got::Reply { tid, result: 0, .. } => Some(*tid),
            _ => None,
        })
        .collect()
}

fn fill(r: &mut Rig, n: u64) {
    for i in 0..n {
        let ask = append(r, i + 1, &format!("o{i}"));
        let osd = primary(r, &ask.name);
        let link = r.open(osd, 10);
        assert_eq!(r.call(link, &ask).0, 0);
        r.close(link);
    }
}

fn primary(r: &Rig, name: &[u8]) -> usize {
    let id = pg(r.pg_of(name));
    r.map.map_pg(id).acting_primary.unwrap() as usize
}

/// Every object is where the map says, is whole, and its write is known.
fn check(r: &mut Rig, n: u64) {
    for i in 0..n {
        let name = format!("o{i}");
        let osd = primary(r, name.as_bytes());
        let link = r.open(osd, 10);
        let again = append(r, i + 1, &name);
        assert_eq!(r.call(link, &again).0, 0);
        let read = r.ask(1000 + i, &name, ObjectOp::new().read(0, 99));
        assert_eq!(r.call(link, &read).1, name.as_bytes(), "{name}");
        r.close(link);
    }
    let mut held = Vec::new();
    for osd in &r.osds {
        held.extend(osd.store.pgs());
        assert!(osd.leaving.is_empty());
    }
    held.sort();
    let pg_num = r.map.pool(POOL).unwrap().pg_num;
    assert_eq!(held, (0..pg_num).map(pg).collect::<Vec<PgId>>());
    let objects: u64 = r
        .osds
        .iter()
        .map(|o| o.usage().get(&POOL).map_or(0, |u| u.objects))
        .sum();
    assert_eq!(objects, n);
}

#[test]
fn a_pg_is_handed_over_with_all_that_is_in_it() {
    let mut r = Rig::new(2, |_| 0);
    fill(&mut r, 20);
    r.place(0, 1);
    r.place(1, 2);
    check(&mut r, 20);
}

#[test]
fn requests_wait_for_a_pg_on_its_way() {
    let mut r = Rig::new(1, |_| 0);
    fill(&mut r, 3);
    r.keep_released = true;
    r.place(0, 1);
    let link = r.open(1, 10);
    for tid in [1, 50] {
        let ask = append(&r, tid, "o0");
        r.send(link, &ask);
    }
    assert!(r.take(link).is_empty());
    assert_eq!(r.osds[1].waiting(), 2);
    let (_, event) = r.events.pop().unwrap();
    let OsdEvent::Released {
        pg: id,
        to: 1,
        state,
    } = event
    else {
        panic!("not released");
    };
    r.run(1, |o, now, out| o.adopt(id, state, now, out));
    assert_eq!(replies(&r.take(link)), [1, 50]);
    let read = r.ask(51, "o0", ObjectOp::new().read(0, 99));
    assert_eq!(r.call(link, &read).1, b"o0o0");
}

#[test]
fn clients_can_be_told_to_hold_back() {
    let mut r = Rig::new(1, |_| 0);
    r.osds[1].config.backoff_on_peering = true;
    r.keep_released = true;
    r.place(0, 1);
    let link = r.open(1, 10);
    let ask = append(&r, 1, "o0");
    r.send(link, &ask);
    r.send(link, &ask);
    assert!(matches!(r.take(link)[..], [Got::Backoff(1)]));
    let Some((_, OsdEvent::Released { pg: id, state, .. })) = r.events.pop() else {
        panic!("not released");
    };
    r.run(1, |o, now, out| o.adopt(id, state, now, out));
    assert!(matches!(r.take(link)[..], [Got::Backoff(3)]));
}

#[test]
fn a_pg_stays_until_its_writes_are_durable() {
    let mut r = Rig::new(1, |_| 0);
    let link = r.open(0, 10);
    r.slow();
    let base = r.durable(0);
    let ask = append(&r, 1, "o0");
    r.send(link, &ask);
    r.place(0, 1);
    assert_eq!(r.osds[0].store.pgs().len(), 1);
    r.commit(0, base + 1);
    assert!(r.osds[0].store.pgs().is_empty());
    assert_eq!(replies(&r.take(link)), [1]);
    assert_eq!(r.osds[1].store.pgs().len(), 1);
}

#[test]
fn pgs_split_and_merge_wherever_they_are() {
    let mut r = Rig::new(1, |_| 0);
    fill(&mut r, 60);
    for (i, pg_num) in [4, 32, 5, 13, 2, 64, 1].into_iter().enumerate() {
        let mut inc = r.pool_change(|p| set_pg_num(p, pg_num));
        // New pgs may begin elsewhere, old ones move at the same time.
        inc.new_pg_temp = (0..pg_num)
            .map(|s| (pg(s), vec![((s as usize * 7 + i) % 3) as i32]))
            .collect();
        r.change(inc);
        check(&mut r, 60);
    }
}

/// Clients send nothing again for a pg that was not split when others were, so what they had sent
/// before counts.
#[test]
fn requests_on_their_way_to_a_pg_that_is_not_split_are_served() {
    let mut r = Rig::new(24, |_| 0);
    let link = r.open(0, 10);
    let asks: Vec<_> = (0..40)
        .map(|i| append(&r, i + 1, &format!("o{i}")))
        .collect();
    let before: Vec<u32> = asks.iter().map(|a| r.pg_of(&a.name)).collect();
    r.change_pool(|p| set_pg_num(p, 32));
    for (ask, seed) in asks.iter().zip(before) {
        r.send(link, ask);
        let split = (8..16).contains(&seed);
        let served = replies(&r.take(link)).len() == 1;
        assert_ne!(served, split, "pg {seed}");
    }
}

#[test]
fn pgs_on_their_way_catch_up_with_changes_they_missed() {
    let mut r = Rig::new(8, |_| 0);
    fill(&mut r, 60);
    r.keep_released = true;
    let inc = Incremental {
        new_pg_temp: (0..8).map(|s| (pg(s), vec![1])).collect(),
        ..Incremental::default()
    };
    r.change(inc);
    for pg_num in [3, 16, 4, 12] {
        r.change_pool(|p| set_pg_num(p, pg_num));
    }
    let inc = Incremental {
        new_pg_temp: (0..12).map(|s| (pg(s), vec![(s % 3) as i32])).collect(),
        ..Incremental::default()
    };
    r.change(inc);
    r.keep_released = false;
    while let Some((_, event)) = r.events.pop() {
        if let OsdEvent::Released { pg, to, state } = event {
            r.run(to as usize, |o, now, out| o.adopt(pg, state, now, out));
        }
    }
    check(&mut r, 60);
}

#[test]
fn a_pg_that_arrives_before_its_map_stays() {
    let mut r = Rig::new(1, |_| 0);
    fill(&mut r, 3);
    r.next_map(Incremental {
        new_pg_temp: BTreeMap::from([(pg(0), vec![1])]),
        ..Incremental::default()
    });
    r.give_map(0);
    assert_eq!(r.osds[1].store.pgs(), [pg(0)]);
    r.publish();
    check(&mut r, 3);
}

#[test]
fn a_new_pool_is_made_once_somebody_serves_it() {
    let mut r = Rig::new(1, |_| 0);
    let mut pool = r.map.pool(POOL).unwrap().clone();
    set_pg_num(&mut pool, 4);
    let id = 77;
    let down: Vec<(i32, u32)> = (0..3).map(|i| (i, 0)).collect();
    r.change(Incremental {
        new_state: down.iter().copied().collect(),
        ..Incremental::default()
    });
    r.change(Incremental {
        new_pools: BTreeMap::from([(id, pool)]),
        new_pool_names: BTreeMap::from([(id, "late".into())]),
        ..Incremental::default()
    });
    assert!(
        r.osds
            .iter()
            .all(|o| o.store.pgs().iter().all(|p| p.pool != id))
    );
    let addrs = |i: i32| r.osds[i as usize].config.addrs.clone();
    let up = (0..3).map(|i| (i, addrs(i))).collect();
    r.change(Incremental {
        new_up_client: up,
        ..Incremental::default()
    });
    let made: usize = r
        .osds
        .iter()
        .map(|o| o.store.pgs().iter().filter(|p| p.pool == id).count())
        .sum();
    assert_eq!(made, 4);
    r.change(Incremental {
        old_pools: vec![id],
        ..Incremental::default()
    });
    assert!(
        r.osds
            .iter()
            .all(|o| o.store.pgs().iter().all(|p| p.pool != id))
    );
}

#[test]
fn an_osd_that_is_down_serves_nobody() {
    let mut r = Rig::new(1, |_| 0);
    fill(&mut r, 5);
    let link = r.open(0, 10);
    r.change(Incremental {
        new_state: BTreeMap::from([(0, 0)]),
        ..Incremental::default()
    });
    assert!(matches!(r.take(link)[..], [Got::Closed]));
    assert!(
        r.events
            .iter()
            .any(|(osd, e)| *osd == 0 && matches!(e, OsdEvent::Down { .. }))
    );
    let link = r.open(0, 10);
    assert!(matches!(r.take(link)[..], [Got::Closed]));
    check(&mut r, 5);
    let addrs = r.osds[0].config.addrs.clone();
    r.change(Incremental {
        new_up_client: BTreeMap::from([(0, addrs)]),
        ..Incremental::default()
    });
    check(&mut r, 5);
}

#[test]
fn a_restart_finds_pgs_as_they_were_left() {
    let mut r = Rig::new(4, |seed| (seed % 3) as i32);
    fill(&mut r, 40);
    // Some pgs were split before the crash, some were not.
    let mut stores: Vec<_> = Vec::new();
    for osd in &mut r.osds {
        stores.push(std::mem::take(&mut osd.store));
    }
    stores[0].move_objects(pg(0), pg(4), 5).unwrap();
    let inc = r.pool_change(|p| set_pg_num(p, 16));
    r.next_map(inc);
    let inc = Incremental {
        new_pg_temp: (0..16).map(|s| (pg(s), vec![(s % 3) as i32])).collect(),
        ..Incremental::default()
    };
    r.next_map(inc);
    let all: Vec<PgId> = stores.iter().flat_map(|s| s.pgs()).collect();
    for (id, store) in stores.into_iter().enumerate() {
        let ours = store.pgs();
        let config = OsdConfig {
            id: id as i32,
            addrs: r.osds[id].config.addrs.clone(),
            elsewhere: all.iter().filter(|p| !ours.contains(p)).copied().collect(),
            method,
            backoff_on_peering: false,
        };
        let history = std::sync::Arc::clone(&r.osds[id].history);
        r.osds[id] = Osd::new(config, store, history, 9);
    }
    let newest = std::sync::Arc::clone(&r.map);
    for osd in 0..3 {
        let map = std::sync::Arc::clone(&newest);
        r.run(osd, |o, now, out| o.map(map, now, out));
    }
    check(&mut r, 40);
}

#[test]
fn removed_snapshots_are_trimmed() {
    let mut r = Rig::new(1, |_| 0);
    let link = r.open(0, 10);
    let n = 600;
    for i in 0..n {
        let name = format!("o{i}");
        for (tid, snaps) in [(1, vec![]), (2, vec![3]), (3, vec![5, 3])] {
            let mut ask = append(&r, i * 10 + tid, &name);
            ask.snap_seq = snaps.first().copied().unwrap_or(0);
            ask.snaps = snaps;
            assert_eq!(r.call(link, &ask).0, 0);
        }
    }
    assert_eq!(r.osds[0].usage()[&POOL].clones, 2 * n);
    let mut gone = SnapIntervals::default();
    gone.insert(3, 1);
    r.change(Incremental {
        new_removed_snaps: BTreeMap::from([(POOL, gone)]),
        ..Incremental::default()
    });
    r.advance(SECOND);
    assert_eq!(r.osds[0].usage()[&POOL].clones, n);
    let trimmed = |(_, e): &(usize, OsdEvent<_>)| matches!(e, OsdEvent::Trimmed { pg: id, snaps, .. } if *id == pg(0) && *snaps == [(3, 1)]);
    assert_eq!(r.events.iter().filter(|e| trimmed(e)).count(), 1);
    let mut list = r.ask(9999, "o7", ObjectOp::new().list_snaps());
    list.snap = SNAPDIR;
    let set = SnapSet::decode(&r.call(link, &list).1).unwrap();
    let ids: Vec<u64> = set.clones.iter().map(|c| c.id).collect();
    assert_eq!(ids[0], 5);
    // It is not done again.
    r.change(Incremental::default());
    r.advance(SECOND);
    assert_eq!(r.events.iter().filter(|e| trimmed(e)).count(), 1);
}

/// After a split, a merge or a restart, whoever counts what was trimmed hears of it from each pg as
/// it is then.
#[test]
fn what_is_trimmed_is_said_again_by_pgs_that_are_others() {
    let mut r = Rig::new(1, |_| 0);
    let mut gone = SnapIntervals::default();
    gone.insert(3, 1);
    r.change(Incremental {
        new_removed_snaps: BTreeMap::from([(POOL, gone)]),
        ..Incremental::default()
    });
    r.advance(SECOND);
    let reports = |r: &mut Rig| {
        let mut said: Vec<(u32, u32)> = Vec::new();
        for (_, event) in std::mem::take(&mut r.events) {
            if let OsdEvent::Trimmed { pg, since, snaps } = event {
                assert_eq!(snaps, [(3, 1)]);
                said.push((pg.seed, since));
            }
        }
        said.sort_unstable();
        said
    };
    assert_eq!(reports(&mut r).len(), 1);
    for pg_num in [4, 2] {
        r.change_pool(|p| set_pg_num(p, pg_num));
        let epoch = r.map.epoch();
        let want: Vec<(u32, u32)> = (0..pg_num).map(|s| (s, epoch)).collect();
        r.advance(SECOND);
        assert_eq!(reports(&mut r), want);
    }
    let store = std::mem::take(&mut r.osds[0].store);
    let config = r.osds[0].config.clone();
    let history = std::sync::Arc::clone(&r.osds[0].history);
    r.osds[0] = Osd::new(config, store, history, 9);
    let newest = std::sync::Arc::clone(&r.map);
    let epoch = newest.epoch();
    r.run(0, |o, now, out| o.map(newest, now, out));
    let ours = r.osds[0].store.pgs().into_iter();
    let want: Vec<(u32, u32)> = ours.map(|pg| (pg.seed, epoch)).collect();
    assert!(!want.is_empty());
    assert_eq!(reports(&mut r), want);
}

#[test]
fn a_store_that_fails_ends_the_service() {
    let mut r = Rig::new(1, |_| 0);
    let link = r.open(0, 10);
    r.osds[0].store.remove_pg(pg(0)).unwrap();
    let ask = append(&r, 1, "o0");
    r.send(link, &ask);
    assert!(matches!(r.take(link)[..], [Got::Closed]));
    assert!(
        r.events
            .iter()
            .any(|(_, e)| matches!(e, OsdEvent::Failed(_)))
    );
    let mut out = Outbox::new();
    let now = r.now;
    r.osds[0].tick(now, &mut out);
    assert!(out.is_empty());
}
