//! NBD clients of others: libnbd's tools, QEMU's, fio.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::{Mapped, text};
use crate::tools;

/// For copying a large image on a busy machine.
const COPY_LIMIT: Duration = Duration::from_secs(300);
const LIMIT: Duration = Duration::from_secs(60);

/// What `nbdinfo` sees of the export.
pub fn info(mapped: &Mapped) -> Result<Value> {
    let mut command = Command::new("nbdinfo");
    command.args(["--json", &mapped.uri]);
    let said: Value = serde_json::from_str(&tools::run(command, LIMIT)?)?;
    Ok(said["exports"][0].clone())
}

/// The size that a new connection is told.
pub fn size(mapped: &Mapped) -> Result<u64> {
    let info = info(mapped)?;
    info["export-size"]
        .as_u64()
        .with_context(|| format!("no size: {info}"))
}

/// Writes the file to the start of the image.
pub fn copy_in(file: &Path, mapped: &Mapped) -> Result<()> {
    let mut command = Command::new("nbdcopy");
    command.args(["--flush", text(file), &mapped.uri]);
    tools::run(command, COPY_LIMIT).map(drop)
}

/// Reads the image into a file.
pub fn copy_out(mapped: &Mapped, file: &Path) -> Result<()> {
    let mut command = Command::new("nbdcopy");
    command.args([&mapped.uri, text(file)]);
    tools::run(command, COPY_LIMIT).map(drop)
}

/// Reads the image and returns the SHA-256 of what it holds.
pub fn sha256(mapped: &Mapped, scratch: &Path) -> Result<String> {
    copy_out(mapped, scratch)?;
    let sum = tools::sha256_file(scratch)?;
    std::fs::remove_file(scratch)?;
    Ok(sum)
}

fn qemu_io(target: &str, options: &[&str], commands: &[&str]) -> Command {
    let mut command = Command::new("qemu-io");
    command.args(["-f", "raw"]).args(options);
    for each in commands {
        command.args(["-c", each]);
    }
    command.arg(target);
    command
}

/// Carries out commands of qemu-io on `target`, a URI or a file. It is silent about most failures
/// in its exit code, so what it says is read.
pub fn qemu(target: &str, commands: &[&str]) -> Result<()> {
    let command = qemu_io(target, &["-d", "unmap"], commands);
    let line = tools::command_line(&command);
    let out = tools::output(command, LIMIT)?;
    let said = out.stdout_str() + &out.stderr_str();
    let bad = ["failed", "Pattern verification", "rror", "nvalid"];
    ensure!(
        out.status.success() && !bad.iter().any(|word| said.contains(word)),
        "`{line}`: {}: {said}",
        out.status
    );
    Ok(())
}

/// One qemu-io command, and what it said.
pub fn qemu_says(target: &str, options: &[&str], command: &str) -> Result<String> {
    let out = tools::output(qemu_io(target, options, &[command]), LIMIT)?;
    Ok(out.stdout_str() + &out.stderr_str())
}

/// fio with the arguments given; the JSON it reports. Any I/O error or wrong byte is an error.
pub fn fio(args: &[&str], env: &[(&str, &str)], limit: Duration) -> Result<Value> {
    let mut command = fio_command(args);
    command.envs(env.iter().copied());
    let line = tools::command_line(&command);
    let out = tools::output(command, limit)?;
    let said = out.stdout_str();
    if !out.status.success() {
        bail!("`{line}`: {}: {said}{}", out.status, out.stderr_str());
    }
    fio_report(&said)
}

/// What fio reported, checked for errors of its jobs.
pub fn fio_report(said: &str) -> Result<Value> {
    // Notices may precede the JSON.
    let json = said.find('{').map_or("", |at| &said[at..]);
    let report: Value =
        serde_json::from_str(json).with_context(|| format!("fio reported {said}"))?;
    for job in report["jobs"].as_array().context("no jobs")? {
        ensure!(job["error"] == 0, "a job failed: {said}");
    }
    Ok(report)
}

/// fio, from a directory it may write its state to.
pub fn fio_command(args: &[&str]) -> Command {
    let mut command = Command::new("fio");
    command
        .args(["--output-format=json", "--verify_state_save=0"])
        .args(["--eta=never", "--thread", "--name=job"])
        .args(args)
        .current_dir("/tmp");
    command
}
