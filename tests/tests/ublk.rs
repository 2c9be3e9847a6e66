//! `/dev/ublkbN`: what is done with disks, and what happens to them, in a kernel that has ublk.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use harness::ceph::{Client, Cluster, Version};
use harness::disk::{self, Fs, attribute};
use harness::fsx::{Fsx, Kind};
use harness::guest::{Driver, Guest};
use harness::product::{Product, Server, client, text};
use harness::tools::{self, Pattern, Process, sha256_file, wait_for, write_pattern};
use harness::{Need, long};
use nix::sys::signal::Signal;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const MINUTE: Duration = Duration::from_secs(60);

fn guest() -> Guest {
    Guest::with(&[Driver::Ublk])
        .needs(&[Need::FIO])
        .needs(&Fs::NEEDS)
}

/// A server in memory, or with `&[]` one that keeps its objects, and the program for it.
fn bench(options: &[&str]) -> Result<(Server, Product, TempDir)> {
    let server = Server::start(options)?;
    let product = Product::with_conf(server.conf_path())?;
    let scratch = tempfile::Builder::new().prefix("ub.").tempdir_in("/tmp")?;
    Ok((server, product, scratch))
}

fn shell(script: &str) -> Result<String> {
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", script]);
    tools::run(command, 2 * MINUTE)
}

/// Random I/O on a device or a file, verified.
fn fio_args(file: &Path, size: &str) -> Vec<String> {
    let words = "--ioengine=libaio --direct=1 --rw=randrw --bssplit=4k/60:64k/30:1m/10 \
                 --iodepth=16 --verify=crc32c --verify_fatal=1 --randseed=11";
    let mut args: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
    args.push(format!("--filename={}", file.display()));
    args.push(format!("--size={size}"));
    args
}

fn fio(file: &Path, size: &str) -> Result<()> {
    let args = fio_args(file, size);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    client::fio(&args, &[], 3 * MINUTE).map(drop)
}

/// A disk's life on a cluster: looked at, filled, discarded, put under file systems.
fn life(product: &Product, ceph: &Client, scratch: &Path) -> Result<()> {
    product.run(["image", "create", "--size", "512M", "rbd/disk"])?;
    let device = product.map_device("rbd/disk", &[])?;
    ensure!(attribute(&device, "size")? * 512 == 512 * MIB);
    let listed = product.json(["list"])?;
    ensure!(listed[0]["device"] == text(&device) && listed[0]["frontend"] == "ublk");
    let shown = shell(&format!(
        "lsblk --json --bytes --output NAME,SIZE,TYPE,RO,ROTA {}",
        device.display()
    ))?;
    let shown: serde_json::Value = serde_json::from_str(&shown)?;
    let row = &shown["blockdevices"][0];
    ensure!(row["size"] == 512 * MIB && row["type"] == "disk", "{row}");
    ensure!(row["ro"] == false && row["rota"] == false, "{row}");

    fio(&device, "48M")?;
    let mut fsx = Fsx::new(&device, Kind::Device, 4 << 20, 5)?;
    fsx.run(1500)?;
    // Kernels may refuse to mount what somebody has open for writing.
    drop(fsx);
    discards_leave_no_stale_data(&device)?;
    for fs in Fs::ALL {
        fs.exercise(&device, scratch)?;
    }
    Fs::Ext4.make(&device)?;
    let found = shell(&format!("blkid -p -s TYPE -o value {}", device.display()))?;
    ensure!(found.trim() == "ext4", "{found}");
    disk::same_for_librbd(ceph, "rbd/disk", &device, scratch)?;
    product.unmap(text(&device))?;
    ensure!(!device.exists(), "{} is still there", device.display());
    product.assert_gone()
}

#[test]
fn a_disk_on_our_server() -> Result<()> {
    guest().needs(&[Need::Ceph(Version::V18)]).run(|| {
        let (server, product, scratch) = bench(&["--memory", "--osds", "2"])?;
        life(&product, &server.client(Version::V18)?, scratch.path())
    })
}

