//! What work really cost, told by whoever knows.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use tidegate::Reservation;

/// A charge on an estimate, to be settled with what was really spent: an extension of requests that passed a
/// [`RateLimitLayer::settling`](crate::RateLimitLayer::settling) limit. Clones are of one charge, and the first to settle it does.
///
/// A response that is streamed may settle after its head was sent: keep a clone. What nobody settles stays charged as estimated.
///
/// # Examples
/// A handler of axum that knows at its end how many tokens a language model used:
/// ```
/// use axum::Extension;
/// use tidegate_tower::Spent;
///
/// async fn complete(Extension(spent): Extension<Spent>) -> String {
///     let (answer, tokens) = ("the answer".to_owned(), 742);
///     spent.settle(tokens);
///     answer
/// }
/// ```
#[derive(Clone)]
pub struct Spent(Arc<Mutex<Option<Reservation>>>);

impl Spent {
    pub(crate) fn of(reservation: Reservation) -> Self {
        Self(Arc::new(Mutex::new(Some(reservation))))
    }

    /// Settles the charge with the units really spent: fewer come back, more are a debt, 0 undoes it. Says whether it was settled now, and not
    /// before.
    pub fn settle(&self, units: u64) -> bool {
        let reservation = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        reservation.map(|reservation| reservation.settle(units)).is_some()
    }
}

impl fmt::Debug for Spent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Spent")
    }
}
