//! What is written through `ublk-rbd` is what librbd reads, and the other way round: for every
//! version of Ceph, way of authentication, connection mode and layout of images.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use harness::ceph::{Auth, Builder, Cipher, Cluster, Mode, Store, Version};
use harness::product::{Product, client, text};
use harness::tools::{self, Pattern, sha256_file, write_pattern};
use harness::{Need, long, require};

const MIB: u64 = 1 << 20;
const MINUTE: Duration = Duration::from_secs(60);

/// The SHA-256 of an image or snapshot as librbd reads it.
fn exported(cluster: &Cluster, product: &Product, image: &str) -> Result<String> {
    let file = product.scratch("exported");
    cluster.run(["rbd", "export", "--no-progress", image, text(&file)])?;
    let sum = sha256_file(&file)?;
    fs::remove_file(&file)?;
    Ok(sum)
}

/// Copies `mib` MiB in and out by libnbd and compares with what librbd reads.
fn copies(cluster: &Cluster, product: &Product, image: &str, mib: u64, seed: u64) -> Result<()> {
    let mapped = product.map(image, &[])?;
    let info = client::info(&mapped)?;
    ensure!(info["export-size"] == mib * MIB, "{info}");
    ensure!(
        info["is_read_only"] == false && info["can_flush"] == true && info["can_fua"] == true,
        "{info}"
    );
    ensure!(
        info["can_trim"] == true && info["can_zero"] == true,
        "{info}"
    );
    let file = product.scratch("pattern");
    let sum = write_pattern(&file, mib, seed)?;
    client::copy_in(&file, &mapped)?;
    fs::remove_file(&file)?;
    ensure!(
        client::sha256(&mapped, &product.scratch("out"))? == sum,
        "{image}: other bytes come back than were written"
    );
    let status = cluster.run(["rbd", "status", image])?;
    ensure!(
        status.contains("watcher="),
        "{image} is not watched: {status}"
    );
    product.unmap(image)?;
    product.assert_gone()?;
    let status = cluster.run(["rbd", "status", image])?;
    ensure!(status.contains("Watchers: none"), "{image}: {status}");
    ensure!(
        exported(cluster, product, image)? == sum,
        "{image}: librbd reads other bytes than were written"
    );
    Ok(())
}

/// A step of [`requests`]: applied to the image and to a plain file.
enum Step {
    Write {
        byte: u8,
        at: u64,
        len: u64,
    },
    Zero {
        at: u64,
        len: u64,
    },
    /// Of whole objects, whose bytes are zero afterwards.
    Discard {
        at: u64,
        len: u64,
    },
}

impl Step {
    fn command(&self) -> String {
        match self {
            Step::Write { byte, at, len } => format!("write -P {byte} {at} {len}"),
            Step::Zero { at, len } => format!("write -z -u {at} {len}"),
            Step::Discard { at, len } => format!("discard {at} {len}"),
        }
    }

    fn apply(&self, file: &fs::File) -> Result<()> {
        let (byte, at, len) = match *self {
            Step::Write { byte, at, len } => (byte, at, len),
            Step::Zero { at, len } | Step::Discard { at, len } => (0, at, len),
        };
        file.write_all_at(&vec![byte; len as usize], at)?;
        Ok(())
    }
}

