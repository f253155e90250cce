//! The files of a ConfigMap, a Secret or a pod's fields in a directory, replaced all at once.
//!
//! The layout is upstream's: `..data` links to a directory `..TIME` with all files, and each first part of a
//! path is a link to `..data/PART`. Always holds: a reader by `..data` sees one complete set of files, old or
//! new, whenever the agent is killed or the power cut; the next call removes the leftovers of such an end;
//! nothing is written when the files are as they should be, so only changes wear out flash. No flush: after a
//! boot, pods are prepared anew, and their files compared. Leaves to others: which files.

use kedge_core::pods::VolumeFile;
use kedge_core::sorted::{SortedMap, SortedSet};
use kedge_platform::linux::open_regular;
use kedge_platform::trees;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown, fchown, symlink,
};
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

/// The link to the present set.
const DATA: &str = "..data";
/// The next link to a set, until it replaces [`DATA`].
const NEXT: &str = "..data_tmp";
/// A new link of a file, until it replaces the old one.
const NEXT_LINK: &str = "..link_tmp";
/// Most directories of one moment, in case the clock does not move.
const SAME_MOMENT: u32 = 1000;

/// Makes these the files of the directory, and removes others. They belong to the `group`, which may read
/// them.
pub(super) fn replace(root: &Path, files: &[VolumeFile], group: Option<u32>) -> io::Result<()> {
    Replacement { root, files, group, step: &mut || Ok(()) }.run()
}

struct Replacement<'a> {
    root: &'a Path,
    files: &'a [VolumeFile],
    group: Option<u32>,
    /// Called before each change; a test returns an error here to stop it.
    step: &'a mut dyn FnMut() -> io::Result<()>,
}

impl Replacement<'_> {
    fn run(&mut self) -> io::Result<()> {
        for file in self.files {
            let mut parts = Path::new(&file.path).components();
            let is_inside = parts.all(|part| matches!(part, Component::Normal(_)));
            if file.path.is_empty() || file.path.starts_with("..") || !is_inside {
                return Err(io::Error::other(format!("{:?} leaves the volume", file.path)));
            }
        }
        let present = self.present();
        let is_right =
            present.as_ref().is_some_and(|set| holds(&self.root.join(set), self.files, self.group));
        let set = match present.clone().filter(|_| is_right) {
            Some(set) => set,
            None => self.write_set()?,
        };
        self.link_files()?;
        self.sweep(&set, present.is_some())
    }

    /// The directory that `..data` leads to.
    fn present(&self) -> Option<OsString> {
        let target = fs::read_link(self.root.join(DATA)).ok()?;
        let mut parts = target.components();
        let (Some(Component::Normal(name)), None) = (parts.next(), parts.next()) else { return None };
        name.as_encoded_bytes().starts_with(b"..").then(|| name.to_owned())
    }

    fn write_set(&mut self) -> io::Result<OsString> {
        let set = self.new_directory()?;
        let directory = self.root.join(&set);
        share(&directory, self.group)?;
        share(self.root, self.group)?;
        for file in self.files {
            (self.step)()?;
            write(&directory, file, self.group)?;
        }
        let next = self.root.join(NEXT);
        remove_link(&next)?;
        (self.step)()?;
        symlink(&set, &next)?;
        (self.step)()?;
        fs::rename(next, self.root.join(DATA))?;
        Ok(set)
    }

    fn new_directory(&mut self) -> io::Result<OsString> {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let micros = i64::try_from(since.as_micros()).unwrap_or_default();
        let time = kedge_api::Timestamp::from_micros(micros).rfc3339_micros();
        let time: String = time
            .trim_end_matches('Z')
            .chars()
            .map(|character| if character.is_ascii_digit() || character == '.' { character } else { '_' })
            .collect();
        for number in 0..SAME_MOMENT {
            let name = if number == 0 { format!("..{time}") } else { format!("..{time}.{number}") };
            (self.step)()?;
            match DirBuilder::new().mode(0o755).create(self.root.join(&name)) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                made => return made.map(|()| name.into()),
            }
        }
        Err(io::Error::other(format!("{SAME_MOMENT} sets of files have the time {time}")))
    }

    fn link_files(&mut self) -> io::Result<()> {
        for name in first_parts(self.files) {
            let (place, target) = (self.root.join(&name), Path::new(DATA).join(&name));
            match fs::read_link(&place) {
                Ok(found) if found == target => continue,
                Ok(_) => {}
                // a file or directory of an older agent, or one that a subPath made
                Err(error) if error.kind() == ErrorKind::InvalidInput => {
                    (self.step)()?;
                    trees::remove(&place)?;
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            let next = self.root.join(NEXT_LINK);
            remove_link(&next)?;
            symlink(target, &next)?;
            (self.step)()?;
            fs::rename(&next, &place)?;
        }
        Ok(())
    }

    /// Removes links of files that are gone, and earlier sets; if the directory had no sets, everything else.
    fn sweep(&mut self, set: &OsStr, had_sets: bool) -> io::Result<()> {
        let wanted = first_parts(self.files);
        for entry in fs::read_dir(self.root)? {
            let entry = entry?;
            let (name, path) = (entry.file_name(), entry.path());
            let is_own = name.as_encoded_bytes().starts_with(b"..");
            let is_link = fs::read_link(&path).is_ok_and(|target| target.starts_with(DATA));
            let goes = match is_own {
                true => name != DATA && name != set,
                false => !wanted.contains(&name) && (is_link || !had_sets),
            };
            if goes {
                (self.step)()?;
                trees::remove(&path)?;
            }
        }
        Ok(())
    }
}

fn first_parts(files: &[VolumeFile]) -> SortedSet<OsString> {
    let first = |file: &VolumeFile| file.path.split('/').next().map(OsString::from);
    files.iter().filter_map(first).collect()
}

fn remove_link(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Shares a directory of files with its group; the umask of the service may have narrowed it.
fn share(directory: &Path, group: Option<u32>) -> io::Result<()> {
    chown(directory, None, group)?;
    let mode = if group.is_some() { 0o2755 } else { 0o755 };
    fs::set_permissions(directory, Permissions::from_mode(mode))
}

fn mode_of(file: &VolumeFile, group: Option<u32>) -> u32 {
    file.mode & 0o777 | if group.is_some() { 0o440 } else { 0 }
}

fn write(directory: &Path, file: &VolumeFile, group: Option<u32>) -> io::Result<()> {
    let path = directory.join(&file.path);
    if let Some(parent) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
        let mut inside = parent.ancestors().take_while(|above| *above != directory);
        inside.try_for_each(|above| share(above, group))?;
    }
    let mut written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    written.write_all(&file.content)?;
    fchown(&written, file.owner, group)?;
    written.set_permissions(Permissions::from_mode(mode_of(file, group)))
}

/// Whether a set has these files and no others.
fn holds(set: &Path, files: &[VolumeFile], group: Option<u32>) -> bool {
    let mut wanted: SortedMap<PathBuf, &VolumeFile> =
        files.iter().map(|file| (set.join(&file.path), file)).collect();
    let mut directories = vec![set.to_owned()];
    while let Some(directory) = directories.pop() {
        let Ok(entries) = fs::read_dir(&directory) else { return false };
        for entry in entries {
            let Ok(entry) = entry else { return false };
            let path = entry.path();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => directories.push(path),
                Ok(kind) if kind.is_file() => {
                    let wanted = wanted.remove(&path);
                    if !wanted.is_some_and(|file| is_same(&path, file, group).unwrap_or(false)) {
                        return false;
                    }
                }
                _ => return false,
            }
        }
    }
    wanted.is_empty()
}

