//! What the deadline layers and their futures share.

use std::sync::Arc;
use std::time::Duration;

use tidegate::Retry;
use tidegate::clock::Clock;
use tidegate::deadline::Timeouts;
use tidegate::observer::RefusalCause;

use crate::answers::Answers;
use crate::name::Name;

/// What a deadline layer needs for each request.
#[derive(Clone, Debug)]
pub(super) struct Rules<A> {
    pub(super) name: Name,
    pub(super) timeouts: Timeouts,
    pub(super) needs: Duration,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) answers: A,
}

impl<A> Rules<A> {
    pub(super) fn answering<B>(self, answers: B) -> Rules<B> {
        let Self { name, timeouts, needs, clock, .. } = self;
        Rules { name, timeouts, needs, clock, answers }
    }

    /// Makes what a refused caller gets.
    pub(super) fn refuse<Res, Err>(&self, cause: RefusalCause) -> Result<Res, Err>
    where
        A: Answers<Res, Err>,
    {
        self.answers.refuse(self.name.refuse(cause, Retry::Unknown), None)
    }
}
