//! libnbd, QEMU and fio as judges.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;
use ublk_rbd::frontend::disk::DiskInfo;
use ublk_rbd::frontend::memdisk::GRANULE;

use crate::fixture::{Options, TestServer, attempt, has, run};

const MIB: u64 = 1 << 20;

/// Bytes that differ everywhere, from a seed.
fn noise(len: usize, mut seed: u64) -> Vec<u8> {
    (0..len)
        .map(|_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 56) as u8
        })
        .collect()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn nbdinfo_sees_what_the_disk_is() {
    if !has("nbdinfo") {
        return;
    }
    let server = TestServer::start(Options::new(64 * MIB));
    let info = json(&run("nbdinfo", &["--json", &server.uri()]));
    assert_eq!(info["protocol"], "newstyle-fixed");
    assert_eq!(info["structured"], true);
    let export = &info["exports"][0];
    assert_eq!(export["export-name"], "vm1");
    assert_eq!(export["description"], "a disk in memory");
    assert_eq!(export["export-size"], 64 * MIB);
    assert_eq!(export["contexts"], serde_json::json!(["base:allocation"]));
    for (can, expected) in [
        ("is_rotational", false),
        ("is_read_only", false),
        ("can_cache", true),
        ("can_df", true),
        ("can_fast_zero", true),
        ("can_flush", true),
        ("can_fua", true),
        ("can_multi_conn", true),
        ("can_trim", true),
        ("can_zero", true),
    ] {
        assert_eq!(export[can], expected, "{can}");
    }
    assert_eq!(export["block_size_minimum"], 1);
    assert_eq!(export["block_size_preferred"], GRANULE);
    assert_eq!(export["block_size_maximum"], 32 * MIB);
    let list = json(&run("nbdinfo", &["--list", "--json", &server.uri()]));
    assert_eq!(list["exports"].as_array().unwrap().len(), 1);
    // The default export, and one that is not there.
    let unnamed = format!("nbd+unix://?socket={}", server.path().display());
    assert_eq!(
        run("nbdinfo", &["--size", &unnamed]).trim(),
        (64 * MIB).to_string()
    );
    let other = format!("nbd+unix:///vm2?socket={}", server.path().display());
    assert!(!attempt("nbdinfo", &["--size", &other]).status.success());
    let tcp = format!("nbd://{}/vm1", server.tcp);
    assert_eq!(
        run("nbdinfo", &["--size", &tcp]).trim(),
        (64 * MIB).to_string()
    );
    server.assert_clean();
}

#[test]
fn a_read_only_disk_says_so() {
    if !has("nbdinfo") || !has("qemu-io") {
        return;
    }
    let mut options = Options::new(MIB);
    options.info = DiskInfo {
        read_only: true,
        fast_zero: false,
        ..options.info
    };
    let server = TestServer::start(options);
    let export = &json(&run("nbdinfo", &["--json", &server.uri()]))["exports"][0];
    for (can, expected) in [
        ("is_read_only", true),
        ("can_trim", false),
        ("can_zero", false),
        ("can_fast_zero", false),
    ] {
        assert_eq!(export[can], expected, "{can}");
    }
    let write = ["-f", "raw", "-c", "write 0 4k", &server.uri()];
    let refused = attempt("qemu-io", &write);
    assert!(!refused.status.success());
    server.inside(|i| assert_eq!(i.disk.counters.writes.get(), 0));
}

#[test]
fn the_map_shows_data_and_holes() {
    if !has("nbdinfo") || !has("qemu-img") {
        return;
    }
    let size = 16 * GRANULE as u64;
    let server = TestServer::start(Options::new(size));
    let g = GRANULE as u64;
    qemu_io(
        &server,
        &[
            &format!("write -P 1 {g} {g}"),
            &format!("write -P 2 {} 100", 5 * g),
        ],
    );
    let map = json(&run("nbdinfo", &["--map", "--json", &server.uri()]));
    let extents: Vec<(u64, u64, u64)> = map
        .as_array()
        .unwrap()
        .iter()
        .map(|e| {
            let n = |key: &str| e[key].as_u64().unwrap();
            (n("offset"), n("length"), n("type"))
        })
        .collect();
    let expected = [
        (0, g, 3),
        (g, g, 0),
        (2 * g, 3 * g, 3),
        (5 * g, g, 0),
        (6 * g, 10 * g, 3),
    ];
    assert_eq!(extents, expected);

    let map = json(&run(
        "qemu-img",
        &["map", "--output=json", "-f", "raw", &server.uri()],
    ));
    let data: Vec<(u64, bool)> = map
        .as_array()
        .unwrap()
        .iter()
        .map(|e| (e["start"].as_u64().unwrap(), e["data"].as_bool().unwrap()))
        .collect();
    assert_eq!(
        data,
        [
            (0, false),
            (g, true),
            (2 * g, false),
            (5 * g, true),
            (6 * g, false)
        ]
    );
    server.inside(|i| assert!(i.disk.counters.statuses.get() > 0));
}

fn qemu_io(server: &TestServer, commands: &[&str]) -> String {
    let uri = server.uri();
    let mut args = vec!["-f", "raw"];
    for command in commands {
        args.extend(["-c", command]);
    }
    args.push(&uri);
    let output = run("qemu-io", &args);
    assert!(!output.contains("failed"), "{output}");
    output
}

