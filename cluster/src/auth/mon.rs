use std::sync::Arc;

use crate::codec::{EntityType, Now, Reader};

use super::client::Identity;
use super::error::{EACCES, EBUSY, EOPNOTSUPP, EPERM};
use super::key::{CryptoKey, Usage};
use super::method::modes_of;
use super::ticket::{Tickets, bit};
use super::wire::{self, Authenticate, TicketBlob};
use super::{AuthError, AuthRequest, ConMode, Method, Secret, Secrets, envelope};

/// Authentication to one monitor over one connection (`MonConnection`, `src/mon/MonClient.cc`).
/// While hunting, several run side by side; [`super::Client::adopt`] takes the winner's results.
pub struct MonHandshake {
    pub(super) identity: Arc<Identity>,
    pub(super) method: Method,
    /// 0 asks for a new one.
    pub(super) global_id: u64,
    pub(super) server_challenge: u64,
    pub(super) tickets: Tickets,
    client_challenge: u64,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Requested,
    Proven,
    Done,
}

impl MonHandshake {
    pub(super) fn new(
        identity: Arc<Identity>,
        method: Method,
        global_id: u64,
        tickets: Tickets,
        client_challenge: u64,
    ) -> MonHandshake {
        MonHandshake {
            identity,
            method,
            global_id,
            server_challenge: 0,
            tickets,
            client_challenge,
            state: State::Requested,
        }
    }

    /// The AUTH_REQUEST to send after HELLO.
    pub fn request(&self) -> AuthRequest {
        let mut payload = Vec::with_capacity(32);
        wire::put_mon_request(&mut payload, &self.identity.name, self.global_id);
        AuthRequest {
            method: self.method,
            modes: self.modes(),
            payload,
        }
    }

    /// AUTH_BAD_METHOD: the next method of ours that the monitor allows, or why there is none.
    pub fn bad_method(
        &mut self,
        method: u32,
        result: i32,
        allowed_methods: &[u32],
        allowed_modes: &[u32],
    ) -> Result<AuthRequest, AuthError> {
        if method != self.method.raw() || self.state == State::Done {
            return Err(AuthError::OutOfOrder {
                what: "the monitor refused a method that we did not ask for",
            });
        }
        let next = self
            .identity
            .methods()
            .skip_while(|m| *m != self.method)
            .skip(1)
            .find(|m| allowed_methods.contains(&m.raw()));
        match next {
            // A refused key or mode is not answered by going without one: who has it wrong wants
            // to know.
            Some(method) if !allowed_methods.contains(&self.method.raw()) => {
                self.method = method;
                self.state = State::Requested;
                Ok(self.request())
            }
            _ => Err(self.refused(result, allowed_methods, allowed_modes)),
        }
    }

    fn refused(&self, result: i32, allowed_methods: &[u32], allowed_modes: &[u32]) -> AuthError {
        let peer = EntityType::MON;
        let allowed = allowed_methods.contains(&self.method.raw());
        match (result.wrapping_neg(), &self.identity.key) {
            (EBUSY, _) => AuthError::NotReady,
            (EOPNOTSUPP, _) if allowed => AuthError::ModeRefused {
                peer,
                ours: self.modes(),
                allowed: allowed_modes.to_vec(),
            },
            (_, key) if !allowed => AuthError::MethodRefused {
                peer,
                name: self.identity.name.clone(),
                have_key: key.is_some(),
                ours: self.identity.methods().collect(),
                allowed: allowed_methods.to_vec(),
            },
            (EACCES | EPERM, Some(_)) if self.reclaims() => AuthError::ReclaimRefused {
                name: self.identity.name.clone(),
                global_id: self.global_id,
            },
            (EACCES | EPERM, Some(key)) if self.method == Method::Cephx => AuthError::KeyRefused {
                name: self.identity.name.clone(),
                key_type: key.kind(),
            },
            _ => AuthError::Refused { peer, result },
        }
    }

    /// AUTH_REPLY_MORE brings the server's challenge; answers with the AUTH_REQUEST_MORE payload.
    pub fn more(&mut self, payload: &[u8], now: Now) -> Result<Vec<u8>, AuthError> {
        let key = self.key()?.clone();
        if self.state != State::Requested {
            return Err(AuthError::OutOfOrder {
                what: "a second challenge from the monitor",
            });
        }
        self.server_challenge = wire::read_challenge(&mut Reader::new(payload))?;
        self.state = State::Proven;
        // The auth ticket is always taken anew: it proves that this monitor knows our key.
        self.tickets.invalidate(EntityType::AUTH);
        let need = self.tickets.need(self.identity.want, now);
        Ok(authenticate(
            &key,
            self.server_challenge,
            self.client_challenge,
            &self.tickets,
            need,
        ))
    }

