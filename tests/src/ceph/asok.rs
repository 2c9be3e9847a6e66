//! Admin sockets: a daemon's own answers in a millisecond, without a monitor and without starting
//! the Python of the `ceph` tool.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// More than any answer asked for here.
const MAX_ANSWER: u32 = 64 << 20;

/// Asks the daemon behind `socket` (Ceph: `common/admin_socket.cc`, `AdminSocket::do_accept`: a
/// JSON command ended by a NUL; the answer is preceded by its length, big endian).
pub(crate) fn ask(socket: &Path, command: &str) -> Result<Value> {
    let context = || format!("asking {command} of {}", socket.display());
    exchange(socket, command).with_context(context)
}

fn exchange(socket: &Path, command: &str) -> Result<Value> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.set_write_timeout(Some(Duration::from_secs(10)))?;
    let request = json!({ "prefix": command, "format": "json" }).to_string();
    stream.write_all(request.as_bytes())?;
    stream.write_all(&[0])?;
    let mut len = [0; 4];
    stream.read_exact(&mut len)?;
    let len = u32::from_be_bytes(len);
    if len > MAX_ANSWER {
        bail!("an answer of {len} bytes");
    }
    let mut answer = Vec::new();
    stream.take(len.into()).read_to_end(&mut answer)?;
    serde_json::from_slice(&answer)
        .with_context(|| format!("not JSON: {}", String::from_utf8_lossy(&answer)))
}
