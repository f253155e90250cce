//! `/logs`: files below `/var/log`, and the node's journal for a caller that sends `query`.
//!
//! Always holds: no link is followed, so only files below that directory are read; a caller that reads slowly
//! makes the reading wait, not memory grow, and the reading ends when the caller leaves; the journal's
//! program gets each word as one argument, and a bounded time, and an answer that it could not complete
//! breaks off. Parameters and their bounds are those of upstream's NodeLogQuery, and so is
//! `enableSystemLogHandler`.

use crate::kubelet_api::node::Node;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kedge_api::{Timestamp, excerpt, percent_encoded};
use kedge_platform::linux::{Beneath, open_beneath};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{Exchange, Grown, Request};
use crate::local::client;

/// The directory of logs, and the program that reads the journal.
const LOGS: &str = "/var/log";
const JOURNALCTL: [&str; 2] = ["/usr/bin/journalctl", "/bin/journalctl"];
/// Names of one directory that are listed.
const NAMES: usize = 10_000;
/// Bytes sent at once, and pieces that wait for the caller.
const PIECE_BYTES: usize = 8 * 1024;
const PIECES: usize = 2;
/// Lines of the journal in one answer, upstream's most for `tailLines`: the last ones.
const MOST_LINES: u32 = 100_000;
/// Bytes of the journal in one answer: enough for that many lines of 600 bytes.
const MOST_BYTES: u64 = 64 << 20;
/// How long the journal's program may take; upstream's limit.
const JOURNAL_LIMIT: Duration = Duration::from_secs(30);
/// Services of one request, and the length of a service's name and of a pattern.
const SERVICES: usize = 16;
const WORD_BYTES: usize = 256;
/// Most bytes read of the program's error message.
const ERROR_BYTES: u64 = 1024;

/// The places; others in tests.
struct Places {
    logs: PathBuf,
    /// The program and its first words.
    journalctl: Option<Vec<String>>,
    journal_limit: Duration,
}

/// `/logs/...`.
pub(super) async fn serve(
    request: &Request,
    exchange: Exchange,
    node: Arc<Node>,
    below: &[&str],
) -> io::Result<()> {
    let socket = node.agent.places.socket();
    // without a running agent no setting forbids it
    let answer = tokio::task::spawn_blocking(move || client::get(&socket, "/configz").ok()).await?;
    let config: Value =
        answer.and_then(|answer| serde_json::from_slice(&answer.body).ok()).unwrap_or_default();
    let is_off = |field: &str| config["kubeletconfig"][field] == false;
    if is_off("enableSystemLogHandler") {
        return exchange.refuse(405, "logs endpoint is disabled.").await;
    }
    if is_off("enableSystemLogQuery") && request.param("query").is_some() {
        return exchange.refuse(405, "log queries are disabled: enableSystemLogQuery is false").await;
    }
    let journalctl = JOURNALCTL.into_iter().find(|path| Path::new(path).exists());
    let journalctl = journalctl.map(|path| vec![path.to_owned()]);
    let places = Places { logs: LOGS.into(), journalctl, journal_limit: JOURNAL_LIMIT };
    answer_from(request, exchange, places, below).await
}

async fn answer_from(
    request: &Request,
    exchange: Exchange,
    places: Places,
    below: &[&str],
) -> io::Result<()> {
    let query = match Query::of(request) {
        Ok(query) => query,
        Err(why) => return exchange.refuse(400, &why).await,
    };
    match query {
        None => below_logs(exchange, places.logs, below).await,
        Some(_) if !below.is_empty() => exchange.refuse(406, "path not allowed in query mode").await,
        Some(Query { file: Some(file), .. }) => {
            let names: Vec<&str> = file.split('/').filter(|name| !name.is_empty()).collect();
            below_logs(exchange, places.logs, &names).await
        }
        Some(query) => match places.journalctl {
            Some(program) => journal(exchange, program, &query, places.journal_limit).await,
            None => of_services(exchange, places.logs, &query).await,
        },
    }
}

/// The wanted part of the journal.
#[derive(Debug, Default, PartialEq, Eq)]
struct Query {
    services: Vec<String>,
    /// A path in place of services.
    file: Option<String>,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    tail: Option<u32>,
    boot: Option<i32>,
    pattern: Option<String>,
}

