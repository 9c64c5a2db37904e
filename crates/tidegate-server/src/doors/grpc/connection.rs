//! Serves one connection from its preface to its last answer.
//!
//! | stage | lasts at most | then |
//! |---|---|---|
//! | the preface, from accept | [`Timeouts::head`], and [`SHORT_PREFACE`] once the server drains | closed |
//! | idle: no call is being answered, and none stays open | [`Timeouts::idle`] | told to go away, and closed |
//! | a ping, sent every [`KEEPALIVE`] | [`Timeouts::unread`] | cut: the peer is gone, or reads nothing |
//! | the message of a call | [`Timeouts::body`] | an error of that call |
//! | closing, so that the last answer arrives | [`LINGER`] | cut |
//!
//! A connection can make the server hold [`STREAMS`] calls, [`WINDOW`] bytes that no call has read, answers that
//! the peer does not take, and incomplete messages of at most 4 MiB for all its calls together. The last two have a
//! bound over all connections ([`ConnectionPlace::hold`]), beyond which those that have held longest are cut. The
//! `h2` crate bounds resets, settings, pings, header lists and empty frames, and ends a connection that floods it.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::server::{Builder, Connection as Http2};
use h2::{Ping, PingPong};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until, timeout};

use super::call::{self, Accepted, Calls};
use super::service::Service;
use crate::connections::{
    ConnectionPlace, ConnectionStage, LINGER, NEVER, Order, Stream, after, linger, now,
};
use crate::metrics::CutReason;
use crate::options::Timeouts;
use crate::uncovered_requests::Misdirected;

/// The most calls at once. A proxy with more opens another connection.
const STREAMS: u32 = 256;

/// The longest list of headers, in bytes: several times what tracing adds to a call.
const HEADER_LIST: u32 = 16 << 10;

/// How many bytes in all streams together a peer may send before they are read.
const WINDOW: u32 = 256 << 10;

/// The most bytes of an answer that wait for the peer's window.
const SEND_BUFFER: usize = 64 << 10;

/// The longest time for a preface while the server drains.
const SHORT_PREFACE: Duration = Duration::from_secs(2);

/// How often a ping checks whether the peer is there.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Serves one connection.
///
/// # Cancel safety
/// Dropping the future closes the socket at once; the calls end with the connection.
pub(super) async fn serve(
    stream: Stream,
    service: Arc<Service>,
    place: Arc<ConnectionPlace>,
    timeouts: Timeouts,
) {
    stream.send_at_once();
    let (lent, back) = LentSocket::new(stream);
    let blocked = lent.blocked();
    let calls = Calls::new(Arc::clone(&service), Arc::clone(&place), timeouts);
    let ended = run(lent, blocked, Arc::new(calls)).await;
    if let Some(reason) = ended.cut() {
        service.app.decider.metrics.connection_cut(reason);
    }
    let Some(mut stream) = back.lock().take() else { return };
    if let GrpcEnd::Foreign(first) = ended
        && let Some((why, answer)) = other_protocol(first)
    {
        service.app.decider.telemetry.misdirected(&why);
        // Fits the system's buffer, so it does not wait for the peer.
        drop(timeout(LINGER, stream.write_all(answer)).await);
    }
    close(stream, ended, &place).await;
}

/// The answer to a call over HTTP/1: in headers alone, so Envoy takes it for the status of the call and logs the
/// message.
const CALL_OVER_HTTP1: &[u8] = b"HTTP/1.1 505 HTTP Version Not Supported\r\n\
    content-type: application/grpc\r\ngrpc-status: 12\r\n\
    grpc-message: this is a gRPC address and the call came over HTTP/1; set http2_protocol_options for the cluster\r\n\
    content-length: 0\r\nconnection: close\r\n\r\n";

/// The answer to another request over HTTP/1.
const REQUEST_OVER_HTTP1: &[u8] = b"HTTP/1.1 505 HTTP Version Not Supported\r\n\
    content-type: text/plain\r\ncontent-length: 87\r\nconnection: close\r\n\r\n\
    this is the gRPC address, which speaks HTTP/2 alone; HTTP/1.1 is served on server.http\n";

/// Returns what a peer speaks instead of HTTP/2, and the answer; `None` if it is unknown.
fn other_protocol(first: [u8; 4]) -> Option<(Misdirected, &'static [u8])> {
    match &first {
        b"POST" => Some((Misdirected::Http1AtGrpc, CALL_OVER_HTTP1)),
        [0x16, 3, _, _] => Some((Misdirected::TlsAtGrpc, b"")),
        began if began.iter().all(|byte| byte.is_ascii_uppercase() || *byte == b' ') => {
            Some((Misdirected::Http1AtGrpc, REQUEST_OVER_HTTP1))
        }
        _ => None,
    }
}

