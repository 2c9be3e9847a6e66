//! UUIDs of clusters, OSDs and snapshots (`src/include/uuid.h`).

/// Makes a random UUID of random bytes (RFC 9562, version 4).
pub(super) fn of_random(mut bytes: [u8; 16]) -> [u8; 16] {
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}

/// As `uuid_d` prints it.
pub(super) fn text(id: &[u8; 16]) -> String {
    let n = u128::from_be_bytes(*id);
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        n >> 96,
        (n >> 80) & 0xffff,
        (n >> 64) & 0xffff,
        (n >> 48) & 0xffff,
        n & 0xffff_ffff_ffff
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_has_five_groups() {
        let id: [u8; 16] = std::array::from_fn(|i| i as u8);
        assert_eq!(text(&id), "00010203-0405-0607-0809-0a0b0c0d0e0f");
    }

    #[test]
    fn a_random_one_says_so() {
        assert!(text(&of_random([0xff; 16])).starts_with("ffffffff-ffff-4fff-bfff-"));
    }
}
