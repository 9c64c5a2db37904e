//! The span of one call.

use std::pin::Pin;

use opentelemetry::KeyValue;
use opentelemetry::trace::{Span as _, Status};
use opentelemetry_sdk::trace::Span;

use super::CallEnd;
use crate::span_attributes::{self, Notes};

/// The span of a call that is being answered. Ends when the call is answered, or when this is dropped because the
/// caller is gone.
#[derive(Debug)]
pub(crate) struct CallSpan {
    span: Span,
    reveals_keys: bool,
    is_answered: bool,
}

impl CallSpan {
    /// Wraps a span that was begun; `None` if it is not sampled.
    pub(super) fn of(
        mut span: Span,
        attributes: impl FnOnce() -> Vec<KeyValue>,
        reveals_keys: bool,
    ) -> Option<Self> {
        if !span.is_recording() {
            return None;
        }
        span.set_attributes(attributes());
        Some(Self { span, reveals_keys, is_answered: false })
    }

    /// Runs a call, and ends the span with the notes made meanwhile and how the call ended.
    ///
    /// Boxed: otherwise calls without a span would reserve space for it.
    pub(crate) fn around<'a, T: 'a>(
        mut self,
        answering: Pin<&'a mut (dyn Future<Output = T> + Send + 'a)>,
        ended: fn(&T) -> CallEnd,
    ) -> Pin<Box<dyn Future<Output = T> + Send + 'a>> {
        Box::pin(async move {
            let notes = Notes { reveals_keys: self.reveals_keys, ..Notes::default() };
            let (answer, notes) = span_attributes::noted(notes, answering).await;
            self.end(notes, ended(&answer));
            answer
        })
    }

    fn end(&mut self, notes: Notes, ended: CallEnd) {
        self.is_answered = true;
        let mut failed = match ended {
            CallEnd::Http(status) => {
                self.span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
                // A refusal is an answer to the caller, not an error of the server.
                (status >= 500).then(|| status.to_string())
            }
            #[cfg(feature = "grpc")]
            CallEnd::Grpc(code) => {
                self.span.set_attribute(KeyValue::new("rpc.response.status_code", code));
                let ours = ["DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE"];
                ours.contains(&code).then(|| code.to_owned())
            }
            CallEnd::Resp { error } => error.then(|| "error".to_owned()),
        };
        let Notes { reveals_keys: _, outcome, policy, key, by_fallback, id, deciding, store } = notes;
        if outcome == Some("error") && failed.is_none() {
            failed = Some("store".to_owned());
        }
        if let Some(failed) = failed {
            self.span.set_attribute(KeyValue::new("error.type", failed));
            self.span.set_status(Status::error(""));
        }
        let seconds = |name, took: std::time::Duration| KeyValue::new(name, took.as_secs_f64());
        let noted = [
            outcome.map(|outcome| KeyValue::new("tidegate.outcome", outcome)),
            policy.map(|policy| KeyValue::new("tidegate.policy", policy)),
            key.map(|key| KeyValue::new("tidegate.key", key)),
            by_fallback.then(|| KeyValue::new("tidegate.fallback", true)),
            id.map(|id| KeyValue::new("tidegate.decision_id", id.to_string())),
            deciding.map(|took| seconds("tidegate.decision.duration", took)),
            store.map(|took| seconds("tidegate.store.duration", took)),
        ];
        self.span.set_attributes(noted.into_iter().flatten());
        self.span.end();
    }
}

impl Drop for CallSpan {
    fn drop(&mut self) {
        if !self.is_answered {
            self.span.set_attribute(KeyValue::new("error.type", "cancelled"));
        }
    }
}
