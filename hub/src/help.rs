//! The commands and flags of `kedge-hub`, as tables: which flags a command takes, and its page of help.
//!
//! Always holds: a command takes the flags that its row names, and no other. Leaves to others: the values of
//! flags (`flags`). `.ci/reference` makes the completions and the manual page from the pages here.

use std::fmt::Write as _;

use kedge_api::distance;

/// A command with all its words.
pub struct Command {
    /// Such as `node revoke`.
    pub words: &'static str,
    /// The arguments that follow its words.
    pub arguments: &'static str,
    /// One line, for the list of all.
    pub about: &'static str,
    /// The further text of its own page.
    pub more: &'static str,
    /// The flags it takes, by name.
    pub flags: &'static [&'static str],
}

/// A flag, without the dashes.
pub struct Flag {
    pub name: &'static str,
    pub short: Option<char>,
    /// The value that follows it; may be empty.
    pub value: &'static str,
    pub about: &'static str,
}

const ASKS: &str = "The hub must be running.";

/// Every command, sorted by subject.
pub const COMMANDS: &[Command] = &[
    command(
        "serve",
        "",
        "run the hub",
        "Prints its address, its CA and its kubeconfig once it is ready.",
        &[
            "data-dir",
            "listen",
            "advertise",
            "tls-san",
            "node-monitor-grace-period",
            "node-certificate-life",
            "expired-node-may-renew",
            "rollout-pre-pull",
            "config-rollouts",
            "fenced",
            "log-level",
        ],
    ),
    command(
        "token create",
        "--node NAME|--names FILE|--any-node",
        "make a token by which a machine joins, and print the line to run there",
        "With --names it prints NAME TOKEN for each name. The hub must be running.",
        &[
            "node",
            "names",
            "any-node",
            "ttl",
            "uses",
            "approve",
            "description",
            "advertise",
            "data-dir",
            "output",
        ],
    ),
    command("token list", "", "print the tokens, without their secrets", ASKS, &["data-dir", "output"]),
    command(
        "token revoke",
        "ID",
        "make a token useless",
        "Machines that joined by it stay. The hub must be running.",
        &["data-dir", "output"],
    ),
    command(
        "node-kubeconfig",
        "NAME",
        "make a kubeconfig with new credentials for a node",
        "Prints it, or writes it to --out. The hub may be running. A node that is revoked gets none.",
        &["life", "out", "data-dir", "advertise"],
    ),
    command(
        "node-bootstrap",
        "NAME",
        "make a kubeconfig with a token, by which a node asks for its own certificate",
        "The node's key never leaves the device. The hub must be running.",
        &["ttl", "uses", "description", "out", "data-dir", "advertise"],
    ),
    command(
        "node list",
        "",
        "print the nodes: state, expiry of their certificate, last contact; and devices that were refused lately",
        ASKS,
        &["data-dir", "output"],
    ),
    command(
        "node revoke",
        "NAME",
        "refuse all credentials of a node from now on",
        "Ends its connections, and signs it no certificate. The hub must be running.",
        &["reason", "force", "data-dir", "output"],
    ),
    command(
        "node readmit",
        "NAME",
        "let a revoked node return with new credentials",
        "Those of before stay refused. The hub must be running.",
        &["same-credentials", "data-dir", "output"],
    ),
    command(
        "node rotate",
        "NAME",
        "ask a node to exchange its certificate and key now",
        ASKS,
        &["data-dir", "output"],
    ),
    command(
        "node decommission",
        "NAME",
        "ask a node to end its pods and remove its state; then deny it and delete its Node",
        ASKS,
        &["wipe", "data-dir", "output"],
    ),
    command(
        "node accept",
        "NAME|--all",
        "after a restore: let nodes go back to the assignment that the backup has",
        "For those that wait for a decision (AwaitingDecision in node list). The hub must be running.",
        &["all", "data-dir", "output"],
    ),
    command(
        "denied list",
        "",
        "print the deny list: revoked nodes, users and certificates",
        ASKS,
        &["data-dir", "output"],
    ),
    command(
        "denied lift",
        "ENTRY",
        "take an entry off the deny list, as user.jane",
        "A certificate counts again. A user or node needs new credentials: those from before the lift stay refused. The hub must be running.",
        &["data-dir", "output"],
    ),
    command(
        "user create",
        "NAME",
        "make credentials for a person, bind a role to the name, and print a kubeconfig",
        "The key is made here; the certificate has the name and no group. With --role the hub must be running.",
        &["role", "namespace", "life", "server", "out", "p12", "data-dir"],
    ),
    command(
        "user list",
        "",
        "print the people who have a role or are denied",
        "A name that was given credentials and no role is in the audit log alone. The hub must be running.",
        &["data-dir", "output"],
    ),
    command(
        "user revoke",
        "NAME",
        "refuse all credentials of a user from now on",
        "The user's bindings stay. The hub must be running.",
        &["reason", "data-dir"],
    ),
    command(
        "kubeconfig",
        "",
        "print a kubeconfig for another machine",
        "Of --user with a new certificate, else the administrator's own, which is the last way in.",
        &["user", "life", "server", "out", "data-dir"],
    ),
    command(
        "rollout",
        "NAME|cro/NAME",
        "print the state of a DaemonSet's update, or of a ConfigRollout, on each node, with reasons",
        ASKS,
        &["namespace", "watch", "data-dir", "output"],
    ),
    command(
        "controllers",
        "",
        "beside another API server: roll out configurations, approve certificates of nodes",
        "Of several such processes one acts: the holder of a Lease. A kedge-hub does this itself.",
        &["kubeconfig", "only", "log-level"],
    ),
    command(
        "ca new",
        "",
        "make the next certificate authority",
        "Nodes learn to trust it, and it signs nothing so far.",
        &["data-dir", "output"],
    ),
    command(
        "ca status",
        "",
        "print the authorities and how many nodes trust them",
        "",
        &["data-dir", "output"],
    ),
    command(
        "ca switch",
        "",
        "let the next authority sign, while the former one is still trusted",
        "Refused while nodes do not trust the next one. With --back the former one signs again. The hub must be running.",
        &["leave", "back", "data-dir", "output"],
    ),
    command(
        "ca retire",
        "NUMBER",
        "end the trust in an authority and erase its key",
        ASKS,
        &["leave", "data-dir", "output"],
    ),
    command(
        "backup",
        "FILE|DIRECTORY",
        "copy everything, including the authority's key, into a new file",
        "A directory needs --keep. The hub may be running.",
        &["keep", "data-dir"],
    ),
    command(
        "restore",
        "FILE|--empty",
        "replace the directory's state with a backup",
        "The hub must be stopped. Revoked nodes and users stay revoked, and bootstrap tokens of the backup are void.",
        &["empty", "forget-revocations", "data-dir"],
    ),
    command(
        "completions",
        "bash|zsh|fish",
        "print a script by which a shell completes these commands",
        "The Debian package installs all three.",
        &[],
    ),
];

