use std::collections::BTreeMap;
use std::time::Duration;

use zeroize::Zeroizing;

use crate::codec::{DecodeError, EntityType, Now, Put, Reader, Result, UTime};

use super::super::ticket::bit;
use super::super::{AuthName, CryptoKey, KeyType, Keyring, Secret};
use super::{Caps, Entropy};

/// `KEY_ROTATE_NUM`: the previous, the current and the next secret.
const KEPT: usize = 3;

/// Services that have rotating secrets (`KeyServer::prepare_rotating_update`).
const SERVICES: [EntityType; 5] = [
    EntityType::AUTH,
    EntityType::MON,
    EntityType::OSD,
    EntityType::MDS,
    EntityType::MGR,
];

/// Lifetimes and ciphers of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyServerConfig {
    /// `auth_mon_ticket_ttl`.
    pub auth_ttl: Duration,
    /// `auth_service_ticket_ttl`.
    pub service_ttl: Duration,
    /// `auth_service_cipher`: of service secrets.
    pub service_cipher: KeyType,
    /// `auth_allowed_ciphers`: of users' keys.
    pub allowed_ciphers: Vec<KeyType>,
}

impl Default for KeyServerConfig {
    fn default() -> KeyServerConfig {
        KeyServerConfig {
            auth_ttl: Duration::from_secs(72 * 3600),
            service_ttl: Duration::from_secs(3600),
            service_cipher: KeyType::Aes256k,
            allowed_ciphers: vec![KeyType::Aes, KeyType::Aes256k],
        }
    }
}

/// The last few secrets of one service, by id (`RotatingSecrets`, `src/auth/Auth.h`). Tickets name
/// the secret they are sealed with.
#[derive(Debug, Clone, Default)]
pub struct RotatingSecrets {
    secrets: BTreeMap<u64, Expiring>,
    last_id: u64,
}

#[derive(Debug, Clone)]
struct Expiring {
    key: CryptoKey,
    /// Wall-clock nanoseconds.
    expires: u64,
}

impl RotatingSecrets {
    pub(in super::super) fn get(&self, id: u64) -> Option<&CryptoKey> {
        self.secrets.get(&id).map(|s| &s.key)
    }

    /// Few enough, or the current one is over (`need_new_secrets`).
    fn wants_another(&self, now: u64) -> bool {
        self.secrets.len() < KEPT || self.current().is_none_or(|(_, s)| s.expires <= now)
    }

    fn current(&self) -> Option<(u64, &Expiring)> {
        self.secrets.iter().nth(1).map(|(id, s)| (*id, s))
    }

    fn newest(&self) -> Option<&Expiring> {
        self.secrets.values().next_back()
    }

    fn add(&mut self, secret: Expiring) {
        self.last_id += 1;
        self.secrets.insert(self.last_id, secret);
        while self.secrets.len() > KEPT {
            self.secrets.pop_first();
        }
    }

    /// The secret for new tickets and how long they may live: the second oldest unless it is over,
    /// and never beyond the newest (`KeyServerData::get_service_secret`).
    fn for_tickets(&self, ttl: Duration, now: u64) -> Option<(u64, &CryptoKey, Duration)> {
        let mut pick = self
            .secrets
            .iter()
            .skip(usize::from(self.secrets.len() > 1));
        let (id, secret) = pick.find(|(_, s)| s.expires >= now)?;
        let left = Duration::from_nanos(self.newest()?.expires.saturating_sub(now));
        Some((*id, &secret.key, ttl.min(left)))
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u8(1);
        out.put_list(self.secrets.iter(), |out, (id, secret)| {
            out.put_u64(*id);
            out.put_u8(1);
            secret.key.encode(out);
            UTime::from_nanos(secret.expires).encode(out);
        });
        out.put_u64(self.last_id);
    }

    fn decode(r: &mut Reader<'_>) -> Result<RotatingSecrets> {
        r.skip(1)?;
        let secrets = r.list(8 + 1 + 12 + UTime::SIZE, |r| {
            let id = r.u64()?;
            r.skip(1)?;
            let key = CryptoKey::decode(r)?;
            let expires = UTime::decode(r)?.as_nanos();
            Ok((id, Expiring { key, expires }))
        })?;
        Ok(RotatingSecrets {
            secrets: secrets.into_iter().collect(),
            last_id: r.u64()?,
        })
    }
}

