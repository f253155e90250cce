//! Protobuf bodies: newer clients send some kinds in this format and do not fall back to JSON after a
//! refusal.
//!
//! The body is `k8s\0` and a `runtime.Unknown` that names the type; the message inside is read by the field
//! numbers of the schema table into the same JSON a client would have sent. One generic reader of 200 lines
//! instead of generated types for every kind (which know no JSON names); `tests/protobuf_numbers.rs` compares
//! every field of it with generated types. Always holds: no field is lost, a number that is not in the table
//! is refused; nothing panics; depth and memory are bounded.

use serde_json::{Map, Value};

use crate::cost::{self, Budget, Excess};
use crate::decode;
use crate::kinds::schema::{self, Field, Shape, Type, base64_encode};

/// The prefix of every protobuf body.
const MAGIC: &[u8] = b"k8s\0";
/// Messages inside messages; upstream's types are at most about 20 deep.
const DEPTH: usize = 64;
/// Numbers of fields that upstream has removed, `clusterName` and the series' `state`. Clients older than
/// Kubernetes 1.24 send them empty with every object; any other value is refused.
const RETIRED: &[(&str, u64)] = &[("meta/v1/ObjectMeta", 15), ("core/v1/EventSeries", 3)];

/// A body that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProtobufError {
    /// The bytes do not form such a message.
    Malformed(&'static str),
    /// The type is not in the table.
    UnknownType(String),
    /// A field, named with its message, that the table does not have: it cannot be stored, and must not be
    /// lost.
    UnknownField(String),
    /// Too deep, or too much memory.
    Excess(Excess),
}

impl From<Excess> for ProtobufError {
    fn from(excess: Excess) -> ProtobufError {
        ProtobufError::Excess(excess)
    }
}

fn unknown(number: u64, of: &str) -> ProtobufError {
    ProtobufError::UnknownField(format!(
        "field {number} of {of}, which this server does not know: send JSON, or leave the field out"
    ))
}

/// Reads a whole body: apiVersion, kind and the object's fields.
pub fn decode(body: &[u8]) -> Result<Value, ProtobufError> {
    let unknown_object =
        body.strip_prefix(MAGIC).ok_or(ProtobufError::Malformed("does not start with the magic bytes"))?;
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    for field in fields(unknown_object) {
        match field? {
            (1, Wire::Bytes(meta)) => {
                for field in fields(meta) {
                    match field? {
                        (1, Wire::Bytes(text)) => api_version = utf8(text)?,
                        (2, Wire::Bytes(text)) => kind = utf8(text)?,
                        (number, _) => return Err(unknown(number, "runtime.TypeMeta")),
                    }
                }
            }
            (2, Wire::Bytes(bytes)) => raw = bytes,
            (3, Wire::Bytes(encoding)) if !encoding.is_empty() => {
                return Err(ProtobufError::Malformed("has a content encoding"));
            }
            // the content type in the body repeats the request's header
            (3 | 4, Wire::Bytes(_)) => {}
            (number, _) => return Err(unknown(number, "runtime.Unknown")),
        }
    }
    let of = type_of(&api_version, &kind)
        .ok_or_else(|| ProtobufError::UnknownType(format!("{api_version} {kind}")))?;
    let mut object = Map::new();
    let mut reader = Reader::default();
    reader.message(of, 0, raw, &mut object)?;
    object.insert("apiVersion".to_owned(), api_version.into());
    object.insert("kind".to_owned(), kind.into());
    let object = Value::Object(object);
    // raw content may have added levels
    cost::check(&object)?;
    Ok(object)
}

/// `v1` and `apps/v1` of upstream are `core/v1` and `apps/v1` in the table, without the groups' domain.
fn type_of(api_version: &str, kind: &str) -> Option<&'static Type> {
    // DeleteOptions is sent with the version of the deleted kind
    if kind == "DeleteOptions" {
        return schema::find("meta/v1/DeleteOptions");
    }
    let name = match api_version.split_once('/') {
        None => format!("core/{api_version}/{kind}"),
        Some((group, version)) => format!("{}/{version}/{kind}", group.split('.').next().unwrap_or(group)),
    };
    schema::find(&name)
}

