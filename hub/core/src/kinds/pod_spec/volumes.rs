//! Volumes: exactly one source each, and the required fields of each source.
//!
//! Always holds: a path in a volume cannot lead out of it. Leaves to others: whether what a volume refers to
//! exists, and whether a node can mount it.

use std::collections::{BTreeMap, BTreeSet};

use kedge_api::pod_numbers::{FILE_MODES, TOKEN_SECS};
use serde_json::Value;

use super::super::names::NameRule;
use super::super::rules::{self, Errors, list, required};
use super::containers::{FILE_FIELDS, validate_field, validate_resource_field};
use crate::field_error::FieldError;
use crate::quantity::Quantity;
use crate::value::text;

/// The sources of a volume in the order in which upstream checks them: the first counts, any other is an
/// error.
const SOURCES: [&str; 29] = [
    "emptyDir",
    "hostPath",
    "gitRepo",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "secret",
    "nfs",
    "iscsi",
    "glusterfs",
    "persistentVolumeClaim",
    "rbd",
    "cinder",
    "cephfs",
    "quobyte",
    "downwardAPI",
    "fc",
    "flexVolume",
    "configMap",
    "azureFile",
    "vsphereVolume",
    "azureDisk",
    "storageos",
    "scaleIO",
    "portworxVolume",
    "projected",
    "photonPersistentDisk",
    "flocker",
    "csi",
    "image",
];
/// A source that is a claim of its own.
const EPHEMERAL: &str = "ephemeral";
/// Texts that a source must have.
const NEEDED: [(&str, &str); 27] = [
    ("hostPath", "path"),
    ("gitRepo", "repository"),
    ("gcePersistentDisk", "pdName"),
    ("awsElasticBlockStore", "volumeID"),
    ("secret", "secretName"),
    ("nfs", "server"),
    ("nfs", "path"),
    ("iscsi", "targetPortal"),
    ("iscsi", "iqn"),
    ("glusterfs", "endpoints"),
    ("glusterfs", "path"),
    ("persistentVolumeClaim", "claimName"),
    ("rbd", "image"),
    ("cinder", "volumeID"),
    ("quobyte", "registry"),
    ("quobyte", "volume"),
    ("flexVolume", "driver"),
    ("configMap", "name"),
    ("azureFile", "secretName"),
    ("azureFile", "shareName"),
    ("vsphereVolume", "volumePath"),
    ("azureDisk", "diskName"),
    ("azureDisk", "diskURI"),
    ("portworxVolume", "volumeID"),
    ("photonPersistentDisk", "pdID"),
    ("csi", "driver"),
    ("image", "reference"),
];
/// The types of a hostPath.
const HOST_PATH_TYPES: [&str; 8] =
    ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];

/// Validates all volumes; returns them by name.
pub(super) fn validate<'a>(
    spec: &'a Value,
    is_pod: bool,
    path: &str,
    errors: &mut Errors,
) -> BTreeMap<&'a str, &'a Value> {
    let mut named = BTreeMap::new();
    for (index, volume) in list(spec, "volumes").iter().enumerate() {
        let path = format!("{path}.volumes[{index}]");
        validate_source(volume, is_pod, &path, errors);
        let name = text(volume, &["name"]);
        required(volume, "name", &path, errors);
        rules::name(name, NameRule::Label, &format!("{path}.name"), errors);
        if !name.is_empty() && named.insert(name, volume).is_some() {
            errors.push(FieldError::duplicate(format!("{path}.name"), name));
        }
    }
    named
}

