//! Every field of the schema table is read by the protobuf number that upstream gives it.
//!
//! The table has its numbers from upstream's Go declarations; the published crate `k8s-pb` has its own,
//! generated from upstream's .proto files. An object with every field set is written with our numbers, read
//! and written again by the generated types, and read by the hub: nothing may be lost, and each value must
//! have the same name in the generated type. Always holds: fields that the crate does not have are listed in
//! [`NEWER`], and were checked by hand against upstream's generated.proto.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use base64::Engine;
use k8s_pb::api;
use k8s_pb::apimachinery::pkg::apis::meta::v1 as meta;
use kedge_hub_core::decode::{self, FieldValidation};
use kedge_hub_core::kinds::schema::{self, Field, Shape, Type};
use kedge_hub_core::protobuf::{self, ProtobufError};
use kedge_rig::Random;
use prost::Message;
use serde_json::{Map, Value, json};

/// Reads bytes as a generated type; returns them written again, and the type's debug text.
type Generated = fn(&[u8]) -> (Vec<u8>, String);

fn generated<M: Message + Default + Debug>(bytes: &[u8]) -> (Vec<u8>, String) {
    let message = M::decode(bytes).expect("the generated type reads what has its numbers");
    (message.encode_to_vec(), format!("{message:?}"))
}

/// Every type that is sent as a body: apiVersion, kind, its generated type.
const BODIES: &[(&str, &str, Generated)] = &[
    ("v1", "Namespace", generated::<api::core::v1::Namespace>),
    ("v1", "Node", generated::<api::core::v1::Node>),
    ("v1", "ConfigMap", generated::<api::core::v1::ConfigMap>),
    ("v1", "Event", generated::<api::core::v1::Event>),
    ("v1", "Pod", generated::<api::core::v1::Pod>),
    ("v1", "Secret", generated::<api::core::v1::Secret>),
    ("v1", "ServiceAccount", generated::<api::core::v1::ServiceAccount>),
    ("v1", "Service", generated::<api::core::v1::Service>),
    ("events.k8s.io/v1", "Event", generated::<api::events::v1::Event>),
    ("v1", "Binding", generated::<api::core::v1::Binding>),
    ("apps/v1", "DaemonSet", generated::<api::apps::v1::DaemonSet>),
    ("apps/v1", "ControllerRevision", generated::<api::apps::v1::ControllerRevision>),
    ("coordination.k8s.io/v1", "Lease", generated::<api::coordination::v1::Lease>),
    ("policy/v1", "Eviction", generated::<api::policy::v1::Eviction>),
    (
        "certificates.k8s.io/v1",
        "CertificateSigningRequest",
        generated::<api::certificates::v1::CertificateSigningRequest>,
    ),
    (
        "authorization.k8s.io/v1",
        "SelfSubjectAccessReview",
        generated::<api::authorization::v1::SelfSubjectAccessReview>,
    ),
    (
        "authorization.k8s.io/v1",
        "SelfSubjectRulesReview",
        generated::<api::authorization::v1::SelfSubjectRulesReview>,
    ),
    (
        "authentication.k8s.io/v1",
        "SelfSubjectReview",
        generated::<api::authentication::v1::SelfSubjectReview>,
    ),
    (
        "authorization.k8s.io/v1",
        "SubjectAccessReview",
        generated::<api::authorization::v1::SubjectAccessReview>,
    ),
    (
        "authorization.k8s.io/v1",
        "LocalSubjectAccessReview",
        generated::<api::authorization::v1::LocalSubjectAccessReview>,
    ),
    ("authentication.k8s.io/v1", "TokenRequest", generated::<api::authentication::v1::TokenRequest>),
    ("authentication.k8s.io/v1", "TokenReview", generated::<api::authentication::v1::TokenReview>),
    ("meta/v1", "DeleteOptions", generated::<meta::DeleteOptions>),
    ("meta/v1", "Status", generated::<meta::Status>),
    ("scheduling.k8s.io/v1", "PriorityClass", generated::<api::scheduling::v1::PriorityClass>),
    ("policy/v1", "PodDisruptionBudget", generated::<api::policy::v1::PodDisruptionBudget>),
    ("node.k8s.io/v1", "RuntimeClass", generated::<api::node::v1::RuntimeClass>),
    ("rbac.authorization.k8s.io/v1", "Role", generated::<api::rbac::v1::Role>),
    ("rbac.authorization.k8s.io/v1", "RoleBinding", generated::<api::rbac::v1::RoleBinding>),
    ("rbac.authorization.k8s.io/v1", "ClusterRole", generated::<api::rbac::v1::ClusterRole>),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", generated::<api::rbac::v1::ClusterRoleBinding>),
];

