//! Requests with bodies that cannot be cloned, retried behind a replay layer.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use proptest::prelude::*;
use tidegate::clock::ManualClock;
use tidegate::retries::{Retrier, SharedBudget};
use tidegate_core::retry::Retries;
use tidegate_core::retry_budget::RetryBudget;
use tidegate_tower::RetryLayer;
use tidegate_tower::body::{ReplayBody, ReplayError, ReplayLayer};
use tower::{BoxError, Layer, service_fn};
use tower_service::Service;

use crate::layers::service::poll;

/// One step of a body: data, trailers, or a failure.
#[derive(Clone, Debug, PartialEq)]
enum Says {
    Data(Vec<u8>),
    Trailer(&'static str),
    Fails,
}

/// A body that cannot be cloned.
#[derive(Debug)]
struct Script(VecDeque<Says>);

impl Script {
    fn of(says: impl IntoIterator<Item = Says>) -> Self {
        Self(says.into_iter().collect())
    }

    fn length(&self) -> u64 {
        self.0.iter().map(|says| if let Says::Data(data) = says { data.len() as u64 } else { 0 }).sum()
    }
}

impl Body for Script {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Poll::Ready(self.0.pop_front().map(|says| match says {
            Says::Data(data) => Ok(Frame::data(data.into())),
            Says::Trailer(name) => {
                Ok(Frame::trailers(HeaderMap::from_iter([(name.parse().unwrap(), "x".parse().unwrap())])))
            }
            Says::Fails => Err("the caller has gone".into()),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.length())
    }
}

/// What one try has read: the data, the trailers, and the announced size.
type Read = Result<(Bytes, Option<HeaderMap>, Option<u64>), String>;

/// Sends a body through a replay layer of `most` bytes and a retry layer, to a service that answers 503 twice. It reads
/// `frames` of the first try's body and the others' whole bodies. Returns the status and what each try read.
fn send(most: usize, method: Method, body: Script, frames: usize) -> (u16, Vec<Read>) {
    let tries = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&tries);
    let service = service_fn(move |request: Request<ReplayBody<Script>>| {
        let seen = Arc::clone(&seen);
        async move {
            let first = seen.lock().unwrap().is_empty();
            let size = request.body().size_hint().exact();
            let mut body = request.into_body();
            let read = if first && frames < usize::MAX {
                for _ in 0..frames {
                    let _ = body.frame().await;
                }
                Err("left".to_owned())
            } else {
                body.collect().await.map_err(|error| error.to_string()).map(|read| {
                    let trailers = read.trailers().cloned();
                    (read.to_bytes(), trailers, size)
                })
            };
            seen.lock().unwrap().push(read);
            let status = if seen.lock().unwrap().len() < 3 { 503 } else { 200 };
            Ok::<_, Infallible>(Response::builder().status(status).body(String::new()).unwrap())
        }
    });
    let budget = SharedBudget::with_clock(RetryBudget::new(1.0).unwrap(), ManualClock::default());
    let retry =
        RetryLayer::new(Retrier::new(Retries::new(3, Duration::ZERO, Duration::ZERO).unwrap(), budget));
    let client = ReplayLayer::up_to(most).layer(retry.layer(service));
    let request = Request::builder().method(method).body(body).unwrap();
    let Poll::Ready(answer) = poll(pin!(client.oneshot(request))) else {
        panic!("no answer at the first poll")
    };
    let tries = tries.lock().unwrap().clone();
    (answer.unwrap().status().as_u16(), tries)
}

fn letters() -> Script {
    Script::of([Says::Data(b"abc".to_vec()), Says::Data(b"de".to_vec()), Says::Trailer("x-sum")])
}

fn whole() -> Read {
    let trailers = HeaderMap::from_iter([("x-sum".parse().unwrap(), "x".parse().unwrap())]);
    Ok((Bytes::from_static(b"abcde"), Some(trailers), Some(5)))
}

#[test]
fn each_try_sends_the_whole_body() {
    assert_eq!(send(1000, Method::PUT, letters(), usize::MAX), (200, vec![whole(), whole(), whole()]));
}

/// The service may refuse before it has read the body, whose rest is then read by the next try.
#[test]
fn a_try_that_left_early_leaves_the_rest_to_the_next() {
    for frames in 0..4 {
        let (status, tries) = send(1000, Method::PUT, letters(), frames);
        assert_eq!((status, &tries[1..]), (200, &[whole(), whole()][..]), "{frames}");
    }
}

#[test]
fn a_body_that_is_too_long_to_keep_is_sent_once() {
    // Two frames of data and the trailers: 5 bytes, 6 bytes of trailer, and 64 bytes for each.
    let needed = 5 + 6 + 3 * 64;
    assert_eq!(send(needed, Method::PUT, letters(), usize::MAX).1.len(), 3);
    assert_eq!(send(needed - 1, Method::PUT, letters(), usize::MAX), (503, vec![whole()]));
    assert_eq!(send(0, Method::PUT, letters(), usize::MAX), (503, vec![whole()]));
    assert_eq!(send(0, Method::PUT, Script::of([]), usize::MAX).0, 200, "there is nothing to keep");
}

#[test]
fn a_body_that_failed_is_sent_once() {
    let fails = Script::of([Says::Data(b"abc".to_vec()), Says::Fails]);
    let (status, tries) = send(1000, Method::PUT, fails, usize::MAX);
    assert_eq!((status, tries), (503, vec![Err("the caller has gone".to_owned())]));
}

#[test]
fn a_request_that_may_not_be_repeated_is_sent_once() {
    assert_eq!(send(1000, Method::POST, letters(), usize::MAX), (503, vec![whole()]));
}

/// A holder that begins after more was read than is kept gets an error, never a part of the body.
#[test]
fn nobody_gets_half_a_body() {
    let seen = Arc::new(Mutex::new(None));
    let keeps = Arc::clone(&seen);
    let mut service =
        ReplayLayer::up_to(100).layer(service_fn(move |request: Request<ReplayBody<Script>>| {
            *keeps.lock().unwrap() = Some(request.into_body());
            std::future::ready(Ok::<_, Infallible>(()))
        }));
    let long = Script::of((0..3).map(|_| Says::Data(vec![0; 30])));
    assert!(poll(pin!(service.call(Request::new(long)))).is_ready());
    let mut first = seen.lock().unwrap().take().unwrap();
    let second = first.clone();
    for left in [60, 30, 0] {
        assert!(matches!(poll(pin!(first.frame())), Poll::Ready(Some(Ok(_)))));
        assert_eq!(first.size_hint().exact(), Some(left));
    }
    assert!(first.is_end_stream() && !second.is_end_stream());
    let Poll::Ready(Err(error)) = poll(pin!(second.collect())) else { panic!("an error") };
    assert_eq!(error.downcast_ref(), Some(&ReplayError));
}

proptest! {
    /// Two holders that read in any order get the same whole body.
    #[test]
    fn holders_that_read_in_turn_all_get_the_whole(
        body in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..5), 0..6),
        turns in proptest::collection::vec(any::<bool>(), 0..20),
    ) {
        let sent = body.concat();
        let script = Script::of(body.into_iter().map(Says::Data));
        let seen = Arc::new(Mutex::new(None));
        let keeps = Arc::clone(&seen);
        let mut service = ReplayLayer::up_to(10_000).layer(service_fn(move |request: Request<ReplayBody<Script>>| {
            *keeps.lock().unwrap() = Some(request.into_body());
            std::future::ready(Ok::<_, Infallible>(()))
        }));
        prop_assert!(poll(pin!(service.call(Request::new(script)))).is_ready());
        let first = seen.lock().unwrap().take().unwrap();
        let mut holders = [first.clone(), first];
        let mut got = [Vec::new(), Vec::new()];
        // Enough turns at the end for both to finish.
        for turn in turns.into_iter().chain([true, false].repeat(10)) {
            let at = usize::from(turn);
            if let Poll::Ready(Some(frame)) = poll(pin!(holders[at].frame())) {
                got[at].extend(frame.unwrap().into_data().unwrap());
            }
        }
        prop_assert!(holders.iter().all(Body::is_end_stream));
        prop_assert_eq!(&got, &[sent.clone(), sent]);
    }
}
