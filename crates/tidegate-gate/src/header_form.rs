//! The forms of rate-limit headers.

/// The rate limit headers that answers carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HeaderForm {
    /// `RateLimit` and `RateLimit-Policy` as lists of items (draft 11).
    #[default]
    Draft11,
    /// `X-RateLimit-Limit`, `-Remaining`, `-Reset`, with the quota policies behind the limit, as Envoy writes them.
    Draft03,
    /// `X-RateLimit-Limit`, `-Remaining`, `-Reset`, the last in delta seconds.
    XRateLimit,
    /// No headers.
    None,
}
