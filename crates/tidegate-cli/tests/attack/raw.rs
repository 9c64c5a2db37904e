//! HTTP over a plain socket, for requests that no client library would send.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};

use super::waiting::PATIENCE;

/// The header of a JSON body.
pub(crate) const JSON: (&str, &str) = ("content-type", "application/json");

/// A complete answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl Answer {
    /// Returns the first header of that name, ignoring case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// Returns the bytes of the status line and all headers.
    pub(crate) fn head_bytes(&self) -> usize {
        self.head.len()
    }

    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }
}

/// Opens a connection with a timeout of [`PATIENCE`].
pub(crate) fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&addr, PATIENCE).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Sends one well-formed request on a connection of its own. Returns the answer.
#[track_caller]
pub(crate) fn ask(
    addr: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Answer {
    let mut request = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        request += &format!("host: {addr}\r\n");
    }
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    request += &format!("content-length: {}\r\n\r\n", body.len());
    let answers = send(addr, &[request.as_bytes(), body].concat());
    answers.unwrap_or_else(|error| panic!("{method} {path}: {error}")).remove(0)
}

/// Sends these bytes unchanged and reads all answers until the server closes, which the bytes must cause.
///
/// # Errors
/// `UnexpectedEof` if the server closed without an answer; otherwise the error of the socket.
pub(crate) fn send(addr: SocketAddr, bytes: &[u8]) -> io::Result<Vec<Answer>> {
    exchange(addr, bytes, |_| Ok(()))
}

/// Like [`send`], but then closes the sending side, so that the server sees the end of an incomplete request.
pub(crate) fn send_and_end(addr: SocketAddr, bytes: &[u8]) -> io::Result<Vec<Answer>> {
    exchange(addr, bytes, |stream| stream.shutdown(Shutdown::Write))
}

fn exchange(
    addr: SocketAddr,
    bytes: &[u8],
    after: impl FnOnce(&TcpStream) -> io::Result<()>,
) -> io::Result<Vec<Answer>> {
    let mut stream = connect(addr);
    // A server may refuse and close before it has read everything: its answer counts.
    let sent = stream.write_all(bytes).and_then(|()| after(&stream));
    let answers = read_all(&mut stream)?;
    match (answers.is_empty(), sent) {
        (false, _) => Ok(answers),
        (true, Err(error)) => Err(error),
        (true, Ok(())) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "closed without an answer")),
    }
}

/// Reads answers until the server closes.
pub(crate) fn read_all(stream: &mut TcpStream) -> io::Result<Vec<Answer>> {
    let mut bytes = Vec::new();
    let mut piece = [0; 16 * 1024];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(read) => bytes.extend_from_slice(&piece[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // A reset after the answer does not invalidate it.
            Err(_) if !bytes.is_empty() => break,
            Err(error) => return Err(error),
        }
    }
    let mut answers = Vec::new();
    let mut rest = &bytes[..];
    while let Some((answer, next)) = split(rest) {
        answers.push(answer);
        rest = next;
    }
    Ok(answers)
}

/// Splits off the first complete answer; interim answers (1xx) are skipped.
fn split(bytes: &[u8]) -> Option<(Answer, &[u8])> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let (head, rest) = (&bytes[..end + 4], &bytes[end + 4..]);
    let head = String::from_utf8_lossy(head).into_owned();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    if (100..200).contains(&status) {
        return split(rest);
    }
    let mut answer = Answer { status, head, body: String::new() };
    let length = match answer.header("content-length") {
        // The answer to HEAD has the length of a body that is not sent; here nothing follows it.
        _ if rest.is_empty() => 0,
        Some(length) => length.parse().ok()?,
        None if answer.header("transfer-encoding").is_some() => {
            let (body, used) = chunks(rest)?;
            answer.body = body;
            return Some((answer, &rest[used..]));
        }
        None => 0,
    };
    let body = rest.get(..length).unwrap_or(rest);
    answer.body = String::from_utf8_lossy(body).into_owned();
    Some((answer, &rest[body.len()..]))
}

/// Joins the chunks of a body. Returns it with its length in bytes on the wire.
fn chunks(bytes: &[u8]) -> Option<(String, usize)> {
    let (mut body, mut at) = (Vec::new(), 0);
    loop {
        let line = bytes[at..].windows(2).position(|two| two == b"\r\n")?;
        let size = std::str::from_utf8(&bytes[at..at + line]).ok()?;
        let size = usize::from_str_radix(size.split(';').next()?.trim(), 16).ok()?;
        at += line + 2;
        body.extend_from_slice(bytes.get(at..at + size)?);
        at += size + 2;
        if size == 0 {
            return Some((String::from_utf8_lossy(&body).into_owned(), at));
        }
    }
}
