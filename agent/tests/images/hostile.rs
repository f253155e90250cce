//! Layers that lie: each is refused or harmless, the host stays as it is, nothing is left of them.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use kedge_core::images::BlobDigest;
use kedge_platform::images::{BlobName, Cancelled, ImageFiles, Limits, Step, Unpack, UnpackError};

use super::archive::{Archive, Image, Meta, Packed, gzip, gzip_best};
use super::setup::{Node, PROGRAM, SmallDisk, relative, sentinel};

/// Imports an image of one layer after a harmless base.
fn import(node: &Node, layer: Packed) -> (String, Vec<String>) {
    let base = Archive::default().directory("etc").file("etc/passwd", b"root of the image");
    let image = Image::new(vec![Packed::gzip(&base), layer]);
    let layout = node.scratch.join("layout");
    let _ = fs::remove_dir_all(&layout);
    image.write_layout(&layout);
    (layout.display().to_string(), node.names("layers"))
}

#[track_caller]
fn refused(node: &Node, layer: Packed, expect: &str) {
    let (layout, _) = import(node, layer);
    node.fails(&["import", &layout, "--name", "r.lan/hostile"], expect);
    assert_eq!(node.names("records"), [""; 0], "no image has it");
    assert_eq!(node.names("layers").len(), 2, "the base and its record are all there is");
}

#[test]
fn path_out_of_the_root_is_refused() {
    let Some(node) = Node::new("hostile-path", &[]) else { return };
    let (path, untouched) = sentinel(&node.scratch);
    let outside = relative(&path);
    let link = Archive::default().hard_link("a", "../../../../../../etc/passwd");
    refused(&node, Packed::gzip(&link), "has \"..\"");
    let up = Archive::default().file(&format!("{}{outside}", "../".repeat(30))[..90], b"x");
    refused(&node, Packed::gzip(&up), "has \"..\"");
    let long =
        Archive::default().extended("path", format!("a/../../../../../..{}", path.display()).as_bytes());
    refused(&node, Packed::gzip(&long.file("short", b"x")), "has \"..\"");
    untouched();
}

#[test]
fn name_of_control_characters_is_shown_escaped_and_short() {
    let Some(node) = Node::new("hostile-name", &[]) else { return };
    let name = "\x1b[2J\x07\u{9b}31m\r".repeat(370);
    let link = Archive::default().extended("path", name.as_bytes()).hard_link("short", "missing");
    refused(&node, Packed::gzip(&link), r"\u{1b}[2J\u{7}\u{9b}31m\r");
}

#[test]
fn archive_that_has_two_readings_is_refused() {
    let Some(node) = Node::new("hostile-readings", &[]) else { return };
    // another tar reader takes these for the content of an entry, and never sees them
    let hidden = Archive::default().file("etc/hidden", b"x");
    let hidden = &hidden.bytes()[..1024];
    let empty = Meta { size: Some(0), ..Meta::default() };
    let by_size = Archive::default().extended("size", b"1024").entry("etc/seen", empty, hidden);
    refused(&node, Packed::gzip(&by_size), "its header says 0 bytes, its extended header 1024");
    // and takes these for entries
    let longer = Archive::default().extended("size", b"0").entry("etc/seen", Meta::default(), hidden);
    refused(&node, Packed::gzip(&longer), "its header says 1024 bytes, its extended header 0");
    let directory = Archive::default().entry("etc/d", Meta { kind: b'5', ..Meta::default() }, hidden);
    refused(&node, Packed::gzip(&directory), "it is no file and has 1024 bytes");
    // this user ID means "unchanged" to the kernel, so the file would be root's
    let nobodys = Archive::default().extended("uid", b"4294967295").file("etc/f", b"x");
    refused(&node, Packed::gzip(&nobodys), "uid is 4294967295");
    let same = Archive::default().extended("size", b"4").file("etc/f", b"four");
    let (layout, _) = import(&node, Packed::gzip(&same));
    node.ok(&["import", &layout, "--name", "r.lan/same"]);
}

#[test]
fn link_leads_only_within_the_image() {
    let Some(node) = Node::new("hostile-link", &[]) else { return };
    let (path, untouched) = sentinel(&node.scratch);
    let outside = path.parent().unwrap().display().to_string();
    // through a link to a directory of the host: that directory is not there, so the write fails
    let through = Archive::default().symlink("door", &outside).file("door/planted", b"x");
    refused(&node, Packed::gzip(&through), "door/planted");
    // over a link to a file of the host: the link is replaced
    let over = Archive::default()
        .symlink("sentinel", &path.display().to_string())
        .file("sentinel", b"x")
        .symlink("etc/away", "/proc/self/root")
        .hard_link("passwd", "/etc/passwd");
    let (layout, _) = import(&node, Packed::gzip(&over));
    let image = node.ok(&["import", &layout, "--name", "r.lan/a"])[0].clone();
    let layers = node.layers(&image);
    assert_eq!(fs::read(layers[1].join("sentinel")).unwrap(), b"x");
    assert_eq!(fs::read(layers[1].join("passwd")).unwrap(), b"root of the image", "the image's own file");
    untouched();
}

