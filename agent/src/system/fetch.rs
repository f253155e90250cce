//! Fetches the parts of an update: first the manifest, then the index, then the bytes that neither the
//! running slot nor an earlier try has.
//!
//! Always holds: nothing is used before its digest was right. Of a root with an index each chunk is checked
//! as it arrives, and a right one is never fetched again, also after a power cut. The bytes that are read of
//! any answer, the time between two of them, and the time for all are bounded. A server without ranges sends
//! its whole file, from which the missing parts are picked. Memory is that of two indexes and one chunk.
//!
//! On the disk, in a directory by the manifest's digest: `manifest`, `index`, `vmlinuz`, `initrd`, `program`
//! (each grows to its size), and `root`. That is a file with holes in which each chunk has its place. No list
//! of whole chunks is kept: a start reads them and compares, so no order of writes matters.
//!
//! Leaves to others: whether the update is taken (`judge`), when to fetch, and writing the slot (`content`).

use crate::images::ranges::{Remote, Stream, Web};
use crate::images::{PullError, Sort};
use kedge_core::Digest;
use kedge_core::kubelet::wanted::{Pinned, Source};
use kedge_core::slot::chunks::{self, CHUNK_BYTES, Index, Local};
use kedge_core::slot::manifest::{INDEX, MANIFEST_BYTES, Manifest, Member, ROOT};
use kedge_platform::slots::digest_of;
use ring::digest::{SHA256, digest};
use std::cell::Cell;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes read from the network at a time: more would be lost when a connection breaks.
const PIECE_BYTES: usize = 4 * 1024;
/// A try that brought less than this counts as one of [`MOST_RESUMES`].
const PROGRESS_BYTES: u64 = 256 * 1024;
/// How often one order is resumed after a connection broke, each time after it got further.
const MOST_RESUMES: u32 = 20;
/// A fetch that keeps less than this in [`SLOWEST_TIME`] is given up for now.
const SLOWEST_BYTES: u64 = 64 * 1024;
const SLOWEST_TIME: Duration = Duration::from_secs(300);
/// Longest sleep between two looks whether the fetch is still wanted.
const NAP: Duration = Duration::from_millis(200);
/// Bytes after which a file is made durable: a power cut costs no more.
const SYNC_BYTES: u64 = 4 << 20;

/// The running slot.
#[derive(Debug, Clone)]
pub(crate) struct Running {
    /// Its folder on the EFI partition.
    pub(crate) folder: PathBuf,
    /// The device of its root.
    pub(crate) root: PathBuf,
}

/// How an order ended that did not succeed.
#[derive(Debug)]
pub(crate) enum Failed {
    /// It may succeed later.
    Again(String),
    /// It never will: a word, and a text for people.
    Refused(&'static str, String),
}

impl From<PullError> for Failed {
    fn from(error: PullError) -> Self {
        Self::Again(error.text)
    }
}

/// Judges the manifest's block.
pub(crate) type Judge<'a> = &'a dyn Fn(&[u8]) -> Result<Manifest, Failed>;

/// A part of the update that has a digest of its own.
#[derive(Clone, Copy)]
struct Part<'a> {
    /// Its member's digest: the name of the blob.
    member: &'a str,
    /// Where the member begins in the update.
    offset: u64,
    /// Where the part begins in the member.
    from: u64,
    bytes: u64,
}

/// How fast it goes, over all connections.
pub(crate) struct Meter {
    rate: Option<u64>,
    /// When the next bytes may be read.
    next: Instant,
    since: Instant,
    /// Bytes kept since then.
    kept: u64,
    /// Bytes kept at all.
    all: u64,
    /// Bytes read from the network.
    read: u64,
}

impl Meter {
    fn new(rate: Option<u64>) -> Self {
        let now = Instant::now();
        Self { rate, next: now, since: now, kept: 0, all: 0, read: 0 }
    }

    /// Waits as long as the rate demands.
    fn pass(&mut self, bytes: usize, web: &Web) -> Result<(), PullError> {
        self.read = self.read.saturating_add(bytes as u64);
        if let Some(rate) = self.rate {
            let cost = Duration::from_micros((bytes as u64).saturating_mul(1_000_000) / rate.max(1));
            self.next = self.next.max(Instant::now()) + cost;
        }
        loop {
            if web.is_cancelled() {
                return Err(PullError::new(Sort::Cancelled, "it is not wanted any more"));
            }
            let left = self.next.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            thread::sleep(left.min(NAP));
        }
        if self.since.elapsed() < SLOWEST_TIME {
            return Ok(());
        }
        if self.kept < SLOWEST_BYTES {
            let text = format!("fewer than {SLOWEST_BYTES} useful bytes in {} s", SLOWEST_TIME.as_secs());
            return Err(PullError::new(Sort::BrokeOff, text));
        }
        (self.since, self.kept) = (Instant::now(), 0);
        Ok(())
    }

    fn keep(&mut self, bytes: u64) {
        self.kept = self.kept.saturating_add(bytes);
        self.all = self.all.saturating_add(bytes);
    }
}

/// The connection to one server.
struct Line<'a> {
    remote: Remote<'a>,
    open: Option<Open>,
}

struct Open {
    /// The blob; empty for a file.
    name: String,
    at: u64,
    /// The first byte that it does not have; `None`: it has all.
    end: Option<u64>,
    body: Box<dyn Read>,
}

impl<'a> Line<'a> {
    fn new(remote: Remote<'a>) -> Self {
        Self { remote, open: None }
    }

