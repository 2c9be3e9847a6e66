use std::sync::Arc;

use crate::codec::{EntityType, Now, Put, Reader};

use super::key::CryptoKey;
use super::method::modes_of;
use super::mon::{self, MonHandshake};
use super::service::{Authorizer, ServiceHandshake};
use super::ticket::{Tickets, bit};
use super::wire::{self, AuthReply};
use super::{AuthError, AuthName, ConMode, Method, Seed};

/// The pause before asking again for tickets that a monitor did not give.
const RETRY_NANOS: u64 = 5_000_000_000;
/// The pause between renewals: an OSD that refuses every ticket must not keep the monitor busy.
const PAUSE_NANOS: u64 = 1_000_000_000;

/// What an identity is made from.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    pub name: AuthName,
    pub key: Option<CryptoKey>,
    /// `auth_client_required`, in order of preference.
    pub methods: Vec<Method>,
    /// `ms_mon_client_mode`: to monitors and mgrs.
    pub mon_modes: Vec<ConMode>,
    /// `ms_client_mode`: to all others.
    pub client_modes: Vec<ConMode>,
    /// Services whose tickets are wanted.
    pub services: Vec<EntityType>,
}

impl ClientConfig {
    /// Ceph's defaults, and the tickets that librados asks for (`RadosClient::connect`).
    pub fn new(name: AuthName, key: Option<CryptoKey>) -> ClientConfig {
        ClientConfig {
            name,
            key,
            methods: vec![Method::Cephx, Method::None],
            mon_modes: vec![ConMode::Secure, ConMode::Crc],
            client_modes: vec![ConMode::Crc, ConMode::Secure],
            services: vec![EntityType::MON, EntityType::OSD, EntityType::MGR],
        }
    }
}

/// The part of a client that handshakes share and never change.
pub(super) struct Identity {
    pub(super) name: AuthName,
    pub(super) key: Option<CryptoKey>,
    methods: Vec<Method>,
    pub(super) mon_modes: Vec<ConMode>,
    client_modes: Vec<ConMode>,
    pub(super) want: u32,
}

impl Identity {
    /// Without a key cephx is out (`AuthRegistry::_refresh_config`).
    pub(super) fn methods(&self) -> impl Iterator<Item = Method> {
        self.methods
            .iter()
            .copied()
            .filter(|m| *m != Method::Cephx || self.key.is_some())
    }

    pub(super) fn modes_for(&self, peer: EntityType) -> &[ConMode] {
        match peer {
            EntityType::MON | EntityType::MGR => &self.mon_modes,
            _ => &self.client_modes,
        }
    }
}

/// One RADOS identity: its global id and its tickets. Lives as long as the identity, across
/// monitor sessions.
pub struct Client {
    identity: Arc<Identity>,
    session: Option<Session>,
    tickets: Tickets,
    global_id: u64,
}

/// What the current monitor session settled.
struct Session {
    method: Method,
    /// Reused by renewals: the monitor keeps it for as long as the session.
    server_challenge: u64,
    asked: bool,
    /// No request before this monotonic moment.
    not_before: u64,
}

/// What a renewal reply leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// Nothing more for now; see [`Client::next_deadline`].
    Done,
    /// Send another [`Client::renewal_request`] at once.
    AskAgain,
}

impl Client {
    pub fn new(config: ClientConfig) -> Result<Client, AuthError> {
        let want = config
            .services
            .iter()
            .fold(bit(EntityType::AUTH), |set, s| set | bit(*s));
        let identity = Identity {
            name: config.name,
            key: config.key,
            methods: config.methods,
            mon_modes: config.mon_modes,
            client_modes: config.client_modes,
            want,
        };
        let method = identity.methods().next().ok_or_else(|| AuthError::NoKey {
            name: identity.name.clone(),
        })?;
        for (modes, option) in [
            (&identity.mon_modes, "ms_mon_client_mode"),
            (&identity.client_modes, "ms_client_mode"),
        ] {
            if modes_of(method, modes).is_empty() {
                return Err(AuthError::NoMode {
                    method,
                    needs: ConMode::Crc,
                    option,
                });
            }
        }
        Ok(Client {
            identity: Arc::new(identity),
            session: None,
            tickets: Tickets::default(),
            global_id: 0,
        })
    }

    pub fn name(&self) -> &AuthName {
        &self.identity.name
    }