#[test]
fn whiteout_removes_nothing_of_the_host() {
    let Some(node) = Node::new("hostile-whiteout", &[]) else { return };
    let (path, untouched) = sentinel(&node.scratch);
    let outside = path.parent().unwrap().display().to_string();
    let opaque = Archive::default().symlink("door", &outside).file("door/.wh..wh..opq", b"");
    refused(&node, Packed::gzip(&opaque), "door/.wh..wh..opq");
    for name in [".wh.", ".wh..", ".wh..."] {
        let (layout, _) = import(&node, Packed::gzip(&Archive::default().file(name, b"")));
        node.fails(&["import", &layout, "--name", "r.lan/a"], "removes nothing that has a name");
    }
    // the directory is not there: nothing to remove
    let through = Archive::default().symlink("door", &outside).file("door/.wh.sentinel", b"");
    let (layout, _) = import(&node, Packed::gzip(&through));
    node.ok(&["import", &layout, "--name", "r.lan/a"]);
    untouched();
}

#[test]
fn device_exists_but_opens_nothing_here() {
    let Some(node) = Node::new("hostile-device", &[]) else { return };
    let device = |kind, device| Meta { kind, device, ..Meta::default() };
    refused(&node, Packed::gzip(&Archive::default().entry("x", device(b'3', (0, 0)), b"")), "device 0:0");
    refused(&node, Packed::gzip(&Archive::default().entry("x", device(b'S', (0, 0)), b"")), "sparse");
    refused(
        &node,
        Packed::gzip(&Archive::default().entry("x", device(b'Z', (0, 0)), b"")),
        "which no image has",
    );
    let layer = Archive::default()
        .entry("null", device(b'3', (1, 3)), b"")
        .entry("disk", device(b'4', (8, 0)), b"")
        .entry("pipe", device(b'6', (0, 0)), b"")
        // through the device of this very layer: the mount ignores device nodes
        .file("null/x", b"");
    refused(&node, Packed::gzip(&layer), "null/x");
    let layer =
        Archive::default().entry("null", device(b'3', (1, 3)), b"").entry("pipe", device(b'6', (0, 0)), b"");
    let (layout, _) = import(&node, Packed::gzip(&layer));
    let image = node.ok(&["import", &layout, "--name", "r.lan/a"])[0].clone();
    let top = node.layers(&image)[1].clone();
    let null = fs::metadata(top.join("null")).unwrap();
    assert!(null.file_type().is_char_device() && null.rdev() == 0x103);
    assert!(fs::metadata(top.join("pipe")).unwrap().file_type().is_fifo());
}

#[test]
fn archive_that_is_too_much_is_refused() {
    let Some(node) = Node::new("hostile-bomb", &[]) else { return };
    // 1 GiB of zeros in 1 MiB would be refused after 64 MiB + 100 MiB; here the header alone promises it
    let promised = Meta { size: Some(1 << 32), ..Meta::default() };
    refused(&node, Packed::gzip(&Archive::default().entry("big", promised, b"")), "more room than it may");
    // whiteouts of an older storage driver create nothing, and still count
    let note = Archive::default().file(".wh..wh.x", &vec![0; 1 << 20]).bytes();
    let member = gzip_best(&note[..note.len() - 1024]);
    let bomb = Packed { bytes: member.repeat(96), ..Packed::gzip(&Archive::default()) };
    refused(&node, bomb, "unpacks to more than it may");
    refused(
        &node,
        Packed::gzip(&Archive::default().extended("path", &[b'a'; 5000]).file("x", b"")),
        "5000 bytes",
    );
    let header = Meta { kind: b'L', size: Some(1 << 30), ..Meta::default() };
    refused(&node, Packed::gzip(&Archive::default().entry("x", header, b"")), "");
}

