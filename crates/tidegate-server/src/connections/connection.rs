//! Serves one connection from accept to close.
//!
//! hyper reads requests and writes answers. The loop around it limits each stage, sends what hyper has written, obeys
//! the server's orders, answers what hyper cannot, and closes so that the last answer arrives.
//!
//! | stage | lasts at most | then |
//! |---|---|---|
//! | the head, from accept or from its first byte after the last answer | [`Timeouts::head`] | 408 if any of it came, and closed |
//! | idle between requests | [`Timeouts::idle`] | closed |
//! | the body, while somebody waits for it | [`Timeouts::body`] | 408, and closed |
//! | an answer that is not read | [`Timeouts::unread`], less if others hold too much for peers that do not read | cut |
//! | closing | [`LINGER`], [`LINGER_BYTES`] | cut |

use std::convert::Infallible;
use std::future::{Future as _, poll_fn};
use std::mem;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::task::AtomicWaker;
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout};

use super::bodies::{PIECE, StreamedBody, TimedBody};
use super::places::{ConnectionPlace, ConnectionStage, Order, after, now};
#[cfg(doc)]
use super::stream::LINGER_BYTES;
use super::stream::{LINGER, Stream, linger};
use super::wire::{SharedStream, State, Wire};
use super::{AfterOthers, Handler, Streamed, after_others, protocol_errors};
use crate::body::{Body, Response};
use crate::metrics::CutReason;
use crate::options::Timeouts;
use crate::problem::Delayed;

/// The most bytes of a request line with its headers; beyond, 431. Long cookies and URLs fit, even when a proxy
/// copies them.
const HEAD_BYTES: usize = 64 * 1024;

/// The most header lines, several times what browsers and proxies send; beyond, 431.
const HEAD_LINES: usize = 256;

/// The longest time for a head in the reserve, and everywhere while the server drains.
pub(super) const SHORT_HEAD: Duration = Duration::from_secs(2);

/// How many pipelined requests are answered before others have their turn; hyper answers as many in one go.
const SLICE: u64 = 16;

/// How often the timer fires in stages without a deadline. One timer serves all stages.
const LOOK_AGAIN: Duration = Duration::from_secs(3600);

/// Why serving a connection ended.
enum HttpEnd {
    /// hyper ended it.
    Served(hyper::Result<()>),
    /// A stage lasted too long.
    Late(State),
    /// The place was given to another connection.
    Vacated(State),
    /// The connection was never served; this is the answer that says why.
    Refused(Response),
    /// The peer is gone, or the server cuts the connection.
    Cut,
}

impl HttpEnd {
    fn cut(&self) -> Option<CutReason> {
        match self {
            Self::Vacated(_) => Some(CutReason::vacated),
            Self::Late(state) => match state.stage() {
                ConnectionStage::Head => Some(CutReason::head),
                ConnectionStage::Stalled => Some(CutReason::unread),
                ConnectionStage::Closing | ConnectionStage::Idle | ConnectionStage::Busy => None,
            },
            Self::Served(_) | Self::Refused(_) | Self::Cut => None,
        }
    }
}

