//! Accepts connections, serves them, and lets them finish.
//!
//! New connections are accepted even when all places are taken ([`places`]). Each connection has a bound for all that
//! it can make the server hold or wait for ([`connection`]). On draining, nothing new is accepted, idle connections
//! close, and requests in flight are answered until the deadline.

mod bodies;
mod connection;
mod listen;
mod places;
mod protocol_errors;
mod stream;
mod threads;
mod wire;

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

pub(crate) use bodies::TooSlow;
use http::Request;
pub(crate) use listen::{Listener, unclaimed};
use places::Places;
pub(crate) use places::{ConnectionPlace, ConnectionStage, NEVER, Order, after, now};
pub(crate) use protocol_errors::{grpc_at_http, is_grpc};
pub(crate) use stream::{NotEncrypted, Stream, Tls};
pub(crate) use threads::Threads;
use tokio::sync::{Semaphore, watch};

pub(crate) use self::stream::{LINGER, linger};
pub(crate) use self::threads::fitting;
use crate::body::{Body, Response};
use crate::metrics::CutReason;
use crate::options::Timeouts;

/// The pause after an accept failed for lack of descriptors or memory, so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Serves connections of one protocol.
pub(crate) trait Door: Send + Sync + 'static {
    /// Serves one connection from accept to close. The future is dropped unfinished when the server leaves; an
    /// implementation that serves in another task must keep `place` there.
    fn serve(
        self: Arc<Self>,
        stream: Stream,
        peer: SocketAddr,
        place: &Arc<ConnectionPlace>,
        timeouts: Timeouts,
    ) -> impl Future<Output = ()> + Send;
}

/// The door for connections that carry HTTP requests.
#[derive(Debug)]
pub(crate) struct Http<H> {
    pub(crate) handler: Arc<H>,
    /// The TLS settings of its connections; `None` if they are not encrypted.
    pub(crate) tls: Option<Tls>,
}

impl<H: Handler> Door for Http<H> {
    async fn serve(
        self: Arc<Self>,
        stream: Stream,
        peer: SocketAddr,
        place: &Arc<ConnectionPlace>,
        timeouts: Timeouts,
    ) {
        let stream = match &self.tls {
            None => stream,
            // Boxed: otherwise connections without TLS would reserve space for it.
            Some(tls) => match Box::pin(tls.encrypt(stream, peer, place, timeouts)).await {
                Ok(stream) => stream,
                Err(NotEncrypted::PlainText(stream)) => {
                    return connection::refuse_plain_text(stream, peer, place, timeouts).await;
                }
                Err(NotEncrypted::Cut(reason)) => return self.handler.connection_cut(reason),
                Err(NotEncrypted::Over) => return,
            },
        };
        connection::serve(stream, peer, Arc::clone(&self.handler), place, timeouts).await;
    }
}

/// A response extension: the body is made while it is read, and the connection is not idle before its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streamed {
    /// About how many bytes the body holds until its end; 0 if it goes on for as long as the caller listens, and
    /// ends when the caller closes its side.
    pub(crate) held: usize,
}

/// Answers the requests that connections read.
pub(crate) trait Handler: Send + Sync + 'static {
    /// Answers one request, once. The future is dropped unfinished if the caller hangs up or the connection is cut.
    fn answer(&self, request: Request<Body>, peer: SocketAddr) -> impl Future<Output = Response> + Send;

    /// Returns whether a path is for operators, who must get in even when the server is full.
    fn is_operational(path: &str) -> bool;

    /// Counts a call over gRPC, or another request over HTTP/2, that this door cannot decide.
    fn misdirected(&self);

    /// Counts a connection that was ended for lack of room or time.
    fn connection_cut(&self, reason: CutReason);
}

/// How serving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drained {
    /// Every request in flight was answered.
    All,
    /// The deadline or a second signal came first. Holds how many connections were cut.
    Cut(usize),
}

impl Drained {
    pub(crate) const fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::All, ended) | (ended, Self::All) => ended,
            (Self::Cut(some), Self::Cut(others)) => Self::Cut(some + others),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Serving<'t> {
    /// The threads of the connections; `None`: the caller's runtime.
    pub(crate) threads: Option<&'t Threads>,
    /// The most connections at once, 1 or more.
    pub(crate) connections: usize,
    pub(crate) timeouts: Timeouts,
    /// How long requests in flight may take to finish once the server drains.
    pub(crate) drain: Duration,
}

