//! What a journal record says: the resolved changes of one transaction.
//!
//! A record holds no steps to be carried out again but their outcome: which bytes go to which file,
//! which rows the database gets. So recovery needs no state but the record, and what a step means
//! is written in one place, where it is carried out first.
//!
//! Data stands behind the changes, apart from them, so that one copy of it serves the journal, the
//! file and reads until then.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::codec::{DecodeError, Put, Reader, Result};
use crate::osdmap::Pg;

use super::blocks::{unvarint, varint};

/// Changes in order, and the data of their writes in the same order.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) ops: Vec<u8>,
    pub(super) data: Vec<Arc<[u8]>>,
    /// Bytes that copies of files come to.
    pub(super) copied: u64,
    /// Files of which an object has let go.
    pub(super) unrefs: SmallVec<[u64; 2]>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Op<'a> {
    /// Ids up to, without, this one have been given away.
    NextId(u64),
    /// To a file, which is made where it is missing, as are those of the next three.
    Write {
        file: u64,
        offset: u64,
        data: &'a [u8],
    },
    Zero {
        file: u64,
        offset: u64,
        length: u64,
    },
    Truncate {
        file: u64,
        size: u64,
    },
    /// Makes `to` anew, with these ranges of `from`, which changes no more.
    Copy {
        from: u64,
        to: u64,
        ranges: Vec<(u64, u64)>,
    },
    /// One more, or one fewer, object has the file.
    Ref(u64),
    Unref(u64),
    PutObject {
        pg: u64,
        key: &'a [u8],
        row: &'a [u8],
    },
    RemoveObject {
        pg: u64,
        key: &'a [u8],
    },
    /// An attribute or a piece of omap; the key begins with its kind.
    PutPair {
        id: u64,
        key: &'a [u8],
        value: &'a [u8],
    },
    RemovePair {
        id: u64,
        key: &'a [u8],
    },
    /// All of an object.
    RemovePairs(u64),
    PutPg {
        pg: Pg,
        row: &'a [u8],
    },
    /// With the objects and the log under its number.
    RemovePg {
        pg: Pg,
        no: u64,
    },
    Log {
        pg: u64,
        index: u64,
        entry: &'a [u8],
    },
    /// Hands the objects of `from` whose hash belongs to `to` in a pool of `pg_num` pgs over to it,
    /// and merges the histories; one that is `fresh` has none of its own.
    Move {
        from: Pg,
        to: Pg,
        pg_num: u32,
        fresh: bool,
    },
}

const NEXT_ID: u8 = 1;
const WRITE: u8 = 2;
const ZERO: u8 = 3;
const TRUNCATE: u8 = 4;
const COPY: u8 = 5;
const REF: u8 = 6;
const UNREF: u8 = 7;
const PUT_OBJECT: u8 = 8;
const REMOVE_OBJECT: u8 = 9;
const PUT_PAIR: u8 = 10;
const REMOVE_PAIR: u8 = 11;
const REMOVE_PAIRS: u8 = 12;
const PUT_PG: u8 = 13;
const REMOVE_PG: u8 = 14;
const LOG: u8 = 15;
const MOVE: u8 = 16;

impl Changes {
    /// Bytes of the record without its header.
    pub(super) fn len(&self) -> usize {
        4 + self.ops.len() + self.data.iter().map(|d| d.len()).sum::<usize>()
    }

    pub(super) fn write(&mut self, file: u64, offset: u64, data: Arc<[u8]>) {
        self.numbers(WRITE, &[file, offset, data.len() as u64]);
        self.data.push(data);
    }

