//! OSDs: which requests they take, hold back, drop and repeat the answer of. The rules are those of
//! `PG::can_discard_op`, `PrimaryLogPG::do_request` and `PrimaryLogPG::do_op`.
//!
//! A pg's objects are there for every OSD that serves it: replication is not what is simulated. In
//! its place only the interval that was activated last can carry out requests, as only that has the
//! replicas' consent.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use cluster::auth::server::RotatingSecrets;
use cluster::codec::{EntityAddr, EntityAddrVec};
use cluster::objecter::msg::{
    BackoffOp, EVersion, HObject, HObjectRef, MOsdBackoff, MOsdMap, MOsdOp, MOsdOpReply, NO_SHARD,
    NOSNAP, OSD_BACKOFF, OSD_MAP, OSD_OP, OSD_OPREPLY, OpCode, OsdFlags, OsdOp, PgId, SpgId,
    WireList,
};
use cluster::osdmap::flag;

use super::maps::POOL;
use super::server::Received;
use super::store::{self, Outcome};
use super::world::{Applied, Ev, MS, Server, World};

const EAGAIN: i32 = 11;

/// A request that has arrived.
#[derive(Debug, Clone)]
pub(crate) struct Op {
    pub(crate) link: u64,
    pub(crate) gid: u64,
    pub(crate) tid: u64,
    pgid: SpgId,
    hash: u32,
    epoch: u32,
    flags: OsdFlags,
    retry: i32,
    pub(crate) oid: Vec<u8>,
    pub(crate) ops: Vec<(OsdOp, Vec<u8>)>,
}

impl Op {
    fn pg(&self) -> u32 {
        self.pgid.pg.seed
    }

    fn replica_read(&self) -> bool {
        let replicas = OsdFlags::BALANCE_READS | OsdFlags::LOCALIZE_READS;
        self.flags.has(replicas)
    }

    fn object(&self) -> HObjectRef<'_> {
        HObjectRef::head(POOL, b"", b"", &self.oid, self.hash)
    }
}

/// What an OSD remembers of a client's connection (`src/osd/Session.h`).
#[derive(Default)]
pub(crate) struct Session {
    /// The newest epoch that the client is known to have.
    projected: u32,
    backoffs: Vec<Backoff>,
    last_backoff: u64,
}

struct Backoff {
    id: u64,
    pg: u32,
    begin: HObject,
    end: HObject,
    acked: bool,
    /// Lifted before it was acknowledged.
    deleting: bool,
}

#[derive(Default)]
pub(crate) struct OsdPg {
    interval: u32,
    active: bool,
    queue: VecDeque<Op>,
    running: bool,
}

pub(crate) struct Osd {
    pub(crate) addr: SocketAddr,
    pub(crate) nonce: u32,
    pub(crate) alive: bool,
    /// The maps know of it.
    pub(crate) booted: bool,
    /// Counts restarts.
    pub(crate) run: u64,
    pub(crate) epoch: u32,
    pub(crate) secrets: RotatingSecrets,
    pub(crate) pgs: BTreeMap<u32, OsdPg>,
    /// Requests of a later epoch than ours.
    pub(crate) waiting: VecDeque<Op>,
}

impl Osd {
    pub(crate) fn addrs(&self) -> EntityAddrVec {
        EntityAddrVec(vec![EntityAddr::msgr2(self.addr, self.nonce)])
    }
}

fn spg(seed: u32) -> SpgId {
    let pg = PgId { pool: POOL, seed };
    SpgId {
        pg,
        shard: NO_SHARD,
    }
}

/// `pg_t::get_hobj_start` and `pg_t::get_hobj_end`.
fn bounds(seed: u32, pg_num: u32) -> (HObject, HObject) {
    let at = |hash: u32, snap: u64| HObjectRef {
        pool: POOL,
        hash,
        snap,
        ..HObjectRef::MIN
    };
    let p = u32::BITS - pg_num.leading_zeros();
    let half = 1 << (p - 1);
    let bits = if seed % half < pg_num % half {
        p
    } else {
        p - 1
    };
    let ones = u32::MAX.checked_shr(bits).unwrap_or(0);
    let end = match (seed.reverse_bits() | ones).checked_add(1) {
        Some(end) if pg_num > 1 => at(end.reverse_bits(), NOSNAP),
        _ => HObjectRef::MAX,
    };
    (at(seed, 0).into(), end.into())
}

