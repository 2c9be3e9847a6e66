use std::sync::Arc;

use crate::codec::{EntityType, Reader};

use super::client::Identity;
use super::error::EOPNOTSUPP;
use super::key::{Confounder, CryptoKey, Usage};
use super::method::modes_of;
use super::mon::{check_secret, chosen_mode};
use super::ticket::bit;
use super::wire::{self, Authorize, TicketBlob};
use super::{AuthError, AuthRequest, ConMode, Method, Secret, Secrets, envelope};

/// Authentication to an OSD or mgr over one connection (`CephXAuthorizer`,
/// `src/auth/cephx/CephxProtocol.cc`).
pub struct ServiceHandshake {
    identity: Arc<Identity>,
    service: EntityType,
    global_id: u64,
    /// `None` is auth none.
    pub(super) cephx: Option<Authorizer>,
}

pub(super) struct Authorizer {
    pub(super) ticket: TicketBlob,
    session_key: CryptoKey,
    nonce: u64,
    first: Confounder,
    second: Confounder,
    challenged: bool,
}

impl Authorizer {
    pub(super) fn new(ticket: TicketBlob, session_key: CryptoKey, seed: &super::Seed) -> Self {
        let (nonce, rest) = seed.split_first_chunk::<8>().expect("a seed has 40 bytes");
        let (first, second) = rest.split_at(16);
        Authorizer {
            ticket,
            session_key,
            nonce: u64::from_le_bytes(*nonce),
            first: first.try_into().expect("16 bytes"),
            second: second.try_into().expect("16 bytes"),
            challenged: false,
        }
    }

    pub(super) fn put(&self, out: &mut Vec<u8>, global_id: u64, service: EntityType) {
        self.put_message(out, global_id, service, None, &self.first);
    }

    fn put_message(
        &self,
        out: &mut Vec<u8>,
        global_id: u64,
        service: EntityType,
        answer: Option<u64>,
        confounder: &Confounder,
    ) {
        let message = Authorize {
            nonce: self.nonce,
            answer,
        };
        wire::put_authorizer(
            out,
            global_id,
            bit(service),
            &self.ticket,
            &self.session_key,
            message,
            confounder,
        );
    }
}

impl ServiceHandshake {
    pub(super) fn new(
        identity: Arc<Identity>,
        service: EntityType,
        global_id: u64,
        cephx: Option<Authorizer>,
    ) -> ServiceHandshake {
        ServiceHandshake {
            identity,
            service,
            global_id,
            cephx,
        }
    }

    pub fn service(&self) -> EntityType {
        self.service
    }

    /// The AUTH_REQUEST to send after HELLO.
    pub fn request(&self) -> AuthRequest {
        let mut payload = Vec::with_capacity(256);
        match &self.cephx {
            Some(a) => a.put(&mut payload, self.global_id, self.service),
            None => wire::put_none_authorizer(&mut payload, &self.identity.name, self.global_id),
        }
        AuthRequest {
            method: self.method(),
            modes: self.modes(),
            payload,
        }
    }

    /// AUTH_BAD_METHOD is final here: the method is the monitors'. On
    /// [`AuthError::TicketRefused`] call [`super::Client::service_refused`].
    pub fn bad_method(
        &mut self,
        method: u32,
        result: i32,
        allowed_methods: &[u32],
        allowed_modes: &[u32],
    ) -> AuthError {
        let peer = self.service;
        if method != self.method().raw() {
            return AuthError::OutOfOrder {
                what: "the service refused a method that we did not ask for",
            };
        }
        if !allowed_methods.contains(&method) {
            return AuthError::MethodRefused {
                peer,
                name: self.identity.name.clone(),
                have_key: self.identity.key.is_some(),
                ours: self.identity.methods().collect(),
                allowed: allowed_methods.to_vec(),
            };
        }
        if result == -EOPNOTSUPP {
            return AuthError::ModeRefused {
                peer,
                ours: self.modes(),
                allowed: allowed_modes.to_vec(),
            };
        }
        match self.cephx {
            Some(_) => AuthError::TicketRefused {
                service: self.service,
                result,
            },
            None => AuthError::Refused { peer, result },
        }
    }

    /// AUTH_REPLY_MORE brings the service's challenge, which makes a replayed authorizer useless;
    /// answers with the AUTH_REQUEST_MORE payload (`CephXAuthorizer::add_challenge`).
    pub fn more(&mut self, payload: &[u8]) -> Result<Vec<u8>, AuthError> {
        let a = match &mut self.cephx {
            Some(a) if !a.challenged => a,
            _ => {
                return Err(AuthError::OutOfOrder {
                    what: "an unexpected challenge from the service",
                });
            }
        };
        let opened = envelope::open(
            &a.session_key,
            Usage::AuthorizeChallenge,
            payload,
            "service's challenge",
        )?;
        let challenge = wire::read_challenge(&mut opened.reader())?;
        a.challenged = true;
        let mut out = Vec::with_capacity(256);
        a.put_message(
            &mut out,
            self.global_id,
            self.service,
            Some(challenge.wrapping_add(1)),
            &a.second,
        );
        Ok(out)
    }

    /// AUTH_DONE: verifies that the service could open our ticket.
    pub fn done(&mut self, con_mode: u32, payload: &[u8]) -> Result<Secrets, AuthError> {
        let mode = chosen_mode(self.service, con_mode, &self.modes())?;
        let Some(a) = &self.cephx else {
            return Ok(Secrets::default());
        };
        let sealed = Reader::new(payload).blob()?;
        let opened = envelope::open(
            &a.session_key,
            Usage::AuthorizeReply,
            sealed,
            "service's reply",
        )?;
        let mut r = opened.reader();
        let (nonce_plus_one, secret) = wire::read_authorize_reply(&mut r)?;
        if nonce_plus_one != a.nonce.wrapping_add(1) {
            return Err(AuthError::NotProven {
                service: self.service,
            });
        }
        let connection_secret: Secret = secret.into();
        check_secret(mode, &connection_secret)?;
        Ok(Secrets {
            session_key: a.session_key.secret().clone(),
            connection_secret,
        })
    }

    fn method(&self) -> Method {
        match self.cephx {
            Some(_) => Method::Cephx,
            None => Method::None,
        }
    }

    fn modes(&self) -> Vec<ConMode> {
        modes_of(self.method(), self.identity.modes_for(self.service))
    }
}