    /// AUTH_DONE: verifies that the monitor knows our key, takes the tickets and the global id.
    pub fn done(
        &mut self,
        global_id: u64,
        con_mode: u32,
        payload: &[u8],
        now: Now,
    ) -> Result<Secrets, AuthError> {
        let mode = chosen_mode(EntityType::MON, con_mode, &self.modes())?;
        if global_id == 0 || (self.global_id != 0 && self.global_id != global_id) {
            return Err(AuthError::GlobalIdChanged {
                ours: self.global_id,
                theirs: global_id,
            });
        }
        let secrets = match self.method {
            Method::None if self.state == State::Requested => Secrets::default(),
            Method::Cephx if self.state == State::Proven => {
                let key = self.key()?.clone();
                let mut r = Reader::new(payload);
                match wire::read_response_header(&mut r)? {
                    (wire::GET_AUTH_SESSION_KEY, 0) => {}
                    (wire::GET_AUTH_SESSION_KEY, result) => {
                        let peer = EntityType::MON;
                        return Err(AuthError::Refused { peer, result });
                    }
                    _ => {
                        return Err(AuthError::OutOfOrder {
                            what: "the monitor answers another request",
                        });
                    }
                }
                receive_auth_session_key(&mut self.tickets, &mut r, &key, mode, now)?
            }
            _ => {
                return Err(AuthError::OutOfOrder {
                    what: "the monitor let us in unasked",
                });
            }
        };
        self.global_id = global_id;
        self.state = State::Done;
        Ok(secrets)
    }

    pub fn global_id(&self) -> u64 {
        self.global_id
    }

    pub fn method(&self) -> Method {
        self.method
    }

    pub(super) fn is_done(&self) -> bool {
        self.state == State::Done
    }

    fn reclaims(&self) -> bool {
        self.global_id != 0
    }

    fn modes(&self) -> Vec<ConMode> {
        modes_of(self.method, &self.identity.mon_modes)
    }

    fn key(&self) -> Result<&CryptoKey, AuthError> {
        let key = self.identity.key.as_ref();
        key.filter(|_| self.method == Method::Cephx)
            .ok_or(AuthError::OutOfOrder {
                what: "the monitor sends a challenge without cephx",
            })
    }
}

/// A CEPHX_GET_AUTH_SESSION_KEY request, alike in a handshake and in a renewal.
pub(super) fn authenticate(
    key: &CryptoKey,
    server_challenge: u64,
    client_challenge: u64,
    tickets: &Tickets,
    need: u32,
) -> Vec<u8> {
    let old_ticket = tickets
        .get(EntityType::AUTH)
        .map_or_else(TicketBlob::default, |t| t.blob.clone());
    let mut out = Vec::with_capacity(64 + old_ticket.blob.len());
    Authenticate {
        client_challenge,
        proof: wire::proof(key, server_challenge, client_challenge),
        old_ticket,
        other_keys: need,
        version: Authenticate::VERSION,
    }
    .encode(&mut out);
    out
}

/// The reply to [`authenticate`] after its header: the auth ticket, then, from Nautilus on, the
/// sealed connection secret and tickets for the other services.
pub(super) fn receive_auth_session_key(
    tickets: &mut Tickets,
    r: &mut Reader<'_>,
    key: &CryptoKey,
    mode: ConMode,
    now: Now,
) -> Result<Secrets, AuthError> {
    tickets.receive(r, key, now)?;
    let session_key = match tickets.usable(EntityType::AUTH) {
        Some(ticket) => ticket.session_key.clone(),
        None => {
            return Err(AuthError::OutOfOrder {
                what: "the monitor gives no auth ticket",
            });
        }
    };
    let mut connection_secret = Secret::default();
    if !r.is_empty() {
        // Absent, or a blob within the blob.
        let secret = r.blob()?;
        let extra = r.blob()?;
        if !secret.is_empty() {
            let opened = envelope::open(
                &session_key,
                Usage::AuthConnectionSecret,
                Reader::new(secret).blob()?,
                "connection secret",
            )?;
            connection_secret = opened.reader().blob()?.into();
        }
        if !extra.is_empty() {
            tickets.receive(&mut Reader::new(extra), &session_key, now)?;
        }
    }
    check_secret(mode, &connection_secret)?;
    Ok(Secrets {
        session_key: session_key.secret().clone(),
        connection_secret,
    })
}

pub(super) fn check_secret(mode: ConMode, secret: &Secret) -> Result<(), AuthError> {
    if secret.len() < mode.secret_used() {
        return Err(AuthError::OutOfOrder {
            what: "secure mode without a connection secret",
        });
    }
    Ok(())
}

pub(super) fn chosen_mode(
    peer: EntityType,
    raw: u32,
    offered: &[ConMode],
) -> Result<ConMode, AuthError> {
    ConMode::from_raw(raw)
        .filter(|m| offered.contains(m))
        .ok_or(AuthError::ModeNotOffered { peer, mode: raw })
}

/// Whether `need` is worth a request: a lone mgr ticket is not, since a cluster without a mgr
/// would be asked for ever (`CephxClientHandler::_need_tickets`).
pub(super) fn worth_asking(need: u32) -> bool {
    need != 0 && need != bit(EntityType::MGR)
}
