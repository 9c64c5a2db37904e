//! `GET /v1/events`: sends events of the server as server-sent events.
//!
//! # Source
//! HTML Living Standard, section 9.2, server-sent events.

use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Method, StatusCode, Uri};
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;

use super::query::Query;
use crate::app::App;
use crate::connections::Streamed;
use crate::events::{Event, Listener, MOST_LISTENERS};
use crate::phase::Phase;
use crate::problem::Problem;

/// A comment is sent after this time without an event. It is shorter than the timeouts of proxies, and detects
/// listeners that are gone.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// The beginning of every stream. Events have no ids, so clients never send `Last-Event-ID`, and it would be ignored.
const BEGINNING: &str =
    "retry: 2000\n: events from now on; none are kept, so Last-Event-ID means nothing here\n\n";

/// Answers with a stream that ends when the caller goes away or the server stops.
///
/// # Errors
/// 503 while the most listeners are connected.
pub(crate) fn listen(app: &App, method: &Method, uri: &Uri) -> Result<Response, Problem> {
    Query::of(uri, &[])?;
    let body = if *method == Method::HEAD {
        Body::empty()
    } else {
        let listener = app.engine.events.listen().ok_or_else(|| {
            let detail =
                format!("{MOST_LISTENERS} callers listen already, which is the largest number possible");
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
        })?;
        let streaming = Streaming { listener, phase: app.phases(), begun: false };
        Body::from_stream(futures_util::stream::unfold(streaming, |mut streaming| async move {
            let next = streaming.next().await?;
            Some((Ok::<_, std::convert::Infallible>(next), streaming))
        }))
    };
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response.extensions_mut().insert(Streamed);
    Ok(response)
}

struct Streaming {
    listener: Listener,
    phase: watch::Receiver<Phase>,
    begun: bool,
}

impl Streaming {
    /// Waits for the next piece of the stream; `None` if the server stops.
    async fn next(&mut self) -> Option<String> {
        if !self.begun {
            self.begun = true;
            return Some(BEGINNING.to_owned());
        }
        let stops = self.phase.wait_for(|phase| *phase != Phase::Serving);
        let received = tokio::select! {
            received = tokio::time::timeout(HEARTBEAT, self.listener.receiver.recv()) => received,
            _ = stops => return None,
        };
        match received {
            Err(_) => Some(": nothing happened\n\n".to_owned()),
            Ok(Ok(event)) => Some(piece(&event)),
            Ok(Err(RecvError::Lagged(missed))) => {
                Some(piece(&Event { name: "missed", data: json!({ "events": missed }) }))
            }
            Ok(Err(RecvError::Closed)) => None,
        }
    }
}

/// Formats an event. JSON has no raw line ends, since those within strings are escaped, so one `data` line holds it.
fn piece(event: &Event) -> String {
    format!("event: {}\ndata: {}\n\n", event.name, event.data)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt as _;

    use super::*;
    use crate::events::Events;

    #[test]
    fn a_listener_who_is_too_slow_is_told_how_many_events_it_missed() {
        let events = Arc::new(Events::default());
        let (_phase, phase) = watch::channel(Phase::Serving);
        let mut streaming = Streaming { listener: events.listen().unwrap(), phase, begun: false };
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
    }
}
