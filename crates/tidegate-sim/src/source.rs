//! Opens inputs: files or standard input, plain or compressed.
//!
//! The compression is detected from the first bytes, never from the name, because logs are renamed more often than they
//! are recompressed. A truncated compressed file is an error: a replay of half a log that looks complete would be
//! misleading.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;
use zstd::stream::read::Decoder;

/// An input to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A file.
    File(PathBuf),
    /// Standard input.
    Stdin,
}

impl Input {
    /// Converts an argument: `-` is standard input, anything else a file.
    #[must_use]
    pub fn from_arg(arg: &std::ffi::OsStr) -> Self {
        if arg == "-" { Self::Stdin } else { Self::File(arg.into()) }
    }

    /// Returns the name of the input for messages.
    #[must_use]
    pub(crate) fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Stdin => "standard input".to_owned(),
        }
    }
}

/// An error while opening or reading an input.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The file cannot be opened.
    #[error("{name}: cannot be opened")]
    Open {
        /// The file.
        name: String,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// Reading or decompressing failed.
    #[error("{name}: cannot be read beyond byte {offset}")]
    Read {
        /// The file.
        name: String,
        /// The number of bytes of the file read so far, before decompression.
        offset: u64,
        /// The error of the system or of the decompressor.
        #[source]
        source: io::Error,
    },
    /// The compressed data are truncated.
    #[error("{name}: cut short: the {packing} data stop in the middle, at byte {offset}")]
    Truncated {
        /// The file.
        name: String,
        /// The compression.
        packing: &'static str,
        /// The length of the file.
        offset: u64,
    },
    /// A compression, or an encoding, that is not supported.
    #[error("{name}: {what} is not read; {advice}")]
    Unread {
        /// The file.
        name: String,
        /// The detected compression or encoding.
        what: &'static str,
        /// How to convert it.
        advice: &'static str,
    },
}

/// The progress of reading, in bytes of the files as stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes read.
    pub read: u64,
    /// The bytes of all inputs; `None` if one has no known length, such as a pipe.
    pub total: Option<u64>,
}

#[derive(Debug)]
struct CountingReader<R> {
    from: R,
    here: Arc<AtomicU64>,
    all: Arc<AtomicU64>,
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(into)?;
        // Relaxed: readers of the progress need no order with other memory.
        self.here.fetch_add(count as u64, Ordering::Relaxed);
        self.all.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// Decompressed bytes, with the name and the offset for errors.
pub(crate) struct Opened {
    name: String,
    packing: &'static str,
    offset: Arc<AtomicU64>,
    bytes: Box<dyn Read + Send>,
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened")
            .field("name", &self.name)
            .field("packing", &self.packing)
            .finish_non_exhaustive()
    }
}

impl Opened {
    /// Opens an input; `all` counts the bytes read from every input.
    pub(crate) fn new(input: &Input, all: &Arc<AtomicU64>) -> Result<Self, SourceError> {
        let name = input.name();
        let from: Box<dyn Read + Send> = match input {
            Input::Stdin => Box::new(io::stdin()),
            Input::File(path) => {
                let open = |source| SourceError::Open { name: name.clone(), source };
                Box::new(File::open(path).map_err(open)?)
            }
        };
        Self::from_reader(name, from, all)
    }

    pub(crate) fn from_reader(
        name: String,
        from: Box<dyn Read + Send>,
        all: &Arc<AtomicU64>,
    ) -> Result<Self, SourceError> {
        let offset = Arc::new(AtomicU64::new(0));
        let counted = CountingReader { from, here: Arc::clone(&offset), all: Arc::clone(all) };
        match unpack(counted) {
            Ok(Ok((packing, bytes))) => Ok(Self { name, packing, offset, bytes }),
            Ok(Err((what, advice))) => Err(SourceError::Unread { name, what, advice }),
            Err(source) => Err(SourceError::Read { name, offset: offset.load(Ordering::Relaxed), source }),
        }
    }

    /// Reads some bytes; 0 means the end.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> Result<usize, SourceError> {
        loop {
            match self.bytes.read(into) {
                Ok(count) => return Ok(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    let (name, offset) = (self.name.clone(), self.offset.load(Ordering::Relaxed));
                    return Err(if source.kind() == io::ErrorKind::UnexpectedEof {
                        SourceError::Truncated { name, packing: self.packing, offset }
                    } else {
                        SourceError::Read { name, offset, source }
                    });
                }
            }
        }
    }
}

/// Adds up the lengths of the inputs; `None` if an input has no known length.
pub(crate) fn total_bytes(inputs: &[Input]) -> Option<u64> {
    inputs.iter().try_fold(0u64, |sum, input| match input {
        Input::File(path) => {
            let about = path.metadata().ok()?;
            about.is_file().then(|| sum.saturating_add(about.len()))
        }
        Input::Stdin => None,
    })
}

/// The longest line that is read, in bytes. Longer lines are counted and skipped. 64 KiB is eight times the longest
/// request line that common servers accept by default.
pub(crate) const MAX_LINE: usize = 64 << 10;