fn validate_source(volume: &Value, is_pod: bool, path: &str, errors: &mut Errors) {
    let known = SOURCES.iter().chain([&EPHEMERAL]);
    let mut given = known.filter_map(|name| Some((*name, volume.get(*name)?)));
    let Some((sort, source)) = given.next() else {
        return errors.push(FieldError::required(path, "must specify a volume type"));
    };
    for (other, _) in given {
        let why = "may not specify more than 1 volume type";
        errors.push(FieldError::forbidden(format!("{path}.{other}"), why));
    }
    let path = format!("{path}.{sort}");
    for (_, field) in NEEDED.iter().filter(|(of, _)| *of == sort) {
        // a template's image may be filled in later
        if sort != "image" || is_pod {
            required(source, field, &path, errors);
        }
    }
    match sort {
        "emptyDir" => validate_empty_dir(source, &path, errors),
        "hostPath" => validate_host_path(source, &path, errors),
        "nfs" => validate_nfs(source, &path, errors),
        "secret" | "configMap" => {
            validate_mode(source, "defaultMode", &path, errors);
            validate_items(source, &path, errors);
        }
        "downwardAPI" => {
            validate_mode(source, "defaultMode", &path, errors);
            list(source, "items").iter().for_each(|file| validate_file(file, &path, errors));
        }
        "projected" => validate_projected(source, &path, errors),
        "csi" => validate_csi(source, &path, errors),
        "ephemeral" => {
            let path = format!("{path}.volumeClaimTemplate");
            match source.get("volumeClaimTemplate") {
                Some(template) => validate_claim(&template["spec"], &format!("{path}.spec"), errors),
                None => errors.push(FieldError::required(path, "")),
            }
        }
        "image" => rules::one_of(source, "pullPolicy", &["Always", "IfNotPresent", "Never"], &path, errors),
        _ => {}
    }
}

/// How a claimed volume may be used.
const ACCESS_MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
const ONE_POD: &str = "ReadWriteOncePod";

/// A claim that is made with its pod.
fn validate_claim(claim: &Value, path: &str, errors: &mut Errors) {
    let modes: Vec<&str> = list(claim, "accessModes").iter().filter_map(Value::as_str).collect();
    let path_of_modes = format!("{path}.accessModes");
    if modes.is_empty() {
        errors.push(FieldError::required(path_of_modes.as_str(), "at least 1 access mode is required"));
    }
    rules::label_selector(&claim["selector"], &format!("{path}.selector"), errors);
    for mode in modes.iter().filter(|mode| !ACCESS_MODES.contains(mode)) {
        errors.push(FieldError::unsupported(path_of_modes.as_str(), *mode, &ACCESS_MODES));
    }
    if modes.contains(&ONE_POD) && modes.iter().any(|mode| *mode != ONE_POD) {
        let why = "may not use ReadWriteOncePod with other access modes";
        errors.push(FieldError::forbidden(path_of_modes, why));
    }
    let path_of_size = format!("{path}.resources[storage]");
    match claim["resources"]["requests"]["storage"].as_str() {
        None => errors.push(FieldError::required(path_of_size, "")),
        Some(size) => {
            let amount = Quantity::parse(size);
            if amount.is_some_and(|amount| amount < Quantity::ZERO) {
                let why = "must be greater than or equal to 0";
                errors.push(FieldError::invalid(path_of_size, size, why));
            } else if amount == Some(Quantity::ZERO) {
                errors.push(FieldError::invalid(path_of_size, size, "must be greater than zero"));
            }
        }
    }
    rules::name(
        text(claim, &["storageClassName"]),
        NameRule::Subdomain,
        &format!("{path}.storageClassName"),
        errors,
    );
    rules::optional_one_of(claim, "volumeMode", &["Block", "Filesystem"], path, errors);
}

fn validate_empty_dir(source: &Value, path: &str, errors: &mut Errors) {
    let size = source["sizeLimit"].as_str().and_then(Quantity::parse);
    if size.is_some_and(|size| size < Quantity::ZERO) {
        let why = "SizeLimit field must be a valid resource quantity";
        errors.push(FieldError::forbidden(format!("{path}.sizeLimit"), why));
    }
}

fn validate_host_path(source: &Value, path: &str, errors: &mut Errors) {
    let found = text(source, &["path"]);
    if found.is_empty() {
        return;
    }
    rules::no_backsteps(found, &format!("{path}.path"), errors);
    rules::optional_one_of(source, "type", &HOST_PATH_TYPES, path, errors);
}

fn validate_nfs(source: &Value, path: &str, errors: &mut Errors) {
    let found = text(source, &["path"]);
    if !found.is_empty() && !found.starts_with('/') {
        errors.push(FieldError::invalid(format!("{path}.path"), found, "must be an absolute path"));
    }
}

fn validate_csi(source: &Value, path: &str, errors: &mut Errors) {
    let driver = text(source, &["driver"]);
    rules::name(&driver.to_lowercase(), NameRule::Subdomain, &format!("{path}.driver"), errors);
    if let Some(secret) = source.get("nodePublishSecretRef") {
        required(secret, "name", &format!("{path}.nodePublishSecretRef"), errors);
        rules::name(text(secret, &["name"]), NameRule::Subdomain, &format!("{path}.name"), errors);
    }
}

