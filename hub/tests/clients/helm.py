"""helm's own library against a hub: installs, upgrades and uninstalls a chart of the kinds that public charts have, and waits each time;
by client-side and by server-side apply. KUBECONFIG names the hub, the only argument is the folder with the unpacked package."""

import asyncio
import os
import pathlib
import sys
import tempfile

sys.path.insert(0, sys.argv[1])
import helm_sdkpy as helm  # noqa: E402

TEMPLATE = """
apiVersion: v1
kind: ServiceAccount
metadata: {name: {{ .Release.Name }}}
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: {{ .Release.Name }}}
value: 1000
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: {{ .Release.Name }}}
rules:
- {apiGroups: [""], resources: [pods, nodes], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: {{ .Release.Name }}}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {{ .Release.Name }}}
subjects:
- {kind: ServiceAccount, name: {{ .Release.Name }}, namespace: {{ .Release.Namespace }}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: {{ .Release.Name }}}
rules:
- {apiGroups: [apps], resources: [daemonsets], resourceNames: [{{ .Release.Name }}], verbs: [update]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: {{ .Release.Name }}}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: {{ .Release.Name }}}
subjects:
- {kind: ServiceAccount, name: {{ .Release.Name }}, namespace: {{ .Release.Namespace }}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: {{ .Release.Name }}}
data: {settings: "port = {{ .Values.port }}"}
---
apiVersion: v1
kind: Service
metadata: {name: {{ .Release.Name }}}
spec:
  selector: {app: {{ .Release.Name }}}
  ports:
  - {name: metrics, port: {{ .Values.port }}, targetPort: metrics}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: {{ .Release.Name }}}
spec:
  selector: {matchLabels: {app: {{ .Release.Name }}}}
  template:
    metadata: {labels: {app: {{ .Release.Name }}}}
    spec:
      serviceAccountName: {{ .Release.Name }}
      priorityClassName: {{ .Release.Name }}
      containers:
      - name: c
        image: registry.example/c:1.0
        ports: [{name: metrics, containerPort: {{ .Values.port }}}]
"""


async def tour(config: helm.Configuration, chart: str, server_side: bool) -> None:
    name = "server-side" if server_side else "client-side"
    options = {"wait": True, "timeout": 120, "server_side_apply": server_side}
    for act, revision, values in ((helm.Install, 1, None), (helm.Upgrade, 2, {"port": 9101})):
        done = await act(config).run(name, chart, values=values, **options)
        assert done["info"]["status"] == "deployed", done
        listed = await helm.List(config).run(all=True)
        assert [(one["name"], one["version"]) for one in listed] == [(name, revision)], listed
    await helm.Uninstall(config).run(name, wait=True, timeout=120)
    assert not await helm.List(config).run(all=True)


async def unserved(config: helm.Configuration, chart: pathlib.Path) -> None:
    """A chart with a kind that the hub does not have is refused whole, and nothing is left."""
    claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: x}\n"
    (chart / "templates" / "claim.yaml").write_text(claim)
    try:
        await helm.Install(config).run("unserved", str(chart), wait=True, timeout=60)
    except helm.HelmError as error:
        assert "no matches for kind" in str(error), error
    else:
        raise AssertionError("a claim was installed")
    assert not await helm.List(config).run(all=True)


with tempfile.TemporaryDirectory() as folder:
    chart = pathlib.Path(folder) / "shape"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: shape\nversion: 0.1.0\n")
    (chart / "values.yaml").write_text("port: 9100\n")
    (chart / "templates" / "all.yaml").write_text(TEMPLATE)
    config = helm.Configuration(namespace="default", kubeconfig=os.environ["KUBECONFIG"])
    for server_side in (False, True):
        asyncio.run(tour(config, str(chart), server_side))
    asyncio.run(unserved(config, chart))
print("helm: installed, upgraded and uninstalled")
