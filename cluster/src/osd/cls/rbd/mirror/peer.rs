//! The pool's own identity and mode, and its peers.

use std::ops::ControlFlow;

use crate::codec::{self, Put, Reader, UTime};

use super::super::super::value::{
    self, DONE, Text, Value, each, forget, found, input, load, look, reply, save, stored,
};
use super::super::super::{Context, Errno, Method, READ, READ_WRITE, Result};
use super::super::{method, random_uuid};

pub(in super::super) const METHODS: &[Method] = &[
    method("mirror_uuid_get", READ, mirror_uuid_get),
    method("mirror_uuid_set", READ_WRITE, mirror_uuid_set),
    method("mirror_mode_get", READ, mirror_mode_get),
    method("mirror_mode_set", READ_WRITE, mirror_mode_set),
    method("mirror_remote_namespace_get", READ, remote_namespace_get),
    method(
        "mirror_remote_namespace_set",
        READ_WRITE,
        remote_namespace_set,
    ),
    method("mirror_peer_ping", READ_WRITE, mirror_peer_ping),
    method("mirror_peer_list", READ, mirror_peer_list),
    method("mirror_peer_add", READ_WRITE, mirror_peer_add),
    method("mirror_peer_remove", READ_WRITE, mirror_peer_remove),
    method("mirror_peer_set_client", READ_WRITE, mirror_peer_set_client),
    method(
        "mirror_peer_set_cluster",
        READ_WRITE,
        mirror_peer_set_cluster,
    ),
    method(
        "mirror_peer_set_direction",
        READ_WRITE,
        mirror_peer_set_direction,
    ),
];

const UUID: &str = "mirror_uuid";
const MODE: &str = "mirror_mode";
const REMOTE_NAMESPACE: &str = "remote_namespace";
const PEER: &str = "mirror_peer_";

/// `cls::rbd::MirrorMode`.
mod mode {
    pub(in super::super) const DISABLED: u32 = 0;
    pub(in super::super) const INIT_ONLY: u32 = 3;
}

/// `cls::rbd::MirrorPeerDirection`, seen from here: what the peer's daemon does.
pub(super) mod direction {
    pub(in super::super) const RX: u8 = 0;
    pub(in super::super) const TX: u8 = 1;
    pub(in super::super) const RX_TX: u8 = 2;
}

/// `cls::rbd::MirrorPeer`.
pub(super) struct Peer {
    uuid: Text,
    pub direction: u8,
    site: Text,
    client: Text,
    pub mirror_uuid: Text,
    last_seen: UTime,
}

impl Peer {
    fn is_valid(&self) -> bool {
        let knows_client = match self.direction {
            direction::TX => true,
            direction::RX | direction::RX_TX => !self.client.is_empty(),
            _ => false,
        };
        knows_client && !self.uuid.is_empty() && !self.site.is_empty()
    }
}

impl Value for Peer {
    fn decode(r: &mut Reader<'_>) -> codec::Result<Peer> {
        let mut v = r.versioned("MirrorPeer", 2)?;
        let b = &mut v.body;
        let mut peer = Peer {
            uuid: Value::decode(b)?,
            site: Value::decode(b)?,
            client: Value::decode(b)?,
            direction: direction::RX_TX,
            mirror_uuid: Text::new(),
            last_seen: UTime::default(),
        };
        b.i64()?; // a pool, once
        if v.version >= 2 {
            peer.direction = b.u8()?;
            peer.mirror_uuid = Value::decode(b)?;
            peer.last_seen = UTime::decode(b)?;
        }
        Ok(peer)
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.versioned(2, 1, |b| {
            b.put_blob(&self.uuid);
            b.put_blob(&self.site);
            b.put_blob(&self.client);
            b.put_i64(-1);
            b.put_u8(self.direction);
            b.put_blob(&self.mirror_uuid);
            self.last_seen.encode(b);
        });
    }
}

/// The UUID is stored bare.
fn mirror_uuid_get(ctx: &mut dyn Context, _: &[u8]) -> Result<Vec<u8>> {
    reply(&ctx.omap_get(UUID.as_bytes())?)
}

fn current_mode(ctx: &mut dyn Context) -> Result<u32> {
    Ok(look(ctx, MODE)?.unwrap_or(mode::DISABLED))
}

fn mirror_uuid_set(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let uuid = input(bytes, |r| r.blob())?;
    if uuid.is_empty() || current_mode(ctx)? != mode::DISABLED {
        return Err(Errno::INVAL);
    }
    ctx.omap_set(UUID.as_bytes(), uuid)?;
    DONE
}

fn mirror_mode_get(ctx: &mut dyn Context, _: &[u8]) -> Result<Vec<u8>> {
    reply(&load::<u32>(ctx, MODE)?)
}

fn mirror_mode_set(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let mode = input(bytes, |r| r.u32())?;
    if mode > mode::INIT_ONLY {
        return Err(Errno::INVAL);
    }
    if mode != mode::DISABLED {
        if found(ctx.omap_get(UUID.as_bytes()))?.is_none() {
            return Err(Errno::INVAL);
        }
        save(ctx, MODE, &mode)?;
        return DONE;
    }
    if !peers(ctx)?.is_empty() {
        return Err(Errno::BUSY);
    }
    for key in [MODE, UUID, REMOTE_NAMESPACE] {
        forget(ctx, key)?;
    }
    DONE
}

