//! `kedge-hub user create|list|revoke` and `kedge-hub kubeconfig`: credentials for people, each with a name.
//!
//! Always holds: the key is made here and only printed. The certificate has the user's name and no group, so
//! its rights are those that bindings give to the name, and a revocation of the name ends them. No
//! credentials are made for a revoked user. The role is bound before anything is signed, by the running hub,
//! so the audit log has both. Left to others: the credentials (`pki`), the request (`asking`).

use std::collections::BTreeMap;
use std::path::Path;

use kedge_api::percent_encoded;
use kedge_hub_core::identity::denied::{
    self, DENY_LIST_NAME, DENY_LIST_NAMESPACE, DenyList, revocation_of_user,
};
use kedge_hub_core::kinds::{CONFIG_MAP, rbac, text};
use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::asking::{self, ask};
use crate::flags::{AdminKubeconfig, NewUser, Target, UserAct, UserCommand};
use crate::fresh::now_text;
use crate::kubeconfig_command::{Printed, checked, guess};
use crate::pki::{self, ADMIN_USER, server_url};
use crate::store::look;

const RIGHTS: &str = "/apis/rbac.authorization.k8s.io/v1";
const MAPS: &str = "/api/v1/namespaces/kube-system/configmaps";

/// Runs the command `user`.
///
/// # Errors
/// The user is revoked, the role does not exist, or no hub runs where one is needed. The directory is not
/// that of a hub that was started once. A file cannot be written.
pub async fn run(command: &UserCommand) -> Result<Printed, String> {
    match &command.act {
        UserAct::Create(new) => create(&command.data_dir, new).await,
        UserAct::List { json } => {
            list(&command.data_dir, *json).await.map(|out| Printed { out, warnings: Vec::new() })
        }
        UserAct::Revoke { name, reason } => {
            revoke(&command.data_dir, name, reason).await.map(|out| Printed { out, warnings: Vec::new() })
        }
    }
}

/// Prints the administrator's kubeconfig for another machine.
///
/// # Errors
/// The directory is not that of a hub that was started once; a file cannot be written.
pub fn admin(options: &AdminKubeconfig) -> Result<Printed, String> {
    let AdminKubeconfig { data_dir, target } = options;
    let (url, warnings) = address(data_dir, target);
    let text = pki::admin_kubeconfig(data_dir, url).map_err(|error| error.to_string())?;
    let mut printed = print(target, ADMIN_USER, text, warnings)?;
    printed.warnings.push(
        "these are the credentials of all administrators, the last way in, and cannot be revoked by name; for a person make others: \
         `kedge-hub user create NAME --role cluster-admin`"
            .to_owned(),
    );
    Ok(printed)
}

async fn create(data_dir: &Path, new: &NewUser) -> Result<Printed, String> {
    let list = look::object(data_dir, &CONFIG_MAP, DENY_LIST_NAMESPACE, DENY_LIST_NAME);
    let list = list.map_err(|error| format!("cannot tell whether user {} is revoked: {error}", new.name))?;
    if list.is_some_and(|list| DenyList::read(&list).signing_refusal(&new.name).is_some()) {
        let entry = denied::user_key(&new.name);
        return Err(format!(
            "user {} is revoked: the hub refuses all credentials of this name, so none were made; to let the user return, run \
             `kedge-hub denied lift {entry}` first, then this again; the earlier credentials stay refused",
            new.name
        ));
    }
    for (flag, path) in [("--out", &new.target.out), ("--p12", &new.p12)] {
        path.as_deref().map(|path| checked(flag, path)).transpose()?;
    }
    let bound = match &new.role {
        Some(role) => Some(bind(data_dir, new, role).await?),
        None => None,
    };
    let (url, warnings) = address(data_dir, &new.target);
    let made = pki::user_credentials(data_dir, &new.name, url, new.life, OffsetDateTime::now_utc());
    let made = made.map_err(|error| error.to_string())?;
    let browser = new.p12.as_ref().map(|path| for_browser(path, &new.name, &made)).transpose()?;
    let mut printed = match (&browser, &new.target.out) {
        (Some(_), None) => Printed { out: String::new(), warnings },
        _ => print(&new.target, &new.name, made.kubeconfig, warnings)?,
    };
    printed.out.extend(browser);
    printed.warnings.extend(bound.is_none().then(|| {
        format!("no role was bound: user {} has the rights that bindings of the name give", new.name)
    }));
    Ok(printed)
}

/// Writes the file for a browser; returns what to print.
fn for_browser(path: &Path, user: &str, made: &pki::UserCredentials) -> Result<String, String> {
    let (file, passphrase) = made.pkcs12()?;
    pki::write_secret(path, &file).map_err(|error| error.to_string())?;
    Ok(format!(
        "{}: credentials of user {user} for a browser, keep them secret\n\
         passphrase of the file, shown only now: {passphrase}\n",
        path.display()
    ))
}

/// The hub's address for the machine that the credentials are for, if one was given; else a warning where
/// the published one is a guess.
fn address(data_dir: &Path, target: &Target) -> (Option<String>, Vec<String>) {
    match &target.server {
        Some(to) => (Some(server_url(&to.host, to.port.unwrap_or_default())), Vec::new()),
        None => (None, guess(data_dir, "does that machine find").into_iter().collect()),
    }
}

