//! One board of a test: a directory with the state of a node that was used, the agent's real binary, and an
//! API server it can reach.
//!
//! Always holds: the state was written by the agent itself (a last-known-good, a bad config, another in its
//! trial); every process ends with its test, and every wait has a limit.

use crate::api::{Api, NODE};
use kedge_rig::Scratch;
use serde_json::Value;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const HEADER: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
/// Longest wait for anything an agent does, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// A start takes this long at most until the first renewal of the Lease, whatever is found on disk.
pub(crate) const SANE_START: Duration = Duration::from_secs(10);
/// Starts until an agent keeps running: one that finds the state, and one or two that adopt a config.
const STARTS: usize = 4;
/// The user that runs the agent when root should not.
const NOBODY: u32 = 65_534;

/// A board.
pub(crate) struct Board {
    // first field, so dropped first: the agent ends before its server and folder
    child: Option<Child>,
    pub(crate) api: Api,
    folder: Scratch,
    program: PathBuf,
    as_nobody: bool,
    root: PathBuf,
}

/// The agent's state, file by file, below its root directory; and the hub's data.
pub(crate) struct State {
    files: Vec<(PathBuf, Vec<u8>)>,
    hub: Scratch,
    /// The last-known-good.
    pub(crate) good: String,
    /// In its trial.
    pub(crate) tried: String,
    /// Does not parse.
    pub(crate) bad: String,
    /// Pushed by a test.
    pub(crate) mended: String,
}

impl State {
    /// The state of a node that promoted one config, rolled one back, and is trying a third.
    pub(crate) fn used() -> &'static Self {
        static STATE: OnceLock<State> = OnceLock::new();
        STATE.get_or_init(|| {
            let mut board = Board::new();
            let create = |name: &str, fields: &str| board.api.create(name, &format!("{HEADER}{fields}\n"));
            let good = create("good", "configTrialDuration: 0s\nmaxPods: 201");
            let bad = create("bad", "maxPods: many");
            let tried = create("tried", "configTrialDuration: 1h\nmaxPods: 202");
            let mended = create("mended", "configTrialDuration: 1h\nmaxPods: 203");
            board.run_until("it is registered", |_| true);
            board.api.assign("good");
            board.run_until("good is last-known-good", |status| {
                status["config"]["status"]["lastKnownGood"]["configMap"]["uid"] == good.as_str()
            });
            board.api.assign("bad");
            board.run_until("bad is rolled back", |status| status["config"]["bad"][0]["uid"] == bad.as_str());
            board.api.assign("tried");
            board.run_until("tried runs", |status| active(status) == tried);
            board.stop();
            board.record_exit();
            let mut files = Vec::new();
            gather(&board.root, Path::new(""), &mut files);
            files.push((
                "evidence-seen.json".into(),
                br#"{"version":1,"watchdogBootId":"","panics":[]}"#.to_vec(),
            ));
            Self { files, hub: board.api.stop(), good, tried, bad, mended }
        })
    }

    /// The checkpoint of this UID.
    pub(crate) fn checkpoint(&self, uid: &str) -> String {
        let directory = format!("config/checkpoints/{uid}");
        let found = self.files.iter().find(|(path, _)| path.starts_with(&directory));
        found.unwrap_or_else(|| panic!("no checkpoint of {uid}")).0.display().to_string()
    }

    pub(crate) fn write(&self, root: &Path) {
        for (path, bytes) in &self.files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("below the root")).expect("a directory");
            fs::write(&path, bytes).expect("a file");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("our own file");
        }
    }
}

fn gather(root: &Path, below: &Path, files: &mut Vec<(PathBuf, Vec<u8>)>) {
    for entry in fs::read_dir(root.join(below)).expect("the agent's directory") {
        let entry = entry.expect("an entry");
        let path = below.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            gather(root, &path, files);
        } else {
            files.push((path, fs::read(entry.path()).expect("a file of the agent's")));
        }
    }
}

/// UID of the configuration in use; empty for the local one.
pub(crate) fn active(status: &Value) -> &str {
    status.pointer("/config/status/active/configMap/uid").and_then(Value::as_str).unwrap_or_default()
}

impl Board {
    /// A node that never ran.
    pub(crate) fn new() -> Self {
        Self::of(Api::start(None))
    }

    /// A node that has run as [`State::used`] says.
    pub(crate) fn used() -> Self {
        Self::of(Api::start(Some(&State::used().hub.join("data"))))
    }

    pub(crate) fn of(api: Api) -> Self {
        let folder = Scratch::new("corrupt").expect("a directory");
        folder.write("kubeconfig", api.node_kubeconfig());
        let root = folder.join("root");
        fs::create_dir(&root).expect("our own folder");
        let program = PathBuf::from(env!("CARGO_BIN_EXE_kedge"));
        Self { child: None, api, folder, program, as_nobody: false, root }
    }

    /// The same again: a new directory with the state as it was.
    pub(crate) fn renew(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(self.folder.join("run"));
        let _ = fs::remove_file(self.log_path());
        let _ = make_removable(&self.root);
        let _ = fs::remove_dir_all(&self.root);
        let _ = fs::remove_file(&self.root);
        fs::create_dir(&self.root).expect("it was removed");
        State::used().write(&self.root);
        self.api.assign("tried");
    }