    /// Reads bytes of a part from `done` on; one request asks for as many of the next bytes as belong to it.
    fn read(
        &mut self,
        part: Part<'_>,
        done: u64,
        buffer: &mut [u8],
        web: &Web,
        meter: &mut Meter,
    ) -> Result<(), PullError> {
        let read = self.read_some(part, done, buffer, web, meter);
        if read.is_err() {
            self.open = None;
        }
        read
    }

    fn read_some(
        &mut self,
        part: Part<'_>,
        done: u64,
        buffer: &mut [u8],
        web: &Web,
        meter: &mut Meter,
    ) -> Result<(), PullError> {
        let is_file = self.remote.is_file();
        let (name, base) = if is_file { ("", part.offset) } else { (part.member, 0) };
        let begin = base.saturating_add(part.from);
        let (from, end) = (begin.saturating_add(done), begin.saturating_add(part.bytes));
        let is_usable = |open: &Open| {
            let has_it = match open.end {
                None => open.at <= from,
                Some(end) => open.at == from && from.saturating_add(buffer.len() as u64) <= end,
            };
            open.name == name && has_it
        };
        if !self.open.as_ref().is_some_and(is_usable) {
            // the old connection is not kept while a new one is made
            self.open = None;
            let stream = self.remote.open(part.member, from, end.saturating_sub(1))?;
            let wrong = || PullError::new(Sort::Bad, "the server answers with other bytes than asked for");
            let Stream { at, is_whole, body } = stream.ok_or_else(wrong)?;
            let end = (!is_whole).then_some(end);
            self.open = Some(Open { name: name.to_owned(), at, end, body });
        }
        let Some(open) = &mut self.open else { return Ok(()) };
        let mut skipped = [0; 4096];
        while open.at < from {
            let most = usize::try_from(from - open.at).unwrap_or(usize::MAX).min(skipped.len());
            open.fill(&mut skipped[..most], web, meter)?;
            // not too slow: there is no other way to the part
            meter.kept = meter.kept.saturating_add(most as u64);
        }
        buffer.chunks_mut(PIECE_BYTES).try_for_each(|piece| open.fill(piece, web, meter))
    }
}

impl Open {
    fn fill(&mut self, mut buffer: &mut [u8], web: &Web, meter: &mut Meter) -> Result<(), PullError> {
        while !buffer.is_empty() {
            match self.body.read(buffer) {
                Ok(0) => return Err(PullError::new(Sort::Unreachable, "the answer ends too early")),
                Ok(count) => {
                    self.at += count as u64;
                    meter.pass(count, web)?;
                    buffer = &mut buffer[count..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(PullError::new(Sort::Unreachable, format!("broke off: {error}")));
                }
            }
        }
        Ok(())
    }
}

/// The parts of one update, and where they come from.
pub(crate) struct Fetcher<'a> {
    pub(crate) web: &'a Web,
    pub(crate) wanted: &'a Pinned,
    /// The directory for its pieces.
    pub(crate) pieces: PathBuf,
    /// `None`: a program, or an image before the first index.
    pub(crate) running: Option<Running>,
    pub(crate) rate: Option<u64>,
    /// Bytes that the disk has room for.
    pub(crate) room: &'a dyn Fn() -> u64,
    /// Told the percentage.
    pub(crate) progress: &'a dyn Fn(u8),
    /// Bytes that servers have sent.
    pub(crate) read: Cell<u64>,
}

/// An update whose parts are here, or can be had.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) manifest: Manifest,
    /// There was no room: missing bytes come from the server while the slot is written.
    pub(crate) is_straight: bool,
}

/// Chunks of the wanted root, and which of them are missing.
struct Missing {
    index: Vec<u8>,
    /// By the chunk's number.
    chunks: Vec<bool>,
}

fn disk(path: &Path) -> impl Fn(io::Error) -> PullError {
    move |error| PullError::new(Sort::Disk, format!("{}: {error}", path.display()))
}

