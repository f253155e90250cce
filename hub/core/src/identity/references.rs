//! The objects that a pod refers to: one table, which decides three things: the objects that a node may read
//! because of its pods, the changes that it hears of (`state::Desired`), and the pods that a node may not
//! create itself. Also the objects that a Node refers to.
//!
//! Always holds: all three walk a spec by the schema and use the same rows, so a node cannot gain access to
//! an object by creating a pod. A test walks all fields of a PodSpec and fails for a field with a name like a
//! reference that is listed neither here nor among the test's exceptions: a new field of upstream cannot be
//! overlooked.

use serde_json::Value;

use crate::kinds::pod::is_mirror;
use crate::kinds::schema::{self, Shape, Type};
use crate::kinds::{CONFIG_MAP, by_resource};
use crate::object::Reference;
use crate::value::text;

/// The type of a pod's spec.
const POD_SPEC: &str = "core/v1/PodSpec";

/// One row: a field that refers to an object of a resource. A string is its name; an object or the objects of
/// a list have a `name`.
struct Row {
    resource: &'static str,
    /// The schema's type that has the field.
    of: &'static str,
    field: &'static str,
}

const fn row(resource: &'static str, of: &'static str, field: &'static str) -> Row {
    Row { resource, of, field }
}

/// Every field by which a pod refers to another object, or by which it asks for an identity.
const REFERENCES: [Row; 26] = [
    row("configmaps", "core/v1/ConfigMapEnvSource", "name"),
    row("configmaps", "core/v1/ConfigMapKeySelector", "name"),
    row("configmaps", "core/v1/ConfigMapProjection", "name"),
    row("configmaps", "core/v1/ConfigMapVolumeSource", "name"),
    row("secrets", "core/v1/AzureFileVolumeSource", "secretName"),
    row("secrets", "core/v1/CSIVolumeSource", "nodePublishSecretRef"),
    row("secrets", "core/v1/CephFSVolumeSource", "secretRef"),
    row("secrets", "core/v1/CinderVolumeSource", "secretRef"),
    row("secrets", "core/v1/FlexVolumeSource", "secretRef"),
    row("secrets", "core/v1/ISCSIVolumeSource", "secretRef"),
    row("secrets", POD_SPEC, "imagePullSecrets"),
    row("secrets", "core/v1/RBDVolumeSource", "secretRef"),
    row("secrets", "core/v1/ScaleIOVolumeSource", "secretRef"),
    row("secrets", "core/v1/SecretEnvSource", "name"),
    row("secrets", "core/v1/SecretKeySelector", "name"),
    row("secrets", "core/v1/SecretProjection", "name"),
    row("secrets", "core/v1/SecretVolumeSource", "secretName"),
    row("secrets", "core/v1/StorageOSVolumeSource", "secretRef"),
    row("serviceaccounts", POD_SPEC, "serviceAccountName"),
    row("serviceaccounts", POD_SPEC, "serviceAccount"),
    row("serviceaccounts", "core/v1/VolumeProjection", "serviceAccountToken"),
    // a certificate for the pod's own identity
    row("serviceaccounts", "core/v1/VolumeProjection", "podCertificate"),
    row("clustertrustbundles", "core/v1/VolumeProjection", "clusterTrustBundle"),
    row("persistentvolumeclaims", "core/v1/PersistentVolumeClaimVolumeSource", "claimName"),
    // a claim is created for the pod
    row("persistentvolumeclaims", "core/v1/Volume", "ephemeral"),
    row("resourceclaims", POD_SPEC, "resourceClaims"),
];

/// The objects of served kinds that a pod refers to, in order, each once. A mirror pod gives its node no
/// access.
pub(crate) fn of_pod(pod: &Value) -> Vec<Reference> {
    let (mut found, namespace) = (Vec::new(), text(pod, &["metadata", "namespace"]));
    if is_mirror(pod) {
        return found;
    }
    visit(&pod["spec"], &mut |row, value| {
        let items = value.as_array().map_or(&[][..], Vec::as_slice);
        let names =
            std::iter::once(value).chain(items).flat_map(|value| [value.as_str(), value["name"].as_str()]);
        if let Some(kind) = by_resource(row.resource) {
            let names = names.flatten().filter(|name| !name.is_empty());
            found.extend(names.map(|name| Reference::new(kind, namespace, name)));
        }
        false
    });
    found.sort_unstable();
    found.dedup();
    found
}

