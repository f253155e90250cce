//! The power is cut within every operation of every durable call, and all changes that were not durable are
//! kept, lost, torn or reordered in every way that the fake disk knows.
//!
//! Always holds: after the cut each name has its old content or its new one; after `Ok`, the new one; and the
//! next start can sweep, read and write. The checker itself is checked: without either sync it must find a
//! fault.
//!
//! Leaves to others: real file systems under a real block layer (the hardware tests).

use std::path::Path;

use kedge_platform::fake::{self, FakeDisk, Loss, Operation, Random};
use kedge_platform::files::{
    Operations, RESERVE_BYTES, SET_ASIDE_KEPT, TEMPORARY_PREFIX, clear_for_directory,
};
use kedge_platform::{Files, Kind, WriteError};

/// Number of random losses that are tried at each cut.
const SEEDS: u64 = 50;
const LIMIT: usize = 64 * 1024;
const EPERM: i32 = 1;
const EIO: i32 = 5;

/// Some calls, and the allowed results after a power cut.
struct Story {
    /// Prepares the content of the disk, all of it durable unless stated otherwise.
    before: fn(&FakeDisk),
    /// The calls of the program; returns the number of acknowledged steps.
    act: fn(&dyn Files) -> usize,
    /// Judges the disk after the cut, given the number of acknowledged steps; returns the fault.
    judge: fn(&FakeDisk, usize) -> Result<(), String>,
}

struct Findings {
    states: usize,
    wrong: Vec<String>,
}

impl Story {
    fn explore(&self, sabotage: fn(&FakeDisk), enough: fn(&Findings) -> bool) -> Findings {
        let mut findings = Findings { states: 0, wrong: Vec::new() };
        let operations = self.operations(sabotage);
        // One more than there are: a cut at rest, after everything was acknowledged.
        for cut in 0..=operations {
            for loss in Loss::all(SEEDS) {
                findings.states += 1;
                if enough(&findings) {
                    return findings;
                }
                if let Err(wrong) = self.cut_at(cut, loss, sabotage) {
                    findings.wrong.push(format!("cut in operation {cut} of {operations}, {loss:?}: {wrong}"));
                }
            }
        }
        findings
    }

    fn operations(&self, sabotage: fn(&FakeDisk)) -> u64 {
        let disk = FakeDisk::new();
        (self.before)(&disk);
        sabotage(&disk);
        let before = disk.operations();
        (self.act)(&*fake::files(&disk));
        disk.operations() - before
    }

    fn cut_at(&self, cut: u64, loss: Loss, sabotage: fn(&FakeDisk)) -> Result<(), String> {
        let disk = FakeDisk::new();
        (self.before)(&disk);
        sabotage(&disk);
        disk.cut_power_after(cut);
        let acknowledged = (self.act)(&*fake::files(&disk));
        disk.cut_power();
        disk.reboot(loss);
        disk.heal();
        (self.judge)(&disk, acknowledged)?;
        usable(&disk)
    }

    fn holds(&self) {
        let findings = self.explore(|_| {}, |_| false);
        let first = findings.wrong.first();
        assert!(first.is_none(), "{} of {} wrong, first: {first:?}", findings.wrong.len(), findings.states);
        assert!(findings.states > 150, "only {} states: the story does too little", findings.states);
    }

    fn is_caught(&self, sabotage: fn(&FakeDisk)) {
        let findings = self.explore(sabotage, |findings| !findings.wrong.is_empty());
        assert!(!findings.wrong.is_empty(), "the checker found nothing in {} states", findings.states);
    }
}

