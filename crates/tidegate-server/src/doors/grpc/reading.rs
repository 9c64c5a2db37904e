//! Reads messages as they arrive: a whole body, or the sequence of a streaming call.

use std::future::poll_fn;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::Response;
use http::header::{CONTENT_TYPE, HeaderMap};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::counts::{Holding as HeldMemory, Memory, WAITING_CALL};
use super::framing::{self, CONTENT, Code, Status};
use crate::app::App;
use crate::connections::now;

/// The most bytes of incomplete messages, for all calls of a connection together.
const MAX_UNFINISHED: usize = 4 << 20;

/// Bytes of an incomplete message; counted until this is dropped.
struct Unfinished<'c> {
    held: HeldMemory<'c>,
    /// The bytes of the call itself, held as long.
    head: usize,
    bytes: BytesMut,
}

impl Unfinished<'_> {
    /// Appends a piece.
    ///
    /// # Errors
    /// [`Code::ResourceExhausted`] if the connection holds too much.
    fn push(&mut self, piece: &Bytes) -> Result<(), Status> {
        self.bytes.extend_from_slice(piece);
        let all = self.held.set(self.head + self.bytes.len());
        if all > MAX_UNFINISHED {
            let message = "the messages of this connection that are not complete are too long together";
            return Err(Status::new(Code::ResourceExhausted, message));
        }
        Ok(())
    }

    /// Takes the first message, if it is complete.
    ///
    /// # Errors
    /// As [`framing::first`].
    fn take_message(&mut self) -> Result<Option<Bytes>, Status> {
        let Some(length) = framing::first(&self.bytes)? else { return Ok(None) };
        let body = self.bytes.split_to(length);
        self.held.set(self.head + self.bytes.len());
        framing::message(body.freeze()).map(Some)
    }
}

/// Reads the body of a call. What has not come yet must arrive within `rest`. `memory` counts for the connection.
///
/// # Errors
/// [`Code::ResourceExhausted`] if it is too long, or the connection holds too much; [`Code::DeadlineExceeded`] if it
/// is late; [`Code::Internal`] if it breaks off.
pub(super) async fn whole(
    memory: &Memory,
    rest: Duration,
    headers: &HeaderMap,
    mut body: RecvStream,
) -> Result<Bytes, Status> {
    // Usually the message came with the head, in one piece: then no clock is read, and nothing copied.
    let first = match chunk(&mut body).now_or_never() {
        None => None,
        Some(first) => match first? {
            None => return Ok(Bytes::new()),
            Some(first) if body.is_end_stream() => return framing::bounded(first.len()).map(|()| first),
            first => first,
        },
    };
    let gathered = Box::pin(gather(memory, WAITING_CALL + head_bytes(headers), body, first));
    match now().checked_add(rest) {
        None => gathered.await,
        Some(until) => timeout_at(until, gathered).await.unwrap_or_else(|_| Err(late())),
    }
}

/// Collects a body in pieces after `first`.
async fn gather(
    memory: &Memory,
    head: usize,
    mut body: RecvStream,
    first: Option<Bytes>,
) -> Result<Bytes, Status> {
    let mut unfinished = Unfinished { held: memory.holding(head), head, bytes: BytesMut::new() };
    let mut next = match first {
        None => chunk(&mut body).await?,
        first => first,
    };
    while let Some(piece) = next {
        let fits = framing::bounded(unfinished.bytes.len() + piece.len());
        if let Err(status) = fits.and_then(|()| unfinished.push(&piece)) {
            drop((unfinished, piece));
            // The rest is read and dropped: a proxy that still sends may take an early answer for a broken call.
            while chunk(&mut body).await?.is_some() {}
            return Err(status);
        }
        next = chunk(&mut body).await?;
    }
    Ok(Bytes::copy_from_slice(&unfinished.bytes))
}

/// The messages of a streaming call.
pub(super) struct Messages<'c> {
    memory: &'c Memory,
    unfinished: Unfinished<'c>,
    body: RecvStream,
}

impl<'c> Messages<'c> {
    /// `memory` counts for the connection.
    pub(super) fn new(memory: &'c Memory, body: RecvStream) -> Self {
        Self {
            memory,
            unfinished: Unfinished { held: memory.holding(0), head: 0, bytes: BytesMut::new() },
            body,
        }
    }