    /// 0 before the first monitor session.
    pub fn global_id(&self) -> u64 {
        self.global_id
    }

    /// The method of the current monitor session.
    pub fn method(&self) -> Option<Method> {
        self.session.as_ref().map(|s| s.method)
    }

    /// Authentication for one connection to a monitor. Keeps the identity where there is one.
    pub fn mon_handshake(&self, seed: &Seed) -> MonHandshake {
        let method = self.identity.methods().next();
        MonHandshake::new(
            Arc::clone(&self.identity),
            method.expect("checked when the client was made"),
            self.global_id,
            self.tickets.clone(),
            nonce(seed),
        )
    }

    /// Takes over what a finished handshake brought: it is the monitor session from now on.
    ///
    /// Panics when the handshake is not finished or belongs to another client.
    pub fn adopt(&mut self, hs: MonHandshake) {
        assert!(hs.is_done(), "adopted an unfinished handshake");
        assert!(
            Arc::ptr_eq(&self.identity, &hs.identity),
            "adopted another client's handshake"
        );
        self.session = Some(Session {
            method: hs.method,
            server_challenge: hs.server_challenge,
            asked: false,
            not_before: 0,
        });
        self.tickets = hs.tickets;
        self.global_id = hs.global_id;
    }

    /// The monitor session is gone. Tickets and global id stay.
    pub fn session_lost(&mut self) {
        self.session = None;
    }

    /// Gives up the identity, after [`AuthError::ReclaimRefused`]: the next handshake asks for a
    /// new global id. To the cluster that is another client, whose watches and locks start anew.
    pub fn forget(&mut self) {
        self.session = None;
        self.tickets = Tickets::default();
        self.global_id = 0;
    }

    /// Authentication for one connection to an OSD or mgr. [`AuthError::NoTicket`] when a ticket is
    /// still to come: try again after the next renewal.
    pub fn service_handshake(
        &self,
        service: EntityType,
        seed: &Seed,
    ) -> Result<ServiceHandshake, AuthError> {
        // The tickets tell the method between two monitor sessions.
        let none = match &self.session {
            Some(s) => s.method == Method::None,
            None => self.global_id != 0 && self.tickets.get(EntityType::AUTH).is_none(),
        };
        let cephx = if none {
            None
        } else {
            let ticket = self
                .tickets
                .usable(service)
                .ok_or(AuthError::NoTicket { service })?;
            Some(Authorizer::new(
                ticket.blob.clone(),
                ticket.session_key.clone(),
                seed,
            ))
        };
        Ok(ServiceHandshake::new(
            Arc::clone(&self.identity),
            service,
            self.global_id,
            cephx,
        ))
    }

    /// A service refused the ticket that `hs` showed. It is renewed, unless that has happened
    /// already.
    pub fn service_refused(&mut self, hs: &ServiceHandshake) {
        let Some(shown) = &hs.cephx else { return };
        let current = self.tickets.usable(hs.service());
        if current.is_some_and(|t| t.blob == shown.ticket) {
            self.tickets.invalidate(hs.service());
        }
    }

    /// The monitor map's auth epoch rose: the cluster threw its service secrets away
    /// (`MonClient::_wipe_secrets_and_tickets`).
    pub fn invalidate_tickets(&mut self) {
        self.tickets.invalidate_all();
        if let Some(s) = &mut self.session {
            s.not_before = 0;
        }
    }

    /// Whether [`Client::renewal_request`] would have something to say.
    pub fn renewal_due(&self, now: Now) -> bool {
        self.session.as_ref().is_some_and(|s| {
            s.method == Method::Cephx
                && !s.asked
                && now.mono >= s.not_before
                && mon::worth_asking(self.need(now))
        })
    }

    /// The monotonic moment to look at [`Client::renewal_due`] again, if nothing happens before.
    pub fn next_deadline(&self, now: Now) -> Option<u64> {
        let s = self.session.as_ref()?;
        if s.method != Method::Cephx || s.asked {
            return None;
        }
        if mon::worth_asking(self.need(now)) {
            return Some(s.not_before.max(now.mono));
        }
        let later = self.tickets.next_renewal(self.identity.want)?;
        Some(later.max(s.not_before))
    }

