//! The forms of rate-limit headers.

/// Which rate limit headers answers carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HeaderForm {
    /// `RateLimit` and `RateLimit-Policy` as lists of items.
    #[default]
    Draft11,
    /// The triple, with the items that Envoy knows.
    Draft03,
    /// `X-RateLimit-Limit`, `-Remaining`, `-Reset` in delta seconds.
    XRateLimit,
    /// None.
    None,
}
