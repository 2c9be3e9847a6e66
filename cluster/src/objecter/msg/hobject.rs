use std::cmp::Ordering;

use super::NOSNAP;
use crate::codec::{Put, Reader, Result};

/// The pool of the smallest object (`hobject_t::is_min`).
const MIN_POOL: i64 = i64::MIN;

/// `object_locator_t`: where an object lives, apart from its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Locator<'a> {
    pub pool: i64,
    pub key: &'a [u8],
    pub namespace: &'a [u8],
    /// A hash that stands in for the name, or -1.
    pub hash: i64,
}

impl<'a> Locator<'a> {
    pub fn decode(r: &mut Reader<'a>) -> Result<Locator<'a>> {
        let mut v = r.versioned("object_locator_t", 6)?;
        let b = &mut v.body;
        let pool = b.i64()?;
        b.skip(4)?;
        let key = b.blob()?;
        let namespace = if v.version >= 5 { b.blob()? } else { &[] };
        let hash = if v.version >= 6 { b.i64()? } else { -1 };
        Ok(Locator {
            pool,
            key,
            namespace,
            hash,
        })
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        // Only a decoder that knows the hash may read a locator that has one.
        let compat = if self.hash == -1 { 3 } else { 6 };
        out.versioned(6, compat, |b| {
            b.put_i64(self.pool);
            b.put_i32(-1);
            b.put_blob(self.key);
            b.put_blob(self.namespace);
            b.put_i64(self.hash);
        });
    }
}

/// `request_redirect_t`: the OSD asks for the request to be sent elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Redirect<'a> {
    pub locator: Locator<'a>,
    /// Another object name, or empty to keep the name.
    pub object: &'a [u8],
}

impl<'a> Redirect<'a> {
    pub fn decode(r: &mut Reader<'a>) -> Result<Redirect<'a>> {
        let mut v = r.versioned("request_redirect_t", 1)?;
        let locator = Locator::decode(&mut v.body)?;
        let object = v.body.blob()?;
        // A list of instructions that nothing writes any more.
        v.body.blob()?;
        Ok(Redirect { locator, object })
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        out.versioned(1, 1, |b| {
            self.locator.encode(b);
            b.put_blob(self.object);
            b.put_u32(0);
        });
    }
}

/// `hobject_t` with borrowed strings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HObjectRef<'a> {
    pub key: &'a [u8],
    pub name: &'a [u8],
    pub snap: u64,
    pub hash: u32,
    /// After every other object.
    pub max: bool,
    pub namespace: &'a [u8],
    pub pool: i64,
}

impl<'a> HObjectRef<'a> {
    pub const MIN: HObjectRef<'static> = HObjectRef {
        key: &[],
        name: &[],
        snap: 0,
        hash: 0,
        max: false,
        namespace: &[],
        pool: MIN_POOL,
    };
    pub const MAX: HObjectRef<'static> = HObjectRef {
        max: true,
        ..HObjectRef::MIN
    };

    /// The newest state of an object. A key equal to the name says nothing and is dropped.
    pub fn head(
        pool: i64,
        namespace: &'a [u8],
        key: &'a [u8],
        name: &'a [u8],
        hash: u32,
    ) -> HObjectRef<'a> {
        HObjectRef {
            key: if key == name { &[] } else { key },
            name,
            snap: NOSNAP,
            hash,
            max: false,
            namespace,
            pool,
        }
    }

    pub fn decode(r: &mut Reader<'a>) -> Result<HObjectRef<'a>> {
        let mut v = r.versioned("hobject_t", 4)?;
        let b = &mut v.body;
        let key = b.blob()?;
        let name = b.blob()?;
        let snap = b.u64()?;
        let hash = b.u32()?;
        let max = b.bool()?;
        let (namespace, mut pool) = if v.version >= 4 {
            (b.blob()?, b.i64()?)
        } else {
            (&[][..], MIN_POOL)
        };
        if max {
            return Ok(HObjectRef::MAX);
        }
        if pool == -1 && snap == 0 && hash == 0 && name.is_empty() {
            // The smallest object as hammer wrote it.
            pool = MIN_POOL;
        }
        Ok(HObjectRef {
            key,
            name,
            snap,
            hash,
            max,
            namespace,
            pool,
        })
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        out.versioned(4, 3, |b| {
            b.put_blob(self.key);
            b.put_blob(self.name);
            b.put_u64(self.snap);
            b.put_u32(self.hash);
            b.put_bool(self.max);
            b.put_blob(self.namespace);
            b.put_i64(self.pool);
        });
    }

    fn effective_key(&self) -> &'a [u8] {
        if self.key.is_empty() {
            self.name
        } else {
            self.key
        }
    }

    /// The order of objects within a pg: bitwise, as every cluster since jewel sorts
    /// (`hobject_t::operator<=>`).
    pub fn order(&self, other: &HObjectRef<'_>) -> Ordering {
        self.max
            .cmp(&other.max)
            .then_with(|| self.pool.cmp(&other.pool))
            .then_with(|| self.hash.reverse_bits().cmp(&other.hash.reverse_bits()))
            .then_with(|| self.namespace.cmp(other.namespace))
            .then_with(|| self.effective_key().cmp(other.effective_key()))
            .then_with(|| self.name.cmp(other.name))
            .then_with(|| self.snap.cmp(&other.snap))
    }

    /// Whether this object is `begin`, or lies after it and before `end`
    /// (`op_target_t::contained_by`).
    pub fn within(&self, begin: &HObjectRef<'_>, end: &HObjectRef<'_>) -> bool {
        match self.order(begin) {
            Ordering::Less => false,
            Ordering::Equal => true,
            Ordering::Greater => self.order(end) == Ordering::Less,
        }
    }
}

