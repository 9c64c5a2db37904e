//! `GET /v1/events`: sends events of the server as server-sent events.
//!
//! # Source
//! HTML Living Standard, section 9.2, server-sent events.

use std::sync::Arc;
use std::time::Duration;

use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, StatusCode};
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;

use super::routes::Query;
use crate::app::App;
use crate::auth::Scope;
use crate::body::{self, Body, Response};
use crate::connections::{Phase, Streamed};
use crate::events::{Event, Listener, MOST_LISTENERS};
use crate::problem::Problem;

/// How long without an event until a comment is sent: less than proxies' timeouts. It also finds listeners that are
/// gone.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// The beginning of every stream. Events have no ids, so a `Last-Event-ID` would be ignored.
const BEGINNING: &str =
    "retry: 2000\n: events from now on; none are kept, so Last-Event-ID means nothing here\n\n";

/// The end of a stream whose token was taken away.
const NO_LONGER: &str = ": the token that this was asked with is no longer valid for it\n\n";

/// Answers with a stream that ends when the caller goes, its token is no longer valid, or the server stops.
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
    let body = if *request.method() == Method::HEAD {
        Body::default()
    } else {
        let listener = app.decider.events.listen().ok_or_else(|| {
            let detail =
                format!("{MOST_LISTENERS} callers listen already, which is the largest number possible");
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
        })?;
        let tokens = app.access.changes();
        let headers = request.into_parts().0.headers;
        let asked = Arc::clone(app);
        let may_go_on = move || asked.access.authorize(&headers, required, encrypted).is_ok();
        let streaming =
            Streaming { listener, phase: app.phases(), tokens, may_go_on, stage: StreamStage::New };
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

/// How far a stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamStage {
    New,
    Begun,
    Over,
}

struct Streaming<M> {
    listener: Listener,
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
                return Some(BEGINNING.to_owned());
            }
            StreamStage::Begun => {}
            StreamStage::Over => return None,
        }
        let heartbeat = tokio::time::sleep(HEARTBEAT);
        tokio::pin!(heartbeat);
        loop {
            let stops = self.phase.wait_for(|phase| *phase != Phase::Serving);
            let received = tokio::select! {
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
                received = self.listener.receiver.recv() => received,
                () = &mut heartbeat => return Some(": nothing happened\n\n".to_owned()),
            };
            return match received {
                Ok(event) => Some(piece(&event)),
                Err(RecvError::Lagged(missed)) => {
                    Some(piece(&Event { name: "missed", data: json!({ "events": missed }) }))
                }
                Err(RecvError::Closed) => None,
            };
        }
    }
}

/// Formats an event. One `data` line holds it: JSON has no raw line ends, since those within strings are escaped.
fn piece(event: &Event) -> String {
    format!("event: {}\ndata: {}\n\n", event.name, event.data)
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
        let mut streaming = Streaming { listener, phase, tokens, may_go_on, stage: StreamStage::New };
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
}
