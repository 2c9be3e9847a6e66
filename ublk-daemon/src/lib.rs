//! The daemon behind `ublk-rbd`.

pub mod cli;
pub mod control;
pub mod frontend;
pub mod image_cmd;
pub mod log;
pub mod output;
pub mod run_dir;
pub mod spec;
pub mod time;

use anyhow::Result;
use cluster::conf::{Conf, Environment, Options};

use cli::{Cli, ClusterArgs, Command};

/// Carries out a command line.
pub fn run(cli: Cli) -> Result<()> {
    log::init(
        cli.output.verbose,
        matches!(cli.command, Command::Daemon(_)),
    );
    let format = cli.output.format;
    match cli.command {
        Command::Image(command) => image_cmd::run(&conf(&cli.cluster)?, command, format),
        _ => unreachable!(),
    }
}

/// The configuration of the cluster that the command line names.
pub fn conf(args: &ClusterArgs) -> Result<Conf> {
    let path = |p: &std::path::PathBuf| p.to_string_lossy().into_owned();
    let mut settings = Vec::new();
    if let Some(keyring) = &args.keyring {
        settings.push(("keyring".to_owned(), path(keyring)));
    }
    if let Some(hosts) = &args.mon_host {
        settings.push(("mon_host".to_owned(), hosts.clone()));
    }
    let options = Options {
        conf: args.conf.as_ref().map(path),
        cluster: args.cluster.clone(),
        name: args.name.clone(),
        id: args.id.clone(),
        settings,
        env: Environment::of_process(),
    };
    Ok(Conf::load(&options)?)
}
