//! Layers as bytes, entry by entry, with everything that a tar library would refuse to write; and images made of them.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use kedge_core::images::BlobDigest;
use kedge_rig::registry::FakeRegistry;
use serde_json::{Value, json};
use std::path::Path;

/// A layer's archive.
#[derive(Clone, Default)]
pub(crate) struct Archive(Vec<u8>);

/// What an entry is beside its name and content.
#[derive(Clone, Copy)]
pub(crate) struct Meta<'a> {
    pub(crate) kind: u8,
    pub(crate) mode: u32,
    pub(crate) owner: u32,
    pub(crate) target: &'a str,
    pub(crate) device: (u32, u32),
    /// What the header says; the content's length if not given.
    pub(crate) size: Option<u64>,
}

impl Default for Meta<'_> {
    fn default() -> Self {
        Self { kind: b'0', mode: 0o644, owner: 0, target: "", device: (0, 0), size: None }
    }
}

impl Archive {
    pub(crate) fn entry(mut self, name: &str, meta: Meta<'_>, content: &[u8]) -> Self {
        let mut header = [0_u8; 512];
        let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
        put(0, name.as_bytes());
        put(100, format!("{:07o}", meta.mode).as_bytes());
        put(108, format!("{:07o}", meta.owner).as_bytes());
        put(116, format!("{:07o}", meta.owner).as_bytes());
        put(124, format!("{:011o}", meta.size.unwrap_or(content.len() as u64)).as_bytes());
        put(136, format!("{:011o}", 1_700_000_000).as_bytes());
        put(148, b"        ");
        put(156, &[meta.kind]);
        put(157, meta.target.as_bytes());
        put(257, b"ustar\x0000");
        put(329, format!("{:07o}", meta.device.0).as_bytes());
        put(337, format!("{:07o}", meta.device.1).as_bytes());
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.extend(header);
        self.0.extend(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub(crate) fn file(self, name: &str, content: &[u8]) -> Self {
        self.entry(name, Meta::default(), content)
    }

    pub(crate) fn directory(self, name: &str) -> Self {
        self.entry(name, Meta { kind: b'5', mode: 0o755, ..Meta::default() }, b"")
    }

    pub(crate) fn symlink(self, name: &str, target: &str) -> Self {
        self.entry(name, Meta { kind: b'2', target, ..Meta::default() }, b"")
    }

    pub(crate) fn hard_link(self, name: &str, target: &str) -> Self {
        self.entry(name, Meta { kind: b'1', target, ..Meta::default() }, b"")
    }

    /// An extended header for the entry that follows.
    pub(crate) fn extended(self, key: &str, value: &[u8]) -> Self {
        let rest = key.len() + value.len() + 3;
        let length = (rest..).find(|length| length.to_string().len() + rest == *length).unwrap();
        let mut record = format!("{length} {key}=").into_bytes();
        record.extend(value);
        record.push(b'\n');
        self.entry("pax", Meta { kind: b'x', ..Meta::default() }, &record)
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.0.clone();
        bytes.extend([0; 1024]);
        bytes
    }
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// As small as it gets: a bomb.
pub(crate) fn gzip_best(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(crate) fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

/// One layer as a registry has it.
#[derive(Clone)]
pub(crate) struct Packed {
    pub(crate) bytes: Vec<u8>,
    pub(crate) media_type: &'static str,
    pub(crate) diff: BlobDigest,
}

impl Packed {
    pub(crate) fn gzip(archive: &Archive) -> Self {
        let diff = BlobDigest::of(&archive.bytes());
        Self {
            bytes: gzip(&archive.bytes()),
            media_type: "application/vnd.oci.image.layer.v1.tar+gzip",
            diff,
        }
    }

    pub(crate) fn zstd(archive: &Archive) -> Self {
        Self {
            bytes: zstd(&archive.bytes()),
            media_type: "application/vnd.oci.image.layer.v1.tar+zstd",
            ..Self::gzip(archive)
        }
    }

    /// Bytes whatever they are.
    pub(crate) fn raw(bytes: Vec<u8>) -> Self {
        let diff = BlobDigest::of(&bytes);
        Self { bytes, media_type: "application/vnd.oci.image.layer.v1.tar", diff }
    }

    pub(crate) fn digest(&self) -> BlobDigest {
        BlobDigest::of(&self.bytes)
    }
}

/// An image: its documents and layers.
pub(crate) struct Image {
    pub(crate) layers: Vec<Packed>,
    config: Vec<u8>,
    pub(crate) manifest: Vec<u8>,
}

pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";

fn architecture() -> &'static str {
    if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" }
}

impl Image {
    pub(crate) fn new(layers: Vec<Packed>) -> Self {
        Self::for_platform(layers, architecture())
    }

    pub(crate) fn for_platform(layers: Vec<Packed>, architecture: &str) -> Self {
        let diffs: Vec<String> = layers.iter().map(|layer| layer.diff.to_string()).collect();
        let config = json!({
            "os": "linux", "architecture": architecture,
            "config": {"Cmd": ["/bin/tick"], "Env": ["A=b"]},
            "rootfs": {"type": "layers", "diff_ids": diffs},
        });
        let config = config.to_string().into_bytes();
        let described: Vec<Value> = layers
            .iter()
            .map(|layer| json!({"mediaType": layer.media_type, "digest": layer.digest(), "size": layer.bytes.len()}))
            .collect();
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST,
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json",
                "digest": BlobDigest::of(&config), "size": config.len()},
            "layers": described,
        });
        Self { layers, config, manifest: manifest.to_string().into_bytes() }
    }

