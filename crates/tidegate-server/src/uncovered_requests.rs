//! Requests that no policy is about, that have names which no policy reads, or that cannot be decided: counted for
//! each kind, and logged once for each.
//!
//! A kind is the door, the names of the attributes, the policies asked for and, over gRPC, the domain: what a
//! configuration writes; only headers that are taken for named ones are their callers'. The number of kinds is
//! bounded all the same, and a known kind costs one comparison for each kind before it. Each configuration begins
//! anew, since a change may have corrected some.
//!
//! Requests that some policy limits are looked at too, since a policy about all of them would hide that another is
//! never met: the first [`Unmet::FIRST`], then one of [`ONE_OF`].

use std::cmp::Reverse;
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tidegate::Cost;
use tidegate::config::Address;
use tidegate::gate::{GateDecision, LimitDecision};
use tidegate::http_answer::server_parts::wrong_value;
use tidegate::policy::{
    Absent, Among, CostRule, Descriptor, Mode, Named, Policy, PolicySet, Relevance, SettleBy, Want,
};
use tidegate::visible::excerpt;

use crate::metrics::Transport;
use crate::proxy::{HEADER, Proxy, with_dashes};

/// How many kinds are told apart. All others are counted together.
const KINDS: usize = 32;
/// How many characters of an error are told.
#[cfg(feature = "grpc")]
const MESSAGE: usize = 300;
/// How many names of attributes, and of policies that it asks for, are told of one kind.
const NAMES: usize = 12;
/// After those, one of so many is looked at. A power of two.
const ONE_OF: u64 = 64;
/// The attributes that Tidegate itself defines, of which it is noted whether requests have them.
const PLACES: [&str; 4] = ["client.ip", "request.method", "request.host", "request.path"];

/// The kinds that one configuration has seen.
#[derive(Debug)]
pub(crate) struct Unmet {
    hasher: RandomState,
    /// How many of the first requests were looked at.
    looked_at: AtomicU64,
    /// Requests that nothing limited.
    unlimited: Kinds,
    /// Requests and calls that were answered, and probably meant otherwise.
    mistaken: Kinds,
    /// Whether requests had the attributes that policies need, and [`PLACES`].
    had: HashMap<Box<str>, AtomicBool>,
    /// The policies of [`merges_sub_requests`].
    merging: Among,
    /// Whether no sub-request was seen yet that one of those is about. False from the start if there are none.
    merging_is_untold: AtomicBool,
    /// How many sub-requests were looked at for that.
    sub_requests: AtomicU64,
    /// Whether some policy needs an attribute that no sub-request has.
    has_never_sent: bool,
}

/// A bounded table of kinds.
#[derive(Debug, Default)]
struct Kinds {
    /// In the order in which they came; a hash of 0 is a free place.
    kinds: [KindCount; KINDS],
    /// What is told of each kind, with its index in `kinds`.
    told: Mutex<Vec<(usize, Advice)>>,
    others: AtomicU64,
}

#[derive(Debug, Default)]
struct KindCount {
    hash: AtomicU64,
    count: AtomicU64,
}

/// What people are told of one kind.
#[derive(Clone, Debug)]
struct Advice {
    what: String,
    /// What was probably meant, as sentences.
    advice: Vec<String>,
    /// Whether this is probably a mistake.
    is_mistake: bool,
    /// The method, host and path of the first, for those who may see them.
    example: Option<String>,
}

/// Why a call was not decided, although a proxy in front may let the request pass.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Misdirected {
    /// A gRPC call, or HTTP/2, at an HTTP address.
    GrpcAtHttp,
    /// HTTP/1 at the gRPC address.
    #[cfg(feature = "grpc")]
    Http1AtGrpc,
    /// TLS at a gRPC address without TLS.
    #[cfg(feature = "grpc")]
    TlsAtGrpc,
    /// HTTP/1 at the address for Redis clients.
    HttpAtResp,
    /// A sub-request at a path that takes none.
    SubRequestElsewhere,
    /// A sub-request of a proxy at the admin address.
    SubRequestAtAdmin,
    /// A sub-request of a proxy that is set up wrongly, and how.
    SubRequest(String),
    /// A request for a decision at this path without a token for it, and what is wrong.
    NoToken(&'static str, String),
}

