//! How fast the file store is: `file_store DIR [SECONDS]`.
//!
//! Beside each figure of the store stands what the disk gives a program that only writes and syncs.

use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use cluster::objecter::msg::{EVersion, HObject, HObjectRef, PgId};
use cluster::osd::ObjectInfo;
use cluster::osd::store::file::{FileBackend, FileShard, Options};
use cluster::osd::store::{LogEntry, Seq, Step, Store, Transaction};

const OBJECTS: u64 = 64;
const SIZE: u64 = 4 << 20;
const BLOCK: u64 = 4096;

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

struct Bell(Mutex<u64>, Condvar);

impl Bell {
    fn new() -> Arc<Bell> {
        Arc::new(Bell(Mutex::new(0), Condvar::new()))
    }

    fn ring(&self) {
        *self.0.lock().expect("a mutex") += 1;
        self.1.notify_one();
    }

    fn wait(&self, seen: &mut u64) {
        let mut rung = self.0.lock().expect("a mutex");
        while *rung == *seen {
            rung = self.1.wait(rung).expect("a mutex");
        }
        *seen = *rung;
    }
}

struct Work {
    shard: FileShard,
    bell: Arc<Bell>,
    pg: PgId,
    objects: Vec<HObject>,
    version: u64,
}

impl Work {
    fn new(backend: &FileBackend, osd: i32) -> Work {
        let bell = Bell::new();
        let ring = Arc::clone(&bell);
        let mut shard = backend.shard(osd, Box::new(move || ring.ring()));
        let pg = PgId {
            pool: 1,
            seed: osd as u32,
        };
        shard.create_pg(pg).expect("create a pg");
        let objects = (0..OBJECTS)
            .map(|n| {
                let name = format!("rbd_data.1234567890ab.{n:016x}");
                HObjectRef::head(1, b"", b"", name.as_bytes(), n as u32 * 0x9e37 + osd as u32)
                    .into()
            })
            .collect();
        Work {
            shard,
            bell,
            pg,
            objects,
            version: 0,
        }
    }

    fn write(&mut self, object: usize, offset: u64, data: &[u8]) -> Seq {
        self.version += 1;
        let version = EVersion {
            epoch: 1,
            version: self.version,
        };
        let txn = Transaction {
            log: Some(LogEntry {
                version,
                ..LogEntry::default()
            }),
            objects: vec![self.objects[object].clone()],
            steps: vec![
                Step::Write {
                    obj: 0,
                    offset,
                    data: data.into(),
                },
                Step::SetInfo {
                    obj: 0,
                    info: Box::new(ObjectInfo {
                        size: SIZE,
                        version,
                        ..ObjectInfo::default()
                    }),
                },
            ],
            trimmed_snaps: None,
        };
        self.shard.apply(self.pg, txn).expect("apply")
    }

    fn fill(&mut self) {
        let data = vec![7; SIZE as usize];
        for n in 0..self.objects.len() {
            self.write(n, 0, &data);
        }
        self.shard.rest().expect("a checkpoint");
    }

    /// Random 4K writes with so many under way; returns their number.
    fn writes(&mut self, depth: usize, time: Duration) -> u64 {
        let mut dice = 88_172_645_463_325_252;
        let data = vec![9; BLOCK as usize];
        let mut under_way = std::collections::VecDeque::new();
        let (mut done, mut seen) = (0, 0);
        let start = Instant::now();
        while start.elapsed() < time {
            while under_way.len() < depth {
                let n = random(&mut dice);
                let object = (n % OBJECTS) as usize;
                let offset = (n >> 20) % (SIZE / BLOCK) * BLOCK;
                under_way.push_back(self.write(object, offset, &data));
            }
            self.bell.wait(&mut seen);
            let committed = self.shard.committed();
            while under_way.front().is_some_and(|seq| *seq <= committed) {
                under_way.pop_front();
                done += 1;
            }
        }
        self.shard.sync().expect("commit");
        done
    }

    fn reads(&mut self, time: Duration) -> u64 {
        let mut dice = 88_172_645_463_325_252;
        let mut out = Vec::new();
        let mut done = 0;
        let start = Instant::now();
        while start.elapsed() < time {
            for _ in 0..256 {
                let n = random(&mut dice);
                let oid = self.objects[(n % OBJECTS) as usize].as_ref();
                let offset = (n >> 20) % (SIZE / BLOCK) * BLOCK;
                out.clear();
                let n = self.shard.read(self.pg, &oid, offset, BLOCK, &mut out);
                assert_eq!(n.expect("read"), BLOCK as usize);
                done += 1;
            }
        }
        done
    }
}

/// 4K writes into a file that is all there, each synced.
fn bare(dir: &Path, time: Duration) -> u64 {
    let path = dir.join("bare");
    let mut file = std::fs::File::create(&path).expect("create a file");
    file.write_all(&vec![1; 32 << 20]).expect("fill a file");
    file.sync_all().expect("sync");
    let data = vec![2; BLOCK as usize];
    let start = Instant::now();
    let mut done = 0;
    while start.elapsed() < time {
        let offset = done % (32 << 8) * BLOCK;
        file.write_all_at(&data, offset).expect("write");
        file.sync_data().expect("sync");
        done += 1;
    }
    std::fs::remove_file(path).expect("remove the file");
    done
}

fn main() {
    let mut args = std::env::args().skip(1);
    let Some(dir) = args.next().map(PathBuf::from) else {
        eprintln!("usage: file_store DIR [SECONDS]");
        std::process::exit(2);
    };
    let seconds = args.next().and_then(|s| s.parse().ok()).unwrap_or(5);
    let time = Duration::from_secs(seconds);
    std::fs::create_dir_all(&dir).expect("make the directory");
    let per_second = |what: &str, n: u64| println!("{what:<44} {:>9}/s", n / seconds);

    per_second("4K write and fdatasync, bare", bare(&dir, time));
    let store = dir.join("store");
    let backend = FileBackend::open(&store, Options::default()).expect("open the store");
    let mut a = Work::new(&backend, 0);
    let mut b = Work::new(&backend, 1);
    a.fill();
    b.fill();
    per_second("4K random reads, one thread, page cache", a.reads(time));
    for depth in [1, 32] {
        let what = format!("4K random writes, depth {depth}, one shard");
        per_second(&what, a.writes(depth, time));
    }
    let n: u64 = std::thread::scope(|scope| {
        let works = [&mut a, &mut b].map(|w| scope.spawn(move || w.writes(32, time)));
        works.map(|w| w.join().expect("writes")).iter().sum()
    });
    per_second("4K random writes, depth 32, each of two shards", n);
    drop((a, b, backend));
    let start = Instant::now();
    drop(FileBackend::open(&store, Options::default()).expect("open again"));
    println!("{:<44} {:>9.1?}", "open and close", start.elapsed());
    std::fs::remove_dir_all(store).expect("remove the store");
}
