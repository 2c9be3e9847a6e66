use crate::codec::{DecodeError, EntityType, Now, Put, Reader, UTime};

use super::super::error::{EACCES, EINVAL, EOPNOTSUPP, EPERM};
use super::super::key::{CryptoKey, Usage};
use super::super::wire::{
    self, AuthReply, Authenticate, Authorize, ServiceTicket, TicketBlob, TicketInfo,
};
use super::super::{AuthName, ConMode, Method, Secret, Secrets, envelope};
use super::keys::{KeyServer, new_key};
use super::{Caps, Entropy, Granted, Policy, Step, random};

/// A monitor's side of one connection (`CephxServiceHandler`, `src/auth/cephx`, and
/// `Monitor::handle_auth_request`): the handshake, then renewals for as long as it is open.
pub struct MonAuth {
    policy: Policy,
    peer: Option<Peer>,
}

struct Peer {
    method: Method,
    mode: ConMode,
    name: AuthName,
    global_id: u64,
    /// A new id needs no old ticket to prove it.
    new_id: bool,
    server_challenge: u64,
}

/// A result for the wire: a negative errno.
type Outcome<T> = Result<T, i32>;

impl MonAuth {
    pub fn new(policy: Policy) -> MonAuth {
        MonAuth { policy, peer: None }
    }

    /// AUTH_REQUEST.
    pub fn request(
        &mut self,
        keys: &mut KeyServer,
        method: u32,
        modes: &[u32],
        payload: &[u8],
        entropy: Entropy<'_>,
    ) -> Step {
        let allowed = Method::from_raw(method).filter(|m| self.policy.methods.contains(m));
        let Some(allowed) = allowed else {
            return self.policy.refuse(method, -EOPNOTSUPP);
        };
        let Some(mode) = self.policy.pick_mode(allowed, modes) else {
            return self.policy.refuse(method, -EOPNOTSUPP);
        };
        match read_request(payload) {
            Ok((name, global_id)) => self.start(keys, allowed, mode, name, global_id, entropy),
            Err(_) => self.policy.refuse(method, -EACCES),
        }
    }

    fn start(
        &mut self,
        keys: &mut KeyServer,
        method: Method,
        mode: ConMode,
        name: AuthName,
        claimed: u64,
        entropy: Entropy<'_>,
    ) -> Step {
        let global_id = match claimed {
            0 => keys.assign_global_id(),
            id => id,
        };
        let server_challenge = u64::from_le_bytes(random(entropy)).max(1);
        self.peer = Some(Peer {
            method,
            mode,
            name: name.clone(),
            global_id,
            new_id: claimed == 0,
            server_challenge,
        });
        match method {
            Method::None => Step::Done(Box::new(Granted {
                name,
                global_id,
                caps: Caps::all(),
                con_mode: mode,
                payload: Vec::new(),
                secrets: Secrets::default(),
            })),
            Method::Cephx => {
                let mut out = Vec::with_capacity(9);
                wire::put_challenge(&mut out, server_challenge);
                Step::More(out)
            }
        }
    }

    /// AUTH_REQUEST_MORE.
    pub fn more(
        &mut self,
        keys: &mut KeyServer,
        payload: &[u8],
        now: Now,
        entropy: Entropy<'_>,
    ) -> Step {
        let Some(peer) = self.peer.as_mut().filter(|p| p.method == Method::Cephx) else {
            return self.policy.refuse(Method::Cephx.raw(), -EACCES);
        };
        let mut r = Reader::new(payload);
        let granted = match r.u16() {
            Ok(wire::GET_AUTH_SESSION_KEY) => {
                let secret_len = Some(peer.mode.secret_len());
                peer.session_key(keys, &mut r, secret_len, now, entropy)
            }
            Ok(_) => Err(-EINVAL),
            Err(_) => Err(-EPERM),
        };
        match granted {
            Ok(granted) => Step::Done(Box::new(granted)),
            Err(result) => self.policy.refuse(Method::Cephx.raw(), result),
        }
    }

