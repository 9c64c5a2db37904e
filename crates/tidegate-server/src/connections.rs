//! Accepts connections, serves them, and lets them finish.
//!
//! The number of connections is bounded: beyond it new ones wait in the kernel's queue, which is back-pressure a caller's
//! time-out understands. A caller that is slow to send its head is cut off. On draining, nothing new is accepted, idle
//! connections close, and requests in flight get their answer until the deadline.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use crate::doors::http::App;

/// How long a request's head may take, and how long a kept-alive connection may idle. As long as common proxies keep theirs,
/// so that the proxy closes first and never writes into a closing connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);
/// The most bytes of a request's head: long cookies and URLs, copied by a proxy, fit.
const HEAD_BYTES: usize = 64 * 1024;
/// The most headers of a request.
const HEAD_LINES: usize = 128;
/// The pause after an accept that failed for want of descriptors or memory; accepting again at once would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Where the server stands between start and exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Accepting.
    Serving,
    /// Finishing what is in flight.
    Draining,
    /// Leaving at once.
    Leaving,
}

/// The address of the other end of a connection, put into every request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// How serving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drained {
    /// Every request in flight was answered.
    All,
    /// The deadline or a second signal came first; this many connections were cut.
    Cut(usize),
}

/// Serves until the phase says otherwise, then drains.
pub(crate) async fn serve(
    listener: TcpListener,
    app: Arc<App>,
    most: usize,
    drain: Duration,
    mut phase: watch::Receiver<Phase>,
) -> Drained {
    let most = most.clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
    let places = Arc::new(Semaphore::new(most));
    let (cut, cut_seen) = watch::channel(false);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    http.max_buf_size(HEAD_BYTES).max_headers(HEAD_LINES).pipeline_flush(true);

    loop {
        let accepted = async {
            let place = Arc::clone(&places).acquire_owned().await.ok()?;
            Some((place, listener.accept().await))
        };
        let (place, accepted) = tokio::select! {
            biased;
            // Looks before it waits: the server may have been stopped before it ran. An error means that nobody is left to
            // stop it, and then it has no business running.
            _ = phase.wait_for(|phase| *phase > Phase::Serving) => break,
            accepted = accepted => match accepted { Some(accepted) => accepted, None => break },
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                if !is_the_callers(&error) {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
                continue;
            }
        };
        let (http, app) = (http.clone(), Arc::clone(&app));
        let (phase, cut) = (phase.clone(), cut_seen.clone());
        tokio::spawn(async move {
            connection(&http, stream, peer, app, phase, cut).await;
            drop(place);
        });
    }
    drop(listener);
    drop(cut_seen);

    let finished = places.acquire_many(u32::try_from(most).unwrap_or(u32::MAX));
    let left_at_once = async {
        // A closed channel means that nobody is left to ask for it.
        if phase.wait_for(|phase| *phase == Phase::Leaving).await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        biased;
        _ = finished => Drained::All,
        () = left_at_once => leave(&cut, &places, most),
        () = tokio::time::sleep(drain) => leave(&cut, &places, most),
    }
}

fn leave(cut: &watch::Sender<bool>, places: &Semaphore, most: usize) -> Drained {
    let open = most - places.available_permits();
    cut.send_replace(true);
    Drained::Cut(open)
}

async fn connection(
    http: &http1::Builder,
    stream: TcpStream,
    peer: SocketAddr,
    app: Arc<App>,
    mut phase: watch::Receiver<Phase>,
    mut cut: watch::Receiver<bool>,
) {
    // Answers are written whole; waiting for more would only delay them.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request: http::Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(Peer(peer));
        let app = Arc::clone(&app);
        async move { Ok::<_, Infallible>(app.answer(request).await) }
    });
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%peer, %error, "connection ended");
                }
                return;
            }
            changed = phase.changed() => {
                connection.as_mut().graceful_shutdown();
                if changed.is_err() { break }
            }
            _ = cut.wait_for(|cut| *cut) => return,
        }
    }
    tokio::select! {
        _ = connection => {}
        _ = cut.wait_for(|cut| *cut) => {}
    }
}

/// Says whether accepting failed because the caller went away, which is no trouble of ours.
fn is_the_callers(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
