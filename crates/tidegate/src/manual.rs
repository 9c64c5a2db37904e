//! Compiles the programs of the manual's pages as tests. (Breakers, bulkheads and other parts have theirs beside their
//! code.)

/// Deadlines and retries.
#[doc = include_str!("../../../docs/protection/deadlines.md")]
struct Deadlines;

/// The defaults of retries that the page gives.
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

/// Rules as policies, and hot keys.
#[doc = include_str!("../../../docs/protection/rules.md")]
struct Rules;

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
