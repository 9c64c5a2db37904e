//! How a word is read, and the outcome of a check on it.

use tidegate_core::Tick;
use tidegate_core::rate::GcraWord;

use super::limit::Limit;

/// The outcome of a check on a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WordOutcome {
    /// Spent; holds the new word.
    Permitted(u64),
    /// Not spent; holds the word that refused.
    Refused(u64),
    /// Not decided: the key has no word under this limit here, or the check has to be repeated another way.
    Undecided,
}

/// The data needed to read a word: a limit, and the present time, as a tick and in the limit's scaled time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading<'t> {
    pub(crate) limit: Limit<'t>,
    pub(crate) form: GcraWord,
    pub(crate) tick: Tick,
    pub(crate) now: u64,
}

impl<'t> Reading<'t> {
    /// Makes a reading at `tick`; `None` where the limit's form does not reach that far.
    #[inline(always)]
    pub(crate) fn at(limit: Limit<'t>, tick: Tick) -> Option<Self> {
        let form = limit.form();
        let now = form.scaled(tick)?;
        Some(Self { limit, form, tick, now })
    }

    /// Returns the reading at another tick; `None` where the limit's form does not reach that far.
    #[inline(always)]
    pub(crate) fn later(&self, tick: Tick) -> Option<Self> {
        Some(Self { tick, now: self.form.scaled(tick)?, ..*self })
    }
}
