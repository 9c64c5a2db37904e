//! Which limits a policy gets: algorithms with their parameters, tiers, overrides.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use tidegate_core::rate::Refill;
use tidegate_core::{Criticality, Quota, Replace};

use super::diagnostic::Findings;
use super::grammars::kept;
use super::keys::{
    ADAPTIVE, ALGORITHMS, AlgorithmKeys, BREAKER, CANARY_LIMIT, CONCURRENCY, Kind, LIMIT, RATED, Table,
};
use super::limit_spec::{LimitSpec, PolicyFacts};
use super::node::{Node, Spot, Value, Words};
use super::shape::is_sound;
use super::{adaptive, breaker, conditions, foreign_words};
use tidegate_gate::policy::{Choice, Limit, Terms, WrittenRate};
use tidegate_limits::duration_text::in_words;
use tidegate_limits::priority::KeepFor;
use tidegate_limits::priority::most_at_once;
use tidegate_limits::store::kept_back;
use tidegate_limits::visible::excerpt;

/// Builds a limit with the keys of `table`. `base` is the limit from which a shadow limit or a canary takes the words that
/// it lacks.
pub(super) fn limit(
    node: &Node,
    base: Option<&Node>,
    table: &'static Table,
    owner: PolicyFacts<'_>,
    findings: &mut Findings,
) -> Option<Limit> {
    let words = Words { node, base: base.filter(|_| node.get("algorithm").is_none()) };
    let algorithm = words.text("algorithm").unwrap_or("gcra");
    let Some(known) = ALGORITHMS.iter().find(|known| known.name == algorithm) else {
        // Reported by the shape check; if that ever misses one, a missing limit would let every request pass.
        if !findings.refused() {
            findings.error(node.spot, format_args!("algorithm {algorithm} is not known"));
        }
        return None;
    };
    check_owners(node, known, findings);
    let mut complete = has_needed(&words, known, findings);
    if base.is_some() {
        complete &= has_its_own(node, known, table, findings);
    }
    if matches!(known.name, CONCURRENCY | BREAKER | ADAPTIVE) {
        // Values out of range were reported by the shape check; the core crate would report them again.
        if !complete || !is_sound(node, &Kind::Table(table)) {
            return None;
        }
        return guard(&words, known, owner, findings);
    }
    let rate = chosen_rate(node, &words, findings)?;
    complete &= fits_queue(&words, known, findings);
    if !complete || !is_sound(node, &Kind::Table(table)) {
        return None;
    }
    rated(&words, &spec_of(rate, &words, known), known, owner, findings)
}

fn check_owners(node: &Node, known: &AlgorithmKeys, findings: &mut Findings) {
    let algorithm = known.name;
    for (name, _) in node.entries() {
        let own = known.has(&name.text);
        if !own && RATED.contains(&name.text.as_str()) {
            findings.error(
                name.spot,
                match algorithm {
                    BREAKER => format!("{} does not belong to breaker, which is decided by how calls end", name.text),
                    ADAPTIVE => format!(
                        "{} does not belong to adaptive, which counts what is in flight; a law says how much",
                        name.text
                    ),
                    _ => format!(
                        "{} does not belong to {algorithm}, which counts what is in flight; max says how much",
                        name.text
                    ),
                },
            );
        } else if !own && ALGORITHMS.iter().any(|other| other.takes.contains(&name.text.as_str())) {
            let owners = ALGORITHMS.iter().filter(|other| other.takes.contains(&name.text.as_str()));
            let owners: Vec<_> = owners.map(|other| other.name).collect();
            let (key, owners) = (&name.text, owners.join(", "));
            let what = match foreign_words::period_beside_rate(key, node) {
                Some(instead) if known.common == RATED => instead,
                _ => format!("it belongs to {owners}"),
            };
            findings.error(name.spot, format_args!("{key} does not belong to {algorithm}; {what}"));
        }
    }
}

