//! Snapshots of an object: finding the state that one has, preserving it before a change, going
//! back to it, and letting go of it.

use super::ranges::{difference, intersection};
use super::state::{HEAD, State, io};
use super::{Done, Effect, ExecEnv, OK, errno};
use crate::codec::Put;
use crate::objecter::msg::{EVersion, HObject, HObjectRef, NOSNAP, PgId};
use crate::osd::cls::Errno;
use crate::osd::limits;
use crate::osd::object::{CloneState, ObjectInfo, SnapSet};
use crate::osd::store::{Step, Store, StoreError, Transaction};

/// The object that has the state of a snapshot, were it a whiteout
/// (`PrimaryLogPG::find_object_context`).
pub(super) fn find<'a>(
    head_info: &ObjectInfo,
    env: &ExecEnv<'_>,
    head: &HObjectRef<'a>,
    snap: u64,
) -> Result<HObjectRef<'a>, Errno> {
    let set = &head_info.snaps;
    if snap > set.seq {
        return Ok(*head);
    }
    let clone = set.clones.iter().find(|c| c.id >= snap);
    match clone {
        Some(clone) if clone.snaps.contains(&snap) && !env.removed(snap) => Ok(HObjectRef {
            snap: clone.id,
            ..*head
        }),
        _ => Err(errno(libc::ENOENT)),
    }
}

impl<S: Store> State<'_, '_, '_, S> {
    /// There are snapshots of the present state that no clone has yet.
    fn must_preserve(&self) -> bool {
        let newest = self.snaps.first();
        self.was_there && newest.is_some_and(|s| *s > self.info.snaps.seq)
    }

    /// Makes a clone of the object as it is before the first change (`PrimaryLogPG::make_writeable`
    /// and `_make_clone`).
    pub(super) fn preserve(&mut self) {
        if !self.must_preserve() {
            return;
        }
        let Ok(Some(old)) = self.store.info(self.req.pg, &self.req.head) else {
            self.broken = true;
            return;
        };
        self.preserved = Some(old.size);
        let info = Box::new(ObjectInfo {
            version: self.req.version,
            size: old.size,
            mtime: old.mtime,
            last_reqid: old.last_reqid,
            truncate_seq: old.truncate_seq,
            truncate_size: old.truncate_size,
            user_version: old.user_version,
            ..ObjectInfo::default()
        });
        let clone = HObjectRef {
            snap: self.snap_seq,
            ..self.req.head
        };
        let to = self.other(clone);
        self.early_step(Step::Clone { from: HEAD, to });
        self.early_step(Step::SetInfo { obj: to, info });
    }

    /// Brings the set of clones up to date with what was changed (`PrimaryLogPG::make_writeable`).
    pub(super) fn account_to_clones(&mut self) -> Result<(), Errno> {
        let set = &mut self.info.snaps;
        if let Some(size) = self.preserved {
            let new = self.snaps.iter().copied().take_while(|s| *s > set.seq);
            set.clones.push(CloneState {
                id: self.snap_seq,
                snaps: new.collect(),
                overlap: if size > 0 {
                    vec![(0, size)]
                } else {
                    Vec::new()
                },
                size,
            });
            let kept: usize = set.clones.iter().map(|c| c.snaps.len().max(1)).sum();
            if kept > limits::SNAPS {
                return Err(errno(libc::E2BIG));
            }
        }
        if !self.modified.is_empty()
            && let Some((newest, older)) = set.clones.split_last_mut()
        {
            newest.overlap = difference(&newest.overlap, &self.modified);
            let pieces: usize = older.iter().map(|c| c.overlap.len()).sum();
            if pieces + newest.overlap.len() > limits::OVERLAPS {
                // As if all of it had changed, which is always safe to say.
                newest.overlap.clear();
            }
        }
        set.seq = set.seq.max(self.snap_seq);
        Ok(())
    }

    /// A head on which clones hang, or will, stays as a whiteout (`should_whiteout`).
    fn leaves_whiteout(&self) -> bool {
        let set = &self.info.snaps;
        !set.clones.is_empty() || self.snaps.first().is_some_and(|s| *s > set.seq)
    }

    /// `PrimaryLogPG::_delete_oid`.
    pub(super) fn delete(&mut self) -> Done {
        self.changes += 1;
        let whiteout = self.leaves_whiteout();
        if !self.exists || (self.info.whiteout && whiteout) {
            return Err(errno(libc::ENOENT));
        }
        self.step(Step::Remove(HEAD));
        self.omap_size = Some(0);
        self.change_data(0, self.info.size);
        self.info.size = 0;
        if !self.info.watchers.is_empty() {
            self.info.watchers.clear();
            self.effects.push(Effect::Disconnect);
        }
        self.info.whiteout = whiteout;
        self.exists = whiteout;
        OK
    }

    /// `PrimaryLogPG::_rollback_to` and `_do_rollback_to`.
    pub(super) fn roll_back(&mut self, snap: u64) -> Done {
        self.changes += 1;
        let (pg, head) = (self.req.pg, self.req.head);
        let found = match self.store.info(pg, &head).map_err(io)? {
            Some(info) => find(info, self.env, &head, snap),
            None => Err(errno(libc::ENOENT)),
        };
        let source = match found {
            Ok(oid) => {
                let info = self.store.info(pg, &oid).map_err(io)?;
                info.filter(|i| !i.whiteout).map(|i| (oid, i.size))
            }
            Err(_) => None,
        };
        let Some((source, size)) = source else {
            // There was no object then.
            let watched = match self.store.info(pg, &head).map_err(io)? {
                Some(info) => !info.watchers.is_empty(),
                None => false,
            };
            if watched {
                return Err(errno(libc::EBUSY));
            }
            // That there is none now is as good.
            let _ = self.delete();
            return OK;
        };
        if source.snap == NOSNAP {
            self.modify = true;
            return OK;
        }
        let omap = self.stored_omap_size(&source)?;
        self.spend(omap + limits::ATTRS)?;
        (self.omap_size, self.attr_sizes) = (Some(omap), None);
        if self.exists {
            self.step(Step::Remove(HEAD));
        }
        let from = self.other(source);
        self.step(Step::Clone { from, to: HEAD });
        // What no clone since then has changed is as it was.
        let later = self.info.snaps.clones.iter().filter(|c| c.id >= snap);
        let same = later.map(|c| c.overlap.clone());
        let same = same.reduce(|a, b| intersection(&a, &b)).unwrap_or_default();
        if self.info.size > 0 {
            for (offset, length) in difference(&[(0, self.info.size)], &same) {
                self.change_data(offset, length);
            }
        }
        self.make();
        self.info.size = size;
        OK
    }

    /// `obj_list_snap_response_t`, `src/osd/osd_types.h`.
    pub(super) fn list_snaps(&mut self, out: &mut Vec<u8>) -> Done {
        self.reads += 1;
        let info = self.store.info(self.req.pg, &self.target).map_err(io)?;
        let info = info.ok_or(errno(libc::ENOENT))?;
        let head = (!info.whiteout).then(|| CloneState {
            id: NOSNAP,
            size: info.size,
            ..CloneState::default()
        });
        out.versioned(2, 1, |out| {
            out.put_count(info.snaps.clones.len() + usize::from(head.is_some()));
            for clone in info.snaps.clones.iter().chain(&head) {
                out.versioned(1, 1, |out| {
                    out.put_u64(clone.id);
                    // Here the oldest comes first.
                    out.put_list(clone.snaps.iter().rev(), |out, s| out.put_u64(*s));
                    out.put_list(clone.overlap.iter(), |out, r| {
                        out.put_u64(r.0);
                        out.put_u64(r.1);
                    });
                    out.put_u64(clone.size);
                });
            }
            out.put_u64(info.snaps.seq);
        });
        OK
    }

    pub(super) fn snap_set(&mut self) -> Result<SnapSet, Errno> {
        let info = self.store.info(self.req.pg, &self.req.head).map_err(io)?;
        Ok(info.map(|i| i.snaps.clone()).unwrap_or_default())
    }
}

