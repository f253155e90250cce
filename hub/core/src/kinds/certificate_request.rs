//! CertificateSigningRequest: created by a client, approved through `/approval`, answered through `/status`.
//!
//! The hub writes the requester's identity, never the client. The spec never changes; Approved and Denied are
//! set through the approval subresource only, the certificate and Failed through status only.
//! `controllers::certificates` signs.

use std::collections::BTreeMap;

use kedge_api::{CLIENT_SIGNER, NODE_SIGNER};
use serde_json::{Value, json};

use super::kind::{Kind, Selectable};
use super::table::{Column, age, human_duration};
use super::{names, schema};
use crate::field_error::{FieldError, FieldErrors};
use crate::identity::Identity;
use crate::identity::certificate_request::{self, Request};
use crate::value::{at, text};

/// Shortest life of a certificate that a request may ask for; upstream's limit.
const MINIMUM_SECS: i64 = 600;

/// certificates.k8s.io/v1 CertificateSigningRequest.
pub static CERTIFICATE_REQUEST: Kind = Kind {
    group: "certificates.k8s.io",
    kind: "CertificateSigningRequest",
    plural: "certificatesigningrequests",
    singular: "certificatesigningrequest",
    short_names: &["csr"],
    namespaced: false,
    status: true,
    type_name: "certificates/v1/CertificateSigningRequest",
    selectable: &[Selectable {
        label: "spec.signerName",
        value: |request| text(request, &["spec", "signerName"]).to_owned(),
    }],
    // the hub sets this field, not the client
    holder: |request| Some(text(request, &["spec", "username"]).to_owned()).filter(|user| !user.is_empty()),
    columns: &[
        Column::NAME,
        Column::AGE,
        Column::text("SignerName"),
        Column::text("Requestor"),
        Column::text("RequestedDuration"),
        Column::text("Condition"),
    ],
    cells,
    prepare,
    validate,
    ..Kind::USUAL
};

/// Writes the requester into a new request, in place of any text of the client.
pub fn stamp_requester(request: &mut Value, requester: &Identity) {
    let Some(spec) = request["spec"].as_object_mut() else { return };
    spec.insert("username".to_owned(), requester.user.as_str().into());
    spec.insert("groups".to_owned(), requester.groups.as_slice().into());
    let uid = Some(requester.uid.as_str()).filter(|uid| !uid.is_empty()).map(Value::from);
    let extra = Some(requester.extra()).filter(|extra| !extra.is_empty()).map(|extra| json!(extra));
    for (field, value) in [("uid", uid), ("extra", extra)] {
        match value {
            Some(value) => spec.insert(field.to_owned(), value),
            None => spec.remove(field),
        };
    }
}

/// The reason to refuse this subject for any requester: an approval must never create an administrator,
/// another user of the system, or a node with a name that no Node can have.
pub fn forbidden_subject(request: &Value) -> Option<String> {
    let judge = match text(request, &["spec", "signerName"]) {
        CLIENT_SIGNER => Request::reserved_subject,
        NODE_SIGNER => Request::impossible_node,
        _ => return None,
    };
    let body = schema::base64_decode(text(request, &["spec", "request"]))?;
    judge(&Request::from_pem(&body).ok()?)
}

fn conditions(request: &Value) -> impl Iterator<Item = &Value> {
    at(request, &["status", "conditions"]).and_then(Value::as_array).into_iter().flatten()
}

fn has(request: &Value, sort: &str) -> bool {
    conditions(request).any(|condition| condition["type"] == sort)
}

fn cells(request: &Value, now: time::OffsetDateTime) -> Vec<Value> {
    let duration = match at(request, &["spec", "expirationSeconds"]).and_then(Value::as_i64) {
        Some(seconds) => human_duration(seconds),
        None => "<none>".to_owned(),
    };
    let mut state = match (has(request, "Approved"), has(request, "Denied")) {
        (_, true) => "Denied",
        (true, _) => "Approved",
        _ => "Pending",
    }
    .to_owned();
    if has(request, "Failed") {
        state.push_str(",Failed");
    }
    if !text(request, &["status", "certificate"]).is_empty() {
        state.push_str(",Issued");
    }
    vec![
        text(request, &["metadata", "name"]).into(),
        age(request, now),
        text(request, &["spec", "signerName"]).into(),
        text(request, &["spec", "username"]).into(),
        duration.into(),
        state.into(),
    ]
}

fn prepare(new: &mut Value, old: Option<&Value>) {
    if let Some(old) = old {
        new["spec"] = old["spec"].clone();
    }
}

