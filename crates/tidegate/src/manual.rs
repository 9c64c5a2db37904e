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

/// Isolation of dependencies.
#[doc = include_str!("../../../docs/protection/isolation.md")]
struct Isolation;

/// Hot keys.
#[doc = include_str!("../../../docs/protection/hot-keys.md")]
struct HotKeys;

/// Coming from another limiter.
#[doc = include_str!("../../../docs/migrate.md")]
struct Migrate;

/// Token budgets for language models.
#[doc = include_str!("../../../docs/token-budgets.md")]
struct TokenBudgets;
