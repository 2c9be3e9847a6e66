//! The monitor and our own client's side of it, and commands' shapes.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::auth::{self, Client, ClientConfig, ConMode, Method};
use crate::codec::{EntityAddr, EntityName};
use crate::mon::message::{
    MMonGetVersion, MMonGetVersionReply, MMonMap, MMonSubscribe, MPoolOp, MPoolOpReply, Message,
    SubscribeItem, pool_op,
};
use crate::mon::{Command, Incoming, MonAction, MonClient, kind};
use crate::msgr::{self, MsgHeader};
use crate::objecter::msg::{MOsdMap, OSD_MAP};
use crate::osd::Peer;
use crate::osd::outbox::Step as Sent;
use crate::osdmap::{Pg, flag, pool};
use crate::payload::Payload;

const FSID: [u8; 16] = [7; 16];
const SECOND: u64 = 1_000_000_000;

pub(super) fn config(osds: u32) -> MonConfig {
    MonConfig {
        fsid: FSID,
        name: "a".to_owned(),
        addrs: EntityAddrVec(vec![addr(3300, 0)]),
        host: "here".to_owned(),
        osds,
        device_class: "ssd".to_owned(),
        osd_weight: 0x10000,
        shared_store: false,
        pg_num: 32,
        policy: Policy {
            methods: vec![Method::Cephx],
            modes: vec![ConMode::Crc, ConMode::Secure],
        },
        keys: KeyServerConfig::default(),
        key_type: KeyType::Aes,
        version: "ceph version 16.2.15-ublk-rbd (test) pacific (stable)".to_owned(),
    }
}

pub(super) fn addr(port: u16, nonce: u32) -> EntityAddr {
    EntityAddr::msgr2(([127, 0, 0, 1], port).into(), nonce)
}

/// A stream that never repeats, from a seed.
pub(super) fn entropy(mut state: u64) -> EntropySource {
    Box::new(move |out| {
        for byte in out {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            *byte = (state >> 33) as u8;
        }
    })
}

#[derive(Debug, Clone)]
struct Got {
    link: Link,
    header: MsgHeader,
    front: Vec<u8>,
    data: Vec<u8>,
}

struct Bench {
    mon: Mon,
    now: u64,
    out: Outbox,
    links: u64,
    closed: Vec<Link>,
}

impl Bench {
    fn new(osds: u32) -> Bench {
        Bench::over(config(osds), Box::new(MemoryMonStore::new()))
    }

    fn over(config: MonConfig, store: Box<dyn MonStore>) -> Bench {
        let now = 1000 * SECOND;
        let at = Bench::moment(now);
        Bench {
            mon: Mon::new(config, store, at, entropy(1)).unwrap(),
            now,
            out: Outbox::new(),
            links: 0,
            closed: Vec::new(),
        }
    }

    fn moment(mono: u64) -> Now {
        Now {
            mono,
            wall: mono + 1_700_000_000 * SECOND,
        }
    }

    fn at(&self) -> Now {
        Bench::moment(self.now)
    }

    /// With every OSD up and in.
    fn booted(osds: u32) -> Bench {
        let mut b = Bench::new(osds);
        b.boot_all();
        b
    }

    fn boot_all(&mut self) {
        for id in 0..self.mon.map().max_osd() as u32 {
            let addrs = EntityAddrVec(vec![addr(6800 + id as u16, 1000 + id)]);
            let at = self.at();
            self.mon
                .osd_boot(id as i32, &addrs, at, &mut self.out)
                .unwrap();
        }
    }

    fn drain(&mut self) -> Vec<Got> {
        let mut got = Vec::new();
        let closed = &mut self.closed;
        self.out.drain(|link, step| match step {
            Sent::Send {
                header,
                front,
                data,
            } => got.push(Got {
                link,
                header: *header,
                front: front.to_vec(),
                data: data.iter().flat_map(|d| d.to_vec()).collect(),
            }),
            Sent::Close => closed.push(link),
        });
        got
    }

    fn tick(&mut self, seconds: u64) -> Vec<Got> {
        self.now += seconds * SECOND;
        let at = self.at();
        self.mon.tick(at, &mut self.out);
        self.drain()
    }

    /// A command of the administrator at the machine.
    fn run(&mut self, command: Value) -> (i32, String, Vec<u8>) {
        let at = self.at();
        self.mon
            .command(&command.to_string(), b"", at, &mut self.out)
    }

    fn ok(&mut self, command: Value) -> String {
        let (code, status, data) = self.run(command.clone());
        assert_eq!(code, 0, "{command}: {status}");
        String::from_utf8(data).unwrap()
    }

    fn json(&mut self, mut command: Value) -> Value {
        command["format"] = json!("json");
        let text = self.ok(command);
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
    }

    fn code(&mut self, command: Value) -> i32 {
        self.run(command).0
    }

    /// Logs in with our client's half of cephx.
    fn login(&mut self, client: &mut Client) -> Result<Link, auth::AuthError> {
        self.links += 1;
        let link = Link(self.links);
        let now = self.at();
        let mut hs = client.mon_handshake(&[self.links as u8; 40]);
        let mut request = hs.request();
        for _ in 0..4 {
            let modes = request.raw_modes();
            let ask = Ask::Request {
                method: request.method.raw(),
                modes: &modes,
                payload: &request.payload,
            };
            let mut step = self.mon.authenticate(link, ask, now);
            if let auth::server::Step::More(challenge) = &step {
                let answer = hs.more(challenge, now)?;
                step = self.mon.authenticate(link, Ask::More(&answer), now);
            }
            match step {
                auth::server::Step::BadMethod {
                    method,
                    result,
                    allowed_methods,
                    allowed_modes,
                } => request = hs.bad_method(method, result, &allowed_methods, &allowed_modes)?,
                auth::server::Step::More(_) => panic!("a second challenge"),
                auth::server::Step::Done(granted) => {
                    hs.done(
                        granted.global_id,
                        granted.con_mode.raw(),
                        &granted.payload,
                        now,
                    )?;
                    client.adopt(hs);
                    let peer = Peer {
                        name: EntityName::new(EntityType::CLIENT, granted.global_id as i64),
                        auth: granted.name.clone(),
                        addrs: EntityAddrVec(vec![addr(0, self.links as u32)]),
                        caps: granted.caps,
                        features: maps::FEATURES,
                    };
                    self.mon.opened(link, peer, now, &mut self.out);
                    return Ok(link);
                }
            }
        }
        panic!("no end of it");
    }

