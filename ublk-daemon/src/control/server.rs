//! The daemon's side of the control socket.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

use super::MAX_LINE;
use crate::run_dir::RunDir;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The one control socket of a run directory, held by a lock for as long as it lives.
pub struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
    inode: u64,
    _lock: File,
}

impl ControlSocket {
    /// Takes the run directory. Fails with what `taken` says when another process has it.
    pub fn bind(
        run_dir: &RunDir,
        taken: impl FnOnce(&Path) -> anyhow::Error,
    ) -> Result<ControlSocket> {
        run_dir.create()?;
        let lock_path = run_dir.lock_file();
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .with_context(|| format!("cannot open {}", lock_path.display()))?;
        if lock.try_lock().is_err() {
            return Err(taken(run_dir.path()));
        }
        let path = run_dir.control_socket();
        // The lock is ours, so a socket that is still there was left by a daemon that died.
        match std::fs::remove_file(&path) {
            Ok(()) => {}
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(e).with_context(|| format!("cannot replace {}", path.display())),
        }
        let listener = UnixListener::bind(&path)
            .with_context(|| format!("cannot listen on {}", path.display()))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        let inode = std::fs::metadata(&path)?.ino();
        Ok(ControlSocket {
            listener,
            path,
            inode,
            _lock: lock,
        })
    }

    /// The next caller that is the daemon's own user or root.
    pub async fn accept(&self) -> Result<Caller> {
        loop {
            let (stream, _) = self.listener.accept().await?;
            let uid = stream.peer_cred()?.uid();
            if uid == 0 || uid == nix::unistd::geteuid().as_raw() {
                return Ok(Caller {
                    stream: BufReader::new(stream),
                });
            }
            tracing::warn!(uid, "refused a caller that is another user");
        }
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let ours = std::fs::metadata(&self.path).is_ok_and(|m| m.ino() == self.inode);
        if ours {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// One caller: its request is read, then answered.
pub struct Caller {
    stream: BufReader<UnixStream>,
}

impl Caller {
    pub async fn request<Q: DeserializeOwned>(&mut self) -> Result<Q> {
        let mut line = String::new();
        (&mut self.stream)
            .take(MAX_LINE)
            .read_line(&mut line)
            .await?;
        serde_json::from_str(&line).context("a request that makes no sense")
    }

    pub async fn answer<A: Serialize>(mut self, answer: &A) -> Result<()> {
        let mut line = serde_json::to_vec(answer)?;
        line.push(b'\n');
        self.stream.write_all(&line).await?;
        self.stream.shutdown().await?;
        Ok(())
    }

    /// Resolves when the caller hangs up before it was answered.
    pub async fn hung_up(&self) {
        let stream = self.stream.get_ref();
        loop {
            let mut byte = [0];
            if stream.readable().await.is_err() {
                return;
            }
            let peeked = nix::sys::socket::recv(
                std::os::fd::AsRawFd::as_raw_fd(&stream.as_fd()),
                &mut byte,
                nix::sys::socket::MsgFlags::MSG_PEEK | nix::sys::socket::MsgFlags::MSG_DONTWAIT,
            );
            match peeked {
                Ok(0) => return,
                Err(nix::errno::Errno::EAGAIN) => {
                    // Clears tokio's readiness, which a bare syscall does not.
                    let _ = stream.try_io(tokio::io::Interest::READABLE, || {
                        Err::<(), _>(std::io::ErrorKind::WouldBlock.into())
                    });
                }
                Ok(_) => std::future::pending().await,
                Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{Answer, Request, client};
    use crate::daemon::taken;

    fn run_dir() -> (tempfile::TempDir, RunDir) {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(Some(&dir.path().join("run"))).unwrap();
        (dir, run_dir)
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    }

    #[test]
    fn a_request_is_answered() {
        let (_dir, run_dir) = run_dir();
        runtime().block_on(async {
            let socket = ControlSocket::bind(&run_dir, taken).unwrap();
            let mode = std::fs::metadata(run_dir.control_socket())
                .unwrap()
                .permissions()
                .mode();
            assert_eq!(mode & 0o777, 0o600);
            let rd = run_dir.clone();
            let asked = tokio::task::spawn_blocking(move || client::ask(&rd, &Request::List));
            let mut caller = socket.accept().await.unwrap();
            assert_eq!(caller.request::<Request>().await.unwrap(), Request::List);
            caller
                .answer(&Answer::Error {
                    message: "no".into(),
                })
                .await
                .unwrap();
            assert_eq!(asked.await.unwrap().unwrap_err().to_string(), "no");
        });
        assert!(
            !run_dir.control_socket().exists(),
            "the socket goes with its owner"
        );
        assert!(client::ask(&run_dir, &Request::List).unwrap().is_none());
    }

    #[test]
    fn a_second_daemon_is_refused_and_a_dead_ones_socket_replaced() {
        let (_dir, run_dir) = run_dir();
        runtime().block_on(async {
            let first = ControlSocket::bind(&run_dir, taken).unwrap();
            let err = ControlSocket::bind(&run_dir, taken)
                .err()
                .unwrap()
                .to_string();
            assert!(err.starts_with("another daemon serves"), "{err}");
            drop(first);
            drop(std::os::unix::net::UnixListener::bind(run_dir.control_socket()).unwrap());
            assert!(run_dir.control_socket().exists());
            ControlSocket::bind(&run_dir, taken).unwrap();
        });
    }

    #[test]
    fn a_caller_that_hangs_up_is_noticed() {
        let (_dir, run_dir) = run_dir();
        runtime().block_on(async {
            let socket = ControlSocket::bind(&run_dir, taken).unwrap();
            let peer = UnixStream::connect(run_dir.control_socket()).await.unwrap();
            let caller = socket.accept().await.unwrap();
            drop(peer);
            tokio::time::timeout(std::time::Duration::from_secs(5), caller.hung_up())
                .await
                .unwrap();
        });
    }
}
