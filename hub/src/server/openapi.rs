//! OpenAPI, from the table of kinds and the schema table: version 3 for current clients, and for old ones the
//! part of version 2 that they need before they send anything.
//!
//! Because `fieldValidation` is named in a document, current clients leave validation to the server. Old ones
//! validate by the definitions of version 2, use them for `explain`, and look in its paths for dry run: the
//! document contains only that.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use bytes::Bytes;
use http::Response;
use serde_json::{Map, Value, json};

use super::discovery::posted_to;
use super::respond::{self, Body};
use super::route::VIRTUAL_GROUPS;
use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::kinds::schema::{self, Field, ListMerge, Shape};
use kedge_hub_core::kinds::{self, Kind};
use kedge_hub_core::protobuf::Encoder;

/// One document per group version: path below `/openapi/v3`, text, and a name of its content.
static DOCUMENTS: LazyLock<Vec<(String, Bytes, String)>> = LazyLock::new(|| {
    kinds::group_versions()
        .into_iter()
        .chain(VIRTUAL_GROUPS)
        .map(|(group, version)| {
            let path =
                if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") };
            let text = document_value(group, version).to_string();
            let hash = format!("{:016X}", fnv(text.as_bytes()));
            (path, Bytes::from(text), hash)
        })
        .collect()
});

/// FNV-1a: clients only compare it for equality.
fn fnv(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// `/openapi/v3`.
pub(super) fn index() -> Response<Body> {
    let paths: Map<String, Value> = DOCUMENTS
        .iter()
        .map(|(path, _, hash)| {
            (path.clone(), json!({"serverRelativeURL": format!("/openapi/v3/{path}?hash={hash}")}))
        })
        .collect();
    respond::json(200, &json!({"paths": paths}))
}

/// `/openapi/v3/GROUP/VERSION`.
pub(super) fn document(group: &str, version: &str) -> Result<Response<Body>, ApiError> {
    let wanted = if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") };
    let found = DOCUMENTS.iter().find(|(path, _, _)| *path == wanted).ok_or_else(ApiError::path_not_found)?;
    Ok(respond::shared(200, "application/json", found.1.clone()))
}

fn gvk(group: &str, version: &str, kind: &str) -> Value {
    json!({"group": group, "version": version, "kind": kind})
}

/// `core/v1/Node` is `io.k8s.api.core.v1.Node` in public, and a type of Kedge's own `dev.kedge...`.
fn public_name(type_name: &str) -> String {
    match type_name.strip_prefix("meta/v1/") {
        Some(name) => format!("io.k8s.apimachinery.pkg.apis.meta.v1.{name}"),
        None if type_name.starts_with("fleet/") => format!("dev.kedge.{}", type_name.replace('/', ".")),
        None => format!("io.k8s.api.{}", type_name.replace('/', ".")),
    }
}

fn document_value(group: &str, version: &str) -> Value {
    let mut paths = Map::new();
    let mut types = BTreeSet::new();
    let of_group = kinds::served().filter(|kind| kind.group == group && kind.version == version);
    let mut roots: Vec<(&str, &str)> = Vec::new();
    for kind in of_group {
        roots.push((kind.type_name, kind.kind));
        add_paths(&mut paths, kind);
    }
    for (plural, _, kind, namespaced) in posted_to(group) {
        roots.push((posted_type(group, kind), kind));
        paths.insert(
            collection_path(group, version, plural, *namespaced),
            json!({"post": {
                "x-kubernetes-action": "post",
                "x-kubernetes-group-version-kind": gvk(group, version, kind),
                "responses": {"201": {"description": "Created"}},
            }}),
        );
    }
    // the type of evictions belongs to no kind and to no path of the group
    if group == "policy" {
        roots.push(("policy/v1/Eviction", "Eviction"));
    }
    for (type_name, _) in &roots {
        collect(type_name, &mut types);
    }
    let mut schemas = Map::new();
    for name in types {
        let Some(of) = schema::find(name) else { continue };
        let mut value = type_value(of);
        if let Some((_, kind)) = roots.iter().find(|(root, _)| *root == name) {
            value["x-kubernetes-group-version-kind"] = json!([gvk(group, version, kind)]);
            for (field, text) in [
                (
                    "apiVersion",
                    "APIVersion defines the versioned schema of this representation of an object.",
                ),
                ("kind", "Kind is a string value representing the REST resource this object represents."),
            ] {
                value["properties"][field] = json!({"type": "string", "description": text});
            }
        }
        schemas.insert(public_name(name), value);
    }
    for (name, of) in NAMED_SCALARS {
        schemas.insert(name.to_owned(), of());
    }
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": env!("CARGO_PKG_VERSION")},
        "paths": paths,
        "components": {"schemas": schemas},
    })
}

