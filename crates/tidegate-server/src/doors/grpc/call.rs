//! One call: its head, its message, its deadline, its answer.

use std::cell::Cell;
use std::future::{Future as _, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName};
use http::{Request, Response, StatusCode, request};
use tidegate::deadline::header::read_grpc_timeout;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::ReusableBoxFuture;

use super::counts::Counts;
use super::methods::Method;
use super::reading::Messages;
use super::service::Service;
use super::status::{self, CONTENT, Code, Status};
use super::{framing, health, quota, reading, reflection};
use crate::connections::{Place, now};
use crate::metrics::Transport;
use crate::options::Timeouts;
use crate::otlp::Ended;

/// How long the caller waits for the answer.
const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// What the calls of one connection share.
#[derive(Debug)]
pub(super) struct Calls {
    service: Arc<Service>,
    pub(super) place: Arc<Place>,
    pub(super) timeouts: Timeouts,
    pub(super) counts: Counts,
    /// Bytes of messages that are not complete.
    unfinished: AtomicUsize,
}

impl Calls {
    pub(super) fn new(service: Arc<Service>, place: Arc<Place>, timeouts: Timeouts) -> Self {
        Self { service, place, timeouts, counts: Counts::default(), unfinished: AtomicUsize::new(0) }
    }
}

/// A call that is being answered, counted until it is dropped.
struct Counted(Arc<Calls>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.counts.ended();
    }
}

/// A call that was accepted, and is not answered yet.
pub(super) type Accepted = (Request<RecvStream>, SendResponse<Bytes>);

/// Begins to answer a call; one that has to wait goes on in a task of its own, and most are answered before this returns.
///
/// What is answered is sent when the connection is polled next, which its library sees to: all calls of one read go out with one write.
pub(super) fn begin(calls: &Arc<Calls>, (request, respond): Accepted, cx: &mut Context<'_>) {
    thread_local! {
        /// The box of the last call of this thread that was answered at once, for the next: a call is too long for what the allocator keeps at
        /// hand, and its room took 750 instructions.
        static BOX: Cell<Option<ReusableBoxFuture<'static, ()>>> = const { Cell::new(None) };
    }
    calls.counts.begun();
    let call = run(Counted(Arc::clone(calls)), request, respond);
    // An error means that the thread ends.
    let mut running = match BOX.try_with(Cell::take) {
        Ok(Some(mut last)) => {
            last.set(call);
            last
        }
        Ok(None) | Err(_) => ReusableBoxFuture::new(call),
    };
    // A panic is told to the log and ends this call, as it would end a task; the other calls of the connection go on.
    match catch_unwind(AssertUnwindSafe(|| running.poll(cx))) {
        // What has ended holds nothing any more.
        Ok(Poll::Ready(())) => drop(BOX.try_with(|last| last.set(Some(running)))),
        // Its task polls it again, and is woken from then on.
        Ok(Poll::Pending) => drop(tokio::spawn(running)),
        Err(_) => {}
    }
}

/// # Cancel safety
/// A call that its caller gives up is dropped, and has then spent nothing, but for what [`Method::answer`] says of reports.
async fn run(counted: Counted, request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    let calls = &*counted.0;
    let method = Method::of(request.uri().path());
    if let Ok(method) = method
        && method.goes_on()
    {
        // In a box: other calls would have room for it.
        return Box::pin(run_stream(calls, method, request, respond)).await;
    }
    let _in_flight = calls.service.app.begin_request(Transport::grpc);
    let answered = {
        let mut answering = pin!(answer(calls, method, request));
        poll_fn(|cx| match answering.as_mut().poll(cx) {
            Poll::Ready(answered) => Poll::Ready(Some(answered)),
            // Only who is waited for is watched: most calls are answered at once.
            Poll::Pending => respond.poll_reset(cx).map(|_| None),
        })
        .await
    };
    // An error means that the caller is gone.
    let _ = match answered {
        None => Ok(()),
        Some(Ok(message)) => send(respond, message),
        Some(Err(refused)) => respond.send_response(refused, true).map(drop),
    };
}

