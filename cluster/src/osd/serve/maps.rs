//! What a new map means: which pgs are served here, since when, and whose requests go on.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use crate::codec::Now;
use crate::objecter::msg::PgId;
use crate::osdmap::pool::flag;
use crate::osdmap::{OsdMap, PgMapping, Pool};

use super::super::outbox::{Link, Outbox};
use super::super::pg::{Pg, Place, parent, root};
use super::super::store::{Store, StoreError};
use super::{Current, Osd, OsdEvent};

impl<S: Store> Osd<S> {
    /// The next epoch. Maps come in their order; gaps are allowed before the first only.
    pub fn map(&mut self, map: Arc<OsdMap>, now: Now, out: &mut Outbox) {
        if self.failed || map.epoch() <= self.epoch() {
            return;
        }
        self.commit(now, out);
        let old = self.map.replace(Rc::new(Current(Arc::clone(&map))));
        let old = old.as_ref().map(|m| &***m);
        self.note_up(&map, now, out);
        let changed = self
            .note_pools(old, &map)
            .and_then(|()| match old {
                None => self.take_stock(&map),
                Some(_) => Ok(()),
            })
            .and_then(|()| self.assign(old, &map, out));
        if let Err(error) = changed {
            return self.fail(error, out);
        }
        self.settle(now, out);
        self.remove_blocklisted(now, out);
        self.start_trimming(now);
        self.take_waiting_for_map(now, out);
        self.commit(now, out);
    }

    /// Whether the map has this OSD at work.
    fn note_up(&mut self, map: &OsdMap, now: Now, out: &mut Outbox) {
        let id = self.config.id;
        let ours = self.config.addrs.msgr2();
        let listed = map.osd_addrs(id).and_then(|a| a.msgr2());
        let up = map.is_up(id) && (ours.is_none() || ours == listed);
        if self.up && !up {
            let links: Vec<Link> = self.sessions.keys().copied().collect();
            for link in links {
                self.reset(link, now, out);
            }
            let epoch = map.epoch();
            self.events.push_back(OsdEvent::Down { epoch });
        }
        self.up = up;
    }

    /// Pools that came, went, or changed the number of their pgs.
    fn note_pools(&mut self, old: Option<&OsdMap>, map: &OsdMap) -> Result<(), StoreError> {
        let gone = |id: &PgId| map.pool(id.pool).is_none();
        let removed: Vec<PgId> = self.pgs.keys().copied().filter(|id| gone(id)).collect();
        for id in removed {
            self.drop_waiting(id);
            let pg = self.pgs.remove(&id);
            if pg.is_some_and(|pg| pg.place == Place::Here) {
                self.store.remove_pg(id)?;
            }
        }
        self.unmade.retain(|id| !gone(id));
        self.shapes.retain(|pool, _| map.pool(*pool).is_some());
        for (id, pool) in map.pools() {
            let shapes = self.shapes.entry(id).or_default();
            let before = shapes.last().map(|(_, n)| *n);
            if before != Some(pool.pg_num) {
                shapes.push((map.epoch(), pool.pg_num));
            }
            let seed = |seed| PgId { pool: id, seed };
            match before {
                // At the first map, what there is tells what was never made.
                None if old.is_none() => {}
                None => self.unmade.extend((0..pool.pg_num).map(seed)),
                Some(n) => {
                    for child in n..pool.pg_num {
                        if self.unmade.contains(&seed(root(child, n))) {
                            self.unmade.insert(seed(child));
                        }
                    }
                    self.unmade
                        .retain(|pg| pg.pool != id || pg.seed < pool.pg_num);
                }
            }
        }
        Ok(())
    }

    /// At the first map: takes up what is stored. A pg that is missing although one that it was
    /// split from is there will come out of that; one without any ancestor was never made.
    fn take_stock(&mut self, map: &OsdMap) -> Result<(), StoreError> {
        let ours = self.store.pgs();
        let mut known: BTreeSet<PgId> = std::mem::take(&mut self.config.elsewhere);
        known.extend(&ours);
        for id in ours {
            let Some(pool) = map.pool(id.pool) else {
                self.store.remove_pg(id)?;
                continue;
            };
            if self.pgs.contains_key(&id) {
                // It was adopted before the map came.
                continue;
            }
            let mut pg = Pg::new(Place::Here, shape_of(id, pool, &known), 0);
            pg.load(self.store.pg_state(id)?);
            self.pgs.insert(id, pg);
        }
        for (pool_id, pool) in map.pools() {
            for seed in 0..pool.pg_num {
                let line = std::iter::successors(Some(seed), |s| parent(*s));
                let mut line = line.map(|seed| PgId {
                    pool: pool_id,
                    seed,
                });
                if !line.any(|pg| known.contains(&pg)) {
                    self.unmade.insert(PgId {
                        pool: pool_id,
                        seed,
                    });
                }
            }
        }
        Ok(())
    }

