//! A node's `/stats/summary`: the usage of the node, its pods and their containers.
//!
//! Always holds: reading takes little more memory than its result, whatever the text contains. The text comes
//! from a node, which may be stolen; as a tree of values it could take a hundred times its bytes. Left to
//! others: whether the pods really run on the node.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;

/// Most containers of one pod that are read.
const MOST_CONTAINERS: usize = 100;

/// The usage of processors and memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub nano_cores: u64,
    pub bytes: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Cpu {
    usage_nano_cores: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Memory {
    working_set_bytes: Option<u64>,
}

/// Of a node, or of a container, which has a name.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Figures {
    name: Option<String>,
    cpu: Option<Cpu>,
    memory: Option<Memory>,
}

impl Figures {
    /// `None` if a part of it is unknown, which differs from zero.
    fn usage(&self) -> Option<Usage> {
        let nano_cores = self.cpu.as_ref()?.usage_nano_cores?;
        Some(Usage { nano_cores, bytes: self.memory.as_ref()?.working_set_bytes? })
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PodReference {
    namespace: Option<String>,
    name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Pod {
    pod_ref: Option<PodReference>,
    containers: First<Figures>,
}

/// The first items of a list; the others are skipped.
#[derive(Debug)]
struct First<T>(Vec<T>);

impl<T> Default for First<T> {
    fn default() -> First<T> {
        First(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for First<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<First<T>, D::Error> {
        struct Reader<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Reader<T> {
            type Value = First<T>;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a list")
            }

            fn visit_unit<E>(self) -> Result<First<T>, E> {
                Ok(First::default())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<First<T>, A::Error> {
                let mut first = Vec::new();
                while first.len() < MOST_CONTAINERS {
                    let Some(item) = items.next_element()? else { return Ok(First(first)) };
                    first.push(item);
                }
                while items.next_element::<IgnoredAny>()?.is_some() {}
                Ok(First(first))
            }
        }

        deserializer.deserialize_any(Reader(PhantomData))
    }
}

/// Called with namespace and name of a pod, and the usage of each of its containers, by name.
pub type Tell<'a> = dyn FnMut(String, String, Vec<(String, Usage)>) + 'a;

/// Reads a summary: calls `tell` for each pod, and returns the usage of the node.
///
/// # Errors
/// The text cannot be parsed, or has no figures of the node.
pub fn read(text: &[u8], tell: &mut Tell<'_>) -> Result<Usage, String> {
    let mut reader = serde_json::Deserializer::from_slice(text);
    let node = reader.deserialize_map(Summary(tell)).and_then(|node| reader.end().map(|()| node)).map_err(
        |error| match error.classify() {
            Category::Data => format!("its answer is no summary: {error}"),
            _ => format!("its answer is no JSON: {error}"),
        },
    )?;
    node.and_then(|node| node.usage()).ok_or_else(|| "its answer has no usage of the node".to_owned())
}

struct Summary<'t, 'a>(&'t mut Tell<'a>);

impl<'de> Visitor<'de> for Summary<'_, '_> {
    type Value = Option<Figures>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a summary")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Option<Figures>, A::Error> {
        let mut node = None;
        let mut has_pods = false;
        while let Some(field) = fields.next_key::<String>()? {
            match &*field {
                "node" => node = fields.next_value()?,
                "pods" if std::mem::replace(&mut has_pods, true) => {
                    return Err(A::Error::duplicate_field("pods"));
                }
                "pods" => fields.next_value_seed(Pods(&mut *self.0))?,
                _ => drop(fields.next_value::<IgnoredAny>()?),
            }
        }
        Ok(node)
    }
}

struct Pods<'t, 'a>(&'t mut Tell<'a>);

impl<'de> serde::de::DeserializeSeed<'de> for Pods<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Pods<'_, '_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a list of pods")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut pods: A) -> Result<(), A::Error> {
        while let Some(Pod { pod_ref, containers }) = pods.next_element()? {
            let PodReference { namespace, name } = pod_ref.unwrap_or_default();
            let known = containers.0.into_iter().filter_map(|container| {
                let usage = container.usage()?;
                Some((container.name?, usage))
            });
            (self.0)(namespace.unwrap_or_default(), name.unwrap_or_default(), known.collect());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_is_read_as_it_comes() {
        let check = |text: &str, expect: Result<u64, &str>, pods: &[(&str, usize)]| {
            let mut told = Vec::new();
            let mut tell = |_, name: String, containers: Vec<_>| told.push((name, containers.len()));
            match (read(text.as_bytes(), &mut tell), expect) {
                (Ok(usage), Ok(cores)) => assert_eq!(usage.nano_cores, cores, "{text}"),
                (Err(found), Err(expect)) => assert!(found.contains(expect), "{text}: {found}"),
                (found, _) => panic!("{text}: {found:?}"),
            }
            let told: Vec<(&str, usize)> = told.iter().map(|(name, count)| (&**name, *count)).collect();
            assert_eq!(told, pods, "{text}");
        };
        let node = r#""node":{"cpu":{"usageNanoCores":7},"memory":{"workingSetBytes":1},"odd":[{}]}"#;
        let container = r#"{"name":"c","cpu":{"usageNanoCores":7},"memory":{"workingSetBytes":1}}"#;
        check(&format!("{{{node}}}"), Ok(7), &[]);
        check(&format!(r#"{{"pods":null,"x":[1,{{}}],{node}}}"#), Ok(7), &[]);
        let pod = format!(r#"{{"containers":[{container},{{"name":"d"}}],"podRef":{{"name":"p"}}}}"#);
        check(&format!(r#"{{"pods":[{pod},{{}}],{node}}}"#), Ok(7), &[("p", 1), ("", 0)]);
        let many = vec![container; MOST_CONTAINERS + 9].join(",");
        check(&format!(r#"{{{node},"pods":[{{"containers":[{many}]}}]}}"#), Ok(7), &[("", MOST_CONTAINERS)]);
        check("{}", Err("no usage"), &[]);
        check(r#"{"node":{"cpu":{},"memory":{}}}"#, Err("no usage"), &[]);
        check(r#"{"node":{"cpu":3}}"#, Err("no summary"), &[]);
        check(r#"{"pods":[],"pods":[]}"#, Err("duplicate"), &[]);
        check("[]", Err("no summary"), &[]);
        check("x", Err("no JSON"), &[]);
        check(&format!("{{{node}}} x"), Err("no JSON"), &[]);
    }
}