const BUFFER: usize = 256 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    /// The number of the line in its file, from 1.
    pub(crate) number: u64,
    pub(crate) bytes: &'a [u8],
    /// Longer than [`MAX_LINE`], and skipped.
    pub(crate) too_long: bool,
}

/// Holds one buffer of 256 KiB, whatever the input.
#[derive(Debug)]
pub(crate) struct Lines {
    from: Opened,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    number: u64,
    done: bool,
    /// The rest of a line that is too long still has to be skipped.
    skipping: bool,
}

impl Lines {
    pub(crate) fn new(from: Opened) -> Self {
        let buffer = vec![0; BUFFER].into_boxed_slice();
        Self { from, buffer, start: 0, end: 0, number: 0, done: false, skipping: false }
    }

    /// Returns the next line, `None` at the end. A last line without a line end counts as a line.
    pub(crate) fn next_line(&mut self) -> Result<Option<Line<'_>>, SourceError> {
        let mut searched = self.start;
        loop {
            if let Some(at) = memchr::memchr(b'\n', &self.buffer[searched..self.end]) {
                let (from, to) = (self.start, searched + at);
                self.start = to + 1;
                return Ok(Some(self.line(from, to)));
            }
            if self.end - self.start > MAX_LINE {
                self.skipping = true;
                self.start = self.end;
            }
            searched = self.end;
            if self.done || !self.fill(&mut searched)? {
                if self.start == self.end && !self.skipping {
                    return Ok(None);
                }
                let (from, to) = (self.start, self.end);
                self.start = to;
                return Ok(Some(self.line(from, to)));
            }
        }
    }

    /// Returns the first bytes without consuming them: at least as many as the longest line has, or all there are.
    pub(crate) fn sample(&mut self) -> Result<&[u8], SourceError> {
        while !self.done && self.end < MAX_LINE {
            self.fill(&mut 0)?;
        }
        Ok(&self.buffer[self.start..self.end])
    }

    fn line(&mut self, from: usize, to: usize) -> Line<'_> {
        self.number += 1;
        let number = self.number;
        let too_long = std::mem::take(&mut self.skipping) || to - from > MAX_LINE;
        if too_long {
            return Line { number, bytes: &[], too_long };
        }
        let mut bytes = &self.buffer[from..to];
        if let [rest @ .., b'\r'] = bytes {
            bytes = rest;
        }
        if number == 1 {
            bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        }
        Line { number, bytes, too_long }
    }

    /// Makes room and reads more; `false` at the end. Moves `searched` along with the bytes.
    fn fill(&mut self, searched: &mut usize) -> Result<bool, SourceError> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            *searched = searched.saturating_sub(self.start);
            self.start = 0;
        }
        // At most MAX_LINE bytes are held here, a quarter of the buffer.
        let count = self.from.read(&mut self.buffer[self.end..])?;
        self.end += count;
        self.done = count == 0;
        Ok(count > 0)
    }
}

/// The buffer is large enough that system calls do not show in a profile, and small enough for the second-level cache.
const UNPACKED: usize = 128 << 10;

/// The window of `zstd --long=27`, 128 MiB. It is allocated at once, so larger ones are refused.
const MAX_WINDOW_LOG: u32 = 27;

/// Recognised but not supported, with their names and what to do.
const UNREAD: [(&[u8], &str, &str); 6] = [
    (b"\xfd7zXZ\0", "xz", "unpack it first: xz -dc FILE | tidegate replay -"),
    (b"BZh", "bzip2", "unpack it first: bzip2 -dc FILE | tidegate replay -"),
    (b"PK\x03\x04", "zip", "unpack it first: unzip -p FILE | tidegate replay -"),
    (b"\x04\x22\x4d\x18", "lz4", "unpack it first: lz4 -dc FILE | tidegate replay -"),
    (b"\xff\xfe", "UTF-16", "convert it first: iconv -f UTF-16 -t UTF-8 FILE | tidegate replay -"),
    (b"\xfe\xff", "UTF-16", "convert it first: iconv -f UTF-16 -t UTF-8 FILE | tidegate replay -"),
];

type Unpacked = Result<(&'static str, Box<dyn Read + Send>), (&'static str, &'static str)>;

/// Returns a reader of the decompressed bytes or, for an unsupported format, its name and what to do.
fn unpack(from: impl Read + Send + 'static) -> io::Result<Unpacked> {
    let mut from = BufReader::with_capacity(UNPACKED, from);
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
        ("gzip", Box::new(MultiGzDecoder::new(from)))
    } else if head.starts_with(b"\x28\xb5\x2f\xfd") || is_skippable(head) {
        ("zstd", frames(from)?)
    } else {
        ("plain", Box::new(from))
    }))
}

