#!/usr/bin/env python3
"""Asks a Kubernetes API server what `rights.json` and `requests.json` ask, and writes down its answers.

    record.py rights|requests KUBECONFIG OUT      each on a server that is new: `up` starts one

OUT gets `rights.txt` (what each identity may do, by SubjectAccessReview), or `answers.jsonl` (the answer to
each request) and `defaults.jsonl` (default roles and bindings). `run record` puts them into this folder. A test
of hub/core compares the hub with `rights.txt`; it needs no Kubernetes. The other two are for a person: send the
same requests to a hub, by its admin.kubeconfig, and compare the files.

Nothing but Python's standard library is needed. Fields that differ at each run are left out: UIDs, versions,
times, managedFields, the identities' UIDs.
"""

import base64
import http.client
import json
import re
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

HERE = Path(__file__).resolve().parent
PLURALS = {
    "Namespace": ("/api/v1", "namespaces"),
    "ServiceAccount": ("/api/v1", "serviceaccounts"),
    "Node": ("/api/v1", "nodes"),
    "ConfigMap": ("/api/v1", "configmaps"),
    "Secret": ("/api/v1", "secrets"),
    "Pod": ("/api/v1", "pods"),
    "CertificateSigningRequest": ("/apis/certificates.k8s.io/v1", "certificatesigningrequests"),
}
RBAC = "/apis/rbac.authorization.k8s.io/v1"


class Server:
    """One connection of the administrator of a kubeconfig that has its parts inside."""

    def __init__(self, kubeconfig):
        self.kubeconfig = kubeconfig
        text = Path(kubeconfig).read_text()
        between = lambda key: re.search(key + r': *"?([^",}\s]+)', text)[1]
        self.url = urlsplit(between("server"))
        ca = base64.b64decode(between("certificate-authority-data")).decode()
        self.context = ssl.create_default_context(cadata=ca)
        with tempfile.NamedTemporaryFile() as both:
            both.write(base64.b64decode(between("client-certificate-data")) + base64.b64decode(between("client-key-data")))
            both.flush()
            self.context.load_cert_chain(both.name)
        self.connection = None

    def another(self):
        return Server(self.kubeconfig)

    def send(self, method, path, body=None, headers=()):
        """Returns the status, the headers and the body (JSON, or text)."""
        if self.connection is None:
            self.connection = http.client.HTTPSConnection(self.url.hostname, self.url.port, context=self.context, timeout=60)
        headers = list(headers)
        data = None if body is None else json.dumps(body).encode()
        self.connection.putrequest(method, path)
        names = [name.lower() for name, _ in headers]
        if data is not None:
            if "content-type" not in names:
                headers.append(("Content-Type", "application/json"))
            headers.append(("Content-Length", str(len(data))))
        for name, value in headers:
            self.connection.putheader(name, value)
        self.connection.endheaders(data)
        reply = self.connection.getresponse()
        text = reply.read().decode()
        try:
            answer = json.loads(text)
        except ValueError:
            answer = text
        return reply.status, reply.getheaders(), answer


def impersonation(user, groups):
    return [("Impersonate-User", user)] + [("Impersonate-Group", group) for group in groups]


def create(server, entry):
    """Creates an object of `rights.json`."""
    value = entry["object"]
    base, plural = PLURALS.get(value["kind"], (RBAC, value["kind"].lower() + "s"))
    namespace = value["metadata"].get("namespace")
    path = f"{base}/namespaces/{namespace}/{plural}" if namespace else f"{base}/{plural}"
    headers = impersonation(entry["as"]["user"], entry["as"]["groups"]) if "as" in entry else []
    if value["kind"] == "CertificateSigningRequest":
        with tempfile.TemporaryDirectory() as folder:
            subject = "/O=system:nodes/CN=" + entry["as"]["user"]
            openssl = "openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout".split()
            made = subprocess.run(openssl + [folder + "/key", "-subj", subject], check=True, capture_output=True)
        value["spec"]["request"] = base64.b64encode(made.stdout).decode()
    status, _, answer = server.send("POST", path, value, headers)
    if status not in (201, 409):
        sys.exit(f"record: {path} {value['metadata']['name']}: {status} {answer}")


