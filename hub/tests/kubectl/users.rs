//! People with names: `kedge-hub user` and `kedge-hub kubeconfig`, their rights, the audit log's lines about
//! them, and their denial.

use std::fs;

use crate::programs::{contains, with_newest_kubectl};

#[test]
fn person_has_a_role_a_name_and_an_end() {
    with_newest_kubectl(|hub, kubectl| {
        let made = |words: &[&str]| {
            let outcome = hub.command(words);
            assert_eq!(outcome.code, Some(0), "{words:?}: {}", outcome.err);
            outcome.out
        };
        let jane = made(&[
            "user",
            "create",
            "jane@example.com",
            "--role",
            "view",
            "-n",
            "default",
            "--server",
            &hub.url,
        ]);
        let jane = kubectl.with_kubeconfig("jane", &jane);
        jane.ok("get pods");
        contains(&jane.fails("get secrets"), &["User \"jane@example.com\" cannot list resource \"secrets\""]);
        contains(&jane.fails("get pods -A"), &["at the cluster scope"]);
        if kubectl.version == "1.36" {
            contains(&jane.ok("auth whoami"), &["jane@example.com"]);
        }

        // a second administrator, with a name of her own
        let root = made(&[
            "user",
            "create",
            "root",
            "--role",
            "cluster-admin",
            "--life",
            "30d",
            "--server",
            &hub.url,
        ]);
        let root = kubectl.with_kubeconfig("root", &root);
        root.ok("create namespace by-root");
        root.ok("get secrets -A");
        let log = fs::read_to_string(hub.data_dir.join("audit.log")).unwrap();
        let line = log.lines().find(|line| line.contains("by-root")).expect("a line about the namespace");
        contains(line, &["\"username\":\"root\""]);
        contains(&log, &["\"jane@example.com\"", "\"issue\"", "clusterrolebindings"]);

        let listed = made(&["user", "list"]);
        let row =
            |name: &str| listed.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
        contains(&row("jane@example.com"), &["view in default", "-"]);
        contains(&row("root"), &["cluster-admin"]);
        assert!(!listed.contains("system:"), "{listed}");

        // the role must exist, and nothing is made without it
        let outcome = hub.command(&["user", "create", "joe", "--role", "veiw"]);
        assert_eq!((outcome.code, &*outcome.out), (Some(1), ""));
        contains(&outcome.err, &["there is no ClusterRole \"veiw\""]);

        // a role of the namespace comes first
        kubectl.ok("create role view --verb=get --resource=configmaps");
        let jim = made(&["user", "create", "jim", "--role", "view", "-n", "default", "--server", &hub.url]);
        let jim = kubectl.with_kubeconfig("jim", &jim);
        jim.ok("get configmap kube-root-ca.crt");
        contains(&jim.fails("get pods"), &["cannot list resource \"pods\""]);

        // a denial ends an administrator by role, but not the last way in
        contains(
            &made(&["user", "revoke", "root", "--reason", "left"]),
            &["user root is revoked", "user.root"],
        );
        contains(&root.fails("get nodes"), &["Unauthorized"]);
        kubectl.ok("get nodes");
        contains(&made(&["denied", "list"]), &["user.root", "revoked", "left"]);
        let outcome = hub.command(&["user", "create", "root"]);
        assert_eq!(outcome.code, Some(1));
        contains(&outcome.err, &["user root is revoked", "denied lift user.root"]);
        contains(&made(&["denied", "lift", "user.root"]), &["needs new credentials"]);
        // a stolen certificate stays refused, also once its user is back
        let again = made(&["user", "create", "root", "--role", "cluster-admin", "--server", &hub.url]);
        kubectl.with_kubeconfig("root-again", &again).ok("get nodes");
        contains(&root.fails("get nodes"), &["Unauthorized"]);
        made(&["user", "revoke", "jane@example.com"]);
        contains(&jane.fails("get pods"), &["Unauthorized"]);
        made(&["denied", "lift", "user.jane_40example.com"]);
        contains(&jane.fails("get pods"), &["Unauthorized"]);

        // a binding of that name that binds something else is none
        kubectl.ok("create clusterrolebinding joe:view --clusterrole=edit --user=joe");
        let outcome = hub.command(&["user", "create", "joe", "--role", "view"]);
        assert_eq!((outcome.code, &*outcome.out), (Some(1), ""));
        contains(&outcome.err, &["\"joe:view\" exists and binds something else"]);
    });
}

#[test]
fn kubeconfig_for_a_laptop_names_the_server() {
    with_newest_kubectl(|hub, kubectl| {
        let outcome = hub.command(&["kubeconfig", "--server", &hub.url]);
        assert_eq!(outcome.code, Some(0), "{}", outcome.err);
        contains(&outcome.err, &["the last way in", "user create NAME --role cluster-admin"]);
        let admin = kubectl.with_kubeconfig("laptop", &outcome.out);
        admin.ok("create clusterrolebinding jo --clusterrole=kedge:fleet-view --user=jo");
        let outcome = hub.command(&["kubeconfig", "--user", "jo", "--server", &hub.url]);
        assert_eq!(outcome.code, Some(0), "{}", outcome.err);
        let jo = kubectl.with_kubeconfig("jo", &outcome.out);
        jo.ok("get nodes");
        contains(&jo.fails("get configmaps"), &["cannot list resource \"configmaps\""]);
        let other = hub.command(&["kubeconfig", "--server", "https://hub.example:443"]);
        contains(&other.out, &["server: \"https://hub.example:443\""]);
    });
}
