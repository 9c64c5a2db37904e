//! One named policy: the requests it applies to, the key they are charged to, and the limits.

use std::collections::HashMap;
use std::fmt;
use std::mem::discriminant;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use tidegate_core::{Quota, Replace};

use super::access::{Access, AccessList};
use super::canary::Portion;
use super::cost::{CostRule, OnCostError};
use super::descriptor::Descriptor;
use super::matching::Match;
use super::over_limit::Over;
use super::real_cost::SettleRule;
use super::share::Share;
use super::signal_rate::Follows;
use super::when::Condition;
use tidegate_limits::duration_text::in_words;
use tidegate_limits::priority::KeepFor;
use tidegate_limits::store::{Durable, OnStoreError};

/// Whether a policy is applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The policy is not applied.
    Off,
    /// The policy is measured and never refuses.
    Shadow,
    /// The policy refuses requests over its limits.
    #[default]
    Enforce,
}

/// When a policy charges its limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ChargeOn {
    /// At the check.
    #[default]
    Check,
    /// At the check; the charge is given back if a report says that the request did not fail. So no more concurrent
    /// attempts pass than the limit allows.
    Failure,
    /// At the check, also of a request that is refused. What the limit has no room for is a debt. For units that a proxy
    /// reports when a response ends, and for limits that count refused requests too.
    Always,
}

/// The direction of the requests of a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Requests that this service receives.
    #[default]
    Inbound,
    /// Requests that this service sends: their descriptor has `request.direction` = `outbound`.
    Outbound,
}

/// What happens if a request lacks attributes of the key.
///
/// An absent value is a value of its own in the key, distinct from the empty text and from every other value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Absent {
    /// A request with at least one of the attributes is charged, and each missing one counts as the absent value, so
    /// that a caller cannot avoid a limit by leaving one out. A request with none of them is skipped: a limit by
    /// `sms.phone` does not apply to requests without a phone.
    #[default]
    SkipIfNone,
    /// Every request is charged: all requests that lack the attributes share one key.
    Charge,
    /// A request that lacks any of the attributes is skipped, as Envoy does with incomplete descriptors.
    Skip,
}

/// How a refusal is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deny {
    /// The HTTP status: 429 for a caller over a quota, 503 if the service itself is short of capacity.
    pub status: u16,
    /// The problem type (RFC 9457), a full URI.
    pub problem: String,
}

impl Deny {
    /// The base URI of the registered problem types.
    pub const TYPES: &'static str = "https://iana.org/assignments/http-problem-types#";

    /// Creates an answer with the usual problem type for the status: `temporary-reduced-capacity` from 500 on,
    /// otherwise `quota-exceeded`.
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

/// One limit, with its text in short form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The limit; `None`: deliberately unlimited.
    pub quota: Option<Arc<Quota>>,
    /// The short form for people, such as `gcra 100/s burst 200`.
    pub label: String,
}

impl Terms {
    /// Creates terms without a limit.
    #[must_use]
    pub fn unlimited() -> Self {
        Self { quota: None, label: "unlimited".to_owned() }
    }
}

/// Terms selected by the value of one attribute: tiers, or overrides for single keys.
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

/// One limit of a policy: terms for everyone, and other terms for some requests.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limit {
    /// The terms if no tier and no override applies.
    pub terms: Terms,
    /// Terms by tier. An unknown tier has [`Limit::terms`].
    pub tiers: Option<Choice>,
    /// Terms for single keys. They take precedence over tiers, and earlier ones over later ones.
    pub overrides: Vec<Choice>,
    /// The longest delay accepted; zero: requests over the limit are refused at once.
    pub max_wait: Duration,
    /// How a changed limit takes over what was spent.
    pub replace: Replace,
    /// The part that is kept back for requests of higher priority.
    pub keep_for: KeepFor,
    /// The number that the rate follows; [`Limit::terms`] are then the terms at the ceiling. Tiers and overrides are
    /// ignored for such a limit.
    pub follows: Option<Follows>,
}

impl Limit {
    /// Creates a limit that is the same for everyone; `label` is its short form for people.
    pub fn new(quota: impl Into<Arc<Quota>>, label: impl Into<String>) -> Self {
        Self::of(Terms { quota: Some(quota.into()), label: label.into() })
    }

    /// Creates a limit whose rate follows a number; `label` is its short form for people.
    pub fn following(follows: Follows, label: impl Into<String>) -> Self {
        let ceiling = Arc::clone(follows.ceiling());
        Self { follows: Some(follows), ..Self::new(ceiling, label) }
    }

