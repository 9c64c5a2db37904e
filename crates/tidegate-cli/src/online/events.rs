//! Reads server-sent events of a running server.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use http_body_util::{BodyExt as _, Limited};
use hyper::Method;
use hyper::body::{Bytes, Incoming};
use tokio::time::timeout;

use super::{MAX_ANSWER, PATIENCE, ServerUrl, answered, refused, request};

/// How long a stream may be silent: three times as long as until the server sends a comment.
const SILENCE: Duration = Duration::from_secs(45);

/// The longest line of a stream, in bytes; an event of the server has some hundred.
const LONGEST_LINE: usize = 1 << 20;

/// What a stream of server-sent events sends: its name, and its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) name: String,
    pub(crate) data: String,
}

/// A stream of server-sent events.
#[derive(Debug)]
pub(crate) struct EventStream {
    url: String,
    body: Incoming,
    lines: EventLines,
    ready: VecDeque<Event>,
}

/// Begins to listen to the events of a path.
///
/// # Errors
/// As [`ask`](super::ask).
pub(crate) async fn listen(server: &ServerUrl, path: &str) -> Result<EventStream> {
    let url = format!("{server}{path}");
    let asked = request(&url, Method::GET, None)?;
    let late = || anyhow!("{url} did not answer within {} s", PATIENCE.as_secs());
    let response = timeout(PATIENCE, answered(server, asked)).await.map_err(|_| late())??;
    let status = response.status();
    if !status.is_success() {
        let read = timeout(PATIENCE, Limited::new(response.into_body(), MAX_ANSWER).collect()).await;
        // The status is the answer, whatever the body.
        let text = match read {
            Ok(Ok(read)) => read.to_bytes(),
            _ => Bytes::new(),
        };
        return Err(refused(&url, status, serde_json::from_slice(&text).unwrap_or_default()));
    }
    let lines = EventLines::default();
    Ok(EventStream { url, body: response.into_body(), lines, ready: VecDeque::new() })
}

impl EventStream {
    /// Waits for the next event; `None`: the server has ended the stream.
    ///
    /// # Errors
    /// A connection that breaks off or is silent for long, and lines that no server sends.
    ///
    /// # Cancel safety
    /// No event is lost.
    pub(crate) async fn next(&mut self) -> Result<Option<Event>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            let url = &self.url;
            let silent = || anyhow!("{url} sent nothing for {} s", SILENCE.as_secs());
            let frame = timeout(SILENCE, self.body.frame()).await.map_err(|_| silent())?;
            let Some(frame) = frame else { return Ok(None) };
            let frame = frame.with_context(|| format!("{url} broke off its events"))?;
            if let Ok(bytes) = frame.into_data() {
                self.lines.read(&bytes, &mut self.ready).with_context(|| url.clone())?;
            }
        }
    }
}

/// Reads server-sent events line by line, from pieces that may end anywhere.
///
/// # Source
/// HTML Living Standard, section 9.2.6, without ids and times to try again.
#[derive(Debug, Default)]
struct EventLines {
    line: Vec<u8>,
    name: String,
    data: Option<String>,
}

impl EventLines {
    /// # Errors
    /// A line, or the data of an event, above [`LONGEST_LINE`].
    fn read(&mut self, bytes: &[u8], ready: &mut VecDeque<Event>) -> Result<()> {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.line.len() + piece.len() > LONGEST_LINE {
                bail!("a line of its events is longer than {LONGEST_LINE} bytes");
            }
            self.line.extend_from_slice(piece);
            if self.line.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                self.take(String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']), ready)?;
            }
        }
        Ok(())
    }

    fn take(&mut self, line: &str, ready: &mut VecDeque<Event>) -> Result<()> {
        if line.is_empty() {
            let name = std::mem::take(&mut self.name);
            // An event without data is none.
            ready.extend(self.data.take().map(|data| Event { name, data }));
            return Ok(());
        }
        // What begins with a colon is a comment: its field has no name.
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.name),
            "data" => {
                let data = self.data.get_or_insert_default();
                if data.len() + value.len() > LONGEST_LINE {
                    bail!("an event is longer than {LONGEST_LINE} bytes");
                }
                if !data.is_empty() {
                    data.push('\n');
                }
                data.push_str(value);
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_from_pieces_that_end_anywhere() {
        let text = "retry: 2000\n: events from now on\n\nevent: denied\ndata: {\"key\":\"é\"}\r\n\n: nothing\n\nevent: empty\n\n\
                    data: a\ndata: b\n\n";
        let event = |name: &str, data: &str| Event { name: name.to_owned(), data: data.to_owned() };
        let expected = [event("denied", "{\"key\":\"é\"}"), event("", "a\nb")];
        for size in [1, 2, 7, text.len()] {
            let (mut lines, mut ready) = (EventLines::default(), VecDeque::new());
            for piece in text.as_bytes().chunks(size) {
                lines.read(piece, &mut ready).unwrap();
            }
            assert_eq!(ready, expected, "{size}");
        }
    }

    #[test]
    fn a_stream_cannot_fill_the_memory() {
        let (mut lines, mut ready) = (EventLines::default(), VecDeque::new());
        let piece = vec![b'x'; LONGEST_LINE / 2];
        lines.read(&piece, &mut ready).unwrap();
        lines.read(&piece, &mut ready).unwrap();
        assert!(lines.read(b"x", &mut ready).is_err());
        let (mut lines, mut ready) = (EventLines::default(), VecDeque::new());
        let line = format!("data: {}\n", "x".repeat(LONGEST_LINE / 2));
        lines.read(line.as_bytes(), &mut ready).unwrap();
        assert!((0..2).any(|_| lines.read(line.as_bytes(), &mut ready).is_err()));
    }
}
