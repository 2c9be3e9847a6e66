//! The class `journal`: an image's journal, of which the header knows the clients and tags, and
//! other objects hold the entries.
//!
//! Source: `src/cls/journal/cls_journal.cc`; layouts in `cls_journal_types.cc` beside it.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use crate::codec::{self, Put, Reader};

use super::value::{self, DONE, Text, Value, each, found, input, page, reply, save};
use super::{Context, Errno, Method, READ, READ_WRITE, Result};

const fn method(
    name: &'static str,
    access: (bool, bool),
    call: fn(&mut dyn Context, &[u8]) -> Result<Vec<u8>>,
) -> Method {
    Method::new("journal", name, access, call)
}

pub(super) const METHODS: &[Method] = &[
    method("create", READ_WRITE, create),
    method("get_order", READ, |ctx, _| get::<u8>(ctx, ORDER)),
    method("get_splay_width", READ, |ctx, _| get::<u8>(ctx, WIDTH)),
    method("get_pool_id", READ, |ctx, _| get::<i64>(ctx, POOL)),
    method("get_minimum_set", READ, |ctx, _| get::<u64>(ctx, MINIMUM)),
    method("set_minimum_set", READ_WRITE, set_minimum_set),
    method("get_active_set", READ, |ctx, _| get::<u64>(ctx, ACTIVE)),
    method("set_active_set", READ_WRITE, set_active_set),
    method("get_client", READ, get_client),
    method("client_register", READ_WRITE, client_register),
    method("client_update_data", READ_WRITE, client_update_data),
    method("client_update_state", READ_WRITE, client_update_state),
    method("client_unregister", READ_WRITE, client_unregister),
    method("client_commit", READ_WRITE, client_commit),
    method("client_list", READ, client_list),
    method("get_next_tag_tid", READ, |ctx, _| get::<u64>(ctx, NEXT_TAG)),
    method("get_tag", READ, get_tag),
    method("tag_create", READ_WRITE, tag_create),
    method("tag_list", READ, tag_list),
    method("guard_append", READ_WRITE, guard_append),
    method("append", READ_WRITE, append),
];

const ORDER: &str = "order";
const WIDTH: &str = "splay_width";
const POOL: &str = "pool_id";
const MINIMUM: &str = "minimum_set";
const ACTIVE: &str = "active_set";
const NEXT_TAG: &str = "next_tag_tid";
const NEXT_CLASS: &str = "next_tag_class";
const CLIENT: &str = "client_";
const TAG: &str = "tag_";

/// Asks for a new class of tags (`Tag::TAG_CLASS_NEW`).
const NEW_CLASS: u64 = u64::MAX;
/// `CEPH_RELEASE_OCTOPUS`: clients since then can read entries with zeros between them.
const OCTOPUS: u8 = 15;
/// To how many bytes an object grows then (the least that `journal_object_append` takes).
const ALIGNMENT: u64 = 8;

/// How far a client has come in one object (`ObjectPosition`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Position {
    object: u64,
    tag: u64,
    entry: u64,
}

impl Position {
    const SIZE: usize = 6 + 24;
}

impl Value for Position {
    fn decode(r: &mut Reader<'_>) -> codec::Result<Position> {
        let b = &mut r.versioned("ObjectPosition", 1)?.body;
        Ok(Position {
            object: b.u64()?,
            tag: b.u64()?,
            entry: b.u64()?,
        })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.versioned(1, 1, |b| {
            b.put_u64(self.object);
            b.put_u64(self.tag);
            b.put_u64(self.entry);
        });
    }
}

/// Newest first (`ObjectSetPosition`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Positions(Vec<Position>);

impl Positions {
    fn oldest_tag(&self) -> u64 {
        self.0.iter().map(|p| p.tag).min().unwrap_or(u64::MAX)
    }
}

impl Value for Positions {
    fn decode(r: &mut Reader<'_>) -> codec::Result<Positions> {
        let b = &mut r.versioned("ObjectSetPosition", 1)?.body;
        Ok(Positions(b.list(Position::SIZE, Position::decode)?))
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.versioned(1, 1, |b| {
            b.put_list(self.0.iter(), |b, p| p.encode(b));
        });
    }
}

