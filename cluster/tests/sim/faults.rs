//! What goes wrong, and what administrators do meanwhile.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use cluster::codec::{EntityAddr, EntityType, UTime};
use cluster::osdmap::osd::{IN, MAX_PRIMARY_AFFINITY, state};
use cluster::osdmap::pool::flag as pool_flag;
use cluster::osdmap::{Incremental, Pg, Pool, flag};

use super::maps::POOL;
use super::world::{Ev, MS, SECOND, Server, World};

impl World {
    pub(crate) fn fault(&mut self) {
        if !self.faulty {
            return;
        }
        let next = self.after(0, 2 * self.plan.fault_every);
        self.at(next, Ev::Fault);
        let kind = self.rng.below(24);
        self.note("fault", kind, 0);
        let osd = self.rng.index(self.osds.len());
        match kind {
            0..6 => {
                if let Some(link) = self.any_link() {
                    self.cut(link);
                }
            }
            6 => {
                if let Some(link) = self.any_link() {
                    self.links.get_mut(&link).expect("it was picked").stalled = true;
                }
            }
            7 => self.kill(osd),
            8 => self.mark_down(osd),
            9 => self.mon_stop(),
            10 | 11 => self.place_elsewhere(),
            12 => self.upmap(),
            13 => {
                let affinity = self
                    .rng
                    .pick(&[0, MAX_PRIMARY_AFFINITY / 2, MAX_PRIMARY_AFFINITY]);
                self.publish(Incremental {
                    new_primary_affinity: BTreeMap::from([(osd as i32, affinity)]),
                    ..Incremental::default()
                });
            }
            14 => self.split(),
            15 | 16 if self.plan.pauses => self.pause(),
            17 | 18 if self.plan.pauses => self.change_pool(|pool| pool.flags ^= pool_flag::FULL),
            19 => {
                let weight = self.rng.pick(&[0, IN / 2, IN, IN]);
                self.publish(Incremental {
                    new_weight: BTreeMap::from([(osd as i32, weight)]),
                    ..Incremental::default()
                });
            }
            20 => {
                let epoch = self.maps.newest() + 1;
                self.change_pool(|pool| pool.last_force_op_resend = epoch);
            }
            21 => {
                let addr = SocketAddr::from(([10, 66, 0, osd as u8], 0));
                let until = UTime::from_nanos(self.now().wall + 3600 * SECOND);
                self.publish(Incremental {
                    new_blocklist: vec![(EntityAddr::msgr2(addr, 5), until)],
                    ..Incremental::default()
                });
            }
            22 => {
                let newest = self.maps.newest();
                let from = self.maps.trimmed_to;
                self.maps.trimmed_to += self.rng.below(u64::from(newest - from) + 1) as u32;
            }
            _ => self.publish(Incremental::default()),
        }
    }

    fn any_link(&mut self) -> Option<u64> {
        let all: Vec<u64> = self.links.keys().copied().collect();
        (!all.is_empty()).then(|| self.rng.pick(&all))
    }

    /// The monitors commit a change; it spreads.
    fn publish(&mut self, inc: Incremental) {
        self.maps.commit(inc);
        self.spread();
    }

    fn spread(&mut self) {
        let epoch = self.maps.newest();
        self.note("epoch", epoch.into(), 0);
        for mon in 0..self.mons.len() {
            if self.mons[mon].alive {
                let at = self.after(0, 300 * MS);
                self.at(at, Ev::MonMap { mon, epoch });
            }
        }
        for osd in 0..self.osds.len() {
            let lag = if self.faulty && self.rng.one_in(5) {
                4 * SECOND
            } else {
                300 * MS
            };
            let at = self.after(0, lag);
            let run = self.osds[osd].run;
            self.at(at, Ev::OsdMap { osd, run, epoch });
        }
    }

    fn change_pool(&mut self, change: impl FnOnce(&mut Pool)) {
        let mut pool = self.maps.latest().pool(POOL).expect("the pool").clone();
        change(&mut pool);
        self.publish(Incremental {
            new_pools: BTreeMap::from([(POOL, pool)]),
            ..Incremental::default()
        });
    }

    fn split(&mut self) {
        let more = self.rng.within(1..5) as u32;
        let follows = self.rng.one_in(2);
        self.change_pool(|pool| {
            pool.pg_num = (pool.pg_num + more).min(24);
            pool.pg_num_target = pool.pg_num;
            pool.pg_num_pending = pool.pg_num;
            if follows {
                pool.pgp_num = pool.pg_num;
                pool.pgp_num_target = pool.pg_num;
            }
        });
    }

    fn pause(&mut self) {
        let bit = self
            .rng
            .pick(&[flag::PAUSERD, flag::PAUSEWR, flag::PAUSERD | flag::PAUSEWR]);
        self.publish(Incremental {
            new_flags: Some(self.maps.latest().flags() ^ bit),
            ..Incremental::default()
        });
    }

    fn any_pg(&mut self) -> Pg {
        let pg_num = self.maps.pg_num(self.maps.newest());
        Pg {
            pool: POOL,
            seed: self.rng.below(pg_num.into()) as u32,
        }
    }

