//! Calls of object classes' methods, and what a method sees of its object
//! (`src/osd/objclass.cc`).

use super::state::State;
use super::{Done, ExecEnv, errno};
use crate::codec::{EntityAddr, EntityName, Put, UTime};
use crate::objecter::msg::{Extent, OsdOp};
use crate::osd::cls::{Context, Method, Pairs, Result};
use crate::osd::object::WatchRecord;
use crate::osd::store::Store;

/// The method that a call names, and its input.
pub(super) fn find<'i>(
    env: &ExecEnv<'_>,
    op: &OsdOp,
    input: &'i [u8],
) -> Result<(&'static Method, &'i [u8])> {
    let call = op.call();
    let short = errno(libc::EINVAL);
    let (class, rest) = input
        .split_at_checked(usize::from(call.class_len))
        .ok_or(short)?;
    let (method, rest) = rest
        .split_at_checked(usize::from(call.method_len))
        .ok_or(short)?;
    let input = rest.get(..call.input_len as usize).ok_or(short)?;
    let text = |b| std::str::from_utf8(b).ok();
    let method = text(class)
        .zip(text(method))
        .and_then(|(class, method)| (env.method)(class, method));
    Ok((method.ok_or(errno(libc::EOPNOTSUPP))?, input))
}

impl<S: Store> State<'_, '_, '_, S> {
    pub(super) fn call(&mut self, op: &OsdOp, input: &[u8], out: &mut Vec<u8>) -> Done {
        let (method, input) = find(self.env, op, input)?;
        self.user_modify |= method.writes;
        let (reads, changes) = (self.reads, self.changes);
        let mut object = Object {
            state: self,
            code: 0,
        };
        let result = (method.call)(&mut object, input);
        let code = object.code;
        // A method does what it was registered for.
        let read = self.reads > reads && !method.reads;
        let changed = self.changes > changes && !method.writes;
        if read || changed {
            return Err(errno(libc::EIO));
        }
        out.put_bytes(&result?);
        Ok(Some(code))
    }
}

/// The object of a call. Its methods are the operations of the same names.
struct Object<'c, 's, 'e, 'a, S> {
    state: &'c mut State<'s, 'e, 'a, S>,
    code: i32,
}

impl<'s, 'e, 'a, S: Store> Object<'_, 's, 'e, 'a, S> {
    fn change(&mut self, f: impl FnOnce(&mut State<'s, 'e, 'a, S>) -> Done) -> Result<()> {
        self.state.user_modify = true;
        f(self.state).map(drop)
    }
}

impl<S: Store> Context for Object<'_, '_, '_, '_, S> {
    fn stat(&mut self) -> Result<(u64, UTime)> {
        self.state.stat(&mut Vec::new())?;
        Ok((self.state.info.size, self.state.info.mtime))
    }

    /// `cls_current_version`: that of the whole pg.
    fn user_version(&mut self) -> u64 {
        self.state.req.last_user_version
    }

    fn create(&mut self, exclusive: bool) -> Result<()> {
        self.change(|s| s.create(exclusive))
    }

    fn remove(&mut self) -> Result<()> {
        self.change(|s| s.delete())
    }

    fn read(&mut self, offset: u64, length: u64) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        let e = Extent {
            offset,
            length,
            ..Extent::default()
        };
        self.state.read(e, &mut out)?;
        self.state.spend(out.len() as u64)?;
        Ok(out)
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let e = Extent {
            offset,
            length: data.len() as u64,
            ..Extent::default()
        };
        self.state.spend(e.length)?;
        self.change(|s| s.write(e, data.to_vec().into()))
    }

    fn write_full(&mut self, data: &[u8]) -> Result<()> {
        let length = data.len() as u64;
        self.state.spend(length)?;
        self.change(|s| s.write_full(length, data.to_vec().into()))
    }

    fn truncate(&mut self, size: u64) -> Result<()> {
        let e = Extent {
            offset: size,
            ..Extent::default()
        };
        self.change(|s| s.truncate(e))
    }

    fn zero(&mut self, offset: u64, length: u64) -> Result<()> {
        self.change(|s| s.zero(offset, length))
    }

    fn attr(&mut self, name: &str) -> Result<Vec<u8>> {
        self.state.attr_value(name.as_bytes())
    }

    fn attrs(&mut self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.state.attr_values()
    }

    fn set_attr(&mut self, name: &str, value: &[u8]) -> Result<()> {
        let name = name.as_bytes().to_vec();
        self.change(|s| s.set_attr(name.into(), value.to_vec().into()))
    }

    fn remove_attr(&mut self, name: &str) -> Result<()> {
        let name = name.as_bytes().to_vec();
        self.change(|s| s.remove_attr(name.into()))
    }

    fn omap_get(&mut self, key: &[u8]) -> Result<Vec<u8>> {
        self.state.omap_value(key)?.ok_or(errno(libc::ENOENT))
    }

    fn omap_list(&mut self, after: &[u8], prefix: &[u8], max: usize) -> Result<Pairs> {
        self.state.omap_page(after, prefix, max as u64)
    }

    fn omap_header(&mut self) -> Result<Vec<u8>> {
        self.state.omap_header()
    }

    fn omap_set(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let pair = (key.to_vec().into(), value.to_vec().into());
        self.change(|s| s.omap_set(vec![pair]))
    }

    fn omap_set_header(&mut self, header: &[u8]) -> Result<()> {
        self.change(|s| s.omap_set_header(header.to_vec().into()))
    }

    fn omap_remove(&mut self, key: &[u8]) -> Result<()> {
        self.change(|s| s.omap_remove(vec![key.to_vec().into()]))
    }

    fn omap_remove_range(&mut self, begin: &[u8], end: &[u8]) -> Result<()> {
        let (begin, end) = (begin.to_vec(), end.to_vec());
        self.change(|s| s.omap_remove_range(begin.into(), end.into()))
    }

    fn omap_clear(&mut self) -> Result<()> {
        self.change(|s| s.omap_clear())
    }

    fn snap_set(&mut self) -> (u64, Vec<u64>) {
        let set = self.state.snap_set().unwrap_or_default();
        (set.seq, set.clones.iter().map(|c| c.id).collect())
    }

    fn snap_context(&self) -> (u64, Vec<u64>) {
        (self.state.snap_seq, self.state.snaps.to_vec())
    }

    fn watchers(&mut self) -> Result<Vec<WatchRecord>> {
        self.state.reads += 1;
        self.state.watchers()
    }

    fn set_code(&mut self, code: i32) {
        self.code = code;
    }

    fn origin(&self) -> (EntityName, EntityAddr) {
        (self.state.req.reqid.name, self.state.req.peer.addr())
    }

    fn now(&self) -> UTime {
        UTime::from_nanos(self.state.req.now.wall)
    }

    fn random(&mut self, out: &mut [u8]) {
        (self.state.env.random)(out);
    }

    fn releases(&self) -> (u8, u8) {
        self.state.env.releases
    }

    fn client_features(&self) -> u64 {
        self.state.req.peer.features
    }
}