/// The numbers of a configuration.
#[derive(Debug)]
pub(crate) struct UnmetSoFar {
    /// All requests that were noted.
    pub(crate) count: u64,
    /// The kinds, the most frequent first.
    pub(crate) kinds: Vec<SeenKind>,
}

/// One kind of requests.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SeenKind {
    pub(crate) count: u64,
    pub(crate) what: String,
    pub(crate) is_mistake: bool,
}

impl Kinds {
    /// Counts requests of a kind. `tell` is called for the first of its kind; what it returns is told.
    fn note(&self, hash: u64, count: u64, tell: impl FnOnce() -> Option<Advice>) {
        let hash = hash.max(1);
        for (at, kind) in self.kinds.iter().enumerate() {
            // Relaxed throughout: each number stands alone, and what is told has a lock.
            let mut held = kind.hash.load(Ordering::Relaxed);
            if held == 0 {
                match kind.hash.compare_exchange(0, hash, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => {
                        kind.count.fetch_add(count, Ordering::Relaxed);
                        if let Some(told) = tell() {
                            told.log(at + 1 == KINDS);
                            self.told.lock().push((at, told));
                        }
                        return;
                    }
                    Err(other) => held = other,
                }
            }
            if held == hash {
                kind.count.fetch_add(count, Ordering::Relaxed);
                return;
            }
        }
        self.others.fetch_add(count, Ordering::Relaxed);
    }

    /// Returns what was noted so far; `None` if nothing was.
    fn so_far(&self) -> Option<UnmetSoFar> {
        let told = self.told.lock().clone();
        let count = |at: usize| self.kinds[at].count.load(Ordering::Relaxed);
        let mut kinds: Vec<SeenKind> = told
            .into_iter()
            .map(|(at, told)| SeenKind {
                count: count(at),
                what: told.to_string(),
                is_mistake: told.is_mistake,
            })
            .collect();
        kinds.sort_by_key(|kind| Reverse(kind.count));
        let others = self.others.load(Ordering::Relaxed);
        let count = kinds.iter().fold(others, |sum, kind| sum.saturating_add(kind.count));
        (count > 0).then_some(UnmetSoFar { count, kinds })
    }
}

impl Unmet {
    /// How many requests are looked at one by one. After those, counts are estimates.
    pub(crate) const FIRST: u64 = 256;

    /// Makes the tables for a set of policies.
    pub(crate) fn new(set: &Arc<PolicySet>) -> Self {
        let mut had: HashMap<Box<str>, AtomicBool> = HashMap::new();
        let needed = set.policies().iter().flat_map(|policy| needs(policy, |_| false));
        for name in needed.chain(PLACES) {
            had.entry(name.into()).or_default();
        }
        let each = set.policies().iter().enumerate();
        let merging: Vec<usize> =
            each.filter(|(_, policy)| merges_sub_requests(policy)).map(|(at, _)| at).collect();
        Self {
            hasher: RandomState::new(),
            looked_at: AtomicU64::new(0),
            unlimited: Kinds::default(),
            mistaken: Kinds::default(),
            had,
            merging_is_untold: AtomicBool::new(!merging.is_empty()),
            sub_requests: AtomicU64::new(0),
            has_never_sent: Advice::never_sent(set).is_some(),
            merging: Among::new(Arc::clone(set), merging),
        }
    }

    /// Returns the requests that nothing limited; `None` if there were none.
    pub(crate) fn unlimited(&self) -> Option<UnmetSoFar> {
        self.unlimited.so_far()
    }

    /// Returns the requests and calls that were probably meant otherwise, if any. Numbers are estimates after the
    /// first [`Unmet::FIRST`] requests.
    pub(crate) fn mistaken(&self) -> Option<UnmetSoFar> {
        self.mistaken.so_far()
    }

