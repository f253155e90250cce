//! What a pod gets from its RuntimeClass: upstream's admission plugin `RuntimeClass`.
//!
//! Always holds: a pod that names a class which does not exist is refused, and so is one whose overhead or
//! node selector contradicts its class. Left to others: the rules of a class (`kinds::runtime_class`).

use serde_json::{Value, json};

use super::objects::Objects;
use crate::api_error::ApiError;
use crate::kinds::{Kind, POD, RUNTIME_CLASS};
use crate::value::{at, text};

/// Gives a new pod the overhead, node selector and tolerations of its class.
pub(super) fn admit(objects: &dyn Objects, kind: &Kind, pod: &mut Value) -> Result<(), ApiError> {
    if kind.kind != POD.kind {
        return Ok(());
    }
    let name = text(pod, &["metadata", "name"]).to_owned();
    let refuse = |why: String| Err(ApiError::forbidden_object(kind, &name, &why));
    let class = match text(pod, &["spec", "runtimeClassName"]) {
        "" => Value::Null,
        runtime => match objects.get(&RUNTIME_CLASS, "", runtime) {
            Some(class) => class.value(),
            None => return refuse(format!("pod rejected: RuntimeClass {runtime:?} not found")),
        },
    };
    let overhead = at(&class, &["overhead"]).map(|overhead| &overhead["podFixed"]);
    let given = at(pod, &["spec", "overhead"]);
    match (overhead, given) {
        (None, Some(_)) => {
            return refuse(
                "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"
                    .to_owned(),
            );
        }
        (Some(overhead), Some(given)) if overhead != given => {
            return refuse(
                "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead".to_owned(),
            );
        }
        (Some(overhead), None) if overhead.is_object() => pod["spec"]["overhead"] = overhead.clone(),
        _ => {}
    }
    for (key, wanted) in class["scheduling"]["nodeSelector"].as_object().into_iter().flatten() {
        if !pod["spec"]["nodeSelector"].is_object() {
            pod["spec"]["nodeSelector"] = json!({});
        }
        let selector = &mut pod["spec"]["nodeSelector"];
        match selector.get(key).filter(|own| *own != wanted) {
            Some(own) => {
                let shown = |value: &Value| value.as_str().unwrap_or("").to_owned();
                return refuse(format!(
                    "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {}; pod.spec.nodeSelector[{key}] = {}",
                    shown(wanted),
                    shown(own)
                ));
            }
            None => selector[key] = wanted.clone(),
        }
    }
    for toleration in class["scheduling"]["tolerations"].as_array().into_iter().flatten() {
        if !pod["spec"]["tolerations"].is_array() {
            pod["spec"]["tolerations"] = json!([]);
        }
        if let Some(own) = pod["spec"]["tolerations"].as_array_mut().filter(|own| !own.contains(toleration)) {
            own.push(toleration.clone());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::object::Object;

    struct Classes(Value);

    impl Objects for Classes {
        fn get(&self, _: &'static Kind, _: &str, name: &str) -> Option<Arc<Object>> {
            Object::new(&RUNTIME_CLASS, &self.0, 1).filter(|class| &*class.name == name).map(Arc::new)
        }

        fn pods_of(&self, _: &str) -> Vec<Arc<Object>> {
            Vec::new()
        }
    }

    #[test]
    fn pod_gets_what_its_class_asks_for() {
        let classes = Classes(json!({"metadata": {"name": "graphics"}, "handler": "x",
            "overhead": {"podFixed": {"memory": "120Mi"}},
            "scheduling": {"nodeSelector": {"gpu": "yes"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}}));
        let check = |spec: Value, expect: Result<Value, &str>| {
            let mut pod = json!({"metadata": {"name": "p"}, "spec": spec});
            match (admit(&classes, &POD, &mut pod), expect) {
                (Ok(()), Ok(expect)) => assert_eq!(pod["spec"], expect),
                (Err(error), Err(expect)) => {
                    assert_eq!(error.message, format!("pods \"p\" is forbidden: {expect}"));
                    assert_eq!(error.code, 403);
                }
                (found, expect) => panic!("{pod}: {found:?}, expected {expect:?}"),
            }
        };
        check(json!({}), Ok(json!({})));
        check(json!({"runtimeClassName": "other"}), Err("pod rejected: RuntimeClass \"other\" not found"));
        let without = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead";
        check(json!({"overhead": {"cpu": "1"}}), Err(without));
        let whole = json!({"runtimeClassName": "graphics", "overhead": {"memory": "120Mi"}, "nodeSelector": {"gpu": "yes"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}]});
        check(json!({"runtimeClassName": "graphics"}), Ok(whole.clone()));
        check(whole.clone(), Ok(whole));
        let other = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";
        check(json!({"runtimeClassName": "graphics", "overhead": {"memory": "1Mi"}}), Err(other));
        check(
            json!({"runtimeClassName": "graphics", "nodeSelector": {"gpu": "no"}}),
            Err("conflict: runtimeClass.scheduling.nodeSelector[gpu] = yes; pod.spec.nodeSelector[gpu] = no"),
        );
    }
}
