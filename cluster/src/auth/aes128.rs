//! Key type 1: AES-128-CBC with a fixed IV and PKCS#7 padding (`CryptoAESKeyHandler`,
//! `src/auth/Crypto.cc`). No integrity check of its own: the magic inside the envelope is all.

use aes::Aes128;
use aes::cipher::block_padding::{NoPadding, Pkcs7};
use aes::cipher::{BlockModeDecrypt, BlockModeEncrypt, InnerIvInit, KeyInit};
use zeroize::Zeroizing;

pub(super) const KEY_LEN: usize = 16;
const BLOCK: usize = 16;
/// `CEPH_AES_IV` (`src/include/ceph_fs.h`).
const IV: [u8; BLOCK] = *b"cephsageyudagreg";

pub(super) struct Cipher(Aes128);

impl Cipher {
    pub(super) fn new(key: &[u8; KEY_LEN]) -> Cipher {
        Cipher(Aes128::new(key.into()))
    }

    pub(super) fn encrypt(&self, plain: &[u8]) -> Vec<u8> {
        cbc::Encryptor::inner_iv_init(self.0.clone(), &IV.into()).encrypt_padded_vec::<Pkcs7>(plain)
    }

    pub(super) fn decrypt(&self, sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        if sealed.is_empty() {
            return None;
        }
        let mut plain = Zeroizing::new(
            cbc::Decryptor::inner_iv_init(self.0.clone(), &IV.into())
                .decrypt_padded_vec::<NoPadding>(sealed)
                .ok()?,
        );
        // Wrong padding is cut to what can be cut and not reported: saying which check failed
        // would make a padding oracle.
        let pad = usize::from(*plain.last()?).min(BLOCK);
        let len = plain.len() - pad;
        plain.truncate(len);
        Some(plain)
    }
}