impl Query {
    /// `None` if the journal is not wanted.
    ///
    /// # Errors
    /// The wrong parameter, for a person.
    fn of(request: &Request) -> Result<Option<Self>, String> {
        let text = |name: &str| request.param(name).filter(|text| !text.is_empty());
        let time = |name: &str| match text(name).map(Timestamp::parse) {
            Some(Err(error)) => Err(format!("{name}: {error}")),
            Some(Ok(time)) => Ok(Some(time)),
            None => Ok(None),
        };
        let mut query = Self {
            since: time("sinceTime")?,
            until: time("untilTime")?,
            tail: number(text("tailLines"), "tailLines", 0..=MOST_LINES)?,
            boot: number(text("boot"), "boot", i32::MIN..=0)?,
            pattern: text("pattern").map(str::to_owned),
            ..Self::default()
        };
        let wanted: Vec<&str> =
            request.params("query").map(str::trim).filter(|service| !service.is_empty()).collect();
        let has_options = query != Self::default();
        if wanted.is_empty() {
            return match has_options {
                true => Err("query: expected a service or a file, found none beside other options".into()),
                false => Ok(None),
            };
        }
        if query.since.zip(query.until).is_some_and(|(since, until)| until < since) {
            return Err("untilTime: expected a time after sinceTime".into());
        }
        if query.pattern.as_ref().is_some_and(|pattern| pattern.len() > WORD_BYTES) {
            return Err(format!("pattern: expected {WORD_BYTES} bytes at most"));
        }
        // upstream's rule: a word with a slash is a file, and options are for the journal alone
        if let Some(file) = wanted.iter().find(|wanted| wanted.contains('/')) {
            if wanted.len() > 1 || has_options {
                return Err(format!(
                    "query: {:?} is a file, expected no other query and no options",
                    excerpt(file)
                ));
            }
            query.file = Some((*file).to_owned());
            return Ok(Some(query));
        }
        if wanted.len() > SERVICES {
            return Err(format!("query: expected {SERVICES} services at most, found {}", wanted.len()));
        }
        if let Some(odd) = wanted.iter().find(|service| !is_service(service)) {
            return Err(format!("query: {:?} is no name of a service", excerpt(odd)));
        }
        query.services = wanted.into_iter().map(str::to_owned).collect();
        Ok(Some(query))
    }

    /// The arguments of the journal's program.
    fn words(&self) -> Vec<String> {
        let mut words: Vec<String> =
            ["--utc", "--no-pager", "--output=short-precise"].map(str::to_owned).into();
        words.push(format!("--lines={}", self.tail.unwrap_or(MOST_LINES)));
        let secs = |time: Timestamp| time.micros() / 1_000_000;
        words.extend(self.since.map(|since| format!("--since=@{}", secs(since))));
        words.extend(self.until.map(|until| format!("--until=@{}", secs(until))));
        words.extend(self.boot.map(|boot| format!("--boot={boot}")));
        if let Some(pattern) = &self.pattern {
            words.extend([format!("--grep={pattern}"), "--case-sensitive=false".to_owned()]);
        }
        words.extend(self.services.iter().map(|service| format!("--unit={service}")));
        words
    }
}

fn number<T: std::str::FromStr + PartialOrd + std::fmt::Display>(
    text: Option<&str>,
    name: &str,
    range: std::ops::RangeInclusive<T>,
) -> Result<Option<T>, String> {
    let Some(text) = text else { return Ok(None) };
    match text.parse() {
        Ok(number) if range.contains(&number) => Ok(Some(number)),
        _ => Err(format!(
            "{name} is {:?}, expected a whole number from {} to {}",
            excerpt(text),
            range.start(),
            range.end()
        )),
    }
}

/// Whether it has the form of a systemd unit's name, or of a service's log file.
fn is_service(name: &str) -> bool {
    name.len() <= WORD_BYTES
        && !name.starts_with(['-', '.'])
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:@\\".contains(&byte))
}

/// A file, or the names in a directory.
async fn below_logs(exchange: Exchange, logs: PathBuf, names: &[&str]) -> io::Result<()> {
    let shown = format!("{}/{}", logs.display(), names.join("/"));
    let owned: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let opened = tokio::task::spawn_blocking(move || opened(&logs, &owned)).await?;
    match opened {
        Ok(Opened::File(file)) => send_file(exchange, file).await,
        Ok(Opened::List(text)) => exchange.answer(200, "text/html; charset=utf-8", text.as_bytes()).await,
        Err(error) => {
            let status = match error.kind() {
                ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::InvalidInput => 404,
                ErrorKind::PermissionDenied => 403,
                _ => 500,
            };
            exchange.refuse(status, &format!("cannot read {}: {error}", excerpt(&shown))).await
        }
    }
}

enum Opened {
    File(File),
    /// In upstream's form of a directory.
    List(String),
}

