//! A registry's documents for an image: an index, a manifest, a config. Parse, don't validate: a value of
//! these types is usable.
//!
//! Always holds: a document is bounded before it is parsed; one that is both an index and a manifest is
//! refused (two readers would see two images); sizes, digests, media types and the number of layers are
//! checked; a config belongs to its manifest layer by layer. Media types are OCI's and Docker's schema 2;
//! foreign layers and schema 1 are refused by name. Leaves to others: fetching, and comparing bytes with
//! their digest.

use kedge_api::excerpt;
use serde::{Deserialize, Serialize};

use super::digest::BlobDigest;
use super::platform::Platform;

/// Longest index or manifest: registries accept this much.
pub const MAX_MANIFEST_BYTES: usize = 4 << 20;
/// Longest config. Known ones have some KiB; history and labels make it long.
pub const MAX_CONFIG_BYTES: usize = 4 << 20;
/// Most layers: Docker makes up to this many; overlayfs and the page of its mount options allow some more.
pub const MAX_LAYERS: usize = 127;
/// Most images that an index offers; one for each platform, and one with its attestation, is about 30.
pub const MAX_OFFERED: usize = 1000;
/// Most entries of each list of a config, and the longest in sum: the limit for starting a process
/// (`ARG_MAX`).
const MAX_WORDS: usize = 10_000;
const MAX_WORD_BYTES: usize = 2 << 20;

/// Most `Volumes` of a config, the same as of a pod; and longest path of one, which is made on the disk for
/// each container.
const MAX_VOLUMES: usize = 256;
const MAX_PLACE_BYTES: usize = 1024;
const MAX_PLACE_LEVELS: usize = 32;

const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const DOCKER_SCHEMA_1: &str = "application/vnd.docker.distribution.manifest.v1";

/// The `Accept` header of a request for a manifest. A registry answers 404 if its type is missing here.
pub const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json";

/// How a layer's tar archive is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    Plain,
    Gzip,
    Zstd,
}

impl Compression {
    fn of_media_type(text: &str) -> Result<Self, String> {
        match text {
            "application/vnd.oci.image.layer.v1.tar" | "application/vnd.docker.image.rootfs.diff.tar" => {
                Ok(Self::Plain)
            }
            "application/vnd.oci.image.layer.v1.tar+gzip"
            | "application/vnd.docker.image.rootfs.diff.tar.gzip" => Ok(Self::Gzip),
            "application/vnd.oci.image.layer.v1.tar+zstd"
            | "application/vnd.docker.image.rootfs.diff.tar.zstd" => Ok(Self::Zstd),
            other => Err(format!(
                "a layer's media type is {:?}, expected a tar archive, plain or by gzip or zstd",
                excerpt(other)
            )),
        }
    }

    /// The compression's name in messages and on the command line of the process that unpacks.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }
}

/// A blob of known size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Blob {
    pub digest: BlobDigest,
    pub size_bytes: u64,
}

/// One layer as the registry stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerBlob {
    pub blob: Blob,
    pub compression: Compression,
}

/// The manifest of one image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    pub config: Blob,
    /// The base first.
    pub layers: Vec<LayerBlob>,
}

/// One image of an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offered {
    pub manifest: Blob,
    /// `None` if the index does not have it.
    pub platform: Option<Platform>,
    /// The name of a layout's entry (`org.opencontainers.image.ref.name`).
    pub ref_name: Option<String>,
    /// The whole reference, where a tool wrote it (`io.containerd.image.name`).
    pub image_name: Option<String>,
    /// Its kind, as `cosign save` records it (`kind`).
    pub kind: Option<String>,
}

/// The document of a tag or a digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Document {
    Index(Vec<Offered>),
    Manifest(Manifest),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawDocument {
    schema_version: Option<u64>,
    media_type: Option<String>,
    config: Option<RawDescriptor>,
    layers: Option<Vec<RawDescriptor>>,
    manifests: Option<Vec<RawDescriptor>>,
    #[serde(rename = "fsLayers")]
    schema_1_layers: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawDescriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    size: u64,
    platform: Option<Platform>,
    #[serde(default)]
    annotations: Option<RawAnnotations>,
}

#[derive(Deserialize, Default)]
struct RawAnnotations {
    #[serde(rename = "org.opencontainers.image.ref.name")]
    ref_name: Option<String>,
    #[serde(rename = "io.containerd.image.name")]
    image_name: Option<String>,
    kind: Option<String>,
}

