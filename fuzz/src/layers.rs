//! Archives of layers, plain and packed: the unpacked files equal the archive's entries, below its root and
//! within the limits.
//!
//! Owns a script of entries whose headers have correct sums, so that the search gets past that check; and the
//! packing of any bytes. Always checked: two readings give the same tree, and so do the three packings; the
//! digest is of the plain bytes; the counted bytes cover the room used on the disk; no removal mark, no
//! device 0:0 and no directory beyond the deepest allowed is left; an error fits into a pod's status. Needs
//! root: a thread with a root in memory unpacks. Without root it does nothing, and fails under CI=true.

use crate::Target;
use crate::input::Input;
use flate2::Compression;
use flate2::write::GzEncoder;
use kedge_platform::images::fuzzing::{Unpacked, Unpacker};
use kedge_rig::archive::{Archive, Meta};
use sha2::{Digest as _, Sha256};
use std::cell::OnceCell;
use std::io::Write as _;

pub(crate) const TARGET: Target =
    Target { name: "layers", run, seeds, words: WORDS, longest_bytes: 4096, mutations: 100 };

/// Most entries of one layer.
const MOST_ENTRIES: u64 = 200;
const MOST_BYTES: u64 = 2 << 20;
/// Size of the file system: the limits must stop an archive first.
const ROOM_BYTES: u64 = 64 << 20;
/// Entries of the layer below.
const BASE_ENTRIES: usize = 7;
/// Most characters of an error that are shown.
const ERROR_CHARS: usize = 1000;
/// Most directories above a file.
const DEPTH: usize = 128;

const WORDS: &[&str] = &[
    "path=",
    "linkpath=",
    "size=",
    "uid=",
    "gid=",
    "SCHILY.xattr.user.",
    "SCHILY.xattr.security.capability=",
    "SCHILY.xattr.trusted.overlay.opaque=y",
    "GNU.sparse.major=1",
    "ustar\u{0}00",
    ".wh.",
    ".wh..wh..opq",
    "../",
    "/",
    "13 path=a/b\n",
    "\u{1f}\u{8b}\u{8}",
    "(\u{b5}/\u{fd}",
    "4294967295",
    "8589934592",
];

const PARTS: [&str; 14] = [
    "a",
    "b",
    "etc",
    "data",
    "old",
    "door",
    ".",
    "..",
    "",
    ".wh.a",
    ".wh.old",
    ".wh..wh..opq",
    ".wh..wh.x",
    ".wh.",
];
const TARGETS: [&str; 9] =
    ["a", "/data", "../a", "../../../etc", "/proc/self/root", ".", "", "/etc/old", "door"];
const KEYS: [&str; 10] = [
    "path",
    "linkpath",
    "size",
    "uid",
    "gid",
    "mtime",
    "SCHILY.xattr.user.a",
    "SCHILY.xattr.trusted.overlay.opaque",
    "SCHILY.xattr.security.capability",
    "GNU.sparse.map",
];

