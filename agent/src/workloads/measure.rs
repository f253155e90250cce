//! Resource usage of pods: memory and processes by their control groups, the disk by a walk.
//!
//! Always holds: reading control groups costs a few small files of each container; a walk stays on the disk's
//! file system, follows no link, takes half a processor at most and visits a bounded number of files. A value
//! that cannot be read is left out, not zero. It blocks: use a thread of its own. Leaves to others: which
//! pods, how often, and the consequences (core).

use super::messages;
use kedge_core::pods::{ContainerUsage, DiskUsage, Measure, PodEvent, PodUid, PodUsage, QosClass};
use kedge_core::sorted::SortedMap;
use kedge_core::workloads::groups;
use kedge_platform::linux::{FileSystemUse, MemoryUse, file_system_use};
use kedge_platform::trees;
use kedge_platform::workloads::Cgroups;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Most files visited in one directory of a pod: 10 s on flash that reads 50,000 inodes a second, with rests
/// of the same length.
const MOST_FILES: u64 = 250_000;
/// Names read of a directory.
const MOST_NAMES: usize = 10_000;

/// The places of pods' data.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    pub(crate) groups: Cgroups,
    /// The control group above all pods'.
    pub(crate) pods_group: String,
    /// The files that containers write into their root file systems, by pod.
    pub(crate) roots: PathBuf,
    /// Volumes on the disk, by pod.
    pub(crate) volumes: PathBuf,
    pub(crate) logs: PathBuf,
}

/// A control group's processor time so far, and its memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct GroupUsage {
    pub(crate) processor_time: Option<Duration>,
    pub(crate) memory: Option<MemoryUse>,
}

/// A pod's disk usage, by parts. A part that could not be counted completely is left out.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PartsOnDisk {
    /// By container, over all its runs.
    pub(crate) roots: SortedMap<String, DiskUsage>,
    pub(crate) logs: SortedMap<String, DiskUsage>,
    pub(crate) volumes: SortedMap<String, DiskUsage>,
    /// All of it; `None` if a part is left out.
    pub(crate) sum: Option<DiskUsage>,
}

impl Places {
    /// The usage of one control group.
    pub(crate) fn usage_of(&self, group: &str) -> GroupUsage {
        GroupUsage {
            processor_time: self.groups.processor_time(group),
            memory: self.groups.memory_use(group),
        }
    }

    /// The file systems with containers' root file systems, logs and volumes.
    pub(crate) fn file_systems(&self) -> [Option<FileSystemUse>; 3] {
        [&self.roots, &self.logs, &self.volumes].map(|path| file_system_use(path))
    }

    /// A pod's disk usage. Each visited file is subtracted from `most`; at 0 the count stops.
    pub(crate) fn parts_on_disk(&self, pod: &PodUid, most: &mut u64) -> PartsOnDisk {
        let mut parts = PartsOnDisk { sum: Some(DiskUsage::default()), ..PartsOnDisk::default() };
        let mut counted = |path: &Path| {
            let size = size_within(path, most);
            parts.sum = parts.sum.zip(size).map(|(sum, size)| sum.plus(size));
            size
        };
        let roots = self.roots.join(pod.as_str());
        let mut runs: SortedMap<String, Option<DiskUsage>> = SortedMap::new();
        let found = directories(&roots);
        let mut is_whole = found.is_some();
        for name in found.unwrap_or_default() {
            if let Some((container, _)) = name.rsplit_once('-') {
                let size = counted(&roots.join(&name));
                let known = runs.entry(container.to_owned()).or_insert(Some(DiskUsage::default()));
                *known = known.zip(size).map(|(known, size)| known.plus(size));
            }
        }
        let found = directories(&self.logs);
        is_whole &= found.is_some();
        let is_its = |name: &&String| name.rsplit_once('_').is_some_and(|(_, uid)| uid == pod.as_str());
        let logs = found.iter().flatten().find(is_its).map(|name| self.logs.join(name)).unwrap_or_default();
        let volumes = self.volumes.join(pod.as_str());
        let mut each = |path: &Path| -> SortedMap<String, DiskUsage> {
            let found = directories(path);
            is_whole &= found.is_some();
            let names = found.unwrap_or_default().into_iter();
            names.filter_map(|name| counted(&path.join(&name)).map(|size| (name, size))).collect()
        };
        (parts.logs, parts.volumes) = (each(&logs), each(&volumes));
        // termination messages count in the sum, but are not a volume
        parts.volumes.remove(messages::DIRECTORY);
        parts.sum = parts.sum.filter(|_| is_whole);
        parts.roots = runs.into_iter().filter_map(|(name, size)| Some((name, size?))).collect();
        parts
    }

