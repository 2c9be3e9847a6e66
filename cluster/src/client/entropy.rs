use ring::hmac;

/// Random bytes from one seed: HMAC-SHA-256 over a counter. A client draws its nonces, challenges
/// and choices from here, so that a run repeats when its seed does; production seeds it from the
/// system.
pub(super) struct Entropy {
    key: hmac::Key,
    counter: u64,
}

impl Entropy {
    pub(super) fn new(seed: &[u8; 32]) -> Entropy {
        Entropy {
            key: hmac::Key::new(hmac::HMAC_SHA256, seed),
            counter: 0,
        }
    }

    pub(super) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        for chunk in out.chunks_mut(32) {
            let block = hmac::sign(&self.key, &self.counter.to_le_bytes());
            chunk.copy_from_slice(&block.as_ref()[..chunk.len()]);
            self.counter += 1;
        }
        out
    }

    pub(super) fn word(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_and_its_outputs_do_not() {
        let mut a = Entropy::new(&[7; 32]);
        let mut b = Entropy::new(&[7; 32]);
        let first: [u8; 40] = a.bytes();
        assert_eq!(first, b.bytes());
        assert_ne!(first, a.bytes());
        assert_ne!(first[..8], first[32..]);
        assert_ne!(Entropy::new(&[8; 32]).word(), Entropy::new(&[7; 32]).word());
    }
}
