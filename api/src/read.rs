//! Reads a typed object out of JSON, parsed already ([`from_value`]) or not ([`from_slice`]).
//!
//! It does the same as serde_json's functions of these names, except that a type with named fields is read
//! only from an object, never from a list of the values in order, which serde_json also accepts and
//! Kubernetes does not. A reader that accepts such lists is half as large again, and there are some fifty
//! readers. Errors in text include their position, and a repeated field is refused.
//!
//! Leaves to others: keys of maps that are numbers, which no object here has.

use serde::de::value::BorrowedStrDeserializer;
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, EnumAccess, Error as _, MapAccess, SeqAccess, Unexpected,
    VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::{Error, Number, Value, map};
use std::{fmt, slice};

/// # Errors
/// The first value that has another type than expected, or is missing.
pub fn from_value<'de, T: Deserialize<'de>>(value: &'de Value) -> Result<T, Error> {
    T::deserialize(Parsed(value))
}

/// # Errors
/// The first value that has another type than expected, is missing or repeated; invalid JSON; or more than
/// one value.
pub fn from_slice<'de, T: Deserialize<'de>>(text: &'de [u8]) -> Result<T, Error> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let read = T::deserialize(Objects(&mut deserializer))?;
    deserializer.end()?;
    Ok(read)
}

#[derive(Clone, Copy)]
struct Parsed<'de>(&'de Value);

struct Fields<'de> {
    left: map::Iter<'de>,
    value: Option<&'de Value>,
}

struct Items<'de> {
    left: slice::Iter<'de, Value>,
}

/// Of a map.
struct Key<'de>(&'de str);

impl<'de> Parsed<'de> {
    #[cold]
    fn wrong_type(self, visitor: &dyn serde::de::Expected) -> Error {
        let found = match self.0 {
            Value::Null => Unexpected::Unit,
            Value::Bool(is) => Unexpected::Bool(*is),
            Value::Number(number) => unexpected(number),
            Value::String(text) => Unexpected::Str(text),
            Value::Array(_) => Unexpected::Seq,
            Value::Object(_) => Unexpected::Map,
        };
        Error::invalid_type(found, visitor)
    }

    fn number<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Number(number) => number.deserialize_any(visitor),
            _ => Err(self.wrong_type(&visitor)),
        }
    }

    fn list<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let Value::Array(items) = self.0 else { return Err(self.wrong_type(&visitor)) };
        let mut access = Items { left: items.iter() };
        let read = visitor.visit_seq(&mut access)?;
        if access.left.len() > 0 { Err(too_many(items.len())) } else { Ok(read) }
    }

    fn object<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Object(fields) => visitor.visit_map(Fields { left: fields.iter(), value: None }),
            _ => Err(self.wrong_type(&visitor)),
        }
    }
}

fn unexpected(number: &Number) -> Unexpected<'static> {
    match (number.as_u64(), number.as_i64()) {
        (Some(number), _) => Unexpected::Unsigned(number),
        (None, Some(number)) => Unexpected::Signed(number),
        (None, None) => Unexpected::Float(number.as_f64().unwrap_or_default()),
    }
}

#[cold]
fn too_many(length: usize) -> Error {
    Error::invalid_length(length, &"fewer elements in array")
}

macro_rules! deserialize {
    ($($method:ident)* => $how:ident) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> { self.$how(visitor) })*
    };
}

impl<'de> Deserializer<'de> for Parsed<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            Value::Bool(is) => visitor.visit_bool(*is),
            Value::Number(_) => self.number(visitor),
            Value::String(text) => visitor.visit_borrowed_str(text),
            Value::Array(_) => self.list(visitor),
            Value::Object(_) => self.object(visitor),
        }
    }

    deserialize!(deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128 => number);
    deserialize!(deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128 => number);
    deserialize!(deserialize_f32 deserialize_f64 => number);
    deserialize!(deserialize_char deserialize_string deserialize_identifier => deserialize_str);
    deserialize!(deserialize_seq => list);
    deserialize!(deserialize_map => object);
    forward_to_deserialize_any! { bytes byte_buf }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Bool(is) => visitor.visit_bool(*is),
            _ => Err(self.wrong_type(&visitor)),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::String(text) => visitor.visit_borrowed_str(text),
            _ => Err(self.wrong_type(&visitor)),
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            _ => Err(self.wrong_type(&visitor)),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Error> {
        self.list(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.list(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.object(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_enum(self)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }
}

impl<'de> MapAccess<'de> for Fields<'de> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let Some((key, value)) = self.left.next() else { return Ok(None) };
        self.value = Some(value);
        seed.deserialize(Key(key)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        seed.deserialize(Parsed(self.value.take().unwrap_or(&Value::Null)))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left.len())
    }
}

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        match self.left.next() {
            Some(item) => seed.deserialize(Parsed(item)).map(Some),
            None => Ok(None),
        }
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left.len())
    }
}