/// The ConfigMap that is assigned to a Node.
pub(crate) fn of_node(node: &Value) -> Vec<Reference> {
    let assigned = assigned_config_map(node).into_iter();
    assigned.map(|(namespace, name)| Reference::new(&CONFIG_MAP, namespace, name)).collect()
}

/// Namespace and name of the ConfigMap that a Node's `spec.configSource` names, in either form. A Node that
/// names two assigns none: the node follows neither.
fn assigned_config_map(node: &Value) -> Option<(&str, &str)> {
    let source = &node["spec"]["configSource"];
    let form = |key: &str| source.get(key).filter(|form| !form.is_null());
    let reference = match (form("configMapRef"), form("configMap")) {
        (Some(reference), None) | (None, Some(reference)) => reference,
        _ => return None,
    };
    let named = |field: &str| reference[field].as_str().filter(|text| !text.is_empty());
    Some((named("namespace")?, named("name")?))
}

/// The resource of some object that a pod's spec refers to, if it refers to any.
pub(super) fn referred_resource(spec: &Value) -> Option<&'static str> {
    let mut found = None;
    visit(spec, &mut |row, value| {
        let is_empty = match value {
            Value::Null => true,
            Value::String(text) => text.is_empty(),
            Value::Array(list) => list.is_empty(),
            _ => false,
        };
        if !is_empty {
            found = Some(row.resource);
        }
        !is_empty
    });
    found
}

/// Passes every reference of a pod's spec to `stop` until it returns true; returns whether it did.
fn visit(spec: &Value, stop: &mut dyn FnMut(&'static Row, &Value) -> bool) -> bool {
    schema::find(POD_SPEC).is_some_and(|of| visit_type(of, spec, stop))
}

fn visit_type(of: &'static Type, value: &Value, stop: &mut dyn FnMut(&'static Row, &Value) -> bool) -> bool {
    value.as_object().into_iter().flatten().any(|(name, value)| {
        let row = REFERENCES.iter().find(|row| row.field == name && row.of == of.name);
        row.is_some_and(|row| stop(row, value))
            || of.field(name).is_some_and(|field| visit_shape(&field.shape, value, stop))
    })
}