    /// Notes a request that no policy is about, or none of those that it asks for (`only`).
    pub(crate) fn note_request(
        &self,
        set: &Arc<PolicySet>,
        transport: Transport,
        request: &Descriptor<'_>,
        only: Option<&[usize]>,
    ) {
        let names = request.pairs().map(|(name, _)| name);
        let hash = self.hash_of(transport, request, names);
        let hash = only.map_or(hash, |only| self.hasher.hash_one((hash, only)));
        self.unlimited.note(hash, 1, || {
            self.note_attributes(request);
            Some(Advice::unlimited(set, transport, request, only))
        });
    }

    /// Returns for how many requests this one stands; `None` if it is not looked at. `turn` is its number at its
    /// door, or one that grows like it.
    #[inline]
    pub(crate) fn looks_at(&self, turn: u64) -> Option<u64> {
        // Relaxed: the number stands alone. Read first, since writing would take the cache line from other threads.
        if self.looked_at.load(Ordering::Relaxed) < Self::FIRST {
            self.looked_at.fetch_add(1, Ordering::Relaxed);
            return Some(1);
        }
        turn.is_multiple_of(ONE_OF).then_some(ONE_OF)
    }

    /// Looks at a request that policies are about, which read the attributes `read`. It stands for `count`.
    #[cold]
    pub(crate) fn look_at(
        &self,
        set: &PolicySet,
        read: &Named,
        transport: Transport,
        request: &Descriptor<'_>,
        count: u64,
    ) {
        self.note_attributes(request);
        let over_grpc = transport == Transport::grpc;
        // Headers are what strangers send. Envoy's address is `client.ip` too.
        let strange = || {
            let names = request.pairs().map(|(name, _)| name);
            names.filter(|name| {
                let own = over_grpc && (name.starts_with("rls.") || *name == "remote_address");
                !own && !name.starts_with(HEADER) && !read.contains(name)
            })
        };
        if over_grpc || strange().next().is_some() {
            let hash = self.hash_of(transport, request, strange());
            self.mistaken.note(hash, count, || Advice::unread(set, transport, request));
        }
        // The other doors refuse such values.
        for name in ["client.ip", "request.path"].into_iter().filter(|_| over_grpc) {
            if let Some(wrong) = request.value(name).and_then(|value| wrong_value(name, value)) {
                self.mistaken.note(self.hasher.hash_one(name), count, || {
                    let what = "gRPC requests have a value that is not what its attribute holds".to_owned();
                    Some(Advice::mistake(what, wrong))
                });
            }
        }
    }

    /// Notes a request whose stated cost none of its limits charges. It stands for `count`.
    #[cold]
    pub(crate) fn look_at_cost(
        &self,
        decision: &GateDecision,
        transport: Transport,
        stated: Cost,
        count: u64,
    ) {
        let policies = decision.policies.policies();
        let is_ignored = |line: &LimitDecision| {
            let policy = policies.get(line.policy);
            policy.is_some_and(|policy| policy.cost.is_some() && !policy.caller_cost) && line.cost != stated
        };
        if stated.units() == 1 || !decision.limits.iter().all(is_ignored) {
            return;
        }
        // Whoever writes `cost: 1` counts requests, whatever they cost elsewhere.
        let mut met = decision.limits.iter().filter_map(|line| policies.get(line.policy));
        let other = met.find(|met| !matches!(met.cost, Some(CostRule::Fixed(cost)) if cost.units() == 1));
        let Some(policy) = other else { return };
        self.mistaken.note(self.hasher.hash_one(("cost", &*policy.name)), count, || {
            let what = format!(
                "{} requests state a cost, and policy {} charges its own",
                transport.word(),
                excerpt(&policy.name)
            );
            let by_value = policy.settle.as_ref().is_some_and(|rule| !matches!(rule.by, SettleBy::Cost));
            let advice = match &policy.cost {
                Some(CostRule::Fixed(cost)) if !by_value => {
                    format!("write cost: {{ estimate: {}, caller: believed }}", cost.units())
                }
                _ => "write `caller: believed` beside `estimate` in its `cost`".to_owned(),
            };
            Some(Advice::mistake(what, format!("{advice} to charge what they state")))
        });
    }

