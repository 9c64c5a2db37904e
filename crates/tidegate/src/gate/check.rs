//! The question that a gate is asked.

use std::sync::Arc;

use tidegate_core::{Cost, Criticality, Priority, Quota};

use crate::deadline::Deadline;
use crate::policy::{Among, Descriptor};

/// A question to a gate: who asks, for how much, how important it is, and which policies are asked.
///
/// Made of a descriptor: `gate.check(&request)`; what is not usual is added: `gate.check(Check::of(&request).cost(5))`. Numbers are looked at
/// when it is decided, so that a chain reads without question marks.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Check<'a, 'd> {
    /// The request.
    pub request: &'a Descriptor<'d>,
    /// What the caller says it costs. Set by [`Check::cost`] and [`Check::maybe_cost`] alone; the last call holds.
    pub(super) cost: StatedCost,
    /// How much the request matters: limits may keep a part of themselves for requests of higher priority
    /// ([`KeepFor`](crate::policy::KeepFor)). Whoever decides it decides who is refused first, so it is not for callers to say.
    pub priority: Priority,
    /// Whether to decide as usual and spend nothing.
    pub peek: bool,
    /// Asks these policies only, and the lists that hold for all. They are those of its own set, whichever is in force.
    pub among: Option<&'a Among>,
    /// A quota that the caller brings: it holds for this check in place of the limits' own, those of shadows included. Places of guards
    /// stay under their own limits, or under one that is brought if that is a guard too; a guard that is brought holds for guards alone.
    /// Where a policy does not limit a caller (no match, an unlimited tier), nothing does. A store takes no note of the quota but in the
    /// keys that it charges, so callers may bring as many different ones as they like.
    pub quota: Option<&'a Arc<Quota>>,
    /// When the answer is of no use any more: an `Instant`, or a tick of the gate's clock.
    ///
    /// A queue refuses what it would delay beyond this; if an engine takes time to decide, the delay ends that much later. An engine that
    /// has not answered by then is given up: the check is [`StoreError::Unavailable`](crate::store::StoreError::Unavailable), and what was
    /// taken is given back, as if the caller had gone away ([`Gate::check_async`](super::Gate::check_async)). No fallback decides in its
    /// place then: a [`Fallback`](crate::store::Fallback) goes by a deadline of its own. After the deadline no engine is asked. What is
    /// decided in this process takes no time and is decided all the same.
    pub deadline: Option<Deadline>,
}

/// What the caller says a check costs.
#[derive(Clone, Copy, Debug)]
pub(super) enum StatedCost {
    Nothing,
    Is(Cost),
    /// A number that is none.
    NotACost,
}

impl StatedCost {
    pub(super) const fn is_wrong(self) -> bool {
        matches!(self, Self::NotACost)
    }

    /// Returns the cost; `None` leaves it to the policies.
    pub(super) const fn stated(self) -> Option<Cost> {
        match self {
            Self::Is(cost) => Some(cost),
            Self::Nothing | Self::NotACost => None,
        }
    }
}

impl<'a, 'd> Check<'a, 'd> {
    /// Makes a check that spends 1 unless the policies say otherwise, of the default priority.
    #[must_use]
    pub const fn of(request: &'a Descriptor<'d>) -> Self {
        Self {
            request,
            cost: StatedCost::Nothing,
            priority: Priority::of(Criticality::Critical),
            peek: false,
            among: None,
            quota: None,
            deadline: None,
        }
    }

    /// Says what it costs, as a number, a `NonZero` or a [`Cost`]; a policy with a cost of its own goes by that. 1 unless it is said. A number
    /// that is no cost, zero or less, is told when the check is decided: [`StoreError::NotACost`](crate::store::StoreError::NotACost), and
    /// nothing is charged. Said again, the last word holds.
    ///
    /// # Examples
    /// ```
    /// use tidegate::{Check, Descriptor, Gate, PolicySet};
    ///
    /// let gate = Gate::in_memory(PolicySet::default(), 1000)?;
    /// let request = Descriptor::new();
    /// assert!(gate.check(Check::of(&request).cost(5))?.allowed);
    /// let none = gate.check(Check::of(&request).cost(0)).unwrap_err();
    /// assert_eq!(none.to_string(), "the cost of a check is not a number from 1 to 18446744073709551615; peek to look without spending");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn cost(self, cost: impl TryInto<Cost>) -> Self {
        let cost = cost.try_into().map_or(StatedCost::NotACost, StatedCost::Is);
        Self { cost, ..self }
    }

    /// Says what it costs where that may be unknown: `None` leaves it to the policies.
    #[must_use]
    pub const fn maybe_cost(self, cost: Option<Cost>) -> Self {
        let cost = match cost {
            Some(cost) => StatedCost::Is(cost),
            None => StatedCost::Nothing,
        };
        Self { cost, ..self }
    }

    /// Returns what the caller says it costs; `None` leaves it to the policies.
    #[must_use]
    pub const fn stated_cost(&self) -> Option<Cost> {
        self.cost.stated()
    }

    /// Says how much it matters; see [`Check::priority`](field@Check::priority).
    #[must_use]
    pub fn priority(self, priority: impl Into<Priority>) -> Self {
        Self { priority: priority.into(), ..self }
    }

    /// Decides and spends nothing.
    #[must_use]
    pub const fn peek(self) -> Self {
        Self { peek: true, ..self }
    }

    /// Asks these policies only; see [`Check::among`](field@Check::among).
    #[must_use]
    pub fn among(self, among: impl Into<Option<&'a Among>>) -> Self {
        Self { among: among.into(), ..self }
    }

    /// Brings a quota; see [`Check::quota`](field@Check::quota).
    #[must_use]
    pub const fn quota(self, quota: &'a Arc<Quota>) -> Self {
        Self { quota: Some(quota), ..self }
    }

    /// Sets a deadline, an `Instant` or a tick of the gate's clock; see [`Check::deadline`](field@Check::deadline).
    #[must_use]
    pub fn deadline(self, deadline: impl Into<Deadline>) -> Self {
        Self { deadline: Some(deadline.into()), ..self }
    }
}

impl<'a, 'd> From<&'a Descriptor<'d>> for Check<'a, 'd> {
    fn from(request: &'a Descriptor<'d>) -> Self {
        Self::of(request)
    }
}
