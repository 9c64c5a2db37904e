//! Decides one request.

use std::pin::pin;

use tidegate::GateDecision;
use tidegate::gate::Check;
use tidegate::policy::Descriptor;
use tidegate::store::{Charge, Op, Settled, StoreError};

use super::{Conclusion, Engine, HeldCharges, Want, among};
use crate::active_config::ActiveConfig;
use crate::metrics::Transport;

impl Engine {
    /// Decides a request. Writes what was charged to `held`, if given. `only` restricts the decision to the policies
    /// with these indices in the set of `live`. `transport` is the protocol of the request.
    ///
    /// # Cancel safety
    /// A dropped call has spent nothing. If an engine was already asked, its charge is undone in the background once it
    /// has answered.
    pub(crate) async fn decide(
        &self,
        live: &ActiveConfig,
        check: Check<'_, '_>,
        only: Option<&[usize]>,
        want: Want,
        held: Option<&mut HeldCharges>,
        transport: Transport,
    ) -> Conclusion {
        if self.base.decides_at_once && held.is_none() && only.is_none() {
            let decided = self.metrics.time_now(transport, || match want {
                Want::Take => self.base.gate.check(check),
                Want::Peek => self.base.gate.peek(check),
            });
            return self.concluded(live, check.request, only, decided, want, transport);
        }
        // Boxed: otherwise the future of a check that is decided at once would reserve space for it.
        Box::pin(self.decide_waiting(live, check, only, want, held, transport)).await
    }

    /// The general form of [`Engine::decide`]: may wait for an engine, keep the charges, and leave policies out.
    async fn decide_waiting(
        &self,
        live: &ActiveConfig,
        check: Check<'_, '_>,
        only: Option<&[usize]>,
        want: Want,
        held: Option<&mut HeldCharges>,
        transport: Transport,
    ) -> Conclusion {
        let keeps = held.is_some();
        let mut unwanted = HeldCharges::default();
        let held = held.unwrap_or(&mut unwanted);
        let among = only.map(|only| among(live, only));
        let check = check.among(among.as_ref());
        let deciding = async {
            match want {
                Want::Take if keeps => self.base.gate.charge_async(check, &mut held.charged).await,
                Want::Take => self.base.gate.check_async(check).await,
                Want::Peek => self.base.gate.check_async(check.peek()).await,
            }
        };
        // Pinned and passed by reference: passed by value it would take up space in this future twice.
        let decided = self.metrics.time(transport, pin!(deciding)).await;
        if live.breaks && keeps {
            self.breakers.note_entered(&held.charged).await;
        }
        self.concluded(live, check.request, only, decided, want, transport)
    }

    /// Records that a look has reached the limits of these policies: what a look finds is not counted.
    #[cfg(feature = "grpc")]
    pub(crate) fn note_looked_at(&self, live: &ActiveConfig, decision: &GateDecision) {
        let facts = live.facts(&decision.policies, &self.metrics);
        decision.limits.iter().for_each(|line| facts[line.policy].met.note_look());
    }

    /// Counts a look that refuses a request of a proxy as a decision of its policies. One that passes is not counted: the
    /// charge that follows is.
    #[cfg(feature = "grpc")]
    pub(super) fn count_refused_look(
        &self,
        live: &ActiveConfig,
        request: &Descriptor<'_>,
        decision: &GateDecision,
    ) {
        if decision.refusal.is_some() || decision.refusing().next().is_some() {
            self.count(&live.facts(&decision.policies, &self.metrics), request, decision);
        }
    }

    /// Counts a look that decides a request of a proxy: a call over gRPC that spends nothing.
    #[cfg(feature = "grpc")]
    pub(crate) fn count_look(&self, live: &ActiveConfig, request: &Descriptor<'_>, conclusion: &Conclusion) {
        if let Conclusion::Decided(decision) = conclusion {
            self.note_looked_at(live, decision);
            self.count_refused_look(live, request, decision);
        }
        self.count_request(live, Transport::grpc, request, None, conclusion);
    }

    /// Counts a decision and its call, and turns it into a [`Conclusion`].
    fn concluded(
        &self,
        live: &ActiveConfig,
        request: &Descriptor<'_>,
        only: Option<&[usize]>,
        decided: Result<GateDecision, StoreError>,
        want: Want,
        transport: Transport,
    ) -> Conclusion {
        let conclusion = self.conclude(live, request, decided, want);
        if want == Want::Take {
            self.count_call(live, request, transport, conclusion.allowed());
            self.count_request(live, transport, request, only, &conclusion);
        }
        conclusion
    }

    /// Returns whether a list, a deadline or a block refuses a request, whatever its limits say.
    pub(crate) fn refuses_before_limits(&self, check: &Check<'_, '_>) -> bool {
        self.base.gate.refusal_before_limits(check).is_some()
    }

    /// Settles a limit that a caller brings along, under a key that belongs to no policy. Writes the result to `out`.
    pub(crate) async fn settle_brought(
        &self,
        op: Op<'_>,
        charge: Charge<'_>,
        out: &mut Settled,
    ) -> Result<(), StoreError> {
        let settled = if self.base.decides_at_once {
            self.metrics.time_now(Transport::resp, || self.base.gate.settle_charge(op, charge, out))
        } else {
            let settling = pin!(self.base.gate.settle_charge_async(op, charge, out));
            self.metrics.time(Transport::resp, settling).await
        };
        settled.inspect_err(|_| self.base.count_store_error())
    }
}