    /// Notes a call over gRPC with an entry that is no address.
    #[cfg(feature = "grpc")]
    pub(crate) fn note_no_address(&self, wrong: impl FnOnce() -> String) {
        self.mistaken.note(self.hasher.hash_one("no address"), 1, || {
            let what = "calls over gRPC are answered OVER_LIMIT".to_owned();
            Some(Advice::mistake(what, format!("{}, or use Envoy's remote_address", wrong())))
        });
    }

    /// Notes a call that charges one limit for all requests several times.
    #[cfg(feature = "grpc")]
    pub(crate) fn note_charged_twice(&self, policy: &str, times: usize) {
        self.mistaken.note(self.hasher.hash_one(("charged", policy)), 1, || {
            let what = format!(
                "policy {} is charged {times} times by one call over gRPC, once for each of its descriptors",
                excerpt(policy)
            );
            let advice = "it has no `by`, so all of them count; write `match: { attributes: { rls.index: \"0\" } }` to charge a call once".to_owned();
            Some(Advice::mistake(what, advice))
        });
    }

    /// Notes a call at the wrong address or in the wrong protocol. `grpc` is the address for calls over gRPC.
    pub(crate) fn note_misdirected(&self, why: &Misdirected, grpc: Option<&Address>) {
        let kinds = match why {
            Misdirected::SubRequestElsewhere
            | Misdirected::SubRequestAtAdmin
            | Misdirected::SubRequest(_)
            | Misdirected::NoToken(..) => &self.mistaken,
            _ => &self.unlimited,
        };
        let hash = match why {
            // Without numbers and what follows a quote: callers may choose them.
            Misdirected::SubRequest(wrong) => {
                let words = wrong.split('"').next().unwrap_or_default();
                let mut hasher = self.hasher.build_hasher();
                words.split(|one: char| one.is_ascii_digit()).for_each(|part| part.hash(&mut hasher));
                hasher.finish()
            }
            why => self.hasher.hash_one(why),
        };
        kinds.note(hash, 1, || Some(Advice::misdirected(why, grpc)));
    }

    /// Notes sub-requests that no policy is about, while some need attributes that none of them has.
    pub(crate) fn note_sub_request(&self, set: &PolicySet, request: &Descriptor<'_>) {
        if !self.has_never_sent || set.meets(request, None) {
            return;
        }
        self.mistaken.note(self.hasher.hash_one("sub-request"), 1, || Advice::never_sent(set));
    }

    /// Notes a sub-request that is refused for a header that programs may take for a named one.
    pub(crate) fn note_taken_for_named(&self, proxy: &Proxy, header: &str) {
        // Any caller may send it, so it is no mistake of whoever reads this. There are as many kinds as named
        // headers.
        self.mistaken.note(self.hasher.hash_one(("taken", with_dashes(header))), 1, || {
            let named = excerpt(proxy.named_like(header)?);
            Some(Advice {
                what: format!("sub-requests of a proxy with the header {} are refused", excerpt(header)),
                advice: vec![format!(
                    "many programs take it for {named}, which policies name; let callers send {named}"
                )],
                is_mistake: false,
                example: None,
            })
        });
    }

    /// Notes, once, that a policy asked by a sub-request counts callers as one that it means to tell apart.
    #[inline]
    pub(crate) fn look_at_sub_request(&self, request: &Descriptor<'_>) {
        // Relaxed: the flag and the number stand alone.
        if self.merging_is_untold.load(Ordering::Relaxed) {
            let turn = self.sub_requests.fetch_add(1, Ordering::Relaxed);
            if turn < Self::FIRST || turn.is_multiple_of(ONE_OF) {
                self.note_merged(request);
            }
        }
    }

