//! Compiles the programs of the manual's pages as tests. (Breakers, bulkheads and other parts have theirs beside their
//! code.)

/// Deadlines and retries.
#[doc = include_str!("../../../docs/protection/deadlines.md")]
struct Deadlines;

/// The defaults of retries that the page gives.
///
/// ```
/// use std::time::Duration;
/// use tidegate::limiter::Rate;
/// use tidegate::retries::{Retries, RetryBudget};
///
/// assert_eq!(Retries::default(), Retries::new(3, Duration::from_millis(50), Duration::from_secs(2))?);
/// assert_eq!(Retries::default(), Retries::default().with_pushback_up_to(Duration::from_secs(60))?);
/// let floor = Rate::new(10, Duration::from_secs(1))?;
/// assert_eq!(RetryBudget::default(), RetryBudget::new(0.2)?.with_floor(floor)?.with_span(Duration::from_secs(10))?);
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
struct RetryDefaults;

/// Rules as policies, and hot keys.
#[doc = include_str!("../../../docs/protection/rules.md")]
struct Rules;

/// Coming from another limiter.
#[doc = include_str!("../../../docs/migrate.md")]
struct Migrate;

/// Token budgets for language models.
#[doc = include_str!("../../../docs/token-budgets.md")]
struct TokenBudgets;
