//! The real cost of work, reported by the handler.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate::Reservation;
use tidegate::policy::Usage;

/// A charge by an estimate, to be settled with the real cost: an extension of requests that passed a *settling* layer
/// ([`RateLimitLayer::settling`](crate::RateLimitLayer::settling),
/// [`GateLayer::settling`](crate::GateLayer::settling)). Clones share one charge; the first call settles it.
///
/// Behind a rate limit the charge is settled at once, so a streamed response may settle after its head was sent: keep a
/// clone. Behind a gate it is settled when the service's future ends, or with
/// [`until_body_ends`](crate::GateLayer::until_body_ends) when the body of its answer ends or is dropped; later reports are
/// ignored. A charge that is never settled stays as estimated. If both layers are around a service, the handler finds the inner one's charge.
///
/// # Examples
/// An axum handler that only knows at its end how many tokens a language model used:
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
    /// A gate's charge: the gate reads the report when the work has ended.
    AwaitingReport,
    Reported(Usage<'static>),
    Settled,
}

impl Spent {
    pub(crate) fn of(reservation: Reservation) -> Self {
        Self(Arc::new(Mutex::new(Charge::Reserved(reservation))))
    }

    pub(crate) fn awaiting_report() -> Self {
        Self(Arc::new(Mutex::new(Charge::AwaitingReport)))
    }

    /// Settles the charge with the units really spent: fewer are refunded, more become a debt, 0 undoes the charge.
    /// Behind a gate this is the cost for policies with `settle: cost`. Returns whether this call settled it; `false`
    /// if it was settled before.
    pub fn settle(&self, units: u64) -> bool {
        self.settle_by(Usage::cost(units))
    }

    /// Settles the charge by the usage that the work reported, such as `llm.output`, for policies of a gate that settle
    /// by such names. A rate limit uses [`Usage::cost`](field@Usage::cost) alone, and is not settled without it.
    /// Returns whether this call settled it.
    pub fn settle_by(&self, usage: Usage<'static>) -> bool {
        let mut charge = self.lock();
        match (&*charge, usage.cost) {
            (Charge::AwaitingReport, _) => *charge = Charge::Reported(usage),
            (Charge::Reserved(_), Some(units)) => {
                let reserved = std::mem::replace(&mut *charge, Charge::Settled);
                // Unlocks first: settling calls observers, which may use this charge.
                drop(charge);
                if let Charge::Reserved(reservation) = reserved {
                    reservation.settle(units);
                }
            }
            (Charge::Reserved(_), None) | (Charge::Reported(_) | Charge::Settled, _) => return false,
        }
        true
    }

    /// Returns what was reported to a gate, and ignores later reports.
    pub(crate) fn usage(&self) -> Option<Usage<'static>> {
        match std::mem::replace(&mut *self.lock(), Charge::Settled) {
            Charge::Reported(usage) => Some(usage),
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
