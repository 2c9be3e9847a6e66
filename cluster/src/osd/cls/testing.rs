//! An object in memory, for tests of methods.

use std::collections::BTreeMap;

use crate::codec::{EntityAddr, EntityName, UTime};
use crate::osd::object::WatchRecord;

use super::{Context, Errno, Pairs, Result, find};

/// `osd_max_object_size`.
const MAX_SIZE: u64 = 128 << 20;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Object {
    pub(super) data: Vec<u8>,
    pub(super) attrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(super) omap: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(super) header: Vec<u8>,
}

/// The object as it was before the call, which reads see, and as it is.
#[derive(Debug, Clone)]
pub(super) struct Fake {
    before: Option<Object>,
    after: Option<Object>,
    pub(super) now: UTime,
    pub(super) random: Vec<u8>,
    pub(super) origin: (EntityName, EntityAddr),
    pub(super) snap_set: (u64, Vec<u64>),
    pub(super) watchers: Vec<WatchRecord>,
    pub(super) code: i32,
}

impl Fake {
    pub(super) fn new(origin: (EntityName, EntityAddr)) -> Fake {
        Fake {
            before: None,
            after: None,
            now: UTime { sec: 1, nsec: 2 },
            random: Vec::new(),
            origin,
            snap_set: (0, Vec::new()),
            watchers: Vec::new(),
            code: 0,
        }
    }

    pub(super) fn object(&self) -> Option<&Object> {
        self.after.as_ref()
    }

    pub(super) fn set(&mut self, object: Option<Object>) {
        self.before.clone_from(&object);
        self.after = object;
    }

    /// Carries out a call as an OSD does: all of it or nothing.
    pub(super) fn call(&mut self, class: &str, method: &str, input: &[u8]) -> Result<Vec<u8>> {
        let method = find(class, method).ok_or(Errno::OPNOTSUPP)?;
        if !method.writes && self.after.is_none() {
            return Err(Errno::NOENT);
        }
        self.code = 0;
        let result = (method.call)(self, input);
        if result.is_ok() {
            assert!(method.writes || self.before == self.after);
            self.before.clone_from(&self.after);
        } else {
            self.after.clone_from(&self.before);
        }
        result
    }

    fn old(&self) -> Result<&Object> {
        self.before.as_ref().ok_or(Errno::NOENT)
    }

    fn change(&mut self) -> &mut Object {
        self.after.get_or_insert_default()
    }

    fn present(&mut self) -> Result<&mut Object> {
        self.after.as_mut().ok_or(Errno::NOENT)
    }
}

impl Context for Fake {
    fn stat(&mut self) -> Result<(u64, UTime)> {
        let size = self.present()?.data.len() as u64;
        Ok((size, UTime::default()))
    }

    fn user_version(&mut self) -> u64 {
        1
    }

    fn create(&mut self, exclusive: bool) -> Result<()> {
        if exclusive && self.after.is_some() {
            return Err(Errno::EXIST);
        }
        self.change();
        Ok(())
    }

    fn remove(&mut self) -> Result<()> {
        self.after.take().map(drop).ok_or(Errno::NOENT)
    }

    fn read(&mut self, offset: u64, length: u64) -> Result<Vec<u8>> {
        let data = &self.old()?.data;
        let start = data.len().min(offset as usize);
        let end = data.len().min(offset.saturating_add(length) as usize);
        Ok(data[start..end].to_vec())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let end = offset.saturating_add(bytes.len() as u64);
        if end > MAX_SIZE {
            return Err(Errno(-libc::EFBIG));
        }
        let data = &mut self.change().data;
        if data.len() < end as usize {
            data.resize(end as usize, 0);
        }
        data[offset as usize..end as usize].copy_from_slice(bytes);
        Ok(())
    }

    fn write_full(&mut self, data: &[u8]) -> Result<()> {
        self.change().data = data.to_vec();
        Ok(())
    }

    fn truncate(&mut self, size: u64) -> Result<()> {
        if size > MAX_SIZE {
            return Err(Errno(-libc::EFBIG));
        }
        if let Some(object) = &mut self.after {
            object.data.resize(size as usize, 0);
        }
        Ok(())
    }

    fn zero(&mut self, offset: u64, length: u64) -> Result<()> {
        let data = &mut self.present()?.data;
        let start = data.len().min(offset as usize);
        let end = data.len().min(offset.saturating_add(length) as usize);
        data[start..end].fill(0);
        Ok(())
    }

    fn attr(&mut self, name: &str) -> Result<Vec<u8>> {
        let value = self.old()?.attrs.get(name.as_bytes());
        value.cloned().ok_or(Errno::NODATA)
    }

    fn attrs(&mut self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        Ok(self.old()?.attrs.clone().into_iter().collect())
    }

    fn set_attr(&mut self, name: &str, value: &[u8]) -> Result<()> {
        let attrs = &mut self.change().attrs;
        attrs.insert(name.as_bytes().to_vec(), value.to_vec());
        Ok(())
    }

    fn remove_attr(&mut self, name: &str) -> Result<()> {
        self.present()?.attrs.remove(name.as_bytes());
        Ok(())
    }

    fn omap_get(&mut self, key: &[u8]) -> Result<Vec<u8>> {
        self.old()?.omap.get(key).cloned().ok_or(Errno::NOENT)
    }

    fn omap_list(&mut self, after: &[u8], prefix: &[u8], max: usize) -> Result<Pairs> {
        let Ok(object) = self.old() else {
            return Ok((Vec::new(), false));
        };
        let mut rest = object
            .omap
            .iter()
            .filter(|(k, _)| after.is_empty() || k[..] > *after)
            .filter(|(k, _)| k.starts_with(prefix))
            .map(|(k, v)| (k.clone(), v.clone()));
        let pairs = rest.by_ref().take(max).collect();
        Ok((pairs, rest.next().is_some()))
    }

    fn omap_header(&mut self) -> Result<Vec<u8>> {
        Ok(self.old()?.header.clone())
    }

    fn omap_set(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.change().omap.insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    fn omap_set_header(&mut self, header: &[u8]) -> Result<()> {
        self.change().header = header.to_vec();
        Ok(())
    }

    fn omap_remove(&mut self, key: &[u8]) -> Result<()> {
        self.present()?.omap.remove(key);
        Ok(())
    }

    fn omap_remove_range(&mut self, begin: &[u8], end: &[u8]) -> Result<()> {
        let omap = &mut self.present()?.omap;
        omap.retain(|k, _| k[..] < *begin || k[..] >= *end);
        Ok(())
    }

    fn omap_clear(&mut self) -> Result<()> {
        let object = self.present()?;
        object.omap.clear();
        object.header.clear();
        Ok(())
    }

    fn snap_set(&mut self) -> (u64, Vec<u64>) {
        self.snap_set.clone()
    }

    fn snap_context(&self) -> (u64, Vec<u64>) {
        (0, Vec::new())
    }

    fn watchers(&mut self) -> Result<Vec<WatchRecord>> {
        self.present()?;
        Ok(self.watchers.clone())
    }

    fn set_code(&mut self, code: i32) {
        self.code = code;
    }

    fn origin(&self) -> (EntityName, EntityAddr) {
        self.origin
    }

    fn now(&self) -> UTime {
        self.now
    }

    fn random(&mut self, out: &mut [u8]) {
        let n = out.len().min(self.random.len());
        out[..n].copy_from_slice(&self.random[..n]);
    }

    fn releases(&self) -> (u8, u8) {
        (16, 12)
    }

    fn client_features(&self) -> u64 {
        u64::MAX
    }
}
