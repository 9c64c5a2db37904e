//! Describes a refusal: its status, and a problem document that says what refused and what would help.
//!
//! The owners of the policies may read everything ([`Refusal::problem`]); other callers may read only what refused and for
//! how long ([`PublicRefusal`]): the whole decision would reveal other policies, and what is left of limits that others
//! share.
//!
//! # Source
//! RFC 9457; the problem types of draft-ietf-httpapi-ratelimit-headers.

mod detail;

use std::borrow::Cow;
use std::time::Duration;

use http::StatusCode;
use smallvec::SmallVec;
use tidegate_core::{Criticality, Priority, Retry};

use super::json::{push_number, push_text, push_texts};
use crate::gate::GateDecision;
use crate::policy::{self, AccessEntry, Block, Deny, Descriptor, shortest_time_left};
use tidegate_limits::NoPlace;
use tidegate_limits::duration_text::{in_words, millis_up};
use tidegate_limits::store::BreakerView;

/// The type of a problem that the status describes completely (RFC 9457, section 4.2.1).
const NO_TYPE: &str = "about:blank";

/// The detail of a refusal without a decision.
const NOT_LOOKED_UP: &str = "the limits could not be checked, and a policy refuses requests in that case";

/// A refusal in HTTP terms. Can be made from any decision, but is meaningful only for a refusal.
#[derive(Clone, Copy, Debug)]
pub struct Refusal<'a> {
    cause: Cause<'a>,
    caller_time: Option<CallerTime>,
    /// The breaker that refuses, if its state is known.
    breaker: Option<&'a BreakerView>,
}

