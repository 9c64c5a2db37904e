//! [`Check`]: one question to a gate, with its options.

use std::sync::Arc;

use tidegate_core::{Cost, Criticality, Priority, Quota};

use crate::policy::{Among, Descriptor};
use tidegate_limits::deadline::Deadline;

/// A question to a gate: the request, its cost, its priority, and the policies to apply.
///
/// Created from a descriptor: `gate.check(&request).now()`. Options are added: `gate.check(Check::of(&request).cost(5)).now()`.
/// Numbers are validated when the check is decided, so that the builder methods need no `?`.
///
/// # Examples
/// ```
/// use tidegate::gate::Check;
/// use tidegate::policy::{Descriptor, Limit, Policy, PolicySet};
/// use tidegate::priority::Criticality;
/// use tidegate::{Gate, Quota};
///
/// let quota = Quota::per_minute(100).token_bucket()?;
/// let gate = Gate::in_memory(PolicySet::new(vec![Policy::new("exports", Limit::new(quota, "100/min"))])?, 1000)?;
/// let request = Descriptor::new().with("user.id", "42");
/// assert!(gate.check(Check::of(&request).cost(60).priority(Criticality::Sheddable)).now()?.allowed);
/// assert!(!gate.check(Check::of(&request).cost(60)).now()?.allowed, "40 units are left");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Check<'a, 'd> {
    /// The request.
    pub request: &'a Descriptor<'d>,
    /// The cost that the caller states. Set only by [`Check::cost`] and [`Check::maybe_cost`]; the last call counts.
    pub(super) cost: StatedCost,
    /// The importance of the request: limits may keep a part back for requests of higher priority
    /// ([`KeepFor`](tidegate_limits::priority::KeepFor)). The priority decides which requests are refused first, so it should not
    /// be taken from callers.
    pub priority: Priority,
    /// Whether to decide as usual but spend nothing.
    pub peek: bool,
    /// The policies to apply, besides the lists that hold for all policies; `None`: every policy of the set in force.
    /// They belong to the set that the [`Among`] was made from, even if the gate has another set in force by now.
    pub among: Option<&'a Among>,
    /// A quota that the caller brings. It applies to this check in place of the limits' own quotas, including those of
    /// shadow limits. It does not replace a guard's limit, unless it is itself a guard of the same kind; a guard that
    /// is brought replaces guards only. If a policy does not limit a caller (no match, an unlimited tier), the quota
    /// does not apply either. A store remembers the quota only in the keys that it charges, so callers may bring any
    /// number of different ones.
    pub quota: Option<&'a Arc<Quota>>,
    /// The time after which the answer is useless: an `Instant`, or a tick of the gate's clock.
    ///
    /// A queue refuses a request that it would delay beyond this; if an engine takes time to decide, the delay ends
    /// that much later. An engine that has not answered by then is given up: the check fails with
    /// [`StoreError::DeadlinePassed`](tidegate_limits::store::StoreError::DeadlinePassed), and what was taken is given back, as if
    /// the caller had gone away ([`Checking`](super::Checking)). No fallback decides in its place: a
    /// `Fallback` has a deadline of its own. After the deadline no engine is asked. Stores in
    /// this process still decide then, because that takes no time.
    ///
    /// Refuse a check that fails so, also where checks that a store cannot decide are let through: if the time comes from
    /// the caller, the caller would otherwise get through uncharged by giving little time.
    pub deadline: Option<Deadline>,
    /// Whether the request was planned before, so that costs which cannot be determined are counted.
    pub(super) planned: bool,
}

/// The cost that the caller states for a check.
#[derive(Clone, Copy, Debug)]
pub(super) enum StatedCost {
    Nothing,
    Is(Cost),
    /// A number that is not a valid cost.
    NotACost,
}

impl StatedCost {
    pub(super) const fn is_wrong(self) -> bool {
        matches!(self, Self::NotACost)
    }

    /// Returns the stated cost; `None`: the policies decide.
    pub(super) const fn stated(self) -> Option<Cost> {
        match self {
            Self::Is(cost) => Some(cost),
            Self::Nothing | Self::NotACost => None,
        }
    }
}

impl<'a, 'd> Check<'a, 'd> {
    /// Creates a check of the default priority that spends 1 unless the policies say otherwise.
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
            planned: false,
        }
    }

    /// Sets the cost, as a number, a `NonZero` or a [`Cost`]; by default 1. A policy with a cost of its own uses that
    /// instead. An invalid cost, zero or less, is reported when the check is decided:
    /// [`StoreError::NotACost`](tidegate_limits::store::StoreError::NotACost), and nothing is charged. If called again, the last
    /// call counts.
    ///
    /// # Examples
    /// ```
    /// use tidegate::Gate;
    /// use tidegate::gate::Check;
    /// use tidegate::policy::{Descriptor, PolicySet};
    ///
    /// let gate = Gate::in_memory(PolicySet::default(), 1000)?;
    /// let request = Descriptor::new();
    /// assert!(gate.check(Check::of(&request).cost(5)).now()?.allowed);
    /// let none = gate.check(Check::of(&request).cost(0)).now().unwrap_err();
    /// assert_eq!(none.to_string(), "the cost of a check is not a number from 1 to 18446744073709551615; peek to look without spending");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn cost(self, cost: impl TryInto<Cost>) -> Self {
        let cost = cost.try_into().map_or(StatedCost::NotACost, StatedCost::Is);
        Self { cost, ..self }
    }

    /// Sets a cost that may be unknown; `None`: the policies decide.
    #[must_use]
    pub const fn maybe_cost(self, cost: Option<Cost>) -> Self {
        let cost = match cost {
            Some(cost) => StatedCost::Is(cost),
            None => StatedCost::Nothing,
        };
        Self { cost, ..self }
    }

    /// Returns the stated cost; `None` if none was stated, or an invalid one.
    #[must_use]
    pub const fn stated_cost(&self) -> Option<Cost> {
        self.cost.stated()
    }

    /// Sets the priority; see [`Check::priority`](field@Check::priority).
    #[must_use]
    pub fn priority(self, priority: impl Into<Priority>) -> Self {
        Self { priority: priority.into(), ..self }
    }

    /// Makes the check decide but spend nothing.
    #[must_use]
    pub const fn peek(self) -> Self {
        Self { peek: true, ..self }
    }

    /// Applies only these policies; see [`Check::among`](field@Check::among).
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