/// Fields that k8s-pb 0.9 does not have. The numbers are those of generated.proto of Kubernetes 1.36, except
/// that of `configMapRef`, which upstream no longer has but keeps free.
const NEWER: &[&str] = &[
    "core/v1/ImageVolumeStatus.imageRef 1",
    "core/v1/NodeAllocatableResourceClaimStatus.containers 2",
    "core/v1/NodeAllocatableResourceClaimStatus.resourceClaimName 1",
    "core/v1/NodeAllocatableResourceClaimStatus.resources 3",
    "core/v1/NodeConfigSource.configMapRef 1",
    "core/v1/PodSchedulingGroup.podGroupName 1",
    "core/v1/PodSpec.schedulingGroup 43",
    "core/v1/PodStatus.nodeAllocatableResourceClaimStatuses 21",
    "core/v1/ResourceHealth.message 6",
    "core/v1/VolumeMountStatus.volumeStatus 5",
    "core/v1/VolumeStatus.image 1",
    "meta/v1/ListMeta.shardInfo 5",
    "meta/v1/ShardInfo.selector 1",
];

/// Fields without a number: upstream has published none. A body that has one is refused.
const UNNUMBERED: &[&str] = &[];

/// Fields of the crate that upstream has removed since.
const REMOVED: &[&str] = &["core/v1/PodSpec.workloadref"];

fn find(kind: &str, api_version: &str) -> &'static Type {
    let group = api_version.split_once('/').map_or("core", |(group, _)| group);
    let group = group.split('.').next().unwrap_or(group);
    schema::find(&format!("{group}/v1/{kind}")).unwrap_or_else(|| panic!("no type {kind}"))
}

fn full_name(of: &Type, field: &Field) -> String {
    format!("{}.{}", of.name, field.name)
}

/// Numbers the fields of all types, so that each value can be recognised.
fn ordinals() -> BTreeMap<String, usize> {
    let fields = schema::types().iter().flat_map(|of| of.fields.iter().map(|field| full_name(of, field)));
    fields.enumerate().map(|(ordinal, name)| (name, ordinal + 1)).collect()
}

/// Makes an object with every field that has a number. No two fields have the same text or number. Booleans
/// cannot be unique: the value of a field is one bit of its position in each `round`, so the pattern over all
/// rounds is unique within its type.
struct Maker {
    ordinals: BTreeMap<String, usize>,
    round: usize,
}

/// Rounds that give each boolean of a type its own pattern; the largest has fewer than 63.
const ROUNDS: usize = 6;

impl Maker {
    fn new(round: usize) -> Maker {
        Maker { ordinals: ordinals(), round }
    }

    fn object(&self, of: &'static Type) -> Value {
        let numbered = of.fields.iter().enumerate().filter(|(_, field)| field.number != 0);
        let valued = numbered.map(|(place, field)| {
            let name = full_name(of, field);
            (field, self.value(&field.shape, &name, self.ordinals[&name], (place + 1) >> self.round & 1 == 1))
        });
        // without fields that Go leaves out of JSON
        let written = valued.filter(|(field, value)| !(field.omit_zero && *value == false));
        Value::Object(written.map(|(field, value)| (field.name.to_owned(), value)).collect())
    }

