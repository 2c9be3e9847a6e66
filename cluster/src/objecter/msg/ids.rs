use std::fmt;

use crate::codec::{EntityName, Put, Reader, Result};
/// `pg_t`. In a raw pg the seed is the object's whole hash.
pub use crate::osdmap::Pg as PgId;

/// The shard of a pg of a replicated pool (`shard_id_t::NO_SHARD`).
pub const NO_SHARD: i8 = -1;

/// `spg_t`: a pg and, in an erasure-coded pool, the shard of it that an OSD serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpgId {
    pub pg: PgId,
    pub shard: i8,
}

impl Default for SpgId {
    fn default() -> SpgId {
        SpgId {
            pg: PgId::default(),
            shard: NO_SHARD,
        }
    }
}

impl SpgId {
    pub fn decode(r: &mut Reader<'_>) -> Result<SpgId> {
        let mut v = r.versioned("spg_t", 1)?;
        Ok(SpgId {
            pg: PgId::decode(&mut v.body)?,
            shard: v.body.i8()?,
        })
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        out.versioned(1, 1, |b| {
            self.pg.encode(b);
            b.put_i8(self.shard);
        });
    }
}

impl fmt::Display for SpgId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pg.fmt(f)?;
        if self.shard >= 0 {
            write!(f, "s{}", self.shard)?;
        }
        Ok(())
    }
}

/// `osd_reqid_t`: what an OSD recognises a repeated request by. Clients leave name and tid blank;
/// the OSD then takes the sender of the connection and the tid of the message header
/// (`MOSDOp::get_reqid`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ReqId {
    pub name: EntityName,
    pub tid: u64,
    pub inc: i32,
}

impl ReqId {
    pub fn decode(r: &mut Reader<'_>) -> Result<ReqId> {
        let mut v = r.versioned("osd_reqid_t", 2)?;
        Ok(ReqId {
            name: EntityName::decode(&mut v.body)?,
            tid: v.body.u64()?,
            inc: v.body.i32()?,
        })
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        out.versioned(2, 2, |b| {
            self.name.encode(b);
            b.put_u64(self.tid);
            b.put_i32(self.inc);
        });
    }
}

/// `eversion_t`: a version within an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct EVersion {
    pub epoch: u32,
    pub version: u64,
}

impl EVersion {
    pub fn decode(r: &mut Reader<'_>) -> Result<EVersion> {
        let version = r.u64()?;
        let epoch = r.u32()?;
        Ok(EVersion { epoch, version })
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.version);
        out.put_u32(self.epoch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::EntityType;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ids_survive_a_round_trip(pool: i64, seed: u32, shard: i8, tid: u64, inc: i32, num: i64, epoch: u32) {
            let pg = PgId { pool, seed };
            let spg = SpgId { pg, shard };
            let reqid = ReqId { name: EntityName::new(EntityType::CLIENT, num), tid, inc };
            let version = EVersion { epoch, version: tid };
            let mut out = Vec::new();
            pg.encode(&mut out);
            spg.encode(&mut out);
            reqid.encode(&mut out);
            version.encode(&mut out);
            let mut r = Reader::new(&out);
            prop_assert_eq!(PgId::decode(&mut r).unwrap(), pg);
            prop_assert_eq!(SpgId::decode(&mut r).unwrap(), spg);
            prop_assert_eq!(ReqId::decode(&mut r).unwrap(), reqid);
            prop_assert_eq!(EVersion::decode(&mut r).unwrap(), version);
            prop_assert!(r.is_empty());
        }
    }
}