    fn client(&self, name: &AuthName) -> Client {
        let key = self.mon.keyring().get(name).cloned();
        Client::new(ClientConfig::new(name.clone(), key)).unwrap()
    }

    fn connect(&mut self, name: &str) -> Link {
        let mut client = self.client(&name.parse().unwrap());
        self.login(&mut client).unwrap()
    }

    fn send<M: Message>(&mut self, link: Link, tid: u64, message: &M) -> Vec<Got> {
        let mut front = Vec::new();
        message.encode(&mut front);
        let header = MsgHeader {
            tid,
            ..MsgHeader::new(M::KIND, M::VERSION, M::COMPAT)
        };
        self.raw(link, header, &front, b"")
    }

    fn raw(&mut self, link: Link, header: MsgHeader, front: &[u8], data: &[u8]) -> Vec<Got> {
        let message = msgr::Message {
            header,
            front,
            middle: b"",
            data,
        };
        let at = self.at();
        self.mon.message(link, &message, at, &mut self.out);
        self.drain()
    }

    fn ask<M: Message, R: Message>(&mut self, link: Link, message: &M) -> R {
        let got = self.send(link, 77, message);
        let reply = got
            .iter()
            .find(|g| g.header.kind == R::KIND && g.link == link);
        let reply = reply.expect("an answer");
        R::decode(reply.header.version, &reply.front).unwrap()
    }

    fn pool_op(&mut self, link: Link, pool: i64, op: u32, snapid: u64) -> MPoolOpReply {
        self.ask(
            link,
            &MPoolOp {
                fsid: FSID,
                pool: pool as u32,
                op,
                snapid,
                ..MPoolOp::default()
            },
        )
    }

    fn pool(&mut self, name: &str) -> i64 {
        self.ok(json!({"prefix": "osd pool create", "pool": name}));
        self.mon.map().pool_by_name(name).unwrap()
    }
}

fn subscribe(what: &str, start: u64, flags: u8) -> MMonSubscribe {
    MMonSubscribe {
        what: [(what.to_owned(), SubscribeItem { start, flags })].into(),
        hostname: String::new(),
    }
}

fn epochs(got: &[Got]) -> (Vec<u32>, Vec<u32>) {
    let mut all = (Vec::new(), Vec::new());
    for got in got.iter().filter(|g| g.header.kind == OSD_MAP) {
        let m = MOsdMap::decode(got.header.version, &got.front).unwrap();
        all.0.extend(m.incrementals.iter().map(|i| i.0));
        all.1.extend(m.full.iter().map(|i| i.0));
    }
    all
}

#[test]
fn a_new_cluster_has_its_osds_and_nothing_else() {
    let b = Bench::booted(3);
    let map = b.mon.map();
    assert_eq!(
        (map.osd_count(), map.up_osd_count(), map.pools().len()),
        (3, 3, 0)
    );
    assert!(map.has_flag(flag::SORTBITWISE));
    assert!((0..3).all(|id| !map.is_out(id)));
    assert_ne!(map.osd(0).unwrap().uuid, map.osd(1).unwrap().uuid);
}

#[test]
fn incrementals_lead_to_the_very_bytes_of_the_full_maps() {
    let mut b = Bench::booted(2);
    let id = b.pool("rbd");
    b.ok(json!({"prefix": "osd blocklist", "blocklistop": "add", "addr": "10.0.0.1:0/7"}));
    b.ok(json!({"prefix": "osd pool rename", "srcpool": "rbd", "destpool": "vms"}));
    b.ok(json!({"prefix": "osd set", "key": "noout"}));
    let mut map = None;
    let mut steps = 0;
    while let Some(event) = b.mon.poll_event() {
        let MonEvent::Map {
            epoch,
            map: ours,
            full,
            incremental,
        } = event
        else {
            continue;
        };
        assert_eq!(ours.epoch(), epoch);
        let decoded = OsdMap::decode(&full).unwrap();
        assert_eq!(decoded, *ours);
        if let Some(bytes) = incremental {
            let inc = Incremental::decode(&bytes).unwrap();
            let before: OsdMap = map.take().unwrap();
            let after = before.next(&inc).unwrap();
            assert_eq!(after.encode(), *full);
            assert_eq!(
                inc.full_crc,
                full.last_chunk().map(|c| u32::from_le_bytes(*c))
            );
            steps += 1;
        }
        map = Some(decoded);
    }
    assert_eq!(steps, 6);
    assert_eq!(b.mon.map().pool_name(id), Some("vms"));
}

#[test]
fn every_pg_of_a_pool_has_one_osd() {
    let mut b = Bench::booted(4);
    let id = b.pool("rbd");
    let mut seen = BTreeMap::new();
    for seed in 0..32 {
        let at = b.mon.map().map_pg(Pg { pool: id, seed });
        assert_eq!(at.acting.len(), 1);
        *seen.entry(at.acting[0]).or_insert(0) += 1;
    }
    assert_eq!(seen.len(), 4, "{seen:?}");
}