    /// Returns a counter for other bytes of the call.
    pub(super) fn holding(&self) -> Holding<'c> {
        Holding(self.memory.holding(0))
    }

    /// Returns the next message.
    ///
    /// # Errors
    /// Those of [`framing::message`]; [`Code::ResourceExhausted`] if it is too long, or the connection holds too
    /// much; [`Code::Internal`] if it breaks off.
    ///
    /// # Cancel safety
    /// Cancel safe: an incomplete message is kept.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            if let Some(message) = self.unfinished.take_message()? {
                return Ok(Some(message));
            }
            match chunk(&mut self.body).await? {
                Some(piece) => self.unfinished.push(&piece)?,
                None if self.unfinished.bytes.is_empty() => return Ok(None),
                None => {
                    return Err(Status::new(Code::Internal, "the call ends within a message"));
                }
            }
        }
    }
}

/// Bytes that a call holds beside incomplete messages; counted with those of its connection until this is dropped.
pub(super) struct Holding<'c>(HeldMemory<'c>);

impl Holding<'_> {
    /// Sets how many are counted.
    ///
    /// # Errors
    /// [`Code::ResourceExhausted`] if the connection holds too much.
    pub(super) fn set(&mut self, bytes: usize) -> Result<(), Status> {
        let all = self.0.set(bytes);
        if all > MAX_UNFINISHED {
            let message = "the messages of this connection that are not complete, and the answers that nobody reads, are too long together";
            return Err(Status::new(Code::ResourceExhausted, message));
        }
        Ok(())
    }
}

/// Returns about how many bytes the headers take.
pub(super) fn head_bytes(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 64).sum()
}

fn late() -> Status {
    Status::new(Code::DeadlineExceeded, "the rest of the message did not come in time")
}

async fn chunk(body: &mut RecvStream) -> Result<Option<Bytes>, Status> {
    match body.data().await {
        None => Ok(None),
        Some(Ok(chunk)) => {
            // The peer may send as much again. An error means that it is gone.
            let _ = body.flow_control().release_capacity(chunk.len());
            Ok(Some(chunk))
        }
        Some(Err(error)) => Err(Status::new(Code::Internal, format!("the message breaks off: {error}"))),
    }
}

/// Sends the answers of a streaming call, and ends it.
pub(super) struct Answers {
    stream: SendStream<Bytes>,
    /// How long an answer may wait to be read.
    unread: Duration,
}

/// The caller is gone, or does not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallerGone;

impl Answers {
    /// Sends the response head; `None` if the caller is gone.
    pub(super) fn begin(mut respond: SendResponse<Bytes>, unread: Duration) -> Option<Self> {
        let mut response = Response::new(());
        response.headers_mut().insert(CONTENT_TYPE, CONTENT);
        let stream = respond.send_response(response, false).ok()?;
        Some(Self { stream, unread })
    }

    /// Sends an answer as the caller makes room.
    ///
    /// # Errors
    /// [`CallerGone`]; the call is then reset.
    pub(super) async fn send(&mut self, answer: Bytes) -> Result<(), CallerGone> {
        if let Ok(Ok(())) = timeout(self.unread, pieces(&mut self.stream, answer)).await {
            return Ok(());
        }
        self.stream.send_reset(Reason::CANCEL);
        Err(CallerGone)
    }

    /// Waits until the caller gives up the call.
    pub(super) async fn caller_gone(&mut self) {
        // An error means that the connection is gone, and so is the caller.
        let _ = poll_fn(|cx| self.stream.poll_reset(cx)).await;
    }

    /// Ends the call with its trailers.
    pub(super) fn end(mut self, ended: Result<(), Status>) {
        let trailers = match ended {
            Ok(()) => framing::ok_trailers(),
            Err(status) => status.trailers(),
        };
        // An error means that the caller is gone.
        let _ = self.stream.send_trailers(trailers);
    }
}

/// Waits for the server's end of a streaming call: a drain, or the caller's deadline.
///
/// # Cancel safety
/// Cancel safe.
pub(super) async fn over(app: &App, deadline: Option<Instant>) -> Result<(), Status> {
    let deadline = async {
        match deadline {
            Some(deadline) => sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = app.drains() => Ok(()),
        () = deadline => Err(Status::new(Code::DeadlineExceeded, "the caller's deadline has come")),
    }
}

/// Sends an answer as the caller makes room.
///
/// # Errors
/// That of `h2`, if the call or its connection has ended.
pub(super) async fn pieces(stream: &mut SendStream<Bytes>, mut answer: Bytes) -> Result<(), h2::Error> {
    while !answer.is_empty() {
        stream.reserve_capacity(answer.len());
        let room = poll_fn(|cx| stream.poll_capacity(cx)).await;
        let room = room.unwrap_or_else(|| Err(Reason::CANCEL.into()))?.min(answer.len());
        stream.send_data(answer.split_to(room), false)?;
    }
    Ok(())
}
