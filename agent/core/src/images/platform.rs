//! Platforms: which images run on this node, and which of several is the best.
//!
//! Always holds: the order is containerd's: the node's own variant first, then older ones that its processor
//! also runs (arm64 before 32-bit arm, v7 before v6 before v5; amd64 before 386). Leaves to others: finding
//! out the processor (the caller knows it).

use std::fmt;

use serde::{Deserialize, Serialize};

/// The platform that an image was built for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Platform {
    #[serde(default)]
    pub os: String,
    #[serde(default)]
    pub architecture: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub variant: String,
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        if self.variant.is_empty() { Ok(()) } else { write!(f, "/{}", self.variant) }
    }
}

impl Platform {
    fn linux(architecture: &str, variant: &str) -> Self {
        Self { os: "linux".to_owned(), architecture: architecture.to_owned(), variant: variant.to_owned() }
    }

    /// The platform of a processor by its name in Rust (`std::env::consts::ARCH`); `arm_version` is the "CPU
    /// architecture" of `/proc/cpuinfo` on 32-bit ARM, 7 where it is unknown: no Kedge is built for less.
    #[must_use]
    pub fn of_processor(name: &str, arm_version: Option<u8>) -> Self {
        match name {
            "x86_64" => Self::linux("amd64", ""),
            "x86" => Self::linux("386", ""),
            "aarch64" => Self::linux("arm64", "v8"),
            "arm" => match arm_version.unwrap_or(7) {
                version @ 5..=6 => Self::linux("arm", &format!("v{version}")),
                _ => Self::linux("arm", "v7"),
            },
            "powerpc64" => Self::linux("ppc64le", ""),
            other => Self::linux(other, ""),
        }
    }

    /// The same platform in one spelling: `arm64` is v8, `arm` is v7, `amd64` has no variant below v2.
    #[must_use]
    fn normalized(&self) -> Self {
        let architecture = match self.architecture.as_str() {
            "x86_64" | "x86-64" => "amd64",
            "i386" => "386",
            "aarch64" => "arm64",
            "armhf" => return Self { os: self.os.clone(), ..Self::linux("arm", "v7") },
            "armel" => return Self { os: self.os.clone(), ..Self::linux("arm", "v6") },
            other => other,
        };
        let variant = match (architecture, self.variant.as_str()) {
            ("arm64", "" | "8") => "v8",
            ("arm", "" | "7") => "v7",
            ("arm", "5") => "v5",
            ("arm", "6") => "v6",
            ("amd64", "v1") => "",
            (_, other) => other,
        };
        Self { os: self.os.clone(), architecture: architecture.to_owned(), variant: variant.to_owned() }
    }

    /// The platforms whose images this one runs, the best first.
    #[must_use]
    fn accepted(&self) -> Vec<Self> {
        let own = self.normalized();
        let arm = ["v8", "v7", "v6", "v5"].map(|variant| Self::linux("arm", variant));
        let mut list = vec![own.clone()];
        match (own.architecture.as_str(), own.variant.as_str()) {
            ("arm64", _) => list.extend(arm),
            ("arm", variant) => list.extend(arm.into_iter().filter(|other| other.variant.as_str() < variant)),
            ("amd64", _) => list.push(Self::linux("386", "")),
            _ => {}
        }
        list
    }

    /// How well an image for `other` suits: 0 is best; `None` if it does not run here.
    #[must_use]
    pub fn rank(&self, other: &Self) -> Option<usize> {
        let other = other.normalized();
        self.accepted().iter().position(|accepted| *accepted == other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The platforms of a list that run on a processor, the best first.
    fn check(processor: (&str, Option<u8>), offered: &[&str], expect: &[&str]) {
        let host = Platform::of_processor(processor.0, processor.1);
        let parse = |text: &str| {
            let mut parts = text.split('/').map(str::to_owned);
            let mut next = || parts.next().unwrap_or_default();
            Platform { os: next(), architecture: next(), variant: next() }
        };
        let mut found: Vec<(usize, &str)> =
            offered.iter().filter_map(|text| Some((host.rank(&parse(text))?, *text))).collect();
        kedge_api::sort::sort(&mut found);
        let found: Vec<&str> = found.into_iter().map(|(_, text)| text).collect();
        assert_eq!(found, expect, "{processor:?}");
    }

    #[test]
    fn own_variant_comes_before_older_ones() {
        let offered = [
            "linux/386",
            "linux/amd64",
            "windows/amd64",
            "linux/arm/v5",
            "linux/arm/v6",
            "linux/arm/v7",
            "linux/arm64/v8",
            "unknown/unknown",
        ];
        check(("x86_64", None), &offered, &["linux/amd64", "linux/386"]);
        check(("arm", None), &offered, &["linux/arm/v7", "linux/arm/v6", "linux/arm/v5"]);
        check(("arm", Some(6)), &offered, &["linux/arm/v6", "linux/arm/v5"]);
        check(("arm", Some(8)), &offered, &["linux/arm/v7", "linux/arm/v6", "linux/arm/v5"]);
        check(
            ("aarch64", None),
            &offered,
            &["linux/arm64/v8", "linux/arm/v7", "linux/arm/v6", "linux/arm/v5"],
        );
        check(("riscv64", None), &offered, &[]);
    }

    #[test]
    fn other_spellings_are_the_same_platform() {
        check(("aarch64", None), &["linux/arm64", "linux/arm64/8"], &["linux/arm64", "linux/arm64/8"]);
        check(("arm", None), &["linux/arm", "linux/armhf"], &["linux/arm", "linux/armhf"]);
        check(
            ("x86_64", None),
            &["linux/x86_64", "linux/amd64/v1", "linux/amd64/v3"],
            &["linux/amd64/v1", "linux/x86_64"],
        );
    }
}