/// Why serving a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GrpcEnd {
    /// The peer's first bytes, which are not HTTP/2.
    Foreign([u8; 4]),
    /// Everything was sent: the peer closed, erred, or was told to go away.
    Done,
    /// The preface did not come in time.
    Late,
    /// The peer does not answer pings, so it does not read answers either; or too much is held for peers like this
    /// one.
    Unread,
    /// The place was given to another connection.
    Vacated,
    /// The server cuts the connection.
    Cut,
}

impl GrpcEnd {
    const fn cut(self) -> Option<CutReason> {
        match self {
            Self::Foreign(_) | Self::Done | Self::Cut => None,
            Self::Late => Some(CutReason::head),
            Self::Unread => Some(CutReason::unread),
            Self::Vacated => Some(CutReason::vacated),
        }
    }
}

async fn run(lent: LentSocket, blocked: Blocked, calls: Arc<Calls>) -> GrpcEnd {
    let (place, timeouts) = (&calls.place, calls.timeouts);
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEADER_LIST)
        .initial_connection_window_size(WINDOW)
        .max_send_buffer_size(SEND_BUFFER);
    let mut lent = lent;
    let shaking = async {
        match lent.begins().await {
            Ok(()) => builder.handshake::<_, Bytes>(lent).await.map_err(|_| GrpcEnd::Done),
            Err(first) => Err(GrpcEnd::Foreign(first)),
        }
    };
    let mut handshake = pin!(timeout(timeouts.head.min(NEVER), shaking));
    let shaken = tokio::select! {
        biased;
        () = place.ordered(Order::Finish) => {
            // A peer that has just connected may have sent a call, which is answered.
            let soon = timeout(SHORT_PREFACE, handshake);
            tokio::select! {
                biased;
                () = place.ordered(Order::Yield) => {
                    return if place.order_now() == Order::Yield { GrpcEnd::Vacated } else { GrpcEnd::Cut };
                }
                shaken = soon => match shaken {
                    Ok(shaken) => shaken,
                    Err(_) => return GrpcEnd::Done,
                },
            }
        }
        shaken = &mut handshake => shaken,
    };
    let http2 = match shaken {
        Ok(Ok(http2)) => http2,
        Ok(Err(ended)) => return ended,
        Err(_) => return GrpcEnd::Late,
    };
    let mut connection = Connection::new(http2, blocked, Arc::clone(&calls));
    poll_fn(|cx| connection.poll(cx)).await
}

struct Connection {
    http2: Http2<LentSocket, Bytes>,
    blocked: Blocked,
    /// The bytes that count as held, since the socket takes no more.
    queued: usize,
    calls: Arc<Calls>,
    /// Calls of the last read that have not begun; at most [`STREAMS`].
    accepted: Vec<Accepted>,
    pings: Option<PingPong>,
    /// Whether a ping is not answered yet.
    pinged: bool,
    /// When to send the next ping, or when the last one is overdue.
    ping_at: Instant,
    /// Whether a call was being answered when last recorded.
    busy: bool,
    /// Since when no call is being answered; `None` while one is.
    idle: Option<Instant>,
    /// How many calls stayed open when last recorded.
    open: usize,
    /// Since when the peer has been told to go away, and how the connection ends.
    leaving: Option<(Instant, GrpcEnd)>,
    /// The last order; its waker is registered.
    order: Option<Order>,
    timer: Pin<Box<Sleep>>,
}

impl Connection {
    fn new(mut http2: Http2<LentSocket, Bytes>, blocked: Blocked, calls: Arc<Calls>) -> Self {
        let pings = http2.ping_pong();
        let ping_at = after(now(), KEEPALIVE);
        Self {
            http2,
            blocked,
            queued: 0,
            calls,
            accepted: Vec::new(),
            pings,
            pinged: false,
            ping_at,
            busy: false,
            idle: None,
            open: 0,
            leaving: None,
            order: None,
            timer: Box::pin(sleep_until(ping_at)),
        }
    }

