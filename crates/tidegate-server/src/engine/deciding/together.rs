//! Decides several checks of one call as one: all or nothing.

use std::time::Duration;

use smallvec::SmallVec;
use tidegate::Charged;
use tidegate::gate::Check;
use tidegate::store::StoreError;

use super::Deciding;
use crate::active_config::ActiveConfig;
use crate::engine::{Conclusion, Want};
use crate::metrics::{RequestOutcome, Transport};

/// The result of checks that were decided as one.
#[derive(Debug)]
pub(crate) struct Together {
    /// Whether the call may pass.
    pub(crate) allowed: bool,
    /// How long to delay the call.
    pub(crate) wait: Duration,
    /// One for each check, in order. A single one if the store could not decide.
    pub(crate) conclusions: Vec<Conclusion>,
}

impl Deciding {
    /// Decides checks as one, like [`Deciding::decide`]: either all are charged or none is. A check that only looks
    /// spends nothing, but its refusal refuses the call too. Writes what was charged to `held`, if given.
    ///
    /// # Errors
    /// [`StoreError::TwoQuotas`] if two checks have different quotas for one key, which is the caller's mistake. Other
    /// errors become a conclusion by `on_store_error`.
    ///
    /// # Cancel safety
    /// As [`Deciding::decide`].
    pub(crate) async fn decide_together(
        &self,
        live: &ActiveConfig,
        checks: &[Check<'_, '_>],
        held: Option<&mut Charged>,
        transport: Transport,
    ) -> Result<Together, StoreError> {
        let deciding = async {
            match held {
                Some(held) => self.base.gate.charge_together_async(checks, held).await,
                None => self.base.gate.check_together_async(checks).await,
            }
        };
        let together = match self.base.metrics.time(transport, deciding).await {
            Ok(together) => together,
            Err(error @ StoreError::TwoQuotas { .. }) => return Err(error),
            Err(error) => {
                let conclusions = vec![self.undecided(error)];
                self.base.metrics.requests.count(transport, RequestOutcome::failed_closed);
                return Ok(Together { allowed: false, wait: Duration::ZERO, conclusions });
            }
        };
        let mut conclusions: Vec<Conclusion> =
            together.decisions.into_iter().map(Conclusion::Decided).collect();
        for (check, conclusion) in checks.iter().zip(&mut conclusions) {
            let want = if check.peek { Want::Peek } else { Want::Take };
            self.count_and_adjust(live, check.request, conclusion, want);
            self.telemetry.note_conclusion(check.request, conclusion);
            if let (Want::Peek, Conclusion::Decided(decision)) = (want, &*conclusion) {
                self.telemetry.note_looked_at(live, decision);
                self.telemetry.count_refused_look(live, check.request, decision);
            }
        }
        // A policy whose store is away may refuse what the gate allows.
        let closed = conclusions
            .iter()
            .any(|conclusion| matches!(conclusion, Conclusion::Unsettled { allowed: false, .. }));
        let allowed = together.allowed && !closed;
        // Every one, so that the kind of each is noted.
        let each = checks.iter().zip(&conclusions).map(|(check, conclusion)| match conclusion {
            Conclusion::Decided(decision) => {
                self.telemetry.is_unmet(live, transport, check.request, None, decision)
            }
            Conclusion::Unsettled { .. } => false,
        });
        let unmet: SmallVec<[bool; 8]> = each.collect();
        let undecided =
            conclusions.iter().any(|conclusion| matches!(conclusion, Conclusion::Unsettled { .. }));
        let turn = self.base.metrics.requests.count(
            transport,
            match (allowed, undecided) {
                (true, true) => RequestOutcome::failed_open,
                (false, true) if closed => RequestOutcome::failed_closed,
                (false, _) => RequestOutcome::denied,
                (true, false) if !unmet.is_empty() && unmet.iter().all(|unmet| *unmet) => {
                    RequestOutcome::unmatched
                }
                (true, false) if !together.wait.is_zero() => RequestOutcome::delayed,
                (true, false) => RequestOutcome::allowed,
            },
        );
        if let Some(count) = live.unmet.looks_at(turn) {
            for (check, _) in checks.iter().zip(&unmet).filter(|(_, unmet)| !**unmet) {
                live.unmet.look_at(&live.set, &live.proxy.named, transport, check.request, count);
            }
            note_charged_twice(live, checks, &conclusions);
        }
        if let Some(check) = checks.iter().find(|check| !check.peek) {
            self.telemetry.count_call(live, check.request, transport, allowed);
        }
        Ok(Together { allowed, wait: together.wait, conclusions })
    }
}

/// Notes policies without a key that were charged by several descriptors of one call.
fn note_charged_twice(live: &ActiveConfig, checks: &[Check<'_, '_>], conclusions: &[Conclusion]) {
    let charging = checks.iter().zip(conclusions).filter(|(check, _)| !check.peek);
    let decisions: Vec<_> = charging
        .filter_map(|(_, conclusion)| match conclusion {
            Conclusion::Decided(decision) => Some(decision),
            Conclusion::Unsettled { .. } => None,
        })
        .collect();
    for (at, policy) in live.set.policies().iter().enumerate().filter(|(_, policy)| policy.by.is_empty()) {
        let of_it = decisions.iter().filter(|decision| decision.limits.iter().any(|line| line.policy == at));
        let times = of_it.count();
        if times > 1 {
            live.unmet.note_charged_twice(&policy.name, times);
        }
    }
}
