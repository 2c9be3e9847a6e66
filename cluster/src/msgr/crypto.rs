//! AES-128-GCM of secure mode (`src/msg/async/crypto_onwire.cc`).

use ring::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use super::frame::FrameError;

const KEY_LEN: usize = 16;
pub const TAG_LEN: usize = 16;
/// The part of a connection secret that is used: a key and a nonce for each direction.
pub const SECRET_LEN: usize = KEY_LEN + 2 * NONCE_LEN;

/// `nonce_t` of msgr2.1: a fixed le32 and a le64 counter that every sealed block increments.
#[derive(Debug, Clone)]
struct NonceCounter {
    fixed: [u8; 4],
    counter: u64,
    left: u64,
}

impl NonceCounter {
    fn new(initial: &[u8; NONCE_LEN]) -> NonceCounter {
        let [f0, f1, f2, f3, counter @ ..] = *initial;
        NonceCounter {
            fixed: [f0, f1, f2, f3],
            counter: u64::from_le_bytes(counter),
            left: u64::MAX,
        }
    }

    /// Every nonce is used once: the counter may wrap, but never come round to where it began.
    fn next(&mut self) -> Result<Nonce, FrameError> {
        self.left = self.left.checked_sub(1).ok_or(FrameError::OutOfNonces)?;
        let mut bytes = [0; NONCE_LEN];
        bytes[..4].copy_from_slice(&self.fixed);
        bytes[4..].copy_from_slice(&self.counter.to_le_bytes());
        self.counter = self.counter.wrapping_add(1);
        Ok(Nonce::assume_unique_for_key(bytes))
    }
}

/// One direction of a secure connection.
#[derive(Debug, Clone)]
pub struct Cipher {
    key: LessSafeKey,
    nonces: NonceCounter,
}

impl Cipher {
    /// The ciphers for receiving and sending, from the connection secret that the authentication
    /// gave both sides: key, nonce of server to client, nonce of client to server.
    pub fn pair(secret: &[u8], server: bool) -> Option<(Cipher, Cipher)> {
        let (key, nonces) = secret.split_first_chunk::<KEY_LEN>()?;
        let (to_client, rest) = nonces.split_first_chunk::<NONCE_LEN>()?;
        let (to_server, _) = rest.split_first_chunk::<NONCE_LEN>()?;
        let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, key).ok()?);
        let cipher = |nonce| Cipher {
            key: key.clone(),
            nonces: NonceCounter::new(nonce),
        };
        let (rx, tx) = if server {
            (to_server, to_client)
        } else {
            (to_client, to_server)
        };
        Some((cipher(rx), cipher(tx)))
    }

    /// Encrypts `bytes` in place and returns the tag to follow them.
    pub fn seal(&mut self, bytes: &mut [u8]) -> Result<[u8; TAG_LEN], FrameError> {
        let nonce = self.nonces.next()?;
        let tag = self
            .key
            .seal_in_place_separate_tag(nonce, Aad::empty(), bytes)
            // Only beyond the 64 GiB that one GCM block may have.
            .map_err(|_| FrameError::OutOfNonces)?;
        let mut out = [0; TAG_LEN];
        out.copy_from_slice(tag.as_ref());
        Ok(out)
    }

    /// Decrypts `bytes`, ciphertext with the tag at its end, in place. `what` names them in the
    /// error when the tag does not fit.
    pub fn open(&mut self, bytes: &mut [u8], what: &'static str) -> Result<(), FrameError> {
        let nonce = self.nonces.next()?;
        match self.key.open_in_place(nonce, Aad::empty(), bytes) {
            Ok(_) => Ok(()),
            Err(_) => Err(FrameError::AuthTag { what }),
        }
    }

    #[cfg(test)]
    pub(super) fn exhaust(&mut self, left: u64) {
        self.nonces.left = left;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret() -> Vec<u8> {
        (0..SECRET_LEN as u8).collect()
    }

    #[test]
    fn what_one_side_seals_the_other_opens() {
        let (mut crx, mut ctx) = Cipher::pair(&secret(), false).unwrap();
        let (mut srx, mut stx) = Cipher::pair(&secret(), true).unwrap();
        for (tx, rx) in [(&mut ctx, &mut srx), (&mut stx, &mut crx)] {
            for round in 0..3u8 {
                let plain = [round; 21];
                let mut bytes = plain.to_vec();
                let tag = tx.seal(&mut bytes).unwrap();
                assert_ne!(bytes, plain);
                bytes.extend_from_slice(&tag);
                rx.open(&mut bytes, "block").unwrap();
                assert_eq!(bytes[..21], plain);
            }
        }
    }

    #[test]
    fn the_counter_wraps_but_never_comes_round() {
        let mut initial = [0xff; NONCE_LEN];
        initial[0] = 7;
        let mut n = NonceCounter::new(&initial);
        assert_eq!(n.next().unwrap().as_ref(), &initial);
        let mut second = [0; NONCE_LEN];
        second[..4].copy_from_slice(&[7, 0xff, 0xff, 0xff]);
        assert_eq!(n.next().unwrap().as_ref(), &second);
        n.left = 1;
        assert!(n.next().is_ok());
        assert!(matches!(n.next(), Err(FrameError::OutOfNonces)));
    }

    #[test]
    fn a_short_secret_gives_no_cipher() {
        assert!(Cipher::pair(&secret()[..SECRET_LEN - 1], false).is_none());
    }
}
