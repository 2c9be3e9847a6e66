//! A monitor: messages and commands from peers that may do little, all, or nothing.

#![no_main]

use std::collections::BTreeMap;
use std::sync::OnceLock;

use arbitrary::Arbitrary;
use cluster::auth::server::{Caps, KeyServerConfig, Policy};
use cluster::auth::{ConMode, KeyType, Method};
use cluster::codec::Now;
use cluster::mon::message::{MMonCommand, Message as _, Paxos};
use cluster::msgr::{Message, MsgHeader};
use cluster::osd::mon::{Ask, MemoryMonStore, Mon, MonConfig};
use cluster::osd::outbox::Step as Sent;
use cluster::osd::{Link, Outbox};
use fuzz::server::peer;
use fuzz::{NOW, SECOND, addrs};
use libfuzzer_sys::fuzz_target;

const FSID: [u8; 16] = [7; 16];

#[derive(Debug, Arbitrary)]
enum Step {
    Open(u8, bool),
    Close(u8),
    /// A command by its number, with values for its parameters.
    Command {
        link: u8,
        which: u8,
        args: Vec<(u8, Value)>,
        input: Vec<u8>,
    },
    /// Any text as a command.
    Text(u8, String),
    Raw {
        link: u8,
        kind: u8,
        version: u8,
        front: Vec<u8>,
        data: Vec<u8>,
    },
    Login(u8, u8, Vec<u8>),
    Boot(u8),
    Wait(u16),
}

#[derive(Debug, Arbitrary)]
enum Value {
    Word(u8),
    Number(i64),
    Flag(bool),
    Text(String),
    Many(Vec<u8>),
}

const WORDS: [&str; 24] = [
    "rbd",
    "a",
    "client.a",
    "osd.0",
    "0",
    "1",
    "64",
    "add",
    "rm",
    "full",
    "size",
    "pg_num",
    "10.0.0.1:0/7",
    "10.0.0.0/8",
    "mon",
    "allow *",
    "osd",
    "profile rbd",
    "global",
    "on",
    "max_bytes",
    "1G",
    "detail",
    "json",
];

const CAPS: [&str; 6] = [
    "",
    "profile rbd",
    "allow r",
    "allow rw",
    "allow profile osd",
    "allow command \"osd pool ls\"",
];

struct Run {
    mon: Mon,
    /// Which of [`CAPS`] a link has; `None` for all.
    links: Vec<(Link, Option<usize>)>,
    last: u64,
    now: Now,
    commands: &'static [(String, Vec<String>)],
}

/// Each command's words and the names of its parameters, as the monitor tells them.
static COMMANDS: OnceLock<Vec<(String, Vec<String>)>> = OnceLock::new();

fn commands(mon: &mut Mon) -> Vec<(String, Vec<String>)> {
    let ask = "{\"prefix\":\"get_command_descriptions\"}";
    let (_, _, text) = mon.command(ask, b"", NOW, &mut Outbox::new());
    let all: BTreeMap<String, serde_json::Value> = serde_json::from_slice(&text).expect("JSON");
    let of = |entry: &serde_json::Value| {
        let sig = entry["sig"].as_array().expect("a signature");
        let words: Vec<&str> = sig.iter().filter_map(|w| w.as_str()).collect();
        let name = |p: &serde_json::Value| Some(p.get("name")?.as_str()?.to_owned());
        (words.join(" "), sig.iter().filter_map(name).collect())
    };
    all.values().map(of).collect()
}

fuzz_target!(|steps: Vec<Step>| {
    let mut state = 1u8;
    let entropy = Box::new(move |out: &mut [u8]| {
        for byte in out {
            state = state.wrapping_mul(77).wrapping_add(5);
            *byte = state;
        }
    });
    let config = MonConfig {
        fsid: FSID,
        name: "a".into(),
        addrs: addrs(50),
        host: "here".into(),
        osds: 2,
        device_class: "ssd".into(),
        osd_weight: 0x10000,
        shared_store: false,
        pg_num: 8,
        policy: Policy {
            methods: vec![Method::Cephx, Method::None],
            modes: vec![ConMode::Crc, ConMode::Secure],
        },
        keys: KeyServerConfig::default(),
        key_type: KeyType::Aes,
        version: "ceph version 16".into(),
    };
    let store = Box::new(MemoryMonStore::new());
    let mut run = Run {
        mon: Mon::new(config, store, NOW, entropy).expect("a new cluster"),
        links: Vec::new(),
        last: 0,
        now: NOW,
        commands: &[],
    };
    run.commands = COMMANDS.get_or_init(|| commands(&mut run.mon));
    run.open(None, true);
    for step in steps.into_iter().take(48) {
        run.take(step);
    }
});