/// Serves one connection.
///
/// # Cancel safety
/// Dropping the future closes the socket at once.
pub(super) async fn serve<H: Handler>(
    stream: Stream,
    peer: SocketAddr,
    handler: Arc<H>,
    place: &ConnectionPlace,
    timeouts: Timeouts,
) {
    stream.send_at_once();
    let line = Arc::new(SharedStream::new(stream));
    let mut timeouts = timeouts;
    if place.is_reserved() {
        timeouts.head = timeouts.head.min(SHORT_HEAD);
    }

    let (seen, reserved, handler) = (Arc::clone(&line), place.is_reserved(), &*handler);
    let service = service_fn(move |request: http::Request<Incoming>| {
        seen.begin();
        // Before the answer: from now on the place is not given away.
        place.note_busy();
        let answering = Answering(Arc::clone(&seen));
        let operational = H::is_operational(request.uri().path());
        let request = request.map(|body| timed(body, timeouts.body));
        async move {
            answering.unblocked().await;
            if reserved && !operational {
                handler.connection_cut(CutReason::full);
                return Ok(protocol_errors::full());
            }
            let answer = handler.answer(request, peer).await;
            let delayed = answer.extensions().get::<Delayed>().copied();
            if let Some(Delayed(time)) = delayed {
                // A caller that closes its writing half meanwhile is answered too.
                answering.0.hold(1);
                // In another turn: after this one, `Watch` records that the connection is busy.
                after_others().await;
                if time.is_zero() {
                    // Until the runtime has looked at the sockets.
                    tokio::task::yield_now().await;
                } else {
                    place.note(ConnectionStage::Idle, now());
                    sleep(time).await;
                    place.note_busy();
                }
            }
            let held = match answer.extensions().get::<Streamed>() {
                Some(streamed) => streamed.held,
                None => match answer.body().size_hint().upper() {
                    Some(length) if length <= PIECE as u64 => return Ok(answer),
                    length => length.map_or(0, |length| length as usize),
                },
            };
            answering.0.hold(held);
            Ok::<_, Infallible>(answer.map(|body| StreamedBody::new(body, answering).boxed_unsync()))
        }
    });
    let wire = Wire(Arc::clone(&line));
    let mut http = builder(reserved).serve_connection(TokioIo::new(wire), service);

    let mut watch = Watch {
        line: &line,
        place,
        timeouts,
        state: None,
        due: None,
        finishing: false,
        after: AfterOthers::default(),
        woken: Woken::default(),
        turn: Turn::default(),
    };
    let mut sleep = pin!(sleep_until(after(now(), timeouts.head)));
    let ended = poll_fn(|cx| watch.poll(&mut http, sleep.as_mut(), cx)).await;
    let timeouts = watch.timeouts;
    // An idle connection that gives up its place ends by hyper's own shutdown, and counts as vacated.
    let yielded = matches!(ended, HttpEnd::Served(Ok(()))) && place.is_vacated();
    if let Some(reason) = ended.cut().or(yielded.then_some(CutReason::vacated)) {
        handler.connection_cut(reason);
    }
    let parts = http.into_parts();
    let mut wire = parts.io.into_inner();
    if matches!(&ended, HttpEnd::Served(Err(error)) if error.is_parse_version_h2()) {
        // Boxed: otherwise every connection would reserve space for it.
        Box::pin(protocol_errors::answer_http2(&wire, parts.read_buf, || handler.misdirected())).await;
        return close(&mut wire, HttpEnd::Served(Ok(())), peer, place, timeouts).await;
    }
    close(&mut wire, ended, peer, place, timeouts).await;
}

/// Answers a plain-text caller of an encrypted door with an error, and closes.
pub(super) async fn refuse_plain_text(
    stream: Stream,
    peer: SocketAddr,
    place: &ConnectionPlace,
    timeouts: Timeouts,
) {
    let mut wire = Wire(Arc::new(SharedStream::new(stream)));
    close(&mut wire, HttpEnd::Refused(protocol_errors::plain_text()), peer, place, timeouts).await;
}

/// Returns a body that must arrive in time. An empty one has arrived already and needs no timer.
fn timed(body: Incoming, time: Duration) -> Body {
    if body.is_end_stream() { Body::default() } else { TimedBody::new(body, time).boxed_unsync() }
}

fn builder(reserved: bool) -> http1::Builder {
    let mut http = http1::Builder::new();
    // `Watch` has one timer for all stages; hyper's costs one per request.
    http.header_read_timeout(None).keep_alive(!reserved);
    // The buffer size alone does not bound the head, since hyper may read beyond it.
    http.max_header_size(HEAD_BYTES).max_buf_size(HEAD_BYTES).max_headers(HEAD_LINES);
    http
}

/// Records the end of an answer when dropped, however the answer ended.
struct Answering(Arc<SharedStream>);