def asked(what):
    """`GROUP/RESOURCE:SUBRESOURCE@NAMESPACE#NAME` as resourceAttributes."""
    group, rest = what.split("/", 1)
    rest, _, name = rest.partition("#")
    whole, namespace = rest.split("@")
    resource, _, subresource = whole.partition(":")
    return {"group": group, "resource": resource, "subresource": subresource, "namespace": namespace, "name": name}


def review(server, identity, attributes):
    spec = {"user": identity["user"], "groups": identity["groups"], **attributes}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    status, _, answer = server.send("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
    if status != 201:
        sys.exit(f"record: a review of {spec}: {status} {answer}")
    return answer["status"]["allowed"]


def rights(server, cells, threads=12):
    """What each identity may do: a line for each set of verbs, with the resources for which it holds."""
    names = list(cells["identities"])
    results, lock = {}, threading.Lock()

    def work(todo):
        own = server.another()
        while True:
            with lock:
                if not todo:
                    return
                name = todo.pop()
            identity = cells["identities"][name]
            sets = {}
            for what in cells["resources"]:
                verbs = cells["verbs"] + (cells["rareVerbs"] if what in cells["rareResources"] else [])
                may = [verb for verb in verbs if review(own, identity, {"resourceAttributes": {**asked(what), "verb": verb}})]
                if may:
                    sets.setdefault(" ".join(may), []).append(what)
            for path in cells["paths"]:
                may = [verb for verb in cells["pathVerbs"] if review(own, identity, {"nonResourceAttributes": {"path": path, "verb": verb}})]
                if may:
                    sets.setdefault("path " + " ".join(may), []).append(path)
            results[name] = sets

    todo = list(reversed(names))
    workers = [threading.Thread(target=work, args=(todo,)) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    lines = []
    for name in names:
        lines.append(name)
        for may, where in results[name].items():
            every = cells["paths"] if may.startswith("path ") else cells["resources"]
            lines.append(f"  {may}: {'all' if where == every else ' '.join(where)}")
    return "\n".join(lines) + "\n"


def stable(value):
    """The value without what differs at each run."""
    if isinstance(value, list):
        return [stable(item) for item in value]
    if not isinstance(value, dict):
        return value
    gone = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "authentication.kubernetes.io/credential-id")
    return {key: stable(item) for key, item in sorted(value.items()) if key not in gone}


def answer_of(server, case):
    headers = impersonation(case["as"], case.get("groups", [])) if "as" in case else []
    if "type" in case:
        headers.append(("Content-Type", case["type"]))
    status, head, answer = server.send(case["method"], case["path"], case.get("body"), headers)
    warnings = [value for name, value in head if name.lower() == "warning"]
    return {"name": case["name"], "code": status, **({"warnings": warnings} if warnings else {}), "body": stable(answer)}


def defaults(server):
    """Default roles and bindings: a line for each."""
    for kind in ("clusterroles", "clusterrolebindings", "roles", "rolebindings"):
        _, _, listed = server.send("GET", f"{RBAC}/{kind}")
        for item in listed["items"]:
            if item["metadata"].get("labels", {}).get("kubernetes.io/bootstrapping") == "rbac-defaults":
                yield json.dumps({"kind": listed["kind"][: -len("List")], **stable(item)})


def main():
    what, kubeconfig, out = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    server = Server(kubeconfig)
    _, _, version = server.send("GET", "/version")
    print(f"record: {version['gitVersion']}", flush=True)
    if what == "requests":
        lines = sorted(defaults(server))
        (out / "defaults.jsonl").write_text("\n".join(lines) + "\n")
        cases = json.loads((HERE / "requests.json").read_text())
        answers = [json.dumps(answer_of(server, case)) for case in cases]
        (out / "answers.jsonl").write_text("\n".join(answers) + "\n")
        print(f"record: {len(lines)} default roles and bindings, {len(answers)} answers", flush=True)
        return
    cells = json.loads((HERE / "rights.json").read_text())
    for entry in cells["objects"]:
        create(server, entry)
    # authorizers see objects a moment after they are written
    time.sleep(5)
    begin = time.monotonic()
    (out / "rights.txt").write_text(rights(server, cells))
    pairs = [("resources", "verbs"), ("rareResources", "rareVerbs"), ("paths", "pathVerbs")]
    count = len(cells["identities"]) * sum(len(cells[places]) * len(cells[verbs]) for places, verbs in pairs)
    print(f"record: {count} cells in {time.monotonic() - begin:.0f} s", flush=True)


main()
