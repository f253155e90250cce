//! A program whose disk misbehaves on demand: full, read-only, failing, or stalled, for files below one
//! directory.
//!
//! The program is the real one; a library preloaded into it fails its calls as the kernel would. The faults
//! can be changed while the program runs, and persist when it is started again. Always holds: files
//! elsewhere, and the test's own calls, are not affected.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::RigError;
use crate::preload;

const LIBRARY: &str = include_str!("bad_disk_preload.c");

/// The fields of the library's struct, eight bytes each, in its order.
#[derive(Clone, Copy)]
enum Field {
    Room,
    ReadOnly,
    FailWrites,
    FailSyncs,
    HangSyncs,
    Hanging,
    Refused,
    FailReads,
    Reads,
}

const FIELDS: usize = 9;

/// The disk of a program. See the module.
#[derive(Debug)]
pub struct BadDisk {
    control: File,
    program: PathBuf,
}

impl BadDisk {
    /// A healthy disk for `program`'s files below `data`. The library and its control file are made in
    /// `directory`.
    ///
    /// # Errors
    /// No C compiler, or the directory cannot be written.
    pub fn new(directory: &Path, program: &Path, data: &Path) -> Result<BadDisk, RigError> {
        let path = directory.join("bad_disk.control");
        let control = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .map_err(RigError::io("make", &path))?;
        control.set_len(8 * FIELDS as u64).map_err(RigError::io("make", &path))?;
        let environment = [
            ("KEDGE_BAD_DISK", path.to_str().unwrap_or_default()),
            ("KEDGE_BAD_DISK_BELOW", data.to_str().unwrap_or_default()),
        ];
        let program = preload::program(directory, "bad_disk", LIBRARY, program, &environment)?;
        let disk = BadDisk { control, program };
        disk.leave_room(None);
        Ok(disk)
    }

    /// The program to run in place of the real one.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Limits the growth of files to this many bytes from now on; `None`: no limit.
    pub fn leave_room(&self, bytes: Option<u32>) {
        self.set(Field::Room, bytes.map_or(-1, i64::from));
    }

    /// The bytes that are left.
    pub fn room(&self) -> i64 {
        self.get(Field::Room)
    }

    /// Makes every change fail with EROFS.
    pub fn read_only(&self, is: bool) {
        self.set(Field::ReadOnly, i64::from(is));
    }

    /// Makes every write fail with EIO.
    pub fn fail_writes(&self, is: bool) {
        self.set(Field::FailWrites, i64::from(is));
    }

    /// Makes one in `of` reads fail with EIO; 0: none.
    pub fn fail_reads(&self, of: u32) {
        self.set(Field::Reads, 0);
        self.set(Field::FailReads, i64::from(of));
    }

    /// Makes the next `count` syncs fail with EIO; `None`: all.
    pub fn fail_syncs(&self, count: Option<u32>) {
        self.set(Field::FailSyncs, count.map_or(-1, i64::from));
    }

    /// Makes syncs hang while this is set.
    pub fn hang_syncs(&self, is: bool) {
        self.set(Field::HangSyncs, i64::from(is));
    }

    /// The number of hanging syncs.
    pub fn hanging(&self) -> i64 {
        self.get(Field::Hanging)
    }

    /// The number of calls that failed because of this disk.
    pub fn refused(&self) -> i64 {
        self.get(Field::Refused)
    }

    fn set(&self, field: Field, value: i64) {
        let written = self.control.write_all_at(&value.to_ne_bytes(), 8 * field as u64);
        written.expect("a control file of 72 bytes can be written");
    }

    fn get(&self, field: Field) -> i64 {
        let mut bytes = [0; 8];
        let read = self.control.read_exact_at(&mut bytes, 8 * field as u64);
        read.expect("a control file of 72 bytes can be read");
        i64::from_ne_bytes(bytes)
    }
}