/// One field in its wire format.
enum Wire<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    Fixed64(u64),
    Fixed32,
}

impl Wire<'_> {
    fn is_empty(&self) -> bool {
        matches!(self, Wire::Bytes([]))
    }
}

/// A field's value does not fit its shape.
const WRONG: ProtobufError = ProtobufError::Malformed("has a field of another type than the schema's");

fn varint(bytes: &mut &[u8]) -> Result<u64, ProtobufError> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first().ok_or(ProtobufError::Malformed("ends inside a number"))?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(ProtobufError::Malformed("has a number of more than 64 bits"))
}

fn take<'a>(bytes: &mut &'a [u8], count: u64) -> Result<&'a [u8], ProtobufError> {
    let count = usize::try_from(count).ok().filter(|count| *count <= bytes.len());
    let count = count.ok_or(ProtobufError::Malformed("ends inside a field"))?;
    let (taken, rest) = bytes.split_at(count);
    *bytes = rest;
    Ok(taken)
}

fn fields(mut bytes: &[u8]) -> impl Iterator<Item = Result<(u64, Wire<'_>), ProtobufError>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let field = one_field(&mut bytes);
        if field.is_err() {
            bytes = &[];
        }
        Some(field)
    })
}

fn one_field<'a>(bytes: &mut &'a [u8]) -> Result<(u64, Wire<'a>), ProtobufError> {
    let tag = varint(bytes)?;
    let wire = match tag & 7 {
        0 => Wire::Varint(varint(bytes)?),
        1 => {
            let taken = take(bytes, 8)?;
            Wire::Fixed64(taken.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
        }
        2 => {
            let length = varint(bytes)?;
            Wire::Bytes(take(bytes, length)?)
        }
        5 => take(bytes, 4).map(|_| Wire::Fixed32)?,
        _ => return Err(ProtobufError::Malformed("has a group or an unknown wire type")),
    };
    Ok((tag >> 3, wire))
}

fn utf8(bytes: &[u8]) -> Result<String, ProtobufError> {
    std::str::from_utf8(bytes)
        .map(str::to_owned)
        .map_err(|_| ProtobufError::Malformed("has text that is no UTF-8"))
}

/// A field of a message on the wire.
enum Member {
    Field(&'static Field),
    /// A struct whose fields JSON has in its parent.
    Embedded(u32),
}

/// The member of this number. `embedded`: the embedded struct that is being read, 0 for the message itself.
fn member(of: &'static Type, embedded: u32, number: u64) -> Option<Member> {
    let number = u32::try_from(number).ok().filter(|number| *number != 0)?;
    let found = of.fields.iter().find(|field| field.embedded == embedded && field.number == number);
    let is_struct = || embedded == 0 && of.fields.iter().any(|field| field.embedded == number);
    found.map(Member::Field).or_else(|| is_struct().then_some(Member::Embedded(number)))
}

/// Reads messages and counts their cost.
#[derive(Default)]
struct Reader {
    budget: Budget,
    depth: usize,
}

impl Reader {
    /// Adds the fields of a message to an object.
    fn message(
        &mut self,
        of: &'static Type,
        embedded: u32,
        bytes: &[u8],
        object: &mut Map<String, Value>,
    ) -> Result<(), ProtobufError> {
        if self.depth == DEPTH {
            return Err(ProtobufError::Malformed("is nested too deeply"));
        }
        self.depth += 1;
        for field in fields(bytes) {
            let (number, wire) = field?;
            match member(of, embedded, number) {
                Some(Member::Field(field)) => self.field(field, wire, object)?,
                Some(Member::Embedded(inner)) => {
                    let Wire::Bytes(bytes) = wire else { return Err(WRONG) };
                    self.message(of, inner, bytes, object)?;
                }
                None if RETIRED.contains(&(of.name, number)) && wire.is_empty() => {}
                None if embedded != 0 => {
                    return Err(unknown(
                        number,
                        &format!("the struct that is field {embedded} of {}", of.name),
                    ));
                }
                None => return Err(unknown(number, of.name)),
            }
        }
        self.depth -= 1;
        Ok(())
    }

    fn field(
        &mut self,
        field: &'static Field,
        wire: Wire<'_>,
        object: &mut Map<String, Value>,
    ) -> Result<(), ProtobufError> {
        if !object.contains_key(field.name) {
            self.budget.entry(object.len(), field.name)?;
        }
        match &field.shape {
            Shape::List(item) => {
                let list = object.entry(field.name).or_insert_with(|| Value::Array(Vec::new()));
                let Value::Array(items) = list else { return Err(WRONG) };
                self.items(item, wire, items)
            }
            Shape::Map(item) => {
                let map = object.entry(field.name).or_insert_with(|| Value::Object(Map::new()));
                let Value::Object(entries) = map else { return Err(WRONG) };
                self.map_entry(item, wire, entries)
            }
            Shape::Message(name) => {
                let (Some(of), Wire::Bytes(bytes)) = (schema::find(name), wire) else { return Err(WRONG) };
                // a message in several parts is merged
                let message = object.entry(field.name).or_insert_with(|| Value::Object(Map::new()));
                let Value::Object(message) = message else { return Err(WRONG) };
                self.message(of, 0, bytes, message)
            }
            shape => {
                let value = self.scalar(shape, wire)?.filter(|value| !field.is_absent(value));
                match value {
                    Some(value) => object.insert(field.name.to_owned(), value),
                    None => object.remove(field.name),
                };
                Ok(())
            }
        }
    }

    /// Adds an item of a list, or several scalars packed into one field.
    fn items(
        &mut self,
        item: &'static Shape,
        wire: Wire<'_>,
        items: &mut Vec<Value>,
    ) -> Result<(), ProtobufError> {
        if let (Shape::Int32 | Shape::Int64 | Shape::Bool, Wire::Bytes(packed)) = (item, &wire) {
            let mut packed = *packed;
            while !packed.is_empty() {
                let number = Wire::Varint(varint(&mut packed)?);
                self.items(item, number, items)?;
            }
            return Ok(());
        }
        self.budget.item(items.len())?;
        items.extend(self.value(item, wire)?);
        Ok(())
    }

    fn map_entry(
        &mut self,
        item: &'static Shape,
        wire: Wire<'_>,
        entries: &mut Map<String, Value>,
    ) -> Result<(), ProtobufError> {
        let Wire::Bytes(entry) = wire else { return Err(ProtobufError::Malformed("has an invalid map")) };
        let (mut key, mut value) = (String::new(), None);
        for field in fields(entry) {
            match field? {
                (1, Wire::Bytes(text)) => key = utf8(text)?,
                (2, wire) => value = self.value(item, wire)?,
                (number, _) => return Err(unknown(number, "a map's entry")),
            }
        }
        self.budget.entry(entries.len(), &key)?;
        entries.insert(key, value.unwrap_or_else(|| schema::empty_of(item)));
        Ok(())
    }

    /// A value of a list or map; `None` for an empty time.
    fn value(&mut self, shape: &'static Shape, wire: Wire<'_>) -> Result<Option<Value>, ProtobufError> {
        match (shape, wire) {
            (Shape::Message(name), Wire::Bytes(bytes)) => {
                let of = schema::find(name).ok_or(WRONG)?;
                let mut object = Map::new();
                self.message(of, 0, bytes, &mut object)?;
                Ok(Some(Value::Object(object)))
            }
            // protobuf has no lists in maps: upstream wraps them
            (Shape::List(item), Wire::Bytes(bytes)) => {
                let mut items = Vec::new();
                for field in fields(bytes) {
                    match field? {
                        (1, wire) => self.items(item, wire, &mut items)?,
                        (number, _) => return Err(unknown(number, "a list in a map")),
                    }
                }
                Ok(Some(Value::Array(items)))
            }
            (shape, wire) => self.scalar(shape, wire),
        }
    }

    /// One scalar value; `None` for an empty time and for empty content.
    fn scalar(&mut self, shape: &Shape, wire: Wire<'_>) -> Result<Option<Value>, ProtobufError> {
        let value: Value = match (shape, wire) {
            (Shape::String, Wire::Bytes(text)) => utf8(text)?.into(),
            (Shape::Bytes, Wire::Bytes(bytes)) => base64_encode(bytes).into(),
            (Shape::Bool, Wire::Varint(number)) => (number != 0).into(),
            (Shape::Int32 | Shape::Int64, Wire::Varint(number)) => number.cast_signed().into(),
            (Shape::Double, Wire::Fixed64(bits)) => f64::from_bits(bits).into(),
            (Shape::Time, Wire::Bytes(bytes)) => return time_text(bytes, false),
            (Shape::MicroTime, Wire::Bytes(bytes)) => return time_text(bytes, true),
            (Shape::Quantity, Wire::Bytes(bytes)) => utf8(inner_bytes(bytes, "Quantity")?)?.into(),
            (Shape::IntOrString, Wire::Bytes(bytes)) => int_or_string(bytes)?,
            (Shape::Raw, Wire::Bytes(bytes)) => {
                let raw = inner_bytes(bytes, "raw content")?;
                if raw.is_empty() {
                    return Ok(None);
                }
                let (raw, _) = decode::json(raw)
                    .map_err(|_| ProtobufError::Malformed("has raw content that is no JSON"))?;
                self.budget.value(&raw, 0)?;
                return Ok(Some(raw));
            }
            _ => return Err(WRONG),
        };
        if let Value::String(text) = &value {
            self.budget.text(text)?;
        }
        Ok(Some(value))
    }
}

fn inner_bytes<'a>(bytes: &'a [u8], of: &str) -> Result<&'a [u8], ProtobufError> {
    let mut found = &[][..];
    for field in fields(bytes) {
        match field? {
            (1, Wire::Bytes(inner)) => found = inner,
            (number, _) => return Err(unknown(number, of)),
        }
    }
    Ok(found)
}