#[test]
fn our_own_client_connects_runs_commands_and_makes_snapshots() {
    let mut b = Bench::booted(1);
    let id = b.pool("rbd");
    let admin = AuthName::client("admin");
    let mut auth = b.client(&admin);
    let config = crate::mon::MonConfig::new(vec![b.mon.config.addrs.clone()], "node".into());
    let mut client = MonClient::new(config, 3);
    client.start(b.at());
    let (mut link, mut attempt_open) = (Link(0), 0);
    let mut seen = Vec::new();
    for round in 0..30 {
        while let Some(action) = client.poll() {
            match action {
                MonAction::Dial { attempt, .. } => {
                    link = b.login(&mut auth).unwrap();
                    attempt_open = attempt;
                    client.dialed_ok(attempt, b.at());
                }
                MonAction::Send { message: m, .. } => {
                    let header = MsgHeader {
                        tid: m.tid,
                        ..MsgHeader::new(m.kind, m.version, m.compat)
                    };
                    for got in b.raw(link, header, &m.front, &m.data) {
                        let incoming = Incoming {
                            kind: got.header.kind,
                            version: got.header.version,
                            tid: got.header.tid,
                            front: &got.front,
                            data: &got.data,
                        };
                        client.message(attempt_open, &incoming, b.at()).unwrap();
                    }
                }
                MonAction::Hangup { .. } | MonAction::Keepalive { .. } => {}
            }
        }
        while let Some(event) = client.poll_event() {
            seen.push(event);
        }
        if round == 1 {
            let fsid = Command::new("fsid").json();
            client.command(1, fsid, Payload::default(), b.at()).unwrap();
            client
                .pool_op(2, id as u32, pool_op::CREATE_UNMANAGED_SNAP, 0, b.at())
                .unwrap();
            client.get_version(3, "osdmap", b.at()).unwrap();
        }
    }
    use crate::mon::MonEvent as Event;
    assert!(seen.contains(&Event::Ready), "{seen:?}");
    assert!(
        seen.iter().any(|e| matches!(
            e,
            Event::CommandDone {
                token: 1,
                result: Ok(_)
            }
        )),
        "{seen:?}"
    );
    assert!(
        seen.iter().any(|e| matches!(
            e,
            Event::PoolOpDone {
                token: 2,
                result: Ok(_)
            }
        )),
        "{seen:?}"
    );
    assert!(
        seen.iter().any(|e| matches!(
            e,
            Event::Version {
                token: 3,
                result: Ok(_)
            }
        )),
        "{seen:?}"
    );
    let map = b.mon.map();
    assert_eq!(map.pool(id).unwrap().snap_seq, 2);
    assert!(map.pool(id).unwrap().is_unmanaged_snaps());
    // A ticket for the OSDs came with it.
    let request = auth.service_handshake(EntityType::OSD, &[9; 40]);
    assert!(request.is_ok());
}

#[test]
fn a_wrong_key_is_refused() {
    let mut b = Bench::new(1);
    let key = state::new_key(KeyType::Aes, b.at(), &mut |out| out.fill(3));
    let mut client = Client::new(ClientConfig::new(AuthName::client("admin"), Some(key))).unwrap();
    assert!(b.login(&mut client).is_err());
    let mut nobody = b.client(&AuthName::client("admin"));
    assert!(b.login(&mut nobody).is_ok());
}

#[test]
fn global_ids_are_not_given_out_twice_over_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Box::new(DirMonStore::open(dir.path()).unwrap());
    let mut last = 0;
    for _ in 0..3 {
        let mut b = Bench::over(config(1), open());
        for _ in 0..3 {
            let mut client = b.client(&AuthName::client("admin"));
            b.login(&mut client).unwrap();
            assert!(
                client.global_id() > last,
                "{} after {last}",
                client.global_id()
            );
            last = client.global_id();
        }
    }
}

#[test]
fn a_restart_brings_everything_back() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Box::new(DirMonStore::open(dir.path()).unwrap());
    let mut b = Bench::over(config(2), open());
    b.boot_all();
    let id = b.pool("rbd");
    b.ok(json!({"prefix": "auth get-or-create", "entity": "client.x", "caps": ["mon", "profile rbd"]}));
    b.ok(json!({"prefix": "config set", "who": "client", "name": "rbd cache", "value": "false"}));
    b.ok(json!({"prefix": "config-key set", "key": "k/1", "val": "v"}));
    let (epoch, keys) = (b.mon.map().epoch(), b.mon.keyring().to_text());
    drop(b);
    let mut b = Bench::over(config(2), open());
    let map = b.mon.map().clone();
    assert_eq!(
        map.epoch(),
        epoch + 1,
        "one epoch for all OSDs that went down"
    );
    assert_eq!((map.up_osd_count(), map.pool_by_name("rbd")), (0, Some(id)));
    assert!(!map.is_out(0));
    assert_eq!(*b.mon.keyring().to_text(), *keys);
    assert_eq!(b.ok(json!({"prefix": "config-key get", "key": "k/1"})), "v");
    assert_eq!(
        b.json(json!({"prefix": "config dump"}))[0]["name"],
        "rbd_cache"
    );
    b.boot_all();
    assert_eq!(b.mon.map().up_osd_count(), 2);
    // The same store is no other cluster's.
    let other = MonConfig {
        fsid: [8; 16],
        ..config(2)
    };
    let refused = Mon::new(other, open(), b.at(), entropy(1));
    assert!(matches!(refused, Err(MonStoreError::OtherCluster { .. })));
    // One OSD more, then fewer.
    drop(b);
    let mut b = Bench::over(config(3), open());
    b.boot_all();
    assert_eq!(
        (b.mon.map().osd_count(), b.mon.map().up_osd_count()),
        (3, 3)
    );
    drop(b);
    let b = Bench::over(config(1), open());
    assert_eq!(
        (b.mon.map().osd_count(), b.mon.map().crush().device_limit()),
        (1, 1)
    );
}