    /// From now on the user `nobody` runs the agent and owns its directories.
    pub(crate) fn run_as_nobody(&mut self) {
        self.as_nobody = true;
        // `nobody` can read it here, but perhaps not in the build directory
        let program = self.folder.join("kedge");
        if !program.exists() {
            // copied by another process: while a child of another test has inherited our descriptor of a
            // copy, the kernel refuses to run it
            let copied = Command::new("cp").arg(&self.program).arg(&program).status();
            assert!(copied.is_ok_and(|status| status.success()), "a copy of the program");
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("our own file");
            self.program = program;
        }
        fs::create_dir_all(self.folder.join("run")).expect("our own folder");
        give_away(&self.folder, NOBODY);
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    fn log_path(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// Everything all its agents wrote.
    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.log_path()).unwrap_or_default()).into_owned()
    }

    // ------------------------------------------------------------------------------------------ the process

    pub(crate) fn start(&mut self) {
        assert!(self.child.is_none(), "it runs already");
        self.api.begin();
        let log = fs::OpenOptions::new().create(true).append(true).open(self.log_path()).expect("a log");
        let mut command = self.command(&["agent", "--config-dir", "", "--healthz-port", "0"]);
        command.arg("--kubeconfig").arg(self.folder.join("kubeconfig")).args(["--hostname-override", NODE]);
        // without containers: on a machine where crun cannot run, the node would become less healthy than
        // before, and no config would be promoted
        command.args(["--crun", ""]);
        if self.as_nobody {
            command.uid(NOBODY).gid(NOBODY);
        }
        self.child =
            Some(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().expect("the agent"));
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .arg("--root-dir")
            .arg(&self.root)
            .arg("--run-dir")
            .arg(self.folder.join("run"));
        for name in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "RUNTIME_DIRECTORY", "JOURNAL_STREAM"] {
            command.env_remove(name);
        }
        command
    }

    /// Records the exit as `ExecStopPost=` does.
    fn record_exit(&self) {
        let status = self.command(&["record-exit"]).env("SERVICE_RESULT", "success").status().expect("kedge");
        assert!(status.success());
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut().and_then(|child| child.try_wait().expect("our own child"));
        if status.is_some() {
            self.child = None;
        }
        status
    }

    /// SIGTERM; it must end with code 0.
    #[track_caller]
    pub(crate) fn stop(&mut self) {
        let child = self.child.as_ref().expect("it runs");
        let killed = Command::new("kill").arg(child.id().to_string()).status().expect("kill");
        assert!(killed.success());
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if let Some(status) = self.ended() {
                assert!(status.success(), "{status}\n{}", self.log());
                return;
            }
            pause();
        }
        panic!("it does not stop\n{}", self.log());
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// `kedge status --output json`, from the socket; None while no agent answers.
    pub(crate) fn status(&self) -> Option<Value> {
        let answer = kedge::local::client::get(&self.folder.join("run/kedge.sock"), "/status").ok()?;
        (answer.status == 200).then(|| serde_json::from_slice(&answer.body).expect("JSON"))
    }

    /// Starts the agent, and starts it again after each exit of its own choice, as a supervisor does, until
    /// it is in the awaited state, renews its Lease, and has reported to the API server the condition that it
    /// shows locally. Returns the status that it shows locally then, and how long the first renewal took.
    #[track_caller]
    pub(crate) fn run_until(&mut self, awaited: &str, is_so: impl Fn(&Value) -> bool) -> (Value, Duration) {
        let mut first_renewal = None;
        let mut starts = 0;
        let begun = Instant::now();
        let mut started = begun;
        while begun.elapsed() < PATIENCE {
            if self.child.is_none() {
                starts += 1;
                assert!(starts <= STARTS, "{awaited}: it restarts again and again\n{}", self.log());
                started = Instant::now();
                self.start();
            }
            if let Some(status) = self.ended() {
                assert!(status.success(), "{awaited}: the agent ended with {status}\n{}", self.log());
                continue;
            }
            if self.api.renewals() > 0 {
                first_renewal.get_or_insert_with(|| started.elapsed());
                let told = self.api.config_ok();
                let is_told = |status: &Value| status["config"]["condition"]["status"] == told;
                if let Some(status) = self.status().filter(|status| is_so(status) && is_told(status)) {
                    return (status, first_renewal.unwrap_or_default());
                }
            }
            pause();
        }
        let status = self.status().unwrap_or_default();
        panic!("{awaited}: not so after {PATIENCE:?}: {status:#}\n{}", self.log());
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        self.kill();
        let _ = make_removable(&self.root);
    }
}

fn pause() {
    std::thread::sleep(Duration::from_millis(10));
}

/// Makes a tree of directories ours again.
pub(crate) fn make_removable(path: &Path) -> io::Result<()> {
    if path.symlink_metadata()?.is_dir() {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                make_removable(&entry.path())?;
            }
        }
    }
    Ok(())
}

fn give_away(path: &Path, owner: u32) {
    let is_directory = path.symlink_metadata().expect("it is there").is_dir();
    std::os::unix::fs::lchown(path, Some(owner), Some(owner)).expect("we are root");
    if is_directory {
        chown(path, Some(owner), Some(owner)).expect("we are root");
        for entry in fs::read_dir(path).expect("we are root") {
            give_away(&entry.expect("an entry").path(), owner);
        }
    }
}
