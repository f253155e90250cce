//! A pod's volumes on this machine: empty directories, files of ConfigMaps and Secrets, paths of the host.
//!
//! Always holds: a path that a pod names is touched only in a process made for that (`looks`), because it may
//! hang; a Secret's files, and volumes in memory, are on a tmpfs; an existing volume keeps its content when
//! the pod is prepared again, except for the files that the API gives. Removal never leaves the pod's own
//! directory, and follows no link. Leaves to others: which volumes a container mounts where (core), replacing
//! files (`projection`), looking at the host's paths (`looks`).

mod projection;

use super::looks::Task;
use crate::workloads::looks::directory;
use kedge_core::pods::{ContainerKey, Mount, PodUid, Volume, VolumeSource};
use kedge_core::sorted::SortedMap;
use kedge_platform::trees::{self, Removal};
use kedge_platform::workloads::{mount_image, mount_memory, unmount};
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};

/// Size of a tmpfs for files of the API: all of a pod's (16 MiB), old and new while they are replaced, and
/// their names.
const FILES_BYTES: u64 = 40 * 1024 * 1024;
/// Below a pod's directory in memory: parts of volumes that its containers mount (`subPath`). No volume has
/// this name.
const PARTS: &str = ".parts";
/// In the same directory: an empty directory.
const EMPTY: &str = ".empty";

/// Returns the layers of an image with this ID, the topmost first.
pub(crate) type LayersOf<'a> = &'a dyn Fn(&str) -> Result<Vec<PathBuf>, String>;

/// Where volumes are kept.
#[derive(Debug, Clone)]
pub struct Places {
    /// On the disk.
    pub disk: PathBuf,
    /// Under the run directory: mount points.
    pub memory: PathBuf,
}

impl Places {
    /// Makes the missing volumes of a pod; returns where each one is. None in memory is larger than
    /// `most_memory`. Paths of the host must have been looked at.
    ///
    /// # Errors
    /// One cannot be made: which, and why.
    pub(crate) fn make(
        &self,
        pod: &PodUid,
        volumes: &[Volume],
        most_memory: u64,
        layers: LayersOf<'_>,
    ) -> Result<SortedMap<String, PathBuf>, String> {
        let mut made = SortedMap::new();
        for volume in volumes {
            let path = self
                .make_one(pod, volume, most_memory, layers)
                .map_err(|error| format!("volume {:?}: {error}", volume.name))?;
            made.insert(volume.name.clone(), path);
        }
        Ok(made)
    }

    fn make_one(
        &self,
        pod: &PodUid,
        volume: &Volume,
        most_memory: u64,
        layers: LayersOf<'_>,
    ) -> io::Result<PathBuf> {
        let is_name = Path::new(&volume.name).components().collect::<Vec<_>>();
        if !matches!(is_name[..], [Component::Normal(_)]) {
            return Err(io::Error::other("its name cannot be a file name"));
        }
        let at = |root: &Path| root.join(pod.as_str()).join(&volume.name);
        match &volume.source {
            VolumeSource::EmptyDir { memory: false, .. } => {
                shared_with(directory(&at(&self.disk), 0o777)?, volume.group)
            }
            VolumeSource::EmptyDir { memory: true, size_limit } => {
                let path = directory(&at(&self.memory), 0o777)?;
                mount_memory(&path, memory_of(*size_limit, most_memory), 0o777)?;
                shared_with(path, volume.group)
            }
            VolumeSource::Files { files, memory } => {
                let path = directory(&at(if *memory { &self.memory } else { &self.disk }), 0o755)?;
                if *memory {
                    mount_memory(&path, FILES_BYTES, 0o755)?;
                }
                projection::replace(&path, files, volume.group)?;
                Ok(path)
            }
            VolumeSource::Image { id } => {
                let path = directory(&at(&self.memory), 0o755)?;
                let empty = directory(&self.memory.join(pod.as_str()).join(EMPTY), 0o755)?;
                mount_image(&layers(id).map_err(io::Error::other)?, &empty, &path)?;
                Ok(path)
            }
            VolumeSource::HostPath { path, .. } => Ok(PathBuf::from(path)),
        }
    }

    /// The place of one of these parts.
    pub(crate) fn part(&self, key: &ContainerKey, index: usize) -> PathBuf {
        self.parts_of(key).join(index.to_string())
    }

    /// Whether this is the agent's own directory for a volume of the pod, and not a path of the host.
    pub(crate) fn is_own(&self, pod: &PodUid, name: &str, path: &Path) -> bool {
        [&self.disk, &self.memory].iter().any(|root| root.join(pod.as_str()).join(name) == path)
    }