/// A monitor's users and service secrets (`KeyServer`, `src/auth/cephx/CephxKeyServer.cc`).
#[derive(Debug, Clone)]
pub struct KeyServer {
    config: KeyServerConfig,
    users: Keyring,
    rotating: BTreeMap<u8, RotatingSecrets>,
    last_global_id: u64,
}

/// A service's secret for a new ticket.
pub(super) struct ServiceSecret {
    pub(super) id: u64,
    pub(super) key: CryptoKey,
    pub(super) ttl: Duration,
}

impl KeyServer {
    /// `MIN_GLOBAL_ID`, `src/mon/AuthMonitor.h`.
    const FIRST_GLOBAL_ID: u64 = 0x1000;

    pub fn new(
        config: KeyServerConfig,
        users: Keyring,
        now: Now,
        entropy: Entropy<'_>,
    ) -> KeyServer {
        let mut server = KeyServer {
            config,
            users,
            rotating: BTreeMap::new(),
            last_global_id: KeyServer::FIRST_GLOBAL_ID,
        };
        server.rotate(now, entropy);
        server
    }

    pub fn users(&self) -> &Keyring {
        &self.users
    }

    pub fn users_mut(&mut self) -> &mut Keyring {
        &mut self.users
    }

    /// Makes the secrets that are due. True when there are new ones, which want saving. Call it
    /// every few seconds.
    pub fn rotate(&mut self, now: Now, entropy: Entropy<'_>) -> bool {
        let mut changed = false;
        for service in SERVICES {
            let ttl = self.ttl(service).as_nanos() as u64;
            let secrets = self.rotating.entry(service.0).or_default();
            while secrets.wants_another(now.wall) {
                // The first lives one period, each later one a period beyond its predecessor.
                let base = match secrets.newest() {
                    None => now.wall,
                    Some(newest) => newest.expires.max(now.wall.saturating_add(ttl)),
                };
                let key = new_key(self.config.service_cipher, now, entropy);
                let expires = base.saturating_add(ttl);
                secrets.add(Expiring { key, expires });
                changed = true;
            }
        }
        changed
    }

    /// What a service needs to check tickets.
    pub fn service_secrets(&self, service: EntityType) -> RotatingSecrets {
        self.rotating.get(&service.0).cloned().unwrap_or_default()
    }

    /// What must outlive the process for its tickets and global ids to stay valid: secrets and the
    /// last id given out.
    pub fn save(&self) -> Zeroizing<Vec<u8>> {
        self.save_ahead(0)
    }

    /// The same, with some global ids counted as given out, so that not each of them needs saving.
    pub fn save_ahead(&self, ids: u64) -> Zeroizing<Vec<u8>> {
        // Five services of three secrets of some 60 bytes: no growth, so no copy is left behind.
        let mut out = Zeroizing::new(Vec::with_capacity(2048));
        out.versioned(1, 1, |out| {
            out.put_u64(self.last_global_id + ids);
            out.put_list(self.rotating.iter(), |out, (service, secrets)| {
                out.put_u8(*service);
                secrets.encode(out);
            });
        });
        out
    }

    /// The last global id given out.
    pub fn last_global_id(&self) -> u64 {
        self.last_global_id
    }

    /// Takes back what [`KeyServer::save`] wrote.
    pub fn restore(&mut self, bytes: &[u8]) -> Result<()> {
        let mut body = Reader::new(bytes).versioned("key server state", 1)?.body;
        let last_global_id = body.u64()?;
        let rotating = body.list(1 + 1 + 4 + 8, |r| {
            Ok((r.u8()?, RotatingSecrets::decode(r)?))
        })?;
        if last_global_id < KeyServer::FIRST_GLOBAL_ID {
            return Err(DecodeError::malformed("key server state"));
        }
        self.last_global_id = last_global_id;
        self.rotating = rotating.into_iter().collect();
        Ok(())
    }