/// Writes, zeroes and discards of odd places and lengths, by QEMU, in an image full of a pattern.
/// The same is done to a file; both must be equal in the end, by our reading and by librbd's.
fn requests(cluster: &Cluster, product: &Product, image: &str, mib: u64) -> Result<()> {
    let file = product.scratch("model");
    write_pattern(&file, mib, 9)?;
    let mapped = product.map(image, &[])?;
    client::copy_in(&file, &mapped)?;
    let object = 4 * MIB;
    let steps = [
        // One byte, and across the border of two objects.
        Step::Write {
            byte: 1,
            at: 777,
            len: 1,
        },
        Step::Write {
            byte: 2,
            at: object - 3,
            len: 7,
        },
        Step::Write {
            byte: 3,
            at: 2 * object - 70_001,
            len: 140_003,
        },
        // Over several objects, aligned to nothing.
        Step::Write {
            byte: 4,
            at: 3 * object + 513,
            len: 2 * object + 11,
        },
        Step::Zero {
            at: 3 * object + 5000,
            len: 4097,
        },
        Step::Zero {
            at: 4 * object - 1,
            len: 2,
        },
        // A whole object, and one with a part of each neighbour.
        Step::Zero {
            at: 6 * object,
            len: object,
        },
        Step::Zero {
            at: 8 * object - 12_345,
            len: object + 23_456,
        },
        Step::Discard {
            at: 10 * object,
            len: 2 * object,
        },
        // Where nothing is any more.
        Step::Write {
            byte: 5,
            at: 10 * object + 99,
            len: 1000,
        },
        Step::Zero {
            at: 11 * object + 1,
            len: 9,
        },
        // The last byte.
        Step::Write {
            byte: 6,
            at: mib * MIB - 1,
            len: 1,
        },
    ];
    let model = OpenOptions::new().write(true).open(&file)?;
    let mut commands = Vec::new();
    for step in &steps {
        step.apply(&model)?;
        commands.push(step.command());
    }
    commands.push("flush".to_owned());
    // What QEMU itself finds afterwards.
    commands.push("read -P 1 777 1".to_owned());
    commands.push(format!("read -P 4 {} 100", 3 * object + 513));
    commands.push(format!("read -P 0 {} {object}", 6 * object));
    commands.push(format!("read -P 5 {} 1000", 10 * object + 99));
    let commands: Vec<_> = commands.iter().map(String::as_str).collect();
    client::qemu(&mapped.uri, &commands)?;

    let sum = sha256_file(&file)?;
    ensure!(
        client::sha256(&mapped, &product.scratch("out"))? == sum,
        "{image}: not what QEMU wrote"
    );
    ensure!(
        exported(cluster, product, image)? == sum,
        "{image}: librbd reads another thing than QEMU wrote"
    );
    product.unmap(image)?;
    product.assert_gone()
}

/// A filesystem with files in it, made on a file and copied in, is sound in what librbd reads.
fn filesystem(cluster: &Cluster, product: &Product, image: &str, mib: u64) -> Result<()> {
    let tree = product.scratch("tree");
    fs::create_dir_all(tree.join("a/b"))?;
    for i in 0..40u64 {
        let len = 1 + (i * 7919) as usize % 200_000;
        fs::write(tree.join(format!("a/b/{i}")), Pattern::new(i).bytes(0, len))?;
    }
    let made = product.scratch("ext4");
    fs::File::create(&made)?.set_len(mib * MIB)?;
    let mut mkfs = Command::new("mkfs.ext4");
    mkfs.args(["-q", "-F", "-d", text(&tree), text(&made)]);
    tools::run(mkfs, MINUTE)?;
    let mapped = product.map(image, &[])?;
    // nbdcopy writes zeroes for the file's holes.
    client::copy_in(&made, &mapped)?;
    product.unmap(image)?;
    product.assert_gone()?;

    let read = product.scratch("read");
    cluster.run(["rbd", "export", "--no-progress", image, text(&read)])?;
    ensure!(
        sha256_file(&read)? == sha256_file(&made)?,
        "{image} differs"
    );
    let mut fsck = Command::new("e2fsck");
    fsck.args(["-f", "-n", text(&read)]);
    tools::run(fsck, MINUTE)?;
    Ok(())
}

/// Written by librbd, read by us: also with a snapshot, by its name.
fn imports(cluster: &Cluster, product: &Product, image: &str, options: &[&str]) -> Result<()> {
    let file = product.scratch("import");
    let sum = write_pattern(&file, 17, 5)?;
    let argv = [
        "rbd",
        "import",
        "--no-progress",
        "--image-feature",
        "layering",
    ];
    cluster.run(argv.iter().chain(options).chain(&[text(&file), image]))?;
    cluster.run([
        "rbd",
        "snap",
        "create",
        "--no-progress",
        &format!("{image}@s"),
    ])?;
    let snap = product.map(&format!("{image}@s"), &[])?;
    let info = client::info(&snap)?;
    ensure!(
        info["is_read_only"] == true,
        "a snapshot can be written: {info}"
    );
    let head = product.map(image, &[])?;
    for mapped in [&snap, &head] {
        ensure!(
            client::sha256(mapped, &product.scratch("out"))? == sum,
            "{image}: {} gives other bytes than librbd wrote",
            mapped.uri
        );
    }
    // Now the two part, as librbd sees it too.
    client::qemu(&head.uri, &["write -P 0xaa 0 17M", "flush"])?;
    ensure!(
        client::sha256(&snap, &product.scratch("out"))? == sum,
        "the snapshot changed"
    );
    ensure!(
        exported(cluster, product, &format!("{image}@s"))? == sum,
        "the snapshot changed"
    );
    let new = exported(cluster, product, image)?;
    ensure!(new != sum && client::sha256(&head, &product.scratch("out"))? == new);
    for mapped in [snap, head] {
        product.unmap(text(&mapped.socket))?;
    }
    product.assert_gone()
}

