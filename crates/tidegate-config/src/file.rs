//! Reads small regular files whole and refuses everything else; tells the format of a file.
//!
//! A pipe whose other end never writes, an endless device or a terminal would never return. So the type is checked
//! before the file is opened and again when it is open, and no more is read than the caller allows. Symlinks are
//! followed: Kubernetes mounts files as such.
//!
//! A regular file may still be slow: a caller that must not block reads on another thread.

use std::fs::{File, FileType, OpenOptions};
use std::io::{self, Read as _};
use std::path::Path;

/// Why a file was not read. Prints as the end of a sentence that begins with the file's name.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The system refused.
    #[error("cannot be read: {0}")]
    System(io::Error),
    /// The path leads to something other than a regular file.
    #[error("is {what}; only a regular file is read")]
    NotRegular {
        /// The kind of file, with its article.
        what: &'static str,
    },
    /// The file is longer than allowed.
    #[error("is longer than {}", size(*.most))]
    TooLong {
        /// The most bytes that were allowed.
        most: u64,
    },
    /// The file is not UTF-8 text.
    #[error("is not UTF-8 text: byte {at} is something else")]
    NotText {
        /// The position of the first invalid byte, from 0.
        at: usize,
    },
}

/// Reads a whole file of at most `most` bytes.
///
/// Opens without waiting, so a pipe, a device or a socket is an error at once. For a regular file, blocks as long as
/// the file system takes. Allocates as it reads, never more than twice the bytes read.
///
/// # Errors
/// [`ReadError`]; a path that does not exist is `System` with the kind `NotFound`.
pub fn read_file(path: &Path, most: u64) -> Result<Vec<u8>, ReadError> {
    // Checked before opening, because opening alone starts some devices.
    regular(std::fs::metadata(path).map_err(ReadError::System)?.file_type())?;
    let file = open(path).map_err(ReadError::System)?;
    // Checked again after opening, because the path may lead elsewhere by now.
    regular(file.metadata().map_err(ReadError::System)?.file_type())?;
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(ReadError::System)?;
    if bytes.len() as u64 > most { Err(ReadError::TooLong { most }) } else { Ok(bytes) }
}

/// Reads a whole text file of at most `most` bytes: as [`read_file`], but the bytes must be UTF-8.
///
/// # Errors
/// [`ReadError`] as [`read_file`], and if the bytes are not UTF-8.
pub fn read_text(path: &Path, most: u64) -> Result<String, ReadError> {
    String::from_utf8(read_file(path, most)?)
        .map_err(|error| ReadError::NotText { at: error.utf8_error().valid_up_to() })
}

#[cfg(unix)]
fn open(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}

#[cfg(not(unix))]
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).open(path)
}

fn regular(kind: FileType) -> Result<(), ReadError> {
    if kind.is_file() { Ok(()) } else { Err(ReadError::NotRegular { what: name(kind) }) }
}

fn name(kind: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt as _;
        if kind.is_fifo() {
            return "a pipe";
        }
        if kind.is_socket() {
            return "a socket";
        }
        if kind.is_char_device() || kind.is_block_device() {
            return "a device";
        }
    }
    if kind.is_dir() { "a folder" } else { "no file" }
}

fn size(bytes: u64) -> String {
    match bytes {
        _ if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} bytes"),
    }
}

/// How a file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// YAML 1.2.
    Yaml,
    /// TOML 1.1, with the same tree.
    Toml,
}

impl Format {
    /// Guesses the format of a text from its first line that is neither empty nor a comment: TOML if it opens a table
    /// or assigns a key with `=`, otherwise YAML.
    ///
    /// # Examples
    /// ```
    /// use tidegate::config::Format;
    /// assert_eq!(Format::of_text("# ours\nversion: 1\npolicies: []\n"), Format::Yaml);
    /// assert_eq!(Format::of_text("version = 1\npolicies = []\n"), Format::Toml);
    /// ```
    #[must_use]
    pub fn of_text(text: &str) -> Self {
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let Some(first) = lines.next() else { return Self::Yaml };
        let is_toml = match first.find(['=', ':', '{', ']']) {
            Some(at) => {
                first.as_bytes()[at] == b'=' || (first.as_bytes()[at] == b']' && first.starts_with('['))
            }
            None => false,
        };
        if is_toml { Self::Toml } else { Self::Yaml }
    }

    /// Returns the format of a file by its extension: TOML for `.toml`, YAML for every other.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        let is_toml = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("toml"));
        if is_toml { Self::Toml } else { Self::Yaml }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_in_words() {
        assert_eq!([10, 1024, 1536, 4 << 20].map(size), ["10 bytes", "1 KiB", "1536 bytes", "4 MiB"]);
    }

    /// Formerly a pipe without a writer and an endless device blocked their reader for ever.
    #[cfg(unix)]
    #[test]
    fn what_is_no_regular_file_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&pipe, &link).unwrap();
        let socket = dir.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for (path, words) in [
            (pipe.as_path(), "is a pipe; only a regular file is read"),
            (link.as_path(), "is a pipe; only a regular file is read"),
            (socket.as_path(), "is a socket; only a regular file is read"),
            (Path::new("/dev/zero"), "is a device; only a regular file is read"),
            (dir.path(), "is a folder; only a regular file is read"),
            (Path::new("/nowhere/at/all"), "cannot be read: No such file or directory (os error 2)"),
        ] {
            assert_eq!(read_file(path, 10).unwrap_err().to_string(), words, "{}", path.display());
        }
    }

    #[test]
    fn no_more_is_read_than_allowed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "0123456789").unwrap();
        assert_eq!(read_text(&file, 10).unwrap(), "0123456789");
        assert_eq!(read_text(&file, 9).unwrap_err().to_string(), "is longer than 9 bytes");
        std::fs::write(&file, b"01\xff").unwrap();
        let error = read_text(&file, 10).unwrap_err().to_string();
        assert_eq!(error, "is not UTF-8 text: byte 2 is something else");
    }

    /// A symlink to a regular file counts as regular, since Kubernetes mounts config maps as symlinks.
    #[cfg(unix)]
    #[test]
    fn symlinks_to_files_are_followed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "text").unwrap();
        std::os::unix::fs::symlink("file", dir.path().join("link")).unwrap();
        assert_eq!(read_text(&dir.path().join("link"), 10).unwrap(), "text");
    }
}