/// Writes a kubeconfig to its file, or returns its text.
fn print(target: &Target, user: &str, text: String, warnings: Vec<String>) -> Result<Printed, String> {
    let file = target.out.as_deref().map(|path| checked("--out", path)).transpose()?;
    let Some(path) = file else { return Ok(Printed { out: text, warnings }) };
    pki::write_secret(&path, text.as_bytes()).map_err(|error| error.to_string())?;
    let out = format!("{}: credentials of user {user}, keep them secret\n", path.display());
    Ok(Printed { out, warnings })
}

/// The people with a role of their own or a denial.
async fn list(data_dir: &Path, json: bool) -> Result<String, String> {
    let mut people: BTreeMap<String, (Vec<String>, &str)> = BTreeMap::new();
    for sort in ["clusterrolebindings", "rolebindings"] {
        let found = ask(data_dir, "GET", &format!("{RIGHTS}/{sort}"), &Value::Null).await?;
        for binding in list_of(&found, "items") {
            let role = text(binding, &["roleRef", "name"]);
            let role = match text(binding, &["metadata", "namespace"]) {
                "" => role.to_owned(),
                namespace => format!("{role} in {namespace}"),
            };
            let people_of = list_of(binding, "subjects").iter().filter(|subject| subject["kind"] == "User");
            for subject in people_of {
                let name = text(subject, &["name"]);
                // programs of a cluster have such names
                if !name.starts_with("system:") {
                    people.entry(name.to_owned()).or_insert((Vec::new(), "")).0.push(role.clone());
                }
            }
        }
    }
    let denied = ask(data_dir, "GET", "/kedge/denials", &Value::Null).await?;
    for denial in list_of(&denied, "denials") {
        let Some(name) = denied::user_of(text(denial, &["entry"])) else { continue };
        let of = people.entry(name).or_insert((Vec::new(), ""));
        of.1 = if denial["explanation"]["readmitted"].is_string() { "readmitted" } else { "revoked" };
    }
    if json {
        let all: Vec<Value> = people
            .iter()
            .map(|(name, (roles, state))| json!({"name": name, "roles": roles, "denial": state}))
            .collect();
        return Ok(format!("{:#}\n", json!({"users": all})));
    }
    let shown = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    let rows =
        people.into_iter().map(|(name, (roles, state))| [name, shown(&roles.join(", ")), shown(state)]);
    Ok(asking::table(["USER", "ROLES", "DENIAL"], rows))
}

fn list_of<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().map_or(&[], Vec::as_slice)
}

/// Binds a role that exists to the user's name.
async fn bind(data_dir: &Path, new: &NewUser, role: &str) -> Result<(), String> {
    let is_absent = |why: &String| why.contains(": 404 ");
    let place = |namespace: &str| format!("{RIGHTS}/namespaces/{namespace}");
    let mut kind = "ClusterRole";
    if let Some(namespace) = &new.namespace {
        match ask(data_dir, "GET", &format!("{}/roles/{role}", place(namespace)), &Value::Null).await {
            Ok(_) => kind = "Role",
            Err(why) if is_absent(&why) => {}
            Err(why) => return Err(why),
        }
    }
    if kind == "ClusterRole" {
        let found = ask(data_dir, "GET", &format!("{RIGHTS}/clusterroles/{role}"), &Value::Null).await;
        found.map_err(|why| match is_absent(&why) {
            true => {
                format!("there is no ClusterRole {role:?}: see kubectl get clusterroles; nothing was made")
            }
            false => why,
        })?;
    }
    let (path, sort) = match &new.namespace {
        Some(namespace) => (format!("{}/rolebindings", place(namespace)), "RoleBinding"),
        None => (format!("{RIGHTS}/clusterrolebindings"), "ClusterRoleBinding"),
    };
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": sort,
        "metadata": {"name": format!("{}:{role}", new.name)},
        "roleRef": {"apiGroup": rbac::GROUP, "kind": kind, "name": role},
        "subjects": [{"apiGroup": rbac::GROUP, "kind": "User", "name": new.name}],
    });
    let refused = match ask(data_dir, "POST", &path, &binding).await {
        Ok(_) => return Ok(()),
        Err(why) => why,
    };
    if !refused.contains(": 409 ") {
        return Err(refused);
    }
    let name = format!("{}:{role}", new.name);
    let found = ask(data_dir, "GET", &format!("{path}/{}", percent_encoded(&name)), &Value::Null).await?;
    match binds_the_same(&found, &binding) {
        // made by an earlier run
        true => Ok(()),
        false => Err(format!(
            "{sort} {name:?} exists and binds something else: see kubectl get {} -o yaml; no credentials were made",
            sort.to_lowercase()
        )),
    }
}

fn binds_the_same(one: &Value, other: &Value) -> bool {
    ["subjects", "roleRef"].iter().all(|field| one[field] == other[field])
}

