//! Test programs of which only the exit code counts.

use std::time::Duration;

use anyhow::Result;

use super::{Outcome, Runs, Verdict};
use crate::ceph::Client;
use crate::tools::last_lines;

/// Stands for the pool in a program's arguments.
const POOL: &str = "POOL";

pub(super) fn run(
    client: &Client,
    program: &str,
    runs: Runs,
    wanted: &dyn Fn(&str) -> bool,
    limit: Duration,
    seen: &mut dyn FnMut(&Outcome),
) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    for (test, args) in runs.iter().filter(|(test, _)| wanted(test)) {
        let pool = format!("{program}-{test}");
        if args.contains(POOL) {
            client.run(["ceph", "osd", "pool", "create", &pool, "8"])?;
        }
        let args = args.split_whitespace();
        let args = args.map(|arg| if arg == POOL { &pool } else { arg });
        let argv = [program].into_iter().chain(args);
        let verdict = match client.output(argv, limit) {
            Ok(out) if out.status.success() => Verdict::Passed,
            Ok(out) => {
                let said = out.stdout_str() + &out.stderr_str();
                Verdict::Failed(format!("{}: {}", out.status, last_lines(&said, 6)))
            }
            Err(_) => Verdict::Hung,
        };
        let outcome = Outcome {
            test: (*test).to_owned(),
            verdict,
        };
        seen(&outcome);
        outcomes.push(outcome);
    }
    Ok(outcomes)
}
