//! Key type 2 of Ceph 20: aes256-cts-hmac-sha384-192 of RFC 8009 (`CryptoAES256KRB5KeyHandler`,
//! `src/auth/Crypto.cc`).
//!
//! sealed = AES-256-CBC-CS3(Ke, IV 0, confounder | plain) | HMAC-SHA384(Ki, IV | ciphertext)[..24]

use aes::Aes256;
use aes::cipher::block_padding::NoPadding;
use aes::cipher::{
    BlockCipherDecrypt, BlockModeDecrypt, BlockModeEncrypt, InnerIvInit, KeyInit as _,
};
use hmac::{Hmac, Mac};
use sha2::Sha384;
use zeroize::{Zeroize, Zeroizing};

pub(super) const KEY_LEN: usize = 32;
pub(super) const CONFOUNDER_LEN: usize = 16;
const BLOCK: usize = 16;
const MAC_LEN: usize = 24;
const IV: [u8; BLOCK] = [0; BLOCK];

/// The last octet of a derivation label (RFC 8009 section 5).
const LABEL_ENCRYPTION: u8 = 0xaa;
const LABEL_INTEGRITY: u8 = 0x55;

/// The two keys of one key usage.
pub(super) struct UsageKeys {
    encryption: Aes256,
    integrity: Hmac<Sha384>,
}

impl UsageKeys {
    pub(super) fn derive(secret: &[u8], usage: u32) -> UsageKeys {
        let ke = derive::<32>(secret, usage, LABEL_ENCRYPTION);
        let ki = derive::<MAC_LEN>(secret, usage, LABEL_INTEGRITY);
        UsageKeys {
            encryption: Aes256::new((&*ke).into()),
            integrity: keyed(&*ki),
        }
    }

    pub(super) fn encrypt(&self, confounder: &[u8; CONFOUNDER_LEN], plain: &[u8]) -> Vec<u8> {
        let len = CONFOUNDER_LEN + plain.len();
        let mut out = Vec::with_capacity(len.next_multiple_of(BLOCK) + MAC_LEN);
        out.extend_from_slice(confounder);
        out.extend_from_slice(plain);
        self.cs3_encrypt(&mut out);
        let mac = self.mac(&out).finalize().into_bytes();
        out.extend_from_slice(&mac[..MAC_LEN]);
        out
    }

    pub(super) fn decrypt(&self, sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let mut plain = self.decrypt_whole(sealed)?;
        plain.copy_within(CONFOUNDER_LEN.., 0);
        let len = plain.len() - CONFOUNDER_LEN;
        plain.truncate(len);
        Some(plain)
    }

    /// The confounder and the plaintext.
    pub(super) fn decrypt_whole(&self, sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let (body, mac) = sealed.split_last_chunk::<MAC_LEN>()?;
        if body.len() < CONFOUNDER_LEN {
            return None;
        }
        self.mac(body).verify_truncated_left(mac).ok()?;
        let mut plain = Zeroizing::new(body.to_vec());
        self.cs3_decrypt(&mut plain);
        Some(plain)
    }

    fn mac(&self, ciphertext: &[u8]) -> Hmac<Sha384> {
        let mut mac = self.integrity.clone();
        mac.update(&IV);
        mac.update(ciphertext);
        mac
    }

    /// CBC with ciphertext stealing, variant CS3: pad with zeros, encrypt, exchange the last two
    /// blocks, cut to the length of the input. A lone block is plain CBC.
    fn cs3_encrypt(&self, buf: &mut Vec<u8>) {
        let len = buf.len();
        buf.resize(len.next_multiple_of(BLOCK), 0);
        let padded = buf.len();
        cbc::Encryptor::inner_iv_init(self.encryption.clone(), &IV.into())
            .encrypt_padded::<NoPadding>(buf, padded)
            .expect("whole blocks need no padding");
        exchange_last_two(buf);
        buf.truncate(len);
    }

    /// The inverse. What was cut off the last-but-one block is found in the decryption of the
    /// last: its plaintext there was the zero padding, so it is the ciphertext itself.
    fn cs3_decrypt(&self, buf: &mut Vec<u8>) {
        let len = buf.len();
        let tail = len % BLOCK;
        if tail != 0 {
            let last_full = len - tail - BLOCK;
            let mut block = [0; BLOCK];
            block.copy_from_slice(&buf[last_full..last_full + BLOCK]);
            self.encryption.decrypt_block((&mut block).into());
            buf.extend_from_slice(&block[tail..]);
            block.zeroize();
        }
        exchange_last_two(buf);
        cbc::Decryptor::inner_iv_init(self.encryption.clone(), &IV.into())
            .decrypt_padded::<NoPadding>(buf)
            .expect("whole blocks need no padding");
        buf.truncate(len);
    }
}

