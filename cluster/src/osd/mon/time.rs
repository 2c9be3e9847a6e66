//! Times as Ceph prints them (`utime_t::gmtime`).

use crate::codec::UTime;

/// `2026-11-30T11:57:34.404883+0000`; zero is printed as seconds.
pub(super) fn iso(time: UTime) -> String {
    if time == UTime::default() {
        return "0.000000".to_owned();
    }
    let (days, rest) = (time.sec / 86_400, time.sec % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    let micros = time.nsec / 1000;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}+0000")
}

/// Year, month and day of a number of days since 1970-01-01, by the Gregorian calendar.
fn civil(days: u32) -> (u32, u32, u32) {
    let leap = |y: u32| y.is_multiple_of(4) && (!y.is_multiple_of(100) || y.is_multiple_of(400));
    let (mut year, mut left) = (1970, days);
    loop {
        let length = if leap(year) { 366 } else { 365 };
        if left < length {
            break;
        }
        left -= length;
        year += 1;
    }
    let february = if leap(year) { 29 } else { 28 };
    let months = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while left >= months[month] {
        left -= months[month];
        month += 1;
    }
    (year, month as u32 + 1, left + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_date() {
        let at = |sec| {
            iso(UTime {
                sec,
                nsec: 404_883_999,
            })
        };
        // `date -u -d @N`.
        assert_eq!(at(1_796_039_854), "2026-11-30T11:57:34.404883+0000");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.404883+0000");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00.404883+0000");
        assert_eq!(iso(UTime::default()), "0.000000");
    }
}