/// Who reads the journal (`cls::journal::Client`).
struct Client {
    id: Text,
    data: Text,
    committed: Positions,
    state: u8,
}

impl Client {
    /// `CLIENT_STATE_*`.
    const CONNECTED: u8 = 0;
    const DISCONNECTED: u8 = 1;
}

impl Value for Client {
    fn decode(r: &mut Reader<'_>) -> codec::Result<Client> {
        let b = &mut r.versioned("journal::Client", 1)?.body;
        Ok(Client {
            id: Value::decode(b)?,
            data: Value::decode(b)?,
            committed: Value::decode(b)?,
            state: b.u8()?,
        })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.versioned(1, 1, |b| {
            b.put_blob(&self.id);
            b.put_blob(&self.data);
            self.committed.encode(b);
            b.put_u8(self.state);
        });
    }
}

/// What entries belong to (`cls::journal::Tag`).
struct Tag {
    tid: u64,
    class: u64,
    data: Text,
}

impl Value for Tag {
    fn decode(r: &mut Reader<'_>) -> codec::Result<Tag> {
        let b = &mut r.versioned("journal::Tag", 1)?.body;
        Ok(Tag {
            tid: b.u64()?,
            class: b.u64()?,
            data: Value::decode(b)?,
        })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.versioned(1, 1, |b| {
            b.put_u64(self.tid);
            b.put_u64(self.class);
            b.put_blob(&self.data);
        });
    }
}

/// As [`value::load`], but what cannot be understood is EINVAL here.
fn load<T: Value>(ctx: &mut dyn Context, key: impl AsRef<[u8]>) -> Result<T> {
    input(&ctx.omap_get(key.as_ref())?, T::decode)
}

fn get<T: Value>(ctx: &mut dyn Context, key: &str) -> Result<Vec<u8>> {
    reply(&load::<T>(ctx, key)?)
}

fn create(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (order, width, pool) = input(bytes, |r| Ok((r.u8()?, r.u8()?, r.i64()?)))?;
    if found(ctx.omap_get(ORDER.as_bytes()))?.is_some() {
        return Err(Errno::EXIST);
    }
    save(ctx, ORDER, &order)?;
    save(ctx, WIDTH, &width)?;
    save(ctx, POOL, &pool)?;
    for key in [ACTIVE, MINIMUM, NEXT_TAG, NEXT_CLASS] {
        save(ctx, key, &0_u64)?;
    }
    DONE
}

/// Both sets only move forward.
fn move_set(ctx: &mut dyn Context, key: &str, old: u64, new: u64) -> Result<Vec<u8>> {
    if new < old {
        return Err(Errno::STALE);
    }
    if new > old {
        save(ctx, key, &new)?;
    }
    DONE
}

fn set_minimum_set(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let new = input(bytes, |r| r.u64())?;
    if load::<u64>(ctx, ACTIVE)? < new {
        return Err(Errno::INVAL);
    }
    let old = load(ctx, MINIMUM)?;
    move_set(ctx, MINIMUM, old, new)
}

fn set_active_set(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let new = input(bytes, |r| r.u64())?;
    if load::<u64>(ctx, MINIMUM)? > new {
        return Err(Errno::INVAL);
    }
    let old = load(ctx, ACTIVE)?;
    move_set(ctx, ACTIVE, old, new)
}

fn client_key(id: &[u8]) -> Vec<u8> {
    value::key(CLIENT, id)
}

/// Visits all clients in the order of their ids.
fn each_client(
    ctx: &mut dyn Context,
    mut visit: impl FnMut(Client) -> ControlFlow<()>,
) -> Result<()> {
    // The image's own journal has a client without a name.
    value::each_with_bare(ctx, CLIENT, |_, bytes| {
        Ok(visit(value::stored::<Client>(bytes)?))
    })
}

fn get_client(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let id = input(bytes, |r| r.blob())?;
    reply(&load::<Client>(ctx, client_key(id))?)
}

