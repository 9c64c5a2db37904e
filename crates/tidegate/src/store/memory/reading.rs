//! What a word is read by, and what a check on it says.

use tidegate_core::Tick;

use super::classes::Limit;

/// The outcome of a check on a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Spent; the word that stands now.
    Permitted(u64),
    /// Not spent; the word that stands, or that was seen at a glance.
    Refused(u64),
    /// Not here: another limit, a state that is no word, or more than a glance can tell.
    Elsewhere,
}

/// What words are read by: a limit, and the present in ticks and in the limit's scaled time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading<'t> {
    pub(crate) limit: &'t Limit,
    pub(crate) tick: Tick,
    pub(crate) now: u64,
}

impl<'t> Reading<'t> {
    /// Makes it; `None` where the limit's form has come to its end.
    #[inline]
    pub(crate) fn at(limit: &'t Limit, tick: Tick) -> Option<Self> {
        Some(Self { limit, tick, now: limit.form.scaled(tick)? })
    }
}