fn collect(name: &str, types: &mut BTreeSet<&'static str>) {
    fn message(shape: &Shape) -> Option<&'static str> {
        match shape {
            Shape::Message(name) => Some(name),
            Shape::List(item) | Shape::Map(item) => message(item),
            _ => None,
        }
    }
    let Some(of) = schema::find(name) else { return };
    if types.insert(of.name) {
        for name in of.fields.iter().filter_map(|field| message(&field.shape)) {
            collect(name, types);
        }
    }
}

fn type_value(of: &'static schema::Type) -> Value {
    let properties: Map<String, Value> =
        of.fields.iter().map(|field| (field.name.to_owned(), field_value(field))).collect();
    let required: Vec<&str> =
        of.fields.iter().filter(|field| field.required).map(|field| field.name).collect();
    let mut value = json!({"type": "object", "description": of.description, "properties": properties});
    if !required.is_empty() {
        value["required"] = json!(required);
    }
    if of.atomic {
        value["x-kubernetes-map-type"] = "atomic".into();
    }
    value
}

fn field_value(field: &Field) -> Value {
    let mut value = shape_value(&field.shape);
    value["description"] = field.description.into();
    if !field.values.is_empty() {
        value["enum"] = field.values.clone().into();
    }
    match field.merge {
        Some(ListMerge::ByKey(key)) => {
            value["x-kubernetes-patch-strategy"] = "merge".into();
            value["x-kubernetes-patch-merge-key"] = key.into();
        }
        Some(ListMerge::Set) => value["x-kubernetes-patch-strategy"] = "merge".into(),
        None => {}
    }
    match field.list_keys {
        Some("set") => value["x-kubernetes-list-type"] = "set".into(),
        Some(keys) => {
            value["x-kubernetes-list-type"] = "map".into();
            value["x-kubernetes-list-map-keys"] = keys.split('+').collect();
        }
        None if matches!(field.shape, Shape::List(_)) => value["x-kubernetes-list-type"] = "atomic".into(),
        None if field.atomic => value["x-kubernetes-map-type"] = "atomic".into(),
        None => {}
    }
    value
}

type NamedScalar = (&'static str, fn() -> Value);
const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
const INT_OR_STRING: &str = "io.k8s.apimachinery.pkg.util.intstr.IntOrString";
/// Values of two types have a type name of their own, which `kubectl explain` shows.
const NAMED_SCALARS: [NamedScalar; 2] = [
    (QUANTITY, || {
        json!({"description": "Quantity is a number with a unit, such as 100m or 1Gi.",
            "oneOf": [{"type": "string"}, {"type": "number"}]})
    }),
    (INT_OR_STRING, || {
        json!({"description": "IntOrString is a whole number, or a text such as 10%.",
            "oneOf": [{"type": "integer"}, {"type": "string"}], "format": "int-or-string"})
    }),
];

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn shape_value(shape: &Shape) -> Value {
    match shape {
        Shape::String => json!({"type": "string"}),
        Shape::Quantity => json!({"allOf": [reference(QUANTITY)]}),
        Shape::IntOrString => json!({"allOf": [reference(INT_OR_STRING)]}),
        Shape::Bool => json!({"type": "boolean"}),
        Shape::Int32 => json!({"type": "integer", "format": "int32"}),
        Shape::Int64 => json!({"type": "integer", "format": "int64"}),
        Shape::Double => json!({"type": "number", "format": "double"}),
        Shape::Bytes => json!({"type": "string", "format": "byte"}),
        Shape::Time | Shape::MicroTime => json!({"type": "string", "format": "date-time"}),
        Shape::Raw => json!({"type": "object"}),
        // allOf, as upstream: a $ref may have no siblings, and there is a description beside it
        Shape::Message(name) => {
            json!({"allOf": [reference(&public_name(name))], "default": {}})
        }
        Shape::List(item) => json!({"type": "array", "items": shape_value(item)}),
        Shape::Map(item) => json!({"type": "object", "additionalProperties": shape_value(item)}),
    }
}

/// The type of an object that is posted and never stored.
fn posted_type(group: &str, kind: &str) -> &'static str {
    let short = group.split('.').next().filter(|short| !short.is_empty()).unwrap_or("core");
    schema::find(&format!("{short}/v1/{kind}")).map_or("", |of| of.name)
}