#[test]
fn subscribers_get_every_epoch_once() {
    let mut b = Bench::booted(1);
    let link = b.connect("client.admin");
    let first = b.mon.map().epoch();
    let got = b.send(link, 0, &subscribe("osdmap", 0, 0));
    assert_eq!(epochs(&got), (vec![], vec![first]));
    b.pool("a");
    b.pool("b");
    let got = b.drain();
    assert_eq!(epochs(&got), (vec![first + 1, first + 2], vec![]));
    // From an older one on: incrementals only.
    let other = b.connect("client.admin");
    let got = b.send(other, 0, &subscribe("osdmap", 2, SubscribeItem::ONETIME));
    assert_eq!(epochs(&got), ((2..=first + 2).collect(), vec![]));
    // Who has nothing gets the first map whole, then the rest.
    let got = b.send(other, 0, &subscribe("osdmap", 1, SubscribeItem::ONETIME));
    assert_eq!(epochs(&got), ((2..=first + 2).collect(), vec![1]));
    // Who is ahead waits for what comes.
    assert!(
        b.send(other, 0, &subscribe("osdmap", u64::from(first) + 3, 1))
            .is_empty()
    );
    b.pool("c");
    let got: Vec<Got> = b.drain().into_iter().filter(|g| g.link == other).collect();
    assert_eq!(epochs(&got), (vec![first + 3], vec![]));
    b.pool("d");
    let got: Vec<Got> = b.drain().into_iter().filter(|g| g.link == other).collect();
    assert!(got.is_empty(), "it asked once");
}

#[test]
fn old_epochs_are_forgotten_and_a_full_map_stands_in() {
    let mut b = Bench::booted(1);
    for n in 0..520 {
        let key = if n % 2 == 0 { "osd set" } else { "osd unset" };
        b.ok(json!({"prefix": key, "key": "noout"}));
    }
    let (oldest, newest) = (b.mon.maps.oldest(), b.mon.map().epoch());
    assert_eq!(newest - oldest + 1, 500);
    let link = b.connect("client.admin");
    let got = b.send(link, 0, &subscribe("osdmap", 1, 0));
    let (incrementals, full) = epochs(&got);
    assert_eq!(full, [oldest]);
    assert_eq!(incrementals, (oldest + 1..=newest).collect::<Vec<_>>());
    assert!(got.len() > 5, "in several messages");
    let reply: MMonGetVersionReply = b.ask(
        link,
        &MMonGetVersion {
            handle: 5,
            what: "osdmap".into(),
        },
    );
    assert_eq!(
        (reply.version, reply.oldest),
        (newest.into(), oldest.into())
    );
}

#[test]
fn maps_that_a_client_waits_for_are_sent() {
    let mut b = Bench::booted(1);
    let link = b.connect("client.admin");
    for (what, kind) in [
        ("monmap", kind::MON_MAP),
        ("config", kind::CONFIG),
        ("mgrmap", kind::MGR_MAP),
        ("servicemap", wire::SERVICE_MAP),
        ("fsmap.user", wire::FS_MAP_USER),
        ("kv:config/", wire::KV_DATA),
    ] {
        let got = b.send(link, 0, &subscribe(what, 0, 0));
        assert_eq!(got.len(), 1, "{what}");
        assert_eq!(got[0].header.kind, kind);
    }
    let map: MMonMap = b.ask(link, &crate::mon::message::MMonGetMap);
    let map = crate::mon::MonMap::decode(&map.monmap).unwrap();
    assert_eq!((map.fsid, map.mons.len()), (FSID, 1));
}

#[test]
fn options_reach_the_clients_they_are_for() {
    let mut b = Bench::booted(1);
    b.ok(json!({"prefix": "auth get-or-create", "entity": "client.x", "caps": ["mon", "allow r"]}));
    let (admin, x) = (b.connect("client.admin"), b.connect("client.x"));
    b.send(admin, 0, &subscribe("config", 0, 0));
    b.send(x, 0, &subscribe("config", 0, 0));
    b.ok(json!({"prefix": "config set", "who": "global", "name": "a", "value": "1"}));
    assert_eq!(b.drain().len(), 2);
    b.ok(json!({"prefix": "config set", "who": "client.x", "name": "a", "value": "2"}));
    let got = b.drain();
    assert_eq!(got.iter().map(|g| g.link).collect::<Vec<_>>(), [x]);
    let config = crate::mon::message::MConfig::decode(1, &got[0].front).unwrap();
    assert_eq!(config.config["a"], "2");
    assert_eq!(
        b.ok(json!({"prefix": "config get", "who": "client.x", "key": "a"})),
        "2\n"
    );
    b.ok(json!({"prefix": "config rm", "who": "client.x", "name": "a"}));
    assert_eq!(b.drain().len(), 1);
    assert_eq!(
        b.code(json!({"prefix": "config set", "who": "nobody", "name": "a", "value": "1"})),
        -22
    );
}

#[test]
fn removed_snapshots_are_purged_when_every_pg_has_trimmed_them() {
    let mut b = Bench::booted(1);
    b.ok(json!({"prefix": "osd pool create", "pool": "rbd", "pg_num": 4}));
    let id = b.mon.map().pool_by_name("rbd").unwrap();
    let link = b.connect("client.admin");
    for want in [2u64, 3, 4] {
        let reply = b.pool_op(link, id, pool_op::CREATE_UNMANAGED_SNAP, 0);
        assert_eq!(
            (reply.code, reply.response),
            (0, want.to_le_bytes().to_vec())
        );
    }
    assert_eq!(
        b.pool_op(link, id, pool_op::DELETE_UNMANAGED_SNAP, 9).code,
        -ENOENT_
    );
    let reply = b.pool_op(link, id, pool_op::DELETE_UNMANAGED_SNAP, 3);
    assert_eq!((reply.code, reply.epoch), (0, b.mon.map().epoch()));
    assert!(b.mon.map().new_removed_snaps()[&id].contains(3));
    // Again: nothing happens.
    let epoch = b.mon.map().epoch();
    assert_eq!(
        b.pool_op(link, id, pool_op::DELETE_UNMANAGED_SNAP, 3).code,
        0
    );
    assert_eq!(b.mon.map().epoch(), epoch);
    let mut snaps = SnapIntervals::default();
    snaps.insert(3, 1);
    for seed in 0..3 {
        b.mon.pg_trimmed(Pg { pool: id, seed }, 9, &snaps);
    }
    b.tick(2);
    assert!(b.mon.map().removed_snaps_queue()[&id].contains(3));
    b.mon.pg_trimmed(Pg { pool: id, seed: 3 }, 9, &snaps);
    b.tick(2);
    assert!(b.mon.map().removed_snaps_queue().is_empty());
    // It stays removed.
    let epoch = b.mon.map().epoch();
    assert_eq!(
        b.pool_op(link, id, pool_op::DELETE_UNMANAGED_SNAP, 3).code,
        0
    );
    assert_eq!(b.mon.map().epoch(), epoch);
}

