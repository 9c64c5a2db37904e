//! A long response body, given out in pieces, and a value that lives until its end.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use hyper::body::{Frame, SizeHint};

/// The most bytes that are given out at a time. hyper copies what it is given, and asks for more only once the peer has
/// taken enough.
pub(super) const PIECE: usize = 32 << 10;

/// A body that holds a value until it has ended or is dropped.
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

    /// Splits off the next piece of a frame's data and keeps the rest.
    fn piece(&mut self, mut data: Bytes) -> Frame<Bytes> {
        if data.len() > PIECE {
            self.rest = data.split_off(PIECE);
        }
        Frame::data(data)
    }
}

impl<H: Unpin> hyper::body::Body for StreamedBody<H> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
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

    #[test]
    fn a_long_body_is_given_out_in_pieces_and_holds_its_value_to_the_end() {
        let text: Vec<u8> = (0..3 * PIECE + 5).map(|at| at as u8).collect();
        let held = std::rc::Rc::new(());
        let mut body = StreamedBody::new(Body::from(text.clone()), std::rc::Rc::clone(&held));
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
