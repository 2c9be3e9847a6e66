//! Bytes on their way to a peer: owned by a pool or a vector, shared by reference count.
//!
//! A write's bytes are needed until the OSD has acknowledged it, since a map change resends it.
//! [`Payload`] keeps them alive without copying them; cloning costs one non-atomic increment.

use std::fmt;
use std::ops::{Deref, Range};
use std::rc::Rc;

/// Memory that a [`Payload`] points into. A pool hands out `Rc<Slot>`s it keeps a clone of, and
/// takes a slot back into use when its own clone is the last one.
///
/// # Safety
/// For as long as any [`Payload`] of it lives, `bytes` must return the same place and length, and
/// the bytes must not change: the kernel may be reading them.
pub unsafe trait Memory {
    fn bytes(&self) -> &[u8];
}

// SAFETY: a vector behind an `Rc` of which other clones exist is not mutably reachable.
unsafe impl Memory for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

// SAFETY: it is static and shared.
unsafe impl Memory for &'static [u8] {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// An immutable slice of shared memory.
#[derive(Clone)]
pub struct Payload {
    memory: Rc<dyn Memory>,
    start: usize,
    end: usize,
}

impl Payload {
    /// The bytes `range` of `memory`. Panics when the range lies outside.
    pub fn new(memory: Rc<dyn Memory>, range: Range<usize>) -> Payload {
        assert!(range.start <= range.end && range.end <= memory.bytes().len());
        Payload {
            memory,
            start: range.start,
            end: range.end,
        }
    }

    /// A part of this payload, by offsets from its start. Panics when it lies outside.
    pub fn slice(&self, range: Range<usize>) -> Payload {
        assert!(range.start <= range.end && range.end <= self.len());
        Payload {
            memory: Rc::clone(&self.memory),
            start: self.start + range.start,
            end: self.start + range.end,
        }
    }

    pub fn len(&self) -> usize {
        self.end - self.start
    }

    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }
}

impl Deref for Payload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory.bytes()[self.start..self.end]
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Payload {
        let end = bytes.len();
        Payload {
            memory: Rc::new(bytes),
            start: 0,
            end,
        }
    }
}

impl Default for Payload {
    fn default() -> Payload {
        Payload::from(Vec::new())
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes)", self.len())
    }
}