    fn value(&self, shape: &'static Shape, name: &str, ordinal: usize, bit: bool) -> Value {
        match shape {
            Shape::String => name.into(),
            Shape::Bool => bit.into(),
            Shape::Int32 | Shape::Int64 => ordinal.into(),
            Shape::Double => (ordinal as f64 + 0.5).into(),
            Shape::Bytes => base64::engine::general_purpose::STANDARD.encode(name).into(),
            Shape::Time => time_text(ordinal, "").into(),
            Shape::MicroTime => time_text(ordinal, ".000000").into(),
            Shape::Quantity => ordinal.to_string().into(),
            Shape::IntOrString if bit => ordinal.into(),
            Shape::IntOrString => name.into(),
            Shape::Raw => json!({ name: ordinal }),
            Shape::Message(of) => self.object(schema::find(of).expect("the table has it")),
            Shape::List(item) => Value::Array(vec![self.value(item, name, ordinal, bit)]),
            Shape::Map(item) => json!({ "key": self.value(item, name, ordinal, bit) }),
        }
    }
}

/// A second of the hour 10:00 of 1 January 2026, in whole minutes and seconds.
fn time_text(ordinal: usize, fraction: &str) -> String {
    format!("2026-01-01T10:{:02}:{:02}{fraction}Z", ordinal / 60 % 60, ordinal % 60)
}

fn seconds_of(text: &str) -> i64 {
    schema::parse_time(text).expect("it was made here").unix_timestamp()
}

/// Writes protobuf by the table. `extra` adds an unknown field to messages of that type.
struct Writer {
    extra: Option<&'static str>,
}

fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn bytes_field(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    varint(out, u64::from(number) << 3 | 2);
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn number_field(out: &mut Vec<u8>, number: u32, value: i64) {
    varint(out, u64::from(number) << 3);
    varint(out, value.cast_unsigned());
}

/// A number that upstream uses in no message.
const UNKNOWN: u32 = 2047;

impl Writer {
    fn message(&self, of: &'static Type, value: &Value) -> Vec<u8> {
        let mut out = Vec::new();
        let mut structs: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
        for (name, value) in value.as_object().expect("messages are objects") {
            let field = of.field(name).unwrap_or_else(|| panic!("{} has no {name}", of.name));
            let into = match field.embedded {
                0 => &mut out,
                inner => structs.entry(inner).or_default(),
            };
            self.field(into, field.number, &field.shape, value);
        }
        for (number, bytes) in structs {
            bytes_field(&mut out, number, &bytes);
        }
        if self.extra == Some(of.name) {
            number_field(&mut out, UNKNOWN, 0);
        }
        out
    }

    fn field(&self, out: &mut Vec<u8>, number: u32, shape: &'static Shape, value: &Value) {
        let text = || value.as_str().expect("it is text");
        let wrapped = |text: &str| {
            let mut inner = Vec::new();
            bytes_field(&mut inner, 1, text.as_bytes());
            inner
        };
        match shape {
            Shape::String => bytes_field(out, number, text().as_bytes()),
            Shape::Bytes => bytes_field(out, number, &schema::base64_decode(text()).expect("it is base64")),
            Shape::Bool => number_field(out, number, value.as_bool().expect("it is a boolean").into()),
            Shape::Int32 | Shape::Int64 => number_field(out, number, value.as_i64().expect("it is a number")),
            Shape::Double => {
                varint(out, u64::from(number) << 3 | 1);
                out.extend_from_slice(&value.as_f64().expect("it is a number").to_le_bytes());
            }
            Shape::Time | Shape::MicroTime => {
                let mut inner = Vec::new();
                number_field(&mut inner, 1, seconds_of(text()));
                bytes_field(out, number, &inner);
            }
            Shape::Quantity => bytes_field(out, number, &wrapped(text())),
            Shape::Raw => bytes_field(out, number, &wrapped(&value.to_string())),
            Shape::IntOrString => {
                let mut inner = Vec::new();
                match value.as_i64() {
                    Some(value) => number_field(&mut inner, 2, value),
                    None => {
                        number_field(&mut inner, 1, 1);
                        bytes_field(&mut inner, 3, text().as_bytes());
                    }
                }
                bytes_field(out, number, &inner);
            }
            Shape::Message(of) => {
                let of = schema::find(of).expect("the table has it");
                bytes_field(out, number, &self.message(of, value));
            }
            Shape::List(item) => {
                for value in value.as_array().expect("it is a list") {
                    self.field(out, number, item, value);
                }
            }
            Shape::Map(item) => {
                for (key, value) in value.as_object().expect("it is a map") {
                    let mut entry = Vec::new();
                    bytes_field(&mut entry, 1, key.as_bytes());
                    if matches!(**item, Shape::List(_)) {
                        let mut wrapper = Vec::new();
                        self.field(&mut wrapper, 1, item, value);
                        bytes_field(&mut entry, 2, &wrapper);
                    } else {
                        self.field(&mut entry, 2, item, value);
                    }
                    bytes_field(out, number, &entry);
                }
            }
        }
    }
}

/// The body of a request with this message.
fn body(api_version: &str, kind: &str, message: &[u8]) -> Vec<u8> {
    let (mut type_meta, mut unknown) = (Vec::new(), Vec::new());
    bytes_field(&mut type_meta, 1, api_version.as_bytes());
    bytes_field(&mut type_meta, 2, kind.as_bytes());
    bytes_field(&mut unknown, 1, &type_meta);
    bytes_field(&mut unknown, 2, message);
    [b"k8s\0", &*unknown].concat()
}

/// A value in the debug text of a generated type.
#[derive(Debug, PartialEq)]
enum Shown {
    Absent,
    Struct(Vec<(String, Shown)>),
    List(Vec<Shown>),
    Map(Vec<(Shown, Shown)>),
    Text(String),
    Word(String),
}

/// Reads `Type { field: Some("text"), list: [1, 2], map: {"key": None} }`.
struct DebugText<'a>(&'a str);

