//! Clients' sessions: who they are, what they subscribed to, what they ask.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::auth::server::{MonAuth, Step};
use crate::codec::{EntityType, Now};
use crate::mon::message::{
    MConfig, MMonCommand, MMonCommandAck, MMonGetVersion, MMonGetVersionReply, MMonMap,
    MMonSubscribe, MMonSubscribeAck, MPoolOp, MPoolOpReply, Message, Paxos, SubscribeItem, pool_op,
};
use crate::mon::{AuthCiphers, MonInfo, MonMap, kind};
use crate::msgr::{self, MsgHeader};
use crate::osd::Peer;
use crate::osd::caps::{self, MonCaps};
use crate::payload::Payload;

use super::command::EACCES;
use super::usage::PoolUsage;
use super::wire::{self, MGetPoolStats, MStatfs, MStatfsReply};
use super::{Link, MAX_LINKS, Mon, Outbox};

/// `CEPH_FEATURE_MON_STATEFUL_SUB`: the client does not renew its subscriptions.
const STATEFUL_SUB: u64 = 1 << 57;
/// Most subscriptions of one client; there are a dozen names.
const MAX_SUBS: usize = 64;
/// Epochs of maps that do not change.
const FIXED_EPOCH: u64 = 1;
/// Pacific's `ceph::features::mon::get_persistent` (`src/mon/mon_types.h`): kraken, luminous, mimic,
/// osdmap-prune, nautilus, octopus, pacific, elector-pinging.
const MON_FEATURES: u64 = 0xff;

/// A step of a client's handshake.
#[derive(Debug, Clone, Copy)]
pub enum Ask<'a> {
    /// AUTH_REQUEST.
    Request {
        method: u32,
        modes: &'a [u32],
        payload: &'a [u8],
    },
    /// AUTH_REQUEST_MORE.
    More(&'a [u8]),
}

pub(super) struct Session {
    peer: Peer,
    pub(super) caps: MonCaps,
    /// First epoch that is lacking, and whether the client wants just one answer.
    osdmap: Option<(u32, bool)>,
    wants_config: bool,
    /// Told last.
    config: BTreeMap<String, String>,
    /// `kv:` prefixes.
    values: BTreeSet<String>,
    /// Version of the settings told last.
    settings: u64,
}

impl Session {
    pub(super) fn ip(&self) -> Option<IpAddr> {
        self.peer.addr().addr.map(|a| a.ip())
    }
}

impl Mon {
    /// A step of the handshake of a connection that is not open yet.
    pub fn authenticate(&mut self, link: Link, ask: Ask<'_>, now: Now) -> Step {
        let Mon {
            auths,
            keys,
            entropy,
            config,
            ..
        } = self;
        if auths.len() >= MAX_LINKS && !auths.contains_key(&link) {
            // The oldest handshake that has led to nothing makes room.
            let idle = auths
                .keys()
                .find(|l| !self.sessions.contains_key(l))
                .copied();
            idle.map(|l| auths.remove(&l));
        }
        let auth = auths
            .entry(link)
            .or_insert_with(|| MonAuth::new(config.policy.clone()));
        let mut step = match ask {
            Ask::Request {
                method,
                modes,
                payload,
            } => auth.request(keys, method, modes, payload, &mut **entropy),
            Ask::More(payload) => auth.more(keys, payload, now, &mut **entropy),
        };
        // A global id may not be given out twice, so it is saved before it is used.
        if self.keys.last_global_id() > self.saved_ids && self.save_keys().is_err() {
            step = Step::BadMethod {
                method: match ask {
                    Ask::Request { method, .. } => method,
                    Ask::More(_) => crate::auth::Method::Cephx.raw(),
                },
                result: -super::command::EIO,
                allowed_methods: Vec::new(),
                allowed_modes: Vec::new(),
            };
        }
        step
    }

    /// The handshake is done.
    pub fn opened(&mut self, link: Link, peer: Peer, _now: Now, _out: &mut Outbox) {
        let caps = match peer.caps.allow_all {
            true => MonCaps::all(),
            // What does not parse grants nothing.
            false => MonCaps::parse(peer.caps.text()).unwrap_or_default(),
        };
        let session = Session {
            peer,
            caps,
            osdmap: None,
            wants_config: false,
            config: BTreeMap::new(),
            values: BTreeSet::new(),
            settings: 0,
        };
        self.sessions.insert(link, session);
    }

