//! The structures of the cephx protocol (`src/auth/cephx/CephxProtocol.h`, `src/auth/Auth.h`) and
//! of the messages that carry it over an open monitor session (`src/messages/MAuth*.h`).
//!
//! They begin with a bare version byte; fields are only ever appended, so an unknown higher version
//! is read as the one we know.

use crate::codec::{Put, Reader, Result, UTime};

use super::key::{Confounder, CryptoKey, Usage};
use super::{AuthName, KeyType, envelope};

/// `CEPHX_GET_AUTH_SESSION_KEY`: prove the key, get the auth ticket.
pub(super) const GET_AUTH_SESSION_KEY: u16 = 0x0100;
/// `CEPHX_GET_PRINCIPAL_SESSION_KEY`: show the auth ticket, get service tickets.
pub(super) const GET_PRINCIPAL_SESSION_KEY: u16 = 0x0200;

/// First byte of an AUTH_REQUEST payload (`AUTH_MODE_*`, `src/auth/Auth.h`): a ticket to a service
/// (the byte is also the authorizer's version), or a name to a monitor.
pub(super) const MODE_AUTHORIZER: u8 = 1;
pub(super) const MODE_AUTHORIZER_MAX: u8 = 9;
pub(super) const MODE_MON: u8 = 10;
pub(super) const MODE_MON_MAX: u8 = 19;

/// `CEPH_MSG_AUTH`, from client to monitor.
pub const MSG_AUTH: u16 = 17;
/// `CEPH_MSG_AUTH_REPLY`, from monitor to client.
pub const MSG_AUTH_REPLY: u16 = 18;

/// `CEPH_AUTH_UID_DEFAULT`, all that is left of user numbers.
const AUID_DEFAULT: u64 = u64::MAX;

/// Mode byte, name, global id (0 = give me one): `MonConnection::get_auth_request`.
pub(super) fn put_mon_request(out: &mut Vec<u8>, name: &AuthName, global_id: u64) {
    out.put_u8(MODE_MON);
    name.encode(out);
    out.put_u64(global_id);
}

/// `CephXServerChallenge` and `CephXAuthorizeChallenge`, which look alike.
pub(super) fn put_challenge(out: &mut Vec<u8>, challenge: u64) {
    out.put_u8(1);
    out.put_u64(challenge);
}

pub(super) fn read_challenge(r: &mut Reader<'_>) -> Result<u64> {
    r.skip(1)?;
    r.u64()
}

/// `cephx_calc_client_server_challenge`: proof of the key, 64 bits folded from a keyed function of
/// both challenges.
pub(super) fn proof(key: &CryptoKey, server_challenge: u64, client_challenge: u64) -> u64 {
    let put = |b: &mut Vec<u8>| {
        b.put_u64(server_challenge);
        b.put_u64(client_challenge);
    };
    let fold = |bytes: &[u8]| {
        let (words, _) = bytes.as_chunks::<8>();
        words
            .iter()
            .fold(0, |acc, word| acc ^ u64::from_le_bytes(*word))
    };
    match key.kind() {
        KeyType::Aes => {
            // Type 1 ignores usage and confounder. `encode_encrypt` puts a le32 length in front
            // of the ciphertext, and the fold runs over it too; the tail that fills no word is
            // left out.
            let mut sealed = Vec::with_capacity(64);
            sealed.put_blob(&envelope::seal(key, Usage::Authorize, &[0; 16], put));
            fold(&sealed)
        }
        // Type 2 salts its ciphertext, so a hash stands in for it.
        KeyType::Aes256k => {
            let mut both = Vec::with_capacity(16);
            put(&mut both);
            fold(&key.hmac_sha256(&both))
        }
    }
}

/// A ticket as the client keeps it (`CephXTicketBlob`): readable only to the service, which finds
/// its secret by `secret_id`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TicketBlob {
    pub(super) secret_id: u64,
    pub(super) blob: Vec<u8>,
}

impl TicketBlob {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u8(1);
        out.put_u64(self.secret_id);
        out.put_blob(&self.blob);
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<TicketBlob> {
        r.skip(1)?;
        Ok(TicketBlob {
            secret_id: r.u64()?,
            blob: r.blob()?.to_vec(),
        })
    }
}

/// `CephXAuthenticate`, the answer to a server challenge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Authenticate {
    pub(super) client_challenge: u64,
    pub(super) proof: u64,
    /// Entitles to keep the global id. Empty for a new identity.
    pub(super) old_ticket: TicketBlob,
    /// Bit set of services whose tickets shall come along.
    pub(super) other_keys: u32,
    /// Version 3 says that `old_ticket` is never left out by neglect.
    pub(super) version: u8,
}

impl Authenticate {
    pub(super) const VERSION: u8 = 3;

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u16(GET_AUTH_SESSION_KEY);
        out.put_u8(self.version);
        out.put_u64(self.client_challenge);
        out.put_u64(self.proof);
        self.old_ticket.encode(out);
        out.put_u32(self.other_keys);
    }

    /// What follows the request type.
    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Authenticate> {
        let version = r.u8()?;
        Ok(Authenticate {
            client_challenge: r.u64()?,
            proof: r.u64()?,
            old_ticket: TicketBlob::decode(r)?,
            other_keys: if version >= 2 { r.u32()? } else { 0 },
            version,
        })
    }
}

