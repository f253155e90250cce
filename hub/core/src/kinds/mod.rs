//! The table of served kinds. A kind is one [`Kind`] entry; the store, the verbs, discovery, tables and OpenAPI are generic
//! over it, so serving another kind means another entry here (and its rules in a file beside).
//!
//! Always holds: entries are statics, compared by [`Kind::resource_name`]; rules see only values that passed
//! [`schema::conform`]. Left to others: who may do what (`auth`), and everything that happens later (`lifecycle`, `garbage`).

pub mod certificate_request;
pub mod config_map;
pub mod controller_revision;
pub mod daemon_set;
pub mod event;
pub mod lease;
pub mod meta;
pub mod namespace;
pub mod node;
pub mod pod;
pub mod pod_spec;
pub mod schema;
pub mod secret;
pub mod service_account;
pub mod table;

use serde_json::{Map, Value};

use crate::api_error::FieldError;

/// What may be done with a kind, in upstream's words and order of discovery.
pub const ALL_VERBS: &[&str] =
    &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// One served kind.
#[derive(Debug)]
pub struct Kind {
    /// API group, empty for core.
    pub group: &'static str,
    /// API version.
    pub version: &'static str,
    /// For example `ConfigMap`.
    pub kind: &'static str,
    /// The resource, for example `configmaps`.
    pub plural: &'static str,
    /// For example `configmap`.
    pub singular: &'static str,
    /// For example `cm`.
    pub short_names: &'static [&'static str],
    /// For example `all`.
    pub categories: &'static [&'static str],
    /// Lives in a namespace.
    pub namespaced: bool,
    /// What may be done; anything else answers 405.
    pub verbs: &'static [&'static str],
    /// Has `/status`: writes of the object keep the old status, writes of the status keep the rest.
    pub status: bool,
    /// Whether a create keeps the status of the body, as upstream does for nodes.
    pub status_on_create: bool,
    /// Whether changes outside metadata and status count up `metadata.generation`.
    pub generation: bool,
    /// PUT without resourceVersion is allowed.
    pub unconditional_update: bool,
    /// PUT of a missing object creates it.
    pub create_on_update: bool,
    /// The type in the schema table.
    pub type_name: &'static str,
    /// What names look like.
    pub name_rule: meta::NameRule,
    /// A change of nothing but these fields need not be durable before it is acknowledged
    /// (a renewal that is lost is only a late one).
    pub volatile: &'static [&'static [&'static str]],
    /// Field selectors besides `metadata.name` and `metadata.namespace`.
    pub selectable: &'static [Selectable],
    /// Columns of tables.
    pub columns: &'static [table::Column],
    /// The cells of one row, as many as `columns`.
    pub cells: fn(&Value, time::OffsetDateTime) -> Vec<Value>,
    /// Fills in what the API server decides, before validation; `old` is absent at creation.
    pub prepare: fn(new: &mut Value, old: Option<&Value>),
    /// What `prepare` adds to a new object that upstream adds by admission: it is nobody's, other than defaults, which are the
    /// creator's.
    pub admitted: &'static [&'static [&'static str]],
    /// The kind's own rules; metadata was judged before.
    pub validate: fn(new: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>),
    /// Sentences for `Warning` headers about a change that is accepted; only about what this change sets, so that nobody
    /// is told again and again of what somebody else wrote.
    pub warnings: fn(new: &Value, old: Option<&Value>) -> Vec<String>,
}

/// One field selector: its label and how to read it.
#[derive(Debug)]
pub struct Selectable {
    /// For example `spec.unschedulable`.
    pub label: &'static str,
    /// The value, empty when absent.
    pub value: fn(&Value) -> String,
}

pub use certificate_request::CERTIFICATE_REQUEST;
pub use config_map::CONFIG_MAP;
pub use controller_revision::CONTROLLER_REVISION;
pub use daemon_set::DAEMON_SET;
pub use event::EVENT;
pub use lease::LEASE;
pub use namespace::NAMESPACE;
pub use node::NODE;
pub use pod::POD;
pub use secret::SECRET;
pub use service_account::SERVICE_ACCOUNT;

/// Every served kind, in the order of discovery.
pub static KINDS: &[&Kind] = &[
    &CONFIG_MAP,
    &EVENT,
    &NAMESPACE,
    &NODE,
    &POD,
    &SECRET,
    &SERVICE_ACCOUNT,
    &CONTROLLER_REVISION,
    &DAEMON_SET,
    &CERTIFICATE_REQUEST,
    &LEASE,
];

/// A subresource besides `status`.
#[derive(Debug)]
pub struct Subresource {
    /// For example `binding`.
    pub name: &'static str,
    /// Group, version and kind of what is sent to it.
    pub of: (&'static str, &'static str, &'static str),
    /// What may be done.
    pub verbs: &'static [&'static str],
}

/// What gives a pod its node; also posted to `bindings` of its namespace.
pub const BINDING: Subresource =
    Subresource { name: "binding", of: ("", "v1", "Binding"), verbs: &["create"] };

/// Streams are opened by GET (WebSocket) or POST (SPDY).
const STREAM: &[&str] = &["create", "get"];

impl Kind {
    /// What most kinds have in common; an entry names where it differs, and its own names. It is no kind itself.
    pub const USUAL: Kind = Kind {
        group: "",
        version: "v1",
        kind: "",
        plural: "",
        singular: "",
        short_names: &[],
        categories: &[],
        namespaced: true,
        verbs: ALL_VERBS,
        status: false,
        status_on_create: false,
        generation: false,
        unconditional_update: true,
        create_on_update: false,
        type_name: "",
        name_rule: meta::NameRule::Subdomain,
        volatile: &[],
        selectable: &[],
        columns: &[table::Column::NAME, table::Column::AGE],
        cells: |object, now| vec![text(object, &["metadata", "name"]).into(), table::age(object, now)],
        prepare: no_defaults,
        admitted: &[],
        validate: no_rules,
        warnings: no_warnings,
    };

    /// `plural` or `plural.group`: how errors and the store name the kind.
    pub fn resource_name(&self) -> String {
        if self.group.is_empty() { self.plural.to_owned() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// `v1` or `group/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// The kind of a list of it.
    pub fn list_kind(&self) -> String {
        format!("{}List", self.kind)
    }

    /// Subresources besides `status`.
    pub fn subresources(&self) -> &'static [Subresource] {
        match self.kind {
            "Pod" => &[
                BINDING,
                Subresource { name: "eviction", of: ("policy", "v1", "Eviction"), verbs: &["create"] },
                Subresource { name: "log", of: ("", "v1", "Pod"), verbs: &["get"] },
                Subresource { name: "attach", of: ("", "v1", "PodAttachOptions"), verbs: STREAM },
                Subresource { name: "exec", of: ("", "v1", "PodExecOptions"), verbs: STREAM },
                Subresource { name: "portforward", of: ("", "v1", "PodPortForwardOptions"), verbs: STREAM },
            ],
            "CertificateSigningRequest" => &[Subresource {
                name: "approval",
                of: ("certificates.k8s.io", "v1", "CertificateSigningRequest"),
                verbs: &["get", "patch", "update"],
            }],
            _ => &[],
        }
    }

    /// Whether the verb is served.
    pub fn allows(&self, verb: &str) -> bool {
        self.verbs.contains(&verb)
    }

    /// Writes into an object what upstream's objects have even where nobody said anything of it: spec and status, and the
    /// numbers of a status. A JSON patch adds to them, and people wait for a number to be 0.
    pub fn complete(&self, value: &mut Value) {
        let (of, Some(fields)) = (self.schema(), value.as_object_mut()) else { return };
        for part in ["spec", "status"] {
            let Some(schema::Shape::Message(name)) = of.field(part).map(|field| &field.shape) else {
                continue;
            };
            let whole = fields.entry(part).or_insert_with(|| Value::Object(Map::new()));
            let Some(fields) = whole.as_object_mut().filter(|_| part == "status") else { continue };
            let numbers = schema::find(name).into_iter().flat_map(|of| &of.fields);
            for number in numbers.filter(|field| field.required && field.shape == schema::Shape::Int32) {
                fields.entry(number.name).or_insert_with(|| 0.into());
            }
        }
    }

    /// Its type in the schema table.
    pub fn schema(&self) -> &'static schema::Type {
        schema::find(self.type_name).expect("a test proves that every kind's type is in the table")
    }
}

/// The kind of this group, version and resource.
pub fn find(group: &str, version: &str, plural: &str) -> Option<&'static Kind> {
    KINDS.iter().copied().find(|kind| kind.group == group && kind.version == version && kind.plural == plural)
}