/// A pipe may return fewer bytes at a time.
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

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Read, Write};
    use std::sync::Arc;

    use super::*;

    fn lines(bytes: Vec<u8>) -> Result<Lines, SourceError> {
        Opened::from_reader("test".into(), Box::new(Cursor::new(bytes)), &Arc::default()).map(Lines::new)
    }

    fn all(bytes: Vec<u8>) -> Result<Vec<Vec<u8>>, SourceError> {
        let mut lines = lines(bytes)?;
        let mut out = Vec::new();
        while let Some(line) = lines.next_line()? {
            out.push(line.bytes.to_vec());
        }
        Ok(out)
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut pack = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        pack.write_all(bytes).unwrap();
        pack.finish().unwrap()
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        zstd::bulk::compress(bytes, 1).unwrap()
    }

    #[test]
    fn lines_end_in_either_way_and_the_last_needs_no_end() {
        let read = all(b"\xef\xbb\xbfone\r\ntwo\n\nlast".to_vec()).unwrap();
        assert_eq!(read, [&b"one"[..], b"two", b"", b"last"]);
        assert!(all(Vec::new()).unwrap().is_empty());
        assert_eq!(all(b"x".to_vec()).unwrap(), [b"x"]);
    }

    #[test]
    fn packed_members_and_frames_are_read_one_after_another() {
        for pack in [gzip, zstd] {
            let mut bytes = pack(b"one\ntw");
            bytes.extend(pack(b"o\nthree\n"));
            assert_eq!(all(bytes).unwrap(), [&b"one"[..], b"two", b"three"]);
        }
        // Skippable frames before and between the others.
        let skip = b"\x5a\x2a\x4d\x18\x03\0\0\0abc";
        let bytes = [skip, zstd(b"one\n").as_slice(), skip, zstd(b"two").as_slice()].concat();
        assert_eq!(all(bytes).unwrap(), [b"one", b"two"]);
    }

    #[test]
    fn a_file_cut_short_is_an_error_that_names_file_packing_and_offset() {
        let text: Vec<u8> = (0..20_000u32).flat_map(|n| format!("line {n}\n").into_bytes()).collect();
        for pack in [gzip, zstd] {
            let mut bytes = pack(&text);
            bytes.truncate(bytes.len() - 20);
            let (length, error) = (bytes.len() as u64, all(bytes).unwrap_err());
            let SourceError::Truncated { name, offset, packing } = error else { panic!("{error:?}") };
            assert_eq!((name.as_str(), offset), ("test", length));
            assert_ne!(packing, "plain");
        }
    }

    #[test]
    fn a_zstd_file_that_was_changed_or_wants_too_much_memory_is_refused() {
        let mut packer = zstd::Encoder::new(Vec::new(), 1).unwrap();
        packer.include_checksum(true).unwrap();
        packer.write_all(b"one\ntwo\n").unwrap();
        let mut changed = packer.finish().unwrap();
        *changed.last_mut().unwrap() ^= 1;
        assert!(matches!(all(changed), Err(SourceError::Read { .. })), "the checksum does not match");

        let mut packer = zstd::Encoder::new(Vec::new(), 1).unwrap();
        packer.window_log(28).unwrap();
        packer.write_all(b"one\n").unwrap();
        let wide = packer.finish().unwrap();
        assert!(matches!(all(wide), Err(SourceError::Read { .. })), "a window of 256 MiB");
    }

    #[test]
    fn what_is_not_read_says_what_to_do() {
        let error = all(b"BZh91AY&SY".to_vec()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "test: bzip2 is not read; unpack it first: bzip2 -dc FILE | tidegate replay -"
        );
    }

    #[test]
    fn a_line_too_long_is_one_line_and_the_next_is_whole() {
        let long = vec![b'x'; 5 * BUFFER + 17];
        let bytes =
            [b"a\n", long.as_slice(), b"\nb\n", &long[..MAX_LINE], b"\n", &long[..MAX_LINE + 1]].concat();
        let mut lines = lines(bytes).unwrap();
        let mut seen = Vec::new();
        while let Some(line) = lines.next_line().unwrap() {
            seen.push((line.number, line.bytes.len(), line.too_long));
        }
        assert_eq!(seen, [(1, 1, false), (2, 0, true), (3, 1, false), (4, MAX_LINE, false), (5, 0, true)]);
    }

    /// A reader that returns one byte at a time, as a slow pipe may.
    struct Drip(Cursor<Vec<u8>>);

    impl Read for Drip {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let count = into.len().min(1);
            self.0.read(&mut into[..count])
        }
    }

    #[test]
    fn a_pipe_may_hand_over_one_byte_at_a_time() {
        let from = Drip(Cursor::new(gzip(b"one\ntwo\n")));
        let opened = Opened::from_reader("pipe".into(), Box::new(from), &Arc::default()).unwrap();
        let mut lines = Lines::new(opened);
        assert_eq!(lines.next_line().unwrap().unwrap().bytes, b"one");
        assert_eq!(lines.next_line().unwrap().unwrap().bytes, b"two");
        assert!(lines.next_line().unwrap().is_none());
    }
}
