//! Images that a pod's node cannot take, with a real hub, a real agent, crun, and Debian's `docker-registry`
//! over TLS with a password: the errors that users see, and that other pods are not affected.

use crate::pods::{NODE, Setup, layout_of};
use crate::setup::{LIMIT, isolated_network};
use kedge_rig::cluster::HEADER;
use kedge_rig::real_registry::{self, RealRegistry};
use kedge_rig::scratch::poll;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The network namespace of a test has no other program on this port.
const PORT: u16 = 5000;

fn read(layout: &Path, descriptor: &Value) -> Vec<u8> {
    let hex = descriptor["digest"].as_str().unwrap().trim_start_matches("sha256:").to_owned();
    fs::read(layout.join("blobs/sha256").join(hex)).unwrap()
}

/// Puts the image of a layout into the registry's storage; with another layer if one is given.
fn push(registry: &Path, layout: &Path, other_layer: Option<&[u8]>) {
    let index: Value = serde_json::from_slice(&fs::read(layout.join("index.json")).unwrap()).unwrap();
    let mut manifest: Value = serde_json::from_slice(&read(layout, &index["manifests"][0])).unwrap();
    let mut config: Value = serde_json::from_slice(&read(layout, &manifest["config"])).unwrap();
    let mut layer = read(layout, &manifest["layers"][0]);
    if let Some(other) = other_layer {
        layer = other.to_vec();
        config["rootfs"]["diff_ids"] = json!([real_registry::digest(&layer)]);
    }
    let config = config.to_string().into_bytes();
    for (place, bytes) in [("/config", &config), ("/layers/0", &layer)] {
        let descriptor = manifest.pointer_mut(place).unwrap();
        descriptor["digest"] = json!(real_registry::digest(bytes));
        descriptor["size"] = json!(bytes.len());
    }
    manifest["mediaType"] = json!("application/vnd.oci.image.manifest.v1+json");
    let manifest = manifest.to_string().into_bytes();
    real_registry::store(registry, "site/web", Some("1"), &manifest, &[&config, &layer]).unwrap();
}

/// A layer whose only file has a path above the root.
fn layer_that_leads_out(scratch: &Path) -> Vec<u8> {
    fs::write(scratch.join("planted"), "outside").unwrap();
    let tar = ["--absolute-names", "--transform=s,^,../../../../../../../../,", "-cf", "-", "planted"];
    let archived = Command::new("tar").arg("-C").arg(scratch).args(tar).output().unwrap();
    assert!(archived.status.success(), "{}", String::from_utf8_lossy(&archived.stderr));
    archived.stdout
}

#[test]
fn refused_layer_is_told_and_its_mended_image_runs() {
    isolated_network("pulls::refused_layer_is_told_and_its_mended_image_runs", || {
        if !real_registry::is_installed() {
            assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "CI installs docker-registry");
            return kedge_rig::power_cut::print_past_test_runner("SKIPPED: docker-registry is not installed");
        }
        let mut setup = Setup::before_the_agent();
        let scratch: PathBuf = setup.cluster.scratch().join(".");
        let site = scratch.join("site");
        fs::create_dir_all(&site).unwrap();
        RealRegistry::certify(&site, &["127.0.0.1"]).unwrap();
        let good = layout_of(&scratch.join("good"), &json!({"Cmd": ["/bin/sleep", "86321"]}), |_| ());
        push(&site, &good, Some(&layer_that_leads_out(&scratch)));
        let registry = RealRegistry::start(&site, PORT).unwrap();
        let name = format!("127.0.0.1:{PORT}");
        let authority = site.join("ca.pem");
        let config = format!(
            "{HEADER}kedge:\n  images:\n    certificateAuthorities: {{\"{name}\": {}}}\n",
            authority.display()
        );
        setup.cluster.agent(NODE).write_drop_in("20-images.conf", &config).unwrap();
        setup.await_pods();

        let kubectl = setup.cluster.kubectl();
        let auths = json!({"auths": {&name: {"auth": real_registry::docker_auth()}}});
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "site"},
            "type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": auths.to_string()}});
        let pod = |pod: &str, image: &str| {
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod}, "spec": {
                "nodeName": NODE, "hostNetwork": true, "terminationGracePeriodSeconds": 1,
                "automountServiceAccountToken": false, "imagePullSecrets": [{"name": "site"}],
                "containers": [{"name": "main", "image": image, "command": ["/bin/sleep", "86321"]}]}})
        };
        let all = [secret, pod("web", &format!("{name}/site/web:1")), pod("other", "web:1")];
        let list = json!({"apiVersion": "v1", "kind": "List", "items": all});
        kubectl.feed(&["create", "-f", "-"], &list.to_string()).unwrap();
        let waits = || {
            let pod = kubectl.json(&["get", "pod", "web"]).unwrap_or_default();
            pod["status"]["containerStatuses"][0]["state"]["waiting"].clone()
        };
        setup.shows("the refusal", || waits()["reason"] == "ErrImagePull");
        setup.shows("the pause before another try", || waits()["reason"] == "ImagePullBackOff");
        // the commands by which people look for it
        let described = || kubectl.run(&["describe", "pod", "web"]).unwrap_or_default();
        setup.shows("its Events", || {
            let text = described();
            ["Failed to pull image", "has \"..\"", "Back-off pulling image"]
                .iter()
                .all(|part| text.contains(part))
        });
        setup.shows("the other pod", || {
            kubectl
                .run(&["get", "pod", "other", "-o", "jsonpath={.status.phase}"])
                .is_ok_and(|phase| phase == "Running")
        });
        assert!(!Path::new("/planted").exists(), "nothing was written outside");
        // the tries are 10 and 20 s apart, so 30 s contain two or three, whenever counting begins
        let tries = described().lines().filter(|line| line.contains("Failed to pull image")).count();
        assert!(tries <= 3, "{}", described());

        // the registry has a good image of that name: the next try takes it
        push(&site, &good, None);
        let runs = || {
            let ready = ["get", "pod", "web", "-o", "jsonpath={.status.containerStatuses[0].ready}"];
            kubectl.run(&ready).is_ok_and(|ready| ready == "true")
        };
        assert!(poll(LIMIT * 3, || runs().then_some(())).is_some(), "{}", described());
        drop(registry);
    });
}
