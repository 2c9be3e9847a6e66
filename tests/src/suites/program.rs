//! Test programs of which only the exit code counts.

use std::time::Duration;

use anyhow::Result;

use super::{Outcome, Verdict};
use crate::ceph::Client;
use crate::tools::last_lines;

pub(super) fn run(
    client: &Client,
    program: &str,
    tests: &[(&str, &[&str])],
    wanted: &dyn Fn(&str) -> bool,
    limit: Duration,
    seen: &mut dyn FnMut(&Outcome),
) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    for (test, args) in tests.iter().filter(|(test, _)| wanted(test)) {
        let argv = [program].into_iter().chain(args.iter().copied());
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