    /// Does all that is possible now. Ready when the connection is over.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<GrpcEnd> {
        self.calls.turn.begin();
        loop {
            let mut begun = false;
            // Also reads and writes: the answers of all calls are flushed here.
            while let Poll::Ready(accepted) = self.http2.poll_accept(cx) {
                match accepted {
                    Some(Ok(accepted)) => {
                        self.accepted.push(accepted);
                        if self.accepted.len() >= STREAMS as usize {
                            begun |= self.begin_accepted(cx);
                        }
                    }
                    // `h2` has told the peer what was wrong.
                    Some(Err(_)) | None => return Poll::Ready(self.ended()),
                }
            }
            // Only now: each `poll_accept` flushes, so each answer would be a write of its own.
            begun |= self.begin_accepted(cx);
            if !begun {
                self.note_queued();
            }
            if let Some(ended) = self.obey(cx) {
                return Poll::Ready(ended);
            }
            self.note_stage(begun);
            let (again, ended) = self.look_at_the_time(cx);
            if let Some(ended) = ended {
                return Poll::Ready(ended);
            }
            // The next round sends what was just queued.
            if !again {
                return Poll::Pending;
            }
        }
    }

    /// Begins the accepted calls. Returns whether there were any.
    fn begin_accepted(&mut self, cx: &mut Context<'_>) -> bool {
        let begun = !self.accepted.is_empty();
        for accepted in self.accepted.drain(..) {
            call::begin(&self.calls, accepted, cx);
        }
        begun
    }

    /// Records the answers that the socket does not take as held for the peer. To call when all that can be sent is
    /// sent.
    fn note_queued(&mut self) {
        let calls = &self.calls;
        let queued = if self.blocked.is_blocked() {
            calls.queued.load(Ordering::Relaxed)
        } else {
            calls.queued.store(0, Ordering::Relaxed);
            0
        };
        if queued != self.queued {
            calls.memory.sub(self.queued);
            calls.memory.add(queued);
            self.queued = queued;
        }
    }

    fn ended(&self) -> GrpcEnd {
        self.leaving.map_or(GrpcEnd::Done, |(_, ended)| ended)
    }

    fn obey(&mut self, cx: &mut Context<'_>) -> Option<GrpcEnd> {
        if self.order == Some(self.calls.place.order_now()) {
            return None;
        }
        let order = self.calls.place.order(cx.waker());
        self.order = Some(order);
        match order {
            Order::Stay => {}
            Order::Finish => self.leave(GrpcEnd::Done),
            // It would hold what its peer neither reads nor finishes as long as it leaves.
            Order::Yield if self.calls.place.holds() => return Some(GrpcEnd::Unread),
            Order::Yield => self.leave(GrpcEnd::Vacated),
            Order::Cut => return Some(GrpcEnd::Cut),
        }
        None
    }

    /// Tells the peer to go away. Calls that it begins before it hears this are answered.
    fn leave(&mut self, ended: GrpcEnd) {
        if self.leaving.is_none() {
            self.http2.graceful_shutdown();
            self.calls.counts.end_open();
        }
        self.leaving = Some((now(), ended));
    }

    /// Records the stage. Busy also if calls have `begun` and are answered, since their answers are not sent yet.
    /// If all calls wait for their caller, it can lose its place like an idle connection, but the connection is not
    /// closed for idleness.
    fn note_stage(&mut self, begun: bool) {
        let open = self.calls.counts.open();
        // The idle time begins anew when an open call ends.
        let fewer = open < std::mem::replace(&mut self.open, open);
        if begun || self.calls.counts.answered() > 0 {
            if !self.busy {
                (self.busy, self.idle) = (true, None);
                self.calls.place.note_busy();
            }
        } else if self.idle.is_none() || fewer {
            let since = now();
            (self.busy, self.idle) = (false, Some(since));
            self.calls.place.note(ConnectionStage::Idle, since);
        }
    }

    /// Handles deadlines that have passed. Returns whether there is something to send, and how the connection ended,
    /// if it did.
    fn look_at_the_time(&mut self, cx: &mut Context<'_>) -> (bool, Option<GrpcEnd>) {
        if self.pinged
            && let Some(pings) = &mut self.pings
            && pings.poll_pong(cx).is_ready()
        {
            (self.pinged, self.ping_at) = (false, after(now(), KEEPALIVE));
        }
        let mut said = false;
        loop {
            let due = self.due();
            if due < self.timer.deadline() || self.timer.is_elapsed() {
                self.timer.as_mut().reset(due);
            }
            if self.timer.as_mut().poll(cx).is_pending() {
                return (said, None);
            }
            let now = now();
            if let Some((since, ended)) = self.leaving {
                // All is sent; the peer is not waited for any longer.
                if self.idle.is_some_and(|idle| after(idle.max(since), LINGER) <= now) {
                    return (false, Some(ended));
                }
            } else if self.open == 0
                && self.idle.is_some_and(|idle| after(idle, self.calls.timeouts.idle) <= now)
            {
                self.leave(GrpcEnd::Done);
                said = true;
            }
            if self.ping_at <= now {
                if self.pinged {
                    return (false, Some(GrpcEnd::Unread));
                }
                let sent = self.pings.as_mut().is_some_and(|pings| pings.send_ping(Ping::opaque()).is_ok());
                (self.pinged, said) = (sent, true);
                self.ping_at = after(now, if sent { self.calls.timeouts.unread } else { KEEPALIVE });
            }
        }
    }

    /// When to act if nothing else happens.
    fn due(&self) -> Instant {
        let ends = match (self.idle, self.leaving) {
            (None, _) => None,
            (Some(idle), Some((since, _))) => Some(after(idle.max(since), LINGER)),
            (Some(_), None) if self.open > 0 => None,
            (Some(idle), None) => Some(after(idle, self.calls.timeouts.idle)),
        };
        ends.map_or(self.ping_at, |ends| ends.min(self.ping_at))
    }
}

