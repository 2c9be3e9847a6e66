//! Our single-node server under kill -9, as a client sees it: whatever was acknowledged is there,
//! whatever was not is there as a whole or not at all, and nothing is carried out twice.
//!
//! `UBLK_RBD_LONG=1` kills it a thousand times.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cluster::conf::{Conf, Environment, Options};
use cluster::mon::message::pool_op::{CREATE_UNMANAGED_SNAP, DELETE_UNMANAGED_SNAP};
use cluster::objecter::results::{OmapVals, decode_map, decode_watchers};
use cluster::objecter::{Access, ObjectOp, OpReply, SnapContext, WatchEvent};
use cluster::payload::Payload;
use cluster::rados::{IoCtx, OpOutput, OpSink, Rados, RadosError, Write};
use cluster::rbd::cls;
use harness::product::Server;
use tokio::task::LocalSet;

const WORKERS: u64 = 24;
const OBJECTS: u64 = 5;
/// What an answer may take, with the server away for a moment again and again.
const PATIENCE: Duration = Duration::from_secs(90);
/// `CEPH_NOSNAP`.
const HEAD: u64 = cls::NO_SNAP;
const ENOENT: i32 = 2;
const EEXIST: i32 = 17;
/// An object grows up to about this.
const LARGE: usize = 100_000;

struct Dice(u64);

impl Dice {
    /// splitmix64.
    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.draw() % n
    }

    fn bytes(&mut self, most: u64) -> Vec<u8> {
        let length = self.below(most) as usize + 1;
        let word = self.draw().to_le_bytes();
        word.into_iter().cycle().take(length).collect()
    }
}

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Debug, Clone, Default, PartialEq)]
struct Thing {
    data: Vec<u8>,
    attrs: Pairs,
    omap: Pairs,
}

impl Thing {
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        self.data.resize(self.data.len().max(end), 0);
        self.data[offset..end].copy_from_slice(bytes);
    }
}

/// A state of an object in a few words, for messages.
fn describe(thing: &Option<Thing>) -> String {
    match thing {
        None => "no object".to_owned(),
        Some(thing) => format!(
            "{} bytes, attributes {:?}, omap {:?}",
            thing.data.len(),
            thing.attrs.keys(),
            thing.omap.keys()
        ),
    }
}

/// Changes an object can be asked for.
#[derive(Debug, Clone)]
enum Change {
    Write(usize, Vec<u8>),
    WriteFull(Vec<u8>),
    Append(Vec<u8>),
    Zero(usize, usize),
    Truncate(usize),
    Delete,
    CreateExclusive,
    SetAttr(String, Vec<u8>),
    SetOmap(Pairs),
    RemoveOmap(Vec<u8>),
    /// An append, an attribute and a pair, together.
    All(Vec<u8>, String, Pairs),
}

impl Change {
    fn draw(dice: &mut Dice, state: &Option<Thing>) -> Change {
        let size = state.as_ref().map_or(0, |t| t.data.len());
        let name = format!("a{}", dice.below(4));
        let key = vec![b'k', dice.below(6) as u8];
        let pairs = Pairs::from([(key.clone(), dice.bytes(30))]);
        match dice.below(16) {
            0..=3 => Change::Write(dice.below(48_000) as usize, dice.bytes(12_000)),
            4 => Change::WriteFull(dice.bytes(20_000)),
            5..=7 if size < LARGE => Change::Append(dice.bytes(6000)),
            5..=7 => Change::WriteFull(dice.bytes(500)),
            8 if size > 0 => {
                let offset = dice.below(size as u64);
                let length = dice.below(size as u64 - offset) + 1;
                Change::Zero(offset as usize, length as usize)
            }
            9 if size > 0 => Change::Truncate(dice.below(size as u64 + 9000) as usize),
            10 => Change::Delete,
            11 => Change::CreateExclusive,
            12 => Change::SetAttr(name, dice.bytes(60)),
            13 => Change::SetOmap(pairs),
            14 if state.is_some() => Change::RemoveOmap(key),
            _ if size < LARGE => Change::All(dice.bytes(3000), name, pairs),
            _ => Change::SetOmap(pairs),
        }
    }

