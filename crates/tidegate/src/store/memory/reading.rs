//! What a word is read by, and what a check on it says.

use tidegate_core::Tick;
use tidegate_core::rate::GcraWord;

use super::limit::Limit;

/// The outcome of a check on a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Spent; the new word.
    Permitted(u64),
    /// Not spent; the word that refused.
    Refused(u64),
    /// Not decided: the key has no word under this limit here, or it has to be looked at again.
    Elsewhere,
}

/// What words are read by: a limit, and now, in ticks and in the limit's scaled time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading<'t> {
    pub(crate) limit: Limit<'t>,
    pub(crate) form: GcraWord,
    pub(crate) tick: Tick,
    pub(crate) now: u64,
}

impl<'t> Reading<'t> {
    /// Makes it; `None` where the numbers of the limit's form do not reach `tick`.
    #[inline(always)]
    pub(crate) fn at(limit: Limit<'t>, tick: Tick) -> Option<Self> {
        let form = limit.form();
        let now = form.scaled(tick)?;
        Some(Self { limit, form, tick, now })
    }

    /// Returns it as of another tick; `None` where the numbers of the limit's form do not reach that.
    #[inline(always)]
    pub(crate) fn later(&self, tick: Tick) -> Option<Self> {
        Some(Self { tick, now: self.form.scaled(tick)?, ..*self })
    }
}
