//! The class `lock`: advisory locks on an object, kept in attributes of its own.
//!
//! Source: `src/cls/lock/cls_lock.cc`; layouts in `cls_lock_types.h` and `cls_lock_ops.h` beside it.

use std::collections::BTreeMap;

use crate::codec::{self, AddrType, EntityAddr, EntityName, Put, Reader, UTime};

use super::value::{DONE, Text, Value, input, reply, stored};
use super::{Context, Errno, Method, READ, READ_WRITE, Result};

const fn method(
    name: &'static str,
    access: (bool, bool),
    call: fn(&mut dyn Context, &[u8]) -> Result<Vec<u8>>,
) -> Method {
    Method::new("lock", name, access, call)
}

pub(super) const METHODS: &[Method] = &[
    method("lock", READ_WRITE, lock),
    method("unlock", READ_WRITE, unlock),
    method("break_lock", READ_WRITE, break_lock),
    method("get_info", READ, get_info),
    method("list_locks", READ, list_locks),
    method("assert_locked", READ, assert_locked),
    method("set_cookie", READ_WRITE, set_cookie),
];

/// What an attribute's name begins with; the lock's name follows.
const PREFIX: &str = "lock.";

/// `ClsLockType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Kind(u8);

impl Kind {
    const EXCLUSIVE: Kind = Kind(1);
    const SHARED: Kind = Kind(2);
    /// The object goes with the lock.
    const EPHEMERAL: Kind = Kind(3);

    fn check(self) -> Result<()> {
        match self {
            Kind::EXCLUSIVE | Kind::SHARED | Kind::EPHEMERAL => Ok(()),
            Kind(_) => Err(Errno::INVAL),
        }
    }

    fn is_exclusive(self) -> bool {
        self == Kind::EXCLUSIVE || self == Kind::EPHEMERAL
    }
}

/// `LOCK_FLAG_MAY_RENEW` and `LOCK_FLAG_MUST_RENEW`.
const MAY_RENEW: u8 = 1;
const MUST_RENEW: u8 = 2;

/// `locker_id_t`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct LockerId {
    locker: EntityName,
    cookie: Text,
}

impl Value for LockerId {
    fn decode(r: &mut Reader<'_>) -> codec::Result<LockerId> {
        let mut v = r.versioned("locker_id_t", 1)?;
        Ok(LockerId {
            locker: EntityName::decode(&mut v.body)?,
            cookie: Text::decode(&mut v.body)?,
        })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.versioned(1, 1, |b| {
            self.locker.encode(b);
            b.put_blob(&self.cookie);
        });
    }
}

/// `locker_info_t`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Locker {
    /// Zero: never.
    expiration: UTime,
    addr: EntityAddr,
    description: Text,
}

impl Value for Locker {
    fn decode(r: &mut Reader<'_>) -> codec::Result<Locker> {
        let mut v = r.versioned("locker_info_t", 1)?;
        Ok(Locker {
            expiration: UTime::decode(&mut v.body)?,
            addr: EntityAddr::decode(&mut v.body)?,
            description: Text::decode(&mut v.body)?,
        })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.versioned(1, 1, |b| {
            self.expiration.encode(b);
            self.addr.encode(b);
            b.put_blob(&self.description);
        });
    }
}

/// `lock_info_t`; `cls_lock_get_info_reply` has the same layout.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Info {
    lockers: BTreeMap<LockerId, Locker>,
    kind: Kind,
    tag: Text,
}

impl Info {
    fn is_over(&self) -> bool {
        self.lockers.is_empty() && self.kind == Kind::EPHEMERAL
    }
}

impl Value for Info {
    fn decode(r: &mut Reader<'_>) -> codec::Result<Info> {
        let mut v = r.versioned("lock_info_t", 1)?;
        Ok(Info {
            lockers: Value::decode(&mut v.body)?,
            kind: Kind(v.body.u8()?),
            tag: Text::decode(&mut v.body)?,
        })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.versioned(1, 1, |b| {
            self.lockers.encode(b);
            b.put_u8(self.kind.0);
            b.put_blob(&self.tag);
        });
    }
}

