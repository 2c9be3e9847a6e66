//! The process of a cluster.

use std::cell::RefCell;
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use cluster::auth::Method;
use cluster::osd::server::{Config, Place, Server, ServerError};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{AuthArg, Format, StartArgs};
use crate::control::server::{Caller, ControlSocket};

use super::fault::FaultLine;
use super::home::{Description, Home, Undo};
use super::{Answer, Request, Started, print_started};

/// Set for the process that `start` leaves behind.
pub(super) const DETACH: &str = "UBLK_RBD_CLUSTER_DETACH";

const DEFAULT_LISTEN: &str = "127.0.0.1:6700";
/// More threads than this are of no use to a client on the same machine.
const DEFAULT_OSDS: usize = 4;

/// Of these the store keeps handles at most; more gain nothing.
const MOST_OPEN_FILES: u64 = 65_536;

/// Has the system let this process open as many files as it ever does, and returns how many of them
/// the store may have; the rest is for clients' sockets.
fn open_files() -> Result<usize> {
    let what = "cannot learn how many files may be open";
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).context(what)?;
    let limit = match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => hard,
        // Then with fewer.
        Err(_) => soft,
    };
    Ok((limit / 2).min(MOST_OPEN_FILES) as usize)
}

/// Serves until a signal or `stop`.
pub(super) fn run(home: &Home, args: &StartArgs, format: Format) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, serve(home, args, format))
}

async fn serve(home: &Home, args: &StartArgs, format: Format) -> Result<()> {
    let undo = home.prepare()?;
    let taken = |dir: &std::path::Path| {
        anyhow!(
            "a cluster runs in {} already: `ublk-rbd cluster stop --dir {}` stops it",
            dir.display(),
            dir.display()
        )
    };
    // From here on nobody else touches the directory; before, nothing may be taken back.
    let socket = match ControlSocket::bind(home.run_dir(), taken) {
        Ok(socket) => socket,
        Err(e) => {
            if let Undo::Remove(path) = undo {
                // Only if nobody has put anything there meanwhile.
                let _ = std::fs::remove_dir(path);
            }
            return Err(e);
        }
    };
    let (server, started) = match open(home, args) {
        Ok(opened) => opened,
        Err(e) => {
            drop(socket);
            undo.undo();
            return Err(e);
        }
    };
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    print_started(format, &started)?;
    if std::env::var_os(DETACH).is_some() {
        detach(home)?;
    }
    let server = Rc::new(RefCell::new(Some(server)));
    let asked = loop {
        tokio::select! {
            caller = socket.accept() => {
                let caller = caller.context("the control socket failed")?;
                if let Some(caller) = answer(&server, caller).await {
                    break Some(caller);
                }
            }
            _ = term.recv() => break None,
            _ = int.recv() => break None,
        }
    };
    let stopped = match server.take() {
        Some(server) => server.stop(),
        None => Ok(()),
    };
    if args.memory {
        home.forget();
    }
    if let Some(caller) = asked {
        let answer = match &stopped {
            Ok(()) => Answer::Stopped,
            Err(e) => Answer::Error {
                message: e.to_string(),
            },
        };
        // Whoever asked may have gone.
        let _ = caller.answer(&answer).await;
    }
    Ok(stopped?)
}

/// From now on, messages go to the log and nobody waits for any.
fn detach(home: &Home) -> Result<()> {
    let path = home.run_dir().log_file();
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(&path)
        .with_context(|| format!("cannot write {}", path.display()))?;
    nix::unistd::dup2_stderr(&log).context("cannot log")?;
    let null = OpenOptions::new().write(true).open("/dev/null")?;
    nix::unistd::dup2_stdout(&null).context("cannot detach")?;
    Ok(())
}

/// What the cluster is to be: as before, or as the command line has it.
fn describe(home: &Home, args: &StartArgs) -> Result<(Description, bool)> {
    let listen = |last| args.listen.or(last);
    let auth = args.auth.map(|a| match a {
        AuthArg::Cephx => Method::Cephx.to_string(),
        AuthArg::None => Method::None.to_string(),
    });
    let found = home.load()?;
    if let Some(found) = &found
        && found.memory != args.memory
    {
        let kept = if found.memory {
            "in memory"
        } else {
            "in files"
        };
        bail!(
            "the cluster in {} keeps its objects {kept}: name another --dir",
            home.path().display()
        );
    }
    if let Some(mut found) = found.filter(|f| !f.memory) {
        if args.osds.is_some_and(|n| n != found.osds) {
            bail!(
                "the cluster in {} has {} OSDs, and their number does not change",
                home.path().display(),
                found.osds
            );
        }
        found.auth = auth.unwrap_or(found.auth);
        found.listen = listen(Some(found.listen)).unwrap_or(found.listen);
        return Ok((found, false));
    }
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
    let fsid = Config::new(Place::Memory, DEFAULT_LISTEN.parse()?).fsid;
    let description = Description {
        version: 1,
        fsid: fsid.iter().map(|b| format!("{b:02x}")).collect(),
        osds: args.osds.unwrap_or(cpus.min(DEFAULT_OSDS) as u32),
        auth: auth.unwrap_or_else(|| Method::Cephx.to_string()),
        listen: listen(None).unwrap_or(DEFAULT_LISTEN.parse()?),
        memory: args.memory,
    };
    Ok((description, true))
}

