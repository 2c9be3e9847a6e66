//! Where an image moves to, or comes from.

use std::collections::BTreeMap;

use crate::codec::{self, Put, Reader};
use crate::rbd::Features;

use super::super::value::{DONE, Text, Value, forget, found, input, load, look, reply, save};
use super::super::{Context, Errno, Method, READ, READ_WRITE, Result};
use super::method;

pub(super) const METHODS: &[Method] = &[
    method("migration_set", READ_WRITE, migration_set),
    method("migration_set_state", READ_WRITE, migration_set_state),
    method("migration_get", READ, migration_get),
    method("migration_remove", READ_WRITE, migration_remove),
];

const KEY: &str = "migration";

/// How the header of a format-1 image begins, terminated by a zero byte (`RBD_HEADER_TEXT`), and
/// how while the image moves (`RBD_MIGRATE_HEADER_TEXT`).
const PLAIN: &[u8; 34] = b"<<< Rados Block Device Image >>>\n\0";
const MOVING: &[u8; 34] = b"<<< Migrating RBD Image      >>>\n\0";

/// `MigrationHeaderType`: the image that moves, and the one it becomes.
const SOURCE: u8 = 1;
const DESTINATION: u8 = 2;

/// `cls::rbd::MigrationSpec`.
struct Spec {
    role: u8,
    pool: i64,
    namespace: Text,
    name: Text,
    id: Text,
    snap_seqs: BTreeMap<u64, u64>,
    overlap: u64,
    flatten: bool,
    mirroring: bool,
    state: u8,
    description: Text,
    mirror_mode: u8,
    source: Text,
}

impl Value for Spec {
    fn decode(r: &mut Reader<'_>) -> codec::Result<Spec> {
        let mut v = r.versioned("MigrationSpec", 3)?;
        let b = &mut v.body;
        Ok(Spec {
            role: b.u8()?,
            pool: b.i64()?,
            namespace: Value::decode(b)?,
            name: Value::decode(b)?,
            id: Value::decode(b)?,
            snap_seqs: Value::decode(b)?,
            overlap: b.u64()?,
            flatten: b.bool()?,
            mirroring: b.bool()?,
            state: b.u8()?,
            description: Value::decode(b)?,
            mirror_mode: if v.version >= 2 { b.u8()? } else { 0 },
            source: if v.version >= 3 {
                Value::decode(b)?
            } else {
                Text::new()
            },
        })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        let compat = if self.source.is_empty() { 1 } else { 3 };
        out.versioned(3, compat, |b| {
            b.put_u8(self.role);
            b.put_i64(self.pool);
            b.put_blob(&self.namespace);
            b.put_blob(&self.name);
            b.put_blob(&self.id);
            self.snap_seqs.encode(b);
            b.put_u64(self.overlap);
            b.put_bool(self.flatten);
            b.put_bool(self.mirroring);
            b.put_u8(self.state);
            b.put_blob(&self.description);
            b.put_u8(self.mirror_mode);
            b.put_blob(&self.source);
        });
    }
}

/// What an image says of itself, in the key of format 2 or the text of format 1.
enum Mark {
    Features(u64),
    Text { moving: bool },
}

impl Mark {
    fn load(ctx: &mut dyn Context) -> Result<Mark> {
        if let Some(features) = look(ctx, "features")? {
            return Ok(Mark::Features(features));
        }
        let text = found(ctx.read(0, PLAIN.len() as u64))?.unwrap_or_default();
        match &text[..] {
            t if t == PLAIN => Ok(Mark::Text { moving: false }),
            t if t == MOVING => Ok(Mark::Text { moving: true }),
            _ => Err(Errno::NXIO),
        }
    }
}

fn migration_set(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let spec = input(bytes, Spec::decode)?;
    if found(ctx.omap_get(KEY.as_bytes()))?.is_some() {
        return Err(Errno::EXIST);
    }
    match Mark::load(ctx)? {
        Mark::Text { moving: true } => return Err(Errno::EXIST),
        Mark::Text { moving: false } if spec.role != SOURCE => return Err(Errno::INVAL),
        Mark::Text { moving: false } => ctx.write(0, MOVING)?,
        Mark::Features(f) if f & Features::MIGRATING.0 == 0 => {
            save(ctx, "features", &(f | Features::MIGRATING.0))?;
        }
        // The destination was created with the feature.
        Mark::Features(_) if spec.role != DESTINATION => return Err(Errno::EXIST),
        Mark::Features(_) => {}
    }
    save(ctx, KEY, &spec)?;
    DONE
}

fn read(ctx: &mut dyn Context) -> Result<Spec> {
    match Mark::load(ctx)? {
        Mark::Text { moving: true } => {}
        Mark::Features(f) if f & Features::MIGRATING.0 != 0 => {}
        _ => return Err(Errno::INVAL),
    }
    load(ctx, KEY)
}

fn migration_set_state(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (state, description) = input(bytes, |r| Ok((r.u8()?, Text::decode(r)?)))?;
    let mut spec = read(ctx)?;
    spec.state = state;
    spec.description = description;
    save(ctx, KEY, &spec)?;
    DONE
}

fn migration_get(ctx: &mut dyn Context, _: &[u8]) -> Result<Vec<u8>> {
    reply(&read(ctx)?)
}

fn migration_remove(ctx: &mut dyn Context, _: &[u8]) -> Result<Vec<u8>> {
    forget(ctx, KEY)?;
    match Mark::load(ctx)? {
        Mark::Text { moving: false } => return Err(Errno::INVAL),
        Mark::Text { moving: true } => ctx.write(0, PLAIN)?,
        Mark::Features(f) if f & Features::MIGRATING.0 != 0 => {
            save(ctx, "features", &(f & !Features::MIGRATING.0))?;
        }
        Mark::Features(_) => {}
    }
    DONE
}