/// Every flag, in the order in which pages show them.
pub const FLAGS: &[Flag] = &[
    flag("listen", "ADDR:PORT", "address of the API; port 0 takes a free one [0.0.0.0:6443]"),
    flag(
        "advertise",
        "HOST[:PORT]",
        "address under which others reach the hub, written to kubeconfigs and to the serving certificate. \
         serve takes several, and the first one goes into kubeconfigs [the listen address, or this machine's name]",
    ),
    flag("tls-san", "NAME", "another host name or address for the serving certificate; may be repeated"),
    flag(
        "node-monitor-grace-period",
        "DURATION",
        "silence after which a node's Ready becomes Unknown, at least 50s [50s]",
    ),
    flag(
        "node-certificate-life",
        "TIME",
        "longest and usual life of the certificates that nodes get, 1d to 10y; nodes renew theirs before that [1y]",
    ),
    flag(
        "expired-node-may-renew",
        "TIME",
        "how long after the end of its certificate a node may still get the next one without a person, with the key \
         of its newest one, 0d to 50y [3y]",
    ),
    flag(
        "rollout-pre-pull",
        "on|off",
        "updates of DaemonSets stop a pod once the next one's images are on its node (on), or at once, as upstream \
         does (off), unless the annotation kedge.dev/pre-pull of the set says otherwise [on]",
    ),
    flag(
        "config-rollouts",
        "on|off",
        "ConfigRollouts are this hub's (on), or left to kedge-hub controllers (off) [on]",
    ),
    flag("kubeconfig", "FILE", "names the API server and a credential for it"),
    flag("only", "NAMES", "the controllers to run: config-rollouts, approving, or both with a comma"),
    flag(
        "fenced",
        "",
        "change nothing but the Leases of nodes, and run no controllers, while another hub takes this one's place",
    ),
    flag("log-level", "LEVEL", "least severe level logged: error, warn, info or debug [info]"),
    flag("node", "NAME", "the node that may join by it, or the beginning of names and a *: edge-*"),
    flag("names", "FILE", "make one token for each name in FILE, one name a line"),
    flag("any-node", "", "the machine chooses its name"),
    flag("ttl", "DURATION", "how long it is valid, 1m to 5 years: 12h, 90d [24h]"),
    flag("uses", "N", "how many machines may join by it, 1 to 1000, or unlimited [1]"),
    flag("approve", "", "for a beginning of names or any node: requests are approved without a person"),
    flag("description", "TEXT", "its purpose, for others to read"),
    flag("role", "ROLE", "the ClusterRole, or with -n also the Role, that the user gets"),
    flag("user", "NAME", "the person whose certificate is made"),
    flag("server", "URL", "the hub's address as that machine sees it [the one that the hub last published]"),
    flag(
        "life",
        "TIME",
        "how long its certificate lives, 1d to 50y [--node-certificate-life of the hub; 1y for a person]",
    ),
    flag("out", "FILE", "write it there, readable by its owner alone, instead of printing it"),
    flag(
        "p12",
        "FILE",
        "write the credentials there for a browser (PKCS#12), and print the passphrase of the file once; without --out no \
         kubeconfig is printed",
    ),
    flag("reason", "TEXT", "why, for others to read"),
    flag("force", "", "also a name that this hub does not know"),
    flag(
        "same-credentials",
        "",
        "accept the old credentials again; use it only if nobody else can have them",
    ),
    flag("wipe", "", "the node also discards the free blocks of its disk"),
    flag("all", "", "every node that waits for a decision"),
    Flag {
        short: Some('n'),
        ..flag("namespace", "NAME", "the namespace of the DaemonSet [default], or of the user's role [all]")
    },
    flag(
        "watch",
        "",
        "print again at each change, until the update is complete (status 0: each pod has been available for \
         kedge.dev/complete-after), stopped or followed by another one (status 1)",
    ),
    flag("leave", "COUNT", "give up this many nodes that do not trust the authority so far [0]"),
    flag("back", "", "let the former authority sign again"),
    flag("keep", "COUNT", "write the next numbered file into the directory, and remove all but this many"),
    flag(
        "empty",
        "",
        "begin anew with no objects, if no backup is left; versions go on, and revoked nodes and users stay revoked",
    ),
    flag(
        "forget-revocations",
        "",
        "only the backup's own revocations count, not the later ones of the directory; stolen credentials that were \
         revoked since are let in",
    ),
    flag("data-dir", "DIR", "all state of the hub: store, keys, admin.kubeconfig [/var/lib/kedge-hub]"),
    Flag { short: Some('o'), ..flag("output", "FORMAT", "table or json [table]") },
];

