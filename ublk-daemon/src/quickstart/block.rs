//! A block device with many requests in flight, by as many threads.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, anyhow};

/// Requests in flight.
const THREADS: usize = 32;
/// What direct I/O wants of addresses.
const ALIGN: usize = 4096;

enum Work {
    Read { offset: u64, len: usize },
    Write { offset: u64, data: Aligned },
    Flush,
}

type Reply = (u64, std::io::Result<Option<Aligned>>);

pub(super) struct Client {
    work: Sender<(u64, Work)>,
    replies: Receiver<Reply>,
    size: u64,
    /// What the last reply has brought.
    data: Option<Aligned>,
}

impl Client {
    pub(super) fn open(device: &Path) -> Result<Client> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_DIRECT);
        let shown = device.display();
        let mut file = options
            .open(device)
            .with_context(|| format!("cannot open {shown}"))?;
        let size = file.seek(SeekFrom::End(0))?;
        let file = Arc::new(file);
        let (work, queue) = channel::<(u64, Work)>();
        let queue = Arc::new(Mutex::new(queue));
        let (reply, replies) = channel();
        for _ in 0..THREADS {
            let (file, queue, reply) = (Arc::clone(&file), Arc::clone(&queue), reply.clone());
            std::thread::spawn(move || serve(&file, &queue, &reply));
        }
        Ok(Client {
            work,
            replies,
            size,
            data: None,
        })
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn send_read(&mut self, token: u64, offset: u64, len: u32) -> Result<()> {
        let len = len as usize;
        self.send(token, Work::Read { offset, len })
    }

    pub(super) fn send_write(&mut self, token: u64, offset: u64, data: &[u8]) -> Result<()> {
        let mut copy = Aligned::new(data.len());
        copy.bytes().copy_from_slice(data);
        self.send(token, Work::Write { offset, data: copy })
    }

    pub(super) fn flush(&mut self) -> Result<()> {
        self.send(0, Work::Flush)?;
        self.reply().map(drop)
    }

    fn send(&self, token: u64, work: Work) -> Result<()> {
        let sent = self.work.send((token, work));
        sent.map_err(|_| anyhow!("the threads of the load have ended"))
    }

    pub(super) fn reply(&mut self) -> Result<u64> {
        let (token, result) = self.replies.recv()?;
        self.data = result.context("a request to the block device fails")?;
        Ok(token)
    }

    pub(super) fn data(&mut self, into: &mut [u8]) -> Result<()> {
        let mut data = self.data.take().context("the last reply was to no read")?;
        into.copy_from_slice(data.bytes());
        Ok(())
    }
}

fn serve(file: &File, queue: &Mutex<Receiver<(u64, Work)>>, reply: &Sender<Reply>) {
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((token, work)) = next else { return };
        let result = match work {
            Work::Read { offset, len } => {
                let mut data = Aligned::new(len);
                let read = file.read_exact_at(data.bytes(), offset);
                read.map(|()| Some(data))
            }
            Work::Write { offset, mut data } => {
                file.write_all_at(data.bytes(), offset).map(|()| None)
            }
            Work::Flush => file.sync_all().map(|()| None),
        };
        if reply.send((token, result)).is_err() {
            return;
        }
    }
}

/// Bytes at an address that direct I/O takes.
struct Aligned {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    fn new(len: usize) -> Aligned {
        let memory = vec![0; len + ALIGN];
        let start = memory.as_ptr().align_offset(ALIGN);
        Aligned { memory, start, len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}
