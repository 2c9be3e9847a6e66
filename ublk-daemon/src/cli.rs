//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::spec::{self, ImageSpec, PoolSpec};

/// Attach RBD images of a Ceph cluster as block devices, from userspace.
#[derive(Debug, Parser)]
#[command(name = "ublk-rbd", version, about, max_term_width = 100)]
pub struct Cli {
    #[command(flatten)]
    pub cluster: ClusterArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Directory of the daemon's control socket and of the disks' sockets
    /// [default: /run/ublk-rbd as root, else $XDG_RUNTIME_DIR/ublk-rbd]
    #[arg(long, global = true, value_name = "DIR", env = "UBLK_RBD_RUN_DIR")]
    pub run_dir: Option<PathBuf>,
    #[command(subcommand)]
    pub command: Command,
}

/// Which cluster, and who we are there. The same options as Ceph's own tools have.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Cluster options")]
pub struct ClusterArgs {
    /// Ceph configuration file [default: $CEPH_CONF, /etc/ceph/CLUSTER.conf, ...]
    #[arg(short = 'c', long, global = true, value_name = "FILE")]
    pub conf: Option<PathBuf>,
    /// Keyring file with the user's key
    #[arg(short = 'k', long, global = true, value_name = "FILE")]
    pub keyring: Option<PathBuf>,
    /// User, without `client.` [default: admin]
    #[arg(long, global = true, value_name = "USER", alias = "user")]
    pub id: Option<String>,
    /// User, with its type: `client.admin`
    #[arg(
        short = 'n',
        long,
        global = true,
        value_name = "TYPE.ID",
        conflicts_with = "id"
    )]
    pub name: Option<String>,
    /// Monitor addresses, overriding the configuration file
    #[arg(short = 'm', long, global = true, value_name = "ADDRS")]
    pub mon_host: Option<String>,
    /// Seconds that finding the cluster may take; 0 is for ever. Overrides client_mount_timeout
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 30)]
    pub connect_timeout: u64,
    /// Cluster name, which picks the configuration file [default: ceph]
    #[arg(long, global = true, value_name = "NAME")]
    pub cluster: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub struct OutputArgs {
    /// How to print results
    #[arg(long, global = true, value_enum, default_value_t = Format::Plain)]
    pub format: Format,
    /// Say more on standard error; twice for debugging
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Plain,
    Json,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Attach an image; prints where it is
    Map(MapArgs),
    /// Detach an image
    Unmap(UnmapArgs),
    /// Serve the ublk devices again that a daemon which died has left; starts a daemon when none
    /// is running
    Attach,
    /// List attached images
    #[command(visible_alias = "showmapped")]
    List,
    /// Work with images: create, ls, info, rm
    #[command(subcommand)]
    Image(ImageCommand),
    /// Measure
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Run a cluster of one machine, for a first try and for tests: start, stop, status, fault
    Cluster(EmbeddedArgs),
    /// Show the main job: a cluster, an image and a disk from nothing
    Quickstart(QuickstartArgs),
    /// Serve attached images until stopped. `map` starts one when none is running. A ublk device
    /// outlives its daemon: the next one takes it over
    Daemon(DaemonArgs),
    /// Print POOL/IMAGE of a ublk device, for udev
    #[command(hide = true)]
    DeviceName {
        /// As the kernel calls it: ublkb0, ublkb0p1
        device: String,
    },
}

#[derive(Debug, Clone, Args)]
pub struct EmbeddedArgs {
    /// Directory of the cluster [default: RUN_DIR/cluster]
    #[arg(long, global = true, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    #[command(subcommand)]
    pub command: EmbeddedCommand,
}

#[derive(Debug, Clone, Subcommand)]
pub enum EmbeddedCommand {
    /// Start a cluster, and make it where there is none; prints what to tell clients
    Start(StartArgs),
    /// Stop it. What is in its directory stays
    Stop,
    /// Show what it serves and what that costs
    Status,
    /// Have requests fail, for tests of clients
    #[command(subcommand)]
    Fault(FaultCommand),
}

