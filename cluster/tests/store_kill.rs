//! The file store under kill -9: what a process has acknowledged is there after its end, and nothing
//! is there by half.
//!
//! A child process writes and reports on its standard output what is durable; the parent kills it at
//! a random moment, opens the store and compares all of it. `STORE_KILLS=1000` asks for that many.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use cluster::objecter::msg::{EVersion, HObject, HObjectRef, NOSNAP, PgId};
use cluster::osd::store::file::{FileBackend, FileShard, Options};
use cluster::osd::store::{LogEntry, Step, Store, Transaction};

const CHILD: &str = "STORE_KILL_DIR";
/// Each has a thread, a shard and a pg.
const WRITERS: u32 = 2;
const OBJECTS: u64 = 12;
const REACH: u64 = 400_000;
/// Transactions of a writer that are under way at most.
const DEPTH: u64 = 16;

fn options() -> Options {
    Options {
        // Small, so that checkpoints and new segments are met often.
        segment: 1 << 20,
        journal: 8 << 20,
        interval: Duration::from_millis(100),
        reserve: 0,
        ..Options::default()
    }
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn pg(writer: u32) -> PgId {
    PgId {
        pool: 1,
        seed: writer,
    }
}

fn object(writer: u32, n: u64) -> HObject {
    let name = format!("object{}", n / 2);
    let head = HObjectRef::head(1, b"", b"", name.as_bytes(), writer);
    let snap = if n.is_multiple_of(2) { NOSNAP } else { 5 };
    HObjectRef { snap, ..head }.into()
}

/// What transaction number `t` of a writer does; the same at every call.
fn transaction(writer: u32, t: u64) -> Transaction<'static> {
    let mut dice = t << 8 | u64::from(writer);
    let mut below = |n: u64| random(&mut dice) % n;
    let a = below(OBJECTS);
    let b = (a + 1 + below(OBJECTS - 1)) % OBJECTS;
    let data = |n: u64| -> Vec<u8> {
        t.to_le_bytes()
            .iter()
            .copied()
            .cycle()
            .take(n as usize)
            .collect()
    };
    let step = match below(12) {
        0 => Step::Remove(0),
        1 => Step::Clone { from: 0, to: 1 },
        2 => Step::Truncate {
            obj: 0,
            size: below(REACH),
        },
        3 => Step::Zero {
            obj: 0,
            offset: below(REACH),
            length: below(REACH / 2),
        },
        4 => Step::Write {
            obj: 0,
            offset: below(REACH / 2),
            data: data(below(REACH / 2) + 1).into(),
        },
        _ => Step::Write {
            obj: 0,
            offset: below(REACH / 4096) * 4096,
            data: data(4096).into(),
        },
    };
    let key = vec![b'k', below(5) as u8];
    Transaction {
        log: Some(LogEntry {
            version: EVersion {
                epoch: 1,
                version: t,
            },
            ..LogEntry::default()
        }),
        objects: vec![object(writer, a), object(writer, b)],
        steps: vec![
            step,
            Step::OmapSet {
                obj: 1,
                pairs: vec![(key.into(), t.to_le_bytes().to_vec().into())],
            },
        ],
        trimmed_snaps: None,
    }
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Thing {
    data: Vec<u8>,
    omap: BTreeMap<Vec<u8>, Vec<u8>>,
}

type Things = BTreeMap<HObject, Thing>;

fn carry_out(things: &mut Things, txn: &Transaction<'_>) {
    let names = &txn.objects;
    for step in &txn.steps {
        match step {
            Step::Remove(obj) => {
                things.remove(&names[*obj]);
            }
            Step::Clone { from, to } => {
                let copy = things.entry(names[*from].clone()).or_default().clone();
                things.insert(names[*to].clone(), copy);
            }
            Step::Truncate { obj, size } => {
                let thing = things.entry(names[*obj].clone()).or_default();
                thing.data.resize(*size as usize, 0);
            }
            Step::Zero {
                obj,
                offset,
                length,
            } => {
                let data = &mut things.entry(names[*obj].clone()).or_default().data;
                let end = ((offset + length) as usize).min(data.len());
                if (*offset as usize) < end {
                    data[*offset as usize..end].fill(0);
                }
            }
            Step::Write { obj, offset, data } => {
                let thing = things.entry(names[*obj].clone()).or_default();
                let (from, to) = (*offset as usize, *offset as usize + data.len());
                thing.data.resize(thing.data.len().max(to), 0);
                thing.data[from..to].copy_from_slice(data);
            }
            Step::OmapSet { obj, pairs } => {
                let thing = things.entry(names[*obj].clone()).or_default();
                let pairs = pairs.iter().map(|(k, v)| (k.to_vec(), v.to_vec()));
                thing.omap.extend(pairs);
            }
            other => panic!("no transaction has {other:?}"),
        }
    }
}

fn newest(shard: &mut FileShard, writer: u32) -> u64 {
    let state = shard.pg_state(pg(writer)).expect("the state of a pg");
    state.last_update.version
}

/// The child: writes until it is killed.
fn write(mut shard: FileShard, writer: u32, bell: &(Mutex<()>, Condvar)) {
    shard.create_pg(pg(writer)).expect("create a pg");
    let mut t = newest(&mut shard, writer);
    let mut under_way = std::collections::VecDeque::new();
    loop {
        t += 1;
        let seq = shard
            .apply(pg(writer), transaction(writer, t))
            .expect("apply");
        under_way.push_back((seq, t));
        let mut done = None;
        loop {
            let committed = shard.committed();
            while under_way.front().is_some_and(|(seq, _)| *seq <= committed) {
                done = under_way.pop_front();
            }
            if (under_way.len() as u64) < DEPTH {
                break;
            }
            let guard = bell.0.lock().expect("a mutex");
            drop(bell.1.wait_timeout(guard, Duration::from_millis(1)));
        }
        if let Some((_, t)) = done {
            // One call per line: lines of two threads do not mix.
            let line = format!("{writer} {t}\n");
            std::io::stdout()
                .write_all(line.as_bytes())
                .expect("write to the parent");
        }
    }
}

#[test]
#[ignore = "the child of the test below"]
fn child() {
    let Ok(dir) = std::env::var(CHILD) else {
        return;
    };
    let backend = FileBackend::open(Path::new(&dir), options()).expect("open the store");
    let threads: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let bell = Arc::new((Mutex::new(()), Condvar::new()));
            let ring = Arc::clone(&bell);
            let shard = backend.shard(writer as i32, Box::new(move || ring.1.notify_all()));
            std::thread::spawn(move || write(shard, writer, &bell))
        })
        .collect();
    for thread in threads {
        thread.join().expect("a writer that never ends");
    }
}

