//! What people ask of the breakers of policies.

use tidegate_core::{Quota, Tick};

use super::Gate;
use super::charged::Charged;
use super::waits::{Waits, now};
use crate::policy::Share;
use crate::store::{BreakerView, Charge, Handling, Op, Step, StoreError};

/// How the breaker of one key stands.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyedView {
    /// The bytes of the key, which [`text_of_key`](crate::policy::text_of_key) reads.
    pub key: Box<[u8]>,
    /// The policy it belongs to.
    pub policy: String,
    /// The limit's place in its policy.
    pub limit: usize,
    /// How it stands.
    pub view: BreakerView,
    /// When.
    pub at: Tick,
}

impl KeyedView {
    /// Makes the view of a breaker.
    #[must_use]
    pub fn new(key: &[u8], policy: &str, limit: usize, view: BreakerView, at: Tick) -> Self {
        Self { key: key.into(), policy: policy.to_owned(), limit, view, at }
    }
}

impl Gate {
    /// Looks at the breakers that a check has charged: which state they are in after it, or after it was settled. One exchange with a store
    /// for each of them, and none where there is none.
    ///
    /// # Errors
    /// [`StoreError`] when a store did not answer.
    ///
    /// # Cancel safety
    /// It changes nothing.
    pub async fn view_breakers_async(&self, charged: &Charged) -> Result<Vec<KeyedView>, StoreError> {
        let mut views = Vec::new();
        for made in charged.places().filter(|made| matches!(*made.quota, Quota::Breaker(_))) {
            let charge = charged.charge(made);
            let (view, at) = self.handle(made.share, &charge, Handling::Look, Waits::Yes).await?;
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

    /// Looks at one breaker, or puts it in a state: the charge names its key and its limit, `share` is the policy's. `None` where the limit
    /// is no breaker. The tick is that of the answer. One exchange with the store.
    ///
    /// # Errors
    /// [`StoreError`] when the store did not settle it, or has to be waited for.
    pub fn handle_breaker(
        &self,
        share: Option<Share>,
        charge: &Charge<'_>,
        handling: Handling<'_>,
    ) -> Result<(Option<BreakerView>, Tick), StoreError> {
        now(self.handle(share, charge, handling, Waits::No))
    }

    /// Handles a breaker like [`Gate::handle_breaker`], and waits for an engine that answers later.
    ///
    /// # Errors
    /// [`StoreError`] when the store did not settle it.
    ///
    /// # Cancel safety
    /// Dropped before it ends, an engine that is being asked does what it was asked all the same.
    pub async fn handle_breaker_async(
        &self,
        share: Option<Share>,
        charge: &Charge<'_>,
        handling: Handling<'_>,
    ) -> Result<(Option<BreakerView>, Tick), StoreError> {
        self.handle(share, charge, handling, Waits::Yes).await
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
        let step = Step { tag, ..Step::new(self.time.now(), Op::Breaker(handling), &charges) };
        match self.ask(store, &step, waits).await {
            Some(settled) => settled.map(|settled| (settled.breaker.map(|view| *view), settled.at)),
            None => Err(StoreError::MustWait),
        }
    }
}
