//! The volumes of a pod in the form that the runtime makes: checks the paths, and selects the files of
//! ConfigMaps, Secrets and the pod's own fields.
//!
//! Always holds: a file's path is relative and never leaves its volume; missing parts of an optional source
//! are left out, and any other missing part is an error with upstream's text. Leaves to others: mounting and
//! replacing files (the runtime), reading objects (`objects`), the value of a field (`fields`).

use crate::pods::event::{NodeFacts, Volume, VolumeFile, VolumeSource};
use crate::pods::fields;
use crate::pods::image_volumes::ImageVolumes;
use crate::pods::keys::{ObjectKind, ObjectName};
use crate::pods::objects::{Data, Found, Objects};
use crate::pods::spec::{
    DownwardFile, FileSource, KeyToPath, ObjectVolume, Pod, PodSpec, VolumeMount, VolumeSpec, quantity,
    user_of_all,
};
use crate::pods::tokens::{FoundToken, Tokens};
use crate::sorted::SortedSet;
use std::collections::BTreeMap;

/// Most bytes of files in one pod's volumes: many items and volumes may name the same object.
pub(crate) const MOST_FILE_BYTES: usize = 16 * 1024 * 1024;
/// The memory that a file costs in addition to its content.
const FILE_BYTES: usize = 256;
/// `defaultMode` of a volume without it: upstream's.
const DEFAULT_MODE: u32 = 0o644;

/// Why the volumes cannot be made, either now or with this pod at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum VolumeProblem {
    /// An object it needs is being read.
    Awaited,
    /// Shown as event `FailedMount`.
    Failed(String),
    /// The same, because its files have more bytes than a node allows for a pod. Each further try transfers
    /// all of them.
    TooLarge(String),
}

