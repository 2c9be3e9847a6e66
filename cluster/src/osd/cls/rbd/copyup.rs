//! Calls on the data objects of images.

use std::collections::BTreeMap;
use std::ops::Range;

use super::super::value::{DONE, Value, input};
use super::super::{Context, Errno, Method, READ_WRITE, Result};
use super::{check_exists, method};

pub(super) const METHODS: &[Method] = &[
    method("copyup", READ_WRITE, copyup),
    method("sparse_copyup", READ_WRITE, sparse_copyup),
    method("assert_snapc_seq", READ_WRITE, assert_snapc_seq),
    method("sparsify", READ_WRITE, sparsify),
];

/// Gives a clone's object the parent's data, unless it has come to be by now.
fn copyup(ctx: &mut dyn Context, data: &[u8]) -> Result<Vec<u8>> {
    if ctx.stat().is_ok() {
        return DONE;
    }
    if data.is_empty() {
        ctx.create(false)?;
    } else {
        ctx.write(0, data)?;
    }
    DONE
}

/// As [`copyup`], with offsets and lengths of what is not zero.
fn sparse_copyup(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (extents, mut data) = input(bytes, |r| Ok((BTreeMap::<u64, u64>::decode(r)?, r.blob()?)))?;
    match ctx.stat() {
        Ok(_) => return DONE,
        Err(Errno::NOENT) => {}
        Err(e) => return Err(e),
    }
    if extents.is_empty() {
        ctx.create(true)?;
    }
    for (offset, length) in extents {
        let length = usize::try_from(length).map_err(|_| Errno::INVAL)?;
        let (piece, rest) = data.split_at_checked(length).ok_or(Errno::INVAL)?;
        ctx.write(offset, piece)?;
        data = rest;
    }
    DONE
}

/// Fails a write whose snap context is older, or newer, than what the object has seen.
fn assert_snapc_seq(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (seq, state) = input(bytes, |r| Ok((r.u64()?, r.u8()?)))?;
    let (seen, clones) = ctx.snap_set();
    // An object that is gone but for its clones has its history still.
    let gone = clones.is_empty() && ctx.stat() == Err(Errno::NOENT);
    let newer = gone || seq > seen;
    match state {
        0 if newer => DONE,
        1 if !newer => DONE,
        0 | 1 => Err(Errno::RANGE),
        _ => Err(Errno::OPNOTSUPP),
    }
}

/// What is left of the data without the pieces of `piece` bytes that are all zero.
fn runs(data: &[u8], piece: usize) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let mut at = 0;
    for part in data.chunks(piece) {
        let end = at + part.len();
        if part.iter().any(|b| *b != 0) {
            match runs.last_mut() {
                Some(run) if run.end == at => run.end = end,
                _ => runs.push(at..end),
            }
        }
        at = end;
    }
    runs
}

/// Rewrites an object without its zeros.
fn sparsify(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (piece, remove_empty) = input(bytes, |r| Ok((r.u64()?, r.bool()?)))?;
    check_exists(ctx)?;
    let (size, _) = ctx.stat()?;
    let data = ctx.read(0, size)?;
    if data.iter().all(|b| *b == 0) {
        if remove_empty {
            ctx.remove()?;
        } else if !data.is_empty() {
            ctx.truncate(0)?;
        }
        return DONE;
    }
    let piece = usize::try_from(piece).unwrap_or(usize::MAX);
    if piece == 0 {
        return Err(Errno::INVAL);
    }
    let runs = runs(&data, piece);
    let whole = 0..data.len();
    if runs.len() != 1 || runs[0] != whole {
        ctx.truncate(0)?;
        for run in runs {
            ctx.write(run.start as u64, &data[run])?;
        }
    }
    DONE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_what_is_not_zero_piece_by_piece() {
        assert_eq!(runs(&[0, 0, 1, 0, 0, 1, 0, 0, 1], 2), [2..6, 8..9]);
        assert_eq!(runs(&[0, 0, 0], 2), []);
        assert_eq!(runs(&[1, 1, 0, 0, 1], 2), [0..2, 4..5]);
    }
}