impl DebugText<'_> {
    fn eat(&mut self, sign: &str) -> bool {
        self.0 = self.0.trim_start();
        let rest = self.0.strip_prefix(sign);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn word(&mut self) -> String {
        self.0 = self.0.trim_start();
        let end = self.0.find(|c: char| !(c.is_alphanumeric() || "_.-#".contains(c))).unwrap_or(self.0.len());
        let (word, rest) = self.0.split_at(end);
        self.0 = rest;
        word.to_owned()
    }

    fn text(&mut self) -> String {
        let mut read = serde_json::Deserializer::from_str(self.0).into_iter::<String>();
        let text = read.next().expect("a text ends").expect("the texts here need no escapes of Rust's own");
        self.0 = &self.0[read.byte_offset()..];
        text
    }

    fn until(&mut self, end: &str, mut item: impl FnMut(&mut Self)) {
        while !self.eat(end) {
            item(self);
            self.eat(",");
        }
    }

    fn value(&mut self) -> Shown {
        if self.eat("[") {
            let mut items = Vec::new();
            self.until("]", |text| items.push(text.value()));
            return Shown::List(items);
        }
        if self.eat("{") {
            let mut entries = Vec::new();
            self.until("}", |text| {
                let key = text.value();
                assert!(text.eat(":"), "an entry has a value");
                entries.push((key, text.value()));
            });
            return Shown::Map(entries);
        }
        if self.0.trim_start().starts_with('"') {
            self.0 = self.0.trim_start();
            return Shown::Text(self.text());
        }
        match self.word() {
            word if word == "None" => Shown::Absent,
            word if word == "Some" => {
                assert!(self.eat("("), "Some has a value");
                let inner = self.value();
                assert!(self.eat(")"), "Some ends");
                inner
            }
            _ if self.eat("{") => {
                let mut fields = Vec::new();
                self.until("}", |text| {
                    let name = plain(&text.word());
                    assert!(text.eat(":"), "a field has a value");
                    fields.push((name, text.value()));
                });
                Shown::Struct(fields)
            }
            word => Shown::Word(word),
        }
    }
}

/// A name without the differences between Rust's spelling and JSON's.
fn plain(name: &str) -> String {
    name.trim_start_matches("r#").replace('_', "").to_lowercase()
}

/// Compares generated types with the table, and notes fields that only one of them has.
#[derive(Default)]
struct Comparison {
    seen: BTreeSet<&'static str>,
    newer: BTreeSet<String>,
    removed: BTreeSet<String>,
}

