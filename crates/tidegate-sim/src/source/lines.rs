//! Splits bytes into lines that borrow from one buffer.

use super::{Opened, SourceError};

/// The longest line that is read, in bytes. Longer lines are counted and skipped. 64 KiB is eight times the longest
/// request line that common servers accept by default.
pub const MAX_LINE: usize = 64 << 10;

/// The size of the buffer of decompressed bytes.
const BUFFER: usize = 256 << 10;

/// One line, without its line end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// The number of the line in its file, from 1.
    pub number: u64,
    /// The contents; empty if the line was too long.
    pub bytes: &'a [u8],
    /// Whether it was longer than [`MAX_LINE`] and skipped.
    pub too_long: bool,
}

/// Reads the lines of one input. Holds one buffer of 256 KiB, whatever the input.
#[derive(Debug)]
pub struct Lines {
    from: Opened,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    number: u64,
    done: bool,
    /// Whether the rest of a line that is too long still has to be skipped.
    skipping: bool,
}

impl Lines {
    pub(crate) fn new(from: Opened) -> Self {
        let buffer = vec![0; BUFFER].into_boxed_slice();
        Self { from, buffer, start: 0, end: 0, number: 0, done: false, skipping: false }
    }

    /// Returns the next line, `None` at the end. A last line without a line end counts as a line.
    ///
    /// # Errors
    /// [`SourceError`] if the input cannot be read.
    pub fn next_line(&mut self) -> Result<Option<Line<'_>>, SourceError> {
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
    ///
    /// # Errors
    /// [`SourceError`] if the input cannot be read.
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
        // There is room: at most MAX_LINE bytes are held here, a quarter of the buffer.
        let count = self.from.read(&mut self.buffer[self.end..])?;
        self.end += count;
        self.done = count == 0;
        Ok(count > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Read, Write};
    use std::sync::Arc;

    use super::*;
    use crate::source::Packing;

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
            assert_ne!(packing, Packing::Plain);
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
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
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