/// `CephXResponseHeader`.
pub(super) fn put_response_header(out: &mut Vec<u8>, request: u16, status: i32) {
    out.put_u16(request);
    out.put_i32(status);
}

pub(super) fn read_response_header(r: &mut Reader<'_>) -> Result<(u16, i32)> {
    Ok((r.u16()?, r.i32()?))
}

/// `CephXServiceTicket`, for the client's eyes: the key it shares with the service and for how long
/// the ticket is good.
#[derive(Debug, Clone)]
pub(super) struct ServiceTicket {
    pub(super) session_key: CryptoKey,
    pub(super) validity: UTime,
}

impl ServiceTicket {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u8(1);
        self.session_key.encode(out);
        self.validity.encode(out);
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<ServiceTicket> {
        r.skip(1)?;
        Ok(ServiceTicket {
            session_key: CryptoKey::decode(r)?,
            validity: UTime::decode(r)?,
        })
    }
}

/// What a user may do at one service (`AuthCapsInfo`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Caps {
    pub allow_all: bool,
    /// An encoded string, as monitors store it.
    encoded: Vec<u8>,
}

impl Caps {
    pub fn all() -> Caps {
        Caps {
            allow_all: true,
            encoded: Vec::new(),
        }
    }

    pub fn new(text: &str) -> Caps {
        let mut encoded = Vec::with_capacity(4 + text.len());
        encoded.put_string(text);
        Caps {
            allow_all: false,
            encoded,
        }
    }

    /// The capability string, such as `allow rwx pool=rbd`. Empty where nothing is granted.
    pub fn text(&self) -> &str {
        Reader::new(&self.encoded).string().unwrap_or("")
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u8(1);
        out.put_bool(self.allow_all);
        out.put_blob(&self.encoded);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Caps> {
        r.skip(1)?;
        Ok(Caps {
            allow_all: r.bool()?,
            encoded: r.blob()?.to_vec(),
        })
    }
}

/// `CephXServiceTicketInfo` with its `AuthTicket`: what a service finds in a ticket.
#[derive(Debug, Clone)]
pub(super) struct TicketInfo {
    pub(super) name: AuthName,
    pub(super) global_id: u64,
    pub(super) created: UTime,
    pub(super) expires: UTime,
    pub(super) caps: Caps,
    pub(super) session_key: CryptoKey,
}

impl TicketInfo {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u8(1);
        out.put_u8(2);
        self.name.encode(out);
        out.put_u64(self.global_id);
        out.put_u64(AUID_DEFAULT);
        self.created.encode(out);
        self.expires.encode(out);
        self.caps.encode(out);
        out.put_u32(0);
        self.session_key.encode(out);
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<TicketInfo> {
        r.skip(1)?;
        let ticket_version = r.u8()?;
        let name = AuthName::decode(r)?;
        let global_id = r.u64()?;
        if ticket_version >= 2 {
            r.u64()?;
        }
        let created = UTime::decode(r)?;
        let expires = UTime::decode(r)?;
        let caps = Caps::decode(r)?;
        r.u32()?;
        Ok(TicketInfo {
            name,
            global_id,
            created,
            expires,
            caps,
            session_key: CryptoKey::decode(r)?,
        })
    }
}

/// `CephXAuthorize`, sealed with the ticket's session key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Authorize {
    pub(super) nonce: u64,
    /// The service's challenge plus one, once it has sent one.
    pub(super) answer: Option<u64>,
}

impl Authorize {
    fn encode(self, out: &mut Vec<u8>) {
        out.put_u8(2);
        out.put_u64(self.nonce);
        out.put_bool(self.answer.is_some());
        out.put_u64(self.answer.unwrap_or(0));
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Authorize> {
        let version = r.u8()?;
        let nonce = r.u64()?;
        if version < 2 {
            return Ok(Authorize {
                nonce,
                answer: None,
            });
        }
        let have = r.bool()?;
        let answer = r.u64()?;
        Ok(Authorize {
            nonce,
            answer: have.then_some(answer),
        })
    }
}

/// An authorizer: who, to which service, the ticket, the sealed nonce
/// (`CephXTicketHandler::build_authorizer`).
pub(super) fn put_authorizer(
    out: &mut Vec<u8>,
    global_id: u64,
    service: u32,
    ticket: &TicketBlob,
    session_key: &CryptoKey,
    message: Authorize,
    confounder: &Confounder,
) {
    out.put_u8(MODE_AUTHORIZER);
    out.put_u64(global_id);
    out.put_u32(service);
    ticket.encode(out);
    out.put_blob(&envelope::seal(
        session_key,
        Usage::Authorize,
        confounder,
        |b| message.encode(b),
    ));
}

/// The authorizer of auth none (`AuthNoneAuthorizer::build_authorizer`).
pub(super) fn put_none_authorizer(out: &mut Vec<u8>, name: &AuthName, global_id: u64) {
    out.put_u8(MODE_AUTHORIZER);
    name.encode(out);
    out.put_u64(global_id);
}

/// `CephXAuthorizeReply`. The connection secret is there only when it is not empty.
pub(super) fn put_authorize_reply(out: &mut Vec<u8>, nonce_plus_one: u64, secret: &[u8]) {
    out.put_u8(if secret.is_empty() { 1 } else { 2 });
    out.put_u64(nonce_plus_one);
    if !secret.is_empty() {
        out.put_blob(secret);
    }
}

pub(super) fn read_authorize_reply<'a>(r: &mut Reader<'a>) -> Result<(u64, &'a [u8])> {
    let version = r.u8()?;
    let nonce_plus_one = r.u64()?;
    let secret = if version >= 2 { r.blob()? } else { &[] };
    Ok((nonce_plus_one, secret))
}