/// The next start sweeps, and must find a disk that it can work with.
fn usable(disk: &FakeDisk) -> Result<(), String> {
    let files = fake::files(disk);
    let report = files.sweep(&|_| true, 1000);
    if report.error_count != 0 || report.truncated {
        return Err(format!("sweep: {report:?}"));
    }
    let leftover = disk.paths().into_iter().find(|path| path.to_string_lossy().contains(TEMPORARY_PREFIX));
    if let Some(leftover) = leftover {
        return Err(format!("left over: {}", leftover.display()));
    }
    files.write_durably(Path::new("after/the/cut"), b"works").map_err(|error| error.to_string())?;
    match files.read(Path::new("after/the/cut"), LIMIT) {
        Ok(content) if content == b"works" => Ok(()),
        other => Err(format!("reading what was just written: {other:?}")),
    }
}

/// Recognizable content of several sectors: version `n`, `n` times 700 bytes.
fn version(n: usize) -> Vec<u8> {
    (0..n * 700).map(|index| (index * 31 + n * 7 + index / 512) as u8).collect()
}

/// The version that a file has: 0 when it does not exist.
fn version_of(disk: &FakeDisk, path: &str) -> Result<usize, String> {
    let Some(content) = disk.content(path) else { return Ok(0) };
    match content.len() / 700 {
        n if n > 0 && content == version(n) => Ok(n),
        _ => Err(format!("{path} has {} bytes of no version", content.len())),
    }
}

/// Performs steps until one fails; returns the number of acknowledged ones.
fn steps<'a>(steps: impl IntoIterator<Item = Box<dyn Fn() -> Result<(), WriteError> + 'a>>) -> usize {
    steps.into_iter().take_while(|step| step().is_ok()).count()
}

const REPLACE: Story = Story {
    before: |disk| disk.put("current", &version(1)),
    act: |files| usize::from(files.write_durably(Path::new("current"), &version(3)).is_ok()),
    judge: |disk, acknowledged| match version_of(disk, "current")? {
        3 => Ok(()),
        1 if acknowledged == 0 => Ok(()),
        other => Err(format!("version {other}, acknowledged {acknowledged}")),
    },
};

const FIRST_WRITE: Story = Story {
    before: |_| {},
    act: |files| usize::from(files.write_durably(Path::new("a/b/c"), &version(2)).is_ok()),
    judge: |disk, acknowledged| match version_of(disk, "a/b/c")? {
        2 => Ok(()),
        0 if acknowledged == 0 => Ok(()),
        other => Err(format!("version {other}, acknowledged {acknowledged}")),
    },
};

/// A directory that another process made and did not sync: that it exists is not enough.
const UNSYNCED_DIRECTORY: Story = Story {
    before: |disk| disk.make_directory(Path::new("a")).expect("an empty disk"),
    act: FIRST_WRITE.act,
    judge: FIRST_WRITE.judge,
};

/// Six versions of one record, one after another.
const RECORD: Story = Story {
    before: |_| {},
    act: |files| {
        steps((1..=6).map(|n| {
            Box::new(move || files.write_durably(Path::new("v1/record"), &version(n))) as Box<dyn Fn() -> _>
        }))
    },
    judge: |disk, acknowledged| match version_of(disk, "v1/record")? {
        found if found == acknowledged || found == acknowledged + 1 => Ok(()),
        found => Err(format!("version {found}, acknowledged {acknowledged}")),
    },
};

/// A checkpoint, then a record that refers to it: if the record exists, its checkpoint is complete.
const NAMED_BY_A_RECORD: Story = Story {
    before: |disk| disk.put("current", &version(1)),
    act: |files| {
        let checkpoint = || files.write_durably(Path::new("checkpoints/7f3c/5"), &version(9));
        let record = || files.write_durably(Path::new("current"), &version(2));
        steps([Box::new(checkpoint) as Box<dyn Fn() -> _>, Box::new(record)])
    },
    judge: |disk, acknowledged| {
        let (checkpoint, record) = (version_of(disk, "checkpoints/7f3c/5")?, version_of(disk, "current")?);
        match (record, checkpoint) {
            (2, 9) => Ok(()),
            (1, 9) if acknowledged <= 1 => Ok(()),
            (1, 0) if acknowledged == 0 => Ok(()),
            other => Err(format!("{other:?}, acknowledged {acknowledged}")),
        }
    },
};

