//! SPDY/3.1 frames, as kubectl and Kubernetes' API server use them: reads those of a client, and writes the
//! replies.
//!
//! Always holds: a control frame has at most [`CONTROL_BYTES`], its headers inflated at most
//! [`HEADER_BYTES`]; data is passed on in the pieces in which it arrives, so a data frame may have any
//! length; however the bytes are split, the same frames result. After an error nothing more can be read,
//! because all headers of a connection are compressed as one text. Reads no socket.
//!
//! Deliberately absent: flow control. Kubernetes' clients neither send WINDOW_UPDATE nor heed it, so a reader
//! that accepts no more stops the whole connection. Nothing is compressed here: the only headers that are
//! sent are those of a reply, which are empty. Leaves to others: which streams are allowed, and their
//! content.

use flate2::{Decompress, FlushDecompress, Status};

/// Longest control frame that is accepted: kubectl's have some hundred bytes.
const CONTROL_BYTES: usize = 16 * 1024;
/// Most bytes of the headers of one frame, inflated.
const HEADER_BYTES: usize = 16 * 1024;
/// Most headers of one frame: kubectl's have three.
const HEADERS: usize = 32;
/// Bytes before each frame: type or stream, flags and length.
const HEAD_BYTES: usize = 8;
/// The draft's version, in each control frame. SPDY/3.1 differs from 3 in flow control only.
const VERSION: u16 = 3;

const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const HEADERS_FRAME: u16 = 8;
/// The flag of the last frame of a stream, in one direction.
const FIN: u8 = 1;

/// Why a stream is reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    ProtocolError = 1,
    RefusedStream = 3,
}

/// The other side does not speak SPDY/3.1, or exceeds a limit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Broken(pub(crate) String);

/// The headers of a stream; names in lower case.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Headers(Vec<(String, String)>);

impl Headers {
    /// The value of the header with this name, in lower case.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// A frame of the client.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame<'a> {
    /// Opens a stream.
    Open { stream: u32, headers: Headers, is_last: bool },
    /// More data of a stream, perhaps only a part of what the client sent at once.
    Data { stream: u32, bytes: &'a [u8], is_last: bool },
    /// Ends a stream in both directions.
    Reset { stream: u32 },
    /// Asks for the same frame in reply.
    Ping { id: u32 },
    /// The client opens no more streams.
    GoAway,
}

/// The position of a [`Decoder`] in the frames.
#[derive(Clone, Copy, Debug)]
enum Place {
    Head,
    Control { kind: u16, flags: u8, length: usize },
    Data { stream: u32, is_last: bool, left: usize },
}

/// Reads frames.
pub(crate) struct Decoder {
    inflater: Inflater,
    place: Place,
    /// The bytes of an incomplete head or control frame.
    held: Vec<u8>,
}

impl Decoder {
    pub(crate) fn new() -> Self {
        Self { inflater: Inflater { text: None }, place: Place::Head, held: Vec::new() }
    }

    /// The next frame, whose bytes are removed from the front; `None` if all bytes are consumed, and more
    /// must arrive.
    ///
    /// # Errors
    /// The client breaks the protocol, or a limit: the connection cannot continue.
    pub(crate) fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Option<Frame<'a>>, Broken> {
        loop {
            match self.place {
                Place::Head => {
                    let Some(head) = self.gathered(bytes, HEAD_BYTES) else { return Ok(None) };
                    self.place = begun(*head.first_chunk().expect("so many bytes were asked for"))?;
                }
                Place::Control { kind, flags, length } => {
                    let Some(frame) = self.gathered(bytes, length) else { return Ok(None) };
                    self.place = Place::Head;
                    if let Some(frame) = self.control(kind, flags, &frame)? {
                        return Ok(Some(frame));
                    }
                }
                Place::Data { left: 0, is_last: false, .. } => self.place = Place::Head,
                Place::Data { stream, is_last: true, left: 0 } => {
                    self.place = Place::Head;
                    return Ok(Some(Frame::Data { stream, bytes: &[], is_last: true }));
                }
                Place::Data { .. } if bytes.is_empty() => return Ok(None),
                Place::Data { stream, is_last, left } => {
                    let (piece, rest) = bytes.split_at(left.min(bytes.len()));
                    *bytes = rest;
                    let left = left - piece.len();
                    let is_end = left == 0;
                    self.place = if is_end { Place::Head } else { Place::Data { stream, is_last, left } };
                    return Ok(Some(Frame::Data { stream, bytes: piece, is_last: is_last && is_end }));
                }
            }
        }
    }

