//! What layers over a guard share: the guard of each key, what an admitted request holds, and the settings.

use std::fmt;
use std::sync::Arc;

use tidegate::Outcome;
use tidegate::breaker::Call;
use tidegate::bulkhead::Permit;
use tidegate::http_answer::NamedLimit;
use tidegate::limiter::Denied;
use tidegate::observer::{Observer, RefusalCause};

use crate::answers::Answers;
use crate::call_notes::outcome_of_drop;
use crate::classify::Classify;
use crate::refused::Name;

/// What a layer asks by the key of each request, which `F` reads: a [`KeyedLimiter`](tidegate::KeyedLimiter), a
/// [`KeyedBreaker`](tidegate::breaker::KeyedBreaker), the function of a [`FallbackLayer`](crate::FallbackLayer), or, with
/// [`Alike`](crate::parameter::Alike), the part of a bulkhead that
/// [belongs to a dependency](crate::ConcurrencyLayer::by_dependency).
#[derive(Clone, Debug)]
pub struct EachKey<L, F> {
    pub(crate) of: L,
    pub(crate) key: F,
}

/// What an admitted request holds: a place or a breaker's call. Dropping it gives it back and reports no outcome.
pub trait Entered: Send {
    /// Notes that the work begins only now, and that the request waited for its turn until now. Does nothing unless
    /// overridden.
    fn work_begins(&mut self) {}

    /// Notes that an answer which is streamed begins now. Does nothing unless overridden.
    fn answer_begins(&mut self) {}

    /// Gives back what the request holds, and reports how the work went.
    fn leave(self, outcome: Outcome);
}

impl Entered for Permit {
    fn answer_begins(&mut self) {
        Self::answer_begins(self);
    }

    fn leave(self, outcome: Outcome) {
        Self::leave(self, outcome);
    }
}

impl Entered for Call {
    fn work_begins(&mut self) {
        Self::work_begins(self);
    }

    fn answer_begins(&mut self) {
        Self::answer_begins(self);
    }

    fn leave(self, outcome: Outcome) {
        Self::leave(self, outcome);
    }
}

/// The settings of a layer over a guard.
#[derive(Clone, Debug)]
pub(crate) struct GuardRules<C, A> {
    pub(crate) name: Name,
    /// How callers are told of the bulkhead's places; `None` for breakers, which have none.
    pub(crate) named_limit: Option<NamedLimit>,
    pub(crate) classify: C,
    pub(crate) answers: A,
}

impl<C, A> GuardRules<C, A> {
    pub(crate) fn answering<B>(self, answers: B) -> GuardRules<C, B> {
        let Self { name, named_limit, classify, .. } = self;
        GuardRules { name, named_limit, classify, answers }
    }

    pub(crate) fn judging<D>(self, classify: D) -> GuardRules<D, A> {
        let Self { name, named_limit, answers, .. } = self;
        GuardRules { name, named_limit, classify, answers }
    }

    pub(crate) fn observed(self, observer: impl Observer + 'static) -> Self {
        Self { name: self.name.observed(observer), ..self }
    }

    /// Makes the result of a refused call, and tells the observer.
    pub(crate) fn refuse<Res, Err>(&self, cause: RefusalCause, denied: Option<&Denied>) -> Result<Res, Err>
    where
        A: Answers<Res, Err>,
    {
        let retry = denied.map_or(tidegate::limiter::Retry::Never, Denied::retry);
        let refused = self.name.refuse(cause, retry);
        let limit_answer = self.named_limit.as_ref().zip(denied).map(|(named, denied)| named.denied(denied));
        self.answers.refuse(refused, limit_answer.as_ref())
    }
}

/// An admitted request until it ends. Dropped earlier, it reports the outcome of a drop.
pub struct Inside<P: Entered, C, A> {
    /// `None` once it has ended, or a body holds it.
    entered: Option<P>,
    rules: Arc<GuardRules<C, A>>,
}

impl<P: Entered, C, A> Inside<P, C, A> {
    pub(crate) const fn new(entered: P, rules: Arc<GuardRules<C, A>>) -> Self {
        Self { entered: Some(entered), rules }
    }

    /// Judges what the service returned, and gives back what the request holds.
    pub(crate) fn ended<Res, Err>(&mut self, result: &Result<Res, Err>)
    where
        C: Classify<Res, Err>,
    {
        self.end(self.outcome_of(result));
    }

    /// Judges what the service returned, as far as the head of an answer tells.
    pub(crate) fn outcome_of<Res, Err>(&self, result: &Result<Res, Err>) -> Outcome
    where
        C: Classify<Res, Err>,
    {
        self.rules.classify.classify(result).outcome
    }

    /// Notes that the request waited for its turn until now.
    pub(crate) fn work_begins(&mut self) {
        if let Some(entered) = &mut self.entered {
            entered.work_begins();
        }
    }

    /// Takes what the request holds, and the name of the layer, for a body that gives it back.
    pub(crate) fn detach(&mut self) -> Option<(P, Name)> {
        Some((self.entered.take()?, self.rules.name.clone()))
    }

    pub(crate) fn end(&mut self, outcome: Outcome) {
        let Some(entered) = self.entered.take() else { return };
        entered.leave(outcome);
        self.rules.name.ended(outcome);
    }
}

impl<P: Entered, C, A> fmt::Debug for Inside<P, C, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inside").field("holds", &self.entered.is_some()).finish_non_exhaustive()
    }
}

impl<P: Entered, C, A> Drop for Inside<P, C, A> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.end(outcome_of_drop());
        }
    }
}