#[derive(Debug, Clone, Args)]
pub struct StartArgs {
    /// Keep objects in memory: they are gone when the cluster stops. So it is without --dir
    #[arg(long)]
    pub memory: bool,
    /// OSDs, each with a thread of its own [default: one for each CPU, at most 4]
    #[arg(long, value_name = "N")]
    pub osds: Option<u32>,
    /// Address of the monitor; port 0 picks a free one [default: the last one, or 127.0.0.1:6700]
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Option<std::net::SocketAddr>,
    /// Allow --listen on an address that is not loopback
    #[arg(long, requires = "listen")]
    pub allow_remote: bool,
    /// How clients prove who they are [default: the last one, or cephx]
    #[arg(long, value_enum)]
    pub auth: Option<AuthArg>,
    /// Pool to make where it is missing
    #[arg(long, value_name = "NAME", default_value = "rbd")]
    pub pool: String,
    /// Stay in the foreground until interrupted
    #[arg(long)]
    pub foreground: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AuthArg {
    Cephx,
    None,
}

#[derive(Debug, Clone, Subcommand)]
pub enum FaultCommand {
    /// Add a fault; prints its number on each OSD
    Add(FaultArgs),
    /// List faults
    Ls,
    /// Remove faults; requests that they hold back go on
    Clear {
        /// Only this OSD's
        #[arg(long, value_name = "ID")]
        osd: Option<u32>,
        /// Only the one of this number
        #[arg(requires = "osd", value_name = "NUMBER")]
        number: Option<u64>,
    },
}

#[derive(Debug, Clone, Args)]
pub struct FaultArgs {
    /// What happens: delay=MS, drop, reset, error=ERRNO or stall
    pub action: String,
    /// Which requests: any, read, write, watch, notify, list, map, call or call=CLASS[.METHOD]
    #[arg(long, value_name = "CLASS", default_value = "any")]
    pub op: String,
    /// Only objects of this pool
    #[arg(long)]
    pub pool: Option<String>,
    /// Only objects whose names begin so
    #[arg(long, value_name = "PREFIX")]
    pub object: Option<String>,
    /// How often, from 0 to 1
    #[arg(long, default_value_t = 1.0)]
    pub probability: f64,
    /// How many times at most
    #[arg(long)]
    pub count: Option<u32>,
    /// Carry the request out first, and let its answer suffer
    #[arg(long)]
    pub after: bool,
    /// Only on this OSD
    #[arg(long, value_name = "ID")]
    pub osd: Option<u32>,
}

#[derive(Debug, Clone, Args)]
pub struct MapArgs {
    /// POOL[/NAMESPACE]/IMAGE[@SNAP]
    pub image: ImageSpec,
    /// How the image is attached [default: ublk; nbd with --socket or --tcp]
    #[arg(long, value_enum, env = "UBLK_RBD_FRONTEND")]
    pub frontend: Option<Frontend>,
    /// The block device to make, /dev/ublkbN or N [default: the first that is free]
    #[arg(long, value_name = "DEVICE", value_parser = ublk_number, conflicts_with_all = ["socket", "tcp"])]
    pub device: Option<u32>,
    /// Queues of the block device, all served by the disk's iothread
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub queues: u16,
    /// Requests in flight of each queue. Each has 512 KiB of locked memory
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub queue_depth: u16,
    /// Unix socket of the NBD export [default: RUN_DIR/POOL-IMAGE.sock]
    #[arg(long, value_name = "PATH", conflicts_with = "tcp")]
    pub socket: Option<PathBuf>,
    /// Serve NBD on this TCP address instead of a unix socket
    #[arg(long, value_name = "ADDR:PORT")]
    pub tcp: Option<std::net::SocketAddr>,
    /// Allow --tcp on an address that is not loopback. NBD here has neither encryption nor passwords
    #[arg(long, requires = "tcp")]
    pub allow_remote: bool,
    /// Refuse writes. Snapshots are always read-only
    #[arg(short, long, visible_alias = "ro")]
    pub read_only: bool,
    /// Fail a request that the cluster has not answered after this many seconds
    /// [default: wait, as krbd does]
    #[arg(long, value_name = "SECONDS")]
    pub request_timeout: Option<u64>,
    /// Run the iothread of this disk on this CPU
    #[arg(long, value_name = "CPU")]
    pub cpu: Option<usize>,
    /// Stay in the foreground and serve this image until interrupted, without a daemon
    #[arg(long)]
    pub foreground: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Frontend {
    /// Block device /dev/ublkbN. Needs Linux 6.5 or later with ublk_drv
    Ublk,
    /// Network block device, on a unix socket or TCP
    Nbd,
}

impl MapArgs {
    /// The front end that was named, or what the other options ask for.
    pub fn frontend(&self) -> Frontend {
        let nbd = self.socket.is_some() || self.tcp.is_some();
        let default = if nbd { Frontend::Nbd } else { Frontend::Ublk };
        self.frontend.unwrap_or(default)
    }
}

/// `/dev/ublkbN` or `N`.
fn ublk_number(text: &str) -> Result<u32, String> {
    let number = text.strip_prefix("/dev/ublkb").unwrap_or(text);
    // The driver's `UBLK_MAX_UBLKS`.
    match number.parse() {
        Ok(n) if n < (1 << 20) && number.bytes().all(|b| b.is_ascii_digit()) => Ok(n),
        _ => Err("not /dev/ublkbN".to_owned()),
    }
}

#[derive(Debug, Clone, Args)]
pub struct UnmapArgs {
    /// The image, its socket, or the id that `list` shows
    pub target: String,
    /// Detach at once: requests in flight fail. Needs no cluster
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Clone, Args)]
pub struct QuickstartArgs {
    /// Directory of the cluster and the sockets [default: /var/tmp/ublk-rbd-quickstart-UID]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Keep objects in memory instead of files in that directory
    #[arg(long)]
    pub memory: bool,
    /// Seconds for each measurement
    #[arg(long, default_value_t = 3.0, value_parser = runtime)]
    pub runtime: f64,
    /// Detach, end the cluster and remove all of it
    #[arg(long)]
    pub clean: bool,
}

/// Seconds of a measurement.
fn runtime(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if seconds > 0.0 && seconds <= 86_400.0 => Ok(seconds),
        _ => Err("not a number of seconds above 0, at most 86400".to_owned()),
    }
}

