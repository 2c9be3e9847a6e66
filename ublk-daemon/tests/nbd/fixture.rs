//! A server over a memory disk on a thread of its own, and a client that speaks raw NBD.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::rc::Rc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use iothread::{IoThread, Signal};
use ublk_rbd::frontend::arena::Arena;
use ublk_rbd::frontend::disk::{Disk, DiskInfo};
use ublk_rbd::frontend::memdisk::{MemDisk, Order};
use ublk_rbd::frontend::nbd::server::{Config, Served, Server};
use ublk_rbd::frontend::nbd::socket::Socket;

/// What lives on the server's thread.
pub(crate) struct Inside {
    pub(crate) server: Server,
    pub(crate) disk: Rc<MemDisk>,
    pub(crate) arena: Rc<Arena>,
    stop: Signal,
}

thread_local! {
    static INSIDE: RefCell<Option<Rc<Inside>>> = const { RefCell::new(None) };
}

pub(crate) struct TestServer {
    thread: Option<IoThread<()>>,
    dir: tempfile::TempDir,
    pub(crate) tcp: String,
}

pub(crate) struct Options {
    pub(crate) info: DiskInfo,
    pub(crate) order: Order,
    /// Whether pending requests complete by themselves, a few every 100 us.
    pub(crate) automatic: bool,
    pub(crate) config: Config,
    pub(crate) arena: usize,
}

impl Options {
    pub(crate) fn new(size: u64) -> Options {
        Options {
            info: DiskInfo {
                size,
                ..MemDisk::new(0, Order::Immediate).info()
            },
            order: Order::Immediate,
            automatic: true,
            config: Config::default(),
            arena: 64 << 20,
        }
    }

    pub(crate) fn shuffled(size: u64, seed: u64) -> Options {
        Options {
            order: Order::Shuffled { seed },
            ..Options::new(size)
        }
    }
}

impl TestServer {
    pub(crate) fn start(options: Options) -> TestServer {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nbd.sock");
        let (tell, ready) = mpsc::channel();
        let config = iothread::Config {
            name: "nbd-test".to_owned(),
            ..iothread::Config::default()
        };
        let thread = IoThread::spawn(config, move || async move {
            let inside = Rc::new(Inside {
                server: Server::new(options.config),
                disk: Rc::new(MemDisk::with_info(options.info, options.order)),
                arena: Rc::new(Arena::new(options.arena, 1024).unwrap()),
                stop: Signal::new(),
            });
            inside.server.add(Served {
                name: "vm1".to_owned(),
                description: "a disk in memory".to_owned(),
                disk: inside.disk.clone(),
                arena: inside.arena.clone(),
            });
            let tcp = Socket::tcp("127.0.0.1:0".parse().unwrap(), false).unwrap();
            let address = tcp.address().to_owned();
            inside
                .server
                .listen(Socket::unix(&path, 0o600).unwrap())
                .unwrap();
            inside.server.listen(tcp).unwrap();
            INSIDE.set(Some(inside.clone()));
            if options.automatic && options.order != Order::Immediate {
                iothread::spawn(complete_slowly(inside.disk.clone()));
            }
            tell.send(address).unwrap();
            inside.stop.wait().await;
            inside.server.stop().await;
            INSIDE.set(None);
        });
        TestServer {
            thread: Some(thread.unwrap()),
            dir,
            tcp: ready.recv().unwrap(),
        }
    }

    /// Runs `f` on the server's thread.
    pub(crate) fn inside<T: Send + 'static>(
        &self,
        f: impl FnOnce(&Inside) -> T + Send + 'static,
    ) -> T {
        let (tell, told) = mpsc::channel();
        let thread = self.thread.as_ref().unwrap();
        let job = move || {
            let inside = INSIDE.with_borrow(|i| i.clone()).expect("the server runs");
            tell.send(f(&inside)).unwrap();
        };
        thread.remote().spawn(job).unwrap();
        told.recv().unwrap()
    }

    pub(crate) fn eventually(
        &self,
        what: &str,
        f: impl Fn(&Inside) -> bool + Send + Clone + 'static,
    ) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.inside(f.clone()) {
            assert!(Instant::now() < deadline, "timed out: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn begin_stop(&self) {
        self.inside(|i| i.stop.raise());
    }

    /// Withdraws the export and waits until its connections are closed.
    pub(crate) fn withdraw(&self) {
        let (tell, told) = mpsc::channel();
        self.inside(move |_| {
            let inside = INSIDE.with_borrow(|i| i.clone()).expect("the server runs");
            iothread::spawn(async move {
                tell.send(inside.server.remove("vm1").await).unwrap();
            });
        });
        assert!(told.recv().unwrap());
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("nbd.sock")
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn uri(&self) -> String {
        format!("nbd+unix:///vm1?socket={}", self.path().display())
    }

    pub(crate) fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }

    /// No connection, no request and no memory is left behind.
    pub(crate) fn assert_clean(&self) {
        self.eventually("connections and memory are given back", |i| {
            i.server.connections().0 == 0 && i.arena.in_use() == 0 && i.disk.pending() == 0
        });
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if self.thread.is_some() && !std::thread::panicking() {
            self.begin_stop();
            self.join();
        }
    }
}

