//! Text to typed values, with the units Ceph allows for each type of option.
//!
//! `Option::parse_value` (`src/common/options.cc`) picks the parser by type; the number formats
//! are `strict_si_cast`, `strict_iec_cast`, `strict_strtob` (`src/common/strtol.cc`) and
//! `parse_timespan` (`src/common/ceph_time.cc`).

use std::time::Duration;

/// Why a text is no value of its type: the end of a sentence that starts with option and value.
pub(super) type Parsed<T> = Result<T, String>;

/// `true`, `false` in any case, or a number that is not zero.
pub(super) fn boolean(s: &str) -> Parsed<bool> {
    if s.eq_ignore_ascii_case("true") {
        return Ok(true);
    }
    if s.eq_ignore_ascii_case("false") {
        return Ok(false);
    }
    match s.parse::<i64>() {
        Ok(n) => Ok(n != 0),
        Err(_) => Err("expected true, false, 1 or 0".into()),
    }
}

/// A count with an optional decimal suffix: `1K` is 1000.
pub(super) fn count(s: &str) -> Parsed<u64> {
    let (digits, scale) = match s.as_bytes().last() {
        Some(b'B') => (&s[..s.len() - 1], 1),
        Some(b'K') => (&s[..s.len() - 1], 1_000),
        Some(b'M') => (&s[..s.len() - 1], 1_000_000),
        Some(b'G') => (&s[..s.len() - 1], 1_000_000_000),
        Some(b'T') => (&s[..s.len() - 1], 1_000_000_000_000),
        Some(b'P') => (&s[..s.len() - 1], 1_000_000_000_000_000),
        Some(b'E') => (&s[..s.len() - 1], 1_000_000_000_000_000_000),
        _ => (s, 1),
    };
    let n: u64 = digits
        .parse()
        .map_err(|_| "expected a number, such as 64 or 1K".to_string())?;
    n.checked_mul(scale)
        .ok_or_else(|| "number too large".into())
}

/// A size in bytes with an optional binary suffix: `4K`, `4KB` and `4KiB` are all 4096.
pub(super) fn size(s: &str) -> Parsed<u64> {
    let at = s
        .find(|c: char| !c.is_ascii_digit() && c != '+')
        .unwrap_or(s.len());
    let (digits, unit) = s.split_at(at);
    let unit = match unit.strip_suffix('B') {
        Some(rest) if !rest.is_empty() => rest,
        _ => unit,
    };
    let shift = match unit {
        "" | "B" => 0,
        "K" | "Ki" => 10,
        "M" | "Mi" => 20,
        "G" | "Gi" => 30,
        "T" | "Ti" => 40,
        "P" | "Pi" => 50,
        "E" | "Ei" => 60,
        _ => return Err("expected a size, such as 4096, 64K or 100M".into()),
    };
    let n: u64 = digits
        .parse()
        .map_err(|_| "expected a size, such as 4096, 64K or 100M".to_string())?;
    n.checked_mul(1 << shift)
        .ok_or_else(|| "size too large".into())
}

/// Whole seconds, or a sum of numbers with units: `30`, `5m`, `1 hour 30 min`.
pub(super) fn timespan(s: &str) -> Parsed<Duration> {
    const EXPECTED: &str = "expected a duration, such as 30, 5m or 1h 30m";
    let mut total: u64 = 0;
    let mut rest = s.trim();
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let n: u64 = rest[..digits].parse().map_err(|_| EXPECTED.to_string())?;
        rest = rest[digits..].trim_start();
        let letters = rest.len()
            - rest
                .trim_start_matches(|c: char| c.is_ascii_alphabetic())
                .len();
        let unit: u64 = match &rest[..letters] {
            // A bare number is only allowed at the end.
            "" if rest.is_empty() => 1,
            "s" | "sec" | "second" | "seconds" => 1,
            "m" | "min" | "minute" | "minutes" => 60,
            "h" | "hr" | "hour" | "hours" => 3600,
            "d" | "day" | "days" => 86_400,
            "w" | "wk" | "week" | "weeks" => 7 * 86_400,
            "mo" | "month" | "months" => 30 * 86_400,
            "y" | "yr" | "year" | "years" => 365 * 86_400,
            _ => return Err(EXPECTED.into()),
        };
        rest = rest[letters..].trim_start();
        total = n
            .checked_mul(unit)
            .and_then(|n| total.checked_add(n))
            .ok_or_else(|| "duration too long".to_string())?;
    }
    Ok(Duration::from_secs(total))
}