/// The complaint about the volumes or mounts of this spec, independent of the objects' content.
pub(crate) fn complaint(spec: &PodSpec) -> Option<String> {
    for volume in &spec.volumes {
        let sources = [
            volume.empty_dir.is_some(),
            volume.host_path.is_some(),
            volume.config_map.is_some(),
            volume.secret.is_some(),
            volume.downward_api.is_some(),
            volume.projected.is_some(),
            volume.image.is_some(),
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
        if volume.image.as_ref().is_some_and(|image| image.reference.is_empty()) {
            return Some(format!("volume {:?}: image.reference is empty", volume.name));
        }
        if let Some(path) = volume.file_sources().into_iter().flatten().find_map(path_outside) {
            let path = kedge_api::excerpt(path);
            return Some(format!("volume {:?}: the path {path:?} leaves the volume", volume.name));
        }
        let projections = volume.projected.iter().flat_map(|projected| &projected.sources);
        if projections.clone().any(|projection| projection.count() != 1) {
            return Some(format!("volume {:?}: each of its sources is expected to be one", volume.name));
        }
    }
    let names: SortedSet<&str> = spec.volumes.iter().map(|volume| volume.name.as_str()).collect();
    spec.all_containers().find_map(|container| {
        let known = |name: &str| names.contains(name);
        let mut mounts = container.volume_mounts.iter();
        // `subPath` is joined to the path of the volume, and must not lead out of it
        let is_below = |mount: &VolumeMount| {
            let path = &mount.sub_path;
            let is_one = path.is_empty() || mount.sub_path_expr.is_empty();
            is_one && !path.starts_with('/') && !path.contains('\0') && !has_way_up(path)
        };
        let wrong =
            mounts.find(|mount| !known(&mount.name) || !is_place(&mount.mount_path) || !is_below(mount))?;
        let path = kedge_api::excerpt(&wrong.mount_path);
        let why = match is_below(wrong) {
            true => "names no volume, or no path without ..",
            false => "has a subPath that is not relative, has .., or stands beside subPathExpr",
        };
        Some(format!("container {}: the mount of {:?} at {path:?} {why}", container.name, wrong.name))
    })
}

/// A path in a source that is not allowed.
fn path_outside(source: FileSource<'_>) -> Option<&str> {
    let paths: Vec<&String> = match source {
        FileSource::Object(_, object) => object.items.iter().map(|item| &item.path).collect(),
        FileSource::Downward(items) => items.iter().map(|item| &item.path).collect(),
        FileSource::Token(token) => vec![&token.path],
    };
    paths.into_iter().map(String::as_str).find(|path| !is_inside(path))
}

fn is_absolute(path: &str) -> bool {
    path.starts_with('/') && !path.contains('\0') && path.split('/').all(|part| part != "..")
}

/// Whether a container may have a mount at this path; upstream accepts a relative path too.
fn is_place(path: &str) -> bool {
    !path.is_empty() && !path.contains('\0') && !has_way_up(path)
}

pub(crate) fn has_way_up(path: &str) -> bool {
    path.split('/').any(|part| part == "..")
}

/// The same path without redundant parts.
pub(crate) fn plain_path(path: &str) -> String {
    path.split('/').filter(|part| !matches!(*part, "" | ".")).collect::<Vec<_>>().join("/")
}

/// Whether a relative path stays inside the volume, and does not collide with names that replacing the files
/// uses: `..data`.
fn is_inside(path: &str) -> bool {
    !path.starts_with("..")
        && !path.contains('\0')
        && path.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

/// All volumes of a pod.
pub(crate) fn volumes(
    pod: &Pod,
    objects: &Objects,
    tokens: &Tokens,
    images: &ImageVolumes,
    node: &NodeFacts,
) -> Result<Vec<Volume>, VolumeProblem> {
    let mut maker = Maker { pod, objects, tokens, images: Some(images), node, left: MOST_FILE_BYTES };
    pod.spec.volumes.iter().map(|volume| maker.volume(volume)).collect()
}

/// The volumes with files of the API, each with its own result.
pub(crate) fn file_volumes(
    pod: &Pod,
    objects: &Objects,
    tokens: &Tokens,
    node: &NodeFacts,
) -> Vec<Result<Volume, VolumeProblem>> {
    let mut maker = Maker { pod, objects, tokens, images: None, node, left: MOST_FILE_BYTES };
    let volumes = pod.spec.volumes.iter().filter(|volume| volume.file_sources().is_some());
    volumes.map(|volume| maker.volume(volume)).collect()
}

struct Maker<'a> {
    pod: &'a Pod,
    objects: &'a Objects,
    tokens: &'a Tokens,
    /// `None` if only volumes of files are made.
    images: Option<&'a ImageVolumes>,
    node: &'a NodeFacts,
    /// Bytes of files that the pod may still use.
    left: usize,
}

/// Why a source yields no files.
enum Lack {
    Awaited,
    Failed(String),
    TooLarge(String),
}

impl Maker<'_> {
    fn volume(&mut self, volume: &VolumeSpec) -> Result<Volume, VolumeProblem> {
        let source = match volume {
            VolumeSpec { empty_dir: Some(dir), .. } => VolumeSource::EmptyDir {
                memory: dir.medium == "Memory",
                size_limit: dir
                    .size_limit
                    .as_ref()
                    .and_then(quantity)
                    .map(|limit| limit.units().unsigned_abs()),
            },
            VolumeSpec { host_path: Some(host), .. } => {
                VolumeSource::HostPath { path: host.path.clone(), kind: host.kind.clone() }
            }
            VolumeSpec { image: Some(_), .. } => {
                let id = self.images.and_then(|images| images.id(&volume.name));
                VolumeSource::Image { id: id.ok_or(VolumeProblem::Awaited)?.clone() }
            }
            _ => self.files(volume).map_err(|lack| {
                let of_volume =
                    |why| format!("MountVolume.SetUp failed for volume {:?} : {why}", volume.name);
                match lack {
                    Lack::Awaited => VolumeProblem::Awaited,
                    Lack::Failed(why) => VolumeProblem::Failed(of_volume(why)),
                    Lack::TooLarge(why) => VolumeProblem::TooLarge(of_volume(why)),
                }
            })?,
        };
        Ok(Volume { name: volume.name.clone(), source, group: self.pod.spec.security_context.fs_group })
    }

    fn files(&mut self, volume: &VolumeSpec) -> Result<VolumeSource, Lack> {
        let sources = volume.file_sources().ok_or_else(|| Lack::Failed("it has no source".into()))?;
        let mode = volume.default_mode().unwrap_or(DEFAULT_MODE);
        // if two sources yield the same file, the later one counts
        let mut files = BTreeMap::new();
        for source in sources {
            match source {
                FileSource::Object(kind, object) => self.of_object(kind, object, mode, &mut files)?,
                FileSource::Downward(items) => self.of_pod(items, mode, &mut files)?,
                FileSource::Token(source) => {
                    let tokens = self.tokens;
                    let token = match tokens.find(source) {
                        _ if self.pod.spec.service_account_name.is_empty() => {
                            return Err(Lack::Failed("the pod has no service account".into()));
                        }
                        FoundToken::Is(token) => token.as_bytes().to_vec(),
                        _ if tokens.may_lack_in(&volume.name) => continue,
                        FoundToken::Missing(why) => return Err(Lack::Failed(why.to_owned())),
                        FoundToken::Awaited => return Err(Lack::Awaited),
                    };
                    let owner = user_of_all(self.pod);
                    let is_shared = owner.is_none() && self.pod.spec.security_context.fs_group.is_none();
                    self.add(&source.path, if is_shared { mode } else { 0o600 }, token, &mut files)?;
                    if let Some(file) = files.get_mut(&source.path) {
                        file.owner = owner;
                    }
                }
            }
        }
        let above = |path: &'_ str| -> Vec<String> {
            path.match_indices('/').map(|(at, _)| path[..at].to_owned()).collect()
        };
        let mut directories = files.keys().flat_map(|path: &String| above(path));
        if let Some(both) = directories.find(|above| files.contains_key(above)) {
            return Err(Lack::Failed(format!("{both:?} is a file and a directory")));
        }
        Ok(VolumeSource::Files { files: files.into_values().collect(), memory: volume.config_map.is_none() })
    }

    fn of_object(
        &mut self,
        kind: ObjectKind,
        source: &ObjectVolume,
        mode: u32,
        files: &mut BTreeMap<String, VolumeFile>,
    ) -> Result<(), Lack> {
        if kedge_api::names::subdomain_complaint(&source.name).is_some() {
            let name = kedge_api::excerpt(&source.name);
            return Err(Lack::Failed(format!("{name:?} is no name of an object")));
        }
        let name = ObjectName { kind, namespace: self.pod.namespace.clone(), name: source.name.clone() };
        let empty = Data::new();
        let objects = self.objects;
        let data = match objects.find(&name) {
            Found::Data(data) => data,
            Found::Missing(_) if source.optional => &empty,
            Found::Missing(why) => return Err(Lack::Failed(why)),
            Found::Awaited => return Err(Lack::Awaited),
        };
        if source.items.is_empty() {
            let mut all = data.iter().filter(|(key, _)| is_inside(key));
            return all.try_for_each(|(key, content)| self.add(key, mode, content.clone(), files));
        }
        for KeyToPath { key, path, mode: own } in &source.items {
            match data.get(key) {
                Some(content) => self.add(path, own.unwrap_or(mode), content.clone(), files)?,
                None if source.optional => {}
                None => {
                    let kind = if kind == ObjectKind::Secret { "secret" } else { "config" };
                    return Err(Lack::Failed(format!("references non-existent {kind} key: {key}")));
                }
            }
        }
        Ok(())
    }

    fn of_pod(
        &mut self,
        items: &[DownwardFile],
        mode: u32,
        files: &mut BTreeMap<String, VolumeFile>,
    ) -> Result<(), Lack> {
        for item in items {
            let content = self.field(item).map_err(Lack::Failed)?;
            self.add(&item.path, item.mode.unwrap_or(mode), content.into_bytes(), files)?;
        }
        Ok(())
    }

    fn field(&self, item: &DownwardFile) -> Result<String, String> {
        match (&item.field_ref, &item.resource_field_ref) {
            (Some(field), _) => fields::of_file(&field.field_path, self.pod),
            (None, Some(selector)) => {
                let name = &selector.container_name;
                let container = self.pod.spec.all_containers().find(|container| container.name == *name);
                let container = container
                    .ok_or_else(|| format!("container {} not found in pod", kedge_api::excerpt(name)))?;
                fields::of_resource(selector, container, self.node)
            }
            (None, None) => Err(format!("{} has neither fieldRef nor resourceFieldRef", item.path)),
        }
    }

    fn add(
        &mut self,
        path: &str,
        mode: u32,
        content: Vec<u8>,
        files: &mut BTreeMap<String, VolumeFile>,
    ) -> Result<(), Lack> {
        let bytes = FILE_BYTES.saturating_add(path.len()).saturating_add(content.len());
        self.left = self.left.checked_sub(bytes).ok_or_else(|| {
            Lack::TooLarge(format!("the files of the pod's volumes are more than {MOST_FILE_BYTES} bytes"))
        })?;
        let file = VolumeFile { path: path.to_owned(), mode: mode & 0o777, owner: None, content };
        files.insert(path.to_owned(), file);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Now;
    use crate::pods::event::ObjectRead;
    use kedge_api::Timestamp;
    use serde_json::{Value, json};

    fn pod(volume: Value, mount: &str) -> Pod {
        Pod::read(&json!({
            "metadata": {"name": "p", "namespace": "d", "uid": "u", "labels": {"app": "x"}},
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
        let node = NodeFacts { cpu_milli: 2500, ..NodeFacts::default() };
        volumes(&pod(volume, "/m"), &objects, &Tokens::default(), &ImageVolumes::default(), &node)
            .map(|mut volumes| volumes.pop().unwrap().source)
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
            Err(VolumeProblem::TooLarge(why)) => assert!(why.contains("16777216 bytes"), "{why}"),
            other => panic!("{:?}", other.map(|_| ())),
        }
    }

    #[test]
    fn files_are_chosen_by_items_and_modes() {
        let file = |path: &str, mode, content: &str| VolumeFile {
            path: path.into(),
            mode,
            owner: None,
            content: content.into(),
        };
        let all = made(json!({"name": "v", "secret": {"secretName": "o", "defaultMode": 256}}), found());
        let files = vec![file("a", 0o400, "1"), file("b", 0o400, "2")];
        assert_eq!(all, Ok(VolumeSource::Files { files, memory: true }));
        let some = json!({"name": "v", "secret": {"secretName": "o",
            "items": [{"key": "b", "path": "x/y", "mode": 0o600}]}});
        let files = vec![file("x/y", 0o600, "2")];
        assert_eq!(made(some, found()), Ok(VolumeSource::Files { files, memory: true }));
    }

    #[test]
    fn missing_source_fails_unless_optional() {
        let map = |optional: bool| json!({"name": "v", "configMap": {"name": "o", "optional": optional}});
        let none = VolumeSource::Files { files: vec![], memory: false };
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
    fn projected_volume_joins_its_sources() {
        let file = |path: &str, mode, content: &str| VolumeFile {
            path: path.into(),
            mode,
            owner: None,
            content: content.into(),
        };
        let volume =
            |sources: Value| json!({"name": "v", "projected": {"defaultMode": 0o440, "sources": sources}});
        let downward = json!({"downwardAPI": {"items": [
            {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}, "mode": 0o600},
            {"path": "cpu", "resourceFieldRef": {"containerName": "a", "resource": "limits.cpu", "divisor": "1m"}}]}});
        let map = json!({"configMap": {"name": "o", "items": [{"key": "a", "path": "x/a"}, {"key": "a", "path": "cpu"}]}});
        let secret = json!({"secret": {"name": "o", "items": [{"key": "b", "path": "x/b"}]}});
        let files = vec![
            file("cpu", 0o440, "2500"),
            file("labels", 0o600, "app=\"x\""),
            file("x/a", 0o440, "MQ=="),
            file("x/b", 0o440, "2"),
        ];
        let all = made(volume(json!([map, secret, downward])), found());
        assert_eq!(all, Ok(VolumeSource::Files { files, memory: true }));
        let failed = |sources: Value| match made(volume(sources), found()) {
            Err(VolumeProblem::Failed(why)) => why,
            other => panic!("{:?}", other.map(|_| ())),
        };
        let below = json!({"secret": {"name": "o", "items": [{"key": "b", "path": "cpu/b"}]}});
        assert!(failed(json!([below, downward])).contains("\"cpu\" is a file and a directory"));
        let unknown =
            json!([{"downwardAPI": {"items": [{"path": "p", "fieldRef": {"fieldPath": "status.podIP"}}]}}]);
        assert!(failed(unknown).contains("unsupported fieldPath"));
        let unread = json!({"secret": {"name": "unread"}});
        assert_eq!(made(volume(json!([downward, unread])), found()), Err(VolumeProblem::Awaited));
    }

    #[test]
    fn paths_that_leave_their_place_are_refused() {
        let good = |volume: Value, mount: &str| complaint(&pod(volume, mount).spec).is_none();
        assert!(good(json!({"name": "v", "emptyDir": {}}), "/m"));
        assert!(good(json!({"name": "v", "emptyDir": {}}), "m/n"));
        for mount in ["", "/m/../x", "../m", "/m\0"] {
            assert!(!good(json!({"name": "v", "emptyDir": {}}), mount), "{mount:?}");
        }
        for path in ["", "/a", "../a", "a/../b", "a//b", "./a", "a\0", "..data", "..x/a"] {
            let volume =
                json!({"name": "v", "configMap": {"name": "o", "items": [{"key": "k", "path": path}]}});
            assert!(!good(volume, "/m"), "{path:?}");
            let item = json!({"path": path, "fieldRef": {"fieldPath": "metadata.name"}});
            let source = json!({"downwardAPI": {"items": [item]}});
            assert!(!good(json!({"name": "v", "projected": {"sources": [source]}}), "/m"), "{path:?}");
        }
        assert!(!good(json!({"name": "v", "projected": {"sources": [{}]}}), "/m"), "a source of nothing");
        let below = |mount: Value| {
            let pod = json!({"metadata": {"name": "p", "namespace": "d", "uid": "u"}, "spec": {
                "volumes": [{"name": "v", "emptyDir": {}}], "containers": [{"name": "a", "volumeMounts": [mount]}]}});
            complaint(&Pod::read(&pod).unwrap().spec).is_none()
        };
        for (path, expression, is_good) in [
            ("a/b", "", true),
            ("/a", "", false),
            ("a/../b", "", false),
            ("a\0", "", false),
            ("a", "b", false),
        ] {
            let mount = json!({"name": "v", "mountPath": "/m", "subPath": path, "subPathExpr": expression});
            assert_eq!(below(mount), is_good, "{path:?}");
        }
        for path in ["", "a", "/a/../b"] {
            assert!(!good(json!({"name": "v", "hostPath": {"path": path}}), "/m"), "{path:?}");
        }
        assert!(!good(json!({"name": "v"}), "/m"), "no source");
        assert!(good(json!({"name": "v", "image": {"reference": "a:1"}}), "/m"));
        assert!(!good(json!({"name": "v", "image": {}}), "/m"), "of no image");
        assert!(!good(json!({"name": "v", "emptyDir": {}, "hostPath": {"path": "/a"}}), "/m"), "two sources");
        assert!(!good(json!({"name": "w", "emptyDir": {}}), "/m"), "no such volume");
    }
}
