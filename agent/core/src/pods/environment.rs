//! A container's program, arguments and variables, made from its spec, its image and the objects it refers
//! to.
//!
//! Always holds: error messages have upstream's text; `$(NAME)` is expanded as upstream does it (variables
//! defined before, `$$` escapes, unknown references stay as they are); values from objects are not expanded;
//! the variables give an address of the API server only if the pod can reach it. Leaves to others: the user,
//! `HOSTNAME` and `PATH` of a container that has none (the runtime).

use crate::node::facts::ApiServer;
use crate::pods::event::{ImageConfig, Mount, NodeFacts};
use crate::pods::fields;
use crate::pods::keys::{ObjectKind, ObjectName};
use crate::pods::objects::{Data, Found, Objects};
use crate::pods::spec::{Container, EnvSource, KeySelector, LocalName, Pod, VolumeMount};
use crate::pods::volumes::{has_way_up, plain_path};
use std::collections::BTreeMap;

/// Longest argument of a command, or variable with its name: Linux' `MAX_ARG_STRLEN` without the NUL; the
/// kernel executes no program with a longer one.
const LONGEST_TEXT: usize = 128 * 1024 - 1;
/// Most bytes of the variables, and of the arguments, of one container: half of Linux' limit (a quarter of a
/// stack of 8 MiB). A reference can double a text with each variable, so without a limit a spec of a few
/// lines could fill the memory.
const MOST_TEXT: usize = 1024 * 1024;

/// Why an environment cannot be made, either now or with this pod at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EnvProblem {
    /// An object it needs is being read.
    Awaited,
    /// Shown as `CreateContainerConfigError`.
    Config(String),
}

/// The pod, objects and facts that variables take their values from.
pub(crate) struct Sources<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) objects: &'a Objects,
    pub(crate) node: &'a NodeFacts,
    pub(crate) pod_ips: &'a [String],
}

/// The variables of a container, those of its image first.
pub(crate) fn variables(
    container: &Container,
    image: &ImageConfig,
    sources: &Sources<'_>,
) -> Result<Vec<(String, String)>, EnvProblem> {
    let own = own_variables(container, sources)?;
    let mut all: Vec<(String, String)> = vec![];
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    let from_image = image.env.iter().filter_map(|line| line.split_once('='));
    let from_image = from_image.map(|(name, value)| (name.to_owned(), value.to_owned()));
    for (name, value) in from_image.chain(own) {
        match places.get(&name) {
            Some(place) => all[*place].1 = value,
            None => {
                places.insert(name.clone(), all.len());
                all.push((name, value));
            }
        }
    }
    Ok(all)
}

/// The program and its arguments: `command` and `args` expanded, or the image's.
pub(crate) fn argv(
    container: &Container,
    image: &ImageConfig,
    sources: &Sources<'_>,
) -> Result<Vec<String>, EnvProblem> {
    let known: BTreeMap<String, String> = own_variables(container, sources)?.into_iter().collect();
    let mut left = MOST_TEXT;
    let mut expanded = |words: &[String]| -> Result<Vec<String>, EnvProblem> {
        let mut all = Vec::with_capacity(words.len());
        for word in words {
            let word = expand(word, &known).ok_or_else(|| too_long("a word of the command"))?;
            left = left.checked_sub(word.len().saturating_add(1)).ok_or_else(|| too_much("the command"))?;
            all.push(word);
        }
        Ok(all)
    };
    let (program, rest) = match (container.command.is_empty(), container.args.is_empty()) {
        (false, _) => (expanded(&container.command)?, expanded(&container.args)?),
        (true, false) => (image.entrypoint.clone(), expanded(&container.args)?),
        (true, true) => (image.entrypoint.clone(), image.cmd.clone()),
    };
    let argv: Vec<String> = program.into_iter().chain(rest).collect();
    if argv.first().is_none_or(String::is_empty) {
        return Err(EnvProblem::Config("no command specified".into()));
    }
    if argv.iter().any(|word| word.contains('\0')) {
        return Err(EnvProblem::Config("a word of the command has a NUL byte".into()));
    }
    Ok(argv)
}