#[test]
fn directories_cost_what_they_take_and_end() {
    let Some(node) = Node::new("hostile-deep", &[]) else { return };
    // directories that no entry lists: one header makes two thousand of them
    let path = vec!["a"; 2000].join("/");
    let deep = Archive::default().extended("path", path.as_bytes()).file("short", b"");
    refused(&node, Packed::gzip(&deep), "below more than 128 directories");
    // and a link that leads to the deepest shortens the path, not the tree
    let most = vec!["a"; 100].join("/");
    let chained = Archive::default()
        .extended("path", format!("{most}/file").as_bytes())
        .file("short", b"")
        .extended("linkpath", format!("/{most}").as_bytes())
        .symlink("s", "short")
        .extended("path", format!("s/{most}/file").as_bytes())
        .file("short", b"");
    refused(&node, Packed::gzip(&chained), "below more than 128 directories");
}

#[test]
fn directories_that_no_entry_lists_cost_room() {
    // in memory: a disk takes minutes to remove them
    let files = kedge_rig::Scratch::in_memory("hostile-many").unwrap();
    let Some(node) = Node::at(&files.join("root")) else { return };
    // of 64 MiB and 100 times the archive 15,000 directories are left; one entry makes 100
    let most = vec!["a"; 100].join("/");
    let mut many = Archive::default();
    for number in 0..250 {
        many = many.extended("path", format!("{number}/{most}/file").as_bytes()).file("short", b"");
    }
    let small = Packed { bytes: gzip_best(&many.bytes()), ..Packed::gzip(&many) };
    refused(&node, small, "more room than it may");
}

/// A million entries, of which the first half already exceeds the limit. They create nothing, so the test
/// takes only the time to reach the limit, and no disk space. They make nothing, so that it costs the limit's
/// time and no disk's.
pub(crate) fn million() -> Packed {
    let some = Archive::default().file(".wh..wh.x", b"").bytes();
    let member = gzip(&some[..512].repeat(100));
    Packed { bytes: member.repeat(10_000), ..Packed::gzip(&Archive::default()) }
}

#[test]
fn layer_of_a_million_entries_is_refused() {
    let Some(node) = Node::new("hostile-million", &[]) else { return };
    refused(&node, million(), "it has more than 500000 entries");
}

