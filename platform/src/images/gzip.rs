//! Unpacks gzip: members one after another.
//!
//! Left out on purpose: the checksum in a member's trailer. The file's digest is checked before it is read,
//! and the digest of the unpacked archive afterwards (`layers`). flate2's readers, which check it, bring 20
//! kB of tables and code for that.

use std::io::{self, BufRead, Read};

use flate2::{Decompress, FlushDecompress, Status};

/// Magic, method, flags, time, extra flags, system.
const HEADER_BYTES: usize = 10;
/// Checksum and length.
const TRAILER_BYTES: u64 = 8;

const HAS_HEADER_CHECKSUM: u8 = 1 << 1;
const HAS_EXTRA: u8 = 1 << 2;
const HAS_NAME: u8 = 1 << 3;
const HAS_COMMENT: u8 = 1 << 4;
const RESERVED: u8 = 0b1110_0000;

/// Reads the unpacked content of all members.
pub(super) struct GzipMembers<R> {
    source: R,
    inflate: Decompress,
    is_within: bool,
    /// There was a member.
    has_begun: bool,
}

impl<R: BufRead> GzipMembers<R> {
    pub(super) fn new(source: R) -> Self {
        Self { source, inflate: Decompress::new(false), is_within: false, has_begun: false }
    }

    /// Begins the next member; false at the end, before which there is one at least.
    fn begin(&mut self) -> io::Result<bool> {
        if self.has_begun && self.source.fill_buf()?.is_empty() {
            return Ok(false);
        }
        let mut header = [0; HEADER_BYTES];
        self.source.read_exact(&mut header)?;
        let [0x1f, 0x8b, 8, flags, ..] = header else { return Err(invalid("no gzip header")) };
        if flags & RESERVED != 0 {
            return Err(invalid("unknown flags in a gzip header"));
        }
        if flags & HAS_EXTRA != 0 {
            let mut length = [0; 2];
            self.source.read_exact(&mut length)?;
            self.skip(u16::from_le_bytes(length).into())?;
        }
        for text in [HAS_NAME, HAS_COMMENT] {
            if flags & text != 0 {
                self.skip_text()?;
            }
        }
        if flags & HAS_HEADER_CHECKSUM != 0 {
            self.skip(2)?;
        }
        self.inflate.reset(false);
        (self.is_within, self.has_begun) = (true, true);
        Ok(true)
    }

    fn skip(&mut self, bytes: u64) -> io::Result<()> {
        match io::copy(&mut (&mut self.source).take(bytes), &mut io::sink())? {
            skipped if skipped == bytes => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Up to its NUL.
    fn skip_text(&mut self) -> io::Result<()> {
        let mut character = [1];
        while character != [0] {
            self.source.read_exact(&mut character)?;
        }
        Ok(())
    }
}

impl<R: BufRead> Read for GzipMembers<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if buffer.is_empty() || !self.is_within && !self.begin()? {
                return Ok(0);
            }
            let packed = self.source.fill_buf()?;
            let is_end = packed.is_empty();
            let (taken, made) = (self.inflate.total_in(), self.inflate.total_out());
            let status = self.inflate.decompress(packed, buffer, FlushDecompress::None);
            let status = status.map_err(|_| invalid("corrupt deflate stream"))?;
            // neither is longer than its buffer
            let (taken, made) = (self.inflate.total_in() - taken, self.inflate.total_out() - made);
            self.source.consume(taken as usize);
            match status {
                Status::StreamEnd => {
                    self.is_within = false;
                    self.skip(TRAILER_BYTES)?;
                }
                _ if is_end && made == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                _ => {}
            }
            if made > 0 {
                return Ok(made as usize);
            }
        }
    }
}

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, GzBuilder};
    use std::io::{BufReader, Write};

    fn member(builder: GzBuilder, content: &[u8]) -> Vec<u8> {
        let mut encoder = builder.write(Vec::new(), Compression::fast());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    /// Through a buffer of a few bytes, so that every part is cut.
    fn unpacked(packed: &[u8]) -> io::Result<Vec<u8>> {
        let mut unpacked = Vec::new();
        GzipMembers::new(BufReader::with_capacity(3, packed)).read_to_end(&mut unpacked)?;
        Ok(unpacked)
    }

    fn long() -> Vec<u8> {
        (0..100_000_u32).flat_map(|number| number.wrapping_mul(number).to_le_bytes()).collect()
    }

    #[test]
    fn members_are_unpacked_one_after_another() {
        let full = GzBuilder::new().extra(vec![7; 300]).filename("layer.tar").comment("a comment").mtime(1);
        let members =
            [member(full, &long()), member(GzBuilder::new(), b""), member(GzBuilder::new(), b"end")];
        assert_eq!(unpacked(&members.concat()).unwrap(), [long(), b"end".to_vec()].concat());
    }

    #[test]
    fn header_with_a_checksum_of_its_own_is_read() {
        let mut packed = member(GzBuilder::new(), b"content");
        packed[3] |= HAS_HEADER_CHECKSUM;
        packed.splice(HEADER_BYTES..HEADER_BYTES, [0, 0]);
        assert_eq!(unpacked(&packed).unwrap(), b"content");
    }

    #[test]
    fn stream_cut_anywhere_is_refused() {
        let first = member(GzBuilder::new().filename("name"), b"content, content and content");
        let packed = [first.clone(), member(GzBuilder::new(), b"more")].concat();
        for length in (0..packed.len()).filter(|length| *length != first.len()) {
            let error = unpacked(&packed[..length]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{length} of {}", packed.len());
        }
    }

    #[test]
    fn what_is_no_gzip_is_refused() {
        let good = member(GzBuilder::new(), b"content");
        let with = |place: usize, byte: u8| {
            let mut packed = good.clone();
            packed[place] = byte;
            unpacked(&packed).unwrap_err().to_string()
        };
        for place in 0..3 {
            assert_eq!(with(place, 0), "no gzip header");
        }
        assert_eq!(with(3, RESERVED), "unknown flags in a gzip header");
        assert_eq!(with(HEADER_BYTES, 0xff), "corrupt deflate stream");
        let error = unpacked(&[&good[..], b"and text after it"].concat()).unwrap_err();
        assert_eq!(error.to_string(), "no gzip header");
    }
}
