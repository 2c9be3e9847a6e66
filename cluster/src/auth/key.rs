use std::fmt;
use std::sync::{Arc, OnceLock};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::codec::{DecodeError, Put, Reader, Result, UTime};

use super::{Secret, aes128, base64, krb5};

/// The cipher that a key is for (`CEPH_CRYPTO_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyType {
    /// AES-128-CBC, all that clusters before 19.2.6 and 20.2.4 know.
    Aes,
    /// AES256KRB5, the default since.
    Aes256k,
}

impl KeyType {
    pub const fn raw(self) -> u16 {
        match self {
            KeyType::Aes => 1,
            KeyType::Aes256k => 2,
        }
    }

    pub const fn from_raw(raw: u16) -> Option<KeyType> {
        match raw {
            1 => Some(KeyType::Aes),
            2 => Some(KeyType::Aes256k),
            _ => None,
        }
    }

    /// Bytes of a new secret. Longer ones are legal.
    pub const fn secret_len(self) -> usize {
        match self {
            KeyType::Aes => aes128::KEY_LEN,
            KeyType::Aes256k => krb5::KEY_LEN,
        }
    }
}

impl fmt::Display for KeyType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KeyType::Aes => "aes",
            KeyType::Aes256k => "aes256k",
        })
    }
}

/// Why a key could not be read. The key itself is not shown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("the key is not base64")]
    NotBase64,
    #[error("the key is cut short")]
    CutShort,
    #[error("the key is of unknown type {0}")]
    UnknownType(u16),
    #[error("the key's secret has {len} bytes, type {kind} needs {}", kind.secret_len())]
    ShortSecret { kind: KeyType, len: usize },
}

/// What a sealed blob is for (`CEPHX_KEY_USAGE_*`, `src/auth/cephx/CephxProtocol.h`). Type 2 keys
/// derive other keys for each use, type 1 keys do not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Usage {
    AuthConnectionSecret,
    TicketSessionKey,
    TicketBlob,
    Authorize,
    AuthorizeChallenge,
    AuthorizeReply,
    TicketInfo,
}

impl Usage {
    const COUNT: usize = 7;

    pub(super) const fn raw(self) -> u32 {
        match self {
            Usage::AuthConnectionSecret => 0x03,
            Usage::TicketSessionKey => 0x04,
            Usage::TicketBlob => 0x05,
            Usage::Authorize => 0x10,
            Usage::AuthorizeChallenge => 0x11,
            Usage::AuthorizeReply => 0x12,
            Usage::TicketInfo => 0x30,
        }
    }
}

/// A cephx key (`CryptoKey`, `src/auth/Crypto.h`): a user's, a session's or a service's.
/// Clones share the secret and the derived keys.
#[derive(Clone)]
pub struct CryptoKey {
    created: UTime,
    inner: Arc<Inner>,
}

struct Inner {
    secret: Secret,
    cipher: Cipher,
}

enum Cipher {
    Aes(Box<aes128::Cipher>),
    /// Derived at first use; a client's session needs two or three of them.
    Aes256k([OnceLock<Box<krb5::UsageKeys>>; Usage::COUNT]),
}

/// Smears a nonce over its key's plaintext (RFC 8009). Type 1 keys ignore it.
pub(super) type Confounder = [u8; krb5::CONFOUNDER_LEN];

impl CryptoKey {
    pub fn new(kind: KeyType, created: UTime, secret: Secret) -> Result<CryptoKey, KeyError> {
        let short = KeyError::ShortSecret {
            kind,
            len: secret.len(),
        };
        let cipher = match kind {
            KeyType::Aes => {
                let key = secret.as_bytes().first_chunk().ok_or(short)?;
                Cipher::Aes(Box::new(aes128::Cipher::new(key)))
            }
            KeyType::Aes256k => {
                if secret.len() < krb5::KEY_LEN {
                    return Err(short);
                }
                Cipher::Aes256k(Default::default())
            }
        };
        Ok(CryptoKey {
            created,
            inner: Arc::new(Inner { secret, cipher }),
        })
    }

    /// A key as keyrings, `key` options and `ceph auth print-key` write it.
    pub fn from_base64(text: &str) -> Result<CryptoKey, KeyError> {
        let bytes = base64::decode(text.trim()).ok_or(KeyError::NotBase64)?;
        CryptoKey::parse(&mut Reader::new(&bytes))
    }

    pub fn to_base64(&self) -> Zeroizing<String> {
        let mut out = Zeroizing::new(Vec::with_capacity(12 + self.inner.secret.len()));
        self.encode(&mut out);
        base64::encode(&out)
    }

    pub fn kind(&self) -> KeyType {
        match self.inner.cipher {
            Cipher::Aes(_) => KeyType::Aes,
            Cipher::Aes256k(_) => KeyType::Aes256k,
        }
    }

    pub fn created(&self) -> UTime {
        self.created
    }

    /// The raw secret: what signs a connection's transcript.
    pub fn secret(&self) -> &Secret {
        &self.inner.secret
    }

    fn parse(r: &mut Reader<'_>) -> Result<CryptoKey, KeyError> {
        let cut = |_| KeyError::CutShort;
        let kind = r.u16().map_err(cut)?;
        let created = UTime::decode(r).map_err(cut)?;
        let len = r.u16().map_err(cut)?;
        let secret = r.bytes(usize::from(len)).map_err(cut)?;
        let kind = KeyType::from_raw(kind).ok_or(KeyError::UnknownType(kind))?;
        CryptoKey::new(kind, created, secret.into())
    }

