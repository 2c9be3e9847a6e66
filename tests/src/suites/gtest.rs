//! Programs built on googletest. One process runs as many tests as it can; where it crashes or
//! hangs, another one goes on with the rest.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::{Outcome, Verdict};
use crate::ceph::Client;
use crate::tools::Process;

/// For listing tests, and for what a program does before its first test and after its last.
const BETWEEN: Duration = Duration::from_secs(120);
/// Lines kept of what a failing test says.
const SAID: usize = 8;
/// Longest argument that Linux passes on (`MAX_ARG_STRLEN`), less some room.
const MAX_FILTER: usize = 120 << 10;

pub(super) fn run(
    client: &Client,
    program: &str,
    wanted: &dyn Fn(&str) -> bool,
    limit: Duration,
    known: &dyn Fn(&str) -> bool,
    seen: &mut dyn FnMut(&Outcome),
) -> Result<Vec<Outcome>> {
    let mut left = list(client, program)?;
    left.retain(|test| wanted(test));
    // Tests that are known to fail come last, so that none of the others has to run in a process
    // that they have spoilt.
    left.sort_by_key(|test| known(test));
    let mut outcomes = Vec::new();
    while !left.is_empty() {
        let alike = left
            .iter()
            .take_while(|test| known(test) == known(&left[0]));
        let turn = a_turn(&left[..alike.count()]);
        let ended = run_turn(client, program, &left[..turn], limit, seen)?;
        // Whatever happens a turn ends at least one test, or the loop would not.
        ensure!(!ended.is_empty(), "{program} runs none of its tests");
        let done: BTreeSet<&str> = ended.iter().map(|o| o.test.as_str()).collect();
        left.retain(|test| !done.contains(test.as_str()));
        outcomes.extend(ended);
    }
    Ok(outcomes)
}

/// How many of the tests fit into one filter.
fn a_turn(tests: &[String]) -> usize {
    let mut len = 0;
    tests
        .iter()
        .take_while(|test| {
            len += test.len() + 1;
            len <= MAX_FILTER
        })
        .count()
}

fn list(client: &Client, program: &str) -> Result<Vec<String>> {
    let out = client.output([program, "--gtest_list_tests"], BETWEEN)?;
    ensure!(
        out.status.success(),
        "{program} does not list its tests: {}",
        out.stderr_str()
    );
    Ok(parse_list(&out.stdout_str()))
}

/// A case's name ends with a dot and stands at the margin; its tests are indented. Comments follow
/// a number sign.
fn parse_list(text: &str) -> Vec<String> {
    let mut case = "";
    let mut tests = Vec::new();
    for line in text.lines() {
        let name = line.split('#').next().unwrap_or_default().trim_end();
        if let Some(test) = name.strip_prefix("  ") {
            if !case.is_empty() && !test.starts_with("DISABLED_") {
                tests.push(format!("{case}{test}"));
            }
        } else {
            case = if name.ends_with('.') { name } else { "" };
        }
    }
    tests
}