/// What no connected client has left behind: a new one starts there.
fn least_committed(ctx: &mut dyn Context) -> Result<Positions> {
    let mut least: Option<Positions> = None;
    each_client(ctx, |client| {
        if client.state == Client::DISCONNECTED {
            return ControlFlow::Continue(());
        }
        let Some(first) = client.committed.0.first() else {
            least = None;
            return ControlFlow::Break(());
        };
        let older = least.as_ref().and_then(|l| l.0.first());
        if older.is_none_or(|l| (first.tag, first.entry) < (l.tag, l.entry)) {
            least = Some(client.committed);
        }
        ControlFlow::Continue(())
    })?;
    Ok(least.unwrap_or_default())
}

fn client_register(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (id, data) = input(bytes, |r| Ok((Text::decode(r)?, Text::decode(r)?)))?;
    load::<u8>(ctx, ORDER)?;
    let key = client_key(&id);
    if found(ctx.omap_get(&key))?.is_some() {
        return Err(Errno::EXIST);
    }
    let client = Client {
        id,
        data,
        committed: least_committed(ctx)?,
        state: Client::CONNECTED,
    };
    save(ctx, key, &client)?;
    DONE
}

fn update(ctx: &mut dyn Context, id: &[u8], edit: impl FnOnce(&mut Client)) -> Result<Vec<u8>> {
    let mut client: Client = load(ctx, client_key(id))?;
    edit(&mut client);
    save(ctx, client_key(id), &client)?;
    DONE
}

fn client_update_data(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (id, data) = input(bytes, |r| Ok((r.blob()?, r.blob()?)))?;
    update(ctx, id, |client| client.data = data.to_vec())
}

fn client_update_state(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (id, state) = input(bytes, |r| Ok((r.blob()?, r.u8()?)))?;
    update(ctx, id, |client| client.state = state)
}

fn client_unregister(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let id = input(bytes, |r| r.blob())?;
    let key = client_key(id);
    ctx.omap_get(&key)?;
    ctx.omap_remove(&key)?;
    expire_tags(ctx, Some(id))?;
    DONE
}

fn client_commit(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (id, committed) = input(bytes, |r| Ok((r.blob()?, Positions::decode(r)?)))?;
    if committed.0.len() > usize::from(load::<u8>(ctx, WIDTH)?) {
        return Err(Errno::INVAL);
    }
    update(ctx, id, |client| client.committed = committed)
}

fn client_list(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (after, max) = page(bytes)?;
    let after = match after {
        // From the beginning, the client without a name included.
        [] => Vec::new(),
        id => client_key(id),
    };
    let max = usize::try_from(max).unwrap_or(usize::MAX);
    let (pairs, _) = ctx.omap_list(&after, CLIENT.as_bytes(), max)?;
    let clients = pairs.iter().map(|(_, v)| value::stored::<Client>(v));
    let clients = clients.collect::<Result<Vec<_>>>()?;
    let mut out = Vec::new();
    out.put_list(clients.iter(), |out, client| client.encode(out));
    Ok(out)
}

fn tag_key(tid: u64) -> String {
    format!("{TAG}{tid:016x}")
}

/// Visits all tags, oldest first.
fn each_tag(ctx: &mut dyn Context, mut visit: impl FnMut(Tag) -> ControlFlow<()>) -> Result<()> {
    each(ctx, TAG, b"", |_, bytes| {
        Ok(visit(value::stored::<Tag>(bytes)?))
    })
}