/// The kind of this resource name (`nodes`, `leases.coordination.k8s.io`; the bare plural is enough while it is unique).
pub fn by_resource(resource: &str) -> Option<&'static Kind> {
    let plural = resource.split('.').next().unwrap_or(resource);
    KINDS
        .iter()
        .copied()
        .find(|kind| kind.plural == plural && (resource == plural || kind.resource_name() == resource))
}

/// The group versions that are served, core first.
pub fn group_versions() -> Vec<(&'static str, &'static str)> {
    let mut found = Vec::new();
    for kind in KINDS {
        if !found.contains(&(kind.group, kind.version)) {
            found.push((kind.group, kind.version));
        }
    }
    found
}

/// The text at a path of fields, empty when absent or no text.
pub fn text<'a>(value: &'a Value, path: &[&str]) -> &'a str {
    at(value, path).and_then(Value::as_str).unwrap_or("")
}

/// The value at a path of fields.
pub fn at<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, field| value.get(field))
}

/// A kind without rules of its own.
pub fn no_rules(_: &Value, _: Option<&Value>, _: &mut Vec<FieldError>) {}
/// A kind without defaults.
pub fn no_defaults(_: &mut Value, _: Option<&Value>) {}
/// A kind without warnings.
pub fn no_warnings(_: &Value, _: Option<&Value>) -> Vec<String> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_kind_has_its_type_and_cells_for_its_columns() {
        for kind in KINDS {
            for name in [kind.kind, kind.plural, kind.singular] {
                assert!(!name.is_empty(), "{}", kind.type_name);
            }
            assert!(schema::find(kind.type_name).is_some(), "{}", kind.type_name);
            let cells = (kind.cells)(&serde_json::json!({}), time::OffsetDateTime::UNIX_EPOCH);
            assert_eq!(cells.len(), kind.columns.len(), "{}", kind.kind);
            assert_eq!(by_resource(&kind.resource_name()).map(|found| found.kind), Some(kind.kind));
        }
    }

    #[test]
    fn an_object_has_the_parts_that_upstream_always_writes() {
        let check = |kind: &Kind, mut value: Value, expect: Value| {
            kind.complete(&mut value);
            assert_eq!(value, expect, "{}", kind.kind);
        };
        check(&CONFIG_MAP, json!({}), json!({}));
        check(&LEASE, json!({}), json!({"spec": {}}));
        check(&NODE, json!({"spec": {"a": 1}}), json!({"spec": {"a": 1}, "status": {}}));
        let zeros = json!({"currentNumberScheduled": 0, "desiredNumberScheduled": 0, "numberMisscheduled": 0, "numberReady": 2});
        check(&DAEMON_SET, json!({"status": {"numberReady": 2}}), json!({"spec": {}, "status": zeros}));
    }
}
