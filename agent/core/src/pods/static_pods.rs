//! Pods from files, as upstream's node agent reads them: names, UID, annotations, defaults.
//!
//! Always holds: the UID is a digest of node, path and content, so an edit is another pod; a file that cannot be read or parsed says
//! nothing about its pod. Leaves to others: running them, their mirrors in the API.

use crate::config::digest::Digest;
use crate::kubelet::yaml;
use crate::pods::spec::Pod;
use serde_json::{Map, Value, json};

/// Upstream's annotations of a pod that is not from the API.
const HASH_ANNOTATION: &str = "kubernetes.io/config.hash";
const SOURCE_ANNOTATION: &str = "kubernetes.io/config.source";

/// Reads one file.
pub(crate) fn read(path: &str, content: &[u8], node_name: &str) -> Result<Pod, String> {
    let tree =
        yaml::parse(content).map_err(|error| format!("line {}: {}", error.position.line, error.message))?;
    let mut object = tree.to_json();
    let (version, kind) = (object["apiVersion"].as_str(), object["kind"].as_str());
    if (version, kind) != (Some("v1"), Some("Pod")) {
        return Err("expected apiVersion v1, kind Pod".into());
    }
    let hash = uid(path, content, node_name);
    let fields = object.as_object_mut().ok_or("expected an object")?;
    let metadata = part(fields, "metadata")?;
    let name = metadata.get("name").and_then(Value::as_str).filter(|name| !name.is_empty());
    let name =
        format!("{}-{}", name.ok_or("invalid pod: name is needed for the pod")?, node_name.to_lowercase());
    metadata.insert("name".into(), json!(name));
    metadata.insert("uid".into(), json!(hash));
    if metadata.get("namespace").and_then(Value::as_str).is_none_or(str::is_empty) {
        metadata.insert("namespace".into(), json!("default"));
    }
    for unused in
        ["deletionTimestamp", "generation", "ownerReferences", "creationTimestamp", "resourceVersion"]
    {
        metadata.remove(unused);
    }
    let annotations = part(metadata, "annotations")?;
    annotations.insert(HASH_ANNOTATION.into(), json!(hash));
    annotations.insert(SOURCE_ANNOTATION.into(), json!("file"));
    let spec = part(fields, "spec")?;
    spec.insert("nodeName".into(), json!(node_name));
    let tolerations = spec.entry("tolerations").or_insert_with(|| json!([]));
    if let Some(tolerations) = tolerations.as_array_mut() {
        tolerations.push(json!({"operator": "Exists", "effect": "NoExecute"}));
    }
    Pod::read(&object)
}

fn part<'a>(fields: &'a mut Map<String, Value>, name: &str) -> Result<&'a mut Map<String, Value>, String> {
    let value = fields.entry(name).or_insert(Value::Null);
    if value.is_null() {
        *value = json!({});
    }
    value.as_object_mut().ok_or_else(|| format!("{name}: expected an object"))
}

/// 32 hexadecimal digits, as upstream's.
fn uid(path: &str, content: &[u8], node_name: &str) -> String {
    let parts = format!("{}\nhost:{node_name}\nfile:{path}", Digest::of(content));
    let mut digest = Digest::of(parts.as_bytes()).to_string();
    digest.truncate(32);
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  hostNetwork: true\n  containers:\n  - {name: a, image: x}\n";

    #[test]
    fn static_pod_is_named_after_the_node() {
        let pod = read("/etc/p.yaml", TEXT.as_bytes(), "Edge-1").unwrap();
        assert_eq!((pod.namespace.as_str(), pod.name.as_str()), ("default", "web-edge-1"));
        assert_eq!(pod.uid.as_str().len(), 32);
        assert_eq!(pod.annotations[HASH_ANNOTATION], pod.uid.as_str());
        assert_eq!(pod.spec.node_name, "Edge-1");
        assert_eq!(read("/etc/p.yaml", TEXT.as_bytes(), "Edge-1").unwrap(), pod);
    }

    #[test]
    fn edit_move_and_node_change_the_uid() {
        let uid = |path: &str, text: &str, node: &str| read(path, text.as_bytes(), node).unwrap().uid;
        let first = uid("/p", TEXT, "n");
        assert_ne!(uid("/p", &TEXT.replace("image: x", "image: z"), "n"), first);
        assert_ne!(uid("/q", TEXT, "n"), first);
        assert_ne!(uid("/p", TEXT, "m"), first);
    }

    #[test]
    fn file_that_is_no_pod_is_an_error() {
        for text in [
            "",
            "[]",
            "a: [",
            "apiVersion: v1\nkind: Service\n",
            "apiVersion: v1\nkind: Pod\nspec: {}\n",
            "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: 5\n",
            "apiVersion: v1\nkind: Pod\nmetadata: 5\n",
            "apiVersion: v1\nkind: Pod\nmetadata: {name: a, annotations: x}\nspec: {}\n",
            "apiVersion: v1\nkind: Pod\nmetadata: {name: ../a}\nspec: {containers: [{name: a}]}\n",
        ] {
            assert!(read("/p", text.as_bytes(), "n").is_err(), "{text:?}");
        }
    }
}