impl Comparison {
    fn message(&mut self, of: &'static Type, shown: &Shown, value: &Value) {
        let Shown::Struct(members) = shown else { panic!("{}: {shown:?}", of.name) };
        self.seen.insert(of.name);
        let embedded: BTreeSet<u32> = of.fields.iter().map(|field| field.embedded).collect();
        let mut known: BTreeMap<String, &Shown> = BTreeMap::new();
        for (name, shown) in members {
            let listed = of.fields.iter().any(|field| field.embedded == 0 && plain(field.name) == *name);
            match shown {
                // a struct that JSON inlines
                Shown::Struct(inner) if !listed && embedded.len() > 1 => {
                    known.extend(inner.iter().map(|(name, shown)| (name.clone(), shown)));
                }
                _ => drop(known.insert(name.clone(), shown)),
            }
        }
        for field in &of.fields {
            let value = value.get(field.name);
            match (known.remove(&plain(field.name)), value) {
                (None, None) => {}
                (None, Some(_)) => drop(self.newer.insert(numbered(of, field))),
                (Some(shown), value) => self.field(of, field, shown, value),
            }
        }
        self.removed.extend(known.into_keys().map(|name| format!("{}.{name}", of.name)));
    }

    fn field(&mut self, of: &'static Type, field: &'static Field, shown: &Shown, value: Option<&Value>) {
        let name = full_name(of, field);
        match (&field.shape, shown, value) {
            (_, Shown::Absent, None) => {}
            (Shape::List(item), Shown::List(shown), Some(Value::Array(items))) => {
                assert_eq!(shown.len(), items.len(), "{name}");
                for (shown, value) in shown.iter().zip(items) {
                    self.value(&name, item, shown, value);
                }
            }
            (Shape::Map(item), Shown::Map(shown), Some(Value::Object(entries))) => {
                assert_eq!(shown.len(), entries.len(), "{name}");
                for ((_, shown), value) in shown.iter().zip(entries.values()) {
                    self.value(&name, item, shown, value);
                }
            }
            (shape, shown, Some(value)) => self.value(&name, shape, shown, value),
            (_, shown, None) => panic!("{name} is {shown:?} in the generated type, and was not sent"),
        }
    }

    fn value(&mut self, name: &str, shape: &'static Shape, shown: &Shown, value: &Value) {
        if let Shape::Message(of) = shape {
            return self.message(schema::find(of).expect("the table has it"), shown, value);
        }
        if let (Shape::List(item), Shown::Struct(wrapper)) = (shape, shown) {
            let [(_, Shown::List(items))] = &wrapper[..] else { panic!("{name}: {shown:?}") };
            assert_eq!(Some(items.len()), value.as_array().map(Vec::len), "{name}");
            for (shown, value) in items.iter().zip(value.as_array().into_iter().flatten()) {
                self.value(name, item, shown, value);
            }
            return;
        }
        let inner = |wanted: &str| match shown {
            Shown::Struct(members) => members.iter().find(|(name, _)| name == wanted).map(|(_, shown)| shown),
            _ => None,
        };
        let word = |word: String| Shown::Word(word);
        let (found, expect) = match shape {
            Shape::Time | Shape::MicroTime => (inner("seconds"), word(seconds_of(text(value)).to_string())),
            Shape::Quantity => (inner("string"), Shown::Text(text(value).to_owned())),
            Shape::IntOrString => match value.as_i64() {
                Some(number) => (inner("intval"), word(number.to_string())),
                None => (inner("strval"), Shown::Text(text(value).to_owned())),
            },
            Shape::Raw => (inner("raw"), byte_list(value.to_string().as_bytes())),
            Shape::Bytes => {
                (Some(shown), byte_list(&schema::base64_decode(text(value)).expect("it was made here")))
            }
            Shape::String => (Some(shown), Shown::Text(text(value).to_owned())),
            _ => (Some(shown), word(value.to_string())),
        };
        assert_eq!(found, Some(&expect), "{name}");
    }
}

fn text(value: &Value) -> &str {
    value.as_str().expect("it was made as text")
}

fn byte_list(bytes: &[u8]) -> Shown {
    Shown::List(bytes.iter().map(|byte| Shown::Word(byte.to_string())).collect())
}

fn numbered(of: &Type, field: &Field) -> String {
    match field.embedded {
        0 => format!("{}.{} {}", of.name, field.name, field.number),
        inner => format!("{}.{} {inner}.{}", of.name, field.name, field.number),
    }
}

