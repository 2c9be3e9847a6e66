//! What every test against real programs needs: commands with a time limit, processes that never
//! outlive their test, file locks, patterns to write and sums to compare.

mod command;
mod lock;
mod pattern;
mod process;

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

pub use command::{Output, command_line, last_lines, output, output_with_input, run};
pub use lock::FileLock;
pub use pattern::{Pattern, sha256_file, write_pattern};
pub use process::{Process, cpu_time, resident_bytes};

pub(crate) use process::{raise_open_files, spawn_detached, spawn_tied};

/// Asks `condition` again and again until it says true. `what` names the thing waited for in the
/// error after `timeout`; an error of `condition` itself ends the wait at once.
pub fn wait_for(
    what: &str,
    timeout: Duration,
    mut condition: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let end = Instant::now() + timeout;
    let mut pause = Duration::from_millis(5);
    loop {
        if condition()? {
            return Ok(());
        }
        if Instant::now() >= end {
            bail!("{what}: not within {:.1} s", timeout.as_secs_f64());
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

/// The upper of the two in the middle of an even number. Panics when there is none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Where `program` is on the `PATH` (or in the system's own directories, which a user's `PATH`
/// often lacks).
pub fn find_program(program: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(Into::into))
        .map(|dir| dir.join(program))
        .find(|file| nix::unistd::access(file, nix::unistd::AccessFlags::X_OK).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_for_stops_at_the_limit_the_answer_or_an_error() {
        let mut asked = 0;
        wait_for("third time", Duration::from_secs(10), || {
            asked += 1;
            Ok(asked == 3)
        })
        .unwrap();
        assert_eq!(asked, 3);

        let late = wait_for("a miracle", Duration::from_millis(20), || Ok(false)).unwrap_err();
        assert!(
            late.to_string().starts_with("a miracle: not within"),
            "{late}"
        );

        let mut asked = 0;
        let failed = wait_for("x", Duration::from_secs(10), || {
            asked += 1;
            bail!("broken")
        });
        assert_eq!(
            (failed.unwrap_err().to_string().as_str(), asked),
            ("broken", 1)
        );
    }

    #[test]
    fn programs_are_found_or_not() {
        assert!(find_program("sh").is_some());
        assert!(find_program("no-such-program-here").is_none());
    }
}