/// What a line of the program's output means.
#[derive(Debug, PartialEq, Eq)]
enum Line<'a> {
    Begins(&'a str),
    Passed(&'a str),
    Skipped(&'a str),
    Failed(&'a str),
    Other,
}

fn parse_line(line: &str) -> Line<'_> {
    let marked = |mark: &str| {
        let rest = line.strip_prefix(mark)?;
        rest.split([' ', ',']).next()
    };
    if let Some(test) = marked("[ RUN      ] ") {
        return Line::Begins(test);
    }
    if let Some(test) = marked("[       OK ] ") {
        return Line::Passed(test);
    }
    if let Some(test) = marked("[  SKIPPED ] ") {
        return Line::Skipped(test);
    }
    if let Some(test) = marked("[  FAILED  ] ") {
        return Line::Failed(test);
    }
    Line::Other
}

fn run_turn(
    client: &Client,
    program: &str,
    tests: &[String],
    limit: Duration,
    seen: &mut dyn FnMut(&Outcome),
) -> Result<Vec<Outcome>> {
    let filter = format!("--gtest_filter={}", tests.join(":"));
    let mut command = client.command([program, &filter])?;
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut process = Process::spawn(command)?;
    let lines = lines_of(
        process.take_stdout().context("no pipe")?,
        process.take_stderr().context("no pipe")?,
    );

    let mut turn = Turn {
        seen,
        ended: Vec::new(),
    };
    let mut running: Option<String> = None;
    let mut said: Vec<String> = Vec::new();
    let mut deadline = Instant::now() + BETWEEN;
    let hung = loop {
        let wait = deadline.saturating_duration_since(Instant::now());
        let line = match lines.recv_timeout(wait) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => break true,
            Err(RecvTimeoutError::Disconnected) => break false,
        };
        match (parse_line(&line), &running) {
            (Line::Begins(test), _) => {
                running = Some(test.to_owned());
                said.clear();
                deadline = Instant::now() + limit;
            }
            (Line::Passed(test), Some(name)) if test == name => {
                turn.end(test, Verdict::Passed);
                running = None;
            }
            (Line::Skipped(test), Some(name)) if test == name => {
                turn.end(test, Verdict::Skipped);
                running = None;
            }
            (Line::Failed(test), Some(name)) if test == name => {
                turn.end(test, Verdict::Failed(said.join(" | ")));
                running = None;
            }
            (_, Some(_)) => {
                if said.len() < SAID && !line.trim().is_empty() {
                    said.push(line.trim().to_owned());
                }
            }
            // The summary names the failed tests once more.
            (_, None) => {}
        }
        if running.is_none() {
            deadline = Instant::now() + BETWEEN;
        }
    };
    let how = if hung {
        drop(process);
        None
    } else {
        Some(process.wait(BETWEEN)?)
    };
    let done: BTreeSet<&str> = turn.ended.iter().map(|o| o.test.as_str()).collect();
    let not_run = || tests.iter().filter(|test| !done.contains(test.as_str()));
    let not_run: Vec<String> = not_run().cloned().collect();
    // Between two tests it is what prepares the next one's case, or cleans up after the last.
    let stopped_at = running.as_ref().or(not_run.first());
    match (how, stopped_at) {
        (_, None) => {}
        (None, Some(test)) => turn.end(test, Verdict::Hung),
        (Some(status), Some(_)) if status.success() && running.is_none() => {
            for test in &not_run {
                turn.end(test, Verdict::Skipped);
            }
        }
        (Some(status), Some(test)) => {
            let how = format!("{status}: {}", said.join(" | "));
            turn.end(test, Verdict::Crashed(how));
        }
    }
    Ok(turn.ended)
}

struct Turn<'a> {
    seen: &'a mut dyn FnMut(&Outcome),
    ended: Vec<Outcome>,
}

impl Turn<'_> {
    fn end(&mut self, test: &str, verdict: Verdict) {
        let test = test.to_owned();
        let outcome = Outcome { test, verdict };
        (self.seen)(&outcome);
        self.ended.push(outcome);
    }
}

/// The lines of both outputs as they come; the channel closes with the later of the two.
fn lines_of(
    stdout: impl Read + Send + 'static,
    stderr: impl Read + Send + 'static,
) -> mpsc::Receiver<String> {
    let (tx, rx) = mpsc::channel();
    let errors = tx.clone();
    let forward = |from: Box<dyn Read + Send>, to: mpsc::Sender<String>| {
        thread::spawn(move || {
            for line in BufReader::new(from).split(b'\n') {
                let Ok(line) = line else { break };
                if to
                    .send(String::from_utf8_lossy(&line).into_owned())
                    .is_err()
                {
                    break;
                }
            }
        });
    };
    forward(Box::new(stdout), tx);
    forward(Box::new(stderr), errors);
    rx
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_lines() {
        let text = "log line\nLibRados.\n  Io\n  DISABLED_No\nP/Case.  # TypeParam = x\n  Two/0  # GetParam() = 1\n";
        assert_eq!(parse_list(text), ["LibRados.Io", "P/Case.Two/0"]);
        assert_eq!(parse_line("[ RUN      ] A.b"), Line::Begins("A.b"));
        assert_eq!(parse_line("[       OK ] A.b (3 ms)"), Line::Passed("A.b"));
        assert_eq!(
            parse_line("[  FAILED  ] A.b/1, where GetParam() = 2 (3 ms)"),
            Line::Failed("A.b/1")
        );
        assert_eq!(parse_line("x [ RUN"), Line::Other);
    }

    #[test]
    fn filters_have_a_limit() {
        let tests: Vec<String> = (0..5000).map(|i| format!("{i:0>50}")).collect();
        let turn = a_turn(&tests);
        assert!(turn > 1000 && tests[..turn].join(":").len() <= MAX_FILTER);
    }
}
