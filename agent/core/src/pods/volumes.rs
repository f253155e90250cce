//! The volumes of a pod as the runtime makes them: paths checked, files of ConfigMaps and Secrets chosen.
//!
//! Always holds: a file's path is relative and never leaves its volume; what an optional source lacks is left out, anything else
//! that is missing is an error in upstream's words. The files are those of the moment in which the pod was prepared: a later edit
//! of a ConfigMap or Secret does not reach them. Leaves to others: mounting (the runtime), reading objects (`objects`).

use crate::pods::event::{Mount, ObjectKind, ObjectName, Volume, VolumeFile, VolumeSource};
use crate::pods::objects::{Data, Found, Objects};
use crate::pods::resources::quantity;
use crate::pods::spec::{Container, KeyToPath, ObjectVolume, Pod, PodSpec, VolumeSpec};
use std::collections::BTreeSet;

/// Most bytes of files in one pod's volumes, copied from ConfigMaps and Secrets: one object may be named by many items and volumes.
const MOST_FILE_BYTES: usize = 16 * 1024 * 1024;
/// What a file costs beside its content.
const FILE_BYTES: usize = 256;
/// `defaultMode` of a volume that has none: upstream's.
const DEFAULT_MODE: u32 = 0o644;

/// Why the volumes cannot be made yet, or as the pod is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum VolumeProblem {
    /// An object is being read.
    Awaited,
    /// Event `FailedMount`.
    Failed(String),
}

/// What is wrong with the volumes or mounts of this spec, whatever the objects hold.
pub(crate) fn complaint(spec: &PodSpec) -> Option<String> {
    for volume in &spec.volumes {
        let sources = [
            volume.empty_dir.is_some(),
            volume.host_path.is_some(),
            volume.config_map.is_some(),
            volume.secret.is_some(),
        ];
        let count = sources.into_iter().filter(|is_given| *is_given).count();
        if count != 1 {
            return Some(format!("volume {:?} has {count} sources, expected one", volume.name));
        }
        if volume.host_path.as_ref().is_some_and(|host| !is_absolute(&host.path)) {
            return Some(format!("volume {:?}: hostPath.path is not absolute, or has ..", volume.name));
        }
        if let Some(dir) = &volume.empty_dir {
            if !matches!(dir.medium.as_str(), "" | "Memory") {
                let medium = kedge_api::excerpt(&dir.medium);
                return Some(format!(
                    "volume {:?}: emptyDir.medium is {medium:?}, expected Memory or nothing",
                    volume.name
                ));
            }
            if dir.size_limit.as_ref().is_some_and(|limit| quantity(limit).is_none()) {
                return Some(format!("volume {:?}: emptyDir.sizeLimit is no quantity", volume.name));
            }
        }
        let objects = volume.config_map.iter().chain(&volume.secret);
        if let Some(item) = objects.flat_map(|source| &source.items).find(|item| !is_inside(&item.path)) {
            let path = kedge_api::excerpt(&item.path);
            return Some(format!("volume {:?}: the path {path:?} leaves the volume", volume.name));
        }
    }
    let names: BTreeSet<&str> = spec.volumes.iter().map(|volume| volume.name.as_str()).collect();
    spec.all_containers().find_map(|container| {
        let known = |name: &str| names.contains(name);
        let mut mounts = container.volume_mounts.iter();
        let wrong = mounts.find(|mount| !known(&mount.name) || !is_absolute(&mount.mount_path))?;
        let path = kedge_api::excerpt(&wrong.mount_path);
        Some(format!(
            "container {}: the mount of {:?} at {path:?} names no volume or no absolute path",
            container.name, wrong.name
        ))
    })
}

fn is_absolute(path: &str) -> bool {
    path.starts_with('/') && !path.contains('\0') && path.split('/').all(|part| part != "..")
}

