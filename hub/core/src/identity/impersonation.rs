//! Impersonation: a caller acts as another user, to see that user's permissions (`kubectl --as`).
//!
//! Always holds: a caller outside the admin group needs the verb `impersonate` on the user, on each group, on
//! the UID and on each extra value that it asks for. So nobody impersonates a group that no rule names. The
//! impersonated identity expires with the credential that was used. Words, headers and resources are
//! upstream's: `Impersonate-User`, `-Group`, `-Uid`, and `-Extra-KEY` with a percent-encoded key.

use super::attributes::{Attributes, ClusterView};
use super::identity::{Identity, SERVICE_ACCOUNT_PREFIX};
use super::{Denied, authorize};
use kedge_api::AUTHENTICATED_GROUP;

/// The common beginning of the headers, in lower case.
const PREFIX: &str = "impersonate-";
/// Most impersonation headers: our users have fewer groups and facts.
const MAX_HEADERS: usize = 64;
/// User of callers without a credential, and their group.
const ANONYMOUS: (&str, &str) = ("system:anonymous", "system:unauthenticated");

/// The identity that a request asks for, from its headers.
#[derive(Debug, Default)]
struct Asked {
    user: String,
    groups: Vec<String>,
    uid: String,
    facts: std::collections::BTreeMap<String, Vec<String>>,
}

/// The API group of the UIDs and extra values that are impersonated.
const GROUP: &str = "authentication.k8s.io";

/// The identity by which a request is to be judged: the caller's own, or the impersonated one. `headers` are
/// pairs of a name in lower case and a value.
///
/// # Errors
/// 401 without an identity, 403 for callers that may not impersonate, 400 for headers that make no sense.
pub fn effective<'a>(
    caller: Option<&Identity>,
    headers: impl Iterator<Item = (&'a str, &'a [u8])>,
    view: &dyn ClusterView,
) -> Result<Option<Identity>, Denied> {
    let given: Vec<_> = headers.filter(|(name, _)| name.starts_with(PREFIX)).take(MAX_HEADERS + 1).collect();
    if given.is_empty() {
        return Ok(caller.cloned());
    }
    let Some(caller) = caller else { return Err(Denied::unauthorized()) };
    let asked = if given.len() > MAX_HEADERS {
        Err(bad(format!("more than {MAX_HEADERS} headers that impersonate")))
    } else {
        Asked::read(&given)
    };
    match &asked {
        Ok(asked) => asked.check(caller, view)?,
        // a caller that may not impersonate learns nothing about the headers
        Err(_) => Asked::default().check(caller, view)?,
    }
    let asked = asked?;
    if asked.user.is_empty() {
        return Err(bad("requested impersonation without impersonating a user name".to_owned()));
    }
    Ok(Some(Identity {
        groups: groups(&asked.user, asked.groups),
        user: asked.user,
        uid: asked.uid,
        facts: asked.facts,
        not_after: caller.not_after,
        ..Identity::default()
    }))
}

impl Asked {
    /// Refuses a caller that may not impersonate all of this.
    fn check(&self, caller: &Identity, view: &dyn ClusterView) -> Result<(), Denied> {
        let may = |asked: Attributes<'_>| {
            authorize(Some(caller), &Attributes { verb: "impersonate", ..asked }, view)
        };
        let none = Attributes::default();
        let account = self.user.strip_prefix(SERVICE_ACCOUNT_PREFIX).and_then(|rest| rest.split_once(':'));
        match account {
            Some((namespace, name)) => {
                may(Attributes { resource: "serviceaccounts", namespace, name, ..none })
            }
            None => may(Attributes { resource: "users", name: &self.user, ..none }),
        }?;
        for name in &self.groups {
            may(Attributes { resource: "groups", name, ..none })?;
        }
        for (key, values) in &self.facts {
            for name in values {
                may(Attributes { group: GROUP, resource: "userextras", subresource: key, name, ..none })?;
            }
        }
        if self.uid.is_empty() {
            return Ok(());
        }
        may(Attributes { group: GROUP, resource: "uids", name: &self.uid, ..none })
    }

    fn read(headers: &[(&str, &[u8])]) -> Result<Asked, Denied> {
        let mut asked = Asked::default();
        // a proxy may have checked one of the two, and nobody knows which of them counts
        for once in ["impersonate-user", "impersonate-uid"] {
            let times = headers.iter().filter(|(name, _)| *name == once).count();
            if times > 1 {
                return Err(bad(format!("header {once}: expected at most one, found {times}")));
            }
        }
        for (name, value) in headers {
            let text = std::str::from_utf8(value)
                .map_err(|_| bad(format!("header {name}: the value is not UTF-8")))?
                .to_owned();
            match &name[PREFIX.len()..] {
                "user" => asked.user = text,
                "uid" => asked.uid = text,
                "group" => asked.groups.push(text),
                other => match other.strip_prefix("extra-").map(kedge_api::percent_decoded) {
                    Some(Some(key)) => {
                        let key = String::from_utf8_lossy(&key).into_owned();
                        asked.facts.entry(key).or_default().push(text);
                    }
                    _ => {
                        return Err(bad(format!(
                            "header {name}: only a user, its groups, uid and extra can be impersonated"
                        )));
                    }
                },
            }
        }
        Ok(asked)
    }
}