    /// Creates a limit from terms.
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

    /// Returns the terms that apply to a request. Takes one hash per override group and tier; never allocates.
    #[must_use]
    pub fn terms_for(&self, descriptor: &Descriptor<'_>) -> &Terms {
        let special = self.overrides.iter().chain(&self.tiers).find_map(|choice| choice.terms(descriptor));
        special.unwrap_or(&self.terms)
    }

    /// Reports whether the limit counts requests in flight rather than requests over time.
    #[must_use]
    pub fn is_guard(&self) -> bool {
        self.terms.quota.as_ref().is_some_and(|quota| quota.is_guard())
    }

    /// Reports whether the limit is a breaker, which depends on how calls end.
    #[must_use]
    pub fn is_breaker(&self) -> bool {
        matches!(self.terms.quota.as_deref(), Some(Quota::Breaker(_)))
    }

    /// Reports whether the limit is a breaker that sheds instead of opening.
    #[must_use]
    pub fn sheds(&self) -> bool {
        matches!(self.terms.quota.as_deref(), Some(Quota::Breaker(breaker)) if breaker.sheds_at_most().is_some())
    }

    /// Returns all terms of the limit, those for everyone first.
    pub fn all_terms(&self) -> impl Iterator<Item = &Terms> {
        let special = self.overrides.iter().chain(&self.tiers).flat_map(|choice| choice.values.values());
        std::iter::once(&self.terms).chain(special)
    }

    /// Like [`Limit::all_terms`], with mutable references.
    pub(super) fn all_terms_mut(&mut self) -> impl Iterator<Item = &mut Terms> {
        let special = self.overrides.iter_mut().chain(&mut self.tiers);
        std::iter::once(&mut self.terms).chain(special.flat_map(|choice| choice.values.values_mut()))
    }
}

/// A limit that is tried on a share of a policy's keys: there it decides in the place of the policy's first limit, and its
/// answer is the real one.
///
/// The same keys are chosen on every node and after every start, and a larger share has them too. Both limits count in the
/// same counters, so a key that comes under the other limit keeps what it has spent. The share in force may be another one
/// than [`Canary::share`](field@Canary::share), see [`PolicySet::set_canary_share`](super::PolicySet::set_canary_share).
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate::policy::{Canary, Descriptor, Limit, Policy, PolicySet, Portion};
/// use tidegate::{Gate, Quota};
///
/// let mut policy = Policy::new("per-user", Limit::new(Quota::per_minute(5).gcra()?, "5/min")).by(["user.id"]);
/// let tried = Limit::new(Quota::per_minute(2).gcra()?, "2/min");
/// policy.canary = Some(Canary::new(tried, Portion::of(0.05), Duration::from_secs(7200)));
/// let gate = Gate::in_memory(PolicySet::new(vec![policy])?, 10_000)?;
///
/// let mut tried = 0;
/// for user in 0..1000 {
///     let request = Descriptor::new().with("user.id", user.to_string());
///     tried += u32::from(gate.check(&request).now()?.limits[0].decision.standing.limit == 2);
/// }
/// assert!((20..80).contains(&tried), "about 50 of 1000");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Canary {
    /// The limit: of the same algorithm as the policy's first limit.
    pub limit: Limit,
    /// The share of the keys, 0.1% to 50%.
    pub share: Portion,
    /// How long it lasts, one minute to 30 days. A gate does not watch the time: whoever watches the figures does.
    pub lasts: Duration,
    /// Which figures end it early, for whoever watches them.
    pub guard: CanaryGuard,
    /// Whether it is enforced for all keys when its time is over without a breach.
    pub enforce: bool,
    /// What makes it this canary: one with another text is another one, and begins anew. By default what it says, in one
    /// line; a policy file has its own words.
    pub text: String,
}

/// How far the figures of a canary's keys may be from those of the other keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CanaryGuard {
    /// How much more of the requests may be refused, as a share of all; 1% by default.
    pub denied: Portion,
    /// How many different keys may be refused; 20 by default.
    pub keys_refused: u64,
    /// How much more of the calls may fail, as a share of all; 2% by default.
    pub failures: Portion,
}

impl Default for CanaryGuard {
    fn default() -> Self {
        Self { denied: Portion::of(0.01), keys_refused: 20, failures: Portion::of(0.02) }
    }
}