impl World {
    pub(crate) fn osd_message(&mut self, osd: usize, link: u64, m: &Received) {
        match m.header.kind {
            OSD_OP => {
                let op = self.decode(link, m);
                self.conforms(osd, &op);
                self.note("op", op.tid, op.epoch.into());
                self.share_map(osd, link, op.epoch);
                let o = &mut self.osds[osd];
                let queued = o.waiting.iter().any(|w| w.link == link);
                if op.epoch > o.epoch || queued {
                    o.waiting.push_back(op);
                } else {
                    self.admit(osd, op);
                }
            }
            OSD_BACKOFF => {
                let b = MOsdBackoff::decode(&m.front).expect("a backoff's answer");
                assert_eq!(b.op, BackoffOp::AckBlock as u8);
                let Some(l) = self.links.get_mut(&link) else {
                    return;
                };
                let backoffs = &mut l.session.backoffs;
                backoffs.retain(|x| x.id != b.id || !x.deleting);
                for x in backoffs.iter_mut().filter(|x| x.id == b.id) {
                    assert_eq!((b.pgid, b.begin), (spg(x.pg), x.begin.as_ref()));
                    x.acked = true;
                }
            }
            kind => panic!("message {kind} to an OSD"),
        }
    }

    fn decode(&self, link: u64, m: &Received) -> Op {
        let op = MOsdOp::decode(m.header.version, &m.front).expect("a request");
        let ops = op.split(&m.data).map(|part| {
            let (op, data) = part.expect("the data suffices");
            (op, data.to_vec())
        });
        let peer = self.links[&link].peer.as_ref().expect("it just sent");
        assert_eq!(
            peer.conn.peer().num,
            peer.gid as i64,
            "ident without the global id"
        );
        Op {
            link,
            gid: peer.gid,
            tid: m.header.tid,
            pgid: op.pgid,
            hash: op.hash,
            epoch: op.epoch,
            flags: op.flags,
            retry: op.retry_attempt,
            oid: op.oid.to_vec(),
            ops: ops.collect(),
        }
    }

    /// What every client must keep to: a request goes where the map of its epoch says, and not
    /// while that map says to wait.
    fn conforms(&self, osd: usize, op: &Op) {
        let e = op.epoch;
        assert!(self.maps.has(e), "epoch {e} never was");
        let map = self.maps.map(e);
        let hash = map.object_to_pg(POOL, b"", b"", &op.oid).map(|pg| pg.seed);
        assert_eq!(hash, Some(op.hash), "wrong hash of {:?}", op.oid);
        assert_eq!(op.pgid, spg(self.maps.fold(op.hash, e)), "wrong pg");
        let info = self.maps.pg(op.pg(), e).expect("there is such a pg");
        let osd = osd as i32;
        let serves = match op.replica_read() {
            true => info.acting.contains(&osd) || info.primary == osd,
            false => info.primary == osd,
        };
        // Where nobody serves, a temporary primary may come and go unnoticed, as it does in Ceph
        // (`OSDMap::primary_changed_broken`); monitors soon drop it.
        assert!(
            serves || info.acting.is_empty(),
            "osd.{osd} does not serve in epoch {e}: {info:?}"
        );
        let (reads, writes) = (op.flags.has(OsdFlags::READ), op.flags.has(OsdFlags::WRITE));
        assert!(
            !(reads && map.has_flag(flag::PAUSERD)),
            "sent although reads are paused"
        );
        assert!(
            !(writes && map.has_flag(flag::PAUSEWR)),
            "sent although writes are paused"
        );
        let full = map
            .pool(POOL)
            .is_some_and(|p| p.has_flag(cluster::osdmap::pool::flag::FULL));
        assert!(!(writes && full), "written although the pool is full");
        assert_eq!(op.retry > 0, op.flags.has(OsdFlags::RETRY), "RETRY flag");
    }

    /// `OSDService::maybe_share_map`.
    fn share_map(&mut self, osd: usize, link: u64, theirs: u32) {
        let epoch = self.osds[osd].epoch;
        let Some(l) = self.links.get_mut(&link) else {
            return;
        };
        let known = l.session.projected.max(theirs);
        l.session.projected = known.max(epoch);
        let mut from = known + 1;
        while from <= epoch {
            let (front, last) = self.maps.message(from, epoch);
            let versions = (MOsdMap::VERSION, MOsdMap::COMPAT);
            self.send(link, OSD_MAP, versions, 0, &front, Vec::new());
            from = last + 1;
        }
    }

