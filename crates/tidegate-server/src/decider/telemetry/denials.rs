//! Gives decisions their ids. Logs denials and remembers them: who refused which key by what, and the id to look it
//! up.
//!
//! Keys are logged as digests, which the list of top keys shows too; callers with the right see the keys themselves
//! there.

use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use smallvec::SmallVec;
use tidegate::gate::explain::{key_text, push_key_text};
use tidegate::gate::{Check, GateDecision, LimitDecision};
use tidegate::http_answer::server_parts::millis_up;
use tidegate::limiter::Retry;
use tidegate::policy::{AccessEntry, Descriptor, Limit, Mode, Over};
use tidegate::visible::excerpt;
use tidegate::{Cost, Tick};
use tracing::Level;
use ulid::Ulid;

use super::Telemetry;
use crate::active_config::ActiveConfig;
use crate::decided_again::AskedLimit;
use crate::decider::Conclusion;
use crate::refusal_record;
use crate::refused_requests::{Piece, Record, RememberedRefusal, SeenLimit, Stated, is_secret};
use crate::sight::{RefusalRecord, Sight};
use crate::span_attributes;
use crate::top_keys::entry_key;

/// The log target: `TIDEGATE_LOG=info,tidegate_server::denials=off` turns these lines off.
const TARGET: &str = "tidegate_server::denials";

/// How many refusals are remembered: those of seconds in a flood, of hours in ordinary service.
pub(crate) const REMEMBERED: usize = 8192;
/// The most bytes of the remembered requests.
pub(super) const REMEMBERED_BYTES: usize = 6 << 20;

/// The most limits in a record. Of further ones, the number is recorded.
const RECORDED_LIMITS: usize = 32;
/// The longest key in a record, in bytes; of a longer one, the beginning is kept.
const RECORDED_KEY: usize = 1024;

impl Telemetry {
    /// Gives a decision its id. Remembers and logs a refusal.
    pub(crate) fn name(
        &self,
        live: &ActiveConfig,
        check: &Check<'_, '_>,
        only: Option<&[usize]>,
        conclusion: &Conclusion,
    ) -> Ulid {
        let at = match conclusion {
            Conclusion::Decided(decision) => decision.at,
            Conclusion::Unsettled { .. } => self.base.now(),
        };
        if conclusion.allowed() {
            let id = self.refused.name(at);
            span_attributes::note(|notes| _ = notes.id.get_or_insert(id));
            return id;
        }
        // Policies are remembered by name, because their indices change when the file changes.
        let named = |at: &usize| live.set.policies().get(*at).map(|policy| policy.name.as_str().into());
        let only = only.map(|only| only.iter().filter_map(named).collect());
        let secret = |name: &str| is_secret(name) && !live.keys_by(name);
        let stated = Stated { cost: check.stated_cost(), priority: check.priority };
        let refuser = match conclusion {
            Conclusion::Decided(decision) => Refuser::of(decision, check.request),
            Conclusion::Unsettled { .. } => None,
        };
        let record =
            |texts: &mut String| record(live.number, check.request, conclusion, refuser.as_ref(), at, texts);
        let id = self.refused.remember(check.request, only, secret, stated, record);
        if let Some(sight) = &self.base.sight {
            let (policy, key) = self.refused_key(live, check.request, conclusion, refuser.as_ref());
            if sight.wants_refusal(policy, key, at) {
                self.hand_over(&**sight, id);
            }
        }
        span_attributes::note(|notes| _ = notes.id.get_or_insert(id));
        if let (Conclusion::Decided(decision), Some(refuser)) = (conclusion, &refuser) {
            self.tell_denial(live, check.request, decision, refuser, id);
        }
        id
    }

    /// Gives a decision its id like [`Self::name`], and sends a denial to the listeners of the event stream.
    pub(crate) fn name_and_tell(
        &self,
        live: &ActiveConfig,
        check: &Check<'_, '_>,
        only: Option<&[usize]>,
        conclusion: &Conclusion,
    ) -> Ulid {
        let id = self.name(live, check, only, conclusion);
        if let Conclusion::Decided(decision) = conclusion
            && !decision.allowed
        {
            self.tell_listeners(check.request, decision, Some(id));
        }
        id
    }

    /// Sends a denial to the listeners of the event stream, with a digest of its key. `id`: `None` if its door gives
    /// no ids.
    #[cold]
    pub(crate) fn tell_listeners(&self, request: &Descriptor<'_>, decision: &GateDecision, id: Option<Ulid>) {
        self.base.events.denied(decision.at, || {
            let policy = decision.policy().and_then(|at| decision.policies.policies().get(at));
            let key = policy.map(|policy| self.base.redact.key(&decision.policies, policy, request, false));
            let retry = decision.retry();
            json!({
                "policy": policy.map(|policy| &policy.name),
                "key": key,
                "refused_by": Refuser::of(decision, request).map(|refuser| refuser.by),
                "decision_id": id.map(|id| id.to_string()),
                "retry": retry.as_str(),
                "retry_after_ms": retry.after().map(millis_up),
            })
        });
    }