/// The mounts of a container, with `subPathExpr` expanded. Files of the API and images are mounted read-only
/// whatever the mount says, as upstream does.
pub(crate) fn mounts(container: &Container, sources: &Sources<'_>) -> Result<Vec<Mount>, EnvProblem> {
    let volumes = &sources.pod.spec.volumes;
    let has_files =
        |name: &str| volumes.iter().any(|volume| volume.name == *name && volume.file_sources().is_some());
    let is_image = |name: &str| volumes.iter().any(|volume| volume.name == *name && volume.image.is_some());
    let mut known = None;
    let mut mounts = vec![];
    for mount in &container.volume_mounts {
        let VolumeMount { name, mount_path, sub_path_expr, .. } = mount;
        let sub_path = if sub_path_expr.is_empty() {
            mount.sub_path.clone()
        } else {
            let known = match &mut known {
                Some(known) => known,
                none => none.insert(own_variables(container, sources)?.into_iter().collect()),
            };
            expanded_path(sub_path_expr, known)?
        };
        mounts.push(Mount {
            volume: name.clone(),
            // as upstream: a relative path starts at the root
            path: if mount_path.starts_with('/') { mount_path.clone() } else { format!("/{mount_path}") },
            read_only: mount.read_only || has_files(name) || is_image(name),
            no_exec: is_image(name),
            follows_host: mount.mount_propagation == "HostToContainer",
            sub_path: plain_path(&sub_path),
        });
    }
    Ok(mounts)
}

/// Unlike elsewhere, an unknown name is an error here: the directory would otherwise get the name of another
/// pod's directory, or no name.
fn expanded_path(expression: &str, known: &BTreeMap<String, String>) -> Result<String, EnvProblem> {
    let mut unknown = None;
    let path = expand_with(expression, |name| {
        let value = known.get(name);
        if value.is_none() {
            unknown.get_or_insert_with(|| name.to_owned());
        }
        value.map(String::as_str)
    });
    if let Some(name) = unknown {
        return Err(EnvProblem::Config(format!("missing value for {:?}", kedge_api::excerpt(&name))));
    }
    let path = path.ok_or_else(|| too_long("subPathExpr"))?;
    let shown = kedge_api::excerpt(&path);
    if path.starts_with('/') {
        return Err(EnvProblem::Config(format!("error subPath `{shown}` must not be an absolute path")));
    }
    if has_way_up(&path) || path.contains('\0') {
        return Err(EnvProblem::Config(format!(
            "unable to provision SubPath `{shown}`: must not contain '..'"
        )));
    }
    Ok(path)
}

fn too_long(what: &str) -> EnvProblem {
    EnvProblem::Config(format!("{what} is longer than {LONGEST_TEXT} bytes"))
}

fn too_much(what: &str) -> EnvProblem {
    EnvProblem::Config(format!("{what} is longer than {MOST_TEXT} bytes in all"))
}

