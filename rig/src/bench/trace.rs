//! The evaluation of strace's output: files written, flushed, and renamed into place.
//!
//! Always holds: only regular files count (a path that begins with `/` and is not the log); a line that is
//! not recognized as one of the listed calls is not counted, never guessed at.

use std::fs;
use std::path::Path;

use kedge_rig::error::RigError;

/// The traced calls: all that can change a file system.
pub(crate) const CALLS: &str = "trace=open,openat,creat,write,writev,pwrite64,pwritev,pwritev2,rename,renameat,renameat2,unlink,\
unlinkat,rmdir,mkdir,mkdirat,link,linkat,symlink,symlinkat,fsync,fdatasync,sync_file_range,msync,truncate,ftruncate,fallocate,chmod,\
fchmod,fchmodat,utimensat";

/// Counts of changes to files.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Trace {
    /// Names of files renamed into place: one durable write each.
    pub(crate) renamed: Vec<String>,
    /// `fsync` and `fdatasync`.
    pub(crate) syncs: usize,
    /// Bytes written to files.
    pub(crate) bytes: u64,
    /// Calls that change a file system, opening for writing included.
    pub(crate) changes: usize,
}

/// The whole output of `strace -ff -ttt -o PREFIX`, one file per thread (so that no call is split over two
/// lines), in order of time.
pub(crate) fn collect(prefix: &Path) -> Result<String, RigError> {
    let dir = prefix.parent().unwrap_or(Path::new("."));
    let name = prefix.file_name().unwrap_or_default().to_string_lossy().into_owned() + ".";
    let mut lines: Vec<String> = Vec::new();
    for entry in fs::read_dir(dir).map_err(RigError::io("read", dir))?.flatten() {
        if entry.file_name().to_string_lossy().starts_with(&name) {
            let text = fs::read(entry.path()).map_err(RigError::io("read", &entry.path()))?;
            lines.extend(String::from_utf8_lossy(&text).lines().map(str::to_owned));
        }
    }
    // the seconds all have the same number of digits, so the order of text is that of time
    lines.sort();
    Ok(lines.join("\n"))
}

/// Reads lines of strace with `-y`. Paths that end in one of `left_out` do not count.
pub(crate) fn read(text: &str, left_out: &[&str]) -> Trace {
    let mut trace = Trace::default();
    for line in text.lines() {
        // the time, with -ttt
        let line = line.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.' || c == ' ');
        let Some((call, rest)) = line.split_once('(') else { continue };
        if !call.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            continue;
        }
        let Some((arguments, result)) = rest.rsplit_once(" = ") else { continue };
        let done = result.split([' ', '<']).next().and_then(|number| number.parse::<i64>().ok());
        let Some(done) = done.filter(|done| *done >= 0) else { continue };
        let is_out = |path: &str| {
            !path.starts_with('/')
                || path.starts_with("/dev/")
                || left_out.iter().any(|out| path.ends_with(out))
        };
        match call {
            "write" | "writev" | "pwrite64" | "pwritev" | "pwritev2" => {
                if !is_out(descriptor(arguments)) {
                    trace.bytes += done.unsigned_abs();
                    trace.changes += 1;
                }
            }
            "fsync" | "fdatasync" => {
                if !is_out(descriptor(arguments)) {
                    trace.syncs += 1;
                    trace.changes += 1;
                }
            }
            "open" | "openat" => {
                let writes = ["O_WRONLY", "O_RDWR", "O_CREAT"].iter().any(|flag| arguments.contains(flag));
                if writes && !paths(arguments).last().is_some_and(|path| is_out(path)) {
                    trace.changes += 1;
                }
            }
            "rename" | "renameat" | "renameat2" => {
                if let Some(path) = paths(arguments).pop().filter(|path| !is_out(path)) {
                    trace.renamed.push(path);
                    trace.changes += 1;
                }
            }
            _ => {
                let touched = paths(arguments);
                if touched.iter().any(|path| !is_out(path))
                    || touched.is_empty() && !is_out(descriptor(arguments))
                {
                    trace.changes += 1;
                }
            }
        }
    }
    trace
}

/// The path of `3</path>, ...`; empty without one.
fn descriptor(arguments: &str) -> &str {
    let Some((number, rest)) = arguments.split_once('<') else { return "" };
    if !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return "";
    }
    // a temporary file that was removed is shown as </path (deleted)>
    rest.split('>').next().unwrap_or_default()
}

/// The paths in an argument list; a relative one is appended to the directory whose descriptor precedes it.
fn paths(arguments: &str) -> Vec<String> {
    let parts: Vec<&str> = arguments.split('"').collect();
    let pairs = parts.chunks(2).filter_map(|pair| Some((pair.first()?, pair.get(1)?)));
    pairs
        .map(|(before, path)| {
            let directory = before.rsplit_once('<').and_then(|(_, rest)| rest.split('>').next());
            match directory {
                Some(directory) if !path.starts_with('/') => {
                    format!("{}/{path}", directory.trim_end_matches('/'))
                }
                _ => (*path).to_owned(),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durable_write_is_one_rename_and_two_syncs() {
        let text = r#"1795229812.1 openat(AT_FDCWD</>, "/d/.new-1", O_WRONLY|O_CREAT|O_EXCL|O_CLOEXEC, 0600) = 5</d/.new-1>
1795229812.2 write(5</d/.new-1>, "{\"a\": 1}"..., 120) = 120
1795229812.2 fsync(5</d/.new-1>)             = 0
1795229812.2 rename("/d/.new-1", "/d/current") = 0
1795229812.2 fsync(6</d>) = 0
1795229812.3 write(7<socket:[123]>, "x", 1) = 1
1795229812.3 write(2</d/log>, "line", 4) = 4
1795229812.3 openat(AT_FDCWD</>, "/proc/stat", O_RDONLY|O_CLOEXEC) = 9</proc/stat>
1795229812.3 rename("/d/a", "/d/b") = -1 ENOENT (No such file or directory)
1795229812.3 write(8<anon_inode:[eventfd]>, "\1", 8) = 8
1795229812.2 +++ exited with 0 +++
"#;
        let trace = read(text, &["/log"]);
        assert_eq!(trace.renamed, ["/d/current"]);
        assert_eq!((trace.syncs, trace.bytes, trace.changes), (2, 120, 5));
    }

    #[test]
    fn relative_path_is_below_its_descriptor() {
        let trace = read(r#"1 renameat(5</d/c>, ".new", 6</d/c>, "current") = 0"#, &[]);
        assert_eq!(trace.renamed, ["/d/c/current"]);
    }

    #[test]
    fn reads_and_sockets_are_not_counted() {
        let check = |line: &str, expect: usize| assert_eq!(read(line, &["/log"]).changes, expect, "{line}");
        check(r#"1 openat(AT_FDCWD</>, "/etc/x", O_RDONLY) = 3</etc/x>"#, 0);
        check(r#"1 write(1<pipe:[5]>, "x", 1) = 1"#, 0);
        check(r#"1 writev(5<TCP:[1->2]>, [{iov_base="x", iov_len=1}], 1) = 1"#, 0);
        check(r#"1 unlink("/run/x") = 0"#, 1);
        check(r#"1 mkdirat(AT_FDCWD</>, "/d/x", 0700) = 0"#, 1);
        check(r#"1 ftruncate(4</d/y>, 0) = 0"#, 1);
        check(r#"1 unlinkat(5</proc/1>, "x", 0) = 0"#, 1);
        check(r#"1 write(5</d/y>, "x", 1 <unfinished ...>"#, 0);
    }
}