#[derive(Clone, Copy, Debug)]
enum Cause<'a> {
    Gate(&'a GateDecision),
    Limit { name: &'a str, deny: &'a Deny, retry: Retry, no_place: Option<NoPlace> },
    Undecided { policy: Option<&'a str> },
}

impl<'a> Refusal<'a> {
    /// Creates the refusal of a gate's decision.
    #[must_use]
    pub const fn of_gate(decision: &'a GateDecision) -> Self {
        Self { cause: Cause::Gate(decision), caller_time: None, breaker: None }
    }

    /// Says whose refusal this is, so that the text can tell a caller whose own time was too short for the delay of a
    /// limit.
    #[must_use]
    pub fn for_request(self, request: &Descriptor<'_>) -> Self {
        Self { caller_time: CallerTime::of(request), ..self }
    }

    /// Adds the state of the breaker that refuses, if the binding limit is one. A decision does not say why a breaker
    /// refuses: because a service fails, because it is tried, or because a person has forced it open.
    #[must_use]
    pub const fn by_breaker(self, breaker: Option<&'a BreakerView>) -> Self {
        Self { breaker, ..self }
    }

    /// Creates the refusal for a store that could not decide, by a policy that refuses in that case.
    #[must_use]
    pub const fn undecided(policy: Option<&'a str>) -> Self {
        Self { cause: Cause::Undecided { policy }, caller_time: None, breaker: None }
    }

    pub(super) const fn of_limit(
        name: &'a str,
        deny: &'a Deny,
        retry: Retry,
        no_place: Option<NoPlace>,
    ) -> Self {
        Self { cause: Cause::Limit { name, deny, retry, no_place }, caller_time: None, breaker: None }
    }

    /// Returns the status: 429 unless the policy that binds has another; 503 if nothing was decided.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        let status = match self.cause {
            Cause::Gate(decision) => match &decision.refusal {
                Some(listed) => listed.status,
                None => deny_of(decision).map_or(429, |deny| deny.status),
            },
            Cause::Limit { deny, .. } => deny.status,
            Cause::Undecided { .. } => 503,
        };
        // Statuses in files are validated; a set built in code may hold any number.
        StatusCode::from_u16(status).unwrap_or(StatusCode::TOO_MANY_REQUESTS)
    }

    /// Returns the type of the problem, a URI.
    #[must_use]
    fn problem_type(&self) -> &'a str {
        match self.cause {
            Cause::Gate(decision) => deny_of(decision).map_or(NO_TYPE, |deny| &*deny.problem),
            Cause::Limit { deny, .. } => &deny.problem,
            Cause::Undecided { .. } => our_shortage(),
        }
    }

    /// Returns the policy that binds, or the limit's name; `None` for a deny-list of the whole set.
    #[must_use]
    pub fn policy(&self) -> Option<&'a str> {
        match self.cause {
            Cause::Gate(decision) => decision.policy_name(),
            Cause::Limit { name, .. } => Some(name),
            Cause::Undecided { policy } => policy,
        }
    }

    /// Returns all policies that refuse, each once, in the order of the policies.
    #[must_use]
    fn policies(&self) -> SmallVec<[&'a str; 4]> {
        let Cause::Gate(decision) = self.cause else { return self.policy().into_iter().collect() };
        let policies = decision.policies.policies();
        let mut names: SmallVec<[&str; 4]> =
            decision.refusing().map(|limit| policies[limit.policy].name.as_str()).collect();
        names.dedup();
        let listed = decision.refusal.as_ref().and_then(|refusal| refusal.policy);
        names.extend(listed.map(|at| policies[at].name.as_str()));
        names
    }

    /// Returns when asking again is worthwhile.
    #[must_use]
    fn retry(&self) -> Retry {
        match self.cause {
            Cause::Gate(decision) => decision.retry(),
            Cause::Limit { retry, .. } => retry,
            Cause::Undecided { .. } => Retry::Unknown,
        }
    }

    /// Reports whether the request is refused because its cost cannot be determined.
    fn cost_is_unknown(&self) -> bool {
        let Cause::Gate(decision) = self.cause else { return false };
        let Some(bound) = decision.binding.map(|at| &decision.limits[at]) else { return false };
        bound.cost_is_unknown()
            && decision.policies.policies().get(bound.policy).is_some_and(|policy| policy.cost.is_some())
    }

    /// Returns the lowest priority that passes, if the request is refused for its priority, whatever it costs.
    fn needed_priority(&self) -> Option<Criticality> {
        let Cause::Gate(decision) = self.cause else { return None };
        let bound = &decision.limits[decision.binding?];
        let capacity = bound.decision.standing.limit;
        let keep_for = decision.policies.policies().get(bound.policy)?.limit(bound.limit)?.keep_for;
        let keeps_all = |level| keep_for.kept_back(Priority::of(level), capacity) >= capacity;
        let passes = || Criticality::ALL.into_iter().find(|level| !keeps_all(*level));
        if bound.kept_back < capacity { None } else { passes() }
    }

    /// Returns a sentence for the owners of the policies, with what is left and the entry of a deny-list.
    #[must_use]
    fn detail(&self) -> String {
        match self.cause {
            Cause::Gate(decision) => match &decision.refusal {
                Some(refusal) => match refusal.needs {
                    Some(needs) => too_late(decision, refusal, needs),
                    None => match &refusal.block {
                        Some(block) => blocked(decision, &refusal.entry, block),
                        None => format!("{} is on a deny-list", refusal.entry),
                    },
                },
                None => detail_of(decision, self.needed_priority(), self.breaker),
            },
            Cause::Limit { .. } | Cause::Undecided { .. } => self.public_detail(),
        }
    }

    /// Returns a sentence that any caller may read.
    #[must_use]
    fn public_detail(&self) -> String {
        match (self.cause, self.policy()) {
            // The time that is left is what the caller sent.
            (Cause::Gate(decision @ GateDecision { refusal: Some(refusal), .. }), _)
                if let Some(needs) = refusal.needs =>
            {
                too_late(decision, refusal, needs)
            }
            (Cause::Gate(GateDecision { refusal: Some(refusal), .. }), _) if refusal.block.is_some() => {
                "requests of this key are refused for a while".to_owned()
            }
            // The entry is not shown, since a list may name others.
            (Cause::Gate(GateDecision { refusal: Some(_), .. }), _) => {
                "a deny-list refuses this request".to_owned()
            }
            (Cause::Undecided { .. }, _) => NOT_LOOKED_UP.to_owned(),
            (Cause::Limit { name, retry, no_place: Some(why), .. }, _) => {
                let later = if retry == Retry::Never { "" } else { "; try again later" };
                format!("limit {name:?} refuses this request: {why}{later}")
            }
            (_, None) => "a policy refuses this request".to_owned(),
            (cause, Some(name)) => {
                // A limiter or a bulkhead of a program is not a policy.
                let kind = if let Cause::Limit { .. } = cause { "limit" } else { "policy" };
                match self.retry() {
                    Retry::After(wait) => {
                        let mut text = String::with_capacity(detail::USUAL);
                        text.push_str(kind);
                        text.push(' ');
                        detail::push_quoted(name, &mut text);
                        text.push_str(" refuses this request; try again in ");
                        text.push_str(&in_words(wait));
                        text
                    }
                    Retry::Unknown => format!("{kind} {name:?} refuses this request; try again later"),
                    Retry::Never if self.cost_is_unknown() => {
                        format!("{kind} {name:?} cannot work out what this request costs")
                    }
                    Retry::Never => {
                        let cause = if self.needed_priority().is_some() { "priority" } else { "cost" };
                        format!("{kind} {name:?} never allows a request of this {cause}")
                    }
                }
            }
        }
    }

    /// Returns what is added if the caller's own time was too short; usually empty.
    fn caller_note(&self) -> String {
        match (self.cause, self.caller_time) {
            (Cause::Gate(decision), Some(time)) => time.note(decision),
            _ => String::new(),
        }
    }

    /// Returns the problem document for the owners of the policies, with the status that is answered. `id` identifies
    /// the decision for those who may look it up.
    #[must_use]
    pub fn problem<'i>(&self, status: StatusCode, id: Option<&'i str>) -> RefusalProblem<'i>
    where
        'a: 'i,
    {
        self.saying(self.detail(), self.policies(), status, id)
    }

    fn saying<'i>(
        &self,
        detail: String,
        violated: SmallVec<[&'i str; 4]>,
        status: StatusCode,
        id: Option<&'i str>,
    ) -> RefusalProblem<'i>
    where
        'a: 'i,
    {
        RefusalProblem {
            r#type: self.problem_type(),
            title: title(self.problem_type(), status),
            status: status.as_u16(),
            detail: detail + &self.caller_note(),
            violated,
            id,
        }
    }

    /// Returns the problem document that any caller may read.
    #[must_use]
    pub fn public<'i>(&self, status: StatusCode, id: Option<&'i str>) -> PublicRefusal<'i>
    where
        'a: 'i,
    {
        let retry = self.retry();
        let violated = self.policy().into_iter().collect();
        PublicRefusal {
            problem: self.saying(self.public_detail(), violated, status, id),
            retry: retry.as_str(),
            retry_after_ms: retry.after().map(millis_up),
        }
    }
}

