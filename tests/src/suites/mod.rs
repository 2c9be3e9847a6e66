//! Ceph's own test programs, run against a cluster of ours or of Ceph.
//!
//! * [`SUITES`] are the programs and their arguments.
//! * [`gtest`] runs one that is built on googletest, test by test, over crashes and hangs.
//! * [`Fsx`] is one of them as a load for other tests.
//! * [`Expectations`] name the tests that are known to fail, each with its reason.

mod expect;
mod fsx;
pub mod gtest;
mod program;

use std::time::Duration;

use anyhow::Result;

use crate::ceph::{Client, Version};

pub use expect::Expectations;
pub use fsx::Fsx;

/// The version whose test programs are run.
pub const SUITES_OF: Version = Version::V20;

/// How one test ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Passed,
    /// The test itself says that it does not apply.
    Skipped,
    /// With the first lines of what it said.
    Failed(String),
    /// The program ended in the middle of it.
    Crashed(String),
    /// It took more than its time.
    Hung,
}

impl Verdict {
    pub fn is_bad(&self) -> bool {
        !matches!(self, Verdict::Passed | Verdict::Skipped)
    }
}

/// A test and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub test: String,
    pub verdict: Verdict,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Gtest,
    /// One test per line of arguments, of which only the exit code counts.
    Program(Runs),
}

/// One of Ceph's test programs.
#[derive(Debug, Clone, Copy)]
pub struct Suite {
    /// Of the program, without `ceph_test_`; where it runs in several ways, with what tells them
    /// apart after a colon.
    pub name: &'static str,
    kind: Kind,
    env: &'static [(&'static str, &'static str)],
    /// For one test.
    limit: Duration,
}

const fn gtest(name: &'static str) -> Suite {
    Suite {
        name,
        kind: Kind::Gtest,
        env: &[],
        limit: Duration::from_secs(120),
    }
}

/// librbd's tests with images of these features, as the runs of Ceph itself do
/// (`qa/suites/rbd/librbd`): none is the old format.
const fn librbd(name: &'static str, env: &'static [(&'static str, &'static str)]) -> Suite {
    Suite {
        env,
        // Those of encryption derive a hundred keys, each with a second of processor time.
        limit: Duration::from_secs(900),
        ..gtest(name)
    }
}

/// Programs of tests of their own, by name and arguments. `POOL` is a new pool.
type Runs = &'static [(&'static str, &'static str)];

const fn program(name: &'static str, runs: Runs) -> Suite {
    Suite {
        kind: Kind::Program(runs),
        limit: Duration::from_secs(600),
        ..gtest(name)
    }
}

/// Alignments as Ceph's own runs of fsx have them (`qa/tasks/rbd_fsx.py`).
const FSX: Runs = &[
    (
        "aligned",
        "-d -p 1000 -P /tmp -l 67108864 -r 512 -w 512 -t 512 -h 512 -S 1 -N 3000 POOL image",
    ),
    (
        "bytes",
        "-d -p 1000 -P /tmp -l 16777216 -S 2 -N 3000 POOL image",
    ),
];

/// Random operations on many objects, compared with a model of them: as Ceph's own runs have them
/// (`qa/suites/rados/thrash/workloads`), without copies and tiers.
const MODEL: Runs = &[
    (
        "snapshots",
        "--max-ops 4000 --objects 50 --max-in-flight 16 --size 4000000 --min-stride-size 400000 \
         --max-stride-size 800000 --max-seconds 120 --op read 100 --op write 50 --op append 50 \
         --op write_excl 50 --op append_excl 50 --op writesame 50 --op delete 50 \
         --op snap_create 50 --op snap_remove 50 --op rollback 50 --op setattr 25 --op rmattr 25 \
         --pool POOL",
    ),
    (
        "pool-snapshots",
        "--max-ops 1000 --objects 50 --max-in-flight 16 --size 4000000 --min-stride-size 400000 \
         --max-stride-size 800000 --max-seconds 120 --pool-snaps --op read 100 --op write 50 \
         --op append 50 --op writesame 50 --op delete 50 --op snap_create 50 --op snap_remove 50 \
         --op rollback 50 --op setattr 25 --op rmattr 25 --pool POOL",
    ),
    (
        "small-objects",
        "--max-ops 20000 --objects 1024 --max-in-flight 64 --size 16384 --min-stride-size 512 \
         --max-stride-size 4096 --max-seconds 120 --op read 100 --op write 50 --op append 50 \
         --op write_excl 50 --op append_excl 50 --op delete 50 --op snap_create 5 \
         --op snap_remove 5 --op rollback 50 --op setattr 25 --op rmattr 25 --pool POOL",
    ),
];