    /// `CryptoKey::decode`: le16 type, creation time, le16 length, secret.
    pub(super) fn decode(r: &mut Reader<'_>) -> Result<CryptoKey> {
        CryptoKey::parse(r).map_err(|_| DecodeError::malformed("crypto key"))
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let secret = self.inner.secret.as_bytes();
        out.put_u16(self.kind().raw());
        self.created.encode(out);
        out.put_u16(u16::try_from(secret.len()).expect("a key's length has 16 bits"));
        out.put_bytes(secret);
    }

    pub(super) fn encrypt(&self, usage: Usage, confounder: &Confounder, plain: &[u8]) -> Vec<u8> {
        match &self.inner.cipher {
            Cipher::Aes(cipher) => cipher.encrypt(plain),
            Cipher::Aes256k(keys) => self.usage_keys(keys, usage).encrypt(confounder, plain),
        }
    }

    pub(super) fn decrypt(&self, usage: Usage, sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        match &self.inner.cipher {
            Cipher::Aes(cipher) => cipher.decrypt(sealed),
            Cipher::Aes256k(keys) => self.usage_keys(keys, usage).decrypt(sealed),
        }
    }

    /// What a captured message was salted with, to make the same one again.
    #[cfg(test)]
    pub(super) fn confounder(&self, usage: Usage, sealed: &[u8]) -> Option<Confounder> {
        match &self.inner.cipher {
            Cipher::Aes(_) => Some([0; 16]),
            Cipher::Aes256k(keys) => {
                let whole = self.usage_keys(keys, usage).decrypt_whole(sealed)?;
                whole.first_chunk().copied()
            }
        }
    }

    fn usage_keys<'a>(
        &self,
        keys: &'a [OnceLock<Box<krb5::UsageKeys>>; Usage::COUNT],
        usage: Usage,
    ) -> &'a krb5::UsageKeys {
        keys[usage as usize].get_or_init(|| {
            let secret = self.inner.secret.as_bytes();
            Box::new(krb5::UsageKeys::derive(secret, usage.raw()))
        })
    }

    /// HMAC-SHA256 of `message` under the raw secret (`CryptoKeyHandler::hmac_sha256`).
    pub(super) fn hmac_sha256(&self, message: &[u8]) -> [u8; 32] {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.inner.secret.as_bytes())
            .expect("HMAC takes keys of any length");
        mac.update(message);
        mac.finalize().into_bytes().into()
    }
}

impl fmt::Debug for CryptoKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CryptoKey({})", self.kind())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const AES: &str = "AQCNYw1rFoQxDRAAgDD4Xv747lqO4Yw2huTi+g==";
    const AES256K: &str = "AgAlZA1r3XjfCyAARaNVu91KJhElxayTStsKMzHEcZ0gRs/pFxxNkX0DZLA=";

    #[test]
    fn keys_of_both_types_round_trip() {
        for (text, kind, len) in [(AES, KeyType::Aes, 16), (AES256K, KeyType::Aes256k, 32)] {
            let key = CryptoKey::from_base64(&format!("  {text}\n")).unwrap();
            assert_eq!(key.kind(), kind);
            assert_eq!(key.secret().len(), len);
            assert_eq!(*key.to_base64(), text);
            assert_eq!(format!("{key:?}"), format!("CryptoKey({kind})"));
        }
    }

    #[test]
    fn bad_keys_are_told_apart() {
        let err = |t: &str| CryptoKey::from_base64(t).unwrap_err();
        assert_eq!(err("nonsense!"), KeyError::NotBase64);
        assert_eq!(err(&AES[..20]), KeyError::CutShort);
        assert_eq!(err("BwAlZA1r3XjfCwAA"), KeyError::UnknownType(7));
        assert_eq!(
            err("AgAlZA1r3XjfCwQARaNVuw==").to_string(),
            "the key's secret has 4 bytes, type aes256k needs 32"
        );
    }

    #[test]
    fn usages_of_a_type_2_key_do_not_mix() {
        let key = CryptoKey::from_base64(AES256K).unwrap();
        let sealed = key.encrypt(Usage::Authorize, &[1; 16], b"nonce");
        assert_eq!(*key.decrypt(Usage::Authorize, &sealed).unwrap(), b"nonce");
        assert!(key.decrypt(Usage::AuthorizeReply, &sealed).is_none());
    }

    proptest! {
        #[test]
        fn hostile_bytes_never_panic(bytes: Vec<u8>) {
            let _ = CryptoKey::decode(&mut Reader::new(&bytes));
            let key = CryptoKey::from_base64(AES).unwrap();
            let _ = key.decrypt(Usage::Authorize, &bytes);
        }

        #[test]
        fn type_1_round_trips(plain: Vec<u8>) {
            let key = CryptoKey::from_base64(AES).unwrap();
            let sealed = key.encrypt(Usage::Authorize, &[0; 16], &plain);
            prop_assert_eq!(&*key.decrypt(Usage::TicketInfo, &sealed).unwrap(), &plain);
        }
    }
}
