//! Reads the kernel's files.

use std::fs::File;
use std::io::Read;

/// The most bytes read of a file: a list of a thousand processors has about 100 KiB, and one of all mounts of a large
/// host about 500 KiB.
const LONGEST: u64 = 4 << 20;

/// A source of file texts: the kernel, or a test. Returns `None` for a file that is missing or cannot be read.
pub(super) trait Files: Send {
    fn text(&self, path: &str) -> Option<String>;
}

impl<F: Fn(&str) -> Option<String> + Send> Files for F {
    fn text(&self, path: &str) -> Option<String> {
        self(path)
    }
}

/// Reads a file of the kernel.
pub(super) fn kernel(path: &str) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(LONGEST).read_to_string(&mut text).ok()?;
    Some(text)
}