/// Blocks that fio's rbd engine wrote are verified by fio over NBD, and the other way round.
fn fio_both_ways(cluster: &Cluster, product: &Product, image: &str) -> Result<()> {
    let mapped = product.map(&format!("rbd/{image}"), &[])?;
    let conf = cluster.conf_path();
    let env = [("CEPH_CONF", text(&conf))];
    let uri = format!("--uri={}", mapped.uri);
    let name = format!("--rbdname={image}");
    let ours = ["--ioengine=nbd", &uri];
    let theirs = ["--ioengine=rbd", "--pool=rbd", "--clientname=admin", &name];
    let job = [
        "--rw=randwrite",
        "--bsrange=512-128k",
        "--blockalign=512",
        "--iodepth=16",
        "--size=16M",
        "--verify=crc32c",
        "--verify_fatal=1",
    ];
    for (writer, reader, seed) in [(&theirs[..], &ours[..], "11"), (&ours, &theirs, "12")] {
        let seed = format!("--randseed={seed}");
        let write: Vec<&str> = [writer, &job, &[&seed, "--do_verify=0"]].concat();
        client::fio(&write, &env, 2 * MINUTE)?;
        let verify: Vec<&str> = [reader, &job, &[&seed, "--verify_only=1"]].concat();
        let report = client::fio(&verify, &env, 2 * MINUTE)?;
        let read = report["jobs"][0]["read"]["io_bytes"].as_u64();
        ensure!(
            read.is_some_and(|bytes| bytes >= 15 * MIB),
            "fio verified {read:?} bytes"
        );
    }
    product.unmap(image)?;
    product.assert_gone()
}

fn create(cluster: &Cluster, image: &str, mib: u64, options: &[&str]) -> Result<()> {
    let size = format!("{mib}M");
    let argv = [
        "rbd",
        "create",
        "--size",
        &size,
        "--image-feature",
        "layering",
    ];
    cluster
        .run(argv.iter().chain(options).chain(&[image]))
        .map(drop)
}

const STRIPED: [&str; 6] = [
    "--object-size",
    "1M",
    "--stripe-unit",
    "64K",
    "--stripe-count",
    "4",
];

/// Everything, on one cluster that has a second pool for data.
fn all_kinds(cluster: &Cluster, data_pool: &str) -> Result<()> {
    let product = Product::new(cluster)?;
    let product = &product;
    let mib = if long() { 1024 } else { 64 };
    cluster.run(["rbd", "namespace", "create", "rbd/tenant"])?;
    create(cluster, "rbd/plain", mib, &[])?;
    copies(cluster, product, "rbd/plain", mib, 1)?;
    requests(cluster, product, "rbd/plain", mib)?;
    create(cluster, "rbd/striped", 64, &STRIPED)?;
    copies(cluster, product, "rbd/striped", 64, 2)?;
    requests(cluster, product, "rbd/striped", 64)?;
    create(cluster, "rbd/wide", 64, &["--data-pool", data_pool])?;
    copies(cluster, product, "rbd/wide", 64, 3)?;
    requests(cluster, product, "rbd/wide", 64)?;
    create(cluster, "rbd/tenant/inner", 16, &[])?;
    copies(cluster, product, "rbd/tenant/inner", 16, 4)?;
    create(cluster, "rbd/fs", 64, &[])?;
    filesystem(cluster, product, "rbd/fs", 64)?;
    imports(cluster, product, "rbd/imported", &[])?;
    imports(cluster, product, "rbd/tenant/striped", &STRIPED)?;
    imports(
        cluster,
        product,
        "rbd/imported-wide",
        &["--data-pool", data_pool],
    )
}

