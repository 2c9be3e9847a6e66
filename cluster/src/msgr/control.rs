//! Payloads of the control frames: the `Args` of each `ControlFrame` in
//! `src/msg/async/frames_v2.h`, encoded one after the other. Bytes after the last known field are
//! ignored, as Ceph does.

use crate::codec::{EntityAddr, EntityAddrVec, EntityType, Put, Reader, Result, UTime};

/// `CEPH_MSG_CONNECT_LOSSY`, the one flag of the ident frames.
pub const FLAG_LOSSY: u64 = 1;

/// The payload of one kind of control frame.
pub trait Control<'a>: Sized {
    fn encode(&self, out: &mut Vec<u8>);
    fn decode(r: &mut Reader<'a>) -> Result<Self>;
}

/// HELLO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    pub entity_type: EntityType,
    /// Where the sender sees the receiver.
    pub peer_addr: EntityAddr,
}

impl Control<'_> for Hello {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u8(self.entity_type.0);
        self.peer_addr.encode(out);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Hello> {
        Ok(Hello {
            entity_type: EntityType(r.u8()?),
            peer_addr: EntityAddr::decode(r)?,
        })
    }
}

/// AUTH_REQUEST.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthRequest<'a> {
    pub method: u32,
    pub modes: Vec<u32>,
    pub payload: &'a [u8],
}

impl<'a> Control<'a> for AuthRequest<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(self.method);
        put_u32s(out, &self.modes);
        out.put_blob(self.payload);
    }

    fn decode(r: &mut Reader<'a>) -> Result<AuthRequest<'a>> {
        Ok(AuthRequest {
            method: r.u32()?,
            modes: r.list(4, Reader::u32)?,
            payload: r.blob()?,
        })
    }
}

/// AUTH_BAD_METHOD.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthBadMethod {
    pub method: u32,
    pub result: i32,
    pub allowed_methods: Vec<u32>,
    pub allowed_modes: Vec<u32>,
}

impl Control<'_> for AuthBadMethod {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(self.method);
        out.put_i32(self.result);
        put_u32s(out, &self.allowed_methods);
        put_u32s(out, &self.allowed_modes);
    }

    fn decode(r: &mut Reader<'_>) -> Result<AuthBadMethod> {
        Ok(AuthBadMethod {
            method: r.u32()?,
            result: r.i32()?,
            allowed_methods: r.list(4, Reader::u32)?,
            allowed_modes: r.list(4, Reader::u32)?,
        })
    }
}

/// AUTH_REPLY_MORE and AUTH_REQUEST_MORE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuthMore<'a>(pub &'a [u8]);

impl<'a> Control<'a> for AuthMore<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_blob(self.0);
    }

    fn decode(r: &mut Reader<'a>) -> Result<AuthMore<'a>> {
        Ok(AuthMore(r.blob()?))
    }
}

/// AUTH_DONE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuthDone<'a> {
    pub global_id: u64,
    pub con_mode: u32,
    pub payload: &'a [u8],
}

impl<'a> Control<'a> for AuthDone<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.global_id);
        out.put_u32(self.con_mode);
        out.put_blob(self.payload);
    }

    fn decode(r: &mut Reader<'a>) -> Result<AuthDone<'a>> {
        Ok(AuthDone {
            global_id: r.u64()?,
            con_mode: r.u32()?,
            payload: r.blob()?,
        })
    }
}

/// AUTH_SIGNATURE: HMAC-SHA256 of all bytes received before it; zeros when there is no session key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuthSignature(pub [u8; 32]);

impl Control<'_> for AuthSignature {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_bytes(&self.0);
    }

    fn decode(r: &mut Reader<'_>) -> Result<AuthSignature> {
        Ok(AuthSignature(r.fixed()?))
    }
}

/// CLIENT_IDENT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientIdent {
    pub addrs: EntityAddrVec,
    pub target: EntityAddr,
    /// Global id of a client, number of a daemon; -1 when not known yet.
    pub gid: i64,
    pub global_seq: u64,
    pub features_supported: u64,
    pub features_required: u64,
    pub flags: u64,
    pub cookie: u64,
}