/// Restricts an approval to metadata and conditions, as upstream.
pub fn approved(old: &Value, wanted: &Value, now: &str) -> Value {
    let mut new = wanted.clone();
    let mut list: Vec<Value> = conditions(wanted).cloned().collect();
    stamp(&mut list, old, now);
    for part in ["spec", "status"] {
        match (old.get(part), new.as_object_mut()) {
            (Some(kept), Some(new)) => drop(new.insert(part.to_owned(), kept.clone())),
            (None, Some(new)) => drop(new.remove(part)),
            (_, None) => {}
        }
    }
    set_conditions(&mut new, list);
    new
}

/// Restricts a status write to everything but Approved and Denied.
pub fn reported(old: &Value, wanted: &Value, now: &str) -> Value {
    let mut new = wanted.clone();
    let mut list: Vec<Value> = conditions(old).filter(|condition| is_approval(condition)).cloned().collect();
    list.extend(conditions(wanted).filter(|condition| !is_approval(condition)).cloned());
    stamp(&mut list, old, now);
    set_conditions(&mut new, list);
    new
}

fn set_conditions(request: &mut Value, list: Vec<Value>) {
    if !list.is_empty() {
        request["status"]["conditions"] = list.into();
    } else if let Some(status) = request["status"].as_object_mut() {
        status.remove("conditions");
    }
}

fn is_approval(condition: &Value) -> bool {
    matches!(text(condition, &["type"]), "Approved" | "Denied")
}

/// Fills in status and times that conditions lack, as upstream does.
fn stamp(list: &mut [Value], old: &Value, now: &str) {
    let mut known: BTreeMap<&str, &Value> = BTreeMap::new();
    for condition in conditions(old) {
        known.entry(text(condition, &["type"])).or_insert(condition);
    }
    for condition in list {
        if text(condition, &["status"]).is_empty() {
            condition["status"] = "True".into();
        }
        let known = known.get(text(condition, &["type"]));
        for field in ["lastUpdateTime", "lastTransitionTime"] {
            if text(condition, &[field]).is_empty() {
                let kept =
                    known.map(|known| text(known, &[field])).filter(|time| !time.is_empty()).unwrap_or(now);
                condition[field] = kept.into();
            }
        }
    }
}

fn validate(new: &Value, old: Option<&Value>, errors: &mut FieldErrors) {
    if old.is_none() {
        validate_spec(&new["spec"], errors);
    }
    let mut seen = std::collections::BTreeSet::new();
    for (index, condition) in conditions(new).enumerate() {
        let path = format!("status.conditions[{index}]");
        let sort = text(condition, &["type"]);
        if sort.is_empty() {
            errors.push(FieldError::required(format!("{path}.type"), ""));
        } else if !seen.insert(sort) {
            errors.push(FieldError::duplicate(format!("{path}.type"), sort));
        }
        if matches!(sort, "Approved" | "Denied" | "Failed") && condition["status"] != "True" {
            errors.push(FieldError::unsupported(
                format!("{path}.status"),
                condition["status"].clone(),
                &["True"],
            ));
        }
    }
    if has(new, "Approved") && has(new, "Denied") {
        let explained = "Approved and Denied conditions are mutually exclusive";
        errors.push(FieldError::invalid("status.conditions", "", explained));
    }
    let Some(old) = old else { return };
    // signers and requesters act on these conditions, so a decision is final
    for sort in ["Approved", "Denied", "Failed"] {
        if has(old, sort) && !has(new, sort) {
            let why = format!("updates may not remove a condition of type {sort:?}");
            errors.push(FieldError::forbidden("status.conditions", &why));
        }
    }
    let was = text(old, &["status", "certificate"]);
    if !was.is_empty() && was != text(new, &["status", "certificate"]) {
        errors.push(FieldError::forbidden(
            "status.certificate",
            "updates may not change the certificate once it is set",
        ));
    }
}

fn validate_spec(spec: &Value, errors: &mut FieldErrors) {
    let body = schema::base64_decode(text(spec, &["request"])).unwrap_or_default();
    let pem = x509_parser::pem::Pem::read(std::io::Cursor::new(&body));
    if !pem.is_ok_and(|(pem, _)| certificate_request::parse(&pem).is_ok()) {
        let explained = "PEM block type must be CERTIFICATE REQUEST and hold a certificate request";
        errors.push(FieldError::invalid("spec.request", "<bytes>", explained));
    }
    match at(spec, &["usages"]).and_then(Value::as_array).map_or(0, Vec::len) {
        0 => errors.push(FieldError::required("spec.usages", "usages must be specified")),
        _ => validate_usages(spec, errors),
    }
    let signer = text(spec, &["signerName"]);
    let two_parts = signer.split_once('/').is_some_and(|(domain, path)| {
        names::is_subdomain(domain) && domain.contains('.') && !path.is_empty()
    });
    if signer.is_empty() {
        errors.push(FieldError::required("spec.signerName", ""));
    } else if !two_parts {
        let explained = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        errors.push(FieldError::invalid("spec.signerName", signer, explained));
    }
    if let Some(seconds) = spec["expirationSeconds"].as_i64().filter(|seconds| *seconds < MINIMUM_SECS) {
        let explained = "may not specify a duration less than 600 seconds (10 minutes)";
        errors.push(FieldError::invalid("spec.expirationSeconds", seconds, explained));
    }
}

