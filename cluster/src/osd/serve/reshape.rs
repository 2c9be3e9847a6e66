//! Splitting, merging, and handing pgs over.
//!
//! Pgs are split and merged one at a time, as if the number of pgs had changed by one: whatever was
//! done before a crash is the exact shape of some number of pgs, and can be told from which pgs
//! exist. A pg that was on its way while its pool changed catches up when it arrives.

use crate::codec::Now;
use crate::objecter::msg::PgId;

use super::super::outbox::Outbox;
use super::super::pg::{Pg, Place, parent, root};
use super::super::store::{Store, StoreError};
use super::{DetachedPg, Osd, OsdEvent};

impl<S: Store> Osd<S> {
    /// A pg that another OSD has released to this one.
    pub fn adopt(&mut self, id: PgId, state: DetachedPg<S>, now: Now, out: &mut Outbox) {
        if self.failed {
            return;
        }
        if let Err(error) = self.attach(id, state) {
            return self.fail(error, out);
        }
        if self.map.is_some() {
            self.settle(now, out);
            self.commit(now, out);
        }
    }

    fn attach(&mut self, id: PgId, state: DetachedPg<S>) -> Result<(), StoreError> {
        self.store.attach_pg(id, state.objects)?;
        if self.map.as_ref().is_some_and(|m| m.pool(id.pool).is_none()) {
            // The pool was deleted meanwhile.
            return self.store.remove_pg(id);
        }
        let pg = self
            .pgs
            .entry(id)
            .or_insert_with(|| Pg::new(Place::Here, state.pg_num, state.epoch));
        pg.place = Place::Here;
        pg.parts = state.parts;
        pg.is_part = state.is_part;
        (pg.pg_num, pg.shaped) = (state.pg_num, state.shaped);
        pg.not_before = state.epoch;
        pg.split = pg.split.max(state.split);
        pg.marked_full = pg.marked_full.max(state.marked_full);
        pg.served.add(state.served);
        pg.last_seq = 0;
        pg.load(self.store.pg_state(id)?);
        Ok(())
    }

    /// Splits and merges whatever is not in the shape of the newest map.
    pub(super) fn reshape(&mut self) -> Result<(), StoreError> {
        let mut todo: Vec<PgId> = self
            .pgs
            .iter()
            .filter(|(id, pg)| pg.place == Place::Here && (pg.is_part || self.is_behind(id, pg)))
            .map(|(id, _)| *id)
            .collect();
        todo.sort_unstable();
        while let Some(id) = todo.pop() {
            while self.next_shape(id, &mut todo)? {}
            if let Some(into) = self.merge(id)? {
                todo.push(into);
                // Its next smaller part may have waited for this one.
                let next = self.pgs.get(&into).and_then(|pg| pg.parts.last().copied());
                todo.extend(next);
            }
        }
        Ok(())
    }

    fn is_behind(&self, id: &PgId, pg: &Pg) -> bool {
        let last = self.shapes.get(&id.pool).and_then(|s| s.last());
        last.is_some_and(|(epoch, _)| *epoch > pg.shaped)
    }

    /// Brings a pg to the next number of pgs that its pool has had; false when there is none, or
    /// when it first needs pgs that were merged into it.
    fn next_shape(&mut self, id: PgId, todo: &mut Vec<PgId>) -> Result<bool, StoreError> {
        let Some(pg) = self.pgs.get_mut(&id) else {
            return Ok(false);
        };
        if pg.place != Place::Here || pg.is_part || !pg.parts.is_empty() {
            return Ok(false);
        }
        let shapes = self.shapes.get(&id.pool).map_or(&[][..], Vec::as_slice);
        let next = shapes.iter().find(|(epoch, _)| *epoch > pg.shaped);
        let Some(&(epoch, pg_num)) = next else {
            return Ok(false);
        };
        let had = pg.pg_num;
        let before = pg.shaped;
        (pg.shaped, pg.pg_num) = (epoch, pg_num);
        if had == pg_num {
            return Ok(true);
        }
        pg.running = false;
        let (last_seq, marked_full) = (pg.last_seq, pg.marked_full);
        let child_of = |seed: &u32| parent(*seed) == Some(id.seed);
        let child = |seed| PgId { seed, ..id };
        if pg_num < had {
            let parts = (pg_num..had).filter(child_of).map(child);
            pg.parts = parts.collect();
            pg.is_part = id.seed >= pg_num;
            // Parts that are here already can be taken up.
            todo.extend(&pg.parts);
            return Ok(true);
        }
        let children: Vec<u32> = (had..pg_num).filter(child_of).collect();
        if !children.is_empty() {
            // Clients send requests again for pgs that were split, and for no others.
            pg.split = epoch;
        }
        for seed in children {
            self.store.move_objects(id, child(seed), seed + 1)?;
            let state = self.store.pg_state(child(seed))?;
            let to = self
                .pgs
                .entry(child(seed))
                .or_insert_with(|| Pg::new(Place::Here, seed + 1, epoch));
            to.place = Place::Here;
            // It goes on from here by itself.
            (to.pg_num, to.shaped) = (seed + 1, before);
            to.split = epoch;
            to.marked_full = to.marked_full.max(marked_full);
            to.last_seq = last_seq;
            to.load(state);
            todo.push(child(seed));
        }
        Ok(true)
    }