    /// `PG::can_discard_op` and the check for a full pool in `PrimaryLogPG::do_op`.
    fn discards(&self, osd: usize, op: &Op) -> bool {
        let alive = self.links.get(&op.link).is_some_and(|l| l.peer.is_some());
        let epoch = self.osds[osd].epoch;
        let Some(info) = self.maps.pg(op.pg(), epoch) else {
            return true;
        };
        let pool = self.maps.map(epoch).pool(POOL).expect("the pool is there");
        let primary = info.primary == osd as i32;
        !alive
            || op.epoch < info.primary_since
            || (op.replica_read() && !primary && op.epoch < info.interval)
            || op.epoch < pool.last_force_op_resend
            || op.epoch < info.split
            || (op.flags.has(OsdFlags::WRITE) && op.epoch < self.maps.marked_full(epoch))
    }

    fn admit(&mut self, osd: usize, op: Op) {
        if self.discards(osd, &op) {
            return;
        }
        let pg = op.pg();
        let epoch = self.osds[osd].epoch;
        let info = self.maps.pg(pg, epoch).expect("looked at before");
        let primary = info.primary == osd as i32;
        if !primary {
            if op.replica_read() && info.acting.contains(&(osd as i32)) {
                self.replica_read(osd, &op);
            }
            // Else misdirected: our map is newer, and the client will see why.
            return;
        }
        let session = &self.links[&op.link].session;
        let covers = |b: &Backoff| {
            let start = bounds(pg, 1).0;
            let at = |o: HObjectRef<'_>| o.within(&b.begin.as_ref(), &b.end.as_ref());
            b.pg == pg && (at(start.as_ref()) || at(op.object()))
        };
        if session.backoffs.iter().any(covers) {
            return;
        }
        let p = self.osds[osd].pgs.get(&pg).expect("the primary has it");
        if !p.active && self.plan.backoffs {
            let (begin, end) = bounds(pg, self.maps.pg_num(epoch));
            self.block(osd, op.link, pg, begin, end);
            return;
        }
        if p.active && self.plan.backoffs && self.faulty && self.rng.one_in(60) {
            // A degraded object: held back by itself, until it is recovered.
            let object: HObject = op.object().into();
            let id = self.block(osd, op.link, pg, object.clone(), object);
            let at = self.after(MS, 3000 * MS);
            self.at(at, Ev::Unblock { link: op.link, id });
            return;
        }
        let p = self.osds[osd].pgs.get_mut(&pg).expect("the primary has it");
        p.queue.push_back(op);
        self.kick(osd, pg);
    }

    fn replica_read(&mut self, osd: usize, op: &Op) {
        let epoch = self.osds[osd].epoch;
        let interval = self
            .maps
            .pg(op.pg(), epoch)
            .expect("looked at before")
            .interval;
        let serves = self.active.get(&op.pg()) == Some(&interval) && !self.rng.one_in(4);
        let outcome = if serves {
            let object = self.objects.entry(op.oid.clone()).or_default();
            store::execute(object, &op.ops)
        } else {
            Outcome {
                result: -EAGAIN,
                rvals: vec![0; op.ops.len()],
                outs: vec![Vec::new(); op.ops.len()],
            }
        };
        self.reply(osd, op, outcome);
    }

    /// Starts working on a pg's queue.
    fn kick(&mut self, osd: usize, pg: u32) {
        let run = self.osds[osd].run;
        let Some(p) = self.osds[osd].pgs.get_mut(&pg) else {
            return;
        };
        if p.active && !p.running && !p.queue.is_empty() {
            p.running = true;
            let at = self.after(0, self.plan.service);
            self.at(at, Ev::Run { osd, run, pg });
        }
    }

    /// Carries out the first request of a pg's queue.
    pub(crate) fn run_pg(&mut self, osd: usize, run: u64, pg: u32) {
        if self.osds[osd].run != run {
            return;
        }
        let Some(p) = self.osds[osd].pgs.get_mut(&pg) else {
            return;
        };
        p.running = false;
        // A later interval is active elsewhere: the replicas do not answer us any more.
        if !p.active || self.active.get(&pg) != Some(&p.interval) {
            return;
        }
        if let Some(op) = p.queue.pop_front()
            && !self.discards(osd, &op)
        {
            self.perform(osd, op);
        }
        self.kick(osd, pg);
    }

