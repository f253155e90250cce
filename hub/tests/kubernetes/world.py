"""What the tests of this folder share: a cluster that `up` started, agents beside it, and waiting.

An agent runs under the babysitter of `rig`, with state, socket and images of its own, in control groups of its
own. A test has mounts and processes of its own (`set_apart`), so nothing outlives it.
"""

import base64
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]


def set_apart():
    """Runs this program again in mounts and processes of its own, and in version 2 of control groups alone."""
    if os.environ.get("KEDGE_TEST_APART"):
        return
    if os.geteuid() != 0:
        sys.exit("needs root: agents run containers")
    script = 'umount /sys/fs/cgroup/unified 2>/dev/null; "$@"; exit $?'
    apart = "unshare --mount --propagation private --pid --fork --mount-proc --kill-child=KILL sh -c".split()
    command = apart + [script, "sh", sys.executable, *sys.argv]
    sys.exit(subprocess.run(command, env={**os.environ, "KEDGE_TEST_APART": "1"}).returncode)


def say(text):
    print(text, flush=True)


def until(what, look, seconds=60):
    """Waits for a value that is true; the test has failed without."""
    end = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > end:
            raise SystemExit(f"FAILED: no {what} within {seconds} s")
        time.sleep(0.3)


def check(what, truth, more=""):
    if not truth:
        raise SystemExit(f"FAILED: {what}: {more}")
    say(f"ok: {what}")


class Cluster:
    """The API server of a folder of `up`."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.kubeconfig = self.folder / "admin.kubeconfig"
        text = self.kubeconfig.read_text()
        self.url = text.split('server: "')[1].split('"')[0]
        fetched = Path(os.environ.get("KEDGE_KUBECTL_DIR", REPOSITORY / "target/kubectl")) / "1.36/kubectl"
        self.program = str(fetched if fetched.exists() else "kubectl")

    def run(self, *words, text=None, kubeconfig=None):
        command = [self.program, "--kubeconfig", str(kubeconfig or self.kubeconfig), *words]
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=120)

    def kubectl(self, *words, text=None, kubeconfig=None):
        done = self.run(*words, text=text, kubeconfig=kubeconfig)
        if done.returncode != 0:
            raise SystemExit(f"FAILED: kubectl {' '.join(words)}: {done.stderr}")
        return done.stdout

    def apply(self, *objects):
        items = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        return self.kubectl("apply", "-f", "-", text=json.dumps(items))

    def get(self, *words):
        done = self.run("get", *words, "-o", "json")
        return json.loads(done.stdout) if done.returncode == 0 else None

    def items(self, *words):
        found = self.get(*words)
        return found["items"] if found else []

    def condition(self, node, sort):
        found = self.get("node", node)
        for one in (found or {}).get("status", {}).get("conditions", []):
            if one["type"] == sort:
                return one
        return None

    def write_kubeconfig(self, path, user):
        """For a user with these credentials."""
        authority = base64.b64encode((self.folder / "ca.crt").read_bytes()).decode()
        Path(path).write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": self.url, "certificate-authority-data": authority}}],
            "users": [{"name": "u", "user": user}],
        }))

    def certificate_hash(self):
        public = subprocess.run(
            f"openssl x509 -in {self.folder}/ca.crt -pubkey -noout | openssl pkey -pubin -outform der",
            shell=True, check=True, capture_output=True,
        ).stdout
        return "sha256:" + hashlib.sha256(public).hexdigest()

    def publish_cluster_info(self):
        """What kubeadm makes besides, so that a machine can find the authority before it has a credential."""
        authority = base64.b64encode((self.folder / "ca.crt").read_bytes()).decode()
        cluster = {"cluster": {"certificate-authority-data": authority, "server": self.url}, "name": ""}
        kubeconfig = {"apiVersion": "v1", "kind": "Config", "clusters": [cluster]}
        name = "cluster-info"
        rbac = "rbac.authorization.k8s.io"
        place = {"name": name, "namespace": "kube-public"}
        self.apply(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": place, "data": {"kubeconfig": json.dumps(kubeconfig)}},
            {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": place,
             "rules": [{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [name], "verbs": ["get"]}]},
            {"apiVersion": f"{rbac}/v1", "kind": "RoleBinding", "metadata": place,
             "roleRef": {"apiGroup": rbac, "kind": "Role", "name": name},
             "subjects": [{"kind": "User", "apiGroup": rbac, "name": "system:anonymous"}]},
        )

    def token(self, number, *groups, **more):
        """A bootstrap token as `kubeadm token create --groups`, and with other keys; returns it."""
        identity, secret = f"abcd{number:02}", f"0123456789abcd{number:02}"
        self.apply({
            "apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
            "metadata": {"name": f"bootstrap-token-{identity}", "namespace": "kube-system"},
            "stringData": {
                "token-id": identity, "token-secret": secret,
                "usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true",
                **({"auth-extra-groups": ",".join(groups)} if groups else {}), **more,
            },
        })
        return f"{identity}.{secret}"


def image(folder, name):
    """An OCI layout of an image with busybox as its shell; the folder is for --preloaded-images."""
    layout = Path(folder) / "shell"
    blobs = layout / "blobs/sha256"
    blobs.mkdir(parents=True)

    def blob(content):
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"digest": f"sha256:{digest}", "size": len(content)}

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for directory in ("bin", "tmp", "etc"):
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        archive.add(shutil.which("busybox"), "bin/busybox")
        for program in ("sh", "sleep", "echo", "cat", "date"):
            entry = tarfile.TarInfo(f"bin/{program}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(entry)
    layer = packed.getvalue()
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    config = blob(json.dumps({
        "architecture": machine, "os": "linux", "config": {"Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
    }).encode())
    kind = "application/vnd.oci.image."
    manifest = blob(json.dumps({
        "schemaVersion": 2, "mediaType": kind + "manifest.v1+json",
        "config": {"mediaType": kind + "config.v1+json", **config},
        "layers": [{"mediaType": kind + "layer.v1.tar", **blob(layer)}],
    }).encode())
    entry = {"mediaType": kind + "manifest.v1+json", **manifest, "annotations": {"org.opencontainers.image.ref.name": name}}
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return name


class Agent:
    """An agent with a state directory of its own, supervised as by systemd."""

    def __init__(self, programs, folder, name, *flags, program=None):
        self.babysitter, self.name = Path(programs) / "kedge-babysitter", name
        self.program = str(program or Path(programs) / "kedge")
        self.folder = Path(folder) / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.root, self.run = self.folder / "state", self.folder / "run"
        self.bootstrap, self.kubeconfig = self.folder / "bootstrap-kubeconfig", self.folder / "kubeconfig"
        self.flags = [
            "--root-dir", str(self.root), "--run-dir", str(self.run), "--bootstrap-kubeconfig", str(self.bootstrap),
            "--kubeconfig", str(self.kubeconfig), "--config-dir", "", *flags,
        ]
        self.log = open(self.folder / "log", "ab")
        self.process = None

    def start(self):
        command = [str(self.babysitter), "--watchdog", "120", "--run-dir", str(self.run), "--state-dir", str(self.root), "--",
                   self.program, "agent", *self.flags]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        return self

    def stop(self):
        if self.process:
            self.process.terminate()
            self.process.wait(60)

    def command(self, *words, text=None):
        """One of the program's commands."""
        return subprocess.run([self.program, *words], input=text, capture_output=True, text=True, timeout=300)

    def end_of_log(self, lines=30):
        return "\n".join((self.folder / "log").read_text(errors="replace").splitlines()[-lines:])
