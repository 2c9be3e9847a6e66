//! The monitor map: who the monitors are and where they listen.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use crate::codec::{
    DecodeError, EntityAddr, EntityAddrVec, EntityName, Put, Reader, Result, UTime,
};

/// `MonMap::encode` (`src/mon/MonMap.cc`), versions 1 to 10. Older than 6 is what releases before
/// msgr2 wrote; it is read, never written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MonMap {
    pub fsid: [u8; 16],
    pub epoch: u32,
    pub last_changed: UTime,
    pub created: UTime,
    /// `mon_feature_t`: what the quorum has committed itself to, and what it may use.
    pub persistent_features: u64,
    pub optional_features: u64,
    pub mons: BTreeMap<String, MonInfo>,
    /// Names by rank.
    pub ranks: Vec<String>,
    /// The release that all monitors have at least (16 is Pacific); 0 where the map does not say.
    pub min_mon_release: u8,
    pub removed_ranks: BTreeSet<u32>,
    /// `election_strategy`: classic is 1.
    pub strategy: u8,
    pub disallowed_leaders: BTreeSet<String>,
    pub stretch_mode: bool,
    pub tiebreaker_mon: String,
    pub stretch_marked_down_mons: BTreeSet<String>,
    /// From version 10 on.
    pub auth: Option<AuthCiphers>,
}

/// Which cephx ciphers a cluster uses (Ceph 20): 1 is AES, 2 is AES256KRB5.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AuthCiphers {
    /// A rise makes all tickets issued before void.
    pub epoch: u32,
    pub service: u32,
    pub allowed: Vec<u32>,
    pub preferred: u32,
}

/// `mon_info_t::encode`, versions 1 to 6.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MonInfo {
    pub addrs: EntityAddrVec,
    /// Lower is tried first.
    pub priority: u16,
    /// A share of the clients among monitors of equal priority.
    pub weight: u16,
    pub crush_location: BTreeMap<String, String>,
    /// From version 6 on.
    pub time_added: Option<UTime>,
}

const VERSION: u8 = 10;
/// A length-prefixed string.
const MIN_STRING: usize = 4;
/// A versioned structure.
const MIN_VERSIONED: usize = 6;

impl MonMap {
    pub fn decode(bytes: &[u8]) -> Result<MonMap> {
        MonMap::read(&mut Reader::new(bytes))
    }

    pub fn read(r: &mut Reader<'_>) -> Result<MonMap> {
        // Before version 3 the version was a le16 and nothing told the length
        // (`DECODE_START_LEGACY_COMPAT_LEN_16(10, 3, 3, p)`).
        let mut probe = *r;
        let version = probe.u8()?;
        if version < 3 {
            probe.skip(1)?;
            let map = MonMap::read_fields(&mut probe, version)?;
            *r = probe;
            return Ok(map);
        }
        let mut v = r.versioned("MonMap", VERSION)?;
        MonMap::read_fields(&mut v.body, v.version)
    }

    fn read_fields(r: &mut Reader<'_>, version: u8) -> Result<MonMap> {
        let mut map = MonMap {
            fsid: r.fixed()?,
            epoch: r.u32()?,
            ..MonMap::default()
        };
        let mut addrs: Vec<(String, EntityAddr)> = Vec::new();
        match version {
            0 => return Err(DecodeError::malformed("MonMap version")),
            1 => {
                let mut rank = 0u32;
                addrs = r.list(EntityName::SIZE + EntityAddr::MIN_SIZE, |r| {
                    EntityName::decode(r)?;
                    rank += 1;
                    Ok(((rank - 1).to_string(), EntityAddr::decode(r)?))
                })?;
            }
            2..=5 => {
                addrs = r.list(MIN_STRING + EntityAddr::MIN_SIZE, |r| {
                    Ok((r.string()?.to_string(), EntityAddr::decode(r)?))
                })?;
            }
            _ => {}
        }
        map.last_changed = UTime::decode(r)?;
        map.created = UTime::decode(r)?;
        if version >= 4 {
            map.persistent_features = read_features(r)?;
            map.optional_features = read_features(r)?;
        }
        map.mons = if version >= 5 {
            read_map(r, MIN_VERSIONED, MonInfo::read)?
        } else {
            let info = |addr| MonInfo {
                addrs: EntityAddrVec(vec![addr]),
                ..MonInfo::default()
            };
            addrs.into_iter().map(|(n, a)| (n, info(a))).collect()
        };
        map.ranks = if version >= 6 {
            r.list(MIN_STRING, |r| Ok(r.string()?.to_string()))?
        } else {
            map.legacy_ranks()
        };
        if version >= 7 {
            map.min_mon_release = r.u8()?;
        }
        if version >= 8 {
            map.removed_ranks = r.list(4, |r| r.u32())?.into_iter().collect();
            map.strategy = r.u8()?;
            map.disallowed_leaders = read_set(r)?;
        }
        if version >= 9 {
            map.stretch_mode = r.bool()?;
            map.tiebreaker_mon = r.string()?.to_string();
            map.stretch_marked_down_mons = read_set(r)?;
        }
        if version >= 10 {
            map.auth = Some(AuthCiphers {
                epoch: r.u32()?,
                service: r.u32()?,
                allowed: r.list(4, |r| r.u32())?,
                preferred: r.u32()?,
            });
        }
        Ok(map)
    }

