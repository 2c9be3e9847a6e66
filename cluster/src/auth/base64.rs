//! Base64 as keyrings write it (`src/common/armor.c`).

use zeroize::Zeroizing;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub(super) fn encode(bytes: &[u8]) -> Zeroizing<String> {
    let mut out = Zeroizing::new(String::with_capacity(bytes.len().div_ceil(3) * 4));
    for chunk in bytes.chunks(3) {
        let mut n = 0u32;
        for i in 0..3 {
            n = n << 8 | u32::from(chunk.get(i).copied().unwrap_or(0));
        }
        for i in 0..4 {
            if i <= chunk.len() {
                out.push(char::from(ALPHABET[(n >> (18 - 6 * i) & 63) as usize]));
            } else {
                out.push('=');
            }
        }
    }
    out
}

/// `None` for what is not base64. As Ceph does, takes `-_` for `+/`, skips line ends and stops at
/// padding.
pub(super) fn decode(text: &str) -> Option<Zeroizing<Vec<u8>>> {
    let digits: Zeroizing<Vec<u8>> = Zeroizing::new(
        text.bytes()
            .filter(|b| !matches!(b, b'\n' | b'\r'))
            .collect(),
    );
    let mut out = Zeroizing::new(Vec::with_capacity(digits.len() / 4 * 3));
    for quad in digits.chunks(4) {
        let &[a, b, c, d] = quad else { return None };
        let n = value(a)? << 18 | value(b)? << 12 | value(c)? << 6 | value(d)?;
        out.push((n >> 16) as u8);
        if c == b'=' {
            break;
        }
        out.push((n >> 8) as u8);
        if d == b'=' {
            break;
        }
        out.push(n as u8);
    }
    Some(out)
}

fn value(digit: u8) -> Option<u32> {
    Some(u32::from(match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' | b'-' => 62,
        b'/' | b'_' => 63,
        b'=' => 0,
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_values() {
        for (plain, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(*encode(plain.as_bytes()), coded);
            assert_eq!(*decode(coded).unwrap(), plain.as_bytes());
        }
        assert_eq!(*decode("-_-_").unwrap(), *decode("+/+/").unwrap());
        assert_eq!(*decode("Zm9v\nYmFy\n").unwrap(), b"foobar");
        assert!(decode("Zm9").is_none());
        assert!(decode("Zm 9").is_none());
    }

    proptest! {
        #[test]
        fn round_trip(bytes: Vec<u8>) {
            prop_assert_eq!(&*decode(&encode(&bytes)).unwrap(), &bytes);
        }

        #[test]
        fn hostile_text_never_panics(text in ".{0,60}") {
            let _ = decode(&text);
        }
    }
}
