//! Object names as keys whose bytes sort as Ceph sorts objects.

use crate::codec::{DecodeError, Result};
use crate::objecter::msg::{HObject, HObjectRef};

/// Ends a string. What follows a zero within one is larger, so that a prefix sorts first.
const END: [u8; 2] = [0, 1];
const ZERO: [u8; 2] = [0, 0xff];

/// How the name sorts against the effective key; the name is left out when they are equal.
const NAME_BELOW: u8 = 0;
const NAME_EQUAL: u8 = 1;
const NAME_ABOVE: u8 = 2;

const SIGN: u64 = 1 << 63;

/// Appends the key of an object that is not [`HObjectRef::MAX`].
pub(super) fn encode(oid: &HObjectRef<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(&(oid.pool as u64 ^ SIGN).to_be_bytes());
    out.extend_from_slice(&oid.hash.reverse_bits().to_be_bytes());
    string(oid.namespace, out);
    let key = if oid.key.is_empty() {
        oid.name
    } else {
        oid.key
    };
    string(key, out);
    match oid.name.cmp(key) {
        std::cmp::Ordering::Equal => out.push(NAME_EQUAL),
        other => {
            out.push(if other.is_lt() {
                NAME_BELOW
            } else {
                NAME_ABOVE
            });
            string(oid.name, out);
        }
    }
    out.extend_from_slice(&oid.snap.to_be_bytes());
}

fn string(bytes: &[u8], out: &mut Vec<u8>) {
    for part in bytes.split_inclusive(|b| *b == 0) {
        match part.split_last() {
            Some((0, head)) => {
                out.extend_from_slice(head);
                out.extend_from_slice(&ZERO);
            }
            _ => out.extend_from_slice(part),
        }
    }
    out.extend_from_slice(&END);
}

/// The snapshot that a key names, which is its last field.
pub(super) fn snap(key: &[u8]) -> u64 {
    key.last_chunk().map_or(0, |b| u64::from_be_bytes(*b))
}

/// The hash that a key holds.
pub(super) fn hash(key: &[u8]) -> Result<u32> {
    let bytes = key.get(8..12).and_then(|b| b.first_chunk::<4>());
    bytes
        .map(|b| u32::from_be_bytes(*b).reverse_bits())
        .ok_or(MALFORMED)
}

const MALFORMED: DecodeError = DecodeError::malformed("object key");

pub(super) fn decode(mut key: &[u8]) -> Result<HObject> {
    let pool = (u64::from_be_bytes(take(&mut key)?) ^ SIGN) as i64;
    let hash = u32::from_be_bytes(take(&mut key)?).reverse_bits();
    let namespace = unstring(&mut key)?;
    let locator = unstring(&mut key)?;
    let [order] = take(&mut key)?;
    let (locator, name) = match order {
        NAME_EQUAL => (Vec::new(), locator),
        NAME_BELOW | NAME_ABOVE => (locator, unstring(&mut key)?),
        _ => return Err(MALFORMED),
    };
    let snap = u64::from_be_bytes(take(&mut key)?);
    if !key.is_empty() {
        return Err(MALFORMED);
    }
    Ok(HObject::from(HObjectRef {
        key: &locator,
        name: &name,
        snap,
        hash,
        max: false,
        namespace: &namespace,
        pool,
    }))
}

fn take<const N: usize>(from: &mut &[u8]) -> Result<[u8; N]> {
    let (head, rest) = from.split_first_chunk::<N>().ok_or(MALFORMED)?;
    *from = rest;
    Ok(*head)
}

fn unstring(from: &mut &[u8]) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    loop {
        let at = from.iter().position(|b| *b == 0).ok_or(MALFORMED)?;
        out.extend_from_slice(&from[..at]);
        *from = &from[at..];
        match take::<2>(from)? {
            END => return Ok(out),
            ZERO => out.push(0),
            _ => return Err(MALFORMED),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        vec(
            prop_oneof![Just(0u8), Just(1), Just(255), any::<u8>()],
            0..4,
        )
    }

    prop_compose! {
        fn object()(key in bytes(), name in bytes(), namespace in bytes(), snap in 0u64..3,
                    hash in prop_oneof![0u32..3, any::<u32>()], pool in -2i64..3) -> HObject {
            HObject::from(HObjectRef {
                key: if key == name { &[] } else { &key },
                name: &name, snap, hash, max: false, namespace: &namespace, pool,
            })
        }
    }

    fn key(oid: &HObject) -> Vec<u8> {
        let mut out = Vec::new();
        encode(&oid.as_ref(), &mut out);
        out
    }

    proptest! {
        #[test]
        fn keys_sort_as_objects_do(a in object(), b in object()) {
            prop_assert_eq!(key(&a).cmp(&key(&b)), a.as_ref().order(&b.as_ref()));
        }

        #[test]
        fn keys_are_read_back(a in object()) {
            let key = key(&a);
            prop_assert_eq!(snap(&key), a.as_ref().snap);
            prop_assert_eq!(hash(&key), Ok(a.as_ref().hash));
            prop_assert_eq!(decode(&key), Ok(a));
        }

        #[test]
        fn hostile_bytes_never_panic(bytes: Vec<u8>) {
            let _ = decode(&bytes);
            let _ = hash(&bytes);
            snap(&bytes);
        }
    }
}