    pub fn closed(&mut self, link: Link) {
        self.sessions.remove(&link);
        self.auths.remove(&link);
    }

    /// A message of an open session. One that cannot be read ends the session, as does any before
    /// `opened`.
    pub fn message(&mut self, link: Link, m: &msgr::Message<'_>, now: Now, out: &mut Outbox) {
        let known = self.sessions.contains_key(&link);
        if !known || self.handle(link, m, now, out).is_err() {
            out.close(link);
        }
    }

    fn handle(
        &mut self,
        link: Link,
        m: &msgr::Message<'_>,
        now: Now,
        out: &mut Outbox,
    ) -> crate::codec::Result<()> {
        let (version, tid, front) = (m.header.version, m.header.tid, m.front);
        match m.header.kind {
            kind::MON_GET_MAP => self.send_monmap(link, tid, out),
            kind::MON_SUBSCRIBE => {
                let ask = MMonSubscribe::decode(version, front)?;
                self.subscribe(link, ask, out);
            }
            kind::MON_GET_VERSION => {
                let ask = MMonGetVersion::decode(version, front)?;
                let (version, oldest) = match ask.what.as_str() {
                    "osdmap" => (self.maps.epoch().into(), self.maps.oldest().into()),
                    "monmap" | "mgrmap" | "fsmap" | "mdsmap" => (FIXED_EPOCH, FIXED_EPOCH),
                    // Ceph says nothing to an unknown name, and the client waits for ever.
                    _ => (0, 0),
                };
                let reply = MMonGetVersionReply {
                    handle: ask.handle,
                    version,
                    oldest,
                };
                send(link, tid, &reply, out);
            }
            kind::MON_COMMAND => {
                let ask = MMonCommand::decode(version, front)?;
                self.mon_command(link, tid, ask, m.data, now, out);
            }
            kind::COMMAND => self.tell(link, tid, m, now, out)?,
            kind::AUTH => self.renew(link, tid, front, now, out),
            kind::POOL_OP => {
                let ask = MPoolOp::decode(version, front)?;
                self.pool_op_message(link, tid, &ask, now, out);
            }
            kind::STATFS => {
                let ask = MStatfs::decode(version, front)?;
                self.statfs(link, tid, &ask, out);
            }
            kind::GET_POOL_STATS => {
                let ask = MGetPoolStats::decode(version, front)?;
                self.pool_stats(link, tid, &ask, out);
            }
            kind::PING => out.send(link, MsgHeader::new(kind::PING, 1, 1), |_| {}, []),
            // Clients' log lines, and whatever else needs no answer.
            _ => {}
        }
        Ok(())
    }

    fn reads(&self, link: Link, service: &str) -> bool {
        self.sessions
            .get(&link)
            .is_some_and(|s| s.caps.reads(service, s.ip()))
    }

    /// `Monitor::handle_subscribe`. What a client may not read is passed over in silence.
    fn subscribe(&mut self, link: Link, ask: MMonSubscribe, out: &mut Outbox) {
        let lasting = ask.what.values().any(|item| !item.onetime());
        for (what, item) in ask.what.into_iter().take(MAX_SUBS) {
            let service = match what.as_str() {
                "monmap" | "config" => None,
                "osdmap" => Some("osd"),
                w if w.starts_with("mdsmap") || w.starts_with("fsmap") => Some("mds"),
                w if w.starts_with("kv:") => Some("config-key"),
                _ => Some("mon"),
            };
            if service.is_none_or(|s| self.reads(link, s)) {
                self.subscribe_to(link, &what, item, out);
            }
        }
        let Some(session) = self.sessions.get(&link) else {
            return;
        };
        if lasting && session.peer.features & STATEFUL_SUB == 0 {
            let ack = MMonSubscribeAck {
                interval: 86_400,
                fsid: self.config.fsid,
            };
            send(link, 0, &ack, out);
        }
    }

