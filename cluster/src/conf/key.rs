//! Where the secret of a cephx client comes from (`KeyRing::from_ceph_context`,
//! `src/auth/KeyRing.cc`): `key`, then `keyfile`, then the first of `keyring`'s files.

use std::io;
use std::path::{Path, PathBuf};

use super::value::words;
use super::{AuthMethod, Conf, ConfError, Origin, options};

/// A secret as it was found, not parsed.
#[derive(Clone, PartialEq, Eq)]
pub enum KeyText {
    /// A key in base64.
    Key { text: String, origin: Origin },
    /// The text of a keyring file.
    Keyring { text: String, path: PathBuf },
}

/// Secrets do not belong in logs.
impl std::fmt::Debug for KeyText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            KeyText::Key { origin, .. } => write!(f, "Key(from {origin})"),
            KeyText::Keyring { path, .. } => write!(f, "Keyring({})", path.display()),
        }
    }
}

/// How to authenticate: the methods to offer and the secret.
#[derive(Debug)]
pub struct Credentials {
    pub methods: Vec<AuthMethod>,
    pub key: Option<KeyText>,
    /// Why cephx is not among the methods though the configuration asks for it. Worth saying when
    /// the monitors then refuse.
    pub missing: Option<ConfError>,
}

impl Conf {
    /// The methods to authenticate by and what they need. Without a key, cephx is left out when
    /// another method is allowed (`AuthRegistry::_refresh_config`, `src/auth/AuthRegistry.cc`).
    pub fn credentials(&self) -> Result<Credentials, ConfError> {
        self.credentials_with(|path| std::fs::read(path))
    }

    pub fn credentials_with(
        &self,
        read: impl Fn(&Path) -> io::Result<Vec<u8>>,
    ) -> Result<Credentials, ConfError> {
        let mut methods = self.get(&options::AUTH_SUPPORTED)?;
        if methods.is_empty() {
            methods = self.get(&options::AUTH_CLIENT_REQUIRED)?;
        }
        if !methods.contains(&AuthMethod::Cephx) {
            return Ok(Credentials {
                methods,
                key: None,
                missing: None,
            });
        }
        let error = match self.key(read) {
            Ok(key) => {
                return Ok(Credentials {
                    methods,
                    key: Some(key),
                    missing: None,
                });
            }
            Err(error) => error,
        };
        methods.retain(|m| *m != AuthMethod::Cephx);
        if methods.is_empty() {
            return Err(error);
        }
        Ok(Credentials {
            methods,
            key: None,
            missing: Some(error),
        })
    }

    fn key(&self, read: impl Fn(&Path) -> io::Result<Vec<u8>>) -> Result<KeyText, ConfError> {
        let (key, key_origin) = self.text(&options::KEY);
        let (file, file_origin) = self.text(&options::KEYFILE);
        // A key file named on the command line stands for a key given there.
        let file_first = !file.is_empty() && file_origin.rank() > key_origin.rank();
        if !key.is_empty() && !file_first {
            return Ok(KeyText::Key {
                text: key,
                origin: key_origin,
            });
        }
        if !file.is_empty() {
            let path = PathBuf::from(file);
            let text = utf8(&path, read(&path))?;
            return Ok(KeyText::Key {
                text: text.trim().to_string(),
                origin: Origin::File { path, line: 1 },
            });
        }
        let (paths, _) = self.text(&options::KEYRING);
        let mut unreadable = None;
        for path in words(&paths).map(PathBuf::from) {
            match read(&path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    unreadable.get_or_insert(ConfError::Read { path, error });
                }
                found => {
                    let text = utf8(&path, found)?;
                    return Ok(KeyText::Keyring { text, path });
                }
            }
        }
        Err(unreadable.unwrap_or_else(|| ConfError::NoKey {
            name: self.name().to_string(),
            tried: words(&paths).collect::<Vec<_>>().join(", "),
        }))
    }
}

fn utf8(path: &Path, bytes: io::Result<Vec<u8>>) -> Result<String, ConfError> {
    bytes
        .and_then(|b| {
            String::from_utf8(b).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not text"))
        })
        .map_err(|error| ConfError::Read {
            path: path.to_path_buf(),
            error,
        })
}
