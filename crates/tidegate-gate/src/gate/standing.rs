//! Returns the standing of a key under one limit, for people.

use tidegate_core::Standing;

use super::Gate;
use super::waits::Waits;
use crate::policy::Share;
use tidegate_limits::store::{Charge, Op, Step, StepClock, StoreError};

impl Gate {
    /// Reads the standing of a charge's key in the store that decides policies with this `share`; charges nothing.
    /// Takes one round trip if that store is an engine.
    ///
    /// # Errors
    /// [`StoreError`] if the store did not answer, or the word has no store.
    ///
    /// # Cancel safety
    /// Changes nothing, so it may be dropped at any time.
    pub async fn standing(
        &self,
        share: Option<Share>,
        charge: Charge<'_>,
    ) -> Result<Option<Standing>, StoreError> {
        let store = self.routes.of(share)?;
        let (tag, charges) = (self.routes.tag(store, charge.key), [charge]);
        let look = Step { tag, clock: StepClock::Engine, ..Step::new(self.time.now(), Op::Peek, &charges) };
        let looked = self.ask(store, &look, Waits::Yes).await.unwrap_or(Err(StoreError::MustWait))?;
        Ok(looked.lines.first().map(|line| line.decision.standing))
    }
}
