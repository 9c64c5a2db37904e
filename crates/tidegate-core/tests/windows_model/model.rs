//! The interface of the models, in wide numbers.

use tidegate_core::{Ask, Quota, Replace, Retry, Standing, Tick, Transition};

/// Nanoseconds and units in a width that does not overflow.
pub(crate) type Wide = u128;

/// A model's decision. An allowed one has taken effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Allowed { act: Wide, wait: Wide },
    Later(Wide),
    Never,
}

/// A slow and plain model of one algorithm, which keeps every act that it allowed.
pub(crate) trait Model {
    fn decide(&mut self, ask: Ask) -> Answer;
    fn standing(&self, now: Tick) -> Standing;
    /// Settles the charge that was allowed as the `nth`, from 0.
    fn settle(&mut self, now: Tick, nth: usize, used: u64);
    fn carry(&mut self, to: &Quota, now: Tick, how: Replace);
}

pub(crate) fn wide(tick: Tick) -> Wide {
    Wide::from(tick.as_nanos())
}

/// Units that act at a tick. `nth` is the charge that can still be settled; `None` after a change, or for a debt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Act {
    pub(crate) act: Wide,
    pub(crate) units: Wide,
    pub(crate) nth: Option<usize>,
}

/// A charge as it was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Made {
    pub(crate) at: Wide,
    pub(crate) act: Wide,
    pub(crate) units: Wide,
}

/// Returns what is booked beyond a charge.
pub(crate) fn excess(made: Made, used: u64) -> Wide {
    Wide::from(used).saturating_sub(made.units).min(1 << 60)
}

/// Converts the tick of an act into an answer.
pub(crate) fn answer(ask: Ask, at: Wide, act: Wide) -> Answer {
    let max_wait = ask.max_wait.as_nanos();
    if act > Wide::from(u64::MAX) {
        Answer::Never
    } else if act - at > max_wait {
        Answer::Later(act - at - max_wait)
    } else {
        Answer::Allowed { act, wait: act - at }
    }
}

/// Returns what a limit answered, in the words of the models.
pub(crate) fn of<S>(transition: &Transition<S>) -> Answer {
    match transition {
        Transition::Allowed { wait, receipt, .. } => {
            Answer::Allowed { act: wide(receipt.act), wait: wait.as_nanos() }
        }
        Transition::Denied { retry: Retry::After(later) } => Answer::Later(later.as_nanos()),
        Transition::Denied { retry: Retry::Never | Retry::Unknown } => Answer::Never,
    }
}

/// Makes a standing. `spent` is what counts at the first tick at which anyone may act.
pub(crate) fn standing(limit: Wide, spent: Wide, at: Wide, full: Wide) -> Standing {
    let reset_after = tidegate_core::time::span(full.saturating_sub(at));
    let debt = spent.saturating_sub(limit).min(1 << 60) as u64;
    Standing { limit: limit as u64, remaining: limit.saturating_sub(spent) as u64, debt, reset_after }
}

/// Returns the same share of another limit, rounded up.
pub(crate) fn share(units: Wide, new: Wide, old: Wide) -> Wide {
    (units * new).div_ceil(old).min(1 << 60)
}
