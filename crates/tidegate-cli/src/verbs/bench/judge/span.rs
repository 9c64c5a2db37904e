//! The span of time in which an ask was decided.

/// The span in which the server decided an ask, by the judge's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Span {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) key: u32,
}

impl Span {
    pub(super) const MIN: Self = Self { from: 0, to: 0, key: 0 };
    pub(super) const MAX: Self = Self { from: u64::MAX, to: u64::MAX, key: u32::MAX };
}
