//! `GET /v1/events` and `/v1/live`: send events of the server, and what it counts, as server-sent events.
//!
//! # Source
//! HTML Living Standard, section 9.2, server-sent events.

use std::sync::Arc;
use std::time::Duration;

use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, StatusCode};
use serde_json::json;
use tidegate::visible;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::pages;
use super::routes::Query;
use crate::app::App;
use crate::auth::Scope;
use crate::body::{self, Body, Response};
use crate::connections::{Phase, Streamed};
use crate::events::{Event, Listener, MOST_LISTENERS, MOST_LIVE};
use crate::problem::Problem;

/// How long without an event until a comment is sent: less than proxies' timeouts. It also finds listeners that are
/// gone.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// The beginning of a stream of events. They have no ids, so a `Last-Event-ID` would be ignored.
const BEGINNING: &str =
    "retry: 2000\n: events from now on; none are kept, so Last-Event-ID means nothing here\n\n";

/// The beginning of a stream of counts.
const BEGINNING_LIVE: &str = "retry: 2000\n: what is counted, once a second\n\n";

/// The end of a stream whose token was taken away.
const NO_LONGER: &str = ": the token that this was asked with is no longer valid for it\n\n";

/// Answers with the events of the server from now on. The stream ends when the caller goes, its token is no longer
/// valid, or the server stops.
///
/// # Errors
/// 503 while the most listeners are connected.
pub(crate) fn listen(
    app: &Arc<App>,
    request: Request<Body>,
    required: Option<Scope>,
    encrypted: bool,
) -> Result<Response, Problem> {
    Query::of(request.uri(), &[])?;
    let source = || app.decider.events.listen().map(Source::Events).ok_or_else(|| full(MOST_LISTENERS));
    stream(app, request, required, encrypted, source)
}

/// Answers with what the server counts, once a second, and ends as [`listen`]. A listener that is too slow misses what
/// is no longer the newest.
///
/// # Errors
/// 404 if nothing sees decisions; 503 while the most listeners are connected.
pub(crate) fn live(
    app: &Arc<App>,
    request: Request<Body>,
    required: Option<Scope>,
    encrypted: bool,
) -> Result<Response, Problem> {
    Query::of(request.uri(), &[])?;
    let sight = pages::sight_of(app)?;
    let source = || -> Result<Source, Problem> {
        let place = Arc::clone(&app.live_listeners).try_acquire_owned().map_err(|_| full(MOST_LIVE))?;
        let mut newest = sight.live();
        // The present second is sent at once.
        newest.mark_changed();
        Ok(Source::Live { newest, _place: place })
    };
    stream(app, request, required, encrypted, source)
}

fn full(most: usize) -> Problem {
    let detail = format!("{most} callers listen already, which is the largest number possible");
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
}

/// Answers with a stream from `source`, which is made only if it is read.
fn stream(
    app: &Arc<App>,
    request: Request<Body>,
    required: Option<Scope>,
    encrypted: bool,
    source: impl FnOnce() -> Result<Source, Problem>,
) -> Result<Response, Problem> {
    let body = if *request.method() == Method::HEAD {
        Body::default()
    } else {
        let source = source()?;
        let tokens = app.access.changes();
        let headers = request.into_parts().0.headers;
        let asked = Arc::clone(app);
        let may_go_on = move || asked.access.authorize(&headers, required, encrypted).is_ok();
        let streaming = Streaming { source, phase: app.phases(), tokens, may_go_on, stage: StreamStage::New };
        body::streamed(futures_util::stream::unfold(streaming, |mut streaming| async move {
            let next = streaming.next().await?;
            Some((Ok::<_, std::convert::Infallible>(next), streaming))
        }))
    };
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response.extensions_mut().insert(Streamed { held: 0 });
    Ok(response)
}

/// What a stream tells.
enum Source {
    Events(Listener),
    Live { newest: watch::Receiver<Arc<str>>, _place: OwnedSemaphorePermit },
}

impl Source {
    const fn beginning(&self) -> &'static str {
        match self {
            Self::Events(_) => BEGINNING,
            Self::Live { .. } => BEGINNING_LIVE,
        }
    }

    /// Waits for what is told next; `None`: there is nothing more. Cancel safe.
    async fn next(&mut self) -> Option<String> {
        match self {
            Self::Events(listener) => match listener.receiver.recv().await {
                Ok(event) => Some(piece(&event)),
                Err(RecvError::Lagged(missed)) => {
                    Some(piece(&Event { name: "missed", data: json!({ "events": missed }) }))
                }
                Err(RecvError::Closed) => None,
            },
            Self::Live { newest, .. } => loop {
                newest.changed().await.ok()?;
                let told = Arc::clone(&newest.borrow_and_update());
                // Nothing was counted before the first second is over.
                if !told.is_empty() {
                    return Some(format!("data: {told}\n\n"));
                }
            },
        }
    }
}

/// How far a stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamStage {
    New,
    Begun,
    Over,
}