impl RawDescriptor {
    fn blob(&self) -> Result<Blob, String> {
        Ok(Blob { digest: BlobDigest::parse(&self.digest)?, size_bytes: self.size })
    }

    fn offered(self) -> Result<Offered, String> {
        let annotations = self.annotations.as_ref();
        Ok(Offered {
            manifest: self.blob()?,
            ref_name: annotations.and_then(|all| all.ref_name.clone()),
            image_name: annotations.and_then(|all| all.image_name.clone()),
            kind: annotations.and_then(|all| all.kind.clone()),
            platform: self.platform,
        })
    }

    fn layer(&self) -> Result<LayerBlob, String> {
        Ok(LayerBlob { blob: self.blob()?, compression: Compression::of_media_type(&self.media_type)? })
    }
}

impl Document {
    /// Reads an index or a manifest. `content_type` is the registry's type for it, if it sent one.
    ///
    /// # Errors
    /// The fault, in one line.
    pub fn parse(bytes: &[u8], content_type: Option<&str>) -> Result<Self, String> {
        if bytes.len() > MAX_MANIFEST_BYTES {
            return Err(format!(
                "the manifest has {} bytes, expected at most {MAX_MANIFEST_BYTES}",
                bytes.len()
            ));
        }
        let raw: RawDocument = kedge_api::read::from_slice(bytes).map_err(|error| {
            format!("the manifest is not the JSON that is expected: {}", excerpt(&error.to_string()))
        })?;
        let essence = content_type.map(|text| text.split(';').next().unwrap_or_default().trim());
        let media_type = raw.media_type.as_deref().or(essence).unwrap_or_default();
        if media_type.starts_with(DOCKER_SCHEMA_1)
            || raw.schema_1_layers.is_some()
            || raw.schema_version == Some(1)
        {
            return Err(
                "the manifest is of Docker's schema 1, which is not served; push the image again".to_owned()
            );
        }
        let is_image = raw.config.is_some() || raw.layers.is_some();
        match (media_type, raw.manifests) {
            (_, Some(_)) if is_image => {
                Err("the manifest lists both manifests and layers: two readers would see two images"
                    .to_owned())
            }
            (OCI_MANIFEST | DOCKER_MANIFEST, Some(_)) => {
                Err(format!("the manifest calls itself {media_type} and is an index"))
            }
            (OCI_INDEX | DOCKER_LIST, None) => Err(format!("the index {media_type} lists no manifests")),
            (_, Some(offered)) => index(offered),
            (_, None) => manifest(raw.config, raw.layers).map(Self::Manifest),
        }
    }
}

fn index(offered: Vec<RawDescriptor>) -> Result<Document, String> {
    if offered.len() > MAX_OFFERED {
        return Err(format!("the index lists {} images, expected at most {MAX_OFFERED}", offered.len()));
    }
    offered.into_iter().map(RawDescriptor::offered).collect::<Result<_, _>>().map(Document::Index)
}

fn manifest(config: Option<RawDescriptor>, layers: Option<Vec<RawDescriptor>>) -> Result<Manifest, String> {
    let config = config.ok_or("the manifest names no config")?.blob()?;
    if config.size_bytes > MAX_CONFIG_BYTES as u64 {
        return Err(format!(
            "the config has {} bytes, expected at most {MAX_CONFIG_BYTES}",
            config.size_bytes
        ));
    }
    let layers = layers.ok_or("the manifest names no layers")?;
    if layers.is_empty() || layers.len() > MAX_LAYERS {
        return Err(format!("the image has {} layers, expected 1 to {MAX_LAYERS}", layers.len()));
    }
    let layers = layers.iter().map(RawDescriptor::layer).collect::<Result<Vec<_>, _>>()?;
    let sum = layers.iter().try_fold(0_u64, |sum, layer| sum.checked_add(layer.blob.size_bytes));
    if sum.is_none_or(|sum| sum > i64::MAX as u64) {
        return Err("the layers' sizes add up to more than a disk can hold".to_owned());
    }
    Ok(Manifest { config, layers })
}

impl Manifest {
    /// Compressed bytes of the whole image.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.layers
            .iter()
            .map(|layer| layer.blob.size_bytes)
            .fold(self.config.size_bytes, u64::saturating_add)
    }
}