    #[cold]
    fn note_merged(&self, request: &Descriptor<'_>) {
        let set = self.merging.set();
        if !set.meets(request, Some(&self.merging)) {
            return;
        }
        let relevance = set.relevance(request);
        let merging = || (0..set.len()).filter(|at| self.merging.has(*at));
        let charged = merging().find(|at| matches!(relevance.get(*at), Some(Relevance::Charged { .. })));
        // Relaxed: the swap alone decides which of several threads tells.
        if let Some(policy) = charged.and_then(|at| set.policies().get(at))
            && self.merging_is_untold.swap(false, Ordering::Relaxed)
        {
            self.mistaken.note(self.hasher.hash_one("merged"), 1, || {
                Some(Advice::merged(policy, merging().count().saturating_sub(1)))
            });
        }
    }

    /// Notes a call over gRPC that is answered with an error.
    #[cfg(feature = "grpc")]
    pub(crate) fn note_unreadable(&self, code: &'static str, message: &str) {
        self.unlimited.note(self.hasher.hash_one(code), 1, || {
            let what = format!(
                "calls over gRPC are answered {code}, and a proxy that fails open lets their requests pass"
            );
            Some(Advice::mistake(what, message.chars().take(MESSAGE).collect()))
        });
    }

    /// Returns the attributes that a policy needs and no request had, and those of [`PLACES`] that requests had.
    pub(crate) fn never_had<'p>(&self, policy: &'p Policy) -> (Vec<&'p str>, Vec<&'static str>) {
        let had = |name: &str| self.had.get(name).is_some_and(|had| had.load(Ordering::Relaxed));
        let mut missing: Vec<&str> = needs(policy, had).filter(|name| !had(name)).collect();
        missing.dedup();
        (missing, PLACES.into_iter().filter(|name| had(name)).collect())
    }

    fn note_attributes(&self, request: &Descriptor<'_>) {
        for (name, _) in request.pairs() {
            // Relaxed: the flag stands alone.
            if let Some(had) = self.had.get(name).filter(|had| !had.load(Ordering::Relaxed)) {
                had.store(true, Ordering::Relaxed);
            }
        }
    }

    fn hash_of<'n>(
        &self,
        transport: Transport,
        request: &Descriptor<'_>,
        names: impl Iterator<Item = &'n str>,
    ) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        transport.hash(&mut hasher);
        names.for_each(|name| name.hash(&mut hasher));
        request.value("rls.domain").hash(&mut hasher);
        hasher.finish()
    }
}

/// Returns the attributes without which no request meets a policy: those that its match demands, and those of its
/// key. Of a key with one that requests had (`had`), the others may be absent.
fn needs(policy: &Policy, had: impl Fn(&str) -> bool) -> impl Iterator<Item = &str> {
    let by_is_needed = match policy.absent {
        Absent::Charge => false,
        Absent::Skip => true,
        Absent::SkipIfNone => !policy.by.iter().any(|name| had(name)),
    };
    let matching = &policy.matching;
    let demanded = matching.attributes().iter().filter(|(_, want)| !matches!(want, Want::Absent));
    let places = [
        ("request.method", !matching.methods().is_empty()),
        ("request.host", !matching.hosts().is_empty()),
        ("request.path", !matching.paths().is_empty()),
    ];
    let places = places.into_iter().filter(|(_, needed)| *needed).map(|(name, _)| name);
    let by = policy.by.iter().filter(move |_| by_is_needed).map(String::as_str);
    // The gRPC door computes these.
    let own = |name: &&str| !name.starts_with("rls.") && *name != "request.direction";
    by.chain(places).chain(demanded.map(|(name, _)| &**name)).filter(own)
}

/// Returns whether sub-requests of a proxy can have an attribute.
fn is_sent(name: &str) -> bool {
    name.starts_with("request.") || name == "client.ip"
}

/// Returns whether the key of a policy about sub-requests has a name that none of them has, so that it counts callers
/// as one.
fn merges_sub_requests(policy: &Policy) -> bool {
    policy.mode != Mode::Off
        && needs(policy, is_sent).all(is_sent)
        && policy.by.iter().any(|name| !is_sent(name) && !name.starts_with("rls."))
}

fn and_others(count: usize) -> String {
    match count {
        0 => String::new(),
        1 => ", and 1 more policy like it".to_owned(),
        more => format!(", and {more} more policies like it"),
    }
}