    fn subscribe_to(&mut self, link: Link, what: &str, item: SubscribeItem, out: &mut Outbox) {
        let Some(session) = self.sessions.get_mut(&link) else {
            return;
        };
        let lacks_fixed = item.start <= FIXED_EPOCH;
        match what {
            "osdmap" => {
                let start = u32::try_from(item.start).unwrap_or(u32::MAX);
                session.osdmap = Some((start, item.onetime()));
                self.serve_osdmap(link, out);
            }
            "config" => {
                session.wants_config = true;
                session.settings = 0;
                self.serve_settings(link, true, out);
            }
            "monmap" if lacks_fixed => self.send_monmap(link, 0, out),
            "mgrmap" if lacks_fixed => {
                let header = MsgHeader::new(kind::MGR_MAP, 1, 1);
                out.send(link, header, |b| wire::put_empty_mgrmap(b, 1), []);
            }
            "servicemap" if lacks_fixed => {
                let header = MsgHeader::new(wire::SERVICE_MAP, 1, 1);
                out.send(link, header, wire::put_empty_servicemap, []);
            }
            "fsmap.user" if lacks_fixed => {
                let header = MsgHeader::new(wire::FS_MAP_USER, 1, 1);
                out.send(link, header, wire::put_empty_fsmap_user, []);
            }
            _ => {
                if let Some(prefix) = what.strip_prefix("kv:")
                    && session.values.len() < MAX_SUBS
                {
                    session.values.insert(prefix.to_owned());
                    session.settings = 0;
                    self.serve_settings(link, false, out);
                }
            }
        }
    }

    /// `OSDMonitor::check_osdmap_sub`.
    fn serve_osdmap(&mut self, link: Link, out: &mut Outbox) {
        let Some(session) = self.sessions.get_mut(&link) else {
            return;
        };
        let Some((start, onetime)) = session.osdmap else {
            return;
        };
        if start <= self.maps.epoch() {
            let next = self.maps.send(link, start, onetime, out);
            session.osdmap = (!onetime).then_some((next, false));
        }
    }

    /// Options and stored values that the client does not have yet.
    fn serve_settings(&mut self, link: Link, always: bool, out: &mut Outbox) {
        let version = self.settings_version;
        let Some(session) = self.sessions.get_mut(&link) else {
            return;
        };
        if session.settings == version {
            return;
        }
        session.settings = version;
        if session.wants_config {
            let name = &session.peer.auth;
            let config = super::command::options_of(&self.options, name);
            if always || config != session.config {
                session.config.clone_from(&config);
                send(link, 0, &MConfig { config }, out);
            }
        }
        for prefix in &session.values {
            let entries: Vec<_> = self
                .values
                .range(prefix.clone()..)
                .take_while(|(key, _)| key.starts_with(prefix.as_str()))
                .collect();
            let header = MsgHeader::new(wire::KV_DATA, 1, 1);
            out.send(
                link,
                header,
                |b| wire::put_kv_data(b, version, prefix, entries.into_iter()),
                [],
            );
        }
    }

    /// Tells subscribers what has changed.
    pub(super) fn publish(&mut self, out: &mut Outbox) {
        let (epoch, settings) = (self.maps.epoch(), self.settings_version);
        let behind: Vec<Link> = self
            .sessions
            .iter()
            .filter(|(_, s)| {
                s.osdmap.is_some_and(|(start, _)| start <= epoch)
                    || s.settings != settings && (s.wants_config || !s.values.is_empty())
            })
            .map(|(link, _)| *link)
            .collect();
        for link in behind {
            self.serve_osdmap(link, out);
            self.serve_settings(link, false, out);
        }
    }