    /// Another acting set or primary for the time being.
    fn place_elsewhere(&mut self) {
        let pg = self.any_pg();
        let map = self.maps.latest().clone();
        let mut inc = Incremental::default();
        if map.pg_temp().contains_key(&pg) && self.rng.one_in(2) {
            inc.new_pg_temp.insert(pg, Vec::new());
        } else if self.rng.one_in(3) {
            let up = map.map_pg(pg).up;
            let to = if up.is_empty() {
                -1
            } else {
                self.rng.pick(&up)
            };
            inc.new_primary_temp.insert(pg, to);
        } else {
            let mut from: Vec<i32> = (0..self.osds.len() as i32)
                .filter(|&o| map.is_up(o))
                .collect();
            let size = usize::from(map.pool(POOL).expect("the pool").size);
            let mut to = Vec::new();
            while to.len() < size && !from.is_empty() {
                let i = self.rng.index(from.len());
                to.push(from.swap_remove(i));
            }
            inc.new_pg_temp.insert(pg, to);
        }
        self.publish(inc);
    }

    fn upmap(&mut self) {
        let pg = self.any_pg();
        let mut inc = Incremental::default();
        if self.maps.latest().pg_upmap_items().contains_key(&pg) {
            inc.old_pg_upmap_items.push(pg);
        } else {
            let n = self.osds.len() as u64;
            let (from, to) = (self.rng.below(n) as i32, self.rng.below(n) as i32);
            inc.new_pg_upmap_items.insert(pg, vec![(from, to)]);
        }
        self.publish(inc);
    }

    // ---- monitors ----

    fn mon_stop(&mut self) {
        let mon = self.rng.index(self.mons.len());
        if !std::mem::replace(&mut self.mons[mon].alive, false) {
            return;
        }
        self.cut_all(Server::Mon(mon));
        let at = self.after(SECOND, 20 * SECOND);
        self.at(at, Ev::MonStart(mon));
    }

    pub(crate) fn mon_start(&mut self, mon: usize) {
        self.mons[mon].alive = true;
        self.mon_learns(mon, self.maps.newest());
    }

    // ---- OSDs ----

    fn stop(&mut self, osd: usize) {
        let o = &mut self.osds[osd];
        o.alive = false;
        o.booted = false;
        o.run += 1;
        o.pgs.clear();
        o.waiting.clear();
        self.cut_all(Server::Osd(osd));
    }

    fn kill(&mut self, osd: usize) {
        if !self.osds[osd].alive {
            return;
        }
        self.note("kill", osd as u64, 0);
        self.stop(osd);
        let run = self.osds[osd].run;
        let seen = self.after(500 * MS, 6 * SECOND);
        self.at(seen, Ev::OsdDown { osd, run });
        let back = self.after(SECOND, 15 * SECOND);
        self.at(back, Ev::OsdStart { osd, run });
    }

    pub(crate) fn restart(&mut self, osd: usize) {
        self.stop(osd);
        let run = self.osds[osd].run;
        let back = self.after(100 * MS, 3 * SECOND);
        self.at(back, Ev::OsdStart { osd, run });
    }

    /// The monitors take an OSD for dead that is alive.
    fn mark_down(&mut self, osd: usize) {
        let o = &self.osds[osd];
        if o.alive && o.booted && self.maps.latest().is_up(osd as i32) {
            self.flip_up(osd);
        }
    }

    fn flip_up(&mut self, osd: usize) {
        self.publish(Incremental {
            new_state: BTreeMap::from([(osd as i32, state::UP)]),
            ..Incremental::default()
        });
    }

    pub(crate) fn osd_down(&mut self, osd: usize, run: u64) {
        let o = &self.osds[osd];
        if o.run == run && !o.alive && self.maps.latest().is_up(osd as i32) {
            self.flip_up(osd);
        }
    }

    pub(crate) fn osd_start(&mut self, osd: usize, run: u64) {
        if self.osds[osd].run != run || self.osds[osd].alive {
            return;
        }
        if self.maps.latest().is_up(osd as i32) {
            self.flip_up(osd);
        }
        let epoch = self.maps.newest();
        let secrets = self.keys.service_secrets(EntityType::OSD);
        let o = &mut self.osds[osd];
        o.alive = true;
        o.nonce += 1;
        let port = 6800 + (o.nonce % 100) as u16;
        o.addr.set_port(port);
        o.epoch = epoch;
        o.secrets = secrets;
        let addrs = o.addrs();
        self.publish(Incremental {
            new_up_client: BTreeMap::from([(osd as i32, addrs)]),
            ..Incremental::default()
        });
    }

    /// From here on nothing goes wrong, and what was wrong is mended.
    pub(crate) fn calm(&mut self) {
        self.faulty = false;
        self.note("calm", 0, 0);
        let map = self.maps.latest().clone();
        for mon in 0..self.mons.len() {
            self.mon_start(mon);
        }
        let mut pool = map.pool(POOL).expect("the pool").clone();
        pool.flags &= !pool_flag::FULL;
        let all = 0..self.osds.len() as i32;
        self.publish(Incremental {
            new_flags: Some(map.flags() & !(flag::PAUSERD | flag::PAUSEWR)),
            new_pools: BTreeMap::from([(POOL, pool)]),
            new_weight: all.map(|osd| (osd, IN)).collect(),
            new_pg_temp: map.pg_temp().keys().map(|&pg| (pg, Vec::new())).collect(),
            new_primary_temp: map.primary_temp().keys().map(|&pg| (pg, -1)).collect(),
            old_pg_upmap_items: map.pg_upmap_items().keys().copied().collect(),
            ..Incremental::default()
        });
    }
}
