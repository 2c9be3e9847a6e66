//! Our own client against the whole server, over sockets.

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use super::super::faults::{Action, OpClass, When};
use super::*;
use crate::conf::{Conf, Environment, Options as ConfOptions};
use crate::objecter::{Access, ObjectOp, SnapContext};
use crate::payload::Payload;
use crate::rados::{IoCtx, Rados, RadosError};
use crate::transport::tokio::connect;

fn local() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// A server with a pool, and the files for its clients.
struct Rig {
    server: Server,
    files: tempfile::TempDir,
}

impl Rig {
    fn new(config: Config) -> Rig {
        let server = Server::start(config).unwrap();
        let files = tempfile::tempdir().unwrap();
        let keyring = files.path().join("keyring");
        std::fs::write(&keyring, server.keyring_text().unwrap().as_bytes()).unwrap();
        let conf = server.conf_text(Some(&keyring));
        std::fs::write(files.path().join("ceph.conf"), conf).unwrap();
        Rig { server, files }
    }

    fn with_pool(config: Config) -> Rig {
        let rig = Rig::new(config);
        rig.command(r#"{"prefix": "osd pool create", "pool": "rbd", "pg_num": 16}"#);
        rig
    }

    fn command(&self, words: &str) {
        let reply = self.server.command(words, &[]).unwrap();
        assert_eq!(reply.code, 0, "{words}: {}", reply.status);
    }

    /// Runs a client to its end.
    fn client(&self, f: impl AsyncFnOnce(IoCtx)) {
        let conf = conf_of(self.files.path());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async {
            let run = async {
                let rados: Rados = connect(&conf).await.unwrap();
                let io = rados.io_ctx("rbd", "").await.unwrap();
                f(io).await;
                rados.shutdown().await;
            };
            let limit = Duration::from_secs(60);
            tokio::time::timeout(limit, run)
                .await
                .expect("a client hangs");
        });
    }
}

fn conf_of(files: &Path) -> Conf {
    let options = ConfOptions {
        conf: Some(files.join("ceph.conf").display().to_string()),
        env: Environment {
            host: "here".into(),
            ..Environment::default()
        },
        ..ConfOptions::default()
    };
    Conf::load(&options).unwrap()
}

async fn write(io: &IoCtx, oid: &str, data: Vec<u8>) -> Result<(), RadosError> {
    let op = ObjectOp::new().write_full(Payload::from(data));
    let access = Access::Write(Rc::new(SnapContext::default()));
    let done = io.rados().operate(io.target(oid), op, access).await;
    done.map(drop)
}

async fn read(io: &IoCtx, oid: &str) -> Result<Vec<u8>, RadosError> {
    let mut output = io.read(oid, ObjectOp::new().read(0, 1 << 20)).await?;
    Ok(output.parts.pop().map(|(_, data)| data).unwrap_or_default())
}

fn contents(n: usize) -> Vec<u8> {
    (0..4096 + n).map(|i| (i * 7 + n) as u8).collect()
}

async fn write_all(io: &IoCtx) {
    for n in 0..64 {
        write(io, &format!("o{n}"), contents(n)).await.unwrap();
    }
}

async fn check_all(io: &IoCtx) {
    for n in 0..64 {
        let got = read(io, &format!("o{n}")).await.unwrap();
        assert_eq!(got, contents(n), "o{n}");
    }
}

fn memory(osds: u32, auth: Method) -> Config {
    Config {
        osds,
        auth,
        ..Config::new(Place::Memory, local())
    }
}

#[test]
fn a_client_reads_what_it_wrote_from_every_osd() {
    for auth in [Method::None, Method::Cephx] {
        let rig = Rig::with_pool(memory(3, auth));
        rig.client(async |io| {
            write_all(&io).await;
            check_all(&io).await;
            assert!(matches!(
                read(&io, "nothing").await,
                Err(RadosError::Errno(2))
            ));
        });
        let status = rig.server.status().unwrap();
        assert!(
            status.osds.iter().all(|o| o.up && o.objects > 0),
            "{status:?}"
        );
        assert_eq!(status.osds.iter().map(|o| o.objects).sum::<u64>(), 64);
        rig.server.stop().unwrap();
    }
}

