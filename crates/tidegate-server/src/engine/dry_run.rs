//! Decides a request under policies that need not be in force, without charging it.

use std::sync::Arc;

use tidegate::gate::Check;
use tidegate::policy::{Among, PolicySet};
use tidegate::store::DecidedBy;

use super::{Conclusion, Engine};

impl Engine {
    /// Decides a request under a set of policies that the store can serve ([`Engine::fits`]). Charges and counts
    /// nothing.
    ///
    /// Policies that are not in the file have no metric series, and this call makes none.
    ///
    /// # Cancel safety
    /// As [`Engine::decide`].
    pub(crate) async fn dry_run(
        &self,
        set: &Arc<PolicySet>,
        check: Check<'_, '_>,
        only: Option<&[usize]>,
    ) -> Conclusion {
        let among = match only {
            Some(only) => Among::new(Arc::clone(set), only.iter().copied()),
            None => Among::new(Arc::clone(set), 0..set.len()),
        };
        let check = check.among(&among).peek();
        match self.base.gate.check_async(check).await {
            Ok(mut decision) if decision.by == DecidedBy::Fallback => {
                self.left_by_engine(&mut decision).unwrap_or(Conclusion::Decided(decision))
            }
            Ok(decision) => Conclusion::Decided(decision),
            Err(error) => self.undecided(error),
        }
    }
}
