//! Commands: a JSON object in, a code, a line of text and output out.
//!
//! The [`table`] has for each its signature in Ceph's notation (`src/mon/MonCommands.h`), from which
//! `ceph` learns how to parse its command line, and the function that runs it. Output comes as
//! text, or as JSON where `format` asks for it, in the shapes that Ceph prints: scripts read them.

mod auth;
mod dump;
mod osd;
mod pool;
mod settings;
mod status;
mod table;

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::codec::Now;
use crate::osd::caps;

use super::store::MonStoreError;
use super::{Link, Mon, Outbox};

pub(super) use settings::options_of;
use table::{Entry, TABLE};

pub(super) const EPERM: i32 = 1;
pub(super) const ENOENT: i32 = 2;
pub(super) const EIO: i32 = 5;
pub(super) const EACCES: i32 = 13;
pub(super) const EEXIST: i32 = 17;
pub(super) const EINVAL: i32 = 22;
pub(super) const ERANGE: i32 = 34;
pub(super) const ENOTSUP: i32 = 95;

/// Longest command line, and most arguments in it.
const MAX_COMMAND: usize = 1 << 20;

/// A command that fails: a negative errno and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: i32,
    pub(super) why: String,
}

pub(super) fn refuse(errno: i32, why: impl Into<String>) -> Refusal {
    Refusal {
        code: -errno,
        why: why.into(),
    }
}

impl From<MonStoreError> for Refusal {
    fn from(error: MonStoreError) -> Refusal {
        refuse(EIO, error.to_string())
    }
}

/// What a command that works yields.
#[derive(Debug, Default)]
pub(super) struct Answer {
    status: String,
    data: Vec<u8>,
}

type Outcome = Result<Answer, Refusal>;

impl Answer {
    fn status(text: impl Into<String>) -> Answer {
        Answer {
            status: text.into(),
            data: Vec::new(),
        }
    }

    fn text(text: impl Into<String>) -> Answer {
        Answer {
            status: String::new(),
            data: text.into().into_bytes(),
        }
    }

    fn with_status(mut self, text: impl Into<String>) -> Answer {
        self.status = text.into();
        self
    }
}

/// One call of a command.
struct Call<'a> {
    args: Map<String, Value>,
    input: &'a [u8],
    now: Now,
}

impl Call<'_> {
    fn prefix(&self) -> &str {
        self.args["prefix"].as_str().unwrap_or_default()
    }

    fn optional(&self, name: &str) -> Option<String> {
        match self.args.get(name)? {
            Value::String(s) => Some(s.clone()),
            Value::Number(n) => Some(n.to_string()),
            Value::Bool(b) => Some(b.to_string()),
            Value::Array(words) => Some(
                words
                    .iter()
                    .map(|w| w.as_str().map_or_else(|| w.to_string(), str::to_owned))
                    .collect::<Vec<_>>()
                    .join(" "),
            ),
            _ => None,
        }
    }

    fn string(&self, name: &str) -> Result<String, Refusal> {
        self.optional(name)
            .ok_or_else(|| refuse(EINVAL, format!("missing required parameter {name}")))
    }

    fn optional_int(&self, name: &str) -> Result<Option<i64>, Refusal> {
        let bad = || refuse(EINVAL, format!("{name} is not a number"));
        match self.args.get(name) {
            None => Ok(None),
            Some(Value::Number(n)) => n.as_i64().ok_or_else(bad).map(Some),
            Some(Value::String(s)) => s.trim().parse().map(Some).map_err(|_| bad()),
            Some(_) => Err(bad()),
        }
    }

    fn optional_float(&self, name: &str) -> Result<Option<f64>, Refusal> {
        let bad = || refuse(EINVAL, format!("{name} is not a number"));
        match self.args.get(name) {
            None => Ok(None),
            Some(Value::Number(n)) => n.as_f64().ok_or_else(bad).map(Some),
            Some(Value::String(s)) => s.trim().parse().map(Some).map_err(|_| bad()),
            Some(_) => Err(bad()),
        }
    }

    /// `CephBool`, which older clients send as text or as the option itself.
    fn flag(&self, name: &str) -> bool {
        match self.args.get(name) {
            Some(Value::Bool(b)) => *b,
            Some(Value::String(s)) => {
                matches!(s.as_str(), "true" | "1" | "yes") || s.starts_with("--")
            }
            _ => false,
        }
    }

    /// Of a parameter that may come many times.
    fn list(&self, name: &str) -> Vec<String> {
        match self.args.get(name) {
            Some(Value::Array(words)) => words
                .iter()
                .filter_map(|w| match w {
                    Value::String(s) => Some(s.clone()),
                    Value::Number(n) => Some(n.to_string()),
                    _ => None,
                })
                .collect(),
            Some(Value::String(s)) => s.split_whitespace().map(str::to_owned).collect(),
            Some(Value::Number(n)) => vec![n.to_string()],
            _ => Vec::new(),
        }
    }

    fn wants_json(&self) -> bool {
        matches!(self.args.get("format"), Some(Value::String(f)) if f.starts_with("json"))
    }

    /// JSON where it is asked for, else text.
    fn show(&self, json: impl FnOnce() -> Value, text: impl FnOnce() -> String) -> Outcome {
        match self.wants_json() {
            true => Ok(self.json(&json())),
            false => Ok(Answer::text(text())),
        }
    }

    /// Commands that know no text print JSON for people where none is asked for.
    fn json(&self, value: &Value) -> Answer {
        let pretty = !matches!(self.args.get("format"), Some(Value::String(f)) if f == "json");
        Answer {
            status: String::new(),
            data: print(value, pretty),
        }
    }

    /// Parameters as the caps see them: caps given to a user one by one.
    fn params(&self) -> BTreeMap<String, String> {
        let mut params = BTreeMap::new();
        for name in self.args.keys().filter(|n| *n != "prefix") {
            if name == "caps" {
                let caps = self.list(name);
                for pair in caps.chunks_exact(2) {
                    params.insert(format!("caps_{}", pair[0]), pair[1].clone());
                }
            } else if let Some(value) = self.optional(name) {
                params.insert(name.clone(), value);
            }
        }
        params
    }
}

