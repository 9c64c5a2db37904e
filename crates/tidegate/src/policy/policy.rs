//! One named policy: which requests it is for, what they are charged to, under which limits.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use tidegate_core::{Quota, Replace};

use super::access::{Access, AccessList};
use super::cost::CostRule;
use super::descriptor::Descriptor;
use super::follows::Follows;
use super::keep_for::KeepFor;
use super::matching::Match;
use super::over::Over;
use super::settle_rule::SettleRule;
use super::share::Share;
use super::when::Condition;
use crate::store::{Durable, OnStoreError};

/// Whether a policy is applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Not at all.
    Off,
    /// Measured, never refusing.
    Shadow,
    /// Refusing.
    #[default]
    Enforce,
}

/// When a policy is charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ChargeOn {
    /// By the check itself.
    #[default]
    Check,
    /// By the check, and given back when a report says that it was no failure: of attempts at the same time, no more pass than the limit
    /// allows.
    Failure,
}

/// The direction of the requests of a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Requests that come to us.
    #[default]
    Inbound,
    /// Requests that we send: their descriptor has `request.direction` = `outbound`.
    Outbound,
}

/// What happens when a request lacks attributes that the key is made of.
///
/// An absent value is a value of its own in the key, distinct from the empty text and from every other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Absent {
    /// A request that has at least one of them is charged, and a missing one counts as the absent value: a caller cannot avoid a limit by
    /// leaving one out. For a request that has none the policy is skipped: a limit by `sms.phone` is not for requests without a phone.
    #[default]
    SkipIfNone,
    /// Charged always: all requests that lack the attributes share one key.
    Charge,
    /// Skipped as soon as one is missing, as Envoy does with incomplete descriptors.
    Skip,
}

/// How a refusal is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deny {
    /// The HTTP status: 429 for a caller over a quota, 503 when we are short ourselves.
    pub status: u16,
    /// The problem type, a full URI.
    pub problem: String,
}

impl Deny {
    /// Where the registered problem types live.
    pub const TYPES: &'static str = "https://iana.org/assignments/http-problem-types#";

    /// Makes an answer with the problem type usual for the status: from 500 on `temporary-reduced-capacity`, else `quota-exceeded`.
    #[must_use]
    pub fn with_status(status: u16) -> Self {
        let name = if status >= 500 { "temporary-reduced-capacity" } else { "quota-exceeded" };
        Self { status, problem: format!("{}{name}", Self::TYPES) }
    }
}

impl Default for Deny {
    fn default() -> Self {
        Self::with_status(429)
    }
}

/// One limit with the words it was written in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The limit; `None` is unlimited, on purpose.
    pub quota: Option<Arc<Quota>>,
    /// As people read it: `gcra 100/s burst 200`.
    pub label: String,
}

impl Terms {
    /// No limit.
    #[must_use]
    pub fn unlimited() -> Self {
        Self { quota: None, label: "unlimited".to_owned() }
    }
}

/// Terms chosen by the value of one attribute: tiers, or overrides for single keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The attribute.
    pub by: String,
    /// The terms of each value.
    pub values: HashMap<String, Terms, RandomState>,
}

impl Choice {
    fn terms(&self, descriptor: &Descriptor<'_>) -> Option<&Terms> {
        self.values.get(descriptor.value(&self.by)?)
    }
}

/// One limit of a policy: the terms for everyone, and for some.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limit {
    /// The terms where nothing else holds.
    pub terms: Terms,
    /// Terms by tier. A tier unknown here has [`Limit::terms`].
    pub tiers: Option<Choice>,
    /// Terms for single keys; they win over tiers, the first that holds over later ones.
    pub overrides: Vec<Choice>,
    /// The longest delay accepted; zero refuses at once.
    pub max_wait: Duration,
    /// How a changed limit takes over what was spent.
    pub replace: Replace,
    /// The part that is kept for requests of higher priority.
    pub keep_for: KeepFor,
    /// What its rate follows; [`Limit::terms`] are then those at the ceiling. A limit that follows a number has no tiers and no overrides: they
    /// are not looked at.
    pub follows: Option<Follows>,
}

impl Limit {
    /// Makes a limit that is the same for everyone; `label` is how people read it.
    pub fn new(quota: impl Into<Arc<Quota>>, label: impl Into<String>) -> Self {
        Self::of(Terms { quota: Some(quota.into()), label: label.into() })
    }

