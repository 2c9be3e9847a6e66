use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::codec::DecodeError;
use crate::objecter::msg::MOsdMap;
use crate::osdmap::{Incremental, OsdMap};

/// OSD maps that clients of this process hold, so that an epoch is decoded once for all of them.
///
/// Looked at when a map arrives, never per request.
#[derive(Debug, Default)]
pub struct MapCache {
    maps: Mutex<Vec<Weak<OsdMap>>>,
}

/// What a message with maps brought.
pub(super) struct News {
    /// Newer maps, one epoch after the other.
    pub(super) maps: Vec<Arc<OsdMap>>,
    /// The message goes on after a gap behind this epoch.
    pub(super) gap_after: Option<u32>,
    /// The newest epoch that the sender has.
    pub(super) newest: u32,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum MapError {
    #[error("bad map message: {0}")]
    Message(#[from] DecodeError),
    #[error("OSD map {epoch}: {why}")]
    Map { epoch: u32, why: String },
    #[error("OSD map is of another cluster")]
    OtherCluster,
}

impl MapCache {
    fn get(&self, fsid: &[u8; 16], epoch: u32) -> Option<Arc<OsdMap>> {
        let maps = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        let mut held = maps.iter().filter_map(Weak::upgrade);
        held.find(|m| m.epoch() == epoch && m.fsid() == *fsid)
    }

    fn put(&self, map: &Arc<OsdMap>) {
        let mut maps = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        maps.retain(|m| m.strong_count() > 0);
        maps.push(Arc::downgrade(map));
    }

    /// The maps that a CEPH_MSG_OSD_MAP leads to from `current`: increments where they follow on,
    /// a full map where there is no way on from what we have (`Objecter::handle_osd_map`).
    pub(super) fn advance(
        &self,
        current: Option<Arc<OsdMap>>,
        version: u16,
        front: &[u8],
    ) -> Result<News, MapError> {
        let message = MOsdMap::decode(version, front)?;
        if current.as_ref().is_some_and(|m| m.fsid() != message.fsid) {
            return Err(MapError::OtherCluster);
        }
        let last = message.last();
        let mut news = News {
            maps: Vec::new(),
            gap_after: None,
            newest: message.newest,
        };
        let mut at = current;
        if at.is_none() {
            // The newest full map saves the way through the older ones.
            let Some(epoch) = message.full.iter().map(|(epoch, _)| *epoch).max() else {
                return Ok(news);
            };
            let map = self.full(&message, epoch)?;
            news.maps.push(Arc::clone(&map));
            at = Some(map);
        }
        while let Some(map) = &at
            && map.epoch() < last
        {
            let epoch = map.epoch() + 1;
            let next = if let Some(known) = self.get(&message.fsid, epoch) {
                known
            } else if let Some(bytes) = message.incremental(epoch) {
                self.increment(map, epoch, bytes)?
            } else if message.full(epoch).is_some() {
                self.full(&message, epoch)?
            } else if let Some(later) = message
                .full
                .iter()
                .map(|(e, _)| *e)
                .filter(|e| *e > epoch)
                .min()
            {
                self.full(&message, later)?
            } else {
                news.gap_after = Some(map.epoch());
                break;
            };
            news.maps.push(Arc::clone(&next));
            at = Some(next);
        }
        Ok(news)
    }

    fn full(&self, message: &MOsdMap<'_>, epoch: u32) -> Result<Arc<OsdMap>, MapError> {
        if let Some(known) = self.get(&message.fsid, epoch) {
            return Ok(known);
        }
        let bytes = message.full(epoch).unwrap_or_default();
        let failed = |why: String| MapError::Map { epoch, why };
        let map = OsdMap::decode(bytes).map_err(|e| failed(e.to_string()))?;
        if map.epoch() != epoch || map.fsid() != message.fsid {
            return Err(failed("it is not what the message says".to_owned()));
        }
        let map = Arc::new(map);
        self.put(&map);
        Ok(map)
    }

    fn increment(&self, from: &OsdMap, epoch: u32, bytes: &[u8]) -> Result<Arc<OsdMap>, MapError> {
        let failed = |why: String| MapError::Map { epoch, why };
        let inc = Incremental::decode(bytes).map_err(|e| failed(e.to_string()))?;
        let mut map = from.clone();
        map.apply(&inc).map_err(|e| failed(e.to_string()))?;
        let map = Arc::new(map);
        self.put(&map);
        Ok(map)
    }
}