/// Enters the user into the deny list.
async fn revoke(data_dir: &Path, name: &str, reason: &str) -> Result<String, String> {
    let path = format!("{MAPS}/{DENY_LIST_NAME}");
    let (mut list, is_new) = match ask(data_dir, "GET", &path, &Value::Null).await {
        Ok(list) => (list, false),
        Err(why) if why.contains(": 404 ") => (denied::empty_list(), true),
        Err(why) => return Err(why),
    };
    let (entry, explanation) = revocation_of_user(name, ADMIN_USER, &now_text(), reason);
    if !list["data"].is_object() {
        list["data"] = json!({});
    }
    list["data"][&entry] = explanation.into();
    match is_new {
        true => ask(data_dir, "POST", MAPS, &list).await?,
        false => ask(data_dir, "PUT", &path, &list).await?,
    };
    Ok(format!(
        "user {name} is revoked: all credentials of the name are refused; after `kedge-hub denied lift {entry}` new ones \
         count. Its bindings stay\n"
    ))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use kedge_rig::Scratch;

    use super::*;
    use crate::flags::Advertised;
    use crate::pki::Pki;

    fn started(purpose: &str) -> Scratch {
        let data = Scratch::new(purpose).unwrap();
        let now = OffsetDateTime::now_utc();
        let pki = Pki::open(&data, &["localhost".to_owned()], now).unwrap();
        pki.publish("https://[::1]:6443", "https://hubs-machine:6443", now).unwrap();
        data
    }

    #[test]
    fn binding_of_an_earlier_run_must_be_the_same() {
        let binding = |user: &str, role: &str| json!({"metadata": {"name": "jane:view"}, "roleRef": {"name": role}, "subjects": [{"name": user}]});
        let mut stored = binding("jane", "view");
        stored["metadata"]["uid"] = "u".into();
        assert!(binds_the_same(&stored, &binding("jane", "view")));
        for other in [binding("joe", "view"), binding("jane", "edit"), json!({"roleRef": {"name": "view"}})] {
            assert!(!binds_the_same(&other, &binding("jane", "view")), "{other}");
        }
    }

    fn identity(kubeconfig: &str) -> kedge_hub_core::identity::Identity {
        let field = kubeconfig.lines().find_map(|line| line.trim().strip_prefix("client-certificate-data: "));
        let pem = kedge_hub_core::kinds::schema::base64_decode(field.unwrap()).unwrap();
        let (_, parsed) = x509_parser::pem::parse_x509_pem(&pem).unwrap();
        kedge_hub_core::identity::Identity::from_client_certificate(&parsed.contents).unwrap()
    }

    #[tokio::test]
    async fn person_has_a_name_and_no_group() {
        let data = started("hub-user");
        let new = |target| NewUser {
            name: "jane@example.com".to_owned(),
            role: None,
            namespace: None,
            life: time::Duration::days(30),
            target,
            p12: None,
        };
        let printed = create(&data, &new(Target::default())).await.unwrap();
        let jane = identity(&printed.out);
        assert_eq!((&*jane.user, jane.groups), ("jane@example.com", vec!["system:authenticated".to_owned()]));
        assert!(printed.out.contains("server: \"https://hubs-machine:6443\""), "{}", printed.out);
        assert!(printed.warnings[0].contains("no role was bound"), "{:?}", printed.warnings);
        let log = fs::read_to_string(data.join("audit.log")).unwrap();
        assert!(log.contains("\"issue\"") && log.contains("jane@example.com"), "{log}");
        let server = Some(Advertised { host: "hub.example".to_owned(), port: Some(443) });
        let path = data.join("jane");
        let printed = create(&data, &new(Target { server, out: Some(path.clone()) })).await.unwrap();
        assert!(printed.out.contains("credentials of user jane@example.com"), "{}", printed.out);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(fs::read_to_string(&path).unwrap().contains("https://hub.example:443"));
        // for a browser alone
        let p12 = data.join("jane.p12");
        let for_browser = NewUser { p12: Some(p12.clone()), ..new(Target::default()) };
        let printed = create(&data, &for_browser).await.unwrap();
        assert!(printed.out.contains("passphrase of the file, shown only now: "), "{}", printed.out);
        assert!(!printed.out.contains("client-key-data"), "{}", printed.out);
        assert_eq!(fs::metadata(&p12).unwrap().permissions().mode() & 0o777, 0o600);
        let passphrase = printed.out.trim().rsplit(' ').next().unwrap();
        assert!(!fs::read_to_string(data.join("audit.log")).unwrap().contains(passphrase));
        let nowhere = NewUser { p12: Some(data.path().to_owned()), ..new(Target::default()) };
        assert!(create(&data, &nowhere).await.unwrap_err().contains("--p12 is"));
    }

    #[test]
    fn administrators_kubeconfig_is_for_another_machine() {
        let data = started("hub-admin-kubeconfig");
        let printed = admin(&AdminKubeconfig { data_dir: data.path().to_owned(), target: Target::default() });
        let printed = printed.unwrap();
        assert!(identity(&printed.out).is_admin());
        assert!(printed.out.contains("https://hubs-machine:6443"), "{}", printed.out);
        assert!(printed.warnings[0].contains("user create NAME"), "{:?}", printed.warnings);
    }
}
