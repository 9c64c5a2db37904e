//! What is noted of a call while it is answered, for the span that tells of it.
//!
//! The notes lie beside the task that answers, so that nothing between a door and the store hands them on. A call that no span tells of has
//! none, and to note something of it does nothing; without the feature `otel` no call has any.

use std::time::Duration;

use ulid::Ulid;

/// What was noted of one call.
#[derive(Debug, Default)]
#[cfg_attr(not(feature = "otel"), allow(dead_code, reason = "nothing is ever noted"))]
pub(crate) struct Notes {
    /// Whether keys are noted as they are.
    pub(crate) reveals_keys: bool,
    /// What became of it, in a word of the metrics; of several requests in one call, of the first that may not pass.
    pub(crate) outcome: Option<&'static str>,
    /// The policy that decided.
    pub(crate) policy: Option<String>,
    /// The key under that policy, or its digest.
    pub(crate) key: Option<String>,
    /// Whether it was decided without the engine.
    pub(crate) by_fallback: bool,
    /// The name of the decision; of several, of the first that has one.
    pub(crate) id: Option<Ulid>,
    /// Time spent deciding.
    pub(crate) deciding: Option<Duration>,
    /// Time that an engine took, where one was asked.
    pub(crate) store: Option<Duration>,
}

#[cfg(feature = "otel")]
tokio::task_local! {
    static NOTES: std::cell::RefCell<Notes>;
}

/// Notes something of the call that is being answered, if a span tells of it.
#[cfg(feature = "otel")]
pub(crate) fn note(note: impl FnOnce(&mut Notes)) {
    // An error means that there is no span. No note is made while another is.
    let _ = NOTES.try_with(|notes| note(&mut notes.borrow_mut()));
}

/// Without the feature there is nothing to tell of.
#[cfg(not(feature = "otel"))]
pub(crate) fn note(_: impl FnOnce(&mut Notes)) {}

/// Says whether a span tells of the call that is being answered.
#[cfg(feature = "grpc")]
pub(crate) fn wanted() -> bool {
    #[cfg(feature = "otel")]
    return NOTES.try_with(|_| ()).is_ok();
    #[cfg(not(feature = "otel"))]
    false
}

/// Waits for an answer, and returns with it what was noted meanwhile.
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

/// Adds to a time that may not have been noted yet.
pub(crate) fn add(noted: &mut Option<Duration>, took: Duration) {
    *noted = Some(noted.unwrap_or_default().saturating_add(took));
}
