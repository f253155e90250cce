//! The files of one run of a container: selects the pod, container and run, and reads its lines in order.
//!
//! Always holds: lines are read in the order in which they were written, each once, also when the files are
//! rotated meanwhile; a file that was removed before it was read is reported. The files:
//! `NAMESPACE_POD_UID/CONTAINER/RUN.log`, and the older `RUN.log.1`, `RUN.log.2`.

use crate::options::LogsOptions;
use std::cell::Cell;
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use kedge_platform::linux::open_regular;

/// Longest line that is read at once: a shim writes at most this much. The rest of a longer one counts as
/// another line.
const LINE_BYTES: u64 = (16 << 10) + 256;
/// How much is read at a time when lines are counted from the end.
const BLOCK_BYTES: u64 = 64 << 10;
/// How often files are opened again because they were rotated meanwhile.
const TRIES: usize = 10;

/// One run of a container.
#[derive(Debug)]
pub(super) struct Run {
    directory: PathBuf,
    number: Cell<u32>,
    /// The run has a file. A run that has written nothing has none, and its number shows with its first line.
    has_begun: Cell<bool>,
    uid: String,
    container: String,
}

impl Run {
    /// Finds the run, of a pod with one of the UIDs `known`, if that is not empty: a pod that may write to
    /// the directory of logs could make a newer directory of the same name.
    pub(super) fn find(logs: &Path, options: &LogsOptions, known: &[String]) -> Result<Run, String> {
        let (namespace, name) = options.pod.split_once('/').unwrap_or(("default", &options.pod));
        let prefix = format!("{namespace}_{name}_");
        let pods = names(logs)?;
        let is_known = |pod: &str| known.is_empty() || known.iter().any(|uid| *uid == pod[prefix.len()..]);
        let of_name = pods.iter().filter(|pod| pod.starts_with(&prefix) && is_known(pod));
        // of several pods of one name the one that wrote last: the others were there before it
        let newest = of_name.max_by_key(|pod| (changed(&logs.join(pod)), pod.len()));
        let Some(pod) = newest else {
            return Err(format!("no pod {namespace}/{name} has logs below {}", logs.display()));
        };
        let pod_directory = logs.join(pod);
        let containers = names_below(&pod_directory)?;
        let container = match (&options.container, containers.as_slice()) {
            (Some(container), all) if all.contains(container) => container.clone(),
            (Some(container), all) => {
                return Err(format!(
                    "pod {namespace}/{name} has no logs of a container {container:?}, only of: {}",
                    listed(all)
                ));
            }
            (None, [only]) => only.clone(),
            (None, all) => {
                return Err(format!(
                    "pod {namespace}/{name} has logs of several containers, choose one with -c: {}",
                    listed(all)
                ));
            }
        };
        let directory = pod_directory.join(&container);
        let runs = runs(&directory)?;
        let number = match (runs.as_slice(), options.previous) {
            ([.., last], false) => Some(*last),
            ([.., before, _], true) => Some(*before),
            (_, true) => {
                return Err(format!(
                    "previous terminated container {container:?} in pod {namespace}/{name} not found"
                ));
            }
            // the run's directory is made when it starts, its file when it writes its first line
            (_, false) => None,
        };
        let uid = pod[prefix.len()..].to_owned();
        let (number, has_begun) = (Cell::new(number.unwrap_or(0)), Cell::new(number.is_some()));
        Ok(Run { directory, number, has_begun, uid, container })
    }

    pub(super) fn uid(&self) -> &str {
        &self.uid
    }

    pub(super) fn container(&self) -> &str {
        &self.container
    }

    pub(super) fn shown(&self) -> String {
        self.path(0).display().to_string()
    }