/// Why a policy cannot have its canary.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CanaryError {
    /// The policy has one key.
    #[error("all requests have one key, of which no share can be taken; write by: [client.ip]")]
    OneKey,
    /// The share is out of range.
    #[error("a share of {share} of the keys is out of range; use 0.1% to 50%, as share: 5%")]
    Share {
        /// The share.
        share: Portion,
    },
    /// The time is out of range.
    #[error("{} is out of range; use 1min to 30d, as for: 2h", in_words(*lasts))]
    Lasts {
        /// The time.
        lasts: Duration,
    },
    /// One of the limits is unlimited.
    #[error(
        "a limit is compared with a limit, and unlimited leaves no figures; write a rate that no key reaches, as rate: 1_000_000/s"
    )]
    Unlimited,
    /// The limit, or the one in whose place it decides, is a guard.
    #[error(
        "{limit} counts work in progress, which cannot be handed from one limit to another; try such a limit as shadow_limit"
    )]
    Guard {
        /// The short form of the limit.
        limit: String,
    },
    /// The limits count by different algorithms.
    #[error(
        "{limit} has other counters than {instead_of}, so a key would begin anew under it; write the algorithm of the limit"
    )]
    OtherAlgorithm {
        /// The short form of the canary's limit.
        limit: String,
        /// The short form of the limit in whose place it decides.
        instead_of: String,
    },
    /// The rate of one of the limits follows a number.
    #[error("a rate that moves cannot be compared with another one; leave out follows")]
    Follows,
    /// The policy only measures.
    #[error(
        "in mode: shadow nobody is refused, and a canary is tried for real; write mode: enforce, or try it as shadow_limit"
    )]
    Shadow,
    /// The policy blocks keys.
    #[error("the blocks of over: block would outlast it when it is stopped; write over: deny")]
    Blocks,
}

impl Canary {
    /// Creates a canary with the usual guard, which is not enforced at its end. `share` and `lasts` as in
    /// [`Canary::share`](field@Canary::share) and [`Canary::lasts`](field@Canary::lasts).
    #[must_use]
    pub fn new(limit: Limit, share: Portion, lasts: Duration) -> Self {
        let text = format!("{}, {share} of the keys for {} s", limit.terms.label, lasts.as_secs());
        Self { limit, share, lasts, guard: CanaryGuard::default(), enforce: false, text }
    }

    /// Returns whether a policy can have the canary, as [`PolicySet::new`](super::PolicySet::new) demands.
    ///
    /// # Errors
    /// [`CanaryError`]: the first reason why it cannot.
    pub fn check(&self, policy: &Policy) -> Result<(), CanaryError> {
        let Some(first) = policy.limits.first() else { return Err(CanaryError::Unlimited) };
        let (Some(own), Some(of_first)) = (&self.limit.terms.quota, &first.terms.quota) else {
            return Err(CanaryError::Unlimited);
        };
        if policy.by.is_empty() {
            return Err(CanaryError::OneKey);
        }
        if !(Portion::millionths(1_000)..=Portion::millionths(500_000)).contains(&self.share) {
            return Err(CanaryError::Share { share: self.share });
        }
        if !(Duration::from_secs(60)..=Duration::from_secs(30 * 86_400)).contains(&self.lasts) {
            return Err(CanaryError::Lasts { lasts: self.lasts });
        }
        if let Some(guard) = [&self.limit, first].into_iter().find(|limit| limit.is_guard()) {
            return Err(CanaryError::Guard { limit: guard.terms.label.clone() });
        }
        if discriminant(&**own) != discriminant(&**of_first) {
            let (limit, instead_of) = (self.limit.terms.label.clone(), first.terms.label.clone());
            return Err(CanaryError::OtherAlgorithm { limit, instead_of });
        }
        if self.limit.follows.is_some() || first.follows.is_some() {
            return Err(CanaryError::Follows);
        }
        if policy.mode == Mode::Shadow {
            return Err(CanaryError::Shadow);
        }
        if let Over::Block { .. } = policy.over {
            return Err(CanaryError::Blocks);
        }
        Ok(())
    }
}

/// In words for people: its limit, and the share of the keys that it asks for.
impl fmt::Display for Canary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} for {} of the keys", self.limit.terms.label, self.share)
    }
}

