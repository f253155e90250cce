//! A hundred thousand things beside the records: leftovers of our own, and other people's.

use crate::board::{Board, State};
use crate::disks::Mount;
use crate::foreign::is_root;
use crate::{Rest, check_spoilt};
use std::fs;
use std::path::Path;

const MANY: usize = 100_000;

/// Each is put into a directory of its own state, in memory: a real disk takes minutes to make so many.
fn check(what: &str, make: impl Fn(&Path, usize), rest: Rest, ours_below: Option<&str>) {
    check_log(what, make, rest, ours_below, "");
}

/// The same; the log must have this text.
fn check_log(what: &str, make: impl Fn(&Path, usize), rest: Rest, ours_below: Option<&str>, said: &str) {
    let mut board = Board::used();
    let Some(_mount) = Mount::new(board.root(), "size=1g,nr_inodes=0") else { return };
    State::used().write(board.root());
    for number in 0..MANY {
        make(&board.root().join("config"), number);
    }
    check_spoilt(&mut board, what, rest, said);
    if let Some(directory) = ours_below {
        let left = fs::read_dir(board.root().join(directory)).unwrap().count();
        // at least two starts, each with its own limit
        assert!(left < MANY - 30_000, "{what}: {left} are left");
    }
}

fn file(path: std::path::PathBuf) {
    fs::File::create(path).unwrap();
}

#[test]
fn leftovers_100000_delay_no_start() {
    if !is_root("leftovers") {
        return;
    }
    let temporary = |config: &Path, number| file(config.join(format!(".kedge-new-1-{number}")));
    check("temporary files", temporary, Rest::Assigned, Some("config"));
    let of_tried = format!("checkpoints/{}", State::used().tried);
    let checkpoint = |config: &Path, number| file(config.join(&of_tried).join(format!("old-{number}")));
    check("old checkpoints", checkpoint, Rest::Assigned, Some(&format!("config/{of_tried}")));
    let map =
        |config: &Path, number| fs::create_dir(config.join(format!("checkpoints/uid-{number}"))).unwrap();
    check("checkpoint directories", map, Rest::Assigned, Some("config/checkpoints"));
}

#[test]
fn foreign_files_100000_delay_no_start() {
    if !is_root("files of others") {
        return;
    }
    check("files", |config, number| file(config.join(format!("photo-{number}.jpg"))), Rest::Assigned, None);
    let aside = |config: &Path, number| file(config.join(format!("current.corrupt-{number}")));
    check("what was set aside", aside, Rest::Assigned, None);
    let hidden = |config: &Path, number| {
        if number == 0 {
            let counts = config.join("0.1.0/startups.json");
            fs::rename(&counts, counts.with_file_name("startups.json.corrupt-3")).unwrap();
        }
        file(config.join(format!("0.1.0/note-{number}")));
    };
    let said = "startups.json is unknown: it was set aside";
    check_log("files beside counts set aside", hidden, Rest::Assigned, None, said);
}