const fn command(
    words: &'static str,
    arguments: &'static str,
    about: &'static str,
    more: &'static str,
    flags: &'static [&'static str],
) -> Command {
    Command { words, arguments, about, more, flags }
}

const fn flag(name: &'static str, value: &'static str, about: &'static str) -> Flag {
    Flag { name, short: None, value, about }
}

/// The flag of this name.
pub(crate) fn find_flag(name: &str) -> Option<&'static Flag> {
    FLAGS.iter().find(|flag| flag.name == name)
}

/// The command with which a line begins: the one with the most words.
pub(crate) fn find_command(words: &[String]) -> Option<&'static Command> {
    COMMANDS
        .iter()
        .filter(|command| {
            let own = command.words.split(' ');
            own.clone().count() <= words.len() && own.zip(words).all(|(own, word)| own == word)
        })
        .max_by_key(|command| command.words.len())
}

/// First words of all commands, each once.
pub(crate) fn first_words() -> Vec<&'static str> {
    let mut words: Vec<&str> =
        COMMANDS.iter().filter_map(|command| command.words.split(' ').next()).collect();
    words.dedup_by(|next, before| next == before);
    // `node` follows `node-bootstrap`, so equal words need not be neighbours
    words.sort_unstable();
    words.dedup();
    words
}

/// The likely intended flag for an unknown one.
pub(crate) fn similar_flag(word: &str) -> Option<&'static str> {
    nearest(word, FLAGS.iter().map(|flag| flag.name))
}

/// The likely intended command for an unknown first word.
pub(crate) fn similar_command(word: &str) -> Option<&'static str> {
    nearest(word, first_words().into_iter())
}

/// Longest word that is compared with others.
const LONGEST_WORD: usize = 64;

fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > LONGEST_WORD {
        return None;
    }
    let near = candidates.map(|name| (distance(word, name), name));
    near.filter(|(edits, name)| *edits <= 2 && *edits * 3 <= name.len()).min().map(|(_, name)| name)
}