/// The value without the fields of [`NEWER`], which the generated types cannot write again.
fn without_newer(of: &'static Type, value: &Value) -> Value {
    fn below(shape: &'static Shape, value: &Value) -> Value {
        match (shape, value) {
            (Shape::Message(of), value) => without_newer(schema::find(of).expect("the table has it"), value),
            (Shape::List(item), Value::Array(items)) => {
                items.iter().map(|value| below(item, value)).collect()
            }
            (Shape::Map(item), Value::Object(entries)) => {
                Value::Object(entries.iter().map(|(key, value)| (key.clone(), below(item, value))).collect())
            }
            (_, value) => value.clone(),
        }
    }
    let kept = of.fields.iter().filter(|field| !NEWER.contains(&&*numbered(of, field)));
    let present = kept.filter_map(|field| Some((field, value.get(field.name)?)));
    Value::Object(present.map(|(field, value)| (field.name.to_owned(), below(&field.shape, value))).collect())
}

fn typed(api_version: &str, kind: &str, mut object: Value) -> Value {
    object["apiVersion"] = api_version.into();
    object["kind"] = kind.into();
    object
}

#[test]
fn every_field_has_its_number_in_the_generated_types() {
    let mut all = Comparison::default();
    for round in 0..ROUNDS {
        for (api_version, kind, generated) in BODIES {
            let of = find(kind, api_version);
            let full = Maker::new(round).object(of);
            let (_, shown) = generated(&Writer { extra: None }.message(of, &full));
            all.message(of, &DebugText(&shown).value(), &full);
        }
    }
    // types that only newer fields have
    let unseen = schema::types().iter().filter(|of| !all.seen.contains(of.name));
    all.newer.extend(unseen.flat_map(|of| of.fields.iter().map(|field| numbered(of, field))));
    assert_eq!(Vec::from_iter(all.newer), NEWER, "fields that the crate does not have");
    assert_eq!(Vec::from_iter(all.removed), REMOVED, "fields that the table does not have");
}

#[test]
fn full_object_of_each_kind_is_read_as_its_json() {
    for (api_version, kind, generated) in BODIES {
        let of = find(kind, api_version);
        let full = Maker::new(0).object(of);
        let sent = Writer { extra: None }.message(of, &full);
        let (again, _) = generated(&sent);
        let read = protobuf::decode(&body(api_version, kind, &again)).unwrap();
        assert_eq!(read, typed(api_version, kind, without_newer(of, &full)), "{kind}");
        // and the hub reads everything that was sent, including newer fields
        let read = protobuf::decode(&body(api_version, kind, &sent)).unwrap();
        assert_eq!(read, typed(api_version, kind, full), "{kind}");
    }
}

#[test]
fn every_field_has_a_number_of_its_own() {
    let mut unnumbered = Vec::new();
    for of in schema::types() {
        let mut taken = BTreeSet::new();
        for field in &of.fields {
            if field.number == 0 {
                unnumbered.push(full_name(of, field));
            } else {
                assert!(taken.insert((field.embedded, field.number)), "{}", full_name(of, field));
            }
        }
        let structs: BTreeSet<u32> = of.fields.iter().map(|field| field.embedded).collect();
        assert!(structs.iter().all(|inner| !taken.contains(&(0, *inner))), "{} {structs:?}", of.name);
    }
    assert_eq!(unnumbered, UNNUMBERED);
}

