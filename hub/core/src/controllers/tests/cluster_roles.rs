//! Aggregated ClusterRoles and the defaults, on stored objects.

use serde_json::{Value, json};

use super::Hub;
use crate::controllers::cluster_roles::ClusterRoles;
use crate::identity::default_roles::{AUTOUPDATE, cluster_role_bindings, cluster_roles};
use crate::kinds::rules::list;
use crate::kinds::{CLUSTER_ROLE, CLUSTER_ROLE_BINDING};

fn reads(name: &str, label: &str, resource: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {label: "true"}},
        "rules": [{"apiGroups": [""], "resources": [resource], "verbs": ["get"]}]})
}

fn whole(name: &str, label: &str) -> Value {
    json!({"metadata": {"name": name},
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {label: "true"}}]}})
}

impl Hub {
    fn rules(&self, name: &str) -> Value {
        list(&self.index.get(&CLUSTER_ROLE, "", name).unwrap().value(), "rules").into()
    }
}

#[test]
fn defaults_are_created_and_completed() {
    let (mut hub, mut controller) = (Hub::new(), ClusterRoles::default());
    let mut kept =
        cluster_roles().into_iter().find(|role| role["metadata"]["name"] == "system:monitoring").unwrap();
    kept["metadata"]["annotations"][AUTOUPDATE] = "false".into();
    kept["rules"] = json!([]);
    hub.create(&CLUSTER_ROLE, kept);
    hub.create(&CLUSTER_ROLE, json!({"metadata": {"name": "system:basic-user"}, "rules": []}));
    hub.run(&mut controller);
    assert_eq!(hub.names(&CLUSTER_ROLE).len(), cluster_roles().len());
    assert_eq!(hub.names(&CLUSTER_ROLE_BINDING).len(), cluster_role_bindings().len());
    assert_eq!(hub.rules("system:monitoring"), json!([]));
    assert_eq!(hub.rules("system:basic-user").as_array().unwrap().len(), 3);
    // once after a start: an administrator may take a role away until the next
    hub.edit(&CLUSTER_ROLE, "", "system:basic-user", |role| role["rules"] = json!([]));
    hub.run(&mut controller);
    assert_eq!(hub.rules("system:basic-user"), json!([]));
    hub.run(&mut ClusterRoles::default());
    assert_eq!(hub.rules("system:basic-user").as_array().unwrap().len(), 3);
}

#[test]
fn aggregated_role_follows_the_roles_that_it_selects() {
    let (mut hub, mut controller) = (Hub::new(), ClusterRoles::default());
    hub.run(&mut controller);
    hub.create(&CLUSTER_ROLE, reads("pods", "part", "pods"));
    hub.create(&CLUSTER_ROLE, whole("inner", "part"));
    hub.edit(&CLUSTER_ROLE, "", "inner", |role| role["metadata"]["labels"] = json!({"outer": "true"}));
    hub.create(&CLUSTER_ROLE, whole("outer", "outer"));
    hub.run(&mut controller);
    let pods = reads("", "", "pods")["rules"].clone();
    assert_eq!((hub.rules("inner"), hub.rules("outer")), (pods.clone(), pods.clone()));
    // rules that somebody writes into it are removed again
    hub.edit(&CLUSTER_ROLE, "", "outer", |role| role["rules"] = reads("", "", "secrets")["rules"].clone());
    hub.run(&mut controller);
    assert_eq!(hub.rules("outer"), pods);
    hub.edit(&CLUSTER_ROLE, "", "pods", |role| role["metadata"]["labels"] = Value::Null);
    hub.run(&mut controller);
    assert_eq!((hub.rules("inner"), hub.rules("outer")), (json!([]), json!([])));
}
