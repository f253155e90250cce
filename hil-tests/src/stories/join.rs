//! A device that joins by a token, exchanges its certificate, and comes back after its certificate has ended.
//!
//! A certificate that has ended is made with the hub's authority: with the number and the key of the one
//! that the device had, as time leaves it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::error::HilError;
use crate::machine::{HUB_IN_GUEST, Start};
use crate::stage::{Stage, condition, patience};

/// The name by which it joins: the hub has known `edge-1` for longer.
const JOINED: &str = "edge-joined";
/// The device's own credential, with its key, behind a line with its digest.
const CREDENTIAL: &str = "/var/lib/kedge/pki/current";
/// Bytes of a file that one command writes: a terminal's line has 4095.
const CHUNK: usize = 2048;

/// As from the factory, with nothing but a token on its EFI partition.
pub(super) fn lives(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let bootstrap = stage.hub.node_bootstrap(JOINED)?.replace(stage.hub.address(), HUB_IN_GUEST);
    stage.machine.hand_nothing();
    stage.guest(
        "systemctl stop kedge; cd /etc/kedge && rm -r $(ls -A) && mkdir -p /efi/kedge && \
         rm -rf /var/lib/kedge/* /efi/kedge/kubeconfig /efi/kedge/node-name",
    )?;
    put(stage, "/efi/kedge/bootstrap-kubeconfig", &bootstrap)?;
    stage.comes_back_as(&Start::default())?;
    is_ready(stage)?;
    stage.wait("the token to go from the EFI partition and the device", patience(), |stage| {
        let found = stage.guest("ls /efi/kedge/boot* /etc/kedge/boot* 2>/dev/null || true")?;
        Ok(if found.is_empty() { Ok(()) } else { Err(found) })
    })?;
    let mode = stage.guest(&format!("stat -c %a {CREDENTIAL}"))?;
    stage.expect("the mode of its credential", mode.as_str(), "600")?;
    stage.say("it joined by the token, has a key that it made itself, and the token is gone");

    let first = credential(stage)?;
    let process = stage.running()?;
    stage.hub.command(&["node", "rotate", JOINED])?;
    let newest = stage.wait("another certificate", patience(), |stage| {
        let now = credential(stage)?;
        Ok(if now == first { Err("the first one".to_owned()) } else { Ok(now) })
    })?;
    let same = stage.running()?;
    stage.expect("the agent's process", same, process)?;
    stage.say("it exchanged its certificate and its key, in the same process");

    put_back(stage, &first)?;
    stage.power_cut()?;
    stage.wait("the question to a person", patience(), |stage| {
        let found = waiting(stage)?;
        Ok(if found == "ReturnedWithOlderKey" { Ok(()) } else { Err(found) })
    })?;
    let state = stage.wait("the device to know it", patience(), |stage| {
        let status = stage.guest("kedge status --output json")?;
        let status: Value = serde_json::from_str(&status).unwrap_or_default();
        let message = status["identity"]["message"].as_str().unwrap_or_default().to_owned();
        Ok(if message.contains("waits to be approved") { Ok(message) } else { Err(message) })
    })?;
    stage.say(&format!("its disk is an older copy, and its certificate has ended: {state}"));

    put_back(stage, &newest)?;
    stage.guest("systemctl start kedge")?;
    is_ready(stage)?;
    let approved = reasons(stage, "Approved")?;
    stage.expect(
        "its return is one that needs no person",
        approved.contains(&"ReturnedAfter".into()),
        true,
    )?;
    stage.say("its disk is the newest one again, and its certificate has ended: it returns by itself");
    Ok(())
}

/// Stops the agent, and leaves the device this credential after its end.
fn put_back(stage: &mut Stage<'_>, credential: &str) -> Result<(), HilError> {
    let ended = stage.hub.expired(JOINED, credential)?;
    stage.guest("systemctl stop kedge; rm -f /var/lib/kedge/pki/node-*.pem")?;
    put(stage, "/run/ended", &ended)?;
    let digest = "printf '# sha256 %s\\n' \"$(sha256sum </run/ended | cut -d ' ' -f 1)\"";
    stage.guest(&format!("({digest}; cat /run/ended) >{CREDENTIAL}; sync")).map(|_| ())
}

/// The device's certificate and key; empty before the first one.
fn credential(stage: &mut Stage<'_>) -> Result<String, HilError> {
    Ok(stage.guest(&format!("cat {CREDENTIAL} 2>/dev/null || true"))?.replace('\r', ""))
}

/// Writes a file of the guest.
fn put(stage: &mut Stage<'_>, path: &str, content: &str) -> Result<(), HilError> {
    let encoded = STANDARD.encode(content);
    stage.guest("rm -f /run/encoded")?;
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (chunk, more) = rest.split_at(rest.len().min(CHUNK));
        stage.guest(&format!("echo {chunk} >>/run/encoded"))?;
        rest = more;
    }
    stage.guest(&format!("umask 077; base64 -d /run/encoded >{path} && sync")).map(|_| ())
}

/// Waits until the Node is Ready and renews.
fn is_ready(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let renewed = [
        "get",
        "lease",
        JOINED,
        "-n",
        "kube-node-lease",
        "--ignore-not-found",
        "-o",
        "jsonpath={.spec.renewTime}",
    ];
    let before = stage.hub.kubectl().run(&renewed)?;
    stage.wait("a Ready node with a Lease", patience(), |stage| {
        let now = stage.hub.kubectl().run(&renewed)?;
        let nodes = stage.hub.kubectl().json(&["get", "nodes"])?;
        let nodes = nodes["items"].as_array().cloned().unwrap_or_default();
        let node = nodes.into_iter().find(|node| node["metadata"]["name"] == JOINED).unwrap_or_default();
        let (status, message, reason) = condition(&node, "Ready");
        Ok(if status == "True" && now != before {
            Ok(())
        } else {
            Err(format!("Ready {status}: {message} ({reason}), renewed {now}"))
        })
    })
}

/// The reasons of all requests for certificates with this condition.
fn reasons(stage: &Stage<'_>, sort: &str) -> Result<Vec<String>, HilError> {
    let requests = stage.hub.kubectl().json(&["get", "csr"])?;
    let requests = requests["items"].as_array().cloned().unwrap_or_default();
    Ok(requests
        .iter()
        .map(|request| condition(request, sort).2)
        .filter(|reason| !reason.is_empty())
        .collect())
}

/// The reason for which a request waits for a person; empty if none does.
fn waiting(stage: &Stage<'_>) -> Result<String, HilError> {
    Ok(reasons(stage, "AwaitingApproval")?.pop().unwrap_or_default())
}