    fn ops(&self) -> ObjectOp {
        let op = ObjectOp::new();
        let payload = |bytes: &Vec<u8>| Payload::from(bytes.clone());
        fn listed(pairs: &Pairs) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> {
            pairs.iter().map(|(k, v)| (&k[..], &v[..]))
        }
        match self {
            Change::Write(offset, bytes) => op.write(*offset as u64, payload(bytes)),
            Change::WriteFull(bytes) => op.write_full(payload(bytes)),
            Change::Append(bytes) => op.append(payload(bytes)),
            Change::Zero(offset, length) => op.zero(*offset as u64, *length as u64),
            Change::Truncate(size) => op.truncate(*size as u64),
            Change::Delete => op.delete(),
            Change::CreateExclusive => op.create(true),
            Change::SetAttr(name, value) => op.setxattr(name, value),
            Change::SetOmap(pairs) => op.omap_set(listed(pairs)),
            Change::RemoveOmap(key) => op.omap_rm_keys(std::iter::once(&key[..])),
            Change::All(bytes, name, pairs) => op
                .append(payload(bytes))
                .setxattr(name, bytes.get(..8).unwrap_or(bytes))
                .omap_set(listed(pairs)),
        }
    }

    /// What the object is afterwards, or the errno that the request gets.
    fn outcome(&self, before: &Option<Thing>) -> Result<Option<Thing>, i32> {
        let mut thing = before.clone().unwrap_or_default();
        match self {
            Change::Write(offset, bytes) => thing.write(*offset, bytes),
            Change::WriteFull(bytes) => thing.data.clone_from(bytes),
            Change::Append(bytes) => thing.data.extend(bytes),
            // Zeroes up to the end shorten an object (the first lines of `do_osd_ops`).
            Change::Zero(offset, length) if offset + length >= thing.data.len() => {
                thing.data.truncate(*offset);
            }
            Change::Zero(offset, length) => thing.data[*offset..offset + length].fill(0),
            Change::Truncate(size) => thing.data.resize(*size, 0),
            Change::Delete if before.is_none() => return Err(ENOENT),
            Change::Delete => return Ok(None),
            Change::CreateExclusive if before.is_some() => return Err(EEXIST),
            Change::CreateExclusive => {}
            Change::SetAttr(name, value) => {
                thing.attrs.insert(name.clone().into(), value.clone());
            }
            Change::SetOmap(pairs) => thing.omap.extend(pairs.clone()),
            Change::RemoveOmap(key) => {
                thing.omap.remove(key);
            }
            Change::All(bytes, name, pairs) => {
                thing.data.extend(bytes);
                let value = bytes.get(..8).unwrap_or(bytes).to_vec();
                thing.attrs.insert(name.clone().into(), value);
                thing.omap.extend(pairs.clone());
            }
        }
        Ok(Some(thing))
    }
}

#[derive(Default)]
struct Counts {
    acknowledged: Cell<u64>,
    refused: Cell<u64>,
    given_up: Cell<u64>,
    given_up_done: Cell<u64>,
    compared: Cell<u64>,
    snaps: Cell<u64>,
    class_calls: Cell<u64>,
    notified: Cell<u64>,
}

fn count(cell: &Cell<u64>) {
    cell.set(cell.get() + 1);
}

/// What all of the load shares.
struct Load {
    io: IoCtx,
    /// Changes when a snapshot is made or removed.
    snapc: RefCell<Rc<SnapContext>>,
    over: Rc<Cell<bool>>,
    kills: Arc<AtomicU64>,
    counts: Counts,
}

/// Waits for an answer, which comes however often the server is killed.
async fn answer<T>(what: &str, request: impl Future<Output = Result<T, RadosError>>) -> Result<T> {
    let done = tokio::time::timeout(PATIENCE, request).await;
    let done = done.with_context(|| format!("{what}: no answer in {PATIENCE:?}"))?;
    done.with_context(|| what.to_owned())
}

impl Load {
    fn live(&self, snap: u64) -> bool {
        self.snapc.borrow().snaps.contains(&snap)
    }

