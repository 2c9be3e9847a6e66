//! Our maps as Ceph's own tools read them.
//!
//! Skipped where `osdmaptool` and `crushtool` are not installed, unless in CI.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use super::tests::{addr, config, entropy};
use super::*;
use crate::osdmap::Pg;

/// What a tool prints, or `None` where it is not there.
fn run(tool: &str, args: &[&str]) -> Option<String> {
    let output = match Command::new(tool).args(args).output() {
        Ok(output) => output,
        Err(_) if std::env::var_os("CI").is_none() => {
            eprintln!("skipped: {tool} is not installed");
            return None;
        }
        Err(error) => panic!("{tool}: {error}"),
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{tool} {args:?}: {text}{errors}");
    Some(text + &errors)
}

fn mon(osds: u32) -> Mon {
    let now = Now {
        mono: 1,
        wall: 1_796_039_854_404_883_000,
    };
    let store = Box::new(MemoryMonStore::new());
    let mut mon = Mon::new(config(osds), store, now, entropy(5)).unwrap();
    let mut out = Outbox::new();
    for id in 0..osds {
        let addrs = EntityAddrVec(vec![addr(6800 + id as u16, id)]);
        mon.osd_boot(id as i32, &addrs, now, &mut out).unwrap();
    }
    for command in [
        json!({"prefix": "osd pool create", "pool": "rbd"}),
        json!({"prefix": "osd pool create", "pool": "odd", "pg_num": 12}),
        json!({"prefix": "osd pool application enable", "pool": "rbd", "app": "rbd"}),
        json!({"prefix": "osd pool set-quota", "pool": "odd", "field": "max_bytes", "val": "1M"}),
        json!({"prefix": "osd pool mksnap", "pool": "odd", "snap": "s"}),
        json!({"prefix": "osd blocklist", "blocklistop": "add", "addr": "10.0.0.1:0/7"}),
        json!({"prefix": "osd out", "ids": ["1"]}),
    ] {
        let (code, status, _) = mon.command(&command.to_string(), b"", now, &mut out);
        assert_eq!(code, 0, "{status}");
    }
    mon
}

fn write(dir: &Path, name: &str, bytes: &[u8]) -> String {
    let path = dir.join(name);
    std::fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn osdmaptool_reads_our_map_as_we_print_it() {
    let mut mon = mon(3);
    let dir = tempfile::tempdir().unwrap();
    let file = write(dir.path(), "map", &mon.full_map(mon.map().epoch()).unwrap());
    let Some(text) = run("osdmaptool", &["--print", &file]) else {
        return;
    };
    let now = Now::default();
    let (_, _, ours) = mon.command(r#"{"prefix":"osd dump"}"#, b"", now, &mut Outbox::new());
    let ours = String::from_utf8(ours).unwrap();
    let lines = |text: &str| -> Vec<String> {
        let words = |l: &str| l.split_whitespace().collect::<Vec<_>>().join(" ");
        let kept = text.lines().filter(|l| !l.starts_with("osdmaptool:"));
        kept.map(words).filter(|l| !l.is_empty()).collect()
    };
    assert_eq!(lines(&ours), lines(&text));
}

#[test]
fn osdmaptool_places_every_pg_as_we_do() {
    let mon = mon(5);
    let dir = tempfile::tempdir().unwrap();
    let file = write(dir.path(), "map", &mon.full_map(mon.map().epoch()).unwrap());
    let Some(text) = run("osdmaptool", &["--test-map-pgs-dump", &file]) else {
        return;
    };
    let mut seen = 0;
    for line in text.lines() {
        let mut fields = line.split_whitespace();
        let pg = fields.next().and_then(|f| f.split_once('.'));
        let Some((pool, seed)) = pg else { continue };
        let (Ok(pool), Ok(seed)) = (pool.parse::<i64>(), u32::from_str_radix(seed, 16)) else {
            continue;
        };
        let Some(acting) = fields.next().filter(|f| f.starts_with('[')) else {
            continue;
        };
        let at = mon.map().map_pg(Pg { pool, seed });
        assert_eq!(
            acting,
            format!("{:?}", at.acting.to_vec()).replace(' ', ""),
            "{line}"
        );
        seen += 1;
    }
    assert_eq!(seen, 32 + 12);
}

#[test]
fn crushtool_compiles_back_what_it_reads() {
    let mut mon = mon(3);
    let dir = tempfile::tempdir().unwrap();
    let (_, _, bytes) = mon.command(
        r#"{"prefix":"osd getcrushmap"}"#,
        b"",
        Now::default(),
        &mut Outbox::new(),
    );
    let file = write(dir.path(), "crush", &bytes);
    let Some(text) = run("crushtool", &["-d", &file]) else {
        return;
    };
    for line in [
        "device 2 osd.2 class ssd",
        "host here {",
        "root default {",
        "rule replicated_rule {",
        "\tstep choose firstn 0 type osd",
        "\tid -4 class ssd\t\t# do not change unnecessarily",
    ] {
        assert!(text.lines().any(|l| l == line), "{line:?} in {text}");
    }
    let source = write(dir.path(), "crush.txt", text.as_bytes());
    let back = dir.path().join("crush.back");
    run("crushtool", &["-c", &source, "-o", back.to_str().unwrap()]);
    let back = crate::osdmap::crush::Map::decode(&std::fs::read(back).unwrap()).unwrap();
    let ours = mon.map().crush();
    assert_eq!(back.buckets().count(), ours.buckets().count());
    assert_eq!(
        back.rules().collect::<Vec<_>>(),
        ours.rules().collect::<Vec<_>>()
    );
}