fn validate_mode(source: &Value, field: &str, path: &str, errors: &mut Errors) {
    if let Some(mode) = source[field].as_i64().filter(|mode| !FILE_MODES.contains(mode)) {
        let why = "must be a number between 0 and 0777 (octal), both inclusive";
        errors.push(FieldError::invalid(format!("{path}.{field}"), mode, why));
    }
}

/// The keys of a ConfigMap or Secret, and the files for them.
fn validate_items(source: &Value, path: &str, errors: &mut Errors) {
    for (index, item) in list(source, "items").iter().enumerate() {
        let path = format!("{path}.items[{index}]");
        required(item, "key", &path, errors);
        required(item, "path", &path, errors);
        rules::local_path(text(item, &["path"]), &format!("{path}.path"), errors);
        validate_mode(item, "mode", &path, errors);
    }
}

/// A file that shows a field of the pod; upstream's errors name the volume.
fn validate_file(file: &Value, path: &str, errors: &mut Errors) {
    required(file, "path", path, errors);
    rules::local_path(text(file, &["path"]), &format!("{path}.path"), errors);
    match (file.get("fieldRef"), file.get("resourceFieldRef")) {
        (Some(field), other) => {
            validate_field(field, &FILE_FIELDS, &format!("{path}.fieldRef"), errors);
            if other.is_some() {
                let why = "fieldRef and resourceFieldRef can not be specified simultaneously";
                errors.push(FieldError::invalid(path, "resource", why));
            }
        }
        (None, Some(resource)) => {
            validate_resource_field(resource, true, &format!("{path}.resourceFieldRef"), errors);
        }
        (None, None) => {
            errors.push(FieldError::required(path, "one of fieldRef and resourceFieldRef is required"));
        }
    }
    validate_mode(file, "mode", path, errors);
}

fn validate_projected(source: &Value, path: &str, errors: &mut Errors) {
    validate_mode(source, "defaultMode", path, errors);
    let mut files = BTreeSet::new();
    for (index, one) in list(source, "sources").iter().enumerate() {
        let of = format!("{path}.sources[{index}]");
        let sorts = [
            "secret",
            "configMap",
            "downwardAPI",
            "serviceAccountToken",
            "clusterTrustBundle",
            "podCertificate",
        ];
        let given: Vec<&str> = sorts.into_iter().filter(|sort| one.get(*sort).is_some()).collect();
        if given.len() > 1 {
            let why = "may not specify more than 1 volume type per source";
            errors.push(FieldError::forbidden(of.as_str(), why));
        }
        for sort in given {
            let projection = &one[sort];
            validate_projection(projection, sort, &of, path, errors);
            for item in list(projection, "items") {
                let file = text(item, &["path"]);
                let named = text(projection, &["name"]);
                if !file.is_empty() && !files.insert(file) {
                    let shown = if named.is_empty() { file } else { named };
                    errors.push(FieldError::invalid(path, shown, "conflicting duplicate paths"));
                }
            }
        }
    }
}

/// One projection of the source at `of`, in the volume at `path`.
fn validate_projection(projection: &Value, sort: &str, of: &str, path: &str, errors: &mut Errors) {
    let of = format!("{of}.{sort}");
    match sort {
        "secret" | "configMap" => {
            required(projection, "name", &of, errors);
            validate_items(projection, &of, errors);
        }
        "downwardAPI" => list(projection, "items").iter().for_each(|file| validate_file(file, &of, errors)),
        "serviceAccountToken" => {
            let seconds = projection["expirationSeconds"].as_i64().unwrap_or(0);
            let mut refuse = |why: &str| {
                errors.push(FieldError::invalid(format!("{of}.expirationSeconds"), seconds, why));
            };
            if seconds < *TOKEN_SECS.start() {
                refuse("may not specify a duration less than 10 minutes");
            } else if seconds > *TOKEN_SECS.end() {
                refuse("may not specify a duration larger than 2^32 seconds");
            }
            required(projection, "path", path, errors);
            rules::local_path(text(projection, &["path"]), &format!("{path}.path"), errors);
        }
        _ => {}
    }
}
