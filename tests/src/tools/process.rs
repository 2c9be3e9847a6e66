//! Processes that end with the test that started them, whatever way that test ends.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, SysconfVar, getpid, getppid, setsid, sysconf};

use super::{command_line, wait_for};

/// A child process that is killed when dropped, and by the kernel when this process dies first.
#[derive(Debug)]
pub struct Process {
    child: Child,
    line: String,
    ended: Option<ExitStatus>,
}

impl Process {
    pub fn spawn(command: Command) -> Result<Process> {
        let line = command_line(&command);
        let child = spawn_tied(command).with_context(|| format!("cannot run `{line}`"))?;
        Ok(Process {
            child,
            line,
            ended: None,
        })
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    /// The pipe of a command spawned with `Stdio::piped()`.
    pub fn take_stdout(&mut self) -> Option<std::process::ChildStdout> {
        self.child.stdout.take()
    }

    pub fn take_stderr(&mut self) -> Option<std::process::ChildStderr> {
        self.child.stderr.take()
    }

    pub fn take_stdin(&mut self) -> Option<std::process::ChildStdin> {
        self.child.stdin.take()
    }

    /// How the process ended, or `None` while it runs.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = self
                .child
                .try_wait()
                .with_context(|| format!("waiting for `{}`", self.line))?;
        }
        Ok(self.ended)
    }

    pub fn is_running(&mut self) -> bool {
        matches!(self.ended(), Ok(None))
    }

    /// Sends a signal; a process that has ended is left alone (its pid may be another's).
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        if self.ended()?.is_none() {
            kill(self.pid(), signal).with_context(|| format!("{signal} to `{}`", self.line))?;
        }
        Ok(())
    }

    /// Waits for the process to end by itself.
    pub fn wait(&mut self, timeout: Duration) -> Result<ExitStatus> {
        let mut status = None;
        let what = format!("end of `{}`", self.line);
        wait_for(&what, timeout, || {
            status = self.ended()?;
            Ok(status.is_some())
        })?;
        status.context("no exit status")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.is_running() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Spawns a child that the kernel kills when this process dies.
///
/// `PR_SET_PDEATHSIG` fires when the *thread* that forked dies, so a thread that lives as long as
/// the process forks for all: the child of a test may outlive the thread of that test.
pub(crate) fn spawn_tied(mut command: Command) -> io::Result<Child> {
    type Job = (Command, mpsc::Sender<io::Result<Child>>);
    static SPAWNER: OnceLock<mpsc::Sender<Job>> = OnceLock::new();

    let parent = getpid();
    let tie = move || {
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        // The parent may have died before the kernel knew that we care.
        if getppid() != parent {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes two system calls; it neither allocates nor
    // takes a lock.
    unsafe { command.pre_exec(tie) };

    let spawner = SPAWNER.get_or_init(|| {
        let (jobs, inbox) = mpsc::channel::<Job>();
        std::thread::spawn(move || {
            for (mut command, reply) in inbox {
                let _ = reply.send(command.spawn());
            }
        });
        jobs
    });
    let gone = || io::Error::other("the spawning thread is gone");
    let (reply, answer) = mpsc::channel();
    spawner.send((command, reply)).map_err(|_| gone())?;
    answer.recv().map_err(|_| gone())?
}

/// Spawns a child in a session of its own that stays when this process ends.
pub(crate) fn spawn_detached(mut command: Command) -> io::Result<Child> {
    // SAFETY: between fork and exec the closure makes one system call; it neither allocates nor
    // takes a lock.
    unsafe { command.pre_exec(|| Ok(setsid().map(drop)?)) };
    command.spawn()
}

/// Lets the child open as many files as it is allowed to: an OSD wants more than the usual 1024.
pub(crate) fn raise_open_files(command: &mut Command) {
    let raise = || {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes two system calls; it neither allocates nor
    // takes a lock.
    unsafe { command.pre_exec(raise) };
}

/// User and system time that a process has used so far.
pub fn cpu_time(pid: Pid) -> Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let stat = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let ticks = parse_cpu_ticks(&stat).with_context(|| format!("{path} has no CPU times"))?;
    let per_second = sysconf(SysconfVar::CLK_TCK)?.context("no CLK_TCK")? as u64;
    Ok(Duration::from_micros(ticks * 1_000_000 / per_second))
}

/// `utime` + `stime` of `/proc/PID/stat` (proc(5)). The program's name, in parentheses, may itself
/// hold spaces and parentheses.
fn parse_cpu_ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ').skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

/// Resident memory of a process.
pub fn resident_bytes(pid: Pid) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.trim().strip_suffix(" kB"))
        .and_then(|kib| kib.parse::<u64>().ok())
        .with_context(|| format!("{path} has no VmRSS"))?;
    Ok(kib * 1024)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Stdio;

    use super::*;

    fn sleeper() -> Command {
        let mut command = Command::new("sleep");
        command.arg("60").stdin(Stdio::null());
        command
    }

    fn exists(pid: Pid) -> bool {
        kill(pid, None).is_ok()
    }

    #[test]
    fn dropped_processes_are_gone() {
        let process = Process::spawn(sleeper()).unwrap();
        let pid = process.pid();
        assert!(exists(pid));
        drop(process);
        assert!(!exists(pid));
    }

    #[test]
    fn a_child_outlives_the_thread_that_asked_for_it() {
        let mut process = std::thread::spawn(|| Process::spawn(sleeper()).unwrap())
            .join()
            .unwrap();
        std::thread::sleep(Duration::from_millis(100));
        assert!(process.is_running());
        process.signal(Signal::SIGTERM).unwrap();
        let status = process.wait(Duration::from_secs(10)).unwrap();
        assert_eq!(status.signal(), Some(libc::SIGTERM));
        // To a process that has ended nothing is sent.
        process.signal(Signal::SIGKILL).unwrap();
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = Process::spawn(Command::new("/no/such/program")).unwrap_err();
        assert!(error.to_string().contains("/no/such/program"), "{error}");
    }

    #[test]
    fn cpu_times_are_read_past_odd_names() {
        let stat = "12 (a) (b c) S 1 12 12 0 -1 4194304 9 0 0 0 30 12 0 0 20 0 1 0 5 6 7";
        assert_eq!(parse_cpu_ticks(stat), Some(42));
        assert_eq!(parse_cpu_ticks("12 (a) S 1"), None);
        assert_eq!(parse_cpu_ticks(""), None);
        cpu_time(getpid()).unwrap();
        assert!(resident_bytes(getpid()).unwrap() > 100_000);
    }
}