const ENOENT_: i32 = 2;

#[test]
fn reports_of_groups_that_were_split_or_merged_do_not_count() {
    let mut b = Bench::booted(1);
    b.ok(json!({"prefix": "osd pool create", "pool": "rbd", "pg_num": 4}));
    let id = b.mon.map().pool_by_name("rbd").unwrap();
    let link = b.connect("client.admin");
    b.pool_op(link, id, pool_op::CREATE_UNMANAGED_SNAP, 0);
    b.pool_op(link, id, pool_op::DELETE_UNMANAGED_SNAP, 2);
    let mut snaps = SnapIntervals::default();
    snaps.insert(2, 1);
    let before = b.mon.map().epoch();
    let tell = |b: &mut Bench, seeds: std::ops::Range<u32>, since| {
        for seed in seeds {
            b.mon.pg_trimmed(Pg { pool: id, seed }, since, &snaps);
        }
        b.tick(2);
    };
    tell(&mut b, 2..4, before);
    b.ok(json!({"prefix": "osd pool set", "pool": "rbd", "var": "pg_num", "val": "2"}));
    let merged = b.mon.map().epoch();
    assert_eq!(b.mon.map().pool(id).unwrap().pg_num, 2);
    // Two groups have said so, but not these two; and one spoke before it was merged.
    tell(&mut b, 0..1, before);
    tell(&mut b, 1..2, merged);
    assert!(b.mon.map().removed_snaps_queue()[&id].contains(2));
    tell(&mut b, 0..1, merged);
    assert!(b.mon.map().removed_snaps_queue().is_empty());
}

#[test]
fn the_number_of_groups_changes_step_by_step() {
    let mut b = Bench::booted(2);
    b.ok(json!({"prefix": "osd pool create", "pool": "rbd", "pg_num": 8}));
    let id = b.mon.map().pool_by_name("rbd").unwrap();
    let set = |var: &str, val: &str| json!({"prefix": "osd pool set", "pool": "rbd", "var": var, "val": val});
    let nums = |b: &Bench| {
        let p = b.mon.map().pool(id).unwrap();
        (p.pg_num, p.pgp_num, p.pg_num_target, p.pgp_num_target)
    };
    b.ok(set("pg_num", "40"));
    assert_eq!(nums(&b), (24, 24, 40, 40));
    b.tick(1);
    assert_eq!(nums(&b), (40, 40, 40, 40));
    let epoch = b.mon.map().epoch();
    b.tick(1);
    assert_eq!(b.mon.map().epoch(), epoch);
    b.ok(set("pg_num", "3"));
    let line = b.ok(json!({"prefix": "osd pool ls", "detail": "detail"}));
    assert!(
        line.contains(" pg_num 24 pgp_num 3 pg_num_target 3 "),
        "{line}"
    );
    for _ in 0..2 {
        b.tick(1);
    }
    assert_eq!(nums(&b), (3, 3, 3, 3));
    // pgp_num may stay behind, and stays there.
    b.ok(set("pgp_num", "2"));
    b.ok(set("pg_num", "5"));
    assert_eq!(nums(&b), (5, 2, 5, 2));

    // 250 for each of at least three OSDs.
    for (var, val, code) in [
        ("pg_num", "0", -34),
        ("pg_num", "65537", -34),
        ("pg_num", "1000", -34),
        ("pg_num", "x", -22),
        ("pgp_num", "6", -22),
        ("pgp_num", "0", -22),
        ("pg_num_min", "6", -22),
        ("pg_num_max", "4", -22),
        ("pg_autoscale_mode", "perhaps", -22),
    ] {
        assert_eq!(b.code(set(var, val)), code, "{var} {val}");
    }
    let (_, why, _) = b.run(set("pg_num", "1000"));
    assert!(why.contains("mon_max_pg_per_osd value of 250"), "{why}");
    let config = json!({"prefix": "config set", "who": "global", "name": "mon_max_pg_per_osd", "value": "400"});
    b.ok(config);
    b.ok(set("pg_num_max", "1000"));
    b.ok(set("pg_num", "1000"));
    assert_eq!(b.code(set("pg_num", "1001")), -22);
    b.ok(set("nopgchange", "1"));
    assert_eq!(b.code(set("pg_num", "4")), -1);
    let create = |n: u32, pgp: u32| json!({"prefix": "osd pool create", "pool": "other", "pg_num": n, "pgp_num": pgp, "autoscale_mode": "warn", "pg_num_min": 4});
    for (n, pgp) in [(300, 300), (70000, 1), (8, 9)] {
        assert_eq!(b.code(create(n, pgp)), -34, "{n} {pgp}");
    }
    assert_eq!(b.code(create(2, 2)), -22);
    b.ok(create(8, 8));
    let get = json!({"prefix": "osd pool get", "pool": "other", "var": "all"});
    let all = b.json(get);
    assert_eq!(
        (&all["pg_autoscale_mode"], &all["pg_num_min"]),
        (&json!("warn"), &json!(4))
    );
}

