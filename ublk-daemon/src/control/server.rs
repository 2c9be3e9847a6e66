//! The daemon's side of the control socket.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

use super::{Answer, MAX_LINE, Request};
use crate::run_dir::RunDir;

/// The one control socket of a run directory, held by a lock for as long as it lives.
pub struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
    inode: u64,
    _lock: File,
}

impl ControlSocket {
    /// Takes the run directory. Fails when another daemon has it.
    pub fn bind(run_dir: &RunDir) -> Result<ControlSocket> {
        run_dir.create()?;
        let lock_path = run_dir.lock_file();
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .with_context(|| format!("cannot open {}", lock_path.display()))?;
        if lock.try_lock().is_err() {
            bail!(
                "another daemon serves {}: use it, or another --run-dir",
                run_dir.path().display()
            );
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
    pub async fn request(&mut self) -> Result<Request> {
        let mut line = String::new();
        (&mut self.stream)
            .take(MAX_LINE)
            .read_line(&mut line)
            .await?;
        serde_json::from_str(&line).context("a request that makes no sense")
    }

    pub async fn answer(mut self, answer: &Answer) -> Result<()> {
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
    use crate::control::client;

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
            let socket = ControlSocket::bind(&run_dir).unwrap();
            let mode = std::fs::metadata(run_dir.control_socket())
                .unwrap()
                .permissions()
                .mode();
            assert_eq!(mode & 0o777, 0o600);
            let rd = run_dir.clone();
            let asked = tokio::task::spawn_blocking(move || client::ask(&rd, &Request::List));
            let mut caller = socket.accept().await.unwrap();
            assert_eq!(caller.request().await.unwrap(), Request::List);
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
            let first = ControlSocket::bind(&run_dir).unwrap();
            let err = ControlSocket::bind(&run_dir).err().unwrap().to_string();
            assert!(err.starts_with("another daemon serves"), "{err}");
            drop(first);
            drop(std::os::unix::net::UnixListener::bind(run_dir.control_socket()).unwrap());
            assert!(run_dir.control_socket().exists());
            ControlSocket::bind(&run_dir).unwrap();
        });
    }

    #[test]
    fn a_caller_that_hangs_up_is_noticed() {
        let (_dir, run_dir) = run_dir();
        runtime().block_on(async {
            let socket = ControlSocket::bind(&run_dir).unwrap();
            let peer = UnixStream::connect(run_dir.control_socket()).await.unwrap();
            let caller = socket.accept().await.unwrap();
            drop(peer);
            tokio::time::timeout(std::time::Duration::from_secs(5), caller.hung_up())
                .await
                .unwrap();
        });
    }
}
