//! Programs of the agent beside the packaged one: `versions/SHA256/kedge`.
//!
//! Always holds: a program has its name only when its whole content is on the disk, was read back and is the
//! right one; the packaged program is never written. A program that any process still runs is not removed,
//! because shims, sessions and the port for kubectl keep the one that they began with.

use super::starter::digest;
use kedge_core::system::starter::Chosen;
use kedge_platform::linux;
use std::fs::{self, File, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Every user may start it, independent of the service's umask.
const MODE: u32 = 0o755;

/// Installs a program; it need not be started. One that is there is kept.
///
/// # Errors
/// The place cannot be written or executes nothing, or the content is another one.
pub(crate) fn install(versions: &Path, chosen: &Chosen, content: &mut impl Read) -> Result<(), String> {
    let place = super::starter::place(versions, chosen);
    let folder = versions.join(&chosen.program);
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error: io::Error| format!("cannot install {}: {error}", path.display())
    };
    if digest(&place).is_ok_and(|found| found == chosen.program) {
        return Ok(());
    }
    for folder in [versions, &folder] {
        fs::create_dir_all(folder).map_err(failed(folder))?;
        fs::set_permissions(folder, Permissions::from_mode(MODE)).map_err(failed(folder))?;
    }
    if linux::is_noexec(versions).map_err(failed(versions))? {
        return Err(format!("cannot install {}: it is mounted noexec", place.display()));
    }
    let fresh = folder.join("kedge.new");
    let written = (|| {
        let mut file = File::create(&fresh)?;
        io::copy(content, &mut file)?;
        file.set_permissions(Permissions::from_mode(MODE))?;
        file.sync_all()?;
        digest(&fresh)
    })();
    match written.map_err(failed(&fresh)) {
        Ok(found) if found == chosen.program => {}
        other => {
            let _ = fs::remove_dir_all(&folder);
            other?;
            return Err(format!("the program is damaged: its digest is not {}", chosen.program));
        }
    }
    fs::rename(&fresh, &place).map_err(failed(&place))?;
    for folder in [&folder, versions, versions.parent().unwrap_or(versions)] {
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed(folder))?;
    }
    Ok(())
}

/// Removes all programs but these and those that a process runs.
pub(crate) fn sweep(versions: &Path, proc: &Path, kept: &[Chosen]) {
    let Ok(entries) = fs::read_dir(versions) else { return };
    let mut running: Option<Vec<PathBuf>> = None;
    for entry in entries.flatten() {
        let folder = entry.path();
        if kept.iter().any(|kept| folder.ends_with(&kept.program)) {
            continue;
        }
        let running = running.get_or_insert_with(|| executables(proc));
        if running.iter().any(|program| program.starts_with(&folder)) {
            continue;
        }
        if let Err(error) = fs::remove_dir_all(&folder) {
            log::warn!("cannot remove {}: {error}", folder.display());
        }
    }
}

fn executables(proc: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    entries.filter_map(|entry| fs::read_link(entry.path().join("exe")).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kedge_platform::slots::digest_of;

    fn chosen(content: &[u8]) -> Chosen {
        Chosen { program: digest_of(content, 1 << 20).unwrap(), digest: "sha256:manifest".to_owned() }
    }

    #[test]
    fn program_is_installed_whole_and_executable() {
        let scratch = kedge_rig::Scratch::new("install").unwrap();
        let versions = scratch.join("lib/versions");
        let chosen = chosen(b"program");
        for _ in 0..2 {
            install(&versions, &chosen, &mut &b"program"[..]).unwrap();
            let place = versions.join(&chosen.program).join("kedge");
            assert_eq!(fs::read(&place).unwrap(), b"program");
            assert_eq!(place.metadata().unwrap().permissions().mode() & 0o777, MODE);
        }
    }

    #[test]
    fn damaged_program_is_not_installed() {
        let scratch = kedge_rig::Scratch::new("install").unwrap();
        let chosen = chosen(b"program");
        for content in [&b""[..], b"progra", b"program and more", b"Program"] {
            let why = install(scratch.path(), &chosen, &mut &*content).unwrap_err();
            assert!(why.contains("is damaged"), "{why}");
            assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn installed_program_that_was_damaged_is_replaced() {
        let scratch = kedge_rig::Scratch::new("install").unwrap();
        let chosen = chosen(b"program");
        let place = scratch.join(&chosen.program).join("kedge");
        install(scratch.path(), &chosen, &mut &b"program"[..]).unwrap();
        fs::write(&place, "rotten").unwrap();
        install(scratch.path(), &chosen, &mut &b"program"[..]).unwrap();
        assert_eq!(fs::read(&place).unwrap(), b"program");
    }

    #[test]
    fn place_that_cannot_be_written_is_reported() {
        let scratch = kedge_rig::Scratch::new("install").unwrap();
        scratch.write("versions", "a file in its place");
        let why = install(&scratch.join("versions"), &chosen(b"x"), &mut &b"x"[..]).unwrap_err();
        assert!(why.starts_with("cannot install "), "{why}");
        // nothing is ever written there
        let why = install(Path::new("/proc/kedge"), &chosen(b"x"), &mut &b"x"[..]).unwrap_err();
        assert!(why.starts_with("cannot install "), "{why}");
    }

    #[test]
    fn sweep_keeps_programs_in_use() {
        let scratch = kedge_rig::Scratch::new("install").unwrap();
        let versions = scratch.join("versions");
        let all: Vec<_> = [&b"kept"[..], b"running", b"old"].map(chosen).into();
        for (chosen, content) in all.iter().zip([&b"kept"[..], b"running", b"old"]) {
            install(&versions, chosen, &mut &*content).unwrap();
        }
        fs::create_dir_all(scratch.join("proc/7")).unwrap();
        let running = versions.join(&all[1].program).join("kedge");
        std::os::unix::fs::symlink(&running, scratch.join("proc/7/exe")).unwrap();
        sweep(&versions, &scratch.join("proc"), &all[..1]);
        assert!(all[..2].iter().all(|chosen| versions.join(&chosen.program).join("kedge").exists()));
        assert!(!versions.join(&all[2].program).exists());
    }
}