/// Whether a relative path stays inside.
fn is_inside(path: &str) -> bool {
    !path.starts_with('/')
        && !path.contains('\0')
        && path.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

/// All volumes of a pod.
pub(crate) fn volumes(pod: &Pod, objects: &Objects) -> Result<Vec<Volume>, VolumeProblem> {
    let mut left = MOST_FILE_BYTES;
    pod.spec.volumes.iter().map(|volume| made(pod, volume, objects, &mut left)).collect()
}

/// `left`: bytes of files that the pod may still have.
fn made(
    pod: &Pod,
    volume: &VolumeSpec,
    objects: &Objects,
    left: &mut usize,
) -> Result<Volume, VolumeProblem> {
    let source = match volume {
        VolumeSpec { empty_dir: Some(dir), .. } => VolumeSource::EmptyDir {
            memory: dir.medium == "Memory",
            size_limit: dir.size_limit.as_ref().and_then(quantity).map(|limit| limit.units().unsigned_abs()),
        },
        VolumeSpec { host_path: Some(host), .. } => {
            VolumeSource::HostPath { path: host.path.clone(), kind: host.kind.clone() }
        }
        VolumeSpec { config_map: Some(source), .. } => {
            files(pod, volume, ObjectKind::ConfigMap, source, objects, left)?
        }
        VolumeSpec { secret: Some(source), .. } => {
            files(pod, volume, ObjectKind::Secret, source, objects, left)?
        }
        _ => return Err(VolumeProblem::Failed(format!("volume {:?} has no source", volume.name))),
    };
    Ok(Volume { name: volume.name.clone(), source })
}

fn files(
    pod: &Pod,
    volume: &VolumeSpec,
    kind: ObjectKind,
    source: &ObjectVolume,
    objects: &Objects,
    left: &mut usize,
) -> Result<VolumeSource, VolumeProblem> {
    let failed = |why: String| {
        VolumeProblem::Failed(format!("MountVolume.SetUp failed for volume {:?} : {why}", volume.name))
    };
    let name = ObjectName { kind, namespace: pod.namespace.clone(), name: source.name.clone() };
    let is_secret = kind == ObjectKind::Secret;
    let empty = Data::new();
    let data = match objects.find(&name) {
        _ if kedge_api::names::subdomain_complaint(&source.name).is_some() => {
            return Err(failed(format!("{:?} is no name of an object", kedge_api::excerpt(&source.name))));
        }
        Found::Data(data) => data,
        Found::Missing(_) if source.optional => &empty,
        Found::Missing(why) => return Err(failed(why)),
        Found::Awaited => return Err(VolumeProblem::Awaited),
    };
    let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
    let mut file = |path: &str, mode: u32, content: &Vec<u8>| {
        let bytes = FILE_BYTES + path.len() + content.len();
        *left = left.checked_sub(bytes).ok_or_else(|| {
            failed(format!("the files of the pod's volumes are more than {MOST_FILE_BYTES} bytes"))
        })?;
        Ok(VolumeFile { path: path.to_owned(), mode: mode & 0o777, content: content.clone() })
    };
    if source.items.is_empty() {
        let files = data.iter().filter(|(key, _)| is_inside(key));
        let files: Result<_, _> = files.map(|(key, content)| file(key, mode, content)).collect();
        return Ok(VolumeSource::Files { files: files?, secret: is_secret });
    }
    let mut chosen = vec![];
    for KeyToPath { key, path, mode: own } in &source.items {
        match data.get(key) {
            Some(content) => chosen.push(file(path, own.unwrap_or(mode), content)?),
            None if source.optional => {}
            None => {
                let kind = if is_secret { "secret" } else { "config" };
                return Err(failed(format!("references non-existent {kind} key: {key}")));
            }
        }
    }
    Ok(VolumeSource::Files { files: chosen, secret: is_secret })
}

/// The mounts of a container. Files of objects are read only whatever the mount says, as upstream.
pub(crate) fn mounts(container: &Container, spec: &PodSpec) -> Vec<Mount> {
    let files = spec.volumes.iter().filter(|volume| volume.config_map.is_some() || volume.secret.is_some());
    let files: BTreeSet<&str> = files.map(|volume| volume.name.as_str()).collect();
    let is_files = |name: &str| files.contains(name);
    let mounts = container.volume_mounts.iter().map(|mount| Mount {
        volume: mount.name.clone(),
        path: mount.mount_path.clone(),
        read_only: mount.read_only || is_files(&mount.name),
    });
    mounts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Now;
    use crate::pods::event::ObjectRead;
    use kedge_api::Timestamp;
    use serde_json::{Value, json};

    fn pod(volume: Value, mount: &str) -> Pod {
        Pod::read(&json!({
            "metadata": {"name": "p", "namespace": "d", "uid": "u"},
            "spec": {"volumes": [volume],
                "containers": [{"name": "a", "volumeMounts": [{"name": "v", "mountPath": mount}]}]}
        }))
        .unwrap()
    }

    fn made(volume: Value, read: Option<ObjectRead>) -> Result<VolumeSource, VolumeProblem> {
        let now = Now { mono: std::time::Duration::ZERO, wall: Timestamp::from_micros(0) };
        let mut objects = Objects::default();
        if let Some(read) = read {
            for kind in [ObjectKind::ConfigMap, ObjectKind::Secret] {
                let name = ObjectName { kind, namespace: "d".into(), name: "o".into() };
                objects.want(now, &name, &mut vec![]);
                objects.answered(now, &name, read.clone(), &mut vec![]);
            }
        }
        volumes(&pod(volume, "/m"), &objects).map(|mut volumes| volumes.pop().unwrap().source)
    }

    fn found() -> Option<ObjectRead> {
        Some(ObjectRead::Found(json!({"data": {"a": "MQ==", "b": "Mg==", "..c": "Mw==", "..": "Mw=="}})))
    }

    #[test]
    fn one_object_fills_no_memory_by_many_items() {
        let content = "x".repeat(1 << 20);
        let read = || Some(ObjectRead::Found(json!({"data": {"a": content}})));
        let items = |count: usize| {
            let items: Vec<Value> =
                (0..count).map(|index| json!({"key": "a", "path": format!("f{index}")})).collect();
            json!({"name": "v", "configMap": {"name": "o", "items": items}})
        };
        assert!(made(items(15), read()).is_ok());
        match made(items(16), read()) {
            Err(VolumeProblem::Failed(why)) => assert!(why.contains("16777216 bytes"), "{why}"),
            other => panic!("{:?}", other.map(|_| ())),
        }
    }

    #[test]
    fn files_are_chosen_by_items_and_modes() {
        let file =
            |path: &str, mode, content: &str| VolumeFile { path: path.into(), mode, content: content.into() };
        let all = made(json!({"name": "v", "secret": {"secretName": "o", "defaultMode": 256}}), found());
        let files = vec![file("..c", 0o400, "3"), file("a", 0o400, "1"), file("b", 0o400, "2")];
        assert_eq!(all, Ok(VolumeSource::Files { files, secret: true }));
        let some = json!({"name": "v", "secret": {"secretName": "o",
            "items": [{"key": "b", "path": "x/y", "mode": 0o600}]}});
        let files = vec![file("x/y", 0o600, "2")];
        assert_eq!(made(some, found()), Ok(VolumeSource::Files { files, secret: true }));
    }

    #[test]
    fn missing_source_fails_unless_optional() {
        let map = |optional: bool| json!({"name": "v", "configMap": {"name": "o", "optional": optional}});
        let none = VolumeSource::Files { files: vec![], secret: false };
        assert_eq!(made(map(true), Some(ObjectRead::Missing)), Ok(none));
        assert_eq!(made(map(true), None), Err(VolumeProblem::Awaited), "unknown is not missing");
        let failed = made(map(false), Some(ObjectRead::Missing));
        let why = "MountVolume.SetUp failed for volume \"v\" : configmap \"o\" not found";
        assert_eq!(failed, Err(VolumeProblem::Failed(why.into())));
        let key = json!({"name": "v", "secret": {"secretName": "o", "items": [{"key": "z", "path": "z"}]}});
        let Err(VolumeProblem::Failed(why)) = made(key, found()) else { panic!() };
        assert!(why.ends_with("references non-existent secret key: z"), "{why}");
    }

    #[test]
    fn paths_that_leave_their_place_are_refused() {
        let good = |volume: Value, mount: &str| complaint(&pod(volume, mount).spec).is_none();
        assert!(good(json!({"name": "v", "emptyDir": {}}), "/m"));
        for mount in ["", "m", "/m/../x", "/m\0"] {
            assert!(!good(json!({"name": "v", "emptyDir": {}}), mount), "{mount:?}");
        }
        for path in ["", "/a", "../a", "a/../b", "a//b", "./a", "a\0"] {
            let volume =
                json!({"name": "v", "configMap": {"name": "o", "items": [{"key": "k", "path": path}]}});
            assert!(!good(volume, "/m"), "{path:?}");
        }
        for path in ["", "a", "/a/../b"] {
            assert!(!good(json!({"name": "v", "hostPath": {"path": path}}), "/m"), "{path:?}");
        }
        assert!(!good(json!({"name": "v"}), "/m"), "no source");
        assert!(!good(json!({"name": "v", "emptyDir": {}, "hostPath": {"path": "/a"}}), "/m"), "two sources");
        assert!(!good(json!({"name": "w", "emptyDir": {}}), "/m"), "no such volume");
    }
}