    /// Every change but a write.
    pub(super) fn push(&mut self, op: &Op<'_>) {
        match op {
            Op::Write { file, offset, data } => self.write(*file, *offset, (*data).into()),
            Op::NextId(id) => self.numbers(NEXT_ID, &[*id]),
            Op::Zero {
                file,
                offset,
                length,
            } => self.numbers(ZERO, &[*file, *offset, *length]),
            Op::Truncate { file, size } => self.numbers(TRUNCATE, &[*file, *size]),
            Op::Copy { from, to, ranges } => {
                self.copied += ranges.iter().map(|r| r.1).sum::<u64>();
                self.numbers(COPY, &[*from, *to, ranges.len() as u64]);
                for (offset, length) in ranges {
                    varint(*offset, &mut self.ops);
                    varint(*length, &mut self.ops);
                }
            }
            Op::Ref(file) => self.numbers(REF, &[*file]),
            Op::Unref(file) => {
                self.numbers(UNREF, &[*file]);
                self.unrefs.push(*file);
            }
            Op::PutObject { pg, key, row } => {
                self.numbers(PUT_OBJECT, &[*pg]);
                self.ops.put_blob(key);
                self.ops.put_blob(row);
            }
            Op::RemoveObject { pg, key } => {
                self.numbers(REMOVE_OBJECT, &[*pg]);
                self.ops.put_blob(key);
            }
            Op::PutPair { id, key, value } => {
                self.numbers(PUT_PAIR, &[*id]);
                self.ops.put_blob(key);
                self.ops.put_blob(value);
            }
            Op::RemovePair { id, key } => {
                self.numbers(REMOVE_PAIR, &[*id]);
                self.ops.put_blob(key);
            }
            Op::RemovePairs(id) => self.numbers(REMOVE_PAIRS, &[*id]),
            Op::PutPg { pg, row } => {
                self.ops.put_u8(PUT_PG);
                self.pg(pg);
                self.ops.put_blob(row);
            }
            Op::RemovePg { pg, no } => {
                self.ops.put_u8(REMOVE_PG);
                self.pg(pg);
                varint(*no, &mut self.ops);
            }
            Op::Log { pg, index, entry } => {
                self.numbers(LOG, &[*pg, *index]);
                self.ops.put_blob(entry);
            }
            Op::Move {
                from,
                to,
                pg_num,
                fresh,
            } => {
                self.ops.put_u8(MOVE);
                self.pg(from);
                self.pg(to);
                self.ops.put_u32(*pg_num);
                self.ops.put_bool(*fresh);
            }
        }
    }

    fn numbers(&mut self, kind: u8, numbers: &[u64]) {
        self.ops.put_u8(kind);
        for n in numbers {
            varint(*n, &mut self.ops);
        }
    }

    fn pg(&mut self, pg: &Pg) {
        self.ops.put_i64(pg.pool);
        self.ops.put_u32(pg.seed);
    }

