//! Roles and bindings, by kubectl: `create role` and the like, `auth can-i`, `auth reconcile`, and programs
//! and people whose rights come from them.

use crate::programs::{Kubectl, contains, registered, table, until, with_every_kubectl, with_newest_kubectl};
use crate::server::Hub;
use serde_json::{Value, json};

/// The same kubectl with a token of the service account `default/NAME`, which is created if it is missing.
pub(crate) fn program(hub: &Hub, kubectl: &Kubectl, name: &str) -> Kubectl {
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let made = hub.admin().post(accounts, &json!({"metadata": {"name": name}}));
    assert!(matches!(made.code, 201 | 409), "{}", made.json());
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let granted = hub.admin().post(&format!("{accounts}/{name}/token"), &request).expect(201);
    let token = granted["status"]["token"].as_str().unwrap();
    let authority = hub.data_dir.join("ca.crt");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts:\n- name: c\n  context: {{cluster: h, user: u}}\n\
         clusters:\n- name: h\n  cluster: {{server: '{}', certificate-authority: '{}'}}\nusers:\n- name: u\n  user: {{token: '{token}'}}\n",
        hub.url,
        authority.display()
    );
    kubectl.with_kubeconfig(name, &text)
}

#[test]
fn roles_are_created_listed_and_described() {
    with_every_kubectl(|_, kubectl| {
        for (line, made) in [
            ("role reader --verb=get,list --resource=pods,pods/log", "role.rbac.authorization.k8s.io/reader"),
            (
                "clusterrole metrics --verb=get --non-resource-url=/metrics",
                "clusterrole.rbac.authorization.k8s.io/metrics",
            ),
            ("clusterrole whole --aggregation-rule=part=true", "clusterrole.rbac.authorization.k8s.io/whole"),
            (
                "rolebinding jane --role=reader --user=jane --group=people",
                "rolebinding.rbac.authorization.k8s.io/jane",
            ),
            (
                "clusterrolebinding robots --clusterrole=view --serviceaccount=default:robot",
                "clusterrolebinding.rbac.authorization.k8s.io/robots",
            ),
        ] {
            assert_eq!(kubectl.ok(&format!("create {line}")), format!("{made} created\n"));
        }
        let roles = table(&kubectl.ok("get roles"));
        assert_eq!(
            (&roles[0][..], &*roles[1][0]),
            (&["NAME".to_owned(), "CREATED AT".to_owned()][..], "reader")
        );
        contains(
            &kubectl.ok("get clusterroles"),
            &["cluster-admin", "view", "system:basic-user", "kedge:operator"],
        );
        let bindings = table(&kubectl.ok("get rolebindings -o wide"));
        assert_eq!(bindings[0], ["NAME", "ROLE", "AGE", "USERS", "GROUPS", "SERVICEACCOUNTS"]);
        assert_eq!(
            [&bindings[1][..2], &bindings[1][3..]].concat(),
            ["jane", "Role/reader", "jane", "people"]
        );
        contains(
            &kubectl.ok("get clusterrolebinding robots -o wide"),
            &["ClusterRole/view", "default/robot"],
        );
        contains(&kubectl.ok("describe role reader"), &["pods/log", "[get list]"]);
        contains(&kubectl.ok("describe clusterrole view"), &["daemonsets.apps", "[get list watch]"]);
        contains(
            &kubectl.ok("describe rolebinding jane"),
            &["Kind:  Role", "Name:  reader", "User   jane", "Group  people"],
        );
        contains(&kubectl.ok("explain rolebinding.roleRef"), &["apiGroup", "kind", "name"]);
        let patch = r#"patch rolebinding jane --type=merge -p '{"roleRef": {"name": "other"}}'"#;
        contains(&kubectl.fails(patch), &["roleRef: Invalid value", "cannot change roleRef"]);
        let odd = r#"{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "x"}, "rules": [{"verbs": ["get"], "resources": ["pods"]}]}"#;
        contains(
            &kubectl.fails_with("apply --validate=false -f -", odd),
            &["rules[0].apiGroups: Required value: resource rules must supply at least one api group"],
        );
    });
}