/// Names the policy that a request of another path or host misses, by the path most like its own. Examines every
/// policy: for the first request of a kind.
fn nearest_elsewhere(set: &PolicySet, request: &Descriptor<'_>, among: Option<&Among>) -> Option<String> {
    let path = request.value("request.path").unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default();
    let alike = |pattern: &str| path.bytes().zip(pattern.bytes()).take_while(|(a, b)| a == b).count();
    let each = set.relevance(request).into_iter().zip(set.policies()).enumerate();
    let elsewhere = each.filter_map(|(at, (relevance, policy))| match relevance {
        Relevance::NoMatch { part: part @ ("path" | "host"), lacks: None }
            if among.is_none_or(|among| among.has(at)) =>
        {
            Some((part, policy))
        }
        _ => None,
    });
    // The first of several that are as near.
    let (part, policy) = elsewhere.min_by_key(|(_, policy)| {
        let paths = policy.matching.paths().iter();
        Reverse(paths.map(|pattern| alike(pattern.source())).max())
    })?;
    let takes = match part {
        "host" => policy.matching.hosts().first()?.source(),
        _ => policy.matching.paths().iter().max_by_key(|pattern| alike(pattern.source()))?.source(),
    };
    let stem = takes.trim_end_matches('/');
    let is_below = part == "path" && path.strip_prefix(stem).is_some_and(|rest| rest.starts_with('/'));
    let below =
        if is_below { format!("; write {}/** for what is below", excerpt(stem)) } else { String::new() };
    let name = excerpt(&policy.name);
    Some(format!(
        "policy {name} comes nearest, but {part} does not match: it takes {}{below}",
        excerpt(takes)
    ))
}

/// Returns whether a name is probably about the answer, which no door knows when it decides.
fn is_of_answer(name: &str) -> bool {
    name.starts_with("response") || name.contains("status_code") || name.contains("status-code")
}

/// Says how such an attribute can come with sub-requests.
fn as_header(name: &str) -> String {
    let header = name.replace(['.', '_'], "-").to_ascii_lowercase();
    format!("let the proxy set a header, and write its name in the policy: request.header.x-{header}")
}

impl Advice {
    fn mistake(what: String, advice: String) -> Self {
        Self { what, advice: vec![advice], is_mistake: true, example: None }
    }

    fn unlimited(
        set: &Arc<PolicySet>,
        transport: Transport,
        request: &Descriptor<'_>,
        only: Option<&[usize]>,
    ) -> Self {
        let among = only.map(|only| Among::new(Arc::clone(set), only.iter().copied()));
        let mut advice = set.unread(request, among.as_ref());
        if set.is_empty() {
            advice = vec!["there are no policies".to_owned()];
        }
        // Whoever lacks an attribute may be meant to have no limit, and so may another path.
        let is_explained = advice.iter().any(|advice| !advice.starts_with("policy "));
        let is_mistake = transport == Transport::grpc && !advice.is_empty() || is_explained;
        if !is_explained {
            advice.extend(nearest_elsewhere(set, request, among.as_ref()));
        }
        let places = ["request.method", "request.host", "request.path"];
        let values = places.into_iter().filter_map(|name| {
            let value = request.value(name)?;
            // Without the query, which has more of callers.
            Some(excerpt(value.split('?').next().unwrap_or_default()))
        });
        let example = values.collect::<Vec<_>>().join(" ");
        let asked = only.map(|only| {
            let names = only.iter().filter_map(|at| set.policies().get(*at));
            let names: Vec<String> = names.take(NAMES).map(|policy| excerpt(&policy.name)).collect();
            format!(", which ask for {} alone", names.join(", "))
        });
        Self {
            what: format!(
                "no policy is about {}{}",
                described(transport, request),
                asked.as_deref().unwrap_or_default()
            ),
            is_mistake,
            advice,
            example: (!example.is_empty()).then_some(example),
        }
    }

