//! The power is cut at each flush of an import and of a removal: a start finds either a whole image or
//! nothing, and the next import succeeds on it.
//!
//! An import takes the way of a pull: parts, blobs, layers, records. The rig is `kedge_rig::power_cut`;
//! without what it needs this is printed and nothing is done, under CI=true it fails.

use std::fs;
use std::path::Path;

use kedge_rig::Scratch;
use kedge_rig::logged_disk::{EXT4, FileSystem};
use kedge_rig::power_cut::{Cutting, History, Rebuilt, cut_at_every_flush, is_possible};
use serde_json::Value;

use super::archive::{Archive, Image, Packed};
use super::setup::Node;

/// The journal is committed every second, so that an unsynced write may reach the disk while the test still
/// looks.
const FILE_SYSTEM: FileSystem = FileSystem { options: "commit=1", ..EXT4 };
const NAME: &str = "localhost/app:v1";

/// The log's length when the image was acknowledged, when its removal began, and when that was acknowledged.
struct Story([u64; 3]);

impl History for Story {
    fn acknowledged(&self) -> Vec<u64> {
        self.0.to_vec()
    }
}

fn content(n: u8) -> Vec<u8> {
    (0..30_000_u32).map(|at| (at / 7) as u8 ^ n).collect()
}

fn image() -> Image {
    let base = Archive::default().directory("bin").file("bin/one", &content(1)).file("bin/gone", b"x");
    let top = Archive::default().file("bin/.wh.gone", b"").file("bin/two", &content(2));
    Image::new(vec![Packed::gzip(&base), Packed::gzip(&top)])
}

/// An image that is called ready has every byte.
fn check_whole(node: &Node, image: &Value) -> Result<(), String> {
    if image["ready"] != true {
        return Err(format!("a record without its layers: {image}"));
    }
    let layers = node.layers(image);
    for (layer, n) in layers.iter().zip(["one", "two"]) {
        let path = layer.join("bin").join(n);
        let expect = content(if n == "one" { 1 } else { 2 });
        if fs::read(&path).ok().as_ref() != Some(&expect) {
            return Err(format!("{} is not what was imported", path.display()));
        }
    }
    match fs::symlink_metadata(layers[1].join("bin/gone")) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("the removal of bin/gone is missing: {error}")),
    }
}

fn judge(story: &Story, layout: &str, rebuilt: &Rebuilt<'_>) -> Result<(), String> {
    let mounted = rebuilt.mount()?;
    let Some(node) = Node::at(&mounted.path().join("root")) else { return Ok(()) };
    let [imported, removing, removed] = story.0;
    let found = node.ok(&["ls"]);
    if found["unreadable"] != serde_json::json!([]) {
        return Err(format!("unreadable: {found}"));
    }
    let images = found["images"].as_array().cloned().unwrap_or_default();
    images.iter().try_for_each(|image| check_whole(&node, image))?;
    let at = rebuilt.cut.at;
    if (imported..=removing).contains(&at) && images.len() != 1 {
        return Err("the image was acknowledged and is gone".to_owned());
    }
    if at >= removed && !images.is_empty() {
        return Err("the removal was acknowledged and the image is back".to_owned());
    }
    let again = node.ok(&["import", layout, "--name", NAME])[0].clone();
    check_whole(&node, &again)?;
    node.ok(&["prune"]);
    node.has_nothing();
    Ok(())
}

#[test]
fn cut_at_any_flush_leaves_an_image_or_none() {
    if !is_possible(&FILE_SYSTEM) {
        return;
    }
    let files = Scratch::in_memory("image-cuts").unwrap();
    let (mount, layout) = (files.join("mount"), files.join("layout"));
    image().write_layout(&layout);
    let layout = layout.display().to_string();
    let run = |mount: &Path, now: &dyn Fn() -> u64| {
        let node = Node::at(&mount.join("root")).unwrap();
        node.ok(&["import", &layout, "--name", NAME]);
        let imported = now();
        let removing = now();
        node.ok(&["rm", NAME]);
        Story([imported, removing, now()])
    };
    let cutting = Cutting {
        name: "image-cuts",
        file_system: FILE_SYSTEM,
        mount: &mount,
        subsets: 1,
        thin: true,
        enough: Some(3),
    };
    let (report, _) = cut_at_every_flush(
        &cutting,
        |disk| {
            let clock = disk.clock();
            run(disk.mount(), &|| clock.now())
        },
        |story, rebuilt| judge(story, &layout, rebuilt),
    )
    .unwrap();
    eprintln!("image-cuts: {report}");
    report.assert_none_wrong(15);
}
