//! An NBD client as small as it can be: a newstyle handshake on a unix socket, simple replies.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::frontend::nbd::wire::{self, cmd, info, opt, rep};

/// A request that takes longer has lost its server.
const LIMIT: Duration = Duration::from_secs(120);

/// A connection to the export of a socket that has one.
pub(super) struct Client {
    stream: UnixStream,
    size: u64,
}

impl Client {
    pub(super) fn connect(socket: &Path) -> Result<Client> {
        let stream = UnixStream::connect(socket)
            .with_context(|| format!("cannot connect to {}", socket.display()))?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        let mut client = Client { stream, size: 0 };
        client
            .negotiate()
            .context("the NBD server is not understood")?;
        Ok(client)
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    fn negotiate(&mut self) -> Result<()> {
        ensure!(
            self.u64()? == wire::NBDMAGIC && self.u64()? == wire::IHAVEOPT,
            "no NBD"
        );
        let flags = u16::from_be_bytes(self.bytes()?) & wire::FLAG_NO_ZEROES;
        let flags = u32::from(flags | wire::FLAG_FIXED_NEWSTYLE);
        // GO with an empty name and no requests for information.
        let mut out = Vec::with_capacity(32);
        out.extend(flags.to_be_bytes());
        out.extend(wire::IHAVEOPT.to_be_bytes());
        out.extend(opt::GO.to_be_bytes());
        out.extend(6u32.to_be_bytes());
        out.extend([0; 6]);
        self.stream.write_all(&out)?;
        loop {
            ensure!(self.u64()? == wire::REPLY_MAGIC, "no reply to an option");
            let _option = self.u32()?;
            let (kind, len) = (self.u32()?, self.u32()?);
            ensure!(len <= 4096, "a reply of {len} bytes");
            let mut body = vec![0; len as usize];
            self.stream.read_exact(&mut body)?;
            match kind {
                rep::ACK => break,
                rep::INFO if body.len() >= 12 && body[..2] == info::EXPORT.to_be_bytes() => {
                    let size = body[2..10].try_into().expect("eight bytes");
                    self.size = u64::from_be_bytes(size);
                }
                rep::INFO => {}
                _ => bail!("the export is refused: {}", String::from_utf8_lossy(&body)),
            }
        }
        ensure!(self.size > 0, "the export has no size");
        Ok(())
    }

    pub(super) fn send_read(&mut self, token: u64, offset: u64, len: u32) -> Result<()> {
        self.send(cmd::READ, token, offset, len, &[])
    }

    pub(super) fn send_write(&mut self, token: u64, offset: u64, data: &[u8]) -> Result<()> {
        self.send(cmd::WRITE, token, offset, u32::try_from(data.len())?, data)
    }

    pub(super) fn flush(&mut self) -> Result<()> {
        self.send(cmd::FLUSH, 0, 0, 0, &[])?;
        self.reply().map(drop)
    }

    fn send(&mut self, cmd: u16, token: u64, offset: u64, len: u32, data: &[u8]) -> Result<()> {
        let mut head = Vec::with_capacity(wire::REQUEST_SIZE);
        head.extend(wire::REQUEST_MAGIC.to_be_bytes());
        head.extend(0u16.to_be_bytes());
        head.extend(cmd.to_be_bytes());
        head.extend(token.to_be_bytes());
        head.extend(offset.to_be_bytes());
        head.extend(len.to_be_bytes());
        self.stream.write_all(&head)?;
        self.stream.write_all(data)?;
        Ok(())
    }

    /// The next reply's token; of a read, its bytes follow: see [`Client::data`].
    pub(super) fn reply(&mut self) -> Result<u64> {
        ensure!(self.u32()? == wire::SIMPLE_REPLY_MAGIC, "no reply");
        let error = self.u32()?;
        ensure!(error == 0, "a request fails with error {error}");
        self.u64()
    }

    pub(super) fn data(&mut self, into: &mut [u8]) -> Result<()> {
        Ok(self.stream.read_exact(into)?)
    }

    /// Says goodbye; the server closes.
    pub(super) fn disconnect(mut self) {
        let _ = self.send(cmd::DISC, 0, 0, 0, &[]);
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_be_bytes(self.bytes()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_be_bytes(self.bytes()?))
    }
}