    /// Whether a wanted ticket has run out or was refused: OSDs may turn us away until the renewal.
    pub fn tickets_expired(&self, now: Now) -> bool {
        self.method() == Some(Method::Cephx) && self.tickets.expired(self.identity.want, now)
    }

    /// The front of a [`super::MSG_AUTH`] message for the open monitor session, when tickets are
    /// due: the auth ticket with the key's proof, or service tickets by showing the auth ticket
    /// (`CephxClientHandler::build_request`). One request is under way at a time.
    pub fn renewal_request(&mut self, seed: &Seed, now: Now) -> Option<Vec<u8>> {
        if !self.renewal_due(now) {
            return None;
        }
        let need = self.need(now);
        let key = self.identity.key.as_ref()?;
        let session = self.session.as_mut()?;
        let payload = match self.tickets.get(EntityType::AUTH) {
            Some(ticket) if need & bit(EntityType::AUTH) == 0 => {
                let mut out = Vec::with_capacity(256);
                out.put_u16(wire::GET_PRINCIPAL_SESSION_KEY);
                let authorizer =
                    Authorizer::new(ticket.blob.clone(), ticket.session_key.clone(), seed);
                authorizer.put(&mut out, self.global_id, EntityType::AUTH);
                wire::put_ticket_request(&mut out, need);
                out
            }
            _ => mon::authenticate(
                key,
                session.server_challenge,
                nonce(seed),
                &self.tickets,
                need,
            ),
        };
        session.asked = true;
        let mut front = Vec::with_capacity(payload.len() + 30);
        wire::put_mauth(&mut front, session.method.raw(), &payload);
        Some(front)
    }

    /// The front of a [`super::MSG_AUTH_REPLY`]. After an error the monitor closes the session.
    pub fn renewal_reply(&mut self, front: &[u8], now: Now) -> Result<Renewal, AuthError> {
        let unasked = AuthError::OutOfOrder {
            what: "the monitor answers a renewal that we did not ask for",
        };
        let reply = AuthReply::decode(&mut Reader::new(front))?;
        let Some(key) = &self.identity.key else {
            return Err(unasked);
        };
        match &mut self.session {
            Some(s) if s.asked => s.asked = false,
            _ => return Err(unasked),
        }
        let peer = EntityType::MON;
        if reply.result < 0 {
            let result = reply.result;
            return Err(AuthError::Refused { peer, result });
        }
        if reply.global_id != self.global_id {
            return Err(AuthError::GlobalIdChanged {
                ours: self.global_id,
                theirs: reply.global_id,
            });
        }
        // Tickets are taken all or none.
        let mut tickets = self.tickets.clone();
        let mut r = Reader::new(reply.payload);
        let (request, status) = wire::read_response_header(&mut r)?;
        if status < 0 {
            let result = status;
            return Err(AuthError::Refused { peer, result });
        }
        match request {
            wire::GET_AUTH_SESSION_KEY => {
                mon::receive_auth_session_key(&mut tickets, &mut r, key, ConMode::Crc, now)?;
            }
            wire::GET_PRINCIPAL_SESSION_KEY => {
                let auth = tickets.get(EntityType::AUTH).ok_or(unasked)?;
                let session_key = auth.session_key.clone();
                tickets.receive(&mut r, &session_key, now)?;
            }
            _ => return Err(unasked),
        }
        let before = self.need(now);
        self.tickets = tickets;
        let after = self.need(now);
        let pause = match mon::worth_asking(after) {
            false => PAUSE_NANOS,
            true if after != before => return Ok(Renewal::AskAgain),
            // The monitor has none for us: do not ask in a circle.
            true => RETRY_NANOS,
        };
        if let Some(s) = &mut self.session {
            s.not_before = now.mono.saturating_add(pause);
        }
        Ok(Renewal::Done)
    }

    /// Says that another's global id is ours.
    #[cfg(test)]
    pub(super) fn claim(&mut self, global_id: u64) {
        self.global_id = global_id;
    }

    #[cfg(test)]
    pub(super) fn service_ticket(&self, service: EntityType) -> Option<&super::ticket::Ticket> {
        self.tickets.usable(service)
    }

    fn need(&self, now: Now) -> u32 {
        self.tickets.need(self.identity.want, now)
    }
}

fn nonce(seed: &Seed) -> u64 {
    u64::from_le_bytes(*seed.first_chunk().expect("a seed has 40 bytes"))
}
