//! Lists of monitor addresses.
//!
//! The forms are those of `parse_ip_port_vec` (`src/common/ceph_argparse.cc`) and
//! `entity_addr_t::parse` (`src/msg/msg_types.cc`), the meaning of an address without a protocol
//! that of `MonMap::_add_ambiguous_addr` (`src/mon/MonMap.cc`): port 6789 is legacy, any other
//! port and no port (3300) is msgr2. Ceph would dial such an address in the legacy protocol too;
//! we speak msgr2 only. Host names are refused: nothing here may wait for a name server.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use crate::codec::{AddrType, EntityAddr, EntityAddrVec};

/// `CEPH_MON_PORT_IANA` and `CEPH_MON_PORT_LEGACY` (`src/include/msgr.h`).
const PORT: u16 = 3300;
const PORT_LEGACY: u16 = 6789;

/// The monitors that a `mon_host` value lists: those that can be dialed by msgr2, in its order,
/// without repetition.
pub(super) fn parse(s: &str) -> Result<Vec<EntityAddrVec>, String> {
    let mut mons: Vec<EntityAddrVec> = Vec::new();
    let mut legacy = None;
    let mut rest = s;
    loop {
        rest = rest.trim_start_matches(|c: char| matches!(c, ',' | ';') || c.is_whitespace());
        if rest.is_empty() {
            break;
        }
        let addrs;
        (addrs, rest) = entry(rest)?;
        if addrs.msgr2().is_none() {
            legacy = addrs.0.first().copied().or(legacy);
        } else if !mons.contains(&addrs) {
            mons.push(addrs);
        }
        if !rest.is_empty()
            && !rest.starts_with([',', ';'])
            && !rest.starts_with(char::is_whitespace)
        {
            return Err(unexpected(rest));
        }
    }
    match legacy {
        Some(addr) if mons.is_empty() => Err(format!(
            "{addr} is a legacy (v1) address and no other is listed; list the monitors' msgr2 \
             addresses (port {PORT}), after \"ceph mon enable-msgr2\" if they have none"
        )),
        _ => Ok(mons),
    }
}

/// One monitor: an address, or addresses in brackets.
fn entry(s: &str) -> Result<(EntityAddrVec, &str), String> {
    let bracketed = s.strip_prefix('[').filter(|rest| {
        // `[2001:db8::1]:3300` is one address.
        let end = rest.find(']').unwrap_or(rest.len());
        rest[..end].parse::<IpAddr>().is_err()
    });
    let Some(mut rest) = bracketed else {
        let (addr, rest) = address(s)?;
        return Ok((EntityAddrVec(vec![addr]), rest));
    };
    let mut addrs = Vec::new();
    loop {
        let addr;
        (addr, rest) = address(rest.trim_start())?;
        addrs.push(addr);
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix(']') {
            return Ok((EntityAddrVec(addrs), after));
        }
        rest = rest
            .strip_prefix(',')
            .ok_or_else(|| "a list in [ ] lacks its closing bracket".to_string())?;
    }
}

/// `[v1:|v2:|any:]IP[:PORT][/NONCE]`, an IPv6 address with a port in brackets.
fn address(s: &str) -> Result<(EntityAddr, &str), String> {
    let (kind, rest) = if let Some(rest) = s.strip_prefix("v2:") {
        (Some(AddrType::MSGR2), rest)
    } else if let Some(rest) = s.strip_prefix("v1:") {
        (Some(AddrType::LEGACY), rest)
    } else {
        (None, s.strip_prefix("any:").unwrap_or(s))
    };
    let (ip, mut rest) = ip(rest)?;
    let mut port = 0;
    if let Some(after) = rest.strip_prefix(':') {
        (port, rest) = number::<u16>(after, "port")?;
    }
    let mut nonce = 0;
    if let Some(after) = rest.strip_prefix('/') {
        (nonce, rest) = number::<u32>(after, "nonce")?;
    }
    let kind = kind.unwrap_or(if port == PORT_LEGACY {
        AddrType::LEGACY
    } else {
        AddrType::MSGR2
    });
    if port == 0 {
        port = if kind == AddrType::LEGACY {
            PORT_LEGACY
        } else {
            PORT
        };
    }
    let addr = EntityAddr {
        kind,
        nonce,
        addr: Some(SocketAddr::new(ip, port)),
    };
    Ok((addr, rest))
}

fn ip(s: &str) -> Result<(IpAddr, &str), String> {
    if let Some(inner) = s.strip_prefix('[') {
        let (text, rest) = inner
            .split_once(']')
            .ok_or_else(|| "an address in [ ] lacks its closing bracket".to_string())?;
        return Ok((text.parse().map_err(|_| not_an_address(text))?, rest));
    }
    let end = s
        .find(|c: char| matches!(c, ',' | ';' | '/' | ']' | '[') || c.is_whitespace())
        .unwrap_or(s.len());
    let text = &s[..end];
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok((ip, &s[end..]));
    }
    // Only an IPv4 address may have a port without brackets.
    let host = text.split(':').next().unwrap_or(text);
    match host.parse::<IpAddr>() {
        Ok(ip) => Ok((ip, &s[host.len()..])),
        Err(_) => Err(not_an_address(text)),
    }
}