const NEEDS: [Need; 4] = [Need::NBDINFO, Need::NBDCOPY, Need::QEMU_IO, Need::MKFS_EXT4];

fn has(version: Version, fio: bool) -> bool {
    let mut needs = NEEDS.to_vec();
    needs.push(Need::Ceph(version));
    if fio {
        needs.push(Need::FIO);
    }
    require(&needs)
}

/// A replicated pool for data, since erasure coding with overwrites takes bluestore.
fn with_data_pool(cluster: &Cluster) -> Result<()> {
    cluster.ceph_batch(&[
        "osd pool create data 8",
        "osd pool application enable data rbd",
    ])?;
    all_kinds(cluster, "data")
}

#[test]
fn ceph_16_and_an_erasure_coded_pool() -> Result<()> {
    if !has(Version::V16, true) {
        return Ok(());
    }
    let builder = Cluster::builder().version(Version::V16).osds(3);
    let builder = builder.store(Store::Bluestore).ec(2, 1).pg_num(8);
    let cluster = builder.start()?;
    all_kinds(&cluster, "rbd-ec")?;
    create(&cluster, "rbd/fio", 16, &[])?;
    fio_both_ways(&cluster, &Product::new(&cluster)?, "fio")
}

#[test]
fn ceph_18() -> Result<()> {
    if !has(Version::V18, true) {
        return Ok(());
    }
    let cluster = Cluster::builder().version(Version::V18).start()?;
    with_data_pool(&cluster)?;
    create(&cluster, "rbd/fio", 16, &STRIPED)?;
    fio_both_ways(&cluster, &Product::new(&cluster)?, "fio")
}

/// Its keys are of the new type.
#[test]
fn ceph_20() -> Result<()> {
    if !has(Version::V20, false) {
        return Ok(());
    }
    let builder = Cluster::builder().version(Version::V20);
    let cluster = builder.cipher(Cipher::Aes256k).start()?;
    let key = fs::read_to_string(cluster.keyring_path())?;
    ensure!(key.contains("key = Ag"), "not a key of type 2: {key}");
    with_data_pool(&cluster)
}

/// The other ways to authenticate and protect connections: whether they carry data at all, both
/// ways, in frames small and large.
fn other_ways(builder: Builder, version: Version) -> Result<()> {
    if !has(version, false) {
        return Ok(());
    }
    let cluster = builder.version(version).start()?;
    let product = Product::new(&cluster)?;
    create(&cluster, "rbd/one", 48, &[])?;
    copies(&cluster, &product, "rbd/one", 48, 6)?;
    requests(&cluster, &product, "rbd/one", 48)?;
    imports(&cluster, &product, "rbd/two", &[])
}

fn secure() -> Builder {
    Cluster::builder().mode(Mode::Secure)
}

fn open() -> Builder {
    Cluster::builder().auth(Auth::None).mode(Mode::Crc)
}

#[test]
fn ceph_16_secure() -> Result<()> {
    other_ways(secure(), Version::V16)
}

#[test]
fn ceph_18_secure() -> Result<()> {
    other_ways(secure(), Version::V18)
}

#[test]
fn ceph_20_secure() -> Result<()> {
    other_ways(secure().cipher(Cipher::Aes256k), Version::V20)
}

#[test]
fn ceph_20_secure_with_keys_of_the_old_type() -> Result<()> {
    other_ways(secure().cipher(Cipher::Aes), Version::V20)
}

#[test]
fn ceph_20_with_keys_of_the_old_type() -> Result<()> {
    if !has(Version::V20, true) {
        return Ok(());
    }
    let builder = Cluster::builder().version(Version::V20).cipher(Cipher::Aes);
    let cluster = builder.start()?;
    create(&cluster, "rbd/fio", 16, &[])?;
    // The librbd that fio is linked with knows no other keys.
    fio_both_ways(&cluster, &Product::new(&cluster)?, "fio")
}

#[test]
fn ceph_16_without_authentication() -> Result<()> {
    other_ways(open(), Version::V16)
}

#[test]
fn ceph_18_without_authentication() -> Result<()> {
    other_ways(open(), Version::V18)
}

#[test]
fn ceph_20_without_authentication() -> Result<()> {
    other_ways(open(), Version::V20)
}