/// The image of an index that suits `host` best; of equals the first. One with an unknown platform is chosen
/// only if no other suits: its config will show the platform.
///
/// # Errors
/// No image suits; the text lists those that exist.
pub fn choose<'a>(offered: &'a [Offered], host: &Platform) -> Result<&'a Offered, String> {
    let ranked = offered.iter().filter_map(|image| match &image.platform {
        Some(platform) => Some((host.rank(platform)?, image)),
        None => Some((usize::MAX, image)),
    });
    ranked.min_by_key(|(rank, _)| *rank).map(|(_, image)| image).ok_or_else(|| {
        let listed = offered.iter().filter_map(|image| image.platform.as_ref());
        let mut names: Vec<String> = listed.take(20).map(ToString::to_string).collect();
        names.dedup();
        format!("no image for {host} in the index, which has {}", excerpt(&names.join(", ")))
    })
}

/// An image's settings for the process that is started from it, under the names of the OCI image
/// configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageConfig {
    /// `Env`, each `NAME=value`.
    pub env: Vec<String>,
    /// `Entrypoint`.
    pub entrypoint: Vec<String>,
    /// `Cmd`.
    pub cmd: Vec<String>,
    /// `User`: `user`, `uid`, either with `:group`; empty is root.
    pub user: String,
    /// `WorkingDir`; empty is `/`.
    pub working_dir: String,
    /// `StopSignal`; empty is SIGTERM.
    pub stop_signal: String,
    /// The keys of `Volumes`.
    pub volumes: Vec<String>,
}

impl ImageConfig {
    /// The directories of `Volumes`, absolute and without `.` and `..`.
    ///
    /// # Errors
    /// They are too many, or too long.
    pub fn places(&self) -> Result<Vec<String>, String> {
        if self.volumes.len() > MAX_VOLUMES {
            return Err(format!(
                "the image has {} volumes, expected at most {MAX_VOLUMES}",
                self.volumes.len()
            ));
        }
        let mut places = Vec::new();
        for volume in &self.volumes {
            let mut parts: Vec<&str> = Vec::new();
            for part in volume.split('/') {
                match part {
                    "" | "." => {}
                    ".." => drop(parts.pop()),
                    part => parts.push(part),
                }
            }
            if volume.len() > MAX_PLACE_BYTES || parts.len() > MAX_PLACE_LEVELS {
                return Err(format!(
                    "the image's volume {:?} is longer than {MAX_PLACE_BYTES} bytes, or has more than {MAX_PLACE_LEVELS} levels",
                    excerpt(volume)
                ));
            }
            if !parts.is_empty() {
                places.push(format!("/{}", parts.join("/")));
            }
        }
        Ok(places)
    }
}

/// A whole config: the process, and the digests of the unpacked layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub image: ImageConfig,
    pub platform: Platform,
    /// Digests of the unpacked archives, the base first.
    pub diff_ids: Vec<BlobDigest>,
}

#[derive(Deserialize)]
struct RawConfig {
    #[serde(flatten)]
    platform: Platform,
    #[serde(default)]
    config: Option<RawImageConfig>,
    rootfs: RawRootfs,
}