#[derive(Debug, Clone, Args)]
pub struct DaemonArgs {
    /// Exit once the last image is detached
    #[arg(long)]
    pub exit_when_idle: bool,
}

#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// Create an image
    Create(CreateArgs),
    /// List the images of a pool
    Ls {
        /// POOL[/NAMESPACE] [default: rbd_default_pool]
        pool: Option<PoolSpec>,
    },
    /// Show one image
    Info {
        /// POOL[/NAMESPACE]/IMAGE
        image: ImageSpec,
    },
    /// Remove an image and its data
    Rm {
        /// POOL[/NAMESPACE]/IMAGE
        image: ImageSpec,
        /// Print no progress
        #[arg(long)]
        no_progress: bool,
    },
}

#[derive(Debug, Clone, Args)]
pub struct CreateArgs {
    /// POOL[/NAMESPACE]/IMAGE
    pub image: ImageSpec,
    /// Size; a bare number is megabytes
    #[arg(short, long, value_parser = spec::megabytes)]
    pub size: u64,
    /// Bytes of one object, a power of two from 4K to 32M
    #[arg(long, value_parser = spec::bytes, default_value = "4M")]
    pub object_size: u64,
    /// Bytes of one stripe unit; goes with --stripe-count
    #[arg(long, value_parser = spec::bytes, requires = "stripe_count")]
    pub stripe_unit: Option<u64>,
    /// Objects one stripe runs over
    #[arg(long, requires = "stripe_unit")]
    pub stripe_count: Option<u64>,
    /// Pool for the data, when it is not the header's (an erasure-coded pool, say)
    #[arg(long, value_name = "POOL")]
    pub data_pool: Option<String>,
    /// Features, comma-separated or repeated [default: layering]
    #[arg(long, value_name = "FEATURE", value_delimiter = ',')]
    pub image_feature: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// I/O on an image, in this process, without a front end
    Image(BenchImageArgs),
    /// Messages between two threads of this process, beside a bare socket
    Messenger(BenchMessengerArgs),
}