    /// A later run of the container has begun, or its logs were removed.
    pub(super) fn is_superseded(&self) -> bool {
        match runs(&self.directory) {
            Ok(runs) if self.has_begun.get() => runs.last().is_none_or(|last| *last > self.number.get()),
            Ok(_) => false,
            Err(_) => {
                self.directory.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound)
            }
        }
    }

    /// Looks for the first line of a run that had written nothing.
    fn scan(&self) {
        if !self.has_begun.get()
            && let Some(number) = runs(&self.directory).ok().and_then(|runs| runs.first().copied())
        {
            self.number.set(number);
            self.has_begun.set(true);
        }
    }

    /// The file that is written (0), or one that was written before it.
    fn path(&self, age: u32) -> PathBuf {
        let ending = if age == 0 { String::new() } else { format!(".{age}") };
        self.directory.join(format!("{}.log{ending}", self.number.get()))
    }

    /// # Errors
    /// Its newest file, or the directory of an older one, cannot be read.
    pub(super) fn check(&self) -> Result<(), String> {
        self.open().map(|_| ())
    }

    /// All files, the current one first, as they are at one moment; and why older ones are missing.
    fn open(&self) -> Result<(Vec<Opened>, Vec<String>), String> {
        for _ in 0..TRIES {
            let mut files = Vec::new();
            let mut missing = Vec::new();
            let mut written = None;
            for age in 0.. {
                let path = self.path(age);
                match open_regular(&path).and_then(|file| Ok((file.metadata()?.ino(), file))) {
                    Ok(file) => {
                        written = written.or((age == 0).then_some(file.0));
                        files.push(file);
                    }
                    // a rotation has moved it, and perhaps a full disk prevented the next file
                    Err(error) if error.kind() == ErrorKind::NotFound && age == 0 => {}
                    Err(error) if error.kind() == ErrorKind::NotFound => break,
                    // the files beside it may be readable; on a dead disk none is, and not even its name is
                    // found
                    Err(error) if age > 0 && path.symlink_metadata().is_ok() => {
                        missing.push(cannot_read(&path, &error));
                    }
                    Err(error) => return Err(cannot_read(&path, &error)),
                }
            }
            // a rotation renames each file to the next number
            let first = fs::symlink_metadata(self.path(0)).map(|found| found.ino()).ok();
            if first == written {
                return Ok((files, missing));
            }
        }
        Err(format!("{} is rotated all the time", self.shown()))
    }
}

fn names(directory: &Path) -> Result<Vec<String>, String> {
    let failed = |error| cannot_read(directory, &error);
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        names.extend(entry.map_err(failed)?.file_name().into_string());
    }
    kedge_api::sort::sort(&mut names);
    Ok(names)
}

/// Like [`names`], for a directory whose place a pod may be able to write to (a volume of the machine's
/// logs): no link is followed.
fn names_below(directory: &Path) -> Result<Vec<String>, String> {
    match directory.symlink_metadata() {
        Ok(found) if !found.is_dir() => {
            Err(cannot_read(directory, &io::Error::from(ErrorKind::NotADirectory)))
        }
        _ => names(directory),
    }
}

/// The numbers of the container's runs, in order.
fn runs(container: &Path) -> Result<Vec<u32>, String> {
    let names = names_below(container)?;
    let mut runs: Vec<u32> =
        names.iter().filter_map(|name| name.split_once(".log")?.0.parse().ok()).collect();
    runs.sort_unstable();
    runs.dedup();
    Ok(runs)
}

/// When one of the pod's containers last began a file.
fn changed(pod: &Path) -> Option<SystemTime> {
    let containers = names_below(pod).ok()?;
    containers.iter().filter_map(|name| fs::symlink_metadata(pod.join(name)).ok()?.modified().ok()).max()
}

/// A file and its inode.
type Opened = (u64, File);

/// The lines of a run.
pub(super) struct Log<'a> {
    run: &'a Run,
    /// The files still to be read, the oldest first; the last one is the current file.
    files: VecDeque<Opened>,
    reader: Option<(u64, BufReader<File>)>,
    line: Vec<u8>,
}