#[test]
fn unknown_number_is_refused_wherever_it_stands() {
    let mut refused = BTreeSet::new();
    for (api_version, kind, _) in BODIES {
        let of = find(kind, api_version);
        let full = Maker::new(0).object(of);
        for inside in schema::types() {
            let sent = Writer { extra: Some(inside.name) }.message(of, &full);
            match protobuf::decode(&body(api_version, kind, &sent)) {
                Ok(_) => {}
                Err(ProtobufError::UnknownField(why)) => {
                    assert!(why.starts_with(&format!("field {UNKNOWN} of {},", inside.name)), "{why}");
                    refused.insert(inside.name);
                }
                Err(other) => panic!("{kind} with a number in {}: {other:?}", inside.name),
            }
        }
    }
    let types: BTreeSet<&str> = schema::types().iter().map(|of| of.name).collect();
    assert_eq!(refused, types);
    // also in a struct that JSON inlines, in a map's entry, and in the types that are a single value in JSON
    let pod = |message: &[u8]| protobuf::decode(&body("v1", "Pod", message));
    let nested = |numbers: &[u32]| {
        let mut inner = Vec::new();
        number_field(&mut inner, 99, 1);
        numbers.iter().rev().fold(inner, |inner, number| {
            let mut outer = Vec::new();
            bytes_field(&mut outer, *number, &inner);
            outer
        })
    };
    for (place, name) in [
        (&[2, 1, 2][..], "the struct that is field 2 of core/v1/Volume"),
        (&[1, 11], "a map's entry"),
        (&[1, 8], "Time"),
        (&[2, 32, 2], "Quantity"),
        (&[2, 2, 10, 1, 2, 2], "IntOrString"),
        (&[1, 17, 7], "raw content"),
    ] {
        match pod(&nested(place)) {
            Err(ProtobufError::UnknownField(why)) => {
                assert!(why.starts_with(&format!("field 99 of {name},")), "{why}, expected {name}");
            }
            other => panic!("{place:?}: {other:?}"),
        }
    }
}

#[test]
fn zero_is_left_out_where_go_leaves_it_out() {
    use api::core::v1::{Container, ContainerPort, Pod, PodSpec, Probe};
    let probe =
        Probe { period_seconds: Some(0), termination_grace_period_seconds: Some(0), ..Default::default() };
    let container = Container {
        name: Some(String::new()),
        image: Some(String::new()),
        tty: Some(false),
        ports: vec![ContainerPort { host_port: Some(0), container_port: Some(0), ..Default::default() }],
        liveness_probe: Some(probe),
        ..Default::default()
    };
    let spec = PodSpec {
        containers: vec![container],
        host_network: Some(false),
        automount_service_account_token: Some(false),
        termination_grace_period_seconds: Some(0),
        ..Default::default()
    };
    let pod = Pod { spec: Some(spec), ..Default::default() };
    let read = protobuf::decode(&body("v1", "Pod", &pod.encode_to_vec())).unwrap();
    assert_eq!(
        read["spec"],
        json!({"automountServiceAccountToken": false, "terminationGracePeriodSeconds": 0, "containers": [{
            "name": "", "ports": [{"containerPort": 0}], "livenessProbe": {"terminationGracePeriodSeconds": 0}}]})
    );
}

/// Random objects in two forms: protobuf of a Go client, which writes zeros, and JSON of any client, which
/// may leave zeros out, write them, or write null, empty lists and maps, and may spell numbers and times
/// differently.
struct TwoForms {
    random: Random,
}

impl TwoForms {
    fn one_in(&mut self, count: usize) -> bool {
        self.random.index(count) == 0
    }

    /// The message for the protobuf writer, and the same as JSON.
    fn object(&mut self, of: &'static Type, depth: usize) -> (Value, Value) {
        let (mut wire, mut text) = (Map::new(), Map::new());
        for field in &of.fields {
            let name = || field.name.to_owned();
            let (is_list, is_map) =
                (matches!(field.shape, Shape::List(_)), matches!(field.shape, Shape::Map(_)));
            // Go always writes fields that are not pointers, lists or maps
            let always = field.omit_zero || (field.required && !is_list);
            let (sent, written) = self.value(&field.shape, depth);
            let zero = match &field.shape {
                Shape::String | Shape::Bytes => "".into(),
                Shape::Bool => false.into(),
                _ => 0.into(),
            };
            match (field.omit_zero, self.random.index(if depth > 2 { 3 } else { 6 })) {
                // absent, or a zero with the same meaning
                (true, 0) => drop(wire.insert(name(), zero)),
                (true, 1) => drop((wire.insert(name(), zero.clone()), text.insert(name(), zero))),
                (true, 2) => drop((wire.insert(name(), zero), text.insert(name(), Value::Null))),
                // a pointer tells zero from absent
                (false, 0) if field.required && field.shape != Shape::Raw && !is_list => {
                    wire.insert(name(), sent);
                    text.insert(name(), written);
                }
                (false, 0) => {}
                (false, 1) if is_list => drop(text.insert(name(), json!([]))),
                (false, 1) if is_map => drop(text.insert(name(), json!({}))),
                (false, 1) if !always && field.shape != Shape::Raw => drop(text.insert(name(), Value::Null)),
                _ => drop((wire.insert(name(), sent), text.insert(name(), written))),
            }
        }
        (Value::Object(wire), Value::Object(text))
    }