    /// Describes a request that policies are about, with names that no policy reads; `None` if there are none.
    fn unread(set: &PolicySet, transport: Transport, request: &Descriptor<'_>) -> Option<Self> {
        let advice: Vec<String> = set
            .unread(request, None)
            .into_iter()
            .filter(|advice| advice.starts_with("no policy reads "))
            .collect();
        if advice.is_empty() {
            return None;
        }
        Some(Self {
            what: format!("other policies alone are about {}", described(transport, request)),
            // An attribute that resembles none may be meant for later.
            is_mistake: advice.iter().any(|advice| {
                advice.contains("; did you mean ") || !advice.starts_with("no policy reads the attribute ")
            }),
            advice,
            example: None,
        })
    }

    /// Describes the policies that no sub-request of a proxy can meet; `None` if there are none.
    fn never_sent(set: &PolicySet) -> Option<Self> {
        let enabled = set.policies().iter().filter(|policy| policy.mode != Mode::Off);
        let mut lacking =
            enabled.filter_map(|policy| Some((policy, needs(policy, is_sent).find(|name| !is_sent(name))?)));
        let (first, name) = lacking.next()?;
        let others = and_others(lacking.count());
        let (policy, name) = (excerpt(&first.name), excerpt(name));
        let never = format!("sub-requests of a proxy never meet policy {policy}{others}: it needs {name}");
        if is_of_answer(&name) {
            let advice = format!(
                "write `charge: on-failure` in place of {name}, and have the application send the ticket in \
                 x-tidegate-ticket with its status to /v1/settle"
            );
            return Some(Self::mistake(format!("{never}, and they come before the answer"), advice));
        }
        let what = format!("{never}, and they have request.* and client.ip alone");
        Some(Self::mistake(what, as_header(&name)))
    }

    fn merged(policy: &Policy, others: usize) -> Self {
        let (sent, lacking): (Vec<&String>, Vec<&String>) = policy.by.iter().partition(|name| is_sent(name));
        let listed =
            |names: &[&String]| names.iter().map(|name| excerpt(name)).collect::<Vec<_>>().join(", ");
        let with = if sent.is_empty() { String::new() } else { format!(" with the same {}", listed(&sent)) };
        let what = format!(
            "sub-requests of a proxy have request.* and client.ip alone, and the key of policy {}{} has {}: \
             all callers{with} are counted as one there",
            excerpt(&policy.name),
            and_others(others),
            listed(&lacking)
        );
        Self::mistake(what, as_header(&lacking.first().map(|name| excerpt(name)).unwrap_or_default()))
    }

    fn misdirected(why: &Misdirected, grpc: Option<&Address>) -> Self {
        let (what, advice) = match why {
            Misdirected::GrpcAtHttp => (
                "gRPC calls (HTTP/2) reach the HTTP address, which cannot decide them, and a proxy that fails open lets their requests pass".to_owned(),
                match grpc {
                    Some(grpc) => format!("gRPC is served on {grpc}: give the proxy's cluster that address"),
                    None => "start the server with --grpc ADDRESS (server.grpc), and give the proxy's cluster that address".to_owned(),
                },
            ),
            #[cfg(feature = "grpc")]
            Misdirected::Http1AtGrpc => (
                "HTTP/1 reaches the gRPC address, which cannot decide it, and a proxy that fails open lets its requests pass".to_owned(),
                "gRPC needs HTTP/2: add `typed_extension_protocol_options` with `explicit_http_config: { http2_protocol_options: {} }` to Envoy's cluster; for HTTP/1 give the HTTP address".to_owned(),
            ),
            #[cfg(feature = "grpc")]
            Misdirected::TlsAtGrpc => (
                "TLS reaches the gRPC address, which is served without TLS, and a proxy that fails open lets its requests pass".to_owned(),
                "remove `transport_socket` from the proxy's cluster, or serve with TLS (server.tls)".to_owned(),
            ),
            Misdirected::HttpAtResp => (
                "HTTP/1 reaches the address for Redis clients (server.resp), which cannot decide it, and a proxy or program that fails open lets its requests pass".to_owned(),
                "HTTP is served on server.http (--http): give the proxy or program that address".to_owned(),
            ),
            Misdirected::SubRequestElsewhere => (
                "sub-requests of a proxy reach a path that does not take them, and none is decided".to_owned(),
                "give the proxy the path /v1/forward-auth: in nginx `proxy_pass http://ADDRESS/v1/forward-auth;`".to_owned(),
            ),
            Misdirected::SubRequestAtAdmin => (
                "sub-requests of a proxy reach the admin address, which does not take them, and none is decided".to_owned(),
                "give the proxy the address where decisions are served (--http, server.http): in nginx `proxy_pass http://ADDRESS/v1/forward-auth;`".to_owned(),
            ),
            Misdirected::SubRequest(wrong) => {
                let what = format!("sub-requests of a proxy are refused, and none is decided: {wrong}");
                return Self { what, advice: Vec::new(), is_mistake: true, example: None };
            }
            Misdirected::NoToken(path @ "/v1/forward-auth", wrong) => (
                format!("sub-requests to {path} are refused, and none is decided: {wrong}"),
                "have the proxy send a token with the scope check: in nginx `proxy_set_header X-Tidegate-Token TOKEN;`".to_owned(),
            ),
            Misdirected::NoToken(path, wrong) => (
                format!("requests to {path} are refused, and none is decided: {wrong}"),
                "send a token with the scope check".to_owned(),
            ),
        };
        Self::mistake(what, advice)
    }