const SET_ASIDE: Story = Story {
    before: |disk| disk.put("d/record", &version(4)),
    act: |files| usize::from(files.set_aside(Path::new("d/record")).is_ok()),
    judge: |disk, acknowledged| {
        let (old, aside) = (version_of(disk, "d/record")?, version_of(disk, "d/record.corrupt-1")?);
        match (old, aside) {
            (0, 4) => Ok(()),
            // A rename that is visible under both names, or not at all.
            (4, 4 | 0) if acknowledged == 0 => Ok(()),
            other => Err(format!("{other:?}, acknowledged {acknowledged}")),
        }
    },
};

/// The ring is full: the oldest is removed, the newest stays, whenever the power is cut.
const SET_ASIDE_AGAIN: Story = Story {
    before: |disk| {
        (1..=5).for_each(|n| disk.put(format!("record.corrupt-{n}"), &version(n)));
        disk.put("record", &version(6));
    },
    act: SET_ASIDE_IN_ROOT,
    judge: |disk, acknowledged| {
        let kept = disk.paths().iter().filter(|path| path.to_string_lossy().contains("corrupt")).count();
        let newest = [version_of(disk, "record")?, version_of(disk, "record.corrupt-6")?];
        let others = (2..=5).all(|n| version_of(disk, &format!("record.corrupt-{n}")) == Ok(n));
        if acknowledged > 0 && newest != [0, 6] || !newest.contains(&6) {
            return Err(format!("the newest is {newest:?}, acknowledged {acknowledged}"));
        }
        if !others || kept > SET_ASIDE_KEPT as usize + 1 {
            return Err(format!("{kept} kept: {:?}", disk.paths()));
        }
        Ok(())
    },
};

const SET_ASIDE_IN_ROOT: fn(&dyn Files) -> usize =
    |files| usize::from(files.set_aside(Path::new("record")).is_ok());

/// A file that is set aside and replaced exists at every moment, and its old content is not lost.
const KEEP_ASIDE: Story = Story {
    before: |disk| disk.put("d/record", &version(3)),
    act: |files| {
        let path = Path::new("d/record");
        usize::from(files.keep_aside(path).and_then(|_| files.write_durably(path, &version(4))).is_ok())
    },
    judge: |disk, acknowledged| {
        let (there, aside) = (version_of(disk, "d/record")?, version_of(disk, "d/record.corrupt-1")?);
        match (there, aside) {
            (4, 3) => Ok(()),
            (3, 0 | 3) if acknowledged == 0 => Ok(()),
            other => Err(format!("versions {other:?}, acknowledged {acknowledged}")),
        }
    },
};

const REMOVE: Story = Story {
    before: |disk| disk.put("d/record", &version(4)),
    act: |files| usize::from(files.remove(Path::new("d/record")).is_ok()),
    judge: |disk, acknowledged| match version_of(disk, "d/record")? {
        0 => Ok(()),
        4 if acknowledged == 0 => Ok(()),
        other => Err(format!("version {other}, acknowledged {acknowledged}")),
    },
};

const REMOVE_TREE: Story = Story {
    before: |disk| (1..=6).for_each(|n| disk.put(format!("d/{}/{n}", n % 3), &version(n))),
    act: |files| usize::from(files.remove(Path::new("d")).is_ok()),
    judge: |disk, acknowledged| {
        for n in 1..=6 {
            match version_of(disk, &format!("d/{}/{n}", n % 3))? {
                0 => {}
                found if found == n && acknowledged == 0 => {}
                other => return Err(format!("version {other} of {n}, acknowledged {acknowledged}")),
            }
        }
        Ok(())
    },
};