/// A variant is its name, or an object with one field: the name, with the variant's content.
impl<'de> EnumAccess<'de> for Parsed<'de> {
    type Error = Error;
    type Variant = Variant<'de>;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Variant<'de>), Error> {
        let (name, held) = match self.0 {
            Value::String(name) => (name, None),
            Value::Object(fields) => {
                let mut fields = fields.iter();
                match (fields.next(), fields.next()) {
                    (Some((name, held)), None) => (name, Some(Parsed(held))),
                    _ => return Err(Error::invalid_value(Unexpected::Map, &"map with a single key")),
                }
            }
            _ => return Err(self.wrong_type(&"string or map")),
        };
        Ok((seed.deserialize(BorrowedStrDeserializer::<Error>::new(name))?, Variant(held)))
    }
}

/// The content of a variant.
struct Variant<'de>(Option<Parsed<'de>>);

impl<'de> Variant<'de> {
    fn held(self, expected: &'static str) -> Result<Parsed<'de>, Error> {
        self.0.ok_or_else(|| Error::invalid_type(Unexpected::UnitVariant, &expected))
    }
}

impl<'de> VariantAccess<'de> for Variant<'de> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        self.0.map_or(Ok(()), <()>::deserialize)
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(self.held("newtype variant")?)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Error> {
        self.held("tuple variant")?.list(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.held("struct variant")?.object(visitor)
    }
}

impl<'de> Deserializer<'de> for Key<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_borrowed_str(self.0)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        BorrowedStrDeserializer::new(self.0).deserialize_enum(name, variants, visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct identifier ignored_any
    }
}

/// Passes on the values of another deserializer, at any depth, but asks it for a map wherever named fields
/// are expected.
struct Objects<T>(T);

