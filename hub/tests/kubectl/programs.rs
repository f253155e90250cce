//! kubectl of three versions, each with a home, a cache and a kubeconfig of its own.
//!
//! `hub/tests/kubectl/fetch` downloads the programs; if one is missing, its tests are skipped with a message,
//! and under CI=true they fail.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::{Duration, Instant};

use kedge_rig::programs;
use serde_json::{Value, json};

use crate::server::{COMMAND_LIMIT, Client, Hub, Outcome, lines_of, run, wait};

pub(crate) const VERSIONS: [&str; 3] = ["1.20", "1.32", "1.36"];
pub(crate) const NODES: &str = "/api/v1/nodes";
pub(crate) const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Flags of a hub that calls no node silent: the tests' nodes renew nothing.
pub(crate) const PATIENT: [&str; 2] = ["--node-monitor-grace-period", "1h"];

/// One kubectl with one kubeconfig.
pub(crate) struct Kubectl {
    pub(crate) version: &'static str,
    program: PathBuf,
    kubeconfig: PathBuf,
    home: PathBuf,
}

/// Runs a test with every available kubectl; each run has a hub of its own.
pub(crate) fn with_every_kubectl(test: impl Fn(&Hub, &Kubectl)) {
    VERSIONS.into_iter().for_each(|version| with(version, &[], &test));
}

/// Runs a test with the newest kubectl only: for answers of the hub that the older ones request in the same
/// way and print alike.
pub(crate) fn with_newest_kubectl(test: impl Fn(&Hub, &Kubectl)) {
    with(VERSIONS[VERSIONS.len() - 1], &[], &test);
}

/// Runs a test with every available kubectl and hubs that call no node silent meanwhile.
pub(crate) fn with_patient_hubs(test: impl Fn(&Hub, &Kubectl)) {
    VERSIONS.into_iter().for_each(|version| with(version, &PATIENT, &test));
}

/// The same with the newest kubectl only.
pub(crate) fn with_newest_patient_hub(test: impl Fn(&Hub, &Kubectl)) {
    with(VERSIONS[VERSIONS.len() - 1], &PATIENT, &test);
}

fn with(version: &'static str, flags: &[&str], test: &impl Fn(&Hub, &Kubectl)) {
    let Some(program) = find(version) else { return };
    let hub = Hub::with(flags);
    test(&hub, &hub.kubectl(version, program));
}

fn find(version: &str) -> Option<PathBuf> {
    match programs::kubectl_of(version) {
        Ok(program) => Some(program),
        Err(error) => {
            assert!(std::env::var("CI").as_deref() != Ok("true"), "{error}");
            // straight to standard error: the test harness hides what passing tests print
            let _ = std::io::stderr().write_all(format!("SKIPPED: {error}\n").as_bytes());
            None
        }
    }
}

/// The newest kubectl with another server's kubeconfig, if it was fetched; `folder` gets its home.
pub(crate) fn kubectl_for(kubeconfig: &std::path::Path, folder: &std::path::Path) -> Option<Kubectl> {
    let version = VERSIONS[VERSIONS.len() - 1];
    let home = folder.join("home");
    fs::create_dir_all(&home).unwrap();
    find(version).map(|program| Kubectl { version, program, kubeconfig: kubeconfig.to_owned(), home })
}

impl Hub {
    /// The administrator's kubectl of this version, if it was fetched.
    pub(crate) fn find_kubectl(&self, version: &'static str) -> Option<Kubectl> {
        find(version).map(|program| self.kubectl(version, program))
    }

    /// The object that is stored at a path. Reading it with kubectl would take twenty times as much processor
    /// time.
    #[track_caller]
    pub(crate) fn stored(&self, path: &str) -> Value {
        self.admin().get(path).expect(200)
    }

    /// The ConfigMap of this name.
    #[track_caller]
    pub(crate) fn map(&self, name: &str) -> Value {
        self.stored(&format!("{MAPS}/{name}"))
    }

    fn kubectl(&self, version: &'static str, program: PathBuf) -> Kubectl {
        let home = self.data_dir.join(format!("home-{version}"));
        fs::create_dir_all(&home).unwrap();
        Kubectl { version, program, kubeconfig: self.data_dir.join("admin.kubeconfig"), home }
    }
}

impl Kubectl {
    /// The same kubectl as the node `name`, with credentials of `kedge-hub node-kubeconfig`.
    pub(crate) fn as_node(&self, hub: &Hub, name: &str) -> Kubectl {
        let outcome = hub.command(&["node-kubeconfig", name]);
        assert_eq!(outcome.code, Some(0), "{}", outcome.err);
        self.with_kubeconfig(name, &outcome.out)
    }

    /// The same kubectl with another kubeconfig, and a home of its own.
    pub(crate) fn with_kubeconfig(&self, name: &str, text: &str) -> Kubectl {
        let home = self.home.join(name);
        fs::create_dir_all(&home).unwrap();
        let kubeconfig = home.join("kubeconfig");
        fs::write(&kubeconfig, text).unwrap();
        Kubectl { version: self.version, program: self.program.clone(), kubeconfig, home }
    }