    /// Makes a limit whose rate follows a number; `label` is how people read it.
    pub fn following(follows: Follows, label: impl Into<String>) -> Self {
        let ceiling = Arc::clone(follows.ceiling());
        Self { follows: Some(follows), ..Self::new(ceiling, label) }
    }

    /// Makes a limit of terms.
    #[must_use]
    pub fn of(terms: Terms) -> Self {
        Self {
            terms,
            tiers: None,
            overrides: Vec::new(),
            max_wait: Duration::ZERO,
            replace: Replace::default(),
            keep_for: KeepFor::default(),
            follows: None,
        }
    }

    /// Returns the terms that hold for a request. One hash per override group and tier; never allocates.
    #[must_use]
    pub fn terms_for(&self, descriptor: &Descriptor<'_>) -> &Terms {
        let special = self.overrides.iter().chain(&self.tiers).find_map(|choice| choice.terms(descriptor));
        special.unwrap_or(&self.terms)
    }

    /// Says whether it counts what is in flight, and not what is asked.
    #[must_use]
    pub fn is_guard(&self) -> bool {
        self.terms.quota.as_ref().is_some_and(|quota| quota.is_guard())
    }

    /// Says whether it is a breaker, which goes by how calls end.
    #[must_use]
    pub fn is_breaker(&self) -> bool {
        matches!(self.terms.quota.as_deref(), Some(Quota::Breaker(_)))
    }

    /// Returns every terms of the limit, those for everyone first.
    pub fn all_terms(&self) -> impl Iterator<Item = &Terms> {
        let special = self.overrides.iter().chain(&self.tiers).flat_map(|choice| choice.values.values());
        std::iter::once(&self.terms).chain(special)
    }

    /// Like [`Limit::all_terms`], to change them.
    pub(super) fn all_terms_mut(&mut self) -> impl Iterator<Item = &mut Terms> {
        let special = self.overrides.iter_mut().chain(&mut self.tiers);
        std::iter::once(&mut self.terms).chain(special.flat_map(|choice| choice.values.values_mut()))
    }
}

/// One named policy. Made by the config file or by hand, then put into a [`super::PolicySet`], which is immutable.
///
/// # Examples
/// ```
/// use tidegate::Quota;
/// use tidegate::policy::{Limit, Match, Policy, PolicySet};
/// let quota = Quota::per_second(100).burst(200).gcra()?;
/// let policy = Policy::new("per-ip", Limit::new(quota, "gcra 100/s burst 200"))
///     .matching(Match::any().path("/api/**")?)
///     .by(["client.ip"]);
/// let set = PolicySet::new(vec![policy])?;
/// assert_eq!(set.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Policy {
    /// Its name: distinct within a set, part of every key.
    pub name: String,
    /// The requests it is for.
    pub matching: Match,
    /// Whether those requests come to us or are sent by us.
    pub direction: Direction,
    /// Conditions that all have to hold for it to hold; a request is not charged while one of them does not.
    pub when: Vec<Condition>,
    /// The attributes that make the key; none is one key for everyone.
    pub by: Vec<String>,
    /// What happens when they are missing.
    pub absent: Absent,
    /// The limits; a request must pass all of them.
    pub limits: Vec<Limit>,
    /// A limit that is measured beside the real ones.
    pub shadow_limit: Option<Limit>,
    /// What a request costs when it is checked; `None` takes what the caller says, or 1.
    pub cost: Option<CostRule>,
    /// Whether a cost that the caller sends replaces `cost`: where callers are trusted to know what their requests cost.
    pub caller_cost: bool,
    /// How its real cost is worked out when it is settled. `None`: it is what the check charged, and where `cost` is `None` too, what the
    /// caller then says.
    pub settle: Option<SettleRule>,
    /// When it is charged.
    pub charge: ChargeOn,
    /// Whether it is applied.
    pub mode: Mode,
    /// How its refusals are answered.
    pub deny: Deny,
    /// How a refusal by a guard or by `deadline` is answered, which says that we are short and not that the caller asked too often: 503
    /// unless said.
    pub shed: Deny,
    /// Who it does not limit, and whom it refuses.
    pub access: Access,
    /// The share of a limit, in percent, from which a key counts as near it; 80 by default, as on the dashboards of our peers.
    pub near_limit: u8,
    /// What happens when the store cannot decide.
    pub on_store_error: OnStoreError,
    /// When what it charges has to be on disk, in a store that keeps its keys there.
    pub durable: Durable,
    /// Where it is decided; `None` is by the gate's own store.
    pub share: Option<Share>,
    /// The least time that a request needs: one whose caller waits for less ([`time_left`](super::time_left)) is refused before anything is
    /// charged, and answered as [`Policy::shed`](field@Policy::shed) says.
    pub deadline: Option<Duration>,
    /// What becomes of a request that is over a limit.
    pub over: Over,
}

