//! Keyrings, made here rather than by a dozen runs of ceph-authtool.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

/// The type of a cephx key (Ceph: `include/ceph_fs.h`, `CEPH_CRYPTO_AES` and
/// `CEPH_CRYPTO_AES256KRB5`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyType {
    Aes = 1,
    Aes256k = 2,
}

impl KeyType {
    fn secret_len(self) -> usize {
        match self {
            KeyType::Aes => 16,
            KeyType::Aes256k => 32,
        }
    }
}

/// A fresh key for `entity` with its capabilities, as a section of a keyring file.
pub(crate) fn entry(entity: &str, key_type: KeyType, caps: &[(&str, &str)]) -> Result<String> {
    let mut secret = vec![0; key_type.secret_len()];
    File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut secret))
        .context("reading /dev/urandom")?;
    let created = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .context("a clock before 1970")?;
    let key = base64(&encode_key(key_type, created.as_secs() as u32, &secret));
    let mut entry = format!("[{entity}]\n\tkey = {key}\n");
    for (service, cap) in caps {
        writeln!(entry, "\tcaps {service} = \"{cap}\"")?;
    }
    Ok(entry)
}

/// Ceph: `auth/Crypto.cc`, `CryptoKey::encode`: type, time of creation, length, secret.
fn encode_key(key_type: KeyType, created_secs: u32, secret: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(12 + secret.len());
    bytes.extend((key_type as u16).to_le_bytes());
    bytes.extend(created_secs.to_le_bytes());
    bytes.extend(0u32.to_le_bytes());
    bytes.extend((secret.len() as u16).to_le_bytes());
    bytes.extend(secret);
    bytes
}

/// RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let word =
            chunk.iter().fold(0u32, |word, &b| word << 8 | u32::from(b)) << (8 * (3 - chunk.len()));
        for i in 0..4 {
            if i <= chunk.len() {
                text.push(ALPHABET[(word >> (18 - 6 * i)) as usize & 63] as char);
            } else {
                text.push('=');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_vectors_of_the_rfc() {
        let vectors = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ];
        for (plain, coded) in vectors {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
        assert_eq!(base64(&[0xfb, 0xff, 0xbf]), "+/+/");
    }

    #[test]
    fn entries() {
        let entry = entry("osd.1", KeyType::Aes, &[("mon", "allow profile osd")]).unwrap();
        let lines: Vec<_> = entry.lines().collect();
        assert_eq!(
            (lines[0], lines[2]),
            ("[osd.1]", "\tcaps mon = \"allow profile osd\"")
        );
        // 28 bytes, the first two of which are the type 1.
        assert!(
            lines[1].starts_with("\tkey = AQ") && lines[1].len() == 7 + 40,
            "{}",
            lines[1]
        );
    }
}
