//! Services and futures for the tests.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use http::{Request, Response};
use tower_service::Service;

/// A service that gives the prepared answers in order, and then 200; or never answers.
#[derive(Clone, Default)]
pub(crate) struct ScriptedService {
    calls: Arc<AtomicU32>,
    answers: Arc<Mutex<VecDeque<Response<String>>>>,
    hangs: bool,
    seen: Arc<Mutex<Vec<Request<String>>>>,
}

impl ScriptedService {
    pub(crate) fn answering(answers: impl IntoIterator<Item = Response<String>>) -> Self {
        Self { answers: Arc::new(Mutex::new(answers.into_iter().collect())), ..Self::default() }
    }

    /// Never answers.
    pub(crate) fn hanging() -> Self {
        Self { hangs: true, ..Self::default() }
    }

    pub(crate) fn calls(&self) -> u32 {
        self.calls.load(Ordering::Relaxed)
    }

    /// The last request that it received.
    pub(crate) fn last(&self) -> Request<String> {
        self.seen.lock().unwrap().last().expect("it was called").clone()
    }
}

impl Service<Request<String>> for ScriptedService {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<String>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<String>) -> Self::Future {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.seen.lock().unwrap().push(request);
        if self.hangs {
            return Box::pin(std::future::pending());
        }
        let answer = self.answers.lock().unwrap().pop_front().unwrap_or_default();
        Box::pin(std::future::ready(Ok(answer)))
    }
}

/// A service that answers with the result of a function called within it, which must be the same during the call and
/// during polls.
#[derive(Clone, Copy)]
pub(crate) struct Finds(pub(crate) fn() -> String);

impl Service<Request<String>> for Finds {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<String>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<String>) -> Self::Future {
        let (finds, in_call) = (self.0, (self.0)());
        Box::pin(async move {
            assert_eq!(in_call, finds());
            Ok(Response::new(in_call))
        })
    }
}

pub(crate) fn status(status: u16) -> Response<String> {
    Response::builder().status(status).body(String::new()).unwrap()
}

pub(crate) fn get() -> Request<String> {
    Request::new(String::new())
}

pub(crate) fn with(name: &'static str, value: &'static str) -> Request<String> {
    let mut request = get();
    request.headers_mut().insert(name, value.parse().unwrap());
    request
}

/// Polls the service for readiness, and calls it.
pub(crate) fn call<S: Service<Request<String>>>(service: &mut S, request: Request<String>) -> S::Future {
    assert!(service.poll_ready(&mut Context::from_waker(Waker::noop())).is_ready());
    service.call(request)
}

/// Polls a future once.
pub(crate) fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Calls the service, and expects the answer at the first poll.
pub(crate) fn answer<S: Service<Request<String>>>(
    service: &mut S,
    request: Request<String>,
) -> Result<S::Response, S::Error> {
    match poll(pin!(call(service, request))) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("no answer at the first poll"),
    }
}