/// A directory in the place of the file is not lost, and the file is written.
const DIRECTORY_IN_THE_WAY: Story = Story {
    before: |disk| disk.put("current/inside", &version(5)),
    act: |files| usize::from(files.write_durably(Path::new("current"), &version(2)).is_ok()),
    judge: |disk, acknowledged| {
        let inside = [
            version_of(disk, "current/inside").unwrap_or(0),
            version_of(disk, "current.corrupt-1/inside").unwrap_or(0),
        ];
        let written = version_of(disk, "current")?;
        if !inside.contains(&5) {
            return Err(format!("what was in the way is lost: {:?}", disk.paths()));
        }
        if acknowledged > 0 && written != 2 {
            return Err(format!("version {written}, acknowledged"));
        }
        Ok(())
    },
};

/// A file in place of the root's directory is not lost, and is moved aside once.
const FILE_IN_PLACE_OF_A_DIRECTORY: Story = Story {
    before: |disk| disk.put("state", &version(5)),
    act: |files| usize::from(clear_for_directory(files, Path::new("state")).is_ok_and(|it| it.is_some())),
    judge: |disk, acknowledged| {
        match (version_of(disk, "state")?, version_of(disk, "state.corrupt-1")?) {
            (0, 5) => Ok(()),
            (5, 0 | 5) if acknowledged == 0 => Ok(()),
            other => Err(format!("versions {other:?}, acknowledged {acknowledged}")),
        }?;
        let files = fake::files(disk);
        clear_for_directory(&*files, Path::new("state")).map_err(|error| error.to_string())?;
        files.write_durably(Path::new("state/record"), b"new").map_err(|error| error.to_string())?;
        match clear_for_directory(&*files, Path::new("state")) {
            Ok(None) => Ok(()),
            other => Err(format!("a directory made way: {other:?}")),
        }
    },
};

/// A full disk: the verdict is written in the reserve's place.
const VERDICT_ON_A_FULL_DISK: Story = Story {
    before: |disk| {
        disk.put("bad-configs.json", &version(1));
        fake::files(disk).ensure_reserve(RESERVE_BYTES).expect("an empty disk");
        disk.set_space_bytes(Some(disk.used_bytes()));
    },
    act: |files| usize::from(files.write_durably(Path::new("bad-configs.json"), &version(2)).is_ok()),
    judge: |disk, acknowledged| match version_of(disk, "bad-configs.json")? {
        2 => Ok(()),
        1 if acknowledged == 0 => Ok(()),
        other => Err(format!("version {other}, acknowledged {acknowledged}")),
    },
};

#[test]
fn cut_replace_leaves_the_old_or_the_new_file() {
    REPLACE.holds();
}

#[test]
fn cut_first_write_is_whole_or_absent() {
    FIRST_WRITE.holds();
}

#[test]
fn file_in_place_of_a_directory_makes_way() {
    FILE_IN_PLACE_OF_A_DIRECTORY.holds();
    FILE_IN_PLACE_OF_A_DIRECTORY.is_caught(|disk| disk.ignore_sync_directory(true));
}

#[test]
fn unsynced_directory_is_synced_before_use() {
    UNSYNCED_DIRECTORY.holds();
}

#[test]
fn rewritten_record_never_goes_back() {
    RECORD.holds();
}

#[test]
fn record_never_names_a_missing_checkpoint() {
    NAMED_BY_A_RECORD.holds();
}

#[test]
fn quarantined_file_is_never_lost() {
    SET_ASIDE.holds();
    SET_ASIDE_AGAIN.holds();
}

#[test]
fn cut_remove_leaves_a_whole_file_or_none() {
    REMOVE.holds();
    REMOVE_TREE.holds();
}

#[test]
fn directory_in_place_of_a_file_is_kept() {
    DIRECTORY_IN_THE_WAY.holds();
}

#[test]
fn verdict_on_a_full_disk_is_whole_or_absent() {
    VERDICT_ON_A_FULL_DISK.holds();
}

#[test]
fn missing_file_fsync_is_caught() {
    for story in [REPLACE, FIRST_WRITE, RECORD, NAMED_BY_A_RECORD, VERDICT_ON_A_FULL_DISK] {
        story.is_caught(|disk| disk.ignore_sync(true));
    }
}