#[test]
fn a_disk_on_real_ceph() -> Result<()> {
    let guest = guest().needs(&[Need::Ceph(Version::V18)]).memory_mib(4096);
    guest.run(|| {
        let cluster = Cluster::builder().version(Version::V18).start()?;
        let product = Product::new(&cluster)?;
        let ceph = Client::new(Version::V18, &cluster.conf_path())?;
        let scratch = tempfile::Builder::new().prefix("ub.").tempdir_in("/tmp")?;
        life(&product, &ceph, scratch.path())
    })
}

/// Data, then a discard or zeroes over parts of it, at every alignment that the device takes: nothing
/// of what was there before comes back, and what lies beside it stays.
fn discards_leave_no_stale_data(device: &Path) -> Result<()> {
    const AT: u64 = 64 * MIB;
    const LEN: u64 = 10 * MIB;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(device)?;
    let mut buffer = Aligned::new(LEN as usize);
    for (round, (at, len)) in [
        (0, LEN),
        (512, 4096),
        (4096, 65536),
        (65536, 65536),
        (65536 + 512, 3 * MIB),
        (4 * MIB - 512, 1024),
        (4 * MIB, 4 * MIB),
        (LEN - 512, 512),
    ]
    .into_iter()
    .enumerate()
    {
        for zeroes in [true, false] {
            let pattern = Pattern::new(round as u64 * 2 + u64::from(zeroes));
            pattern.fill(0, buffer.bytes());
            file.write_all_at(buffer.bytes(), AT)?;
            let how = if zeroes { "--zeroout" } else { "" };
            shell(&format!(
                "blkdiscard {how} --offset {} --length {len} {}",
                AT + at,
                device.display()
            ))?;
            file.read_exact_at(buffer.bytes(), AT)?;
            let data = buffer.bytes();
            let (from, to) = (at as usize, (at + len) as usize);
            let beside = pattern.mismatch(0, &data[..from]);
            let beside = beside.or(pattern.mismatch(to as u64, &data[to..]));
            ensure!(
                beside.is_none(),
                "{at}+{len}: changed beside it, at {beside:?}"
            );
            let inside = &data[from..to];
            if zeroes {
                let left = inside.iter().position(|b| *b != 0);
                ensure!(left.is_none(), "{at}+{len}: not zero at {left:?}");
                continue;
            }
            // A discard need not do anything, but whole granules either read as zeroes or as before.
            const GRANULE: u64 = 64 << 10;
            let mut first = at;
            while first < at + len {
                let end = ((first / GRANULE + 1) * GRANULE).min(at + len);
                let piece = &data[first as usize..end as usize];
                let kept = pattern.mismatch(first, piece).is_none();
                let zero = piece.iter().all(|b| *b == 0);
                ensure!(kept || zero, "{at}+{len}: something else at {first}");
                if end - first == GRANULE {
                    ensure!(zero, "{at}+{len}: a whole granule was kept at {first}");
                }
                first = end;
            }
        }
    }
    Ok(())
}

