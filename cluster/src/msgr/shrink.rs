//! When to give memory back: buffers are reused, and a huge frame must not pin its size for ever.

/// Capacity that is never given back.
const KEEP: usize = 256 * 1024;
/// So many uses in a row must have needed less than a quarter before a buffer shrinks. A stream of
/// 4 MiB reads with small acks between them thus keeps its buffer.
const PATIENCE: u32 = 64;

/// Watches how much of a buffer is used.
#[derive(Debug, Default)]
pub(super) struct Shrink {
    small: u32,
}

impl Shrink {
    /// Empties `buf` after a use that needed `used` bytes; gives memory back when it has been far
    /// too large for long enough.
    pub(super) fn recycle(&mut self, buf: &mut Vec<u8>, used: usize) {
        buf.clear();
        if buf.capacity() <= KEEP || used > buf.capacity() / 4 {
            self.small = 0;
            return;
        }
        self.small += 1;
        if self.small >= PATIENCE {
            buf.shrink_to(KEEP);
            self.small = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_shrinks_only_after_a_run_of_small_uses() {
        let mut shrink = Shrink::default();
        let mut buf = Vec::with_capacity(4 << 20);
        for _ in 0..PATIENCE - 1 {
            shrink.recycle(&mut buf, 100);
        }
        shrink.recycle(&mut buf, 4 << 20);
        assert!(buf.capacity() >= 4 << 20);
        for _ in 0..PATIENCE {
            shrink.recycle(&mut buf, 100);
        }
        assert!(buf.capacity() <= 2 * KEEP, "{}", buf.capacity());
    }
}