    /// Who serves what from now on.
    fn assign(
        &mut self,
        old: Option<&OsdMap>,
        map: &OsdMap,
        out: &mut Outbox,
    ) -> Result<(), StoreError> {
        let epoch = map.epoch();
        // After a restart, requests from before it are not for this life of the OSD.
        let boot = map.osd(self.config.id).map_or(0, |o| o.info.up_from);
        let since = if old.is_some() { epoch } else { boot };
        self.acting.clear();
        let mut mapping = PgMapping::default();
        for (pool_id, pool) in map.pools() {
            let before = old.and_then(|m| m.pool(pool_id));
            let reshaped = before.is_some_and(|b| interval_shape(b) != interval_shape(pool));
            let now_full = pool.has_flag(flag::FULL);
            let newly_full = now_full && !before.is_some_and(|b| b.has_flag(flag::FULL));
            for seed in 0..pool.pg_num {
                let id = PgId {
                    pool: pool_id,
                    seed,
                };
                // CRUSH's failure leaves nobody, as it should.
                let _ = map.map_pg_into(id, &mut self.workspace, &mut mapping);
                let primary = mapping.acting_primary.unwrap_or(-1);
                self.acting.insert(id, primary);
                let ours = primary == self.config.id && self.up;
                let never = self.unmade.contains(&id) && primary >= 0;
                if never {
                    self.unmade.remove(&id);
                }
                if ours && !self.pgs.contains_key(&id) {
                    let place = if never {
                        self.store.create_pg(id)?;
                        Place::Here
                    } else {
                        Place::Awaited
                    };
                    self.pgs.insert(id, Pg::new(place, pool.pg_num, epoch));
                }
                let Some(pg) = self.pgs.get_mut(&id) else {
                    continue;
                };
                if newly_full {
                    pg.marked_full = epoch;
                }
                if ours && !pg.acting {
                    pg.acting = true;
                    pg.running = false;
                    (pg.primary_since, pg.interval_since) = (since, epoch);
                } else if ours && reshaped {
                    pg.interval_since = epoch;
                    pg.running = false;
                }
            }
        }
        let lost: Vec<PgId> = self
            .pgs
            .iter()
            .filter(|(id, pg)| {
                let primary = self.acting.get(id).copied().unwrap_or(-1);
                pg.acting && !(self.up && primary == self.config.id)
            })
            .map(|(id, _)| *id)
            .collect();
        for id in lost {
            self.stop_serving(id, out);
        }
        Ok(())
    }

    /// Somebody else is to serve it, or nobody.
    fn stop_serving(&mut self, id: PgId, out: &mut Outbox) {
        self.drop_waiting(id);
        self.lift_backoffs(id, out);
        let Some(pg) = self.pgs.get_mut(&id) else {
            return;
        };
        pg.acting = false;
        pg.running = false;
        pg.watches = Default::default();
        (pg.scan, pg.trim) = (None, None);
        if pg.place == Place::Awaited {
            self.pgs.remove(&id);
        }
    }

    /// Their clients send them to whoever serves the pg now.
    fn drop_waiting(&mut self, id: PgId) {
        let Some(pg) = self.pgs.get_mut(&id) else {
            return;
        };
        for parked in std::mem::take(&mut pg.waiting) {
            self.unpark(&parked);
        }
    }

    fn lift_backoffs(&mut self, id: PgId, out: &mut Outbox) {
        let epoch = self.epoch();
        for (link, session) in &mut self.sessions {
            session.unblock(*link, id, epoch, out);
        }
    }

    /// Brings pgs into the shape that the map says, lets those go that are served elsewhere, and
    /// goes on with what waited for those that are served here.
    pub(super) fn settle(&mut self, now: Now, out: &mut Outbox) {
        if let Err(error) = self.reshape() {
            return self.fail(error, out);
        }
        self.find_leaving();
        self.release_pgs(out);
        let mut started: Vec<PgId> = Vec::new();
        for (id, pg) in &mut self.pgs {
            let active = pg.active();
            if active && !pg.running {
                started.push(*id);
            }
            pg.running = active;
        }
        // The same order whatever the table's.
        started.sort_unstable();
        for &id in &started {
            self.restart_watches(id, now);
            self.lift_backoffs(id, out);
            self.report_again(id);
        }
        self.report_trimmed();
        for &id in &started {
            self.take_waiting_for_pg(id, now, out);
        }
        if !started.is_empty() {
            self.start_trimming(now);
        }
    }
}

/// What of a pool, besides where its pgs are, begins a new interval
/// (`PastIntervals::is_new_interval`).
fn interval_shape(pool: &Pool) -> (u32, u8, u8) {
    (pool.pg_num, pool.size, pool.min_size)
}

/// For how many pgs the objects of a stored pg are sorted. It has given objects to all pgs split
/// from it that exist, in ascending order.
fn shape_of(id: PgId, pool: &Pool, known: &BTreeSet<PgId>) -> u32 {
    let last = PgId {
        pool: id.pool,
        seed: u32::MAX,
    };
    let top = known
        .range(id..=last)
        .next_back()
        .map_or(0, |pg| pg.seed + 1);
    let limit = pool.pg_num.max(top);
    let missing = |seed: &u32| {
        let child = PgId { seed: *seed, ..id };
        parent(*seed) == Some(id.seed) && !known.contains(&child)
    };
    (id.seed + 1..limit).find(missing).unwrap_or(limit)
}