/// Memory for direct I/O.
struct Aligned {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    fn new(len: usize) -> Aligned {
        let memory = vec![0; len + 4096];
        let start = memory.as_ptr().align_offset(4096);
        Aligned { memory, start, len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

#[test]
fn limits_are_those_of_the_image() -> Result<()> {
    guest().run(|| {
        let (_server, product, _scratch) = bench(&["--memory"])?;
        product.run(["image", "create", "--size", "300M", "rbd/plain"])?;
        let striped = "image create --size 64M --object-size 1M --stripe-unit 64K --stripe-count 8 rbd/striped";
        product.run(striped.split(' '))?;
        let check = |device: &Path, limits: &[(&str, u64)]| -> Result<()> {
            for (name, value) in limits {
                let found = attribute(device, &format!("queue/{name}"))?;
                ensure!(found == *value, "{name} is {found}, not {value}");
            }
            Ok(())
        };
        let plain = product.map_device("rbd/plain", &[])?;
        check(
            &plain,
            &[
                ("logical_block_size", 512),
                ("physical_block_size", 4096),
                ("minimum_io_size", 65536),
                ("optimal_io_size", 4 << 20),
                ("max_hw_sectors_kb", 512),
                ("discard_granularity", 65536),
                ("discard_max_hw_bytes", 1 << 30),
                ("write_zeroes_max_bytes", 1 << 30),
                ("rotational", 0),
                ("fua", 0),
            ],
        )?;
        let cache = fs::read_to_string(sys(&plain).join("queue/write_cache"))?;
        ensure!(cache.trim() == "write through", "{cache}");
        let options = ["--queues", "2", "--queue-depth", "16", "--device", "7"];
        let striped = product.map_device("rbd/striped", &options)?;
        ensure!(striped == Path::new("/dev/ublkb7"), "{}", striped.display());
        check(&striped, &[("optimal_io_size", 8 << 20)])?;
        fio(&striped, "16M")?;
        let why = product.refused(["map", "--frontend", "ublk", "--device", "7", "rbd/plain"])?;
        ensure!(why.contains("/dev/ublkb7 exists"), "{why}");
        product.unmap("/dev/ublkb7")?;
        product.unmap("rbd/plain")?;
        product.assert_gone()
    })
}

fn sys(device: &Path) -> PathBuf {
    Path::new("/sys/block").join(device.file_name().expect("a device's name"))
}

#[test]
fn a_file_system_grows_with_its_image() -> Result<()> {
    guest().needs(&[Need::Ceph(Version::V18)]).run(|| {
        let (server, product, scratch) = bench(&["--memory"])?;
        let ceph = server.client(Version::V18)?;
        product.run(["image", "create", "--size", "320M", "rbd/disk"])?;
        let device = product.map_device("rbd/disk", &[])?;
        for (fs, mib) in [(Fs::Ext4, 512), (Fs::Xfs, 768)] {
            fs.make(&device)?;
            let at = scratch.path().join(fs.name());
            let mounted = fs.mount(&device, &at)?;
            let sum = write_pattern(&at.join("kept"), 8, 1)?;
            let size = format!("{mib}M");
            ceph.run([
                "rbd",
                "resize",
                "--no-progress",
                "--size",
                &size,
                "rbd/disk",
            ])?;
            wait_for("the new size", MINUTE, || {
                Ok(attribute(&device, "size")? * 512 == mib * MIB)
            })?;
            match fs {
                Fs::Ext4 => shell(&format!("resize2fs {} 2>&1", device.display()))?,
                _ => shell(&format!("xfs_growfs {}", at.display()))?,
            };
            // More than there was room for.
            write_pattern(&at.join("more"), mib - 130, 2)?;
            ensure!(sha256_file(&at.join("kept"))? == sum);
            mounted.unmount()?;
            fs.check(&device)?;
        }
        ensure!(product.json(["list"])?[0]["size"] == 768 * MIB);
        // Smaller: what is beyond the end is gone.
        ceph.run([
            "rbd",
            "resize",
            "--no-progress",
            "--allow-shrink",
            "--size",
            "64M",
            "rbd/disk",
        ])?;
        wait_for("the smaller size", MINUTE, || {
            Ok(attribute(&device, "size")? * 512 == 64 * MIB)
        })?;
        fio(&device, "32M")?;
        product.unmap("rbd/disk")
    })
}

#[test]
fn a_read_only_disk_takes_no_writes() -> Result<()> {
    guest().needs(&[Need::Ceph(Version::V18)]).run(|| {
        let (server, product, scratch) = bench(&["--memory"])?;
        let ceph = server.client(Version::V18)?;
        product.run(["image", "create", "--size", "320M", "rbd/disk"])?;
        let device = product.map_device("rbd/disk", &[])?;
        Fs::Ext4.make(&device)?;
        let at = scratch.path().join("at");
        let mounted = Fs::Ext4.mount(&device, &at)?;
        let sum = write_pattern(&at.join("kept"), 4, 1)?;
        mounted.unmount()?;
        ceph.run(["rbd", "snap", "create", "--no-progress", "rbd/disk@one"])?;
        fio(&device, "32M")?;
        for (image, options) in [
            ("rbd/disk@one", &[][..]),
            ("rbd/disk", &["--read-only"][..]),
        ] {
            let device = product.map_device(image, options)?;
            ensure!(attribute(&device, "ro")? == 1, "{image} can be written to");
            let file = File::options().write(true).open(&device);
            let written =
                file.and_then(|f| f.write_all_at(&[0; 4096], 0).and_then(|()| f.sync_all()));
            ensure!(written.is_err(), "{image} was written to");
            let error = shell(&format!("blkdiscard {} 2>&1", device.display()));
            ensure!(error.is_err(), "{image} was discarded");
            if image.contains('@') {
                shell(&format!(
                    "mount -o ro,noload {} {}",
                    device.display(),
                    at.display()
                ))?;
                ensure!(
                    sha256_file(&at.join("kept"))? == sum,
                    "the snapshot has changed"
                );
                shell(&format!("umount {}", at.display()))?;
            }
            product.unmap(text(&device))?;
        }
        product.unmap("rbd/disk")
    })
}

#[test]
fn udev_names_a_disk_and_its_partitions() -> Result<()> {
    let tools = Need::Tool {
        program: "sfdisk",
        package: "fdisk",
    };
    guest().needs(&[tools]).udev().run(|| {
        let (_server, product, _scratch) = bench(&["--memory"])?;
        let rule = Rule::install(&product)?;
        product.run(["image", "create", "--size", "64M", "rbd/disk"])?;
        let device = product.map_device("rbd/disk", &[])?;
        disk::settle()?;
        let link = Path::new("/dev/ublk-rbd/rbd/disk");
        ensure!(fs::canonicalize(link)? == device);
        shell(&format!(
            "echo ',32M' | sfdisk --quiet {}",
            device.display()
        ))?;
        disk::settle()?;
        let part = Path::new("/dev/ublk-rbd/rbd/disk-part1");
        ensure!(fs::canonicalize(part)? == PathBuf::from(format!("{}p1", device.display())));
        // In use by its partition.
        shell(&format!(
            "mkfs.ext4 -q {0} && mkdir /tmp/p && mount {0} /tmp/p",
            part.display()
        ))?;
        let why = product.refused(["unmap", text(link)])?;
        ensure!(why.contains("mounted on /tmp/p"), "{why}");
        shell("umount /tmp/p && rmdir /tmp/p")?;
        // A name of udev's is as good as any.
        product.unmap(text(link))?;
        disk::settle()?;
        ensure!(fs::symlink_metadata(link).is_err(), "the link is left");
        drop(rule);
        product.assert_gone()
    })
}

/// Our rule, for the program under test, as long as this lives.
struct Rule(PathBuf);

impl Rule {
    fn install(product: &Product) -> Result<Rule> {
        let text = include_str!("../../packaging/60-ublk-rbd.rules");
        let program = product.bare_command(["device-name"]);
        let words: Vec<String> = [program.get_program()]
            .into_iter()
            .chain(program.get_args())
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        let ours = text.replace("/usr/bin/ublk-rbd device-name", &words.join(" "));
        ensure!(ours != text, "the rule runs something else");
        fs::create_dir_all("/run/udev/rules.d")?;
        let path = PathBuf::from("/run/udev/rules.d/60-ublk-rbd-test.rules");
        fs::write(&path, ours)?;
        let rule = Rule(path);
        shell("udevadm control --reload")?;
        Ok(rule)
    }
}

impl Drop for Rule {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
        let _ = shell("udevadm control --reload");
    }
}

#[test]
fn other_devices_stand_on_it() -> Result<()> {
    let tools = [
        Need::Tool {
            program: "cryptsetup",
            package: "cryptsetup-bin",
        },
        Need::Tool {
            program: "dmsetup",
            package: "dmsetup",
        },
    ];
    let guest = Guest::with(&[Driver::Ublk, Driver::DeviceMapper]);
    guest.needs(&tools).needs(&Fs::NEEDS).udev().run(|| {
        let (_server, product, scratch) = bench(&["--memory"])?;
        for name in ["one", "two"] {
            product.run(["image", "create", "--size", "256M", &format!("rbd/{name}")])?;
        }
        let (one, two) = (product.map_device("rbd/one", &[])?, product.map_device("rbd/two", &[])?);
        // A volume over two disks, with encryption on top.
        let sectors = attribute(&one, "size")?;
        shell(&format!(
            "printf '0 {sectors} linear {} 0\\n{sectors} {sectors} linear {} 0\\n' | dmsetup create both",
            one.display(),
            two.display()
        ))?;
        let why = product.refused(["unmap", "rbd/two"])?;
        ensure!(why.contains("dm-0 is on it"), "{why}");
        shell(
            "echo -n secret | cryptsetup --batch-mode --pbkdf pbkdf2 --pbkdf-force-iterations 1000 \
                --key-file - luksFormat /dev/mapper/both
            echo -n secret | cryptsetup --allow-discards --key-file - open /dev/mapper/both plain",
        )?;
        Fs::Ext4.exercise(Path::new("/dev/mapper/plain"), scratch.path())?;
        shell("cryptsetup close plain && dmsetup remove both")?;
        product.unmap("rbd/one")?;
        product.unmap("rbd/two")?;
        product.assert_gone()
    })
}

#[test]
fn fifty_times_attached_leaves_nothing() -> Result<()> {
    guest().run(|| {
        let (_server, product, _scratch) = bench(&["--memory"])?;
        product.run(["image", "create", "--size", "64M", "rbd/disk"])?;
        product.run(["image", "create", "--size", "64M", "rbd/stays"])?;
        // Keeps the daemon alive.
        product.map_device("rbd/stays", &[])?;
        let daemon = product.daemon()?;
        let files = || -> Result<usize> { Ok(fs::read_dir(format!("/proc/{daemon}/fd"))?.count()) };
        let threads =
            || -> Result<usize> { Ok(fs::read_dir(format!("/proc/{daemon}/task"))?.count()) };
        let mut before = (0, 0, 0);
        for round in 0..50 {
            let device = product.map_device("rbd/disk", &[])?;
            let file = OpenOptions::new().read(true).write(true).open(&device)?;
            file.write_all_at(&Pattern::new(round).bytes(0, 4096), 0)?;
            file.sync_all()?;
            drop(file);
            product.unmap("rbd/disk")?;
            if round == 9 {
                wait_for("idle threads to end", MINUTE, || Ok(threads()? <= 4))?;
                before = (files()?, threads()?, tools::resident_bytes(daemon)?);
            }
        }
        wait_for("idle threads to end", MINUTE, || Ok(threads()? <= before.1))?;
        ensure!(files()? == before.0, "{} files, not {}", files()?, before.0);
        let grown = tools::resident_bytes(daemon)?.saturating_sub(before.2);
        ensure!(grown < 8 * MIB, "{grown} more bytes of memory");
        product.unmap("rbd/stays")?;
        product.assert_gone()
    })
}

/// Operations of many kinds on files and on the device itself.
#[test]
fn random_operations_agree_with_a_model() -> Result<()> {
    let limit = if long() { 60 * MINUTE } else { 10 * MINUTE };
    guest().limit(limit).run(|| {
        let (_server, product, scratch) = bench(&["--memory"])?;
        product.run(["image", "create", "--size", "512M", "rbd/disk"])?;
        let device = product.map_device("rbd/disk", &[])?;
        let count = if long() { 1_000_000 } else { 100_000 };
        let mut fsx = Fsx::new(&device, Kind::Device, 16 << 20, 1)?;
        fsx.run(count / 10)?;
        drop(fsx);
        for (fs, share) in [(Fs::Ext4, 4), (Fs::Xfs, 4), (Fs::Btrfs, 1)] {
            fs.make(&device)?;
            let at = scratch.path().join(fs.name());
            let mounted = fs.mount(&device, &at)?;
            let mut fsx = Fsx::new(&at.join("file"), Kind::File, 8 << 20, 2)?;
            fsx.run(count / 10 * share)?;
            drop(fsx);
            mounted.unmount()?;
            fs.check(&device)?;
        }
        product.unmap("rbd/disk")
    })
}

/// Verified random I/O that goes on until it is ended. (fio starts anew for each pass: when it loops
/// by itself, it looks for the data of another pass.)
struct Load {
    fio: Process,
    said: PathBuf,
    stop: PathBuf,
}

impl Load {
    fn start(file: &Path, size: &str, scratch: &Path) -> Result<Load> {
        let args = fio_args(file, size);
        let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
        args.push("--rate_iops=400,400");
        let fio = client::fio_command(&args);
        let name = file.file_name().context("no name")?.to_string_lossy();
        let (said, stop) = (
            scratch.join(format!("fio-{name}")),
            scratch.join(format!("stop-{name}")),
        );
        let output = File::create(&said)?;
        let again = "until [ -e \"$0\" ]; do \"$@\" || exit 1; done";
        let mut command = Command::new("bash");
        command
            .args(["-c", again, text(&stop), "fio"])
            .args(fio.get_args());
        command.current_dir("/tmp");
        command.stdout(output.try_clone()?).stderr(output);
        let fio = Process::spawn(command)?;
        Ok(Load { fio, said, stop })
    }

