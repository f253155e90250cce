//! The cost of a pull of an image, beside skopeo and umoci with the same registry in the same run, and its
//! writes to the disk.
//!
//! Always holds: a registry on loopback serves from memory, so neither network nor its disk is measured; the
//! two sides alternate; only ratios are reported, because machines differ. skopeo copies blobs and flushes
//! nothing, while the agent's pull also unpacks, and is durable.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use kedge_rig::agent::Agent;
use kedge_rig::error::RigError;
use kedge_rig::programs;
use kedge_rig::registry::FakeRegistry;
use kedge_rig::table::{Figure, quantile};

use crate::pods::{Layout, found, layout, ran};
use crate::setup::io;
use crate::trace;

/// Pulls of each side.
const TRIES: u32 = 5;
const REPOSITORY: &str = "bench/large";
const TAG: &str = "1";
const MIB: f64 = 1_048_576.0;

/// A registry with one image: the two programs that are measured.
pub(crate) struct Registry {
    registry: FakeRegistry,
    layout: Layout,
}

impl Registry {
    pub(crate) fn start(at: &Path) -> Result<Registry, RigError> {
        let layout = layout(at, &[programs::built("kedge")?, programs::built("kedge-hub")?])?;
        let registry = FakeRegistry::start().map_err(io("start a registry"))?;
        // the path by which clients recognize a registry
        registry.put("", "application/json", b"{}");
        serve(&registry, &layout, REPOSITORY, TAG)?;
        Ok(Registry { registry, layout })
    }

    /// The registry's name in a drop-in.
    pub(crate) fn server(&self) -> String {
        self.registry.name()
    }

    pub(crate) fn measure(&self, agent: &Agent, scratch: &Path) -> Result<Vec<Figure>, RigError> {
        let image = format!("{}/{REPOSITORY}:{TAG}", self.server());
        let drop_ins = agent.drop_in_dir().display().to_string();
        let pull = ["images", "pull", &image, "--config-dir", &drop_ins];
        let (mut pulls, mut copies, mut unpacks) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..TRIES {
            let begun = Instant::now();
            kedge(agent, &pull)?;
            pulls.push(begun.elapsed().as_secs_f64());
            // with the image present, the next pull would transfer nothing
            kedge(agent, &["images", "rm", &image])?;
            let (copied, unpacked) = (scratch.join("skopeo"), scratch.join("umoci"));
            copies.push(copy(&image, &copied)?);
            unpacks.push(unpack(&copied, &unpacked)?);
            for path in [copied, unpacked] {
                fs::remove_dir_all(&path).map_err(RigError::io("remove", &path))?;
            }
        }
        let median = |values: &[f64]| quantile(values, 0.5);
        let (pulled, copied, unpacked) = (median(&pulls), median(&copies), median(&unpacks));
        let written = written(agent, &pull, scratch)?;
        let size = self.layout.bytes as f64;
        Ok(vec![
            Figure::new(
                "pods: pull, times skopeo copy",
                pulled / copied,
                "",
                format!(
                    "kedge images pull, {:.1} MiB unpacked: {pulled:.2} s; skopeo, which only copies: {copied:.2} s; medians of {TRIES}",
                    size / MIB
                ),
            ),
            Figure::new(
                "pods: pull, times skopeo copy and umoci unpack",
                pulled / (copied + unpacked),
                "",
                format!("neither of the two flushes; umoci: {unpacked:.2} s"),
            ),
            Figure::new(
                "pods: bytes to disk per byte of an image",
                written.bytes as f64 / size,
                "",
                format!(
                    "strace of kedge images pull; {} flushes, {} files renamed into place",
                    written.syncs,
                    written.renamed.len()
                ),
            ),
        ])
    }
}

/// Serves the image of a layout under a tag, and by its digest; returns the bytes of its blobs.
pub(crate) fn serve(
    registry: &FakeRegistry,
    layout: &Layout,
    repository: &str,
    tag: &str,
) -> Result<u64, RigError> {
    let blobs = layout.path.join("blobs/sha256");
    let mut stored = 0;
    for entry in fs::read_dir(&blobs).map_err(RigError::io("read", &blobs))?.flatten() {
        let bytes = fs::read(entry.path()).map_err(RigError::io("read", &entry.path()))?;
        stored += bytes.len() as u64;
        let path = format!("{repository}/blobs/sha256:{}", entry.file_name().to_string_lossy());
        registry.put(&path, "application/octet-stream", &bytes);
    }
    let text = |field: &str| layout.manifest[field].as_str().unwrap_or_default().to_owned();
    let digest = text("digest");
    let path = blobs.join(digest.trim_start_matches("sha256:"));
    let manifest = fs::read(&path).map_err(RigError::io("read", &path))?;
    for reference in [tag, &digest] {
        registry.put(&format!("{repository}/manifests/{reference}"), &text("mediaType"), &manifest);
    }
    Ok(stored)
}

fn kedge(agent: &Agent, arguments: &[&str]) -> Result<(), RigError> {
    match agent.kedge(arguments)? {
        (0, _, _) => Ok(()),
        (status, _, said) => {
            Err(RigError::Failed { command: arguments.join(" "), status: status.to_string(), said })
        }
    }
}

/// Seconds that skopeo takes for the same image.
fn copy(image: &str, to: &Path) -> Result<f64, RigError> {
    let (from, to) = (format!("docker://{image}"), format!("oci:{}:{TAG}", to.display()));
    let begun = Instant::now();
    ran("skopeo", &["--insecure-policy", "copy", "--src-tls-verify=false", &from, &to])?;
    Ok(begun.elapsed().as_secs_f64())
}

/// Seconds that umoci takes to unpack the image that skopeo copied.
fn unpack(copied: &Path, to: &Path) -> Result<f64, RigError> {
    let image = format!("{}:{TAG}", copied.display());
    let begun = Instant::now();
    ran("umoci", &["raw", "unpack", "--image", &image, &to.display().to_string()])?;
    Ok(begun.elapsed().as_secs_f64())
}

/// The writes of one pull to the disk below the root directory.
fn written(agent: &Agent, pull: &[&str], scratch: &Path) -> Result<trace::Trace, RigError> {
    let prefix = scratch.join("pull.strace");
    let program = agent.command().remove(0);
    let root = agent.root_dir().display().to_string();
    let output = Command::new(found("strace")?)
        .args(["-f", "-ff", "-ttt", "-y", "-e", trace::CALLS, "-o"])
        .arg(&prefix)
        .arg(program)
        .args(pull)
        .args(["--root-dir", &root])
        .env("RUNTIME_DIRECTORY", agent.run_dir())
        .output()
        .map_err(io("run strace"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(RigError::Failed {
            command: format!("strace kedge {}", pull.join(" ")),
            status: output.status.to_string(),
            said,
        });
    }
    let text = trace::collect(&prefix)?;
    let lines: Vec<&str> = text.lines().filter(|line| line.contains(&root)).collect();
    Ok(trace::read(&lines.join("\n"), &[]))
}
