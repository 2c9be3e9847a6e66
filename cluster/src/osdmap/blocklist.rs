//! Clients and networks that OSDs refuse to serve (`OSDMap::is_blocklisted`).

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::net::IpAddr;

use super::wire::read_map;
use crate::codec::{AddrType, EntityAddr, EntityAddrVec, Put, Reader, Result, UTime};

/// Addresses and networks, each until some time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Blocklist {
    pub(super) addrs: BTreeMap<Key, UTime>,
    pub(super) ranges: BTreeMap<Key, UTime>,
}

/// An address in the order Ceph keeps them: by the bytes of `entity_addr_t` in memory. Encodings
/// list them so, and their checksums depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key(pub(super) EntityAddr);

impl Key {
    fn bytes(&self) -> [u8; 36] {
        let mut b = [0; 36];
        b[..4].copy_from_slice(&self.0.kind.0.to_le_bytes());
        b[4..8].copy_from_slice(&self.0.nonce.to_le_bytes());
        let Some(addr) = self.0.addr else {
            return b;
        };
        b[10..12].copy_from_slice(&addr.port().to_be_bytes());
        match addr {
            std::net::SocketAddr::V4(a) => {
                b[8] = 2;
                b[12..16].copy_from_slice(&a.ip().octets());
            }
            std::net::SocketAddr::V6(a) => {
                b[8] = 10;
                b[12..16].copy_from_slice(&a.flowinfo().to_be_bytes());
                b[16..32].copy_from_slice(&a.ip().octets());
                b[32..].copy_from_slice(&a.scope_id().to_le_bytes());
            }
        }
        b
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Key) -> Ordering {
        self.bytes().cmp(&other.bytes())
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Key) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Blocklist {
    pub fn is_empty(&self) -> bool {
        self.addrs.is_empty() && self.ranges.is_empty()
    }

    /// Single addresses and when they are let go.
    pub fn addrs(&self) -> impl Iterator<Item = (&EntityAddr, UTime)> {
        self.addrs.iter().map(|(k, t)| (&k.0, *t))
    }

    /// Networks, whose nonce is the prefix length, and when they are let go.
    pub fn ranges(&self) -> impl Iterator<Item = (&EntityAddr, UTime)> {
        self.ranges.iter().map(|(k, t)| (&k.0, *t))
    }

    /// Whether any address of an entity is refused.
    pub fn contains_any(&self, addrs: &EntityAddrVec) -> bool {
        !self.is_empty() && addrs.0.iter().any(|a| self.contains(a))
    }

    pub fn contains(&self, addr: &EntityAddr) -> bool {
        // Since Nautilus entries are of type `any`; before, of type `v1`.
        let listed = |nonce: u32, port: Option<u16>| {
            let mut a = *addr;
            a.nonce = nonce;
            if let (Some(port), Some(sock)) = (port, a.addr.as_mut()) {
                sock.set_port(port);
            }
            [AddrType::ANY, AddrType::LEGACY].into_iter().any(|kind| {
                a.kind = kind;
                self.addrs.contains_key(&Key(a))
            })
        };
        // This instance, the whole host, or its network.
        listed(addr.nonce, None)
            || addr.addr.is_some() && listed(0, Some(0))
            || addr
                .addr
                .is_some_and(|a| self.ranges.keys().any(|net| in_network(&net.0, a.ip())))
    }
}

/// `OSDMap::range_bits::matches`.
fn in_network(net: &EntityAddr, ip: IpAddr) -> bool {
    let prefix = net.nonce;
    match (net.addr.map(|a| a.ip()), ip) {
        (Some(IpAddr::V4(n)), IpAddr::V4(ip)) => {
            let mask = u32::MAX.checked_shl(32 - prefix.min(32)).unwrap_or(0);
            u32::from(n) & mask == u32::from(ip) & mask
        }
        (Some(IpAddr::V6(n)), IpAddr::V6(ip)) => {
            let mask = u128::MAX.checked_shl(128 - prefix.min(128)).unwrap_or(0);
            u128::from(n) & mask == u128::from(ip) & mask
        }
        _ => false,
    }
}

pub(super) fn read_addrs(r: &mut Reader<'_>) -> Result<BTreeMap<Key, UTime>> {
    read_map(r, EntityAddr::MIN_SIZE + UTime::SIZE, |r| {
        Ok((Key(EntityAddr::decode(r)?), UTime::decode(r)?))
    })
}

pub(super) fn put_addrs(out: &mut Vec<u8>, addrs: &BTreeMap<Key, UTime>) {
    out.put_list(addrs.iter(), |out, (addr, until)| {
        addr.0.encode(out);
        until.encode(out);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(kind: AddrType, sock: &str, nonce: u32) -> EntityAddr {
        EntityAddr {
            kind,
            nonce,
            addr: Some(sock.parse().unwrap()),
        }
    }

    fn blocked(list: &Blocklist, sock: &str, nonce: u32) -> bool {
        list.contains_any(&EntityAddrVec(vec![addr(AddrType::MSGR2, sock, nonce)]))
    }

    #[test]
    fn an_instance_is_told_from_its_neighbours() {
        let mut list = Blocklist::default();
        let entry = addr(AddrType::ANY, "10.0.0.1:0", 77);
        list.addrs.insert(Key(entry), UTime::default());
        assert!(blocked(&list, "10.0.0.1:0", 77));
        assert!(!blocked(&list, "10.0.0.1:0", 78));
        assert!(!blocked(&list, "10.0.0.1:5000", 77));
        assert!(!blocked(&list, "10.0.0.2:0", 77));
    }

    #[test]
    fn a_whole_host_is_port_and_nonce_zero() {
        let mut list = Blocklist::default();
        let entry = addr(AddrType::ANY, "[fd00::1]:0", 0);
        list.addrs.insert(Key(entry), UTime::default());
        assert!(blocked(&list, "[fd00::1]:6800", 123));
        assert!(!blocked(&list, "[fd00::2]:6800", 123));
    }

    #[test]
    fn networks_match_by_prefix() {
        let mut list = Blocklist::default();
        for (net, prefix) in [("10.1.0.0:0", 16), ("[fd00:1::]:0", 32)] {
            let entry = addr(AddrType::CIDR, net, prefix);
            list.ranges.insert(Key(entry), UTime::default());
        }
        assert!(blocked(&list, "10.1.255.3:6800", 1));
        assert!(!blocked(&list, "10.2.0.1:6800", 1));
        assert!(blocked(&list, "[fd00:1:ffff::9]:1", 1));
        assert!(!blocked(&list, "[fd00:2::9]:1", 1));
        assert!(!in_network(
            &addr(AddrType::CIDR, "10.1.0.0:0", 33),
            "10.1.0.1".parse().unwrap()
        ));
        assert!(in_network(
            &addr(AddrType::CIDR, "10.1.0.0:0", 0),
            "11.0.0.1".parse().unwrap()
        ));
    }
}