/// Reports missing keys; returns whether none is missing.
fn has_needed(words: &Words<'_>, known: &AlgorithmKeys, findings: &mut Findings) -> bool {
    let (node, algorithm) = (words.node, known.name);
    let mut complete = true;
    for needed in known.needs.iter().filter(|needed| words.get(needed).is_none()) {
        let example = match *needed {
            "warm_up" => "warm_up: 10s".to_owned(),
            "max" => format!("max: {}", foreign_words::count(node).unwrap_or(10)),
            other => other.to_owned(),
        };
        findings.error(node.spot, format_args!("{algorithm} needs {needed}; write {example}"));
        complete = false;
    }
    if words.get("queue").is_some() && words.get("max_wait").is_none() {
        let spot = words.get("queue").map_or(node.spot, |node| node.spot);
        findings.error(spot, "a queue needs max_wait: how long a request may wait in it; write max_wait: 1s");
        complete = false;
    }
    complete
}

fn has_its_own(node: &Node, known: &AlgorithmKeys, table: &Table, findings: &mut Findings) -> bool {
    let of_its_own = match known.name {
        CONCURRENCY => "max",
        BREAKER | ADAPTIVE => "algorithm",
        _ => "rate",
    };
    let found = node.entries().iter().any(|(name, _)| name.text == of_its_own);
    if !found {
        let remedy = if table.name == CANARY_LIMIT.name { "; write rate: 6/s" } else { "" };
        findings.error(node.spot, format_args!("{} has no {of_its_own}{remedy}", table.name));
    }
    found
}

fn fits_queue(words: &Words<'_>, known: &AlgorithmKeys, findings: &mut Findings) -> bool {
    let node = words.node;
    let mut complete = true;
    if let (Some((burst, _)), true) = (node.entry("burst"), words.get("queue").is_some()) {
        findings.error(
            burst.spot,
            "burst and queue exclude each other; slack says how many unused requests a pause saves up for a queue",
        );
        complete = false;
    }
    if let (Some((slack, _)), true) = (node.entry("slack"), words.get("queue").is_none())
        && known.name == "leaky-bucket"
    {
        findings.error(slack.spot, "slack needs queue: only a queue saves up");
        complete = false;
    }
    complete
}

fn guard(
    words: &Words<'_>,
    known: &AlgorithmKeys,
    owner: PolicyFacts<'_>,
    findings: &mut Findings,
) -> Option<Limit> {
    let spot = words.node.spot;
    let terms = match known.name {
        BREAKER => breaker::terms(words, spot, findings)?,
        ADAPTIVE => adaptive::terms(words, spot, owner, findings)?,
        _ => adaptive::place_terms(words, spot, owner, findings)?,
    };
    let mut built = Limit::of(terms);
    built.replace = replace(words);
    if known.takes.contains(&"keep_for") {
        built.keep_for = keep_for(words, &built, owner, findings);
    }
    Some(built)
}

fn spec_of(rate: WrittenRate, words: &Words<'_>, known: &AlgorithmKeys) -> LimitSpec {
    let known_word = |key: &str| known.takes.contains(&key);
    LimitSpec {
        algorithm: known.name.to_owned(),
        rate,
        burst: words.whole("burst").filter(|_| known_word("burst")),
        calendar: words.text("calendar").filter(|_| known_word("calendar")).map(str::to_owned),
        buckets: words.whole("buckets").unwrap_or(10),
        refill: match words.text("refill") {
            Some("interval") => Refill::Interval,
            Some("aligned") => Refill::Aligned,
            _ => Refill::Continuous,
        },
        initial: words.whole("start").filter(|_| known_word("start")),
        queue: words.whole("queue"),
        slack: words.whole("slack"),
        warm_up: words.span("warm_up"),
    }
}

fn rated(
    words: &Words<'_>,
    spec: &LimitSpec,
    known: &AlgorithmKeys,
    owner: PolicyFacts<'_>,
    findings: &mut Findings,
) -> Option<Limit> {
    let node = words.node;
    let rate_spot =
        words.get("rate").map_or(node.spot, |rate| rate.get("otherwise").map_or(rate.spot, |rate| rate.spot));
    let plain = Limit::of(terms(spec, rate_spot, owner, findings)?);
    let mut built = conditions::follow(node, spec, plain, findings)?;
    if let Some((floor, spot)) = conditions::at_floor(node, spec) {
        terms(&floor, spot, owner, findings)?;
    }
    built.tiers = tiers(words, spec, owner, findings);
    built.overrides = overrides(node, spec, owner, findings);
    built.max_wait = words.span("max_wait").unwrap_or(Duration::ZERO);
    if let Some(node) = words.get("max_wait") {
        warn_of_short_waits(&built, node.spot, findings);
    }
    built.replace = replace(words);
    if known.takes.contains(&"keep_for") {
        built.keep_for = keep_for(words, &built, owner, findings);
    }
    Some(built)
}

