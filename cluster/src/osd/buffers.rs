//! Buffers that replies are made in, used again once the connection is done with them.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::payload::Payload;

/// Bytes that idle and sent buffers may hold together; what goes beyond is freed when sent.
const KEEP: usize = 64 << 20;
/// Buffers that are looked at before a new one is made.
const LOOK: usize = 4;

#[derive(Debug, Default)]
pub(super) struct Buffers {
    ring: VecDeque<Rc<Vec<u8>>>,
    bytes: usize,
}

/// An empty buffer that nobody else refers to.
#[derive(Debug)]
pub(super) struct Buffer(Rc<Vec<u8>>);

impl Buffer {
    pub(super) fn vec(&mut self) -> &mut Vec<u8> {
        Rc::get_mut(&mut self.0).expect("payloads of it come with its return only")
    }
}

impl Buffers {
    pub(super) fn take(&mut self) -> Buffer {
        for _ in 0..LOOK.min(self.ring.len()) {
            let Some(mut slot) = self.ring.pop_front() else {
                break;
            };
            if let Some(bytes) = Rc::get_mut(&mut slot) {
                self.bytes -= bytes.capacity();
                bytes.clear();
                return Buffer(slot);
            }
            self.ring.push_back(slot);
        }
        Buffer(Rc::new(Vec::new()))
    }

    /// Takes a buffer back, and gives its contents to whoever sends them.
    pub(super) fn give(&mut self, buffer: Buffer) -> Option<Payload> {
        let Buffer(slot) = buffer;
        let len = slot.len();
        let payload = (len > 0).then(|| {
            let memory: Rc<Vec<u8>> = Rc::clone(&slot);
            Payload::new(memory, 0..len)
        });
        if self.bytes + slot.capacity() <= KEEP {
            self.bytes += slot.capacity();
            self.ring.push_back(slot);
        }
        payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_when_its_payload_is_gone() {
        let mut buffers = Buffers::default();
        let mut one = buffers.take();
        one.vec().extend_from_slice(b"abc");
        let place = one.vec().as_ptr();
        let payload = buffers.give(one).unwrap();
        assert_eq!(&*payload, b"abc");
        let mut two = buffers.take();
        two.vec().push(1);
        assert_ne!(two.vec().as_ptr(), place);
        assert!(buffers.give(two).is_some());
        drop(payload);
        let mut again = [buffers.take(), buffers.take()];
        assert!(again.iter_mut().any(|b| b.vec().as_ptr() == place));
        assert!(again.iter_mut().all(|b| b.vec().is_empty()));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut buffers = Buffers::default();
        for _ in 0..5 {
            let big = Buffer(Rc::new(Vec::with_capacity(KEEP / 2)));
            assert!(buffers.give(big).is_none());
        }
        assert!(buffers.ring.len() <= 2 && buffers.bytes <= KEEP);
    }
}