fn int_or_string(bytes: &[u8]) -> Result<Value, ProtobufError> {
    let (mut is_text, mut number, mut text) = (false, 0, String::new());
    for field in fields(bytes) {
        match field? {
            (1, Wire::Varint(kind)) => is_text = kind != 0,
            (2, Wire::Varint(value)) => number = value.cast_signed(),
            (3, Wire::Bytes(value)) => text = utf8(value)?,
            (number, _) => return Err(unknown(number, "IntOrString")),
        }
    }
    Ok(if is_text { text.into() } else { number.into() })
}

fn time_text(bytes: &[u8], micro: bool) -> Result<Option<Value>, ProtobufError> {
    let (mut seconds, mut nanos, mut given) = (0_i64, 0_i64, false);
    for field in fields(bytes) {
        match field? {
            (1, Wire::Varint(value)) => (seconds, given) = (value.cast_signed(), true),
            (2, Wire::Varint(value)) => nanos = value.cast_signed(),
            (number, _) => return Err(unknown(number, "Time")),
        }
    }
    // Go's zero time
    if !given || seconds == -62_135_596_800 {
        return Ok(None);
    }
    let wrong = ProtobufError::Malformed("has a time out of range");
    let time = time::OffsetDateTime::from_unix_timestamp(seconds).map_err(|_| wrong.clone())?;
    let micros = (0..1_000_000_000).contains(&nanos).then_some(nanos / 1000).ok_or(wrong)?;
    let (year, month, day) = (time.year(), u8::from(time.month()), time.day());
    let (hour, minute, second) = time.to_hms();
    let fraction = if micro { format!(".{micros:06}") } else { String::new() };
    Ok(Some(format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z").into()))
}

/// Writes protobuf, as little of it as `/openapi/v2` needs.
#[derive(Debug, Default)]
pub struct Encoder {
    /// The message so far.
    pub bytes: Vec<u8>,
}

impl Encoder {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.bytes.push(value.to_le_bytes()[0]);
    }

    /// A text field.
    pub fn text(&mut self, number: u64, text: &str) {
        self.raw(number, text.as_bytes());
    }

    /// A field of bytes.
    pub fn raw(&mut self, number: u64, bytes: &[u8]) {
        self.varint(number << 3 | 2);
        self.varint(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }

    /// A message field.
    pub fn message(&mut self, number: u64, fill: impl FnOnce(&mut Encoder)) {
        let mut inner = Encoder::default();
        fill(&mut inner);
        self.raw(number, &inner.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_pb::api::core::v1 as core;
    use k8s_pb::apimachinery::pkg::apis::meta::v1 as meta;
    use prost::Message;
    use serde_json::json;

    fn body(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
        let mut unknown = Encoder::default();
        unknown.message(1, |meta| {
            meta.text(1, api_version);
            meta.text(2, kind);
        });
        unknown.raw(2, raw);
        unknown.text(3, "");
        [MAGIC, &unknown.bytes].concat()
    }

    #[test]
    fn generated_types_are_read_as_their_json() {
        let map = core::ConfigMap {
            metadata: Some(meta::ObjectMeta {
                name: Some("cfg".into()),
                generate_name: Some(String::new()),
                creation_timestamp: Some(meta::Time::default()),
                labels: [("a".to_owned(), String::new())].into(),
                ..Default::default()
            }),
            data: [("kubelet".to_owned(), "kind: K".to_owned())].into(),
            binary_data: [("bin".to_owned(), vec![0xff, 0])].into(),
            immutable: Some(false),
        };
        assert_eq!(
            decode(&body("v1", "ConfigMap", &map.encode_to_vec())).unwrap(),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cfg", "labels": {"a": ""}},
                "data": {"kubelet": "kind: K"}, "binaryData": {"bin": "/wA="}, "immutable": false})
        );
        let lease = k8s_pb::api::coordination::v1::Lease {
            spec: Some(k8s_pb::api::coordination::v1::LeaseSpec {
                holder_identity: Some("n".into()),
                lease_duration_seconds: Some(40),
                renew_time: Some(meta::MicroTime { seconds: Some(1_767_225_600), nanos: Some(1_500_000) }),
                ..Default::default()
            }),
            ..Default::default()
        };
        assert_eq!(
            decode(&body("coordination.k8s.io/v1", "Lease", &lease.encode_to_vec())).unwrap()["spec"],
            json!({"holderIdentity": "n", "leaseDurationSeconds": 40, "renewTime": "2026-01-01T00:00:00.001500Z"})
        );
        let options = meta::DeleteOptions { grace_period_seconds: Some(0), ..Default::default() };
        assert_eq!(
            decode(&body("v1", "DeleteOptions", &options.encode_to_vec())).unwrap()["gracePeriodSeconds"],
            0
        );
        let quantity = k8s_pb::apimachinery::pkg::api::resource::Quantity { string: Some("2".into()) };
        let node = core::Node {
            status: Some(core::NodeStatus {
                capacity: [("cpu".to_owned(), quantity)].into(),
                conditions: vec![core::NodeCondition { r#type: Some("Ready".into()), ..Default::default() }],
                ..Default::default()
            }),
            ..Default::default()
        };
        assert_eq!(
            decode(&body("v1", "Node", &node.encode_to_vec())).unwrap()["status"],
            json!({"capacity": {"cpu": "2"}, "conditions": [{"type": "Ready"}]})
        );
    }

    #[test]
    fn damaged_and_foreign_bodies_are_refused() {
        let good = body(
            "v1",
            "ConfigMap",
            &core::ConfigMap { immutable: Some(true), ..Default::default() }.encode_to_vec(),
        );
        for cut in 0..good.len() {
            let _ = decode(&good[..cut]);
        }
        for index in 0..good.len() {
            for flip in [0xff, 0x80, 0x07] {
                let mut changed = good.clone();
                changed[index] ^= flip;
                let _ = decode(&changed);
            }
        }
        assert_eq!(decode(b"{}"), Err(ProtobufError::Malformed("does not start with the magic bytes")));
        assert!(matches!(decode(&body("v1", "Nonsense", &[])), Err(ProtobufError::UnknownType(_))));
        assert!(decode(&body("v1", "ConfigMap", &[0x0a, 0xff])).is_err());
    }
}