impl Answering {
    /// Waits until the peer has taken the earlier answers: hyper can start a request while the last answer is
    /// unsent, if the answer before was made without reading its request's body.
    async fn unblocked(&self) {
        // No waker needed: `Watch` polls again when the line is free.
        poll_fn(|_| if self.0.state().blocked() { Poll::Pending } else { Poll::Ready(()) }).await;
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Polls hyper, and does what hyper does not: timeouts, orders, sending.
struct Watch<'c> {
    line: &'c SharedStream,
    place: &'c ConnectionPlace,
    timeouts: Timeouts,
    state: Option<State>,
    /// When the present stage times out; `None` if it has no deadline.
    due: Option<Instant>,
    finishing: bool,
    /// The turn of other connections before answers are sent.
    after: AfterOthers,
    /// Whether hyper was woken since it was last polled.
    woken: Woken,
    turn: Turn,
}

/// The turn of a connection: after [`SLICE`] requests, others have theirs. hyper stops by itself, but its task is
/// ready again at once, and the runtime looks at the sockets of others only after 61 tasks.
#[derive(Default)]
struct Turn {
    /// The number of requests when the turn began.
    from: u64,
    /// Whether the others have their turn now.
    yields: bool,
    /// Woken when they have had it.
    woken: Woken,
}

impl Turn {
    fn is_over(&self, requests: u64) -> bool {
        requests.saturating_sub(self.from) >= SLICE
    }