fn replace(words: &Words<'_>) -> Replace {
    match words.text("replace") {
        Some("proportional") => Replace::Proportional,
        Some("reset") => Replace::Reset,
        _ => Replace::AsIs,
    }
}

/// Returns the rate without a tier: `rate`, or its `otherwise` if it is a table.
fn chosen_rate(node: &Node, words: &Words<'_>, findings: &mut Findings) -> Option<WrittenRate> {
    match words.get("rate") {
        Some(rate) if matches!(rate.value, Value::Map(_)) => rate.text_of("otherwise")?.parse().ok(),
        Some(_) => words.rate("rate"),
        None if !matches!(node.value, Value::Map(_)) => None,
        None => {
            // The error of a name that is not one of the file's says what to write.
            if node.entries().iter().all(|(name, _)| LIMIT.key(&name.text).is_some()) {
                findings.error(node.spot, "limit has no rate; write rate: 10/s");
            }
            None
        }
    }
}

/// Builds the terms and checks that one request can pass at all.
fn terms(spec: &LimitSpec, spot: Spot, owner: PolicyFacts<'_>, findings: &mut Findings) -> Option<Terms> {
    if let (Some(grants), Some(cost)) = (spec.grants(), owner.cost)
        && cost > grants
    {
        let message = format!(
            "a request may cost {cost}, and {} never grants more than {grants} at once",
            spec.label()
        );
        findings.error(spot, message);
        return None;
    }
    if let (Some(tokens), Some(most)) = (spec.initial, spec.grants())
        && tokens > most
    {
        let told =
            format_args!("start {tokens} is above the burst, and a bucket holds {most}; write start: {most}");
        findings.error(spot, told);
        return None;
    }
    match spec.quota() {
        Ok(quota) => Some(Terms { quota: quota.map(Arc::new), label: spec.label() }),
        Err(error) => {
            findings.error(spot, error);
            None
        }
    }
}

fn tiers(
    words: &Words<'_>,
    spec: &LimitSpec,
    owner: PolicyFacts<'_>,
    findings: &mut Findings,
) -> Option<Choice> {
    let table = words.get("rate").filter(|rate| matches!(rate.value, Value::Map(_)))?;
    let by = table.text_of("by")?.to_owned();
    let mut values = HashMap::with_hasher(RandomState::default());
    for (name, node) in table.get("values")?.entries() {
        let Some(rate) = node.text().and_then(|text| text.parse().ok()) else { continue };
        let spec = LimitSpec { rate, ..spec.clone() };
        if let Some(terms) = terms(&spec, node.spot, owner, findings) {
            values.insert(name.text.clone(), terms);
        }
    }
    Some(Choice { by, values })
}

fn overrides(node: &Node, spec: &LimitSpec, owner: PolicyFacts<'_>, findings: &mut Findings) -> Vec<Choice> {
    let mut choices: Vec<Choice> = Vec::new();
    for one in node.each_of("overrides") {
        let Some(key) = one.get("key") else { continue };
        let [(name, value)] = key.entries() else {
            findings.error(key.spot, "the key of an override names one attribute, as user.id: vip");
            continue;
        };
        if !owner.by.contains(&name.text) {
            let by = owner.by.join(", ");
            findings.error(
                name.spot,
                format_args!("{} is not part of the key; by is [{by}]", excerpt(&name.text)),
            );
            continue;
        }
        let words = Words { node: one, base: None };
        let (Some(value), Some(rate)) = (value.text(), words.rate("rate")) else { continue };
        // An override has a burst of its own, by default the count of its rate.
        let spec = LimitSpec { rate, burst: words.whole("burst"), ..spec.clone() };
        let Some(terms) = terms(&spec, one.spot, owner, findings) else { continue };
        let at = choices.iter().position(|choice| choice.by == name.text).unwrap_or_else(|| {
            choices.push(Choice { by: name.text.clone(), values: HashMap::default() });
            choices.len() - 1
        });
        if choices[at].values.insert(value.to_owned(), terms).is_some() {
            findings.error(key.spot, format_args!("{}={} is overridden twice", name.text, excerpt(value)));
        }
    }
    choices
}

