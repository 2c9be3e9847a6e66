//! From a rule and an input to devices (`crush_do_rule` of `src/crush/mapper.c`).
//!
//! Arithmetic wraps and comparisons are signed or unsigned exactly as in C, since placement must
//! agree with every OSD bit for bit.

use smallvec::SmallVec;

use super::hash::{RJENKINS1, hash2, hash3, hash4};
use super::ln::ln;
use super::{Alg, Bucket, ChooseArg, ChooseArgs, ITEM_NONE, ITEM_UNDEF, Map, MapError, OsdSet};
use super::{Rule, Step, msr, op, rule_kind};

/// Items looked at in one mapping before it is given up. A PG that maps looks at some hundreds;
/// one that cannot, in the widest pool of a flat ten thousand OSDs, at some ten millions.
const WORK_LIMIT: u64 = 1 << 26;

/// Scratch of the mapper: on the stack unless pools or uniform buckets are very wide. Reusable
/// between mappings of any map.
#[derive(Debug, Default)]
pub struct Workspace {
    taken: OsdSet,
    out: OsdSet,
    leaves: OsdSet,
    pub(super) strides: msr::Strides,
    pub(super) perm: Permutation,
    work_limit: Option<u64>,
}

impl Workspace {
    /// A workspace that gives up after looking at `limit` items.
    pub fn with_work_limit(limit: u64) -> Workspace {
        Workspace {
            work_limit: Some(limit),
            ..Workspace::default()
        }
    }
}

/// The beginning of a pseudo-random permutation of one bucket's items for one input
/// (`bucket_perm_choose`). Growing it is a Fisher-Yates shuffle drawn from the hash.
#[derive(Debug, Default)]
pub(super) struct Permutation {
    of: Option<(i32, u32)>,
    done: usize,
    order: SmallVec<[u32; 32]>,
}

impl Permutation {
    /// The item at place `r` of `bucket`'s permutation, which must not be empty.
    fn choose(&mut self, bucket: &Bucket, x: u32, r: i32) -> i32 {
        let size = bucket.items.len();
        let place = r as u32 as usize % size;
        if self.of != Some((bucket.id, x)) {
            self.of = Some((bucket.id, x));
            self.done = 0;
            self.order.clear();
            self.order.extend(0..size as u32);
        }
        while self.done <= place {
            let p = self.done;
            if p + 1 < size {
                let draw = draw3(bucket, x, bucket.id as u32, p as u32) as usize;
                self.order.swap(p, p + draw % (size - p));
            }
            self.done += 1;
        }
        bucket.items[self.order[place] as usize]
    }
}

/// Only one hash exists; with another Ceph draws zeros.
#[inline]
fn draw3(bucket: &Bucket, a: u32, b: u32, c: u32) -> u32 {
    if bucket.hash == RJENKINS1 {
        hash3(a, b, c)
    } else {
        0
    }
}

#[inline]
fn draw4(bucket: &Bucket, a: u32, b: u32, c: u32, d: u32) -> u32 {
    if bucket.hash == RJENKINS1 {
        hash4(a, b, c, d)
    } else {
        0
    }
}

/// What stays the same throughout one mapping.
pub(super) struct Mapper<'a> {
    pub(super) map: &'a Map,
    pub(super) rule: u32,
    pub(super) x: u32,
    weights: &'a [u32],
    args: Option<&'a ChooseArgs>,
    perm: &'a mut Permutation,
    work_left: u64,
}

impl Map {
    /// Maps input `x` by rule `rule` to at most `width` devices, into `out`. `weights` has the
    /// in/out weight of every OSD, 0x10000 being fully in. First-n rules yield fewer devices when
    /// there are no more; indep rules leave [`ITEM_NONE`] in their places.
    #[allow(clippy::too_many_arguments)]
    pub fn do_rule(
        &self,
        rule: u32,
        x: u32,
        width: usize,
        weights: &[u32],
        args: Option<&ChooseArgs>,
        ws: &mut Workspace,
        out: &mut OsdSet,
    ) -> Result<(), MapError> {
        out.clear();
        let steps = self.rule(rule).ok_or(MapError::NoRule(rule))?;
        // A later map may reuse a bucket's id.
        ws.perm.of = None;
        let mut mapper = Mapper {
            map: self,
            rule,
            x,
            weights,
            args,
            perm: &mut ws.perm,
            work_left: ws.work_limit.unwrap_or(WORK_LIMIT),
        };
        if matches!(steps.kind, rule_kind::MSR_FIRSTN | rule_kind::MSR_INDEP) {
            return msr::do_rule(&mut mapper, steps, width, &mut ws.strides, out);
        }
        for v in [&mut ws.taken, &mut ws.out, &mut ws.leaves] {
            v.clear();
            v.resize(width, ITEM_NONE);
        }
        mapper.do_rule(
            steps,
            width,
            &mut ws.taken,
            &mut ws.out,
            &mut ws.leaves,
            out,
        )
    }
}