fn remote_namespace_get(ctx: &mut dyn Context, _: &[u8]) -> Result<Vec<u8>> {
    reply(&load::<Text>(ctx, REMOTE_NAMESPACE)?)
}

fn remote_namespace_set(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let namespace = input(bytes, Text::decode)?;
    match current_mode(ctx)? {
        mode::DISABLED | mode::INIT_ONLY => {}
        _ => return Err(Errno::INVAL),
    }
    save(ctx, REMOTE_NAMESPACE, &namespace)?;
    DONE
}

fn key(uuid: &[u8]) -> Vec<u8> {
    value::key(PEER, uuid)
}

fn peers(ctx: &mut dyn Context) -> Result<Vec<Peer>> {
    let mut peers = Vec::new();
    each(ctx, PEER, b"", |_, bytes| {
        peers.push(stored(bytes)?);
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(peers)
}

fn save_peer(ctx: &mut dyn Context, peer: &Peer) -> Result<Vec<u8>> {
    save(ctx, key(&peer.uuid), peer)?;
    DONE
}

fn check_enabled(ctx: &mut dyn Context) -> Result<()> {
    match current_mode(ctx)? {
        mode::DISABLED => Err(Errno::INVAL),
        _ => Ok(()),
    }
}

/// Which peer a ping comes from, by its site's name or its own UUID, updated by what the ping says.
fn pinging(peers: Vec<Peer>, site: &[u8], mirror_uuid: &[u8]) -> Option<Peer> {
    let by_site = peers.iter().position(|p| p.site == site);
    let settled = by_site
        .is_some_and(|at| peers[at].mirror_uuid.is_empty() || peers[at].mirror_uuid == mirror_uuid);
    let by_uuid = if settled {
        None
    } else {
        peers.iter().position(|p| p.mirror_uuid == mirror_uuid)
    };
    let mut peer = peers.into_iter().nth(by_uuid.or(by_site)?)?;
    match (by_site, by_uuid) {
        // Two peers: the UUID decides, and the name stays the other's.
        (Some(_), Some(_)) => {}
        (None, _) => peer.site = site.to_vec(),
        (_, None) => peer.mirror_uuid = mirror_uuid.to_vec(),
    }
    if peer.direction == direction::RX {
        peer.direction = direction::RX_TX;
    }
    Some(peer)
}

fn mirror_peer_ping(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (site, mirror_uuid, dir) = input(bytes, |r| Ok((r.blob()?, r.blob()?, r.u8()?)))?;
    if dir != direction::TX {
        return Err(Errno::INVAL);
    }
    check_enabled(ctx)?;
    if site.is_empty() || mirror_uuid.is_empty() {
        return Err(Errno::INVAL);
    }
    let peers = peers(ctx)?;
    let mut peer = match pinging(peers, site, mirror_uuid) {
        Some(peer) => peer,
        None => Peer {
            uuid: random_uuid(ctx).into_bytes(),
            direction: direction::TX,
            site: site.to_vec(),
            client: Text::new(),
            mirror_uuid: mirror_uuid.to_vec(),
            last_seen: UTime::default(),
        },
    };
    peer.last_seen = ctx.now();
    if !peer.is_valid() {
        return Err(Errno::INVAL);
    }
    save_peer(ctx, &peer)
}

fn mirror_peer_list(ctx: &mut dyn Context, _: &[u8]) -> Result<Vec<u8>> {
    let peers = peers(ctx)?;
    let mut out = Vec::new();
    out.put_list(peers.iter(), |out, peer| peer.encode(out));
    Ok(out)
}

fn mirror_peer_add(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let new = input(bytes, Peer::decode)?;
    check_enabled(ctx)?;
    if !new.is_valid() {
        return Err(Errno::INVAL);
    }
    let own = ctx.omap_get(UUID.as_bytes())?;
    if new.uuid == own || new.direction == direction::TX {
        return Err(Errno::INVAL);
    }
    for peer in peers(ctx)? {
        if peer.uuid == new.uuid {
            return Err(Errno::STALE);
        }
        let same_uuid = !new.mirror_uuid.is_empty() && peer.mirror_uuid == new.mirror_uuid;
        if peer.site == new.site || same_uuid {
            return Err(Errno::EXIST);
        }
    }
    save_peer(ctx, &new)
}

fn mirror_peer_remove(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    forget(ctx, key(input(bytes, |r| r.blob())?))?;
    DONE
}

fn mirror_peer_set_client(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (uuid, client) = input(bytes, |r| Ok((r.blob()?, r.blob()?)))?;
    let mut peer: Peer = load(ctx, key(uuid))?;
    peer.client = client.to_vec();
    save_peer(ctx, &peer)
}

fn mirror_peer_set_cluster(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (uuid, site) = input(bytes, |r| Ok((r.blob()?, r.blob()?)))?;
    let mut found = None;
    for peer in peers(ctx)? {
        if peer.uuid == uuid {
            found = Some(peer);
        } else if peer.site == site {
            return Err(Errno::EXIST);
        }
    }
    let mut peer = found.ok_or(Errno::NOENT)?;
    peer.site = site.to_vec();
    save_peer(ctx, &peer)
}

fn mirror_peer_set_direction(ctx: &mut dyn Context, bytes: &[u8]) -> Result<Vec<u8>> {
    let (uuid, direction) = input(bytes, |r| Ok((r.blob()?, r.u8()?)))?;
    let mut peer: Peer = load(ctx, key(uuid))?;
    peer.direction = direction;
    save_peer(ctx, &peer)
}