fn opened(logs: &Path, names: &[String]) -> io::Result<Opened> {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    Ok(match open_beneath(logs, &names, NAMES)? {
        Beneath::File(file) => Opened::File(file),
        Beneath::Directory(names, has_more) => {
            let link = |name: &String| {
                let (plain, slash) = name.strip_suffix('/').map_or((name.as_str(), ""), |plain| (plain, "/"));
                let shown = name.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
                format!("<a href=\"{}{slash}\">{shown}</a>\n", percent_encoded(plain))
            };
            let more = if has_more { format!("only {NAMES} names are shown\n") } else { String::new() };
            Opened::List(format!("<pre>\n{}{more}</pre>\n", names.iter().map(link).collect::<String>()))
        }
    })
}

/// A reader, on a thread of its own, and the bytes it has read.
struct Reading {
    pieces: mpsc::Receiver<Vec<u8>>,
    /// Its end: an error if the bytes are incomplete.
    done: tokio::task::JoinHandle<io::Result<()>>,
}

impl Reading {
    /// Reads up to `most` bytes; then `end` decides about the end.
    fn start(
        mut from: impl Read + Send + 'static,
        most: u64,
        end: impl FnOnce(bool) -> io::Result<()> + Send + 'static,
    ) -> Self {
        let (sender, pieces) = mpsc::channel(PIECES);
        let done = tokio::task::spawn_blocking(move || {
            let mut left = most;
            while left > 0 {
                let mut piece = vec![0; PIECE_BYTES.min(usize::try_from(left).unwrap_or(PIECE_BYTES))];
                let amount = match from.read(&mut piece) {
                    Ok(0) => return end(true),
                    Ok(amount) => amount,
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    Err(error) => return Err(error),
                };
                left -= amount as u64;
                piece.truncate(amount);
                if sender.blocking_send(piece).is_err() {
                    return end(false);
                }
            }
            end(false)
        });
        Self { pieces, done }
    }

    /// Sends the first piece and all others. False if the caller has left.
    async fn pour(&mut self, answer: &mut Grown, first: Option<Vec<u8>>) -> io::Result<bool> {
        let mut next = first;
        loop {
            let Some(piece) = next else { return Ok(true) };
            answer.write(&piece).await?;
            next = tokio::select! {
                piece = self.pieces.recv() => piece,
                () = answer.gone() => return Ok(false),
            };
        }
    }
}

async fn send_file(exchange: Exchange, file: File) -> io::Result<()> {
    // later lines are left to the next request
    let length = file.metadata()?.len();
    let mut reading = Reading::start(file, length, |_| Ok(()));
    let first = reading.pieces.recv().await;
    let mut answer = exchange.stream(kind_of(first.as_deref().unwrap_or_default())).await?;
    if reading.pour(&mut answer, first).await? {
        reading.done.await??;
        return answer.end().await;
    }
    Ok(())
}

/// Records of logins and of the journal are not text.
fn kind_of(beginning: &[u8]) -> &'static str {
    // a character may be cut at the end
    let is_text = std::str::from_utf8(beginning).map_or_else(|error| error.error_len().is_none(), |_| true);
    if is_text && !beginning.contains(&0) { "text/plain; charset=utf-8" } else { "application/octet-stream" }
}

async fn journal(
    exchange: Exchange,
    mut words: Vec<String>,
    query: &Query,
    limit: Duration,
) -> io::Result<()> {
    words.extend(query.words());
    let program = words.remove(0);
    let mut command = Command::new(&program);
    command.args(words).env_clear().env("PATH", "/usr/bin:/bin").env("LC_ALL", "C.UTF-8");
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let end = Instant::now() + limit;
    let mut child = match tokio::task::spawn_blocking(move || command.spawn()).await? {
        Ok(child) => child,
        Err(error) => {
            return exchange.refuse(500, &format!("cannot start {program}: {error}")).await;
        }
    };
    let (Some(output), Some(mut errors)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(io::Error::other("the journal's program has no output"));
    };
    let running = Running(Arc::new(Mutex::new(child)));
    let ended = Arc::clone(&running.0);
    let mut reading = Reading::start(output, MOST_BYTES, move |is_all| {
        let mut child = ended.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_all {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::other("the journal has more than one answer may have"));
        }
        let mut why = Vec::new();
        errors.by_ref().take(ERROR_BYTES).read_to_end(&mut why)?;
        // a longer message must not block the program
        drop(errors);
        let status = child.wait()?;
        // a pattern without a match is not a failure
        if status.success() || (status.code() == Some(1) && why.is_empty()) {
            return Ok(());
        }
        let why = String::from_utf8_lossy(&why);
        Err(io::Error::other(format!("the journal could not be read ({status}): {}", why.trim())))
    });
    let first = tokio::select! {
        first = reading.pieces.recv() => first,
        () = tokio::time::sleep_until(end) => {
            let why = format!("the journal did not answer within {} s", limit.as_secs());
            return exchange.refuse(500, &why).await;
        }
    };
    let Some(first) = first else {
        return match reading.done.await? {
            Ok(()) => exchange.answer(200, "text/plain; charset=utf-8", b"").await,
            Err(error) => exchange.refuse(500, &error.to_string()).await,
        };
    };
    let mut answer = exchange.stream("text/plain; charset=utf-8").await?;
    let poured = tokio::select! {
        poured = reading.pour(&mut answer, Some(first)) => poured?,
        () = tokio::time::sleep_until(end) => return Err(ErrorKind::TimedOut.into()),
    };
    if !poured {
        return Ok(());
    }
    reading.done.await??;
    drop(running);
    answer.end().await
}

