//! What of a session outlives its stream: cookies, sequence numbers, messages not acknowledged.

use std::collections::VecDeque;

use crate::payload::Payload;

use super::frame::FrameError;
use super::header::MsgHeader;
use super::output::{OutBatch, Tx};

/// Front buffers kept for reuse.
const SPARE: usize = 16;

/// A message of a lossless session, kept until it is acknowledged.
#[derive(Debug)]
struct Stored {
    header: MsgHeader,
    front: Vec<u8>,
    middle: Vec<u8>,
    data: Vec<Payload>,
}

/// Names as in `ProtocolV2`.
#[derive(Debug, Default)]
pub(super) struct Session {
    pub(super) client_cookie: u64,
    pub(super) server_cookie: u64,
    pub(super) global_seq: u64,
    pub(super) connect_seq: u64,
    pub(super) peer_global_seq: u64,
    pub(super) in_seq: u64,
    pub(super) out_seq: u64,
    /// Messages received since the last acknowledgement that we sent.
    pub(super) ack_left: u64,
    /// Lossless only, oldest first; the first `sent` of them went out on the present stream.
    queue: VecDeque<Stored>,
    sent: usize,
    spare: Vec<Vec<u8>>,
}

impl Session {
    pub(super) fn new(global_seq: u64) -> Session {
        Session {
            global_seq,
            ..Session::default()
        }
    }

    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Keeps a message of a lossless session. [`Session::transmit`] sends it.
    pub(super) fn store(
        &mut self,
        header: &MsgHeader,
        front: impl FnOnce(&mut Vec<u8>),
        middle: &[u8],
        data: &[Payload],
    ) {
        let mut bytes = self.spare.pop().unwrap_or_default();
        front(&mut bytes);
        self.queue.push_back(Stored {
            header: *header,
            front: bytes,
            middle: middle.to_vec(),
            data: data.to_vec(),
        });
    }

    /// Sends what waits. A lossy session keeps nothing of it.
    pub(super) fn transmit(
        &mut self,
        tx: &mut Tx,
        out: &mut OutBatch,
        lossy: bool,
    ) -> Result<(), FrameError> {
        for m in self.queue.iter_mut().skip(self.sent) {
            m.header.seq = self.out_seq + 1;
            m.header.ack_seq = self.in_seq;
            let front = |b: &mut Vec<u8>| b.extend_from_slice(&m.front);
            tx.message(out, &m.header, front, &m.middle, &m.data)?;
            self.out_seq += 1;
            self.sent += 1;
            self.ack_left = 0;
        }
        if lossy {
            self.forget();
        }
        Ok(())
    }

    /// `handle_message_ack`: the peer has everything up to `seq`.
    pub(super) fn acked(&mut self, seq: u64) {
        while self.sent > 0 && self.queue[0].header.seq <= seq {
            self.pop();
            self.sent -= 1;
        }
    }

    /// `requeue_sent`: the stream is gone, everything not acknowledged goes out again.
    pub(super) fn requeue(&mut self) {
        self.out_seq -= self.sent as u64;
        self.sent = 0;
        self.ack_left = 0;
    }

    /// `discard_requeued_up_to`: the peer says on reconnect what it has received after all.
    pub(super) fn discard_up_to(&mut self, seq: u64) {
        debug_assert_eq!(self.sent, 0);
        while let Some(m) = self.queue.front() {
            // Never sent on any stream: number 0.
            if m.header.seq == 0 || m.header.seq > seq {
                break;
            }
            self.pop();
            self.out_seq += 1;
        }
    }

    /// `reset_session`: nothing of the session is left. `global_seq` belongs to our entity.
    pub(super) fn reset(&mut self) {
        self.forget();
        *self = Session {
            global_seq: self.global_seq,
            spare: std::mem::take(&mut self.spare),
            ..Session::default()
        };
    }

    fn forget(&mut self) {
        while !self.queue.is_empty() {
            self.pop();
        }
        self.sent = 0;
    }

    fn pop(&mut self) {
        let spare = self.spare.len() < SPARE;
        if let Some(mut m) = self.queue.pop_front().filter(|_| spare) {
            m.front.clear();
            self.spare.push(m.front);
        }
    }
}

/// The next session cookie from `seed`, never 0 (SplitMix64).
pub(super) fn cookie(seed: &mut u64) -> u64 {
    loop {
        *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        if z != 0 {
            return z;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(messages: u64) -> (Session, Tx, OutBatch) {
        let mut s = Session::default();
        for tid in 0..messages {
            let header = MsgHeader {
                tid,
                ..MsgHeader::new(1, 1, 1)
            };
            s.store(&header, |_| (), &[], &[]);
        }
        (s, Tx::Crc { data: true }, OutBatch::new())
    }

    #[test]
    fn a_replay_keeps_the_numbers() {
        let (mut s, mut tx, mut out) = session(5);
        s.transmit(&mut tx, &mut out, false).unwrap();
        s.acked(2);
        assert_eq!((s.out_seq, s.queued(), s.sent), (5, 3, 3));
        s.requeue();
        assert_eq!((s.out_seq, s.queued(), s.sent), (2, 3, 0));
        s.discard_up_to(4);
        assert_eq!((s.out_seq, s.queued()), (4, 1));
        out.clear();
        s.transmit(&mut tx, &mut out, false).unwrap();
        assert_eq!((s.out_seq, s.queue[0].header.seq), (5, 5));
    }

    #[test]
    fn an_acknowledgement_of_the_future_drops_only_what_was_sent() {
        let (mut s, mut tx, mut out) = session(2);
        s.transmit(&mut tx, &mut out, false).unwrap();
        s.store(&MsgHeader::new(1, 1, 1), |_| (), &[], &[]);
        s.acked(u64::MAX);
        assert_eq!((s.queued(), s.sent), (1, 0));
        s.requeue();
        s.discard_up_to(u64::MAX);
        assert_eq!(s.queued(), 1);
    }

    #[test]
    fn a_reset_forgets_all_but_the_number_of_the_connection() {
        let (mut s, mut tx, mut out) = session(2);
        s.global_seq = 7;
        s.client_cookie = 1;
        s.transmit(&mut tx, &mut out, false).unwrap();
        s.reset();
        assert_eq!((s.out_seq, s.queued(), s.sent), (0, 0, 0));
        assert_eq!((s.global_seq, s.client_cookie), (7, 0));
    }
}
