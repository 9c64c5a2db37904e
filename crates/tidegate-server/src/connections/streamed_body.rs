//! A response body that goes on for long, and a value that lives until its end.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use hyper::body::{Frame, SizeHint};

/// A body that holds a value until it has ended or is dropped.
#[derive(Debug)]
pub(super) struct StreamedBody<H> {
    body: Body,
    held: Option<H>,
}

impl<H> StreamedBody<H> {
    pub(super) fn new(body: Body, held: H) -> Self {
        Self { body, held: Some(held) }
    }
}

impl<H: Unpin> hyper::body::Body for StreamedBody<H> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if matches!(polled, Poll::Ready(None)) {
            self.held = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
