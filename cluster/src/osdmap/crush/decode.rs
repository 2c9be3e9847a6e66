//! `CrushWrapper::decode` and `decode_crush_bucket` (`src/crush/CrushWrapper.cc`), and the checks
//! that make a decoded map safe to walk.

use std::collections::BTreeMap;

use super::{Alg, Bucket, ChooseArg, ChooseArgs, ITEM_UNDEF, Map, MsrTunables, Rule, Step};
use super::{Tunables, bucket_index};
use crate::codec::{DecodeError, Reader, Result};
use crate::osdmap::wire::{read_map, read_string};

/// `CRUSH_MAGIC` of `src/crush/crush.h`.
pub(super) const MAGIC: u32 = 0x0001_0000;

/// `CRUSH_MAX_RULES`: a rule carries its own id in a byte.
const MAX_RULES: usize = 256;

pub(super) const ALG_UNIFORM: u8 = 1;
pub(super) const ALG_LIST: u8 = 2;
pub(super) const ALG_TREE: u8 = 3;
pub(super) const ALG_STRAW: u8 = 4;
pub(super) const ALG_STRAW2: u8 = 5;

impl Map {
    pub fn decode(bytes: &[u8]) -> Result<Map> {
        let r = &mut Reader::new(bytes);
        if r.u32()? != MAGIC {
            return Err(DecodeError::malformed("crush magic"));
        }
        let max_buckets = r.u32()? as usize;
        let max_rules = r.u32()? as usize;
        if max_rules > MAX_RULES {
            return Err(DecodeError::malformed("crush rule count"));
        }
        let max_devices = r.i32()?;

        // Every slot, even an empty one, takes four bytes: input bounds both vectors.
        let mut buckets = Vec::new();
        for index in 0..max_buckets {
            buckets.push(read_bucket(r, index)?);
        }
        let mut rules = Vec::new();
        for index in 0..max_rules {
            rules.push(read_rule(r, index)?);
        }
        let device_limit = check_hierarchy(&buckets)?;

        let mut map = Map {
            buckets,
            rules,
            max_devices,
            device_limit,
            tunables: Tunables::LEGACY,
            type_names: read_names(r)?,
            names: read_names(r)?,
            rule_names: read_names(r)?,
            ..Map::default()
        };
        map.read_tunables(r)?;
        if !r.is_empty() {
            map.item_class = read_map(r, 8, |r| Ok((r.i32()?, r.i32()?)))?;
            map.class_names = read_map(r, 8, |r| Ok((r.i32()?, read_string(r)?)))?;
            map.class_buckets = read_map(r, 8, |r| {
                let bucket = r.i32()?;
                Ok((bucket, read_map(r, 8, |r| Ok((r.i32()?, r.i32()?)))?))
            })?;
        }
        if !r.is_empty() {
            map.choose_args = read_map(r, 12, |r| {
                Ok((r.i64()?, read_choose_args(r, &map.buckets)?))
            })?;
        }
        if !r.is_empty() {
            map.tunables.msr = MsrTunables {
                descents: r.u32()?,
                collision_tries: r.u32()?,
            };
        }
        Ok(map)
    }

    /// Each release appended some; a map may end after any of them.
    fn read_tunables(&mut self, r: &mut Reader<'_>) -> Result<()> {
        let t = &mut self.tunables;
        if !r.is_empty() {
            t.choose_local_tries = r.u32()?;
            t.choose_local_fallback_tries = r.u32()?;
            t.choose_total_tries = r.u32()?;
        }
        if !r.is_empty() {
            t.chooseleaf_descend_once = r.u32()?;
        }
        if !r.is_empty() {
            t.chooseleaf_vary_r = r.u8()?;
        }
        if !r.is_empty() {
            t.straw_calc_version = r.u8()?;
        }
        if !r.is_empty() {
            t.allowed_bucket_algs = r.u32()?;
        }
        if !r.is_empty() {
            t.chooseleaf_stable = r.u8()?;
        }
        Ok(())
    }
}

fn read_bucket(r: &mut Reader<'_>, index: usize) -> Result<Option<Box<Bucket>>> {
    let alg = r.u32()?;
    if alg == 0 {
        return Ok(None);
    }
    let id = r.i32()?;
    if bucket_index(id) != Some(index) {
        return Err(DecodeError::malformed("crush bucket id"));
    }
    let kind = r.u16()?;
    if kind == 0 {
        return Err(DecodeError::malformed("crush bucket type"));
    }
    if u32::from(r.u8()?) != alg {
        return Err(DecodeError::malformed("crush bucket algorithm"));
    }
    let hash = r.u8()?;
    let weight = r.u32()?;
    let items = r.list(4, Reader::i32)?;
    let size = items.len();
    let alg = match alg as u8 {
        _ if alg > 0xff => return Err(DecodeError::malformed("crush bucket algorithm")),
        ALG_UNIFORM => Alg::Uniform {
            item_weight: r.u32()?,
        },
        ALG_LIST => {
            let (weights, sums) = read_pairs(r, size)?;
            Alg::List { weights, sums }
        }
        ALG_TREE => Alg::Tree {
            nodes: read_tree(r, size)?,
        },
        ALG_STRAW => {
            let (weights, straws) = read_pairs(r, size)?;
            Alg::Straw { weights, straws }
        }
        ALG_STRAW2 => Alg::Straw2 {
            weights: read_u32s(r, size)?,
        },
        _ => return Err(DecodeError::malformed("crush bucket algorithm")),
    };
    Ok(Some(Box::new(Bucket {
        id,
        kind,
        hash,
        weight,
        items,
        alg,
    })))
}

