//! The program, built by cargo when the first test asks for it. (Cargo tells only the tests of the
//! same package where a binary is.)

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use serde_json::Value;

use crate::tools;

/// A build from nothing on a small machine, behind other builds.
const BUILD_LIMIT: Duration = Duration::from_secs(1800);

/// The path of `ublk-rbd`, in the profile this was built with, or `$UBLK_RBD_BIN`.
pub fn binary() -> Result<PathBuf> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| match std::env::var_os("UBLK_RBD_BIN") {
        Some(path) => Ok(PathBuf::from(path)),
        None => build().map_err(|error| format!("{error:#}")),
    });
    built.clone().map_err(|error| anyhow!(error))
}

fn build() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--locked", "-p", "ublk-rbd"]);
    command.args(["--bin", "ublk-rbd"]);
    command.arg("--message-format=json-render-diagnostics");
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    // What cargo tells the test about its own package is not for the build of another: build scripts
    // look at it, and would take each change between inside and outside of tests for a reason to
    // run again.
    let own = [
        "CARGO_MANIFEST_",
        "CARGO_PKG_",
        "CARGO_CRATE_",
        "CARGO_BIN_",
    ];
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text == "OUT_DIR" || own.iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
    let messages = tools::run(command, BUILD_LIMIT)?;
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .find_map(|message| Some(PathBuf::from(message["executable"].as_str()?)))
        .context("cargo named no executable")
}