#[test]
fn kept_file_is_there_at_every_moment() {
    KEEP_ASIDE.holds();
}

/// vfat has no hard links: there it is a copy.
#[test]
fn file_kept_by_a_copy_is_there_at_every_moment() {
    let findings = KEEP_ASIDE.explore(|disk| disk.fail_every(Operation::Link, EPERM), |_| false);
    assert_eq!(findings.wrong, Vec::<String>::new());
    assert!(findings.states > 150, "only {} states: the story does too little", findings.states);
}

#[test]
fn missing_directory_fsync_is_caught() {
    for story in
        [REPLACE, FIRST_WRITE, UNSYNCED_DIRECTORY, RECORD, NAMED_BY_A_RECORD, SET_ASIDE, REMOVE, REMOVE_TREE]
    {
        story.is_caught(|disk| disk.ignore_sync_directory(true));
    }
}

#[test]
fn write_in_place_is_caught() {
    let in_place = Story {
        act: |files| {
            // A plain write to the name: the old content is gone before the new one exists.
            usize::from(files.remove(Path::new("current")).is_ok() && (REPLACE.act)(files) == 1)
        },
        ..REPLACE
    };
    in_place.is_caught(|_| {});
}

#[test]
fn unsynced_write_is_torn_by_the_fake_disk() {
    let torn = Loss::all(SEEDS).filter(|loss| {
        let disk = FakeDisk::new();
        disk.ignore_sync(true);
        (REPLACE.before)(&disk);
        (REPLACE.act)(&*fake::files(&disk));
        disk.reboot(*loss);
        version_of(&disk, "current").is_err()
    });
    assert!(torn.count() > 10);
}

#[test]
fn the_same_seed_loses_the_same() {
    for seed in 0..20 {
        let after = || {
            let disk = FakeDisk::new();
            disk.ignore_sync(true);
            (RECORD.act)(&*fake::files(&disk));
            disk.reboot(Loss::Chance(seed));
            disk.paths().into_iter().map(|path| (disk.content(&path), path)).collect::<Vec<_>>()
        };
        assert_eq!(after(), after());
    }
}

#[test]
fn second_cut_loses_nothing_more() {
    // The second cut happens during the sweep and the write of the start after the first.
    for first in 0..12 {
        for second in 0..16 {
            for seed in 0..12 {
                let disk = FakeDisk::new();
                (REPLACE.before)(&disk);
                disk.cut_power_after(first);
                (REPLACE.act)(&*fake::files(&disk));
                disk.cut_power();
                disk.reboot(Loss::Chance(seed));
                let between = version_of(&disk, "current").unwrap();
                disk.cut_power_after(second);
                let files = fake::files(&disk);
                files.sweep(&|_| true, 1000);
                let acknowledged = files.write_durably(Path::new("current"), &version(7)).is_ok();
                disk.cut_power();
                disk.reboot(Loss::Chance(seed + 100));
                let found = version_of(&disk, "current").unwrap();
                assert!(
                    found == 7 || (found == between && !acknowledged),
                    "{first} {second} {seed}: {found}"
                );
                usable(&disk).unwrap();
            }
        }
    }
}

#[test]
fn content_once_read_survives_a_later_cut() {
    type Act = fn(&dyn Files) -> Result<(), WriteError>;
    let check = |act: Act, by_the_next_start: bool| {
        for loss in Loss::all(SEEDS) {
            let disk = FakeDisk::new();
            let files = fake::files(&disk);
            files.write_durably(Path::new("v1/current"), &version(1)).unwrap();
            files.read(Path::new("v1/current"), LIMIT).unwrap();
            // the new name is visible but not durable, as if killed before the last sync
            disk.fail_every(Operation::SyncDirectory, EIO);
            act(&*files).unwrap_err();
            disk.heal();
            let read = |files: &dyn Files| files.read(Path::new("v1/current"), LIMIT).ok();
            let reader = if by_the_next_start { fake::files(&disk) } else { files };
            let before = read(&*reader);
            disk.cut_power();
            disk.reboot(loss);
            assert_eq!(read(&*fake::files(&disk)), before, "{loss:?}, next start: {by_the_next_start}");
        }
    };
    for by_the_next_start in [true, false] {
        check(|files| files.write_durably(Path::new("v1/current"), &version(2)), by_the_next_start);
        check(|files| files.set_aside(Path::new("v1/current")).map(drop), by_the_next_start);
        check(|files| files.remove(Path::new("v1/current")), by_the_next_start);
        check(|files| files.remove(Path::new("v1")), by_the_next_start);
    }
}