/// A finite number that is not negative.
pub(super) fn float(s: &str) -> Parsed<f64> {
    match s.parse::<f64>() {
        Ok(v) if v.is_finite() && v >= 0.0 => Ok(v),
        _ => Err("expected a number that is not negative".into()),
    }
}

/// Seconds with a fraction, as options of type float that hold times.
pub(super) fn seconds(s: &str) -> Parsed<Duration> {
    Duration::try_from_secs_f64(float(s)?).map_err(|_| "duration too long".into())
}

pub(super) fn text(s: &str) -> Parsed<String> {
    Ok(s.to_string())
}

/// The sixteen bytes of a UUID in its canonical form; empty text is none.
pub(super) fn uuid(s: &str) -> Parsed<Option<[u8; 16]>> {
    const EXPECTED: &str = "expected a UUID (8-4-4-4-12 hexadecimal digits)";
    if s.is_empty() {
        return Ok(None);
    }
    if s.len() != 36 || !s.is_ascii() {
        return Err(EXPECTED.into());
    }
    let mut out = [0; 16];
    let mut filled = 0;
    for (i, part) in s.split('-').enumerate() {
        if part.len() != [8, 4, 4, 4, 12].get(i).copied().unwrap_or(0) {
            return Err(EXPECTED.into());
        }
        for pair in part.as_bytes().chunks_exact(2) {
            let hex = |b: u8| char::from(b).to_digit(16).ok_or(EXPECTED);
            out[filled] = (hex(pair[0])? << 4 | hex(pair[1])?) as u8;
            filled += 1;
        }
    }
    Ok(Some(out))
}

/// The pieces of a list, split at what `get_str_list` (`src/common/str_list.cc`) splits at.
pub(super) fn words(s: &str) -> impl Iterator<Item = &str> {
    s.split(|c: char| matches!(c, ';' | ',' | '=') || c.is_ascii_whitespace())
        .filter(|w| !w.is_empty())
}

/// How the frames of a connection are protected (`CEPH_CON_MODE_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConMode {
    Crc,
    Secure,
}

impl ConMode {
    /// The number on the wire.
    pub const fn code(self) -> u32 {
        match self {
            ConMode::Crc => 1,
            ConMode::Secure => 2,
        }
    }
}

/// Connection modes in order of preference (`AuthRegistry::_parse_mode_list`).
pub(super) fn modes(s: &str) -> Parsed<Vec<ConMode>> {
    const EXPECTED: &str = "expected crc and secure in order of preference";
    let modes = words(s)
        .map(|w| match w {
            "crc" => Ok(ConMode::Crc),
            "secure" => Ok(ConMode::Secure),
            _ => Err(EXPECTED.to_string()),
        })
        .collect::<Parsed<Vec<_>>>()?;
    if modes.is_empty() {
        return Err(EXPECTED.into());
    }
    Ok(modes)
}

/// How a client proves who it is (`CEPH_AUTH_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthMethod {
    None,
    Cephx,
}

impl AuthMethod {
    /// The number on the wire.
    pub const fn code(self) -> u32 {
        match self {
            AuthMethod::None => 1,
            AuthMethod::Cephx => 2,
        }
    }
}

/// Authentication methods in order of preference (`AuthRegistry::_parse_method_list`). Kerberos
/// (`gss`) is left out of a list that has others, as a client built without it does.
pub(super) fn methods(s: &str) -> Parsed<Vec<AuthMethod>> {
    const EXPECTED: &str = "expected cephx, none or both in order of preference";
    let mut out = Vec::new();
    for w in words(s) {
        match w {
            "cephx" => out.push(AuthMethod::Cephx),
            "none" => out.push(AuthMethod::None),
            "gss" => {}
            _ => return Err(EXPECTED.into()),
        }
    }
    if out.is_empty() && !s.trim().is_empty() {
        return Err(EXPECTED.into());
    }
    Ok(out)
}

