//! Commands to the monitors, as the JSON objects they take (`src/mon/MonCommands.h`).

use serde_json::{Map, Value};

/// A command under construction: its prefix and its arguments by name.
#[derive(Debug, Clone, PartialEq)]
pub struct Command {
    fields: Map<String, Value>,
}

impl Command {
    pub fn new(prefix: &str) -> Command {
        let mut fields = Map::new();
        fields.insert("prefix".into(), prefix.into());
        Command { fields }
    }

    pub fn arg(mut self, name: &str, value: impl Into<Value>) -> Command {
        self.fields.insert(name.into(), value.into());
        self
    }

    /// Asks for output in JSON.
    pub fn json(self) -> Command {
        self.arg("format", "json")
    }

    /// The words of an [`MMonCommand`](super::message::MMonCommand).
    pub fn words(self) -> Vec<String> {
        vec![Value::Object(self.fields).to_string()]
    }
}

pub fn status() -> Command {
    Command::new("status").json()
}

/// What version the monitor that answers runs.
pub fn version() -> Command {
    Command::new("version").json()
}

/// What versions all daemons run.
pub fn versions() -> Command {
    Command::new("versions").json()
}

pub fn df() -> Command {
    Command::new("df").json()
}

pub fn osd_dump() -> Command {
    Command::new("osd dump").json()
}

pub fn pool_ls() -> Command {
    Command::new("osd pool ls").json()
}

/// A replicated pool; what is not said is the cluster's default.
pub fn pool_create(pool: &str, pg_num: Option<u32>, size: Option<u32>) -> Command {
    let mut command = Command::new("osd pool create")
        .arg("pool", pool)
        .arg("pool_type", "replicated");
    if let Some(n) = pg_num {
        command = command.arg("pg_num", n);
    }
    if let Some(n) = size {
        command = command.arg("size", n);
    }
    command
}

/// Says what a pool is for. Without it the cluster's health warns, and RBD needs `rbd`.
pub fn pool_application_enable(pool: &str, application: &str) -> Command {
    Command::new("osd pool application enable")
        .arg("pool", pool)
        .arg("app", application)
}

/// Fences the client at `addr`, for `expire` seconds or the cluster's default.
pub fn blocklist_add(addr: &str, expire: Option<f64>) -> Command {
    blocklist("osd blocklist", "blocklistop", addr, expire)
}

/// [`blocklist_add`] for monitors before Ceph 16, which answer it with `EINVAL`.
pub fn blacklist_add(addr: &str, expire: Option<f64>) -> Command {
    blocklist("osd blacklist", "blacklistop", addr, expire)
}

fn blocklist(prefix: &str, op: &str, addr: &str, expire: Option<f64>) -> Command {
    let command = Command::new(prefix).arg(op, "add").arg("addr", addr);
    match expire {
        Some(seconds) => command.arg("expire", seconds),
        None => command,
    }
}

pub fn blocklist_rm(addr: &str) -> Command {
    Command::new("osd blocklist")
        .arg("blocklistop", "rm")
        .arg("addr", addr)
}

pub fn blocklist_ls() -> Command {
    Command::new("osd blocklist ls").json()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(command: Command) -> Value {
        let words = command.words();
        assert_eq!(words.len(), 1);
        serde_json::from_str(&words[0]).unwrap()
    }

    #[test]
    fn arguments_are_named_as_the_monitors_name_them() {
        assert_eq!(
            parsed(blocklist_add("10.0.0.1:0/42", Some(60.0))),
            serde_json::json!({
                "prefix": "osd blocklist", "blocklistop": "add", "addr": "10.0.0.1:0/42",
                "expire": 60.0
            })
        );
        assert_eq!(
            parsed(pool_create("a\"b", Some(8), None)),
            serde_json::json!({
                "prefix": "osd pool create", "pool": "a\"b", "pool_type": "replicated",
                "pg_num": 8
            })
        );
        assert_eq!(
            parsed(pool_application_enable("rbd", "rbd")),
            serde_json::json!({
                "prefix": "osd pool application enable", "pool": "rbd", "app": "rbd"
            })
        );
    }
}
