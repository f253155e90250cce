//! When updates of a node may begin: its maintenance windows, in its configuration and in an annotation of
//! its Node.
//!
//! A window is `[DAY[-DAY] ]HH:MM-HH:MM` in UTC: each day, or on these days of the week. A window that ends
//! at or before its beginning ends on the next day.

/// On a Node: its maintenance windows, separated by commas; absent: updates may begin at any time. The node
/// writes it, from its configuration.
pub const MAINTENANCE_ANNOTATION: &str = "kedge.dev/maintenance-windows";
/// Most windows of a node: two a day, and two more.
pub const MOST_WINDOWS: usize = 16;
/// The syntax of a window, for messages.
pub const WINDOW_EXPECTED: &str = "[DAY[-DAY] ]HH:MM-HH:MM in UTC, such as Mon-Fri 22:00-04:00";

const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const DAY_SECS: u32 = 24 * 60 * 60;
const WEEK_SECS: u32 = 7 * DAY_SECS;

/// The windows of one node; at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MaintenanceWindows(Vec<Window>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Window {
    /// For each day, Monday first: whether it begins on that day.
    days: [bool; 7],
    /// Seconds from midnight.
    begin: u32,
    /// In seconds.
    length: u32,
}

/// Whether updates are allowed at a time, and for how long at least that stays so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opening {
    pub is_open: bool,
    /// In seconds, and not 0.
    pub stays: u32,
}

impl MaintenanceWindows {
    /// Reads windows separated by commas; `None` if one cannot be parsed, or there are too many.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let windows: Vec<Window> = text.split(',').map(Window::parse).collect::<Option<_>>()?;
        (windows.len() <= MOST_WINDOWS).then_some(Self(windows))
    }

    /// The answer at this second of the week, which begins on Monday in UTC.
    #[must_use]
    pub fn at(&self, second: u32) -> Opening {
        let begins = || self.0.iter().flat_map(|window| window.begins().map(|begin| (begin, window.length)));
        let since = |begin: u32| (second % WEEK_SECS + WEEK_SECS - begin) % WEEK_SECS;
        let left = begins().filter_map(|(begin, length)| length.checked_sub(since(begin))).max().unwrap_or(0);
        if left > 0 {
            return Opening { is_open: true, stays: left };
        }
        let next = begins().map(|(begin, _)| WEEK_SECS - since(begin)).min();
        Opening { is_open: false, stays: next.unwrap_or(WEEK_SECS) }
    }
}

impl Window {
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let (days, times) = match text.split_once(' ') {
            Some((days, times)) => (parse_days(days)?, times.trim()),
            None => ([true; 7], text),
        };
        let (begin, end) = times.split_once('-')?;
        let (begin, end) = (parse_time(begin)?, parse_time(end)?);
        let length = if end > begin { end - begin } else { end + DAY_SECS - begin };
        Some(Self { days, begin, length })
    }

    /// The seconds of the week at which it begins.
    fn begins(&self) -> impl Iterator<Item = u32> {
        let begin = self.begin;
        (0..7).zip(self.days).filter(|(_, is_one)| *is_one).map(move |(day, _)| day * DAY_SECS + begin)
    }
}

fn parse_days(text: &str) -> Option<[bool; 7]> {
    let day = |name: &str| DAYS.iter().position(|day| *day == name);
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (mut at, last) = (day(first)?, day(last)?);
    let mut days = [false; 7];
    days[last] = true;
    while at != last {
        days[at] = true;
        at = (at + 1) % 7;
    }
    Some(days)
}

/// Seconds from midnight.
fn parse_time(text: &str) -> Option<u32> {
    let (hours, minutes) = text.split_once(':')?;
    let number = |text: &str, most: u32| {
        let is_plain = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u32>().ok().filter(|number| is_plain && *number <= most)
    };
    Some(number(hours, 23)? * 3600 + number(minutes, 59)? * 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Day (0: Monday), hour and minute.
    fn second(day: u32, hour: u32, minute: u32) -> u32 {
        day * DAY_SECS + hour * 3600 + minute * 60
    }

    #[test]
    fn window_is_open_from_its_begin_to_its_end() {
        let check = |text: &str, (day, hour, minute): (u32, u32, u32), is_open: bool, minutes: u32| {
            let found = MaintenanceWindows::parse(text).expect(text).at(second(day, hour, minute));
            assert_eq!(found, Opening { is_open, stays: minutes * 60 }, "{text}, day {day}, {hour}:{minute}");
        };
        check("02:00-04:00", (0, 2, 0), true, 120);
        check("02:00-04:00", (0, 3, 59), true, 1);
        check("02:00-04:00", (0, 4, 0), false, 22 * 60);
        check("02:00-04:00", (6, 5, 0), false, 21 * 60);
        // over midnight, and over the end of the week
        check("22:00-04:00", (3, 1, 0), true, 180);
        check("Sun 22:00-04:00", (0, 1, 0), true, 180);
        check("Sun 22:00-04:00", (0, 4, 0), false, (6 * 24 + 18) * 60);
        check("Sat-Mon 12:00-13:00", (1, 12, 30), false, 3 * 24 * 60 + 23 * 60 + 30);
        check("Sat-Mon 12:00-13:00", (0, 12, 30), true, 30);
        check("00:00-00:00", (2, 7, 0), true, 17 * 60);
        // if several are open, the one that stays open longest counts
        check("Mon 01:00-03:00, 02:00-05:00", (0, 2, 30), true, 150);
        check("Fri 01:00-02:00,Mon 10:00-11:00", (1, 0, 0), false, 3 * 24 * 60 + 60);
    }

    #[test]
    fn text_that_is_no_window_is_refused() {
        for text in [
            "",
            "x",
            "2:00-04:00",
            "02:00",
            "24:00-01:00",
            "02:60-03:00",
            "Mon",
            "Mon-02:00-04:00",
            "mon 02:00-04:00",
            "Mon-Xyz 02:00-04:00",
            "02:00-04:00,",
            "+2:00-04:00",
            "Mon Tue 02:00-04:00",
        ] {
            assert_eq!(MaintenanceWindows::parse(text), None, "{text:?}");
        }
        assert!(MaintenanceWindows::parse(&["02:00-04:00"; MOST_WINDOWS].join(", ")).is_some());
        assert_eq!(MaintenanceWindows::parse(&["02:00-04:00"; MOST_WINDOWS + 1].join(", ")), None);
    }
}
