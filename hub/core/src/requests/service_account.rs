//! The parts of a new pod that come from its service account: the volume with its token, and its pull
//! secrets.
//!
//! The rules are those of upstream's ServiceAccount admission. Always holds: they are added after the fields
//! of the creator are known, so they have no manager; a mirror pod gets nothing, and a stored pod is never
//! changed. Left to others: the token itself (the node asks for it), and the ConfigMap with the certificate
//! (`controllers::root_certificate`).

use kedge_api::AUTOMOUNTED_VOLUME_PREFIX;
use serde_json::{Value, json};

use super::create::generated_name;
use super::objects::Objects;
use super::types::Fresh;
use crate::api_error::ApiError;
use crate::controllers::root_certificate;
use crate::kinds::{Kind, POD, SERVICE_ACCOUNT, pod};
use crate::value::text;

const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Upstream's: an hour, plus seven seconds by which these tokens are recognised.
const TOKEN_SECS: u64 = 60 * 60 + 7;

/// Adds the parts from its account to a new pod, which is complete and valid; refuses a pod whose account is
/// missing.
pub(super) fn admit(
    objects: &dyn Objects,
    kind: &Kind,
    namespace: &str,
    value: &mut Value,
    fresh: &Fresh,
) -> Result<(), ApiError> {
    if kind.kind != POD.kind || pod::is_mirror(value) {
        return Ok(());
    }
    let name = text(value, &["spec", "serviceAccountName"]);
    let Some(account) = objects.get(&SERVICE_ACCOUNT, namespace, name) else {
        let why =
            format!("error looking up service account {namespace}/{name}: serviceaccount {name:?} not found");
        return Err(ApiError::forbidden_object(kind, text(value, &["metadata", "name"]), &why));
    };
    let account = account.value();
    let spec = &mut value["spec"];
    let choice = |of: &Value| of["automountServiceAccountToken"].as_bool();
    if choice(spec).or_else(|| choice(&account)).unwrap_or(true) {
        mount_token(spec, fresh);
    }
    let (own, of_account) = (&spec["imagePullSecrets"], &account["imagePullSecrets"]);
    if own.as_array().is_none_or(Vec::is_empty) && of_account.as_array().is_some_and(|all| !all.is_empty()) {
        spec["imagePullSecrets"] = of_account.clone();
    }
    Ok(())
}

/// Mounts the token into each container that has no mount of its own at that path.
fn mount_token(spec: &mut Value, fresh: &Fresh) {
    let known = spec["volumes"].as_array().into_iter().flatten().map(|volume| text(volume, &["name"]));
    let known = known.filter(|name| name.starts_with(AUTOMOUNTED_VOLUME_PREFIX)).map(str::to_owned).next();
    let name = known.clone().unwrap_or_else(|| generated_name(AUTOMOUNTED_VOLUME_PREFIX, &fresh.random));
    let mut is_used = false;
    for list in ["initContainers", "containers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let mounts = container["volumeMounts"].as_array().cloned().unwrap_or_default();
            if mounts.iter().all(|mount| text(mount, &["mountPath"]) != MOUNT_PATH) {
                let own = json!({"name": name, "readOnly": true, "mountPath": MOUNT_PATH});
                container["volumeMounts"] = mounts.into_iter().chain([own]).collect();
                is_used = true;
            }
        }
    }
    if known.is_none() && is_used {
        let volumes = spec["volumes"].as_array().cloned().unwrap_or_default();
        spec["volumes"] = volumes.into_iter().chain([volume(&name)]).collect();
    }
}

