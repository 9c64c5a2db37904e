//! One connection from its preface to its last answer.
//!
//! | stage | lasts at most | then |
//! |---|---|---|
//! | the preface, from accept | [`Timeouts::head`], and [`SHORT_PREFACE`] once the server drains | closed |
//! | idle: no call is being answered, and none stays open | [`Timeouts::idle`] | told to go away, and closed |
//! | a ping, sent every [`KEEPALIVE`] | [`Timeouts::unread`] | cut: the peer is gone, or reads nothing |
//! | the message of a call | [`Timeouts::body`] | an error of that call |
//! | closing, so that the last answer arrives | [`LINGER`] | cut |
//!
//! What a connection can make the server hold: [`STREAMS`] calls, each with what its stream's window lets in, and the answers that its peer does
//! not take; above that the messages that are not complete, at most 4 MiB of all its calls together. Resets, settings,
//! pings, header lists and empty frames have the bounds of the `h2` crate, which ends a connection that floods it.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::server::{Builder, Connection as Http2};
use h2::{Ping, PingPong};
use tokio::io::AsyncWriteExt as _;
use tokio::time::{Instant, Sleep, sleep_until, timeout};

use super::call::{self, Accepted, Calls};
use super::lent::Lent;
use super::service::Service;
use crate::connections::{LINGER, Order, Place, Stage, Stream, linger, now};
use crate::metrics::CutReason;
use crate::options::Timeouts;

/// Calls of one connection at once. A proxy that has more in flight opens another connection.
const STREAMS: u32 = 256;
/// The longest list of headers of a call; what tracing adds to a call fits several times.
const HEADER_LIST: u32 = 16 << 10;
/// How much a peer may send of all messages together before they are read.
const WINDOW: u32 = 1 << 20;
/// The most bytes of one answer that wait for the peer's window.
const SEND_BUFFER: usize = 64 << 10;
/// The longest time for a preface once the server drains.
const SHORT_PREFACE: Duration = Duration::from_secs(2);
/// How often a peer is asked whether it is still there.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// Longer timeouts count as a hundred years, since an `Instant` cannot hold them.
const NEVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Serves one connection.
///
/// # Cancel safety
/// Dropping the future closes the socket at once; its calls end with the connection.
pub(super) async fn serve(stream: Stream, service: Arc<Service>, place: Arc<Place>, timeouts: Timeouts) {
    stream.send_at_once();
    let (lent, back) = Lent::new(stream);
    let ended = run(lent, Arc::new(Calls::new(Arc::clone(&service), Arc::clone(&place), timeouts))).await;
    if let Some(reason) = ended.cut() {
        service.app.engine.metrics.connection_cut(reason);
    }
    let Some(stream) = back.lock().take() else { return };
    close(stream, ended, &place).await;
}

/// Why a connection is served no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// All is said: the peer has closed, or has made a mistake, or was told to go away.
    Done,
    /// The preface did not come in time.
    Late,
    /// The peer does not answer pings, so it reads no answers.
    Unread,
    /// The place is given away.
    Vacated,
    /// The server leaves.
    Cut,
}

impl Ended {
    /// Returns the reason under which metrics count it, if they do.
    const fn cut(self) -> Option<CutReason> {
        match self {
            Self::Done | Self::Cut => None,
            Self::Late => Some(CutReason::head),
            Self::Unread => Some(CutReason::unread),
            Self::Vacated => Some(CutReason::vacated),
        }
    }
}

async fn run(lent: Lent, calls: Arc<Calls>) -> Ended {
    let (place, timeouts) = (&calls.place, calls.timeouts);
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEADER_LIST)
        .initial_connection_window_size(WINDOW)
        .max_send_buffer_size(SEND_BUFFER);
    let mut handshake = pin!(timeout(timeouts.head.min(NEVER), builder.handshake::<_, Bytes>(lent)));
    let shaken = tokio::select! {
        biased;
        () = place.ordered(Order::Finish) => {
            // Who has just connected has perhaps sent a call, which is answered.
            let soon = timeout(SHORT_PREFACE, handshake);
            tokio::select! {
                biased;
                () = place.ordered(Order::Yield) => {
                    return if place.order_now() == Order::Yield { Ended::Vacated } else { Ended::Cut };
                }
                shaken = soon => match shaken {
                    Ok(shaken) => shaken,
                    Err(_) => return Ended::Done,
                },
            }
        }
        shaken = &mut handshake => shaken,
    };
    let http2 = match shaken {
        Ok(Ok(http2)) => http2,
        Ok(Err(_)) => return Ended::Done,
        Err(_) => return Ended::Late,
    };
    let mut connection = Connection::new(http2, Arc::clone(&calls));
    poll_fn(|cx| connection.poll(cx)).await
}

struct Connection {
    http2: Http2<Lent, Bytes>,
    calls: Arc<Calls>,
    /// Calls of the last read that are to be begun; at most [`STREAMS`].
    accepted: Vec<Accepted>,
    pings: Option<PingPong>,
    /// Whether a ping was sent that is not answered.
    pinged: bool,
    /// When the next ping is sent, or the last one must be answered.
    ping_at: Instant,
    /// Whether a call is being answered, as was noted last.
    busy: bool,
    /// Since when no call is being answered.
    idle: Option<Instant>,
    /// How many calls stay open, as was noted last.
    open: usize,
    /// Since when the peer is told to go away, and how the connection then ends.
    leaving: Option<(Instant, Ended)>,
    /// The order that was seen last; its waker is registered.
    order: Option<Order>,
    timer: Pin<Box<Sleep>>,
}

