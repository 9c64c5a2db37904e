//! Answers in place of work that was refused or failed, with the reason.
//!
//! A page without recommendations is better than no page. The caller chooses another value in place of the real answer: the
//! stand-in. [`Answered`] says which of the two it holds, so that a page can tell the user and metrics can count it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::Tick;

pub use self::last_answers::LastAnswers;
use crate::clock::{Clock, SystemClock};

mod last_answers;

/// A real answer or a stand-in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered<T, E> {
    /// The real answer.
    Real(T),
    /// A stand-in, and the reason for it.
    Fallback {
        /// The stand-in.
        value: T,
        /// Why there is no real answer.
        reason: E,
    },
}

impl<T, E> Answered<T, E> {
    /// Returns the value, real or stand-in.
    pub fn into_value(self) -> T {
        match self {
            Self::Real(value) | Self::Fallback { value, .. } => value,
        }
    }

    /// Returns the reason for the stand-in; `None` for a real answer.
    pub const fn reason(&self) -> Option<&E> {
        match self {
            Self::Real(_) => None,
            Self::Fallback { reason, .. } => Some(reason),
        }
    }
}

/// Replaces an error by a value or by the result of a function.
///
/// # Examples
/// ```
/// use tidegate::fallback::{Answered, OrFallback};
/// use tidegate::{Denied, Limiter, Quota};
///
/// let limiter = Limiter::new(Quota::per_hour(1))?;
/// let recommend = || limiter.allow().into_result().map(|_| vec!["a book"]);
///
/// assert_eq!(recommend().or_fallback(vec![]), Answered::Real(vec!["a book"]));
/// let second = recommend().or_fallback_with(|_: &Denied| vec!["what everybody reads"]);
/// assert!(second.reason().is_some());
/// assert_eq!(second.into_value(), ["what everybody reads"]);
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
pub trait OrFallback<T, E>: Sized {
    /// Replaces an error by what a function returns.
    fn or_fallback_with(self, stand_in: impl FnOnce(&E) -> T) -> Answered<T, E>;

    /// Replaces an error by a value.
    fn or_fallback(self, value: T) -> Answered<T, E> {
        self.or_fallback_with(|_| value)
    }
}

impl<T, E> OrFallback<T, E> for Result<T, E> {
    fn or_fallback_with(self, stand_in: impl FnOnce(&E) -> T) -> Answered<T, E> {
        match self {
            Ok(value) => Answered::Real(value),
            Err(reason) => Answered::Fallback { value: stand_in(&reason), reason },
        }
    }
}

/// Keeps the last real answer, to stand in when there is no new one, until it is too old. Clones share it.
///
/// Holds one answer. Storing one costs an allocation, a clone and a short lock; returning one costs a short lock and a
/// clone: wrap large answers in an `Arc`. If there is one answer per key, take [`LastAnswers`].
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate::{ManualClock, fallback::{Answered, LastAnswer}};
///
/// let clock = ManualClock::default();
/// let prices = LastAnswer::new(Duration::from_secs(300)).with_clock(clock.clone());
/// assert_eq!(prices.or_last(Ok::<_, &str>(17)), Ok(Answered::Real(17)));
/// assert_eq!(prices.or_last(Err("timed out")), Ok(Answered::Fallback { value: 17, reason: "timed out" }));
/// clock.advance(Duration::from_secs(301));
/// assert_eq!(prices.or_last(Err("timed out")), Err("timed out"), "too old to be shown");
/// ```
pub struct LastAnswer<T> {
    clock: Arc<dyn Clock>,
    most_age: Duration,
    last: Arc<Mutex<Option<TimedAnswer<T>>>>,
}

/// An answer and its time. Cloned and dropped outside the lock, because that runs foreign code.
type TimedAnswer<T> = Arc<(T, Tick)>;

impl<T: Clone> LastAnswer<T> {
    /// Makes an empty store for one answer, which may stand in while it is at most `most_age` old.
    #[must_use]
    pub fn new(most_age: Duration) -> Self {
        Self { clock: Arc::new(SystemClock::new()), most_age, last: Arc::default() }
    }

    /// Sets the clock that measures ages; the default is the [`SystemClock`].
    #[must_use]
    pub fn with_clock(self, clock: impl Clock + 'static) -> Self {
        Self { clock: Arc::new(clock), ..self }
    }

    /// Stores a real answer, or replaces an error by the last one.
    ///
    /// # Errors
    /// The given error, if there is no answer that is recent enough.
    pub fn or_last<E>(&self, result: Result<T, E>) -> Result<Answered<T, E>, E> {
        let now = self.clock.now();
        match result {
            Ok(value) => {
                let kept = Arc::new((value.clone(), now));
                let gone = self.last.lock().replace(kept);
                drop(gone);
                Ok(Answered::Real(value))
            }
            Err(reason) => {
                let last = self.last.lock().clone();
                match last.filter(|last| now.since(last.1) <= self.most_age) {
                    Some(last) => Ok(Answered::Fallback { value: last.0.clone(), reason }),
                    None => Err(reason),
                }
            }
        }
    }
}

impl<T> Clone for LastAnswer<T> {
    fn clone(&self) -> Self {
        let Self { clock, most_age, last } = self;
        Self { clock: Arc::clone(clock), most_age: *most_age, last: Arc::clone(last) }
    }
}

impl<T> fmt::Debug for LastAnswer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LastAnswer").field("most_age", &self.most_age).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    #[test]
    fn an_answer_is_shown_until_it_is_too_old_and_a_new_one_counts_from_its_own_time() {
        let clock = ManualClock::default();
        let kept = LastAnswer::new(Duration::from_secs(10)).with_clock(clock.clone());
        assert_eq!(kept.or_last(Err("down")), Err("down"), "there is none yet");
        assert_eq!(kept.or_last(Ok::<_, &str>(1)), Ok(Answered::Real(1)));
        clock.advance(Duration::from_secs(6));
        assert_eq!(kept.clone().or_last(Ok::<_, &str>(2)), Ok(Answered::Real(2)));
        clock.advance(Duration::from_secs(10));
        let shown = kept.or_last(Err("down")).expect("exactly as old as it may be");
        assert_eq!((shown.reason(), shown.into_value()), (Some(&"down"), 2));
        clock.advance(Duration::from_nanos(1));
        assert_eq!(kept.or_last(Err("down")), Err("down"));
    }

    /// Cloning an answer runs its type's own code. Under the lock, a clone that asked for the answer again deadlocked.
    #[test]
    fn an_answer_may_use_what_keeps_it_while_it_is_copied() {
        struct Asks(Option<LastAnswer<Asks>>);

        impl Clone for Asks {
            fn clone(&self) -> Self {
                if let Some(kept) = &self.0 {
                    assert!(kept.or_last(Ok::<_, ()>(Self(None))).is_ok());
                }
                Self(None)
            }
        }

        let kept = LastAnswer::new(Duration::from_secs(10)).with_clock(ManualClock::default());
        let asking = Asks(Some(kept.clone()));
        *kept.last.lock() = Some(Arc::new((asking, Tick::EPOCH)));
        assert!(kept.or_last(Err("down")).is_ok());
    }
}
