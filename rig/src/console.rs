//! Output of `make try` and of stories: lines for a pipe, colour and one line that is rewritten for a
//! terminal.
//!
//! Owns standard output. Always holds: nothing but text and line ends goes to anything that is not a
//! terminal.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Length of a line in [`Console::steps`].
const STEP_CHARS: usize = 30;

/// The meaning of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// Success.
    Good,
    /// A failure, including an expected one.
    Bad,
    /// In progress.
    Open,
    /// A command, as the user could type it.
    Command,
    /// Everything else.
    Plain,
}

pub struct Console {
    start: Instant,
    is_terminal: bool,
    live: String,
    /// The beginnings of the present chapter's lines, with their times.
    steps: Vec<String>,
}

impl Console {
    /// Writes to standard output.
    pub fn new() -> Console {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Console {
            start: Instant::now(),
            is_terminal: std::io::stdout().is_terminal() && !plain,
            live: String::new(),
            steps: Vec::new(),
        }
    }

    /// True if a person watches.
    pub fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// A new chapter.
    pub fn chapter(&mut self, title: &str) {
        self.steps.clear();
        self.print(&format!("\n{}", paint(self.is_terminal, "1", title)));
    }

    /// One line, with the time since the beginning.
    pub fn say(&mut self, tone: Tone, text: &str) {
        let colour = match tone {
            Tone::Good => "32",
            Tone::Bad => "31",
            Tone::Open => "33",
            Tone::Command => "36",
            Tone::Plain => "",
        };
        let time = clock(self.start.elapsed());
        self.steps.push(format!("{time} {}", text.chars().take(STEP_CHARS).collect::<String>()));
        self.print(&format!("  {time}  {}", paint(self.is_terminal, colour, text)));
    }

    /// The lines of the present chapter so far, shortened, for a report of where the time went.
    pub fn steps(&self) -> String {
        format!("{}, now {}", self.steps.join(", "), clock(self.start.elapsed()))
    }

    /// Rewrites the line at the bottom of a terminal; nothing elsewhere.
    pub fn live(&mut self, text: &str) {
        if !self.is_terminal || text == self.live {
            return;
        }
        self.live = text.to_owned();
        let mut out = std::io::stdout().lock();
        // wrapping is off, because a wrapped line cannot be rewritten; an error means that the terminal is
        // gone
        let _ = write!(out, "\r\x1b[K\x1b[?7l\x1b[2m{text}\x1b[0m\x1b[?7h");
        let _ = out.flush();
    }

    fn print(&mut self, text: &str) {
        let mut out = std::io::stdout().lock();
        if !self.live.is_empty() {
            self.live.clear();
            let _ = write!(out, "\r\x1b[K");
        }
        let _ = writeln!(out, "{text}");
        let _ = out.flush();
    }
}

impl Default for Console {
    fn default() -> Console {
        Console::new()
    }
}

fn paint(is_terminal: bool, colour: &str, text: &str) -> String {
    match is_terminal && !colour.is_empty() {
        true => format!("\x1b[{colour}m{text}\x1b[0m"),
        false => text.to_owned(),
    }
}

/// `02:07`
pub fn clock(time: Duration) -> String {
    let secs = time.as_secs();
    format!("{:02}:{:02}", secs / 60, secs % 60)
}