impl Fetcher<'_> {
    fn remotes(&self) -> Result<Vec<Remote<'_>>, PullError> {
        match &self.wanted.source {
            Source::Url(url) => self.web.file(url).map(|remote| vec![remote]),
            Source::Image(image) => self.web.registries(image),
        }
    }

    /// Fetches all that is missing.
    pub(crate) fn fetch(&self, judge: Judge<'_>) -> Result<Fetched, Failed> {
        fs::create_dir_all(&self.pieces).map_err(disk(&self.pieces))?;
        let mut meter = Meter::new(self.rate);
        let (mut failed, mut missing) = (String::new(), None);
        for remote in self.remotes()? {
            let mut line = Line::new(remote);
            let mut resumes = 0;
            loop {
                let before = meter.all;
                let passed = self.pass(&mut line, &mut meter, judge, &mut missing);
                self.read.set(meter.read);
                let error = match passed {
                    Ok(Ok(fetched)) => return Ok(fetched),
                    _ if self.web.is_cancelled() => {
                        return Err(Failed::Again("it is not wanted any more".to_owned()));
                    }
                    Ok(Err(error)) => error,
                    Err(failed) => return Err(failed),
                };
                let gained = meter.all - before;
                resumes += u32::from(gained < PROGRESS_BYTES);
                if error.sort == Sort::Unreachable && gained > 0 && resumes <= MOST_RESUMES {
                    continue;
                }
                if !failed.is_empty() {
                    failed.push_str("; ");
                }
                failed.push_str(&error.text);
                if error.is_final() {
                    return Err(Failed::Again(failed));
                }
                break;
            }
        }
        Err(Failed::Again(failed))
    }

    /// One try with one server; an error of the server is the inner one.
    fn pass(
        &self,
        line: &mut Line<'_>,
        meter: &mut Meter,
        judge: Judge<'_>,
        missing: &mut Option<Missing>,
    ) -> Result<Result<Fetched, PullError>, Failed> {
        let block = match self.block(line, meter) {
            Ok(block) => block,
            Err(error) => return Ok(Err(error)),
        };
        let manifest = judge(&block)?;
        Ok(self.members(line, meter, &manifest, missing).map(|is_straight| Fetched { manifest, is_straight }))
    }

    /// The manifest's block; it has the wanted digest.
    fn block(&self, line: &mut Line<'_>, meter: &mut Meter) -> Result<Vec<u8>, PullError> {
        let name = self.wanted.digest.to_string();
        let path = self.pieces.join("manifest");
        let is_it = |block: &[u8]| Digest::of(block) == self.wanted.digest;
        if let Some(block) = fs::read(&path).ok().filter(|block| is_it(block)) {
            return Ok(block);
        }
        let mut block = vec![0; MANIFEST_BYTES];
        let part = Part { member: &name, offset: 0, from: 0, bytes: MANIFEST_BYTES as u64 };
        line.read(part, 0, &mut block, self.web, meter)?;
        if !is_it(&block) {
            let why = "the server's manifest is not the one that the configuration names";
            return Err(PullError::new(Sort::Bad, why));
        }
        meter.keep(block.len() as u64);
        fs::write(&path, &block).map_err(disk(&path))?;
        Ok(block)
    }

    /// Returns whether the room is too small for all of it.
    fn members(
        &self,
        line: &mut Line<'_>,
        meter: &mut Meter,
        manifest: &Manifest,
        missing: &mut Option<Missing>,
    ) -> Result<bool, PullError> {
        let report = Cell::new(u8::MAX);
        if let Some(index) = manifest.member(INDEX) {
            if index.bytes > chunks::INDEX_BYTES as u64 {
                let why = format!("the index has {} bytes, at most {}", index.bytes, chunks::INDEX_BYTES);
                return Err(PullError::new(Sort::Bad, why));
            }
            self.member(line, meter, manifest, index, &mut |_| {})?;
        }
        if missing.is_none()
            && let Some(root) = manifest.member(ROOT)
        {
            *missing = self.missing(manifest, root)?;
        }
        let wholes: Vec<&Member> = manifest
            .members
            .iter()
            .filter(|member| member.key != INDEX && (member.key != ROOT || missing.is_none()))
            .filter(|member| self.place(member).is_none())
            .collect();
        let have =
            |member: &Member| fs::metadata(self.pieces.join(member.key)).map_or(0, |found| found.len());
        let mut left = wholes
            .iter()
            .fold(0, |sum: u64, member| sum.saturating_add(member.bytes.saturating_sub(have(member))));
        if let Some(missing) = missing {
            left = left.saturating_add(missing.bytes());
        }
        if left > (self.room)() {
            return Ok(true);
        }
        let begun = left;
        let mut count = |bytes: u64| {
            left = left.saturating_sub(bytes);
            let percent = 100 - u8::try_from(left.saturating_mul(100) / begun.max(1)).unwrap_or(100).min(100);
            if report.replace(percent) != percent {
                (self.progress)(percent);
            }
        };
        count(0);
        for member in wholes {
            self.member(line, meter, manifest, member, &mut count)?;
        }
        if let (Some(root), Some(missing)) = (manifest.member(ROOT), missing) {
            self.root(line, meter, manifest, root, missing, &mut count)?;
        }
        File::open(&self.pieces).and_then(|folder| folder.sync_all()).map_err(disk(&self.pieces))?;
        Ok(false)
    }

    /// A file that has this member's content: its piece, or the running slot's.
    fn place(&self, member: &Member) -> Option<PathBuf> {
        let own = self.pieces.join(member.key);
        let others = self.running.as_ref().map(|running| running.folder.join(member.key));
        let is_it = |path: &PathBuf| {
            let file = File::open(path).ok()?;
            let is_size = file.metadata().ok()?.len() == member.bytes;
            (is_size && digest_of(file, member.bytes).ok()? == member.digest).then_some(())
        };
        [Some(own), others].into_iter().flatten().find(|path| is_it(path).is_some())
    }

    /// Fetches a member as a whole, from where an earlier try ended.
    fn member(
        &self,
        line: &mut Line<'_>,
        meter: &mut Meter,
        manifest: &Manifest,
        member: &Member,
        count: &mut dyn FnMut(u64),
    ) -> Result<(), PullError> {
        if self.place(member).is_some() {
            return Ok(());
        }
        let path = self.pieces.join(member.key);
        let failed = disk(&path);
        let mut file = OpenOptions::new().append(true).create(true).open(&path).map_err(&failed)?;
        let mut done = file.metadata().map_err(&failed)?.len();
        if done >= member.bytes {
            // whole, and another content
            file.set_len(0).map_err(&failed)?;
            done = 0;
        }
        let began = done;
        let offset = manifest.offset(member.key).unwrap_or_default();
        let part = Part { member: &member.digest, offset, from: 0, bytes: member.bytes };
        let mut buffer = vec![0; PIECE_BYTES];
        let mut unsynced = 0;
        while done < member.bytes {
            let most = usize::try_from(member.bytes - done).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
            line.read(part, done, &mut buffer[..most], self.web, meter)?;
            file.write_all(&buffer[..most]).map_err(&failed)?;
            done += most as u64;
            unsynced += most as u64;
            meter.keep(most as u64);
            count(most as u64);
            if unsynced >= SYNC_BYTES {
                unsynced = 0;
                file.sync_data().map_err(&failed)?;
            }
        }
        file.sync_all().map_err(&failed)?;
        if self.place(member).is_some() {
            return Ok(());
        }
        file.set_len(0).map_err(&failed)?;
        let text = format!("{} has another content than its manifest names", member.key);
        // the fault may be in the bytes of an earlier try
        Err(PullError::new(if began > 0 { Sort::Unreachable } else { Sort::Bad }, text))
    }

    /// The chunks that neither the running root nor an earlier try has; `None`: the root has no index.
    fn missing(&self, manifest: &Manifest, root: &Member) -> Result<Option<Missing>, PullError> {
        let Some(member) = manifest.member(INDEX) else { return Ok(None) };
        let path = self.place(member).unwrap_or_else(|| self.pieces.join(INDEX));
        let bytes = fs::read(&path).map_err(disk(&path))?;
        let bad = |why: String| PullError::new(Sort::Bad, why);
        let index = Index::parse(&bytes, root.bytes).map_err(bad)?;
        let sources = Sources::open(self);
        let mut chunks = Vec::with_capacity(index.len());
        let mut buffer = vec![0; CHUNK_BYTES];
        sources.runs(index, &mut |number, at, local| {
            let Some((bytes, digest)) = index.chunk(number) else { return };
            let chunk = &mut buffer[..bytes as usize];
            chunks.push(!sources.read(chunk, digest, at, local));
        });
        Ok(Some(Missing { index: bytes, chunks }))
    }

    /// Fetches the missing chunks: neighbours in one request.
    fn root(
        &self,
        line: &mut Line<'_>,
        meter: &mut Meter,
        manifest: &Manifest,
        root: &Member,
        missing: &mut Missing,
        count: &mut dyn FnMut(u64),
    ) -> Result<(), PullError> {
        let path = self.pieces.join(ROOT);
        let failed = disk(&path);
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).open(&path).map_err(&failed)?;
        let Missing { index, chunks } = missing;
        let index = Index::parse(index, root.bytes).map_err(|why| PullError::new(Sort::Bad, why))?;
        let offset = manifest.offset(ROOT).unwrap_or_default();
        let (mut at, mut number, mut unsynced) = (0, 0, 0);
        let mut buffer = vec![0; CHUNK_BYTES];
        while let Some((bytes, digest)) = index.chunk(number) {
            let bytes = u64::from(bytes);
            if chunks.get(number) == Some(&true) {
                let run = (number..).map_while(|next| {
                    let is_missing = chunks.get(next) == Some(&true);
                    index.chunk(next).filter(|_| is_missing).map(|(bytes, _)| u64::from(bytes))
                });
                let part = Part { member: &root.digest, offset, from: at, bytes: run.sum() };
                let chunk = &mut buffer[..bytes as usize];
                line.read(part, 0, chunk, self.web, meter)?;
                if !is_right(chunk, digest) {
                    let text = format!("the bytes from {at} on of {ROOT} are not those of its index");
                    return Err(PullError::new(Sort::Bad, text));
                }
                file.write_all_at(chunk, at).map_err(&failed)?;
                chunks[number] = false;
                meter.keep(bytes);
                count(bytes);
                unsynced += bytes;
                if unsynced >= SYNC_BYTES {
                    unsynced = 0;
                    file.sync_data().map_err(&failed)?;
                }
            }
            at += bytes;
            number += 1;
        }
        file.sync_all().map_err(&failed)
    }
}