/// `CephXServiceTicketRequest`: a set of services.
pub(super) fn put_ticket_request(out: &mut Vec<u8>, services: u32) {
    out.put_u8(1);
    out.put_u32(services);
}

pub(super) fn read_ticket_request(r: &mut Reader<'_>) -> Result<u32> {
    r.skip(1)?;
    r.u32()
}

/// The front of an `MAuth`: a `PaxosServiceMessage` header that means nothing here, the method, the
/// request, and the epoch of our monitor map (0: do not compare).
pub(super) fn put_mauth(out: &mut Vec<u8>, method: u32, payload: &[u8]) {
    out.put_u64(0);
    out.put_i16(-1);
    out.put_u64(0);
    out.put_u32(method);
    out.put_blob(payload);
    out.put_u32(0);
}

pub(super) fn read_mauth<'a>(r: &mut Reader<'a>) -> Result<(u32, &'a [u8])> {
    r.skip(8 + 2 + 8)?;
    let method = r.u32()?;
    Ok((method, r.blob()?))
}

/// The front of an `MAuthReply`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AuthReply<'a> {
    pub(super) method: u32,
    pub(super) result: i32,
    pub(super) global_id: u64,
    pub(super) payload: &'a [u8],
}

impl<'a> AuthReply<'a> {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(self.method);
        out.put_i32(self.result);
        out.put_u64(self.global_id);
        out.put_blob(self.payload);
        out.put_string("");
    }

    pub(super) fn decode(r: &mut Reader<'a>) -> Result<AuthReply<'a>> {
        Ok(AuthReply {
            method: r.u32()?,
            result: r.i32()?,
            global_id: r.u64()?,
            payload: r.blob()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Secret;
    use proptest::prelude::*;

    fn key(kind: KeyType) -> CryptoKey {
        CryptoKey::new(kind, UTime { sec: 5, nsec: 6 }, Secret::new(vec![9; 32])).unwrap()
    }

    proptest! {
        #[test]
        fn requests_round_trip(a: u64, b: u64, id: u64, blob: Vec<u8>, keys: u32, name in "[a-z.]{0,12}", answer: Option<u64>) {
            let old_ticket = TicketBlob { secret_id: id, blob };
            let req = Authenticate { client_challenge: a, proof: b, old_ticket, other_keys: keys, version: 3 };
            let mut out = Vec::new();
            req.encode(&mut out);
            let mut r = Reader::new(&out);
            prop_assert_eq!(r.u16().unwrap(), GET_AUTH_SESSION_KEY);
            prop_assert_eq!(Authenticate::decode(&mut r).unwrap(), req);
            prop_assert!(r.is_empty());

            let info = TicketInfo {
                name: AuthName::client(&name),
                global_id: id,
                created: UTime::from_nanos(a),
                expires: UTime::from_nanos(b),
                caps: Caps::new("allow *"),
                session_key: key(KeyType::Aes256k),
            };
            out.clear();
            info.encode(&mut out);
            let mut r = Reader::new(&out);
            let back = TicketInfo::decode(&mut r).unwrap();
            prop_assert!(r.is_empty());
            prop_assert_eq!((back.name, back.global_id, back.created), (info.name, id, info.created));
            prop_assert_eq!(back.caps.text(), "allow *");

            let message = Authorize { nonce: a, answer };
            out.clear();
            message.encode(&mut out);
            prop_assert_eq!(Authorize::decode(&mut Reader::new(&out)).unwrap(), message);
        }

        #[test]
        fn hostile_bytes_never_panic(bytes: Vec<u8>) {
            let r = Reader::new(&bytes);
            let _ = read_challenge(&mut { r });
            let _ = TicketBlob::decode(&mut { r });
            let _ = Authenticate::decode(&mut { r });
            let _ = read_response_header(&mut { r });
            let _ = ServiceTicket::decode(&mut { r });
            let _ = TicketInfo::decode(&mut { r }).map(|t| t.caps.text().len());
            let _ = Authorize::decode(&mut { r });
            let _ = read_authorize_reply(&mut { r });
            let _ = read_mauth(&mut { r });
            let _ = AuthReply::decode(&mut { r });
            let _ = AuthName::decode(&mut { r });
        }
    }
}