    pub(super) fn assign_global_id(&mut self) -> u64 {
        self.last_global_id += 1;
        self.last_global_id
    }

    pub(super) fn allows(&self, kind: KeyType) -> bool {
        self.config.allowed_ciphers.contains(&kind)
    }

    pub(super) fn caps(&self, name: &AuthName, service: EntityType) -> Option<Caps> {
        let service = service.to_string();
        let mut caps = self.users.caps(name);
        caps.find(|(s, _)| *s == service).map(|(_, c)| Caps::new(c))
    }

    pub(super) fn secret(&self, service: EntityType, id: u64) -> Option<&CryptoKey> {
        self.rotating.get(&service.0)?.get(id)
    }

    pub(super) fn for_tickets(&self, service: EntityType, now: Now) -> Option<ServiceSecret> {
        let secrets = self.rotating.get(&service.0)?;
        let (id, key, ttl) = secrets.for_tickets(self.ttl(service), now.wall)?;
        let key = key.clone();
        Some(ServiceSecret { id, key, ttl })
    }

    /// Services of a request's bit set that tickets exist for, without the auth service itself.
    pub(super) fn services(set: u32) -> impl Iterator<Item = EntityType> {
        SERVICES
            .into_iter()
            .filter(move |s| *s != EntityType::AUTH && set & bit(*s) != 0)
    }

    fn ttl(&self, service: EntityType) -> Duration {
        match service {
            EntityType::AUTH => self.config.auth_ttl,
            _ => self.config.service_ttl,
        }
    }
}

pub(super) fn new_key(kind: KeyType, now: Now, entropy: Entropy<'_>) -> CryptoKey {
    let mut secret = vec![0; kind.secret_len()];
    entropy(&mut secret);
    CryptoKey::new(kind, UTime::from_nanos(now.wall), Secret::new(secret))
        .expect("a secret of the right length")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(secs: u64) -> Now {
        Now {
            mono: secs * 1_000_000_000,
            wall: (1_700_000_000 + secs) * 1_000_000_000,
        }
    }

    fn server() -> KeyServer {
        let config = KeyServerConfig {
            service_ttl: Duration::from_secs(100),
            ..KeyServerConfig::default()
        };
        KeyServer::new(config, Keyring::default(), at(0), &mut |b| b.fill(7))
    }

    #[test]
    fn secrets_rotate_and_a_ticket_outlives_one_rotation() {
        let mut s = server();
        let osd = EntityType::OSD;
        let first = s.for_tickets(osd, at(0)).unwrap();
        assert_eq!((first.id, first.ttl.as_secs()), (2, 100));
        assert!(!s.rotate(at(199), &mut |b| b.fill(8)));
        assert!(s.rotate(at(200), &mut |b| b.fill(8)));
        assert_eq!(s.for_tickets(osd, at(200)).unwrap().id, 3);
        assert!(
            s.secret(osd, 2).is_some(),
            "a ticket of t=199 is good until 299"
        );
        assert!(s.rotate(at(300), &mut |b| b.fill(9)));
        assert!(s.secret(osd, 2).is_none());
    }

    #[test]
    fn a_server_that_slept_makes_fresh_secrets() {
        let mut s = server();
        assert!(s.rotate(at(1_000_000), &mut |b| b.fill(8)));
        let secret = s.for_tickets(EntityType::OSD, at(1_000_000)).unwrap();
        assert!(secret.id > 3 && secret.ttl.as_secs() == 100);
    }

    #[test]
    fn state_survives_a_restart() {
        let mut s = server();
        s.assign_global_id();
        let saved = s.save();
        let mut t = server();
        t.rotating.clear();
        t.restore(&saved).unwrap();
        assert_eq!(t.save(), saved);
        assert_eq!(t.assign_global_id(), 0x1002);
    }

    proptest! {
        #[test]
        fn hostile_state_never_panics(bytes: Vec<u8>, cut: usize) {
            let mut s = server();
            let _ = s.restore(&bytes);
            let saved = s.save();
            prop_assert!(s.restore(&saved[..cut % saved.len()]).is_err());
        }
    }
}