impl Missing {
    fn bytes(&self) -> u64 {
        // the index was parsed before
        let entries = self.index.get(chunks::FORMAT.len()..).unwrap_or_default();
        let lengths = entries.chunks(chunks::ENTRY_BYTES).zip(&self.chunks);
        let missing = lengths.filter(|(_, is_missing)| **is_missing);
        missing
            .map(|(entry, _)| match entry {
                [low, high, ..] => u64::from(u16::from_le_bytes([*low, *high])) + 1,
                _ => 0,
            })
            .sum()
    }
}

/// Where chunks of the root are on this machine.
struct Sources {
    held: Option<File>,
    running: Option<File>,
    /// Of the running root, and its size.
    index: Option<(Vec<u8>, u64)>,
}

impl Sources {
    fn open(fetcher: &Fetcher<'_>) -> Self {
        let held = File::open(fetcher.pieces.join(ROOT)).ok();
        let Some(Running { folder, root }) = &fetcher.running else {
            return Self { held, running: None, index: None };
        };
        let index = fs::read(folder.join(INDEX)).ok().filter(|bytes| bytes.len() <= chunks::INDEX_BYTES);
        let bytes = fs::read_to_string(folder.join("manifest")).ok().and_then(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix(ROOT)?.strip_prefix(' '));
            line?.split(' ').next()?.parse().ok()
        });
        Self { held, running: File::open(root).ok(), index: index.zip(bytes) }
    }

    /// Each chunk's number, its place in the wanted root, and in the running one.
    fn runs(&self, wanted: Index<'_>, each: &mut dyn FnMut(usize, u64, Option<u64>)) {
        let parsed = self.index.as_ref().map(|(bytes, size)| Index::parse(bytes, *size));
        let local = parsed.and_then(Result::ok).map(Local::new).unwrap_or_default();
        for run in chunks::plan(wanted, &local, |_| false) {
            let mut done = 0;
            for number in run.chunks {
                let from = match run.source {
                    chunks::Source::Local(from) => Some(from + done),
                    _ => None,
                };
                each(number, run.at + done, from);
                done += wanted.chunk(number).map_or(0, |(bytes, _)| u64::from(bytes));
            }
        }
    }

    /// Whether the chunk is here; its bytes are in `buffer` then.
    fn read(&self, buffer: &mut [u8], digest: &[u8], at: u64, local: Option<u64>) -> bool {
        let places = [(&self.held, Some(at)), (&self.running, local)];
        places.into_iter().any(|(file, at)| {
            let (Some(file), Some(at)) = (file, at) else { return false };
            file.read_exact_at(buffer, at).is_ok() && is_right(buffer, digest)
        })
    }
}

