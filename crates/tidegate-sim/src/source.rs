//! Opens inputs: files or standard input, plain or compressed.
//!
//! The compression is detected from the first bytes, never from the name, because logs are renamed more often than
//! they are recompressed. Everything streams through buffers of fixed size. A truncated compressed file is an error
//! that names the file and the offset: a replay of half a log that looks complete would be misleading.

mod lines;
mod packed;

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use lines::{Line, Lines, MAX_LINE};
pub use packed::Packing;

/// An input to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A file.
    File(PathBuf),
    /// Standard input.
    Stdin,
}

impl Input {
    /// Converts a command-line argument: `-` is standard input, anything else a file.
    #[must_use]
    pub fn from_arg(arg: &std::ffi::OsStr) -> Self {
        if arg == "-" { Self::Stdin } else { Self::File(arg.into()) }
    }

    /// Returns the name of the input for messages.
    #[must_use]
    pub fn name(&self) -> String {
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
        packing: Packing,
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
    /// The bytes of all inputs; `None` if an input has no known length, such as a pipe.
    pub total: Option<u64>,
}

/// Counts the bytes read from a reader.
#[derive(Debug)]
struct Counted<R> {
    from: R,
    /// Bytes of this input.
    here: Arc<AtomicU64>,
    /// Bytes of all inputs.
    all: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(into)?;
        // Relaxed: one thread writes, and readers of the progress need no order with other memory.
        self.here.fetch_add(count as u64, Ordering::Relaxed);
        self.all.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// An open input: decompressed bytes, with the name and the offset for errors.
pub(crate) struct Opened {
    name: String,
    packing: Packing,
    offset: Arc<AtomicU64>,
    bytes: Box<dyn Read + Send>,
}

impl std::fmt::Debug for Opened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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

    /// Wraps any reader and detects its compression.
    pub(crate) fn from_reader(
        name: String,
        from: Box<dyn Read + Send>,
        all: &Arc<AtomicU64>,
    ) -> Result<Self, SourceError> {
        let offset = Arc::new(AtomicU64::new(0));
        let counted = Counted { from, here: Arc::clone(&offset), all: Arc::clone(all) };
        match packed::unpack(counted) {
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