#[test]
fn layer_that_the_disk_has_no_inodes_for_is_refused() {
    let Some(node) = Node::new("hostile-inodes", &[]) else { return };
    let disk = SmallDisk::new(&node.scratch.join("disk"), "size=64m,nr_inodes=2000");
    let inside = Node::at(&disk.path.join("root")).unwrap();
    let import = |archive: &Archive| {
        let layout = node.scratch.join("layout");
        let _ = fs::remove_dir_all(&layout);
        Image::new(vec![Packed::gzip(archive)]).write_layout(&layout);
        let words = ["import", layout.to_str().unwrap(), "--name", "r.lan/a"];
        let output = disk.inside(&inside.command(&words)).output().unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let files = |count: usize| {
        (0..count).fold(Archive::default(), |archive, at| archive.file(&format!("f{at}"), b""))
    };
    let why = import(&files(3000));
    assert!(why.contains("it has more than 18") && why.contains("entries; the disk has 18"), "{why}");
    for directory in ["blobs", "layers", "records"] {
        assert_eq!(disk.names(directory), [""; 0], "{directory}");
    }
    // a fault of the archive must not be reported as a full disk
    let why = import(&Archive::default().file("a/../b", b""));
    assert!(why.contains("has \"..\"") && !why.contains("the disk"), "{why}");
    assert_eq!(import(&files(1000)), "");
    assert_eq!(disk.names("records").len(), 1);
}

#[test]
fn layer_that_takes_too_long_is_given_up() {
    let Some(node) = Node::new("hostile-slow", &[]) else { return };
    let files = ImageFiles::open(&node.root().join("images"), PROGRAM.as_ref()).unwrap();
    // the archive never ends: somebody holds the other side of the pipe
    let (archive, held) = std::io::pipe().unwrap();
    let begun = Archive::default().directory("etc").file("etc/a", &[7; 20_000]).bytes();
    let mut writer = held.try_clone().unwrap();
    let writing = std::thread::spawn(move || std::io::Write::write_all(&mut writer, &begun));
    let chain = BlobName::new(BlobDigest::of(b"chain").hex().as_str()).unwrap();
    let limits = Limits { entries: 100, bytes: 1 << 20, time: std::time::Duration::from_secs(1) };
    let archive = std::os::fd::OwnedFd::from(archive).into();
    let steps = vec![Step { archive, packing: "plain", diff: &chain }];
    let unpack = Unpack { chain: &chain, below: &[], steps, limits, cancelled: Cancelled::never() };
    let error = files.layers.unpack(unpack).unwrap_err();
    assert!(matches!(error, UnpackError::TooLong { .. }), "{error:?}");
    assert!(error.to_string().ends_with("not unpacked within 1 s"), "{error}");
    assert_eq!(node.names("layers"), [""; 0]);
    let _ = writing.join().unwrap();
    // the process that read it is gone: nobody reads the pipe any more
    let gone = std::io::Write::write(&mut { held }, b"x").unwrap_err();
    assert_eq!(gone.kind(), std::io::ErrorKind::BrokenPipe);
}

#[test]
fn process_that_unpacks_is_set_apart() {
    if Node::new("hostile-apart", &[]).is_none() {
        return;
    }
    let scratch = kedge_rig::Scratch::new("apart").unwrap();
    let mut child = std::process::Command::new(super::setup::PROGRAM)
        .args(["unpack", "plain", "10", "100000", "60"])
        .current_dir(scratch.path())
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let of = |process: &str, name: &str| fs::read_link(format!("/proc/{process}/ns/{name}")).unwrap();
    let id = child.id().to_string();
    kedge_rig::scratch::wait_until("it is confined", std::time::Duration::from_secs(60), || {
        fs::read_link(format!("/proc/{id}/root")).unwrap() == scratch.path()
    });
    let status = |key: &str| {
        let text = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        text.lines().find_map(|line| line.strip_prefix(key)).unwrap().trim().to_owned()
    };
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let own = own.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap().trim().to_owned();
    // giving up capabilities is the last step before it unpacks
    kedge_rig::scratch::wait_until("it gives up capabilities", std::time::Duration::from_secs(60), || {
        status("CapEff:") != own
    });
    // chown, dac_override, fowner, fsetid, mknod, setfcap: the capabilities that creating other users' files
    // needs
    for set in ["CapEff:", "CapPrm:", "CapBnd:"] {
        assert_eq!(status(set), "000000008800001b", "{set}");
    }
    assert_eq!(
        (status("CapInh:").as_str(), status("CapAmb:").as_str()),
        ("0000000000000000", "0000000000000000")
    );
    assert_eq!(status("NoNewPrivs:"), "1");
    let limits = fs::read_to_string(format!("/proc/{id}/limits")).unwrap();
    let limit = |name: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().to_owned()
    };
    assert_eq!(limit("Max address space"), (384_u64 << 20).to_string());
    assert_eq!(limit("Max open files"), "256");
    assert_eq!(limit("Max cpu time"), "60");
    for name in ["net", "ipc"] {
        assert_ne!(of(&id, name), of("self", name), "{name}");
    }
    let score = fs::read_to_string(format!("/proc/{id}/oom_score_adj")).unwrap();
    assert_eq!(score.trim(), "1000", "it goes before the agent and what runs in containers");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn garbage_is_refused() {
    let Some(node) = Node::new("hostile-garbage", &[]) else { return };
    let whole = Archive::default().file("a", &[7; 5000]).bytes();
    refused(&node, Packed::raw(whole[..3000].to_vec()), "ends");
    refused(&node, Packed::raw(vec![0xff; 4096]), "entry 1");
    let mut cut = Packed::gzip(&Archive::default().file("a", &[7; 5000]));
    cut.bytes.truncate(40);
    refused(&node, cut, "");
    // the right form and other bytes than the config promises
    let mut other = Packed::gzip(&Archive::default().file("a", b"1"));
    other.bytes = gzip(&Archive::default().file("a", b"2").bytes());
    refused(&node, other, "unpacks to");
    // opening it blocks until somebody opens the other end for writing
    let pipe = node.scratch.join("archive.tar");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let import = ["import", pipe.to_str().unwrap(), "--name", "r.lan/pipe"];
    node.fails(&import, "archive.tar is a named pipe, expected a file");
}

#[test]
fn layout_leads_only_within_itself() {
    let Some(node) = Node::new("hostile-layout", &[]) else { return };
    let image = Image::new(vec![Packed::gzip(&Archive::default().file("a", b"1"))]);
    let layout = node.scratch.join("layout");
    image.write_layout(&layout);
    let blob = layout.join("blobs/sha256").join(image.layers[0].digest().hex());
    let elsewhere = node.scratch.join("elsewhere");
    fs::rename(&blob, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &blob).unwrap();
    let path = layout.display().to_string();
    node.fails(&["import", &path, "--name", "r.lan/a"], "blobs/sha256/");
    node.has_nothing();
    node.fails(&["import", &path], "say with --name");
    fs::write(layout.join("index.json"), "[").unwrap();
    node.fails(&["import", &path, "--name", "r.lan/a"], "index.json");
    node.fails(&["import", "/nowhere", "--name", "r.lan/a"], "cannot read /nowhere");
}