    fn is_well(&mut self) -> Result<()> {
        let said = fs::read_to_string(&self.said)?;
        let complaints: Vec<&str> = said
            .lines()
            .filter(|l| l.starts_with("verify") || l.starts_with("fio:"))
            .collect();
        ensure!(
            self.fio.is_running() && complaints.is_empty(),
            "{complaints:#?}"
        );
        Ok(())
    }

    /// Lets the pass that is under way come to its end.
    fn end(&mut self) -> Result<()> {
        self.is_well()?;
        File::create(&self.stop)?;
        let status = self.fio.wait(2 * MINUTE)?;
        ensure!(
            status.success(),
            "fio met an error: {}",
            fs::read_to_string(&self.said)?
        );
        Ok(())
    }
}

/// The file system has not met an error.
fn still_writable(at: &Path) -> Result<()> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let line = mounts
        .lines()
        .find(|l| l.split(' ').nth(1) == Some(text(at)));
    let line = line.with_context(|| format!("{} is not mounted", at.display()))?;
    let options = line.split(' ').nth(3).unwrap_or_default();
    ensure!(options.split(',').any(|o| o == "rw"), "{line}");
    Ok(())
}

#[test]
fn a_killed_daemon_is_replaced_under_a_file_system() -> Result<()> {
    guest().limit(10 * MINUTE).run(|| {
        let (_server, product, scratch) = bench(&["--memory"])?;
        product.run(["image", "create", "--size", "320M", "rbd/disk"])?;
        product.run(["image", "create", "--size", "64M", "rbd/other"])?;
        let device = product.map_device("rbd/disk", &[])?;
        let other = product.map_device("rbd/other", &["--queues", "2", "--queue-depth", "8"])?;
        Fs::Ext4.make(&device)?;
        let at = scratch.path().join("at");
        let mounted = Fs::Ext4.mount(&device, &at)?;
        let mut loads = [
            Load::start(&at.join("file"), "64M", scratch.path())?,
            Load::start(&other, "32M", scratch.path())?,
        ];
        for round in 0..30 {
            sleep(Duration::from_millis(300 + round * 53 % 700));
            product.kill_daemon()?;
            if round % 3 == 0 {
                sleep(Duration::from_millis(200));
            }
            // Whether by the command for it, or because a daemon is started for something else.
            let listed = product.json(["attach"])?;
            let states: Vec<_> = listed.as_array().into_iter().flatten().collect();
            ensure!(states.len() == 2, "{listed}");
            ensure!(states.iter().all(|d| d["state"] == "ok"), "{listed}");
            for load in &mut loads {
                load.is_well().with_context(|| format!("round {round}"))?;
            }
            still_writable(&at)?;
        }
        // In order, as for an upgrade.
        nix::sys::signal::kill(product.daemon()?, Signal::SIGTERM)?;
        wait_for("the daemon's end", MINUTE, || {
            Ok(product.processes()?.is_empty())
        })?;
        ensure!(device.exists() && other.exists(), "a device is gone");
        product.run(["attach"])?;
        sleep(Duration::from_secs(1));
        for load in &mut loads {
            load.end()?;
        }
        mounted.unmount()?;
        Fs::Ext4.check(&device)?;
        // All of what was written is there and right.
        let mounted = Fs::Ext4.mount(&device, &at)?;
        fio(&at.join("file"), "64M")?;
        mounted.unmount()?;
        let complaints = shell("dmesg | grep -E 'I/O error|EXT4-fs error|Remounting' || true")?;
        ensure!(complaints.is_empty(), "{complaints}");
        product.unmap("rbd/disk")?;
        product.unmap("rbd/other")?;
        product.assert_gone()
    })
}

#[test]
fn a_device_that_is_left_alone_can_be_removed() -> Result<()> {
    guest().run(|| {
        let (mut server, product, scratch) = bench(&["--memory"])?;
        for name in ["one", "two"] {
            product.run(["image", "create", "--size", "64M", &format!("rbd/{name}")])?;
        }
        let (one, two) = (
            product.map_device("rbd/one", &[])?,
            product.map_device("rbd/two", &[])?,
        );
        Fs::Ext4.make(&two)?;
        let at = scratch.path().join("at");
        let mounted = Fs::Ext4.mount(&two, &at)?;
        product.kill_daemon()?;
        let listed = product.json(["list"])?;
        let state = listed[0]["state"].as_str().unwrap_or_default();
        ensure!(state.contains("ublk-rbd attach"), "{listed}");
        // Without a daemon, and without a cluster.
        server.kill()?;
        product.unmap("rbd/one")?;
        ensure!(!one.exists());
        let why = product.refused(["unmap", text(&two)])?;
        ensure!(why.contains("mounted on"), "{why}");
        // One that cannot be served yet says so and is tried again.
        let out = tools::output(product.command(["--format", "json", "attach"]), MINUTE)?;
        ensure!(!out.status.success(), "{out:?}");
        ensure!(out.stdout_str().contains("recovering: "), "{out:?}");
        product.run(["unmap", "--force", text(&two)])?;
        ensure!(!two.exists());
        mounted.unmount()?;
        product.assert_gone()?;
        ensure!(disk::stuck_processes()?.is_empty());
        Ok(())
    })
}

#[test]
fn a_cluster_that_goes_and_comes_back_is_waited_for() -> Result<()> {
    guest().limit(10 * MINUTE).run(|| {
        let (mut server, product, scratch) = bench(&[])?;
        product.run(["image", "create", "--size", "320M", "rbd/disk"])?;
        let device = product.map_device("rbd/disk", &[])?;
        Fs::Ext4.make(&device)?;
        let at = scratch.path().join("at");
        let mounted = Fs::Ext4.mount(&device, &at)?;
        let sum = write_pattern(&at.join("kept"), 8, 1)?;
        let mut load = Load::start(&at.join("load"), "32M", scratch.path())?;
        sleep(Duration::from_secs(2));
        server.kill()?;
        let away = if long() { 60 } else { 20 };
        sleep(Duration::from_secs(away));
        load.is_well()?;
        let state = product.json(["list"])?[0]["state"].clone();
        ensure!(
            state.as_str().is_some_and(|s| s.contains("no monitor")),
            "{state}"
        );
        server.restart()?;
        let back = Instant::now();
        // The load goes on.
        let before = attribute_of_stat(&device)?;
        wait_for("requests to go on", MINUTE, || {
            Ok(attribute_of_stat(&device)? > before + 100)
        })?;
        eprintln!(
            "I/O went on {:.1} s after the cluster was back",
            back.elapsed().as_secs_f64()
        );
        still_writable(&at)?;
        load.end()?;
        disk::forget_cached(&device)?;
        ensure!(sha256_file(&at.join("kept"))? == sum);
        mounted.unmount()?;
        Fs::Ext4.check(&device)?;
        product.unmap("rbd/disk")
    })
}

/// Requests that the device has completed.
fn attribute_of_stat(device: &Path) -> Result<u64> {
    let stat = fs::read_to_string(sys(device).join("stat"))?;
    let fields: Vec<u64> = stat
        .split_whitespace()
        .filter_map(|f| f.parse().ok())
        .collect();
    match fields[..] {
        [reads, _, _, _, writes, ..] => Ok(reads + writes),
        _ => bail!("{stat}"),
    }
}

#[test]
fn without_a_cluster_a_device_is_freed_by_force() -> Result<()> {
    guest().run(|| {
        let (mut server, product, scratch) = bench(&["--memory"])?;
        for name in ["idle", "mounted", "raw"] {
            product.run(["image", "create", "--size", "64M", &format!("rbd/{name}")])?;
        }
        let idle = product.map_device("rbd/idle", &[])?;
        let device = product.map_device("rbd/mounted", &[])?;
        let raw = product.map_device("rbd/raw", &[])?;
        Fs::Ext4.make(&device)?;
        let at = scratch.path().join("at");
        let mounted = Fs::Ext4.mount(&device, &at)?;
        server.kill()?;
        // Somebody writes to the file system, and somebody reads the device, and both wait.
        let file = at.join("file");
        let write = std::thread::spawn(move || -> std::io::Result<()> {
            let file = File::create(file)?;
            file.write_all_at(&[1; 1 << 20], 0)?;
            file.sync_all()
        });
        let reader = raw.clone();
        let read = std::thread::spawn(move || File::open(reader)?.read_at(&mut [0; 4096], 8192));
        sleep(Duration::from_secs(2));
        ensure!(
            !read.is_finished() && !write.is_finished(),
            "something did not wait"
        );
        for device in [&idle, &device, &raw] {
            let begin = Instant::now();
            product.run(["unmap", "--force", text(device)])?;
            let took = begin.elapsed();
            ensure!(
                took < Duration::from_secs(5),
                "{} took {took:?}",
                device.display()
            );
            ensure!(!device.exists(), "{} is still there", device.display());
        }
        let read = read.join().ok().context("the reader panicked")?;
        // Or it sees the end of a device that has no size any more.
        ensure!(!matches!(read, Ok(1..)), "read {read:?}");
        let written = write.join().ok().context("the writer panicked")?;
        ensure!(
            written.is_err(),
            "what never reached the cluster was synced"
        );
        mounted.unmount()?;
        let stuck = disk::stuck_processes()?;
        ensure!(stuck.is_empty(), "{stuck:?}");
        product.assert_gone()
    })
}

/// An OSD dies and comes back under a file system on real Ceph. (Of a version that runs without a
/// mount namespace: the revived OSD would keep the file system mounted in its own.)
#[test]
fn an_osd_dies_under_a_file_system() -> Result<()> {
    let guest = guest().needs(&[Need::Ceph(Version::V16)]).memory_mib(6144);
    guest.limit(10 * MINUTE).run(|| {
        let mut cluster = Cluster::builder()
            .version(Version::V16)
            .osds(2)
            .pool_size(2)
            .min_size(1)
            .start()?;
        let product = Product::new(&cluster)?;
        let scratch = tempfile::Builder::new().prefix("ub.").tempdir_in("/tmp")?;
        product.run(["image", "create", "--size", "320M", "rbd/disk"])?;
        let device = product.map_device("rbd/disk", &[])?;
        Fs::Ext4.make(&device)?;
        let at = scratch.path().join("at");
        let mounted = Fs::Ext4.mount(&device, &at)?;
        let sum = write_pattern(&at.join("kept"), 8, 1)?;
        cluster.kill_osd(0)?;
        fio(&at.join("load"), "16M")?;
        cluster.revive_osd(0)?;
        cluster.wait_osd_up(0, 2 * MINUTE)?;
        fio(&at.join("load"), "16M")?;
        disk::forget_cached(&device)?;
        ensure!(sha256_file(&at.join("kept"))? == sum);
        still_writable(&at)?;
        mounted.unmount()?;
        Fs::Ext4.check(&device)?;
        product.unmap("rbd/disk")
    })
}

#[test]
fn a_kernel_without_ublk_is_told_what_to_do() -> Result<()> {
    if Path::new("/dev/ublk-control").exists() {
        eprintln!("skipped: this kernel has ublk");
        return Ok(());
    }
    let (_server, product, _scratch) = bench(&["--memory"])?;
    product.run(["image", "create", "--size", "64M", "rbd/disk"])?;
    let why = product.refused(["map", "--frontend", "ublk", "rbd/disk"])?;
    ensure!(
        why.contains("modprobe ublk_drv") && why.contains("--frontend nbd"),
        "{why}"
    );
    product.assert_gone()
}
