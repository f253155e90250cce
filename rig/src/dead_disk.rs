//! A file system whose server stops answering: a directory with one file, through FUSE, served by this
//! process.
//!
//! Owns the mount and the thread that serves it. Always holds: while it is dead each request is received and
//! not answered, so its process waits in the kernel and no signal interrupts that, as with a dead NFS server
//! or a hanging disk; revived, it answers those too; dropped, it fails them. Needs root and `/dev/fuse`.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

/// The name of its only file.
pub const FILE: &str = "data";
/// The content of that file.
pub const CONTENT: &[u8] = b"alive\n";

/// Larger than the kernel's minimum, and than any request within the limits of [`init`].
const REQUEST_BYTES: usize = 160 * 1024;
const HEADER_BYTES: usize = 40;
const ROOT: u64 = 1;
const FILE_NODE: u64 = 2;
const NO_ENTRY: i32 = 2;
const NOT_THERE: i32 = 38;

/// The file system; it is unmounted when this is dropped.
pub struct DeadDisk {
    at: PathBuf,
    shared: Arc<Shared>,
}

struct Shared {
    device: File,
    /// `None` while it answers; otherwise the requests that wait.
    waiting: Mutex<Option<Vec<Request>>>,
}

struct Request {
    code: u32,
    unique: u64,
    node: u64,
    body: Vec<u8>,
}

impl DeadDisk {
    /// Mounts one that answers at this directory, which is created. `None` if this machine has no FUSE.
    pub fn mount(at: &Path) -> Option<DeadDisk> {
        std::fs::create_dir_all(at).ok()?;
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").ok()?;
        let options = "fd=0,rootmode=40000,user_id=0,group_id=0,allow_other";
        let mut mount = Command::new("mount");
        mount.args(["-i", "-t", "fuse", "-o", options, "dead"]).arg(at);
        let mounted = mount.stdin(Stdio::from(device.try_clone().ok()?)).status().ok()?;
        mounted.success().then_some(())?;
        let shared = Arc::new(Shared { device, waiting: Mutex::new(None) });
        let served = shared.clone();
        std::thread::Builder::new().name("dead-disk".into()).spawn(move || served.serve()).ok()?;
        let disk = DeadDisk { at: at.to_owned(), shared };
        // an answer shows that it is mounted
        at.metadata().ok()?;
        Some(disk)
    }

    /// Stops answering.
    pub fn die(&self) {
        self.shared.waiting().get_or_insert_default();
    }

    /// Answers everything again, including waiting requests.
    pub fn revive(&self) {
        let waiting = self.shared.waiting().take();
        for request in waiting.into_iter().flatten() {
            self.shared.answer(&request);
        }
    }

    /// Requests that wait.
    pub fn waiting(&self) -> usize {
        self.shared.waiting().as_ref().map_or(0, Vec::len)
    }
}

impl Drop for DeadDisk {
    fn drop(&mut self) {
        // forced: waiting requests fail, and the thread ends
        let _ = Command::new("umount").args(["-i", "-c", "-f", "-l"]).arg(&self.at).status();
    }
}

impl Shared {
    fn waiting(&self) -> std::sync::MutexGuard<'_, Option<Vec<Request>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        let mut bytes = vec![0; REQUEST_BYTES];
        loop {
            match (&self.device).read(&mut bytes) {
                Ok(length) if length >= HEADER_BYTES => self.take(&bytes[..length]),
                Err(error) if matches!(error.raw_os_error(), Some(nix::libc::EINTR | nix::libc::ENOENT)) => {}
                // unmounted
                _ => return,
            }
        }
    }

    fn take(&self, bytes: &[u8]) {
        let request = Request {
            code: u32::from_ne_bytes(part(bytes, 4)),
            unique: u64::from_ne_bytes(part(bytes, 8)),
            node: u64::from_ne_bytes(part(bytes, 16)),
            body: bytes[HEADER_BYTES..].to_vec(),
        };
        if let Some(waiting) = self.waiting().as_mut() {
            waiting.push(request);
            return;
        }
        self.answer(&request);
    }

    /// Answers by the operation numbers of `fuse.h`.
    fn answer(&self, request: &Request) {
        let done = match request.code {
            // forget, interrupt, forget many: no answer is expected
            2 | 36 | 42 => return,
            1 => lookup(request),
            3 => Ok([&[0; 16], &attributes(request.node)[..]].concat()),
            // open, open a directory: no state is kept
            14 | 27 => Ok(vec![0; 16]),
            15 => Ok(read(request)),
            17 => Ok(statistics()),
            // release, flush, release a directory, access, read a directory, which is shown as empty
            18 | 25 | 28 | 29 | 34 => Ok(Vec::new()),
            26 => Ok(init()),
            _ => Err(NOT_THERE),
        };
        let (error, body) = match done {
            Ok(body) => (0, body),
            Err(error) => (-error, Vec::new()),
        };
        let length = u32::try_from(16 + body.len()).unwrap_or(0);
        let head = [&length.to_ne_bytes()[..], &error.to_ne_bytes(), &request.unique.to_ne_bytes()].concat();
        // fails if the request was given up meanwhile, which does no harm
        let _ = (&self.device).write(&[head, body].concat());
    }
}

fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..at + N).and_then(|part| part.try_into().ok()).unwrap_or([0; N])
}

/// Version 7.31; requests of at most 128 KiB.
fn init() -> Vec<u8> {
    let mut body = vec![0; 64];
    for (at, value) in [(0, 7_u32), (4, 31), (8, 128 * 1024), (20, 128 * 1024)] {
        body[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    body
}

/// Without caching: each lookup sends a request again.
fn lookup(request: &Request) -> Result<Vec<u8>, i32> {
    let is_file = request.node == ROOT && request.body.strip_suffix(&[0]) == Some(FILE.as_bytes());
    if !is_file {
        return Err(NO_ENTRY);
    }
    Ok([&FILE_NODE.to_ne_bytes()[..], &[0; 32], &attributes(FILE_NODE)].concat())
}

fn attributes(node: u64) -> Vec<u8> {
    let (mode, links, size) =
        if node == ROOT { (0o040_755_u32, 2_u32, 0) } else { (0o100_644, 1, CONTENT.len() as u64) };
    let mut body = vec![0; 88];
    body[0..8].copy_from_slice(&node.to_ne_bytes());
    body[8..16].copy_from_slice(&size.to_ne_bytes());
    body[60..64].copy_from_slice(&mode.to_ne_bytes());
    body[64..68].copy_from_slice(&links.to_ne_bytes());
    body[80..84].copy_from_slice(&4096_u32.to_ne_bytes());
    body
}

fn read(request: &Request) -> Vec<u8> {
    let from = usize::try_from(u64::from_ne_bytes(part(&request.body, 8))).unwrap_or(usize::MAX);
    CONTENT.get(from..).unwrap_or_default().to_vec()
}

fn statistics() -> Vec<u8> {
    let mut body = vec![0; 80];
    for at in [40, 48] {
        body[at..at + 4].copy_from_slice(&4096_u32.to_ne_bytes());
    }
    body[44..48].copy_from_slice(&255_u32.to_ne_bytes());
    body
}
