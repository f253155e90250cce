//! The limit for the pods' desired set on the disk, all of it together: pods and the objects they refer to
//! come from a server, and must neither fill the partition of the configuration's records nor become more
//! than a start reads.
//!
//! Always holds: each file on disk is counted with the size of its last write, and a write that would exceed
//! a limit is refused before it begins; the file that it would have replaced stays. Leaves to others: the
//! size of one file (`disk`), and the consequences of a refusal for a pod (core).

use kedge_core::sorted::SortedMap;

/// Most files of it. A listing reads 10,000 names of each directory; files behind those would never be known.
const MOST_FILES: usize = 4_000;

/// Most bytes of it: a hundred pods with half a mebibyte of ConfigMaps each, on a state partition of a few
/// hundred.
const MOST_BYTES: usize = 64 << 20;

/// The bytes of each file.
#[derive(Default)]
pub(crate) struct Quota(SortedMap<String, usize>);

impl Quota {
    /// Records that these files, and no others, are on disk.
    pub(crate) fn found(&mut self, files: impl Iterator<Item = (String, usize)>) {
        self.0 = files.collect();
    }

    /// Why a file of this many bytes must not be written.
    pub(crate) fn refusal(&self, path: &str, bytes: usize) -> Option<String> {
        let others = || self.0.iter().filter(|(other, _)| *other != path);
        let (files, sum) = (others().count() + 1, others().map(|(_, bytes)| bytes).sum::<usize>() + bytes);
        if files > MOST_FILES {
            return Some(format!("there are {} files of pods already, and may be no more", files - 1));
        }
        (sum > MOST_BYTES).then(|| {
            format!("with {bytes} bytes more the files of pods would have {sum}, and may have {MOST_BYTES}")
        })
    }

    /// Records a write of this many bytes.
    pub(crate) fn wrote(&mut self, path: &str, bytes: usize) {
        self.0.insert(path.to_owned(), bytes);
    }

    pub(crate) fn removed(&mut self, path: &str) {
        self.0.remove(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_pods_have_a_limit_in_bytes() {
        let mut quota = Quota::default();
        quota.found([("a".to_owned(), MOST_BYTES - 10)].into_iter());
        assert_eq!(quota.refusal("b", 10), None);
        let why = quota.refusal("b", 11).unwrap();
        assert!(why.contains("with 11 bytes more"), "{why}");
        assert_eq!(quota.refusal("a", MOST_BYTES), None, "what it replaces does not count");
        quota.wrote("a", 0);
        assert_eq!(quota.refusal("b", MOST_BYTES), None);
        quota.wrote("b", MOST_BYTES);
        quota.removed("b");
        assert_eq!(quota.refusal("c", MOST_BYTES), None);
    }

    #[test]
    fn files_of_pods_have_a_limit_in_number() {
        let mut quota = Quota::default();
        quota.found((0..MOST_FILES).map(|file| (file.to_string(), 1)));
        assert_eq!(quota.refusal("1", 2), None);
        assert!(quota.refusal("more", 1).is_some());
    }
}