/// The tunables as the rule's `set_*` steps leave them.
#[derive(Clone, Copy)]
struct Tries {
    total: u32,
    /// 0: not set by the rule.
    leaf: u32,
    local: u32,
    local_fallback: u32,
    vary_r: i32,
    stable: bool,
}

impl Tries {
    fn set(&mut self, step: &Step) {
        let n = step.arg1;
        match step.op {
            op::SET_CHOOSE_TRIES if n > 0 => self.total = n as u32,
            op::SET_CHOOSELEAF_TRIES if n > 0 => self.leaf = n as u32,
            op::SET_CHOOSE_LOCAL_TRIES if n >= 0 => self.local = n as u32,
            op::SET_CHOOSE_LOCAL_FALLBACK_TRIES if n >= 0 => self.local_fallback = n as u32,
            op::SET_CHOOSELEAF_VARY_R if n >= 0 => self.vary_r = n,
            op::SET_CHOOSELEAF_STABLE if n >= 0 => self.stable = n != 0,
            _ => {}
        }
    }
}

/// A choice below one bucket: the step's own, or the inner one for a leaf below each item.
#[derive(Clone, Copy)]
struct Level<'a> {
    root: &'a Bucket,
    numrep: i32,
    /// Type of the items wanted.
    kind: i32,
    tries: u32,
    /// `tries` of the level below.
    leaf_tries: u32,
    parent_r: i32,
}

