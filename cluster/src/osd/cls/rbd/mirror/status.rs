//! How mirroring goes, image by image, as the daemons of this site and of others report it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use crate::codec::{self, AddrType, EntityAddr, EntityName, Put, Reader, UTime};

use super::super::super::value::{
    self, DONE, Text, Value, collect, each, found, input, load, look, page, reply, save, stored,
};
use super::super::super::{Context, Errno, Method, READ, READ_WRITE, Result};
use super::super::method;
use super::image::{self, IMAGE, Image};
use super::peer::{Peer, direction};

pub(in super::super) const METHODS: &[Method] = &[
    method("mirror_image_status_set", READ_WRITE, status_set),
    method("mirror_image_status_remove", READ_WRITE, status_remove),
    method("mirror_image_status_get", READ, status_get),
    method("mirror_image_status_list", READ, status_list),
    method("mirror_image_status_get_summary", READ, status_get_summary),
    method(
        "mirror_image_status_remove_down",
        READ_WRITE,
        status_remove_down,
    ),
    method("mirror_image_instance_get", READ, instance_get),
    method("mirror_image_instance_list", READ, instance_list),
];

const LOCAL: &str = "status_global_";
const REMOTE: &str = "remote_status_global_";

fn local_key(global_id: &[u8]) -> Vec<u8> {
    value::key(LOCAL, global_id)
}

/// Before the UUID of a remote site.
fn remote_prefix(global_id: &[u8]) -> Vec<u8> {
    [REMOTE.as_bytes(), global_id, b"_"].concat()
}

fn status_key(global_id: &[u8], mirror_uuid: &[u8]) -> Vec<u8> {
    if mirror_uuid.is_empty() {
        local_key(global_id)
    } else {
        [&remote_prefix(global_id), mirror_uuid].concat()
    }
}

/// A daemon: name and address (`entity_inst_t`). Which protocol the address is of does not matter
/// (`sanitize_entity_inst`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Instance(EntityName, EntityAddr);

impl Instance {
    fn new(name: EntityName, addr: EntityAddr) -> Instance {
        let kind = AddrType::ANY;
        Instance(name, EntityAddr { kind, ..addr })
    }
}

impl Value for Instance {
    fn decode(r: &mut Reader<'_>) -> codec::Result<Instance> {
        let name = EntityName::decode(r)?;
        Ok(Instance::new(name, EntityAddr::decode(r)?))
    }
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
        self.1.encode(out);
    }
}

/// `cls::rbd::MirrorImageSiteStatus`.
#[derive(Debug, Clone, Default)]
struct Site {
    /// Empty for this site.
    mirror_uuid: Text,
    state: u8,
    description: Text,
    updated: UTime,
    up: bool,
}

/// `MIRROR_IMAGE_STATUS_STATE_*`.
const UNKNOWN: u8 = 0;
const ERROR: u8 = 1;

impl Site {
    fn encode_body(&self, out: &mut Vec<u8>, with_uuid: bool) {
        if with_uuid {
            out.put_blob(&self.mirror_uuid);
        }
        out.put_u8(self.state);
        out.put_blob(&self.description);
        self.updated.encode(out);
        out.put_bool(self.up);
    }
}

impl Value for Site {
    fn decode(r: &mut Reader<'_>) -> codec::Result<Site> {
        let mut v = r.versioned("MirrorImageSiteStatus", 2)?;
        let b = &mut v.body;
        Ok(Site {
            mirror_uuid: if v.version >= 2 {
                Value::decode(b)?
            } else {
                Text::new()
            },
            state: b.u8()?,
            description: Value::decode(b)?,
            updated: UTime::decode(b)?,
            up: b.bool()?,
        })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        let remote = !self.mirror_uuid.is_empty();
        let version = if remote { 2 } else { 1 };
        out.versioned(version, version, |b| self.encode_body(b, remote));
    }
}

/// `MirrorImageSiteStatusOnDisk`: the site is in the key.
struct Stored {
    origin: Instance,
    site: Site,
}

