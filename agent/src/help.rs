//! The pages of `kedge help`: one for each command that people use, one for those that units and the agent
//! use.
//!
//! Always holds: every flag is on the page of each command that reads it. Leaves to others: the meaning of
//! flags (`flags`).

use kedge_core::kubelet::schema::distance;

/// A page, in parts that several pages may share.
pub(crate) type Page = &'static [&'static str];

/// Commands by their first word, and the page of each.
const PAGES: [(&str, Page); 24] = [
    ("agent", &[AGENT]),
    ("join", &[JOIN, SERVICE, PLACES]),
    ("status", &[STATUS, PLACES, OUTPUT]),
    ("doctor", &[DOCTOR, SERVICE, PLACES, OUTPUT]),
    ("config", &[CONFIG, SERVICE, PLACES]),
    ("pods", &[PODS, PLACES, OUTPUT]),
    ("logs", &[LOGS, SERVICE, PLACES]),
    ("exec", &[EXEC, SERVICE, PLACES]),
    ("attach", &[ATTACH, SERVICE, PLACES]),
    ("images", &[IMAGES, SERVICE, PLACES]),
    ("slot", &[SLOT, PLACES]),
    ("system", &[SYSTEM, PLACES]),
    ("version", &[VERSION, OUTPUT]),
    ("internals", &[INTERNALS]),
    ("record-exit", &[RECORD_EXIT, PLACES]),
    ("state", &[INTERNALS]),
    ("provision", &[INTERNALS]),
    ("session", &[INTERNALS]),
    ("kubelet-port", &[INTERNALS]),
    ("shim", &[INTERNALS]),
    ("pause", &[INTERNALS]),
    ("look", &[INTERNALS]),
    ("unpack", &[INTERNALS]),
    ("help", &[HELP]),
];

/// The page of a command, by its words; without words, or for an unknown command, the list of all.
pub(crate) fn page(words: &[impl AsRef<str>]) -> Page {
    let first = words.first().map_or("help", AsRef::as_ref);
    PAGES.iter().find(|(name, _)| *name == first).map_or(&[HELP], |(_, page)| *page)
}

/// The likely intended command for an unknown one: two edits at most, and one for a short word.
pub(crate) fn similar(word: &str) -> Option<&'static str> {
    nearest(word, &mut PAGES.iter().map(|(name, _)| *name))
}

/// The likely intended flag, without dashes, for an unknown one.
pub(crate) fn similar_flag(word: &str) -> Option<&'static str> {
    let parts = PAGES.iter().flat_map(|(_, page)| page.iter().copied());
    let words = parts.flat_map(|part| part.split(|of: char| !of.is_ascii_lowercase() && of != '-'));
    nearest(word, &mut words.filter_map(|word| word.strip_prefix("--")))
}