    /// The front of an `MAuth` on the open session; answers with that of an `MAuthReply`. On an
    /// error, which the reply tells, the connection is to be closed.
    pub fn renew(
        &mut self,
        keys: &mut KeyServer,
        front: &[u8],
        now: Now,
        entropy: Entropy<'_>,
    ) -> (Vec<u8>, Result<(), i32>) {
        let outcome = self.renewal(keys, front, now, entropy);
        let reply = AuthReply {
            method: Method::Cephx.raw(),
            result: outcome.as_ref().err().copied().unwrap_or(0),
            global_id: self.peer.as_ref().map_or(0, |p| p.global_id),
            payload: outcome.as_deref().unwrap_or(&[]),
        };
        let mut out = Vec::with_capacity(64 + reply.payload.len());
        reply.encode(&mut out);
        (out, outcome.map(drop))
    }

    fn renewal(
        &mut self,
        keys: &mut KeyServer,
        front: &[u8],
        now: Now,
        entropy: Entropy<'_>,
    ) -> Outcome<Vec<u8>> {
        let peer = self.peer.as_mut().filter(|p| p.method == Method::Cephx);
        let peer = peer.ok_or(-EINVAL)?;
        let (method, payload) = wire::read_mauth(&mut Reader::new(front)).map_err(|_| -EINVAL)?;
        if method != Method::Cephx.raw() {
            return Err(-EINVAL);
        }
        let mut r = Reader::new(payload);
        match r.u16() {
            Ok(wire::GET_AUTH_SESSION_KEY) => peer
                .session_key(keys, &mut r, None, now, entropy)
                .map(|granted| granted.payload),
            Ok(wire::GET_PRINCIPAL_SESSION_KEY) => service_tickets(keys, &mut r, now, entropy),
            Ok(_) => Err(-EINVAL),
            Err(_) => Err(-EPERM),
        }
    }
}

/// Mode byte, name and global id of a first request.
fn read_request(payload: &[u8]) -> Result<(AuthName, u64), DecodeError> {
    let mut r = Reader::new(payload);
    if !(wire::MODE_MON..=wire::MODE_MON_MAX).contains(&r.u8()?) {
        return Err(DecodeError::malformed("auth mode"));
    }
    Ok((AuthName::decode(&mut r)?, r.u64()?))
}

impl Peer {
    /// CEPHX_GET_AUTH_SESSION_KEY. `secret_len` is `None` in a renewal, which makes no connection
    /// secret.
    fn session_key(
        &mut self,
        keys: &KeyServer,
        r: &mut Reader<'_>,
        secret_len: Option<usize>,
        now: Now,
        entropy: Entropy<'_>,
    ) -> Outcome<Granted> {
        let request = Authenticate::decode(r).map_err(|_| -EPERM)?;
        let key = keys.users().get(&self.name).ok_or(-EACCES)?;
        if !keys.allows(key.kind()) {
            return Err(-EACCES);
        }
        let expected = wire::proof(key, self.server_challenge, request.client_challenge);
        if request.proof != expected {
            return Err(-EACCES);
        }
        let old = self.old_ticket(keys, &request)?;
        // A monitor's own caps decide whether the user may connect at all.
        let caps = keys.caps(&self.name, EntityType::MON).ok_or(-EACCES)?;

        let auth = EntityType::AUTH;
        let session_key = new_key(key.kind(), now, entropy);
        let ticket = Ticket::issue(
            keys,
            auth,
            self,
            &session_key,
            Caps::default(),
            now,
            entropy,
        )
        .ok_or(-EACCES)?;
        let mut payload = Vec::with_capacity(1024);
        wire::put_response_header(&mut payload, wire::GET_AUTH_SESSION_KEY, 0);
        put_tickets(&mut payload, &[ticket], key, old.as_ref(), entropy);

        let mut connection_secret = Secret::default();
        if request.other_keys != 0 {
            let mut sealed = Vec::new();
            if let Some(len) = secret_len {
                let mut secret = vec![0; len];
                entropy(&mut secret);
                connection_secret = Secret::new(secret);
                sealed.put_blob(&envelope::seal(
                    &session_key,
                    Usage::AuthConnectionSecret,
                    &random(entropy),
                    |b| b.put_blob(connection_secret.as_bytes()),
                ));
            }
            payload.put_blob(&sealed);
            let extra = self.tickets(keys, request.other_keys, &session_key, now, entropy);
            payload.put_blob(&extra);
        }
        self.new_id = false;
        Ok(Granted {
            name: self.name.clone(),
            global_id: self.global_id,
            caps,
            con_mode: self.mode,
            payload,
            secrets: Secrets {
                session_key: session_key.secret().clone(),
                connection_secret,
            },
        })
    }

