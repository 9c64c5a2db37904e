//! Asks `TG.CHECK` or `CL.THROTTLE` over a connection with the Redis protocol.

use std::io;
use std::pin::Pin;
use std::task::{Context, Waker};

use redis_protocol::resp2::decode::decode;
use redis_protocol::resp2::encode::encode;
use redis_protocol::resp2::types::{OwnedFrame, Resp2Frame as _};
use tokio::io::{AsyncRead as _, AsyncReadExt as _, AsyncWriteExt as _, ReadBuf};

use super::client::{Answer, Fate, Stream};

/// The longest answer that is read, in bytes: far longer than any real one.
const MAX_ANSWER: usize = 1 << 20;

/// The longest word of an error that counts as its code.
const MAX_WORD: usize = 24;

#[derive(Debug)]
pub(super) struct RespClient {
    stream: Box<dyn Stream>,
    /// The bytes read that do not form a whole answer yet.
    read: Vec<u8>,
}

impl RespClient {
    /// Authenticates with the token, if there is one.
    ///
    /// # Errors
    /// If the server rejects it.
    pub(super) async fn over(stream: Box<dyn Stream>, token: Option<&str>) -> io::Result<Self> {
        let mut client = Self { stream, read: Vec::new() };
        if let Some(token) = token {
            let said = client.exchange(&["AUTH".to_owned(), token.to_owned()]).await?;
            if let OwnedFrame::Error(error) = said {
                return Err(io::Error::other(error));
            }
        }
        Ok(client)
    }

    /// Says whether the connection is open. Between two asks, the only thing to read is its end.
    pub(super) fn is_open(&mut self) -> bool {
        let (mut byte, mut nobody) = ([0], Context::from_waker(Waker::noop()));
        Pin::new(&mut self.stream).poll_read(&mut nobody, &mut ReadBuf::new(&mut byte)).is_pending()
    }

    /// Sends a command; `is_throttle` tells whether it is `CL.THROTTLE` or `TG.CHECK`.
    ///
    /// # Errors
    /// If the connection broke, or the answer is invalid.
    pub(super) async fn ask(&mut self, words: &[String], is_throttle: bool) -> io::Result<Answer> {
        Ok(answer(&self.exchange(words).await?, is_throttle))
    }

    async fn exchange(&mut self, words: &[String]) -> io::Result<OwnedFrame> {
        let words = words.iter().map(|word| OwnedFrame::BulkString(word.clone().into_bytes()));
        let command = OwnedFrame::Array(words.collect());
        let mut bytes = vec![0; command.encode_len(false)];
        let length = encode(&mut bytes, &command, false).map_err(io::Error::other)?;
        self.stream.write_all(&bytes[..length]).await?;
        loop {
            if let Some((frame, took)) = decode(&self.read).map_err(io::Error::other)? {
                self.read.drain(..took);
                return Ok(frame);
            }
            if self.read.len() > MAX_ANSWER {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "too long an answer"));
            }
            if self.stream.read_buf(&mut self.read).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

/// The first number of `TG.CHECK` tells whether the ask is allowed, that of `CL.THROTTLE` whether it is denied.
fn answer(frame: &OwnedFrame, is_throttle: bool) -> Answer {
    let first = match frame {
        OwnedFrame::Array(parts) => parts.first(),
        other => Some(other),
    };
    match (frame, first) {
        (OwnedFrame::Array(_), Some(OwnedFrame::Integer(number @ (0 | 1)))) => {
            let allowed = (*number == 1) != is_throttle;
            let (fate, word) = if allowed { (Fate::Allowed, "allowed") } else { (Fate::Denied, "denied") };
            Answer::word(fate, word)
        }
        (OwnedFrame::Error(text), _) => {
            // The first word is the code, as in `NOAUTH Authentication required`.
            let word = text.split(' ').next().unwrap_or_default();
            let is_name = word.len() <= MAX_WORD && word.bytes().all(|byte| byte.is_ascii_alphanumeric());
            Answer::word(Fate::Failed, if is_name { word } else { "ERR" })
        }
        _ => Answer::word(Fate::Failed, "not an answer"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_commands_say_opposite_things() {
        let parts = |number| OwnedFrame::Array(vec![OwnedFrame::Integer(number), OwnedFrame::Integer(5)]);
        assert_eq!(answer(&parts(1), false).fate, Fate::Allowed);
        assert_eq!(answer(&parts(0), false).fate, Fate::Denied);
        assert_eq!(answer(&parts(0), true).fate, Fate::Allowed);
        assert_eq!(answer(&parts(1), true).fate, Fate::Denied);
        assert_eq!(answer(&parts(7), true).fate, Fate::Failed);
        let error = OwnedFrame::Error("NOAUTH Authentication required".to_owned());
        assert_eq!(answer(&error, false), Answer::word(Fate::Failed, "NOAUTH"));
        assert_eq!(answer(&OwnedFrame::Error("\u{1b}[2J x".to_owned()), false).code.to_string(), "ERR");
        assert_eq!(answer(&OwnedFrame::Null, false).fate, Fate::Failed);
    }
}
