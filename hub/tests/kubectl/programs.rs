//! A real hub in a process of its own, and real kubectl of three versions to judge it.
//!
//! Holds: every test has its own hub (port 0, directory of its own) and its own kubectl cache and home, so tests run
//! side by side and leave nothing behind. No command runs for ever. `hub/tests/kubectl/fetch` brings the kubectls;
//! without them a test says loudly that it was skipped, and under CI=true it fails.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// No command of a test takes this long, even on a machine that does other things.
const COMMAND_LIMIT: Duration = Duration::from_secs(120);
/// The judged versions.
pub(crate) const VERSIONS: [&str; 3] = ["1.20", "1.32", "1.36"];

/// A running hub; killed when dropped.
pub(crate) struct Hub {
    child: Child,
    pub(crate) data_dir: PathBuf,
    pub(crate) url: String,
    flags: Vec<String>,
}

/// What a command said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// One kubectl with one kubeconfig.
pub(crate) struct Kubectl {
    pub(crate) version: &'static str,
    program: PathBuf,
    kubeconfig: PathBuf,
    home: PathBuf,
}

/// A directory of its own below the system's, empty.
pub(crate) fn directory(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("kedge-test-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

/// Beside the directory, so that it outlives a directory that could not be made.
fn log_of(data_dir: &Path) -> PathBuf {
    let mut path = data_dir.as_os_str().to_owned();
    path.push(".log");
    PathBuf::from(path)
}

/// Runs a test with every kubectl there is; each run has a hub of its own.
pub(crate) fn with_every_kubectl(name: &str, test: impl Fn(&Hub, &Kubectl)) {
    for version in VERSIONS {
        let Some(program) = find(version) else { continue };
        let hub = Hub::start(&format!("{name}-{version}"));
        test(&hub, &hub.kubectl(version, program));
    }
}

fn find(version: &str) -> Option<PathBuf> {
    let directory = std::env::var_os("KEDGE_KUBECTL_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/kubectl"), PathBuf::from);
    let program = directory.join(version).join("kubectl");
    if program.exists() {
        return Some(program);
    }
    let text = format!("kubectl {version} is not in {}: run hub/tests/kubectl/fetch\n", directory.display());
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{text}");
    // past the test harness, which hides what passing tests print
    let _ = std::io::stderr().write_all(format!("SKIPPED: {text}").as_bytes());
    None
}

impl Hub {
    /// A hub on a new directory and a free port of 127.0.0.1.
    pub(crate) fn start(name: &str) -> Hub {
        Hub::start_in(directory(name), &[])
    }

    /// A hub on this directory, with more flags.
    pub(crate) fn start_in(data_dir: PathBuf, flags: &[&str]) -> Hub {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kedge-hub"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(&data_dir).args(flags);
        fs::create_dir_all(data_dir.parent().unwrap()).unwrap();
        let log = fs::File::create(log_of(&data_dir)).unwrap();
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let lines = lines_of(child.stdout.take().unwrap());
        let mut url = String::new();
        loop {
            let Ok(line) = lines.recv_timeout(COMMAND_LIMIT) else {
                let log = fs::read_to_string(log_of(&data_dir)).unwrap_or_default();
                panic!("the hub did not start: {log}");
            };
            if let Some(found) = line.strip_prefix("listening: ") {
                url = found.to_owned();
            }
            if line.starts_with("kubeconfig: ") {
                break;
            }
        }
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        Hub { child, data_dir, url, flags }
    }

    /// Ends the hub with a signal (`TERM`, `KILL`), and says how it ended and how long that took.
    pub(crate) fn stop(&mut self, signal: &str) -> (Option<i32>, Duration) {
        let asked = Instant::now();
        if let Some(status) = self.child.try_wait().unwrap() {
            return (status.code(), Duration::ZERO);
        }
        Command::new("kill").arg(format!("-{signal}")).arg(self.child.id().to_string()).status().unwrap();
        let status = wait(&mut self.child);
        (status, asked.elapsed())
    }

    /// Ends the hub with a signal and starts it again on the same directory (on another port).
    pub(crate) fn restart(&mut self, signal: &str) {
        self.stop(signal);
        let flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
        let mut next = Hub::start_in(self.data_dir.clone(), &flags);
        std::mem::swap(self, &mut next);
        // the old one has ended, and the directory is the new one's
        next.data_dir = PathBuf::new();
    }

    /// The administrator's kubectl of this version, if it was fetched.
    pub(crate) fn find_kubectl(&self, version: &'static str) -> Option<Kubectl> {
        find(version).map(|program| self.kubectl(version, program))
    }

    /// The administrator's kubectl.
    fn kubectl(&self, version: &'static str, program: PathBuf) -> Kubectl {
        let home = self.data_dir.join(format!("home-{version}"));
        fs::create_dir_all(&home).unwrap();
        Kubectl { version, program, kubeconfig: self.data_dir.join("admin.kubeconfig"), home }
    }

    /// What the hub logged so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(log_of(&self.data_dir)).unwrap()
    }

    /// Runs another command of the hub's program on this hub's directory.
    pub(crate) fn command(&self, words: &[&str]) -> Said {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kedge-hub"));
        command.args(words).arg("--data-dir").arg(&self.data_dir);
        run(command, "")
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() && !self.data_dir.as_os_str().is_empty() {
            eprintln!("--- the hub's log\n{}", self.log());
            return;
        }
        if self.data_dir.as_os_str().is_empty() {
            return;
        }
        let _ = fs::remove_dir_all(&self.data_dir);
        let _ = fs::remove_file(log_of(&self.data_dir));
    }
}

