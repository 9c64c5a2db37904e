//! The limits of one answer, as all forms of headers show them.

use smallvec::SmallVec;
use tidegate_core::Retry;

/// One limit as headers show it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShownLimit<'a> {
    /// The policy's name.
    pub(crate) name: &'a str,
    /// The most it grants at once.
    pub(crate) quota: u64,
    /// Whole seconds in which a limit used up is full again; absent where time does not give back.
    pub(crate) window: Option<u64>,
    /// Whether it counts requests in flight.
    pub(crate) concurrent: bool,
    /// What is left.
    pub(crate) remaining: u64,
    /// Whether it refuses.
    pub(crate) refused: bool,
    /// Whole seconds to wait: of a refusal until it could pass, else until the limit is full. Absent when it never is.
    pub(crate) wait: Option<u64>,
}

/// The limits of one answer: those that can refuse, in the order of the policies, at most one per policy.
#[derive(Clone, Debug, Default)]
pub(crate) struct Picture<'a> {
    pub(crate) limits: SmallVec<[ShownLimit<'a>; 4]>,
    /// Index of the one that binds.
    pub(crate) binding: Option<usize>,
    /// Set on a refusal: when asking again is worthwhile.
    pub(crate) refused: Option<Retry>,
}