    fn value(&mut self, shape: &'static Shape, depth: usize) -> (Value, Value) {
        let alike = |value: Value| (value.clone(), value);
        let number = self.random.index(3);
        match shape {
            Shape::String => alike(["", "a", "b"][number].into()),
            Shape::Bool => alike((number == 0).into()),
            Shape::Int32 | Shape::Int64 => alike([0, 7, -1][number].into()),
            Shape::Double => alike([0.0, 0.5, 1.5][number].into()),
            Shape::Bytes => alike(["", "YQ==", "YWI="][number].into()),
            Shape::Time => {
                let [sent, written] = [("10", "Z"), ("11", "+01:00")]
                    .map(|(hour, zone)| json!(format!("2026-01-01T{hour}:00:0{number}{zone}")));
                (sent.clone(), if self.one_in(2) { sent } else { written })
            }
            Shape::MicroTime => alike(time_text(number, ".000000").into()),
            Shape::Quantity => (
                [json!("500m"), json!("1Gi"), json!("2")][number].clone(),
                [json!(0.5), json!("1024Mi"), json!(2)][number].clone(),
            ),
            Shape::IntOrString => alike([json!(0), json!(7), json!("")][number].clone()),
            Shape::Raw => alike(json!({"a": number})),
            Shape::Message(of) => self.object(schema::find(of).expect("the table has it"), depth + 1),
            Shape::List(item) => {
                let items = (0..=self.random.index(2)).map(|_| self.value(item, depth + 1));
                let (sent, written) = items.collect::<(Vec<_>, Vec<_>)>();
                (sent.into(), written.into())
            }
            Shape::Map(item) => {
                let (sent, written) = self.value(item, depth + 1);
                (json!({ "key": sent }), json!({ "key": written }))
            }
        }
    }
}

/// Both forms are read as the same object, apart from the fields that the hub adds to both.
#[test]
fn both_forms_of_an_object_are_read_as_the_same() {
    for (api_version, kind, _) in BODIES {
        let of = find(kind, api_version);
        for seed in 1..=30 {
            let (sent, written) = TwoForms { random: Random::new(seed) }.object(of, 0);
            let sent = body(api_version, kind, &Writer { extra: None }.message(of, &sent));
            let written = typed(api_version, kind, written).to_string();
            let read = |media: &str, bytes: &[u8]| {
                decode::posted(of, "v1", media, bytes, FieldValidation::Strict)
                    .unwrap_or_else(|error| panic!("{kind}, seed {seed}: {error:?}"))
                    .value
                    .to_string()
            };
            let [left, right] = [
                read("application/vnd.kubernetes.protobuf", &sent),
                read("application/json", written.as_bytes()),
            ];
            assert_eq!(left, right, "{kind}, seed {seed}: {written}");
        }
    }
}

#[test]
fn parts_of_a_message_are_added_and_packed_numbers_read() {
    let mut group = Vec::new();
    bytes_field(&mut group, 4, &[1, 0x80, 1]);
    number_field(&mut group, 4, 7);
    let parts = [
        (2, {
            let mut spec = Vec::new();
            bytes_field(&mut spec, 14, &group);
            spec
        }),
        (2, {
            let mut spec = Vec::new();
            bytes_field(&mut spec, 10, b"edge-1");
            spec
        }),
    ];
    let mut pod = Vec::new();
    for (number, part) in parts {
        bytes_field(&mut pod, number, &part);
    }
    let read = protobuf::decode(&body("v1", "Pod", &pod)).unwrap();
    assert_eq!(
        read["spec"],
        json!({"nodeName": "edge-1", "securityContext": {"supplementalGroups": [1, 128, 7]}})
    );
    assert_eq!(read["spec"].as_object().map(Map::len), Some(2));
}