/// The page of a command, by its words; of all that begin with them; without words, or for an unknown
/// command, the list of all.
#[must_use]
pub fn page(words: &[String]) -> String {
    if let Some(command) = find_command(words) {
        return page_of(&[command]);
    }
    let begin = words.first().map(String::as_str).unwrap_or_default();
    let group: Vec<&Command> =
        COMMANDS.iter().filter(|command| command.words.split(' ').next() == Some(begin)).collect();
    if group.is_empty() { overview() } else { page_of(&group) }
}

/// Column of the texts beside the names of commands, and beside flags.
const COMMAND_COLUMN: usize = 21;
const FLAG_COLUMN: usize = 28;
/// Longest line.
const WIDTH: usize = 112;

fn overview() -> String {
    let mut page = "kedge-hub: a Kubernetes API server in one process, for edge devices\n\n\
        Usage: kedge-hub COMMAND [FLAGS]        kedge-hub COMMAND --help: what it does, and its flags\n\n"
        .to_owned();
    for command in COMMANDS {
        row(&mut page, &format!("  {}", command.words), COMMAND_COLUMN, command.about);
    }
    page.push('\n');
    row(&mut page, "  -h, --help", COMMAND_COLUMN, "of all commands, or behind a command of that one");
    row(&mut page, "  -V, --version", COMMAND_COLUMN, "the version");
    page.push_str(STATUS);
    page
}

const STATUS: &str = "\n\
    Exit status: 0 done, and for serve after SIGTERM or SIGINT; 1 it failed, or the hub cannot start or has to stop;\n\
    2 for a wrong command line.\n";

fn page_of(commands: &[&Command]) -> String {
    let mut page = String::new();
    for (at, command) in commands.iter().enumerate() {
        let (start, space) =
            (if at == 0 { "Usage:" } else { "      " }, if command.arguments.is_empty() { "" } else { " " });
        let _ = writeln!(page, "{start} kedge-hub {}{space}{} [FLAGS]", command.words, command.arguments);
    }
    page.push('\n');
    for command in commands {
        let text = format!("{}. {}", command.about, command.more);
        match commands.len() {
            1 => {
                let first = text.chars().next().unwrap_or_default().to_uppercase();
                wrap(&mut page, 0, 0, &format!("{first}{}", text.get(1..).unwrap_or_default()));
            }
            _ => row(&mut page, &format!("  {}", command.words), COMMAND_COLUMN, &text),
        }
    }
    let is_taken = |flag: &&Flag| commands.iter().any(|command| command.flags.contains(&flag.name));
    let mut taken = FLAGS.iter().filter(is_taken).peekable();
    if taken.peek().is_some() {
        page.push('\n');
    }
    for flag in taken {
        let short = flag.short.map(|short| format!("-{short}, ")).unwrap_or_default();
        let space = if flag.value.is_empty() { "" } else { " " };
        let of: Vec<&str> = commands
            .iter()
            .filter(|command| command.flags.contains(&flag.name))
            .map(|command| command.words)
            .collect();
        let about = match of.len() < commands.len() {
            true => format!("of {}: {}", of.join(" and "), flag.about),
            false => flag.about.to_owned(),
        };
        row(&mut page, &format!("  {short}--{}{space}{}", flag.name, flag.value), FLAG_COLUMN, &about);
    }
    page.push_str(STATUS);
    page
}

/// A name and its text in a column of its own.
fn row(page: &mut String, name: &str, column: usize, text: &str) {
    page.push_str(name);
    match name.len() + 2 <= column {
        true => wrap(page, name.len(), column, text),
        false => {
            page.push('\n');
            wrap(page, 0, column, text);
        }
    }
}