impl Control<'_> for ClientIdent {
    fn encode(&self, out: &mut Vec<u8>) {
        self.addrs.encode(out);
        self.target.encode(out);
        out.put_i64(self.gid);
        out.put_u64(self.global_seq);
        out.put_u64(self.features_supported);
        out.put_u64(self.features_required);
        out.put_u64(self.flags);
        out.put_u64(self.cookie);
    }

    fn decode(r: &mut Reader<'_>) -> Result<ClientIdent> {
        Ok(ClientIdent {
            addrs: EntityAddrVec::decode(r)?,
            target: EntityAddr::decode(r)?,
            gid: r.i64()?,
            global_seq: r.u64()?,
            features_supported: r.u64()?,
            features_required: r.u64()?,
            flags: r.u64()?,
            cookie: r.u64()?,
        })
    }
}

/// SERVER_IDENT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerIdent {
    pub addrs: EntityAddrVec,
    pub gid: i64,
    pub global_seq: u64,
    pub features_supported: u64,
    pub features_required: u64,
    pub flags: u64,
    pub cookie: u64,
}

impl Control<'_> for ServerIdent {
    fn encode(&self, out: &mut Vec<u8>) {
        self.addrs.encode(out);
        out.put_i64(self.gid);
        out.put_u64(self.global_seq);
        out.put_u64(self.features_supported);
        out.put_u64(self.features_required);
        out.put_u64(self.flags);
        out.put_u64(self.cookie);
    }

    fn decode(r: &mut Reader<'_>) -> Result<ServerIdent> {
        Ok(ServerIdent {
            addrs: EntityAddrVec::decode(r)?,
            gid: r.i64()?,
            global_seq: r.u64()?,
            features_supported: r.u64()?,
            features_required: r.u64()?,
            flags: r.u64()?,
            cookie: r.u64()?,
        })
    }
}

/// SESSION_RECONNECT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reconnect {
    pub addrs: EntityAddrVec,
    pub client_cookie: u64,
    pub server_cookie: u64,
    pub global_seq: u64,
    pub connect_seq: u64,
    /// The last message its sender has received.
    pub msg_seq: u64,
}

impl Control<'_> for Reconnect {
    fn encode(&self, out: &mut Vec<u8>) {
        self.addrs.encode(out);
        out.put_u64(self.client_cookie);
        out.put_u64(self.server_cookie);
        out.put_u64(self.global_seq);
        out.put_u64(self.connect_seq);
        out.put_u64(self.msg_seq);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Reconnect> {
        Ok(Reconnect {
            addrs: EntityAddrVec::decode(r)?,
            client_cookie: r.u64()?,
            server_cookie: r.u64()?,
            global_seq: r.u64()?,
            connect_seq: r.u64()?,
            msg_seq: r.u64()?,
        })
    }
}

/// SESSION_RESET.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reset {
    /// The peer has forgotten the whole session, not only its own half of the cookies.
    pub full: bool,
}

impl Control<'_> for Reset {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_bool(self.full);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Reset> {
        Ok(Reset { full: r.bool()? })
    }
}

/// SESSION_RETRY, SESSION_RETRY_GLOBAL, SESSION_RECONNECT_OK, IDENT_MISSING_FEATURES and ACK: one
/// number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Number(pub u64);

impl Control<'_> for Number {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.0);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Number> {
        Ok(Number(r.u64()?))
    }
}

/// KEEPALIVE2 and KEEPALIVE2_ACK: when the keepalive was sent, by the sender's clock.
impl Control<'_> for UTime {
    fn encode(&self, out: &mut Vec<u8>) {
        UTime::encode(*self, out);
    }

    fn decode(r: &mut Reader<'_>) -> Result<UTime> {
        UTime::decode(r)
    }
}

/// WAIT has no payload.
impl Control<'_> for () {
    fn encode(&self, _: &mut Vec<u8>) {}

    fn decode(_: &mut Reader<'_>) -> Result<()> {
        Ok(())
    }
}

/// COMPRESSION_REQUEST. Decoded for tools that read other clients' streams; we send none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompressionRequest {
    pub compress: bool,
    pub methods: Vec<u32>,
}