    /// Who claims a global id shows a ticket that carries it; the new one is then sealed with the
    /// old one's key (`verify_old_ticket`).
    fn old_ticket(&self, keys: &KeyServer, request: &Authenticate) -> Outcome<Option<CryptoKey>> {
        let shown = &request.old_ticket;
        if self.new_id {
            return match shown.blob.is_empty() {
                true => Ok(None),
                false => Err(-EINVAL),
            };
        }
        let info = open_ticket(keys, EntityType::AUTH, shown).ok_or(-EACCES)?;
        match info.global_id == self.global_id && info.name == self.name {
            true => Ok(Some(info.session_key)),
            false => Err(-EACCES),
        }
    }

    /// Tickets for the services of `set`, sealed with the auth session key; empty where there are
    /// none.
    fn tickets(
        &self,
        keys: &KeyServer,
        set: u32,
        session_key: &CryptoKey,
        now: Now,
        entropy: Entropy<'_>,
    ) -> Vec<u8> {
        let mut tickets = Vec::new();
        for service in KeyServer::services(set) {
            tickets.extend(Ticket::for_service(
                keys,
                service,
                self,
                session_key,
                now,
                entropy,
            ));
        }
        let mut out = Vec::new();
        if !tickets.is_empty() {
            put_tickets(&mut out, &tickets, session_key, None, entropy);
        }
        out
    }
}

/// CEPHX_GET_PRINCIPAL_SESSION_KEY: an authorizer for the auth service, then the services wanted.
fn service_tickets(
    keys: &KeyServer,
    r: &mut Reader<'_>,
    now: Now,
    entropy: Entropy<'_>,
) -> Outcome<Vec<u8>> {
    let (info, _) = verify_authorizer(r, |id| keys.secret(EntityType::AUTH, id)).ok_or(-EACCES)?;
    let set = wire::read_ticket_request(r).map_err(|_| -EPERM)?;
    let mut tickets = Vec::new();
    let holder = Peer {
        method: Method::Cephx,
        mode: ConMode::Crc,
        name: info.name,
        global_id: info.global_id,
        new_id: false,
        server_challenge: 0,
    };
    for service in KeyServer::services(set) {
        tickets.extend(Ticket::for_service(
            keys,
            service,
            &holder,
            &info.session_key,
            now,
            entropy,
        ));
    }
    if tickets.is_empty() {
        return Err(-EACCES);
    }
    let mut out = Vec::with_capacity(1024);
    wire::put_response_header(&mut out, wire::GET_PRINCIPAL_SESSION_KEY, 0);
    put_tickets(&mut out, &tickets, &info.session_key, None, entropy);
    Ok(out)
}

/// Opens an authorizer up to its sealed nonce (`cephx_verify_authorizer`).
pub(super) fn verify_authorizer<'k>(
    r: &mut Reader<'_>,
    secret: impl FnOnce(u64) -> Option<&'k CryptoKey>,
) -> Option<(TicketInfo, Authorize)> {
    let mode = r.u8().ok()?;
    if !(wire::MODE_AUTHORIZER..=wire::MODE_AUTHORIZER_MAX).contains(&mode) {
        return None;
    }
    let global_id = r.u64().ok()?;
    r.u32().ok()?;
    let shown = TicketBlob::decode(r).ok()?;
    let info = read_ticket(secret(shown.secret_id)?, &shown)?;
    if info.global_id != global_id {
        return None;
    }
    let sealed = r.blob().ok()?;
    let opened = envelope::open(&info.session_key, Usage::Authorize, sealed, "authorizer").ok()?;
    let message = Authorize::decode(&mut opened.reader()).ok()?;
    Some((info, message))
}