/// The members that every problem document of a refusal begins with.
#[derive(Clone, Debug)]
pub struct RefusalProblem<'a> {
    r#type: &'a str,
    title: Cow<'a, str>,
    status: u16,
    detail: String,
    /// The policies that refuse; in the public form only the one that binds. Empty for a deny-list of the whole set.
    violated: SmallVec<[&'a str; 4]>,
    id: Option<&'a str>,
}

impl RefusalProblem<'_> {
    /// Appends the beginning of a JSON object with these members, as `application/problem+json` requires: others may
    /// follow, and the object does not end.
    pub fn begin(&self, out: &mut String) {
        out.push_str(r#"{"type":"#);
        push_text(self.r#type, out);
        out.push_str(r#","title":"#);
        push_text(&self.title, out);
        out.push_str(r#","status":"#);
        push_number(u64::from(self.status), out);
        out.push_str(r#","detail":"#);
        push_text(&self.detail, out);
        out.push_str(r#","violated-policies":"#);
        push_texts(self.violated.iter().copied(), out);
        if let Some(id) = self.id {
            out.push_str(r#","tidegate-decision-id":"#);
            push_text(id, out);
        }
    }
}

/// A refusal that any caller may read: a problem document with few members.
#[derive(Clone, Debug)]
pub struct PublicRefusal<'a> {
    problem: RefusalProblem<'a>,
    retry: &'static str,
    retry_after_ms: Option<u64>,
}

impl PublicRefusal<'_> {
    /// More than most refusals take, in bytes, so that they are written without a reallocation.
    const USUAL: usize = 512;

    /// Returns the refusal as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut out = String::with_capacity(Self::USUAL);
        self.problem.begin(&mut out);
        out.push_str(r#","retry":"#);
        push_text(self.retry, &mut out);
        out.push_str(r#","retry_after_ms":"#);
        push_number(self.retry_after_ms, &mut out);
        out.push('}');
        out
    }
}

/// Returns the sentence for a request whose caller waits for less than its policy needs.
fn too_late(decision: &GateDecision, refusal: &policy::Refusal, needs: Duration) -> String {
    let policy = decision.policy_name().unwrap_or_default();
    let (needs, entry) = (in_words(needs), &refusal.entry);
    format!("a request of policy {policy:?} needs {needs}, and {entry} leaves less; nothing was charged")
}

fn our_shortage() -> &'static str {
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
}

/// Returns how the policy that binds answers a refusal by its deadline or by the limit that binds; `None` for lists and
/// blocks.
fn deny_of(decision: &GateDecision) -> Option<&Deny> {
    let policies = decision.policies.policies();
    if let Some(refusal) = &decision.refusal {
        return refusal.needs.and_then(|_| Some(&policies.get(refusal.policy?)?.shed));
    }
    let bound = &decision.limits[decision.binding?];
    Some(policies.get(bound.policy)?.refusal(bound.limit))
}

/// Describes the refusal by a limit. `needed` is the lowest priority that passes, if the limit refuses any cost for its
/// priority.
fn detail_of(decision: &GateDecision, needed: Option<Criticality>, breaker: Option<&BreakerView>) -> String {
    let Some(bound) = decision.binding.map(|at| &decision.limits[at]) else {
        return "refused by a policy".to_owned();
    };
    let policy = &decision.policies.policies()[bound.policy];
    match policy.limit(bound.limit).filter(|limit| limit.is_breaker()) {
        Some(limit) => detail::of_breaker(
            &detail::named(policy),
            limit.sheds(),
            detail::time_to_live(limit),
            decision.retry(),
            &bound.decision.standing,
            breaker,
        ),
        None => detail::of_limit(policy, bound, decision.retry(), needed),
    }
}

/// Describes a block: the policy, how long it lasts and why. The key is left out: the caller knows it, and logs need
/// not contain it.
fn blocked(decision: &GateDecision, entry: &AccessEntry, block: &Block) -> String {
    let lasts = in_words(block.until.since(decision.at));
    let reason = if block.reason.is_empty() { String::new() } else { format!(": {}", block.reason) };
    match decision.policy_name() {
        Some(name) => {
            format!("the key is blocked under policy {name:?} for {lasts} more{reason}; nothing was charged")
        }
        None => format!("{entry} is blocked for all policies for {lasts} more{reason}; nothing was charged"),
    }
}

/// Returns the title of a problem type: its name in words; without a type the reason phrase of the status.
fn title(kind: &str, status: StatusCode) -> Cow<'static, str> {
    match kind.strip_prefix(Deny::TYPES) {
        Some("quota-exceeded") => return Cow::Borrowed("Quota exceeded"),
        Some("temporary-reduced-capacity") => return Cow::Borrowed("Temporary reduced capacity"),
        _ => {}
    }
    let name = kind.rsplit(['#', '/']).next().unwrap_or_default();
    if kind == NO_TYPE || name.is_empty() {
        return Cow::Borrowed(status.canonical_reason().unwrap_or("Denied"));
    }
    let words = name.replace('-', " ");
    let mut chars = words.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect()).into()
}

// Says that a request was refused for its caller's own time: the limit would have delayed it, and its caller does not
// wait that long.

/// How long the caller of a request still waits, and the attribute that says so.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallerTime {
    left: Duration,
    name: &'static str,
}

impl CallerTime {
    /// Reads the headers of a request; `None` if none states a time.
    pub(super) fn of(request: &Descriptor<'_>) -> Option<Self> {
        shortest_time_left(request).map(|(left, name, _)| Self { left, name })
    }

    /// Returns the end of a sentence about a refusal that this time has caused: the limit that binds would have delayed
    /// the request by no more than its `max_wait`. Empty for any other refusal.
    pub(super) fn note(self, decision: &GateDecision) -> String {
        let Some(turn) = self.turn(decision) else { return String::new() };
        let (turn, left) = (in_words(turn), in_words(self.left));
        format!("; it would pass after a wait of {turn}, and {} leaves {left}", self.name)
    }

    /// Returns how long the request would have had to wait, if it was refused for this time alone.
    fn turn(self, decision: &GateDecision) -> Option<Duration> {
        let bound = &decision.limits[decision.binding.filter(|_| decision.refusal.is_none())?];
        let longest = decision.policies.policies().get(bound.policy)?.limit(bound.limit)?.max_wait;
        // A refusal lasts until the wait that remains fits the time that the caller has.
        let Retry::After(refused_for) = bound.decision.retry() else { return None };
        let turn = refused_for.saturating_add(self.left);
        (self.left < longest && turn <= longest).then_some(turn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Gate;
    use crate::http_answer::HttpAnswer;
    use crate::policy::{Limit, Policy, PolicySet};
    use tidegate_limits::{ManualClock, Quota};

    #[test]
    fn titles_are_the_types_in_words() {
        let kind = our_shortage();
        assert_eq!(title(kind, StatusCode::SERVICE_UNAVAILABLE), "Temporary reduced capacity");
        assert_eq!(title("about:blank", StatusCode::FORBIDDEN), "Forbidden");
        assert!(kind.starts_with(Deny::TYPES));
    }

    #[test]
    fn a_caller_whose_own_time_is_too_short_is_told_so() {
        let mut limit = Limit::new(Quota::per(2, Duration::from_secs(3)).burst(1).gcra().unwrap(), "2/3s");
        limit.max_wait = Duration::from_secs(2);
        let set = PolicySet::new(vec![Policy::new("W", limit)]).unwrap();
        let gate = Gate::in_memory(set, 1000).unwrap().with_clock(ManualClock::default());
        assert!(gate.check(&Descriptor::new()).now().unwrap().allowed);

        let told = |timeout: &str| {
            let request = Descriptor::new().with("request.header.grpc-timeout", timeout);
            let decision = gate.check(&request).now().unwrap();
            let text = HttpAnswer::of_gate(&decision, &request).body().unwrap_or_default();
            (decision.allowed, text)
        };
        let (allowed, text) = told("100m");
        let note = "try again in 1.4 s; it would pass after a wait of 1.5 s, and request.header.grpc-timeout leaves 100 ms";
        assert!(!allowed && text.contains(note), "{text}");
        assert!(told("1600m").0, "it waits for its turn");
        // The next turn is in 3 s, beyond what the limit lets anybody wait.
        for timeout in ["100m", "10S"] {
            let (allowed, text) = told(timeout);
            assert!(
                !allowed && text.contains("try again in") && !text.contains("leaves"),
                "{timeout}: {text}"
            );
        }
    }
}