/// Of each class the newest tag up to the first one that is not older than `needed`: older ones of
/// the class are over.
fn still_needed(ctx: &mut dyn Context, needed: u64) -> Result<BTreeMap<u64, u64>> {
    let mut newest = BTreeMap::new();
    each_tag(ctx, |tag| {
        newest.insert(tag.class, tag.tid);
        if tag.tid >= needed {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })?;
    Ok(newest)
}

/// Removes the tags that every client has left behind; `leaving` counts no more.
fn expire_tags(ctx: &mut dyn Context, leaving: Option<&[u8]>) -> Result<()> {
    let mut needed = u64::MAX;
    let mut idle = false;
    each_client(ctx, |client| {
        if leaving == Some(&client.id[..]) || client.state == Client::DISCONNECTED {
            return ControlFlow::Continue(());
        }
        idle = client.committed.0.is_empty();
        needed = needed.min(client.committed.oldest_tag());
        if idle {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })?;
    if idle || needed == u64::MAX {
        return Ok(());
    }
    let newest = still_needed(ctx, needed)?;
    let mut over = Vec::new();
    each_tag(ctx, |tag| {
        if newest.get(&tag.class).is_some_and(|tid| tag.tid < *tid) {
            over.push(tag.tid);
        }
        if tag.tid >= needed {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })?;
    for tid in over {
        ctx.omap_remove(tag_key(tid).as_bytes())?;
    }
    Ok(())
}

fn get_tag(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let tid = input(bytes, |r| r.u64())?;
    reply(&load::<Tag>(ctx, tag_key(tid))?)
}

fn tag_create(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (tid, mut class, data) = input(bytes, |r| Ok((r.u64()?, r.u64()?, Text::decode(r)?)))?;
    if found(ctx.omap_get(tag_key(tid).as_bytes()))?.is_some() {
        return Err(Errno::EXIST);
    }
    if tid != load::<u64>(ctx, NEXT_TAG)? {
        return Err(Errno::STALE);
    }
    let next: u64 = load(ctx, NEXT_CLASS)?;
    if class == NEW_CLASS {
        class = next;
        save(ctx, NEXT_CLASS, &next.wrapping_add(1))?;
    } else if class >= next {
        return Err(Errno::INVAL);
    }
    expire_tags(ctx, None)?;
    save(ctx, NEXT_TAG, &tid.wrapping_add(1))?;
    save(ctx, tag_key(tid), &Tag { tid, class, data })?;
    DONE
}

fn tag_list(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (after, max, id, class) = input(bytes, |r| {
        Ok((r.u64()?, r.u64()?, r.blob()?, Option::<u64>::decode(r)?))
    })?;
    let client: Client = load(ctx, client_key(id))?;
    let newest = match client.committed.oldest_tag() {
        u64::MAX => BTreeMap::new(),
        needed => still_needed(ctx, needed)?,
    };
    let mut tags = Vec::new();
    each_tag(ctx, |tag| {
        if after != 0 && tag.tid <= after {
            return ControlFlow::Continue(());
        }
        let over = newest.get(&tag.class).is_some_and(|tid| tag.tid < *tid);
        if !over && class.is_none_or(|class| class == tag.class) {
            tags.push(tag);
        }
        if tags.len() as u64 >= max {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })?;
    let mut out = Vec::new();
    out.put_list(tags.iter(), |out, tag| tag.encode(out));
    Ok(out)
}

/// Bytes of an object of entries; EOVERFLOW when it has reached `max`.
fn size_below(ctx: &mut dyn Context, max: u64) -> Result<Option<u64>> {
    match found(ctx.stat())? {
        Some((size, _)) if size >= max => Err(Errno::OVERFLOW),
        other => Ok(other.map(|(size, _)| size)),
    }
}

fn guard_append(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let max = input(bytes, |r| r.u64())?;
    size_below(ctx, max)?;
    DONE
}

fn append(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (max, data) = input(bytes, |r| Ok((r.u64()?, r.blob()?)))?;
    let size = size_below(ctx, max)?.unwrap_or(0);
    if size >= max {
        return Err(Errno::OVERFLOW);
    }
    ctx.write(size, data)?;
    let end = size + data.len() as u64;
    let aligned = end.next_multiple_of(ALIGNMENT);
    if ctx.releases().1 >= OCTOPUS && aligned != end {
        ctx.truncate(aligned)?;
    }
    DONE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{EntityAddr, EntityName};
    use crate::osd::cls::testing::Fake;

    #[test]
    fn the_client_without_a_name_is_listed() {
        let mut object = Fake::new((EntityName::default(), EntityAddr::default()));
        let mut call = |method: &str, write: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = Vec::new();
            write(&mut bytes);
            object.call("journal", method, &bytes).unwrap()
        };
        call("create", &|b| {
            b.put_u8(24);
            b.put_u8(4);
            b.put_i64(1);
        });
        for id in ["", "peer"] {
            call("client_register", &|b| {
                b.put_string(id);
                b.put_string("data");
            });
        }
        let mut listed = |after: &str| {
            let out = call("client_list", &|b| {
                b.put_string(after);
                b.put_u64(9);
            });
            out[0]
        };
        assert_eq!((listed(""), listed("pee"), listed("peer")), (2, 1, 0));
    }
}