    /// Returns the number of the policy that refused a request and the fingerprint of the key; without a policy, the
    /// fingerprint of the entry that refused.
    fn refused_key(
        &self,
        live: &ActiveConfig,
        request: &Descriptor<'_>,
        conclusion: &Conclusion,
        refuser: Option<&Refuser<'_>>,
    ) -> (Option<u16>, u64) {
        match conclusion {
            Conclusion::Decided(decision) => match refuser.map(|refuser| &refuser.source) {
                Some(DeniedBy::Policy(at)) => {
                    let facts = live.facts(&decision.policies, &self.base.metrics);
                    let policy = &decision.policies.policies()[*at];
                    (Some(facts[*at].number), self.fingerprint(&decision.policies, policy, request))
                }
                Some(DeniedBy::GlobalDenyList(entry)) => (None, self.hasher.hash_one(entry_key(entry))),
                None => (None, 0),
            },
            Conclusion::Unsettled { policy, .. } => {
                match policy.as_deref().and_then(|name| live.set.find(name)) {
                    Some((at, policy)) => (
                        live.policies.get(at).map(|facts| facts.number),
                        self.fingerprint(&live.set, policy, request),
                    ),
                    None => (None, 0),
                }
            }
        }
    }

    /// Gives a refusal to the record of the sight.
    #[cold]
    fn hand_over(&self, sight: &dyn Sight, id: Ulid) {
        // Not there only if thousands were refused meanwhile.
        let Some(refused) = self.refused.find(id) else { return };
        let key = refused.record.key.as_deref().map(|key| self.base.redact.text(key, false));
        sight.refused(RefusalRecord {
            id: id.0,
            key: key.unwrap_or_default(),
            configuration: refused.record.configuration,
            text: refusal_record::written(&refused, &self.base.redact, self.run()),
        });
    }

    /// Returns a number that this process has and, but for chance, no other.
    pub(crate) fn run(&self) -> u64 {
        self.hasher.hash_one(0_u64)
    }

    /// Returns what is remembered of a refusal.
    pub(crate) fn find(&self, id: Ulid) -> Option<RememberedRefusal> {
        self.refused.find(id)
    }

    /// Returns the id of something that is not remembered.
    pub(crate) fn fresh_id(&self, at: Tick) -> Ulid {
        self.refused.name(at)
    }

    /// Logs a denial, unless limited or turned off.
    fn tell_denial(
        &self,
        live: &ActiveConfig,
        request: &Descriptor<'_>,
        decision: &GateDecision,
        refuser: &Refuser<'_>,
        id: Ulid,
    ) {
        if !tracing::enabled!(target: TARGET, Level::INFO) {
            return;
        }
        let facts = live.facts(&decision.policies, &self.base.metrics);
        let log = match refuser.source {
            DeniedBy::GlobalDenyList(_) if refuser.by == "block" => &self.blocked.denials,
            DeniedBy::GlobalDenyList(_) => &self.file_list.denials,
            DeniedBy::Policy(at) => &*facts[at].denials,
        };
        let Some(left_out) = log.turn(&self.denials) else { return };
        let (policy, key) = match refuser.source {
            DeniedBy::GlobalDenyList(entry) => {
                let list = if refuser.by == "block" { &self.blocked } else { &self.file_list };
                (list.name, entry_key(entry))
            }
            DeniedBy::Policy(at) => {
                let policy = &decision.policies.policies()[at];
                (policy.name.as_str(), key_text(&decision.policies, policy, request))
            }
        };
        let key = self.base.redact.text(&key, false);
        let retry_after_ms = match decision.retry() {
            Retry::After(wait) => u64::try_from(wait.as_millis()).ok(),
            _ => None,
        };
        tracing::info!(
            target: TARGET,
            policy,
            refused_by = refuser.by,
            decision_id = %id,
            key,
            retry_after_ms,
            left_out,
            "denied"
        );
    }
}