#[test]
fn an_osd_that_stops_is_waited_for() {
    let rig = Rig::with_pool(memory(1, Method::Cephx));
    rig.client(async |io| {
        write_all(&io).await;
        rig.server.stop_osd(0).unwrap();
        let late = write(&io, "late", vec![1; 10]);
        let mut late = std::pin::pin!(late);
        let wait = Duration::from_millis(300);
        assert!(tokio::time::timeout(wait, late.as_mut()).await.is_err());
        assert!(!rig.server.status().unwrap().osds[0].up);
        rig.server.start_osd(0).unwrap();
        late.await.unwrap();
        assert_eq!(read(&io, "late").await.unwrap(), [1; 10]);
        check_all(&io).await;
    });
}

#[test]
fn pgs_follow_the_map_with_their_objects() {
    let rig = Rig::with_pool(memory(2, Method::None));
    rig.client(async |io| {
        write_all(&io).await;
        for (out, stays) in [(0, 1), (1, 0)] {
            rig.command(&format!(r#"{{"prefix": "osd out", "ids": ["{out}"]}}"#));
            check_all(&io).await;
            let osds = rig.server.status().unwrap().osds;
            assert_eq!((osds[out].objects, osds[stays].objects), (0, 64));
            rig.command(&format!(r#"{{"prefix": "osd in", "ids": ["{out}"]}}"#));
            check_all(&io).await;
        }
    });
    let osds = rig.server.status().unwrap().osds;
    assert!(osds.iter().all(|o| o.objects > 0), "{osds:?}");
}

#[test]
fn an_osd_that_is_marked_down_comes_back() {
    let rig = Rig::with_pool(memory(1, Method::None));
    rig.client(async |io| {
        write_all(&io).await;
        rig.command(r#"{"prefix": "osd down", "ids": ["0"]}"#);
        check_all(&io).await;
    });
    assert!(rig.server.status().unwrap().osds[0].up);
}

#[test]
fn faults_strike_until_they_are_cleared() {
    let rig = Rig::with_pool(memory(2, Method::None));
    let rule = Rule {
        class: OpClass::Read,
        pool: rig.server.pool_id("rbd").unwrap(),
        prefix: b"o1".to_vec(),
        per_million: 1_000_000,
        count: None,
        when: When::Before,
        action: Action::Error(5),
    };
    rig.client(async |io| {
        write_all(&io).await;
        assert_eq!(rig.server.add_fault(None, &rule).unwrap().len(), 2);
        assert_eq!(rig.server.faults().unwrap().len(), 2);
        for (oid, fails) in [("o1", true), ("o17", true), ("o2", false)] {
            let got = read(&io, oid).await;
            assert_eq!(matches!(got, Err(RadosError::Errno(5))), fails, "{oid}");
        }
        rig.server.clear_faults(None, None).unwrap();
        check_all(&io).await;
        // Connections that break are made again, and no request is lost.
        let reset = Rule {
            class: OpClass::Any,
            prefix: Vec::new(),
            per_million: 200_000,
            action: Action::Reset,
            ..rule
        };
        rig.server.add_fault(None, &reset).unwrap();
        write_all(&io).await;
        check_all(&io).await;
    });
    assert!(rig.server.add_fault(Some(2), &reset_of_none()).is_err());
}

fn reset_of_none() -> Rule {
    Rule {
        class: OpClass::Any,
        pool: None,
        prefix: Vec::new(),
        per_million: 0,
        count: None,
        when: When::Before,
        action: Action::Reset,
    }
}

#[test]
fn a_cluster_in_a_directory_is_there_again() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config {
        osds: 2,
        ..Config::new(Place::Dir(dir.path().to_owned()), local())
    };
    let rig = Rig::with_pool(config.clone());
    rig.client(async |io| write_all(&io).await);
    let (fsid, keyring) = (rig.server.fsid(), rig.server.keyring_text().unwrap());
    // The store is taken.
    assert!(Server::start(config.clone()).is_err());
    rig.server.stop().unwrap();
    let rig = Rig::new(config);
    assert_eq!(rig.server.fsid(), fsid);
    assert_eq!(rig.server.keyring_text().unwrap(), keyring);
    rig.client(async |io| check_all(&io).await);
}

#[test]
fn what_cannot_start_says_why() {
    let server = Server::start(memory(1, Method::None)).unwrap();
    let taken = Config {
        listen: server.addr(),
        ..memory(1, Method::None)
    };
    let why = Server::start(taken).unwrap_err().to_string();
    assert!(why.starts_with("cannot listen on 127.0.0.1:"), "{why}");
    let why = Server::start(memory(0, Method::None)).unwrap_err();
    assert!(matches!(why, ServerError::Osds(0)));
}
