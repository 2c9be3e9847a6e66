//! Shapes that recur in maps: ordered maps, names, PG ids.

use std::collections::BTreeMap;

use crate::codec::{Put, Reader, Result};

/// A le32 count and that many keyed values of at least `min_size` bytes (`std::map`).
pub(super) fn read_map<'a, K: Ord, V>(
    r: &mut Reader<'a>,
    min_size: usize,
    mut entry: impl FnMut(&mut Reader<'a>) -> Result<(K, V)>,
) -> Result<BTreeMap<K, V>> {
    let n = r.count(min_size)?;
    let mut map = BTreeMap::new();
    for _ in 0..n {
        let (key, value) = entry(r)?;
        map.insert(key, value);
    }
    Ok(map)
}

pub(super) fn put_map<K, V>(
    out: &mut Vec<u8>,
    map: &BTreeMap<K, V>,
    mut entry: impl FnMut(&mut Vec<u8>, &K, &V),
) {
    out.put_list(map.iter(), |out, (k, v)| entry(out, k, v));
}

/// Names are UTF-8 by custom only: an odd one must not make a whole map unreadable.
pub(super) fn read_string(r: &mut Reader<'_>) -> Result<String> {
    Ok(String::from_utf8_lossy(r.blob()?).into_owned())
}

/// A map of strings.
pub(super) fn read_strings(r: &mut Reader<'_>) -> Result<BTreeMap<String, String>> {
    read_map(r, 8, |r| Ok((read_string(r)?, read_string(r)?)))
}

pub(super) fn put_strings(out: &mut Vec<u8>, strings: &BTreeMap<String, String>) {
    put_map(out, strings, |out, key, value| {
        out.put_string(key);
        out.put_string(value);
    });
}

pub(super) fn read_f32(r: &mut Reader<'_>) -> Result<f32> {
    r.u32().map(f32::from_bits)
}

/// Checks the checksum that closes a map: over everything in `encoded` but the four bytes at `at`,
/// seeded with ones and not inverted at the end.
pub(super) fn crc_matches(encoded: &[u8], at: usize, crc: u32) -> bool {
    let (front, tail) = (&encoded[..at], &encoded[at + 4..]);
    !crc32c::crc32c_append(crc32c::crc32c(front), tail) == crc
}
