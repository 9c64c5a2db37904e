//! Answers one call: its head, its message, its deadline, its answer.

use std::cell::Cell;
use std::future::{Future as _, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName};
use http::{Request, Response, StatusCode, request};
use tidegate::deadline::header::read_grpc_timeout;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_util::sync::ReusableBoxFuture;

use super::counts::{CallCounts, Guesses, Memory, Turn, WAITING_CALL};
use super::framing::{self, CONTENT, Code, Status};
use super::methods::Method;
use super::reading::{self, Messages, head_bytes, pieces};
use super::service::Service;
use super::{health, quota, rate_limit, reflection};
use crate::auth::Access;
use crate::connections::{ConnectionPlace, now};
use crate::metrics::Transport;
use crate::options::Timeouts;
use crate::otlp::CallEnd;
use crate::problem::WRONG_TOKEN;

/// The header that says how long the caller waits.
const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// What the calls of one connection share.
#[derive(Debug)]
pub(super) struct Calls {
    service: Arc<Service>,
    pub(super) place: Arc<ConnectionPlace>,
    pub(super) timeouts: Timeouts,
    pub(super) counts: CallCounts,
    pub(super) turn: Turn,
    guesses: Guesses,
    pub(super) memory: Memory,
    /// The bytes given to `h2` since the socket last took everything.
    pub(super) queued: AtomicUsize,
}

impl Calls {
    pub(super) fn new(service: Arc<Service>, place: Arc<ConnectionPlace>, timeouts: Timeouts) -> Self {
        let memory = Memory::new(Arc::clone(&place));
        Self {
            service,
            place,
            timeouts,
            counts: CallCounts::default(),
            turn: Turn::default(),
            guesses: Guesses::default(),
            memory,
            queued: AtomicUsize::new(0),
        }
    }
}

/// A call that is being answered; counted until this is dropped.
struct CountedCall(Arc<Calls>);

impl Drop for CountedCall {
    fn drop(&mut self) {
        self.0.counts.ended();
    }
}

/// A call that was accepted and is not answered yet.
pub(super) type Accepted = (Request<RecvStream>, SendResponse<Bytes>);

/// Begins to answer a call. Most are answered before this returns; one that must wait continues in its own task. `h2`
/// sends answers when the connection is polled next, so all of one read go out with one write.
pub(super) fn begin(calls: &Arc<Calls>, (request, respond): Accepted, cx: &mut Context<'_>) {
    thread_local! {
        /// The boxed future of this thread's last call that was answered at once, for the next one: it is too large
        /// for the allocator's caches, and allocating it took 750 instructions.
        static BOX: Cell<Option<ReusableBoxFuture<'static, ()>>> = const { Cell::new(None) };
    }
    calls.counts.begun();
    let call = run(CountedCall(Arc::clone(calls)), request, respond);
    // An error means that the thread is ending.
    let mut running = match BOX.try_with(Cell::take) {
        Ok(Some(mut last)) => {
            last.set(call);
            last
        }
        Ok(None) | Err(_) => ReusableBoxFuture::new(call),
    };
    // A panic is logged and ends this call only, as it would end a task.
    match catch_unwind(AssertUnwindSafe(|| running.poll(cx))) {
        // The finished future holds nothing any more.
        Ok(Poll::Ready(())) => drop(BOX.try_with(|last| last.set(Some(running)))),
        // The new task polls the future again, which registers that task's waker.
        Ok(Poll::Pending) => drop(tokio::spawn(running)),
        Err(_) => {}
    }
}