#[derive(Deserialize)]
struct RawRootfs {
    diff_ids: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct RawImageConfig {
    env: Option<Vec<String>>,
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    user: Option<String>,
    working_dir: Option<String>,
    stop_signal: Option<String>,
    volumes: Option<std::collections::BTreeMap<String, serde::de::IgnoredAny>>,
}

impl Config {
    /// Reads the config of an image with this many layers.
    ///
    /// # Errors
    /// The fault, in one line.
    pub fn parse(bytes: &[u8], layers: usize) -> Result<Self, String> {
        if bytes.len() > MAX_CONFIG_BYTES {
            return Err(format!("the config has {} bytes, expected at most {MAX_CONFIG_BYTES}", bytes.len()));
        }
        let raw: RawConfig = kedge_api::read::from_slice(bytes).map_err(|error| {
            format!("the config is not the JSON that is expected: {}", excerpt(&error.to_string()))
        })?;
        let diff_ids = &raw.rootfs.diff_ids;
        if diff_ids.len() != layers {
            return Err(format!("the config names {} layers, the manifest {layers}", diff_ids.len()));
        }
        let diff_ids = diff_ids.iter().map(|text| BlobDigest::parse(text)).collect::<Result<_, _>>()?;
        let image = raw.config.unwrap_or_default().checked()?;
        Ok(Self { image, platform: raw.platform, diff_ids })
    }
}

impl RawImageConfig {
    fn checked(self) -> Result<ImageConfig, String> {
        let image = ImageConfig {
            env: self.env.unwrap_or_default(),
            entrypoint: self.entrypoint.unwrap_or_default(),
            cmd: self.cmd.unwrap_or_default(),
            user: self.user.unwrap_or_default(),
            working_dir: self.working_dir.unwrap_or_default(),
            stop_signal: self.stop_signal.unwrap_or_default(),
            volumes: self.volumes.unwrap_or_default().into_keys().collect(),
        };
        let single = [&image.user, &image.working_dir, &image.stop_signal];
        let words =
            image.env.iter().chain(&image.entrypoint).chain(&image.cmd).chain(&image.volumes).chain(single);
        let (mut count, mut bytes) = (0_usize, 0_usize);
        for word in words {
            if word.contains('\0') {
                return Err(format!("the config has a NUL in {:?}", excerpt(word)));
            }
            count = count.saturating_add(1);
            bytes = bytes.saturating_add(word.len());
        }
        if count > MAX_WORDS || bytes > MAX_WORD_BYTES {
            return Err(format!(
                "the config has {count} words of {bytes} bytes, expected at most {MAX_WORDS} of {MAX_WORD_BYTES}"
            ));
        }
        Ok(image)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn digest(n: u8) -> String {
        format!("sha256:{}", format!("{n:02x}").repeat(32))
    }

    fn layer(n: u8) -> Value {
        json!({"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": digest(n), "size": 10})
    }

    fn parse(document: &Value) -> Result<Document, String> {
        Document::parse(document.to_string().as_bytes(), None)
    }

    #[track_caller]
    fn refused(document: &Value, expect: &str) {
        let why = parse(document).unwrap_err();
        assert!(why.contains(expect), "{why}");
    }

    fn manifest_of(layers: Vec<Value>) -> Value {
        let config = json!({"mediaType": "x", "digest": digest(0), "size": 7});
        json!({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": layers})
    }

    #[test]
    fn manifest_gives_config_and_layers() {
        let Ok(Document::Manifest(found)) = parse(&manifest_of(vec![layer(1), layer(2)])) else { panic!() };
        assert_eq!(found.size_bytes(), 27);
        assert_eq!(found.layers[1].blob.digest.to_string(), digest(2));
        assert_eq!(found.layers[1].compression, Compression::Gzip);
    }

    #[test]
    fn dubious_manifest_is_refused() {
        let mut both = manifest_of(vec![layer(1)]);
        both["manifests"] = json!([]);
        refused(&both, "two images");
        refused(&manifest_of(vec![]), "0 layers");
        refused(&manifest_of((0..=127).map(|n| layer(n as u8)).collect()), "128 layers");
        let mut foreign = layer(1);
        foreign["mediaType"] = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip".into();
        refused(&manifest_of(vec![foreign]), "media type");
        let mut path = layer(1);
        path["digest"] = "sha256:../../../../etc/passwd".into();
        refused(&manifest_of(vec![path]), "digest is");
        let mut negative = layer(1);
        negative["size"] = (-1).into();
        refused(&manifest_of(vec![negative]), "not the JSON");
        let mut huge = layer(1);
        huge["size"] = u64::MAX.into();
        refused(&manifest_of(vec![huge.clone(), huge]), "more than a disk");
        let mut config = manifest_of(vec![layer(1)]);
        config["config"]["size"] = (MAX_CONFIG_BYTES + 1).into();
        refused(&config, "the config has");
        refused(&json!({"schemaVersion": 1, "fsLayers": []}), "schema 1");
        refused(&json!({"mediaType": OCI_INDEX}), "lists no manifests");
        refused(&json!({"mediaType": OCI_MANIFEST, "manifests": []}), "is an index");
        refused(&json!({}), "names no config");
        refused(&json!([]), "not the JSON");
        assert!(Document::parse(&vec![b' '; MAX_MANIFEST_BYTES + 1], None).unwrap_err().contains("bytes"));
        let deep = "[".repeat(100_000);
        assert!(Document::parse(deep.as_bytes(), None).is_err());
    }

    #[test]
    fn index_offers_the_image_of_the_platform() {
        let of = |n: u8, platform: Value| json!({"digest": digest(n), "size": 1, "platform": platform});
        let index = json!({"mediaType": DOCKER_LIST, "manifests": [
            of(1, json!({"os": "unknown", "architecture": "unknown"})),
            of(2, json!({"os": "linux", "architecture": "arm", "variant": "v6"})),
            of(3, json!({"os": "linux", "architecture": "arm", "variant": "v7"})),
            of(4, json!({"os": "linux", "architecture": "amd64"})),
        ]});
        let Ok(Document::Index(offered)) = parse(&index) else { panic!() };
        let chosen = |processor| {
            let found = choose(&offered, &Platform::of_processor(processor, None));
            found.map(|image| image.manifest.digest.to_string())
        };
        assert_eq!(chosen("arm"), Ok(digest(3)));
        assert_eq!(chosen("x86_64"), Ok(digest(4)));
        let why = chosen("riscv64").unwrap_err();
        assert!(why.contains("linux/riscv64") && why.contains("linux/arm/v7"), "{why}");
    }

    #[test]
    fn image_of_unknown_platform_is_the_last_choice() {
        let index = json!({"manifests": [
            {"digest": digest(1), "size": 1},
            {"digest": digest(2), "size": 1, "platform": {"os": "linux", "architecture": "amd64"}},
        ]});
        let Ok(Document::Index(offered)) = parse(&index) else { panic!() };
        let chosen =
            |processor| choose(&offered, &Platform::of_processor(processor, None)).unwrap().manifest.digest;
        assert_eq!(chosen("x86_64").to_string(), digest(2));
        assert_eq!(chosen("aarch64").to_string(), digest(1));
    }

    #[test]
    fn config_gives_the_process() {
        let config = json!({
            "os": "linux", "architecture": "arm", "variant": "v7",
            "config": {"Env": ["A=b"], "Cmd": ["x"], "Entrypoint": null, "User": "7:8", "WorkingDir": "/w",
                "StopSignal": "SIGINT", "Volumes": {"/data": {}}, "Labels": {"a": "b"}},
            "rootfs": {"type": "layers", "diff_ids": [digest(1)]},
        });
        let found = Config::parse(config.to_string().as_bytes(), 1).unwrap();
        assert_eq!(found.platform.to_string(), "linux/arm/v7");
        assert_eq!((found.image.cmd, found.image.entrypoint), (vec!["x".to_owned()], vec![]));
        assert_eq!((found.image.user.as_str(), found.image.stop_signal.as_str()), ("7:8", "SIGINT"));
        assert_eq!(found.image.volumes, ["/data"]);
    }

    #[test]
    fn volumes_become_places_within_the_image() {
        let places = |volumes: &[&str]| {
            let volumes = volumes.iter().map(|&volume| volume.to_owned()).collect();
            ImageConfig { volumes, ..ImageConfig::default() }.places()
        };
        let expect = ["/data", "/a/b", "/etc", "/relative"].map(str::to_owned);
        assert_eq!(places(&["/data", "/a//b/", "/../x/../etc/.", "relative"]), Ok(expect.into()));
        assert_eq!(places(&["", "/", "..", "/a/.."]), Ok(Vec::new()));
        assert!(places(&vec!["/a"; 257]).unwrap_err().contains("257 volumes"));
        assert!(places(&[&"/x".repeat(33)]).unwrap_err().contains("more than 32 levels"));
        assert!(places(&[&format!("/{}", "x".repeat(1024))]).unwrap_err().contains("longer than 1024"));
    }

    #[test]
    fn dubious_config_is_refused() {
        let check = |config: Value, expect: &str| {
            let why = Config::parse(config.to_string().as_bytes(), 1).unwrap_err();
            assert!(why.contains(expect), "{why}");
        };
        check(json!({"rootfs": {"diff_ids": []}}), "names 0 layers");
        check(json!({"rootfs": {"diff_ids": ["x"]}}), "digest is");
        check(json!({}), "not the JSON");
        check(json!({"rootfs": {"diff_ids": [digest(1)]}, "config": {"Env": ["A=\0"]}}), "NUL");
        let many = vec!["x"; MAX_WORDS + 1];
        check(json!({"rootfs": {"diff_ids": [digest(1)]}, "config": {"Cmd": many}}), "words");
    }
}