    async fn see(&self, name: &str, snap: u64) -> Result<Option<Thing>> {
        let ops = ObjectOp::new()
            .read(0, 1 << 20)
            .getxattrs()
            .omap_get_vals(b"", b"", 1000);
        let target = self.io.target(name);
        let request = self.io.rados().operate(target, ops, Access::Read(snap));
        let read = async {
            match request.await {
                Err(RadosError::Errno(ENOENT)) => Ok(None),
                other => other.map(Some),
            }
        };
        let Some(OpOutput { mut parts, .. }) = answer(&format!("read of {name}"), read).await?
        else {
            return Ok(None);
        };
        ensure!(parts.len() == 3, "{name}: {} results", parts.len());
        let own = |pairs: Vec<(&[u8], &[u8])>| -> Pairs {
            let pairs = pairs.into_iter();
            pairs.map(|(k, v)| (k.to_vec(), v.to_vec())).collect()
        };
        Ok(Some(Thing {
            data: std::mem::take(&mut parts[0].1),
            attrs: own(decode_map(&parts[1].1)?),
            omap: own(OmapVals::decode(&parts[2].1)?.pairs),
        }))
    }
}

/// One object, which one worker alone changes.
struct Object {
    name: String,
    state: Option<Thing>,
    /// What it was at snapshots that its requests have told of.
    snaps: BTreeMap<u64, Option<Thing>>,
    told: u64,
    /// The last requests, for messages.
    past: VecDeque<String>,
}

impl Object {
    fn new(name: String) -> Object {
        Object {
            name,
            state: None,
            snaps: BTreeMap::new(),
            told: 0,
            past: VecDeque::new(),
        }
    }

    fn note(&mut self, what: String) {
        if self.past.len() == 30 {
            self.past.pop_front();
        }
        self.past.push_back(what);
    }

    /// The request is under way from here on.
    fn send(
        &mut self,
        load: &Load,
        change: &Change,
    ) -> impl Future<Output = Result<OpOutput, RadosError>> + use<> {
        let snapc = Rc::clone(&load.snapc.borrow());
        for snap in snapc.snaps.iter().filter(|s| **s > self.told) {
            self.snaps.insert(*snap, self.state.clone());
        }
        self.snaps.retain(|snap, _| snapc.snaps.contains(snap));
        self.told = self.told.max(snapc.seq);
        let size = self.state.as_ref().map(|t| t.data.len());
        let mut said = format!("{change:?}");
        said.truncate(24);
        let kills = load.kills.load(Ordering::Relaxed);
        self.note(format!(
            "at kill {kills}, size {size:?}, seq {}: {said}",
            snapc.seq
        ));
        let target = load.io.target(&self.name);
        let ops = change.ops();
        load.io.rados().operate(target, ops, Access::Write(snapc))
    }

    async fn change(&mut self, load: &Load, dice: &mut Dice) -> Result<()> {
        let change = Change::draw(dice, &self.state);
        let request = self.send(load, &change);
        let after = change.outcome(&self.state);
        if dice.below(24) == 0 {
            let patience = Duration::from_micros(dice.below(4000));
            let Ok(done) = tokio::time::timeout(patience, request).await else {
                // Nobody will ever say what became of it; a look at the object does.
                count(&load.counts.given_up);
                let seen = load.see(&self.name, HEAD).await?;
                let after = after.unwrap_or_else(|_| self.state.clone());
                ensure!(
                    seen == self.state || seen == after,
                    "{} is neither what it was before {change:?} nor what it is after: {}",
                    self.name,
                    describe(&seen)
                );
                self.note(format!("given up; carried out: {}", seen != self.state));
                if seen != self.state {
                    count(&load.counts.given_up_done);
                }
                self.state = seen;
                return Ok(());
            };
            return self.settle(load, &change, after, done);
        }
        let done = tokio::time::timeout(PATIENCE, request).await;
        let done = done.with_context(|| format!("{}: no answer to {change:?}", self.name))?;
        self.settle(load, &change, after, done)
    }

    fn settle(
        &mut self,
        load: &Load,
        change: &Change,
        after: Result<Option<Thing>, i32>,
        done: Result<OpOutput, RadosError>,
    ) -> Result<()> {
        match (done, after) {
            (Ok(_), Ok(after)) => {
                count(&load.counts.acknowledged);
                self.state = after;
                Ok(())
            }
            (Err(RadosError::Errno(n)), Err(expected)) if n == expected => {
                count(&load.counts.refused);
                Ok(())
            }
            (done, after) => bail!(
                "{}: {change:?} on {} was answered with {:?}, not {:?}",
                self.name,
                describe(&self.state),
                done.map(drop),
                after.map(drop)
            ),
        }
    }