macro_rules! hand_on {
    ($of:ident: flat $($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, $of::Error> { self.0.$method(visitor) })*
    };
    ($of:ident: within $($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, $of::Error> {
            self.0.$method(Objects(visitor))
        })*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Objects<D> {
    type Error = D::Error;

    hand_on! { D: flat deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128 }
    hand_on! { D: flat deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128 }
    hand_on! { D: flat deserialize_f32 deserialize_f64 deserialize_char deserialize_str deserialize_string }
    hand_on! { D: flat deserialize_bytes deserialize_byte_buf deserialize_unit deserialize_identifier deserialize_ignored_any }
    hand_on! { D: within deserialize_any deserialize_option deserialize_seq deserialize_map }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_unit_struct(name, visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_newtype_struct(name, Objects(visitor))
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_tuple(length, Objects(visitor))
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_tuple_struct(name, length, Objects(visitor))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.deserialize_map(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_enum(name, variants, Objects(visitor))
    }
}

macro_rules! visit {
    ($($method:ident: $of:ty),*) => {
        $(fn $method<E: serde::de::Error>(self, value: $of) -> Result<V::Value, E> { self.0.$method(value) })*
    };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Objects<V> {
    type Value = V::Value;

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        self.0.expecting(formatter)
    }

    visit! { visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64 }
    visit! { visit_str: &str, visit_borrowed_str: &'de str, visit_string: String }

    fn visit_none<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.0.visit_none()
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.0.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, held: D) -> Result<V::Value, D::Error> {
        self.0.visit_some(Objects(held))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, held: D) -> Result<V::Value, D::Error> {
        self.0.visit_newtype_struct(Objects(held))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<V::Value, A::Error> {
        self.0.visit_seq(Objects(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(Objects(fields))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, variant: A) -> Result<V::Value, A::Error> {
        self.0.visit_enum(Objects(variant))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Objects<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Objects(deserializer))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Objects<A> {
    type Error = A::Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, A::Error> {
        self.0.next_element_seed(Objects(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Objects<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        self.0.next_key_seed(seed)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, A::Error> {
        self.0.next_value_seed(Objects(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for Objects<A> {
    type Error = A::Error;
    type Variant = Objects<A::Variant>;

    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, Self::Variant), A::Error> {
        self.0.variant_seed(seed).map(|(name, held)| (name, Objects(held)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Objects<A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.0.unit_variant()
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, A::Error> {
        self.0.newtype_variant_seed(Objects(seed))
    }

    fn tuple_variant<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.0.tuple_variant(length, Objects(visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.0.newtype_variant_seed(NamedFields(visitor))
    }
}

/// The content of a variant with named fields, for the visitor that reads them.
struct NamedFields<V>(V);

impl<'de, V: Visitor<'de>> DeserializeSeed<'de> for NamedFields<V> {
    type Value = V::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        deserializer.deserialize_map(Objects(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use serde_json::json;
    use std::collections::BTreeMap;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    struct Everything {
        text: String,
        is_so: bool,
        small: u8,
        signed: i64,
        #[serde(default)]
        share: f64,
        #[serde(default)]
        maybe: Option<Box<Everything>>,
        #[serde(default)]
        list: Vec<Kind>,
        #[serde(default)]
        pair: (String, u32),
        #[serde(default)]
        map: BTreeMap<Name, Option<Name>>,
        #[serde(default)]
        port: Port,
        #[serde(default)]
        any: Value,
        #[serde(default)]
        nothing: (),
        #[serde(default)]
        letter: Option<char>,
        #[serde(default)]
        by_kind: BTreeMap<Plain, i8>,
    }

    #[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
    struct Name(String);

    #[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
    enum Plain {
        One,
        Two,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "camelCase")]
    enum Kind {
        Bare,
        Named(Name),
        Pair(u8, u8),
        Fields { count: u16 },
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(untagged)]
    enum Port {
        Number(u16),
        Name(String),
    }

    impl Default for Port {
        fn default() -> Self {
            Self::Number(0)
        }
    }

    fn example() -> Value {
        json!({
            "text": "t", "isSo": true, "small": 7, "signed": -5, "share": 0.5, "letter": "x", "nothing": null,
            "maybe": {"text": "", "isSo": false, "small": 0, "signed": 0, "pair": ["a", 1]},
            "list": ["bare", {"named": "n"}, {"pair": [1, 2]}, {"fields": {"count": 3}}],
            "pair": ["p", 9], "map": {"a": "b", "c": null}, "port": "http", "any": {"x": [1, {"y": null}]},
            "byKind": {"Two": 2, "One": -1},
        })
    }

    #[test]
    fn all_forms_are_read_as_by_serde_json() {
        let value = example();
        let read: Everything = from_value(&value).unwrap();
        assert_eq!(read, Everything::deserialize(&value).unwrap());
        assert_eq!(read, from_slice(value.to_string().as_bytes()).unwrap());
        assert_eq!((read.list.len(), &read.port), (4, &Port::Name("http".into())));
    }

    /// Each value anywhere in the example is replaced by each of these: both readers give the same, or refuse
    /// in the same words.
    #[test]
    fn wrong_values_are_refused_in_serde_jsons_words() {
        let wrong = [
            json!(null),
            json!(true),
            json!(300),
            json!(-1),
            json!(70_000),
            json!(1.5),
            json!("bare"),
            json!("?"),
            json!({}),
            json!({"named": 1}),
            json!({"pair": [1]}),
            json!({"pair": [1, 2, 3]}),
            json!({"bare": null}),
            json!({"bare": 1}),
            json!({"named": "n", "bare": null}),
            json!({"fields": {"count": "x"}}),
            json!("named"),
            json!({"unknown": 1}),
        ];
        let mut refused = 0;
        let pointers = [
            "",
            "/text",
            "/isSo",
            "/small",
            "/signed",
            "/share",
            "/letter",
            "/nothing",
            "/maybe",
            "/list",
            "/maybe/small",
            "/list/0",
            "/list/1",
            "/list/2",
            "/list/3",
            "/list/1/named",
            "/list/2/pair",
            "/list/3/fields",
            "/list/3/fields/count",
            "/pair",
            "/pair/0",
            "/pair/1",
            "/map",
            "/map/a",
            "/map/c",
            "/port",
            "/any",
            "/byKind",
            "/byKind/One",
        ];
        for pointer in pointers {
            for wrong in &wrong {
                let mut value = example();
                *value.pointer_mut(pointer).unwrap() = wrong.clone();
                // serde_json does not always name the variant
                let words =
                    |error: Error| error.to_string().replace(" Kind::Pair", "").replace(" Kind::Fields", "");
                let read = from_value::<Everything>(&value).map_err(words);
                let expected = Everything::deserialize(&value).map_err(words);
                assert_eq!(read, expected, "{wrong} at {pointer:?}");
                refused += usize::from(read.is_err());
                let text = value.to_string();
                let place = |error: Error| error.to_string();
                let read = from_slice::<Everything>(text.as_bytes()).map_err(place);
                assert_eq!(
                    read,
                    serde_json::from_slice(text.as_bytes()).map_err(place),
                    "{wrong} at {pointer:?}"
                );
            }
        }
        assert!(refused > 200, "{refused} were refused");
    }

    #[test]
    fn list_in_place_of_an_object_is_refused() {
        #[derive(Debug, Deserialize)]
        struct Pair {
            #[allow(dead_code, reason = "only read")]
            one: u8,
        }
        assert!(serde_json::from_value::<Pair>(json!([1])).is_ok());
        let error = from_value::<Pair>(&json!([1])).unwrap_err().to_string();
        assert_eq!(error, "invalid type: sequence, expected struct Pair");
        let error = from_slice::<Pair>(b"[1]").unwrap_err().to_string();
        assert_eq!(error, "invalid type: sequence, expected struct Pair at line 1 column 0");
        let error = from_slice::<Kind>(br#"{"fields": [3]}"#).unwrap_err().to_string();
        assert!(error.starts_with("invalid type: sequence, expected struct variant Kind::Fields"), "{error}");
    }

    #[test]
    fn text_with_more_or_the_same_field_twice_is_refused() {
        #[derive(Debug, Deserialize)]
        struct One {
            #[allow(dead_code, reason = "only read")]
            one: u8,
        }
        let refused = |text: &str| from_slice::<One>(text.as_bytes()).unwrap_err().to_string();
        assert_eq!(refused(r#"{"one": 1, "one": 2}"#), "duplicate field `one` at line 1 column 16");
        assert_eq!(refused(r#"{"one": 1} {}"#), "trailing characters at line 1 column 12");
    }
}