#[test]
fn rates_are_shown_while_there_is_load() {
    let mut b = Bench::booted(1);
    let id = b.pool("rbd");
    for n in 0..4u64 {
        let pool = PoolUsage {
            objects: 7,
            bytes: 7 << 20,
            read_ops: n * 300,
            read_bytes: (n * 300) << 12,
            write_ops: n * 10,
            write_bytes: (n * 10) << 20,
            ..PoolUsage::default()
        };
        let pools = [(id, pool)].into();
        b.mon.usage(
            0,
            OsdUsage {
                total: 1 << 40,
                used: 7 << 20,
                pools,
            },
        );
        b.tick(1);
    }
    let stats = b.json(json!({"prefix": "osd pool stats"}));
    let want = json!({"read_bytes_sec": 300 << 12, "write_bytes_sec": 10 << 20,
        "read_op_per_sec": 300, "write_op_per_sec": 10});
    assert_eq!(stats[0]["client_io_rate"], want);
    let status = b.json(json!({"prefix": "status"}));
    assert_eq!(status["pgmap"]["read_op_per_sec"], 300);
    assert_eq!(status["pgmap"]["num_objects"], 7);
    let text = b.ok(json!({"prefix": "status"}));
    assert!(
        text.contains("client:   1.2 MiB/s rd, 10 MiB/s wr, 300 op/s rd, 10 op/s wr"),
        "{text}"
    );
    for _ in 0..8 {
        b.tick(1);
    }
    let stats = b.json(json!({"prefix": "osd pool stats"}));
    assert_eq!(stats[0]["client_io_rate"], json!({}));
    let text = b.ok(json!({"prefix": "osd pool stats"}));
    assert!(text.contains("nothing is going on"), "{text}");
}

#[test]
fn a_pool_has_one_kind_of_snapshots() {
    let mut b = Bench::booted(1);
    let (own, theirs) = (b.pool("own"), b.pool("theirs"));
    let link = b.connect("client.admin");
    b.ok(json!({"prefix": "osd pool mksnap", "pool": "own", "snap": "s"}));
    assert_eq!(
        b.pool_op(link, own, pool_op::CREATE_UNMANAGED_SNAP, 0).code,
        -22
    );
    assert_eq!(
        b.pool_op(link, theirs, pool_op::DELETE_UNMANAGED_SNAP, 1)
            .code,
        -95
    );
    assert_eq!(
        b.pool_op(link, theirs, pool_op::CREATE_UNMANAGED_SNAP, 0)
            .code,
        0
    );
    assert_eq!(
        b.code(json!({"prefix": "osd pool mksnap", "pool": "theirs", "snap": "s"})),
        -22
    );
    b.ok(json!({"prefix": "osd pool rmsnap", "pool": "own", "snap": "s"}));
    assert!(b.mon.map().removed_snaps_queue()[&own].contains(1));
    assert_eq!(
        b.pool_op(link, 99, pool_op::CREATE_UNMANAGED_SNAP, 0).code,
        -2
    );
    assert_eq!(b.pool_op(link, 99, pool_op::DELETE, 0).code, 0);
}

#[test]
fn blocklist_entries_expire() {
    let mut b = Bench::booted(1);
    let blocked = |b: &Bench| b.mon.map().is_blocklisted(&EntityAddrVec(vec![addr(0, 7)]));
    let (_, status, _) = b.run(json!({"prefix": "osd blocklist", "blocklistop": "add", "addr": "127.0.0.1:0/7", "expire": 5.0}));
    assert!(
        status.starts_with("blocklisting 127.0.0.1:0/7 until "),
        "{status}"
    );
    assert!(blocked(&b));
    assert_eq!(
        b.json(json!({"prefix": "osd blocklist ls"}))[0]["addr"],
        "127.0.0.1:0/7"
    );
    b.tick(3);
    assert!(blocked(&b));
    b.tick(3);
    assert!(!blocked(&b));
    b.ok(json!({"prefix": "osd blacklist", "blacklistop": "add", "addr": "127.0.0.1:0/7"}));
    b.ok(json!({"prefix": "osd blocklist", "blocklistop": "rm", "addr": "127.0.0.1:0/7"}));
    assert!(!blocked(&b));
    b.ok(json!({"prefix": "osd blocklist", "range": "range", "blocklistop": "add", "addr": "127.0.0.0/8"}));
    assert!(blocked(&b));
    b.ok(json!({"prefix": "osd blocklist clear"}));
    assert!(!blocked(&b));
}

#[test]
fn a_pool_over_its_quota_is_full_until_it_is_not() {
    let mut b = Bench::booted(1);
    let id = b.pool("rbd");
    b.ok(json!({"prefix": "osd pool set-quota", "pool": "rbd", "field": "max_bytes", "val": "1K"}));
    let report = |bytes| OsdUsage {
        total: 1 << 30,
        used: bytes,
        pools: [(
            id,
            PoolUsage {
                bytes,
                objects: 1,
                ..PoolUsage::default()
            },
        )]
        .into(),
    };
    let full = |b: &Bench| b.mon.map().pool(id).unwrap().has_flag(pool::flag::FULL);
    b.mon.usage(0, report(1024));
    b.tick(2);
    assert!(full(&b));
    assert_eq!(b.json(json!({"prefix": "health"}))["status"], "HEALTH_WARN");
    b.mon.usage(0, report(10));
    b.tick(2);
    assert!(!full(&b));
    let quota = b.json(json!({"prefix": "osd pool get-quota", "pool": "rbd"}));
    assert_eq!(quota["quota_max_bytes"], 1024);
    let df = b.json(json!({"prefix": "df", "detail": "detail"}));
    assert_eq!(df["pools"][0]["stats"]["stored"], 10);
    assert!(df["pools"][0]["stats"]["percent_used"].is_f64());
    let link = b.connect("client.admin");
    let reply: MStatfsReply = b.ask(
        link,
        &MStatfs {
            fsid: FSID,
            ..MStatfs::default()
        },
    );
    assert_eq!((reply.kb, reply.objects), (1 << 20, 1));
    let got = b.send(
        link,
        4,
        &MGetPoolStats {
            fsid: FSID,
            pools: vec!["rbd".into(), "no".into()],
            ..MGetPoolStats::default()
        },
    );
    assert_eq!(
        (got[0].header.kind, got[0].header.tid),
        (kind::GET_POOL_STATS_REPLY, 4)
    );
}

