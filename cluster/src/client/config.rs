use std::time::Duration;

use crate::auth::{self, AuthName, ConMode, CryptoKey, Keyring, KeyringError, Method};
use crate::conf::{self, Conf, ConfError, KeyText, options};
use crate::mon::MonConfig;
use crate::objecter::ObjecterConfig;

/// `ms_connection_ready_timeout`.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// What a client is made from.
#[derive(Clone)]
pub struct ClientConfig {
    pub auth: auth::ClientConfig,
    pub mon: MonConfig,
    pub objecter: ObjecterConfig,
    /// `ms_crc_data`.
    pub crc_data: bool,
    /// From the TCP connection to the open session.
    pub handshake_timeout: Duration,
    /// Where the rest came from; the monitors may add to it.
    conf: Option<Box<Conf>>,
}

/// Why a configuration makes no client.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error(transparent)]
    Conf(#[from] ConfError),
    #[error(transparent)]
    Keyring(#[from] KeyringError),
    #[error("{origin}: {source}")]
    Key {
        origin: String,
        source: crate::auth::KeyError,
    },
    #[error("{file} has no key for {name}: give the right --id or --keyring")]
    NoSuchKey { file: String, name: String },
    #[error("'{0}' is no name: write client.ID")]
    Name(String),
}

impl ClientConfig {
    /// Ceph's defaults, for a client that reads no configuration.
    pub fn new(auth: auth::ClientConfig, mon: MonConfig) -> ClientConfig {
        ClientConfig {
            auth,
            mon,
            objecter: ObjecterConfig {
                features: crate::msgr::features::SUPPORTED,
                ..ObjecterConfig::default()
            },
            crc_data: true,
            handshake_timeout: HANDSHAKE_TIMEOUT,
            conf: None,
        }
    }

    /// Takes the options that the monitors hold; the file and the command line outrank them.
    /// Returns the names of those whose value does not parse.
    pub(super) fn set_from_monitors(
        &mut self,
        values: std::collections::BTreeMap<String, String>,
    ) -> Vec<String> {
        let Some(conf) = &mut self.conf else {
            return Vec::new();
        };
        let refused = conf.set_from_monitors(values);
        // They parsed when the client was made, and what does not parse now is passed over.
        if let (Ok(objecter), Ok(crc_data)) = (objecter(conf), conf.get(&options::MS_CRC_DATA)) {
            (self.objecter, self.crc_data) = (objecter, crc_data);
        }
        refused
    }

    pub fn from_conf(conf: &Conf) -> Result<ClientConfig, ConfigError> {
        let text = conf.name().to_string();
        let name: AuthName = text.parse().map_err(|_| ConfigError::Name(text.clone()))?;
        let credentials = conf.credentials()?;
        let key = match credentials.key {
            None => None,
            Some(KeyText::Key { text, origin }) => {
                let key = CryptoKey::from_base64(text.trim());
                Some(key.map_err(|source| ConfigError::Key {
                    origin: origin.to_string(),
                    source,
                })?)
            }
            Some(KeyText::Keyring { text, path }) => {
                let file = path.display().to_string();
                let keyring = Keyring::parse(&file, text.as_bytes())?;
                let name_text = name.to_string();
                let key = keyring.get(&name).cloned();
                Some(key.ok_or(ConfigError::NoSuchKey {
                    file,
                    name: name_text,
                })?)
            }
        };
        Ok(ClientConfig {
            auth: auth::ClientConfig {
                methods: credentials.methods.into_iter().map(method).collect(),
                mon_modes: modes(conf.get(&options::MS_MON_CLIENT_MODE)?),
                client_modes: modes(conf.get(&options::MS_CLIENT_MODE)?),
                ..auth::ClientConfig::new(name, key)
            },
            mon: MonConfig::from_conf(conf)?,
            objecter: objecter(conf)?,
            crc_data: conf.get(&options::MS_CRC_DATA)?,
            handshake_timeout: HANDSHAKE_TIMEOUT,
            conf: Some(Box::new(conf.clone())),
        })
    }
}

fn objecter(conf: &Conf) -> Result<ObjecterConfig, ConfError> {
    let timeout = conf.get(&options::RADOS_OSD_OP_TIMEOUT)?;
    Ok(ObjecterConfig {
        max_ops: usize::try_from(conf.get(&options::OBJECTER_INFLIGHT_OPS)?).unwrap_or(usize::MAX),
        max_bytes: conf.get(&options::OBJECTER_INFLIGHT_OP_BYTES)?,
        op_timeout: (!timeout.is_zero()).then_some(timeout),
        tick: conf.get(&options::OBJECTER_TICK_INTERVAL)?,
        laggy_after: conf.get(&options::OBJECTER_TIMEOUT)?,
        features: crate::msgr::features::SUPPORTED,
        ..ObjecterConfig::default()
    })
}

fn method(m: conf::AuthMethod) -> Method {
    match m {
        conf::AuthMethod::None => Method::None,
        conf::AuthMethod::Cephx => Method::Cephx,
    }
}

fn modes(modes: Vec<conf::ConMode>) -> Vec<ConMode> {
    modes
        .into_iter()
        .map(|m| match m {
            conf::ConMode::Crc => ConMode::Crc,
            conf::ConMode::Secure => ConMode::Secure,
        })
        .collect()
}