async fn complete_slowly(disk: Rc<MemDisk>) {
    loop {
        iothread::sleep(Duration::from_micros(100)).await;
        let some = (disk.draw() % 4) as usize;
        // The last ones are not held back for want of company.
        disk.complete(some.max(1));
    }
}

/// Whether a program is there. In CI its absence is a failure.
pub(crate) fn has(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&path).any(|dir| dir.join(tool).is_file()) {
        return true;
    }
    assert!(
        std::env::var_os("CI").is_none_or(|v| v != "true"),
        "{tool} is missing"
    );
    eprintln!("skipped: {tool} is missing");
    false
}

/// Runs a program to its successful end and returns what it printed.
pub(crate) fn run(tool: &str, args: &[&str]) -> String {
    let output = attempt(tool, args);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{tool} {args:?}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

pub(crate) fn attempt(tool: &str, args: &[&str]) -> Output {
    Command::new("timeout")
        .args(["--signal=KILL", "60", tool])
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// A connection by hand: simple or structured replies, no client library.
pub(crate) struct Raw(pub(crate) UnixStream);

impl Raw {
    pub(crate) fn connect(server: &TestServer) -> Raw {
        let stream = UnixStream::connect(server.path()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        Raw(stream)
    }

    /// Through the handshake, with simple replies.
    pub(crate) fn open(server: &TestServer) -> Raw {
        let mut raw = Raw::connect(server);
        assert_eq!(&raw.read(18)[..8], b"NBDMAGIC");
        raw.send(&3u32.to_be_bytes());
        let mut go = b"IHAVEOPT".to_vec();
        go.extend(7u32.to_be_bytes());
        go.extend(9u32.to_be_bytes());
        go.extend(3u32.to_be_bytes());
        go.extend(b"vm1\0\0");
        raw.send(&go);
        loop {
            let header = raw.read(20);
            let kind = u32::from_be_bytes(header[12..16].try_into().unwrap());
            let len = u32::from_be_bytes(header[16..].try_into().unwrap());
            raw.read(len as usize);
            match kind {
                1 => return raw,
                3 => {}
                other => panic!("reply {other:#x} to GO"),
            }
        }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    pub(crate) fn request(&mut self, kind: u16, cookie: u64, offset: u64, len: u32, data: &[u8]) {
        let mut out = 0x2560_9513u32.to_be_bytes().to_vec();
        out.extend([0, 0]);
        out.extend(kind.to_be_bytes());
        out.extend(cookie.to_be_bytes());
        out.extend(offset.to_be_bytes());
        out.extend(len.to_be_bytes());
        out.extend(data);
        self.send(&out);
    }

    pub(crate) fn read(&mut self, n: usize) -> Vec<u8> {
        let mut bytes = vec![0; n];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// The error and cookie of a simple reply.
    pub(crate) fn reply(&mut self) -> (u32, u64) {
        let bytes = self.read(16);
        assert_eq!(bytes[..4], 0x6744_6698u32.to_be_bytes());
        (
            u32::from_be_bytes(bytes[4..8].try_into().unwrap()),
            u64::from_be_bytes(bytes[8..].try_into().unwrap()),
        )
    }

    /// Waits for the server to close, and returns how many bytes came before.
    pub(crate) fn until_closed(&mut self) -> usize {
        let mut rest = Vec::new();
        match self.0.read_to_end(&mut rest) {
            Ok(n) => n,
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => rest.len(),
            Err(e) => panic!("the server did not close: {e}"),
        }
    }
}
