//! Monitors: subscriptions, versions, ticket renewals.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use cluster::codec::{EntityAddr, EntityAddrVec};
use cluster::mon::kind;
use cluster::mon::message::{
    MConfig, MMonGetVersion, MMonGetVersionReply, MMonMap, MMonSubscribe, Message,
};
use cluster::mon::{MonInfo, MonMap};
use cluster::objecter::msg::{MOsdMap, OSD_MAP};

use super::server::{Gate, Received};
use super::world::{Server, World};

pub(crate) struct Mon {
    pub(crate) addr: SocketAddr,
    pub(crate) alive: bool,
    pub(crate) epoch: u32,
}

impl Mon {
    pub(crate) fn addrs(&self) -> EntityAddrVec {
        EntityAddrVec(vec![EntityAddr::msgr2(self.addr, 0)])
    }
}

impl World {
    pub(crate) fn mon_message(&mut self, mon: usize, link: u64, m: &Received) {
        let version = m.header.version;
        match m.header.kind {
            kind::MON_GET_MAP => self.send_monmap(link),
            kind::MON_SUBSCRIBE => {
                let sub = MMonSubscribe::decode(version, &m.front).expect("a subscription");
                for (what, item) in sub.what {
                    match what.as_str() {
                        "config" => self.send_mon(link, &MConfig::default()),
                        "monmap" if item.start <= 1 => self.send_monmap(link),
                        "monmap" => {}
                        "osdmap" => {
                            let start = item.start as u32;
                            if let Some(l) = self.links.get_mut(&link) {
                                l.sub = Some((start, item.onetime()));
                            }
                            self.serve_sub(mon, link);
                        }
                        other => panic!("subscribed to {other}"),
                    }
                }
            }
            kind::MON_GET_VERSION => {
                let ask = MMonGetVersion::decode(version, &m.front).expect("a version request");
                let reply = MMonGetVersionReply {
                    handle: ask.handle,
                    version: self.mons[mon].epoch.into(),
                    oldest: self.maps.trimmed_to.into(),
                };
                self.send_mon(link, &reply);
            }
            kind::AUTH => self.renew(link, &m.front),
            other => panic!("message {other} to a monitor"),
        }
    }

    fn renew(&mut self, link: u64, front: &[u8]) {
        let now = self.now();
        let Some(l) = self.links.get_mut(&link) else {
            return;
        };
        let Some(peer) = &mut l.peer else { return };
        let Gate::Mon(auth) = &mut peer.gate else {
            panic!("an OSD renews no tickets");
        };
        let rng = &mut self.rng;
        let (reply, result) = auth.renew(&mut self.keys, front, now, &mut |b| rng.fill(b));
        self.send(link, kind::AUTH_REPLY, (1, 1), 0, &reply, Vec::new());
        if let Err(errno) = result {
            panic!("a renewal was refused: {errno}");
        }
    }

    fn send_monmap(&mut self, link: u64) {
        let mut monmap = Vec::new();
        let name = |i: usize| char::from(b'a' + i as u8).to_string();
        let mons: BTreeMap<_, _> = self
            .mons
            .iter()
            .enumerate()
            .map(|(i, mon)| {
                let addrs = mon.addrs();
                (
                    name(i),
                    MonInfo {
                        addrs,
                        ..MonInfo::default()
                    },
                )
            })
            .collect();
        MonMap {
            fsid: self.maps.latest().fsid(),
            epoch: 1,
            ranks: mons.keys().cloned().collect(),
            mons,
            min_mon_release: 20,
            strategy: 1,
            ..MonMap::default()
        }
        .encode(&mut monmap);
        self.send_mon(link, &MMonMap { monmap });
    }

    fn send_mon<M: Message>(&mut self, link: u64, message: &M) {
        let mut front = Vec::new();
        message.encode(&mut front);
        self.send(
            link,
            M::KIND,
            (M::VERSION, M::COMPAT),
            0,
            &front,
            Vec::new(),
        );
    }

    /// `OSDMonitor::check_osdmap_sub`.
    fn serve_sub(&mut self, mon: usize, link: u64) {
        let epoch = self.mons[mon].epoch;
        let Some(l) = self.links.get_mut(&link) else {
            return;
        };
        let Some((start, onetime)) = l.sub else {
            return;
        };
        if start > epoch {
            return;
        }
        l.sub = (!onetime).then_some((epoch + 1, false));
        let versions = (MOsdMap::VERSION, MOsdMap::COMPAT);
        if start == 0 {
            let front = self.maps.full_message(epoch);
            self.send(link, OSD_MAP, versions, 0, &front, Vec::new());
            return;
        }
        let mut from = start;
        while from <= epoch {
            let (front, last) = self.maps.message(from, epoch);
            self.send(link, OSD_MAP, versions, 0, &front, Vec::new());
            from = last + 1;
            if onetime {
                break;
            }
        }
    }

    /// A monitor hears of newer maps.
    pub(crate) fn mon_learns(&mut self, mon: usize, epoch: u32) {
        if epoch <= self.mons[mon].epoch {
            return;
        }
        self.mons[mon].epoch = epoch;
        let its = |l: &super::world::Link| l.to == Server::Mon(mon) && l.sub.is_some();
        let links: Vec<u64> = self
            .links
            .iter()
            .filter(|(_, l)| its(l))
            .map(|(&id, _)| id)
            .collect();
        for link in links {
            self.serve_sub(mon, link);
        }
    }
}
