//! What callers write and read: as little as a door's protocol needs, so that one core of callers keeps one core of a server busy.

pub(crate) mod grpc;
pub(crate) mod http;
pub(crate) mod resp;

use anyhow::Result;

/// One connection's side of a protocol. Questions are numbered from 0 in the order they are asked.
pub(crate) trait Wire {
    /// Appends what opens the connection.
    fn open(&mut self, _out: &mut Vec<u8>) {}

    /// Appends a question about the key of that number.
    fn ask(&mut self, key: u64, out: &mut Vec<u8>);

    /// Reads the answers that are whole, and returns how many bytes they were. What has to be sent in return is appended to `out`.
    ///
    /// # Errors
    /// Fails on an answer that is none, or not the one that was to be expected.
    fn read(&mut self, bytes: &[u8], out: &mut Vec<u8>, answered: &mut dyn FnMut(u64)) -> Result<usize>;
}

/// Writes a key of ten digits.
pub(crate) fn digits(key: u64) -> [u8; 10] {
    let (mut digits, mut rest) = ([b'0'; 10], key);
    for digit in digits.iter_mut().rev() {
        *digit += (rest % 10) as u8;
        rest /= 10;
    }
    digits
}