/// Runs the child for a while; returns the newest transaction of each writer that it acknowledged.
fn run_child(dir: &Path, time: Duration) -> [u64; WRITERS as usize] {
    let mut child = Command::new(std::env::current_exe().expect("the test's path"))
        .args(["child", "--exact", "--ignored", "--nocapture", "--quiet"])
        .env(CHILD, dir)
        .stdout(Stdio::piped())
        .spawn()
        .expect("start the child");
    let out = BufReader::new(child.stdout.take().expect("its output"));
    let reader = std::thread::spawn(move || {
        let mut acknowledged = [0; WRITERS as usize];
        for line in out.lines().map_while(Result::ok) {
            if let Some((writer, t)) = line.split_once(' ')
                && let (Ok(writer), Ok(t)) = (writer.parse::<usize>(), t.parse::<u64>())
            {
                acknowledged[writer] = acknowledged[writer].max(t);
            }
        }
        acknowledged
    });
    std::thread::sleep(time);
    let early = child.try_wait().expect("ask for the child");
    assert!(early.is_none(), "the child has ended by itself: {early:?}");
    child.kill().expect("kill the child");
    child.wait().expect("wait for the child");
    reader.join().expect("read its output")
}

#[test]
fn kill_9_loses_nothing_that_was_acknowledged() {
    let kills = std::env::var("STORE_KILLS")
        .ok()
        .and_then(|n| n.parse().ok());
    let kills: u64 = kills.unwrap_or(25);
    let dir = tempfile::tempdir().expect("a directory");
    let mut models = vec![Things::default(); WRITERS as usize];
    let mut carried_out = [0; WRITERS as usize];
    let mut promised = [0; WRITERS as usize];
    let mut dice = kills;
    let mut beyond = 0;
    for _ in 0..kills {
        // The shortest end while the store is being made, or while it recovers.
        let time = Duration::from_micros(random(&mut dice) % 400_000);
        let acknowledged = run_child(dir.path(), time);
        for (promised, t) in promised.iter_mut().zip(acknowledged) {
            *promised = t.max(*promised);
        }
        if random(&mut dice).is_multiple_of(4) {
            // Let the next child do the recovery, and perhaps die in it.
            continue;
        }
        let backend = FileBackend::open(dir.path(), options()).expect("open after a kill");
        for writer in 0..WRITERS {
            let w = writer as usize;
            let mut shard = backend.shard(writer as i32, Box::new(|| {}));
            if !shard.pgs().contains(&pg(writer)) {
                assert_eq!(promised[w], 0, "the pg of writer {writer} is gone");
                continue;
            }
            let there = newest(&mut shard, writer);
            assert!(
                there >= promised[w],
                "writer {writer}: {} was acknowledged, {there} is the newest there",
                promised[w]
            );
            beyond += there - promised[w];
            promised[w] = there;
            for t in carried_out[w] + 1..=there {
                carry_out(&mut models[w], &transaction(writer, t));
            }
            carried_out[w] = there;
            compare(&mut shard, writer, &models[w]);
        }
    }
    let total: u64 = carried_out.iter().sum();
    println!("{kills} kills, {total} transactions, {beyond} more there than acknowledged");
    assert!(total > 0, "the child never got to write");
}

fn compare(shard: &mut FileShard, writer: u32, model: &Things) {
    let pg = pg(writer);
    let page = shard.list(pg, &HObjectRef::MIN, 1000).expect("list");
    assert!(
        page.items.iter().eq(model.keys()),
        "other objects are there"
    );
    for (name, thing) in model {
        let oid = &name.as_ref();
        let mut data = Vec::new();
        shard.read(pg, oid, 0, u64::MAX, &mut data).expect("read");
        assert!(data == thing.data, "{name:?}: the data differ");
        let omap = shard.omap_list(pg, oid, b"", b"", 1000).expect("omap");
        assert!(
            omap.items.into_iter().eq(thing.omap.clone()),
            "{name:?}: the omap differs"
        );
    }
}