fn seeds() -> Vec<Vec<u8>> {
    let script = |ops: &[&[u8]]| [&b"s"[..], &ops.concat()].concat();
    let (a, in_a) = (&[1, 0][..], &[2, 0, 1][..]);
    let op = |number: u8, name: &[u8], rest: &[u8]| [&[number], name, rest].concat();
    let plain = base().bytes();
    vec![
        script(&[&op(1, a, &[]), &op(0, in_a, &[3, b'x', b'y', b'z'])]),
        // a link to write a file through, and a link to be replaced
        script(&[
            &op(2, &[1, 5], &[1]),
            &op(0, &[2, 5, 0], &[1, b'x']),
            &op(0, &[1, 5], &[0]),
            &op(3, &[1, 0], &[7]),
        ]),
        // removals of files of the layer below and of files made just before
        script(&[
            &op(0, &[2, 3, 11], &[0]),
            &op(0, &[2, 2, 10], &[0]),
            &op(1, &[1, 3], &[]),
            &op(0, &[2, 3, 0], &[1, b'1']),
        ]),
        script(&[&op(4, a, &[1, 1, 3]), &op(4, a, &[0, 0, 0]), &op(4, &[1, 1], &[2, 0, 0])]),
        // extended headers: good, unfinished, of a long path, of another size
        script(&[
            &[6, 0, 3, b'q', b'/', b'r'],
            &op(0, a, &[1, b'x']),
            &[7, 6, b'9', b' ', b'u', b'i', b'd', b'='],
        ]),
        script(&[&[6, 2, 1, b'4'], &op(0, a, &[4, 1, 2, 3, 4]), &[6, 6, 2, b'v', b'\n'], &op(0, in_a, &[0])]),
        script(&[&[8, 0, 2, b'l', b'n'], &op(0, a, &[0]), &[8, 1, 2, b'/', b'a'], &op(2, &[1, 1], &[6])]),
        script(&[&[9, 200], &op(0, a, &[0]), &[9, 120], &op(1, &[2, 0, 1], &[])]),
        script(&[&[10, b'0', 5, 0, 1], a, &[10, b'3', 0, 2, 2], a, &[11, 1, 2, 156, b'L', 2, 3, b'0', b'7']]),
        [b"p", &plain[..600]].concat(),
        [b"g", &gzip(&plain)[..]].concat(),
        [b"z", &zstd(&plain)[..]].concat(),
        // two members, and a frame to be skipped
        [b"g", &gzip(&plain[..1024])[..], &gzip(&plain[1024..])].concat(),
        [b"z", &[0x50, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 9, 9][..], &zstd(&plain)].concat(),
    ]
}

/// The content of the layer below.
fn base() -> Archive {
    let archive =
        Archive::default().directory("etc").file("etc/old", b"1").directory("data").file("data/a", b"2");
    archive.directory("data/b").file("data/b/old", b"3").file("old", b"4")
}

thread_local! {
    static UNPACKER: OnceCell<Option<Unpacker>> = const { OnceCell::new() };
}

fn start() -> Option<Unpacker> {
    match Unpacker::start(ROOM_BYTES) {
        Ok(unpacker) => Some(unpacker),
        Err(error) => {
            assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "CI runs this as root: {error}");
            kedge_rig::power_cut::print_past_test_runner("SKIPPED: unpacking layers needs root");
            None
        }
    }
}

fn run(data: &[u8]) {
    let Some((which, rest)) = data.split_first() else { return };
    UNPACKER.with(|unpacker| {
        let Some(unpacker) = unpacker.get_or_init(start) else { return };
        match which {
            b's' => every_packing(unpacker, &script(rest)),
            b'p' => every_packing(unpacker, rest),
            b'g' => packed(unpacker, rest, "gzip"),
            _ => packed(unpacker, rest, "zstd"),
        }
    });
}

/// For plain bytes: the three packings, one after another.
fn every_packing(unpacker: &Unpacker, archive: &[u8]) {
    let plain = judged(unpacker, archive, "plain");
    if let Ok((diff, ..)) = &plain.done {
        assert_eq!(*diff, digest(archive));
    }
    for (packing, bytes) in [("gzip", gzip(archive)), ("zstd", zstd(archive))] {
        assert_same(&judged(unpacker, &bytes, packing), &plain);
    }
}

/// For bytes that claim to be packed: their content, unpacked, gives the same.
fn packed(unpacker: &Unpacker, bytes: &[u8], packing: &str) {
    let found = judged(unpacker, bytes, packing);
    if let Ok((diff, ..)) = &found.done
        && packing == "gzip"
    {
        let mut plain = Vec::new();
        match std::io::copy(&mut flate2::bufread::MultiGzDecoder::new(bytes), &mut plain) {
            // a wrong checksum: the agent does not read it, because digests judge the bytes on both sides of
            // it
            Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => return,
            unpacked => unpacked.expect("it was unpacked before"),
        };
        assert_eq!(*diff, digest(&plain));
        assert_same(&judged(unpacker, &plain, "plain"), &found);
    }
}

/// Unpacks twice onto the base.
fn judged(unpacker: &Unpacker, archive: &[u8], packing: &str) -> Unpacked {
    let unpack = || {
        let below = unpacker.unpack(&base().bytes(), "plain", [100, 1 << 20], false);
        assert!(below.done.is_ok(), "{below:?}");
        unpacker.unpack(archive, packing, [MOST_ENTRIES, MOST_BYTES], true)
    };
    let found = unpack();
    judge(&found);
    assert_same(&unpack(), &found);
    found
}