/// The journal's program, which ends with its caller.
struct Running(Arc<Mutex<Child>>);

impl Drop for Running {
    fn drop(&mut self) {
        // whoever has the lock is already waiting for its end
        if let Ok(mut child) = self.0.try_lock() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Without a journal: the files that services usually write, as upstream looks for them.
async fn of_services(exchange: Exchange, logs: PathBuf, query: &Query) -> io::Result<()> {
    if *query != (Query { services: query.services.clone(), ..Query::default() }) {
        return exchange.refuse(501, "this node has no journal (journalctl): options are not served").await;
    }
    let services = query.services.clone();
    let found = tokio::task::spawn_blocking(move || {
        let candidates = |service: &String| {
            let file = format!("{service}.log");
            [vec![service.clone()], vec![file.clone()], vec![service.clone(), file]]
        };
        services.iter().flat_map(candidates).find_map(|names| match opened(&logs, &names) {
            Ok(Opened::File(file)) => Some(file),
            _ => None,
        })
    });
    match found.await? {
        Some(file) => send_file(exchange, file).await,
        None => {
            let why = format!("this node has no journal (journalctl), and {LOGS} no log of these services");
            exchange.refuse(404, &why).await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet_api::receive;
    use std::fs;
    use std::os::unix::fs::symlink;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// A directory that is removed after the test.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("kedge-node-logs-{name}-{}", std::process::id()));
            fs::create_dir_all(path.join("logs")).unwrap();
            Self(path)
        }

        fn write(&self, name: &str, content: &[u8]) {
            let path = self.0.join("logs").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }

        fn places(&self, script: Option<&str>) -> Places {
            let journalctl = script.map(|script| ["/bin/sh", "-c", script, "sh"].map(str::to_owned).into());
            Places { logs: self.0.join("logs"), journalctl, journal_limit: Duration::from_secs(60) }
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// The whole answer, and the result of serving it.
    async fn asked(places: Places, target: &str) -> (String, io::Result<()>) {
        let (mut caller, stream) = tokio::io::duplex(1024);
        let head = format!("GET {target} HTTP/1.1\r\n\r\n");
        caller.write_all(head.as_bytes()).await.unwrap();
        let serving = async {
            let (request, exchange) = receive(Box::new(stream)).await.unwrap().unwrap();
            let below: Vec<&str> = request.path[1..].iter().map(String::as_str).collect();
            answer_from(&request, exchange, places, &below).await
        };
        let reading = async {
            let mut answer = Vec::new();
            caller.read_to_end(&mut answer).await.unwrap();
            String::from_utf8_lossy(&answer).into_owned()
        };
        let (served, answer) = tokio::join!(serving, reading);
        (answer, served)
    }

    #[tokio::test]
    async fn files_are_read_and_directories_listed() {
        let scratch = Scratch::new("files");
        scratch.write("app/a b<c.log", b"one\ntwo\n");
        scratch.write("syslog", format!("x{}", "é".repeat(10_000)).as_bytes());
        scratch.write("wtmp", b"\0\x01");
        symlink("/etc/passwd", scratch.0.join("logs/link")).unwrap();
        let check = async |target: &str, begin: &str, part: &str| {
            let (answer, _) = asked(scratch.places(None), target).await;
            assert!(answer.starts_with(begin) && answer.contains(part), "{target}: {answer}");
        };
        check("/logs/app/a%20b%3Cc.log", "HTTP/1.1 200 OK\r\nContent-Type: text/plain", "one\ntwo\n").await;
        check("/logs/syslog", "HTTP/1.1 200 OK\r\nContent-Type: text/plain", "\r\n0\r\n\r\n").await;
        check("/logs/wtmp", "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream", "\0").await;
        check("/logs/", "HTTP/1.1 200 ", "<pre>\n<a href=\"app/\">app/</a>\n").await;
        check("/logs/app", "HTTP/1.1 200 ", "<a href=\"a%20b%3Cc.log\">a b&lt;c.log</a>").await;
        check("/logs/link", "HTTP/1.1 403 ", "links are not followed").await;
        check("/logs/../x", "HTTP/1.1 404 ", "no name of a file").await;
        check("/logs/none", "HTTP/1.1 404 ", "No such file").await;
        check("/logs/?query=app/a%20b%3Cc.log", "HTTP/1.1 200 ", "one").await;
    }

    #[tokio::test]
    async fn journal_is_asked_in_its_words() {
        let scratch = Scratch::new("journal");
        let script = "for word; do echo \"[$word]\"; done";
        let target = "/logs/?query=kedge&query=cron%40a&tailLines=5&boot=-1&pattern=a%20%24(b)&sinceTime=1970-01-01T00:00:10Z\
                      &untilTime=1970-01-01T00:01:00Z";
        let (answer, served) = asked(scratch.places(Some(script)), target).await;
        served.unwrap();
        let lines: Vec<&str> = answer.lines().filter(|line| line.starts_with('[')).collect();
        let expect = [
            "[--utc]",
            "[--no-pager]",
            "[--output=short-precise]",
            "[--lines=5]",
            "[--since=@10]",
            "[--until=@60]",
            "[--boot=-1]",
            "[--grep=a $(b)]",
            "[--case-sensitive=false]",
            "[--unit=kedge]",
            "[--unit=cron@a]",
        ];
        assert_eq!(lines, expect);
        let (answer, _) = asked(scratch.places(Some("exit 1")), "/logs/?query=a&pattern=b").await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "nothing matches: {answer}");
        let (answer, _) = asked(scratch.places(Some("echo why >&2; exit 1")), "/logs/?query=a").await;
        assert!(answer.starts_with("HTTP/1.1 500 ") && answer.ends_with("why"), "{answer}");
    }

    #[tokio::test]
    async fn journal_that_ends_early_breaks_the_answer_off() {
        let scratch = Scratch::new("early");
        let (answer, served) = asked(scratch.places(Some("echo one; kill -9 $$")), "/logs/?query=a").await;
        assert!(answer.contains("one\n") && !answer.ends_with("0\r\n\r\n") && served.is_err(), "{answer}");
        let places = Places { journal_limit: Duration::ZERO, ..scratch.places(Some("exec sleep 1000")) };
        let (answer, _) = asked(places, "/logs/?query=a").await;
        assert!(answer.starts_with("HTTP/1.1 500 ") && answer.contains("within 0 s"), "{answer}");
    }

    #[tokio::test]
    async fn services_without_a_journal_have_files() {
        let scratch = Scratch::new("without");
        scratch.write("app.log", b"of app");
        let check = async |target: &str, begin: &str| {
            let (answer, _) = asked(scratch.places(None), target).await;
            assert!(answer.starts_with(begin), "{target}: {answer}");
        };
        check("/logs/?query=app", "HTTP/1.1 200 ").await;
        check("/logs/?query=none", "HTTP/1.1 404 ").await;
        check("/logs/?query=app&tailLines=3", "HTTP/1.1 501 ").await;
    }

    #[tokio::test]
    async fn query_that_makes_no_sense_is_refused() {
        let scratch = Scratch::new("queries");
        for (target, status, part) in [
            ("/logs/?tailLines=3", 400, "beside other options"),
            ("/logs/?query=a&tailLines=-1", 400, "from 0 to 100000"),
            ("/logs/?query=a&tailLines=100001", 400, "from 0 to 100000"),
            ("/logs/?query=a&boot=1", 400, "boot is"),
            ("/logs/?query=a&sinceTime=yesterday", 400, "sinceTime"),
            (
                "/logs/?query=a&sinceTime=2026-11-24T01:00:00Z&untilTime=2026-11-24T00:00:00Z",
                400,
                "untilTime",
            ),
            ("/logs/?query=--all", 400, "no name of a service"),
            ("/logs/?query=a%20b", 400, "no name of a service"),
            ("/logs/?query=a/b&query=c", 400, "is a file"),
            ("/logs/?query=a/b&boot=0", 400, "is a file"),
            ("/logs/?query=../../etc/passwd", 404, "no name of a file"),
            ("/logs/app?query=a", 406, "path not allowed"),
        ] {
            let (answer, _) = asked(scratch.places(Some("echo served")), target).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{target}: {answer}");
            assert!(answer.contains(part), "{target}: {answer}");
        }
    }
}
