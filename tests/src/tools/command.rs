//! Commands with a time limit and captured output.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::spawn_tied;

/// What a command that ended by itself left behind.
#[derive(Debug)]
pub struct Output {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

impl Output {
    pub fn stdout_str(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub fn stderr_str(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }
}

/// Runs `command` to its end and returns its standard output. Failing (exit code, signal, more than
/// `timeout`) is an error that shows the command and the end of what it wrote to stderr.
pub fn run(command: Command, timeout: Duration) -> Result<String> {
    let line = command_line(&command);
    let out = output(command, timeout)?;
    if !out.status.success() {
        let said = if out.stderr.is_empty() {
            out.stdout_str()
        } else {
            out.stderr_str()
        };
        bail!(
            "`{line}` failed ({}): {}",
            out.status,
            last_lines(&said, 12)
        );
    }
    Ok(out.stdout_str())
}

/// Runs `command` to its end, however it ends.
pub fn output(command: Command, timeout: Duration) -> Result<Output> {
    output_with_input(command, Vec::new(), timeout)
}

/// Likewise, with `input` on its standard input. After `timeout` the command and all it started in
/// its process group are killed, and that is an error.
pub fn output_with_input(
    mut command: Command,
    input: Vec<u8>,
    timeout: Duration,
) -> Result<Output> {
    let line = command_line(&command);
    command.stdin(if input.is_empty() {
        Stdio::null()
    } else {
        Stdio::piped()
    });
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let mut child = spawn_tied(command).with_context(|| format!("cannot run `{line}`"))?;
    let group = Pid::from_raw(child.id() as i32);

    let stdin = child.stdin.take();
    let feeder = thread::spawn(move || {
        if let Some(mut stdin) = stdin {
            // A command may end without reading all its input; that shows in its exit status.
            let _ = stdin.write_all(&input);
        }
    });
    let stdout = collect(child.stdout.take());
    let stderr = collect(child.stderr.take());

    let end = Instant::now() + timeout;
    let mut pause = Duration::from_millis(1);
    let ended = loop {
        if let Some(status) = child
            .try_wait()
            .with_context(|| format!("waiting for `{line}`"))?
        {
            break Some(status);
        }
        if Instant::now() >= end {
            break None;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    };
    if ended.is_none() {
        // The group exists as long as the child is not reaped, so this hits nobody else.
        let _ = killpg(group, Signal::SIGKILL);
        let _ = child.wait();
    }
    let _ = feeder.join();
    let stdout = stdout.join().unwrap_or_default();
    let stderr = stderr.join().unwrap_or_default();
    match ended {
        Some(status) => Ok(Output {
            status,
            stdout,
            stderr,
        }),
        None => bail!(
            "`{line}` was killed after {:.0} s: {}",
            timeout.as_secs_f64(),
            last_lines(&String::from_utf8_lossy(&stderr), 12)
        ),
    }
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}

/// The command as a shell would show it, roughly: for messages only.
pub fn command_line(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| {
            let word = word.to_string_lossy();
            if word.is_empty() || word.contains([' ', '\n']) {
                format!("'{word}'")
            } else {
                word.into_owned()
            }
        })
        .collect::<Vec<_>>()
        .join(" ")
}

/// The last `count` lines of `text`.
pub fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_and_errors_are_captured() {
        assert_eq!(
            run(sh("echo one"), Duration::from_secs(10)).unwrap(),
            "one\n"
        );
        let failed = run(sh("echo why >&2; exit 3"), Duration::from_secs(10)).unwrap_err();
        let failed = failed.to_string();
        assert!(
            failed.contains("exit status: 3") && failed.contains("why"),
            "{failed}"
        );
    }

    #[test]
    fn input_larger_than_a_pipe_passes_through() {
        let input: Vec<u8> = (0..300_000u32).map(|i| i as u8).collect();
        let out =
            output_with_input(Command::new("cat"), input.clone(), Duration::from_secs(20)).unwrap();
        assert_eq!(out.stdout, input);
    }

    #[test]
    fn a_command_that_ignores_its_input_is_no_error() {
        let input = vec![0; 300_000];
        let out = output_with_input(sh("exit 0"), input, Duration::from_secs(20)).unwrap();
        assert!(out.status.success());
    }

    #[test]
    fn late_commands_are_killed_with_their_children() {
        let started = Instant::now();
        // The grandchild holds the pipe: were it left alive, the reader would wait for it.
        let late = run(sh("sleep 60 & wait"), Duration::from_millis(200)).unwrap_err();
        assert!(late.to_string().contains("killed after"), "{late}");
        assert!(started.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn tails() {
        assert_eq!(last_lines("a\nb\nc\n", 2), "b\nc");
        assert_eq!(last_lines("a", 2), "a");
        assert_eq!(last_lines("", 2), "");
    }
}