fn collection_path(group: &str, version: &str, plural: &str, namespaced: bool) -> String {
    let root = if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
    let space = if namespaced { "/namespaces/{namespace}" } else { "" };
    format!("{root}{space}/{plural}")
}

/// The paths of a kind, and true for those that contain a name.
fn kind_paths(kind: &Kind) -> Vec<(String, bool)> {
    let collection = collection_path(kind.group, kind.version, kind.plural, kind.namespaced);
    let named = format!("{collection}/{{name}}");
    let mut paths = vec![(collection, false), (named.clone(), true)];
    if kind.status {
        paths.push((format!("{named}/status"), true));
    }
    paths
}

fn add_paths(paths: &mut Map<String, Value>, kind: &'static Kind) {
    let parameter =
        |name: &str| json!({"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": true}});
    let write_parameters = json!([
        parameter("dryRun"),
        parameter("fieldManager"),
        parameter("fieldValidation"),
        parameter("force")
    ]);
    for (path, named) in kind_paths(kind) {
        let verbs: &[(&str, &str, &str)] = match named {
            false => &[
                ("get", "list", "list"),
                ("post", "create", "post"),
                ("delete", "deletecollection", "deletecollection"),
            ],
            true => &[
                ("get", "get", "get"),
                ("put", "update", "put"),
                ("patch", "patch", "patch"),
                ("delete", "delete", "delete"),
            ],
        };
        let mut item = Map::new();
        for (method, _, action) in verbs.iter().filter(|(_, verb, _)| kind.allows(verb)) {
            let mut operation = json!({
                "x-kubernetes-action": action,
                "x-kubernetes-group-version-kind": gvk(kind.group, kind.version, kind.kind),
                "responses": {"200": {"description": "OK"}},
            });
            if matches!(*method, "post" | "put" | "patch") {
                operation["parameters"] = write_parameters.clone();
            }
            item.insert((*method).to_owned(), operation);
        }
        paths.insert(path, Value::Object(item));
    }
}

/// `/openapi/v2`: as protobuf for clients that ask for it, else as JSON.
pub(super) fn version_2(accept: &str) -> Response<Body> {
    if accept.contains("proto-openapi") {
        // the type that clients ask for contains an @, which Go (and so kubectl) cannot parse in an answer:
        // upstream answers with a dot, too
        return respond::bytes(200, "application/com.github.proto-openapi.spec.v2.v1.0+protobuf", gnostic());
    }
    let paths: Map<String, Value> = patch_paths()
        .map(|(path, kind)| {
            let operation = json!({
                "parameters": [{"name": "dryRun", "in": "query", "type": "string"}],
                "responses": {"200": {"description": "OK"}},
                "x-kubernetes-group-version-kind": gvk(kind.group, kind.version, kind.kind),
            });
            (path, json!({"patch": operation}))
        })
        .collect();
    let info = json!({"title": "Kubernetes", "version": env!("CARGO_PKG_VERSION")});
    respond::json(200, &json!({"swagger": "2.0", "info": info, "paths": paths, "definitions": {}}))
}

fn patch_paths() -> impl Iterator<Item = (String, &'static Kind)> {
    kinds::served().filter(|kind| kind.allows("patch")).flat_map(|kind| {
        let named = kind_paths(kind).into_iter().filter(|(path, named)| *named && !path.ends_with("/status"));
        named.map(|(path, _)| (path, kind)).collect::<Vec<_>>()
    })
}

/// The document in gnostic's protobuf form (`openapi.v2.Document`), by field numbers.
fn gnostic() -> Vec<u8> {
    let mut document = Encoder::default();
    document.text(1, "2.0");
    document.message(2, |info| {
        info.text(1, "Kubernetes");
        info.text(2, env!("CARGO_PKG_VERSION"));
    });
    document.message(8, |paths| {
        for (path, kind) in patch_paths() {
            paths.message(2, |named_path| {
                named_path.text(1, &path);
                named_path
                    .message(2, |item| item.message(8, |patch| gnostic_operation(patch, &Root::of(kind))));
            });
        }
    });
    document.message(9, |definitions| {
        let mut types = BTreeSet::new();
        let roots = roots();
        roots.iter().for_each(|root| collect(root.type_name, &mut types));
        for of in types.into_iter().filter_map(schema::find) {
            named_schema(definitions, 1, &public_name(of.name), |schema| {
                gnostic_type(schema, of, roots.iter().find(|root| root.type_name == of.name));
            });
        }
    });
    document.bytes
}

