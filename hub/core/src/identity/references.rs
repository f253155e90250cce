//! What a pod may refer to: the one table by which a node's access to ConfigMaps and Secrets is decided.

use serde_json::Value;

/// Where a pod's spec may name a ConfigMap, and where a Secret: field and the name's field below it. The rest of the path
/// does not matter: an object of that shape anywhere in the spec is a reference.
const REFERENCES: [(&str, &str, &str); 8] = [
    ("configmaps", "configMap", "name"),
    ("configmaps", "configMapRef", "name"),
    ("configmaps", "configMapKeyRef", "name"),
    ("secrets", "secret", "secretName"),
    ("secrets", "secret", "name"),
    ("secrets", "secretRef", "name"),
    ("secrets", "secretKeyRef", "name"),
    ("secrets", "imagePullSecrets", "name"),
];

/// Whether a pod's spec names this ConfigMap or Secret: in volumes (projected ones too), variables, or for image pulls.
pub(super) fn refers_to(spec: &Value, resource: &str, name: &str) -> bool {
    let here = |field: &str, value: &Value| {
        REFERENCES.iter().any(|(of, at, key)| {
            let names = |value: &Value| value[*key].as_str() == Some(name);
            *of == resource
                && *at == field
                && (names(value) || value.as_array().is_some_and(|list| list.iter().any(names)))
        })
    };
    match spec {
        Value::Object(fields) => {
            fields.iter().any(|(field, value)| here(field, value) || refers_to(value, resource, name))
        }
        Value::Array(items) => items.iter().any(|item| refers_to(item, resource, name)),
        _ => false,
    }
}
