//! What cephx encrypts: a version byte, a magic number, the structure (`encode_encrypt` and
//! `decode_decrypt`, `src/auth/cephx/CephxProtocol.h`).

use zeroize::Zeroizing;

use crate::codec::{Put, Reader};

use super::AuthError;
use super::key::{Confounder, CryptoKey, Usage};

/// `AUTH_ENC_MAGIC`.
const MAGIC: u64 = 0xff00_9cad_8826_aa55;
const HEADER_LEN: usize = 1 + 8;

/// The plaintext of an opened envelope.
pub(super) struct Opened(Zeroizing<Vec<u8>>);

impl Opened {
    pub(super) fn reader(&self) -> Reader<'_> {
        Reader::new(&self.0[HEADER_LEN..])
    }
}

/// `encode_encrypt_enc_bl`: the ciphertext, without a length.
pub(super) fn seal(
    key: &CryptoKey,
    usage: Usage,
    confounder: &Confounder,
    body: impl FnOnce(&mut Vec<u8>),
) -> Vec<u8> {
    let mut plain = Zeroizing::new(Vec::with_capacity(128));
    plain.put_u8(1);
    plain.put_u64(MAGIC);
    body(&mut plain);
    key.encrypt(usage, confounder, &plain)
}

/// `decode_decrypt_enc_bl`. `what` names the thing in the error.
pub(super) fn open(
    key: &CryptoKey,
    usage: Usage,
    sealed: &[u8],
    what: &'static str,
) -> Result<Opened, AuthError> {
    let plain = key
        .decrypt(usage, sealed)
        .ok_or(AuthError::Decrypt { what })?;
    let mut header = Reader::new(&plain);
    // A wrong type 1 key decrypts to noise of any length: too short says no more than wrong magic.
    let magic = header.skip(1).and_then(|()| header.u64());
    if magic != Ok(MAGIC) {
        return Err(AuthError::Decrypt { what });
    }
    Ok(Opened(plain))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::{KeyType, Secret};
    use crate::codec::UTime;
    use proptest::prelude::*;

    fn key(kind: KeyType, seed: u8) -> CryptoKey {
        CryptoKey::new(kind, UTime::default(), Secret::new(vec![seed; 32])).unwrap()
    }

    #[test]
    fn only_the_right_key_opens() {
        for kind in [KeyType::Aes, KeyType::Aes256k] {
            let sealed = seal(&key(kind, 1), Usage::Authorize, &[3; 16], |b| b.put_u64(77));
            let opened = open(&key(kind, 1), Usage::Authorize, &sealed, "x").unwrap();
            assert_eq!(opened.reader().u64(), Ok(77));
            assert_eq!(
                open(&key(kind, 2), Usage::Authorize, &sealed, "x").err(),
                Some(AuthError::Decrypt { what: "x" })
            );
        }
    }

    proptest! {
        #[test]
        fn hostile_bytes_never_panic(bytes: Vec<u8>) {
            for kind in [KeyType::Aes, KeyType::Aes256k] {
                let _ = open(&key(kind, 1), Usage::TicketBlob, &bytes, "x");
            }
        }
    }
}