    pub(crate) fn digest(&self) -> BlobDigest {
        BlobDigest::of(&self.manifest)
    }

    /// Layers and config.
    pub(crate) fn blobs(&self) -> impl Iterator<Item = &[u8]> {
        self.layers.iter().map(|layer| layer.bytes.as_slice()).chain([self.config.as_slice()])
    }

    /// Serves it as `repository:tag`.
    pub(crate) fn push(&self, registry: &FakeRegistry, repository: &str, tag: &str) {
        for name in [tag.to_owned(), self.digest().to_string()] {
            registry.put(&format!("{repository}/manifests/{name}"), MANIFEST, &self.manifest);
        }
        for blob in self.blobs() {
            let path = format!("{repository}/blobs/{}", BlobDigest::of(blob));
            registry.put(&path, "application/octet-stream", blob);
        }
    }

    /// An index that offers images for platforms.
    pub(crate) fn index(offered: &[(&Image, &str)]) -> Vec<u8> {
        let manifests: Vec<Value> = offered
            .iter()
            .map(|(image, architecture)| {
                json!({"mediaType": MANIFEST, "digest": image.digest(), "size": image.manifest.len(),
                    "platform": {"os": "linux", "architecture": architecture}})
            })
            .collect();
        json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}).to_string().into_bytes()
    }

    /// Writes it as an OCI layout.
    pub(crate) fn write_layout(&self, directory: &Path) {
        let blobs = directory.join("blobs/sha256");
        std::fs::create_dir_all(&blobs).unwrap();
        for blob in self.blobs().chain([self.manifest.as_slice()]) {
            std::fs::write(blobs.join(BlobDigest::of(blob).hex()), blob).unwrap();
        }
        std::fs::write(directory.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        std::fs::write(directory.join("index.json"), Self::index(&[(self, architecture())])).unwrap();
    }

    /// The same, with what the image is called.
    pub(crate) fn write_named_layout(&self, directory: &Path, name: &str) {
        self.write_layout(directory);
        let mut index: Value = serde_json::from_slice(&Self::index(&[(self, architecture())])).unwrap();
        index["manifests"][0]["annotations"] = json!({"org.opencontainers.image.ref.name": name});
        std::fs::write(directory.join("index.json"), index.to_string()).unwrap();
    }
}

/// The architecture that images of these tests are for.
pub(crate) fn own_architecture() -> &'static str {
    architecture()
}