    /// A client with the same credentials, for steps that are not made with kubectl.
    pub(crate) fn client(&self, hub: &Hub) -> Client {
        Client::new(&fs::read_to_string(&self.kubeconfig).unwrap(), &hub.url)
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(words(line));
        command.arg("--cache-dir").arg(self.home.join("cache"));
        command.env_clear().env("HOME", &self.home).env("PATH", std::env::var_os("PATH").unwrap());
        // garbage collection takes a fifth of the processor time of such a short process; it takes no more
        // memory than before
        command.env("GOGC", "off");
        command.current_dir(&self.home);
        command
    }

    /// The process of a command line, not started.
    pub(crate) fn process(&self, line: &str) -> Command {
        self.command(line)
    }

    /// Runs a line in a shell, in which `kubectl` is this one.
    pub(crate) fn shell(&self, line: &str) -> Outcome {
        let function =
            "kubectl() { \"$KUBECTL\" --kubeconfig \"$KUBECONFIG\" --cache-dir \"$HOME/cache\" \"$@\"; }";
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(format!("{function}\n{line}")).env("HOME", &self.home);
        command.env("KUBECTL", &self.program).env("KUBECONFIG", &self.kubeconfig).env("GOGC", "off");
        run(command, "")
    }

    /// Runs a command line (words in single quotes stay together) with an editor in the environment.
    pub(crate) fn with_editor(&self, editor: &str, line: &str) -> Outcome {
        let mut command = self.command(line);
        command.env("KUBE_EDITOR", editor);
        run(command, "")
    }

    /// Runs a command line.
    pub(crate) fn run(&self, line: &str) -> Outcome {
        run(self.command(line), "")
    }

    /// Runs a command line with this on its standard input.
    pub(crate) fn run_with(&self, line: &str, input: &str) -> Outcome {
        run(self.command(line), input)
    }

    /// Runs a command line that must succeed; returns its output.
    #[track_caller]
    pub(crate) fn ok(&self, line: &str) -> String {
        self.ok_with(line, "")
    }

    /// Runs a command line with this on its standard input.
    #[track_caller]
    pub(crate) fn ok_with(&self, line: &str, input: &str) -> String {
        let outcome = run(self.command(line), input);
        assert_eq!(outcome.code, Some(0), "kubectl {} {line}\n{}{}", self.version, outcome.out, outcome.err);
        outcome.out
    }

    /// Runs a command line that must fail; returns its standard error.
    #[track_caller]
    pub(crate) fn fails(&self, line: &str) -> String {
        self.fails_with(line, "")
    }

    /// The same with this on its standard input.
    #[track_caller]
    pub(crate) fn fails_with(&self, line: &str, input: &str) -> String {
        let outcome = run(self.command(line), input);
        assert_ne!(outcome.code, Some(0), "kubectl {} {line}\n{}{}", self.version, outcome.out, outcome.err);
        outcome.err
    }

    /// Repeats a command line until `expect` returns true.
    #[track_caller]
    pub(crate) fn until(&self, line: &str, expect: impl Fn(&Outcome) -> bool) -> Outcome {
        let end = Instant::now() + COMMAND_LIMIT;
        loop {
            let outcome = self.run(line);
            if expect(&outcome) {
                return outcome;
            }
            assert!(
                Instant::now() < end,
                "kubectl {} {line}: still\n{}{}",
                self.version,
                outcome.out,
                outcome.err
            );
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Writes a file in the directory in which kubectl runs.
    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.home.join(name), content).unwrap();
    }

    /// Starts a command that keeps running, such as a watch.
    pub(crate) fn start(&self, line: &str) -> Running {
        let mut command = self.command(line);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let lines = lines_of(child.stdout.take().unwrap());
        Running { stdin: child.stdin.take(), child, lines }
    }
}

/// A command that runs until this is dropped.
pub(crate) struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Running {
    /// The next line it prints.
    #[track_caller]
    pub(crate) fn line(&self) -> String {
        self.lines.recv_timeout(COMMAND_LIMIT).expect("a line in time")
    }

    /// The next line that it prints within so many seconds.
    pub(crate) fn line_within(&self, secs: u64) -> Option<String> {
        self.lines.recv_timeout(Duration::from_secs(secs)).ok()
    }

    /// Waits until it ends by itself.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        wait(&mut self.child)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Splits a command line at blanks; single quotes keep words together.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for character in line.chars() {
        match character {
            '\'' => quoted = !quoted,
            ' ' | '\n' if !quoted => words.push(String::new()),
            other => words.last_mut().unwrap().push(other),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Creates the Node `name` with that node's own credentials, and returns a kubectl with them.
pub(crate) fn registered(hub: &Hub, kubectl: &Kubectl, name: &str) -> Kubectl {
    let node = kubectl.as_node(hub, name);
    let labels = json!({"kubernetes.io/hostname": name, "site": "quarry"});
    node.client(hub).post(NODES, &json!({"metadata": {"name": name, "labels": labels}})).expect(201);
    node
}

pub(crate) fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Asserts that a text contains every part; prints the text if not.
#[track_caller]
pub(crate) fn contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}

/// Repeats a step until it returns true.
#[track_caller]
pub(crate) fn until(mut step: impl FnMut() -> bool) {
    let end = Instant::now() + COMMAND_LIMIT;
    while !step() {
        assert!(Instant::now() < end, "still not after {COMMAND_LIMIT:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// The cells of a table, line by line: columns are two or more blanks apart.
pub(crate) fn table(text: &str) -> Vec<Vec<String>> {
    text.lines()
        .map(|line| {
            line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
        })
        .collect()
}