impl<'a> Log<'a> {
    /// From the beginning, or from the last `tail` lines on.
    pub(super) fn open(run: &'a Run, tail: Option<u64>) -> Result<Log<'a>, String> {
        let mut files = VecDeque::new();
        let mut left = tail;
        let (found, missing) = run.open()?;
        for why in missing {
            eprintln!("kedge: lines are missing here: {why}");
        }
        for (inode, mut file) in found {
            if left == Some(0) && !files.is_empty() {
                break;
            }
            if let Some(lines) = &mut left {
                let found = seek_to_tail(&mut file, *lines);
                *lines -= found.map_err(|error| cannot_read(&run.path(0), &error))?;
            }
            files.push_front((inode, file));
        }
        Ok(Log { run, files, reader: None, line: Vec::new() })
    }

    /// The next line, without its end; `None`: no whole line is there now.
    pub(super) fn line(&mut self) -> io::Result<Option<&[u8]>> {
        if self.line.ends_with(b"\n") {
            self.line.clear();
        }
        loop {
            if self.reader.is_none() {
                let Some((inode, file)) = self.files.pop_front() else { return Ok(None) };
                self.reader = Some((inode, BufReader::new(file)));
            }
            let Some((_, reader)) = &mut self.reader else { return Ok(None) };
            let room = LINE_BYTES - self.line.len() as u64;
            reader.by_ref().take(room).read_until(b'\n', &mut self.line)?;
            if self.line.ends_with(b"\n") {
                return Ok(Some(&self.line[..self.line.len() - 1]));
            }
            if self.line.len() as u64 == LINE_BYTES {
                self.line.push(b'\n');
                return Ok(Some(&self.line[..self.line.len() - 1]));
            }
            if self.files.is_empty() {
                return Ok(None);
            }
            // a file that is no longer written ends with a whole line
            self.reader = None;
            self.line.clear();
        }
    }

    /// Continues with the files that were begun since; false if there are none.
    pub(super) fn advance(&mut self) -> Result<bool, String> {
        self.run.scan();
        let current = self.reader.as_ref().map(|(inode, _)| *inode);
        let is_same = |inode: u64| Some(inode) == current;
        match fs::metadata(self.run.path(0)) {
            Ok(found) if is_same(found.ino()) => return self.restart_if_shorter(found.len()),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(cannot_read(&self.run.path(0), &error)),
            Ok(_) => {}
        }
        // older unreadable ones were reported when the log was opened
        let (newer, _) = self.run.open()?;
        let known = newer.iter().position(|(inode, _)| is_same(*inode));
        if known.is_none() && current.is_some() {
            eprintln!("kedge: lines are missing here: the file was rotated away before it was read");
        }
        let since = known.unwrap_or(newer.len());
        self.files = newer.into_iter().take(since).rev().collect();
        Ok(!self.files.is_empty())
    }
}

impl Log<'_> {
    /// Continues at the begin of a file that was emptied, or cut, since it was read; false if it was not.
    fn restart_if_shorter(&mut self, length: u64) -> Result<bool, String> {
        let Some((_, reader)) = &mut self.reader else { return Ok(false) };
        let failed = |error| cannot_read(&self.run.path(0), &error);
        if length >= reader.stream_position().map_err(failed)? {
            return Ok(false);
        }
        eprintln!("kedge: lines may be missing here: the file was cut");
        self.line.clear();
        reader.rewind().map_err(failed)?;
        Ok(true)
    }
}

/// Moves to the begin of the last `lines` lines; returns how many there are, at most that many.
fn seek_to_tail(file: &mut File, lines: u64) -> io::Result<u64> {
    let mut end = file.seek(SeekFrom::End(0))?;
    if lines == 0 {
        return Ok(0);
    }
    let mut found = 0;
    let mut block = vec![0; BLOCK_BYTES as usize];
    while end > 0 {
        let length = end.min(BLOCK_BYTES);
        let start = end - length;
        file.seek(SeekFrom::Start(start))?;
        let block = &mut block[..length as usize];
        file.read_exact(block)?;
        for (at, _) in block.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n') {
            // the end of the line before the first wanted one
            if found == lines {
                file.seek(SeekFrom::Start(start + at as u64 + 1))?;
                return Ok(found);
            }
            found += 1;
        }
        end = start;
    }
    file.rewind()?;
    Ok(found)
}

/// For messages.
pub(crate) fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