    /// This many bytes, once they have arrived.
    fn gathered(&mut self, bytes: &mut &[u8], length: usize) -> Option<Vec<u8>> {
        let missing = length - self.held.len();
        let (piece, rest) = bytes.split_at(missing.min(bytes.len()));
        *bytes = rest;
        self.held.extend_from_slice(piece);
        (self.held.len() == length).then(|| std::mem::take(&mut self.held))
    }

    fn control(&mut self, kind: u16, flags: u8, frame: &[u8]) -> Result<Option<Frame<'static>>, Broken> {
        let short = || Broken(format!("a control frame of type {kind} has {} bytes", frame.len()));
        let number = || frame.first_chunk().map(|bytes| u32::from_be_bytes(*bytes)).ok_or_else(short);
        let stream = || number().map(|number| number & 0x7fff_ffff);
        Ok(match kind {
            SYN_STREAM => {
                // after the stream: the stream that it is associated with, and a priority, which have no use
                // here
                let headers = self.inflater.headers(frame.get(10..).ok_or_else(short)?)?;
                Some(Frame::Open { stream: stream()?, headers, is_last: flags & FIN != 0 })
            }
            // inflated, because later headers may refer to its text
            HEADERS_FRAME => {
                self.inflater.headers(frame.get(4..).ok_or_else(short)?)?;
                None
            }
            SYN_REPLY => return Err(Broken("a reply to a stream that was never opened".into())),
            RST_STREAM => Some(Frame::Reset { stream: stream()? }),
            // an even number would be the reply to a ping of ours
            PING => Some(number()?).filter(|id| id % 2 == 1).map(|id| Frame::Ping { id }),
            GOAWAY => Some(Frame::GoAway),
            // settings, windows, and types that the draft reserves
            _ => None,
        })
    }
}

/// The place after a head: which frame it begins.
fn begun([a, b, c, d, flags, e, f, g]: [u8; HEAD_BYTES]) -> Result<Place, Broken> {
    let length = u32::from_be_bytes([0, e, f, g]) as usize;
    if a & 0x80 == 0 {
        return match u32::from_be_bytes([a, b, c, d]) {
            0 => Err(Broken("data of stream 0".into())),
            stream => Ok(Place::Data { stream, is_last: flags & FIN != 0, left: length }),
        };
    }
    let (version, kind) = (u16::from_be_bytes([a & 0x7f, b]), u16::from_be_bytes([c, d]));
    if version != VERSION {
        return Err(Broken(format!("a frame of SPDY version {version}, expected {VERSION}")));
    }
    if length > CONTROL_BYTES {
        return Err(Broken(format!("a control frame of {length} bytes, at most {CONTROL_BYTES} are taken")));
    }
    Ok(Place::Control { kind, flags, length })
}

/// Writes the replies to a client.
pub(crate) struct Encoder {
    has_begun: bool,
}

impl Encoder {
    pub(crate) fn new() -> Self {
        Self { has_begun: false }
    }