#[test]
fn can_i_answers_as_the_hub_decides() {
    with_every_kubectl(|_, kubectl| {
        kubectl.ok("create role reader --verb=get,list --resource=pods");
        kubectl.ok("create role one --verb=get --resource=configmaps --resource-name=mine");
        kubectl.ok("create clusterrole metrics --verb=get --non-resource-url=/metrics");
        kubectl.ok("create rolebinding reader --role=reader --user=jane");
        kubectl.ok("create rolebinding one --role=one --user=jane");
        kubectl.ok("create clusterrolebinding metrics --clusterrole=metrics --user=jane");
        for (asked, expect) in [
            ("get pods", true),
            ("list pods -n default", true),
            ("watch pods", false),
            ("list pods -A", false),
            ("get pods -n kube-system", false),
            ("get pods --subresource=log", false),
            ("get configmaps/mine", true),
            ("get configmaps", false),
            ("get configmaps/other", false),
            ("get /metrics", true),
            ("get /metrics/x", false),
            ("'*' '*'", false),
            ("create selfsubjectaccessreviews.authorization.k8s.io", true),
        ] {
            let outcome = kubectl.run(&format!("auth can-i {asked} --as jane"));
            assert_eq!(
                outcome.out.lines().next(),
                Some(if expect { "yes" } else { "no" }),
                "{asked}: {outcome:?}"
            );
        }
        assert_eq!(kubectl.ok("auth can-i '*' '*'"), "yes\n");
        let listed = kubectl.ok("auth can-i --list --as jane");
        contains(
            &listed,
            &["pods ", "[get list]", "configmaps ", "[mine]", "[/metrics]", "selfsubjectaccessreviews"],
        );
        let other = kubectl.ok("auth can-i --list --as jane -n kube-system");
        assert!(!other.contains("pods "), "{other}");
        if kubectl.version == "1.36" {
            contains(&kubectl.ok("auth whoami --as jane"), &["jane", "system:authenticated"]);
        }
        // the answer of `can-i` and the effect agree
        assert_eq!(kubectl.run("get pods --as jane").code, Some(0));
        contains(
            &kubectl.fails("get pods -A --as jane"),
            &["cannot list resource \"pods\" in API group \"\" at the cluster scope"],
        );
    });
}