    /// Measures these pods.
    #[must_use]
    pub(crate) fn measure(&self, measure: Measure, pods: &[PodUid]) -> PodEvent {
        let began = Instant::now();
        let is_disk = matches!(measure, Measure::Disk | Measure::Limits);
        let logs = if is_disk { directories(&self.logs) } else { None };
        let one = |pod: &PodUid| {
            let mut usage = PodUsage {
                pod: pod.clone(),
                memory_bytes: None,
                processes: None,
                containers: SortedMap::new(),
                volumes: SortedMap::new(),
            };
            match measure {
                Measure::Memory => self.memory(pod, &mut usage)?,
                Measure::Processes => usage.processes = Some(self.groups.count(&self.group_of(pod)?)?),
                Measure::Disk | Measure::Limits => self.disk(pod, logs.as_deref()?, &mut usage)?,
            }
            Some(usage)
        };
        let usages = pods.iter().filter_map(one).collect();
        PodEvent::PodsMeasured { measure, usages, took: began.elapsed() }
    }

    /// The pod's control group, of whatever class.
    pub(crate) fn group_of(&self, pod: &PodUid) -> Option<String> {
        let classes = [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort];
        let mut groups = classes.into_iter().map(|qos| groups::pod_group(&self.pods_group, qos, pod));
        groups.find(|group| self.groups.count(group).is_some() || self.groups.working_set(group).is_some())
    }

    fn memory(&self, pod: &PodUid, usage: &mut PodUsage) -> Option<()> {
        let group = self.group_of(pod)?;
        usage.memory_bytes = Some(self.groups.working_set(&group)?);
        for name in self.groups.children(&group) {
            let Some((container, _)) = name.rsplit_once('-') else { continue };
            if let Some(bytes) = self.groups.working_set(&format!("{group}/{name}")) {
                let own = usage.containers.entry(container.to_owned()).or_default();
                own.memory_bytes = Some(own.memory_bytes.unwrap_or(0) + bytes);
            }
        }
        Some(())
    }

    /// `None` if a part of it could not be read.
    fn disk(&self, pod: &PodUid, logs: &[String], usage: &mut PodUsage) -> Option<()> {
        let roots = self.roots.join(pod.as_str());
        for name in directories(&roots)? {
            if let Some((container, _)) = name.rsplit_once('-') {
                add(&mut usage.containers, container, &roots.join(&name))?;
            }
        }
        let is_its = |name: &&String| name.rsplit_once('_').is_some_and(|(_, uid)| uid == pod.as_str());
        if let Some(logs) = logs.iter().find(is_its).map(|name| self.logs.join(name)) {
            for container in directories(&logs)? {
                add(&mut usage.containers, &container, &logs.join(&container))?;
            }
        }
        let volumes = self.volumes.join(pod.as_str());
        // a container may write into its termination message without end: that counts as the container's
        for (container, size) in messages::sizes(&volumes)? {
            let own = usage.containers.entry(container).or_default();
            own.disk = Some(own.disk.unwrap_or_default().plus(size));
        }
        for name in directories(&volumes)?.into_iter().filter(|name| name != messages::DIRECTORY) {
            let size = size_of(&volumes.join(&name))?;
            usage.volumes.insert(name, size);
        }
        Some(())
    }
}

fn add(containers: &mut SortedMap<String, ContainerUsage>, name: &str, path: &Path) -> Option<()> {
    let size = size_of(path)?;
    let own = containers.entry(name.to_owned()).or_default();
    own.disk = Some(own.disk.unwrap_or_default().plus(size));
    Some(())
}

/// A file that is gone meanwhile uses nothing.
fn size_of(path: &Path) -> Option<DiskUsage> {
    match trees::measure(path, MOST_FILES) {
        Ok(size) => Some(DiskUsage { bytes: size.bytes, inodes: size.inodes }),
        Err(error) => (error.kind() == ErrorKind::NotFound).then(DiskUsage::default),
    }
}

/// `None` if there are more files than `most`, or they cannot be read.
fn size_within(path: &Path, most: &mut u64) -> Option<DiskUsage> {
    let size = match trees::measure(path, *most) {
        Ok(size) => size,
        Err(error) => return (error.kind() == ErrorKind::NotFound).then(DiskUsage::default),
    };
    let is_whole = size.inodes < *most;
    *most = most.saturating_sub(size.inodes);
    is_whole.then_some(DiskUsage { bytes: size.bytes, inodes: size.inodes })
}