    /// Several appends at once take effect in their order.
    async fn burst(&mut self, load: &Load, dice: &mut Dice) -> Result<()> {
        let mut under_way = Vec::new();
        let mut after = self.state.clone();
        for _ in 0..4 {
            let change = Change::Append(dice.bytes(300));
            under_way.push(self.send(load, &change));
            after = change.outcome(&after).unwrap_or(after);
        }
        for request in under_way {
            answer(&format!("append to {}", self.name), request).await?;
            count(&load.counts.acknowledged);
        }
        self.state = after;
        Ok(())
    }

    async fn compare(&self, load: &Load, snaps: bool) -> Result<()> {
        let mut times = vec![(HEAD, &self.state)];
        let live = Rc::clone(&load.snapc.borrow());
        if snaps {
            for snap in &live.snaps {
                let then = match *snap > self.told {
                    true => &self.state,
                    false => match self.snaps.get(snap) {
                        Some(then) => then,
                        None => continue,
                    },
                };
                times.push((*snap, then));
            }
        }
        for (snap, then) in times {
            let seen = load.see(&self.name, snap).await?;
            if snap != HEAD && !load.live(snap) {
                // It has been removed meanwhile.
                continue;
            }
            ensure!(
                seen == *then,
                "{} at {snap:x} has {}, and should have {}{}; snapshots {live:?}, told {}, past {:#?}",
                self.name,
                describe(&seen),
                describe(then),
                difference(&seen, then),
                self.told,
                self.past
            );
            count(&load.counts.compared);
        }
        Ok(())
    }
}

fn difference(seen: &Option<Thing>, then: &Option<Thing>) -> String {
    let (Some(seen), Some(then)) = (seen, then) else {
        return String::new();
    };
    let mut pairs = seen.data.iter().zip(&then.data);
    match pairs.position(|(a, b)| a != b) {
        Some(at) => format!("; the first byte that differs is {at}"),
        None => String::new(),
    }
}

/// A directory of images, which object class `rbd` keeps: names are added and removed, each of which
/// fails when it is done twice.
struct Directory {
    name: String,
    images: BTreeSet<String>,
}

impl Directory {
    async fn change(&mut self, load: &Load, dice: &mut Dice) -> Result<()> {
        let image = format!("image{}", dice.below(6));
        let id = format!("id{image}");
        let mut op = Write::new();
        if self.images.contains(&image) {
            op.call(cls::dir_remove_image(&image, &id));
            self.images.remove(&image);
        } else {
            op.call(cls::dir_add_image(&image, &id));
            self.images.insert(image);
        }
        answer(
            &format!("class call on {}", self.name),
            load.io.write(&self.name, op),
        )
        .await?;
        count(&load.counts.class_calls);
        Ok(())
    }

    async fn compare(&self, load: &Load) -> Result<()> {
        if self.images.is_empty() {
            return Ok(());
        }
        let listed = load.io.call(&self.name, cls::dir_list("", 100));
        let listed = answer(&format!("listing of {}", self.name), listed).await?;
        let listed: Vec<String> = cls::names_reply(&listed)?
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        ensure!(
            listed.iter().eq(&self.images),
            "{} has {listed:?} and not {:?}",
            self.name,
            self.images
        );
        count(&load.counts.compared);
        Ok(())
    }
}

struct Worker {
    dice: Dice,
    objects: Vec<Object>,
    directory: Directory,
}

impl Worker {
    fn new(n: u64, seed: u64) -> Worker {
        Worker {
            dice: Dice(seed << 16 | n),
            objects: (0..OBJECTS)
                .map(|o| Object::new(format!("object-{n}-{o}")))
                .collect(),
            directory: Directory {
                name: format!("directory-{n}"),
                images: BTreeSet::new(),
            },
        }
    }

