//! What a client may do: the capability strings of users, parsed and checked.
//!
//! Monitors check [`MonCaps`], OSDs check [`OsdCaps`]. A string that does not parse grants nothing.
//! Sources: `src/mon/MonCap.cc`, `src/osd/OSDCap.cc`.

mod mon;
mod osd;
mod pattern;
mod text;

use std::net::IpAddr;

pub use mon::{Command, MonCaps};
pub use osd::{ClassUse, OsdCaps, OsdRequest};

/// Why a capability string is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{service} capability parse failed, stopped at '{rest}' of '{text}'")]
pub struct CapsError {
    pub service: &'static str,
    pub rest: String,
    pub text: String,
}

/// Where a grant holds: `10.0.0.0/8`. One that does not parse holds nowhere (`parse_network`).
#[derive(Debug, Clone, PartialEq, Eq)]
struct Network(Option<(IpAddr, u32)>);

impl Network {
    fn parse(text: &str) -> Network {
        let parsed = text.split_once('/').and_then(|(ip, prefix)| {
            let ip: IpAddr = ip.trim_matches(['[', ']']).parse().ok()?;
            let prefix: u32 = prefix.parse().ok()?;
            let most = if ip.is_ipv4() { 32 } else { 128 };
            (prefix <= most).then_some((ip, prefix))
        });
        Network(parsed)
    }

    fn contains(&self, peer: Option<IpAddr>) -> bool {
        match (self.0, peer) {
            (Some((IpAddr::V4(net), prefix)), Some(IpAddr::V4(ip))) => {
                let mask = u32::MAX.checked_shl(32 - prefix).unwrap_or(0);
                u32::from(net) & mask == u32::from(ip) & mask
            }
            (Some((IpAddr::V6(net), prefix)), Some(IpAddr::V6(ip))) => {
                let mask = u128::MAX.checked_shl(128 - prefix).unwrap_or(0);
                u128::from(net) & mask == u128::from(ip) & mask
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_hold_where_their_prefix_says() {
        let net = Network::parse("10.1.0.0/16");
        assert!(net.contains(Some("10.1.9.9".parse().unwrap())));
        assert!(!net.contains(Some("10.2.0.1".parse().unwrap())));
        assert!(!net.contains(None));
        assert!(Network::parse("0.0.0.0/0").contains(Some("9.9.9.9".parse().unwrap())));
        assert!(Network::parse("[fd00::]/8").contains(Some("fd12::1".parse().unwrap())));
        for bad in ["10.0.0.0", "10.0.0.0/33", "x/8", "/"] {
            assert!(!Network::parse(bad).contains(Some("10.0.0.1".parse().unwrap())));
        }
    }
}
