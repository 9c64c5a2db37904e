//! What the deadline layers and their futures share.

use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::Clock;
use tidegate::deadline::Timeouts;

use crate::answers::Answers;
use crate::refused::{Cause, Refused};

/// What a deadline layer needs for each request.
#[derive(Clone, Debug)]
pub(super) struct Rules<A> {
    pub(super) timeouts: Timeouts,
    pub(super) needs: Duration,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) answers: A,
}

impl<A: Clone> Rules<A> {
    /// Makes what a refused caller gets.
    pub(super) fn refuse<Res, Err>(&self, cause: Cause) -> Result<Res, Err>
    where
        A: Answers<Res, Err>,
    {
        self.answers.refuse(Refused::new(cause), None)
    }
}