/// The attribute of a lock.
fn attr_name(name: &[u8]) -> Result<String> {
    let name = std::str::from_utf8(name).map_err(|_| Errno::INVAL)?;
    Ok(format!("{PREFIX}{name}"))
}

/// The lock as it is now: lockers whose time is over are left out. ENOENT without the object.
fn load(ctx: &mut dyn Context, name: &[u8]) -> Result<Info> {
    let bytes = match ctx.attr(&attr_name(name)?) {
        Err(Errno::NODATA) => return Ok(Info::default()),
        other => other?,
    };
    let mut info: Info = stored(&bytes)?;
    let now = ctx.now();
    info.lockers
        .retain(|_, l| l.expiration == UTime::default() || l.expiration >= now);
    Ok(info)
}

/// For a method that writes: the object of an ephemeral lock whose time is over goes.
fn load_and_clean(ctx: &mut dyn Context, name: &[u8]) -> Result<Info> {
    let info = load(ctx, name)?;
    if info.is_over() {
        ctx.remove()?;
    }
    Ok(info)
}

/// For a method that only reads: Ceph's tries to remove such an object all the same, and fails for
/// that (`PrimaryLogPG::do_osd_ops`, `CEPH_OSD_OP_CALL`).
fn load_only(ctx: &mut dyn Context, name: &[u8]) -> Result<Info> {
    let info = load(ctx, name)?;
    if info.is_over() {
        return Err(Errno::IO);
    }
    Ok(info)
}

fn save(ctx: &mut dyn Context, name: &[u8], info: &Info) -> Result<Vec<u8>> {
    ctx.set_attr(&attr_name(name)?, &reply(info)?)?;
    DONE
}

/// `utime_t::operator+`: seconds wrap, nanoseconds carry over.
fn later(at: UTime, by: UTime) -> UTime {
    let nsec = u64::from(at.nsec) + u64::from(by.nsec);
    UTime {
        sec: at
            .sec
            .wrapping_add(by.sec)
            .wrapping_add((nsec / 1_000_000_000) as u32),
        nsec: (nsec % 1_000_000_000) as u32,
    }
}

fn lock(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (name, kind, cookie, tag, description, duration, flags) = input(bytes, |r| {
        let b = &mut r.versioned("cls_lock_lock_op", 1)?.body;
        Ok((
            b.blob()?,
            Kind(b.u8()?),
            b.blob()?,
            b.blob()?,
            b.blob()?,
            UTime::decode(b)?,
            b.u8()?,
        ))
    })?;
    let may_renew = flags & MAY_RENEW != 0;
    let must_renew = flags & MUST_RENEW != 0;
    kind.check()?;
    if name.is_empty() || (may_renew && must_renew) {
        return Err(Errno::INVAL);
    }
    let mut info = match load_and_clean(ctx, name) {
        Err(Errno::NOENT) => Info::default(),
        other => other?,
    };
    let (locker, addr) = ctx.origin();
    let id = LockerId {
        locker,
        cookie: cookie.to_vec(),
    };
    if !info.lockers.is_empty() && tag != info.tag {
        return Err(Errno::BUSY);
    }
    if info.lockers.contains_key(&id) {
        if !may_renew && !must_renew {
            return Err(Errno::EXIST);
        }
        info.lockers.remove(&id);
    } else if must_renew {
        return Err(Errno::NOENT);
    }
    if !info.lockers.is_empty() && (kind.is_exclusive() || info.kind != kind) {
        return Err(Errno::BUSY);
    }
    info.kind = kind;
    info.tag = tag.to_vec();
    let expiration = if duration == UTime::default() {
        duration
    } else {
        later(ctx.now(), duration)
    };
    info.lockers.insert(
        id,
        Locker {
            expiration,
            // One client may speak either protocol, and the kind is not what tells it apart.
            addr: EntityAddr {
                kind: AddrType::LEGACY,
                ..addr
            },
            description: description.to_vec(),
        },
    );
    save(ctx, name, &info)
}

