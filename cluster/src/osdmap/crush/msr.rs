//! Multi-step retry rules (`crush_msr_do_rule` of `src/crush/mapper.c`, since Tentacle).
//!
//! A block of the rule, `take`, some `choosemsr N type T`, `emit`, splits its share of the result
//! into N strides at each step. No bucket serves two strides of a step, yet one stride may draw on
//! several, so what a step has used is remembered per place of the result. Where Ceph would abort
//! on a rule its tools refuse to build, this yields an error.

use smallvec::SmallVec;

use super::mapper::Mapper;
use super::{Bucket, ITEM_NONE, ITEM_UNDEF, MapError, MsrTunables, OsdSet, Rule, op, rule_kind};

/// What each step of a block has used, by place of the result.
pub(super) type Strides = SmallVec<[i32; 36]>;

/// Deeper blocks than any hierarchy (`CRUSH_MAX_DEPTH` is 10) are refused; recursion follows them.
const MAX_STEPS: usize = 64;

pub(super) fn do_rule(
    mapper: &mut Mapper<'_>,
    rule: &Rule,
    width: usize,
    strides: &mut Strides,
    out: &mut OsdSet,
) -> Result<(), MapError> {
    let mut tries = mapper.map.tunables().msr;
    let mut at = config_steps(rule, &mut tries);
    out.resize(width, ITEM_NONE);
    let mut msr = Msr {
        mapper,
        rule,
        tries,
        width,
        first_step: 0,
        end_step: 0,
        strides,
        out,
        emitted: 0,
    };
    let mut start = 0usize;
    while at < rule.steps.len() {
        let (emit, children) = msr.scan_block(at)?;
        let root = msr.mapper.map.bucket(rule.steps[at].arg1);
        let root = root.ok_or(msr.bad_rule(at))?;
        msr.first_step = at + 1;
        msr.end_step = emit;
        msr.strides.clear();
        msr.strides.resize((emit - at - 1) * width, ITEM_UNDEF);
        let end = start.saturating_add(children).min(width);
        let full = msr.emitted + (end - start);
        let mut descent = 0;
        while descent < tries.descents && msr.emitted < full {
            msr.choose(root, children, start, end, at + 1, descent)?;
            descent += 1;
        }
        start = end;
        at = emit + 1;
    }
    if rule.kind == rule_kind::MSR_FIRSTN {
        let emitted = msr.emitted;
        out.truncate(emitted);
    }
    Ok(())
}

/// The steps that precede the first block set tries (`crush_msr_scan_config_steps`). Yields where
/// they end.
fn config_steps(rule: &Rule, tries: &mut MsrTunables) -> usize {
    for (i, step) in rule.steps.iter().enumerate() {
        match step.op {
            op::SET_MSR_DESCENTS => tries.descents = step.arg1 as u32,
            op::SET_MSR_COLLISION_TRIES => tries.collision_tries = step.arg1 as u32,
            _ => return i,
        }
    }
    rule.steps.len()
}

struct Msr<'m, 'a> {
    mapper: &'m mut Mapper<'a>,
    rule: &'m Rule,
    tries: MsrTunables,
    width: usize,
    /// The choose steps of the block at work.
    first_step: usize,
    end_step: usize,
    strides: &'m mut Strides,
    out: &'m mut OsdSet,
    emitted: usize,
}

