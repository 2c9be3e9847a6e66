//! Moments as people read them.

use cluster::codec::UTime;

/// `2026-11-30T12:05:06Z`.
pub fn utc(t: UTime) -> String {
    jiff::Timestamp::from_second(i64::from(t.sec))
        .expect("every 32-bit second is a moment")
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments() {
        for (sec, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (1_796_040_306, "2026-11-30T12:05:06Z"),
        ] {
            assert_eq!(utc(UTime { sec, nsec: 0 }), text);
        }
        utc(UTime {
            sec: u32::MAX,
            nsec: 0,
        });
    }
}