/// The variables by which clients in the pod find the API server: those that a kubelet sets for the Service
/// `kubernetes`, whatever `enableServiceLinks` says, but with the address that the node uses. Empty if the
/// pod could not reach this address.
fn variables_of_the_server(pod: &Pod, node: &NodeFacts) -> Vec<(String, String)> {
    let Some(server) = node.api_server.as_ref().filter(|_| !lacks_server(pod, node)) else { return vec![] };
    let port = server.port.to_string();
    let url = format!("tcp://{}", server.joined());
    let link = format!("KUBERNETES_PORT_{port}_TCP");
    [
        ("KUBERNETES_SERVICE_HOST", server.host.clone()),
        ("KUBERNETES_SERVICE_PORT", port.clone()),
        ("KUBERNETES_SERVICE_PORT_HTTPS", port.clone()),
        ("KUBERNETES_PORT", url.clone()),
        (&link, url),
        (&format!("{link}_PROTO"), "tcp".to_owned()),
        (&format!("{link}_PORT"), port),
        (&format!("{link}_ADDR"), server.host.clone()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// Whether this pod cannot reach the API server, because it listens on the machine's loopback.
pub(crate) fn lacks_server(pod: &Pod, node: &NodeFacts) -> bool {
    !pod.spec.host_network && node.api_server.as_ref().is_some_and(ApiServer::is_loopback)
}

/// The API server's variables followed by those that the spec defines, in order; a name that is defined twice
/// has its last value, at its last position.
fn own_variables(container: &Container, sources: &Sources<'_>) -> Result<Vec<(String, String)>, EnvProblem> {
    let mut defined = Defined { known: BTreeMap::new(), order: vec![], left: MOST_TEXT };
    for (name, value) in variables_of_the_server(sources.pod, sources.node) {
        defined.add(name, value)?;
    }
    for from in &container.env_from {
        let (kind, source) = match (&from.config_map_ref, &from.secret_ref) {
            (Some(source), _) => (ObjectKind::ConfigMap, source),
            (None, Some(source)) => (ObjectKind::Secret, source),
            (None, None) => continue,
        };
        let Some(data) = data_of(kind, source, sources)? else { continue };
        for (key, value) in data {
            let name = format!("{}{key}", from.prefix);
            // as upstream: a key that cannot name a variable is left out
            if is_variable_name(&name) {
                defined.add(name, text(value)?)?;
            }
        }
    }
    for variable in &container.env {
        if !is_variable_name(&variable.name) {
            let name = kedge_api::excerpt(&variable.name);
            return Err(EnvProblem::Config(format!("{name:?} is no name of a variable")));
        }
        let value = match &variable.value_from {
            None => {
                let value = expand(&variable.value, &defined.known);
                Some(value.ok_or_else(|| too_long(&shown(&variable.name)))?)
            }
            Some(source) => value_from(source, container, sources)?,
        };
        if let Some(value) = value {
            defined.add(variable.name.clone(), value)?;
        }
    }
    Ok(defined.in_order())
}

/// The variables defined so far.
struct Defined {
    known: BTreeMap<String, String>,
    /// Each definition in order; if a name is here more than once, its last definition counts.
    order: Vec<String>,
    /// Bytes that definitions may still use; a name that is defined again costs its bytes again.
    left: usize,
}

impl Defined {
    fn add(&mut self, name: String, value: String) -> Result<(), EnvProblem> {
        if value.contains('\0') {
            return Err(EnvProblem::Config(format!("the value of {} has a NUL byte", shown(&name))));
        }
        let bytes = name.len().saturating_add(1).saturating_add(value.len());
        if bytes > LONGEST_TEXT {
            return Err(too_long(&shown(&name)));
        }
        self.left =
            self.left.checked_sub(bytes.saturating_add(1)).ok_or_else(|| too_much("the environment"))?;
        self.order.push(name.clone());
        self.known.insert(name, value);
        Ok(())
    }

    fn in_order(mut self) -> Vec<(String, String)> {
        let from_last = self.order.into_iter().rev();
        let mut all: Vec<_> = from_last.filter_map(|name| self.known.remove_entry(&name)).collect();
        all.reverse();
        all
    }
}

/// A variable's name for an error message.
fn shown(name: &str) -> String {
    format!("variable {}", kedge_api::excerpt(name))
}

fn is_variable_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'=')
}

fn text(value: &[u8]) -> Result<String, EnvProblem> {
    let text = String::from_utf8(value.to_vec());
    text.map_err(|_| EnvProblem::Config("a value for a variable is not UTF-8".into()))
}

fn value_from(
    source: &EnvSource,
    container: &Container,
    sources: &Sources<'_>,
) -> Result<Option<String>, EnvProblem> {
    let Sources { pod, node, pod_ips, .. } = sources;
    match source {
        EnvSource { config_map_key_ref: Some(selector), .. } => {
            key_of(ObjectKind::ConfigMap, selector, sources)
        }
        EnvSource { secret_key_ref: Some(selector), .. } => key_of(ObjectKind::Secret, selector, sources),
        EnvSource { field_ref: Some(field), .. } => {
            let value = fields::of_variable(&field.field_path, pod, node, pod_ips);
            value.map(Some).map_err(EnvProblem::Config)
        }
        EnvSource { resource_field_ref: Some(selector), .. } => {
            let named = &selector.container_name;
            let of = pod.spec.all_containers().find(|other| other.name == *named);
            let of = if named.is_empty() { Some(container) } else { of };
            let of = of.ok_or_else(|| {
                EnvProblem::Config(format!("container {} not found in pod", kedge_api::excerpt(named)))
            })?;
            fields::of_resource(selector, of, node).map(Some).map_err(EnvProblem::Config)
        }
        _ => Err(EnvProblem::Config("valueFrom has no source".into())),
    }
}

fn key_of(
    kind: ObjectKind,
    selector: &KeySelector,
    sources: &Sources<'_>,
) -> Result<Option<String>, EnvProblem> {
    let KeySelector { name, key, optional } = selector;
    let Some(data) = data_of(kind, &LocalName { name: name.clone(), optional: *optional }, sources)? else {
        return Ok(None);
    };
    match data.get(key) {
        Some(value) => text(value).map(Some),
        None if *optional => Ok(None),
        None => {
            let kind = if kind == ObjectKind::Secret { "Secret" } else { "ConfigMap" };
            let namespace = &sources.pod.namespace;
            Err(EnvProblem::Config(format!("couldn't find key {key} in {kind} {namespace}/{name}")))
        }
    }
}

/// `None` if the object or key is missing and optional.
fn data_of<'a>(
    kind: ObjectKind,
    source: &LocalName,
    sources: &Sources<'a>,
) -> Result<Option<&'a Data>, EnvProblem> {
    let LocalName { name, optional } = source;
    let object = ObjectName { kind, namespace: sources.pod.namespace.clone(), name: name.clone() };
    if kedge_api::names::subdomain_complaint(name).is_some() {
        return Err(EnvProblem::Config(format!("{:?} is no name of an object", kedge_api::excerpt(name))));
    }
    match sources.objects.find(&object) {
        Found::Data(data) => Ok(Some(data)),
        Found::Missing(_) if *optional => Ok(None),
        Found::Missing(why) => Err(EnvProblem::Config(why)),
        Found::Awaited => Err(EnvProblem::Awaited),
    }
}