#[test]
fn caps_bound_what_a_client_may_do() {
    let mut b = Bench::booted(1);
    let id = b.pool("rbd");
    b.ok(
        json!({"prefix": "auth get-or-create", "entity": "client.vm",
        "caps": ["mon", "profile rbd", "osd", "profile rbd pool=rbd"]}),
    );
    b.ok(
        json!({"prefix": "auth get-or-create", "entity": "client.ro",
        "caps": ["mon", "profile rbd", "osd", "profile rbd-read-only pool=rbd"]}),
    );
    let (vm, ro) = (b.connect("client.vm"), b.connect("client.ro"));
    let mut command = |link, command: Value| {
        let m = crate::mon::message::MMonCommand {
            fsid: FSID,
            cmd: vec![command.to_string()],
            ..Default::default()
        };
        let reply: crate::mon::message::MMonCommandAck = b.ask(link, &m);
        reply.code
    };
    assert_eq!(command(vm, json!({"prefix": "osd dump"})), 0);
    assert_eq!(
        command(vm, json!({"prefix": "osd pool create", "pool": "x"})),
        -13
    );
    assert_eq!(command(vm, json!({"prefix": "auth ls"})), -13);
    assert_eq!(
        command(vm, json!({"prefix": "config-key get", "key": "x"})),
        -13
    );
    assert_eq!(
        command(
            vm,
            json!({"prefix": "osd blocklist", "blocklistop": "add", "addr": "10.0.0.1:0/1"})
        ),
        0
    );
    assert_eq!(
        command(
            vm,
            json!({"prefix": "osd blocklist", "blocklistop": "add", "addr": "10.0.0.1"})
        ),
        -13
    );
    assert_eq!(
        command(vm, json!({"prefix": "get_command_descriptions"})),
        0
    );
    assert_eq!(command(vm, json!({"prefix": "nonesuch"})), -22);
    assert_eq!(b.pool_op(vm, id, pool_op::CREATE_UNMANAGED_SNAP, 0).code, 0);
    assert_eq!(
        b.pool_op(ro, id, pool_op::CREATE_UNMANAGED_SNAP, 0).code,
        -1
    );
    assert_eq!(b.pool_op(vm, id, pool_op::DELETE, 0).code, -1);
}

#[test]
fn every_command_there_is_can_be_called() {
    let mut b = Bench::booted(1);
    b.pool("rbd");
    for entry in command_table() {
        // Parameters of every kind, so that each command gets something to read.
        let mut call = json!({"prefix": entry, "pool": "rbd", "id": 0, "ids": ["0"], "key": "noout",
            "entity": "client.admin", "name": "x", "who": "client", "var": "size", "val": "1",
            "app": "rbd", "value": "v", "object": "o", "snap": "s", "addr": "10.0.0.1:0/1",
            "blocklistop": "add", "srcpool": "rbd", "destpool": "rbd2", "field": "max_bytes",
            "version": "luminous", "weight": 1.0, "logtext": ["x"]});
        if entry.starts_with("osd pool rename") {
            call["destpool"] = json!("rbd");
        }
        for format in ["plain", "json", "json-pretty"] {
            call["format"] = json!(format);
            let (code, status, data) = b.run(call.clone());
            let binary = entry.contains("getmap") || entry.contains("getcrush");
            if code == 0
                && !data.is_empty()
                && format != "plain"
                && !binary
                && entry != "config-key get"
            {
                let parsed = serde_json::from_slice::<Value>(&data);
                assert!(
                    parsed.is_ok(),
                    "{entry}: {}",
                    String::from_utf8_lossy(&data)
                );
            }
            assert!(code == 0 || !status.is_empty(), "{entry}");
        }
    }
}

fn command_table() -> Vec<String> {
    command::prefixes()
}

#[test]
fn shapes_are_those_that_scripts_read() {
    let mut b = Bench::booted(2);
    b.pool("rbd");
    let status = b.json(json!({"prefix": "status"}));
    assert_eq!(status["osdmap"]["num_up_osds"], 2);
    assert_eq!(status["health"]["status"], "HEALTH_OK");
    assert_eq!(status["pgmap"]["num_pgs"], 32);
    assert_eq!(b.ok(json!({"prefix": "osd pool ls"})), "rbd\n");
    assert_eq!(b.ok(json!({"prefix": "osd lspools"})), "1 rbd\n");
    assert_eq!(
        b.ok(json!({"prefix": "osd pool get", "pool": "rbd", "var": "size"})),
        "size: 1\n"
    );
    assert_eq!(
        b.json(json!({"prefix": "osd pool get", "pool": "rbd", "var": "pg_num"}))["pg_num"],
        32
    );
    assert_eq!(b.ok(json!({"prefix": "osd ls"})), "0\n1\n");
    let tree = b.json(json!({"prefix": "osd tree"}));
    assert_eq!(tree["nodes"].as_array().unwrap().len(), 4);
    let map = b.ok(json!({"prefix": "osd map", "pool": "rbd", "object": "foo"}));
    assert!(
        map.contains("pool 'rbd' (1) object 'foo' -> pg 1.7fc1f406 (1.6) -> up (["),
        "{map}"
    );
    let key = b.ok(json!({"prefix": "auth get-key", "entity": "client.admin"}));
    let ring = b.ok(json!({"prefix": "auth get", "entity": "client.admin"}));
    assert!(
        ring.contains(&format!("[client.admin]\n\tkey = {key}\n")),
        "{ring}"
    );
    b.ok(json!({"prefix": "osd pool application enable", "pool": "rbd", "app": "rbd"}));
    let apps = b.json(json!({"prefix": "osd pool application get", "pool": "rbd"}));
    assert_eq!(apps, json!({"rbd": {}}));
    assert_eq!(b.code(json!({"prefix": "osd pool rm", "pool": "rbd"})), -1);
    b.ok(json!({"prefix": "osd pool set", "pool": "rbd", "var": "nodelete", "val": "true"}));
    let rm = json!({"prefix": "osd pool rm", "pool": "rbd", "pool2": "rbd", "yes_i_really_really_mean_it": true});
    assert_eq!(b.code(rm.clone()), -1);
    b.ok(json!({"prefix": "osd pool set", "pool": "rbd", "var": "nodelete", "val": "false"}));
    b.ok(rm);
    assert_eq!(b.ok(json!({"prefix": "osd pool ls"})), "");
    b.ok(json!({"prefix": "osd out", "ids": ["0"]}));
    assert!(b.mon.map().is_out(0));
    b.ok(json!({"prefix": "osd down", "ids": ["1"]}));
    assert_eq!(
        b.json(json!({"prefix": "health"}))["checks"]["OSD_DOWN"]["severity"],
        "HEALTH_WARN"
    );
}