impl Connection {
    fn new(mut http2: Http2<Lent, Bytes>, calls: Arc<Calls>) -> Self {
        let pings = http2.ping_pong();
        let ping_at = after(now(), KEEPALIVE);
        Self {
            http2,
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

    /// Does what can be done now; ready when the connection is over.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Ended> {
        loop {
            let mut begun = false;
            // Reads and writes as well: what calls have answered is flushed here, once for all of them.
            while let Poll::Ready(accepted) = self.http2.poll_accept(cx) {
                match accepted {
                    Some(Ok(accepted)) => {
                        self.accepted.push(accepted);
                        if self.accepted.len() >= STREAMS as usize {
                            begun |= self.begin_accepted(cx);
                        }
                    }
                    // The peer was told what was wrong.
                    Some(Err(_)) | None => return Poll::Ready(self.ended()),
                }
            }
            // Only now: each look for another call writes what is there to be sent, and so each call would be answered by a write of its own.
            begun |= self.begin_accepted(cx);
            if let Some(ended) = self.obey(cx) {
                return Poll::Ready(ended);
            }
            self.note_stage(begun);
            let (again, ended) = self.look_at_the_time(cx);
            if let Some(ended) = ended {
                return Poll::Ready(ended);
            }
            // What was just said is sent by the next round.
            if !again {
                return Poll::Pending;
            }
        }
    }

    /// Begins the calls that were accepted; says whether there were any.
    fn begin_accepted(&mut self, cx: &mut Context<'_>) -> bool {
        let begun = !self.accepted.is_empty();
        for accepted in self.accepted.drain(..) {
            call::begin(&self.calls, accepted, cx);
        }
        begun
    }

    fn ended(&self) -> Ended {
        self.leaving.map_or(Ended::Done, |(_, ended)| ended)
    }

    /// Obeys what the server wants of the connection.
    fn obey(&mut self, cx: &mut Context<'_>) -> Option<Ended> {
        if self.order == Some(self.calls.place.order_now()) {
            return None;
        }
        let order = self.calls.place.order(cx.waker());
        self.order = Some(order);
        match order {
            Order::Stay => {}
            Order::Finish => self.leave(Ended::Done),
            Order::Yield => self.leave(Ended::Vacated),
            Order::Cut => return Some(Ended::Cut),
        }
        None
    }

    /// Tells the peer to go away; calls that it has begun by the time it hears of it are still answered.
    fn leave(&mut self, ended: Ended) {
        if self.leaving.is_none() {
            self.http2.graceful_shutdown();
            self.calls.counts.end_open();
        }
        self.leaving = Some((now(), ended));
    }

    /// Notes where the connection stands, for who needs its place. It is busy too where calls have `begun` and are answered already: the answers
    /// are not sent yet. Where all calls wait for their caller, it may have to make room like an idle one, but is not told to go for that.
    fn note_stage(&mut self, begun: bool) {
        let open = self.calls.counts.open();
        // With one that ends, idleness begins.
        let fewer = open < std::mem::replace(&mut self.open, open);
        if begun || self.calls.counts.answered() > 0 {
            if !self.busy {
                (self.busy, self.idle) = (true, None);
                self.calls.place.note_busy();
            }
        } else if self.idle.is_none() || fewer {
            let since = now();
            (self.busy, self.idle) = (false, Some(since));
            self.calls.place.note(Stage::Idle, since);
        }
    }

    /// Does what is due by now; says whether there is something to send, and whether the connection is over.
    fn look_at_the_time(&mut self, cx: &mut Context<'_>) -> (bool, Option<Ended>) {
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
                // The answers are sent; a peer that does not close is left.
                if self.idle.is_some_and(|idle| after(idle.max(since), LINGER) <= now) {
                    return (false, Some(ended));
                }
            } else if self.open == 0
                && self.idle.is_some_and(|idle| after(idle, self.calls.timeouts.idle) <= now)
            {
                self.leave(Ended::Done);
                said = true;
            }
            if self.ping_at <= now {
                if self.pinged {
                    return (false, Some(Ended::Unread));
                }
                let sent = self.pings.as_mut().is_some_and(|pings| pings.send_ping(Ping::opaque()).is_ok());
                (self.pinged, said) = (sent, true);
                self.ping_at = after(now, if sent { self.calls.timeouts.unread } else { KEEPALIVE });
            }
        }
    }

    /// Returns when there is something to do if nothing else happens.
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

/// Closes so that the last answer arrives.
async fn close(stream: Stream, ended: Ended, place: &Place) {
    match ended {
        // The system would keep for minutes what the peer does not take.
        Ended::Unread => return stream.forget_unsent(),
        Ended::Cut | Ended::Vacated | Ended::Late => return,
        Ended::Done => {}
    }
    place.note(Stage::Closing, now());
    let (mut read, mut write) = tokio::io::split(stream);
    tokio::select! {
        biased;
        _ = timeout(LINGER, linger(write.shutdown(), &mut read)) => {}
        () = place.ordered(Order::Yield) => {}
    }
}

fn after(since: Instant, time: Duration) -> Instant {
    since.checked_add(time.min(NEVER)).unwrap_or(since)
}