fn visit_shape(
    shape: &'static Shape,
    value: &Value,
    stop: &mut dyn FnMut(&'static Row, &Value) -> bool,
) -> bool {
    match (shape, value) {
        (Shape::Message(name), _) => schema::find(name).is_some_and(|of| visit_type(of, value, stop)),
        (Shape::List(item), Value::Array(list)) => list.iter().any(|value| visit_shape(item, value, stop)),
        (Shape::Map(item), Value::Object(map)) => map.values().any(|value| visit_shape(item, value, stop)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    /// Fields of a pod's spec, by type, with names like references that do not refer to an object of the API.
    const OTHERS: [(&str, &[&str]); 47] = [
        // names within the pod
        ("Container", &["name"]),
        ("ContainerPort", &["name"]),
        ("EnvVar", &["name"]),
        ("EphemeralContainer", &["name", "targetContainerName"]),
        ("FileKeySelector", &["volumeName"]),
        ("ResourceClaim", &["name"]),
        ("ResourceFieldSelector", &["containerName"]),
        ("ResourceRequirements", &["claims"]),
        ("Volume", &["name"]),
        ("VolumeDevice", &["name"]),
        ("VolumeMount", &["name"]),
        // fields of the pod itself
        ("DownwardAPIVolumeFile", &["fieldRef", "resourceFieldRef"]),
        ("EnvVarSource", &["configMapKeyRef", "fieldRef", "fileKeyRef", "resourceFieldRef", "secretKeyRef"]),
        // parents of rows
        ("EnvFromSource", &["configMapRef", "secretRef"]),
        ("Volume", &["configMap", "persistentVolumeClaim", "secret"]),
        ("VolumeProjection", &["configMap", "secret"]),
        ("EphemeralVolumeSource", &["volumeClaimTemplate"]),
        ("LocalObjectReference", &["name"]),
        ("ClusterTrustBundleProjection", &["name", "signerName"]),
        ("PodCertificateProjection", &["credentialBundlePath", "signerName"]),
        (
            "PersistentVolumeClaimSpec",
            &["dataSourceRef", "storageClassName", "volumeAttributesClassName", "volumeName"],
        ),
        ("TypedLocalObjectReference", &["name"]),
        ("TypedObjectReference", &["name"]),
        ("ObjectMeta", &["generateName", "name"]),
        ("OwnerReference", &["name"]),
        ("PodResourceClaim", &["name", "resourceClaimName", "resourceClaimTemplateName"]),
        // names in other systems than the API
        ("AzureDiskVolumeSource", &["diskName"]),
        ("AzureFileVolumeSource", &["shareName"]),
        ("CephFSVolumeSource", &["secretFile"]),
        ("EvictionResponder", &["name"]),
        ("FlockerVolumeSource", &["datasetName"]),
        ("GCEPersistentDiskVolumeSource", &["pdName"]),
        ("HTTPHeader", &["name"]),
        ("HostAlias", &["hostnames"]),
        ("ISCSIVolumeSource", &["initiatorName"]),
        ("PodDNSConfigOption", &["name"]),
        ("PodOS", &["name"]),
        ("ScaleIOVolumeSource", &["volumeName"]),
        ("StorageOSVolumeSource", &["volumeName"]),
        ("Sysctl", &["name"]),
        ("VsphereVirtualDiskVolumeSource", &["storagePolicyName"]),
        ("WindowsSecurityContextOptions", &["gmsaCredentialSpecName", "runAsUserName"]),
        ("ContainerResizePolicy", &["resourceName"]),
        // objects whose content no node reads: names of cluster-scoped kinds and of schedulers
        ("PodSpec", &["nodeName", "priorityClassName", "runtimeClassName", "schedulerName"]),
        ("PodSchedulingGate", &["name"]),
        ("PodSchedulingGroup", &["podGroupName"]),
        // not references, though their names sound like it
        ("PodSpec", &["automountServiceAccountToken", "hostname", "hostnameOverride", "setHostnameAsFQDN"]),
    ];
    /// Parts of a field's name that suggest a reference.
    const TELLING: [&str; 9] =
        ["ref", "secret", "claim", "configmap", "bundle", "account", "class", "token", "name"];
    /// Types whose every string must be classified, whatever its name.
    const TELLING_TYPES: [&str; 6] = [
        "Secret",
        "ConfigMap",
        "PersistentVolumeClaim",
        "ServiceAccount",
        "ClusterTrustBundle",
        "PodResourceClaim",
    ];
    /// Strings of such types that name no object.
    const PARTS: [&str; 9] =
        ["key", "path", "mode", "volumeMode", "resources", "audience", "apiGroup", "kind", "accessModes"];

    fn is_telling(of: &str, field: &str, shape: &Shape) -> bool {
        let named = TELLING.iter().any(|part| {
            let at = field.to_ascii_lowercase().find(part);
            // "prefix" and "preferred" have "ref" in them
            at.is_some() && !(*part == "ref" && !field.ends_with("Ref") && !field.ends_with("Reference"))
        });
        let typed = of.split('/').next_back().is_some_and(|of| {
            TELLING_TYPES.iter().any(|telling| of.starts_with(telling)) && *shape == Shape::String
        });
        (named
            && !field.starts_with("namespace")
            && !field.ends_with("Namespace")
            && !field.starts_with("nameserver"))
            || (typed && !PARTS.contains(&field))
    }

    /// A field on the way down from a PodSpec, and the type that has it.
    type Step = (&'static Type, &'static schema::Field);

    /// Every field below a type, with a way to build a spec that has nothing else: the path of field names
    /// and lists.
    fn fields(of: &'static Type, path: &mut Vec<Step>, show: &mut dyn FnMut(&[Step])) {
        for field in &of.fields {
            path.push((of, field));
            show(path);
            let mut shape = &field.shape;
            while let Shape::List(item) | Shape::Map(item) = shape {
                shape = item;
            }
            if let Shape::Message(name) = shape
                && let Some(inner) = schema::find(name)
                && !path.iter().any(|(of, _)| of.name == inner.name)
            {
                fields(inner, path, show);
            }
            path.pop();
        }
    }

    fn pod_fields(show: &mut dyn FnMut(&[Step])) {
        fields(schema::find(POD_SPEC).unwrap(), &mut Vec::new(), show);
    }

    /// A spec with `leaf` at this path and nothing else.
    fn planted(path: &[Step], leaf: &Value) -> Value {
        fn wrapped(shape: &Shape, value: Value) -> Value {
            match shape {
                Shape::List(item) => json!([wrapped(item, value)]),
                Shape::Map(item) => json!({"x": wrapped(item, value)}),
                _ => value,
            }
        }
        let mut value = leaf.clone();
        for (_, field) in path.iter().rev() {
            value = json!({field.name: wrapped(&field.shape, value)});
        }
        value
    }

    #[test]
    fn every_path_that_gives_access_is_refused_in_own_pods() {
        let mut paths = 0;
        pod_fields(&mut |path| {
            for leaf in [json!("planted"), json!({"name": "planted"})] {
                let spec = planted(path, &leaf);
                let pod = json!({"metadata": {"namespace": "x"}, "spec": spec});
                let followed = of_pod(&pod);
                if !followed.is_empty() {
                    paths += 1;
                    let resource = referred_resource(&spec).expect("a pod of a node's own would gain access");
                    let kind = by_resource(resource).expect("what a pod refers to is of a served kind");
                    assert_eq!(followed, [Reference::new(kind, "x", "planted")], "{spec}");
                }
            }
        });
        assert!(paths > 50, "{paths} paths refer to something");
    }

    #[test]
    fn every_field_named_like_a_reference_is_classified() {
        let mut unknown = BTreeSet::new();
        let mut used = BTreeSet::new();
        pod_fields(&mut |path| {
            let Some((of, field)) = path.last() else { return };
            let short = of.name.split('/').next_back().unwrap();
            let row = REFERENCES.iter().position(|row| row.of == of.name && row.field == field.name);
            let other = OTHERS.iter().any(|(known, fields)| *known == short && fields.contains(&field.name));
            assert!(row.is_none() || !other, "{short}.{} stands in both lists", field.name);
            used.extend(row);
            if row.is_none() && !other && is_telling(of.name, field.name, &field.shape) {
                unknown.insert(format!("{short}.{}", field.name));
            }
        });
        assert_eq!(
            unknown,
            BTreeSet::new(),
            "classify these fields: a row of REFERENCES, or OTHERS with a reason"
        );
        assert_eq!(used.len(), REFERENCES.len(), "every row is a field of the schema");
    }

    #[test]
    fn node_follows_nothing_because_of_a_mirror_pod() {
        let annotation = json!({crate::kinds::pod::MIRROR_ANNOTATION: "x"});
        let spec = json!({"volumes": [{"name": "v", "secret": {"secretName": "s"}}]});
        let pod = json!({"metadata": {"namespace": "x", "annotations": annotation}, "spec": spec});
        assert_eq!(of_pod(&pod), []);
    }

    #[test]
    fn empty_fields_refer_to_nothing() {
        for spec in [
            json!({}),
            json!(null),
            json!({"serviceAccountName": "", "imagePullSecrets": [], "resourceClaims": null}),
            json!({"volumes": [{"name": "secret", "hostPath": {"path": "/"}}], "nodeName": "a"}),
        ] {
            assert_eq!(referred_resource(&spec), None, "{spec}");
            assert_eq!(of_pod(&json!({"metadata": {"namespace": "x"}, "spec": spec})), []);
        }
        for (spec, resource) in [
            (json!({"volumes": [{"ephemeral": {}}]}), "persistentvolumeclaims"),
            (json!({"serviceAccountName": "", "volumes": [{"secret": {"secretName": "s"}}]}), "secrets"),
        ] {
            assert_eq!(referred_resource(&spec), Some(resource), "{spec}");
        }
    }
}
