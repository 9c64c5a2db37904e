//! Finds policies for the same requests and keys that should be one: they do the same, or each has a law, which would
//! take the other's refusals for a change of the service.
//!
//! For laws, policies whose `by` or `when` differs are taken to guard different resources. Whether two conditions hold
//! at the same time depends on numbers that the file does not know.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;

use tidegate_core::Quota;

use crate::diagnostic::Findings;
use crate::node::Spot;
use crate::policies::BuiltPolicy;
use tidegate_gate::policy::{Absent, Direction, Match, Mode, Overlap, Policy, Terms, Want};
use tidegate_limits::visible::excerpt;

const LOOKED_AT: usize = 16;

/// The steps for all policies of a file: some tens of milliseconds.
const STEPS: usize = 300_000;

/// The steps for one pair: two patterns such as `*a?b*a?b*` may take any number.
const STEPS_OF_PAIR: usize = 50_000;

#[derive(Default)]
pub(super) struct Alike {
    /// The indices of policies by the hash of match and key: comparing all pairs would take too long.
    likely: HashMap<u64, Vec<usize>>,
    laws: Laws,
    subjects: Vec<String>,
    found: Vec<DuplicatePolicy>,
}

struct DuplicatePolicy {
    spot: Spot,
    subject: String,
    other: String,
    message: String,
}