/// Warns for each queue in which `max_wait` is over before the last place is served: requests are refused while places
/// are free.
fn warn_of_short_waits(limit: &Limit, spot: Spot, findings: &mut Findings) {
    for terms in limit.all_terms() {
        if let Some(text) = short_wait(terms, limit.max_wait) {
            findings.warn(spot, text);
        }
    }
}

fn short_wait(terms: &Terms, max_wait: Duration) -> Option<String> {
    let Some(Quota::LeakyQueue(queue)) = terms.quota.as_deref() else { return None };
    let places = queue.places();
    // A rested queue lets the slack and one more pass at once.
    let served = most_at_once(terms.quota.as_deref()?, max_wait).saturating_sub(queue.slack() + 1);
    if served >= places {
        return None;
    }
    let period = queue.rate().period().as_nanos();
    let wait_for = |place: u64| {
        let nanos = period.saturating_mul(u128::from(place)).div_ceil(u128::from(queue.rate().count()));
        in_words(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    };
    let (label, waits, needed) = (&terms.label, in_words(max_wait), wait_for(places));
    Some(match served {
        0 => format!(
            "max_wait: {waits} is less than the {} between two requests of {label}, so its queue is hardly used; with {needed} \
             all {places} places are",
            wait_for(1)
        ),
        _ => format!(
            "max_wait: within {waits}, {label} serves {served} of the {places} places of its queue, and the others stay free; \
             use max_wait: {needed} or queue: {served}"
        ),
    })
}

/// Builds the `keep_for` of a limit and checks it against each of the limit's terms.
fn keep_for(words: &Words<'_>, limit: &Limit, owner: PolicyFacts<'_>, findings: &mut Findings) -> KeepFor {
    let Some(node) = words.get("keep_for") else { return KeepFor::default() };
    let keep_for = Criticality::ALL.into_iter().fold(KeepFor::default(), |keep_for, level| {
        let written = node.get(level.as_str()).and_then(Node::text).and_then(kept);
        written.map_or(keep_for, |kept| keep_for.with(level, kept))
    });
    let spot = |level: Option<Criticality>| {
        level.and_then(|level| node.entry(level.as_str())).map_or(node.spot, |(name, _)| name.spot)
    };
    for terms in limit.all_terms() {
        let Some(quota) = &terms.quota else { continue };
        if let Err(error) = keep_for.check(quota, limit.max_wait) {
            findings.error(spot(error.level()), format_args!("{error} ({})", terms.label));
            return KeepFor::default();
        }
        warn_of_costs(&keep_for, terms, limit.max_wait, owner, node.spot, findings);
    }
    keep_for
}

/// Warns of a cost that fits the limit but exceeds what `keep_for` leaves for the lowest level: it would never pass.
fn warn_of_costs(
    keep_for: &KeepFor,
    terms: &Terms,
    max_wait: Duration,
    owner: PolicyFacts<'_>,
    spot: Spot,
    findings: &mut Findings,
) {
    let (Some(quota), Some(cost)) = (&terms.quota, owner.cost) else { return };
    if kept_back::moves(quota) {
        // A request that finds the limit empty passes, whatever it costs.
        return;
    }
    let kept_back = keep_for.kept_back(Criticality::Sheddable.into(), quota.capacity());
    let left = most_at_once(quota, max_wait).saturating_sub(kept_back);
    if left > 0 && cost > left {
        let label = &terms.label;
        findings.warn(
            spot,
            format_args!(
                "keep_for: a request may cost {cost}, and of {label} only {left} are left for sheddable requests: at that cost they never pass"
            ),
        );
    }
}