/// Closes the connection so that the last answer arrives.
async fn close(stream: Stream, ended: GrpcEnd, place: &ConnectionPlace) {
    match ended {
        // The system would keep for minutes what the peer does not take.
        GrpcEnd::Unread => return stream.forget_unsent(),
        GrpcEnd::Cut | GrpcEnd::Vacated | GrpcEnd::Late => return,
        GrpcEnd::Done | GrpcEnd::Foreign(_) => {}
    }
    place.note(ConnectionStage::Closing, now());
    let (mut read, mut write) = tokio::io::split(stream);
    tokio::select! {
        biased;
        _ = timeout(LINGER, linger(write.shutdown(), &mut read)) => {}
        () = place.ordered(Order::Yield) => {}
    }
}

// Lends a socket to HTTP/2 and gets it back. `h2` drops the socket that it is given, and dropping one with unread
// bytes resets the connection: the peer loses answers that it has not read yet. So the socket is needed again, to
// close it in an orderly way.
//
// `h2` drops the socket that it is given; with unread bytes that resets the connection, and discards answers that the
// peer has not read. It is needed again, to close it in an orderly way. The first bytes are read before: `h2` answers
// them in HTTP/2 whatever they are.

/// How many bytes tell the protocol.
const FIRST: usize = 4;

/// The beginning of HTTP/2.
const PREFACE: [u8; FIRST] = *b"PRI ";

/// The slot to which the socket returns.
pub(super) type ReturnSlot = Arc<Mutex<Option<Stream>>>;

/// Whether the peer takes no more bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Blocked(Arc<AtomicBool>);

impl Blocked {
    pub(super) fn is_blocked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn note<T>(&self, written: &Poll<T>) {
        // Relaxed: read by the task that writes.
        self.0.store(written.is_pending(), Ordering::Relaxed);
    }
}

/// The socket while HTTP/2 uses it.
#[derive(Debug)]
pub(super) struct LentSocket {
    /// `Some` until this is dropped.
    stream: Option<Stream>,
    /// Read before HTTP/2 began.
    begun: Vec<u8>,
    back: ReturnSlot,
    blocked: Blocked,
}

impl LentSocket {
    /// Lends a socket. Returns the slot to which it returns when dropped.
    pub(super) fn new(stream: Stream) -> (Self, ReturnSlot) {
        let back = ReturnSlot::default();
        let lent = Self {
            stream: Some(stream),
            begun: Vec::new(),
            back: Arc::clone(&back),
            blocked: Blocked::default(),
        };
        (lent, back)
    }

    pub(super) fn blocked(&self) -> Blocked {
        self.blocked.clone()
    }

    /// Waits for the first bytes, which HTTP/2 gets afterwards.
    ///
    /// # Errors
    /// The first bytes of a peer that does not begin like HTTP/2, filled up with zeros if it sends fewer.
    pub(super) async fn begins(&mut self) -> Result<(), [u8; FIRST]> {
        self.begun.reserve(256);
        while self.begun.len() < FIRST
            && let Some(stream) = &mut self.stream
            && let Ok(1..) = stream.read_buf(&mut self.begun).await
        {}
        let mut first = [0; FIRST];
        first.iter_mut().zip(&self.begun).for_each(|(held, byte)| *held = *byte);
        if first == PREFACE { Ok(()) } else { Err(first) }
    }

    fn stream(self: Pin<&mut Self>) -> io::Result<Pin<&mut Stream>> {
        let stream = self.get_mut().stream.as_mut();
        stream.map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Drop for LentSocket {
    fn drop(&mut self) {
        *self.back.lock() = self.stream.take();
    }
}

impl AsyncRead for LentSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.begun.is_empty() {
            let fits = self.begun.len().min(buffer.remaining());
            buffer.put_slice(&self.begun[..fits]);
            self.begun.drain(..fits);
            if self.begun.is_empty() {
                self.begun = Vec::new();
            }
            return Poll::Ready(Ok(()));
        }
        self.stream()?.poll_read(cx, buffer)
    }
}

impl AsyncWrite for LentSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = self.as_mut().stream()?.poll_write(cx, bytes);
        self.blocked.note(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = self.as_mut().stream()?.poll_write_vectored(cx, slices);
        self.blocked.note(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_shutdown(cx)
    }
}
