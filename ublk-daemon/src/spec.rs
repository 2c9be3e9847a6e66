//! The names users type: images and sizes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// `POOL[/NAMESPACE]/IMAGE[@SNAP]`, as `rbd` takes it. The pool may be left out where a default
/// pool is known (`rbd_default_pool`).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ImageSpec {
    pub pool: Option<String>,
    pub namespace: String,
    pub image: String,
    pub snap: Option<String>,
}

/// `POOL[/NAMESPACE]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolSpec {
    pub pool: String,
    pub namespace: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    #[error("'{0}' is no image: write POOL[/NAMESPACE]/IMAGE[@SNAP]")]
    Image(String),
    #[error("'{0}' is no pool: write POOL[/NAMESPACE]")]
    Pool(String),
    #[error("'{0}' is no size: write a number with an optional suffix K, M, G, T or P")]
    Size(String),
}

impl FromStr for ImageSpec {
    type Err = SpecError;

    fn from_str(s: &str) -> Result<ImageSpec, SpecError> {
        let err = || SpecError::Image(s.to_owned());
        let (path, snap) = match s.split_once('@') {
            Some((path, snap)) => (path, Some(snap)),
            None => (s, None),
        };
        let parts: Vec<&str> = path.split('/').collect();
        let (pool, namespace, image) = match parts[..] {
            [image] => (None, "", image),
            [pool, image] => (Some(pool), "", image),
            [pool, namespace, image] => (Some(pool), namespace, image),
            _ => return Err(err()),
        };
        let bad_snap = snap.is_some_and(|s| s.is_empty() || s.contains(['@', '/']));
        if image.is_empty() || pool == Some("") || bad_snap {
            return Err(err());
        }
        if parts.len() == 3 && namespace.is_empty() {
            return Err(err());
        }
        Ok(ImageSpec {
            pool: pool.map(str::to_owned),
            namespace: namespace.to_owned(),
            image: image.to_owned(),
            snap: snap.map(str::to_owned),
        })
    }
}

impl fmt::Display for ImageSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(pool) = &self.pool {
            write!(f, "{pool}/")?;
        }
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.image)?;
        if let Some(snap) = &self.snap {
            write!(f, "@{snap}")?;
        }
        Ok(())
    }
}

impl FromStr for PoolSpec {
    type Err = SpecError;

    fn from_str(s: &str) -> Result<PoolSpec, SpecError> {
        let (pool, namespace) = s.split_once('/').unwrap_or((s, ""));
        if pool.is_empty() || namespace.contains('/') || s.ends_with('/') || s.contains('@') {
            return Err(SpecError::Pool(s.to_owned()));
        }
        Ok(PoolSpec {
            pool: pool.to_owned(),
            namespace: namespace.to_owned(),
        })
    }
}

/// Bytes, with a binary suffix: `4096`, `64K`, `10G`, `1.5T`, `4KiB`. `default_unit` multiplies a
/// bare number (`rbd` takes megabytes).
pub fn parse_size(s: &str, default_unit: u64) -> Result<u64, SpecError> {
    let err = || SpecError::Size(s.to_owned());
    let digits = s.trim();
    let split = digits
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(digits.len());
    let (number, suffix) = digits.split_at(split);
    let suffix = suffix.trim().to_ascii_uppercase();
    let unit = match suffix.trim_end_matches("IB").trim_end_matches('B') {
        "" if suffix.is_empty() => default_unit,
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        "T" => 1 << 40,
        "P" => 1 << 50,
        "E" => 1 << 60,
        _ => return Err(err()),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.len() > 9 {
        return Err(err());
    }
    let whole: u64 = if whole.is_empty() {
        0
    } else {
        whole.parse().map_err(|_| err())?
    };
    let mut bytes = u128::from(whole) * u128::from(unit);
    if !fraction.is_empty() {
        let scale = 10u128.pow(fraction.len() as u32);
        let part: u128 = fraction.parse().map_err(|_| err())?;
        bytes += part * u128::from(unit) / scale;
    }
    u64::try_from(bytes).map_err(|_| err())
}

/// A clap parser for plain byte counts.
pub fn bytes(s: &str) -> Result<u64, SpecError> {
    parse_size(s, 1)
}

/// A clap parser for image sizes: a bare number is megabytes, as `rbd create --size` has it.
pub fn megabytes(s: &str) -> Result<u64, SpecError> {
    parse_size(s, 1 << 20)
}

/// `bytes` in the largest binary unit that keeps it above one.
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let exp = if bytes == 0 {
        0
    } else {
        (bytes.ilog2() / 10) as usize
    };
    if bytes.trailing_zeros() as usize >= exp * 10 {
        return format!("{} {}", bytes >> (exp * 10), UNITS[exp]);
    }
    format!(
        "{:.1} {}",
        bytes as f64 / (1u64 << (exp * 10)) as f64,
        UNITS[exp]
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn specs_are_read_as_rbd_reads_them() {
        let s: ImageSpec = "rbd/ns/vm1@s1".parse().unwrap();
        assert_eq!(
            (
                s.pool.as_deref(),
                s.namespace.as_str(),
                s.image.as_str(),
                s.snap.as_deref()
            ),
            (Some("rbd"), "ns", "vm1", Some("s1"))
        );
        assert_eq!("vm1".parse::<ImageSpec>().unwrap().pool, None);
        for bad in [
            "", "rbd/", "/x", "a/b/c/d", "a/b@", "a//b", "a/b@c@d", "a/b@c/d",
        ] {
            assert!(bad.parse::<ImageSpec>().is_err(), "{bad}");
        }
        assert_eq!("rbd/ns".parse::<PoolSpec>().unwrap().namespace, "ns");
        for bad in ["", "rbd/", "a/b/c", "a@b"] {
            assert!(bad.parse::<PoolSpec>().is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes() {
        for (text, want) in [
            ("4096", 4096),
            ("4K", 4096),
            ("4KiB", 4096),
            ("1.5G", 3 << 29),
            ("10B", 10),
            ("2 t", 2 << 40),
        ] {
            assert_eq!(bytes(text), Ok(want), "{text}");
        }
        assert_eq!(megabytes("10"), Ok(10 << 20));
        for bad in ["", "K", ".", "1X", "-1", "1..2", "99999999999E"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
        assert_eq!(human(10 << 30), "10 GiB");
        assert_eq!(human(1536), "1.5 KiB");
        assert_eq!(human(0), "0 B");
    }

    proptest! {
        #[test]
        fn any_text_is_taken_or_refused(s in ".{0,30}") {
            if let Ok(spec) = s.parse::<ImageSpec>() {
                prop_assert_eq!(spec.to_string().parse::<ImageSpec>().unwrap(), spec);
            }
            let _ = s.parse::<PoolSpec>();
            let _ = bytes(&s);
        }
    }
}
