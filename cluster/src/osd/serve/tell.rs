//! Commands to an OSD itself: `ceph tell osd.N`, `rados_osd_command`, `rados_pg_command`
//! (`MCommand`, `MCommandReply`).

use serde_json::{Value, json};

use crate::codec::{Now, Put, Reader};
use crate::mon::kind;
use crate::msgr::{Message, MsgHeader};
use crate::objecter::msg::PgId;
use crate::payload::Payload;

use super::super::outbox::{Link, Outbox};
use super::super::store::Store;
use super::Osd;
use super::info::EINVAL;

const ENOENT: i32 = 2;

/// A result, what to say about it, and the output.
type Answer = (i32, String, Value);

impl<S: Store> Osd<S> {
    pub(super) fn tell(&mut self, link: Link, m: &Message<'_>, now: Now, out: &mut Outbox) {
        let mut r = Reader::new(m.front);
        // The cluster's id.
        let words = r
            .skip(16)
            .and_then(|()| r.list(4, |r| Ok(r.string()?.to_owned())));
        let Ok(words) = words else {
            return self.reset(link, now, out);
        };
        let (code, status, output) = self.told(&words.concat());
        let header = MsgHeader {
            tid: m.header.tid,
            ..MsgHeader::new(kind::COMMAND_REPLY, 1, 1)
        };
        let data = (!output.is_null()).then(|| Payload::from(format!("{output:#}\n").into_bytes()));
        let front = |front: &mut Vec<u8>| {
            front.put_i32(code);
            front.put_string(&status);
        };
        out.send(link, header, front, data);
    }

    pub(super) fn told(&self, text: &str) -> Answer {
        let Ok(command) = serde_json::from_str::<Value>(text) else {
            return (-EINVAL, "command not understood".to_owned(), Value::Null);
        };
        let word = |name: &str| command[name].as_str().unwrap_or_default();
        match (word("prefix"), word("cmd")) {
            ("version", _) => {
                let version = concat!("ublk-rbd ", env!("CARGO_PKG_VERSION"));
                (0, String::new(), json!({ "version": version }))
            }
            ("get_command_descriptions", _) => (0, String::new(), descriptions()),
            ("pg", "query") | ("query", _) => self.query(word("pgid")),
            (other, _) => {
                let status = format!("osd.{} knows no command '{other}'", self.config.id);
                (-EINVAL, status, Value::Null)
            }
        }
    }

    fn query(&self, id: &str) -> Answer {
        let parsed = id.split_once('.').and_then(|(pool, seed)| {
            Some(PgId {
                pool: pool.parse().ok()?,
                seed: u32::from_str_radix(seed, 16).ok()?,
            })
        });
        let Some(pgid) = parsed else {
            return (-EINVAL, format!("'{id}' is no pg"), Value::Null);
        };
        let Some(pg) = self.pgs.get(&pgid).filter(|pg| pg.acting) else {
            return (-ENOENT, format!("pg {pgid} is not here"), Value::Null);
        };
        let me = [self.config.id];
        let state = if pg.running {
            "active+clean"
        } else {
            "peering"
        };
        let usage = self.store.usage(pgid);
        let output = json!({
            "pgid": pgid.to_string(),
            "state": state,
            "epoch": self.epoch(),
            "up": me,
            "acting": me,
            "info": {
                "pgid": pgid.to_string(),
                "last_update": format!("{}'{}", pg.last_update.epoch, pg.last_update.version),
                "last_user_version": pg.last_user_version,
                "stats": { "stat_sum": {
                    "num_bytes": usage.bytes,
                    "num_objects": usage.objects,
                    "num_object_clones": usage.clones,
                } },
            },
        });
        (0, String::new(), output)
    }
}

/// What `ceph tell` has to know of the commands before it sends one.
fn descriptions() -> Value {
    let entry = |sig: Value, help: &str| json!({ "sig": sig, "help": help, "module": "osd", "perm": "r", "flags": 0 });
    json!({
        "cmd000": entry(json!(["version"]), "report version of the OSD"),
        "cmd001": entry(
            json!(["query"]),
            "show details of a pg",
        ),
    })
}