#[test]
fn auth_reconcile_creates_and_completes() {
    with_every_kubectl(|hub, kubectl| {
        let wanted = r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader, namespace: default}
rules:
- {apiGroups: [""], resources: [pods], verbs: [get, list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader, namespace: default}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: jane}
"#;
        kubectl.file("rights.yaml", wanted);
        let api = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
        contains(
            &kubectl.ok("auth reconcile -f rights.yaml"),
            &["role.rbac.authorization.k8s.io/reader reconciled"],
        );
        kubectl.ok(r#"patch role reader --type=json -p '[{"op": "replace", "path": "/rules/0/verbs", "value": ["get", "watch"]}]'"#);
        kubectl.ok(r#"patch rolebinding reader --type=merge -p '{"subjects": null}'"#);
        kubectl.ok("auth reconcile -f rights.yaml");
        let role = hub.stored(&format!("{api}/roles/reader"));
        contains(&role["rules"].to_string(), &["get", "watch", "list"]);
        assert_eq!(hub.stored(&format!("{api}/rolebindings/reader"))["subjects"][0]["name"], "jane");
        kubectl.ok("auth reconcile -f rights.yaml --remove-extra-permissions");
        let role = hub.stored(&format!("{api}/roles/reader"));
        assert!(!role["rules"].to_string().contains("watch"), "{role}");
        assert_eq!(kubectl.ok("auth can-i list pods --as jane"), "yes\n");
    });
}

#[test]
fn program_does_what_its_bindings_say() {
    with_newest_kubectl(|hub, kubectl| {
        let robot = program(hub, kubectl, "robot");
        contains(
            &robot.fails("get pods"),
            &["User \"system:serviceaccount:default:robot\" cannot list resource \"pods\""],
        );
        kubectl.ok("create rolebinding robot --clusterrole=edit --serviceaccount=default:robot");
        robot.ok("get pods");
        robot.ok("create configmap mine --from-literal=a=1");
        contains(&robot.fails("get pods -A"), &["at the cluster scope"]);
        contains(&robot.fails("get nodes"), &["cannot list resource \"nodes\""]);
        let set = r#"{"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "x"}}"#;
        contains(
            &robot.fails_with("create --validate=false -f -", set),
            &["cannot create resource \"daemonsets\""],
        );
        contains(
            &robot
                .fails("create rolebinding more --clusterrole=cluster-admin --serviceaccount=default:robot"),
            &["cannot create resource \"rolebindings\""],
        );
        kubectl.ok("create role binds --verb=create,get --resource=rolebindings,roles");
        kubectl.ok("create rolebinding binds --role=binds --serviceaccount=default:robot");
        contains(
            &robot
                .fails("create rolebinding more --clusterrole=cluster-admin --serviceaccount=default:robot"),
            &[
                "is attempting to grant RBAC permissions not currently held:\n{APIGroups:[\"*\"], Resources:[\"*\"], Verbs:[\"*\"]}\n{NonResourceURLs:[\"*\"], Verbs:[\"*\"]}",
            ],
        );
        robot.ok("create rolebinding less --clusterrole=view --user=jane");
        contains(
            &robot.fails("create role more --verb=get --resource=roles,nodes"),
            &["Resources:[\"nodes\"]"],
        );
        contains(&robot.fails("get cm --as admin"), &["cannot impersonate resource \"users\""]);
        contains(
            &robot.fails("create role more --verb=get --resource=pods --as admin"),
            &["cannot impersonate"],
        );
    });
}

/// Neither a watch of a program, by its token, nor one of an impersonated user, ends later than its right.
#[test]
fn watch_ends_with_the_right_to_it() {
    with_newest_kubectl(|hub, kubectl| {
        let robot = program(hub, kubectl, "robot");
        kubectl.ok("create configmap one --from-literal=a=1");
        kubectl.ok("create clusterrolebinding robot --clusterrole=view --serviceaccount=default:robot");
        kubectl.ok("create role reader --verb=get,list,watch --resource=configmaps");
        kubectl.ok("create rolebinding jane --role=reader --user=jane");
        // one that acts as an administrator
        let deputy = program(hub, kubectl, "deputy");
        kubectl.ok("create clusterrole deputy --verb=impersonate --resource=users,groups");
        kubectl.ok("create clusterrolebinding deputy --clusterrole=deputy --serviceaccount=default:deputy");
        let mut watches = [
            robot.start("get cm -o name --watch"),
            kubectl.start("get cm -o name --watch --as jane"),
            deputy.start("get cm -o name --watch --as x --as-group system:masters"),
            kubectl.start("get cm -o name --watch"),
        ];
        for watch in &watches {
            assert_eq!(
                (watch.line(), watch.line()),
                ("configmap/kube-root-ca.crt".to_owned(), "configmap/one".to_owned())
            );
        }
        kubectl.ok("delete clusterrolebinding robot deputy");
        kubectl.ok(r#"patch role reader --type=json -p '[{"op": "replace", "path": "/rules/0/verbs", "value": ["get"]}]'"#);
        kubectl.ok("create configmap two --from-literal=a=1");
        for watch in &mut watches[..3] {
            watch.wait();
            assert_eq!(watch.line_within(1), None, "nothing that came after the change");
        }
        assert_eq!(watches[3].line(), "configmap/two");
        contains(&robot.fails("get cm"), &["cannot list resource \"configmaps\""]);
        contains(&kubectl.fails("get cm --as jane"), &["cannot list resource \"configmaps\""]);
    });
}

/// A device is stolen with the tokens of programs that patch nodes, as kured and flannel do.
#[test]
fn token_that_patches_nodes_commands_none() {
    with_newest_kubectl(|hub, kubectl| {
        registered(hub, kubectl, "edge-1");
        let kured = program(hub, kubectl, "kured");
        kubectl.ok("create clusterrole kured --verb=get,list,patch,update --resource=nodes,nodes/status");
        kubectl.ok("create clusterrolebinding kured --clusterrole=kured --serviceaccount=default:kured");
        kured.ok("cordon edge-1");
        kured.ok("uncordon edge-1");
        kured.ok("annotate node edge-1 weave.works/kured-node-lock={}");
        kured.ok("label node edge-1 flannel=ready");
        let source = json!({"spec": {"configSource": {"configMap": {"namespace": "default", "name": "x", "kubeletConfigKey": "k"}}}});
        for line in [
            &*format!("patch node edge-1 --type=merge -p '{source}'"),
            "annotate node edge-1 kedge.dev/forgive=x",
            "annotate node edge-1 kedge.dev/release-pods=x",
            "annotate node edge-1 kedge.dev/decommission=x",
            "annotate node edge-1 fleet.kedge.dev/set-aside=x",
            "label node edge-1 fleet.kedge.dev/ring=canary",
            r#"patch node edge-1 --subresource=status --type=merge -p '{"metadata": {"annotations": {"kedge.dev/forgive": "x"}}}'"#,
        ] {
            contains(
                &kured.fails(line),
                &["cannot assign resource \"nodes/config\" in API group \"\" at the cluster scope"],
            );
        }
        // flannel patches the status alone, and has its annotations there
        let flannel = program(hub, kubectl, "flannel");
        kubectl.ok("create clusterrole flannel-nodes --verb=get,list,watch --resource=nodes");
        kubectl.ok("create clusterrole flannel-status --verb=get,patch --resource=nodes/status");
        for role in ["flannel-nodes", "flannel-status"] {
            kubectl.ok(&format!(
                "create clusterrolebinding {role} --clusterrole={role} --serviceaccount=default:flannel"
            ));
        }
        let status =
            |part: Value| format!("patch node edge-1 --subresource=status --type=strategic -p '{part}'");
        let own = json!({"flannel.alpha.coreos.com/public-ip": "10.0.0.7"});
        flannel.ok(&status(json!({"metadata": {"annotations": own}})));
        let commands = ["forgive", "release-pods", "decommission", "rotate", "hold-promotion"];
        for command in commands {
            let value = if command == "decommission" { "x,wipe" } else { "x" };
            let part = json!({"metadata": {"annotations": {format!("kedge.dev/{command}"): value}}});
            contains(&flannel.fails(&status(part)), &["resource \"nodes/config\" in API group \"\""]);
        }
        let ring = json!({"metadata": {"labels": {"fleet.kedge.dev/ring": "canary"}}});
        contains(&flannel.fails(&status(ring)), &["cannot assign resource \"nodes/config\""]);
        // a status patch changes no spec, whoever sends it
        flannel.run(&status(source.clone()));
        let node = hub.stored("/api/v1/nodes/edge-1");
        assert_eq!(node["spec"].get("configSource"), None, "{node}");
        for command in commands {
            assert_eq!(node["metadata"]["annotations"].get(format!("kedge.dev/{command}")), None, "{node}");
        }
        assert_eq!(node["metadata"]["annotations"]["flannel.alpha.coreos.com/public-ip"], "10.0.0.7");
        kubectl.ok("create clusterrolebinding assigns --clusterrole=kedge:assign --user=jane");
        kubectl.ok("label node edge-1 fleet.kedge.dev/ring=canary --as jane");
        kubectl.ok("annotate node edge-1 kedge.dev/forgive=x --as jane");
        contains(
            &kubectl.fails("annotate node edge-1 kedge.dev/decommission=x,wipe --as jane"),
            &["cannot wipe resource \"nodes/config\""],
        );
        let node = hub.stored("/api/v1/nodes/edge-1");
        assert_eq!(node["metadata"]["labels"]["fleet.kedge.dev/ring"], "canary");
    });
}

/// The right to a path below /kedge/ is not the right to what is changed there.
#[test]
fn path_alone_commands_no_node() {
    with_newest_kubectl(|hub, kubectl| {
        registered(hub, kubectl, "edge-1");
        let paths = program(hub, kubectl, "paths");
        kubectl.ok("create clusterrole paths --verb=get,post --non-resource-url=/kedge/*");
        kubectl.ok("create clusterrolebinding paths --clusterrole=paths --serviceaccount=default:paths");
        paths.ok("get --raw /kedge/nodes");
        let post = |path: &str| format!("create --raw /kedge/{path} -f -");
        for verb in ["rotate", "decommission"] {
            contains(
                &paths.fails_with(&post(&format!("nodes/edge-1/{verb}")), "{}"),
                &["cannot assign resource \"nodes/config\""],
            );
        }
        for path in ["nodes/edge-1/revoke", "denials/node.edge-1/lift"] {
            contains(&paths.fails_with(&post(path), "{}"), &["only a rule with its name"]);
        }
        let node = hub.stored("/api/v1/nodes/edge-1");
        assert_eq!(node["metadata"]["annotations"]["kedge.dev/decommission"], serde_json::Value::Null);
        // the right to assign is no right to wipe
        kubectl.ok("create clusterrolebinding paths-assign --clusterrole=kedge:assign --serviceaccount=default:paths");
        contains(
            &paths.fails_with(&post("nodes/edge-1/decommission"), r#"{"wipe": true}"#),
            &["cannot wipe resource \"nodes/config\""],
        );
        paths.ok_with(&post("nodes/edge-1/rotate"), "{}");
    });
}

/// Whatever is bound to it, a node stays what it is.
#[test]
fn binding_gives_a_node_nothing() {
    with_newest_kubectl(|hub, kubectl| {
        let node = registered(hub, kubectl, "edge-1");
        kubectl.ok("create clusterrolebinding nodes --clusterrole=cluster-admin --group=system:nodes --user=system:node:edge-1");
        contains(&node.fails("get secrets -A"), &["secrets is forbidden"]);
        contains(&node.fails("get --raw /metrics"), &["cannot get path \"/metrics\""]);
        let asked = "auth can-i get secrets --as system:node:edge-1 --as-group system:nodes";
        assert_eq!(kubectl.run(asked).out, "no - No Object name found\n");
    });
}

#[test]
fn defaults_come_back_at_a_start() {
    let mut hub = Hub::new();
    let api = "/apis/rbac.authorization.k8s.io/v1";
    let view = |hub: &Hub| hub.admin().get(&format!("{api}/clusterroles/view")).expect(200);
    let before = view(&hub);
    assert!(before["rules"].as_array().unwrap().len() > 3, "{before}");
    hub.admin().delete(&format!("{api}/clusterroles/kedge:assign")).expect(200);
    let emptied = json!({"rules": []});
    hub.admin().patch("merge", &format!("{api}/clusterroles/system:monitoring"), &emptied).expect(200);
    hub.restart("TERM");
    hub.admin().get(&format!("{api}/clusterroles/kedge:assign")).expect(200);
    until(|| {
        let found = hub.admin().get(&format!("{api}/clusterroles/system:monitoring")).expect(200);
        found["rules"].as_array().is_some_and(|rules| !rules.is_empty())
    });
    assert_eq!(
        view(&hub)["metadata"]["resourceVersion"],
        before["metadata"]["resourceVersion"],
        "it lacked nothing"
    );
}
