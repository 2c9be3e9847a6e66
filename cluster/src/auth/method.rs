use std::fmt;

/// An authentication method (`CEPH_AUTH_*`, `src/include/ceph_fs.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    None,
    Cephx,
}

impl Method {
    pub const fn raw(self) -> u32 {
        match self {
            Method::None => 1,
            Method::Cephx => 2,
        }
    }

    pub const fn from_raw(raw: u32) -> Option<Method> {
        match raw {
            1 => Some(Method::None),
            2 => Some(Method::Cephx),
            _ => None,
        }
    }

    /// As `auth_client_required` spells it.
    pub fn from_name(name: &str) -> Option<Method> {
        match name {
            "none" => Some(Method::None),
            "cephx" => Some(Method::Cephx),
            _ => None,
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Method::None => "none",
            Method::Cephx => "cephx",
        })
    }
}

/// How a connection protects what it carries (`CEPH_CON_MODE_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConMode {
    /// Checksums only.
    Crc,
    /// AES-128-GCM.
    Secure,
}

impl ConMode {
    pub const fn raw(self) -> u32 {
        match self {
            ConMode::Crc => 1,
            ConMode::Secure => 2,
        }
    }

    pub const fn from_raw(raw: u32) -> Option<ConMode> {
        match raw {
            1 => Some(ConMode::Crc),
            2 => Some(ConMode::Secure),
            _ => None,
        }
    }

    /// As `ms_client_mode` spells it.
    pub fn from_name(name: &str) -> Option<ConMode> {
        match name {
            "crc" => Some(ConMode::Crc),
            "secure" => Some(ConMode::Secure),
            _ => None,
        }
    }

    /// Bytes of connection secret that a server makes
    /// (`AuthConnectionMeta::get_connection_secret_length`).
    pub const fn secret_len(self) -> usize {
        match self {
            ConMode::Crc => 0,
            ConMode::Secure => 64,
        }
    }

    /// Bytes of it that are used: a 16-byte key and two 12-byte nonces
    /// (`rxtx_t::create_handler_pair`, `src/msg/async/crypto_onwire.cc`).
    pub const fn secret_used(self) -> usize {
        match self {
            ConMode::Crc => 0,
            ConMode::Secure => 16 + 2 * 12,
        }
    }
}

impl fmt::Display for ConMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ConMode::Crc => "crc",
            ConMode::Secure => "secure",
        })
    }
}

/// The modes of `wanted` that `method` can do: without a session key there is no secure mode
/// (`AuthRegistry::get_supported_modes`).
pub(super) fn modes_of(method: Method, wanted: &[ConMode]) -> Vec<ConMode> {
    wanted
        .iter()
        .copied()
        .filter(|&m| method == Method::Cephx || m == ConMode::Crc)
        .collect()
}