/// Compares two results for the same archive. The remains of a refused one contain the times at which they
/// were made, so they are not compared.
fn assert_same(one: &Unpacked, other: &Unpacked) {
    assert_eq!(one.done, other.done);
    assert!(one.done.is_err() || one == other, "{one:?} is another tree than {other:?}");
}

fn judge(found: &Unpacked) {
    let (entries, bytes) = match &found.done {
        Ok((_, entries, bytes)) => (*entries, *bytes),
        Err(why) => {
            assert!(
                !why.is_empty() && why.chars().count() <= ERROR_CHARS,
                "{} characters: {why}",
                why.chars().count()
            );
            (MOST_ENTRIES, MOST_BYTES)
        }
    };
    assert!(entries <= MOST_ENTRIES && bytes <= MOST_BYTES, "{entries} entries, {bytes} bytes");
    let there = found.tree.len().saturating_sub(BASE_ENTRIES) as u64;
    assert!(there <= entries, "{there} entries are there, {entries} were counted");
    assert!(found.used_bytes <= bytes, "{} bytes are taken, {bytes} were counted", found.used_bytes);
    for file in &found.tree {
        let name = file.path.file_name().unwrap_or_default().as_encoded_bytes();
        // a directory that only the path of an entry implies keeps its name, even if it looks like a removal
        // mark
        let is_removal = name.starts_with(b".wh.") && file.kind != "directory";
        assert!(!is_removal, "a removal is left: {file:?}");
        assert!(file.kind != "device" || file.device != 0, "a removal to the kernel: {file:?}");
        // the root, and the file itself
        assert!(file.path.components().count() <= DEPTH + 2, "{file:?}");
    }
}

/// The archive of a script: one byte for each entry, and its arguments.
fn script(data: &[u8]) -> Vec<u8> {
    let mut input = Input::new(data);
    let mut archive = Archive::default();
    while !input.is_empty() {
        archive = match input.choice(12) {
            0 => {
                let (name, content) = (name(&mut input), input.bytes());
                archive.file(&name, content)
            }
            1 => archive.directory(&name(&mut input)),
            2 => {
                let name = name(&mut input);
                archive.symlink(&name, input.one_of(&TARGETS))
            }
            3 => {
                let name = name(&mut input);
                archive.hard_link(&name, input.one_of(&TARGETS))
            }
            4 => {
                let name = name(&mut input);
                let (kind, device) = (input.one_of(b"346"), (input.byte().into(), input.byte().into()));
                archive.entry(&name, Meta { kind, device, ..Meta::default() }, b"")
            }
            5 => archive.directory(&name(&mut input)).file(&name(&mut input), b"x"),
            6 => {
                let (key, value) = (input.one_of(&KEYS), input.bytes());
                archive.extended(key, value)
            }
            7 => archive.extension(input.bytes()),
            8 => {
                let (kind, text) = (input.one_of(b"LK"), input.bytes());
                archive.entry("long", Meta { kind, ..Meta::default() }, text)
            }
            9 => {
                let depth = usize::from(input.byte());
                archive.extended("path", vec!["d"; depth.max(1)].join("/").as_bytes())
            }
            10 => {
                let (kind, size, mode, owner) = (input.byte(), input.byte(), input.byte(), input.byte());
                let size = (size > 0).then(|| 1 << (size % 33));
                let meta = Meta {
                    kind,
                    size,
                    mode: u32::from(mode) << 4,
                    owner: u32::from(owner),
                    ..Meta::default()
                };
                archive.entry(&name(&mut input), meta, b"")
            }
            // a header with bytes changed
            _ => {
                let mut header = [0; 512];
                header.copy_from_slice(&Archive::default().file("h", b"").bytes()[..512]);
                for _ in 0..input.choice(6) {
                    let at = usize::from(input.byte()) * 2 + usize::from(input.coin());
                    header[at] = input.byte();
                }
                archive.block(header, input.bytes())
            }
        };
    }
    archive.bytes()
}

fn name(input: &mut Input<'_>) -> String {
    let parts = (0..input.choice(6)).map(|_| input.one_of(&PARTS));
    parts.collect::<Vec<_>>().join("/")
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("memory takes it")
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}