/// The members in the order of their bytes, as one stream: from the pieces, the running slot, or the server.
pub(crate) struct Content<'a> {
    fetcher: &'a Fetcher<'a>,
    manifest: &'a Manifest,
    sources: Sources,
    /// Of the root, with its places in the running one; empty without an index.
    index: Vec<u8>,
    local: Vec<Option<u64>>,
    line: Option<Line<'a>>,
    meter: Meter,
    /// The member that is read, and how much of it was.
    member: usize,
    done: u64,
    file: Option<File>,
    /// The number of the next chunk of the root.
    chunk: usize,
    buffer: Vec<u8>,
    given: usize,
}

impl<'a> Content<'a> {
    pub(crate) fn new(fetcher: &'a Fetcher<'a>, manifest: &'a Manifest) -> Self {
        let place = manifest.member(INDEX).and_then(|member| fetcher.place(member));
        let index = place.and_then(|path| fs::read(path).ok()).unwrap_or_default();
        let sources = Sources::open(fetcher);
        let mut local = Vec::new();
        if let Some(Ok(parsed)) = manifest.member(ROOT).map(|root| Index::parse(&index, root.bytes)) {
            sources.runs(parsed, &mut |_, _, from| local.push(from));
        }
        Self {
            fetcher,
            manifest,
            sources,
            index,
            local,
            line: None,
            meter: Meter::new(fetcher.rate),
            member: 0,
            done: 0,
            file: None,
            chunk: 0,
            buffer: Vec::new(),
            given: 0,
        }
    }

    /// Reads the next bytes into the buffer; none at the end.
    fn fill(&mut self) -> Result<(), PullError> {
        self.given = 0;
        self.buffer.clear();
        while self.manifest.members.get(self.member).is_some_and(|member| self.done >= member.bytes) {
            (self.member, self.done, self.file) = (self.member + 1, 0, None);
        }
        let Some(member) = self.manifest.members.get(self.member) else { return Ok(()) };
        if member.key == ROOT && !self.local.is_empty() {
            return self.fill_chunk(member);
        }
        if self.done == 0 {
            self.file = self.fetcher.place(member).and_then(|path| File::open(path).ok());
        }
        let most = usize::try_from(member.bytes - self.done).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
        self.buffer.resize(most, 0);
        match &mut self.file {
            Some(file) => {
                let read = file.read_exact(&mut self.buffer);
                read.map_err(|error| PullError::new(Sort::Disk, format!("{}: {error}", member.key)))?;
            }
            None => self.ask_server(member, self.done, member.bytes, None)?,
        }
        self.done += most as u64;
        Ok(())
    }

    fn fill_chunk(&mut self, root: &Member) -> Result<(), PullError> {
        let index = std::mem::take(&mut self.index);
        let parsed = Index::parse(&index, root.bytes).map_err(|why| PullError::new(Sort::Bad, why))?;
        let ended = || PullError::new(Sort::Bad, "the index ends before its root");
        let (bytes, digest) = parsed.chunk(self.chunk).ok_or_else(ended)?;
        self.buffer.resize(bytes as usize, 0);
        let local = self.local.get(self.chunk).copied().flatten();
        if !self.sources.read(&mut self.buffer, digest, self.done, local) {
            let next = (self.chunk..).skip(1).take_while(|next| self.local.get(*next) == Some(&None));
            let joined = next.map_while(|next| parsed.chunk(next)).map(|(bytes, _)| u64::from(bytes));
            let end = joined.fold(self.done + u64::from(bytes), |end, bytes| end + bytes);
            self.ask_server(root, self.done, end, Some(digest))?;
        }
        self.done += u64::from(bytes);
        self.chunk += 1;
        self.index = index;
        Ok(())
    }

    /// Fills the buffer from the server, with the bytes of a member up to `end` in one request.
    fn ask_server(
        &mut self,
        member: &Member,
        from: u64,
        end: u64,
        digest: Option<&[u8]>,
    ) -> Result<(), PullError> {
        let offset = self.manifest.offset(member.key).unwrap_or_default();
        let part = Part { member: &member.digest, offset, from: 0, bytes: end };
        let mut error = PullError::new(Sort::Bad, "there is no server for it");
        let mut remotes = match &self.line {
            Some(_) => Vec::new(),
            None => self.fetcher.remotes()?,
        };
        // a broken connection is made anew once; the next order tries the other servers
        for _ in 0..=remotes.len().max(1) {
            let line = match &mut self.line {
                Some(line) => line,
                None if remotes.is_empty() => break,
                None => self.line.insert(Line::new(remotes.remove(0))),
            };
            let web = self.fetcher.web;
            match line.read(part, from, &mut self.buffer, web, &mut self.meter) {
                Ok(()) if digest.is_none_or(|digest| is_right(&self.buffer, digest)) => {
                    self.meter.keep(self.buffer.len() as u64);
                    return Ok(());
                }
                Ok(()) => error = PullError::new(Sort::Bad, "the server has another content"),
                Err(found) => error = found,
            }
            if error.sort != Sort::Unreachable {
                self.line = None;
            }
        }
        Err(error)
    }
}

