//! Views and manual control of the policies' breakers.

use tidegate_core::{Quota, Tick};

use super::Gate;
use super::charged::Charged;
use super::waits::{Asking, Waits};
use crate::policy::Share;
use tidegate_limits::store::{BreakerView, Charge, Handling, Op, Step, StoreError};

/// The state of the breaker of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyedView {
    /// The bytes of the key, in the form that [`text_of_key`](crate::policy::text_of_key) parses.
    pub key: Box<[u8]>,
    /// The name of the policy.
    pub policy: String,
    /// The index of the limit within its policy.
    pub limit: usize,
    /// The state of the breaker.
    pub view: BreakerView,
    /// When the state was read.
    pub at: Tick,
}

impl KeyedView {
    /// Creates the view of a breaker.
    #[must_use]
    pub fn new(key: &[u8], policy: &str, limit: usize, view: BreakerView, at: Tick) -> Self {
        Self { key: key.into(), policy: policy.to_owned(), limit, view, at }
    }
}

impl Gate {
    /// Returns the states of the breakers that a check has charged, after the check or after its settlement. Takes one
    /// exchange with a store per breaker, and none if there are no breakers.
    ///
    /// # Errors
    /// [`StoreError`] if a store did not answer.
    ///
    /// # Cancel safety
    /// Changes nothing, so it may be dropped at any time.
    pub async fn view_breakers(&self, charged: &Charged) -> Result<Vec<KeyedView>, StoreError> {
        let mut views = Vec::new();
        for made in charged.places().filter(|made| matches!(*made.quota, Quota::Breaker(_))) {
            let charge = charged.charge(made);
            let (view, at) = self.handle(made.rules.share, &charge, Handling::Look, Waits::Yes).await?;
            views.extend(view.map(|view| KeyedView {
                key: charge.key.into(),
                policy: charged.policy(made).to_owned(),
                limit: made.limit as usize,
                view,
                at,
            }));
        }
        Ok(views)
    }

    /// Reads the state of one breaker, or puts it into a state. The charge names its key and limit; `share` is the
    /// policy's. The view is `None` if the limit is not a breaker; the tick is that of the answer. Takes one exchange
    /// with the store.
    ///
    /// # Errors
    /// [`StoreError`] if the store did not settle it.
    ///
    /// # Cancel safety
    /// If dropped before completion, an engine that is being asked carries out the step all the same.
    pub fn handle_breaker<'a>(
        &'a self,
        share: Option<Share>,
        charge: &Charge<'a>,
        handling: Handling<'a>,
    ) -> Asking<'a, Result<(Option<BreakerView>, Tick), StoreError>> {
        let charge = *charge;
        Asking::new(move |waits| async move { self.handle(share, &charge, handling, waits).await })
    }

    async fn handle(
        &self,
        share: Option<Share>,
        charge: &Charge<'_>,
        handling: Handling<'_>,
        waits: Waits,
    ) -> Result<(Option<BreakerView>, Tick), StoreError> {
        let store = self.routes.of(share)?;
        let charges = [*charge];
        let tag = self.routes.tag(store, charge.key);
        let watched = self.is_observed();
        let step = Step { tag, watched, ..Step::new(self.time.now(), Op::Breaker(handling), &charges) };
        match self.ask(store, &step, waits).await {
            Some(settled) => settled.map(|settled| (settled.breaker.map(|view| *view), settled.at)),
            None => Err(StoreError::MustWait),
        }
    }
}
