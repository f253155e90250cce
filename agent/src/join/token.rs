//! A bootstrap token, `ID.SECRET` as kubeadm's: a new node shows it in place of a certificate.
//!
//! Always holds: its secret is in no message, no log and no `Debug` output. It is read from a file or from
//! standard input, never from the command line, which every user of the machine can see.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, IsTerminal as _};

/// More than any token with its line end.
const MOST_BYTES: u64 = 4096;

/// The place of a token on the command line that stands for standard input.
const STANDARD_INPUT: &str = "-";

#[derive(PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) id: String,
    pub(crate) secret: String,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.id)
    }
}

impl Token {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (id, secret) = text.trim().split_once('.')?;
        let is_part = |part: &str, length: usize| {
            let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
            part.len() == length && part.bytes().all(is_letter)
        };
        let is_one = is_part(id, 6) && is_part(secret, 16);
        is_one.then(|| Self { id: id.to_owned(), secret: secret.to_owned() })
    }

    /// The first line of a file, or of standard input.
    ///
    /// # Errors
    /// It cannot be read, or holds no token.
    pub(crate) fn read(path: &str) -> Result<Self, String> {
        let (line, from) = match path {
            STANDARD_INPUT => {
                if io::stdin().is_terminal() {
                    eprintln!("kedge: paste the token, then Enter:");
                }
                (first_line(io::stdin()), "standard input")
            }
            path => (File::open(path).and_then(first_line), path),
        };
        let line = line.map_err(|error| format!("read the token from {from}: {error}"))?;
        Self::parse(&line).ok_or_else(|| {
            format!("the first line of {from} is no bootstrap token, expected 6 characters, a dot and 16 (a-z, 0-9)")
        })
    }
}

fn first_line(source: impl io::Read) -> io::Result<String> {
    let mut line = String::new();
    BufReader::new(source.take(MOST_BYTES)).read_line(&mut line)?;
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_has_two_parts_and_shows_no_secret() {
        let token = Token::parse(" abc123.0123456789abcdef\r\n").unwrap();
        assert_eq!((token.id.as_str(), token.secret.as_str()), ("abc123", "0123456789abcdef"));
        assert_eq!(format!("{token:?}"), "Token(abc123)");
        for wrong in ["", "abc123", "abc123.", "ABC123.0123456789abcdef", "abc12.0123456789abcdef"] {
            assert_eq!(Token::parse(wrong), None, "{wrong}");
        }
        assert_eq!(Token::parse("abc123.0123456789abcdef.x"), None);
    }

    #[test]
    fn first_line_of_a_file_is_the_token() {
        let scratch = kedge_rig::Scratch::new("token").unwrap();
        let read = |text: &str| Token::read(scratch.write("token", text).to_str().unwrap());
        assert_eq!(read("abc123.0123456789abcdef\n# for edge-7\n").unwrap().id, "abc123");
        let error = read("abc123.0123456789ABCDEF").unwrap_err();
        assert!(error.contains("is no bootstrap token") && !error.contains("ABCDEF"), "{error}");
    }
}