    /// Hands over the changes in order.
    pub(super) fn each<E: From<DecodeError>>(
        &self,
        mut take: impl FnMut(Op<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut r = Reader::new(&self.ops);
        let mut data = self.data.iter();
        while !r.is_empty() {
            take(op(&mut r, |n| {
                data.next()
                    .map(|d| &d[..])
                    .filter(|d| d.len() as u64 == n)
                    .ok_or(MALFORMED)
            })?)?;
        }
        Ok(())
    }
}

/// Hands over the changes of a record that was read back.
pub(super) fn each<E: From<DecodeError>>(
    record: &[u8],
    mut take: impl FnMut(Op<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let mut data = Reader::new(record);
    let mut r = Reader::new(data.blob()?);
    while !r.is_empty() {
        take(op(&mut r, |n| {
            data.bytes(usize::try_from(n).unwrap_or(usize::MAX))
        })?)?;
    }
    if data.is_empty() {
        Ok(())
    } else {
        Err(MALFORMED.into())
    }
}

const MALFORMED: DecodeError = DecodeError::malformed("journal record");

fn pg(r: &mut Reader<'_>) -> Result<Pg> {
    Ok(Pg {
        pool: r.i64()?,
        seed: r.u32()?,
    })
}

/// A range that ends where offsets do at the latest.
fn range(offset: u64, length: u64) -> Result<(u64, u64)> {
    match offset.checked_add(length) {
        Some(_) => Ok((offset, length)),
        None => Err(MALFORMED),
    }
}

fn op<'a>(r: &mut Reader<'a>, data: impl FnOnce(u64) -> Result<&'a [u8]>) -> Result<Op<'a>> {
    Ok(match r.u8()? {
        NEXT_ID => Op::NextId(unvarint(r)?),
        WRITE => {
            let (file, offset, length) = (unvarint(r)?, unvarint(r)?, unvarint(r)?);
            range(offset, length)?;
            Op::Write {
                file,
                offset,
                data: data(length)?,
            }
        }
        ZERO => {
            let file = unvarint(r)?;
            let (offset, length) = range(unvarint(r)?, unvarint(r)?)?;
            Op::Zero {
                file,
                offset,
                length,
            }
        }
        TRUNCATE => Op::Truncate {
            file: unvarint(r)?,
            size: unvarint(r)?,
        },
        COPY => {
            let (from, to) = (unvarint(r)?, unvarint(r)?);
            let mut ranges = Vec::new();
            for _ in 0..unvarint(r)? {
                ranges.push(range(unvarint(r)?, unvarint(r)?)?);
            }
            Op::Copy { from, to, ranges }
        }
        REF => Op::Ref(unvarint(r)?),
        UNREF => Op::Unref(unvarint(r)?),
        PUT_OBJECT => Op::PutObject {
            pg: unvarint(r)?,
            key: r.blob()?,
            row: r.blob()?,
        },
        REMOVE_OBJECT => Op::RemoveObject {
            pg: unvarint(r)?,
            key: r.blob()?,
        },
        PUT_PAIR => Op::PutPair {
            id: unvarint(r)?,
            key: r.blob()?,
            value: r.blob()?,
        },
        REMOVE_PAIR => Op::RemovePair {
            id: unvarint(r)?,
            key: r.blob()?,
        },
        REMOVE_PAIRS => Op::RemovePairs(unvarint(r)?),
        PUT_PG => Op::PutPg {
            pg: pg(r)?,
            row: r.blob()?,
        },
        REMOVE_PG => Op::RemovePg {
            pg: pg(r)?,
            no: unvarint(r)?,
        },
        LOG => Op::Log {
            pg: unvarint(r)?,
            index: unvarint(r)?,
            entry: r.blob()?,
        },
        MOVE => Op::Move {
            from: pg(r)?,
            to: pg(r)?,
            pg_num: r.u32()?,
            fresh: r.bool()?,
        },
        _ => return Err(MALFORMED),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ops<'a>(n: u64, a: &'a [u8], b: &'a [u8]) -> Vec<Op<'a>> {
        let pg = Pg {
            pool: n as i64,
            seed: n as u32,
        };
        vec![
            Op::NextId(n),
            Op::Write {
                file: n,
                offset: n >> 1,
                data: a,
            },
            Op::Zero {
                file: 1,
                offset: n >> 1,
                length: n >> 2,
            },
            Op::Truncate { file: 0, size: n },
            Op::Copy {
                from: 1,
                to: n,
                ranges: vec![(0, 1), (n >> 1, 7)],
            },
            Op::Ref(n),
            Op::Unref(n),
            Op::PutObject {
                pg: n,
                key: a,
                row: b,
            },
            Op::RemoveObject { pg: n, key: b },
            Op::PutPair {
                id: n,
                key: a,
                value: b,
            },
            Op::RemovePair { id: 0, key: a },
            Op::RemovePairs(n),
            Op::Write {
                file: n,
                offset: 0,
                data: b,
            },
            Op::PutPg { pg, row: a },
            Op::RemovePg { pg, no: n },
            Op::Log {
                pg: 1,
                index: n,
                entry: b,
            },
            Op::Move {
                from: pg,
                to: pg,
                pg_num: 3,
                fresh: n.is_multiple_of(2),
            },
        ]
    }

    proptest! {
        #[test]
        fn changes_are_read_back(n: u64, a: Vec<u8>, b: Vec<u8>) {
            let ops = ops(n, &a, &b);
            let mut changes = Changes::default();
            ops.iter().for_each(|op| changes.push(op));
            let mut at = 0;
            changes.each::<DecodeError>(|op| {
                assert_eq!(op, ops[at]);
                at += 1;
                Ok(())
            }).unwrap();
            prop_assert_eq!(at, ops.len());

            let mut record = Vec::new();
            record.put_blob(&changes.ops);
            changes.data.iter().for_each(|d| record.put_bytes(d));
            prop_assert_eq!(record.len(), changes.len());
            at = 0;
            each::<DecodeError>(&record, |op| {
                assert_eq!(op, ops[at]);
                at += 1;
                Ok(())
            }).unwrap();
            prop_assert_eq!(at, ops.len());
            record.push(0);
            prop_assert!(each::<DecodeError>(&record, |_| Ok(())).is_err());
        }

        #[test]
        fn hostile_bytes_never_panic(bytes: Vec<u8>, kind in 0u8..20) {
            let _ = each::<DecodeError>(&bytes, |_| Ok(()));
            let mut record = Vec::new();
            record.put_count(bytes.len() + 1);
            record.put_u8(kind);
            record.put_bytes(&bytes);
            let _ = each::<DecodeError>(&record, |_| Ok(()));
        }
    }
}