impl<'a> Mapper<'a> {
    fn do_rule<'w>(
        &mut self,
        rule: &Rule,
        width: usize,
        mut taken: &'w mut OsdSet,
        mut out: &'w mut OsdSet,
        leaves: &mut OsdSet,
        result: &mut OsdSet,
    ) -> Result<(), MapError> {
        let t = self.map.tunables();
        let mut tries = Tries {
            // The tunable counts retries.
            total: t.choose_total_tries.wrapping_add(1),
            leaf: 0,
            local: t.choose_local_tries,
            local_fallback: t.choose_local_fallback_tries,
            vary_r: i32::from(t.chooseleaf_vary_r),
            stable: t.chooseleaf_stable != 0,
        };
        let mut taken_len = 0;
        for step in &rule.steps {
            match step.op {
                op::TAKE => {
                    let device = (0..self.map.device_limit()).contains(&step.arg1);
                    if width > 0 && (device || self.map.bucket(step.arg1).is_some()) {
                        taken[0] = step.arg1;
                        taken_len = 1;
                    }
                }
                op::CHOOSE_FIRSTN
                | op::CHOOSELEAF_FIRSTN
                | op::CHOOSE_INDEP
                | op::CHOOSELEAF_INDEP => {
                    if taken_len == 0 {
                        continue;
                    }
                    let n =
                        self.choose_step(step, &tries, width, &taken[..taken_len], out, leaves)?;
                    if matches!(step.op, op::CHOOSELEAF_FIRSTN | op::CHOOSELEAF_INDEP) {
                        out[..n].copy_from_slice(&leaves[..n]);
                    }
                    std::mem::swap(&mut taken, &mut out);
                    taken_len = n;
                }
                op::EMIT => {
                    let room = width - result.len();
                    result.extend_from_slice(&taken[..taken_len.min(room)]);
                    taken_len = 0;
                }
                _ => tries.set(step),
            }
        }
        Ok(())
    }

    /// One choose step below every bucket taken so far; yields how many items came out.
    fn choose_step(
        &mut self,
        step: &Step,
        tries: &Tries,
        width: usize,
        taken: &[i32],
        out: &mut [i32],
        leaves: &mut [i32],
    ) -> Result<usize, MapError> {
        let to_leaf = matches!(step.op, op::CHOOSELEAF_FIRSTN | op::CHOOSELEAF_INDEP);
        let first_n = matches!(step.op, op::CHOOSE_FIRSTN | op::CHOOSELEAF_FIRSTN);
        let mut numrep = step.arg1;
        if numrep <= 0 {
            numrep = numrep.wrapping_add(width as i32);
        }
        let mut n = 0;
        for &id in taken {
            // A device or a hole has nothing below it.
            let Some(bucket) = self.map.bucket(id).filter(|_| numrep > 0) else {
                continue;
            };
            let room = &mut out[n..width];
            let leaf_room = Some(&mut leaves[n..width]).filter(|_| to_leaf);
            let mut level = Level {
                root: bucket,
                numrep,
                kind: step.arg2,
                tries: tries.total,
                leaf_tries: tries.leaf,
                parent_r: 0,
            };
            if first_n {
                if level.leaf_tries == 0 {
                    let once = self.map.tunables().chooseleaf_descend_once != 0;
                    level.leaf_tries = if once { 1 } else { tries.total };
                }
                let count = room.len();
                n += self.first_n(tries, &level, room, 0, count, leaf_room)?;
            } else {
                level.leaf_tries = level.leaf_tries.max(1);
                let count = room.len().min(numrep as usize);
                self.indep(&level, room, 0..count, leaf_room)?;
                n += count;
            }
        }
        Ok(n)
    }

    /// Accounts for a look at every item of `bucket`.
    #[inline]
    pub(super) fn spend(&mut self, bucket: &Bucket) -> Result<(), MapError> {
        let cost = 1 + bucket.items.len() as u64;
        match self.work_left.checked_sub(cost) {
            Some(left) => {
                self.work_left = left;
                Ok(())
            }
            None => Err(MapError::TooMuchWork(self.rule)),
        }
    }

    /// The type of an item: 0 for devices. Decoding saw to it that every bucket named exists.
    #[inline]
    fn kind(&self, item: i32) -> i32 {
        self.map.bucket(item).map_or(0, |b| i32::from(b.kind))
    }

    /// `crush_choose_firstn`: up to `numrep` distinct items below `root`, put into `out` from
    /// `outpos` on, and a device below each of them into `leaves`. An item that cannot be had is
    /// skipped and those after it move up. Yields the length reached.
    fn first_n(
        &mut self,
        tries: &Tries,
        level: &Level<'a>,
        out: &mut [i32],
        mut outpos: usize,
        mut count: usize,
        mut leaves: Option<&mut [i32]>,
    ) -> Result<usize, MapError> {
        let mut rep = if tries.stable { 0 } else { outpos as i32 };
        while rep < level.numrep && count > 0 {
            let leaves = leaves.as_deref_mut();
            if let Some(item) = self.first_n_item(tries, level, rep, out, outpos, count, leaves)? {
                out[outpos] = item;
                outpos += 1;
                count -= 1;
            }
            rep += 1;
        }
        Ok(outpos)
    }

    /// One item that is neither out nor among `out[..outpos]`, or none after all tries.
    #[allow(clippy::too_many_arguments)]
    fn first_n_item(
        &mut self,
        tries: &Tries,
        level: &Level<'a>,
        rep: i32,
        out: &[i32],
        outpos: usize,
        count: usize,
        mut leaves: Option<&mut [i32]>,
    ) -> Result<Option<i32>, MapError> {
        let mut failures = 0u32;
        // Each turn is a descent from the root.
        'descent: loop {
            let mut bucket = level.root;
            let mut failures_here = 0u32;
            loop {
                self.spend(bucket)?;
                let r = rep
                    .wrapping_add(level.parent_r)
                    .wrapping_add(failures as i32);
                let size = bucket.items.len() as u32;
                let mut collides = false;
                if size > 0 {
                    let exhaustive = tries.local_fallback > 0
                        && failures_here >= size >> 1
                        && failures_here > tries.local_fallback;
                    let choice = if exhaustive {
                        Some(self.perm.choose(bucket, self.x, r))
                    } else {
                        self.choose(bucket, r, outpos)
                    };
                    let Some(item) = choice else {
                        return Ok(None);
                    };
                    let kind = self.kind(item);
                    if kind != level.kind {
                        match self.map.bucket(item) {
                            Some(child) => bucket = child,
                            None => return Ok(None),
                        }
                        continue;
                    }
                    collides = out[..outpos].contains(&item);
                    if !collides {
                        let leaf = match leaves.as_deref_mut() {
                            Some(leaves) => {
                                self.first_n_leaf(tries, level, item, r, outpos, count, leaves)?
                            }
                            None => true,
                        };
                        if leaf && !(kind == 0 && self.is_out(item)) {
                            return Ok(Some(item));
                        }
                    }
                }
                failures = failures.wrapping_add(1);
                failures_here = failures_here.wrapping_add(1);
                let again_here = collides && failures_here <= tries.local
                    || tries.local_fallback > 0
                        && failures_here <= size.wrapping_add(tries.local_fallback);
                if again_here {
                    continue;
                }
                if failures < level.tries {
                    continue 'descent;
                }
                return Ok(None);
            }
        }
    }

    /// Finds the device below `item` that goes into `leaves[outpos]`.
    #[allow(clippy::too_many_arguments)]
    fn first_n_leaf(
        &mut self,
        tries: &Tries,
        level: &Level<'a>,
        item: i32,
        r: i32,
        outpos: usize,
        count: usize,
        leaves: &mut [i32],
    ) -> Result<bool, MapError> {
        let Some(root) = self.map.bucket(item) else {
            leaves[outpos] = item;
            return Ok(true);
        };
        let below = Level {
            root,
            numrep: if tries.stable { 1 } else { outpos as i32 + 1 },
            kind: 0,
            tries: level.leaf_tries,
            leaf_tries: 0,
            parent_r: match tries.vary_r {
                0 => 0,
                v => r.wrapping_shr(v as u32 - 1),
            },
        };
        Ok(self.first_n(tries, &below, leaves, outpos, count, None)? > outpos)
    }

    /// `crush_choose_indep`: fills exactly the places `range` of `out`, breadth first, each draw
    /// depending on its place only, so that a lost item leaves the others where they are.
    fn indep(
        &mut self,
        level: &Level<'a>,
        out: &mut [i32],
        range: std::ops::Range<usize>,
        mut leaves: Option<&mut [i32]>,
    ) -> Result<(), MapError> {
        out[range.clone()].fill(ITEM_UNDEF);
        if let Some(leaves) = leaves.as_deref_mut() {
            leaves[range.clone()].fill(ITEM_UNDEF);
        }
        let mut left = range.len();
        let mut failures = 0;
        while left > 0 && failures < level.tries {
            for place in range.clone() {
                if out[place] != ITEM_UNDEF {
                    continue;
                }
                let leaves = leaves.as_deref_mut();
                if self.indep_item(level, out, &range, place, failures, leaves)? {
                    left -= 1;
                }
            }
            failures += 1;
        }
        let undecided = |v: &mut [i32]| {
            for item in v.iter_mut().filter(|i| **i == ITEM_UNDEF) {
                *item = ITEM_NONE;
            }
        };
        undecided(&mut out[range.clone()]);
        if let Some(leaves) = leaves {
            undecided(&mut leaves[range]);
        }
        Ok(())
    }

    /// One descent for one place. True when the place is decided, be it by a hole.
    fn indep_item(
        &mut self,
        level: &Level<'a>,
        out: &mut [i32],
        range: &std::ops::Range<usize>,
        place: usize,
        failures: u32,
        mut leaves: Option<&mut [i32]>,
    ) -> Result<bool, MapError> {
        let mut bucket = level.root;
        loop {
            self.spend(bucket)?;
            let size = bucket.items.len() as u32;
            let mut r = (place as i32).wrapping_add(level.parent_r);
            // A stride that divides a uniform bucket's size would meet the same items again.
            let uniform = matches!(bucket.alg, Alg::Uniform { .. });
            let stride = if uniform && size.is_multiple_of(level.numrep as u32) {
                level.numrep.wrapping_add(1)
            } else {
                level.numrep
            };
            r = r.wrapping_add(stride.wrapping_mul(failures as i32));
            if size == 0 {
                return Ok(false);
            }
            let item = match self.choose(bucket, r, range.start) {
                Some(item) if self.kind(item) == level.kind => item,
                Some(item) if item < 0 => {
                    match self.map.bucket(item) {
                        Some(child) => bucket = child,
                        None => return Ok(false),
                    }
                    continue;
                }
                // A device where none is wanted: nothing will ever fit here.
                _ => {
                    out[place] = ITEM_NONE;
                    if let Some(leaves) = leaves {
                        leaves[place] = ITEM_NONE;
                    }
                    return Ok(true);
                }
            };
            if out[range.clone()].contains(&item) {
                return Ok(false);
            }
            if let Some(leaves) = leaves.as_deref_mut() {
                if let Some(root) = self.map.bucket(item) {
                    let below = Level {
                        root,
                        kind: 0,
                        tries: level.leaf_tries,
                        leaf_tries: 0,
                        parent_r: r,
                        ..*level
                    };
                    self.indep(&below, leaves, place..place + 1, None)?;
                    if leaves[place] == ITEM_NONE {
                        return Ok(false);
                    }
                } else {
                    leaves[place] = item;
                }
            }
            if level.kind == 0 && self.is_out(item) {
                return Ok(false);
            }
            out[place] = item;
            return Ok(true);
        }
    }

    /// Whether a device is out, wholly or for this input (`is_out`).
    pub(super) fn is_out(&self, device: i32) -> bool {
        let weight = usize::try_from(device)
            .ok()
            .and_then(|i| self.weights.get(i));
        match weight {
            None | Some(0) => true,
            Some(&w) => w < 0x10000 && hash2(self.x, device as u32) & 0xffff >= w,
        }
    }

    /// `crush_bucket_choose`: draw `r` from a bucket that is not empty. None when a tree's weights
    /// lead to a node without an item.
    #[inline]
    pub(super) fn choose(&mut self, bucket: &Bucket, r: i32, position: usize) -> Option<i32> {
        let x = self.x;
        match &bucket.alg {
            Alg::Straw2 { weights } => {
                let arg = self.args.and_then(|args| args.get(bucket.id));
                Some(straw2(bucket, weights, arg, x, r, position))
            }
            Alg::Uniform { .. } => Some(self.perm.choose(bucket, x, r)),
            Alg::List { weights, sums } => Some(list(bucket, weights, sums, x, r)),
            Alg::Tree { nodes } => tree(bucket, nodes, x, r),
            Alg::Straw { straws, .. } => Some(straw(bucket, straws, x, r)),
        }
    }
}