/// Image features by number or by name (`librbd::rbd_features_from_string`,
/// `src/librbd/Features.cc`). Features that a user cannot ask for are refused.
pub(super) fn features(s: &str) -> Parsed<u64> {
    const NAMES: [(&str, u64); 8] = [
        ("layering", 1 << 0),
        ("striping", 1 << 1),
        ("exclusive-lock", 1 << 2),
        ("object-map", 1 << 3),
        ("fast-diff", 1 << 4),
        ("deep-flatten", 1 << 5),
        ("journaling", 1 << 6),
        ("data-pool", 1 << 7),
    ];
    if s.trim().is_empty() {
        return features("layering,exclusive-lock,object-map,fast-diff,deep-flatten");
    }
    if let Ok(bits) = s.trim().parse::<u64>() {
        return if bits < 1 << NAMES.len() {
            Ok(bits)
        } else {
            Err("unknown feature bits".into())
        };
    }
    let mut bits = 0;
    for name in s.split(',').map(str::trim) {
        match NAMES.iter().find(|(n, _)| *n == name) {
            Some((_, bit)) => bits |= bit,
            None => return Err(format!("unknown feature \"{name}\"")),
        }
    }
    Ok(bits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_take_the_suffixes_of_their_type() {
        assert_eq!(count("1K"), Ok(1000));
        assert_eq!(count("24"), Ok(24));
        assert!(count("1Ki").is_err());
        assert!(count("-1").is_err());
        assert!(count("99999999999999E").is_err());
        for s in ["4096", "4K", "4KB", "4Ki", "4KiB", "4096B"] {
            assert_eq!(size(s), Ok(4096), "{s}");
        }
        assert!(size("4Bi").is_err());
        assert!(size("16E").is_err());
        assert!(size("K").is_err());
        assert!(size("").is_err());
    }

    #[test]
    fn timespans_add_up() {
        let secs = |s: &str| timespan(s).map(|d| d.as_secs());
        assert_eq!(secs("0"), Ok(0));
        assert_eq!(secs("300"), Ok(300));
        assert_eq!(secs("5m"), Ok(300));
        assert_eq!(secs("1 hour 30 min"), Ok(5400));
        assert_eq!(secs("1h30"), Ok(3630));
        assert!(secs("30 1h").is_err());
        assert!(secs("1.5").is_err());
        assert!(secs("5 parsecs").is_err());
        assert!(secs("99999999999999999999").is_err());
    }

    #[test]
    fn lists_keep_their_order() {
        assert_eq!(modes("secure crc"), Ok(vec![ConMode::Secure, ConMode::Crc]));
        assert!(modes("").is_err());
        assert!(modes("plain").is_err());
        assert_eq!(
            methods("cephx, none"),
            Ok(vec![AuthMethod::Cephx, AuthMethod::None])
        );
        assert_eq!(methods("gss,cephx"), Ok(vec![AuthMethod::Cephx]));
        assert!(methods("gss").is_err());
    }

    #[test]
    fn features_come_as_bits_or_names() {
        assert_eq!(features(""), Ok(0x3d));
        assert_eq!(features("61"), Ok(61));
        assert_eq!(features("layering, exclusive-lock"), Ok(5));
        assert!(features("layering,teleport").is_err());
        assert!(features("256").is_err());
    }

    #[test]
    fn a_uuid_has_one_form() {
        let id = uuid("686366d5-c415-41ae-b481-f33077d50958")
            .unwrap()
            .unwrap();
        assert_eq!(id[..4], [0x68, 0x63, 0x66, 0xd5]);
        assert_eq!(id[15], 0x58);
        assert!(uuid("686366d5c41541aeb481f33077d50958").is_err());
        assert!(uuid("686366d5-c415-41ae-b481-f33077d5095g").is_err());
        assert!(uuid("------------------------------------").is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(s in "\\PC{0,60}") {
            let _ = boolean(&s);
            let _ = count(&s);
            let _ = size(&s);
            let _ = timespan(&s);
            let _ = seconds(&s);
            let _ = uuid(&s);
            let _ = modes(&s);
            let _ = methods(&s);
            let _ = features(&s);
        }

        #[test]
        fn hex_digits_never_panic(s in "[-0-9a-f]{36}") {
            let _ = uuid(&s);
        }
    }
}
