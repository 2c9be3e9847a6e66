//! The daemon behind `ublk-rbd`.

pub mod bench;
pub mod cli;
pub mod cluster_cmd;
pub mod control;
pub mod daemon;
pub mod disk;
pub mod frontend;
pub mod image_cmd;
pub mod image_disk;
pub mod leftover;
pub mod log;
pub mod map_cmd;
pub mod output;
pub mod quickstart;
pub mod record;
pub mod run_dir;
pub mod spec;
pub mod time;

use anyhow::Result;

use cli::{Cli, Command};
use control::ClusterSpec;
use run_dir::RunDir;

/// Carries out a command line.
pub fn run(cli: Cli) -> Result<()> {
    let verbose = cli.output.verbose;
    let serves = match &cli.command {
        Command::Daemon(_) => true,
        Command::Cluster(args) => matches!(args.command, cli::EmbeddedCommand::Start(_)),
        _ => false,
    };
    log::init(verbose, serves);
    let format = cli.output.format;
    let cluster = ClusterSpec::of(&cli.cluster)?;
    let run_dir = || RunDir::new(cli.run_dir.as_deref());
    match cli.command {
        Command::Image(command) => {
            image_cmd::run(&disk::load_conf(&cluster, Vec::new())?, command, format)
        }
        Command::Attach => map_cmd::attach(&run_dir()?, verbose, format),
        Command::DeviceName { device } => {
            println!("{}", record::device_name(&run_dir()?, &device)?);
            Ok(())
        }
        Command::Map(args) => map_cmd::map(&run_dir()?, cluster, args, verbose, format),
        Command::Unmap(args) => map_cmd::unmap(&run_dir()?, &args),
        Command::List => map_cmd::list(&run_dir()?, format),
        Command::Cluster(args) => {
            let default = || Ok(run_dir()?.path().join("cluster"));
            cluster_cmd::run(args.dir.as_deref(), default, args.command, verbose, format)
        }
        Command::Quickstart(args) => quickstart::run(&args),
        Command::Daemon(args) => daemon::run(run_dir()?, args.exit_when_idle),
        Command::Bench(cli::BenchCommand::Image(args)) => {
            bench::image::run(&disk::load_conf(&cluster, Vec::new())?, args, format)
        }
        Command::Bench(cli::BenchCommand::Messenger(args)) => bench::messenger::run(&args, format),
    }
}