/// The contents that each name may have: the last acknowledged one, and any attempted since without an
/// answer.
type Possible = Vec<Vec<usize>>;

/// One run of a program: random calls, some of which meet a failing, full, interrupted or dying disk.
fn run_program(disk: &FakeDisk, random: &mut Random, names: &[&str], possible: &mut Possible) {
    let files = fake::files(disk);
    files.sweep(&|_| true, 1000);
    let _ = files.ensure_reserve(RESERVE_BYTES);
    for _ in 0..random.below(25) {
        match random.below(12) {
            0 => disk.fail_after(random.below(8), 5),
            1 => disk.cut_power_after(random.below(12)),
            2 => disk.interrupt(true, Some(1 + random.below(900) as usize)),
            3 => disk.set_space_bytes(Some(disk.used_bytes() + random.below(3) as usize * 4096)),
            4 => disk.flip_a_bit_next(),
            5 => disk.heal(),
            _ => {}
        }
        if disk.is_off() {
            return;
        }
        let index = random.below(names.len() as u64) as usize;
        let path = Path::new(names[index]);
        let (wanted, done) = match random.below(6) {
            0 => (0, files.remove(path).is_ok()),
            1 => (0, files.set_aside(path).is_ok()),
            _ => {
                let wanted = 1 + random.below(15) as usize;
                (wanted, files.write_durably(path, &version(wanted)).is_ok())
            }
        };
        if done {
            possible[index].clear();
        }
        possible[index].push(wanted);
    }
}

#[test]
fn faults_and_cuts_leave_only_written_content() {
    let names = ["current", "v1/startups.json", "v1/bad-configs.json", "checkpoints/7f3c/5"];
    let mut unanswered = 0;
    for seed in 0..400 {
        let mut random = Random::new(seed);
        let disk = FakeDisk::new();
        let mut possible: Possible = vec![vec![0]; names.len()];
        for _ in 0..4 {
            run_program(&disk, &mut random, &names, &mut possible);
            disk.cut_power();
            disk.reboot(Loss::Chance(random.number()));
            disk.heal();
            for (name, possible) in names.iter().zip(&mut possible) {
                let found = version_of(&disk, name).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
                assert!(
                    possible.contains(&found),
                    "seed {seed}: {name} is {found}, expected one of {possible:?}"
                );
                unanswered += usize::from(possible.len() > 1);
                *possible = vec![found];
            }
        }
        usable(&disk).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
    assert!(unanswered > 200, "only {unanswered} names were ever in doubt");
}

#[test]
fn every_kind_of_file_can_be_quarantined() {
    for kind in [Kind::File, Kind::Directory, Kind::Symlink, Kind::Fifo, Kind::Socket, Kind::Device] {
        let disk = FakeDisk::new();
        for round in 0..20 {
            disk.put_kind("record", kind);
            let aside = fake::files(&disk).set_aside(Path::new("record")).unwrap();
            assert_eq!(aside, Path::new(&format!("record.corrupt-{}", round % 6 + 1)), "{kind}");
            assert!(disk.kind(Path::new("record")).is_err());
            assert_eq!(disk.kind(&aside).unwrap(), kind);
            let kept = disk.list(Path::new(""), 100).unwrap().entries.len();
            assert!(kept <= SET_ASIDE_KEPT as usize, "{kind}: {kept} kept in round {round}");
        }
    }
}
