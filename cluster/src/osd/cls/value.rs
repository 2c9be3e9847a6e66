//! Values as methods take and store them, and walks over an omap's keys.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use crate::codec::{self, Put, Reader, UTime};

use super::{Context, Errno, Result};

/// Keys read at a time (`RBD_MAX_KEYS_READ`).
const PAGE: usize = 64;

/// Names, ids and descriptions: Ceph takes any bytes.
pub(super) type Text = Vec<u8>;

/// A value with one encoding.
pub(super) trait Value: Sized {
    fn decode(r: &mut Reader<'_>) -> codec::Result<Self>;
    fn encode(&self, out: &mut Vec<u8>);
}

macro_rules! int {
    ($ty:ty, $read:ident, $put:ident) => {
        impl Value for $ty {
            fn decode(r: &mut Reader<'_>) -> codec::Result<$ty> {
                r.$read()
            }
            fn encode(&self, out: &mut Vec<u8>) {
                out.$put(*self);
            }
        }
    };
}

int!(u8, u8, put_u8);
int!(bool, bool, put_bool);
int!(u32, u32, put_u32);
int!(i32, i32, put_i32);
int!(u64, u64, put_u64);
int!(i64, i64, put_i64);

impl Value for Text {
    fn decode(r: &mut Reader<'_>) -> codec::Result<Text> {
        r.blob().map(<[u8]>::to_vec)
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_blob(self);
    }
}

impl Value for UTime {
    fn decode(r: &mut Reader<'_>) -> codec::Result<UTime> {
        UTime::decode(r)
    }
    fn encode(&self, out: &mut Vec<u8>) {
        UTime::encode(*self, out);
    }
}

impl<T: Value> Value for Option<T> {
    fn decode(r: &mut Reader<'_>) -> codec::Result<Option<T>> {
        r.option(T::decode)
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_bool(self.is_some());
        if let Some(value) = self {
            value.encode(out);
        }
    }
}

impl<T: Value + Ord> Value for BTreeSet<T> {
    fn decode(r: &mut Reader<'_>) -> codec::Result<BTreeSet<T>> {
        let n = r.count(1)?;
        (0..n).map(|_| T::decode(r)).collect()
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_list(self.iter(), |out, v| v.encode(out));
    }
}

impl<K: Value + Ord, V: Value> Value for BTreeMap<K, V> {
    fn decode(r: &mut Reader<'_>) -> codec::Result<BTreeMap<K, V>> {
        let n = r.count(1)?;
        (0..n).map(|_| Ok((K::decode(r)?, V::decode(r)?))).collect()
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_list(self.iter(), |out, (k, v)| {
            k.encode(out);
            v.encode(out);
        });
    }
}

/// Reads a method's input; what follows the known fields is ignored.
pub(super) fn input<'a, T>(
    bytes: &'a [u8],
    fields: impl FnOnce(&mut Reader<'a>) -> codec::Result<T>,
) -> Result<T> {
    fields(&mut Reader::new(bytes)).map_err(|_| Errno::INVAL)
}

/// A field that older clients leave out.
pub(super) fn or_default<T: Value>(r: &mut Reader<'_>, default: T) -> codec::Result<T> {
    if r.is_empty() {
        Ok(default)
    } else {
        T::decode(r)
    }
}

/// Start and length of a listing.
pub(super) fn page(bytes: &[u8]) -> Result<(&[u8], u64)> {
    input(bytes, |r| Ok((r.blob()?, r.u64()?)))
}

pub(super) fn reply<T: Value>(value: &T) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    value.encode(&mut out);
    Ok(out)
}

pub(super) const DONE: Result<Vec<u8>> = Ok(Vec::new());

/// What is stored under a key; ENOENT without one, EIO when it cannot be understood.
pub(super) fn load<T: Value>(ctx: &mut dyn Context, key: impl AsRef<[u8]>) -> Result<T> {
    stored(&ctx.omap_get(key.as_ref())?)
}

/// As [`load`], with `None` for a missing key.
pub(super) fn look<T: Value>(ctx: &mut dyn Context, key: impl AsRef<[u8]>) -> Result<Option<T>> {
    found(load(ctx, key))
}

/// Makes a missing thing `None`.
pub(super) fn found<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Errno::NOENT) => Ok(None),
        Err(e) => Err(e),
    }
}

pub(super) fn stored<T: Value>(bytes: &[u8]) -> Result<T> {
    T::decode(&mut Reader::new(bytes)).map_err(|_| Errno::IO)
}

pub(super) fn save<T: Value>(
    ctx: &mut dyn Context,
    key: impl AsRef<[u8]>,
    value: &T,
) -> Result<()> {
    let mut bytes = Vec::new();
    value.encode(&mut bytes);
    ctx.omap_set(key.as_ref(), &bytes)
}

/// Removes a key that need not be there, from an object that need not be there.
pub(super) fn forget(ctx: &mut dyn Context, key: impl AsRef<[u8]>) -> Result<()> {
    found(ctx.omap_remove(key.as_ref())).map(drop)
}

pub(super) fn key(prefix: &str, rest: &[u8]) -> Vec<u8> {
    [prefix.as_bytes(), rest].concat()
}

/// Visits the pairs whose keys begin with `prefix`, from the first one after `prefix` and `after`
/// on, until told to stop. The visitor gets what follows the prefix.
pub(super) fn each(
    ctx: &mut dyn Context,
    prefix: &str,
    after: &[u8],
    visit: impl FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>>,
) -> Result<()> {
    walk(ctx, prefix.as_bytes(), key(prefix, after), visit)
}

/// As [`each`] from the beginning, with the key that is the bare prefix where there is one.
pub(super) fn each_with_bare(
    ctx: &mut dyn Context,
    prefix: &str,
    visit: impl FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>>,
) -> Result<()> {
    walk(ctx, prefix.as_bytes(), Vec::new(), visit)
}

/// As [`each`], for a prefix that holds an id.
pub(super) fn each_under(
    ctx: &mut dyn Context,
    prefix: &[u8],
    visit: impl FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>>,
) -> Result<()> {
    walk(ctx, prefix, prefix.to_vec(), visit)
}

fn walk(
    ctx: &mut dyn Context,
    prefix: &[u8],
    mut last: Vec<u8>,
    mut visit: impl FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>>,
) -> Result<()> {
    loop {
        let (pairs, more) = ctx.omap_list(&last, prefix, PAGE)?;
        for (k, v) in &pairs {
            let rest = k.strip_prefix(prefix).ok_or(Errno::IO)?;
            if visit(rest, v)?.is_break() {
                return Ok(());
            }
        }
        match pairs.into_iter().next_back() {
            Some((k, _)) if more => last = k,
            _ => return Ok(()),
        }
    }
}

/// Up to `max` pairs, of which `value` makes something.
pub(super) fn collect<T>(
    ctx: &mut dyn Context,
    prefix: &str,
    after: &[u8],
    max: u64,
    mut value: impl FnMut(&[u8]) -> Result<T>,
) -> Result<BTreeMap<Text, T>> {
    let mut found = BTreeMap::new();
    if max == 0 {
        return Ok(found);
    }
    each(ctx, prefix, after, |name, bytes| {
        found.insert(name.to_vec(), value(bytes)?);
        Ok(if found.len() as u64 >= max {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        })
    })?;
    Ok(found)
}
