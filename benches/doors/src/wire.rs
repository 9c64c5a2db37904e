//! The callers' side of the protocols: the least that each needs, so that one core of callers can keep one core of a
//! server busy.

pub(crate) mod grpc;
pub(crate) mod http;
pub(crate) mod resp;

use anyhow::Result;

/// One connection's side of a protocol. Requests are numbered from 0 in the order of sending.
pub(crate) trait Wire {
    /// Appends the bytes that open the connection.
    fn open(&mut self, _out: &mut Vec<u8>) {}

    /// Appends a request for the key with this number.
    fn ask(&mut self, key: u64, out: &mut Vec<u8>);

    /// Reads the complete answers, and returns their length in bytes. Bytes to send in return are appended to `out`.
    ///
    /// # Errors
    /// Fails on an answer that is malformed or unexpected.
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
