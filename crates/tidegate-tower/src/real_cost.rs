//! The real cost of work, reported by the handler.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::Request;
use tidegate::limiter::Reservation;
use tidegate::policy::Usage;

/// A charge by an estimate, to be settled with the real cost: an extension of requests that passed a *settling* layer
/// ([`RateLimitLayer::settling`](crate::RateLimitLayer::settling),
/// [`GateLayer::settling`](crate::GateLayer::settling)). Clones share one charge; the first call settles it.
///
/// Behind a rate limit the charge is settled at once, also after the head of a streamed answer was sent: keep a clone.
/// Behind a gate it is settled when the service's future ends, or with
/// [`until_body_ends`](crate::GateLayer::until_body_ends) when the body of its answer ends or is dropped; later reports are
/// ignored. A charge that is never settled stays as estimated. If both layers are around a service, the handler finds the
/// inner one's charge.
///
/// Around a client the program learns the real cost from the answer: see [`Spent::new`].
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
pub struct Spent {
    charge: Arc<Mutex<Charge>>,
    /// Whether the program has made it, for the charge of a client's layer.
    of_caller: bool,
}

pub(crate) enum Charge {
    Reserved(Reservation),
    /// A gate's charge: the gate reads the report when the work has ended.
    AwaitingReport,
    Reported(Usage<'static>),
    /// There is nothing to settle: not yet, or no more.
    Settled,
}

/// Same as [`Spent::new`].
impl Default for Spent {
    fn default() -> Self {
        Self::new()
    }
}

impl Spent {
    /// Makes one for one call through a client with a settling layer, to be put into the extensions of the request. The
    /// layer puts its charge into it; until then, and if the call is refused, there is nothing to settle. If a retry layer
    /// outside makes several tries, it has the charge of the last one, and the others stay as estimated.
    ///
    /// # Examples
    /// A client of a language model, which may use 100,000 tokens a minute:
    /// ```
    /// use http::{Request, Response};
    /// use tidegate::{Cost, Limiter, Quota};
    /// use tidegate_tower::{ClientStack, Errors, RateLimitLayer, Spent};
    /// use tower::{BoxError, Layer, ServiceExt, service_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), BoxError> {
    /// let tokens = Limiter::new(Quota::per_minute(100_000))?;
    /// let estimate = |prompt: &Request<String>| Cost::try_from(prompt.body().len()).unwrap_or(Cost::ONE);
    /// let layer = RateLimitLayer::all("tokens", tokens.clone()).answering(Errors).costing(estimate).settling();
    /// let http = service_fn(async |_: Request<String>| Ok::<_, BoxError>(Response::new(742)));
    /// let model = ClientStack::new().rate_limit(layer).layer(http);
    ///
    /// let spent = Spent::new();
    /// let prompt = Request::post("/complete").extension(spent.clone()).body("Why is the sky blue?".to_owned())?;
    /// let used = model.oneshot(prompt).await?.into_body();
    /// assert!(spent.settle(used));
    /// # assert!(tokens.standing().remaining <= 99_300);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self { of_caller: true, ..Self::holding(Charge::Settled) }
    }

    fn holding(charge: Charge) -> Self {
        Self { charge: Arc::new(Mutex::new(charge)), of_caller: false }
    }

    /// Puts a charge into the one that the program has given a request, or gives the request one for its handler.
    pub(crate) fn hand_over<B>(charge: Charge, request: &mut Request<B>) -> Self {
        let given = request.extensions().get().filter(|spent: &&Self| spent.of_caller).cloned();
        if let Some(given) = given {
            let before = std::mem::replace(&mut *given.lock(), charge);
            // Outside the lock, since it runs foreign code.
            drop(before);
            return given;
        }
        let spent = Self::holding(charge);
        request.extensions_mut().insert(spent.clone());
        spent
    }

    /// Settles the charge with the units really spent: fewer are refunded, more become a debt, 0 undoes the charge.
    /// Behind a gate this is the cost of policies that [settle by the cost](tidegate::policy::SettleBy::Cost): in a policy
    /// file those without a `cost`, and those that only estimate it. Returns whether this call settled it; `false` if it was
    /// settled before.
    pub fn settle(&self, units: u64) -> bool {
        self.settle_by(Usage::cost(units))
    }

    /// Settles the charge like [`settle`](Self::settle), by the usage that the work reported, such as `llm.output`, for
    /// policies of a gate that settle by such names. A rate limit uses [`Usage::cost`](field@Usage::cost) alone, and is not
    /// settled without it.
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
        self.charge.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Spent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Spent")
    }
}
