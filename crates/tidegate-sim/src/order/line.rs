//! Lines on their way into order, and out of it.

/// A line as the caller knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    /// Whatever the caller marks it with.
    pub(crate) mark: u64,
    /// Where in it the time stands, for whoever knows, so that it need not be found twice.
    pub(crate) time_at: u32,
    pub(crate) bytes: &'a [u8],
}

/// A line given out in its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held<'a> {
    /// What it counts as.
    pub(crate) time: u64,
    pub(crate) line: Line<'a>,
}