    /// The mount points for the parts of volumes that a run of a container mounts, by their index in the list
    /// of mounts: leftovers of an earlier try are removed.
    ///
    /// # Errors
    /// One cannot be made: which, and why, with upstream's text.
    pub(crate) fn parts(
        &self,
        key: &ContainerKey,
        mounts: &[Mount],
    ) -> Result<SortedMap<usize, PathBuf>, String> {
        let mut places = SortedMap::new();
        let parts = self.parts_of(key);
        for (index, mount) in mounts.iter().enumerate().filter(|(_, mount)| !mount.sub_path.is_empty()) {
            let target = parts.join(index.to_string());
            let done =
                directory(&parts, 0o700).and_then(|_| unmount(&target)).and_then(|()| trees::remove(&target));
            done.map_err(|error| no_part(key, mount, &error.to_string()))?;
            places.insert(index, target);
        }
        Ok(places)
    }

    /// Unmounts the parts that were bound for a run of a container.
    ///
    /// # Errors
    /// Something could not be removed: which, and why.
    pub fn unbind_parts(&self, key: &ContainerKey) -> Result<(), String> {
        let parts = self.parts_of(key);
        drop_parts(&parts)
            .map_err(|error| format!("unmount parts of volumes in {}: {error}", parts.display()))
    }

    fn parts_of(&self, key: &ContainerKey) -> PathBuf {
        let run = format!("{}-{}", key.container, key.attempt);
        self.memory.join(key.pod.as_str()).join(PARTS).join(run)
    }

    /// Removes a pod's volumes, except for the host's own paths; those on the disk by `removal`, which is for
    /// [`Places::disk`].
    ///
    /// # Errors
    /// One could not be removed: which, and why.
    pub fn remove(&self, pod: &PodUid, removal: &mut Removal) -> Result<(), String> {
        let failed = |path: &Path, error: io::Error| format!("remove volumes in {}: {error}", path.display());
        let memory = self.memory.join(pod.as_str());
        for container in names(&memory.join(PARTS)) {
            let parts = memory.join(PARTS).join(container);
            drop_parts(&parts).map_err(|error| failed(&parts, error))?;
        }
        for entry in fs::read_dir(&memory).into_iter().flatten().flatten() {
            unmount(&entry.path()).map_err(|error| failed(&entry.path(), error))?;
        }
        trees::remove(&memory).map_err(|error| failed(&memory, error))?;
        let disk = self.disk.join(pod.as_str());
        removal.take(&disk).map_err(|error| failed(&disk, error))
    }
}

/// The paths to look at before these volumes are made.
pub(super) fn looks_at(volumes: &[Volume]) -> Vec<Task> {
    let look = |volume: &Volume| match &volume.source {
        VolumeSource::HostPath { path, kind } => {
            let (volume, path, kind) = (volume.name.clone(), path.clone(), kind.clone());
            Some(Task::Path { volume, path, kind })
        }
        _ => None,
    };
    volumes.iter().filter_map(look).collect()
}

/// A part of a volume of the host, to be bound.
pub(super) fn part_of(volume: &Path, (key, mount): (&ContainerKey, &Mount), target: &Path) -> Task {
    Task::Part {
        volume: volume.to_owned(),
        below: mount.sub_path.clone(),
        target: target.to_owned(),
        failure: no_part(key, mount, ""),
    }
}

/// The failure with upstream's text.
pub(crate) fn no_part(key: &ContainerKey, mount: &Mount, why: &str) -> String {
    let (volume, container, part) = (&mount.volume, &key.container, &mount.sub_path);
    format!(
        "failed to prepare subPath for volumeMount {volume:?} of container {container:?}: {part:?}: {why}"
    )
}

/// The size of a volume in memory. A `sizeLimit` of 0 means unlimited, for the kubelet as for the kernel's
/// `size=0`.
fn memory_of(size_limit: Option<u64>, most: u64) -> u64 {
    size_limit.filter(|bytes| *bytes > 0).map_or(most, |bytes| bytes.min(most))
}

/// Makes files that are created in the directory belong to the group, as upstream does for `fsGroup`.
fn shared_with(path: PathBuf, group: Option<u32>) -> io::Result<PathBuf> {
    if group.is_some() {
        std::os::unix::fs::chown(&path, None, group)?;
        fs::set_permissions(&path, Permissions::from_mode(0o2777))?;
    }
    Ok(path)
}

fn drop_parts(parts: &Path) -> io::Result<()> {
    names(parts).iter().try_for_each(|part| unmount(&parts.join(part)))?;
    trees::remove(parts)
}