/// From the newest item back: each wins with its share of the weight up to it.
fn list(bucket: &Bucket, weights: &[u32], sums: &[u32], x: u32, r: i32) -> i32 {
    for (i, &item) in bucket.items.iter().enumerate().rev() {
        let draw = draw4(bucket, x, item as u32, r as u32, bucket.id as u32) & 0xffff;
        let scaled = (u64::from(draw) * u64::from(sums[i])) >> 16;
        if scaled < u64::from(weights[i]) {
            return item;
        }
    }
    bucket.items[0]
}

/// Down a binary tree laid out in-order; a node's height is its number of trailing zeros.
fn tree(bucket: &Bucket, nodes: &[u32], x: u32, r: i32) -> Option<i32> {
    let mut n = nodes.len() >> 1;
    while n & 1 == 0 {
        let draw = draw4(bucket, x, n as u32, r as u32, bucket.id as u32);
        let point = (u64::from(draw) * u64::from(nodes[n])) >> 32;
        let half = 1 << (n.trailing_zeros() - 1);
        let left = n - half;
        n = if point < u64::from(nodes[left]) {
            left
        } else {
            n + half
        };
    }
    bucket.items.get(n >> 1).copied()
}

fn straw(bucket: &Bucket, straws: &[u32], x: u32, r: i32) -> i32 {
    let mut best = (bucket.items[0], 0);
    for (i, (&item, &straw)) in bucket.items.iter().zip(straws).enumerate() {
        let draw = u64::from(draw3(bucket, x, item as u32, r as u32) & 0xffff) * u64::from(straw);
        if i == 0 || draw > best.1 {
            best = (item, draw);
        }
    }
    best.0
}

/// Each item draws an exponentially distributed number scaled by its weight; the largest wins.
#[inline]
fn straw2(
    bucket: &Bucket,
    weights: &[u32],
    arg: Option<&ChooseArg>,
    x: u32,
    r: i32,
    position: usize,
) -> i32 {
    let mut ids = &bucket.items[..];
    let mut weights = weights;
    if let Some(arg) = arg {
        if let Some(last) = arg.weight_set.len().checked_sub(1) {
            weights = &arg.weight_set[position.min(last)];
        }
        if !arg.ids.is_empty() {
            ids = &arg.ids;
        }
    }
    let mut best = (bucket.items[0], i64::MIN);
    for (i, (&item, &id)) in bucket.items.iter().zip(ids).enumerate() {
        // A weight set may be shorter than its bucket; Ceph fills it up with zeros.
        let draw = match weights.get(i) {
            None | Some(0) => i64::MIN,
            Some(&weight) => {
                let u = draw3(bucket, x, id as u32, r as u32) & 0xffff;
                let log = ln(u) as i64 - (1 << 48);
                log / i64::from(weight as i32)
            }
        };
        if draw > best.1 {
            best = (item, draw);
        }
    }
    best.0
}