/// `hobject_t` that owns its strings. Compares by [`HObjectRef::order`].
#[derive(Debug, Clone)]
pub struct HObject {
    key: Box<[u8]>,
    name: Box<[u8]>,
    namespace: Box<[u8]>,
    snap: u64,
    hash: u32,
    max: bool,
    pool: i64,
}

impl HObject {
    pub fn as_ref(&self) -> HObjectRef<'_> {
        HObjectRef {
            key: &self.key,
            name: &self.name,
            snap: self.snap,
            hash: self.hash,
            max: self.max,
            namespace: &self.namespace,
            pool: self.pool,
        }
    }
}

impl From<HObjectRef<'_>> for HObject {
    fn from(h: HObjectRef<'_>) -> HObject {
        HObject {
            key: h.key.into(),
            name: h.name.into(),
            namespace: h.namespace.into(),
            snap: h.snap,
            hash: h.hash,
            max: h.max,
            pool: h.pool,
        }
    }
}

impl PartialEq for HObject {
    fn eq(&self, other: &HObject) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for HObject {}

impl PartialOrd for HObject {
    fn partial_cmp(&self, other: &HObject) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for HObject {
    fn cmp(&self, other: &HObject) -> Ordering {
        self.as_ref().order(&other.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn objects_sort_by_the_reversed_bits_of_their_hash() {
        let a = HObjectRef::head(1, b"", b"", b"a", 0x0000_0001);
        let b = HObjectRef::head(1, b"", b"", b"b", 0x8000_0000);
        assert_eq!(a.order(&b), Ordering::Greater);
        assert_eq!(b.order(&HObjectRef::MIN), Ordering::Greater);
        assert_eq!(a.order(&HObjectRef::MAX), Ordering::Less);
    }

    #[test]
    fn a_range_holds_its_begin_and_not_its_end() {
        let begin = HObjectRef::head(1, b"", b"", b"b", 7);
        let end = HObjectRef::head(1, b"", b"", b"d", 7);
        let at = |name| HObjectRef::head(1, b"", b"", name, 7);
        assert!(!at(b"a").within(&begin, &end));
        assert!(at(b"b").within(&begin, &end));
        assert!(at(b"c").within(&begin, &end));
        assert!(!at(b"d").within(&begin, &end));
        // Equal bounds name one object.
        assert!(at(b"b").within(&begin, &begin));
    }

    #[test]
    fn a_key_equal_to_the_name_is_no_key() {
        assert_eq!(HObjectRef::head(1, b"", b"o", b"o", 0).key, b"");
        assert_eq!(HObjectRef::head(1, b"", b"k", b"o", 0).key, b"k");
    }

    proptest! {
        #[test]
        fn round_trip(key in vec(any::<u8>(), 0..20), name in vec(any::<u8>(), 1..40), ns in vec(any::<u8>(), 0..8),
                      snap: u64, hash: u32, pool: i64, stray in -1i64..3) {
            let h = HObjectRef { key: &key, name: &name, snap, hash, max: false, namespace: &ns, pool };
            let l = Locator { pool, key: &key, namespace: &ns, hash: stray };
            let red = Redirect { locator: l, object: &name };
            let mut out = Vec::new();
            h.encode(&mut out);
            l.encode(&mut out);
            red.encode(&mut out);
            HObjectRef::MAX.encode(&mut out);
            let mut r = Reader::new(&out);
            let back = HObjectRef::decode(&mut r).unwrap();
            prop_assert_eq!(back, h);
            let owned = HObject::from(back);
            prop_assert_eq!(owned.as_ref(), h);
            prop_assert_eq!(Locator::decode(&mut r).unwrap(), l);
            prop_assert_eq!(Redirect::decode(&mut r).unwrap(), red);
            prop_assert_eq!(HObjectRef::decode(&mut r).unwrap(), HObjectRef::MAX);
            prop_assert!(r.is_empty());
        }

        #[test]
        fn hostile_bytes_never_panic(bytes: Vec<u8>) {
            let _ = HObjectRef::decode(&mut Reader::new(&bytes));
            let _ = Locator::decode(&mut Reader::new(&bytes));
            let _ = Redirect::decode(&mut Reader::new(&bytes));
        }
    }
}
