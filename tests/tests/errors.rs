//! What goes wrong ends in one line that says why, and leaves nothing behind: no process, no
//! socket, no watcher, no object.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use harness::ceph::{Cluster, Version};
use harness::product::{Product, client, refusal_of, text};
use harness::tools::{sha256_file, write_pattern};
use harness::{Need, require};

/// Seconds after which a cluster that cannot be found is given up, and the same with some grace
/// for a busy machine.
const GIVE_UP: &str = "3";
const GIVEN_UP: Duration = Duration::from_secs(8);

/// A cluster and what fails against it.
struct Bench {
    cluster: Cluster,
    product: Product,
}

impl Bench {
    fn start(version: Version) -> Result<Bench> {
        let cluster = Cluster::builder().version(version).start()?;
        let product = Product::new(&cluster)?;
        Ok(Bench { cluster, product })
    }

    /// The command fails for a reason that names all of `words`, and nothing is left.
    fn refused(&self, args: &[&str], words: &[&str]) -> Result<()> {
        self.refusal(self.product.command(args), words)
    }

    fn refusal(&self, command: Command, words: &[&str]) -> Result<()> {
        let line = harness::tools::command_line(&command);
        let why = refusal_of(command)?;
        eprintln!("  {why}");
        for word in words {
            ensure!(why.contains(word), "`{line}` says {why:?} without {word:?}");
        }
        self.product.assert_gone()
    }

    fn rbd(&self, args: &[&str]) -> Result<String> {
        self.cluster.run(["rbd"].iter().chain(args))
    }

    fn objects(&self) -> Result<Vec<String>> {
        let listed = self.cluster.run(["rados", "-p", "rbd", "ls", "--all"])?;
        let mut objects: Vec<_> = listed.lines().map(str::to_owned).collect();
        objects.sort();
        Ok(objects)
    }

    fn unwatched(&self, image: &str) -> Result<()> {
        let status = self.rbd(&["status", image])?;
        ensure!(status.contains("Watchers: none"), "{image}: {status}");
        Ok(())
    }
}