impl Kubectl {
    /// The same kubectl as the node `name`, with credentials of `kedge-hub node-kubeconfig`.
    pub(crate) fn as_node(&self, hub: &Hub, name: &str) -> Kubectl {
        let said = hub.command(&["node-kubeconfig", name]);
        assert_eq!(said.code, Some(0), "{}", said.err);
        self.with_kubeconfig(name, &said.out)
    }

    /// The same kubectl with another kubeconfig, and a home of its own.
    pub(crate) fn with_kubeconfig(&self, name: &str, text: &str) -> Kubectl {
        let home = self.home.join(name);
        fs::create_dir_all(&home).unwrap();
        let kubeconfig = home.join("kubeconfig");
        fs::write(&kubeconfig, text).unwrap();
        Kubectl { version: self.version, program: self.program.clone(), kubeconfig, home }
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(words(line));
        command.arg("--cache-dir").arg(self.home.join("cache"));
        command.env_clear().env("HOME", &self.home).env("PATH", std::env::var_os("PATH").unwrap());
        command.current_dir(&self.home);
        command
    }

    /// Runs a command line (words in single quotes stay together) with an editor in the environment.
    pub(crate) fn with_editor(&self, editor: &str, line: &str) -> Said {
        let mut command = self.command(line);
        command.env("KUBE_EDITOR", editor);
        run(command, "")
    }

    /// Runs a command line.
    pub(crate) fn run(&self, line: &str) -> Said {
        run(self.command(line), "")
    }

    /// Runs a command line with this on its standard input.
    pub(crate) fn run_with(&self, line: &str, input: &str) -> Said {
        run(self.command(line), input)
    }

    /// Runs a command line that must succeed; its output.
    #[track_caller]
    pub(crate) fn ok(&self, line: &str) -> String {
        self.ok_with(line, "")
    }

    /// Runs a command line with this on its standard input.
    #[track_caller]
    pub(crate) fn ok_with(&self, line: &str, input: &str) -> String {
        let said = run(self.command(line), input);
        assert_eq!(said.code, Some(0), "kubectl {} {line}\n{}{}", self.version, said.out, said.err);
        said.out
    }

    /// Runs a command line that must fail; what it said on standard error.
    #[track_caller]
    pub(crate) fn fails(&self, line: &str) -> String {
        self.fails_with(line, "")
    }

    /// Runs a command line with an input it must fail on.
    #[track_caller]
    pub(crate) fn fails_with(&self, line: &str, input: &str) -> String {
        let said = run(self.command(line), input);
        assert_ne!(said.code, Some(0), "kubectl {} {line}\n{}{}", self.version, said.out, said.err);
        said.err
    }

    /// Runs a command line again and again until it says what is waited for.
    #[track_caller]
    pub(crate) fn until(&self, line: &str, expect: impl Fn(&Said) -> bool) -> Said {
        let end = Instant::now() + COMMAND_LIMIT;
        loop {
            let said = self.run(line);
            if expect(&said) {
                return said;
            }
            assert!(Instant::now() < end, "kubectl {} {line}: still\n{}{}", self.version, said.out, said.err);
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Writes a file beside which kubectl runs.
    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.home.join(name), content).unwrap();
    }

    /// Starts a command that goes on, such as a watch.
    pub(crate) fn start(&self, line: &str) -> Running {
        let mut command = self.command(line);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let lines = lines_of(child.stdout.take().unwrap());
        Running { stdin: child.stdin.take(), child, lines }
    }
}

/// A command that goes on until dropped.
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

    /// The next line it prints, if it comes within so many seconds.
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

fn run(mut command: Command, input: &str) -> Said {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (out, err) = (read_all(child.stdout.take().unwrap()), read_all(child.stderr.take().unwrap()));
    // a command that does not read its input is no failure of the test
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let code = wait(&mut child);
    Said { code, out: out.join().unwrap(), err: err.join().unwrap() }
}

fn wait(child: &mut Child) -> Option<i32> {
    let end = Instant::now() + COMMAND_LIMIT;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if Instant::now() > end {
            let _ = child.kill();
            panic!("a command was still running after {COMMAND_LIMIT:?}");
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn read_all(mut from: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut text = Vec::new();
        let _ = from.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    })
}

fn lines_of(from: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

/// Asserts that a text contains every part; prints the text if not.
#[track_caller]
pub(crate) fn contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
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
