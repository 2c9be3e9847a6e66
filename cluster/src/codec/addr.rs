use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use super::{DecodeError, Put, Reader, Result};

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
/// `sizeof(struct sockaddr_in)` and `sizeof(struct sockaddr_in6)`, as Linux lays them out.
const SOCKADDR_IN: usize = 16;
const SOCKADDR_IN6: usize = 28;
const SOCKADDR_STORAGE: usize = 128;

/// What a peer is: `entity_name_t::TYPE_*` (`src/msg/msg_types.h`, `CEPH_ENTITY_TYPE_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct EntityType(pub u8);

impl EntityType {
    pub const MON: EntityType = EntityType(0x01);
    pub const MDS: EntityType = EntityType(0x02);
    pub const OSD: EntityType = EntityType(0x04);
    pub const CLIENT: EntityType = EntityType(0x08);
    pub const MGR: EntityType = EntityType(0x10);
    pub const AUTH: EntityType = EntityType(0x20);
}

impl fmt::Display for EntityType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            EntityType::MON => f.write_str("mon"),
            EntityType::MDS => f.write_str("mds"),
            EntityType::OSD => f.write_str("osd"),
            EntityType::CLIENT => f.write_str("client"),
            EntityType::MGR => f.write_str("mgr"),
            EntityType::AUTH => f.write_str("auth"),
            EntityType(n) => write!(f, "type{n}"),
        }
    }
}

/// `entity_name_t`: a type byte and a le64 number (`client.4123`, `osd.3`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct EntityName {
    pub kind: EntityType,
    pub num: i64,
}

impl EntityName {
    pub const SIZE: usize = 9;

    pub const fn new(kind: EntityType, num: i64) -> EntityName {
        EntityName { kind, num }
    }

    pub fn decode(r: &mut Reader<'_>) -> Result<EntityName> {
        Ok(EntityName {
            kind: EntityType(r.u8()?),
            num: r.i64()?,
        })
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u8(self.kind.0);
        out.put_i64(self.num);
    }
}

impl fmt::Display for EntityName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.num < 0 {
            write!(f, "{}.?", self.kind)
        } else {
            write!(f, "{}.{}", self.kind, self.num)
        }
    }
}

/// The protocol an address speaks (`entity_addr_t::type_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct AddrType(pub u32);

impl AddrType {
    pub const NONE: AddrType = AddrType(0);
    pub const LEGACY: AddrType = AddrType(1);
    pub const MSGR2: AddrType = AddrType(2);
    pub const ANY: AddrType = AddrType(3);
    pub const CIDR: AddrType = AddrType(4);
}

impl fmt::Display for AddrType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            AddrType::NONE => f.write_str("none"),
            AddrType::LEGACY => f.write_str("v1"),
            AddrType::MSGR2 => f.write_str("v2"),
            AddrType::ANY => f.write_str("any"),
            AddrType::CIDR => f.write_str("cidr"),
            AddrType(n) => write!(f, "type{n}"),
        }
    }
}

/// `entity_addr_t`: protocol, nonce and socket address. `None` is a blank address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct EntityAddr {
    pub kind: AddrType,
    pub nonce: u32,
    pub addr: Option<SocketAddr>,
}

impl EntityAddr {
    /// Bytes of the shortest encoding (a blank address).
    pub const MIN_SIZE: usize = 1 + 6 + 12;

    pub const fn msgr2(addr: SocketAddr, nonce: u32) -> EntityAddr {
        EntityAddr {
            kind: AddrType::MSGR2,
            nonce,
            addr: Some(addr),
        }
    }

    /// The encoding of peers that have `CEPH_FEATURE_MSG_ADDR2`, which all that speak msgr2 do.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u8(1);
        out.versioned(1, 1, |b| {
            b.put_u32(self.kind.0);
            b.put_u32(self.nonce);
            match self.addr {
                // `get_sockaddr_len` of no family is the size of the whole union.
                None => {
                    b.put_u32(SOCKADDR_IN6 as u32);
                    b.put_bytes(&[0; SOCKADDR_IN6]);
                }
                Some(addr) => put_sockaddr(b, addr),
            }
        });
    }

    pub fn decode(r: &mut Reader<'_>) -> Result<EntityAddr> {
        match r.u8()? {
            0 => EntityAddr::decode_legacy(r),
            1 => EntityAddr::decode_body(r),
            _ => Err(DecodeError::malformed("entity_addr_t marker")),
        }
    }

    fn decode_body(r: &mut Reader<'_>) -> Result<EntityAddr> {
        let mut v = r.versioned("entity_addr_t", 1)?;
        let kind = AddrType(v.body.u32()?);
        let nonce = v.body.u32()?;
        let len = v.body.u32()? as usize;
        let addr = if len == 0 {
            None
        } else {
            let mut sa = Reader::new(v.body.bytes(len)?);
            let family = sa.u16()?;
            read_sockaddr(family, &mut sa)?
        };
        Ok(EntityAddr { kind, nonce, addr })
    }

    /// `decode_legacy_addr_after_marker`: the marker was the first byte of a le32 zero.
    fn decode_legacy(r: &mut Reader<'_>) -> Result<EntityAddr> {
        r.skip(3)?;
        let nonce = r.u32()?;
        let mut ss = Reader::new(r.bytes(SOCKADDR_STORAGE)?);
        // Only here the family is in network order.
        let family = u16::from_be_bytes(ss.fixed()?);
        let addr = read_sockaddr(family, &mut ss)?;
        let kind = if addr.is_some() {
            AddrType::LEGACY
        } else {
            AddrType::NONE
        };
        Ok(EntityAddr { kind, nonce, addr })
    }
}

