//! A node's directory, and `kedge images` on it.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use kedge_rig::Scratch;
use kedge_rig::registry::FakeRegistry;
use serde_json::{Value, json};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_kedge");

/// A node that trusts some registries in plain HTTP.
pub(crate) struct Node {
    pub(crate) scratch: Scratch,
    root: PathBuf,
}

impl Node {
    /// `None` without root.
    pub(crate) fn new(name: &str, registries: &[&FakeRegistry]) -> Option<Self> {
        if !is_root() {
            return None;
        }
        let scratch = Scratch::new(name).unwrap();
        let insecure: Vec<String> = registries.iter().map(|registry| registry.name()).collect();
        let root = scratch.join("root");
        let node = Self { scratch, root };
        node.configure(&json!({"insecureRegistries": insecure}));
        Some(node)
    }

    /// A node with its root directory elsewhere.
    pub(crate) fn at(root: &Path) -> Option<Self> {
        let node = Self::new("node", &[])?;
        Some(Self { root: root.to_path_buf(), ..node })
    }

    pub(crate) fn configure(&self, images: &Value) {
        let config = json!({"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "kedge": {"images": images}});
        self.scratch.write("config.yaml", config.to_string());
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.root.clone()
    }

    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .arg("images")
            .args(words)
            .args(["--config-dir", "", "--output", "json", "--root-dir"])
            .arg(self.root())
            .arg("--config")
            .arg(self.scratch.join("config.yaml"))
            .arg("--preloaded-images")
            .arg(self.scratch.join("preloaded"))
            .stdin(Stdio::null());
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// The command's output; it must succeed.
    #[track_caller]
    pub(crate) fn ok(&self, words: &[&str]) -> Value {
        let output = self.run(words);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {errors}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Why the command failed; it must fail, by its own words.
    #[track_caller]
    pub(crate) fn fails(&self, words: &[&str], expect: &str) {
        let output = self.run(words);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {errors}");
        assert!(errors.contains(expect), "{words:?}: {errors}");
        let is_plain = |character: char| !character.is_control() || character == '\n';
        assert!(errors.chars().all(is_plain), "{words:?}: nobody's terminal is commanded: {errors:?}");
        assert!(errors.len() < 2000, "{words:?}: {} bytes", errors.len());
    }

    /// Names below `images`, with a record or without.
    pub(crate) fn names(&self, directory: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.root().join("images").join(directory)) else { return Vec::new() };
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
        names.sort();
        names
    }

    /// Nothing of an image that failed is left, but perhaps blobs for the next try.
    #[track_caller]
    pub(crate) fn has_nothing(&self) {
        assert_eq!(self.names("records"), [""; 0]);
        assert_eq!(self.names("layers"), [""; 0]);
        assert_eq!(self.names("configs"), [""; 0]);
        assert_eq!(self.names("claims"), [""; 0]);
    }

    /// The directories of an image's layers, the base first.
    pub(crate) fn layers(&self, image: &Value) -> Vec<PathBuf> {
        let hex = image["id"].as_str().unwrap().trim_start_matches("sha256:").to_owned();
        let record = fs::read(self.root().join(format!("images/records/{hex}.json"))).unwrap();
        let record: Value = serde_json::from_slice(&record).unwrap();
        let chains = record["layers"].as_array().unwrap().iter();
        let names = chains
            .map(|layer| layer["chain"].as_str().unwrap().trim_start_matches("sha256:")[..24].to_owned());
        names.map(|name| self.root().join("images/layers").join(name)).collect()
    }

    /// Everything below an image's root as a container would see it, in `find`'s format.
    pub(crate) fn listing(&self, image: &Value, format: &str) -> String {
        let layers = self.layers(image);
        let mount = self.scratch.join("mount");
        fs::create_dir_all(&mount).unwrap();
        let lower: Vec<String> = layers.iter().rev().map(|path| path.display().to_string()).collect();
        // overlayfs refuses a single lower layer without an upper one
        let empty = self.scratch.join("empty");
        fs::create_dir_all(&empty).unwrap();
        let script = format!(
            "mount -t overlay overlay -o lowerdir={}:{} '{}' && cd '{}' && find . -mindepth 1 -printf '{format}\\n' | sort",
            lower.join(":"),
            empty.display(),
            mount.display(),
            mount.display()
        );
        let output = Command::new("unshare").args(["-m", "sh", "-c", &script]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

/// A small disk that other processes see, too; [`SmallDisk::inside`] runs programs in it.
pub(crate) struct SmallDisk {
    holder: Child,
    pub(crate) path: PathBuf,
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

impl SmallDisk {
    pub(crate) fn new(path: &Path, options: &str) -> Self {
        fs::create_dir_all(path).unwrap();
        let script = format!("mount -t tmpfs -o {options} tmpfs \"$1\" && echo mounted && exec sleep 3600");
        let mut holder = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "unshare", "-m", "sh", "-c", &script, "sh"])
            .arg(path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "mounted\n");
        Self { holder, path: path.to_path_buf() }
    }

    /// A path on it, for a process outside.
    pub(crate) fn outside(&self, path: &str) -> PathBuf {
        let inside = self.path.strip_prefix("/").unwrap();
        Path::new(&format!("/proc/{}/root", self.holder.id())).join(inside).join(path)
    }

    pub(crate) fn inside(&self, command: &Command) -> Command {
        let mut nsenter = Command::new("nsenter");
        nsenter.args(["-m", "-t", &self.holder.id().to_string(), PROGRAM]).args(command.get_args());
        nsenter.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        nsenter
    }

    /// Names below `images` of a node in `root`.
    pub(crate) fn names(&self, directory: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.outside("root/images").join(directory)) else {
            return Vec::new();
        };
        let names = entries.flatten().map(|entry| entry.file_name().into_string().unwrap());
        names.filter(|name| !name.starts_with('.')).collect()
    }

    /// Fills the rest of the disk with a file that is not the agent's.
    pub(crate) fn fill(&self) -> PathBuf {
        let path = self.outside("filler");
        let mut file = fs::File::create(&path).unwrap();
        while file.write_all(&[7; 4096]).is_ok() {}
        path
    }
}

fn is_root() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap();
    let is_root = ids.split_whitespace().nth(1) == Some("0");
    if !is_root {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "CI runs these tests as root");
        kedge_rig::power_cut::print_past_test_runner("SKIPPED: unpacking layers needs root");
    }
    is_root
}

/// A file beside the node that no layer may change.
pub(crate) fn sentinel(scratch: &Scratch) -> (PathBuf, impl Fn() + use<>) {
    let path = scratch.write("outside/sentinel", "untouched");
    let checked = path.clone();
    let check = move || {
        assert_eq!(fs::read_to_string(&checked).unwrap(), "untouched");
        let beside = fs::read_dir(checked.parent().unwrap()).unwrap().count();
        assert_eq!(beside, 1, "nothing was written beside it");
    };
    (path, check)
}

/// A path without its first slash: as an archive has it.
pub(crate) fn relative(path: &Path) -> String {
    path.display().to_string().trim_start_matches('/').to_owned()
}
