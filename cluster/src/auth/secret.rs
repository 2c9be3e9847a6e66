use std::fmt;

use zeroize::Zeroize;

/// Bytes that must not outlive their use: zeroed when dropped, never shown.
#[derive(Clone, Default)]
pub struct Secret(Vec<u8>);

impl Secret {
    pub fn new(bytes: Vec<u8>) -> Secret {
        Secret(bytes)
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<&[u8]> for Secret {
    fn from(bytes: &[u8]) -> Secret {
        Secret(bytes.to_vec())
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} bytes)", self.0.len())
    }
}

/// What a finished handshake gives the connection. All empty for auth none.
#[derive(Debug, Clone, Default)]
pub struct Secrets {
    /// Signs the transcript in AUTH_SIGNATURE (HMAC-SHA256).
    pub session_key: Secret,
    /// Keys and nonces of secure mode.
    pub connection_secret: Secret,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_shows_no_byte() {
        let s = Secrets {
            session_key: Secret::new(vec![0xab; 16]),
            connection_secret: Secret::default(),
        };
        assert_eq!(
            format!("{s:?}"),
            "Secrets { session_key: Secret(16 bytes), connection_secret: Secret(0 bytes) }"
        );
    }
}
