//! Bodies of one connection: a request's that must arrive in time, and a long response's that goes out in pieces.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Bytes, Frame, Incoming, SizeHint};
use tidegate::http_answer::server_parts::in_words;
use tokio::time::{Sleep, sleep};

use crate::body::{Body, BodyError};

/// Fails with [`TooSlow`] if the whole body is not there in time. The time starts when the reader first has to wait,
/// so a body that is there costs no timer; a trickle of bytes does not extend it.
#[derive(Debug)]
pub(super) struct TimedBody {
    body: Incoming,
    time: Duration,
    due: Option<Pin<Box<Sleep>>>,
}

#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the body did not arrive within {}", in_words(self.0))]
pub(crate) struct TooSlow(pub(crate) Duration);

impl TimedBody {
    pub(super) fn new(body: Incoming, time: Duration) -> Self {
        Self { body, time, due: None }
    }
}

impl hyper::body::Body for TimedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let time = self.time;
        let late = |due: &mut Pin<Box<Sleep>>, cx: &mut Context<'_>| due.as_mut().poll(cx).is_ready();
        // First, since a peer that always has another byte ready would never meet the deadline.
        if self.due.as_mut().is_some_and(|due| late(due, cx)) {
            return Poll::Ready(Some(Err(TooSlow(time).into())));
        }
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        if self.due.is_none() && late(self.due.insert(Box::pin(sleep(time))), cx) {
            return Poll::Ready(Some(Err(TooSlow(time).into())));
        }
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The most bytes that are given out at a time. hyper copies them, and asks for more once the peer has taken enough.
pub(super) const PIECE: usize = 32 << 10;

/// A long body that holds a value until it has ended or is dropped.
#[derive(Debug)]
pub(super) struct StreamedBody<H> {
    body: Body,
    /// What is left of a frame that was longer than a piece.
    rest: Bytes,
    held: Option<H>,
}

impl<H> StreamedBody<H> {
    pub(super) fn new(body: Body, held: H) -> Self {
        Self { body, rest: Bytes::new(), held: Some(held) }
    }

    fn piece(&mut self, mut data: Bytes) -> Frame<Bytes> {
        if data.len() > PIECE {
            self.rest = data.split_off(PIECE);
        }
        Frame::data(data)
    }
}

impl<H: Unpin> hyper::body::Body for StreamedBody<H> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if !self.rest.is_empty() {
            let rest = std::mem::take(&mut self.rest);
            return Poll::Ready(Some(Ok(self.piece(rest))));
        }
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => Poll::Ready(Some(Ok(match frame.into_data() {
                Ok(data) => self.piece(data),
                Err(trailers) => trailers,
            }))),
            Poll::Ready(None) => {
                self.held = None;
                Poll::Ready(None)
            }
            polled => polled,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (body, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(body.lower() + rest);
        if let Some(upper) = body.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use hyper::body::Body as _;

    use super::*;
    use crate::body::whole;

    #[test]
    fn a_long_body_is_given_out_in_pieces_and_holds_its_value_to_the_end() {
        let text: Vec<u8> = (0..3 * PIECE + 5).map(|at| at as u8).collect();
        let held = std::rc::Rc::new(());
        let mut body = StreamedBody::new(whole(text.clone()), std::rc::Rc::clone(&held));
        let mut read = Vec::new();
        while !body.is_end_stream() {
            assert_eq!(body.size_hint().exact(), Some((text.len() - read.len()) as u64));
            let frame = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).now_or_never();
            let data = frame.unwrap().unwrap().unwrap().into_data().unwrap();
            assert!(data.len() <= PIECE && std::rc::Rc::strong_count(&held) == 2);
            read.extend_from_slice(&data);
        }
        assert_eq!(read, text);
        drop(body);
        assert_eq!(std::rc::Rc::strong_count(&held), 1);
    }
}