#[test]
fn the_dump_has_the_fields_of_a_real_clusters() {
    let mut b = Bench::booted(3);
    b.pool("rbd");
    let ours = b.json(json!({"prefix": "osd dump"}));
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/golden/v16/simple.osdmap.json"
    );
    let theirs: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let fields = |v: &Value| v.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let lacking = |ours: &Value, theirs: &Value| {
        let ours = fields(ours);
        fields(theirs)
            .into_iter()
            .filter(|k| !ours.contains(k))
            .collect::<Vec<_>>()
    };
    assert_eq!(lacking(&ours, &theirs), Vec::<String>::new());
    assert_eq!(
        lacking(&ours["pools"][0], &theirs["pools"][0]),
        Vec::<String>::new()
    );
    assert_eq!(
        lacking(&ours["osds"][0], &theirs["osds"][0]),
        Vec::<String>::new()
    );
}

#[test]
fn users_are_made_changed_and_removed() {
    let mut b = Bench::new(1);
    let create = json!({"prefix": "auth get-or-create-key", "entity": "client.x", "caps": ["mon", "allow r"]});
    let key = b.ok(create.clone());
    assert_eq!(b.ok(create), key);
    assert_eq!(b.code(json!({"prefix": "auth get-or-create", "entity": "client.x", "caps": ["mon", "allow *"]})), -22);
    assert_eq!(
        b.code(json!({"prefix": "auth caps", "entity": "client.x", "caps": ["mon", "bad"]})),
        -22
    );
    b.ok(json!({"prefix": "auth caps", "entity": "client.x", "caps": ["mon", "allow rw"]}));
    let user = b.json(json!({"prefix": "auth get", "entity": "client.x"}));
    assert_eq!(user[0]["caps"], json!({"mon": "allow rw"}));
    let ring = b.ok(json!({"prefix": "auth export"}));
    b.ok(json!({"prefix": "auth rm", "entity": "client.x"}));
    assert_eq!(
        b.code(json!({"prefix": "auth get", "entity": "client.x"})),
        -2
    );
    let at = b.at();
    let import = json!({"prefix": "auth import"}).to_string();
    let (code, ..) = b.mon.command(&import, ring.as_bytes(), at, &mut b.out);
    assert_eq!(code, 0);
    assert_eq!(
        b.ok(json!({"prefix": "auth get-key", "entity": "client.x"})),
        key
    );
    for bad in ["x", "client.", "client.a b", "client.a]", "nobody.x"] {
        assert_eq!(
            b.code(json!({"prefix": "auth get-or-create", "entity": bad})),
            -22,
            "{bad}"
        );
    }
}

#[test]
fn messages_of_nobody_close_the_connection() {
    let mut b = Bench::new(1);
    b.raw(Link(99), MsgHeader::new(kind::MON_GET_MAP, 1, 1), b"", b"");
    assert_eq!(b.closed, [Link(99)]);
    let link = b.connect("client.admin");
    b.raw(
        link,
        MsgHeader::new(kind::MON_SUBSCRIBE, 3, 1),
        b"\xff\xff",
        b"",
    );
    assert_eq!(b.closed, [Link(99), link]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn hostile_messages_never_panic(
        messages in prop::collection::vec((0usize..12, 0u16..5, any::<Vec<u8>>(), any::<Vec<u8>>()), 1..20),
        requests in prop::collection::vec((0u32..4, any::<Vec<u8>>()), 0..4),
    ) {
        let kinds = [kind::MON_GET_MAP, kind::MON_SUBSCRIBE, kind::MON_GET_VERSION, kind::MON_COMMAND,
            kind::COMMAND, kind::AUTH, kind::POOL_OP, kind::STATFS, kind::GET_POOL_STATS, kind::PING,
            kind::LOG, 9999];
        let mut b = Bench::new(1);
        let link = b.connect("client.admin");
        for (kind, version, front, data) in messages {
            b.raw(link, MsgHeader::new(kinds[kind], version, 1), &front, &data);
        }
        for (method, payload) in requests {
            let at = b.at();
            let ask = Ask::Request { method, modes: &[1, 2], payload: &payload };
            let _ = b.mon.authenticate(Link(500), ask, at);
            let _ = b.mon.authenticate(Link(500), Ask::More(&payload), at);
        }
    }

    #[test]
    fn hostile_commands_never_panic(
        n: prop::sample::Index,
        args in prop::collection::btree_map("pool|id|ids|key|val|var|entity|caps|who|name|addr|blocklistop|expire|epoch|snap|app|format|pg_num|object|nspace",
            prop_oneof![any::<i64>().prop_map(Value::from), "\\PC{0,12}".prop_map(Value::from),
                any::<bool>().prop_map(Value::from), any::<f64>().prop_map(Value::from),
                prop::collection::vec("\\PC{0,6}", 0..4).prop_map(Value::from)], 0..8),
        text in "\\PC{0,40}",
    ) {
        let mut b = Bench::booted(1);
        let prefixes = command_table();
        let mut call = Value::Object(args.into_iter().collect());
        call["prefix"] = json!(n.get(&prefixes));
        b.run(call);
        let at = b.at();
        b.mon.command(&text, text.as_bytes(), at, &mut b.out);
    }
}