impl Alike {
    pub(super) fn add(&mut self, earlier: &[BuiltPolicy<'_>], built: &BuiltPolicy<'_>, subject: &str) {
        let (policy, spot) = (&built.policy, built.node.spot);
        let mut hasher = DefaultHasher::new();
        (&policy.matching, &policy.by).hash(&mut hasher);
        let likely = self.likely.entry(hasher.finish()).or_default();
        let twin = likely
            .iter()
            .take(LOOKED_AT)
            .copied()
            .find(|at| earlier[*at].policy.name != policy.name && earlier[*at].policy.is_twin_of(policy));
        let rival = self.laws.add(earlier, policy);
        let found = match twin {
            Some(twin) => {
                let name = excerpt(&earlier[twin].policy.name);
                let what = "charges the same requests under the same limits as";
                Some((twin, format!("{what} \"{name}\"; one is enough")))
            }
            None => rival.map(|rival| (rival.at, rival.message)),
        };
        if let Some((other, message)) = found {
            let (subject, other) = (subject.to_owned(), self.subjects[other].clone());
            self.found.push(DuplicatePolicy { spot, subject, other, message });
        }
        if adaptive_limits(policy) > 1 {
            let message =
                "has several adaptive limits; each law would react to the others' refusals, so keep one"
                    .to_owned();
            self.found.push(DuplicatePolicy {
                spot,
                subject: subject.to_owned(),
                other: subject.to_owned(),
                message,
            });
        }
        likely.push(earlier.len());
        self.subjects.push(subject.to_owned());
    }

    /// Warns of what was found; last, because a policy with a mistake may only look like another.
    pub(super) fn tell(self, findings: &mut Findings) {
        for DuplicatePolicy { spot, subject, other, message } in self.found {
            if !findings.errs(&subject) && !findings.errs(&other) {
                findings.subject = subject;
                findings.warn(spot, message);
            }
        }
    }
}

struct Laws {
    /// Lists of them, by the names that make the key, sorted, and by direction.
    refusing: HashMap<(Vec<String>, Direction), Vec<Refusing>>,
    steps: usize,
}

struct Refusing {
    at: usize,
    /// What it asks of a request besides its match.
    charged: Match,
}

struct Rival {
    at: usize,
    /// What is wrong, as the end of a sentence about the later policy.
    message: String,
}

impl Default for Laws {
    fn default() -> Self {
        Self { refusing: HashMap::new(), steps: STEPS }
    }
}

impl Laws {
    /// Compares a policy with the `earlier` ones and remembers it. Returns the first rival, preferably one with the
    /// same match.
    fn add(&mut self, earlier: &[BuiltPolicy<'_>], policy: &Policy) -> Option<Rival> {
        // A law in shadow mode refuses nothing, so it may be compared with another.
        if policy.mode != Mode::Enforce || adaptive_limits(policy) == 0 {
            return None;
        }
        let mut by = policy.by.clone();
        by.sort_unstable();
        let list = self.refusing.entry((by, policy.direction)).or_default();
        let charged = charged(policy);
        let mut first = None;
        for Refusing { at, charged: also } in list.iter() {
            let (at, other) = (*at, &earlier[*at].policy);
            if self.steps == 0 {
                break;
            }
            self.steps -= 1;
            if other.name == policy.name || other.when != policy.when {
                continue;
            }
            if other.matching == policy.matching {
                first = Some(Rival { at, message: same(other) });
                break;
            }
            if first.is_none() {
                let overlap = overlap(&[&other.matching, &policy.matching, also, &charged], &mut self.steps);
                if self.steps == 0 {
                    break;
                }
                first = message(other, policy, &overlap).map(|message| Rival { at, message });
            }
        }
        list.push(Refusing { at: earlier.len(), charged });
        first
    }
}

fn adaptive_limits(policy: &Policy) -> usize {
    let is_adaptive = |terms: &Terms| matches!(terms.quota.as_deref(), Some(Quota::Adaptive(_)));
    policy.limits.iter().filter(|limit| limit.all_terms().any(is_adaptive)).count()
}

fn overlap(matches: &[&Match], steps: &mut usize) -> Overlap {
    let most = STEPS_OF_PAIR.min(*steps);
    let mut left = most;
    let overlap = Match::overlap(matches, &mut left);
    *steps -= most - left;
    overlap
}

fn charged(policy: &Policy) -> Match {
    let outbound = Want::value("outbound").unwrap_or(Want::Present);
    let direction = Match::any().attribute("request.direction", outbound);
    let directed = match policy.direction {
        Direction::Outbound => direction,
        Direction::Inbound => Match::any().not(direction),
    };
    let all =
        |built, want: &Want| policy.by.iter().fold(built, |m: Match, name| m.attribute(name, want.clone()));
    match policy.absent {
        Absent::Charge => directed,
        Absent::Skip => all(directed, &Want::Present),
        Absent::SkipIfNone if policy.by.is_empty() => directed,
        Absent::SkipIfNone => directed.not(all(Match::any(), &Want::Absent)),
    }
}

fn same(other: &Policy) -> String {
    let name = excerpt(&other.name);
    format!(
        "has an adaptive limit for the same requests as \"{name}\"; each law would react to the other's refusals, so keep one"
    )
}

fn message(other: &Policy, policy: &Policy, overlap: &Overlap) -> Option<String> {
    let name = excerpt(&other.name);
    let which = match overlap {
        Overlap::Empty => return None,
        Overlap::Shared(request) => {
            format!(
                "for some requests of \"{name}\" too{}",
                example(&[other, policy], request).unwrap_or_default()
            )
        }
        Overlap::Undecided => format!("perhaps for some requests of \"{name}\" too"),
    };
    Some(format!(
        "has an adaptive limit {which}; each law would react to the other's refusals, so keep one for both, or let a `not` exclude those requests from one of them"
    ))
}

/// Writes a request as an example, by the attributes that the matches read; `None` if it would tell nothing.
fn example(policies: &[&Policy], request: &[(String, String)]) -> Option<String> {
    let read = |name: &str| {
        let mut read = matches!(name, "request.method" | "request.host" | "request.path");
        policies.iter().for_each(|policy| policy.matching.names(&mut |one| read |= one == name));
        read
    };
    let shown: Vec<_> = request.iter().filter(|(name, _)| read(name)).collect();
    // The search takes any text for an address.
    let is_odd = |name: &str, value: &str| name == "client.ip" && value.parse::<IpAddr>().is_err();
    if shown.is_empty() || shown.iter().any(|(name, value)| is_odd(name, value)) {
        return None;
    }
    let words = shown.iter().map(|(name, value)| {
        format!("{} \"{}\"", name.strip_prefix("request.").unwrap_or(name), excerpt(value))
    });
    Some(format!(", such as {}", words.collect::<Vec<_>>().join(", ")))
}
