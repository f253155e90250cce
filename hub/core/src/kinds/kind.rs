//! Everything that the hub must know of a kind to serve it.
//!
//! Owns: [`Kind`], the entry of the table in `kinds`, and the defaults of entries ([`Kind::USUAL`]). Always
//! holds: an entry is a static, compared by [`Kind::resource_name`]. Leaves to others: the entries
//! themselves, each in its kind's own file.

use bytes::Bytes;
use serde_json::{Map, Value};

use super::{names::NameRule, schema, table};
use crate::api_error::ApiError;
use crate::field_error::FieldErrors;
use crate::object::{Object, Reference};
use crate::value::text;

/// The verbs of a kind, in upstream's order of discovery.
pub const ALL_VERBS: &[&str] =
    &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// One kind.
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
    /// Whether clients can reach it; otherwise its objects are the hub's own records.
    pub served: bool,
    /// The served verbs; others get 405.
    pub verbs: &'static [&'static str],
    /// Has `/status`: writes of the object keep the old status, writes of the status keep the rest.
    pub status: bool,
    /// Whether a create keeps the status of the body, as upstream does for nodes.
    pub status_on_create: bool,
    /// Whether changes outside metadata and status increment `metadata.generation`.
    pub generation: bool,
    /// PUT without resourceVersion is allowed.
    pub unconditional_update: bool,
    /// PUT of a missing object creates it.
    pub create_on_update: bool,
    /// A deletion returns the deleted object, as upstream's kinds with `ReturnDeletedObject` do; otherwise a
    /// Status.
    pub shows_deleted: bool,
    /// The type in the schema table.
    pub type_name: &'static str,
    /// The form of names.
    pub name_rule: NameRule,
    /// Whether a finalizer may be a plain name that is not a standard one; upstream requires a domain
    /// everywhere except in Leases.
    pub any_finalizer: bool,
    /// A change of only these fields need not be durable before it is acknowledged (losing a renewal only
    /// makes it late).
    pub volatile: &'static [&'static [&'static str]],
    /// Field selectors besides `metadata.name` and `metadata.namespace`.
    pub selectable: &'static [Selectable],
    /// Positions in `selectable` of the fields by which `state` finds objects and their watchers without a
    /// scan.
    pub indexed: &'static [usize],
    /// The user to whom the object is charged: the limit of a limited caller counts all objects charged to
    /// it. Must depend only on fields that this user cannot choose freely. `None`: nobody.
    pub holder: fn(&Value) -> Option<String>,
    /// The objects that a node reads because of this one, which is its own Node or a pod bound to it; in
    /// order, each once.
    pub refers: fn(&Value) -> Vec<Reference>,
    /// Set if the kind has no objects of its own but shows those of another one.
    pub view: Option<&'static View>,
    /// Columns of tables.
    pub columns: &'static [table::Column],
    /// The cells of one row, as many as `columns`.
    pub cells: fn(&Value, time::OffsetDateTime) -> Vec<Value>,
    /// Fills in fields that mean the same as others, as upstream's conversions and defaults do, at every
    /// write.
    pub convert: fn(&mut Value),
    /// Fills in the fields that the API server decides, before validation; `old` is absent at creation.
    pub prepare: fn(new: &mut Value, old: Option<&Value>),
    /// The paths in a new object that `prepare` sets and upstream sets by admission: they have no manager,
    /// while defaulted fields belong to the creator.
    pub admitted: &'static [&'static [&'static str]],
    /// The kind's own rules; metadata was validated before.
    pub validate: fn(new: &Value, old: Option<&Value>, errors: &mut FieldErrors),
    /// Sentences for `Warning` headers about an accepted change; only about fields that this change sets, so
    /// that writers get no warnings about fields of others.
    pub warnings: fn(new: &Value, old: Option<&Value>) -> Vec<String>,
}

/// Another type of the objects of a kind.
#[derive(Debug)]
pub struct View {
    /// The kind that stores them. The view's selectable fields have the same positions.
    pub of: &'static Kind,
    /// A stored object as the view's type.
    pub shown: fn(Value) -> Value,
    /// An object of the view's type as it is stored.
    pub stored: fn(Value) -> Value,
    /// Rules for objects written through the view, beyond the kind's own; both arguments are in their stored
    /// form.
    pub validate: fn(new: &Value, old: Option<&Value>, errors: &mut FieldErrors),
}

/// One field selector: its label and how to read it.
#[derive(Debug)]
pub struct Selectable {
    /// For example `spec.unschedulable`.
    pub label: &'static str,
    /// The value, empty when absent.
    pub value: fn(&Value) -> String,
}

/// A subresource besides `status`.
#[derive(Debug)]
pub struct Subresource {
    /// For example `binding`.
    pub name: &'static str,
    /// Group, version and kind of its request body.
    pub of: (&'static str, &'static str, &'static str),
    /// The served verbs.
    pub verbs: &'static [&'static str],
}

/// Binds a pod to a node; also posted to `bindings` of its namespace.
pub const BINDING: Subresource =
    Subresource { name: "binding", of: ("", "v1", "Binding"), verbs: &["create"] };

/// Streams are opened by GET (WebSocket) or POST (SPDY).
const STREAM: &[&str] = &["create", "get"];
/// Any request that a program in a pod may answer.
const PROXY: &[&str] = &["create", "delete", "get", "patch", "update"];

impl Kind {
    /// The defaults of a [`Kind`]: an entry lists its names and its differences. Not a kind itself.
    pub const USUAL: Kind = Kind {
        group: "",
        version: "v1",
        kind: "",
        plural: "",
        singular: "",
        short_names: &[],
        categories: &[],
        namespaced: true,
        served: true,
        verbs: ALL_VERBS,
        status: false,
        status_on_create: false,
        generation: false,
        unconditional_update: true,
        create_on_update: false,
        shows_deleted: false,
        type_name: "",
        name_rule: NameRule::Subdomain,
        any_finalizer: false,
        volatile: &[],
        selectable: &[],
        indexed: &[],
        holder: no_holder,
        refers: no_references,
        view: None,
        columns: &[table::Column::NAME, table::Column::AGE],
        cells: |object, now| vec![text(object, &["metadata", "name"]).into(), table::age(object, now)],
        convert: nothing_to_convert,
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

    /// The kind that stores the objects: itself, or for a view the kind that it shows.
    pub fn stored(&'static self) -> &'static Kind {
        self.view.map_or(self, |view| view.of)
    }

    /// A stored object as clients of this kind see it.
    pub fn shown(&self, object: Value) -> Value {
        match self.view {
            Some(view) => (view.shown)(object),
            None => object,
        }
    }

    /// The text of a stored object as clients of this kind see it.
    pub fn shown_text(&self, object: &Object) -> Bytes {
        match self.view {
            Some(view) => Bytes::from((view.shown)(object.value()).to_string()),
            None => object.json.clone(),
        }
    }

    /// An object that a client of this kind sent, in its stored form.
    pub fn to_stored(&self, value: Value) -> Value {
        match self.view {
            Some(view) => (view.stored)(value),
            None => value,
        }
    }

    /// The rules of a view for an object written through it; both arguments are in their stored form.
    ///
    /// # Errors
    /// 422 with all fields that break a rule.
    pub fn judge_view(&self, new: &Value, old: Option<&Value>) -> Result<(), ApiError> {
        let mut errors = FieldErrors::default();
        if let Some(view) = self.view {
            (view.validate)(new, old, &mut errors);
        }
        match errors.is_empty() {
            true => Ok(()),
            false => Err(ApiError::invalid_fields(self, text(new, &["metadata", "name"]), &errors)),
        }
    }

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
                Subresource { name: "proxy", of: ("", "v1", "PodProxyOptions"), verbs: PROXY },
            ],
            "Node" => &[Subresource { name: "proxy", of: ("", "v1", "NodeProxyOptions"), verbs: &["get"] }],
            "Namespace" => {
                &[Subresource { name: "finalize", of: ("", "v1", "Namespace"), verbs: &["update"] }]
            }
            "ServiceAccount" => &[Subresource {
                name: "token",
                of: ("authentication.k8s.io", "v1", "TokenRequest"),
                verbs: &["create"],
            }],
            "CertificateSigningRequest" => &[Subresource {
                name: "approval",
                of: ("certificates.k8s.io", "v1", "CertificateSigningRequest"),
                verbs: &["get", "patch", "update"],
            }],
            _ => &[],
        }
    }

    /// The reason why a subresource of upstream's is not served, and the alternative.
    pub fn unserved(&self, subresource: &str) -> Option<&'static str> {
        match (self.kind, subresource) {
            ("Pod", "resize") => Some(
                "pods/resize is not served: a pod is not resized in place, delete it and create it with the other resources",
            ),
            ("DaemonSet", "scale") => Some(
                "daemonsets/scale is not served: a DaemonSet has one pod on each node, choose nodes by its nodeSelector or affinity",
            ),
            ("Service", "proxy") => Some(
                "services/proxy is not served, nothing gives a Service an address: use pods/proxy, or kubectl port-forward",
            ),
            ("Pod", "ephemeralcontainers") => Some(
                "pods/ephemeralcontainers is not served: use kubectl exec, or debug a copy of the pod (kubectl debug --copy-to)",
            ),
            _ => None,
        }
    }

    /// Whether it has volatile fields: its objects are renewed, and have a space of revisions of their own.
    pub fn is_renewed(&self) -> bool {
        !self.volatile.is_empty()
    }

    /// Whether the verb is served.
    pub fn allows(&self, verb: &str) -> bool {
        self.verbs.contains(&verb)
    }

    /// Converts ([`Kind::convert`]), and adds the fields that upstream's objects always have: spec and
    /// status, and the numbers of a status. JSON patches `add` below them, and people wait for a number to be
    /// 0.
    pub fn complete(&self, value: &mut Value) {
        (self.convert)(value);
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

    /// The kind's type in the schema table.
    pub fn schema(&self) -> &'static schema::Type {
        schema::find(self.type_name).expect("a test proves that every kind's type is in the table")
    }
}

/// A kind without rules of its own.
pub fn no_rules(_: &Value, _: Option<&Value>, _: &mut FieldErrors) {}
/// A kind without fields that mean the same.
pub fn nothing_to_convert(_: &mut Value) {}
/// A kind without defaults.
pub fn no_defaults(_: &mut Value, _: Option<&Value>) {}
/// A kind whose objects are charged to nobody.
pub fn no_holder(_: &Value) -> Option<String> {
    None
}
/// A kind with objects that give no node access to others.
pub fn no_references(_: &Value) -> Vec<Reference> {
    Vec::new()
}
/// A kind without warnings.
pub fn no_warnings(_: &Value, _: Option<&Value>) -> Vec<String> {
    Vec::new()
}