    fn log(&self, is_last: bool) {
        let advice = (!self.advice.is_empty()).then(|| self.advice.join("; "));
        let no_more = is_last.then_some("further kinds are only counted");
        if self.is_mistake {
            tracing::warn!(advice, no_more, "{}", self.what);
        } else {
            // Everything in it is read by some policy, so it is probably meant to have no limit.
            tracing::info!(advice, no_more, "{}", self.what);
        }
    }
}

fn described(transport: Transport, request: &Descriptor<'_>) -> String {
    let mut names: Vec<&str> =
        request.pairs().map(|(name, _)| name).filter(|name| !name.starts_with("rls.")).collect();
    names.sort_unstable();
    names.dedup();
    let more = names.len().saturating_sub(NAMES);
    let shown: Vec<String> = names.into_iter().take(NAMES).map(excerpt).collect();
    let mut what = format!("{} requests with the attributes {}", transport.word(), shown.join(", "));
    if shown.is_empty() {
        what = format!("{} requests without attributes", transport.word());
    }
    if more > 0 {
        what += &format!(" and {more} more");
    }
    if let Some(domain) = request.value("rls.domain") {
        what += &format!(", in the domain \"{}\"", excerpt(domain));
    }
    what
}

impl std::fmt::Display for Advice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.what)?;
        if let Some(example) = &self.example {
            write!(f, ", such as {example}")?;
        }
        self.advice.iter().try_for_each(|advice| write!(f, "; {advice}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_told_once_and_made_up_kinds_take_no_room() {
        let unmet = Kinds::default();
        assert!(unmet.so_far().is_none());
        let told = |name: u64| Advice {
            what: format!("kind {name}"),
            advice: Vec::new(),
            is_mistake: false,
            example: None,
        };
        let mut times_told = 0;
        for round in 0..3 {
            for kind in 1..=1000 {
                unmet.note(kind, 1, || {
                    times_told += 1;
                    Some(told(kind))
                });
            }
            assert_eq!(times_told, KINDS, "round {round}");
        }
        unmet.note(7, 1, || unreachable!("known"));
        let so_far = unmet.so_far().unwrap();
        assert_eq!(so_far.count, 3001);
        assert_eq!(so_far.kinds.len(), KINDS);
        assert_eq!((so_far.kinds[0].count, &*so_far.kinds[0].what), (4, "kind 7"));
    }

    #[test]
    fn the_first_requests_are_looked_at_and_then_a_part() {
        let unmet = Unmet::new(&Arc::new(PolicySet::new(Vec::new()).unwrap()));
        let looked_at: Vec<u64> = (0..10_000).filter_map(|turn| unmet.looks_at(turn)).collect();
        assert!(looked_at[..256].iter().all(|count| *count == 1));
        assert_eq!(looked_at[256..], [64].repeat(10_000 / 64 - 256 / 64 + 1));
    }
}