    pub(super) fn monmap(&self) -> MonMap {
        let created = self.map().created();
        let info = MonInfo {
            addrs: self.config.addrs.clone(),
            ..MonInfo::default()
        };
        let keys = &self.config.keys;
        MonMap {
            fsid: self.config.fsid,
            epoch: FIXED_EPOCH as u32,
            last_changed: created,
            created,
            persistent_features: MON_FEATURES,
            ranks: vec![self.config.name.clone()],
            mons: [(self.config.name.clone(), info)].into(),
            min_mon_release: crate::osdmap::release::PACIFIC,
            strategy: 1,
            auth: Some(AuthCiphers {
                epoch: 1,
                service: keys.service_cipher.raw().into(),
                allowed: keys
                    .allowed_ciphers
                    .iter()
                    .map(|k| k.raw().into())
                    .collect(),
                preferred: self.config.key_type.raw().into(),
            }),
            ..MonMap::default()
        }
    }

    fn send_monmap(&self, link: Link, tid: u64, out: &mut Outbox) {
        let mut monmap = Vec::new();
        self.monmap().encode(&mut monmap);
        send(link, tid, &MMonMap { monmap }, out);
    }

    fn mon_command(
        &mut self,
        link: Link,
        tid: u64,
        ask: MMonCommand,
        input: &[u8],
        now: Now,
        out: &mut Outbox,
    ) {
        let (code, status, data) = if ask.fsid != self.config.fsid && ask.fsid != [0; 16] {
            (-EACCES, "wrong fsid".to_owned(), Vec::new())
        } else {
            self.run_command(Some(link), &ask.cmd.concat(), input, now)
        };
        self.publish(out);
        let ack = MMonCommandAck {
            paxos: Paxos {
                version: self.maps.epoch().into(),
                ..Paxos::default()
            },
            code,
            status,
            cmd: ask.cmd,
        };
        let header = MsgHeader {
            tid,
            ..header_of::<MMonCommandAck>()
        };
        let data = (!data.is_empty()).then(|| Payload::from(data));
        out.send(link, header, |front| ack.encode(front), data);
    }

    /// `ceph tell mon.a`: the same commands to this daemon (`MCommand`, `MCommandReply`).
    fn tell(
        &mut self,
        link: Link,
        tid: u64,
        m: &msgr::Message<'_>,
        now: Now,
        out: &mut Outbox,
    ) -> crate::codec::Result<()> {
        use crate::codec::{Put, Reader};
        let mut r = Reader::new(m.front);
        r.skip(16)?;
        let words = r.list(4, |r| Ok(r.string()?.to_owned()))?;
        let (code, status, data) = self.run_command(Some(link), &words.concat(), m.data, now);
        self.publish(out);
        let header = MsgHeader {
            tid,
            ..MsgHeader::new(kind::COMMAND_REPLY, 1, 1)
        };
        let data = (!data.is_empty()).then(|| Payload::from(data));
        out.send(
            link,
            header,
            |front| {
                front.put_i32(code);
                front.put_string(&status);
            },
            data,
        );
        Ok(())
    }

    /// New tickets for a client whose session goes on.
    fn renew(&mut self, link: Link, tid: u64, front: &[u8], now: Now, out: &mut Outbox) {
        let Mon {
            auths,
            keys,
            entropy,
            ..
        } = self;
        let Some(auth) = auths.get_mut(&link) else {
            out.close(link);
            return;
        };
        let (reply, result) = auth.renew(keys, front, now, &mut **entropy);
        let header = MsgHeader {
            tid,
            ..MsgHeader::new(kind::AUTH_REPLY, 1, 1)
        };
        out.send(link, header, |front| front.extend_from_slice(&reply), []);
        if result.is_err() {
            out.close(link);
        }
    }

    /// `OSDMonitor::enforce_pool_op_caps`: snapshots that clients number themselves are free to whom
    /// may write the pool's objects; all else needs write access to the map.
    fn may_change_pool(&self, link: Link, op: &MPoolOp) -> bool {
        let Some(session) = self.sessions.get(&link) else {
            return false;
        };
        let writes = |prefix: &str, args: &BTreeMap<String, String>| {
            session.caps.allows(&caps::Command {
                service: "osd",
                prefix,
                args,
                read: false,
                write: true,
                exec: false,
                peer: session.ip(),
            })
        };
        let unmanaged = [
            pool_op::CREATE_UNMANAGED_SNAP,
            pool_op::DELETE_UNMANAGED_SNAP,
        ];
        if !unmanaged.contains(&op.op) {
            return writes("", &BTreeMap::new());
        }
        let name = self.map().pool_name(op.pool.into());
        let args = name.map(|n| ("poolname".to_owned(), n.to_owned()));
        writes("osd pool op unmanaged-snap", &args.into_iter().collect())
            || self.osd_caps_write(&session.peer, name)
    }

