use super::{DecodeError, Result};

/// A cursor over received bytes. Every read is checked; a failed read leaves the cursor where it was.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

/// The body of a versioned structure: its version and a cursor bounded to its length.
#[derive(Debug, Clone, Copy)]
pub struct Versioned<'a> {
    pub version: u8,
    pub body: Reader<'a>,
}

macro_rules! int {
    ($name:ident, $ty:ty) => {
        #[inline]
        pub fn $name(&mut self) -> Result<$ty> {
            Ok(<$ty>::from_le_bytes(*self.array(stringify!($ty))?))
        }
    };
}

impl<'a> Reader<'a> {
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    #[inline]
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The bytes not read yet.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    int!(u8, u8);
    int!(u16, u16);
    int!(u32, u32);
    int!(u64, u64);
    int!(i8, i8);
    int!(i16, i16);
    int!(i32, i32);
    int!(i64, i64);

    /// Any non-zero byte is true, as in Ceph.
    #[inline]
    pub fn bool(&mut self) -> Result<bool> {
        Ok(self.u8()? != 0)
    }

    #[inline]
    fn array<const N: usize>(&mut self, what: &'static str) -> Result<&'a [u8; N]> {
        match self.rest.split_first_chunk::<N>() {
            Some((head, rest)) => {
                self.rest = rest;
                Ok(head)
            }
            None => Err(DecodeError::Short {
                what,
                missing: N - self.rest.len(),
            }),
        }
    }

    /// `N` raw bytes.
    #[inline]
    pub fn fixed<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.array("fixed field").copied()
    }

    #[inline]
    pub fn bytes(&mut self, n: usize) -> Result<&'a [u8]> {
        match self.rest.split_at_checked(n) {
            Some((head, rest)) => {
                self.rest = rest;
                Ok(head)
            }
            None => Err(DecodeError::Short {
                what: "bytes",
                missing: n - self.rest.len(),
            }),
        }
    }

    pub fn skip(&mut self, n: usize) -> Result<()> {
        self.bytes(n).map(drop)
    }

    /// A le32 length and that many bytes (`bufferlist`, `std::string`).
    pub fn blob(&mut self) -> Result<&'a [u8]> {
        let mut probe = *self;
        let n = probe.u32()? as usize;
        let bytes = probe.bytes(n)?;
        *self = probe;
        Ok(bytes)
    }

    /// A length-prefixed string that must be UTF-8.
    pub fn string(&mut self) -> Result<&'a str> {
        std::str::from_utf8(self.blob()?).map_err(|_| DecodeError::malformed("string"))
    }

    /// A le32 element count, refused when the input cannot hold that many elements of at least
    /// `min_size` bytes. Callers may then reserve room for it.
    pub fn count(&mut self, min_size: usize) -> Result<usize> {
        let mut probe = *self;
        let n = probe.u32()? as usize;
        let need = n.saturating_mul(min_size.max(1));
        if need > probe.remaining() {
            return Err(DecodeError::Short {
                what: "elements",
                missing: need - probe.remaining(),
            });
        }
        *self = probe;
        Ok(n)
    }

    /// A le32 count and elements of at least `min_size` bytes each.
    pub fn list<T>(
        &mut self,
        min_size: usize,
        mut element: impl FnMut(&mut Reader<'a>) -> Result<T>,
    ) -> Result<Vec<T>> {
        let n = self.count(min_size)?;
        let mut out = Vec::with_capacity(n);
        for _ in 0..n {
            out.push(element(self)?);
        }
        Ok(out)
    }

    /// One byte of presence and the value (`std::optional`).
    pub fn option<T>(
        &mut self,
        value: impl FnOnce(&mut Reader<'a>) -> Result<T>,
    ) -> Result<Option<T>> {
        if self.bool()? {
            value(self).map(Some)
        } else {
            Ok(None)
        }
    }

    /// A structure written between `ENCODE_START` and `ENCODE_FINISH`: version, compat, le32
    /// length, body. The cursor moves past the whole structure, so fields newer than we know are
    /// skipped.
    pub fn versioned(&mut self, what: &'static str, ours: u8) -> Result<Versioned<'a>> {
        let mut probe = *self;
        let version = probe.u8()?;
        let compat = probe.u8()?;
        if compat > ours {
            return Err(DecodeError::Incompatible { what, compat, ours });
        }
        let len = probe.u32()? as usize;
        let missing = len.saturating_sub(probe.remaining());
        let body = probe
            .bytes(len)
            .map_err(|_| DecodeError::Short { what, missing })?;
        *self = probe;
        Ok(Versioned {
            version,
            body: Reader::new(body),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Put;
    use proptest::prelude::*;

    #[test]
    fn a_failed_read_moves_nothing() {
        let mut r = Reader::new(&[1, 2, 3]);
        assert_eq!(
            r.u32(),
            Err(DecodeError::Short {
                what: "u32",
                missing: 1
            })
        );
        assert_eq!(r.u16(), Ok(0x0201));
        assert_eq!(r.remaining(), 1);
    }

    #[test]
    fn a_count_the_input_cannot_hold_is_refused_before_allocating() {
        let bytes = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];
        let mut r = Reader::new(&bytes);
        assert!(r.list(4, |r| r.u32()).is_err());
        assert_eq!(r.remaining(), 8);
    }

    #[test]
    fn versioned_skips_what_a_newer_encoder_added() {
        let mut out = Vec::new();
        out.versioned(3, 1, |b| {
            b.put_u32(7);
            b.put_u64(99);
        });
        out.put_u8(0xaa);
        let mut r = Reader::new(&out);
        let mut v = r.versioned("thing", 1).unwrap();
        assert_eq!((v.version, v.body.u32().unwrap()), (3, 7));
        assert_eq!(r.u8(), Ok(0xaa));
    }

    #[test]
    fn versioned_refuses_a_compat_above_ours() {
        let mut out = Vec::new();
        out.versioned(5, 4, |b| b.put_u8(1));
        let err = Reader::new(&out).versioned("thing", 3).unwrap_err();
        assert_eq!(
            err,
            DecodeError::Incompatible {
                what: "thing",
                compat: 4,
                ours: 3
            }
        );
    }

    proptest! {
        #[test]
        fn what_is_put_is_read(a: u8, b: u16, c: u32, d: u64, e: i64, s in ".{0,40}", blob: Vec<u8>) {
            let mut out = Vec::new();
            out.put_u8(a);
            out.put_u16(b);
            out.put_u32(c);
            out.put_u64(d);
            out.put_i64(e);
            out.put_string(&s);
            out.put_blob(&blob);
            let mut r = Reader::new(&out);
            prop_assert_eq!(r.u8().unwrap(), a);
            prop_assert_eq!(r.u16().unwrap(), b);
            prop_assert_eq!(r.u32().unwrap(), c);
            prop_assert_eq!(r.u64().unwrap(), d);
            prop_assert_eq!(r.i64().unwrap(), e);
            prop_assert_eq!(r.string().unwrap(), s);
            prop_assert_eq!(r.blob().unwrap(), &blob[..]);
            prop_assert!(r.is_empty());
        }
    }
}
