//! Splits captured sessions into seeds: `seed-corpus CAPTURES CORPUS`. Built by `seed-corpus.sh`.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

/// Longer seeds only slow a fuzzer down.
const LONGEST: usize = 4096;

const MON_PORTS: [u16; 2] = [16300, 17300];

struct Corpus(PathBuf);

impl Corpus {
    /// Seeds are named after what is in them: the same seed twice is one file.
    fn put(&self, target: &str, seed: &[u8]) {
        if seed.len() > LONGEST {
            return;
        }
        let dir = self.0.join(target);
        fs::create_dir_all(&dir).expect("a writable corpus");
        let mut hasher = DefaultHasher::new();
        seed.hash(&mut hasher);
        let file = dir.join(format!("seed-{:016x}", hasher.finish()));
        fs::write(file, seed).expect("a writable corpus");
    }

    fn put_after(&self, target: &str, head: &[u8], seed: &[u8]) {
        self.put(target, &[head, seed].concat());
    }
}

fn main() {
    let mut args = std::env::args().skip(1).map(PathBuf::from);
    let (captures, corpus) = (args.next(), args.next());
    let captures = captures.expect("usage: seed-corpus CAPTURES CORPUS");
    let corpus = Corpus(corpus.expect("usage: seed-corpus CAPTURES CORPUS"));
    for entry in fs::read_dir(&captures).expect("a directory of captures") {
        let path = entry.expect("a readable directory").path();
        if path.extension().is_some_and(|e| e == "pcap") {
            capture(&path, &corpus);
        }
    }
    by_hand(&corpus);
}

fn capture(path: &Path, corpus: &Corpus) {
    let pcap = fs::read(path).expect("a readable capture");
    let name = path.to_string_lossy();
    for ((from, to), stream) in streams(&pcap) {
        // Whoever has the well-known port is the server, and its stream is what a client reads.
        let mon = MON_PORTS.contains(&from) || MON_PORTS.contains(&to);
        let from_server = from < to;
        let kind = if mon { 1 } else { 4 };
        let how = u8::from(!from_server) << 2 | kind << 3;
        let start = &stream[..stream.len().min(LONGEST - 2)];
        corpus.put_after("msgr_handshake", &[how, 255], start);
        if !name.contains("none-crc") {
            continue;
        }
        for m in messages(&stream) {
            let version = m.version as u8;
            let mon_message = [4, 5, 15, 16, 17, 18, 19, 20, 48, 49, 50, 51, 62];
            let reader = [1, 0, 2, 3, 9, 10, 4, 5, 12, 11, 7, 8, 6];
            if let Some(at) = mon_message.iter().position(|k| *k == m.kind) {
                corpus.put_after("mon_messages", &[reader[at], version], &m.front);
            }
            if let Some(at) = [42, 43, 61, 44, 41].iter().position(|k| *k == m.kind) {
                corpus.put_after("osd_messages", &[at as u8, version], &m.front);
            }
            if m.kind == 43 && m.data.len() < 512 {
                for what in 0..9 {
                    corpus.put_after("osd_results", &[what], &m.data);
                }
                for what in 0..12 {
                    corpus.put_after("rbd_replies", &[what], &m.data);
                }
            }
        }
    }
}

/// The byte streams of a capture by their ports.
fn streams(pcap: &[u8]) -> BTreeMap<(u16, u16), Vec<u8>> {
    let ethernet = u32_at(pcap, 20) == 1;
    let mut starts = BTreeMap::new();
    let mut segments: BTreeMap<(u16, u16), BTreeMap<u32, &[u8]>> = BTreeMap::new();
    let mut at = 24;
    while at < pcap.len() {
        let len = u32_at(pcap, at + 8) as usize;
        let packet = &pcap[at + 16..at + 16 + len];
        at += 16 + len;
        let ip = if ethernet { &packet[14..] } else { packet };
        let be16 = |b: &[u8], at: usize| u16::from_be_bytes([b[at], b[at + 1]]);
        let tcp = &ip[usize::from(ip[0] & 15) * 4..usize::from(be16(ip, 2))];
        let ports = (be16(tcp, 0), be16(tcp, 2));
        let seq = u32::from_be_bytes(tcp[4..8].try_into().expect("four bytes"));
        if tcp[13] & 2 != 0 {
            starts.insert(ports, seq.wrapping_add(1));
        }
        let data = &tcp[usize::from(tcp[12] >> 4) * 4..];
        if !data.is_empty() {
            let offset = seq.wrapping_sub(starts[&ports]);
            let stream = segments.entry(ports).or_default();
            stream.entry(offset).or_insert(data);
        }
    }
    let whole = |parts: BTreeMap<u32, &[u8]>| parts.into_values().flatten().copied().collect();
    segments.into_iter().map(|(k, v)| (k, whole(v))).collect()
}