/// Answers a call that goes on, until either side ends it.
///
/// It is no request in flight: a drain does not wait for it, but ends it.
async fn run_stream(
    calls: &Calls,
    method: Method,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) {
    let (head, body) = request.into_parts();
    let begun = is_call(&head).and_then(|()| {
        let deadline = deadline(&head.headers);
        let may = |deadline| {
            let (service, full) = (&calls.service, calls.place.is_reserved());
            method.may_be_called(service, full, &head.headers).map(|()| deadline)
        };
        deadline.and_then(may).map_err(|status| status.response())
    });
    let begun = match begun {
        Ok(deadline) if method == Method::StreamRateLimitQuotas => {
            let messages = Messages::new(&calls.unfinished, body);
            let (unread, open) = (calls.timeouts.unread, calls.counts.stay_open());
            let terms = quota::Terms { deadline, unread, open };
            // A token that is taken back is one no longer.
            let may_go_on = || method.may_be_called(&calls.service, false, &head.headers);
            return quota::serve(&calls.service, &head.headers, messages, respond, terms, may_go_on).await;
        }
        Ok(deadline) => calls.counts.keep_open().map(|open| (deadline, open)).map_err(|s| s.response()),
        Err(refused) => Err(refused),
    };
    // An error means that the caller is gone.
    let (deadline, open) = match begun {
        Err(refused) => return drop(respond.send_response(refused, true)),
        Ok(begun) => begun,
    };
    if method == Method::ServerReflectionInfo {
        let messages = Messages::new(&calls.unfinished, body);
        return reflection::serve(&calls.service.app, messages, respond, open, deadline, calls.timeouts)
            .await;
    }
    match watched(calls, body).await {
        Err(status) => drop(respond.send_response(status.response(), true)),
        Ok(service) => {
            health::watch(&calls.service.app, &service, respond, open, deadline, calls.timeouts).await;
        }
    }
}

/// Reads which service is to be watched.
///
/// # Errors
/// As [`reading::whole`], [`framing::message`] and [`health::service`].
async fn watched(calls: &Calls, body: RecvStream) -> Result<String, Status> {
    let body = reading::whole(&calls.unfinished, calls.timeouts.body, body).await?;
    health::service(framing::message(body)?)
}

fn send(mut respond: SendResponse<Bytes>, message: Bytes) -> Result<(), h2::Error> {
    let mut response = Response::new(());
    response.headers_mut().insert(CONTENT_TYPE, CONTENT);
    let mut body = respond.send_response(response, false)?;
    body.send_data(message, false)?;
    body.send_trailers(status::ok())
}

/// Answers a call with the body of its answer.
///
/// # Errors
/// The response that has no body: a status of gRPC, or one of HTTP where the request is none of gRPC.
async fn answer(
    calls: &Calls,
    method: Result<Method, Status>,
    request: Request<RecvStream>,
) -> Result<Bytes, Response<()>> {
    let (head, body) = request.into_parts();
    is_call(&head)?;
    let deadline = deadline(&head.headers).map_err(|status| status.response())?;
    let answered = async {
        let method = method?;
        method.may_be_called(&calls.service, calls.place.is_reserved(), &head.headers)?;
        let message = framing::message(reading::whole(&calls.unfinished, calls.timeouts.body, body).await?)?;
        let span = calls.service.app.spans.as_ref().filter(|_| method.decides());
        let span = span.and_then(|spans| spans.grpc(head.uri.path(), &head.headers));
        let mut answering = pin!(method.answer(&calls.service, &head.headers, message));
        match span {
            None => answering.await,
            Some(span) => span.around(answering.as_mut(), ended).await,
        }
    };
    // By reference: what is handed on by value has room in each future that it passes through, and each call would allocate all of that.
    let answered = pin!(answered);
    let answered = match deadline {
        None => answered.await,
        Some(deadline) => timeout_at(deadline, answered).await.unwrap_or_else(|_| {
            Err(Status::new(Code::DeadlineExceeded, "the caller's deadline came before the answer"))
        }),
    };
    answered.map_err(|status| status.response())
}

/// Returns how a call was answered, for its span.
fn ended(answered: &Result<Bytes, Status>) -> Ended {
    Ended::Grpc(answered.as_ref().map_or_else(|status| status.code.word(), |_| "OK"))
}

/// Says whether a request is a call of gRPC.
///
/// # Errors
/// 405 or 415, as the protocol wants it.
fn is_call(head: &request::Parts) -> Result<(), Response<()>> {
    let refused = |status| {
        let mut response = Response::new(());
        *response.status_mut() = status;
        Err(response)
    };
    if head.method != http::Method::POST {
        return refused(StatusCode::METHOD_NOT_ALLOWED);
    }
    match head.headers.get(CONTENT_TYPE) {
        Some(kind) if framing::is_grpc(kind.as_bytes()) => Ok(()),
        _ => refused(StatusCode::UNSUPPORTED_MEDIA_TYPE),
    }
}

/// Returns when the answer is of no use any more, by the time that the caller gives.
fn deadline(headers: &HeaderMap) -> Result<Option<Instant>, Status> {
    let Some(value) = headers.get(TIMEOUT) else { return Ok(None) };
    match read_grpc_timeout(value.as_bytes()) {
        // Ten years are as good as no deadline.
        Some(time) if time > Duration::from_secs(10 * 365 * 24 * 3600) => Ok(None),
        Some(time) => Ok(now().checked_add(time)),
        None => {
            let message =
                "grpc-timeout cannot be read; write 1 to 8 digits and one of H, M, S, m, u, n, as 20m";
            Err(Status::new(Code::InvalidArgument, message))
        }
    }
}
