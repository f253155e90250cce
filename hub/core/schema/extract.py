#!/usr/bin/env python3
"""Writes types.txt: field names, protobuf numbers, types and merge rules of the Kubernetes objects the hub knows.

The facts come from two crates of generated types, read as source text, and from Kubernetes' own declarations:
`k8s-openapi` (exact JSON names, descriptions), `k8s-pb` (`+patchMergeKey`, `+listType` markers), and the Go modules k8s.io/api and
k8s.io/apimachinery (by struct tags field numbers, embedded structs, and which fields leave out a zero; by markers which fields
are required and which texts are one of a few, as upstream's OpenAPI has it). A number is compared with k8s-pb, which has it from another source, by a test of `protobuf_numbers.rs`.
The version is that of the Kubernetes whose API the hub says it serves (`KUBERNETES` in hub/src/server/health.rs).
Run by hand when Kubernetes' API moves on; GO_SRC_DIR holds k8s.io/api and k8s.io/apimachinery:
    hub/core/schema/extract.py REGISTRY_SRC_DIR GO_SRC_DIR > hub/core/schema/types.txt
"""
import glob, os, re, sys

ROOTS = """core/v1/Namespace core/v1/Node core/v1/ConfigMap core/v1/Event core/v1/Pod core/v1/Secret core/v1/ServiceAccount
core/v1/Service core/v1/Binding events/v1/Event apps/v1/DaemonSet apps/v1/ControllerRevision coordination/v1/Lease policy/v1/Eviction
certificates/v1/CertificateSigningRequest authorization/v1/SelfSubjectAccessReview authorization/v1/SelfSubjectRulesReview
authentication/v1/SelfSubjectReview authentication/v1/TokenRequest authentication/v1/TokenReview authorization/v1/SubjectAccessReview
authorization/v1/LocalSubjectAccessReview meta/v1/DeleteOptions meta/v1/Status
rbac/v1/Role rbac/v1/RoleBinding rbac/v1/ClusterRole rbac/v1/ClusterRoleBinding
scheduling/v1/PriorityClass policy/v1/PodDisruptionBudget node/v1/RuntimeClass""".split()
# Fields that are ours: the form of the first proposal; upstream reserved its number for exactly this.
OURS = {"core/v1/NodeConfigSource": [
    ("configMapRef 1 core/v1/ObjectReference", "ConfigMapRef is a reference to a ConfigMap, pinned by its UID.")]}
# Types that are one value on the wire of JSON.
SCALARS = {"Time": "time", "MicroTime": "microtime", "Quantity": "quantity", "IntOrString": "intorstring",
           "FieldsV1": "raw", "RawExtension": "raw"}


def newest(pattern):
    found = sorted(glob.glob(pattern))
    if not found:
        sys.exit(f"nothing matches {pattern}")
    return found[-1]


def is_required(options, markers):
    """whether upstream's generator of OpenAPI calls a field required"""
    if "required" in markers:
        return True
    return "optional" not in markers and "omitempty" not in options


def go_structs(root, package):
    """{type: {JSON name: (number, omitzero, by value, required, values)}} of one types.go; `2.19` is field 19 of the embedded struct that is field 2"""
    part = "apimachinery/pkg/apis/meta/v1" if package == "meta/v1" else f"api/{package}"
    structs, embedded, fields, markers, enums = {}, [], None, set(), {}
    for line in open(f"{root}/k8s.io/{part}/types.go"):
        if found := re.match(r"\s*// ?\+(\w+)$", line):
            markers.add(found.group(1))
            continue
        if re.match(r"\s*//", line):
            continue
        if found := re.match(r"type (\w+) string$", line):
            if "enum" in markers:
                enums[found.group(1)] = []
        elif found := re.match(r'\s*(?:const )?\w+\s+(\w+)\s+= "([^"]*)"', line):
            if found.group(1) in enums:
                enums[found.group(1)].append(found.group(2))
        if found := re.match(r"type (\w+) struct \{", line):
            fields = structs.setdefault(found.group(1), {})
        elif line.startswith("}"):
            fields = None
        elif fields is not None and (found := re.match(r'\t([\w.]+)(?:\s+(\S+))?\s+`.*json:"([^"]*)".*proto(?:buf)?:"\w+,(\d+),', line)):
            name, kind, json, number = found.groups()
            if not json.partition(",")[0]:
                embedded.append((fields, name, number))
                continue
            kind = kind or name
            # a pointer is absent or a value; a list or map is absent when empty, which `conform` sees to
            value = not kind.startswith(("*", "map[", "[]")) or kind == "[]byte"
            json, _, options = json.partition(",")
            fields[json] = (number, value and "omitempty" in options, value and "omitzero" not in options, is_required(options, markers),
                            kind.lstrip("*"))
        markers = set()
    for of in structs.values():
        for json, (*rest, kind) in of.items():
            of[json] = (*rest, sorted(enums.get(kind, [])))
    for fields, name, number in embedded:
        fields.update({json: (f"{number}.{inner}", *rest) for json, (inner, *rest) in structs[name].items()})
    return structs


def markers_of(root, package):
    """{lowercase type: {lowercase field: [marker]}} of one k8s-pb file, whose names are prost's"""
    part = "apimachinery/pkg/apis/meta/v1" if package == "meta/v1" else f"api/{package}"
    messages, name, markers = {}, None, []
    for line in open(f"{root}/src/{part}/mod.rs"):
        line = line.strip()
        if found := re.match(r"pub struct (\w+) \{", line):
            name = found.group(1).lower()
            # markers above a type are the type's own
            messages[name] = {"": markers}
            markers = []
        elif line.startswith("/// +"):
            markers.append(line[5:])
        elif name and (found := re.match(r"pub (?:r#)?(\w+):", line)):
            messages[name][found.group(1).replace("_", "").lower()] = markers
            markers = []
        elif line.startswith("}"):
            name, markers = None, []
    return messages