impl Control<'_> for CompressionRequest {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_bool(self.compress);
        put_u32s(out, &self.methods);
    }

    fn decode(r: &mut Reader<'_>) -> Result<CompressionRequest> {
        Ok(CompressionRequest {
            compress: r.bool()?,
            methods: r.list(4, Reader::u32)?,
        })
    }
}

/// COMPRESSION_DONE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompressionDone {
    pub compress: bool,
    pub method: u32,
}

impl Control<'_> for CompressionDone {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_bool(self.compress);
        out.put_u32(self.method);
    }

    fn decode(r: &mut Reader<'_>) -> Result<CompressionDone> {
        Ok(CompressionDone {
            compress: r.bool()?,
            method: r.u32()?,
        })
    }
}

fn put_u32s(out: &mut Vec<u8>, items: &[u32]) {
    out.put_list(items.iter(), |out, &n| out.put_u32(n));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fmt::Debug;

    fn round_trip<'a, C: Control<'a> + PartialEq + Debug>(c: &C, buf: &'a mut Vec<u8>) {
        buf.clear();
        c.encode(buf);
        let mut r = Reader::new(buf);
        assert_eq!(&C::decode(&mut r).unwrap(), c);
        assert!(r.is_empty());
    }

    proptest! {
        #[test]
        fn control_frames_survive_a_round_trip(
            n: [u64; 6], a: u32, ip: [u8; 4], list: Vec<u32>, more: Vec<u32>, payload: Vec<u8>,
            sig: [u8; 32], yes: bool, result: i32,
        ) {
            let b = &mut Vec::new();
            let addr = EntityAddr::msgr2((ip, a as u16).into(), a);
            let addrs = EntityAddrVec(vec![addr, EntityAddr::default()]);
            let [n0, global_seq, features_supported, features_required, flags, cookie] = n;
            let gid = n0 as i64;
            round_trip(&Hello { entity_type: EntityType(a as u8), peer_addr: addr }, b);
            round_trip(&AuthRequest { method: a, modes: list.clone(), payload: &payload },
                &mut Vec::new());
            round_trip(&AuthMore(&payload), &mut Vec::new());
            round_trip(&AuthDone { global_id: n0, con_mode: a, payload: &payload }, &mut Vec::new());
            round_trip(&AuthBadMethod {
                method: a, result, allowed_methods: list.clone(), allowed_modes: more,
            }, b);
            round_trip(&AuthSignature(sig), b);
            round_trip(&ClientIdent {
                addrs: addrs.clone(), target: addr, gid, global_seq, features_supported,
                features_required, flags, cookie,
            }, b);
            round_trip(&ServerIdent {
                addrs: addrs.clone(), gid, global_seq, features_supported, features_required, flags,
                cookie,
            }, b);
            round_trip(&Reconnect {
                addrs, client_cookie: n[0], server_cookie: n[1], global_seq: n[2], connect_seq: n[3],
                msg_seq: n[4],
            }, b);
            round_trip(&Reset { full: yes }, b);
            round_trip(&Number(n[5]), b);
            round_trip(&UTime { sec: a, nsec: a / 2 }, b);
            round_trip(&(), b);
            round_trip(&CompressionRequest { compress: yes, methods: list }, b);
            round_trip(&CompressionDone { compress: yes, method: a }, b);
        }

        #[test]
        fn hostile_bytes_never_panic(bytes: Vec<u8>) {
            let r = || Reader::new(&bytes);
            let _ = Hello::decode(&mut r());
            let _ = AuthRequest::decode(&mut r());
            let _ = AuthBadMethod::decode(&mut r());
            let _ = AuthMore::decode(&mut r());
            let _ = AuthDone::decode(&mut r());
            let _ = AuthSignature::decode(&mut r());
            let _ = ClientIdent::decode(&mut r());
            let _ = ServerIdent::decode(&mut r());
            let _ = Reconnect::decode(&mut r());
            let _ = Reset::decode(&mut r());
            let _ = Number::decode(&mut r());
            let _ = CompressionRequest::decode(&mut r());
            let _ = CompressionDone::decode(&mut r());
        }
    }
}