/// How long the kernel may take to close the sockets of a process that has been killed: those of its
/// rings are closed some time after the process has gone.
const OLD_SOCKETS: Duration = Duration::from_secs(3);

fn start(config: Config) -> Result<Server, ServerError> {
    let since = Instant::now();
    loop {
        match Server::start(config.clone()) {
            Err(ServerError::Bind { error, .. })
                if error.kind() == ErrorKind::AddrInUse && since.elapsed() < OLD_SOCKETS =>
            {
                std::thread::sleep(Duration::from_millis(20));
            }
            other => return other,
        }
    }
}

fn open(home: &Home, args: &StartArgs) -> Result<(Server, Started)> {
    let (mut description, new) = describe(home, args)?;
    if new {
        // Before there is anything of a store: what a kill leaves is known for a cluster.
        home.save(&description)?;
    }
    let place = match description.memory {
        true => Place::Memory,
        false => Place::Dir(home.path().to_owned()),
    };
    let config = Config {
        fsid: parse_fsid(&description.fsid).context("cluster.json names no fsid")?,
        osds: description.osds,
        auth: Method::from_name(&description.auth).context("cluster.json names no auth")?,
        open_files: open_files()?,
        ..Config::new(place, description.listen)
    };
    // It says all itself, what caused it included.
    let server = start(config).map_err(|e| anyhow!("{e}"))?;
    make_pool(&server, &args.pool)?;
    let keyring = server.keyring_text()?;
    home.write(&home.keyring(), keyring.as_bytes(), 0o600)?;
    let conf = server.conf_text(Some(&home.keyring()));
    home.write(&home.conf(), conf.as_bytes(), 0o644)?;
    if description.listen != server.addr() || !new {
        description.listen = server.addr();
        home.save(&description)?;
    }
    let started = Started {
        conf: home.conf().display().to_string(),
        keyring: home.keyring().display().to_string(),
        monitor: server.addr().to_string(),
        fsid: server.fsid(),
        store: match description.memory {
            true => "memory".to_owned(),
            false => home.path().display().to_string(),
        },
        osds: description.osds,
        pool: args.pool.clone(),
    };
    Ok((server, started))
}

fn parse_fsid(digits: &str) -> Option<[u8; 16]> {
    let mut fsid = [0; 16];
    if digits.len() != 32 || !digits.is_ascii() {
        return None;
    }
    for (i, byte) in fsid.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(fsid)
}

/// A pool for images, unless it is there.
fn make_pool(server: &Server, name: &str) -> Result<()> {
    if server.pool_id(name)?.is_some() {
        return Ok(());
    }
    for words in [
        serde_json::json!({"prefix": "osd pool create", "pool": name}),
        serde_json::json!({"prefix": "osd pool application enable", "pool": name, "app": "rbd"}),
    ] {
        let reply = server.command(&words.to_string(), &[])?;
        if reply.code != 0 {
            bail!("cannot make pool '{name}': {}", reply.status);
        }
    }
    Ok(())
}

/// Answers a caller; gives back one that wants the cluster to stop.
async fn answer(server: &RefCell<Option<Server>>, mut caller: Caller) -> Option<Caller> {
    let request: Request = match caller.request().await {
        Ok(request) => request,
        Err(e) => {
            tracing::debug!("unreadable request: {e:#}");
            return None;
        }
    };
    if request == Request::Stop {
        return Some(caller);
    }
    let result = match &*server.borrow() {
        Some(server) => carry_out(server, request),
        None => Err(anyhow!("the cluster is stopping")),
    };
    let answer = result.unwrap_or_else(|e| Answer::Error {
        message: format!("{e:#}"),
    });
    if let Err(e) = caller.answer(&answer).await {
        tracing::debug!("an answer was not taken: {e:#}");
    }
    None
}

fn carry_out(server: &Server, request: Request) -> Result<Answer> {
    Ok(match request {
        Request::Status => Answer::Status(Box::new(server.status()?)),
        Request::Stop => Answer::Stopped,
        Request::FaultAdd(spec) => {
            let pool = match &spec.pool {
                None => None,
                Some(name) => {
                    let id = server.pool_id(name)?;
                    Some(id.with_context(|| format!("there is no pool '{name}'"))?)
                }
            };
            let numbers = server.add_fault(spec.osd, &spec.rule(pool)?)?;
            Answer::Added { numbers }
        }
        Request::FaultLs => {
            let all = server.faults()?;
            let faults = all
                .iter()
                .map(|(osd, n, rule)| FaultLine::new(*osd, *n, rule));
            Answer::Faults {
                faults: faults.collect(),
            }
        }
        Request::FaultClear { osd, number } => {
            server.clear_faults(osd, number)?;
            Answer::Cleared
        }
    })
}