fn volume(name: &str) -> Value {
    let namespace =
        json!({"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}});
    let certificate = json!({"key": "ca.crt", "path": "ca.crt"});
    json!({"name": name, "projected": {"defaultMode": 0o644, "sources": [
        {"serviceAccountToken": {"expirationSeconds": TOKEN_SECS, "path": "token"}},
        {"configMap": {"name": root_certificate::NAME, "items": [certificate]}},
        {"downwardAPI": {"items": [namespace]}}]}})
}

#[cfg(test)]
mod tests {
    use super::super::fixture::stored;
    use super::super::{WriteOptions, create};
    use super::*;
    use crate::kinds::NAMESPACE;
    use crate::requests::Decision;

    const FRESH: Fresh = Fresh { now: time::macros::datetime!(2026-11-21 12:00:00 UTC), random: [7; 21] };

    /// The spec of a pod as it is created, under an account.
    fn made(account: Value, spec: Value, annotations: Value) -> Value {
        let mut account = account;
        account["metadata"] = json!({"namespace": "n", "name": "default"});
        let objects =
            stored(&[(&NAMESPACE, json!({"metadata": {"name": "n"}})), (&SERVICE_ACCOUNT, account)]);
        let value = json!({"metadata": {"name": "p", "annotations": annotations}, "spec": spec});
        let made = create(&objects, &POD, "n", value, &WriteOptions::internal(), &FRESH);
        let Decision::Write(write, _) = made.unwrap() else { panic!("no write") };
        let value = write.new.unwrap();
        // an update of a stored pod adds nothing
        assert!(crate::object::Object::new(&POD, &value, 1).is_some());
        value["spec"].clone()
    }

    fn mounts(spec: &Value) -> Vec<String> {
        let lists = ["initContainers", "containers"].into_iter();
        let containers = lists.flat_map(|list| spec[list].as_array().into_iter().flatten());
        let mounts = containers.flat_map(|one| one["volumeMounts"].as_array().into_iter().flatten());
        mounts.map(|mount| format!("{}:{}", text(mount, &["name"]), text(mount, &["mountPath"]))).collect()
    }

    fn container() -> Value {
        json!({"name": "c", "image": "i"})
    }

    #[test]
    fn every_container_has_the_token_of_the_account() {
        let init = json!({"name": "i", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/v"}]});
        let spec = json!({"initContainers": [init], "containers": [container()], "volumes": [{"name": "v", "emptyDir": {}}]});
        let spec = made(json!({}), spec, json!({}));
        let name = "kube-api-access-kkkkk";
        assert_eq!(
            mounts(&spec),
            ["v:/v".to_owned(), format!("{name}:{MOUNT_PATH}"), format!("{name}:{MOUNT_PATH}")]
        );
        assert_eq!(spec["containers"][0]["volumeMounts"][0]["readOnly"], true);
        assert_eq!(spec["volumes"][0]["name"], "v");
        let expect = json!({"name": name, "projected": {"defaultMode": 420, "sources": [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}}]}});
        assert_eq!(spec["volumes"][1], expect);
        // an update of the pod adds nothing to the added parts
        let mut again = json!({"metadata": {"name": "p"}, "spec": spec.clone()});
        (POD.prepare)(&mut again, Some(&json!({"spec": spec})));
        assert_eq!(again["spec"], spec, "it is complete");
    }

    #[test]
    fn pod_decides_before_its_account() {
        let check = |account: Value, of_pod: Value, expect: usize| {
            let mut spec = json!({"containers": [container()]});
            if !of_pod.is_null() {
                spec["automountServiceAccountToken"] = of_pod.clone();
            }
            let spec = made(json!({"automountServiceAccountToken": account}), spec, json!({}));
            assert_eq!(mounts(&spec).len(), expect, "{account} {of_pod}");
            assert_eq!(spec["volumes"].as_array().map_or(0, Vec::len), expect);
        };
        let (yes, no, unset) = (json!(true), json!(false), Value::Null);
        check(unset.clone(), unset.clone(), 1);
        check(no.clone(), unset.clone(), 0);
        check(yes.clone(), no.clone(), 0);
        check(no, yes, 1);
    }

    #[test]
    fn mount_of_ones_own_stays() {
        let own =
            json!({"name": "c", "image": "i", "volumeMounts": [{"name": "v", "mountPath": MOUNT_PATH}]});
        let volumes = json!([{"name": "v", "emptyDir": {}}]);
        let spec = made(json!({}), json!({"containers": [own], "volumes": volumes}), json!({}));
        assert_eq!(
            (mounts(&spec), spec["volumes"].as_array().unwrap().len()),
            (vec![format!("v:{MOUNT_PATH}")], 1)
        );
        // an existing volume of that name is used
        let volumes = json!([{"name": "kube-api-access-mine", "emptyDir": {}}]);
        let spec = made(json!({}), json!({"containers": [container()], "volumes": volumes}), json!({}));
        assert_eq!(mounts(&spec), [format!("kube-api-access-mine:{MOUNT_PATH}")]);
        assert_eq!(spec["volumes"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn mirror_pod_gets_nothing() {
        let spec = json!({"nodeName": "a", "containers": [container()]});
        let spec = made(json!({}), spec, json!({pod::MIRROR_ANNOTATION: "x"}));
        assert_eq!((mounts(&spec), spec.get("volumes")), (Vec::new(), None));
    }

    #[test]
    fn pull_secrets_of_the_account_are_for_pods_without() {
        let account = json!({"imagePullSecrets": [{"name": "of-account"}]});
        let spec = made(account.clone(), json!({"containers": [container()]}), json!({}));
        assert_eq!(spec["imagePullSecrets"], account["imagePullSecrets"]);
        let own = json!({"containers": [container()], "imagePullSecrets": [{"name": "own"}]});
        assert_eq!(made(account, own, json!({}))["imagePullSecrets"], json!([{"name": "own"}]));
    }
}
