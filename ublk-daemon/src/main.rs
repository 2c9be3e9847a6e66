use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = ublk_rbd::cli::Cli::parse();
    match ublk_rbd::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // One line: causes follow after colons, and none may bring a line break of its own.
            let text = format!("{e:#}").replace('\n', " ");
            eprintln!("ublk-rbd: {text}");
            ExitCode::FAILURE
        }
    }
}
