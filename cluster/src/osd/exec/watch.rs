//! Watching an object, and notifying those who do.

use super::state::{State, io};
use super::{Done, Effect, OK, errno};
use crate::codec::{Put, Reader};
use crate::objecter::msg::{WatchArgs, WatchOp};
use crate::osd::cls::Errno;
use crate::osd::limits;
use crate::osd::object::WatchRecord;
use crate::osd::store::Store;

/// `osd_client_watch_timeout` and `osd_default_notify_timeout`.
const DEFAULT_TIMEOUT: u32 = 30;
/// `CEPH_OSD_WATCH_OP_LEGACY_WATCH`: a watch of a client that does not ping.
pub(in crate::osd) const LEGACY_WATCH: u8 = 1;

impl<S: Store> State<'_, '_, '_, S> {
    pub(super) fn watch(&mut self, w: WatchArgs) -> Done {
        self.changes += 1;
        if !self.exists {
            return Err(errno(libc::ENOENT));
        }
        let entity = self.req.reqid.name;
        let op = match w.op {
            LEGACY_WATCH => Some(WatchOp::Watch),
            op => WatchOp::from_wire(op),
        };
        let record = WatchRecord {
            entity,
            cookie: w.cookie,
            timeout_seconds: if w.timeout == 0 {
                DEFAULT_TIMEOUT
            } else {
                w.timeout
            },
            addr: self.req.peer.addr(),
        };
        // Sorted, as Ceph has them in a map.
        let place = |r: &WatchRecord| (r.cookie, r.entity).cmp(&(w.cookie, entity));
        let found = if self.writes {
            self.info.watchers.binary_search_by(place)
        } else {
            let info = self.store.info(self.req.pg, &self.target).map_err(io)?;
            info.map_or(Err(0), |i| i.watchers.binary_search_by(place))
        };
        let connect = Effect::Watch {
            cookie: w.cookie,
            timeout_seconds: record.timeout_seconds,
        };
        match (op, found) {
            (Some(WatchOp::Watch), found) => {
                if let Err(at) = found {
                    if self.info.watchers.len() >= limits::OBJECT_WATCHES {
                        return Err(errno(libc::EUSERS));
                    }
                    self.touch_info();
                    self.info.watchers.insert(at, record);
                }
                self.effects.push(connect);
            }
            (Some(WatchOp::Reconnect), Ok(_)) => self.effects.push(connect),
            // Whether the watch is connected is known to the pg.
            (Some(WatchOp::Ping), Ok(_)) => {}
            (Some(WatchOp::Reconnect | WatchOp::Ping), Err(_)) => {
                return Err(errno(libc::ENOTCONN));
            }
            (Some(WatchOp::Unwatch), Ok(at)) => {
                self.touch_info();
                self.info.watchers.remove(at);
                self.effects.push(Effect::Unwatch { cookie: w.cookie });
            }
            (Some(WatchOp::Unwatch), Err(_)) | (None, _) => {}
        }
        OK
    }

    pub(super) fn watchers(&mut self) -> Result<Vec<WatchRecord>, Errno> {
        if self.writes {
            return Ok(self.info.watchers.clone());
        }
        let info = self.store.info(self.req.pg, &self.target).map_err(io)?;
        Ok(info.map(|i| i.watchers.clone()).unwrap_or_default())
    }

    /// `obj_list_watch_response_t`, `src/osd/osd_types.h`.
    pub(super) fn list_watchers(&mut self, out: &mut Vec<u8>) -> Done {
        self.reads += 1;
        let watchers = self.watchers()?;
        out.versioned(1, 1, |out| {
            out.put_list(watchers.iter(), |out, w| {
                out.versioned(2, 1, |out| {
                    w.entity.encode(out);
                    out.put_u64(w.cookie);
                    out.put_u32(w.timeout_seconds);
                    w.addr.encode(out);
                });
            });
        });
        OK
    }

    /// The id that the client is to get of the notify is the OSD's to give.
    pub(super) fn notify(&mut self, cookie: u64, input: &[u8]) -> Done {
        self.reads += 1;
        let r = &mut Reader::new(input);
        let asked = (|| {
            let _version = r.u32()?;
            Ok::<_, crate::codec::DecodeError>((r.u32()?, r.blob()))
        })();
        let (timeout, payload) = match asked {
            Ok((timeout, Ok(payload))) => (timeout, payload),
            _ => (0, &[][..]),
        };
        let told = payload.len() * self.watchers()?.len();
        if payload.len() > limits::NOTIFY || told > limits::FAN_OUT {
            return Err(errno(libc::EMSGSIZE));
        }
        self.spend(told as u64)?;
        self.effects.push(Effect::Notify {
            cookie,
            timeout_seconds: match timeout {
                0 => DEFAULT_TIMEOUT,
                asked => asked.min(limits::NOTIFY_TIMEOUT),
            },
            payload: payload.to_vec(),
        });
        Ok(None)
    }

    /// What cannot be understood is the acknowledgement of an old client, whose operation has the
    /// notify's id where newer ones have nothing.
    pub(super) fn notify_ack(&mut self, legacy_id: u64, input: &[u8]) -> Done {
        self.reads += 1;
        let r = &mut Reader::new(input);
        let ack = (|| {
            let (notify_id, cookie) = (r.u64()?, r.u64()?);
            let payload = if r.is_empty() { &[][..] } else { r.blob()? };
            Ok::<_, crate::codec::DecodeError>((notify_id, cookie, payload))
        })();
        let (notify_id, cookie, payload) = ack.unwrap_or((legacy_id, 0, &[]));
        if payload.len() > limits::NOTIFY {
            return Err(errno(libc::EMSGSIZE));
        }
        self.effects.push(Effect::NotifyAck {
            notify_id,
            cookie,
            payload: payload.to_vec(),
        });
        Ok(None)
    }
}
