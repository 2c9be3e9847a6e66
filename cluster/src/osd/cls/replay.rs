//! Plays again what `tests/golden/cls/record.py` has recorded of real OSDs, and plays with it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use proptest::prelude::*;
use serde::Deserialize;

use crate::codec::{AddrType, EntityAddr, EntityName, EntityType, UTime};
use crate::osd::object::WatchRecord;

use super::testing::{Fake, Object};
use super::{Errno, METHODS};

#[derive(Deserialize)]
struct Recording {
    version: String,
    /// Id and address of the client.
    origin: (i64, String),
    steps: Vec<Step>,
}

/// A call; without a method, a change made by other means.
#[derive(Deserialize)]
struct Step {
    object: String,
    #[serde(default)]
    class: String,
    method: Option<String>,
    #[serde(default, rename = "in")]
    input: Hex,
    #[serde(default)]
    code: i32,
    #[serde(default)]
    out: Hex,
    now: Option<(u32, u32)>,
    #[serde(default)]
    random: Hex,
    watched: Option<bool>,
    snap_set: Option<(u64, Vec<u64>)>,
    /// Absent when nothing has changed, null when the object is gone.
    #[serde(default, deserialize_with = "present")]
    after: Option<Option<Change>>,
}

fn present<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Option<Option<Change>>, D::Error> {
    Option::deserialize(d).map(Some)
}

#[derive(Deserialize)]
struct Change {
    data: Option<Hex>,
    #[serde(default)]
    attrs: BTreeMap<Hex, Option<Hex>>,
    #[serde(default)]
    omap: BTreeMap<Hex, Option<Hex>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
struct Hex(Vec<u8>);

impl TryFrom<String> for Hex {
    type Error = String;

    fn try_from(text: String) -> Result<Hex, String> {
        (0..text.len())
            .step_by(2)
            .map(|at| {
                let digits = text.get(at..at + 2).ok_or("half a byte")?;
                u8::from_str_radix(digits, 16).map_err(|e| e.to_string())
            })
            .collect::<Result<_, _>>()
            .map(Hex)
    }
}

impl Change {
    fn apply(&self, object: Option<&Object>) -> Object {
        let mut object = object.cloned().unwrap_or_default();
        if let Some(data) = &self.data {
            object.data.clone_from(&data.0);
        }
        for (changes, pairs) in [
            (&self.attrs, &mut object.attrs),
            (&self.omap, &mut object.omap),
        ] {
            for (key, value) in changes {
                match value {
                    Some(value) => pairs.insert(key.0.clone(), value.0.clone()),
                    None => pairs.remove(&key.0),
                };
            }
        }
        object
    }
}

fn recordings() -> Vec<Recording> {
    const DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/cls/");
    ["v16.json", "v20.json"]
        .iter()
        .map(|name| {
            let text = std::fs::read(format!("{DIR}{name}")).unwrap();
            serde_json::from_slice(&text).unwrap()
        })
        .collect()
}

impl Recording {
    fn origin(&self) -> (EntityName, EntityAddr) {
        let name = EntityName {
            kind: EntityType::CLIENT,
            num: self.origin.0,
        };
        let (addr, nonce) = self.origin.1.rsplit_once('/').unwrap();
        let addr = EntityAddr {
            kind: AddrType::ANY,
            nonce: nonce.parse().unwrap(),
            addr: Some(addr.parse().unwrap()),
        };
        (name, addr)
    }