/// Serves connections until the phase changes, then drains.
pub(crate) async fn serve(
    listener: Listener,
    door: Arc<impl Door>,
    serving: Serving<'_>,
    mut phase: watch::Receiver<Phase>,
) -> Drained {
    let Serving { threads, connections, timeouts, drain } = serving;
    let places = Arc::new(Places::new(connections));
    let most = places.sockets();
    // Places count the connections that may stay, sockets also those told to leave.
    let sockets = Arc::new(Semaphore::new(most));
    let mut failing = false;

    loop {
        let accepted = async {
            let socket = Arc::clone(&sockets).acquire_owned().await.ok()?;
            Some((socket, listener.accept().await))
        };
        let (socket, accepted) = tokio::select! {
            biased;
            // Checked before waiting: the server may have been stopped before it ran. An error means that nothing
            // is left that could stop it, so it must not run.
            _ = phase.wait_for(|phase| *phase > Phase::Serving) => break,
            accepted = accepted => match accepted { Some(accepted) => accepted, None => break },
        };
        match accepted {
            Ok((stream, peer)) => {
                failing = false;
                let place = Arc::new(places.admit(peer.ip()));
                let door = Arc::clone(&door);
                // A stream is registered with the runtime that made it, so it is detached to move to another. This
                // fails only if the socket is gone.
                let Ok(moving) = stream.into_moving() else { continue };
                let serving = async move {
                    if let Ok(stream) = moving.arrive() {
                        // Until the runtime has polled the socket once, a read finds nothing, and a stopping server
                        // would close the connection as idle. Yield first, so that a request that has arrived is
                        // answered.
                        tokio::task::yield_now().await;
                        door.serve(stream, peer, &place, timeouts).await;
                    }
                    drop((place, socket));
                };
                match threads {
                    Some(threads) => threads.run(serving).await,
                    None => drop(tokio::spawn(serving)),
                }
            }
            Err(error) if is_the_callers(&error) => {}
            Err(error) => {
                // Once per run of failures: there may be fifty a second.
                if !failing {
                    tracing::warn!(%error, "cannot accept a connection");
                }
                failing = true;
                // Usually descriptors are short, and idle connections hold some.
                places.make_room();
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    // In this order: when a new connection is refused, all open ones have been told to finish.
    places.order(Order::Finish);
    drop(listener);

    let finished = sockets.acquire_many(u32::try_from(most).unwrap_or(u32::MAX));
    let left_at_once = async {
        // A closed channel means that nobody is left to request it.
        if phase.wait_for(|phase| *phase == Phase::Leaving).await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let leave = || {
        let open = most - sockets.available_permits();
        places.order(Order::Cut);
        Drained::Cut(open)
    };
    tokio::select! {
        biased;
        _ = finished => Drained::All,
        () = left_at_once => leave(),
        () = tokio::time::sleep(drain) => leave(),
    }
}

/// Returns whether accepting failed only because the caller went away.
fn is_the_callers(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// The phases of a server, in order. It never goes back to an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Serving,
    /// Accepts no connections; requests in flight are answered.
    Draining,
    Leaving,
}

// Lets all other ready tasks of a thread run first.
//
// When an answer is sent to a caller whose thread sleeps, the kernel must wake that thread, which takes as long as
// deciding a request. So a connection makes its answers in its turn and sends them after all other ready
// connections have made theirs: the first answer wakes a caller with many connections, and the others find it
// awake.

#[derive(Debug, Default)]
struct AfterOthers {
    waited: bool,
}

impl AfterOthers {
    fn waits(&self) -> bool {
        self.waited
    }

    /// Pending the first time, behind all tasks that are ready now; then ready.
    fn poll(&mut self, cx: &Context<'_>) -> Poll<()> {
        self.waited = !self.waited;
        if self.waited {
            // The queue of a single-threaded runtime is FIFO; a multi-threaded one queues a task that wakes itself
            // last.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    }
}

/// Waits until all tasks of this thread that are ready now have had a turn.
///
/// # Cancel safety
/// Cancel safe.
pub(crate) async fn after_others() {
    let mut after = AfterOthers::default();
    poll_fn(|cx| after.poll(cx)).await;
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use tokio::task::JoinSet;

    use super::*;

    #[tokio::test]
    async fn all_who_are_ready_go_first() {
        let (turns, mut tasks) = (Arc::new(Mutex::new(Vec::new())), JoinSet::new());
        for task in 0..3 {
            let turns = Arc::clone(&turns);
            tasks.spawn(async move {
                turns.lock().push((task, "made"));
                after_others().await;
                turns.lock().push((task, "sent"));
            });
        }
        tasks.join_all().await;
        let each = |what| (0..3).map(move |task| (task, what));
        assert_eq!(*turns.lock(), each("made").chain(each("sent")).collect::<Vec<_>>());
    }
}
