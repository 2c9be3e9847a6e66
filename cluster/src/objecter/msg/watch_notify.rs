use super::osd_op::numbered;
use crate::codec::{Put, Reader, Result};

numbered! {
    /// `CEPH_WATCH_EVENT_*` (`src/include/ceph_fs.h`).
    NotifyEvent {
        /// To a watcher: somebody notifies.
        Notify = 1,
        /// To the notifier: all watchers have answered, or the time is over.
        Complete = 2,
        /// To a watcher: the watch is gone.
        Disconnect = 3,
    }
}

/// `MWatchNotify` (`src/messages/MWatchNotify.h`). The answers of the watchers come in the
/// message's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MWatchNotify<'a> {
    /// A [`NotifyEvent`].
    pub opcode: u8,
    /// The receiver's own name for its watch or notify.
    pub cookie: u64,
    pub version: u64,
    pub notify_id: u64,
    pub payload: &'a [u8],
    pub return_code: i32,
    /// The global id of who notifies.
    pub notifier: u64,
}

impl<'a> MWatchNotify<'a> {
    pub const VERSION: u16 = 3;
    pub const COMPAT: u16 = 1;

    pub fn decode(version: u16, front: &'a [u8]) -> Result<MWatchNotify<'a>> {
        let r = &mut Reader::new(front);
        let inner = r.u8()?;
        let opcode = r.u8()?;
        let cookie = r.u64()?;
        let ver = r.u64()?;
        let notify_id = r.u64()?;
        let payload = if inner >= 1 { r.blob()? } else { &[] };
        let return_code = if version >= 2 { r.i32()? } else { 0 };
        let notifier = if version >= 3 { r.u64()? } else { 0 };
        Ok(MWatchNotify {
            opcode,
            cookie,
            version: ver,
            notify_id,
            payload,
            return_code,
            notifier,
        })
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u8(1);
        out.put_u8(self.opcode);
        out.put_u64(self.cookie);
        out.put_u64(self.version);
        out.put_u64(self.notify_id);
        out.put_blob(self.payload);
        out.put_i32(self.return_code);
        out.put_u64(self.notifier);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn round_trip(opcode: u8, cookie: u64, notify_id: u64, payload: Vec<u8>, return_code: i32, notifier: u64) {
            let m = MWatchNotify { opcode, cookie, version: 0, notify_id, payload: &payload, return_code, notifier };
            let mut out = Vec::new();
            m.encode(&mut out);
            prop_assert_eq!(MWatchNotify::decode(3, &out).unwrap(), m);
            prop_assert!(MWatchNotify::decode(3, &out[..out.len() - 1]).is_err());
        }

        #[test]
        fn hostile_bytes_never_panic(version in 0u16..5, bytes: Vec<u8>) {
            let _ = MWatchNotify::decode(version, &bytes);
        }
    }
}