impl Run {
    fn take(&mut self, step: Step) {
        match step {
            Step::Open(caps, stateful) => {
                let caps = usize::from(caps) % (CAPS.len() + 1);
                self.open((caps < CAPS.len()).then_some(caps), stateful);
            }
            Step::Close(n) => {
                if let Some((link, _)) = self.pick(n) {
                    self.links.retain(|l| l.0 != link);
                    self.step(None, |mon, _, _| mon.closed(link));
                }
            }
            Step::Command {
                link,
                which,
                args,
                input,
            } => {
                let (prefix, params) = &self.commands[usize::from(which) % self.commands.len()];
                let mut object = serde_json::Map::new();
                object.insert("prefix".into(), prefix.as_str().into());
                for (n, value) in args {
                    let Some(name) = params.get(usize::from(n) % params.len().max(1)) else {
                        break;
                    };
                    object.insert(name.clone(), value.json());
                }
                let text = serde_json::Value::Object(object).to_string();
                self.command(link, text, &input);
            }
            Step::Text(link, text) => self.command(link, text, b""),
            Step::Raw {
                link,
                kind,
                version,
                front,
                data,
            } => {
                const KINDS: [u16; 12] = [5, 13, 15, 17, 19, 48, 49, 50, 58, 97, 2, 98];
                let header =
                    MsgHeader::new(KINDS[usize::from(kind) % KINDS.len()], version.into(), 1);
                self.message(link, header, &front, &data);
            }
            Step::Login(link, method, payload) => {
                self.last += 1;
                // One that is not open yet, or renews.
                let link = match link % 3 {
                    0 => self.pick(link).map_or(Link(self.last), |l| l.0),
                    _ => Link(self.last),
                };
                let now = self.now;
                let ask = match method % 4 {
                    3 => Ask::More(&payload),
                    method => Ask::Request {
                        method: method.into(),
                        modes: &[1, 2],
                        payload: &payload,
                    },
                };
                let _ = self.mon.authenticate(link, ask, now);
            }
            Step::Boot(n) => {
                let addrs = addrs(60 + n % 4);
                self.step(None, |mon, now, out| {
                    let _ = mon.osd_boot(i32::from(n % 3), &addrs, now, out);
                });
            }
            Step::Wait(seconds) => {
                let by = u64::from(seconds) * SECOND;
                self.now.mono += by;
                self.now.wall += by;
                self.step(None, |mon, now, out| mon.tick(now, out));
            }
        }
    }

    fn open(&mut self, caps: Option<usize>, stateful: bool) {
        self.last += 1;
        let link = Link(self.last);
        let text = caps.map_or_else(Caps::all, |n| Caps::new(CAPS[n]));
        let features = if stateful { 1 << 57 } else { 0 };
        let peer = peer(self.last as u8, text, features);
        self.links.push((link, caps));
        self.step(None, |mon, now, out| mon.opened(link, peer, now, out));
    }

    fn pick(&self, n: u8) -> Option<(Link, Option<usize>)> {
        let at = usize::from(n) % self.links.len().max(1);
        self.links.get(at).copied()
    }

    fn command(&mut self, link: u8, text: String, input: &[u8]) {
        let ask = MMonCommand {
            paxos: Paxos::default(),
            fsid: FSID,
            cmd: vec![text],
        };
        let mut front = Vec::new();
        ask.encode(&mut front);
        self.message(link, MsgHeader::new(50, 1, 1), &front, input);
    }

    fn message(&mut self, link: u8, header: MsgHeader, front: &[u8], data: &[u8]) {
        let Some((link, caps)) = self.pick(link) else {
            return;
        };
        let m = Message {
            header,
            front,
            middle: &[],
            data,
        };
        self.step(caps, |mon, now, out| mon.message(link, &m, now, out));
    }

    /// Whoever may not write changes nothing; what is sent goes to those who are there.
    fn step(&mut self, caps: Option<usize>, f: impl FnOnce(&mut Mon, Now, &mut Outbox)) {
        let epoch = self.mon.map().epoch();
        let keys = matches!(caps, Some(0..=2)).then(|| self.mon.keyring().to_text());
        let mut out = Outbox::new();
        f(&mut self.mon, self.now, &mut out);
        while self.mon.poll_event().is_some() {}
        if matches!(caps, Some(0 | 2)) {
            assert_eq!(
                epoch,
                self.mon.map().epoch(),
                "changed by someone without caps"
            );
        }
        if let Some(keys) = keys {
            assert_eq!(*keys, *self.mon.keyring().to_text());
        }
        let links = &mut self.links;
        out.drain(|link, step| match step {
            Sent::Close => links.retain(|l| l.0 != link),
            Sent::Send { .. } => assert!(links.iter().any(|l| l.0 == link), "sent to nobody"),
        });
    }
}

impl Value {
    fn json(&self) -> serde_json::Value {
        let word = |n: &u8| WORDS[usize::from(*n) % WORDS.len()];
        match self {
            Value::Word(n) => word(n).into(),
            Value::Number(n) => (*n).into(),
            Value::Flag(b) => (*b).into(),
            Value::Text(t) => t.as_str().into(),
            Value::Many(all) => all.iter().map(word).collect::<Vec<_>>().into(),
        }
    }
}
