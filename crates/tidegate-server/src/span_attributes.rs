//! Collects facts about a call for its span: a task-local value, so that nothing between a door and the store has
//! to pass them on. Without a span, noting does nothing; without the feature `otel` no call has one.

use std::time::Duration;

use ulid::Ulid;

/// The facts about one call.
#[derive(Debug, Default)]
#[cfg_attr(not(feature = "otel"), allow(dead_code, reason = "nothing is ever noted"))]
pub(crate) struct Notes {
    /// Whether keys are noted in plain text.
    pub(crate) reveals_keys: bool,
    /// The outcome, as a metrics label; of several requests, that of the first that may not pass.
    pub(crate) outcome: Option<&'static str>,
    /// The policy that decided.
    pub(crate) policy: Option<String>,
    /// The key under that policy, or its digest.
    pub(crate) key: Option<String>,
    /// Whether the decision was made without the engine.
    pub(crate) by_fallback: bool,
    /// The id of the decision; of several, the first.
    pub(crate) id: Option<Ulid>,
    /// The time spent deciding.
    pub(crate) deciding: Option<Duration>,
    /// The time that an engine took, if one was asked.
    pub(crate) store: Option<Duration>,
}

#[cfg(feature = "otel")]
tokio::task_local! {
    static NOTES: std::cell::RefCell<Notes>;
}

#[cfg(feature = "otel")]
pub(crate) fn note(note: impl FnOnce(&mut Notes)) {
    // An error means that there is no span. Notes are never nested, so the borrow succeeds.
    let _ = NOTES.try_with(|notes| note(&mut notes.borrow_mut()));
}

/// Without the feature there are no spans.
#[cfg(not(feature = "otel"))]
pub(crate) fn note(_: impl FnOnce(&mut Notes)) {}

/// Returns whether the current call has a span.
#[cfg(feature = "grpc")]
pub(crate) fn wanted() -> bool {
    #[cfg(feature = "otel")]
    return NOTES.try_with(|_| ()).is_ok();
    #[cfg(not(feature = "otel"))]
    false
}

/// Returns an answer with the notes made meanwhile.
///
/// # Cancel safety
/// That of the answer.
#[cfg(feature = "otel")]
pub(crate) async fn noted<T>(notes: Notes, answering: impl Future<Output = T>) -> (T, Notes) {
    let answering = async {
        let answer = answering.await;
        (answer, NOTES.with(std::cell::RefCell::take))
    };
    NOTES.scope(std::cell::RefCell::new(notes), answering).await
}

pub(crate) fn add(noted: &mut Option<Duration>, took: Duration) {
    *noted = Some(noted.unwrap_or_default().saturating_add(took));
}