fn nearest(word: &str, names: &mut dyn Iterator<Item = &'static str>) -> Option<&'static str> {
    if word.len() > 2 * LONGEST_WORD {
        return None;
    }
    let near = names.map(|name| (distance(word, name), name));
    near.filter(|(edits, name)| *edits <= 2 && *edits * 3 <= name.len()).min().map(|(_, name)| name)
}

/// Longest name of a flag.
const LONGEST_WORD: usize = 28;

const HELP: &str = "\
kedge: the node agent

Usage: kedge COMMAND [FLAGS]        kedge COMMAND --help: what it does, and its flags

  agent              run the agent
  join               make this machine a node of a cluster, by its address and a token
  status             show the state of a running agent: server, contact, lease, watches, problems, disk, config
  doctor             look at this node, what its pods need, and each step of the way to the API server, and say what
                     to do; exit code 1 if something fails
  config             show, check, forgive or reset the configuration: what runs, and which layer set each field
  pods               list the pods of this node, or end pods left behind by another Node
  logs, exec, attach
                     of a container, as kubectl has them, without any server
  images             list, pull, import and remove the images of this node
  slot               on a disk image: show the slots, write an update
  system             how far an update that the configuration wants has come
  version            print the version
  help internals     the commands that units, hooks and the agent itself run
";

const PLACES: &str = "
\
Where the agent is:
  --root-dir DIR     its state (default /var/lib/kedge)
  --run-dir DIR      its socket (default $RUNTIME_DIRECTORY or /run/kedge)
";

const OUTPUT: &str = "\
  -o, --output FORM  text or json
";

const SERVICE: &str = "
\
Flags are those of kedge.service; flags of kedge agent (kedge agent --help) given here take precedence:
  --environment-file FILE
                     the file with KEDGE_FLAGS of kedge.service (default /etc/default/kedge; \"\" for none)
  --FLAG VALUE       any flag of kedge agent, such as --kubeconfig, --hostname-override, --crun, --cgroup-root,
                     --preloaded-images, --dynamic-config-dir. With one of --config, --config-dir and
                     --init-config-dir that local configuration counts, and no running agent's
";

const JOIN: &str = "\
Usage: kedge join https://HOST:PORT --token-file FILE --ca-cert-hash sha256:HEX [FLAGS]

Makes this machine a node: checks that the server is the right one, leaves the agent a bootstrap kubeconfig, starts
kedge.service if no agent runs, and says what it waits for until the node is Ready. The whole line is printed by
\"kedge-hub token create\" on the hub. It may be given again. Needs root.

  --token-file FILE    holds the bootstrap token in its first line; - for standard input
  --ca-cert-hash HASH  of the public key of the server's authority, as kubeadm's; several with commas between
  --unsafe-skip-ca-verification
                       believe any server that knows the token
  --node-name NAME     name of the Node (default: the host's name)
  --timeout DURATION   how long to wait (default 10m); the agent goes on without this command
  --bootstrap-kubeconfig FILE
                       where to leave it (default /etc/kedge/bootstrap-kubeconfig)

Exit codes: 0 the node is Ready; 2 wrong command line; 1 anything else.
";

const STATUS: &str = "\
Usage: kedge status [FLAGS]

Shows the state of the agent that runs: its name, server, contact, Lease, watches, the requests that fail, its disk, and
the configuration with the rest of a trial. Asks through the agent's socket, so it needs root.
";

const DOCTOR: &str = "\
Usage: kedge doctor [FLAGS]

Looks at the local configuration, the running agent, its unit, the watchdog and the disk; at crun, control groups, the
network of pods, registries, static pods and pods that wait; and at each step of the way to the API server: kubeconfig,
name, address, connection, certificate, clock, rights. Says what to do about what is wrong, and changes nothing. What the
running agent knows is asked of it. Exit code 1 if something fails.
";

const PODS: &str = "\
Usage: kedge pods [FLAGS]
       kedge pods release [NAMESPACE/NAME] [FLAGS]

Lists the pods of this node with their containers, and why one waits. release ends pods left behind by another
Node: all of them, or one.
";

const SLOT: &str = "\
Usage: kedge slot status|update|keys [FLAGS]

On a disk image only.

  status             the slot that runs, and the boot loader's list
  update FILE        write an update (-: standard input) into the slot that does not run; the boot loader tries it at the
                     next boot
    --reboot         try it now
    --allow-older    take an older version than the one that runs
    --again          take an update that failed here before, or while a configuration brings another
  keys [FILE]        the keys that sign updates; with a file (-: standard input), take this list of keys
";

const SYSTEM: &str = "\
Usage: kedge system status [FLAGS]

  status             the system that the configuration wants, how far its update has come, and the systems that failed here
";

const VERSION: &str = "\
Usage: kedge version [FLAGS]

";

const INTERNALS: &str = "\
Commands that units, hooks and the agent itself run:

  record-exit        for ExecStopPost= of kedge.service: record how the agent ended (kedge record-exit --help)
  slot health        for kedge-health.service: wait until this boot is good; exit code 1 if it is not
  slot bless         for systemd-bless-boot.service: this boot is good
  slot holds-root DISK
                     for udev: exit code 0 if the root is on the disk of this name (sda)
  state open         before systemd: check, repair or make the state partition, and mount it on /var
  provision          for kedge-provision.service: install the identity that was handed over
  session, kubelet-port, shim, pause, look, unpack
                     for the hub's calls, the kubelet's port, containers, paths that may hang, images (docs/reference/pods.md)
";

const AGENT: &str = "\
Usage: kedge agent [FLAGS]

API server:
  --kubeconfig FILE            address and credentials of the API server; without it the local configuration runs
  --bootstrap-kubeconfig FILE  address and token with which a node without a certificate asks for one
                               (default /etc/kedge/bootstrap-kubeconfig beside --kubeconfig; neither needs to exist)
  --hostname-override NAME     name of the Node (default: the one that the kubeconfig's certificate is for, else the
                               host's name, which stays the label kubernetes.io/hostname)
  --node-labels K=V,...        labels of the Node; of kubernetes.io and k8s.io only those that a node may set on itself
  --register-node[=BOOL]       create the Node if it does not exist (default true)
  --register-with-taints K=V:EFFECT,...
                               taints of a Node that is created
  --provider-id ID             providerID of a Node that is created

Configuration:
  --config FILE                the local configuration, a KubeletConfiguration in YAML or JSON
  --init-config-dir DIR        the same as --config DIR/kubelet
  --config-dir DIR             drop-ins (*.conf), merged over it in order of name
                               (default /etc/kedge/config.d; \"\" for none)
  --dynamic-config[=BOOL]      take configurations pushed through the API server (default true)
  --dynamic-config-dir DIR     where they are stored (default ROOT/config)
  --node-status-update-frequency DURATION
  --healthz-port PORT          0 for none
  --healthz-bind-address ADDR
  -v, --v LEVEL                logging.verbosity, 0 to 10

Containers:
  --crun FILE                  what runs them (default /usr/bin/crun); while it is missing the node is not ready and
                               rejects pods; \"\" for a node that is to run none
  --cgroup-root GROUP          the control group above those of pods and shims (default: the top of the tree)
  --preloaded-images DIR       OCI layouts that came with the system; their images need no registry
                               (default /usr/share/kedge/images)

Places:
  --root-dir DIR               state (default /var/lib/kedge)
  --run-dir DIR                socket and marks (default $RUNTIME_DIRECTORY or /run/kedge)

Exit codes: 0 asked to stop, or restarting to use another configuration (which is done in the same process where
possible); 2 wrong command line; 78 the local configuration is invalid; 1 anything else. A supervisor must restart the
agent after every exit, also after code 0: under Docker the policy is always or unless-stopped, not on-failure.
";

const LOGS: &str = "\
Usage: kedge logs [NAMESPACE/]POD [FLAGS]

Shows what a container has written, from the files of this node; no API server and no agent need run. Rotated files
are read, too. The namespace is \"default\" unless it is given.

  -c, --container NAME  which container; needed if the pod has several
  -f, --follow          go on until the container ends
  -p, --previous        of the run before the last one
  --tail N              the last N lines (default -1: all)
  --since DURATION      not older than 5m, 1h30m
  --since-time TIME     not older than 2026-11-23T04:00:00Z
  --limit-bytes N       at most so many bytes
  --timestamps          when each line was written
";

const EXEC: &str = "\
Usage: kedge exec [NAMESPACE/]POD [FLAGS] -- COMMAND [ARGUMENTS]

Runs a program in a container of this node, as the user and with the rights of the container's own; no API server and no
agent need run. Needs root. The exit code is the program's. The program ends with this command, with what it
started, but for what made a session of its own. The namespace is \"default\" unless it is given.

  -c, --container NAME  which container; needed if several of the pod run
  -i, --stdin           hand on standard input
  -t, --tty             give the program a terminal
";

const ATTACH: &str = "\
Usage: kedge attach [NAMESPACE/]POD [FLAGS]

Shows what a container of this node writes from now on, and with -i gives it input, if it was made with \"stdin: true\"; no API
server and no agent need run. Needs root. Ends with the container, with its exit code; if this command ends first
(Ctrl-C without -t, SIGTERM), the container goes on. The namespace is \"default\" unless it is given.

  -c, --container NAME  which container; needed if several of the pod run
  -i, --stdin           hand on standard input
  -t, --tty             use the terminal of a container made with \"tty: true\"
";

const CONFIG: &str = "\
Usage: kedge config show|status|history|check|forgive|reset [FLAGS]

  show               show the effective configuration, and which layer set each field: of the running agent if
                     there is one, else of the files that the service or the flags name
  status             show assigned, active and last-known-good, and the rest of a trial; without a running agent,
                     what the next start would run, from the records
  history            show bad configurations, and files that were set aside
  check [FILE...]    validate the local configuration, and each FILE, a KubeletConfiguration or the manifest of a
                     ConfigMap, as if it were pushed; exit code 1 if one is invalid
  forgive UID        remove the verdicts on a ConfigMap, so that it is tried again
  reset              drop the assigned configuration and return to the local one

--key KEY            for check: the key of a ConfigMap manifest (default: its only one, or kubelet)
-o, --output FORM    text or json
";

const IMAGES: &str = "\
Usage: kedge images ls|pull|import|rm|prune [FLAGS]

  ls                 list the images of this node
  pull IMAGE...      fetch images; what an earlier try fetched is kept
  import PATH        take the images of an OCI layout, a directory or a tar archive of one (skopeo copy ... oci:DIR or
                     oci-archive:FILE): for sites without a registry
  rm IMAGE...        remove images by name or ID; one that a pod needs or a container mounts stays
  prune              remove all images that nobody needs, and what interrupted pulls left

They work with and without a running agent, and need root. Mirrors, certificate authorities and credentials are
those of the configuration that runs (kedge.images), of the local one where no agent runs or the flags name it.

--credentials FILE   for pull: Docker's config.json; tried before the node's own
--name IMAGE         for import: what the only image of the layout is called here
-o, --output text|json
";

const RECORD_EXIT: &str = "\
Usage: kedge record-exit [FLAGS]

For ExecStopPost= of the agent's unit: records how systemd saw the agent end, by $SERVICE_RESULT, $EXIT_CODE and
$EXIT_STATUS, so that the next start can tell a crash from a stop. Takes the flags of kedge agent, of which it uses
--root-dir and --run-dir.
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::known_flags;

    #[test]
    fn every_command_has_its_own_page() {
        for name in [
            "agent", "join", "status", "doctor", "config", "pods", "logs", "exec", "attach", "images",
            "slot", "system", "version",
        ] {
            let own = page(&[name]).concat();
            assert!(own.starts_with(&format!("Usage: kedge {name}")), "{name}: {own}");
            assert!(HELP.contains(name), "{name} is missing in the list");
        }
        for name in ["shim", "pause", "look", "unpack", "session", "kubelet-port", "provision", "state"] {
            assert_eq!(page(&[name]), [INTERNALS]);
            assert!(!HELP.contains(&format!("\n  {name} ")), "{name} is nothing that people give");
        }
        assert_eq!(page(&["status", "--help"])[0], STATUS);
        assert_eq!(page(&["nosuch"]), [HELP]);
        assert_eq!(page(&[""; 0]), [HELP]);
    }

    #[test]
    fn every_flag_stands_on_a_page() {
        let all: String = PAGES.iter().flat_map(|(_, page)| page.iter().copied()).collect();
        for flag in known_flags() {
            let shown = if flag == "v" { "-v, --v".to_owned() } else { format!("--{flag}") };
            assert!(all.contains(&shown), "--{flag} stands on no page");
        }
        for (name, parts) in PAGES.iter().filter(|(_, parts)| parts.contains(&SERVICE)) {
            let text = parts.concat();
            for flag in ["--kubeconfig", "--hostname-override", "--environment-file", "--root-dir"] {
                assert!(text.contains(flag), "{name}: {flag}");
            }
        }
    }

    #[test]
    fn lines_fit_into_a_wide_terminal() {
        for line in PAGES.iter().flat_map(|(_, page)| page.iter().flat_map(|part| part.lines())) {
            assert!(line.len() <= 128, "{line}");
        }
    }

    #[test]
    fn misspelt_command_has_a_suggestion() {
        for (word, expect) in [
            ("statsu", Some("status")),
            ("stauts", Some("status")),
            ("docter", Some("doctor")),
            ("image", Some("images")),
            ("log", Some("logs")),
            ("xyz", None),
            ("", None),
        ] {
            assert_eq!(similar(word), expect, "{word}");
        }
        for (word, expect) in [
            ("kubconfig", Some("kubeconfig")),
            ("hostname-overide", Some("hostname-override")),
            ("x", None),
            ("nothing-like-it", None),
        ] {
            assert_eq!(similar_flag(word), expect, "{word}");
        }
    }
}