fn open_ticket(keys: &KeyServer, service: EntityType, shown: &TicketBlob) -> Option<TicketInfo> {
    read_ticket(keys.secret(service, shown.secret_id)?, shown)
}

fn read_ticket(secret: &CryptoKey, shown: &TicketBlob) -> Option<TicketInfo> {
    let opened = envelope::open(secret, Usage::TicketInfo, &shown.blob, "ticket").ok()?;
    TicketInfo::decode(&mut opened.reader()).ok()
}

/// A ticket to hand out: the holder's half and the service's half.
struct Ticket {
    service: EntityType,
    holder: ServiceTicket,
    blob: TicketBlob,
}

impl Ticket {
    /// A service's ticket has a session key of the weaker of both ciphers, so that old services
    /// can read it (`KeyServer::_build_session_auth_info`).
    fn for_service(
        keys: &KeyServer,
        service: EntityType,
        peer: &Peer,
        auth_key: &CryptoKey,
        now: Now,
        entropy: Entropy<'_>,
    ) -> Option<Ticket> {
        let secret = keys.for_tickets(service, now)?;
        let kind = auth_key.kind().min(secret.key.kind());
        let session_key = new_key(kind, now, entropy);
        let caps = keys.caps(&peer.name, service).unwrap_or_default();
        Ticket::issue(keys, service, peer, &session_key, caps, now, entropy)
    }

    fn issue(
        keys: &KeyServer,
        service: EntityType,
        peer: &Peer,
        session_key: &CryptoKey,
        caps: Caps,
        now: Now,
        entropy: Entropy<'_>,
    ) -> Option<Ticket> {
        let secret = keys.for_tickets(service, now)?;
        let ttl = secret.ttl.as_nanos() as u64;
        let info = TicketInfo {
            name: peer.name.clone(),
            global_id: peer.global_id,
            created: UTime::from_nanos(now.wall),
            expires: UTime::from_nanos(now.wall.saturating_add(ttl)),
            caps,
            session_key: session_key.clone(),
        };
        let blob = envelope::seal(&secret.key, Usage::TicketInfo, &random(entropy), |b| {
            info.encode(b)
        });
        Some(Ticket {
            service,
            holder: ServiceTicket {
                session_key: session_key.clone(),
                validity: UTime::from_nanos(ttl),
            },
            blob: TicketBlob {
                secret_id: secret.id,
                blob,
            },
        })
    }
}

/// `cephx_build_service_ticket_reply`. `old_key` seals the blobs once more.
fn put_tickets(
    out: &mut Vec<u8>,
    tickets: &[Ticket],
    key: &CryptoKey,
    old_key: Option<&CryptoKey>,
    entropy: Entropy<'_>,
) {
    out.put_u8(1);
    out.put_list(tickets.iter(), |out, ticket| {
        out.put_u32(super::super::ticket::bit(ticket.service));
        out.put_u8(1);
        let confounder = random(entropy);
        out.put_blob(&envelope::seal(
            key,
            Usage::TicketSessionKey,
            &confounder,
            |b| ticket.holder.encode(b),
        ));
        let mut blob = Vec::with_capacity(16 + ticket.blob.blob.len());
        ticket.blob.encode(&mut blob);
        out.put_bool(old_key.is_some());
        match old_key {
            Some(old) => out.put_blob(&envelope::seal(
                old,
                Usage::TicketBlob,
                &random(entropy),
                |b| b.put_blob(&blob),
            )),
            None => out.put_blob(&blob),
        }
    });
}
