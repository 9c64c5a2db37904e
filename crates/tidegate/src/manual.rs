//! Compiles the programs of the manual's pages as tests. (Breakers, bulkheads and other parts have theirs beside their
//! code.)

/// Which protection to choose.
#[doc = include_str!("../../../docs/protection/README.md")]
struct Protection;

/// Deadlines.
#[doc = include_str!("../../../docs/protection/deadlines.md")]
struct Deadlines;

/// Retries.
#[doc = include_str!("../../../docs/protection/retries.md")]
struct Retries;

/// The defaults that the page about retries gives.
///
/// ```
/// use std::time::Duration;
/// use tidegate::Rate;
/// use tidegate::retries::{Retries, RetryBudget};
///
/// assert_eq!(Retries::default(), Retries::new(3, Duration::from_millis(50), Duration::from_secs(2))?);
/// assert_eq!(Retries::PUSHBACK_UP_TO, Duration::from_secs(60));
/// let floor = Rate::new(10, Duration::from_secs(1))?;
/// assert_eq!(RetryBudget::default(), RetryBudget::new(0.2)?.with_floor(floor)?.with_span(Duration::from_secs(10))?);
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
struct RetryDefaults;

/// Token budgets for language models.
#[doc = include_str!("../../../docs/token-budgets.md")]
struct TokenBudgets;

/// Isolation of dependencies.
#[doc = include_str!("../../../docs/protection/isolation.md")]
struct Isolation;

/// Hot keys.
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