fn is_same(path: &Path, file: &VolumeFile, group: Option<u32>) -> io::Result<bool> {
    let found = open_regular(path)?;
    let metadata = found.metadata()?;
    let is_other = |wanted: Option<u32>, found: u32| wanted.is_some_and(|wanted| wanted != found);
    if metadata.permissions().mode() & 0o7777 != mode_of(file, group)
        || is_other(group, metadata.gid())
        || is_other(file.owner, metadata.uid())
        || metadata.len() != file.content.len() as u64
    {
        return Ok(false);
    }
    let mut content = Vec::with_capacity(file.content.len());
    found.take(metadata.len() + 1).read_to_end(&mut content)?;
    Ok(content == file.content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kedge_rig::Scratch;
    use std::collections::BTreeMap;

    fn files(of: &[(&str, &str)]) -> Vec<VolumeFile> {
        let file = |(path, content): &(&str, &str)| VolumeFile {
            path: (*path).into(),
            mode: 0o440,
            owner: None,
            content: (*content).into(),
        };
        of.iter().map(file).collect()
    }

    /// All files that a container sees, by the paths that it uses.
    fn seen(root: &Path) -> BTreeMap<String, String> {
        fn walk(at: &Path, prefix: &str, seen: &mut BTreeMap<String, String>) {
            for entry in fs::read_dir(at).unwrap().flatten() {
                let name = entry.file_name().into_string().unwrap();
                let path = format!("{prefix}{name}");
                if name.starts_with("..") {
                } else if entry.path().is_dir() {
                    walk(&entry.path(), &format!("{path}/"), seen);
                } else if let Ok(content) = fs::read_to_string(entry.path()) {
                    seen.insert(path, content);
                }
            }
        }
        let mut all = BTreeMap::new();
        walk(root, "", &mut all);
        all
    }

    fn as_seen(files: &[VolumeFile]) -> BTreeMap<String, String> {
        let text = |file: &VolumeFile| String::from_utf8(file.content.clone()).unwrap();
        files.iter().map(|file| (file.path.clone(), text(file))).collect()
    }

    fn own_entries(root: &Path) -> usize {
        let names = fs::read_dir(root).unwrap().flatten().map(|entry| entry.file_name());
        names.filter(|name| name.as_encoded_bytes().starts_with(b"..")).count()
    }

    #[test]
    fn cut_at_any_step_shows_one_set_whole() {
        let old = files(&[("a", "1"), ("x/b", "1"), ("gone", "1")]);
        let new = files(&[("a", "2"), ("x/b", "2"), ("new/c", "2")]);
        for cut in 0.. {
            let scratch = Scratch::new("projection").unwrap();
            replace(&scratch, &old, None).unwrap();
            let mut left = cut;
            let mut step = || {
                left -= 1;
                if left < 0 { Err(io::Error::other("cut")) } else { Ok(()) }
            };
            let done = Replacement { root: &scratch, files: &new, group: None, step: &mut step }.run();
            let set = seen(&scratch.join(DATA));
            assert!(set == as_seen(&old) || set == as_seen(&new), "cut {cut}: {set:?}");
            // by the names that a container uses: files in both sets must be of the same one
            let shown = seen(&scratch);
            assert!(shown["a"] == shown["x/b"], "cut {cut}: {shown:?}");
            replace(&scratch, &new, None).unwrap();
            assert_eq!(seen(&scratch), as_seen(&new), "cut {cut}");
            assert_eq!(own_entries(&scratch), 2, "cut {cut}: one set and the link to it");
            if done.is_ok() {
                assert!(cut > 8, "{cut} steps");
                return;
            }
        }
    }

    #[test]
    fn files_that_are_right_are_not_written_again() {
        let scratch = Scratch::new("projection").unwrap();
        let all = files(&[("a", "1"), ("x/b", "1")]);
        replace(&scratch, &all, None).unwrap();
        let before = fs::read_link(scratch.join(DATA)).unwrap();
        replace(&scratch, &all, None).unwrap();
        assert_eq!(fs::read_link(scratch.join(DATA)).unwrap(), before);
        let check = |change: &dyn Fn(&mut Vec<VolumeFile>)| {
            replace(&scratch, &all, None).unwrap();
            let before = fs::read_link(scratch.join(DATA)).unwrap();
            let mut other = all.clone();
            change(&mut other);
            replace(&scratch, &other, None).unwrap();
            assert_ne!(fs::read_link(scratch.join(DATA)).unwrap(), before);
            assert_eq!(seen(&scratch), as_seen(&other));
        };
        check(&|files| files[0].content = b"2".to_vec());
        check(&|files| files[0].mode = 0o600);
        check(&|files| files.truncate(1));
        check(&|files| files.push(VolumeFile { path: "c".into(), ..files[0].clone() }));
        check(&|files| files.clear());
    }

    #[test]
    fn plain_files_of_an_older_agent_are_replaced() {
        let scratch = Scratch::new("projection").unwrap();
        fs::create_dir(scratch.join("x")).unwrap();
        for path in ["a", "x/b", "old"] {
            fs::write(scratch.join(path), "0").unwrap();
        }
        let all = files(&[("a", "1"), ("x/b", "1")]);
        replace(&scratch, &all, None).unwrap();
        assert_eq!(seen(&scratch), as_seen(&all));
        assert!(fs::symlink_metadata(scratch.join("x")).unwrap().is_symlink());
    }

    #[test]
    fn files_belong_to_the_group_and_the_owner() {
        if fs::metadata("/proc/self").unwrap().uid() != 0 {
            return;
        }
        let scratch = Scratch::new("projection").unwrap();
        let mut all = files(&[("a", "1"), ("x/b", "1")]);
        (all[1].mode, all[1].owner) = (0o600, Some(7));
        replace(&scratch, &all, Some(9)).unwrap();
        let check = |path: &str, expect| {
            let found = fs::metadata(scratch.join(path)).unwrap();
            assert_eq!((found.uid(), found.gid(), found.mode() & 0o7777), expect, "{path}");
        };
        let root = fs::metadata(&*scratch).unwrap().uid();
        check("a", (root, 9, 0o440));
        check("x", (root, 9, 0o2755));
        check("x/b", (7, 9, 0o640));
        let before = fs::read_link(scratch.join(DATA)).unwrap();
        replace(&scratch, &all, Some(9)).unwrap();
        assert_eq!(fs::read_link(scratch.join(DATA)).unwrap(), before, "they are right");
    }

    #[test]
    fn directory_that_a_sub_path_made_stays() {
        let scratch = Scratch::new("projection").unwrap();
        replace(&scratch, &files(&[("a", "1")]), None).unwrap();
        fs::create_dir(scratch.join("made")).unwrap();
        replace(&scratch, &files(&[("a", "2")]), None).unwrap();
        assert!(scratch.join("made").is_dir(), "a container has it mounted");
        replace(&scratch, &files(&[("made", "2")]), None).unwrap();
        assert_eq!(fs::read_to_string(scratch.join("made")).unwrap(), "2");
    }
}