    async fn run(mut self, load: Rc<Load>) -> Result<Worker> {
        let mut seen_kills = 0;
        while !load.over.get() {
            let kills = load.kills.load(Ordering::Relaxed);
            if kills != seen_kills {
                seen_kills = kills;
                let which = self.dice.below(OBJECTS) as usize;
                self.objects[which].compare(&load, true).await?;
                self.directory.compare(&load).await?;
            }
            let which = self.dice.below(OBJECTS) as usize;
            match self.dice.below(12) {
                0 => self.directory.change(&load, &mut self.dice).await?,
                1 => self.objects[which].burst(&load, &mut self.dice).await?,
                2 => self.objects[which].compare(&load, true).await?,
                _ => self.objects[which].change(&load, &mut self.dice).await?,
            }
        }
        Ok(self)
    }

    async fn compare(&self, load: &Load) -> Result<()> {
        for object in &self.objects {
            object.compare(load, true).await?;
        }
        self.directory.compare(load).await
    }
}

/// Takes snapshots now and then, and removes old ones.
async fn snapshots(load: Rc<Load>) -> Result<()> {
    let pool = u32::try_from(load.io.pool())?;
    let rados = load.io.rados();
    while !load.over.get() {
        tokio::time::sleep(Duration::from_millis(400)).await;
        let made = rados.pool_op(pool, CREATE_UNMANAGED_SNAP, 0);
        let snap = answer("a new snapshot", made).await?.snapid()?;
        count(&load.counts.snaps);
        let mut snaps = load.snapc.borrow().snaps.clone();
        snaps.insert(0, snap);
        let old = if snaps.len() > 4 { snaps.pop() } else { None };
        *load.snapc.borrow_mut() = Rc::new(SnapContext { seq: snap, snaps });
        if let Some(old) = old {
            let removed = rados.pool_op(pool, DELETE_UNMANAGED_SNAP, old);
            answer("removal of a snapshot", removed).await?;
        }
    }
    Ok(())
}

const WATCHED: &str = "watched";
const COOKIE: u64 = 1;

/// Hears of notifications, and of a watch that is lost.
#[derive(Default)]
struct Ear {
    notified: RefCell<Vec<u64>>,
    lost: Cell<Option<i32>>,
}