/// One named policy, for a [`PolicySet`](super::PolicySet).
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
    /// The name: unique within a set, and part of every key.
    pub name: String,
    /// The requests that the policy applies to.
    pub matching: Match,
    /// Whether this service receives those requests or sends them.
    pub direction: Direction,
    /// The conditions for the policy: a request is charged only while all of them hold.
    pub when: Vec<Condition>,
    /// The attributes that make the key; if empty, all requests share one key.
    pub by: Vec<String>,
    /// What happens if a request lacks attributes of the key.
    pub absent: Absent,
    /// The limits; a request must pass all of them.
    pub limits: Vec<Limit>,
    /// A limit that is measured beside the real ones and refuses nothing.
    pub shadow_limit: Option<Limit>,
    /// A limit that decides for a share of the keys, in the place of the first one.
    pub canary: Option<Canary>,
    /// The cost of a request at its check; `None`: the cost that the caller states, or 1.
    pub cost: Option<CostRule>,
    /// Whether a cost that the caller states replaces `cost`, for callers that are trusted.
    pub caller_cost: bool,
    /// How the real cost is computed at the settlement. `None`: the real cost is what the check charged; if `cost` is
    /// `None` too, it is the cost that the caller then reports.
    pub settle: Option<SettleRule>,
    /// When the policy charges.
    pub charge: ChargeOn,
    /// Whether the policy is applied.
    pub mode: Mode,
    /// How its refusals are answered.
    pub deny: Deny,
    /// How a refusal by a guard or by `deadline` is answered, since the service is short of capacity; 503 by default.
    pub shed: Deny,
    /// The policy's allow-list and deny-list.
    pub access: Access,
    /// The share of a limit, in percent from 1 to 100, from which a key counts as near it; 80 by default, as in Envoy's
    /// service.
    pub near_limit: u8,
    /// What happens to a request whose cost `cost` does not determine.
    pub on_cost_error: OnCostError,
    /// What happens if the store cannot decide.
    pub on_store_error: OnStoreError,
    /// When charges must be on disk, in a store that keeps its keys there.
    pub durable: Durable,
    /// Where the policy is decided; `None`: by the gate's own store.
    pub share: Option<Share>,
    /// The least time that a request needs. A request whose caller waits for less ([`time_left`](super::time_left)) is
    /// refused before anything is charged, and answered by [`Policy::shed`](field@Policy::shed).
    pub deadline: Option<Duration>,
    /// What happens to a request over a limit.
    pub over: Over,
}