fn put_sockaddr(out: &mut Vec<u8>, addr: SocketAddr) {
    match addr {
        SocketAddr::V4(a) => {
            out.put_u32(SOCKADDR_IN as u32);
            out.put_u16(AF_INET);
            out.put_bytes(&a.port().to_be_bytes());
            out.put_bytes(&a.ip().octets());
            out.put_bytes(&[0; 8]);
        }
        SocketAddr::V6(a) => {
            out.put_u32(SOCKADDR_IN6 as u32);
            out.put_u16(AF_INET6);
            out.put_bytes(&a.port().to_be_bytes());
            out.put_bytes(&a.flowinfo().to_be_bytes());
            out.put_bytes(&a.ip().octets());
            out.put_u32(a.scope_id());
        }
    }
}

fn read_sockaddr(family: u16, sa: &mut Reader<'_>) -> Result<Option<SocketAddr>> {
    match family {
        0 => Ok(None),
        AF_INET => {
            let port = u16::from_be_bytes(sa.fixed()?);
            let ip = Ipv4Addr::from(sa.fixed::<4>()?);
            Ok(Some(SocketAddr::new(IpAddr::V4(ip), port)))
        }
        AF_INET6 => {
            let port = u16::from_be_bytes(sa.fixed()?);
            let flow = u32::from_be_bytes(sa.fixed()?);
            let ip = Ipv6Addr::from(sa.fixed::<16>()?);
            let scope = sa.u32()?;
            Ok(Some(SocketAddr::V6(SocketAddrV6::new(
                ip, port, flow, scope,
            ))))
        }
        _ => Err(DecodeError::malformed("address family")),
    }
}

impl fmt::Display for EntityAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.addr {
            Some(addr) => write!(f, "{}:{}/{}", self.kind, addr, self.nonce),
            None => f.write_str("-"),
        }
    }
}

/// `entity_addrvec_t`: the addresses of one entity, one per protocol.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct EntityAddrVec(pub Vec<EntityAddr>);

impl EntityAddrVec {
    /// The msgr2 address, the only kind we dial.
    pub fn msgr2(&self) -> Option<&EntityAddr> {
        self.0
            .iter()
            .find(|a| a.kind == AddrType::MSGR2 && a.addr.is_some())
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u8(2);
        out.put_list(self.0.iter(), |out, a| a.encode(out));
    }

    pub fn decode(r: &mut Reader<'_>) -> Result<EntityAddrVec> {
        match r.u8()? {
            0 => Ok(EntityAddrVec(vec![EntityAddr::decode_legacy(r)?])),
            1 => Ok(EntityAddrVec(vec![EntityAddr::decode_body(r)?])),
            2 => Ok(EntityAddrVec(
                r.list(EntityAddr::MIN_SIZE, EntityAddr::decode)?,
            )),
            _ => Err(DecodeError::malformed("entity_addrvec_t marker")),
        }
    }
}

impl fmt::Display for EntityAddrVec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, a) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            a.fmt(f)?;
        }
        f.write_str("]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn socket_addr() -> impl Strategy<Value = SocketAddr> {
        prop_oneof![
            (any::<[u8; 4]>(), any::<u16>()).prop_map(|(ip, p)| SocketAddr::from((ip, p))),
            (any::<[u8; 16]>(), any::<u16>()).prop_map(|(ip, p)| SocketAddr::from((ip, p))),
        ]
    }

    #[test]
    fn an_ipv4_address_has_the_bytes_of_a_real_hello() {
        // From a HELLO frame of a Ceph 16.2 monitor: v2:127.0.0.1:13300/0.
        let addr = EntityAddr::msgr2("127.0.0.1:13300".parse().unwrap(), 0);
        let mut out = Vec::new();
        addr.encode(&mut out);
        let want = [
            1, 1, 1, 28, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 2, 0, 0x33, 0xf4, 127, 0, 0,
            1, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(out, want);
    }

    #[test]
    fn a_legacy_address_is_read() {
        let mut bytes = vec![0, 0, 0, 0, 9, 0, 0, 0, 0, 2, 0x1a, 0x85, 10, 1, 2, 3];
        bytes.resize(8 + SOCKADDR_STORAGE, 0);
        let v = EntityAddrVec::decode(&mut Reader::new(&bytes)).unwrap();
        assert_eq!(v.0[0].kind, AddrType::LEGACY);
        assert_eq!(v.0[0].addr, Some("10.1.2.3:6789".parse().unwrap()));
        assert_eq!(v.0[0].nonce, 9);
    }

    proptest! {
        #[test]
        fn addresses_survive_a_round_trip(a in proptest::option::of(socket_addr()), nonce: u32, kind in 0u32..5) {
            let addr = EntityAddr { kind: AddrType(kind), nonce, addr: a };
            let v = EntityAddrVec(vec![addr, addr]);
            let mut out = Vec::new();
            v.encode(&mut out);
            let mut r = Reader::new(&out);
            prop_assert_eq!(EntityAddrVec::decode(&mut r).unwrap(), v);
            prop_assert!(r.is_empty());
        }

        #[test]
        fn hostile_bytes_never_panic(bytes: Vec<u8>) {
            let _ = EntityAddrVec::decode(&mut Reader::new(&bytes));
            let _ = EntityAddr::decode(&mut Reader::new(&bytes));
        }
    }
}