impl Policy {
    /// Makes a policy that enforces one limit on everyone together.
    pub fn new(name: impl Into<String>, limit: Limit) -> Self {
        Self {
            name: name.into(),
            matching: Match::any(),
            direction: Direction::default(),
            when: Vec::new(),
            by: Vec::new(),
            absent: Absent::default(),
            limits: vec![limit],
            shadow_limit: None,
            cost: None,
            caller_cost: false,
            settle: None,
            charge: ChargeOn::default(),
            mode: Mode::default(),
            deny: Deny::default(),
            shed: Deny::with_status(503),
            access: Access::default(),
            near_limit: 80,
            on_store_error: OnStoreError::default(),
            durable: Durable::default(),
            share: None,
            deadline: None,
            over: Over::default(),
        }
    }

    /// Chooses the requests it is for; see [`Policy::matching`](field@Policy::matching).
    #[must_use]
    pub fn matching(self, matching: Match) -> Self {
        Self { matching, ..self }
    }

    /// Chooses the attributes that make the key; see [`Policy::by`](field@Policy::by).
    #[must_use]
    pub fn by<N: Into<String>>(self, names: impl IntoIterator<Item = N>) -> Self {
        Self { by: names.into_iter().map(Into::into).collect(), ..self }
    }

    /// Adds a condition; see [`Policy::when`](field@Policy::when).
    #[must_use]
    pub fn when(mut self, condition: Condition) -> Self {
        self.when.push(condition);
        self
    }

    /// Returns the limit at [`super::Line::limit`]: the policy's own, then the shadow limit.
    #[must_use]
    pub fn limit(&self, index: usize) -> Option<&Limit> {
        self.limits.iter().chain(&self.shadow_limit).nth(index)
    }

    /// Says whether it lets requests pass that are over its limits, and tells of them: enforced, and with `over: mark` or `over: demote`.
    #[must_use]
    pub fn lets_through(&self) -> bool {
        self.mode == Mode::Enforce && !self.over.refuses()
    }

    /// Says whether an index is that of the shadow limit.
    #[must_use]
    pub fn is_shadow_limit(&self, index: usize) -> bool {
        index == self.limits.len() && self.shadow_limit.is_some()
    }

    /// Returns how a refusal by the limit at an index is answered: [`Policy::shed`] for a guard, else [`Policy::deny`].
    #[must_use]
    pub fn refusal(&self, index: usize) -> &Deny {
        if self.limit(index).is_some_and(Limit::is_guard) { &self.shed } else { &self.deny }
    }

    /// Says whether it charges failures only: what a check takes waits for the outcome.
    #[must_use]
    pub fn charges_failures(&self) -> bool {
        self.charge == ChargeOn::Failure
    }
}

impl Policy {
    /// Hands over each attribute that it names; `true` where all names that continue it after a dot are meant too, since which of a group an
    /// expression looks at is known only when it runs.
    pub(super) fn each_named(&self, each: &mut impl FnMut(&str, bool)) {
        self.matching.names(&mut |name| each(name, false));
        self.by.iter().for_each(|name| each(name, false));
        for limit in self.limits.iter().chain(&self.shadow_limit) {
            limit.overrides.iter().chain(&limit.tiers).for_each(|choice| each(&choice.by, false));
        }
        match &self.cost {
            Some(CostRule::Table { by: name, .. } | CostRule::Attribute(name)) => each(name, false),
            #[cfg(feature = "cel")]
            Some(CostRule::Expression(expression)) => expression.names().for_each(|name| each(name, true)),
            Some(CostRule::Fixed(_) | CostRule::Learned(_)) | None => {}
        }
        if self.deadline.is_some() || self.limits.iter().any(|limit| !limit.max_wait.is_zero()) {
            super::deadline::TIME_LEFT.into_iter().for_each(|name| each(name, false));
        }
        let lists = [&self.access.allow, &self.access.deny];
        lists.into_iter().flat_map(AccessList::names).for_each(|name| each(name, false));
    }
}

impl Policy {
    /// Returns how many attributes of the key a request must have to be charged.
    pub(crate) fn needs(&self) -> usize {
        match self.absent {
            Absent::Charge => 0,
            Absent::Skip => self.by.len(),
            Absent::SkipIfNone => self.by.len().min(1),
        }
    }
}