impl<'a> Msr<'_, 'a> {
    fn bad_rule(&self, step: usize) -> MapError {
        MapError::BadRule {
            rule: self.mapper.rule,
            step,
        }
    }

    /// How many strides a step makes: all places when it names no number.
    fn strides_of(&self, step: usize) -> Option<usize> {
        match usize::try_from(self.rule.steps[step].arg1).ok()? {
            0 => Some(self.width),
            n => Some(n),
        }
    }

    /// Checks the block that begins at step `at`; yields its emit step and how many devices its
    /// steps multiply to (`crush_msr_scan_next`).
    fn scan_block(&self, at: usize) -> Result<(usize, usize), MapError> {
        let steps = &self.rule.steps;
        if steps[at].op != op::TAKE {
            return Err(self.bad_rule(at));
        }
        let mut children = 1usize;
        for (i, step) in steps.iter().enumerate().skip(at + 1) {
            match step.op {
                op::EMIT if i > at + 1 => return Ok((i, children)),
                op::CHOOSE_MSR if i - at <= MAX_STEPS => {
                    children = self
                        .strides_of(i)
                        .and_then(|n| children.checked_mul(n))
                        .ok_or(self.bad_rule(i))?;
                }
                _ => return Err(self.bad_rule(i)),
            }
        }
        Err(self.bad_rule(steps.len()))
    }

    /// The places of `step` from `start` to `end`.
    fn used(&mut self, step: usize, start: usize, end: usize) -> &mut [i32] {
        let row = (step - self.first_step) * self.width;
        &mut self.strides[row + start..row + end]
    }

    /// Fills places `start..end` below `bucket`, as far as one descent gets
    /// (`crush_msr_choose`). Yields how many it filled.
    fn choose(
        &mut self,
        bucket: &'a Bucket,
        descendants: usize,
        start: usize,
        end: usize,
        step: usize,
        descent: u32,
    ) -> Result<usize, MapError> {
        self.mapper.spend(bucket)?;
        let kind = self.rule.steps[step].arg2;
        let strides = self.strides_of(step).filter(|n| *n > 0);
        let stride_len = strides.map_or(0, |n| descendants / n);
        if stride_len == 0 {
            return Err(self.bad_rule(step));
        }
        let last_step = step + 1 == self.end_step;
        // Buckets that led to no device. They collide until this descent is over, so that a device
        // marked out moves as little as possible.
        let mut undo: SmallVec<[(usize, i32); 8]> = SmallVec::new();
        let mut mapped = 0;
        for (index, from) in (start..end).step_by(stride_len).enumerate() {
            let to = (from + stride_len).min(end);
            if !self.used(self.end_step - 1, from, to).contains(&ITEM_UNDEF) {
                continue;
            }
            let Some(item) =
                self.pick(bucket, kind, (start, end), (from, to), step, index, descent)?
            else {
                continue;
            };
            if kind == 0 {
                // Steps below a device, or several places for one, are a malformed rule.
                if stride_len != 1 || !last_step || self.mapper.is_out(item) {
                    continue;
                }
                self.push_used(step, from, to, item)?;
                self.emit(from, item);
                mapped += 1;
            } else if !last_step {
                let child = self.mapper.map.bucket(item).ok_or(self.bad_rule(step))?;
                let below = self.choose(child, stride_len, from, to, step + 1, descent)?;
                let pushed = self.push_used(step, from, to, item)?;
                if pushed && below == 0 {
                    undo.push((from, item));
                } else {
                    mapped += below;
                }
            }
        }
        for (from, item) in undo {
            let to = (from + stride_len).min(end);
            let slot = self
                .used(step, from, to)
                .iter_mut()
                .rev()
                .find(|u| **u != ITEM_UNDEF);
            match slot {
                Some(u) if *u == item => *u = ITEM_UNDEF,
                _ => return Err(self.bad_rule(step)),
            }
        }
        Ok(mapped)
    }

    /// Draws until an item comes up that no other stride of this step has used.
    #[allow(clippy::too_many_arguments)]
    fn pick(
        &mut self,
        bucket: &'a Bucket,
        kind: i32,
        all: (usize, usize),
        stride: (usize, usize),
        step: usize,
        index: usize,
        descent: u32,
    ) -> Result<Option<i32>, MapError> {
        for attempt in 0..self.tries.collision_tries {
            let Some(item) = self.descend(bucket, kind, index, descent, attempt)? else {
                continue;
            };
            let first = self
                .used(step, all.0, all.1)
                .iter()
                .position(|u| *u == item);
            let collides = first.is_some_and(|i| !(stride.0..stride.1).contains(&(all.0 + i)));
            if !collides {
                return Ok(Some(item));
            }
        }
        Ok(None)
    }

    /// Down from `bucket` to a device or the first bucket of type `kind` (`crush_msr_descend`).
    fn descend(
        &mut self,
        mut bucket: &'a Bucket,
        kind: i32,
        index: usize,
        descent: u32,
        attempt: u32,
    ) -> Result<Option<i32>, MapError> {
        // `crush_msr_get_retry_value`
        let turn = descent
            .wrapping_mul(self.width as u32)
            .wrapping_add(index as u32);
        let r = (turn << 16).wrapping_add(attempt) as i32;
        loop {
            self.mapper.spend(bucket)?;
            if bucket.items.is_empty() {
                return Ok(None);
            }
            let Some(item) = self.mapper.choose(bucket, r, index) else {
                return Ok(None);
            };
            match self.mapper.map.bucket(item) {
                None => return Ok(Some(item)),
                Some(child) if i32::from(child.kind) == kind => return Ok(Some(item)),
                Some(child) => bucket = child,
            }
        }
    }

    /// Remembers `item` for the stride; false when it already was.
    fn push_used(
        &mut self,
        step: usize,
        from: usize,
        to: usize,
        item: i32,
    ) -> Result<bool, MapError> {
        let slot = self
            .used(step, from, to)
            .iter_mut()
            .find(|u| **u == item || **u == ITEM_UNDEF);
        match slot {
            Some(u) if *u == item => Ok(false),
            Some(u) => {
                *u = item;
                Ok(true)
            }
            None => Err(self.bad_rule(step)),
        }
    }

    /// First-n rules emit in the order found, indep rules in place.
    fn emit(&mut self, place: usize, item: i32) {
        let at = if self.rule.kind == rule_kind::MSR_FIRSTN {
            self.emitted
        } else {
            place
        };
        self.out[at] = item;
        self.emitted += 1;
    }
}
