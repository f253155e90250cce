//! The state of a node over the last day, in quarters of an hour.
//!
//! Always holds: each node takes 96 bytes; a quarter of an hour shows the worst state in it; one that the hub
//! did not see is unknown. Time is that since the start of the hub: the past of another run is unknown, and
//! no clock that is set moves anything.

use std::time::Duration;

/// Quarters of an hour that are kept: a day.
pub const CELLS: usize = 96;
/// The time of one.
pub const CELL: Duration = Duration::from_secs(15 * 60);

/// The tracks of a picture, one line for each.
pub const TRACKS: [&str; 4] = ["contact", "configuration", "system", "pressure"];

/// How good the state of one track is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// No report covers it.
    Unknown = 0,
    Good = 1,
    /// On trial, or not decided.
    Unsure = 2,
    Bad = 3,
}

impl Level {
    fn of_bits(bits: u8) -> Level {
        [Level::Unknown, Level::Good, Level::Unsure, Level::Bad][usize::from(bits & 3)]
    }
}

/// One level for each of [`TRACKS`].
pub type Levels = [Level; TRACKS.len()];

/// See the module.
#[derive(Debug, Clone)]
pub struct Day {
    cells: [u8; CELLS],
    /// The quarter of an hour since the hub's start in which it was first seen, and last changed.
    first: u64,
    last: u64,
    current: u8,
}

impl Day {
    /// Seen for the first time.
    pub fn new(now: Duration, levels: Levels) -> Day {
        let (at, bits) = (cell(now), bits(levels));
        let mut day = Day { cells: [0; CELLS], first: at, last: at, current: bits };
        day.cells[index(at)] = bits;
        day
    }

    /// It is now in this state.
    pub fn set(&mut self, now: Duration, levels: Levels) {
        let (at, new) = (cell(now).max(self.last), bits(levels));
        let from = (self.last + 1).max((at + 1).saturating_sub(CELLS as u64));
        for cell in from..=at {
            self.cells[index(cell)] = self.current;
        }
        let worst = self.levels_of(self.cells[index(at)]);
        let worst: Vec<Level> = worst.iter().zip(levels).map(|(known, new)| (*known).max(new)).collect();
        self.cells[index(at)] = worst.iter().rev().fold(0, |bits, level| bits << 2 | *level as u8);
        (self.last, self.current) = (at, new);
    }

    /// The cells of the last day, the oldest first.
    pub fn cells(&self, now: Duration) -> [Levels; CELLS] {
        let at = cell(now).max(self.last);
        std::array::from_fn(|position| {
            let before = (CELLS - 1 - position) as u64;
            let bits = match at.checked_sub(before) {
                Some(cell) if cell >= self.first && cell <= self.last && self.last - cell < CELLS as u64 => {
                    self.cells[index(cell)]
                }
                Some(cell) if cell > self.last => self.current,
                _ => 0,
            };
            self.levels_of(bits)
        })
    }

    #[expect(clippy::unused_self, reason = "reads better")]
    fn levels_of(&self, bits: u8) -> Levels {
        std::array::from_fn(|track| Level::of_bits(bits >> (2 * track)))
    }
}

fn cell(now: Duration) -> u64 {
    now.as_secs() / CELL.as_secs()
}

fn index(cell: u64) -> usize {
    // less than 96
    (cell % CELLS as u64) as usize
}

fn bits(levels: Levels) -> u8 {
    levels.iter().rev().fold(0, |bits, level| bits << 2 | *level as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kedge_rig::Random;

    fn at(cell: u64) -> Duration {
        CELL * u32::try_from(cell).unwrap()
    }

    fn letters(day: &Day, cell: u64, track: usize) -> String {
        let letter = |levels: &Levels| ['.', 'g', 'u', 'b'][levels[track] as usize];
        day.cells(at(cell)).iter().map(letter).collect()
    }

    #[test]
    fn quarter_of_an_hour_shows_its_worst_state() {
        use Level::{Bad, Good, Unknown, Unsure};
        let mut day = Day::new(at(2), [Good, Good, Unknown, Good]);
        day.set(at(2), [Bad, Good, Unknown, Good]);
        day.set(at(2), [Good, Unsure, Unknown, Good]);
        day.set(at(4), [Good, Good, Good, Good]);
        assert!(letters(&day, 6, 0).ends_with("..bgggg"), "{}", letters(&day, 6, 0));
        assert!(letters(&day, 6, 1).ends_with("..uuugg"), "{}", letters(&day, 6, 1));
        assert!(letters(&day, 6, 2).ends_with("....ggg"), "{}", letters(&day, 6, 2));
        assert_eq!(letters(&day, 6 + 96, 0), "g".repeat(96));
    }

    /// Against a list of all states ever.
    #[test]
    fn ring_is_the_end_of_the_whole_history() {
        for seed in 1..200 {
            let mut random = Random::new(seed);
            let mut levels =
                || std::array::from_fn(|_| Level::of_bits(u8::try_from(random.index(4)).unwrap()));
            let first: Levels = levels();
            let mut changes = vec![(0, first)];
            let mut day = Day::new(at(0), first);
            let mut now = 0;
            for step in 0..40_u64 {
                now += [0, 0, 1, 2, 50, 97, 300][usize::try_from(step * 7 + seed).unwrap() % 7];
                let new = levels();
                day.set(at(now), new);
                changes.push((now, new));
            }
            now += seed % 120;
            let expect: Vec<Levels> = (0..CELLS as u64)
                .map(|position| {
                    let Some(cell) = now.checked_sub(CELLS as u64 - 1 - position) else {
                        return [Level::Unknown; 4];
                    };
                    let held = changes.iter().rev().find(|(from, _)| *from < cell).map(|(_, levels)| *levels);
                    let within = changes.iter().filter(|(from, _)| *from == cell).map(|(_, levels)| *levels);
                    let all: Vec<Levels> = held.into_iter().chain(within).collect();
                    std::array::from_fn(|track| {
                        all.iter().map(|levels| levels[track]).max().unwrap_or(Level::Unknown)
                    })
                })
                .collect();
            assert_eq!(day.cells(at(now)).to_vec(), expect, "seed {seed}");
        }
    }
}