impl Value for Stored {
    fn decode(r: &mut Reader<'_>) -> codec::Result<Stored> {
        let mut meta = r.versioned("MirrorImageSiteStatusOnDisk", 1)?.body;
        Ok(Stored {
            origin: Value::decode(&mut meta)?,
            site: Value::decode(r)?,
        })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.versioned(1, 1, |b| self.origin.encode(b));
        self.site.encode(out);
    }
}

/// What all sites say of one image (`cls::rbd::MirrorImageStatus`).
struct Status(Vec<Site>);

impl Status {
    fn local(&self) -> Option<&Site> {
        self.0.iter().find(|s| s.mirror_uuid.is_empty())
    }

    fn remote(&self) -> impl Iterator<Item = &Site> {
        self.0.iter().filter(|s| !s.mirror_uuid.is_empty())
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.versioned(2, 1, |b| {
            let local = self.local();
            local.unwrap_or(&Site::default()).encode_body(b, false);
            b.put_bool(local.is_some());
            b.put_count(self.remote().count());
            for site in self.remote() {
                site.encode_body(b, true);
            }
        });
    }

    /// One state for all sites, seen from the direction in which the image is mirrored.
    fn summary(&self, way: u8, tx_peers: &BTreeSet<Text>) -> u8 {
        let mut state = None;
        if way != direction::TX {
            state = self.local().filter(|s| s.up).map(|s| s.state);
        }
        let mut silent = 0;
        if way != direction::RX {
            let heard = self.remote().filter(|s| tx_peers.contains(&s.mirror_uuid));
            silent = tx_peers.len().saturating_sub(heard.count());
            for site in self.remote() {
                let now = if site.up { site.state } else { UNKNOWN };
                state = match state {
                    _ if site.state == ERROR => Some(ERROR),
                    None => Some(now),
                    Some(ERROR) => Some(ERROR),
                    Some(other) => Some(other.min(now)),
                };
            }
        }
        match state {
            Some(state) if silent == 0 => state,
            _ => UNKNOWN,
        }
    }
}

fn watchers(ctx: &mut dyn Context) -> Result<BTreeSet<Instance>> {
    let watchers = found(ctx.watchers())?.unwrap_or_default();
    Ok(watchers
        .iter()
        .map(|w| Instance::new(w.entity, w.addr))
        .collect())
}

/// A report for an image that is not mirrored is dropped, without an error.
fn status_set(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (global_id, site) = input(bytes, |r| Ok((r.blob()?, Site::decode(r)?)))?;
    let mirrored = image::by_global_id(ctx, global_id)
        .is_ok_and(|i| matches!(i.state, image::state::ENABLED | image::state::CREATING));
    if !mirrored {
        return DONE;
    }
    let key = status_key(global_id, &site.mirror_uuid);
    let (name, addr) = ctx.origin();
    let stored = Stored {
        origin: Instance::new(name, addr),
        site: Site {
            mirror_uuid: Text::new(),
            up: false,
            updated: ctx.now(),
            ..site
        },
    };
    save(ctx, key, &stored)?;
    DONE
}

/// Removes what every site has said of an image.
pub(super) fn remove(ctx: &mut dyn Context, global_id: &[u8]) -> Result<Vec<u8>> {
    let mut keys = vec![local_key(global_id)];
    each_remote(ctx, global_id, |site, _| {
        keys.push(status_key(global_id, site));
        Ok(())
    })?;
    for key in keys {
        found(ctx.omap_remove(&key))?;
    }
    DONE
}

fn each_remote(
    ctx: &mut dyn Context,
    global_id: &[u8],
    mut visit: impl FnMut(&[u8], &[u8]) -> Result<()>,
) -> Result<()> {
    value::each_under(ctx, &remote_prefix(global_id), |site, bytes| {
        visit(site, bytes)?;
        Ok(ControlFlow::Continue(()))
    })
}

fn status_remove(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    remove(ctx, input(bytes, |r| r.blob())?)
}

/// ENOENT when no site has said anything.
fn status_of(
    ctx: &mut dyn Context,
    global_id: &[u8],
    watchers: &BTreeSet<Instance>,
) -> Result<Status> {
    let mut sites = Vec::new();
    let mut add = |mirror_uuid: &[u8], stored: Stored| {
        sites.push(Site {
            mirror_uuid: mirror_uuid.to_vec(),
            up: watchers.contains(&stored.origin),
            ..stored.site
        });
    };
    if let Some(stored) = look::<Stored>(ctx, local_key(global_id))? {
        add(b"", stored);
    }
    each_remote(ctx, global_id, |site, bytes| {
        add(site, stored(bytes)?);
        Ok(())
    })?;
    if sites.is_empty() {
        return Err(Errno::NOENT);
    }
    Ok(Status(sites))
}