    /// As a release of today writes it: version 10 when the map knows its ciphers, else 9.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let version = if self.auth.is_some() { 10 } else { 9 };
        out.versioned(version, 6, |b| {
            b.put_bytes(&self.fsid);
            b.put_u32(self.epoch);
            self.last_changed.encode(b);
            self.created.encode(b);
            put_features(b, self.persistent_features);
            put_features(b, self.optional_features);
            b.put_list(self.mons.iter(), |b, (name, info)| {
                b.put_string(name);
                info.encode(name, b);
            });
            b.put_list(self.ranks.iter(), |b, name| b.put_string(name));
            b.put_u8(self.min_mon_release);
            b.put_list(self.removed_ranks.iter(), |b, rank| b.put_u32(*rank));
            b.put_u8(self.strategy);
            b.put_list(self.disallowed_leaders.iter(), |b, name| b.put_string(name));
            b.put_bool(self.stretch_mode);
            b.put_string(&self.tiebreaker_mon);
            b.put_list(self.stretch_marked_down_mons.iter(), |b, name| {
                b.put_string(name);
            });
            if let Some(auth) = &self.auth {
                b.put_u32(auth.epoch);
                b.put_u32(auth.service);
                b.put_list(auth.allowed.iter(), |b, cipher| b.put_u32(*cipher));
                b.put_u32(auth.preferred);
            }
        });
    }

    /// The name of the monitor that listens at `addr`.
    pub fn name_at(&self, addr: SocketAddr) -> Option<&str> {
        self.mons
            .iter()
            .find(|(_, m)| m.addrs.0.iter().any(|a| a.addr == Some(addr)))
            .map(|(name, _)| name.as_str())
    }

    /// Before ranks were in the map they followed from the order of the addresses
    /// (`MonMap::calc_legacy_ranks`).
    fn legacy_ranks(&self) -> Vec<String> {
        let mut names: Vec<_> = self.mons.iter().collect();
        names.sort_by_key(|(name, m)| (m.addrs.0.first().copied(), (*name).clone()));
        names.into_iter().map(|(name, _)| name.clone()).collect()
    }
}

impl MonInfo {
    fn read(r: &mut Reader<'_>) -> Result<MonInfo> {
        let mut v = r.versioned("mon_info_t", 6)?;
        let b = &mut v.body;
        // The name once more, as in the map's key.
        b.blob()?;
        let mut info = MonInfo {
            addrs: EntityAddrVec::decode(b)?,
            ..MonInfo::default()
        };
        if v.version >= 2 {
            info.priority = b.u16()?;
        }
        if v.version >= 4 {
            info.weight = b.u16()?;
        }
        if v.version >= 5 {
            info.crush_location = read_map(b, MIN_STRING, |r| Ok(r.string()?.to_string()))?;
        }
        if v.version >= 6 {
            info.time_added = Some(UTime::decode(b)?);
        }
        Ok(info)
    }

    fn encode(&self, name: &str, out: &mut Vec<u8>) {
        let version = if self.time_added.is_some() { 6 } else { 5 };
        out.versioned(version, 1, |b| {
            b.put_string(name);
            self.addrs.encode(b);
            b.put_u16(self.priority);
            b.put_u16(self.weight);
            b.put_list(self.crush_location.iter(), |b, (key, value)| {
                b.put_string(key);
                b.put_string(value);
            });
            if let Some(time) = self.time_added {
                time.encode(b);
            }
        });
    }
}

