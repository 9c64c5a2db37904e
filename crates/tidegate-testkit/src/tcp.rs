//! One request and its answer, over a connection of its own.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The time limit for connecting and for the answer.
const WAIT: Duration = Duration::from_secs(2);

/// Sends bytes, and returns the first piece of the answer.
pub(crate) fn answer(addr: SocketAddr, question: &[u8]) -> Option<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&addr, WAIT).ok()?;
    stream.set_read_timeout(Some(WAIT)).ok()?;
    stream.write_all(question).ok()?;
    let mut piece = vec![0; 4096];
    let length = stream.read(&mut piece).ok()?;
    piece.truncate(length);
    Some(piece)
}
