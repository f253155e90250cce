"""Uses Python's `kubernetes` client against a running hub (KUBECONFIG names it), and checks the outcome of every step.

The client is generated from upstream's OpenAPI document and checks nothing itself, so what it reads back must have upstream's
types; its dynamic client and its watch take other code paths.
"""

from kubernetes import client, config, dynamic, utils, watch
from kubernetes.client.rest import ApiException

LABELS = {"tour": "python"}
SELECTOR = "tour=python"


def config_map(name, **data):
    return client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name, labels=LABELS), data=data)


def refused(code, reason, call, *arguments, **options):
    """The call fails with this code, and the body is a Status with this reason."""
    try:
        call(*arguments, **options)
    except ApiException as error:
        assert error.status == code and f'"reason":"{reason}"' in error.body, error
        return error
    raise AssertionError(f"{call} was not refused")


def objects(core):
    made = core.create_namespaced_config_map("default", config_map("one", k="1"), field_manager="tour")
    assert made.metadata.uid and made.metadata.creation_timestamp.tzinfo, made
    assert [entry.manager for entry in made.metadata.managed_fields] == ["tour"], made
    refused(409, "AlreadyExists", core.create_namespaced_config_map, "default", config_map("one", k="1"))
    read = core.read_namespaced_config_map("one", "default")
    read.data["k"] = "2"
    core.replace_namespaced_config_map("one", "default", read)
    refused(409, "Conflict", core.replace_namespaced_config_map, "one", "default", read)
    # a dictionary is a strategic merge patch, a list a JSON patch
    patched = core.patch_namespaced_config_map("one", "default", {"data": {"k": None, "m": "3"}})
    assert patched.data == {"m": "3"}, patched
    patched = core.patch_namespaced_config_map("one", "default", [{"op": "add", "path": "/data/j", "value": "4"}])
    assert patched.data == {"m": "3", "j": "4"}, patched
    core.patch_namespaced_config_map("one", "default", {"data": {"x": "5"}}, dry_run="All")
    assert "x" not in core.read_namespaced_config_map("one", "default").data
    refused(404, "NotFound", core.read_namespaced_config_map, "nosuch", "default")
    refused(422, "Invalid", core.create_namespaced_config_map, "default", config_map("Not_A_Name"))
    secret = core.create_namespaced_config_map("default", client.V1ConfigMap(
        metadata=client.V1ObjectMeta(generate_name="gen-", labels=LABELS), binary_data={"b": "AP8="}))
    assert secret.metadata.name.startswith("gen-") and secret.binary_data == {"b": "AP8="}, secret


def lists_and_watches(core):
    for number in range(5):
        core.create_namespaced_config_map("default", config_map(f"p{number}", k="x"))
    page = core.list_namespaced_config_map("default", label_selector=SELECTOR, limit=4)
    names = [item.metadata.name for item in page.items]
    rest = core.list_namespaced_config_map("default", label_selector=SELECTOR, limit=4, _continue=page.metadata._continue)
    names += [item.metadata.name for item in rest.items]
    assert len(names) == 7 and names == sorted(set(names)), names
    one = core.list_config_map_for_all_namespaces(field_selector="metadata.name=p1")
    assert [item.metadata.name for item in one.items] == ["p1"], one
    watching, seen = watch.Watch(), []
    version = rest.metadata.resource_version
    core.delete_collection_namespaced_config_map("default", label_selector="tour=python,!kept")
    for event in watching.stream(core.list_namespaced_config_map, "default", label_selector=SELECTOR,
                                 resource_version=version, timeout_seconds=60):
        seen.append((event["type"], event["object"].metadata.name))
        if len(seen) == 7:
            watching.stop()
    assert seen == [("DELETED", name) for name in names], seen


def dynamically(api):
    maps = dynamic.DynamicClient(api).resources.get(api_version="v1", kind="ConfigMap")
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "d", "labels": LABELS}, "data": {"k": "1"}}
    made = maps.server_side_apply(namespace="default", name="d", body=body, field_manager="one")
    assert made.metadata.managedFields[0].operation == "Apply", made
    body["data"]["k"] = "2"
    try:
        maps.server_side_apply(namespace="default", name="d", body=body, field_manager="two")
        raise AssertionError("no conflict was reported")
    except dynamic.exceptions.ConflictError as error:
        assert b'conflict with \\"one\\": .data.k' in error.body if isinstance(error.body, bytes) else ".data.k" in error.body, error
    forced = maps.server_side_apply(namespace="default", name="d", body=body, field_manager="two", force_conflicts=True)
    assert forced.data.k == "2", forced
    maps.delete(name="d", namespace="default")


def nodes_and_leases(core, api):
    core.create_node(client.V1Node(metadata=client.V1ObjectMeta(name="python-1")))
    core.patch_node("python-1", {"spec": {"unschedulable": True}})
    status = {"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "r", "message": "m"}],
                         "capacity": {"cpu": "2"}}}
    node = core.patch_node_status("python-1", status)
    assert node.spec.unschedulable and node.status.capacity == {"cpu": "2"}, node
    leases = client.CoordinationV1Api(api)
    lease = client.V1Lease(metadata=client.V1ObjectMeta(name="python"), spec=client.V1LeaseSpec(
        holder_identity="a", lease_duration_seconds=15))
    leases.create_namespaced_lease("default", lease)
    held = leases.patch_namespaced_lease("python", "default", {"spec": {"holderIdentity": "b"}})
    assert held.spec.holder_identity == "b" and held.spec.lease_duration_seconds == 15, held
    leases.delete_namespaced_lease("python", "default")
    deleted = core.delete_node("python-1", body=client.V1DeleteOptions(propagation_policy="Background"))
    # this client has no type for the answer to a deletion
    assert deleted["status"] == "Success" and deleted["details"]["name"] == "python-1", deleted


def around(core, api):
    assert client.VersionApi(api).get_code().git_version.startswith("v1.")
    assert {item.name for item in core.get_api_resources().resources} >= {"configmaps", "nodes", "nodes/status"}
    assert "coordination.k8s.io" in {group.name for group in client.ApisApi(api).get_api_versions().groups}
    review = client.V1SelfSubjectAccessReview(spec=client.V1SelfSubjectAccessReviewSpec(
        resource_attributes=client.V1ResourceAttributes(verb="delete", resource="nodes")))
    assert client.AuthorizationV1Api(api).create_self_subject_access_review(review).status.allowed
    utils.create_from_dict(api, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "python"}})
    core.delete_namespace("python")


def main():
    config.load_kube_config()
    with client.ApiClient() as api:
        core = client.CoreV1Api(api)
        around(core, api)
        objects(core)
        lists_and_watches(core)
        dynamically(api)
        nodes_and_leases(core, api)
    print("python: every step as expected")


main()