struct Message {
    kind: u16,
    version: u16,
    front: Vec<u8>,
    data: Vec<u8>,
}

/// The messages of one direction: msgr2.1 frames in crc mode (`src/msg/async/frames_v2.h`).
fn messages(stream: &[u8]) -> Vec<Message> {
    let mut at = 10 + usize::from(u16_at(stream, 8));
    let mut out = Vec::new();
    while let Some(preamble) = stream.get(at..at + 32) {
        let count = usize::from(preamble[1]);
        at += 32;
        let mut parts = Vec::new();
        for i in 0..count {
            let len = u32_at(preamble, 2 + 6 * i) as usize;
            let Some(part) = stream.get(at..at + len) else {
                return out;
            };
            parts.push(part.to_vec());
            // The first segment is followed by its checksum, the last by an epilogue.
            at += len + if i == 0 && len > 0 { 4 } else { 0 };
        }
        at += if count > 1 { 13 } else { 0 };
        if preamble[0] == 17 {
            parts.resize(4, Vec::new());
            out.push(Message {
                kind: u16_at(&parts[0], 16),
                version: u16_at(&parts[0], 20),
                front: std::mem::take(&mut parts[1]),
                data: std::mem::take(&mut parts[3]),
            });
        }
    }
    out
}

fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(b[at..at + 4].try_into().expect("four bytes"))
}