    /// Returns whether the connection may go on; otherwise its task is woken when it may.
    fn goes_on(&mut self, requests: u64, cx: &Context<'_>) -> bool {
        if !self.is_over(requests) {
            return true;
        }
        // The task may be woken for other reasons.
        let woken = self.woken.look(cx);
        if !self.yields {
            // The first poll asks the runtime to wake this waker once it has looked at the sockets.
            let mut yielding = pin!(tokio::task::yield_now());
            self.yields = self.woken.poll(|cx| yielding.as_mut().poll(cx)).is_pending();
        } else if woken {
            self.yields = false;
        }
        if self.yields {
            return false;
        }
        self.from = requests;
        true
    }
}

impl Watch<'_> {
    fn poll<S>(
        &mut self,
        http: &mut http1::Connection<TokioIo<Wire>, S>,
        mut sleep: Pin<&mut Sleep>,
        cx: &mut Context<'_>,
    ) -> Poll<HttpEnd>
    where
        S: hyper::service::HttpService<Incoming, ResBody = Body>,
        S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let order = self.place.order(cx.waker());
        if order == Order::Cut {
            return Poll::Ready(HttpEnd::Cut);
        }
        if order == Order::Stay && !self.turn.goes_on(self.line.state().requests(), cx) {
            return Poll::Pending;
        }
        // When this task runs again after the others, it has answers to send, and usually no more work for hyper.
        let mut only_send = !self.woken.look(cx) && self.after.waits() && order == Order::Stay;
        loop {
            let blocked = self.line.state().blocked();
            if !mem::take(&mut only_send)
                && let Poll::Ready(ended) = self.woken.poll(|cx| Pin::new(&mut *http).poll(cx))
            {
                return Poll::Ready(HttpEnd::Served(ended));
            }
            // Before sending: a caller that has read the answer may count on the connection being idle.
            self.note(self.line.state(), sleep.as_mut());
            if order == Order::Stay && self.line.state().has_answers() && self.after.poll(cx).is_pending() {
                return Poll::Pending;
            }
            if let Poll::Ready(Err(_)) = self.line.poll_send(cx) {
                return Poll::Ready(HttpEnd::Cut);
            }
            let state = self.line.state();
            self.note(state, sleep.as_mut());
            // Only after hyper has read what is there: a request that has arrived is answered.
            if order == Order::Yield
                && matches!(state.stage(), ConnectionStage::Head | ConnectionStage::Stalled)
            {
                return Poll::Ready(HttpEnd::Vacated(state));
            }
            if order > Order::Stay && !self.finishing {
                self.finishing = true;
                self.hurry(sleep.as_mut());
                Pin::new(&mut *http).graceful_shutdown();
                continue;
            }
            // No waker is called when the line becomes free, so hyper is polled once more for what waited for that. The
            // same applies if reads were held back until the last request had been polled.
            let unread = self.line.was_polled();
            if !unread && (!blocked || state.blocked()) {
                break;
            }
            if self.turn.is_over(state.requests()) {
                cx.waker().wake_by_ref();
                break;
            }
        }
        if !self.woken.is_woken() {
            // There is nothing left to answer: the next turn begins with what comes.
            self.turn.from = self.line.state().requests();
        }
        while sleep.as_mut().poll(cx).is_ready() {
            let now = now();
            match (self.due, self.state) {
                (Some(due), Some(state)) if due <= now => return Poll::Ready(HttpEnd::Late(state)),
                (Some(due), _) => sleep.as_mut().reset(due),
                (None, _) => sleep.as_mut().reset(now + LOOK_AGAIN),
            }
        }
        Poll::Pending
    }

    /// Shortens the time for an incomplete head, so that it does not hold up a drain.
    fn hurry(&mut self, mut sleep: Pin<&mut Sleep>) {
        self.timeouts.head = self.timeouts.head.min(SHORT_HEAD);
        if self.state.is_some_and(|state| state.stage() == ConnectionStage::Head) {
            let due = after(now(), self.timeouts.head);
            self.due = Some(self.due.map_or(due, |before| before.min(due)));
            if due < sleep.deadline() {
                sleep.as_mut().reset(due);
            }
        }
    }

    fn note(&mut self, state: State, mut sleep: Pin<&mut Sleep>) {
        let state = state.of_stage();
        if self.state == Some(state) {
            return;
        }
        let before = self.state.replace(state).map(|before| (before.stage(), before.requests()));
        let stage = state.stage();
        if before == Some((stage, state.requests())) {
            // These are the first bytes of the connection's first head. Its time began with the connection.
            return;
        }
        if before.is_some_and(|(before, _)| before == ConnectionStage::Stalled) {
            self.place.note_read();
        }
        let most = match stage {
            ConnectionStage::Head => self.timeouts.head,
            ConnectionStage::Idle => self.timeouts.idle,
            ConnectionStage::Stalled => self.timeouts.unread,
            ConnectionStage::Busy | ConnectionStage::Closing => {
                self.due = None;
                return self.place.note_busy();
            }
        };
        let now = now();
        match stage {
            ConnectionStage::Stalled => self.place.note_unread(now, self.line.held()),
            stage => self.place.note(stage, now),
        }
        let due = after(now, most);
        self.due = Some(due);
        // The timer is not moved later here: it fires, finds the later end and is reset then. So a sequence of requests
        // does not touch it.
        if due < sleep.deadline() {
            sleep.as_mut().reset(due);
        }
    }
}