fn status_get(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let global_id = input(bytes, |r| r.blob())?;
    let watchers = watchers(ctx)?;
    let mut out = Vec::new();
    status_of(ctx, global_id, &watchers)?.encode(&mut out);
    Ok(out)
}

fn status_list(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (after, max) = page(bytes)?;
    let watchers = watchers(ctx)?;
    let images = collect(ctx, IMAGE, after, max, stored::<Image>)?;
    let mut statuses = Vec::new();
    for (id, image) in &images {
        if let Ok(status) = status_of(ctx, &image.global_id, &watchers) {
            statuses.push((id, status));
        }
    }
    let mut out = reply(&images)?;
    out.put_list(statuses.iter(), |out, (id, status)| {
        out.put_blob(id);
        status.encode(out);
    });
    Ok(out)
}

/// The direction of mirroring as a whole, and the peers that are to report.
fn ways(peers: &[Peer]) -> (u8, BTreeSet<Text>) {
    let mut way = peers.first().map_or(direction::RX, |p| p.direction);
    let mut tx_peers = BTreeSet::new();
    for peer in peers.iter().filter(|p| p.direction != direction::RX) {
        tx_peers.insert(peer.mirror_uuid.clone());
        if way != peer.direction {
            way = direction::RX_TX;
        }
    }
    (way, tx_peers)
}

fn status_get_summary(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let peers = input(bytes, |r| {
        if r.is_empty() {
            return Ok(Vec::new());
        }
        // An encoded one takes 26 bytes at least.
        r.list(26, Peer::decode)
    })?;
    let (way, tx_peers) = ways(&peers);
    let watchers = watchers(ctx)?;
    let images = collect(ctx, IMAGE, b"", u64::MAX, stored::<Image>)?;
    let mut counts: BTreeMap<u8, i32> = BTreeMap::new();
    for image in images.values() {
        let status = found(status_of(ctx, &image.global_id, &watchers))?;
        let state = status.unwrap_or(Status(Vec::new())).summary(way, &tx_peers);
        *counts.entry(state).or_default() += 1;
    }
    reply(&counts)
}

/// Forgets what daemons have said that are gone.
fn status_remove_down(ctx: &mut dyn Context, _: &[u8]) -> Result<Vec<u8>> {
    let watchers = watchers(ctx)?;
    let mut gone = Vec::new();
    for prefix in [LOCAL, REMOTE] {
        each(ctx, prefix, b"", |rest, bytes| {
            let stored: Stored = stored(bytes)?;
            if !watchers.contains(&stored.origin) {
                gone.push(value::key(prefix, rest));
            }
            Ok(ControlFlow::Continue(()))
        })?;
    }
    for key in gone {
        ctx.omap_remove(&key)?;
    }
    DONE
}

/// The daemon of this site that replays an image; ESTALE when it is gone.
fn instance_of(
    ctx: &mut dyn Context,
    global_id: &[u8],
    watchers: &BTreeSet<Instance>,
) -> Result<Instance> {
    let stored: Stored = load(ctx, local_key(global_id))?;
    if !watchers.contains(&stored.origin) {
        return Err(Errno::STALE);
    }
    Ok(stored.origin)
}

fn instance_get(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let global_id = input(bytes, |r| r.blob())?;
    let watchers = watchers(ctx)?;
    reply(&instance_of(ctx, global_id, &watchers)?)
}

fn instance_list(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (after, max) = page(bytes)?;
    let watchers = watchers(ctx)?;
    let images = collect(ctx, IMAGE, after, u64::MAX, stored::<Image>)?;
    let mut instances = BTreeMap::new();
    for (id, image) in images {
        if instances.len() as u64 >= max {
            break;
        }
        if let Ok(instance) = instance_of(ctx, &image.global_id, &watchers) {
            instances.insert(id, instance);
        }
    }
    reply(&instances)
}