fn names(directory: &Path) -> Vec<std::ffi::OsString> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.file_name()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::looks::host_path;
    use kedge_core::pods::VolumeFile;
    use kedge_rig::Scratch;

    const MEMORY: u64 = 1 << 20;

    fn no_image(id: &str) -> Result<Vec<PathBuf>, String> {
        Err(format!("no image {id}"))
    }

    fn volume(name: &str, source: VolumeSource) -> Volume {
        Volume { name: name.into(), source, group: None }
    }

    fn file(path: &str, content: &str) -> VolumeFile {
        VolumeFile { path: path.into(), mode: 0o440, owner: None, content: content.into() }
    }

    #[test]
    fn volumes_keep_their_content_when_made_again() {
        let scratch = Scratch::new("volumes").unwrap();
        let places = Places { disk: scratch.join("disk"), memory: scratch.join("memory") };
        let pod = PodUid::new("u").unwrap();
        let empty = VolumeSource::EmptyDir { memory: false, size_limit: None };
        let make = |content: &str| {
            let files = VolumeSource::Files { files: vec![file("a/b.conf", content)], memory: false };
            places
                .make(&pod, &[volume("data", empty.clone()), volume("config", files)], MEMORY, &no_image)
                .unwrap()
        };
        let made = make("one");
        assert_eq!(fs::metadata(&made["data"]).unwrap().permissions().mode() & 0o7777, 0o777);
        fs::write(made["data"].join("kept"), "x").unwrap();
        assert_eq!(make("two"), made);
        let config = made["config"].join("a/b.conf");
        assert_eq!(fs::read_to_string(&config).unwrap(), "two");
        assert_eq!(fs::metadata(&config).unwrap().permissions().mode() & 0o7777, 0o440);
        assert!(made["data"].join("kept").exists());
        std::os::unix::fs::symlink(&*scratch, made["data"].join("link")).unwrap();
        let mut removal = Removal::open(&places.disk);
        places.remove(&pod, &mut removal).unwrap();
        assert!(scratch.exists() && !made["data"].exists() && !made["config"].exists());
        places.remove(&pod, &mut removal).unwrap();
    }

    #[test]
    fn volume_in_memory_is_never_without_limit() {
        for (limit, expect) in
            [(None, 100), (Some(0), 100), (Some(7), 7), (Some(100), 100), (Some(u64::MAX), 100)]
        {
            assert_eq!(memory_of(limit, 100), expect, "{limit:?}");
        }
    }

    #[test]
    fn names_that_leave_the_volume_are_refused() {
        let scratch = Scratch::new("volumes").unwrap();
        let places = Places { disk: scratch.join("disk"), memory: scratch.join("memory") };
        let pod = PodUid::new("u").unwrap();
        for path in ["../x", "/x", "a/../../x", "", "."] {
            let files = VolumeSource::Files { files: vec![file(path, "")], memory: false };
            assert!(places.make(&pod, &[volume("v", files)], MEMORY, &no_image).is_err(), "{path:?}");
        }
        let empty = VolumeSource::EmptyDir { memory: false, size_limit: None };
        for name in ["..", "a/b", "/a", ""] {
            assert!(
                places.make(&pod, &[volume(name, empty.clone())], MEMORY, &no_image).is_err(),
                "{name:?}"
            );
        }
        assert!(!scratch.join("x").exists());
    }

    #[test]
    fn host_paths_are_made_and_checked_by_type() {
        let scratch = Scratch::new("volumes").unwrap();
        let file = scratch.write("file", "");
        let check = |path: &Path, kind: &str, is_fine: bool| {
            assert_eq!(host_path(path, kind).is_ok(), is_fine, "{} {kind}", path.display());
        };
        check(&file, "File", true);
        check(&file, "", true);
        check(&file, "Directory", false);
        check(&file, "Socket", false);
        check(&file, "Nonsense", false);
        check(Path::new("/dev/null"), "CharDevice", true);
        check(&scratch.join("missing"), "Directory", false);
        check(&scratch.join("made"), "DirectoryOrCreate", true);
        check(&scratch.join("made"), "Directory", true);
        check(&scratch.join("new"), "FileOrCreate", true);
        check(&scratch.join("new"), "File", true);
        check(&scratch.join("made/../.."), "", false);
        for kind in ["", "DirectoryOrCreate", "FileOrCreate"] {
            let below = file.join("below");
            let error = host_path(&below, kind).unwrap_err().to_string();
            assert!(error.starts_with(&format!("hostPath {}: ", below.display())), "{error}");
            let error = host_path(Path::new("/proc/below"), kind).unwrap_err().to_string();
            assert!(error.starts_with("hostPath /proc/below: "), "{kind}: {error}");
        }
        check(Path::new("relative"), "", false);
    }
}
