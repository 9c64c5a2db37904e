//! What work really cost, told by whoever knows.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate::Reservation;
use tidegate::policy::Usage;

/// A charge on an estimate, to be settled with what was really spent: an extension of requests that passed a layer that is *settling*
/// ([`RateLimitLayer::settling`](crate::RateLimitLayer::settling), [`GateLayer::settling`](crate::GateLayer::settling)). Clones are of one
/// charge, and the first to settle it does.
///
/// Behind a rate limit the charge is settled at once, so a response that is streamed may settle after its head was sent: keep a clone. Behind
/// a gate it is settled when the service's future ends, and what is told later is not heard. What nobody settles stays charged as estimated.
/// Where both layers stand around a service, the inner one's is found.
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
pub struct Spent(Arc<Mutex<Charge>>);

enum Charge {
    Reserved(Reservation),
    /// A gate's, which asks when the work has ended.
    ToBeTold,
    Told(Usage<'static>),
    Settled,
}

impl Spent {
    pub(crate) fn of(reservation: Reservation) -> Self {
        Self(Arc::new(Mutex::new(Charge::Reserved(reservation))))
    }

    pub(crate) fn to_be_told() -> Self {
        Self(Arc::new(Mutex::new(Charge::ToBeTold)))
    }

    /// Settles the charge with the units really spent: fewer come back, more are a debt, 0 undoes it. Behind a gate it is the cost that
    /// policies with `settle: cost` go by. Says whether it was settled now, and not before.
    pub fn settle(&self, units: u64) -> bool {
        self.settle_by(Usage::cost(units))
    }

    /// Settles the charge by the usage that the work reported, such as `llm.output`: for policies of a gate that go by such names. A rate
    /// limit goes by [`Usage::cost`](field@Usage::cost) alone, and is not settled without it. Says whether it was settled now.
    pub fn settle_by(&self, usage: Usage<'static>) -> bool {
        let mut charge = self.lock();
        match (&*charge, usage.cost) {
            (Charge::ToBeTold, _) => *charge = Charge::Told(usage),
            (Charge::Reserved(_), Some(units)) => {
                let reserved = std::mem::replace(&mut *charge, Charge::Settled);
                // Observers are called by the settling, and may look here.
                drop(charge);
                if let Charge::Reserved(reservation) = reserved {
                    reservation.settle(units);
                }
            }
            (Charge::Reserved(_), None) | (Charge::Told(_) | Charge::Settled, _) => return false,
        }
        true
    }

    /// Returns what a gate was told, and hears nothing more.
    pub(crate) fn usage(&self) -> Option<Usage<'static>> {
        match std::mem::replace(&mut *self.lock(), Charge::Settled) {
            Charge::Told(usage) => Some(usage),
            _ => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Charge> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Spent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Spent")
    }
}
