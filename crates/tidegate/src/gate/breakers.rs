//! What people ask of the breakers of policies.

use tidegate_core::Tick;

use super::Gate;
use super::waits::{Waits, now};
use crate::policy::Share;
use crate::store::{BreakerView, Charge, Handling, Op, Step, StoreError};

impl Gate {
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