    /// Plays all steps; tells where we differ.
    fn play(&self) -> Vec<String> {
        let origin = self.origin();
        let mut objects: HashMap<&str, Fake> = HashMap::new();
        let mut wrong = Vec::new();
        for (at, step) in self.steps.iter().enumerate() {
            let object = objects
                .entry(&step.object)
                .or_insert_with(|| Fake::new(origin));
            let want = match &step.after {
                None => object.object().cloned(),
                Some(change) => change.as_ref().map(|c| c.apply(object.object())),
            };
            if let Some(watched) = step.watched {
                let record = WatchRecord {
                    entity: origin.0,
                    cookie: 1,
                    timeout_seconds: 30,
                    addr: origin.1,
                };
                object.watchers = if watched { vec![record] } else { Vec::new() };
            }
            if let Some(snaps) = &step.snap_set {
                object.snap_set = snaps.clone();
            }
            let Some(method) = &step.method else {
                object.set(want);
                continue;
            };
            if let Some((sec, nsec)) = step.now {
                object.now = UTime { sec, nsec };
            }
            object.random.clone_from(&step.random.0);
            let got = object.call(&step.class, method, &step.input.0);
            let expected = match step.code {
                0 => Ok(step.out.0.clone()),
                code => Err(Errno(code)),
            };
            // Ceph sends no output of a call that may write.
            let writes = super::find(&step.class, method).is_some_and(|m| m.writes);
            let got = got.map(|out| if writes { Vec::new() } else { out });
            let (mut have, mut left) = (object.object().cloned(), want.clone());
            if self.version == "16" {
                for object in have.iter_mut().chain(&mut left) {
                    object.omap.retain(|key, _| !is_newer(key));
                }
            }
            if got != expected || have != left {
                wrong.push(format!(
                    "{} step {at}: {}.{method} on {}: {got:x?}, Ceph {expected:x?}; leaves {:x?}, Ceph {:x?}",
                    self.version,
                    step.class,
                    step.object,
                    have,
                    left
                ));
                object.set(want);
            }
        }
        wrong
    }
}

/// Methods that came after Ceph 16.
const NEWER: [&str; 3] = [
    "group_snap_list_order",
    "mirror_remote_namespace_get",
    "mirror_remote_namespace_set",
];

/// Keys that came after it: in which order a group's snapshots were made.
fn is_newer(key: &[u8]) -> bool {
    key.starts_with(b"snap_order_") || key == b"snap_max_order"
}

#[test]
fn every_call_does_what_it_does_in_ceph() {
    for mut recording in recordings() {
        if recording.version == "16" {
            recording
                .steps
                .retain(|s| s.method.as_deref().is_none_or(|m| !NEWER.contains(&m)));
        }
        let wrong = recording.play();
        let first: Vec<_> = wrong.iter().take(5).map(String::as_str).collect();
        assert!(wrong.is_empty(), "{}\n{}", wrong.len(), first.join("\n"));
    }
}

/// Methods whose outcome the recordings show for a call that succeeds.
#[test]
fn every_method_is_recorded() {
    let seen: BTreeSet<_> = recordings()
        .into_iter()
        .flat_map(|r| r.steps)
        .filter(|s| s.code == 0)
        .filter_map(|s| Some((s.class, s.method?)))
        .collect();
    let missing: Vec<_> = METHODS
        .iter()
        .filter(|m| !seen.contains(&(m.class.to_owned(), m.name.to_owned())))
        .map(|m| m.name)
        .collect();
    // It differs from one that is recorded in what becomes of its output only.
    assert_eq!(missing, ["write_too_much_return_data"]);
}

fn fake() -> Fake {
    Fake::new((EntityName::default(), EntityAddr::default()))
}

fn object(bytes: &[u8]) -> Object {
    let mut object = Object {
        data: bytes.to_vec(),
        ..Object::default()
    };
    for key in [
        "features",
        "size",
        "order",
        "parent",
        "migration",
        "snapshot_0000000000000001",
        "snap_children_0000000000000001",
        "name_a",
        "id_a",
        "image_a",
        "global_a",
        "status_global_a",
        "mirror_peer_a",
        "image_0000000000000002_a",
        "snap_order_a",
        "rbd_group_ref",
    ] {
        object.omap.insert(key.into(), bytes.to_vec());
    }
    object.attrs.insert(b"lock.a".to_vec(), bytes.to_vec());
    object
}

proptest! {
    #[test]
    fn hostile_inputs_and_objects_never_panic(input: Vec<u8>, stored: Vec<u8>) {
        for method in METHODS.iter() {
            for kept in [None, Some(object(&[])), Some(object(&stored))] {
                let mut fake = fake();
                fake.set(kept);
                let _ = fake.call(method.class, method.name, &input);
            }
        }
    }
}

/// Valid inputs, cut and with bytes changed, on what was stored at that moment.
#[test]
fn damaged_inputs_never_panic() {
    for recording in recordings().iter().skip(1) {
        let origin = recording.origin();
        let mut objects: HashMap<&str, Fake> = HashMap::new();
        for step in &recording.steps {
            let object = objects
                .entry(&step.object)
                .or_insert_with(|| Fake::new(origin));
            if let Some(method) = &step.method {
                let before = object.object().cloned();
                let input = &step.input.0;
                for at in 0..input.len().min(48) {
                    let mut changed = input.clone();
                    changed[at] ^= 0x81;
                    for input in [&changed, &input[..at]] {
                        if object.call(&step.class, method, input).is_ok() {
                            object.set(before.clone());
                        }
                    }
                }
            }
            if let Some(change) = &step.after {
                let next = change.as_ref().map(|c| c.apply(object.object()));
                object.set(next);
            }
        }
    }
}