    /// `is_unmanaged_snap_op_permitted` (`src/mon/OSDMonitor.cc`): the user's OSD caps decide.
    fn osd_caps_write(&self, peer: &Peer, pool: Option<&str>) -> bool {
        let mut caps = self.keys.users().caps(&peer.auth);
        let text = caps.find(|(service, _)| *service == "osd").map(|(_, t)| t);
        text.and_then(|t| caps::OsdCaps::parse(t).ok())
            .is_some_and(|caps| caps.writes_pool(pool))
    }

    fn pool_op_message(&mut self, link: Link, tid: u64, ask: &MPoolOp, now: Now, out: &mut Outbox) {
        let outcome = if ask.fsid != self.config.fsid {
            Err(-super::command::EINVAL)
        } else if !self.may_change_pool(link, ask) {
            Err(-super::command::EPERM)
        } else {
            self.pool_op(ask, now).map_err(|refusal| refusal.code)
        };
        self.publish(out);
        let epoch = self.maps.epoch();
        let reply = MPoolOpReply {
            paxos: Paxos {
                version: epoch.into(),
                ..Paxos::default()
            },
            fsid: self.config.fsid,
            code: outcome.as_ref().err().copied().unwrap_or(0),
            epoch,
            response: outcome.unwrap_or_default(),
        };
        send(link, tid, &reply, out);
    }

    fn statfs(&self, link: Link, tid: u64, ask: &MStatfs, out: &mut Outbox) {
        if !self.reads(link, "pg") || ask.fsid != self.config.fsid {
            return;
        }
        let pools: Vec<i64> = match ask.pool {
            Some(pool) => vec![pool],
            None => self.map().pools().map(|(id, _)| id).collect(),
        };
        let objects = pools.iter().map(|id| self.usage.pool(*id).objects).sum();
        let used = match ask.pool {
            Some(pool) => self.usage.pool(pool).bytes,
            None => self.usage.used(),
        };
        let (total, avail) = match ask.pool {
            Some(_) => (used + self.usage.available(), self.usage.available()),
            None => (self.usage.total(), self.usage.available()),
        };
        let reply = MStatfsReply {
            fsid: self.config.fsid,
            version: self.maps.epoch().into(),
            kb: total / 1024,
            kb_used: used / 1024,
            kb_avail: avail / 1024,
            objects,
        };
        send(link, tid, &reply, out);
    }

    fn pool_stats(&self, link: Link, tid: u64, ask: &MGetPoolStats, out: &mut Outbox) {
        if !self.reads(link, "pg") || ask.fsid != self.config.fsid {
            return;
        }
        // Pools that do not exist are left out.
        let stats: Vec<(String, PoolUsage)> = ask
            .pools
            .iter()
            .filter_map(|name| {
                let id = self.map().pool_by_name(name)?;
                Some((name.clone(), self.usage.pool(id)))
            })
            .collect();
        let header = MsgHeader {
            tid,
            ..MsgHeader::new(kind::GET_POOL_STATS_REPLY, 2, 1)
        };
        let version = self.maps.epoch().into();
        let fsid = self.config.fsid;
        out.send(
            link,
            header,
            |b| wire::put_pool_stats(b, &fsid, version, &stats),
            [],
        );
    }

    /// Clients with an open session, for `features` and `sessions`.
    pub(super) fn client_count(&self) -> usize {
        self.sessions
            .values()
            .filter(|s| s.peer.name.kind == EntityType::CLIENT)
            .count()
    }
}

fn header_of<M: Message>() -> MsgHeader {
    MsgHeader::new(M::KIND, M::VERSION, M::COMPAT)
}

fn send<M: Message>(link: Link, tid: u64, message: &M, out: &mut Outbox) {
    let header = MsgHeader {
        tid,
        ..header_of::<M>()
    };
    out.send(link, header, |front| message.encode(front), []);
}