fn number<'a, T: FromStr>(s: &'a str, what: &str) -> Result<(T, &'a str), String> {
    let end = s.find(|c: char| !c.is_ascii_digit()).unwrap_or(s.len());
    match s[..end].parse() {
        Ok(n) => Ok((n, &s[end..])),
        Err(_) => Err(format!("\"{}\" is not a {what}", first_word(s))),
    }
}

fn first_word(s: &str) -> &str {
    let end = s
        .find(|c: char| matches!(c, ',' | ';' | ']') || c.is_whitespace())
        .unwrap_or(s.len());
    &s[..end]
}

fn not_an_address(text: &str) -> String {
    format!(
        "\"{text}\" is not an IP address (host names are not resolved; list addresses, such as \
         v2:192.0.2.1:{PORT})"
    )
}

fn unexpected(rest: &str) -> String {
    format!("unexpected \"{}\" after an address", first_word(rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn list(s: &str) -> Vec<String> {
        parse(s).unwrap().iter().map(|v| v.to_string()).collect()
    }

    #[test]
    fn every_form_is_read() {
        assert_eq!(list("10.0.0.1"), ["[v2:10.0.0.1:3300/0]"]);
        assert_eq!(list("10.0.0.1:3300"), ["[v2:10.0.0.1:3300/0]"]);
        assert_eq!(list("10.0.0.1:13300/7"), ["[v2:10.0.0.1:13300/7]"]);
        assert_eq!(list("v2:10.0.0.1"), ["[v2:10.0.0.1:3300/0]"]);
        assert_eq!(list("any:10.0.0.1"), ["[v2:10.0.0.1:3300/0]"]);
        assert_eq!(list("2001:db8::1"), ["[v2:[2001:db8::1]:3300/0]"]);
        assert_eq!(list("[2001:db8::1]"), ["[v2:[2001:db8::1]:3300/0]"]);
        assert_eq!(
            list("v2:[2001:db8::1]:3301/0"),
            ["[v2:[2001:db8::1]:3301/0]"]
        );
        assert_eq!(
            list("[v2:10.0.0.1:3300/0,v1:10.0.0.1:6789/0]"),
            ["[v2:10.0.0.1:3300/0,v1:10.0.0.1:6789/0]"]
        );
        assert_eq!(
            list("[v2:[::1]:3300, v1:[::1]:6789]"),
            ["[v2:[::1]:3300/0,v1:[::1]:6789/0]"]
        );
    }

    #[test]
    fn lists_take_commas_semicolons_and_blanks() {
        let want = [
            "[v2:10.0.0.1:3300/0]",
            "[v2:10.0.0.2:3300/0]",
            "[v2:10.0.0.3:3300/0]",
        ];
        for s in [
            "10.0.0.1,10.0.0.2,10.0.0.3",
            " 10.0.0.1, 10.0.0.2 ,10.0.0.3 ",
            "10.0.0.1 10.0.0.2;10.0.0.3",
            "[v2:10.0.0.1:3300],[v2:10.0.0.2],10.0.0.3",
        ] {
            assert_eq!(list(s), want, "{s}");
        }
        assert!(list("").is_empty());
    }

    #[test]
    fn legacy_addresses_are_passed_over_but_not_alone() {
        assert_eq!(
            list("10.0.0.1:6789,10.0.0.1:3300"),
            ["[v2:10.0.0.1:3300/0]"]
        );
        for s in ["10.0.0.1:6789", "v1:10.0.0.1", "[v1:10.0.0.1:6789/0]"] {
            let e = parse(s).unwrap_err();
            assert!(e.starts_with("v1:10.0.0.1:6789/0 is a legacy"), "{e}");
        }
    }

    #[test]
    fn errors_name_the_piece() {
        assert!(parse("mon1,10.0.0.1").unwrap_err().contains("\"mon1\""));
        assert!(parse("mon1:3300").unwrap_err().contains("\"mon1:3300\""));
        assert!(parse("10.0.0.1:99999").unwrap_err().contains("99999"));
        assert!(parse("10.0.0.1:3300/x").unwrap_err().contains("\"x\""));
        assert!(parse("10.0.0.1]").is_err());
        assert!(parse("[v2:10.0.0.1:3300").is_err());
        assert!(parse("[::1").is_err());
        assert!(parse("-").is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(s in "\\PC{0,40}", t in "[\\[\\]v12:.,/ 0-9a-f]{0,40}") {
            let _ = parse(&s);
            let _ = parse(&t);
        }

        #[test]
        fn what_is_printed_is_read_back(
            v4: [u8; 4], v6: [u8; 16], port in 1u16.., nonce: u32, six: bool
        ) {
            let ip = if six { IpAddr::from(v6) } else { IpAddr::from(v4) };
            let addrs = EntityAddrVec(vec![EntityAddr::msgr2(SocketAddr::new(ip, port), nonce)]);
            prop_assert_eq!(parse(&addrs.to_string()).unwrap(), vec![addrs.clone()]);
            prop_assert_eq!(parse(&addrs.0[0].to_string()).unwrap(), vec![addrs]);
        }
    }
}