/// `mon_feature_t` (`src/mon/mon_types.h`).
fn read_features(r: &mut Reader<'_>) -> Result<u64> {
    r.versioned("mon_feature_t", 1)?.body.u64()
}

fn put_features(out: &mut Vec<u8>, features: u64) {
    out.versioned(1, 1, |b| b.put_u64(features));
}

fn read_set(r: &mut Reader<'_>) -> Result<BTreeSet<String>> {
    let names = r.list(MIN_STRING, |r| Ok(r.string()?.to_string()))?;
    Ok(names.into_iter().collect())
}

/// A map by name, of values of at least `min_size` bytes.
fn read_map<'a, T>(
    r: &mut Reader<'a>,
    min_size: usize,
    mut value: impl FnMut(&mut Reader<'a>) -> Result<T>,
) -> Result<BTreeMap<String, T>> {
    let entries = r.list(MIN_STRING + min_size, |r| {
        Ok((r.string()?.to_string(), value(r)?))
    })?;
    Ok(entries.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    fn golden(name: &str) -> Vec<u8> {
        let path = format!("{}/../tests/golden/{name}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// A decoded map against what the monitors themselves said of it.
    fn agrees_with_json(map: &MonMap, json: &Value) {
        let fsid = json["fsid"].as_str().unwrap().replace('-', "");
        assert_eq!(hex(&map.fsid), fsid);
        assert_eq!(json["epoch"], map.epoch);
        assert_eq!(json["min_mon_release"], map.min_mon_release);
        assert_eq!(json["election_strategy"], map.strategy);
        assert_eq!(json["stretch_mode"], map.stretch_mode);
        assert_eq!(json["tiebreaker_mon"], map.tiebreaker_mon.as_str());
        let micros = json["modified"].as_str().unwrap();
        let micros: u32 = micros[20..26].parse().unwrap();
        assert_eq!(map.last_changed.nsec / 1000, micros);
        let mons = json["mons"].as_array().unwrap();
        assert_eq!(map.mons.len(), mons.len());
        for mon in mons {
            let name = mon["name"].as_str().unwrap();
            let info = &map.mons[name];
            assert_eq!(map.ranks[mon["rank"].as_u64().unwrap() as usize], name);
            assert_eq!(mon["priority"], info.priority);
            assert_eq!(mon["weight"], info.weight);
            let addrs: Vec<_> = mon["public_addrs"]["addrvec"]
                .as_array()
                .unwrap()
                .iter()
                .map(|a| {
                    let text = |k: &str| a[k].as_str().unwrap().to_string();
                    format!("{}:{}/{}", text("type"), text("addr"), a["nonce"])
                })
                .collect();
            assert_eq!(info.addrs.to_string(), format!("[{}]", addrs.join(",")));
        }
        if let Some(auth) = &map.auth {
            assert_eq!(json["auth_epoch"], auth.epoch);
            assert_eq!(json["auth_service_cipher"]["value"], auth.service);
            assert_eq!(json["auth_preferred_cipher"]["value"], auth.preferred);
            assert_eq!(json["auth_allowed_ciphers"][0]["value"], auth.allowed[0]);
        }
    }

    #[test]
    fn real_maps_are_read_and_written_back_byte_for_byte() {
        for (release, version) in [("v16", 9), ("v18", 9), ("v20", 10)] {
            let bytes = golden(&format!("{release}/simple.monmap"));
            assert_eq!(bytes[0], version);
            let mut r = Reader::new(&bytes);
            let map = MonMap::read(&mut r).unwrap();
            assert!(r.is_empty());
            let json = golden(&format!("{release}/simple.monmap.json"));
            agrees_with_json(&map, &serde_json::from_slice(&json).unwrap());
            let mut out = Vec::new();
            map.encode(&mut out);
            assert_eq!(out, bytes, "{release}");
            let addr = "127.0.0.1:15300".parse().unwrap();
            assert_eq!(map.name_at(addr), Some("a"));
        }
    }

    #[test]
    fn maps_of_releases_before_msgr2_are_read() {
        let legacy = |out: &mut Vec<u8>, port: u16| {
            out.put_u32(0);
            out.put_u32(0);
            let mut ss = vec![0, 2];
            ss.extend(port.to_be_bytes());
            ss.extend([10, 0, 0, 1]);
            ss.resize(128, 0);
            out.put_bytes(&ss);
        };
        let times = |out: &mut Vec<u8>| out.put_bytes(&[0; 16]);
        // Version 1: entity_inst_t by rank.
        let mut v1 = vec![1, 0];
        v1.put_bytes(&[7; 16]);
        v1.put_u32(3);
        v1.put_u32(2);
        for rank in 0..2 {
            v1.put_u8(1);
            v1.put_i64(rank);
            legacy(&mut v1, 6789 + rank as u16);
        }
        times(&mut v1);
        let map = MonMap::decode(&v1).unwrap();
        assert_eq!((map.epoch, map.ranks), (3, vec!["0".into(), "1".into()]));
        // Version 3: names, and ranks by address.
        let mut v3 = Vec::new();
        v3.versioned(3, 3, |b| {
            b.put_bytes(&[7; 16]);
            b.put_u32(4);
            b.put_u32(2);
            b.put_string("a");
            legacy(b, 6790);
            b.put_string("b");
            legacy(b, 6789);
            times(b);
        });
        let map = MonMap::decode(&v3).unwrap();
        assert_eq!(map.ranks, ["b", "a"]);
        let want = "10.0.0.1:6790".parse().unwrap();
        assert_eq!(map.name_at(want), Some("a"));
    }

    #[test]
    fn a_map_that_needs_a_newer_reader_is_refused() {
        let mut out = Vec::new();
        out.versioned(12, 11, |_| {});
        assert!(matches!(
            MonMap::decode(&out),
            Err(DecodeError::Incompatible { .. })
        ));
    }

    prop_compose! {
        fn mon_info()(port: u16, ip: [u8; 4], priority: u16, weight: u16,
            loc in prop::collection::btree_map("[a-z]{1,4}", "[a-z]{0,4}", 0..3),
            added: Option<(u32, u32)>) -> MonInfo {
            MonInfo {
                addrs: EntityAddrVec(vec![EntityAddr::msgr2((ip, port).into(), 0)]),
                priority,
                weight,
                crush_location: loc,
                time_added: added.map(|(sec, nsec)| UTime { sec, nsec }),
            }
        }
    }

    prop_compose! {
        pub(crate) fn mon_map()(fsid: [u8; 16], epoch: u32, features: (u64, u64),
            mons in prop::collection::btree_map("[a-z]{1,8}", mon_info(), 0..5),
            numbers: (u8, u8, bool), removed in prop::collection::btree_set(any::<u32>(), 0..4),
            auth: Option<(u32, u32, Vec<u32>, u32)>) -> MonMap {
            MonMap {
                fsid,
                epoch,
                persistent_features: features.0,
                optional_features: features.1,
                ranks: mons.keys().cloned().collect(),
                disallowed_leaders: mons.keys().take(1).cloned().collect(),
                stretch_marked_down_mons: mons.keys().take(2).cloned().collect(),
                mons,
                min_mon_release: numbers.0,
                strategy: numbers.1,
                stretch_mode: numbers.2,
                removed_ranks: removed,
                auth: auth.map(|(epoch, service, allowed, preferred)| AuthCiphers {
                    epoch, service, allowed, preferred,
                }),
                ..MonMap::default()
            }
        }
    }

    proptest! {
        #[test]
        fn maps_survive_a_round_trip(map in mon_map()) {
            let mut out = Vec::new();
            map.encode(&mut out);
            prop_assert_eq!(MonMap::decode(&out).unwrap(), map);
        }

        #[test]
        fn hostile_bytes_never_panic(bytes: Vec<u8>, map in mon_map(), at: usize, xor: u8, v in 0u8..12) {
            let _ = MonMap::decode(&bytes);
            let mut out = Vec::new();
            map.encode(&mut out);
            let at = at % out.len();
            out[at] ^= xor;
            let _ = MonMap::decode(&out);
            out[0] = v;
            let _ = MonMap::decode(&out);
            let _ = MonMap::decode(&out[..at]);
        }
    }
}