/// Indented by four, as Ceph's formatter does, if `pretty`.
fn print(value: &Value, pretty: bool) -> Vec<u8> {
    use serde::Serialize;
    let mut out = vec![b'\n'];
    if pretty {
        let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
        let mut serializer = serde_json::Serializer::with_formatter(&mut out, formatter);
        value
            .serialize(&mut serializer)
            .expect("a vector takes all that is written");
    } else {
        out.extend(value.to_string().into_bytes());
    }
    out
}

impl Mon {
    /// Runs a command of this host's administrator, who may do everything.
    pub fn command(
        &mut self,
        words: &str,
        input: &[u8],
        now: Now,
        out: &mut Outbox,
    ) -> (i32, String, Vec<u8>) {
        let outcome = self.run_command(None, words, input, now);
        self.publish(out);
        outcome
    }

    /// Runs a command of a client, or of this host without one.
    pub(super) fn run_command(
        &mut self,
        link: Option<Link>,
        words: &str,
        input: &[u8],
        now: Now,
    ) -> (i32, String, Vec<u8>) {
        match self.dispatch(link, words, input, now) {
            Ok(answer) => (0, answer.status, answer.data),
            Err(refusal) => (refusal.code, refusal.why, Vec::new()),
        }
    }

    fn dispatch(&mut self, link: Option<Link>, words: &str, input: &[u8], now: Now) -> Outcome {
        if words.is_empty() {
            return Err(refuse(EINVAL, "no command"));
        }
        if words.len() > MAX_COMMAND {
            return Err(refuse(EINVAL, "command too long"));
        }
        let args = match serde_json::from_str(words) {
            Ok(Value::Object(args)) => args,
            _ => return Err(refuse(EINVAL, "command is not a JSON object")),
        };
        let Some(prefix) = args.get("prefix").and_then(Value::as_str) else {
            return Err(refuse(EINVAL, "command prefix not found"));
        };
        let prefix = prefix.trim().to_owned();
        let mut call = Call { args, input, now };
        call.args.insert("prefix".to_owned(), json!(prefix));
        // Every client may learn what there is.
        if prefix == "get_command_descriptions" {
            return Ok(descriptions());
        }
        let Some(entry) = TABLE.iter().find(|e| e.prefix() == prefix) else {
            let known = self.is_read_by(link, "mon");
            return Err(match known {
                true => refuse(EINVAL, format!("command '{prefix}' is not known here")),
                false => refuse(EACCES, "access denied"),
            });
        };
        if !self.may_run(link, entry, &call) {
            return Err(refuse(EACCES, "access denied"));
        }
        (entry.run)(self, &call)
    }

    fn is_read_by(&self, link: Option<Link>, service: &str) -> bool {
        link.is_none_or(|l| {
            self.sessions
                .get(&l)
                .is_some_and(|s| s.caps.reads(service, s.ip()))
        })
    }

    /// `Monitor::_allowed_command`.
    fn may_run(&self, link: Option<Link>, entry: &Entry, call: &Call<'_>) -> bool {
        let Some(link) = link else {
            return true;
        };
        self.sessions.get(&link).is_some_and(|session| {
            session.caps.allows(&caps::Command {
                service: entry.service,
                prefix: call.prefix(),
                args: &call.params(),
                read: entry.perm.contains('r'),
                write: entry.perm.contains('w'),
                exec: entry.perm.contains('x'),
                peer: session.ip(),
            })
        })
    }
}

/// What `ceph` learns of each command (`dump_cmddesc_to_json`, `src/common/cmdparse.cc`).
fn descriptions() -> Answer {
    let mut all = Map::new();
    for (n, entry) in TABLE.iter().enumerate() {
        let mut sig = Vec::new();
        for word in entry.sig.split_whitespace() {
            if !word.contains(['=', ',']) {
                sig.push(json!(word));
            } else {
                let mut param = Map::new();
                for part in word.split(',') {
                    let (key, value) = part.split_once('=').unwrap_or((part, "true"));
                    let value = match key {
                        "req" => json!(value == "true"),
                        _ => json!(value),
                    };
                    param.insert(key.to_owned(), value);
                }
                sig.push(Value::Object(param));
            }
        }
        let command = json!({
            "sig": sig,
            "help": entry.help,
            "module": entry.service,
            "perm": entry.perm,
            "flags": 0,
        });
        all.insert(format!("cmd{n:03}"), command);
    }
    Answer {
        status: String::new(),
        data: Value::Object(all).to_string().into_bytes(),
    }
}

/// All commands by name, for tests that call each.
#[cfg(test)]
pub(super) fn prefixes() -> Vec<String> {
    TABLE.iter().map(Entry::prefix).collect()
}
