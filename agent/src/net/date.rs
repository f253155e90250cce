//! The date of an HTTP answer.

/// Reads `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110 section 5.6.7, the only form that servers still send).
pub(crate) fn parse_http_date(text: &str) -> Option<u64> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (_, rest) = text.split_once(", ")?;
    let mut parts = rest.split(' ');
    let day: u64 = parts.next()?.parse().ok()?;
    let month_name = parts.next()?;
    let month = MONTHS.iter().position(|month| *month == month_name)? as u64 + 1;
    let year: u64 = parts.next()?.parse().ok()?;
    let mut clock = parts.next()?.split(':').map(|part| part.parse::<u64>().ok());
    let (hours, minutes, secs) = (clock.next()??, clock.next()??, clock.next()??);
    let is_plausible = parts.next() == Some("GMT")
        && (1970..10_000).contains(&year)
        && (1..=31).contains(&day)
        && hours < 24
        && minutes < 60
        && secs <= 60;
    is_plausible.then(|| days_since_1970(year, month, day) * 86_400 + hours * 3600 + minutes * 60 + secs)
}

/// Days from 1970-01-01 to a date of the Gregorian calendar (years counted from March, so that leap days come
/// last).
pub(crate) fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    year * 365 + year / 4 - year / 100 + year / 400 + day_of_year - 719_468
}
