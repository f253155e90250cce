#!/usr/bin/env python3
"""Writes types.txt: field names, protobuf numbers, types and merge rules of the Kubernetes objects the hub knows.

The facts come from two crates of generated types, read as source text: `k8s-pb` (field numbers, `+patchMergeKey`,
`+listType` markers) and `k8s-openapi` (exact JSON names, required fields, first sentence of each description).
Run by hand when Kubernetes' API moves on:  hub/core/schema/extract.py REGISTRY_SRC_DIR > hub/core/schema/types.txt
"""
import glob, os, re, sys

ROOTS = """core/v1/Namespace core/v1/Node core/v1/ConfigMap core/v1/Event core/v1/Pod core/v1/Secret core/v1/ServiceAccount
core/v1/Binding apps/v1/DaemonSet apps/v1/ControllerRevision coordination/v1/Lease policy/v1/Eviction
certificates/v1/CertificateSigningRequest authorization/v1/SelfSubjectAccessReview authorization/v1/SelfSubjectRulesReview
authentication/v1/SelfSubjectReview meta/v1/DeleteOptions meta/v1/Status""".split()
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


def protobuf_messages(root, package):
    """{type: {lowercase field: (number, [marker])}} of one k8s-pb file"""
    part = "apimachinery/pkg/apis/meta/v1" if package == "meta/v1" else f"api/{package}"
    messages, name, markers, number = {}, None, [], None
    for line in open(f"{root}/src/{part}/mod.rs"):
        line = line.strip()
        if found := re.match(r"pub struct (\w+) \{", line):
            name = found.group(1)
            # markers above a type are the type's own
            messages[name] = {"": (0, markers)}
            markers, number = [], None
        elif line.startswith("/// +"):
            markers.append(line[5:])
        elif line.startswith("#[prost(") and (found := re.search(r'tag = "(\d+)"', line)):
            number = int(found.group(1))
        elif name and number and (found := re.match(r"pub (?:r#)?(\w+):", line)):
            messages[name][found.group(1).replace("_", "").lower()] = (number, markers)
            markers, number = [], None
        elif line.startswith("}"):
            name, markers, number = None, [], None
    return messages


def first_sentence(text):
    text = re.sub(r"\\([<>\[\]*_])", r"\1", text).strip()
    return re.split(r"(?<=[.])\s", text)[0][:200]


def openapi_type(root, package, name):
    """description, [(rust field, JSON name, rust type, required, description)]"""
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
            required = not kind.startswith("Option<") and "ObjectMeta" not in kind
            kind = re.sub(r"^Option<(.*)>$", r"\1", kind)
            fields.append((rust, names.get(rust, rust), kind, required, first_sentence(" ".join(docs))))
            docs = []
    return first_sentence(described), fields


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


def main(registry):
    protobuf = newest(f"{registry}/k8s-pb-*")
    openapi = newest(newest(f"{registry}/k8s-openapi-*") + "/src/v1_3*")
    print(f"# From {os.path.basename(protobuf)} and k8s-openapi {os.path.basename(openapi)}; written by extract.py.")
    print("# type [atomic], then: field number shape [required] [merge=KEY|set] [retainkeys] [keys=A+B|set] [atomic] | description")
    messages, done, todo = {}, set(), list(ROOTS)
    while todo:
        name = todo.pop(0)
        if name in done:
            continue
        done.add(name)
        package, kind = name.rsplit("/", 1)
        if package not in messages:
            messages[package] = protobuf_messages(protobuf, package)
        described, fields = openapi_type(openapi, package, kind)
        atomic = " atomic" if merge_rule(messages[package].get(kind, {}).get("", (0, []))[1]) == "atomic" else ""
        print(f"\n{name}{atomic} | {described}")
        for words, text in OURS.get(name, []):
            print(f"  {words} | {text}")
        for rust, json, rust_type, required, text in fields:
            known = messages[package].get(kind, {}).get(rust.replace("_", ""))
            number, markers = known or (0, [])
            if json in ("apiVersion", "kind") and not known:
                continue
            words = [json, str(number), shape(rust_type, todo)]
            if required and not words[2].startswith(("{}",)):
                words.append("required")
            if rule := merge_rule(markers):
                words.append(rule)
            print(f"  {' '.join(words)} | {text}")


main(sys.argv[1])
