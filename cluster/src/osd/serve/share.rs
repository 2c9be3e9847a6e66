//! Newer maps for clients that show an older one (`OSDService::maybe_share_map`).

use std::sync::Arc;

use crate::codec::Now;
use crate::msgr::MsgHeader;
use crate::objecter::msg::{MOsdMap, OSD_MAP};

use super::super::faults::Action;
use super::super::outbox::{Link, Outbox};
use super::super::store::Store;
use super::Osd;

/// `osd_map_share_max_epochs` and `osd_map_message_max_bytes`.
const MAX_EPOCHS: u32 = 40;
const MAX_BYTES: usize = 10 << 20;

impl<S: Store> Osd<S> {
    /// `theirs` is an epoch that the client has shown to have.
    pub(super) fn share_map(&mut self, link: Link, theirs: u32, now: Now, out: &mut Outbox) {
        let Some(map) = &self.map else {
            return;
        };
        let epoch = map.epoch();
        let Some(session) = self.sessions.get_mut(&link) else {
            return;
        };
        session.projected = session.projected.max(theirs);
        if epoch <= session.projected || !session.is_client() {
            return;
        }
        let since = session.projected + 1;
        session.projected = epoch;
        if !self.faults.is_empty() {
            match self.faults.strike_map() {
                Some(Action::Reset) => return self.reset(link, now, out),
                Some(_) => return,
                None => {}
            }
        }
        let fsid = map.fsid();
        self.send_maps(
            link,
            fsid,
            since.max(epoch.saturating_sub(MAX_EPOCHS)),
            epoch,
            out,
        );
    }

    /// `OSDService::build_incremental_map_msg`: a full map stands in for an incremental one that is
    /// gone.
    fn send_maps(&mut self, link: Link, fsid: [u8; 16], since: u32, to: u32, out: &mut Outbox) {
        let mut incrementals: Vec<(u32, Arc<[u8]>)> = Vec::new();
        let mut full: Vec<(u32, Arc<[u8]>)> = Vec::new();
        let mut bytes = 0;
        for epoch in since..=to {
            if let Some(map) = self.history.incremental(epoch) {
                bytes += map.len();
                incrementals.push((epoch, map));
            } else if let Some(map) = self.history.full(epoch) {
                bytes += map.len();
                full.push((epoch, map));
            }
            if bytes >= MAX_BYTES {
                break;
            }
        }
        if incrementals.is_empty() && full.is_empty() {
            return;
        }
        fn borrow(maps: &[(u32, Arc<[u8]>)]) -> Vec<(u32, &[u8])> {
            maps.iter().map(|(epoch, map)| (*epoch, &map[..])).collect()
        }
        let m = MOsdMap {
            fsid,
            incrementals: borrow(&incrementals),
            full: borrow(&full),
            trim_lower_bound: 1,
            newest: to,
        };
        let header = MsgHeader::new(OSD_MAP, MOsdMap::VERSION, MOsdMap::COMPAT);
        out.send(link, header, |b| m.encode(b), None);
    }
}
