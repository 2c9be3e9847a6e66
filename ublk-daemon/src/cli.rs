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
    /// List attached images
    #[command(visible_alias = "showmapped")]
    List,
    /// Work with images: create, ls, info, rm
    #[command(subcommand)]
    Image(ImageCommand),
    /// Measure
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Serve attached images until stopped. `map` starts one when none is running
    Daemon(DaemonArgs),
}

#[derive(Debug, Clone, Args)]
pub struct MapArgs {
    /// POOL[/NAMESPACE]/IMAGE[@SNAP]
    pub image: ImageSpec,
    /// How the image is attached
    #[arg(long, value_enum, default_value_t = Frontend::Nbd)]
    pub frontend: Frontend,
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
    /// Network block device, on a unix socket or TCP
    Nbd,
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
            "ublk-rbd --conf c --keyring k --id u --mon-host 127.0.0.1 image ls rbd",
            "ublk-rbd image create --size 1G --stripe-unit 64K --stripe-count 4 rbd/x",
            "ublk-rbd bench image --rw randrw --bs 4k --qd 32 --runtime 2 --format json rbd/x",
            "ublk-rbd unmap rbd/x --force",
            "ublk-rbd list --format json",
        ] {
            Cli::try_parse_from(line.split(' ')).unwrap_or_else(|e| panic!("{line}: {e}"));
        }
        assert!(Cli::try_parse_from(["ublk-rbd", "map", "a/b/c/d"]).is_err());
        assert!(Cli::try_parse_from(["ublk-rbd", "map", "a/b", "--allow-remote"]).is_err());
    }
}