impl OpSink for Ear {
    fn pump(&self) {}
    fn op_done(&self, _: u64, _: OpReply<'_>) {}
    fn lost(&self, _: &RadosError) {}

    fn watch_event(&self, _: u64, event: WatchEvent<'_>) {
        match event {
            WatchEvent::Notify { notify_id, .. } => self.notified.borrow_mut().push(notify_id),
            WatchEvent::Disconnected(why) => self.lost.set(Some(why)),
            WatchEvent::Unconfirmed => {}
        }
    }
}

/// Answers the notifications that our watch gets.
async fn listen(load: Rc<Load>, ear: Rc<Ear>) -> Result<()> {
    loop {
        let heard = std::mem::take(&mut *ear.notified.borrow_mut());
        for id in heard {
            count(&load.counts.notified);
            let target = load.io.target(WATCHED);
            let done = load.io.rados().notify_ack(target, id, COOKIE, b"heard");
            answer("answer to a notification", done).await?;
        }
        if let Some(why) = ear.lost.get() {
            bail!("the watch was lost: {why}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn connect(server_conf: &str) -> Result<Rados> {
    let conf = Conf::load(&Options {
        conf: Some(server_conf.to_owned()),
        env: Environment::of_process(),
        ..Options::default()
    })?;
    answer("connecting", cluster::transport::tokio::connect(&conf)).await
}

/// Kills the server and starts it again, so many times.
fn killer(
    mut server: Server,
    kills: u64,
    seed: u64,
    done: &AtomicU64,
    stop: &AtomicBool,
) -> Result<Server> {
    let mut dice = Dice(seed);
    for _ in 0..kills {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        std::thread::sleep(Duration::from_millis(50 + dice.below(750)));
        server.kill()?;
        if dice.below(8) == 0 {
            // Once more, while it recovers.
            server.start_only()?;
            std::thread::sleep(Duration::from_millis(dice.below(60)));
            server.kill()?;
        }
        server.restart()?;
        done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(server)
}

async fn scenario(server: Server, kills: u64, seed: u64) -> Result<Server> {
    let conf = server.conf_path().display().to_string();
    let rados = connect(&conf).await?;
    let io = rados.io_ctx("rbd", "").await?;
    let load = Rc::new(Load {
        io: io.clone(),
        snapc: RefCell::default(),
        over: Rc::default(),
        kills: Arc::default(),
        counts: Counts::default(),
    });
    let ear = Rc::new(Ear::default());
    rados.register(Rc::clone(&ear) as Rc<dyn OpSink>);
    let mut create = Write::new();
    create.create(false);
    answer("making an object", io.write(WATCHED, create)).await?;
    answer("a watch", rados.watch(io.target(WATCHED), COOKIE)).await?;

    let (done, stop) = (Arc::clone(&load.kills), Arc::new(AtomicBool::new(false)));
    let stopped = Arc::clone(&stop);
    let killer = std::thread::spawn(move || killer(server, kills, seed, &done, &stopped));
    let mut workers = Vec::new();
    for n in 0..WORKERS {
        let run = Worker::new(n, seed).run(Rc::clone(&load));
        workers.push(tokio::task::spawn_local(run));
    }
    let mut others = vec![tokio::task::spawn_local(snapshots(Rc::clone(&load)))];
    let listener = tokio::task::spawn_local(listen(Rc::clone(&load), Rc::clone(&ear)));

    let started = Instant::now();
    while !killer.is_finished() {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let failed = workers.iter().any(|w| w.is_finished())
            || others.iter().any(|o| o.is_finished())
            || listener.is_finished();
        if failed {
            break;
        }
    }
    load.over.set(true);
    stop.store(true, Ordering::Relaxed);
    let mut finished = Vec::new();
    for worker in workers {
        finished.push(worker.await??);
    }
    for other in others.drain(..) {
        other.await??;
    }
    let took = started.elapsed();
    // Whatever the load did, the killer's server comes back.
    let server = tokio::task::spawn_blocking(move || killer.join())
        .await?
        .map_err(|_| anyhow::anyhow!("the killer panicked"))??;
    for worker in &finished {
        worker.compare(&load).await?;
    }
    let watchers = answer("the list of watchers", io.list_watchers(WATCHED)).await?;
    let watchers = decode_watchers(&watchers)?;
    ensure!(watchers.len() == 1, "{} watchers", watchers.len());
    notify(&server, &load).await?;
    ensure!(!listener.is_finished(), "the watch: {:?}", listener.await?);
    listener.abort();
    rados.shutdown().await;

    // In order, and again with a client that knows nothing of before.
    let server = tokio::task::spawn_blocking(move || -> Result<Server> {
        let mut server = server;
        server.stop()?;
        server.restart()?;
        Ok(server)
    })
    .await??;
    let rados = connect(&conf).await?;
    let Ok(load) = Rc::try_unwrap(load) else {
        bail!("the load is still in use");
    };
    let load = Load {
        io: rados.io_ctx("rbd", "").await?,
        ..load
    };
    for worker in &finished {
        worker.compare(&load).await?;
    }
    rados.shutdown().await;
    let c = &load.counts;
    println!(
        "{} kills in {:.1} s: {} changes acknowledged, {} refused as expected, {} class calls, \
         {} given up ({} of them carried out), {} snapshots, {} comparisons",
        load.kills.load(Ordering::Relaxed),
        took.as_secs_f64(),
        c.acknowledged.get(),
        c.refused.get(),
        c.class_calls.get(),
        c.given_up.get(),
        c.given_up_done.get(),
        c.snaps.get(),
        c.compared.get()
    );
    Ok(server)
}

/// Somebody else notifies, and our watch, which has seen all the kills, hears of it.
async fn notify(server: &Server, load: &Load) -> Result<()> {
    use harness::ceph::Version;
    use harness::{Need, require};
    if !require(&[Need::Ceph(Version::V16)]) {
        return Ok(());
    }
    let client = server.client(Version::V16)?;
    let said = tokio::task::spawn_blocking(move || {
        client.run(["rados", "-p", "rbd", "notify", WATCHED, "hello"])
    });
    said.await??;
    ensure!(load.counts.notified.get() > 0, "the watch heard nothing");
    Ok(())
}

#[test]
fn kill_9_of_the_server_loses_nothing_and_repeats_nothing() -> Result<()> {
    let kills = if harness::long() { 1000 } else { 20 };
    let server = Server::start(&["--osds", "2"])?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let seed = u64::from(std::process::id());
    let server = LocalSet::new().block_on(&runtime, scenario(server, kills, seed))?;
    drop(server);
    Ok(())
}