    fn perform(&mut self, osd: usize, op: Op) {
        let writes = op.ops.iter().any(|(o, _)| match o.code {
            OpCode::WATCH => o.watch().op != cluster::objecter::msg::WatchOp::Ping as u8,
            code => code.is_write(),
        });
        let reqid = (op.gid, op.tid);
        if writes && let Some(before) = self.done.get(&reqid) {
            let outcome = before.clone();
            self.note("dup", op.tid, 0);
            return self.reply(osd, &op, outcome);
        }
        let special = matches!(
            op.ops[0].0.code,
            OpCode::WATCH | OpCode::NOTIFY | OpCode::NOTIFY_ACK
        );
        let outcome = if special {
            self.watch_op(&op)
        } else {
            let object = self.objects.entry(op.oid.clone()).or_default();
            store::execute(object, &op.ops)
        };
        self.note("do", op.tid, outcome.result as u64);
        if writes {
            self.done.insert(reqid, outcome.clone());
            let applied = Applied {
                at: self.clock,
                gid: op.gid,
                tid: op.tid,
            };
            self.history
                .entry(op.oid.clone())
                .or_default()
                .push(applied);
        }
        self.reply(osd, &op, outcome);
    }

    fn reply(&mut self, osd: usize, op: &Op, outcome: Outcome) {
        let ops: Vec<OsdOp> = op
            .ops
            .iter()
            .zip(&outcome.outs)
            .map(|((o, _), out)| {
                let mut answered = *o;
                answered.payload_len = out.len() as u32;
                answered
            })
            .collect();
        let version = EVersion {
            epoch: self.osds[osd].epoch,
            version: self.done.len() as u64,
        };
        let mut front = Vec::new();
        MOsdOpReply {
            oid: &op.oid,
            pgid: op.pgid.pg,
            flags: MOsdOpReply::flags_for(op.flags, OsdFlags::ONDISK),
            result: outcome.result,
            bad_replay_version: version,
            epoch: self.osds[osd].epoch,
            ops: WireList::Native(&ops),
            retry_attempt: op.retry,
            rvals: WireList::Native(&outcome.rvals),
            replay_version: version,
            user_version: version.version,
            redirect: None,
            trace: [0; 24],
        }
        .encode(&mut front);
        let data = outcome.outs.concat();
        // Writes wait for the replicas; requests on one object are answered in their order.
        let soonest = self.after(0, self.plan.service);
        let last = self.last_reply.entry(op.oid.clone()).or_default();
        *last = soonest.max(*last + 1);
        let (at, link, tid) = (*last, op.link, op.tid);
        let kind = OSD_OPREPLY;
        let versions = (MOsdOpReply::VERSION, MOsdOpReply::COMPAT);
        self.at(
            at,
            Ev::Send {
                link,
                kind,
                versions,
                tid,
                front,
                data,
            },
        );
    }

    /// `PG::add_backoff`.
    fn block(&mut self, osd: usize, link: u64, pg: u32, begin: HObject, end: HObject) -> u64 {
        let l = self.links.get_mut(&link).expect("it just sent");
        l.session.last_backoff += 1;
        let id = l.session.last_backoff;
        let front = backoff(BackoffOp::Block, self.osds[osd].epoch, id, pg, &begin, &end);
        l.session.backoffs.push(Backoff {
            id,
            pg,
            begin,
            end,
            acked: false,
            deleting: false,
        });
        self.note("block", link, id);
        self.send_backoff(link, &front);
        id
    }

    fn send_backoff(&mut self, link: u64, front: &[u8]) {
        let versions = (MOsdBackoff::VERSION, MOsdBackoff::COMPAT);
        self.send(link, OSD_BACKOFF, versions, 0, front, Vec::new());
    }

    /// `PG::release_backoffs`, of those that `which` names.
    fn unblock(&mut self, osd: usize, which: impl Fn(u64, u64, u32) -> bool) {
        let epoch = self.osds[osd].epoch;
        let mut lifted = Vec::new();
        for (&link, l) in &mut self.links {
            if l.to != Server::Osd(osd) || l.peer.is_none() {
                continue;
            }
            for b in &mut l.session.backoffs {
                if !b.deleting && which(link, b.id, b.pg) {
                    b.deleting = true;
                    let front = backoff(BackoffOp::Unblock, epoch, b.id, b.pg, &b.begin, &b.end);
                    lifted.push((link, front));
                }
            }
            l.session.backoffs.retain(|b| !(b.deleting && b.acked));
        }
        for (link, front) in lifted {
            self.send_backoff(link, &front);
        }
    }

