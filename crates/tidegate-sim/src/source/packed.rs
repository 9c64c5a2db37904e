//! Detects gzip and zstd from the first bytes and decompresses them, with any number of members or frames.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use zstd::stream::read::Decoder;

/// The compression of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Packing {
    /// Not compressed.
    Plain,
    /// gzip, one or more members.
    Gzip,
    /// Zstandard, one or more frames.
    Zstd,
}

impl fmt::Display for Packing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "plain",
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        })
    }
}

/// The buffer is large enough that system calls do not show in a profile, and small enough for the second-level
/// cache.
const BUFFER: usize = 128 << 10;

/// The window of `zstd --long=27`, 128 MiB. Larger ones are refused, because the window is allocated at once.
const MAX_WINDOW_LOG: u32 = 27;

/// The first bytes of formats that are recognised but not supported, with their names and what to do.
const UNREAD: [(&[u8], &str, &str); 6] = [
    (b"\xfd7zXZ\0", "xz", "unpack it first: xz -dc FILE | tidegate replay -"),
    (b"BZh", "bzip2", "unpack it first: bzip2 -dc FILE | tidegate replay -"),
    (b"PK\x03\x04", "zip", "unpack it first: unzip -p FILE | tidegate replay -"),
    (b"\x04\x22\x4d\x18", "lz4", "unpack it first: lz4 -dc FILE | tidegate replay -"),
    (b"\xff\xfe", "UTF-16", "convert it first: iconv -f UTF-16 -t UTF-8 FILE | tidegate replay -"),
    (b"\xfe\xff", "UTF-16", "convert it first: iconv -f UTF-16 -t UTF-8 FILE | tidegate replay -"),
];

type Unpacked = Result<(Packing, Box<dyn Read + Send>), (&'static str, &'static str)>;

/// Returns a reader of the decompressed bytes or, for an unsupported format, its name and what to do.
pub(super) fn unpack(from: impl Read + Send + 'static) -> io::Result<Unpacked> {
    let mut from = BufReader::with_capacity(BUFFER, from);
    let mut head = [0; 8];
    let have = peek(&mut from, &mut head)?;
    let head = &head[..have];
    let from = io::Cursor::new(head.to_vec()).chain(from);
    for (magic, what, advice) in UNREAD {
        if head.starts_with(magic) {
            return Ok(Err((what, advice)));
        }
    }
    Ok(Ok(if head.starts_with(b"\x1f\x8b") {
        (Packing::Gzip, Box::new(MultiGzDecoder::new(from)))
    } else if head.starts_with(b"\x28\xb5\x2f\xfd") || is_skippable(head) {
        (Packing::Zstd, frames(from)?)
    } else {
        (Packing::Plain, Box::new(from))
    }))
}

/// Reads up to eight bytes; a pipe may return fewer at a time.
fn peek(from: &mut impl Read, head: &mut [u8; 8]) -> io::Result<usize> {
    let mut have = 0;
    while have < head.len() {
        match from.read(&mut head[have..]) {
            Ok(0) => break,
            Ok(count) => have += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(have)
}

/// Recognises Zstandard's skippable frames; pzstd output and seekable files begin with one.
fn is_skippable(head: &[u8]) -> bool {
    matches!(head, [low, 0x2a, 0x4d, 0x18, ..] if low & 0xf0 == 0x50)
}

/// Decodes a sequence of Zstandard frames, which may include skippable ones.
fn frames(from: impl BufRead + Send + 'static) -> io::Result<Box<dyn Read + Send>> {
    let mut decoder = Decoder::with_buffer(from)?;
    decoder.window_log_max(MAX_WINDOW_LOG)?;
    Ok(Box::new(decoder))
}