    /// Merges a part into the pg that it was once split from, where both are here. Larger parts
    /// first: they would be split off last.
    fn merge(&mut self, id: PgId) -> Result<Option<PgId>, StoreError> {
        let Some(part) = self.pgs.get(&id) else {
            return Ok(None);
        };
        if part.place != Place::Here || !part.is_part || !part.parts.is_empty() {
            return Ok(None);
        }
        let (last_seq, shaped, served) = (part.last_seq, part.shaped, part.served);
        let Some(seed) = parent(id.seed) else {
            return Ok(None);
        };
        let into = PgId { seed, ..id };
        let Some(target) = self.pgs.get_mut(&into) else {
            return Ok(None);
        };
        let turn = target.parts.last().is_none_or(|last| *last == id);
        if target.place != Place::Here || target.shaped < shaped || !turn {
            return Ok(None);
        }
        self.store.move_objects(id, into, id.seed)?;
        self.store.remove_pg(id)?;
        let state = self.store.pg_state(into)?;
        target.parts.remove(&id);
        target.last_seq = target.last_seq.max(last_seq);
        target.running = false;
        target.served.add(served);
        target.load(state);
        self.vacate(id);
        Ok(Some(into))
    }

    /// The objects of a pg are here no longer. Where the newest map has us serve a pg of that number
    /// it is awaited again: it will come out of those that it was merged into.
    fn vacate(&mut self, id: PgId) -> Option<Pg> {
        let mut gone = self.pgs.remove(&id)?;
        if gone.acting {
            let mut next = Pg::new(Place::Awaited, gone.pg_num, gone.shaped);
            next.acting = true;
            next.primary_since = gone.primary_since;
            next.interval_since = gone.interval_since;
            next.marked_full = gone.marked_full;
            next.waiting = std::mem::take(&mut gone.waiting);
            self.pgs.insert(id, next);
        }
        Some(gone)
    }

    /// Where a pg that is here belongs.
    fn destination(&self, id: &PgId, pg: &Pg) -> i32 {
        // A part goes where it is to be merged, and what is to become a part of a part follows.
        let into = if pg.is_part {
            root(id.seed, pg.pg_num)
        } else {
            id.seed
        };
        let newest = self.shapes.get(&id.pool).and_then(|s| s.last());
        let seed = newest.map_or(into, |(_, pg_num)| root(into, *pg_num));
        self.acting
            .get(&PgId { seed, ..*id })
            .copied()
            .unwrap_or(-1)
    }

    pub(super) fn find_leaving(&mut self) {
        let epoch = self.epoch();
        self.leaving.clear();
        for (id, pg) in &self.pgs {
            let to = self.destination(id, pg);
            let elsewhere = to >= 0 && to != self.config.id;
            if pg.place == Place::Here && elsewhere && pg.not_before <= epoch {
                self.leaving.push((*id, to));
            }
        }
        self.leaving.sort_unstable();
    }

    /// Lets pgs go whose transactions are durable.
    pub(super) fn release_pgs(&mut self, out: &mut Outbox) {
        let mut i = 0;
        while let Some(&(id, to)) = self.leaving.get(i) {
            let durable = |pg: &Pg| pg.last_seq <= self.committed.max(self.store.committed());
            if !self.pgs.get(&id).is_some_and(durable) {
                i += 1;
                continue;
            }
            self.leaving.remove(i);
            let Some(pg) = self.vacate(id) else {
                continue;
            };
            let objects = match self.store.detach_pg(id) {
                Ok(objects) => objects,
                Err(error) => return self.fail(error, out),
            };
            let state = DetachedPg {
                objects,
                epoch: self.epoch(),
                parts: pg.parts,
                is_part: pg.is_part,
                pg_num: pg.pg_num,
                shaped: pg.shaped,
                split: pg.split,
                marked_full: pg.marked_full,
                served: pg.served,
            };
            self.events
                .push_back(OsdEvent::Released { pg: id, to, state });
        }
    }
}