/// The names of the directories in it; an empty list if it does not exist.
fn directories(path: &Path) -> Option<Vec<String>> {
    let entries = match std::fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) => return (error.kind() == ErrorKind::NotFound).then(Vec::new),
    };
    let directories =
        entries.flatten().take(MOST_NAMES).filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    Some(directories.filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const MI: u64 = 1 << 20;

    fn write(path: &Path, bytes: u64) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, vec![1; usize::try_from(bytes).unwrap()]).unwrap();
    }

    #[test]
    fn pod_is_measured_by_its_groups_and_directories() {
        let scratch = std::env::temp_dir().join(format!("kedge-measure-{}", std::process::id()));
        let groups = scratch.join("groups/kedgepods/burstable/podu-1");
        for (directory, bytes) in [("", 100), ("/web-0", 60), ("/web-1", 5), ("/log-in-0", 30)] {
            let group = PathBuf::from(format!("{}{directory}", groups.display()));
            fs::create_dir_all(&group).unwrap();
            fs::write(group.join("memory.current"), bytes.to_string()).unwrap();
            fs::write(group.join("memory.stat"), "inactive_file 0\n").unwrap();
            fs::write(group.join("pids.current"), "4\n").unwrap();
        }
        write(&scratch.join("roots/u-1/web-0/u/big"), MI);
        write(&scratch.join("roots/u-1/web-1/u/big"), MI);
        write(&scratch.join("roots/u-2/web-0/u/big"), MI);
        write(&scratch.join("logs/default_p_u-1/web/0.log"), MI);
        write(&scratch.join("volumes/u-1/v/deep/er/file"), 2 * MI);
        write(&scratch.join("volumes/u-1/.messages/log-in-0"), MI);
        write(&scratch.join("volumes/u-1/.messages/log-in-1"), MI);
        std::os::unix::fs::symlink("/usr", scratch.join("volumes/u-1/v/link")).unwrap();
        fs::hard_link(scratch.join("volumes/u-1/v/deep/er/file"), scratch.join("volumes/u-1/v/again"))
            .unwrap();
        let places = Places {
            groups: Cgroups::V2(scratch.join("groups")),
            pods_group: "/kedgepods".into(),
            roots: scratch.join("roots"),
            volumes: scratch.join("volumes"),
            logs: scratch.join("logs"),
        };
        let pods = ["u-1", "gone"].map(|uid| PodUid::new(uid).unwrap());
        let measured = |measure| {
            let PodEvent::PodsMeasured { mut usages, .. } = places.measure(measure, &pods) else { panic!() };
            usages.remove(0)
        };
        let memory = measured(Measure::Memory);
        let of = |name: &str| memory.containers[name].memory_bytes;
        assert_eq!((memory.memory_bytes, of("web"), of("log-in")), (Some(100), Some(65), Some(30)));
        assert_eq!(measured(Measure::Processes).processes, Some(4));
        let disk = measured(Measure::Limits);
        // whole files and some blocks of directories
        let is_about = |bytes: u64, mi: u64| (mi * MI..mi * MI + MI / 4).contains(&bytes);
        let web = disk.containers["web"].disk.unwrap();
        assert!(is_about(web.bytes, 3) && web.inodes == 8, "{web:?}");
        let said = disk.containers["log-in"].disk.unwrap();
        assert!(is_about(said.bytes, 2) && said.inodes == 2, "of its termination messages: {said:?}");
        assert_eq!(disk.volumes.len(), 1, "messages are no volume");
        let volume = disk.volumes["v"];
        assert!(is_about(volume.bytes, 2) && volume.inodes == 5, "a link is no way out: {volume:?}");
        let PodEvent::PodsMeasured { usages, .. } = places.measure(Measure::Memory, &pods) else { panic!() };
        assert_eq!(usages.len(), 1, "what is not there is left out");
        // simulates a disk that returns errors
        let broken = scratch.join("roots/gone");
        fs::write(&broken, "").unwrap();
        let PodEvent::PodsMeasured { usages, .. } = places.measure(Measure::Disk, &pods) else { panic!() };
        assert_eq!(usages.len(), 1, "what cannot be read is not taken for empty");
        fs::remove_file(&broken).unwrap();
        let PodEvent::PodsMeasured { usages, .. } = places.measure(Measure::Disk, &pods) else { panic!() };
        assert_eq!(usages[1].containers.len() + usages[1].volumes.len(), 0, "a pod may have nothing");
        let mut most = 1000;
        let parts = places.parts_on_disk(&pods[0], &mut most);
        let about = |usage: &SortedMap<String, DiskUsage>, name: &str, mi| is_about(usage[name].bytes, mi);
        assert!(about(&parts.roots, "web", 2) && about(&parts.logs, "web", 1), "{parts:?}");
        assert_eq!(parts.volumes.len(), 1);
        assert!(about(&parts.volumes, "v", 2) && parts.sum.is_some_and(|sum| is_about(sum.bytes, 7)));
        assert_eq!(most, 1000 - parts.sum.unwrap().inodes);
        // the first run's files, and no more
        let parts = places.parts_on_disk(&pods[0], &mut 4);
        assert_eq!((parts.roots.len(), parts.logs.len(), parts.sum), (0, 0, None), "{parts:?}");
        fs::remove_dir_all(scratch).unwrap();
    }
}