impl Policy {
    /// Creates a policy that enforces one limit on all requests together.
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
            canary: None,
            cost: None,
            caller_cost: false,
            settle: None,
            charge: ChargeOn::default(),
            mode: Mode::default(),
            deny: Deny::default(),
            shed: Deny::with_status(503),
            access: Access::default(),
            near_limit: 80,
            on_cost_error: OnCostError::default(),
            on_store_error: OnStoreError::default(),
            durable: Durable::default(),
            share: None,
            deadline: None,
            over: Over::default(),
        }
    }

    /// Reports whether there may be requests whose cost the policy cannot determine, or settlements whose real cost it
    /// cannot.
    #[must_use]
    pub fn cost_may_be_unknown(&self) -> bool {
        self.cost.as_ref().is_some_and(CostRule::may_be_unknown) || self.settle.is_some()
    }

    /// Sets the requests that the policy applies to; see [`Policy::matching`](field@Policy::matching).
    #[must_use]
    pub fn matching(self, matching: Match) -> Self {
        Self { matching, ..self }
    }

    /// Sets the attributes that make the key; see [`Policy::by`](field@Policy::by).
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

    /// Returns the limit with the index of [`Line::limit`](super::Line::limit): the policy's own limits first, then
    /// the shadow limit, then the canary's. `None` if there is no such limit.
    #[must_use]
    pub fn limit(&self, index: usize) -> Option<&Limit> {
        self.each_limit().nth(index)
    }

    /// Returns all limits, in the order of their indices: the policy's own, the shadow limit, the canary's.
    pub fn each_limit(&self) -> impl Iterator<Item = &Limit> {
        self.limits.iter().chain(&self.shadow_limit).chain(self.canary.iter().map(|canary| &canary.limit))
    }

    /// Returns the limits that decide about requests: the policy's own, and the canary's.
    pub fn deciding_limits(&self) -> impl Iterator<Item = &Limit> {
        self.limits.iter().chain(self.canary.iter().map(|canary| &canary.limit))
    }

    /// Reports whether requests over the limits pass and the decision says so: `over: mark` or `over: demote`, enforced.
    #[must_use]
    pub fn lets_through(&self) -> bool {
        self.mode == Mode::Enforce && !self.over.refuses()
    }

    /// Reports whether an index is that of the shadow limit.
    #[must_use]
    pub fn is_shadow_limit(&self, index: usize) -> bool {
        index == self.limits.len() && self.shadow_limit.is_some()
    }

    /// Reports whether an index is that of the canary's limit, which decided in the place of the first limit.
    #[must_use]
    pub fn is_canary(&self, index: usize) -> bool {
        self.canary.is_some() && index == self.canary_index()
    }

    /// Returns the index of the canary's limit, behind all others.
    pub(super) fn canary_index(&self) -> usize {
        self.limits.len() + usize::from(self.shadow_limit.is_some())
    }

    /// Returns how a refusal by the limit with an index is answered: [`Policy::shed`] for a guard, otherwise
    /// [`Policy::deny`].
    #[must_use]
    pub fn refusal(&self, index: usize) -> &Deny {
        if self.limit(index).is_some_and(Limit::is_guard) { &self.shed } else { &self.deny }
    }

    /// Reports whether some limit may delay a request.
    pub(super) fn delays(&self) -> bool {
        self.deciding_limits().any(|limit| !limit.max_wait.is_zero())
    }

    /// Reports whether only failures are charged: what a check takes stays charged until the outcome is reported.
    #[must_use]
    pub fn charges_failures(&self) -> bool {
        self.charge == ChargeOn::Failure
    }

    /// Reports whether charges are usually settled with another cost than they were made with.
    pub(crate) fn is_settled(&self) -> bool {
        self.settle.is_some() || self.charges_failures() || matches!(self.cost, Some(CostRule::Learned(_)))
    }

    /// Reports whether refused requests are charged too, see [`ChargeOn::Always`].
    #[must_use]
    pub fn charges_always(&self) -> bool {
        self.charge == ChargeOn::Always && self.mode != Mode::Off
    }

    /// Returns whether this policy and `b`, both without costs, differ in nothing but their names.
    #[cfg(feature = "config")]
    #[doc(hidden)]
    #[must_use]
    pub fn is_twin_of(&self, b: &Self) -> bool {
        // All fields are named, so that a new one cannot be forgotten here.
        let Self {
            name: _,
            matching,
            direction,
            when,
            by,
            absent,
            limits,
            shadow_limit,
            canary,
            cost,
            caller_cost: _,
            settle,
            charge,
            mode,
            deny,
            shed,
            access,
            near_limit,
            // Both have no cost.
            on_cost_error: _,
            on_store_error,
            durable,
            share,
            deadline,
            over,
        } = self;
        (cost.is_none() && b.cost.is_none() && settle.is_none() && b.settle.is_none())
            && (matching, direction, when, by, absent)
                == (&b.matching, &b.direction, &b.when, &b.by, &b.absent)
            && (limits, shadow_limit, canary) == (&b.limits, &b.shadow_limit, &b.canary)
            && (charge, mode) == (&b.charge, &b.mode)
            && (deny, shed, access, deadline, over) == (&b.deny, &b.shed, &b.access, &b.deadline, &b.over)
            && (near_limit, on_store_error) == (&b.near_limit, &b.on_store_error)
            && (durable, share) == (&b.durable, &b.share)
    }
}

impl Policy {
    /// Calls `each` with every attribute that the policy names. The flag is `true` if all names that continue it after
    /// a dot are meant too: which member of a group an expression uses is known only when it is evaluated.
    pub(super) fn each_named(&self, each: &mut impl FnMut(&str, bool)) {
        self.matching.names(&mut |name| each(name, false));
        self.by.iter().for_each(|name| each(name, false));
        for limit in self.each_limit() {
            limit.overrides.iter().chain(&limit.tiers).for_each(|choice| each(&choice.by, false));
        }
        match &self.cost {
            Some(CostRule::Table { by: name, .. } | CostRule::Attribute(name)) => each(name, false),
            #[cfg(feature = "cel")]
            Some(CostRule::Expression(expression)) => expression.names().for_each(|name| each(name, true)),
            Some(CostRule::Fixed(_) | CostRule::Learned(_)) | None => {}
        }
        if self.deadline.is_some() || self.delays() {
            super::deadline::TIME_LEFT.into_iter().for_each(|name| each(name, false));
        }
        let lists = [&self.access.allow, &self.access.deny];
        lists.into_iter().flat_map(AccessList::names).for_each(|name| each(name, false));
    }
}

impl Policy {
    /// Returns the number of key attributes that a request must have to be charged.
    pub(crate) fn needs(&self) -> usize {
        match self.absent {
            Absent::Charge => 0,
            Absent::Skip => self.by.len(),
            Absent::SkipIfNone => self.by.len().min(1),
        }
    }
}