/// `NamedSchema`, as field `number`.
fn named_schema(into: &mut Encoder, number: u64, name: &str, fill: impl FnOnce(&mut Encoder)) {
    into.message(number, |named| {
        named.text(1, name);
        named.message(2, fill);
    });
}

/// A type that clients refer to by group, version and kind.
struct Root {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    type_name: &'static str,
}

impl Root {
    fn of(kind: &Kind) -> Root {
        Root { group: kind.group, version: kind.version, kind: kind.kind, type_name: kind.type_name }
    }
}

/// All kinds, and the types that are posted and never stored.
fn roots() -> Vec<Root> {
    let groups = VIRTUAL_GROUPS.iter().map(|(group, _)| *group).chain([""]);
    let posted = groups.flat_map(|group| {
        posted_to(group).iter().map(move |(_, _, kind, _)| Root {
            group,
            version: "v1",
            kind,
            type_name: posted_type(group, kind),
        })
    });
    kinds::served().map(Root::of).chain(posted).collect()
}

fn gnostic_type(into: &mut Encoder, of: &'static schema::Type, root: Option<&Root>) {
    into.text(4, of.description);
    for field in of.fields.iter().filter(|field| field.required) {
        into.text(19, field.name);
    }
    into.message(22, |of| of.text(1, "object"));
    into.message(25, |properties| {
        for field in &of.fields {
            named_schema(properties, 1, field.name, |schema| {
                gnostic_shape(schema, &field.shape, field.description)
            });
        }
        for name in root.iter().flat_map(|_| ["apiVersion", "kind"]) {
            named_schema(properties, 1, name, |schema| gnostic_shape(schema, &Shape::String, ""));
        }
    });
    if let Some(root) = root {
        into.message(31, |extension| gnostic_gvk(extension, root, "- "));
    }
}

fn gnostic_shape(into: &mut Encoder, shape: &Shape, description: &str) {
    if let Shape::Message(name) = shape {
        into.text(1, &format!("#/definitions/{}", public_name(name)));
    }
    let (of, format) = match shape {
        Shape::Message(_) => ("", ""),
        Shape::String | Shape::Quantity => ("string", ""),
        Shape::IntOrString => ("string", "int-or-string"),
        Shape::Bytes => ("string", "byte"),
        Shape::Time | Shape::MicroTime => ("string", "date-time"),
        Shape::Bool => ("boolean", ""),
        Shape::Int32 => ("integer", "int32"),
        Shape::Int64 => ("integer", "int64"),
        Shape::Double => ("number", "double"),
        Shape::List(_) => ("array", ""),
        Shape::Raw | Shape::Map(_) => ("object", ""),
    };
    if !format.is_empty() {
        into.text(2, format);
    }
    if !description.is_empty() {
        into.text(4, description);
    }
    if let Shape::Map(item) = shape {
        into.message(21, |additional| additional.message(1, |schema| gnostic_shape(schema, item, "")));
    }
    if !of.is_empty() {
        into.message(22, |item| item.text(1, of));
    }
    if let Shape::List(item) = shape {
        into.message(23, |items| items.message(1, |schema| gnostic_shape(schema, item, "")));
    }
}

/// The extension by which clients find a kind; definitions have a list of it (`- `), operations a single one.
fn gnostic_gvk(extension: &mut Encoder, root: &Root, mark: &str) {
    extension.text(1, "x-kubernetes-group-version-kind");
    let pad = " ".repeat(mark.len());
    let Root { group, version, kind, .. } = root;
    let yaml = format!("{mark}group: {group:?}\n{pad}kind: {kind}\n{pad}version: {version}\n");
    extension.message(2, |any| any.text(2, &yaml));
}

