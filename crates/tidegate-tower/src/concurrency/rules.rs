//! What a concurrency layer and its futures share.

use std::sync::Arc;

use tidegate::http_answer::NamedLimit;

/// What does not differ from request to request.
#[derive(Clone, Debug)]
pub(super) struct Rules<C, A> {
    pub(super) name: Arc<str>,
    pub(super) told: NamedLimit,
    pub(super) classify: C,
    pub(super) answers: A,
}