/// # Cancel safety
/// A call that its caller gives up is dropped and has then spent nothing, except for reports, see
/// [`Method::answer`].
async fn run(counted: CountedCall, request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    let calls = &*counted.0;
    let method = Method::of(request.uri().path());
    if let Ok(method) = method
        && method.is_streaming()
    {
        // Boxed: otherwise all other calls would reserve space for it.
        return Box::pin(run_stream(calls, method, request, respond)).await;
    }
    let _in_flight = calls.service.app.begin_request(Transport::grpc);
    let answered = {
        let mut answering = pin!(answer(calls, method, request));
        poll_fn(|cx| match answering.as_mut().poll(cx) {
            Poll::Ready(answered) => Poll::Ready(Some(answered)),
            // Checked only if the call must wait: most are answered at once.
            Poll::Pending => respond.poll_reset(cx).map(|_| None),
        })
        .await
    };
    // An error means that the caller is gone.
    let _ = match answered {
        None => Ok(()),
        Some(Ok(message)) => send(calls, respond, message).await,
        Some(Err(refused)) => respond.send_response(refused, true).map(drop),
    };
}

/// Answers a streaming call until either side ends it. It does not count as a request in flight: a drain ends it
/// instead of waiting for it.
async fn run_stream(
    calls: &Calls,
    method: Method,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) {
    let (head, body) = request.into_parts();
    let begun = match is_call(&head) {
        Err(refused) => Err(refused),
        Ok(()) => {
            let begun = match deadline(&head.headers) {
                Ok(deadline) => may_be_called(calls, method, &head.headers).await.map(|()| deadline),
                Err(status) => Err(status),
            };
            begun.map_err(|status| status.response())
        }
    };
    // For each message again: a token may have been revoked.
    let may_go_on = || method.may_be_called(&calls.service, false, &head.headers);
    let begun = match begun {
        Ok(deadline) if method == Method::StreamRateLimitQuotas => {
            let messages = Messages::new(&calls.memory, body);
            let (unread, open) = (calls.timeouts.unread, calls.counts.stay_open());
            let terms = quota::Terms { deadline, unread, open };
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
        let messages = Messages::new(&calls.memory, body);
        let (app, timeouts) = (&calls.service.app, calls.timeouts);
        return reflection::serve(app, messages, respond, open, deadline, timeouts, may_go_on).await;
    }
    match watched(calls, &head.headers, body).await {
        Err(status) => drop(respond.send_response(status.response(), true)),
        Ok(service) => {
            health::watch(&calls.service.app, &service, respond, open, deadline, calls.timeouts).await;
        }
    }
}

/// Reads the service to watch.
///
/// # Errors
/// As [`reading::whole`], [`framing::message`] and [`health::service`].
async fn watched(calls: &Calls, headers: &HeaderMap, body: RecvStream) -> Result<String, Status> {
    let body = reading::whole(&calls.memory, calls.timeouts.body, headers, body).await?;
    health::service(framing::message(body)?)
}

/// Sends the answer, or waits for room in the peer's window.
async fn send(calls: &Calls, mut respond: SendResponse<Bytes>, message: Bytes) -> Result<(), h2::Error> {
    let mut response = Response::new(());
    response.headers_mut().insert(CONTENT_TYPE, CONTENT);
    let mut body = respond.send_response(response, false)?;
    body.reserve_capacity(message.len());
    if body.capacity() < message.len() {
        // Boxed: otherwise all calls would reserve space for it.
        return Box::pin(send_later(calls, body, message)).await;
    }
    calls.queued.fetch_add(message.len(), Ordering::Relaxed);
    body.send_data(message, false)?;
    body.send_trailers(framing::ok_trailers())
}

/// Sends an answer as the peer makes room; resets the call if that takes too long. Meanwhile it counts as held for
/// the peer, and the connection can lose its place like an idle one.
async fn send_later(calls: &Calls, mut body: SendStream<Bytes>, message: Bytes) -> Result<(), h2::Error> {
    let _held = calls.memory.holding(WAITING_CALL + message.len());
    let _silent = calls.counts.silent();
    match timeout(calls.timeouts.unread, pieces(&mut body, message)).await {
        Ok(sent) => sent.and_then(|()| body.send_trailers(framing::ok_trailers())),
        Err(_) => {
            body.send_reset(Reason::CANCEL);
            Ok(())
        }
    }
}

/// Answers a call.
///
/// # Errors
/// The response to send instead: a gRPC status, or an HTTP status if it is not gRPC.
async fn answer(
    calls: &Calls,
    method: Result<Method, Status>,
    request: Request<RecvStream>,
) -> Result<Bytes, Response<()>> {
    let (head, body) = request.into_parts();
    is_call(&head)?;
    let deadline = deadline(&head.headers).map_err(|status| status.response())?;
    let called = method.as_ref().ok().copied();
    let answered = async {
        let method = method?;
        may_be_called(calls, method, &head.headers).await?;
        let body = reading::whole(&calls.memory, calls.timeouts.body, &head.headers, body).await;
        if let Err(Status { code: Code::ResourceExhausted, .. }) = &body
            && method.refuses()
        {
            return Ok(rate_limit::too_long(&calls.service));
        }
        let message = framing::message(body?)?;
        if calls.turn.is_over() {
            Box::pin(calls.turn.next(&calls.service.app)).await;
        }
        let span = calls.service.app.spans.as_ref().filter(|_| method.decides());
        let span = span.and_then(|spans| spans.grpc(head.uri.path(), &head.headers));
        let mut answering = pin!(method.answer(&calls.service, &calls.turn, &head.headers, message));
        match span {
            None => answering.await,
            Some(span) => span.around(answering.as_mut(), ended).await,
        }
    };
    // Pinned and passed by reference: a future passed by value takes up space in each that it passes through, and
    // each call would allocate all of that.
    let answered = pin!(answered);
    let answered = match deadline {
        None => answered.await,
        Some(deadline) => timeout_at(deadline, answered).await.unwrap_or_else(|_| {
            Err(Status::new(Code::DeadlineExceeded, "the caller's deadline came before the answer"))
        }),
    };
    answered.map_err(|status| {
        if called.is_none_or(Method::decides) && status.is_the_callers() {
            calls.service.app.decider.telemetry.unreadable(status.code.word(), &status.message);
        }
        status.response()
    })
}

/// Checks whether the caller may call the method. The answer to a missing or wrong token waits, and the connection
/// can lose its place meanwhile. Before a wrong one is answered, the tokens of other calls are not looked at: so a
/// connection has as few guesses as at the other doors.
///
/// # Errors
/// As [`Method::may_be_called`].
async fn may_be_called(calls: &Calls, method: Method, headers: &HeaderMap) -> Result<(), Status> {
    if method.needs_token() && calls.guesses.waits_until(now).is_some() {
        // Boxed, here and below: otherwise all calls would reserve space for it.
        Box::pin(async {
            let _held = calls.memory.holding(WAITING_CALL + head_bytes(headers));
            let _silent = calls.counts.silent();
            while let Some(until) = calls.guesses.waits_until(now) {
                sleep_until(until).await;
            }
        })
        .await;
    }
    let may = method.may_be_called(&calls.service, calls.place.is_reserved(), headers);
    if let Err(status) = &may
        && status.code == Code::Unauthenticated
    {
        let is_guess = Access::is_shown(headers);
        let until = if is_guess { calls.guesses.wrong(now(), WRONG_TOKEN) } else { now() + WRONG_TOKEN };
        let _silent = calls.counts.silent();
        Box::pin(sleep_until(until)).await;
    }
    may
}

fn ended(answered: &Result<Bytes, Status>) -> CallEnd {
    CallEnd::Grpc(answered.as_ref().map_or_else(|status| status.code.word(), |_| "OK"))
}

/// Checks that it is a gRPC call.
///
/// # Errors
/// 405 or 415, as the protocol demands.
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

/// Returns when the caller stops waiting.
fn deadline(headers: &HeaderMap) -> Result<Option<Instant>, Status> {
    let Some(value) = headers.get(TIMEOUT) else { return Ok(None) };
    match read_grpc_timeout(value.as_bytes()) {
        // Beyond ten years, there is none.
        Some(time) if time > Duration::from_secs(10 * 365 * 24 * 3600) => Ok(None),
        Some(time) => Ok(now().checked_add(time)),
        None => {
            let message =
                "grpc-timeout cannot be read; write 1 to 8 digits and one of H, M, S, m, u, n, as 20m";
            Err(Status::new(Code::InvalidArgument, message))
        }
    }
}
