//! Sends the answers of a streaming call one after the other, and ends the call.

use std::future::poll_fn;
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http::Response;
use http::header::CONTENT_TYPE;
use tokio::time::{Instant, sleep_until, timeout};

use super::status::{self, CONTENT, Code, Status};
use crate::app::App;

/// The sending side of one call.
pub(super) struct Answers {
    stream: SendStream<Bytes>,
    /// How long the caller may take to read one answer.
    unread: Duration,
}

/// The error if the caller is gone, or does not read.
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

    /// Sends the body of an answer, piece by piece, as the caller makes room.
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
            Ok(()) => status::ok(),
            Err(status) => status.trailers(),
        };
        // An error means that the caller is gone.
        let _ = self.stream.send_trailers(trailers);
    }
}

/// Waits for the server-side end of a streaming call: a drain, or the deadline that the caller set.
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

/// Sends the body of an answer, piece by piece, as the caller makes room.
///
/// # Errors
/// That of `h2` if the call or its connection has ended.
pub(super) async fn pieces(stream: &mut SendStream<Bytes>, mut answer: Bytes) -> Result<(), h2::Error> {
    while !answer.is_empty() {
        stream.reserve_capacity(answer.len());
        let room = poll_fn(|cx| stream.poll_capacity(cx)).await;
        let room = room.unwrap_or_else(|| Err(Reason::CANCEL.into()))?.min(answer.len());
        stream.send_data(answer.split_to(room), false)?;
    }
    Ok(())
}