fn gnostic_operation(patch: &mut Encoder, root: &Root) {
    // ParametersItem.parameter . Parameter.non_body_parameter . NonBodyParameter.query_parameter_sub_schema
    patch.message(8, |item| {
        item.message(1, |parameter| {
            parameter.message(2, |non_body| {
                non_body.message(3, |query| {
                    query.text(2, "query");
                    query.text(4, "dryRun");
                });
            });
        });
    });
    patch.message(13, |extension| gnostic_gvk(extension, root, ""));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reference_of_a_document_is_defined_in_it() {
        fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
            match value {
                Value::Object(fields) => {
                    found.extend(fields.get("$ref").and_then(Value::as_str));
                    fields.values().for_each(|value| references(value, found));
                }
                Value::Array(items) => items.iter().for_each(|value| references(value, found)),
                _ => {}
            }
        }
        for (group, version) in kinds::group_versions().into_iter().chain(VIRTUAL_GROUPS) {
            let document = document_value(group, version);
            let mut found = Vec::new();
            references(&document, &mut found);
            assert!(!found.is_empty());
            for reference in found {
                let pointer = reference.trim_start_matches('#');
                assert!(document.pointer(pointer).is_some(), "{reference}");
            }
        }
    }

    #[test]
    fn posted_types_are_explained_too() {
        for (group, path, kind) in [
            ("", "/api/v1/namespaces/{namespace}/bindings", "Binding"),
            (
                "authorization.k8s.io",
                "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
                "SelfSubjectAccessReview",
            ),
            (
                "authentication.k8s.io",
                "/apis/authentication.k8s.io/v1/selfsubjectreviews",
                "SelfSubjectReview",
            ),
        ] {
            let document = document_value(group, "v1");
            let named = &document["paths"][path]["post"]["x-kubernetes-group-version-kind"];
            assert_eq!(named, &gvk(group, "v1", kind), "{path}");
            let schema = &document["components"]["schemas"][public_name(posted_type(group, kind))];
            assert_eq!(schema["x-kubernetes-group-version-kind"], json!([gvk(group, "v1", kind)]), "{path}");
        }
        assert!(roots().iter().all(|root| schema::find(root.type_name).is_some()));
    }

    #[test]
    fn required_fields_and_values_are_upstreams() {
        let core = document_value("", "v1");
        let of = |name: &str| &core["components"]["schemas"][format!("io.k8s.api.core.v1.{name}")];
        for (name, required) in [
            ("LocalObjectReference", json!(null)),
            ("ConfigMapEnvSource", json!(null)),
            ("SecretEnvSource", json!(null)),
            ("ConfigMapProjection", json!(null)),
            ("SecretProjection", json!(null)),
            ("ConfigMapKeySelector", json!(["key"])),
            ("SecretKeySelector", json!(["key"])),
            ("Event", json!(["involvedObject", "metadata"])),
            ("Container", json!(["name"])),
        ] {
            assert_eq!(of(name)["required"], required, "{name}");
        }
        for (name, field, values) in [
            ("VolumeMount", "mountPropagation", json!(["Bidirectional", "HostToContainer", "None"])),
            ("AzureDiskVolumeSource", "cachingMode", json!(["None", "ReadOnly", "ReadWrite"])),
            ("AzureDiskVolumeSource", "kind", json!(["Dedicated", "Managed", "Shared"])),
            ("Container", "imagePullPolicy", json!(["Always", "IfNotPresent", "Never"])),
        ] {
            assert_eq!(of(name)["properties"][field]["enum"], values, "{name}.{field}");
        }
        let signals = of("Lifecycle")["properties"]["stopSignal"]["enum"].as_array().unwrap();
        assert_eq!((signals.len(), signals.contains(&json!("SIGTERM"))), (65, true));
        let events = document_value("events.k8s.io", "v1");
        let event = &events["components"]["schemas"]["io.k8s.api.events.v1.Event"];
        assert_eq!(event["required"], json!(["eventTime"]));
    }

    #[test]
    fn clients_find_field_validation_by_kind() {
        let document = document_value("", "v1");
        let patch = &document["paths"]["/api/v1/namespaces/{namespace}/configmaps/{name}"]["patch"];
        assert_eq!(patch["x-kubernetes-group-version-kind"], gvk("", "v1", "ConfigMap"));
        assert!(
            patch["parameters"]
                .as_array()
                .unwrap()
                .iter()
                .any(|parameter| parameter["name"] == "fieldValidation")
        );
        let node = &document["components"]["schemas"]["io.k8s.api.core.v1.Node"];
        assert_eq!(node["x-kubernetes-group-version-kind"], json!([gvk("", "v1", "Node")]));
    }
}