def plain(text):
    """a description without the escapes of Markdown"""
    return re.sub(r"\\([<>\[\]*_])", r"\1", text).strip()


def openapi_type(root, package, name):
    """description, [(rust field, JSON name, rust type, description)]"""
    part = "apimachinery/pkg/apis/meta/v1" if package == "meta/v1" else f"api/{package}"
    file = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
    path = f"{root}/{part}/{file}.rs"
    if not os.path.exists(path):
        wanted = name.lower()
        path = next(p for p in glob.glob(f"{root}/{part}/*.rs")
                    if os.path.basename(p)[:-3].replace("_", "") == wanted)
    text = open(path).read()
    body = re.search(r"((?:///.*\n)*)(?:#\[.*\]\n)*pub struct %s \{\n(.*?)\n\}" % name, text, re.S)
    described = " ".join(l[3:].strip() for l in body.group(1).splitlines() if l.startswith("///"))
    names = dict(re.findall(r'"([^"]+)" => Field::Key_(\w+),', text))
    names = {rust: json for json, rust in names.items()}
    fields, docs = [], []
    for line in body.group(2).splitlines():
        line = line.strip()
        if line.startswith("///"):
            docs.append(line[3:].strip())
        elif found := re.match(r"pub (?:r#)?(\w+): (.*),$", line):
            rust, kind = found.groups()
            kind = re.sub(r"^Option<(.*)>$", r"\1", kind)
            fields.append((rust, names.get(rust, rust), kind, plain(" ".join(docs))))
            docs = []
    return plain(described), fields


def shape(rust, needed):
    rust = rust.replace("std::boxed::Box<", "").rstrip(">") if rust.startswith("std::boxed::Box<") else rust
    if found := re.match(r"std::vec::Vec<(.*)>$", rust):
        return "[]" + shape(found.group(1), needed)
    if found := re.match(r"std::collections::BTreeMap<std::string::String, (.*)>$", rust):
        return "{}" + shape(found.group(1), needed)
    plain = {"std::string::String": "string", "bool": "bool", "i32": "int32", "i64": "int64", "f64": "double",
             "crate::ByteString": "bytes", "crate::serde_json::Value": "raw"}
    if rust in plain:
        return plain[rust]
    last = rust.split("::")[-1]
    if last in SCALARS:
        return SCALARS[last]
    package = re.search(r"::(\w+)::(v\d\w*)::", rust)
    needed.append(f"{package.group(1)}/{package.group(2)}/{last}")
    return needed[-1]


def merge_rule(markers):
    """how lists merge: `strategic/server-side`, empty where atomic is the answer of both"""
    marker = lambda key: [m.split("=", 1)[1] for m in markers if m.startswith(key + "=")]
    rules = []
    strategy = marker("patchStrategy")
    key = marker("patchMergeKey")
    if strategy and "merge" in strategy[0]:
        rules.append("merge=" + (key[0] if key else "set"))
    if strategy and "retainKeys" in strategy[0]:
        rules.append("retainkeys")
    if "map" in marker("listType"):
        rules.append("keys=" + "+".join(marker("listMapKey")))
    elif "set" in marker("listType"):
        rules.append("keys=set")
    if "atomic" in marker("structType") + marker("mapType"):
        # server-side apply owns it as one value
        rules.append("atomic")
    return " ".join(rules)


def field_words(json, number, omitzero, by_value, of, required, rule):
    words = [json, number, of]
    if required and not of.startswith("{}"):
        words.append("required")
    if omitzero and not required and of in ("string", "bool", "int32", "int64", "double", "bytes"):
        words.append("omitzero")
    if by_value and "/" in of and not of.startswith(("[]", "{}")):
        # Go writes a struct that is no pointer even if nothing in it is set
        words.append("always")
    return " ".join(words + ([rule] if rule else []))


def main(registry, go):
    protobuf = newest(f"{registry}/k8s-pb-*")
    openapi = newest(newest(f"{registry}/k8s-openapi-*") + "/src/v1_36")
    print(f"# From k8s-openapi {os.path.basename(openapi)}, {os.path.basename(protobuf)} and k8s.io/api; written by extract.py.")
    print("# type [atomic], then: field number shape [required] [omitzero] [always] [merge=KEY|set] [retainkeys] [keys=A+B|set] [atomic] [enum=A,B] | description")
    print("# A number 2.19 is field 19 of an embedded struct, whose fields JSON has in its parent and protobuf in field 2.")
    known, done, todo = {}, set(), list(ROOTS)
    while todo:
        name = todo.pop(0)
        if name in done:
            continue
        done.add(name)
        package, kind = name.rsplit("/", 1)
        if package not in known:
            known[package] = (markers_of(protobuf, package), go_structs(go, package))
        markers, numbers = (of.get(name, {}) for of, name in zip(known[package], (kind.lower(), kind)))
        described, fields = openapi_type(openapi, package, kind)
        atomic = " atomic" if merge_rule(markers.get("", [])) == "atomic" else ""
        print(f"\n{name}{atomic} | {described}")
        for words, text in OURS.get(name, []):
            print(f"  {words} | {text}")
        for rust, json, rust_type, text in fields:
            if json in ("apiVersion", "kind") and json not in numbers:
                continue
            number, omitzero, by_value, required, values = numbers.get(json, ("0", False, False, False, []))
            rule = merge_rule(markers.get(rust.replace("_", ""), []))
            words = field_words(json, number, omitzero, by_value, shape(rust_type, todo), required, rule)
            if values:
                words += " enum=" + ",".join(values)
            print(f"  {words} | {text}")


main(*sys.argv[1:])