    /// The object of a backoff is recovered.
    pub(crate) fn lift(&mut self, link: u64, id: u64) {
        if let Some(Server::Osd(osd)) = self.links.get(&link).map(|l| l.to) {
            self.unblock(osd, |l, b, _| l == link && b == id);
        }
    }

    /// An OSD gets newer maps.
    pub(crate) fn osd_learns(&mut self, osd: usize, run: u64, epoch: u32) {
        let o = &self.osds[osd];
        if o.run != run || !o.alive || epoch <= o.epoch {
            return;
        }
        for e in o.epoch + 1..=epoch {
            self.osds[osd].epoch = e;
            let map = self.maps.map(e);
            let listed = map.osd_addrs(osd as i32) == Some(&self.osds[osd].addrs());
            if listed && map.is_up(osd as i32) {
                self.osds[osd].booted = true;
                self.pgs_change(osd, e);
            } else if self.osds[osd].booted {
                // Declared dead while alive: it comes back under another address.
                self.restart(osd);
                return;
            }
        }
        let mut waiting = std::mem::take(&mut self.osds[osd].waiting);
        while waiting.front().is_some_and(|op| op.epoch <= epoch) {
            let op = waiting.pop_front().expect("there is one");
            self.share_map(osd, op.link, op.epoch);
            self.admit(osd, op);
        }
        // Later ones of a connection wait behind its first that does.
        let o = &mut self.osds[osd];
        waiting.extend(o.waiting.drain(..));
        o.waiting = waiting;
    }

    pub(crate) fn pgs_change(&mut self, osd: usize, epoch: u32) {
        for pg in 0..self.maps.pg_num(epoch) {
            let info = self.maps.pg(pg, epoch).expect("below pg_num").clone();
            let o = &mut self.osds[osd];
            if info.primary != osd as i32 {
                if o.pgs.remove(&pg).is_some() {
                    self.unblock(osd, |_, _, p| p == pg);
                }
                continue;
            }
            let p = o.pgs.entry(pg).or_default();
            if p.interval == info.interval {
                continue;
            }
            p.interval = info.interval;
            p.active = false;
            self.unblock(osd, |_, _, p| p == pg);
            let members = info
                .acting
                .iter()
                .filter(|&&o| self.maps.map(epoch).is_up(o));
            let pool = self.maps.map(epoch).pool(POOL).expect("the pool is there");
            if members.count() < usize::from(pool.min_size) {
                continue;
            }
            let run = self.osds[osd].run;
            let at = self.after(MS, self.plan.peering);
            let interval = info.interval;
            self.at(
                at,
                Ev::Activate {
                    osd,
                    run,
                    pg,
                    interval,
                },
            );
        }
    }

    pub(crate) fn activate(&mut self, osd: usize, run: u64, pg: u32, interval: u32) {
        let o = &mut self.osds[osd];
        let Some(p) = o
            .pgs
            .get_mut(&pg)
            .filter(|p| o.run == run && p.interval == interval)
        else {
            return;
        };
        let active = self.active.entry(pg).or_default();
        if p.active || *active > interval {
            return;
        }
        *active = interval;
        p.active = true;
        let info = self.maps.pg(pg, o.epoch).expect("it serves it");
        if let Some((parent, since)) = info.parent {
            // The pg it was split from cannot go on as it was before.
            let active = self.active.entry(parent).or_default();
            *active = (*active).max(since);
        }
        self.note("active", pg.into(), interval.into());
        self.watches_moved(osd, pg);
        self.unblock(osd, |_, _, p| p == pg);
        self.kick(osd, pg);
    }
}

fn backoff(op: BackoffOp, epoch: u32, id: u64, pg: u32, begin: &HObject, end: &HObject) -> Vec<u8> {
    let mut front = Vec::new();
    MOsdBackoff {
        pgid: spg(pg),
        epoch,
        op: op as u8,
        id,
        begin: begin.as_ref(),
        end: end.as_ref(),
    }
    .encode(&mut front);
    front
}