/// Upstream's completion of the groups: those of a service account if the request names none, and the one
/// that tells whether the user is authenticated.
fn groups(user: &str, given: Vec<String>) -> Vec<String> {
    let mut groups = given;
    let account = user.strip_prefix(SERVICE_ACCOUNT_PREFIX).and_then(|rest| rest.split_once(':'));
    if let (true, Some((namespace, _))) = (groups.is_empty(), account) {
        groups = super::service_account_groups(namespace);
    }
    let last = if user == ANONYMOUS.0 { ANONYMOUS.1 } else { AUTHENTICATED_GROUP };
    if !groups.iter().any(|group| group == AUTHENTICATED_GROUP || group == ANONYMOUS.1) {
        groups.push(last.to_owned());
    }
    groups
}

fn bad(message: String) -> Denied {
    Denied { status: 400, message, reason: String::new() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fixture::Objects;
    use super::*;

    fn admin() -> Identity {
        Identity {
            not_after: Some(7),
            credential: "X509SHA256=1".into(),
            ..Identity::new("admin", &["system:masters"])
        }
    }

    fn ask(caller: Option<&Identity>, headers: &[(&str, &str)]) -> Result<Option<Identity>, (u16, String)> {
        ask_in(&Objects::default(), caller, headers)
    }

    fn ask_in(
        view: &Objects,
        caller: Option<&Identity>,
        headers: &[(&str, &str)],
    ) -> Result<Option<Identity>, (u16, String)> {
        let headers = headers.iter().map(|(name, value)| (*name, value.as_bytes()));
        effective(caller, headers, view).map_err(|denied| (denied.status, denied.message))
    }

    #[test]
    fn impersonation_needs_a_right_to_each_part() {
        let rule = |group: &str, resource: &str, names: &[&str]| json!({"verbs": ["impersonate"], "apiGroups": [group], "resources": [resource], "resourceNames": names});
        let view = Objects::default()
            .allow("users", "", "users", json!([rule("", "users", &["joe"])]))
            .allow("groups", "", "groups", json!([rule("", "users", &[]), rule("", "groups", &["people"])]))
            .allow("accounts", "shop", "accounts", json!([rule("", "serviceaccounts", &[])]))
            .allow(
                "facts",
                "",
                "facts",
                json!([
                    rule("", "users", &[]),
                    rule(GROUP, "userextras/scopes", &["a"]),
                    rule(GROUP, "uids", &["1"])
                ]),
            );
        let check = |caller: &str, headers: &[(&str, &str)], expect: &str| {
            let caller = Identity::new(caller, &["system:authenticated"]);
            let found = ask_in(&view, Some(&caller), headers);
            let found =
                found.map_or_else(|(status, message)| format!("{status} {message}"), |_| String::new());
            let ends = found.contains(expect) && found.is_empty() == expect.is_empty();
            assert!(ends, "{} {headers:?}: {found}", caller.user);
        };
        let user = ("impersonate-user", "joe");
        check("users", &[user], "");
        check("users", &[("impersonate-user", "admin")], "403 users \"admin\" is forbidden");
        check("users", &[user, ("impersonate-group", "people")], "403 groups \"people\" is forbidden");
        check("groups", &[user, ("impersonate-group", "people")], "");
        check("groups", &[user, ("impersonate-group", "system:masters")], "403 groups \"system:masters\"");
        check("groups", &[("impersonate-group", "people")], "400 ");
        check(
            "groups",
            &[user, ("impersonate-extra-scopes", "a")],
            "403 userextras.authentication.k8s.io \"a\"",
        );
        check("facts", &[user, ("impersonate-extra-scopes", "a"), ("impersonate-uid", "1")], "");
        check("facts", &[user, ("impersonate-extra-scopes", "b")], "403 userextras");
        check("facts", &[user, ("impersonate-extra-other", "a")], "403 userextras");
        check("facts", &[user, ("impersonate-uid", "2")], "403 uids.authentication.k8s.io \"2\"");
        let account = |of: &'static str| [("impersonate-user", of)];
        check("accounts", &account("system:serviceaccount:shop:s"), "");
        check(
            "accounts",
            &account("system:serviceaccount:other:s"),
            "403 serviceaccounts \"s\" is forbidden",
        );
        check("accounts", &[user], "403 users \"joe\"");
    }

    #[test]
    fn request_without_headers_keeps_its_identity() {
        assert_eq!(ask(Some(&admin()), &[("accept", "*/*")]), Ok(Some(admin())));
        assert_eq!(ask(None, &[]), Ok(None));
    }

    #[test]
    fn impersonated_user_has_only_what_was_asked() {
        let found = ask(
            Some(&admin()),
            &[
                ("impersonate-user", "jane"),
                ("impersonate-group", "people"),
                ("impersonate-group", "more"),
                ("impersonate-uid", "u-1"),
                ("impersonate-extra-example.com%2fscopes", "a"),
                ("impersonate-extra-example.com%2fscopes", "b"),
            ],
        );
        let expect = Identity {
            uid: "u-1".to_owned(),
            facts: [("example.com/scopes".to_owned(), vec!["a".to_owned(), "b".to_owned()])].into(),
            not_after: Some(7),
            ..Identity::new("jane", &["people", "more", "system:authenticated"])
        };
        assert_eq!(found, Ok(Some(expect)));
    }

    #[test]
    fn groups_are_completed_as_upstream() {
        let check = |user: &str, given: &[&str], expect: &[&str]| {
            let given: Vec<_> = given.iter().map(|group| ("impersonate-group", *group)).collect();
            let headers = [&[("impersonate-user", user)], given.as_slice()].concat();
            let found = ask(Some(&admin()), &headers).unwrap().unwrap();
            assert_eq!(found.groups, expect, "{user}");
        };
        check("jane", &[], &["system:authenticated"]);
        check("jane", &["system:authenticated"], &["system:authenticated"]);
        check("system:anonymous", &[], &["system:unauthenticated"]);
        let account = "system:serviceaccount:default:runs";
        let own = ["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"];
        check(account, &[], &own);
        check(account, &["x"], &["x", "system:authenticated"]);
    }

    #[test]
    fn caller_without_the_right_does_not_impersonate() {
        let jane = Identity::new("jane", &["people"]);
        let headers = [("impersonate-user", "admin")];
        assert_eq!(ask(None, &headers), Err((401, "Unauthorized".to_owned())));
        let refused = "users \"admin\" is forbidden: User \"jane\" cannot impersonate resource \"users\" in API group \"\" at the cluster scope";
        assert_eq!(ask(Some(&jane), &headers), Err((403, refused.to_owned())));
        assert_eq!(ask(Some(&jane), &[("impersonate-nonsense", "x")]).unwrap_err().0, 403);
    }

    #[test]
    fn headers_without_sense_are_refused() {
        for headers in [
            &[("impersonate-group", "people")][..],
            &[("impersonate-uid", "1")],
            &[("impersonate-user", "")],
            &[("impersonate-user", "jane"), ("impersonate-nonsense", "x")],
            &[("impersonate-user", "jane"), ("impersonate-extra-%zz", "x")],
            &[("impersonate-user", "jane"), ("impersonate-user", "joe")],
            &[("impersonate-user", "jane"), ("impersonate-group", "people"), ("impersonate-user", "jane")],
            &[("impersonate-user", "jane"), ("impersonate-uid", "1"), ("impersonate-uid", "2")],
            &[("impersonate-group", "people"); 65],
        ] {
            assert_eq!(ask(Some(&admin()), headers).unwrap_err().0, 400, "{headers:?}");
        }
        let mut many = [("impersonate-group", "people"); MAX_HEADERS];
        many[0] = ("impersonate-user", "jane");
        assert!(ask(Some(&admin()), &many).is_ok());
    }
}