/// What it takes to have a clone serve no removed snapshot any more; nothing when it serves none
/// (`PrimaryLogPG::trim_object`).
pub fn trim_object<S: Store>(
    store: &mut S,
    pg: PgId,
    clone: &HObject,
    removed: impl Fn(u64) -> bool,
    version: EVersion,
) -> Result<Option<Transaction<'static>>, StoreError> {
    let clone_ref = clone.as_ref();
    let head = HObjectRef {
        snap: NOSNAP,
        ..clone_ref
    };
    let Some(mut info) = store.info(pg, &head)?.cloned() else {
        return Ok(None);
    };
    let clones = &mut info.snaps.clones;
    let Some(at) = clones.iter().position(|c| c.id == clone_ref.snap) else {
        return Ok(None);
    };
    let before = clones[at].snaps.len();
    clones[at].snaps.retain(|s| !removed(*s));
    if clones[at].snaps.len() == before && before > 0 {
        return Ok(None);
    }
    let mut txn = Transaction {
        objects: vec![head.into(), clone.clone()],
        ..Transaction::default()
    };
    if clones[at].snaps.is_empty() {
        let gone = clones.remove(at);
        // The next older clone now has the next newer one as its neighbour.
        if let Some(older) = at.checked_sub(1).map(|i| &mut clones[i]) {
            older.overlap = intersection(&older.overlap, &gone.overlap);
        }
        txn.steps.push(Step::Remove(1));
    } else if let Some(mut kept) = store.info(pg, &clone_ref)?.cloned() {
        kept.version = version;
        let info = Box::new(kept);
        txn.steps.push(Step::SetInfo { obj: 1, info });
    }
    if info.snaps.clones.is_empty() && info.whiteout {
        txn.steps.push(Step::Remove(HEAD));
    } else {
        info.version = version;
        let info = Box::new(info);
        txn.steps.push(Step::SetInfo { obj: HEAD, info });
    }
    Ok(Some(txn))
}