#[test]
fn qemu_writes_zeroes_discards_and_reads_back() {
    if !has("qemu-io") {
        return;
    }
    let server = TestServer::start(Options::shuffled(64 * MIB, 11));
    qemu_io(
        &server,
        &[
            "write -P 0xab 0 1M",
            "write -P 0xcd 1000 3000",
            "read -P 0xab 0 1000",
            "read -P 0xcd 1000 3000",
            "read -P 0xab 4000 1044576",
            // Holes around data, in one structured read.
            "read -P 0 1M 4M",
            "write -P 5 40M 20M",
            "read -P 5 40M 20M",
            "write -z 41M 1M",
            "read -P 0 41M 1M",
            "write -z -u 42M 1M",
            "read -P 0 42M 1M",
            "read -P 5 43M 1M",
            "discard 44M 1M",
            "flush",
        ],
    );
    server.inside(|i| {
        let n = &i.disk.counters;
        assert!(n.flushes.get() > 0 && n.discards.get() > 0 && n.zeroes.get() >= 2);
    });
    server.assert_clean();
}

#[test]
fn fua_arrives_where_it_was_asked_for() {
    if !has("qemu-io") {
        return;
    }
    let server = TestServer::start(Options::new(MIB));
    let uri = server.uri();
    let io = |commands: [&str; 3]| {
        let [a, b, c] = commands;
        run(
            "qemu-io",
            &[
                "-t",
                "writeback",
                "-f",
                "raw",
                "-c",
                a,
                "-c",
                b,
                "-c",
                c,
                &uri,
            ],
        );
    };
    io(["write -P 6 0 4k", "write -z 8k 4k", "flush"]);
    server.inside(|i| assert_eq!(i.disk.counters.fua.get(), 0));
    io(["write -f -P 7 0 4k", "write -f -z 8k 4k", "read -P 7 0 4k"]);
    server.inside(|i| assert_eq!(i.disk.counters.fua.get(), 2));
}

#[test]
fn qemu_img_copies_and_compares() {
    if !has("qemu-img") {
        return;
    }
    let server = TestServer::start(Options::shuffled(32 * MIB, 5));
    let file = server.dir().join("image");
    let mut image = vec![0; 32 << 20];
    image[3 << 20..9 << 20].copy_from_slice(&noise(6 << 20, 1));
    image[20_000_000..20_000_777].fill(9);
    fs::write(&file, &image).unwrap();
    let (file, uri) = (file.to_str().unwrap(), server.uri());
    run(
        "qemu-img",
        &[
            "convert", "-n", "-f", "raw", "-O", "raw", "-m", "8", "-W", file, &uri,
        ],
    );
    run(
        "qemu-img",
        &["compare", "-f", "raw", "-F", "raw", file, &uri],
    );
    server.inside(move |i| i.disk.with_bytes(|b| assert!(*b == image[..])));
    let info = json(&run("qemu-img", &["info", "--output=json", &uri]));
    assert_eq!(info["virtual-size"], 32 * MIB);
    server.assert_clean();
}

#[test]
fn nbdcopy_over_four_connections_moves_every_byte() {
    if !has("nbdcopy") {
        return;
    }
    let size = 48 * MIB + 513;
    let server = TestServer::start(Options::shuffled(size, 77));
    let (from, to) = (server.dir().join("from"), server.dir().join("to"));
    let mut image = noise(size as usize, 42);
    image[10 << 20..20 << 20].fill(0);
    fs::write(&from, &image).unwrap();
    let wide = ["--connections=4", "--threads=4", "--requests=32", "--flush"];
    let uri = server.uri();
    let copy = |a: &str, b: &str| {
        let mut args = wide.to_vec();
        args.extend([a, b]);
        run("nbdcopy", &args);
    };
    copy(from.to_str().unwrap(), &uri);
    let expected = image.clone();
    server.inside(move |i| {
        assert!(i.disk.counters.flushes.get() > 0);
        i.disk.with_bytes(|b| assert!(*b == expected[..]));
    });
    fs::File::create(&to).unwrap().set_len(size).unwrap();
    copy(&uri, to.to_str().unwrap());
    assert!(fs::read(&to).unwrap() == image);
    server.inside(|i| {
        assert!(
            i.server.connections().1 >= 8,
            "not four connections each way"
        );
        assert!(
            i.disk.counters.overtaken.get() > 0,
            "nothing was completed out of order"
        );
    });
    server.assert_clean();
}

#[test]
fn fio_verifies_over_four_connections() {
    if !has("fio") {
        return;
    }
    let server = TestServer::start(Options::shuffled(64 * MIB, 123));
    let uri = format!("--uri={}", server.uri());
    run(
        "fio",
        &[
            "--name=verify",
            "--ioengine=nbd",
            &uri,
            "--rw=randwrite",
            "--bsrange=512-256k",
            "--blockalign=512",
            "--iodepth=32",
            "--numjobs=4",
            "--size=16M",
            "--offset_increment=16M",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--verify_state_save=0",
            "--group_reporting",
        ],
    );
    server.inside(|i| {
        let n = &i.disk.counters;
        assert!(n.writes.get() > 400 && n.reads.get() > 400);
        assert!(n.overtaken.get() > 100);
        assert!(i.server.connections().1 >= 4);
    });
    server.assert_clean();
}

#[test]
fn a_killed_client_leaves_nothing_behind() {
    if !has("fio") {
        return;
    }
    let server = TestServer::start(Options::shuffled(64 * MIB, 9));
    for round in 0..3u64 {
        let before = server.inside(|i| i.disk.counters.writes.get());
        let mut client = Command::new("fio")
            .args(["--name=kill", "--ioengine=nbd", "--rw=randrw", "--bs=128k"])
            .args([
                "--iodepth=32",
                "--size=64M",
                "--time_based",
                "--runtime=60",
                "--thread",
            ])
            .arg(format!("--uri={}", server.uri()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        server.eventually("fio writes", move |i| {
            i.disk.counters.writes.get() > before + 50 + round * 37
        });
        client.kill().unwrap();
        client.wait().unwrap();
        server.assert_clean();
    }
}
