//! Ceph's own tests against our server, by one command: counts by program, and each failure with
//! its reason.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use harness::ceph::{Client, Cluster, Version};
use harness::product::Server;
use harness::suites::{Expectations, Outcome, SUITES, SUITES_OF, Suite, Verdict, matches};

/// Runs Ceph's own test programs (Debian's package ceph-test) against our single-node server.
///
/// Fails when a test fails that the list of known failures does not name, and when the list names
/// failures of which there are none any more.
#[derive(Parser)]
#[command(version)]
struct Cli {
    /// Suites to run, such as librbd or rados_api_* [default: all]
    suites: Vec<String>,
    /// Only tests of this name; `*` stands for anything
    #[arg(long, default_value = "*")]
    filter: String,
    /// None of this name, though the filter lets it pass
    #[arg(long, value_name = "FILTER")]
    skip: Option<String>,
    /// Against a real Ceph of this version instead, to learn what fails there too
    #[arg(long, value_name = "VERSION")]
    real: Option<Version>,
    /// Against a cluster that is there
    #[arg(long, value_name = "CEPH.CONF", conflicts_with = "real")]
    conf: Option<PathBuf>,
    /// OSDs of the server
    #[arg(long, default_value_t = 2)]
    osds: usize,
    /// Objects of the server in files instead of memory
    #[arg(long, conflicts_with_all = ["real", "conf"])]
    files: bool,
    /// Name each test as it ends
    #[arg(short, long)]
    verbose: bool,
    /// List of known failures
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/suites/known-failures"))]
    known: PathBuf,
    /// Print the suites and stop
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("ceph-suites: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<bool> {
    let suites = chosen(&cli.suites)?;
    if cli.list {
        for suite in suites {
            println!("{}", suite.name);
        }
        return Ok(true);
    }
    let text = std::fs::read_to_string(&cli.known)
        .with_context(|| format!("reading {}", cli.known.display()))?;
    let known = Expectations::parse(&text)?;
    let target = Target::start(cli)?;
    let client = Client::new(SUITES_OF, &target.conf())?;

    let wanted = |test: &str| {
        let skipped = cli.skip.as_deref().is_some_and(|skip| matches(skip, test));
        matches(&cli.filter, test) && !skipped
    };
    let mut table = Vec::new();
    let mut unknown = 0;
    for suite in suites {
        let begin = Instant::now();
        let mut last = begin;
        let outcomes = suite.run(&client, &wanted, &known, &mut |o: &Outcome| {
            let took = last.elapsed().as_secs_f64();
            last = Instant::now();
            if cli.verbose || o.verdict.is_bad() {
                let how = describe(&o.verdict);
                println!("{} {} ({took:.1} s): {how}", suite.name, o.test);
            }
        })?;
        unknown += report(suite, &outcomes, &known);
        table.push((suite.name, outcomes, begin.elapsed()));
    }
    print_table(&table, &known);
    if unknown > 0 {
        println!("{unknown} failures are not in {}", cli.known.display());
    }
    let mut outdated = Vec::new();
    // Only whole suites tell.
    if cli.filter == "*" && cli.skip.is_none() {
        let all = table.iter().flat_map(|(suite, outcomes, _)| {
            let outcomes = outcomes.iter();
            outcomes.map(|o| (*suite, o))
        });
        outdated = known.outdated(all);
    }
    for entry in &outdated {
        println!(
            "{entry}: none of these fails, though {} says so",
            cli.known.display()
        );
    }
    Ok(unknown == 0 && outdated.is_empty())
}

fn chosen(names: &[String]) -> Result<Vec<&'static Suite>> {
    if names.is_empty() {
        return Ok(SUITES.iter().collect());
    }
    let mut found = Vec::new();
    for name in names {
        let before = found.len();
        let wanted = |suite: &&Suite| match name.strip_suffix('*') {
            Some(prefix) => suite.name.starts_with(prefix),
            None => suite.name == name,
        };
        found.extend(SUITES.iter().filter(wanted));
        if found.len() == before {
            bail!("no suite {name}; --list shows them");
        }
    }
    Ok(found)
}

enum Target {
    Ours(Server),
    Real(Box<Cluster>),
    There(PathBuf),
}

impl Target {
    fn start(cli: &Cli) -> Result<Target> {
        if let Some(conf) = &cli.conf {
            return Ok(Target::There(conf.clone()));
        }
        let Some(version) = cli.real else {
            let osds = cli.osds.to_string();
            let mut options = vec!["--osds", &osds];
            if !cli.files {
                options.push("--memory");
            }
            return Ok(Target::Ours(Server::start(&options)?));
        };
        let cluster = Cluster::builder()
            .version(version)
            .osds(cli.osds)
            .pool_size(1)
            .min_size(1)
            .extra_conf("mon_allow_pool_size_one = true")
            .extra_conf("mon_allow_pool_delete = true")
            .extra_conf("osd_pool_default_size = 1")
            .extra_conf("osd_class_load_list = *")
            .extra_conf("osd_class_default_list = *")
            .timeout(Duration::from_secs(180))
            .start()?;
        Ok(Target::Real(Box::new(cluster)))
    }

    fn conf(&self) -> PathBuf {
        match self {
            Target::Ours(server) => server.conf_path(),
            Target::Real(cluster) => cluster.conf_path(),
            Target::There(conf) => conf.clone(),
        }
    }
}

fn describe(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Passed => "passed".to_owned(),
        Verdict::Skipped => "skipped".to_owned(),
        Verdict::Failed(said) => format!("FAILED: {said}"),
        Verdict::Crashed(how) => format!("CRASHED: {how}"),
        Verdict::Hung => "HUNG".to_owned(),
    }
}

/// Prints known failures by reason; returns how many are not known.
fn report(suite: &Suite, outcomes: &[Outcome], known: &Expectations) -> usize {
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    let mut unknown = 0;
    for o in outcomes {
        match known.reason(suite.name, &o.test) {
            Some(why) if o.verdict.is_bad() => *reasons.entry(why).or_default() += 1,
            Some(_) if o.verdict == Verdict::Passed => {
                println!(
                    "{} {}: passes, though listed as a failure",
                    suite.name, o.test
                );
            }
            None if o.verdict.is_bad() => unknown += 1,
            _ => {}
        }
    }
    for (why, count) in reasons {
        println!("{}: {count} fail: {why}", suite.name);
    }
    unknown
}

fn print_table(table: &[(&str, Vec<Outcome>, Duration)], known: &Expectations) {
    println!(
        "{:<30} {:>6} {:>6} {:>6} {:>7} {:>6}",
        "suite", "passed", "failed", "known", "skipped", "s"
    );
    for (name, outcomes, took) in table {
        let count = |is: &dyn Fn(&Outcome) -> bool| outcomes.iter().filter(|o| is(o)).count();
        let is_known = |o: &Outcome| known.reason(name, &o.test).is_some();
        println!(
            "{name:<30} {:>6} {:>6} {:>6} {:>7} {:>6.0}",
            count(&|o| o.verdict == Verdict::Passed),
            count(&|o| o.verdict.is_bad() && !is_known(o)),
            count(&|o| o.verdict.is_bad() && is_known(o)),
            count(&|o| o.verdict == Verdict::Skipped),
            took.as_secs_f64()
        );
    }
}