/// Sends the final error response, if there is one, and closes.
async fn close(
    wire: &mut Wire,
    ended: HttpEnd,
    peer: SocketAddr,
    place: &ConnectionPlace,
    timeouts: Timeouts,
) {
    let line = Arc::clone(&wire.0);
    let last_word: Option<Response> = match ended {
        HttpEnd::Cut => return,
        HttpEnd::Refused(answer) => Some(answer),
        HttpEnd::Vacated(state) => {
            if state.blocked() {
                line.forget_unsent();
            } else if state.received() {
                // The place is needed now, so whatever the system does not take at once is dropped.
                let _ = protocol_errors::answer(wire, protocol_errors::full()).now_or_never();
            }
            return;
        }
        HttpEnd::Late(state) => match state.stage() {
            ConnectionStage::Head if state.received() => Some(protocol_errors::late(timeouts.head)),
            ConnectionStage::Head | ConnectionStage::Idle => return line.say_end(),
            _ => {
                tracing::debug!(%peer, "cut: it does not read its answers");
                return line.forget_unsent();
            }
        },
        HttpEnd::Served(Ok(())) => None,
        HttpEnd::Served(Err(error)) => {
            tracing::debug!(%peer, %error, "connection ended");
            let state = line.state();
            let in_head = state.stage() == ConnectionStage::Head && state.received();
            if error.is_incomplete_message() && in_head {
                Some(protocol_errors::cut_short())
            } else {
                // hyper has answered what it could not parse. In all cases, earlier answers may still be unsent.
                None
            }
        }
    };
    place.note(ConnectionStage::Closing, now());
    let closing = async {
        let sending = async {
            if let Some(response) = last_word {
                protocol_errors::answer(wire, response).await;
            }
            poll_fn(|cx| line.poll_send(cx)).await
        };
        match timeout(timeouts.unread, sending).await {
            // Data that was sent still arrives if the peer closes later than this.
            Ok(Ok(())) => {
                let closing = poll_fn(|cx| line.poll_close(cx));
                drop(timeout(LINGER, linger(closing, wire)).await);
            }
            Ok(Err(_)) => {}
            Err(_) => line.forget_unsent(),
        }
    };
    let ordered = poll_fn(|cx| match place.order(cx.waker()) {
        Order::Stay | Order::Finish => Poll::Pending,
        Order::Yield | Order::Cut => Poll::Ready(()),
    });
    tokio::select! {
        // Polled first, so that an idle connection that gives up its place still sends its closing message.
        biased;
        () = closing => {}
        () = ordered => {}
    }
}

// Records whether one part of a task was woken.
//
// The task of a connection is woken for several reasons, and polling hyper for nothing costs as much as deciding a
// request. So hyper gets its own waker, which records the call and wakes the task.

#[derive(Debug)]
pub(super) struct Woken {
    noted: Arc<Noted>,
    waker: Waker,
}

#[derive(Debug, Default)]
struct Noted {
    woken: AtomicBool,
    task: AtomicWaker,
}

impl Wake for Noted {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Release: a thread that reads the flag sees everything before the wake.
        self.woken.store(true, Ordering::Release);
        self.task.wake();
    }
}

impl Default for Woken {
    /// Woken, so that the part is polled the first time.
    fn default() -> Self {
        let noted = Arc::new(Noted { woken: AtomicBool::new(true), task: AtomicWaker::new() });
        Self { waker: Arc::clone(&noted).into(), noted }
    }
}

impl Woken {
    /// Returns whether the part was woken since its last poll. From now on it wakes the task of `cx`.
    pub(super) fn look(&self, cx: &Context<'_>) -> bool {
        // The waker first, then the flag: a wake-up that comes later wakes the task.
        self.noted.task.register(cx.waker());
        self.noted.woken.load(Ordering::Acquire)
    }

    /// Returns whether the part was woken since it was last polled, for the task that has just looked.
    pub(super) fn is_woken(&self) -> bool {
        self.noted.woken.load(Ordering::Relaxed)
    }

    /// Polls the part with this waker.
    pub(super) fn poll<T>(&self, poll: impl FnOnce(&mut Context<'_>) -> T) -> T {
        // Reset before the poll, so that a wake-up during the poll counts.
        self.noted.woken.store(false, Ordering::Relaxed);
        poll(&mut Context::from_waker(&self.waker))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_woken_is_polled_again() {
        let (woken, task) = (Woken::default(), Arc::new(Noted::default()));
        let waker = Waker::from(Arc::clone(&task));
        let cx = Context::from_waker(&waker);
        assert!(woken.look(&cx), "never polled");
        let kept = woken.poll(|cx| cx.waker().clone());
        assert!(!woken.look(&cx));
        kept.wake_by_ref();
        assert!(woken.look(&cx) && task.woken.load(Ordering::Relaxed), "and the task was woken");
        woken.poll(|cx| cx.waker().wake_by_ref());
        assert!(woken.look(&cx), "by itself, while it was polled");
    }
}