/// Writes words from `column` on; the line begins at `at`.
fn wrap(page: &mut String, at: usize, column: usize, text: &str) {
    let mut end = at;
    for word in text.split_whitespace() {
        let begins = end <= column && (end == at || end == 0);
        if !begins && end + 1 + word.len() > WIDTH {
            page.push('\n');
            end = 0;
        }
        let spaces = if end <= column { column - end } else { 1 };
        page.extend(std::iter::repeat_n(' ', spaces));
        page.push_str(word);
        end += spaces + word.len();
    }
    page.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::{Command as Parsed, parse};

    /// A valid line of each command.
    const LINES: &[&str] = &[
        "serve",
        "token create",
        "token list",
        "token revoke abcdef",
        "node-kubeconfig edge-1",
        "node-bootstrap edge-1",
        "node list",
        "node revoke edge-1",
        "node readmit edge-1",
        "node rotate edge-1",
        "node decommission edge-1",
        "node accept",
        "denied list",
        "denied lift user.jane",
        "user create jane",
        "user list",
        "user revoke jane",
        "kubeconfig",
        "rollout agent",
        "controllers",
        "ca new",
        "ca status",
        "ca switch",
        "ca retire 1",
        "backup file",
        "restore",
        "completions bash",
    ];

    fn line_of(command: &Command) -> &'static str {
        let words: Vec<&str> = command.words.split(' ').collect();
        let fits = |line: &&&str| line.split(' ').take(words.len()).eq(words.iter().copied());
        LINES.iter().find(fits).unwrap_or_else(|| panic!("LINES has none of {}", command.words))
    }

    /// A valid value of the flag.
    fn given(flag: &Flag) -> String {
        let value = match flag.name {
            "listen" | "advertise" => "127.0.0.1:1",
            "node-monitor-grace-period" => "60s",
            "node-certificate-life" | "expired-node-may-renew" | "life" => "1y",
            "rollout-pre-pull" | "config-rollouts" => "on",
            "log-level" => "info",
            "ttl" => "1h",
            "server" => "https://hub.example:443",
            "uses" | "leave" | "keep" => "1",
            "output" => "json",
            _ if flag.value.is_empty() => return format!(" --{}", flag.name),
            _ => "edge-1",
        };
        format!(" --{} {value}", flag.name)
    }

    #[test]
    fn commands_take_the_flags_of_their_rows() {
        for command in COMMANDS {
            for flag in FLAGS {
                let line = line_of(command).to_owned() + &given(flag);
                let refused = match parse(line.split(' ')) {
                    Ok(_) => false,
                    Err(error) => error.to_string().contains("has no meaning for"),
                };
                // approve needs a beginning of names
                if flag.name != "approve" {
                    assert_eq!(!refused, command.flags.contains(&flag.name), "{line}");
                }
            }
        }
    }

    #[test]
    fn flags_of_rows_are_declared_and_used() {
        for command in COMMANDS {
            for name in command.flags {
                assert!(find_flag(name).is_some(), "{}: {name}", command.words);
            }
        }
        for flag in FLAGS {
            assert!(COMMANDS.iter().any(|command| command.flags.contains(&flag.name)), "{}", flag.name);
        }
    }

    #[test]
    fn page_of_a_command_names_its_flags_alone() {
        for command in COMMANDS {
            let words: Vec<String> = command.words.split(' ').map(str::to_owned).collect();
            let page = page(&words);
            assert!(page.starts_with(&format!("Usage: kedge-hub {}", command.words)), "{page}");
            for flag in FLAGS {
                let row =
                    format!("--{}{}{}", flag.name, if flag.value.is_empty() { "" } else { " " }, flag.value);
                let is_listed = page.lines().any(|line| {
                    line.starts_with("  ") && line.contains(&row) && line.trim_start().starts_with('-')
                });
                assert_eq!(is_listed, command.flags.contains(&flag.name), "{}: {row}\n{page}", command.words);
            }
            assert!(page.lines().all(|line| line.len() <= WIDTH), "{page}");
        }
    }

    #[test]
    fn group_of_commands_has_a_page() {
        let group = page(&["node".to_owned()]);
        assert!(
            group.starts_with("Usage: kedge-hub node list [FLAGS]\n       kedge-hub node revoke NAME"),
            "{group}"
        );
        assert!(!group.contains("node-kubeconfig"), "{group}");
        assert!(group.contains("of node revoke: why"), "{group}");
        for words in [vec![], vec!["nosuch".to_owned()]] {
            let all = page(&words);
            for command in COMMANDS {
                assert!(all.contains(&format!("\n  {} ", command.words)), "{}\n{all}", command.words);
            }
        }
    }

    #[test]
    fn unknown_words_have_suggestions() {
        for (word, expect) in
            [("serv", Some("serve")), ("nodes", Some("node")), ("backp", Some("backup")), ("xyz", None)]
        {
            assert_eq!(similar_command(word), expect, "{word}");
        }
        for (word, expect) in
            [("lisen", Some("listen")), ("datadir", Some("data-dir")), ("x", None), ("wath", Some("watch"))]
        {
            assert_eq!(similar_flag(word), expect, "{word}");
        }
        assert_eq!(similar_flag(&"x".repeat(1000)), None);
    }

    #[test]
    fn help_is_of_the_words_before_it() {
        let shown = |line: &str| match parse(line.split(' ')) {
            Ok(Parsed::Help(page)) => page,
            other => panic!("{line}: {other:?}"),
        };
        assert!(shown("node revoke --help").starts_with("Usage: kedge-hub node revoke NAME"));
        assert_eq!(shown("help node revoke"), shown("node revoke -h"));
        assert_eq!(shown("help"), shown("--help"));
    }
}
