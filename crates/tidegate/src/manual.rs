//! The programs of the manual, as tests. (Those about breakers, bulkheads and other parts with a page of their own stand beside their code.)

/// Which protection for which wish.
#[doc = include_str!("../../../docs/protection/README.md")]
struct Protection;

/// Time that is left.
#[doc = include_str!("../../../docs/protection/deadlines.md")]
struct Deadlines;

/// Calls made again.
#[doc = include_str!("../../../docs/protection/retries.md")]
struct Retries;

/// Work kept apart.
#[doc = include_str!("../../../docs/protection/isolation.md")]
struct Isolation;

/// Less instead of nothing.
#[doc = include_str!("../../../docs/protection/degrading.md")]
struct Degrading;

/// Few keys, much traffic.
#[doc = include_str!("../../../docs/protection/hot-keys.md")]
struct HotKeys;

/// From governor.
#[doc = include_str!("../../../docs/migration/governor.md")]
struct Governor;

/// From Hystrix.
#[doc = include_str!("../../../docs/migration/hystrix.md")]
struct Hystrix;

/// From Resilience4j.
#[doc = include_str!("../../../docs/migration/resilience4j.md")]
struct Resilience4j;

/// From Sentinel.
#[doc = include_str!("../../../docs/migration/sentinel.md")]
struct Sentinel;

/// From golang.org/x/time/rate.
#[doc = include_str!("../../../docs/migration/x-time-rate.md")]
struct XTimeRate;