/// `$(NAME)` of a known name becomes its value, `$$` one `$`; anything else stays. `None` if the result is
/// longer than `LONGEST_TEXT`.
fn expand(input: &str, known: &BTreeMap<String, String>) -> Option<String> {
    expand_with(input, |name| known.get(name).map(String::as_str))
}

fn expand_with<'a>(input: &str, mut known: impl FnMut(&str) -> Option<&'a str>) -> Option<String> {
    let mut output = String::new();
    let mut rest = input;
    // searched once: otherwise each `$(` in a text without `)` would search the rest of the text again
    let last_closing = input.rfind(')').unwrap_or(0);
    while let Some(at) = rest.find('$') {
        if output.len().saturating_add(at) > LONGEST_TEXT {
            return None;
        }
        output.push_str(&rest[..at]);
        let after = &rest[at.saturating_add(1)..];
        if let Some(after) = after.strip_prefix('$') {
            output.push('$');
            rest = after;
            continue;
        }
        let may_close = input.len().saturating_sub(after.len()) <= last_closing;
        let opened = after.strip_prefix('(').filter(|_| may_close);
        let reference = opened.and_then(|after| after.split_once(')'));
        match reference {
            Some((name, after)) => {
                match known(name) {
                    Some(value) => output.push_str(value),
                    None => output.push_str(&format!("$({name})")),
                }
                rest = after;
            }
            None => {
                output.push('$');
                rest = after;
            }
        }
    }
    (output.len().saturating_add(rest.len()) <= LONGEST_TEXT).then(|| output + rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Now;
    use crate::pods::event::ObjectRead;
    use kedge_api::Timestamp;
    use serde_json::{Value, json};

    fn pod(container: Value) -> Pod {
        Pod::read(&json!({
            "metadata": {"name": "p", "namespace": "d", "uid": "u", "labels": {"app": "x"}},
            "spec": {"volumes": [{"name": "v", "emptyDir": {}}, {"name": "f", "downwardAPI": {}}],
                "containers": [container]}
        }))
        .unwrap()
    }

    fn objects() -> Objects {
        let now = Now { mono: std::time::Duration::ZERO, wall: Timestamp::from_micros(0) };
        let mut objects = Objects::default();
        let mut set = |kind, name: &str, read| {
            let name = ObjectName { kind, namespace: "d".into(), name: name.into() };
            objects.want(now, &name, &mut vec![]);
            objects.answered(now, &name, read, &mut vec![]);
        };
        let map = json!({"data": {"A": "1 $(B)", "not=one": "x"}, "binaryData": {"B": "aGk="}});
        set(ObjectKind::ConfigMap, "map", ObjectRead::Found(map));
        set(
            ObjectKind::Secret,
            "secret",
            ObjectRead::Found(json!({"data": {"token": "aGk=", "raw": "/w=="}})),
        );
        set(ObjectKind::Secret, "gone", ObjectRead::Missing);
        objects
    }

    fn with<T>(container: Value, run: impl FnOnce(&Container, &Sources<'_>) -> T) -> T {
        let (pod, objects) = (pod(container), objects());
        let ips = ["10.0.0.2".to_owned()];
        let node = NodeFacts {
            name: "edge".into(),
            addresses: vec!["10.0.0.1".into()],
            cpu_milli: 4000,
            ..NodeFacts::default()
        };
        let sources = Sources { pod: &pod, objects: &objects, node: &node, pod_ips: &ips };
        run(&pod.spec.containers[0], &sources)
    }

    fn env(env: Value, env_from: Value) -> Result<Vec<(String, String)>, EnvProblem> {
        let image = ImageConfig { env: vec!["PATH=/bin".into(), "A=image".into()], ..ImageConfig::default() };
        with(json!({"name": "a", "env": env, "envFrom": env_from}), |container, sources| {
            variables(container, &image, sources)
        })
    }

    fn check_env(vars: Value, from: Value, expect: &[(&str, &str)]) {
        let found = env(vars, from).unwrap();
        let found: Vec<(&str, &str)> = found.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn expansion_follows_upstream() {
        let known = BTreeMap::from([("A".to_owned(), "1".to_owned()), ("B".to_owned(), "$(A)".to_owned())]);
        for (input, expect) in [
            ("", ""),
            ("$(A)", "1"),
            ("x$(A)y$(A)", "x1y1"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$(B)", "$(A)"),
            ("$(C)", "$(C)"),
            ("$(A", "$(A"),
            ("$A", "$A"),
            ("$", "$"),
            ("ä$(A)$ö", "ä1$ö"),
            ("$($(A))", "$($(A))"),
            ("$()", "$()"),
        ] {
            assert_eq!(expand(input, &known).as_deref(), Some(expect), "{input:?}");
        }
    }

    #[test]
    fn expansion_has_an_end() {
        // the full expansion would have 2^60 bytes
        let doubling = |index: usize| json!({"name": format!("V{}", index + 1), "value": format!("$(V{index})$(V{index})")});
        let mut variables = vec![json!({"name": "V0", "value": "0123456789abcdef"})];
        variables.extend((0..56).map(doubling));
        let error = |result: Result<Vec<(String, String)>, EnvProblem>| match result {
            Err(EnvProblem::Config(why)) => why,
            other => panic!("{other:?}"),
        };
        let why = error(env(json!(variables), json!([])));
        assert_eq!(why, "variable V13 is longer than 131071 bytes");
        // each short enough
        let many: Vec<Value> = (0..9)
            .map(|index| json!({"name": format!("V{index}"), "value": "x".repeat(120 << 10)}))
            .collect();
        assert_eq!(error(env(json!(many), json!([]))), "the environment is longer than 1048576 bytes in all");
        let long = json!({"name": "a", "command": vec!["x"; 10], "env": [{"name": "V", "value": "x".repeat(120 << 10)}],
            "args": vec!["$(V)"; 10]});
        let why = with(long, |container, sources| argv(container, &ImageConfig::default(), sources));
        assert_eq!(why, Err(EnvProblem::Config("the command is longer than 1048576 bytes in all".into())));
        assert_eq!(expand(&"$$".repeat(LONGEST_TEXT + 1), &BTreeMap::new()), None);
        assert!(expand(&"$(".repeat(LONGEST_TEXT / 2), &BTreeMap::new()).is_some(), "no reference closes");
    }

    #[test]
    fn variables_come_in_order_and_the_last_wins() {
        check_env(json!([]), json!([]), &[("PATH", "/bin"), ("A", "image")]);
        check_env(
            json!([{"name": "A", "value": "own"}, {"name": "C", "value": "$(A)-$(D)"}, {"name": "D", "value": "d"}]),
            json!([]),
            &[("PATH", "/bin"), ("A", "own"), ("C", "own-$(D)"), ("D", "d")],
        );
        check_env(
            json!([{"name": "X", "value": "$(P_A)"}]),
            json!([{"prefix": "P_", "configMapRef": {"name": "map"}}]),
            &[("PATH", "/bin"), ("A", "image"), ("P_A", "1 $(B)"), ("P_B", "hi"), ("X", "1 $(B)")],
        );
    }

    #[test]
    fn variables_come_from_objects_and_fields() {
        let from = |source: Value| env(json!([{"name": "V", "valueFrom": source}]), json!([]));
        let value = |source: Value| from(source).unwrap().pop().unwrap().1;
        assert_eq!(value(json!({"secretKeyRef": {"name": "secret", "key": "token"}})), "hi");
        assert_eq!(value(json!({"fieldRef": {"fieldPath": "metadata.labels['app']"}})), "x");
        assert_eq!(value(json!({"fieldRef": {"fieldPath": "spec.nodeName"}})), "edge");
        assert_eq!(value(json!({"fieldRef": {"fieldPath": "status.podIP"}})), "10.0.0.2");
        assert_eq!(value(json!({"resourceFieldRef": {"resource": "limits.cpu"}})), "4");
        let error = |source: Value| match from(source) {
            Err(EnvProblem::Config(why)) => why,
            other => panic!("{other:?}"),
        };
        assert_eq!(error(json!({"secretKeyRef": {"name": "gone", "key": "k"}})), "secret \"gone\" not found");
        assert_eq!(
            error(json!({"configMapKeyRef": {"name": "map", "key": "k"}})),
            "couldn't find key k in ConfigMap d/map"
        );
        assert!(error(json!({"secretKeyRef": {"name": "secret", "key": "raw"}})).contains("UTF-8"));
        assert!(error(json!({"fieldRef": {"fieldPath": "spec.foo"}})).contains("unsupported fieldPath"));
        assert!(error(json!({"configMapKeyRef": {"name": "../x", "key": "k"}})).contains("no name"));
        let optional = json!({"secretKeyRef": {"name": "gone", "key": "k", "optional": true}});
        assert_eq!(from(optional).unwrap().len(), 2, "the image's alone");
        let unread = from(json!({"configMapKeyRef": {"name": "unread", "key": "k", "optional": true}}));
        assert_eq!(unread, Err(EnvProblem::Awaited), "unknown is not missing");
    }

    #[test]
    fn sub_path_is_expanded_and_stays_inside() {
        let of = |mount: Value| {
            let container = json!({"name": "a", "env": [{"name": "A", "value": "x/y"}, {"name": "UP", "value": ".."},
                {"name": "ROOT", "value": "/"}], "volumeMounts": [mount]});
            with(container, mounts).map(|mut mounts| mounts.pop().unwrap())
        };
        let check = |given: &str, expect: Result<&str, &str>| {
            let found = of(json!({"name": "v", "mountPath": "/m", "subPathExpr": given}));
            match (found, expect) {
                (Ok(mount), Ok(expect)) => assert_eq!(mount.sub_path, expect, "{given}"),
                (Err(EnvProblem::Config(why)), Err(expect)) => {
                    assert!(why.contains(expect), "{given}: {why}")
                }
                (found, _) => panic!("{given}: {found:?}"),
            }
        };
        check("$(A)/z", Ok("x/y/z"));
        check("./$(A)//", Ok("x/y"));
        check("$$(A)", Ok("$(A)"));
        check("$(B)", Err("missing value for \"B\""));
        check("$(UP)/z", Err("must not contain '..'"));
        check("$(ROOT)etc", Err("absolute"));
        let plain = of(json!({"name": "v", "mountPath": "/m", "subPath": "$(A)"})).unwrap();
        assert!(plain.sub_path == "$(A)" && !plain.read_only, "{plain:?}");
        assert_eq!(of(json!({"name": "v", "mountPath": "m/n"})).unwrap().path, "/m/n");
        assert!(of(json!({"name": "f", "mountPath": "/m"})).unwrap().read_only, "files of the API");
    }

    #[test]
    fn command_replaces_entrypoint_and_args_replace_cmd() {
        let image = ImageConfig {
            entrypoint: vec!["/entry".into()],
            cmd: vec!["default".into()],
            ..ImageConfig::default()
        };
        let check = |command: Value, args: Value, expect: &[&str]| {
            let container =
                json!({"name": "a", "command": command, "args": args, "env": [{"name": "A", "value": "1"}]});
            let found = with(container, |container, sources| argv(container, &image, sources)).unwrap();
            assert_eq!(found, expect);
        };
        check(json!([]), json!([]), &["/entry", "default"]);
        check(json!([]), json!(["$(A)"]), &["/entry", "1"]);
        check(json!(["/own", "$(A)"]), json!([]), &["/own", "1"]);
        check(json!(["/own"]), json!(["b"]), &["/own", "b"]);
        let nothing = with(json!({"name": "a"}), |container, sources| {
            argv(container, &ImageConfig::default(), sources)
        });
        assert_eq!(nothing, Err(EnvProblem::Config("no command specified".into())));
    }

    #[test]
    fn address_of_the_server_is_one_that_the_pod_reaches() {
        let check = |server: Option<(&str, u16)>, host_network: bool, env: Value, expect: &[&str]| {
            let pod = Pod::read(&json!({"metadata": {"name": "p", "namespace": "d", "uid": "u"},
                "spec": {"hostNetwork": host_network, "containers": [{"name": "a", "env": env}]}}))
            .unwrap();
            let api_server = server.map(|(host, port)| ApiServer { host: host.into(), port });
            let node = NodeFacts { api_server, ..NodeFacts::default() };
            let sources = Sources { pod: &pod, objects: &objects(), node: &node, pod_ips: &[] };
            let found = variables(&pod.spec.containers[0], &ImageConfig::default(), &sources).unwrap();
            let found: Vec<String> = found.iter().map(|(name, value)| format!("{name}={value}")).collect();
            assert_eq!(found, expect);
        };
        let all = [
            "KUBERNETES_SERVICE_HOST=hub.lan",
            "KUBERNETES_SERVICE_PORT=6443",
            "KUBERNETES_SERVICE_PORT_HTTPS=6443",
            "KUBERNETES_PORT=tcp://hub.lan:6443",
            "KUBERNETES_PORT_6443_TCP=tcp://hub.lan:6443",
            "KUBERNETES_PORT_6443_TCP_PROTO=tcp",
            "KUBERNETES_PORT_6443_TCP_PORT=6443",
            "KUBERNETES_PORT_6443_TCP_ADDR=hub.lan",
        ];
        let hub = Some(("hub.lan", 6443));
        check(hub, false, json!([]), &all);
        check(hub, true, json!([]), &all);
        check(None, true, json!([]), &[]);
        for loopback in ["127.0.0.1", "::1", "localhost", "LOCALHOST.", "::ffff:127.0.0.1", "0.0.0.0"] {
            check(Some((loopback, 6443)), false, json!([{"name": "A", "value": "1"}]), &["A=1"]);
        }
        let of_loopback = [
            "KUBERNETES_SERVICE_PORT=443",
            "KUBERNETES_SERVICE_PORT_HTTPS=443",
            "KUBERNETES_PORT=tcp://[::1]:443",
            "KUBERNETES_PORT_443_TCP=tcp://[::1]:443",
            "KUBERNETES_PORT_443_TCP_PROTO=tcp",
            "KUBERNETES_PORT_443_TCP_PORT=443",
            "KUBERNETES_PORT_443_TCP_ADDR=::1",
            "URL=https://::1",
            "KUBERNETES_SERVICE_HOST=own",
        ];
        let own = json!([{"name": "URL", "value": "https://$(KUBERNETES_SERVICE_HOST)"},
            {"name": "KUBERNETES_SERVICE_HOST", "value": "own"}]);
        check(Some(("::1", 443)), true, own, &of_loopback);
    }
}