fn remove(
    ctx: &mut dyn Context,
    name: &[u8],
    locker: EntityName,
    cookie: &[u8],
) -> Result<Vec<u8>> {
    let mut info = load_and_clean(ctx, name)?;
    let id = LockerId {
        locker,
        cookie: cookie.to_vec(),
    };
    info.lockers.remove(&id).ok_or(Errno::NOENT)?;
    if info.kind == Kind::EPHEMERAL {
        ctx.remove()?;
        return DONE;
    }
    save(ctx, name, &info)
}

fn unlock(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (name, cookie) = input(bytes, |r| {
        let b = &mut r.versioned("cls_lock_unlock_op", 1)?.body;
        Ok((b.blob()?, b.blob()?))
    })?;
    let (locker, _) = ctx.origin();
    remove(ctx, name, locker, cookie)
}

fn break_lock(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (name, locker, cookie) = input(bytes, |r| {
        let b = &mut r.versioned("cls_lock_break_op", 1)?.body;
        Ok((b.blob()?, EntityName::decode(b)?, b.blob()?))
    })?;
    remove(ctx, name, locker, cookie)
}

fn get_info(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let name = input(bytes, |r| {
        r.versioned("cls_lock_get_info_op", 1)?.body.blob()
    })?;
    reply(&load_only(ctx, name)?)
}

fn list_locks(ctx: &mut dyn Context, _: &[u8]) -> Result<Vec<u8>> {
    let attrs = ctx.attrs()?;
    let names: Vec<_> = attrs
        .iter()
        .filter_map(|(name, _)| name.strip_prefix(PREFIX.as_bytes()))
        .collect();
    let mut out = Vec::new();
    out.versioned(1, 1, |b| {
        b.put_list(names.iter(), |b, name| b.put_blob(name));
    });
    Ok(out)
}

/// The lock and the asker's place in it; EBUSY when it holds the lock in no such way.
fn held(
    ctx: &mut dyn Context,
    load: fn(&mut dyn Context, &[u8]) -> Result<Info>,
    (name, kind, cookie, tag): (&[u8], Kind, &[u8], &[u8]),
) -> Result<(Info, LockerId)> {
    kind.check()?;
    if name.is_empty() {
        return Err(Errno::INVAL);
    }
    let info = load(ctx, name)?;
    let (locker, _) = ctx.origin();
    let id = LockerId {
        locker,
        cookie: cookie.to_vec(),
    };
    if info.kind != kind || info.tag != tag || !info.lockers.contains_key(&id) {
        return Err(Errno::BUSY);
    }
    Ok((info, id))
}

fn assert_locked(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (name, kind, cookie, tag) = input(bytes, |r| {
        let b = &mut r.versioned("cls_lock_assert_op", 1)?.body;
        Ok((b.blob()?, Kind(b.u8()?), b.blob()?, b.blob()?))
    })?;
    held(ctx, load_only, (name, kind, cookie, tag))?;
    DONE
}

fn set_cookie(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (name, kind, cookie, tag, new) = input(bytes, |r| {
        let b = &mut r.versioned("cls_lock_set_cookie_op", 1)?.body;
        Ok((b.blob()?, Kind(b.u8()?), b.blob()?, b.blob()?, b.blob()?))
    })?;
    let (mut info, old) = held(ctx, load_and_clean, (name, kind, cookie, tag))?;
    let id = LockerId {
        locker: old.locker,
        cookie: new.to_vec(),
    };
    if info.lockers.contains_key(&id) {
        return Err(Errno::BUSY);
    }
    let locker = info.lockers.remove(&old).ok_or(Errno::BUSY)?;
    info.lockers.insert(id, locker);
    save(ctx, name, &info)
}