    /// Accepts a stream. Replies must be sent in the order in which they are made.
    pub(crate) fn reply(&mut self, stream: u32) -> Vec<u8> {
        // zlib as the other side expects it: one header per connection, without a dictionary, because no text
        // refers to one
        let begin: &[u8] = if self.has_begun { &[] } else { &[0x78, 0x01] };
        self.has_begun = true;
        // a stored block with the number of headers, 0, and an empty block, from which Go's reader sees that
        // it has everything
        let none = [0, 4, 0, 0xfb, 0xff, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
        control(SYN_REPLY, &[&stream.to_be_bytes(), begin, &none])
    }
}

/// Ends a stream in both directions.
pub(crate) fn reset(stream: u32, why: Refusal) -> Vec<u8> {
    control(RST_STREAM, &[&stream.to_be_bytes(), &(why as u32).to_be_bytes()])
}

/// Answers a ping.
pub(crate) fn ping(id: u32) -> Vec<u8> {
    control(PING, &[&id.to_be_bytes()])
}

fn control(kind: u16, parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut frame = (0x8000 | VERSION).to_be_bytes().to_vec();
    frame.extend_from_slice(&kind.to_be_bytes());
    // the flags are 0: frames that are sent here are shorter than 2^16
    frame.extend_from_slice(&(length as u32).to_be_bytes());
    frame.extend(parts.iter().copied().flatten());
    frame
}

/// Data of a stream: its head and the bytes.
pub(crate) fn data(stream: u32, bytes: &[u8], is_last: bool) -> Vec<u8> {
    debug_assert!(bytes.len() < 1 << 24, "a length has 24 bits");
    let flags = if is_last { u32::from(FIN) << 24 } else { 0 };
    let head = [stream.to_be_bytes(), (flags | bytes.len() as u32).to_be_bytes()];
    [head.as_flattened(), bytes].concat()
}

/// Inflates headers: the headers of all frames of a connection are one compressed text.
struct Inflater {
    text: Option<Decompress>,
}

impl Inflater {
    fn headers(&mut self, mut compressed: &[u8]) -> Result<Headers, Broken> {
        let text = match &mut self.text {
            Some(text) => text,
            none => {
                compressed = after_zlib_header(compressed)?;
                none.insert(with_dictionary()?)
            }
        };
        parsed(&inflated(text, compressed)?)
    }
}

/// The bytes after the header of a zlib stream that was made with SPDY's dictionary.
fn after_zlib_header(compressed: &[u8]) -> Result<&[u8], Broken> {
    if let [method, flags, id @ ..] = compressed
        && let Some((id, rest)) = id.split_first_chunk()
    {
        let is_deflate = method & 0x0f == 8 && u16::from_be_bytes([*method, *flags]) % 31 == 0;
        let has_dictionary = flags & 0x20 != 0;
        if is_deflate && has_dictionary && u32::from_be_bytes(*id) == DICTIONARY_ID {
            return Ok(rest);
        }
    }
    Err(Broken("the first headers are not compressed with the dictionary of SPDY/3".into()))
}

/// A raw inflater that has seen the dictionary: the library accepts no dictionary, but later text can refer
/// to the content of a stored block just the same.
fn with_dictionary() -> Result<Decompress, Broken> {
    let mut text = Decompress::new(false);
    let dictionary = dictionary();
    let length = dictionary.len() as u16;
    let [low, high] = length.to_le_bytes();
    inflated(&mut text, &[&[0, low, high, !low, !high], dictionary.as_slice()].concat())?;
    Ok(text)
}

/// The whole text that these bytes yield.
fn inflated(text: &mut Decompress, mut compressed: &[u8]) -> Result<Vec<u8>, Broken> {
    let mut inflated = Vec::new();
    let mut piece = [0; 1024];
    loop {
        let before = (text.total_in(), text.total_out());
        let status = text.decompress(compressed, &mut piece, FlushDecompress::None);
        let status = status.map_err(|_| Broken("headers cannot be inflated".into()))?;
        let (taken, given) = ((text.total_in() - before.0) as usize, (text.total_out() - before.1) as usize);
        compressed = &compressed[taken..];
        inflated.extend_from_slice(&piece[..given]);
        if inflated.len() > HEADER_BYTES {
            return Err(Broken(format!("headers of more than {HEADER_BYTES} bytes")));
        }
        if status == Status::StreamEnd {
            return Err(Broken("the text of the headers ends".into()));
        }
        // called also without input: some output may wait in its window
        if taken == 0 && given == 0 {
            return Ok(inflated);
        }
    }
}

fn parsed(mut block: &[u8]) -> Result<Headers, Broken> {
    let garbled = || Broken("headers are garbled".into());
    let count = number(&mut block).filter(|count| *count <= HEADERS).ok_or_else(garbled)?;
    let mut headers = Vec::with_capacity(count);
    for _ in 0..count {
        let mut text = || {
            let length = number(&mut block)?;
            let (text, rest) = block.split_at_checked(length)?;
            block = rest;
            core::str::from_utf8(text).ok()
        };
        let (name, value) = text().zip(text()).ok_or_else(garbled)?;
        headers.push((name.to_ascii_lowercase(), value.to_owned()));
    }
    if block.is_empty() { Ok(Headers(headers)) } else { Err(garbled()) }
}

fn number(block: &mut &[u8]) -> Option<usize> {
    let (number, rest) = block.split_first_chunk()?;
    *block = rest;
    usize::try_from(u32::from_be_bytes(*number)).ok()
}

/// The dictionary's Adler-32, by which the two sides check that they have the same one.
const DICTIONARY_ID: u32 = 0xe3c6_a7c2;

/// Words of SPDY's dictionary (section 2.6.10.1 of the draft), in the same form as names and values in
/// headers.
const WORDS: &str = "options|head|post|put|delete|trace|accept|accept-charset|accept-encoding|accept-language|accept-ranges|age\
    |allow|authorization|cache-control|connection|content-base|content-encoding|content-language|content-length\
    |content-location|content-md5|content-range|content-type|date|etag|expect|expires|from|host|if-match\
    |if-modified-since|if-none-match|if-range|if-unmodified-since|last-modified|location|max-forwards|pragma\
    |proxy-authenticate|proxy-authorization|range|referer|retry-after|server|te|trailer|transfer-encoding|upgrade\
    |user-agent|vary|via|warning|www-authenticate|method|get|status|200 OK|version|HTTP/1.1|url|public|set-cookie\
    |keep-alive|origin";

/// The text that follows the words in the dictionary.
const TEXT: &str = "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505\
    203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden\
    404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable\
    Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT\
    chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,\
    publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.";

fn dictionary() -> Vec<u8> {
    let mut dictionary = Vec::with_capacity(1423);
    for word in WORDS.split('|') {
        dictionary.extend_from_slice(&(word.len() as u32).to_be_bytes());
        dictionary.extend_from_slice(word.as_bytes());
    }
    dictionary.extend_from_slice(TEXT.as_bytes());
    dictionary
}

/// The frames in a client's bytes, when they arrive in pieces of this length, one line for each frame and
/// each byte of data, and whether all of it was valid: for a fuzzer, which splits the bytes in several ways.
#[must_use]
pub fn heard(bytes: &[u8], piece: usize) -> (Vec<String>, bool) {
    let (mut decoder, mut said) = (Decoder::new(), Vec::new());
    for mut piece in bytes.chunks(piece.max(1)) {
        loop {
            match decoder.next(&mut piece) {
                Ok(Some(Frame::Data { stream, bytes, is_last })) => {
                    said.extend(bytes.iter().map(|byte| format!("{stream}: {byte}")));
                    said.extend(is_last.then(|| format!("{stream}: the end")));
                }
                Ok(Some(frame)) => said.push(format!("{frame:?}")),
                Ok(None) => break,
                Err(_) => return (said, false),
            }
        }
    }
    (said, true)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A SYN_STREAM as a client sends it, without compressing; the first of a connection begins the text of
    /// all headers.
    pub(in crate::sessions) fn opens(stream: u32, headers: &[(&str, &str)], is_first: bool) -> Vec<u8> {
        let mut block = (headers.len() as u32).to_be_bytes().to_vec();
        for text in headers.iter().flat_map(|(name, value)| [name, value]) {
            block.extend_from_slice(&(text.len() as u32).to_be_bytes());
            block.extend_from_slice(text.as_bytes());
        }
        control(SYN_STREAM, &[&stream.to_be_bytes(), &[0; 6], &stored(&block, is_first)])
    }

    fn stored(block: &[u8], is_first: bool) -> Vec<u8> {
        let zlib: &[u8] = if is_first { &[0x78, 0xf9, 0xe3, 0xc6, 0xa7, 0xc2] } else { &[] };
        let [low, high] = (block.len() as u16).to_le_bytes();
        [zlib, &[0, low, high, !low, !high], block, &[0, 0, 0, 0xff, 0xff]].concat()
    }

    fn check(bytes: &[u8], expect: &[&str]) {
        for piece in [usize::MAX, 1, 7] {
            assert_eq!(heard(bytes, piece), (expect.iter().map(|line| (*line).to_owned()).collect(), true));
        }
    }

    #[track_caller]
    fn broken(bytes: &[u8], expect: &str) {
        let mut decoder = Decoder::new();
        let mut rest = bytes;
        let why = loop {
            match decoder.next(&mut rest) {
                Ok(Some(_)) => {}
                Ok(None) => panic!("it is not refused"),
                Err(Broken(why)) => break why,
            }
        };
        assert!(why.contains(expect), "{why}");
        for piece in [1, 7] {
            assert!(!heard(bytes, piece).1);
        }
    }

    #[test]
    fn dictionary_is_the_one_that_clients_name() {
        let (mut low, mut high) = (1_u32, 0_u32);
        for byte in dictionary() {
            low = (low + u32::from(byte)) % 65_521;
            high = (high + low) % 65_521;
        }
        assert_eq!(high << 16 | low, DICTIONARY_ID);
    }

    #[test]
    fn frames_are_read_however_they_are_split() {
        let said = [
            opens(1, &[("streamtype", "error"), ("Port", "80")], true),
            data(1, b"", true),
            opens(3, &[], false),
            data(3, b"ab", false),
            data(3, b"", false),
            data(3, b"c", true),
            control(4, &[&1_u32.to_be_bytes(), &[0; 8]]),
            control(9, &[&3_u32.to_be_bytes(), &[0, 0, 1, 0]]),
            control(77, &[b"?"]),
            ping(5),
            ping(6),
            reset(3, Refusal::RefusedStream),
            control(GOAWAY, &[&[0; 8]]),
        ];
        check(
            &said.concat(),
            &[
                "Open { stream: 1, headers: Headers([(\"streamtype\", \"error\"), (\"port\", \"80\")]), is_last: false }",
                "1: the end",
                "Open { stream: 3, headers: Headers([]), is_last: false }",
                "3: 97",
                "3: 98",
                "3: 99",
                "3: the end",
                "Ping { id: 5 }",
                "Reset { stream: 3 }",
                "GoAway",
            ],
        );
    }

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(core::str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.chunks(2).map(byte).collect()
    }

    /// Two connections forwarded to port 80, at the same time.
    #[test]
    fn recorded_streams_of_kubectl_are_decoded() {
        let wanted = |kind: &str, request: &str| {
            let headers = [("port", "80"), ("requestid", request), ("streamtype", kind)];
            headers.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
        };
        let expect = [wanted("data", "0"), wanted("error", "0"), wanted("data", "1"), wanted("error", "1")];
        // recorded from kubectl 1.36 and 1.20
        for said in [
            "80030001000000430000000100000000000078f9e3c6a7c26260606006a7b392a2d4c45c6851c29a5a54945f0429968b4a181818982c0c181818\
             388b20919899c2c0c0c06800000000ffff 0000000101000000 800300010000001800000003000000000000c2aa15540a2512d209000000ffff\
             80030001000000140000000500000000000022df524300000000ffff 00000003000000026869 0000000501000000\
             800300010000001700000007000000000000826a25a4068ba300000000ffff 0000000700000002686f 0000000301000000 0000000701000000",
            "800300010000003d0000000100000000000078f9e3c6a7c202253a703a2b294a4dcc851625aca9a0808614cb45a024cc6461c0c0c0c0590489c4\
             4c50e2663400000000ffff 800300010000001300000003000000000000225fab21000000ffff 0000000301000000\
             800300010000001800000005000000000000c2aa1554802512d209000000ffff 0000000101000000\
             800300010000001300000007000000000000225ba701000000ffff 0000000500000002686f 00000007000000026869\
             0000000701000000 0000000501000000",
        ] {
            let said = hex(said);
            let (mut decoder, mut rest, mut opened, mut given) =
                (Decoder::new(), said.as_slice(), Vec::new(), Vec::new());
            while let Some(frame) = decoder.next(&mut rest).unwrap() {
                match frame {
                    Frame::Open { headers: Headers(mut headers), is_last: false, .. } => {
                        headers.sort();
                        opened.push(headers);
                    }
                    Frame::Data { bytes, .. } => given.extend_from_slice(bytes),
                    other => panic!("{other:?}"),
                }
            }
            // the order of its threads, and so of its streams and headers, varies
            opened.sort();
            assert_eq!(opened, expect);
            given.sort_unstable();
            assert_eq!(given, b"hhio");
        }
    }

    #[test]
    fn what_breaks_the_protocol_or_a_limit_is_refused() {
        broken(&[0, 0, 0, 0, 0, 0, 0, 0], "stream 0");
        broken(b"\x80\x02\0\x06\0\0\0\x04\0\0\0\x01", "version 2");
        broken(b"\x80\x03\0\x04\0\x00\x40\x01", "16385 bytes");
        broken(&control(PING, &[b"abc"]), "has 3 bytes");
        broken(&control(SYN_STREAM, &[&[0; 9]]), "has 9 bytes");
        broken(&Encoder::new().reply(1), "never opened");
        broken(&opens(1, &[], false), "dictionary");
        let garbled = |block: &[u8]| control(SYN_STREAM, &[&[0, 0, 0, 1], &[0; 6], &stored(block, true)]);
        broken(&garbled(b"\0\0\0\x01"), "garbled");
        broken(&garbled(b"\0\0\0\0more"), "garbled");
        broken(&garbled(b"\0\0\0\x21"), "garbled");
        broken(&garbled(b"\0\0\0\x01\xff\xff\xff\xffname"), "garbled");
        broken(&garbled(b"\0\0\0\x01\0\0\0\x01\xff\0\0\0\0"), "garbled");
    }

    #[test]
    fn headers_that_inflate_without_end_are_refused() {
        // of zeros, 1 MiB in 1 KiB
        let mut text = flate2::Compress::new(flate2::Compression::best(), false);
        let mut deflated = vec![0; 4096];
        text.compress(&vec![0; 1 << 20], &mut deflated, flate2::FlushCompress::Sync).unwrap();
        deflated.truncate(text.total_out() as usize);
        let begin = [0x78, 0xf9, 0xe3, 0xc6, 0xa7, 0xc2];
        broken(&control(SYN_STREAM, &[&[0, 0, 0, 1], &[0; 6], &begin, &deflated]), "more than 16384 bytes");
    }
}
