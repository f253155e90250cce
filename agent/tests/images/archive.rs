//! Layers as a registry has them, and images made of them.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use kedge_core::images::BlobDigest;
use kedge_rig::registry::FakeRegistry;
use serde_json::{Value, json};
use std::path::Path;

pub(crate) use kedge_rig::archive::{Archive, Meta};

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// At the best compression: a bomb.
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

    /// A layer of these bytes, which need not be an archive.
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