#[test]
fn a_cluster_that_is_not_to_be_had() -> Result<()> {
    if !require(&[Need::Ceph(Version::V18)]) {
        return Ok(());
    }
    let bench = Bench::start(Version::V18)?;
    bench.rbd(&[
        "create",
        "--size",
        "8M",
        "--image-feature",
        "layering",
        "rbd/one",
    ])?;
    let map = ["map", "rbd/one"];
    let with = |options: &[&'static str]| [&map[..], options].concat();

    // The configuration.
    let mut missing = bench
        .product
        .bare_command(["--conf", "/nonexistent/ceph.conf"]);
    missing.args(map);
    bench.refusal(missing, &["/nonexistent/ceph.conf"])?;
    let broken = bench.product.scratch("broken.conf");
    fs::write(&broken, "[global\nmon_host = 127.0.0.1\n")?;
    let mut command = bench.product.bare_command(["--conf", text(&broken)]);
    command.args(map);
    bench.refusal(command, &[text(&broken)])?;
    let empty = bench.product.scratch("empty.conf");
    fs::write(
        &empty,
        "[global]\nfsid = 00000000-0000-0000-0000-000000000001\n",
    )?;
    let mut command = bench.product.bare_command(["--conf", text(&empty)]);
    command.args(map);
    bench.refusal(command, &["mon_host"])?;

    // The key. A keyring's path is the test's own, so the words are those that name it.
    let absent = bench.product.scratch("absent.keyring");
    bench.refused(
        &["--keyring", text(&absent), "map", "rbd/one"],
        &[text(&absent)],
    )?;
    let keyring = fs::read_to_string(bench.cluster.keyring_path())?;
    let wrong = bench.product.scratch("wrong.keyring");
    let other = bench.cluster.run(["ceph-authtool", "--gen-print-key"])?;
    let key = |line: &&str| line.trim_start().starts_with("key =");
    let line = keyring.lines().find(key).unwrap_or_default();
    fs::write(&wrong, keyring.replace(line, &format!("\tkey = {other}")))?;
    bench.refused(
        &["--keyring", text(&wrong), "map", "rbd/one"],
        &["client.admin", "refuse"],
    )?;
    fs::write(&wrong, keyring.replace(line, "\tkey = no base64!"))?;
    bench.refused(
        &["--keyring", text(&wrong), "map", "rbd/one"],
        &[text(&wrong)],
    )?;
    bench.refused(&["--id", "nobody", "map", "rbd/one"], &["client.nobody"])?;
    // A user that the keyring knows and the cluster does not.
    let stranger = bench.product.scratch("stranger.keyring");
    fs::write(
        &stranger,
        keyring.replace("client.admin", "client.stranger"),
    )?;
    let args = [
        "--id",
        "stranger",
        "--keyring",
        text(&stranger),
        "map",
        "rbd/one",
    ];
    bench.refused(&args, &["client.stranger"])?;

    // The monitor. Nobody listens on a port that was free a moment ago.
    let free = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    let hosts = |addr: &str| -> Result<()> {
        let args = [
            "--mon-host",
            addr,
            "--connect-timeout",
            GIVE_UP,
            "map",
            "rbd/one",
        ];
        let begun = Instant::now();
        bench.refused(&args, &[addr])?;
        ensure!(
            begun.elapsed() < GIVEN_UP,
            "gave up after {:?}",
            begun.elapsed()
        );
        Ok(())
    };
    hosts(&free)?;
    let v2 = bench.cluster.mon_addrs()[0];
    hosts(&format!("127.0.0.1:{}", v2.port() + 1))?;
    // Something that takes connections and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0")?;
    hosts(&silent.local_addr()?.to_string())?;
    let name = ["--mon-host", "no-such-host.invalid", "map", "rbd/one"];
    bench.refused(&name, &["no-such-host.invalid"])?;

    // Commands for the daemon that do not start one.
    bench.refused(&["unmap", "rbd/one"], &["rbd/one", "no daemon"])?;
    ensure!(bench.product.run(["list"])?.is_empty());
    ensure!(bench.product.json(["list"])? == serde_json::json!([]));
    bench.refused(
        &with(&["--socket", "/nonexistent/dir/s"]),
        &["/nonexistent/dir/s"],
    )?;
    bench.unwatched("rbd/one")
}

#[test]
fn images_that_cannot_be_attached() -> Result<()> {
    if !require(&[Need::Ceph(Version::V16), Need::NBDCOPY, Need::QEMU_IO]) {
        return Ok(());
    }
    let bench = Bench::start(Version::V16)?;
    let file = bench.product.scratch("file");
    let sum = write_pattern(&file, 9, 3)?;
    let import = |image: &str, feature: &str| {
        let argv = ["import", "--no-progress", "--image-feature", feature];
        bench.rbd(&[&argv[..], &[text(&file), image]].concat())
    };
    import("rbd/one", "layering")?;
    let before = bench.objects()?;
    bench.refused(&["map", "nowhere/one"], &["nowhere"])?;
    bench.refused(&["map", "rbd/none"], &["none", "image ls"])?;
    bench.refused(&["map", "rbd/nospace/one"], &["nospace"])?;
    bench.refused(&["map", "rbd/one@never"], &["never", "rbd/one"])?;

    // The features that `rbd create` sets by itself are more than can be written with.
    import(
        "rbd/rich",
        "layering,exclusive-lock,object-map,fast-diff,deep-flatten",
    )?;
    let words = ["object-map", "fast-diff", "--read-only"];
    bench.refused(&["map", "rbd/rich"], &words)?;
    let mapped = bench.product.map("rbd/rich", &["--read-only"])?;
    ensure!(client::sha256(&mapped, &bench.product.scratch("out"))? == sum);
    let said = client::qemu_says(&mapped.uri, &[], "write 0 512")?;
    ensure!(said.contains("Permission denied"), "{said}");
    bench.product.unmap("rbd/rich")?;
    bench.product.assert_gone()?;

    bench.rbd(&["snap", "create", "--no-progress", "rbd/one@s"])?;
    bench.rbd(&["snap", "protect", "rbd/one@s"])?;
    let clone = [
        "clone",
        "--image-feature",
        "layering",
        "rbd/one@s",
        "rbd/clone",
    ];
    bench.rbd(&clone)?;
    bench.refused(&["map", "rbd/clone"], &["rbd/clone", "rbd flatten"])?;
    bench.refused(
        &["map", "--read-only", "rbd/clone"],
        &["rbd/clone", "rbd flatten"],
    )?;

    let argv = [
        "rbd",
        "create",
        "--size",
        "8M",
        "--image-format",
        "1",
        "rbd/old",
    ];
    let mut command = bench.cluster.command(argv)?;
    // What it takes to still get one (Ceph: `librbd/internal.cc`, `create`).
    command.env("RBD_FORCE_ALLOW_V1", "1");
    harness::tools::run(command, Duration::from_secs(30))?;
    bench.refused(&["map", "rbd/old"], &["rbd/old", "format 1"])?;
    bench.refused(&["image", "info", "rbd/old"], &["format 1"])?;

    for image in ["rbd/one", "rbd/rich", "rbd/clone"] {
        bench.unwatched(image)?;
    }
    // What was attached in vain or for reading has made no object.
    let mut after = bench.objects()?;
    after.retain(|object| before.contains(object));
    ensure!(after == before, "{after:?} of {before:?}");
    bench.refused(&["image", "rm", "rbd/one"], &["rbd/one", "snapshots"])?;
    ensure!(sha256_file(&file)? == sum);
    Ok(())
}

#[test]
fn sockets_and_images_in_use() -> Result<()> {
    if !require(&[Need::Ceph(Version::V20), Need::NBDINFO]) {
        return Ok(());
    }
    let bench = Bench::start(Version::V20)?;
    let product = &bench.product;
    for name in ["one", "two"] {
        let image = format!("rbd/{name}");
        bench.rbd(&[
            "create",
            "--size",
            "8M",
            "--image-feature",
            "layering",
            &image,
        ])?;
    }
    let before = bench.objects()?;
    let on = |socket: &str| bench.refused(&["map", "--socket", socket, "rbd/one"], &[socket]);
    // Another's socket, which stays another's.
    let theirs = product.scratch("theirs");
    let listener = std::os::unix::net::UnixListener::bind(&theirs)?;
    on(text(&theirs))?;
    ensure!(std::os::unix::net::UnixStream::connect(&theirs).is_ok());
    drop(listener);
    let plain = product.scratch("plain");
    fs::write(&plain, "kept")?;
    on(text(&plain))?;
    ensure!(fs::read_to_string(&plain)? == "kept");
    on(text(&product.scratch(&"x".repeat(120))))?;
    // Root may write anywhere, but not where nothing can be made.
    on("/proc/self/socket")?;
    let unwritable = product.scratch("a-file");
    fs::write(&unwritable, "")?;
    let conf = bench.cluster.conf_path();
    let argv = ["--conf", text(&conf), "--run-dir", text(&unwritable)];
    let mut command = Command::new(harness::product::binary()?);
    command.args(argv).args(["map", "rbd/one"]);
    bench.refusal(command, &[text(&unwritable)])?;
    let mut remote = vec!["map", "rbd/one", "--tcp", "0.0.0.0:0"];
    bench.refused(&remote, &["0.0.0.0", "loopback"])?;
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let addr = taken.local_addr()?.to_string();
    remote[3] = &addr;
    bench.refused(&remote, &[&addr])?;

    // A stale socket is replaced; a second image does not get a living one.
    let mapped = product.map("rbd/one", &["--socket", text(&theirs)])?;
    ensure!(mapped.socket == theirs);
    let mode = fs::metadata(&theirs)?.permissions().mode();
    ensure!(mode & 0o777 == 0o600, "{mode:o}");
    let why = product.refused(["map", "rbd/two", "--socket", text(&theirs)])?;
    ensure!(
        why.contains(text(&theirs)) && why.contains("in use"),
        "{why}"
    );
    bench.unwatched("rbd/two")?;
    let why = product.refused(["unmap", "rbd/two"])?;
    ensure!(
        why.contains("rbd/two") && why.contains("not attached"),
        "{why}"
    );
    ensure!(client::size(&mapped)? == 8 << 20);

    // An image in use is not removed: by us, nor by rbd.
    let why = product.refused(["image", "rm", "rbd/one"])?;
    ensure!(why.contains("rbd/one") && why.contains("in use"), "{why}");
    let rm = bench
        .cluster
        .output(["rbd", "rm", "--no-progress", "rbd/one"], GIVEN_UP * 10)?;
    ensure!(
        !rm.status.success() && rm.stderr_str().contains("watchers"),
        "{}",
        rm.stderr_str()
    );
    product.unmap("rbd/one")?;
    product.assert_gone()?;
    ensure!(!theirs.exists(), "the socket is left");
    bench.unwatched("rbd/one")?;

    let argv = ["image", "create", "--size", "8M", "rbd/one"];
    bench.refused(&argv, &["'one'", "already"])?;
    bench.refused(
        &["image", "create", "--size", "8M", "rbd/nospace/x"],
        &["nospace"],
    )?;
    bench.refused(&["image", "rm", "rbd/none"], &["none"])?;
    bench.refused(&["image", "info", "rbd/none"], &["none"])?;
    bench.refused(&["image", "ls", "nowhere"], &["nowhere"])?;
    let pool = [
        "image",
        "create",
        "--size",
        "8M",
        "--data-pool",
        "nowhere",
        "rbd/x",
    ];
    bench.refused(&pool, &["nowhere"])?;
    let feature = [
        "image",
        "create",
        "--size",
        "8M",
        "--image-feature",
        "speed",
        "rbd/x",
    ];
    bench.refused(&feature, &["speed"])?;
    ensure!(
        bench.objects()? == before,
        "{:?} of {before:?}",
        bench.objects()?
    );
    Ok(())
}

/// Mistakes on the command line itself are clap's to report: exit code 2, and no daemon.
#[test]
fn command_lines_that_make_no_sense() -> Result<()> {
    let product = Product::with_conf("/nonexistent/ceph.conf".into())?;
    for args in [
        &["map"][..],
        &["map", "a/b/c/d"],
        &["map", "rbd/one@"],
        &["image", "create", "rbd/x"],
        &["image", "create", "--size", "1X", "rbd/x"],
        &["map", "rbd/one", "--tcp", "nonsense"],
        &["frobnicate"],
    ] {
        let out = harness::tools::output(product.command(args), GIVEN_UP)?;
        ensure!(
            out.status.code() == Some(2) && out.stdout.is_empty(),
            "{args:?}: {out:?}"
        );
        ensure!(
            out.stderr_str().starts_with("error: "),
            "{}",
            out.stderr_str()
        );
        product.assert_gone()?;
    }
    Ok(())
}
