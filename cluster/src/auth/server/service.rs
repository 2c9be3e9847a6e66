use crate::codec::{DecodeError, Put, Reader};

use super::super::error::{EACCES, EOPNOTSUPP};
use super::super::key::{CryptoKey, Usage};
use super::super::wire;
use super::super::{AuthName, ConMode, Method, Secret, Secrets, envelope};
use super::keys::RotatingSecrets;
use super::mon::verify_authorizer;
use super::{Caps, Entropy, Granted, Policy, Step, random};

/// A service's side of one connection (`CephxAuthorizeHandler`, `src/auth/cephx`): reads the
/// ticket, challenges its holder, answers.
pub struct ServiceAuth {
    policy: Policy,
    pending: Option<Pending>,
}

struct Pending {
    mode: ConMode,
    challenge: u64,
}

impl ServiceAuth {
    pub fn new(policy: Policy) -> ServiceAuth {
        ServiceAuth {
            policy,
            pending: None,
        }
    }

    /// AUTH_REQUEST. `secrets` are the service's own.
    pub fn request(
        &mut self,
        secrets: &RotatingSecrets,
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
        match allowed {
            Method::None => match read_none(payload) {
                Ok((name, global_id)) => Step::Done(Box::new(Granted {
                    name,
                    global_id,
                    caps: Caps::all(),
                    con_mode: mode,
                    payload: Vec::new(),
                    secrets: Secrets::default(),
                })),
                Err(_) => self.policy.refuse(method, -EACCES),
            },
            Method::Cephx => {
                let checked = verify_authorizer(&mut Reader::new(payload), |id| secrets.get(id));
                let Some((info, _)) = checked else {
                    return self.policy.refuse(method, -EACCES);
                };
                let challenge = u64::from_le_bytes(random(entropy));
                self.pending = Some(Pending { mode, challenge });
                Step::More(envelope::seal(
                    &info.session_key,
                    Usage::AuthorizeChallenge,
                    &random(entropy),
                    |b| wire::put_challenge(b, challenge),
                ))
            }
        }
    }

    /// AUTH_REQUEST_MORE: the same ticket with the challenge answered.
    pub fn more(
        &mut self,
        secrets: &RotatingSecrets,
        payload: &[u8],
        entropy: Entropy<'_>,
    ) -> Step {
        match self.answer(secrets, payload, entropy) {
            Some(granted) => Step::Done(Box::new(granted)),
            None => self.policy.refuse(Method::Cephx.raw(), -EACCES),
        }
    }

    fn answer(
        &mut self,
        secrets: &RotatingSecrets,
        payload: &[u8],
        entropy: Entropy<'_>,
    ) -> Option<Granted> {
        // Each challenge is good for one answer.
        let Pending { mode, challenge } = self.pending.take()?;
        let mut r = Reader::new(payload);
        let (info, message) = verify_authorizer(&mut r, |id| secrets.get(id))?;
        if message.answer != Some(challenge.wrapping_add(1)) {
            return None;
        }
        let mut secret = vec![0; mode.secret_len()];
        entropy(&mut secret);
        let connection_secret = Secret::new(secret);
        let nonce_plus_one = message.nonce.wrapping_add(1);
        let payload = reply(
            &info.session_key,
            nonce_plus_one,
            &connection_secret,
            entropy,
        );
        Some(Granted {
            name: info.name,
            global_id: info.global_id,
            caps: info.caps,
            con_mode: mode,
            payload,
            secrets: Secrets {
                session_key: info.session_key.secret().clone(),
                connection_secret,
            },
        })
    }
}

fn reply(key: &CryptoKey, nonce_plus_one: u64, secret: &Secret, entropy: Entropy<'_>) -> Vec<u8> {
    let sealed = envelope::seal(key, Usage::AuthorizeReply, &random(entropy), |b| {
        wire::put_authorize_reply(b, nonce_plus_one, secret.as_bytes());
    });
    let mut out = Vec::with_capacity(4 + sealed.len());
    out.put_blob(&sealed);
    out
}

/// The authorizer of auth none.
fn read_none(payload: &[u8]) -> Result<(AuthName, u64), DecodeError> {
    let mut r = Reader::new(payload);
    if !(wire::MODE_AUTHORIZER..=wire::MODE_AUTHORIZER_MAX).contains(&r.u8()?) {
        return Err(DecodeError::malformed("auth mode"));
    }
    Ok((AuthName::decode(&mut r)?, r.u64()?))
}
