//! The fake disk answers as the real one does: the same random operations on both give the same answers and
//! leave the same names and contents. Without this, tests on the fake would prove little.
//!
//! Leaves to others: the effects of a power cut, which no running system shows.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use kedge_platform::Kind;
use kedge_platform::fake::{FakeDisk, Random};
use kedge_platform::files::{Operations, ReadOutcome};
use kedge_platform::linux::LinuxDisk;

/// Few names, so that they collide.
const NAMES: [&str; 8] = ["a", "b", "c", "a/a", "a/b", "b/a", "a/b/c", "c/a"];
const SEEDS: u64 = 150;
const STEPS: usize = 120;

/// Performs one operation and returns its answer.
fn step<D: Operations>(disk: &D, choice: u64, from: &Path, to: &Path, content: &[u8]) -> String {
    let outcome = |answer: io::Result<String>| match answer {
        Ok(text) => text,
        Err(error) => format!("{:?}", error.kind()),
    };
    outcome(match choice {
        0 | 1 => create(disk, from, content),
        2 => disk.make_directory(from).map(|()| "made".into()),
        3 => disk.unlink(from).map(|()| "unlinked".into()),
        4 => disk.remove_directory(from).map(|()| "removed".into()),
        5 | 6 => disk.rename(from, to).map(|()| "renamed".into()),
        7 => disk.sync_directory(from).map(|()| "synced".into()),
        8 => disk.kind(from).map(|kind| kind.to_string()),
        9 => disk.read(from, 600).map(|outcome| match outcome {
            ReadOutcome::Content(content) => format!("{} bytes", content.len()),
            other => format!("{other:?}"),
        }),
        _ => disk.list(from, 2).map(|listing| format!("{} {}", listing.entries.len(), listing.truncated)),
    })
}

fn create<D: Operations>(disk: &D, path: &Path, content: &[u8]) -> io::Result<String> {
    let mut handle = disk.create(path)?;
    let taken = disk.write(&mut handle, content)?;
    disk.sync(&handle)?;
    let found = disk.read_back(&mut handle, content.len() + 1)?;
    Ok(format!("wrote {taken}, the same: {}", found == content))
}

/// Every path with its content, directories included.
fn tree<D: Operations>(disk: &D, directory: &Path) -> Vec<(PathBuf, Option<Vec<u8>>)> {
    let listing = disk.list(directory, 100).expect("a directory");
    let mut found = Vec::new();
    for entry in listing.entries {
        let path = directory.join(&entry.name);
        match entry.kind {
            Kind::Directory => {
                found.push((path.clone(), None));
                found.extend(tree(disk, &path));
            }
            _ => match disk.read(&path, 10_000).expect("a file") {
                ReadOutcome::Content(content) => found.push((path, Some(content))),
                other => panic!("{}: {other:?}", path.display()),
            },
        }
    }
    found.sort();
    found
}

#[test]
fn fake_and_real_disk_answer_the_same() {
    let root = kedge_rig::Scratch::new("same").unwrap();
    for seed in 0..SEEDS {
        let mut random = Random::new(seed);
        let (real, fake) = (LinuxDisk::new(root.join(seed.to_string())), FakeDisk::new());
        real.make_root().expect("the temporary directory can be written");
        for number in 0..STEPS {
            let mut name = || Path::new(NAMES[random.below(NAMES.len() as u64) as usize]);
            let (from, to) = (name(), name());
            let choice = random.below(12);
            let content = vec![number as u8; random.below(1500) as usize];
            let answers =
                [&step(&real, choice, from, to, &content), &step(&fake, choice, from, to, &content)];
            assert_eq!(answers[0], answers[1], "seed {seed}, step {number}: {choice} {from:?} {to:?}");
        }
        assert_eq!(tree(&real, Path::new("")), tree(&fake, Path::new("")), "seed {seed}");
        fs::remove_dir_all(real.root()).expect("ours");
    }
}