/// What no capture has.
fn by_hand(corpus: &Corpus) {
    corpus.put(
        "conf",
        b"[global]\nfsid = 5a8ea6f1-42a9-4a33-9b4d-1a0b5a5c7d10\n\
          mon host = [v2:10.0.0.1:3300/0,v1:10.0.0.1:6789/0] 10.0.0.2, mon3.example:3300\n\
          keyring = /etc/$cluster/$name.keyring ; where\n[client]\nrbd_default_order = 22\n\
          [client.admin]\nobjecter_inflight_op_bytes = 100M\n\
          client mount timeout = 1h30m\\\n  \n\0\
          --id vm --mon-host=v2:[::1]:3300 --ms_crc_data false -n client.x\0\
          10.0.0.1,10.0.0.2:3300 [2001:db8::1]\0[client.admin]\n\tkey = AQ==\n\0\
          ms_client_mode\0crc secure",
    );
    for line in [
        r#"{"request":"map","image":{"pool":"rbd","namespace":"","image":"a","snap":null},"cluster":{"conf":null,"keyring":null,"name":"client.vm","mon_host":null,"cluster":null,"env":[["CEPH_ARGS","--id x"]]},"frontend":"nbd","socket":"/run/a.sock","tcp":"127.0.0.1:10809","allow_remote":false,"read_only":true,"request_timeout":30,"cpu":1}"#,
        r#"{"request":"unmap","target":"rbd/a","force":true}"#,
        r#"{"request":"list"}"#,
        r#"{"answer":"error","message":"no"}"#,
        r#"{"answer":"disks","disks":[{"id":1,"pool":"rbd","namespace":"","image":"a","snap":"s","frontend":"nbd","device":"nbd+unix:///?socket=/run/a","socket":null,"size":4096,"read_only":false,"state":"ok"}]}"#,
        "rbd/space/image@snap",
        "10G",
    ] {
        corpus.put("control", line.as_bytes());
    }

    for caps in [
        "allow *",
        "allow rwx pool=rbd namespace=a object_prefix rbd_data",
        "allow r tag rbd data=*, allow class-read, allow w network 10.0.0.0/8",
        "profile rbd pool=rbd, profile rbd-read-only pool=images namespace=\"b\"",
        "allow class rbd metadata_list, allow x; allow class-write",
        "allow r, allow service osd rw, allow command \"osd pool ls\" with a=b",
        "profile simple-rados-client-with-blocklist",
        "allow command config-key with key prefix x, allow command a with b regex \"^(c|d)+$\"",
    ] {
        corpus.put("caps", caps.as_bytes());
        corpus.put("caps", &[caps.as_bytes(), &[0; 64]].concat());
        corpus.put("caps", &[caps.as_bytes(), &[0], &[0xff; 64]].concat());
    }

    // Changes as `src/osd/store/file/op.rs` of the product writes them, by their kind.
    let blob = |b: &[u8]| [&(b.len() as u32).to_le_bytes(), b].concat();
    let pg = [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let pg_row = [vec![1, 2, 0, 0, 0, 0], vec![1; 10], vec![0]].concat();
    let object_row = [&[1, 2, 5, 7, 3, 1, 2, 0, 1, 0, 1, 3][..], &[0; 96]].concat();
    let mut key = [
        &[0x80, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 9][..],
        &[0, 1, b'a', 0, 1, 1],
    ]
    .concat();
    key.extend_from_slice(&u64::MAX.to_be_bytes());
    let ops: [Vec<u8>; 14] = [
        vec![1, 20],
        vec![2, 7, 0, 3],
        vec![3, 7, 1, 9],
        vec![4, 7, 2],
        vec![5, 7, 8, 1, 0, 2],
        vec![6, 7],
        vec![7, 7],
        [vec![13], pg.to_vec(), blob(&pg_row)].concat(),
        [vec![8, 2], blob(&key), blob(&object_row)].concat(),
        [vec![10, 5], blob(b"\x02key"), blob(b"value")].concat(),
        [vec![9, 2], blob(&key)].concat(),
        vec![12, 5],
        [vec![15, 2, 1], blob(&[1; 12])].concat(),
        [vec![16], pg.to_vec(), pg.to_vec(), vec![2, 0, 0, 0, 1]].concat(),
    ];
    let record =
        |ops: &[u8], data: &[u8]| [&[ops.len() as u8, data.len() as u8], ops, data].concat();
    let mut all = vec![3];
    for op in &ops {
        corpus.put_after("journal", &[3], &record(op, &[9; 3]));
        all.extend(record(op, &[9; 3]));
    }
    corpus.put("journal", &all);
    corpus.put_after("journal", &[0], &pg_row);
    corpus.put_after("journal", &[0], &object_row);
    let mut segment = vec![2];
    segment.extend_from_slice(b"ublkrbdJ");
    segment.resize(65, 0);
    segment[17] = 1;
    segment[25] = 1;
    segment.extend_from_slice(b"rec\x01");
    corpus.put("journal", &segment);

    let option = |out: &mut Vec<u8>, option: u32, data: &[u8]| {
        out.extend_from_slice(b"IHAVEOPT");
        out.extend_from_slice(&option.to_be_bytes());
        out.extend_from_slice(&(data.len() as u32).to_be_bytes());
        out.extend_from_slice(data);
    };
    let string = |s: &str| [&(s.len() as u32).to_be_bytes(), s.as_bytes()].concat();
    let context = [
        string("rbd/a"),
        1u32.to_be_bytes().to_vec(),
        string("base:allocation"),
    ];
    let go = [string("rbd/a"), vec![0, 2, 0, 0, 0, 3]].concat();
    for styles in [&[][..], &[8], &[11], &[8, 11], &[5, 8]] {
        let mut out = vec![1, 255, 0, 0, 0, 3];
        option(&mut out, 3, b"");
        for style in styles {
            option(&mut out, *style, b"");
        }
        option(&mut out, 9, &context.concat());
        option(&mut out, 10, &context.concat());
        option(&mut out, 6, &go);
        option(&mut out, 7, &go);
        corpus.put("nbd_negotiate", &out);
        let mut old = vec![0, 9, 0, 0, 0, 0];
        option(&mut old, 1, b"rbd/a");
        corpus.put("nbd_negotiate", &old);
    }

    for how in 0..24u8 {
        let extended = how % 3 == 2;
        let mut out = vec![how | how << 4, how.wrapping_mul(7), 0xff];
        for (cookie, kind) in [0u16, 1, 3, 4, 6, 5, 7, 2].into_iter().enumerate() {
            let magic: u32 = if extended { 0x21e4_1c71 } else { 0x2560_9513 };
            // The payload of an extended write is announced.
            let flags: u16 = if extended && kind == 1 { 0x20 } else { 0 };
            out.extend_from_slice(&magic.to_be_bytes());
            out.extend_from_slice(&flags.to_be_bytes());
            out.extend_from_slice(&kind.to_be_bytes());
            out.extend_from_slice(&(cookie as u64).to_be_bytes());
            out.extend_from_slice(&0u64.to_be_bytes());
            if extended {
                out.extend_from_slice(&64u64.to_be_bytes());
            } else {
                out.extend_from_slice(&64u32.to_be_bytes());
            }
            if kind == 1 {
                out.extend_from_slice(&[0x77; 64]);
            }
        }
        corpus.put("nbd_transmit", &out);
    }

    for how in 0..8u8 {
        for target in ["auth_client", "auth_server", "msgr_secure"] {
            corpus.put(target, &[how]);
            corpus.put_after(target, &[how], &[0; 64]);
            corpus.put_after(target, &[how], &[0x1b; 64]);
        }
    }
}
