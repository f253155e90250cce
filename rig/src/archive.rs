//! Archives of layers as bytes, entry by entry, including entries that a tar library would refuse to write.
//!
//! Always holds: a header's checksum is right, so that a reader examines the other fields. Leaves to others:
//! compression.

/// A layer's archive.
#[derive(Clone, Debug, Default)]
pub struct Archive(Vec<u8>);

/// The properties of an entry beside its name and content.
#[derive(Clone, Copy, Debug)]
pub struct Meta<'a> {
    /// The type byte of its header.
    pub kind: u8,
    pub mode: u32,
    pub owner: u32,
    /// The target of a link.
    pub target: &'a str,
    /// The major and minor number of a device.
    pub device: (u32, u32),
    /// The size in the header; the content's length if not given.
    pub size: Option<u64>,
}

impl Default for Meta<'_> {
    fn default() -> Self {
        Self { kind: b'0', mode: 0o644, owner: 0, target: "", device: (0, 0), size: None }
    }
}

impl Archive {
    /// Adds any entry. Texts that are longer than their field overflow into the next one.
    #[must_use]
    pub fn entry(self, name: &str, meta: Meta<'_>, content: &[u8]) -> Self {
        let mut header = [0_u8; 512];
        let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
        put(0, name.as_bytes());
        put(100, format!("{:07o}", meta.mode).as_bytes());
        put(108, format!("{:07o}", meta.owner).as_bytes());
        put(116, format!("{:07o}", meta.owner).as_bytes());
        put(124, format!("{:011o}", meta.size.unwrap_or(content.len() as u64)).as_bytes());
        put(136, format!("{:011o}", 1_700_000_000).as_bytes());
        put(156, &[meta.kind]);
        put(157, meta.target.as_bytes());
        put(257, b"ustar\x0000");
        put(329, format!("{:07o}", meta.device.0).as_bytes());
        put(337, format!("{:07o}", meta.device.1).as_bytes());
        self.block(header, content)
    }

    /// Adds a header unchanged except for its checksum, and content.
    #[must_use]
    pub fn block(mut self, mut header: [u8; 512], content: &[u8]) -> Self {
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.extend(header);
        self.0.extend(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    /// A file of root's.
    #[must_use]
    pub fn file(self, name: &str, content: &[u8]) -> Self {
        self.entry(name, Meta::default(), content)
    }

    /// A directory of root's.
    #[must_use]
    pub fn directory(self, name: &str) -> Self {
        self.entry(name, Meta { kind: b'5', mode: 0o755, ..Meta::default() }, b"")
    }

    /// A symbolic link.
    #[must_use]
    pub fn symlink(self, name: &str, target: &str) -> Self {
        self.entry(name, Meta { kind: b'2', target, ..Meta::default() }, b"")
    }

    /// A hard link.
    #[must_use]
    pub fn hard_link(self, name: &str, target: &str) -> Self {
        self.entry(name, Meta { kind: b'1', target, ..Meta::default() }, b"")
    }

    /// An extended header for the entry that follows.
    #[must_use]
    pub fn extended(self, key: &str, value: &[u8]) -> Self {
        let rest = key.len() + value.len() + 3;
        let length = (rest..).find(|length| length.to_string().len() + rest == *length);
        let length = length.expect("a length that counts itself");
        let mut record = format!("{length} {key}=").into_bytes();
        record.extend(value);
        record.push(b'\n');
        self.extension(&record)
    }

    /// An extended header of these bytes, well formed or not.
    #[must_use]
    pub fn extension(self, records: &[u8]) -> Self {
        self.entry("pax", Meta { kind: b'x', ..Meta::default() }, records)
    }

    /// The whole archive.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.0.clone();
        bytes.extend([0; 1024]);
        bytes
    }
}