impl Read for Content<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.given == self.buffer.len() {
            let filled = self.fill().map_err(|error| io::Error::other(error.text));
            if filled.is_err() {
                self.buffer.clear();
            }
            filled?;
        }
        let left = self.buffer.get(self.given..).unwrap_or_default();
        let count = left.len().min(buffer.len());
        buffer[..count].copy_from_slice(&left[..count]);
        self.given += count;
        Ok(count)
    }
}

fn is_right(bytes: &[u8], wanted: &[u8]) -> bool {
    digest(&SHA256, bytes).as_ref() == wanted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::transport::Cancel;
    use kedge_core::images::settings::Registries;
    use kedge_core::slot::keys::Trust;
    use kedge_core::slot::manifest::{Terms, verify};
    use kedge_rig::Scratch;
    use kedge_rig::registry::{FakeRegistry, Fault};
    use serde_json::json;
    use sha2::{Digest as _, Sha256};
    use std::fmt::Write as _;
    use std::sync::Arc;

    /// Lengths of chunks, over and over.
    const LENGTHS: [usize; 5] = [3000, 700, 1, 8000, 2500];
    const CHUNKS: usize = 40;
    const PATH: &str = "/systems/toaster.update";

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn noise(length: usize, seed: u64) -> Vec<u8> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        (0..length).map(|_| next()).collect()
    }

    /// A root as its chunks; those with a number in `changed` are others.
    fn root(changed: &[usize]) -> Vec<Vec<u8>> {
        let seed = |number: usize| (number as u64 + 1) * if changed.contains(&number) { 1_000 } else { 1 };
        (0..CHUNKS).map(|number| noise(LENGTHS[number % LENGTHS.len()], seed(number))).collect()
    }

    fn index(root: &[Vec<u8>]) -> Vec<u8> {
        let mut index = chunks::FORMAT.to_vec();
        for chunk in root {
            index.extend(((chunk.len() - 1) as u16).to_le_bytes());
            index.extend(Sha256::digest(chunk));
        }
        index
    }

    /// An update: its manifest, and its members.
    struct Update {
        block: Vec<u8>,
        members: Vec<(&'static str, Vec<u8>)>,
    }

    impl Update {
        fn new(root: &[Vec<u8>]) -> Self {
            let members = vec![
                (INDEX, index(root)),
                ("vmlinuz", noise(60_000, 77)),
                ("initrd", noise(30_000, 78)),
                (ROOT, root.concat()),
            ];
            Self::of(members)
        }

        fn of(members: Vec<(&'static str, Vec<u8>)>) -> Self {
            let mut text = "kedge-update 2\nboard toaster\nversion 2\noptions quiet\n".to_owned();
            for (key, content) in &members {
                let _ = writeln!(text, "{key} {} {}", content.len(), hex(&Sha256::digest(content)));
            }
            let mut block = text.into_bytes();
            block.resize(MANIFEST_BYTES, b'\n');
            Self { block, members }
        }

        fn bytes(&self) -> Vec<u8> {
            let members = self.members.iter().map(|(_, content)| content.as_slice());
            std::iter::once(self.block.as_slice()).chain(members).collect::<Vec<_>>().concat()
        }

        /// The bytes that are written into a slot.
        fn content(&self) -> Vec<u8> {
            self.bytes()[MANIFEST_BYTES..].to_vec()
        }
    }

    /// A device whose slot has a root with these changes, and a server with the update.
    struct World {
        scratch: Scratch,
        server: FakeRegistry,
        update: Update,
        web: Web,
        wanted: Pinned,
        room: u64,
    }

    fn web(servers: &[&FakeRegistry], mirrors: serde_json::Value, cancel: Cancel) -> Web {
        let names: Vec<_> = servers.iter().map(|server| server.name()).collect();
        let object = json!({ "insecureRegistries": names, "mirrors": mirrors });
        let registries = Registries::read(object.as_object(), &mut |path, text| panic!("{path}: {text}"));
        Web::new(registries, Arc::new(|| Duration::from_secs(1_800_000_000)), cancel)
    }

    impl World {
        fn new(changed: &[usize]) -> Self {
            let scratch = Scratch::new("fetch").unwrap();
            let running = Update::new(&root(changed));
            scratch.write("slot/index", &running.members[0].1);
            scratch.write("slot/manifest", &running.block);
            scratch.write("slot/initrd", &running.members[2].1);
            scratch.write("device", &running.members[3].1);
            let (server, update) = (FakeRegistry::start().unwrap(), Update::new(&root(&[])));
            server.put_file(PATH, &update.bytes());
            let source = Source::Url(format!("http://{}{PATH}", server.name()));
            let digest = kedge_core::Digest::of(&update.block);
            let web = web(&[&server], json!({}), Cancel::new());
            Self { scratch, web, server, update, wanted: Pinned { source, digest }, room: u64::MAX }
        }

        fn fetcher<'a>(&'a self, room: &'a dyn Fn() -> u64) -> Fetcher<'a> {
            Fetcher {
                web: &self.web,
                wanted: &self.wanted,
                pieces: self.scratch.join("pieces"),
                running: Some(Running {
                    folder: self.scratch.join("slot"),
                    root: self.scratch.join("device"),
                }),
                rate: None,
                room,
                progress: &|_| {},
                read: Cell::default(),
            }
        }

        fn judge(&self, block: &[u8]) -> Result<Manifest, Failed> {
            let terms = Terms {
                board: "toaster",
                running: "1",
                trust: &Trust::Unsigned,
                allows_older: false,
                below_floor: false,
            };
            let verified = verify(block, Some(&self.wanted.digest.to_string()), &terms, &|_, _, _| false);
            verified.map_err(|refusal| Failed::Refused(refusal.reason.word(), refusal.text))
        }

        fn fetch(&self) -> Result<Fetched, Failed> {
            self.fetcher(&|| self.room).fetch(&|block| self.judge(block))
        }

        /// The bytes of all ranges that were requested since the last call.
        fn asked(&self) -> u64 {
            let seen = self.server.take_seen();
            let range = |range: Option<String>| {
                let range = range?;
                let (from, to) = range.strip_prefix("bytes=")?.split_once('-')?;
                let number = |text: &str| text.parse::<u64>().ok();
                Some(number(to)? - number(from)? + 1)
            };
            seen.into_iter().map(|seen| range(seen.range).expect("a range")).sum()
        }

        /// The content for the slot is the update's.
        #[track_caller]
        fn is_here(&self, fetched: &Fetched) {
            let room = || self.room;
            let fetcher = self.fetcher(&room);
            let mut content = Vec::new();
            Content::new(&fetcher, &fetched.manifest).read_to_end(&mut content).unwrap();
            assert!(content == self.update.content());
        }
    }

    #[track_caller]
    fn failure(fetched: Result<Fetched, Failed>) -> String {
        match fetched {
            Err(Failed::Again(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn missing_parts_alone_are_fetched() {
        let world = World::new(&[0, 7, 8, 39]);
        let fetched = world.fetch().unwrap();
        assert!(!fetched.is_straight);
        let lengths = [0, 7, 8, 39].map(|number| root(&[])[number].len() as u64);
        let index = world.update.members[0].1.len() as u64;
        // the running slot has the same initrd
        assert_eq!(world.asked(), 4096 + index + 60_000 + lengths.iter().sum::<u64>());
        world.is_here(&fetched);
        assert_eq!(world.server.take_seen(), [], "nothing more is needed for the slot");
        world.fetch().unwrap();
        assert_eq!(world.server.take_seen(), [], "and nothing for the same order again");
    }

    #[test]
    fn device_without_an_index_fetches_all() {
        let world = World::new(&[]);
        for name in ["slot/index", "slot/manifest", "slot/initrd", "device"] {
            std::fs::remove_file(world.scratch.join(name)).unwrap();
        }
        let fetched = world.fetch().unwrap();
        assert_eq!(world.asked(), world.update.bytes().len() as u64);
        world.is_here(&fetched);
    }

    #[test]
    fn chunk_that_rotted_in_the_running_root_is_fetched() {
        let world = World::new(&[]);
        let mut device = std::fs::read(world.scratch.join("device")).unwrap();
        device[100] ^= 1;
        std::fs::write(world.scratch.join("device"), device).unwrap();
        let fetched = world.fetch().unwrap();
        world.is_here(&fetched);
        // the index is the running root's
        assert_eq!(world.asked(), 4096 + 60_000 + 3000);
    }

    #[test]
    fn server_without_ranges_sends_its_file_once() {
        let world = World::new(&[0, 7, 39]);
        world.server.fail(PATH, Fault::IgnoredRange);
        let fetched = world.fetch().unwrap();
        assert_eq!(world.server.take_seen().len(), 1);
        world.is_here(&fetched);
    }

    #[test]
    fn skipped_bytes_are_not_too_slow() {
        let world = World::new(&[]);
        world.server.fail(PATH, Fault::IgnoredRange);
        let Source::Url(url) = &world.wanted.source else { unreachable!() };
        let mut line = Line::new(world.web.file(url).unwrap());
        let (mut meter, mut buffer) = (Meter::new(None), [0; 100]);
        let part = Part { member: "", offset: 50_000, from: 0, bytes: 100 };
        line.read(part, 0, &mut buffer, &world.web, &mut meter).unwrap();
        assert_eq!(buffer, world.update.bytes()[50_000..50_100]);
        assert_eq!((meter.kept, meter.all), (50_000, 0));
    }

    #[test]
    fn index_that_is_too_large_is_not_fetched() {
        let mut world = World::new(&[]);
        let mut members = world.update.members.clone();
        members[0].1 = noise(chunks::INDEX_BYTES + 1, 5);
        world.update = Update::of(members);
        world.server.put_file(PATH, &world.update.bytes());
        world.wanted.digest = kedge_core::Digest::of(&world.update.block);
        let why = failure(world.fetch());
        assert!(why.starts_with("the index has 524289 bytes"), "{why}");
        assert_eq!(world.asked(), 4096);
    }

    #[test]
    fn cut_anywhere_fetches_nothing_twice() {
        let changed: Vec<_> = (0..CHUNKS).collect();
        for cut in [0, 1, 4095, 4096, 4097, 5000, 16_384, 60_000, 70_000, 100_000] {
            let world = World::new(&changed);
            let (mut read, mut cuts) = (0, 0);
            let fetched = loop {
                // the first request of each of the first orders
                if cuts < 12 {
                    world.server.fail(PATH, Fault::CutAfter(cut));
                    cuts += 1;
                }
                let room = || world.room;
                let fetcher = world.fetcher(&room);
                let fetched = fetcher.fetch(&|block| world.judge(block));
                read += fetcher.read.get();
                match fetched {
                    Ok(fetched) => break fetched,
                    Err(Failed::Again(_)) => {}
                    Err(refused) => panic!("cut after {cut}: {refused:?}"),
                }
            };
            world.is_here(&fetched);
            // all but the initrd, and of each cut the bytes that belong to no whole piece
            let whole = world.update.bytes().len() as u64 - 30_000;
            assert!(read <= whole + cuts * 8000, "cut after {cut}: {read} of {whole} bytes, {cuts} cuts");
        }
    }

    #[test]
    fn restart_goes_on_where_the_last_one_ended() {
        let changed: Vec<_> = (0..CHUNKS).collect();
        let world = World::new(&changed);
        // the answers to the requests for the manifest and the index are whole, that for the kernel is not
        for fault in [Fault::Oversized(0), Fault::Oversized(0), Fault::CutAfter(40_000), Fault::Status(503)] {
            world.server.fail(PATH, fault);
        }
        failure(world.fetch());
        world.asked();
        world.fetch().unwrap();
        let seen = world.server.take_seen();
        let first = seen.first().and_then(|seen| seen.range.clone()).unwrap();
        let kernel = 4096 + world.update.members[0].1.len();
        let done = std::fs::metadata(world.scratch.join("pieces/vmlinuz")).unwrap().len();
        assert_eq!(done, 60_000);
        let from: usize = first["bytes=".len()..].split('-').next().unwrap().parse().unwrap();
        assert!(from >= kernel + 32_768 && from <= kernel + 40_000, "{first}: kernel at {kernel}");
    }

    #[test]
    fn lying_server_is_not_believed() {
        let faults = [
            Fault::OtherRange,
            Fault::OtherBytes,
            Fault::Truncated(10),
            Fault::Truncated(0),
            Fault::Status(404),
            Fault::Status(500),
            Fault::Status(416),
            Fault::Status(206),
            Fault::RedirectTo("ftp://x".to_owned()),
        ];
        for fault in faults {
            // at the manifest, the index, the kernel, and a chunk
            for request in 0..4 {
                let world = World::new(&[7]);
                (0..request).for_each(|_| world.server.fail(PATH, Fault::Oversized(0)));
                // a second time for a try that is resumed
                (0..2).for_each(|_| world.server.fail(PATH, fault.clone()));
                if let Err(failed) = world.fetch() {
                    let why = failure(Err(failed));
                    assert!(!why.is_empty(), "{fault:?}");
                }
                // used up the second fault
                let _ = world.fetch();
                let fetched = world.fetch().unwrap_or_else(|why| panic!("{fault:?} at {request}: {why:?}"));
                world.is_here(&fetched);
            }
        }
    }

    #[test]
    fn endless_answer_is_read_as_far_as_it_is_needed() {
        let world = World::new(&[7]);
        (0..9).for_each(|_| world.server.fail(PATH, Fault::Oversized(1 << 20)));
        let fetched = world.fetch().unwrap();
        world.is_here(&fetched);
    }

    #[test]
    fn other_manifest_is_no_refusal() {
        let world = World::new(&[]);
        world.server.put_file(PATH, &Update::new(&root(&[3])).bytes());
        let why = failure(world.fetch());
        assert!(why.contains("is not the one that the configuration names"), "{why}");
    }

    #[test]
    fn refused_manifest_fetches_nothing_more() {
        let world = World::new(&[0]);
        let fetched =
            world.fetcher(&|| u64::MAX).fetch(&|_| Err(Failed::Refused("NoSignature", String::new())));
        assert!(matches!(fetched, Err(Failed::Refused("NoSignature", _))));
        assert_eq!(world.asked(), 4096);
    }

    #[test]
    fn without_room_the_slot_is_written_from_the_server() {
        let mut world = World::new(&[0, 7, 8, 39]);
        world.room = 1000;
        let fetched = world.fetch().unwrap();
        assert!(fetched.is_straight);
        let index = world.update.members[0].1.len() as u64;
        assert_eq!(world.asked(), 4096 + index);
        world.is_here(&fetched);
        let lengths = [0, 7, 8, 39].map(|number| root(&[])[number].len() as u64);
        assert_eq!(world.asked(), 60_000 + lengths.iter().sum::<u64>());
    }

    #[test]
    fn artifact_comes_from_the_first_registry_that_has_it() {
        let mut world = World::new(&[0, 7]);
        let (mirror, own) = (FakeRegistry::start().unwrap(), FakeRegistry::start().unwrap());
        let block = ("manifest", world.update.block.clone());
        for (_, content) in world.update.members.iter().chain([&block]) {
            let path = format!("kedge/toaster/blobs/sha256:{}", hex(&Sha256::digest(content)));
            own.put(&path, "application/octet-stream", content);
        }
        let mirrors = json!({ own.name(): [format!("http://{}", mirror.name())] });
        world.web = web(&[&mirror, &own], mirrors, Cancel::new());
        let image = format!("{}/kedge/toaster@sha256:{}", own.name(), "0".repeat(64));
        world.wanted.source = Source::Image(image);
        let fetched = world.fetch().unwrap();
        world.is_here(&fetched);
        assert!(!mirror.take_seen().is_empty(), "the mirror is asked first");
        assert!(own.take_seen().iter().all(|seen| seen.range.is_some()));
    }

    #[test]
    fn cancelled_fetch_ends() {
        let mut world = World::new(&[0]);
        let cancel = Cancel::new();
        world.web = web(&[&world.server], json!({}), cancel.clone());
        cancel.cancel();
        assert_eq!(failure(world.fetch()), "it is not wanted any more");
    }

    #[test]
    fn slow_server_is_given_up() {
        let web = web(&[], json!({}), Cancel::new());
        let mut meter = Meter::new(None);
        meter.pass(1 << 20, &web).unwrap();
        let early = Instant::now().checked_sub(SLOWEST_TIME);
        let Some(early) = early else { return };
        meter.since = early;
        assert!(meter.pass(1, &web).is_err(), "whatever it sends, nothing was kept");
        meter.keep(SLOWEST_BYTES);
        meter.pass(1, &web).unwrap();
    }
}