const PLAIN: Runs = &[("all", "")];

pub const SUITES: &[Suite] = &[
    program("librbd_fsx", FSX),
    librbd("librbd:defaults", &[("RBD_FEATURES", "61")]),
    librbd("librbd:layering", &[("RBD_FEATURES", "1")]),
    librbd("librbd:journaling", &[("RBD_FEATURES", "125")]),
    librbd("librbd:format1", &[]),
    gtest("cls_rbd"),
    gtest("cls_lock"),
    gtest("cls_journal"),
    gtest("cls_hello"),
    gtest("rados_api_aio"),
    gtest("rados_api_aio_pp"),
    gtest("rados_api_asio"),
    gtest("rados_api_c_read_operations"),
    gtest("rados_api_c_write_operations"),
    gtest("rados_api_cmd"),
    gtest("rados_api_cmd_pp"),
    gtest("rados_api_io"),
    gtest("rados_api_io_pp"),
    gtest("rados_api_list"),
    gtest("rados_api_lock"),
    gtest("rados_api_lock_pp"),
    gtest("rados_api_misc"),
    gtest("rados_api_misc_pp"),
    gtest("rados_api_pool"),
    gtest("rados_api_service"),
    gtest("rados_api_service_pp"),
    gtest("rados_api_snapshots"),
    gtest("rados_api_snapshots_pp"),
    gtest("rados_api_stat"),
    gtest("rados_api_stat_pp"),
    gtest("rados_api_watch_notify"),
    gtest("rados_api_watch_notify_pp"),
    program("rados", MODEL),
    program("rados_delete_pools_parallel", PLAIN),
    program("rados_list_parallel", PLAIN),
    program("rados_open_pools_parallel", PLAIN),
    gtest("rados_striper_api_aio"),
    gtest("rados_striper_api_io"),
    gtest("rados_striper_api_striping"),
    gtest("neorados_cls"),
    gtest("neorados_cmd"),
    gtest("neorados_completions"),
    gtest("neorados_handler_error"),
    gtest("neorados_io"),
    gtest("neorados_list"),
    gtest("neorados_misc"),
    gtest("neorados_pool"),
    gtest("neorados_read_operations"),
    gtest("neorados_snapshots"),
    gtest("neorados_watch_notify"),
    gtest("neorados_write_operations"),
    gtest("stress_watch"),
];

impl Suite {
    pub fn program(&self) -> String {
        let name = self.name.split(':').next().unwrap_or(self.name);
        format!("ceph_test_{name}")
    }

    /// Runs the tests that `wanted` chooses. `seen` is told of each as it ends.
    pub fn run(
        &self,
        client: &Client,
        wanted: &dyn Fn(&str) -> bool,
        known: &Expectations,
        seen: &mut dyn FnMut(&Outcome),
    ) -> Result<Vec<Outcome>> {
        match self.kind {
            Kind::Gtest => {
                let mut client = client.clone();
                client.set_env(self.env);
                let known = |test: &str| known.reason(self.name, test).is_some();
                let program = self.program();
                gtest::run(&client, &program, wanted, self.limit, &known, seen)
            }
            Kind::Program(tests) => {
                program::run(client, &self.program(), tests, wanted, self.limit, seen)
            }
        }
    }
}

/// Whether `text` matches `pattern`, in which `*` is any run of characters.
pub fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = text.strip_prefix(parts.next().unwrap_or_default()) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, text, want) in [
            ("*", "", true),
            ("*", "a.b", true),
            ("a", "a", true),
            ("a", "ab", false),
            ("a*", "ab", true),
            ("*b", "ab", true),
            ("*b", "abc", false),
            ("a*c*e", "abcde", true),
            ("a*c*e", "abde", false),
            ("a*a", "a", false),
        ] {
            assert_eq!(matches(pattern, text), want, "{pattern} {text}");
        }
    }
}