struct Streaming<M> {
    source: Source,
    phase: watch::Receiver<Phase>,
    /// Told when the tokens in force change.
    tokens: watch::Receiver<()>,
    may_go_on: M,
    stage: StreamStage,
}

impl<M: Fn() -> bool> Streaming<M> {
    /// Waits for the next piece of the stream; `None` if it is over.
    async fn next(&mut self) -> Option<String> {
        match self.stage {
            StreamStage::New => {
                self.stage = StreamStage::Begun;
                return Some(self.source.beginning().to_owned());
            }
            StreamStage::Begun => {}
            StreamStage::Over => return None,
        }
        let heartbeat = tokio::time::sleep(HEARTBEAT);
        tokio::pin!(heartbeat);
        loop {
            let stops = self.phase.wait_for(|phase| *phase != Phase::Serving);
            tokio::select! {
                // First, so that nothing is sent after a token was taken away.
                biased;
                _ = stops => return None,
                // An error means that the server is gone.
                changed = self.tokens.changed() => {
                    changed.ok()?;
                    if (self.may_go_on)() {
                        continue;
                    }
                    self.stage = StreamStage::Over;
                    return Some(NO_LONGER.to_owned());
                }
                told = self.source.next() => return told,
                () = &mut heartbeat => return Some(": nothing happened\n\n".to_owned()),
            }
        }
    }
}

/// Formats an event. One `data` line holds it: JSON has no raw line ends, since those within strings are escaped.
fn piece(event: &Event) -> String {
    // Listeners may be terminals.
    format!("event: {}\ndata: {}\n\n", event.name, visible::json(&event.data.to_string()))
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::events::Events;

    #[test]
    fn a_listener_who_is_too_slow_is_told_how_many_events_it_missed() {
        let events = Arc::new(Events::default());
        let (_phase, phase) = watch::channel(Phase::Serving);
        let (change, tokens) = watch::channel(());
        let valid = std::cell::Cell::new(true);
        let (listener, may_go_on) = (events.listen().unwrap(), || valid.get());
        let source = Source::Events(listener);
        let mut streaming = Streaming { source, phase, tokens, may_go_on, stage: StreamStage::New };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _inside = runtime.enter();
        let mut next = || streaming.next().now_or_never().flatten();
        assert_eq!(next().as_deref(), Some(BEGINNING));
        const TOLD: usize = 1000;
        for number in 0..TOLD {
            events.publish("key", || json!({ "number": number }));
        }
        // Only the newest events are queued, as many as there is room for.
        let missed = next().unwrap();
        let number = missed.strip_prefix("event: missed\ndata: {\"events\":").unwrap();
        let number: usize = number.strip_suffix("}\n\n").unwrap().parse().unwrap();
        assert!((1..TOLD).contains(&number), "{number}");
        for number in number..TOLD {
            assert_eq!(next().unwrap(), format!("event: key\ndata: {{\"number\":{number}}}\n\n"));
        }
        assert_eq!(next(), None, "nothing more has happened");
        events.publish("key", || json!({ "number": TOLD }));
        assert!(next().is_some_and(|piece| piece.starts_with("event: key")), "it is told once");
        change.send_replace(());
        events.publish("key", || json!({ "number": 0 }));
        assert!(next().is_some_and(|piece| piece.starts_with("event: key")), "other tokens have changed");
        valid.set(false);
        change.send_replace(());
        events.publish("key", || json!({ "number": 0 }));
        assert_eq!(next().as_deref(), Some(NO_LONGER), "before anything that happened since");
        assert_eq!(next(), None);
    }

    #[test]
    fn what_a_terminal_acts_on_is_escaped() {
        let told = piece(&Event { name: "store", data: json!({ "reason": "\u{9b}2J\u{202e}" }) });
        assert_eq!(told, "event: store\ndata: {\"reason\":\"\\u009b2J\\u202e\"}\n\n");
    }

    #[test]
    fn a_slow_listener_is_told_the_newest_second_alone() {
        let (tell, newest) = watch::channel(Arc::from(""));
        let (phases, phase) = watch::channel(Phase::Serving);
        let (_change, tokens) = watch::channel(());
        let place = Arc::new(tokio::sync::Semaphore::new(1)).try_acquire_owned().unwrap();
        let source = Source::Live { newest, _place: place };
        let mut streaming = Streaming { source, phase, tokens, may_go_on: || true, stage: StreamStage::New };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _inside = runtime.enter();
        let mut next = || streaming.next().now_or_never().flatten();
        assert_eq!(next().as_deref(), Some(BEGINNING_LIVE));
        assert_eq!(next(), None, "nothing was counted yet");
        for second in 1..=9 {
            tell.send_replace(format!("{{\"second\":{second}}}").into());
        }
        assert_eq!(next().as_deref(), Some("data: {\"second\":9}\n\n"));
        assert_eq!(next(), None);
        tell.send_replace("{}".into());
        phases.send_replace(Phase::Draining);
        assert_eq!(next(), None, "the server stops");
    }
}