/// Makes the record of a denial under the configuration with this number.
fn record(
    configuration: u64,
    request: &Descriptor<'_>,
    conclusion: &Conclusion,
    refuser: Option<&Refuser<'_>>,
    at: Tick,
    texts: &mut String,
) -> Record<Piece> {
    let mut record = Record {
        at,
        configuration,
        by: "call",
        policy: None,
        key: None,
        cause: Piece::default(),
        retry: Retry::Unknown,
        limits: SmallVec::new(),
        more_limits: 0,
    };
    let decision = match conclusion {
        Conclusion::Decided(decision) => decision,
        Conclusion::Unsettled { policy, error, .. } => {
            record.by = "store";
            record.policy = policy.as_deref().map(|name| Piece::of(name, texts));
            record.cause = Piece::of(&error.to_string(), texts);
            return record;
        }
    };
    let limits = decision.limits.iter().take(RECORDED_LIMITS);
    record.limits = limits.map(|line| seen(decision, line, request, texts)).collect();
    record.more_limits = decision.limits.len().saturating_sub(RECORDED_LIMITS);
    record.retry = decision.retry();
    let Some(refuser) = refuser else { return record };
    record.by = refuser.by;
    if let DeniedBy::Policy(at) = refuser.source {
        let policy = &decision.policies.policies()[at];
        record.policy = Some(Piece::of(&policy.name, texts));
        record.key = Some(Piece::made(texts, |texts| {
            let start = texts.len();
            push_key_text(&decision.policies, policy, request, texts);
            if texts.len() - start > RECORDED_KEY {
                let cut = excerpt(&texts[start..]);
                texts.truncate(start);
                texts.push_str(&cut);
            }
        }));
    }
    if let (DeniedBy::GlobalDenyList(entry), "block") = (&refuser.source, refuser.by) {
        record.key = Some(Piece::of(&entry_key(entry), texts));
    }
    if let Some(refusal) = &decision.refusal {
        record.cause = match &refusal.block {
            Some(block) => Piece::of(&block.reason, texts),
            None => Piece::of(&refusal.entry.to_string(), texts),
        };
    }
    record
}

/// What refused a request.
struct Refuser<'d> {
    source: DeniedBy<'d>,
    /// A word of the documented list.
    by: &'static str,
}

enum DeniedBy<'d> {
    /// The whole file's deny list or a block for all policies, by this entry.
    GlobalDenyList(&'d AccessEntry),
    /// The policy with this index.
    Policy(usize),
}

impl<'d> Refuser<'d> {
    /// Returns what refuses; `None` for a check that only another check of its call refuses.
    fn of(decision: &'d GateDecision, request: &Descriptor<'_>) -> Option<Self> {
        if let Some(refusal) = &decision.refusal {
            let by = match (&refusal.block, refusal.needs) {
                (Some(_), _) => "block",
                (None, Some(_)) => "deadline",
                (None, None) => "list",
            };
            let source = refusal.policy.map_or(DeniedBy::GlobalDenyList(&refusal.entry), DeniedBy::Policy);
            return Some(Self { source, by });
        }
        let line = &decision.limits[decision.binding?];
        let brought = decision.quota_of(line, request).is_some_and(|(_, brought)| brought);
        let limit = decision.policies.policies()[line.policy].limit(line.limit);
        // A brought quota takes the place of the policy's own.
        let by = match limit.filter(|_| !brought) {
            Some(limit) if limit.is_breaker() => "breaker",
            Some(limit) if limit.is_guard() => "concurrency",
            _ => "limit",
        };
        Some(Self { source: DeniedBy::Policy(line.policy), by })
    }
}

/// Returns a limit as a refused request met it.
fn seen(
    decision: &GateDecision,
    line: &LimitDecision,
    request: &Descriptor<'_>,
    texts: &mut String,
) -> SeenLimit<Piece> {
    let policy = &decision.policies.policies()[line.policy];
    let limit = policy.limit(line.limit);
    let quota = decision.quota_of(line, request);
    let brought = quota.is_some_and(|(_, brought)| brought);
    let shadow_limit = policy.is_shadow_limit(line.limit);
    let refused = !line.decision.is_allowed();
    let enforced = policy.mode == Mode::Enforce && !shadow_limit;
    SeenLimit {
        policy: Piece::of(&policy.name, texts),
        limit: match limit {
            _ if brought => Piece::of("the check's own quota", texts),
            Some(limit) => Piece::of(&limit.terms_for(request).label, texts),
            None => Piece::default(),
        },
        mode: policy.mode,
        shadow_limit,
        canary: policy.is_canary(line.limit),
        result: match (refused, policy.over) {
            (false, _) => "allowed",
            (true, _) if line.binding => "DENIED",
            (true, Over::Mark) if enforced => "marked",
            (true, Over::Demote { .. }) if enforced => "demoted",
            (true, _) => "would deny",
        },
        counts_places: limit.is_some_and(Limit::is_guard),
        needs: (!line.cost_is_unknown()).then(|| line.cost.units()),
        has: line.decision.standing.remaining,
        kept_back: line.kept_back,
        of: line.decision.standing.limit,
        retry: refused.then(|| line.decision.retry()),
        asked: quota.filter(|_| !line.cost_is_unknown()).map(|(quota, _)| AskedLimit {
            quota: Arc::clone(quota),
            cost: Cost::new(line.cost.units().saturating_add(line.kept_back)).unwrap_or(Cost::MAX),
            max_wait: limit.map_or(Duration::ZERO, |limit| limit.max_wait),
            decision: line.decision,
        }),
    }
}