const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

fn validate_usages(spec: &Value, errors: &mut FieldErrors) {
    let mut seen = std::collections::BTreeSet::new();
    for (index, usage) in spec["usages"].as_array().into_iter().flatten().enumerate() {
        let path = format!("spec.usages[{index}]");
        let usage = usage.as_str().unwrap_or("");
        if !USAGES.contains(&usage) {
            errors.push(FieldError::unsupported(path, usage, &USAGES));
        } else if !seen.insert(usage) {
            errors.push(FieldError::duplicate(path, usage));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Value {
        let key = rcgen::KeyPair::generate().unwrap();
        let asked = rcgen::CertificateParams::default().serialize_request(&key).unwrap().pem().unwrap();
        json!({"metadata": {"name": "r"}, "spec": {
            "request": schema::base64_encode(asked.as_bytes()), "signerName": "kubernetes.io/kube-apiserver-client",
            "usages": ["client auth"]}})
    }

    fn check(new: &Value, old: Option<&Value>, expect: &[&str]) {
        let mut errors = FieldErrors::default();
        validate(new, old, &mut errors);
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expect);
    }

    #[test]
    fn request_must_be_valid_and_name_its_usages() {
        check(&request(), None, &[]);
        let mut bad = request();
        bad["spec"] =
            json!({"request": "eA==", "signerName": "x", "usages": ["fly"], "expirationSeconds": 5});
        let mut errors = FieldErrors::default();
        validate(&bad, None, &mut errors);
        assert_eq!(errors.len(), 4, "{errors:?}");
        bad["spec"] = json!({});
        validate(&bad, None, &mut errors);
        assert_eq!(errors.len(), 7, "{errors:?}");
    }

    #[test]
    fn approval_and_status_change_only_their_conditions() {
        let mut wanted = request();
        let condition = |sort: &str| json!({"type": sort, "status": "True", "reason": "x"});
        wanted["status"] =
            json!({"certificate": "eA==", "conditions": [condition("Approved"), condition("Failed")]});
        let old = request();
        wanted["metadata"]["annotations"] = json!({"a": "b"});
        wanted["spec"]["usages"] = json!(["server auth"]);
        let new = approved(&old, &wanted, "2026-01-01T00:00:00Z");
        assert!(has(&new, "Approved") && has(&new, "Failed"));
        assert_eq!((&new["metadata"], &new["spec"]), (&wanted["metadata"], &old["spec"]));
        assert!(new["status"].get("certificate").is_none());
        assert!(!text(&conditions(&new).next().unwrap().clone(), &["lastUpdateTime"]).is_empty());
        let status = reported(&old, &wanted, "2026-01-01T00:00:00Z");
        assert!(has(&status, "Failed") && !has(&status, "Approved"));
        assert_eq!(status["status"]["certificate"], "eA==");
        check(
            &old,
            Some(&new),
            &["Approved", "Failed"]
                .map(|sort| {
                    format!(
                        "status.conditions: Forbidden: updates may not remove a condition of type {sort:?}"
                    )
                })
                .each_ref()
                .map(String::as_str),
        );
        let mut both = new.clone();
        both["status"]["conditions"] =
            json!([condition("Approved"), condition("Denied"), condition("Failed")]);
        check(
            &both,
            Some(&new),
            &[
                "status.conditions: Invalid value: \"\": Approved and Denied conditions are mutually exclusive",
            ],
        );
        let cells = cells(&status, time::OffsetDateTime::UNIX_EPOCH);
        assert_eq!(cells[5], "Pending,Failed,Issued");
    }

    #[test]
    fn requester_is_written_by_the_hub() {
        let mut asked = request();
        asked["spec"]["username"] = "system:admin".into();
        asked["spec"]["extra"] = json!({"a": ["b"]});
        asked["spec"]["uid"] = "0".into();
        let mut node = Identity::new("system:node:a", &["system:nodes"]);
        stamp_requester(&mut asked, &node);
        assert_eq!(asked["spec"]["username"], "system:node:a");
        assert_eq!(asked["spec"]["groups"], json!(["system:nodes"]));
        assert_eq!((asked["spec"].get("extra"), asked["spec"].get("uid")), (None, None));
        node.uid = "7".to_owned();
        node.credential = "JTI=1".into();
        stamp_requester(&mut asked, &node);
        assert_eq!(asked["spec"]["extra"], json!({"authentication.kubernetes.io/credential-id": ["JTI=1"]}));
        assert_eq!(asked["spec"]["uid"], "7");
    }
}