/// `n` is not trusted: values are pushed as they come.
fn read_u32s(r: &mut Reader<'_>, n: usize) -> Result<Vec<u32>> {
    let mut values = Reader::new(r.bytes(n.saturating_mul(4))?);
    (0..n).map(|_| values.u32()).collect()
}

fn read_pairs(r: &mut Reader<'_>, n: usize) -> Result<(Vec<u32>, Vec<u32>)> {
    let mut values = Reader::new(r.bytes(n.saturating_mul(8))?);
    let mut pairs = (Vec::with_capacity(n), Vec::with_capacity(n));
    for _ in 0..n {
        pairs.0.push(values.u32()?);
        pairs.1.push(values.u32()?);
    }
    Ok(pairs)
}

/// A tree of `n` nodes keeps item `i` at node `2i + 1`; the descent starts at `n / 2` and halves
/// its step, so it ends only when `n` is a power of two.
fn read_tree(r: &mut Reader<'_>, size: usize) -> Result<Vec<u32>> {
    let n = usize::from(r.u8()?);
    if size > 0 && (n < 2 || !n.is_power_of_two()) {
        return Err(DecodeError::malformed("crush tree bucket"));
    }
    read_u32s(r, n)
}

fn read_rule(r: &mut Reader<'_>, index: usize) -> Result<Option<Rule>> {
    if r.u32()? == 0 {
        return Ok(None);
    }
    let len = r.u32()? as usize;
    if usize::from(r.u8()?) != index {
        return Err(DecodeError::malformed("crush ruleset"));
    }
    let (kind, min_size, max_size) = (r.u8()?, r.u8()?, r.u8()?);
    let mut steps = Reader::new(r.bytes(len.saturating_mul(12))?);
    let steps = (0..len)
        .map(|_| {
            Ok(Step {
                op: steps.u32()?,
                arg1: steps.i32()?,
                arg2: steps.i32()?,
            })
        })
        .collect::<Result<_>>()?;
    Ok(Some(Rule {
        kind,
        min_size,
        max_size,
        steps,
    }))
}

/// A map of names whose keys old encoders wrote as 64 bits (`decode_32_or_64_string_map`): no name
/// is empty, so a zero where its length should be is the key's upper half.
fn read_names(r: &mut Reader<'_>) -> Result<BTreeMap<i32, String>> {
    read_map(r, 8, |r| {
        let key = r.i32()?;
        let mut probe = *r;
        if probe.u32()? == 0 {
            *r = probe;
        }
        Ok((key, read_string(r)?))
    })
}

fn read_choose_args(r: &mut Reader<'_>, buckets: &[Option<Box<Bucket>>]) -> Result<ChooseArgs> {
    let args: BTreeMap<u32, ChooseArg> = read_map(r, 12, |r| {
        let index = r.u32()?;
        let weight_set = r.list(4, |r| r.list(4, Reader::u32))?;
        let ids = r.list(4, Reader::i32)?;
        Ok((index, ChooseArg { weight_set, ids }))
    })?;
    let mut kept = Vec::new();
    for (index, arg) in args {
        let bucket = buckets
            .get(index as usize)
            .ok_or(DecodeError::malformed("crush choose_args bucket"))?
            .as_deref();
        if !arg.ids.is_empty() && bucket.is_none_or(|b| b.items.len() != arg.ids.len()) {
            return Err(DecodeError::malformed("crush choose_args ids"));
        }
        // Left behind for buckets that are gone or changed (`update_choose_args`).
        let empty = arg.ids.is_empty() && arg.weight_set.is_empty();
        if !empty && bucket.is_some_and(|b| matches!(b.alg, Alg::Straw2 { .. })) {
            kept.push((index, arg));
        }
    }
    Ok(ChooseArgs(kept))
}

/// Refuses items that are no bucket and buckets that contain themselves, and yields one more than
/// the highest device.
fn check_hierarchy(buckets: &[Option<Box<Bucket>>]) -> Result<i32> {
    let mut max_device = -1;
    // How many buckets list each bucket.
    let mut parents = vec![0u32; buckets.len()];
    for &item in buckets.iter().flatten().flat_map(|b| &b.items) {
        match bucket_index(item) {
            None if item >= ITEM_UNDEF => {
                return Err(DecodeError::malformed("crush device id"));
            }
            None => max_device = max_device.max(item),
            Some(child) => match buckets.get(child) {
                Some(Some(_)) => parents[child] += 1,
                _ => return Err(DecodeError::malformed("crush bucket item")),
            },
        }
    }
    // Kahn: take away buckets nobody lists any more. What stays is on a cycle or below one.
    let mut ready: Vec<usize> = (0..buckets.len())
        .filter(|&i| buckets[i].is_some() && parents[i] == 0)
        .collect();
    let mut left = buckets.iter().flatten().count();
    while let Some(i) = ready.pop() {
        left -= 1;
        let items = buckets[i].as_deref().map_or(&[][..], |b| &b.items);
        for child in items.iter().filter_map(|&item| bucket_index(item)) {
            parents[child] -= 1;
            if parents[child] == 0 {
                ready.push(child);
            }
        }
    }
    if left > 0 {
        return Err(DecodeError::malformed(
            "crush hierarchy: a bucket holds itself",
        ));
    }
    Ok(max_device + 1)
}