#[derive(Debug, Clone, Args)]
pub struct BenchMessengerArgs {
    /// Bytes of a message's payload
    #[arg(long, value_parser = spec::bytes, value_delimiter = ',', default_value = "4k,64k")]
    pub bs: Vec<u64>,
    /// Messages in flight
    #[arg(long, default_value_t = 64)]
    pub qd: usize,
    /// Seconds of one run
    #[arg(long, default_value_t = 1.0)]
    pub runtime: f64,
    /// Runs of each case, by turns; the median counts
    #[arg(long, default_value_t = 5)]
    pub rounds: u32,
    /// Run the answering thread on this CPU
    #[arg(long, value_name = "CPU")]
    pub server_cpu: Option<usize>,
    /// Run the asking thread on this CPU
    #[arg(long, value_name = "CPU")]
    pub client_cpu: Option<usize>,
}

#[derive(Debug, Clone, Args)]
pub struct BenchImageArgs {
    /// POOL[/NAMESPACE]/IMAGE[@SNAP]
    pub image: ImageSpec,
    /// What to do
    #[arg(long, value_enum, default_value_t = Pattern::Randread)]
    pub rw: Pattern,
    /// Bytes of one request
    #[arg(long, value_parser = spec::bytes, default_value = "4k")]
    pub bs: u64,
    /// Requests in flight
    #[arg(long, default_value_t = 32)]
    pub qd: u32,
    /// Seconds to run
    #[arg(long, default_value_t = 10.0)]
    pub runtime: f64,
    /// Share of reads in randrw, in percent
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub rwmixread: u8,
    /// Seed of offsets and data
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Run the iothread on this CPU
    #[arg(long, value_name = "CPU")]
    pub cpu: Option<usize>,
    /// Allow patterns that write: what is in the image is lost
    #[arg(long)]
    pub destroy_data: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Pattern {
    Randread,
    Randwrite,
    Randrw,
    Read,
    Write,
}

impl Pattern {
    pub fn writes(self) -> bool {
        !matches!(self, Pattern::Randread | Pattern::Read)
    }

    pub fn is_random(self) -> bool {
        !matches!(self, Pattern::Read | Pattern::Write)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_documented_calls_parse() {
        for line in [
            "ublk-rbd map --frontend nbd --socket /tmp/s --read-only rbd/ns/vm@s1",
            "ublk-rbd map --device /dev/ublkb7 --queues 2 --queue-depth 64 rbd/vm",
            "ublk-rbd attach",
            "ublk-rbd --conf c --keyring k --id u --mon-host 127.0.0.1 image ls rbd",
            "ublk-rbd image create --size 1G --stripe-unit 64K --stripe-count 4 rbd/x",
            "ublk-rbd bench image --rw randrw --bs 4k --qd 32 --runtime 2 --format json rbd/x",
            "ublk-rbd unmap rbd/x --force",
            "ublk-rbd list --format json",
            "ublk-rbd bench messenger --bs 4k,64k --qd 64 --rounds 3",
            "ublk-rbd cluster start --dir /tmp/c --osds 2 --listen 127.0.0.1:0 --auth none",
            "ublk-rbd cluster status --dir /tmp/c --format json",
            "ublk-rbd cluster fault add delay=100 --op call=rbd --probability 0.5",
            "ublk-rbd cluster fault clear --osd 1 3",
        ] {
            Cli::try_parse_from(line.split(' ')).unwrap_or_else(|e| panic!("{line}: {e}"));
        }
        assert!(Cli::try_parse_from(["ublk-rbd", "map", "a/b/c/d"]).is_err());
        assert!(Cli::try_parse_from(["ublk-rbd", "map", "a/b", "--allow-remote"]).is_err());
        for device in ["/dev/sda", "/dev/ublkb", "ublkb1", "+1", "1048576"] {
            let line = ["ublk-rbd", "map", "a/b", "--device", device];
            assert!(Cli::try_parse_from(line).is_err(), "{device}");
        }
    }
}