pub(crate) fn cannot_read(path: &Path, error: &io::Error) -> String {
    format!("cannot read {}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::{self, Command, PodCommand};
    use kedge_rig::Scratch;
    use std::ffi::OsString;

    fn run(scratch: &Scratch) -> Run {
        Run {
            directory: scratch.path().to_path_buf(),
            number: Cell::new(0),
            has_begun: Cell::new(true),
            uid: "u".to_owned(),
            container: "c".to_owned(),
        }
    }

    fn read(log: &mut Log<'_>) -> Vec<String> {
        let mut lines = Vec::new();
        while let Some(line) = log.line().unwrap() {
            lines.push(String::from_utf8(line.to_vec()).unwrap());
        }
        lines
    }

    #[test]
    fn newer_directory_of_another_uid_is_no_log_of_the_pod() {
        let scratch = Scratch::new("log-forged").unwrap();
        for (uid, text) in [("true", "of the pod\n"), ("zz-forged", "forged\n")] {
            let directory = scratch.path().join(format!("n_p_{uid}/c"));
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("0.log"), text).unwrap();
        }
        let Ok(Command::OfPods(_, PodCommand::Logs(options))) =
            flags::parse(["kedge", "logs", "n/p"].map(OsString::from))
        else {
            panic!("the flags are read")
        };
        let uid = |known: &[&str]| {
            let known: Vec<String> = known.iter().map(|uid| (*uid).to_owned()).collect();
            Run::find(scratch.path(), &options, &known).map(|run| run.uid().to_owned())
        };
        assert_eq!(uid(&["true"]).as_deref(), Ok("true"));
        assert_eq!(uid(&[]).as_deref(), Ok("zz-forged"), "no agent knows: the one that wrote last");
        assert!(uid(&["third"]).unwrap_err().contains("no pod n/p has logs"));
    }

    #[test]
    fn container_that_has_written_nothing_has_an_empty_log() {
        let scratch = Scratch::new("log-silent").unwrap();
        let directory = scratch.path().join("n_p_u/c");
        fs::create_dir_all(&directory).unwrap();
        let find = |line: &str| {
            let Ok(Command::OfPods(_, PodCommand::Logs(options))) =
                flags::parse(line.split(' ').map(OsString::from))
            else {
                panic!("{line}")
            };
            Run::find(scratch.path(), &options, &[])
        };
        assert!(find("kedge logs n/p -p").unwrap_err().contains("previous terminated container"));
        let run = find("kedge logs n/p -f").unwrap();
        let mut log = Log::open(&run, None).unwrap();
        assert!(read(&mut log).is_empty() && !log.advance().unwrap() && !run.is_superseded());
        // two runs before it wrote nothing, either
        fs::write(directory.join("2.log"), "a\n").unwrap();
        assert!(!run.is_superseded());
        assert!(log.advance().unwrap());
        assert_eq!(read(&mut log), ["a"]);
        assert!(!run.is_superseded());
        fs::write(directory.join("3.log"), "b\n").unwrap();
        assert!(run.is_superseded());
    }

    #[test]
    fn tail_counts_across_rotated_files() {
        let scratch = Scratch::new("log-tail").unwrap();
        scratch.write("0.log.2", "a\nb\n");
        scratch.write("0.log.1", "c\n");
        scratch.write("0.log", "d\ne\n");
        let run = run(&scratch);
        let all = ["a", "b", "c", "d", "e"];
        for tail in 0..7 {
            let found = read(&mut Log::open(&run, Some(tail)).unwrap());
            assert_eq!(found, all[5_usize.saturating_sub(tail as usize)..], "{tail}");
        }
        assert_eq!(read(&mut Log::open(&run, None).unwrap()), all);
    }

    #[test]
    fn tail_counts_across_blocks() {
        let scratch = Scratch::new("log-blocks").unwrap();
        let lines: Vec<String> = (0..20_000).map(|n| format!("line {n}")).collect();
        scratch.write("0.log", lines.join("\n") + "\n");
        let run = run(&scratch);
        for tail in [1, 5_000, 19_999, 20_000, 30_000] {
            let found = read(&mut Log::open(&run, Some(tail)).unwrap());
            assert_eq!(found, lines[20_000_usize.saturating_sub(tail as usize)..], "{tail}");
        }
    }

    #[test]
    fn rotation_while_following_loses_and_repeats_nothing() {
        let scratch = Scratch::new("log-follow").unwrap();
        scratch.write("0.log", "a\nb");
        let run = run(&scratch);
        let mut log = Log::open(&run, Some(1)).unwrap();
        assert_eq!(read(&mut log), ["a"], "a line without an end is not whole");
        assert!(!log.advance().unwrap());
        let path = |name: &str| scratch.path().join(name);
        let append = |name: &str, text: &str| {
            let old = fs::read_to_string(path(name)).unwrap_or_default();
            // in place: another file has another inode
            let mut file =
                fs::OpenOptions::new().write(true).create(true).truncate(false).open(path(name)).unwrap();
            std::io::Write::write_all(&mut file, (old + text).as_bytes()).unwrap();
        };
        append("0.log", "c\n");
        // rotated twice between two looks
        fs::rename(path("0.log"), path("0.log.2")).unwrap();
        scratch.write("0.log.1", "d\n");
        append("0.log", "e\n");
        assert_eq!(read(&mut log), ["bc"]);
        assert!(log.advance().unwrap());
        assert_eq!(read(&mut log), ["d", "e"]);
        assert!(!log.advance().unwrap());
        append("0.log", "f\n");
        assert_eq!(read(&mut log), ["f"]);
    }

    #[test]
    fn followed_file_that_is_truncated_is_read_from_the_start() {
        let scratch = Scratch::new("log-cut").unwrap();
        scratch.write("0.log", "a\nb\nc");
        let run = run(&scratch);
        let mut log = Log::open(&run, None).unwrap();
        assert_eq!(read(&mut log), ["a", "b"]);
        let write = |text: &str| fs::write(scratch.path().join("0.log"), text).unwrap();
        write("d\n");
        assert!(log.advance().unwrap());
        assert_eq!(read(&mut log), ["d"]);
        assert!(!log.advance().unwrap());
        write("");
        assert!(log.advance().unwrap());
        assert!(read(&mut log).is_empty() && !log.advance().unwrap());
        write("e\n");
        assert_eq!(read(&mut log), ["e"]);
    }

    #[test]
    fn log_without_its_newest_file_is_not_empty() {
        let scratch = Scratch::new("log-rotated").unwrap();
        scratch.write("0.log.1", "a\n");
        scratch.write("0.log.2", "b\n");
        let run = run(&scratch);
        let mut log = Log::open(&run, None).unwrap();
        assert_eq!(read(&mut log), ["b", "a"]);
        assert!(!log.advance().unwrap());
        scratch.write("0.log", "c\n");
        assert!(log.advance().unwrap());
        assert_eq!(read(&mut log), ["c"]);
        assert_eq!(runs(scratch.path()), Ok(vec![0]));
    }

    #[test]
    fn links_and_pipes_in_place_of_logs_are_not_read() {
        let scratch = Scratch::new("log-links").unwrap();
        scratch.write("secret/0.log", "the key of the node\n");
        let path = |name: &str| scratch.path().join(name);
        fs::create_dir(path("c")).unwrap();
        std::os::unix::fs::symlink(path("secret/0.log"), path("c/0.log")).unwrap();
        assert_eq!(runs(&path("c")), Ok(vec![0]));
        let run = Run { directory: path("c"), ..run(&scratch) };
        let refused = |run: &Run| Log::open(run, None).err().expect("it is no log");
        assert!(refused(&run).contains("not a regular file"), "{}", refused(&run));
        fs::create_dir(path("c/0.log.1")).unwrap();
        fs::write(path("c/0.log.2"), "a\n").unwrap();
        assert!(refused(&run).contains("0.log: not a regular file"));
        fs::remove_file(path("c/0.log")).unwrap();
        fs::write(path("c/0.log"), "b\n").unwrap();
        assert_eq!(read(&mut Log::open(&run, None).unwrap()), ["a", "b"], "an older one costs no other");
        fs::remove_file(path("c/0.log")).unwrap();
        // opening a pipe like a file would wait for a writer
        assert!(std::process::Command::new("mkfifo").arg(path("c/0.log")).status().unwrap().success());
        assert!(refused(&run).contains("not a regular file"), "{}", refused(&run));
        std::os::unix::fs::symlink(path("secret"), path("d")).unwrap();
        assert!(runs(&path("d")).unwrap_err().contains("not a directory"));
        // a followed log ends with its directory, whether or not the container is known
        assert!(!run.is_superseded());
        fs::remove_dir_all(path("c")).unwrap();
        assert!(run.is_superseded());
    }

    #[test]
    fn pod_container_and_run_are_chosen_or_named() {
        let scratch = Scratch::new("log-find").unwrap();
        let write = |name: &str| scratch.write(name, "2026-11-23T04:00:00.000000000Z stdout F x\n");
        write("default_web_1111/app/0.log");
        write("default_web_1111/app/2.log");
        write("default_web_1111/app/10.log");
        write("default_web_1111/app/10.log.1");
        write("default_web-2_3333/app/0.log");
        write("edge_two_4444/app/0.log");
        write("edge_two_4444/side/0.log");
        let find = |pod: &str, container: Option<&str>, previous: bool| {
            let words = ["kedge", "logs", pod];
            let Ok(Command::OfPods(_, PodCommand::Logs(mut options))) =
                crate::flags::parse(words.map(std::ffi::OsString::from))
            else {
                panic!("{pod}")
            };
            options.container = container.map(str::to_owned);
            options.previous = previous;
            Run::find(scratch.path(), &options, &[]).map(|run| (run.uid, run.container, run.number.get()))
        };
        assert_eq!(find("web", None, false), Ok(("1111".into(), "app".into(), 10)));
        assert_eq!(find("default/web", Some("app"), true), Ok(("1111".into(), "app".into(), 2)));
        assert_eq!(find("edge/two", Some("side"), false), Ok(("4444".into(), "side".into(), 0)));
        let refused = |pod, container, previous, expect: &str| {
            let why = find(pod, container, previous).unwrap_err();
            assert!(why.contains(expect), "{why}");
        };
        refused("two", None, false, "no pod default/two has logs");
        refused("edge/two", None, false, "choose one with -c: app, side");
        refused("edge/two", Some("x"), false, "only of: app, side");
        refused("web-2", None, true, "previous terminated container");
    }
}