fn exchange_last_two(buf: &mut [u8]) {
    if buf.len() >= 2 * BLOCK {
        let at = buf.len() - 2 * BLOCK;
        let (a, b) = buf[at..].split_at_mut(BLOCK);
        a.swap_with_slice(b);
    }
}

/// KDF-HMAC-SHA2(key, usage | label, k) of RFC 8009 section 3.
fn derive<const N: usize>(secret: &[u8], usage: u32, label: u8) -> Zeroizing<[u8; N]> {
    let mut mac = keyed(secret);
    mac.update(&1u32.to_be_bytes());
    mac.update(&usage.to_be_bytes());
    mac.update(&[label, 0]);
    mac.update(&(N as u32 * 8).to_be_bytes());
    let full = mac.finalize().into_bytes();
    let mut out = Zeroizing::new([0; N]);
    out.copy_from_slice(&full[..N]);
    out
}

fn keyed(key: &[u8]) -> Hmac<Sha384> {
    Hmac::new_from_slice(key).expect("HMAC takes keys of any length")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hex(s: &str) -> Vec<u8> {
        (0..s.len())
            .step_by(2)
            .map(|i| u8::from_str_radix(&s[i..i + 2], 16).unwrap())
            .collect()
    }

    // RFC 8009, appendix A, aes256-cts-hmac-sha384-192, key usage 2.
    const BASE_KEY: &str = "6d404d37faf79f9df0d33568d320669800eb4836472ea8a026d16b7182460c52";
    const VECTORS: [(usize, &str, &str); 4] = [
        (
            0,
            "f764e9fa15c276478b2c7d0c4e5f58e4",
            "41f53fa5bfe7026d91faf9be959195a058707273a96a40f0a01960621ac612748b9bbfbe7eb4ce3c",
        ),
        (
            6,
            "b80d3251c1f6471494256ffe712d0b9a",
            "4ed7b37c2bcac8f74f23c1cf07e62bc7b75fb3f637b9f559c7f664f69eab7b6092237526ea0d1f61cb20d69d10f2",
        ),
        (
            16,
            "53bf8a0d105265d4e276428624ce5e63",
            "bc47ffec7998eb91e8115cf8d19dac4bbbe2e163e87dd37f49beca92027764f68cf51f14d798c2273f35df574d1f932e40c4ff255b36a266",
        ),
        (
            21,
            "763e65367e864f02f55153c7e3b58af1",
            "40013e2df58e8751957d2878bcd2d6fe101ccfd556cb1eae79db3c3ee86429f2b2a602ac86fef6ecb647d6295fae077a1feb517508d2c16b4192e01f62",
        ),
    ];

    #[test]
    fn keys_are_derived_as_in_rfc_8009() {
        let base = hex(BASE_KEY);
        assert_eq!(
            derive::<32>(&base, 2, LABEL_ENCRYPTION)[..],
            hex("56ab22bee63d82d7bc5227f6773f8ea7a5eb1c825160c38312980c442e5c7e49")
        );
        assert_eq!(
            derive::<24>(&base, 2, LABEL_INTEGRITY)[..],
            hex("69b16514e3cd8e56b82010d5c73012b622c4d00ffc23ed1f")
        );
    }

    #[test]
    fn messages_are_sealed_as_in_rfc_8009() {
        let keys = UsageKeys::derive(&hex(BASE_KEY), 2);
        for (len, confounder, sealed) in VECTORS {
            let plain: Vec<u8> = (0..len as u8).collect();
            let confounder: [u8; 16] = hex(confounder).try_into().unwrap();
            assert_eq!(keys.encrypt(&confounder, &plain), hex(sealed));
            assert_eq!(*keys.decrypt(&hex(sealed)).unwrap(), plain);
        }
    }

    proptest! {
        #[test]
        fn round_trip(plain in prop::collection::vec(any::<u8>(), 0..200), confounder: [u8; 16], flip: (usize, u8)) {
            let keys = UsageKeys::derive(&[7; 32], 0x10);
            let mut sealed = keys.encrypt(&confounder, &plain);
            prop_assert_eq!(sealed.len(), 16 + plain.len() + MAC_LEN);
            prop_assert_eq!(&*keys.decrypt(&sealed).unwrap(), &plain);
            let at = flip.0 % sealed.len();
            sealed[at] ^= flip.1.max(1);
            prop_assert!(keys.decrypt(&sealed).is_none());
        }

        #[test]
        fn hostile_bytes_never_panic(bytes: Vec<u8>) {
            prop_assert!(UsageKeys::derive(&[7; 32], 0x10).decrypt(&bytes).is_none());
        }
    }
}
