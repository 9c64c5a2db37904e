//! Builds the terms of limits on requests in flight: `algorithm: adaptive` and `algorithm: concurrency`.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::concurrency::{Adaptive, AdaptiveConcurrency, Aimd, Bounds, Concurrency, Gradient};
use tidegate_core::{Quota, QuotaError};

use super::diagnostic::Findings;
use super::grammars::{factor, share};
use super::keys::{LawWords, PLACE_TTL};
use super::limit_spec::PolicyFacts;
use super::node::{Node, Spot, Words};
use tidegate_gate::policy::{Terms, span};
use tidegate_limits::visible::excerpt;

/// The law if the file names none.
const DEFAULT: &str = "hill-climb";

struct Stated<'w, 'n> {
    words: &'w Words<'n>,
    law: &'static LawWords,
}

impl<'n> Stated<'_, 'n> {
    fn text(&self, key: &str) -> Option<&'n str> {
        self.words.text(key).map(str::trim).or_else(|| self.law.word(key))
    }

    fn time(&self, key: &str) -> Option<Duration> {
        span(self.text(key)?).ok()
    }

    fn part(&self, key: &str) -> Option<f64> {
        share(self.text(key)?)
    }

    /// Returns the bounds: what the file leaves out comes from the law, as far as the two are compatible.
    fn bounds(&self, law: &Adaptive) -> Result<Bounds, QuotaError> {
        let (least, most) = (self.words.whole("min"), self.words.whole("max"));
        let start = self.words.whole("start");
        let own = law.bounds();
        let high = most.unwrap_or_else(|| {
            let needed = least.unwrap_or(1).max(start.unwrap_or(1));
            if own.most() > needed {
                own.most().min(Concurrency::MAX_PLACES)
            } else {
                Concurrency::MAX_PLACES
            }
        });
        // If the law's own minimum leaves no room below the maximum, it is one place.
        let low = least.unwrap_or_else(|| {
            if own.least() < high && own.least() <= start.unwrap_or(high) { own.least() } else { 1 }
        });
        let bounds = Bounds::new(low, high)?;
        bounds.start_at(start.unwrap_or_else(|| own.start().clamp(low, high)))
    }
}

pub(super) fn in_effect(node: &Node, key: &str) -> Option<String> {
    let words = &Words { node, base: None };
    let name = words.text("law").unwrap_or(DEFAULT);
    let stated = Stated { words, law: LawWords::named(name)? };
    let bounds = || stated.bounds(&name.parse().ok()?).ok();
    match key {
        "law" => Some(DEFAULT.to_owned()),
        "min" => bounds().map(|bounds| bounds.least().to_string()),
        "max" => bounds().map(|bounds| bounds.most().to_string()),
        "start" => bounds().map(|bounds| bounds.start().to_string()),
        "ttl" => Some(PLACE_TTL.to_owned()),
        key => stated.law.word(key).map(str::to_owned),
    }
}

/// Builds the terms and checks that one request can enter at all.
pub(super) fn terms(
    words: &Words<'_>,
    spot: Spot,
    owner: PolicyFacts<'_>,
    findings: &mut Findings,
) -> Option<Terms> {
    let spot_of = |key: &str| words.get(key).map_or(spot, |node| node.spot);
    let name = words.text("law").unwrap_or(DEFAULT);
    let stated = Stated { words, law: LawWords::named(name)? };
    let mut fits = true;
    for (key, _) in words.node.entries() {
        let mut others = LawWords::with(&key.text).peekable();
        if others.peek().is_some() && !stated.law.has(&key.text) {
            let others = others.collect::<Vec<_>>().join(", ");
            let key_name = &key.text;
            findings.error(
                key.spot,
                format_args!("{key_name} does not belong to law {name}; it belongs to {others}"),
            );
            fits = false;
        }
    }
    if !fits {
        return None;
    }
    let made = name.parse::<Adaptive>().ok().map(|law| {
        let law = stated.bounds(&law).map(|bounds| law.with_bounds(bounds))?;
        knobs(law, &stated).and_then(|law| guard(law, &stated))
    });
    match made? {
        Ok(guard) => {
            let bounds = guard.law().bounds();
            let ttl = words.text("ttl").unwrap_or(PLACE_TTL).trim();
            let label = format!("adaptive {name} {}..{} ttl {ttl}", bounds.least(), bounds.most());
            if let Some(cost) = owner.cost.filter(|cost| *cost > guard.most()) {
                let most = guard.most();
                let message =
                    format!("a request may cost {cost}, and {label} never grants more than {most} at once");
                findings.error(spot_of("max"), message);
                return None;
            }
            remark_short_ttl(words, ttl_of(words), findings);
            Some(Terms { quota: Some(Arc::new(Quota::from(guard))), label })
        }
        Err(error) => {
            let (key, text) = key_and_error_text(&error, &stated);
            findings.error(spot_of(key), text);
            None
        }
    }
}

/// Sets the parameters of a law. The others are those of the library: who changes one needs measurements of the law
/// itself.
fn knobs(law: Adaptive, stated: &Stated<'_, '_>) -> Result<Adaptive, QuotaError> {
    Ok(match law {
        Adaptive::Aimd(law) => {
            let law = law.backoff(stated.part("backoff").unwrap_or(0.9))?;
            Adaptive::Aimd(stated.time("slow_after").map_or(Ok(law), |timeout| Aimd::timeout(law, timeout))?)
        }
        Adaptive::Gradient(law) => {
            let law = law.backoff(stated.part("backoff").unwrap_or(0.9))?;
            let law = law.tolerance(stated.text("tolerance").and_then(factor).unwrap_or(1.5))?;
            Adaptive::Gradient(
                stated.time("slow_after").map_or(Ok(law), |timeout| Gradient::timeout(law, timeout))?,
            )
        }
        Adaptive::Bbr(law) => {
            // The sensor smooths its readings already.
            let law = law.smoothing(0.0)?;
            // At most 1000 thousandths, which fit a `u16`.
            let busy = stated.part("busy_from").map(|share| (share * 1000.0).round() as u16);
            Adaptive::Bbr(busy.map_or(Ok(law), |from| law.threshold(from))?)
        }
        law => law,
    })
}

fn ttl_of(words: &Words<'_>) -> Duration {
    span(words.text("ttl").unwrap_or(PLACE_TTL)).unwrap_or(Duration::from_secs(60))
}

fn guard(law: Adaptive, stated: &Stated<'_, '_>) -> Result<AdaptiveConcurrency, QuotaError> {
    AdaptiveConcurrency::new(law).ttl(ttl_of(stated.words))
}

/// Returns the key of the file that an error of the core crate is about, and the error in the words of the file.
fn key_and_error_text(error: &QuotaError, stated: &Stated<'_, '_>) -> (&'static str, String) {
    let QuotaError::Parameter { name, .. } = error else { return ("algorithm", error.to_string()) };
    let written = |key: &str| stated.text(key).unwrap_or_default();
    match *name {
        "least" | "most" => {
            let (least, most) = (written("min"), written("max"));
            ("min", format!("min {least} is more than max {most}; use 1 to {most}"))
        }
        "start" => {
            let bounds = match (stated.words.text("min"), stated.words.text("max")) {
                (Some(least), Some(most)) => format!("{} to {}", least.trim(), most.trim()),
                (Some(least), None) => format!("{} or more", least.trim()),
                (None, Some(most)) => format!("1 to {}", most.trim()),
                (None, None) => format!("1 to {}", Concurrency::MAX_PLACES),
            };
            ("start", format!("start {} is outside the bounds; use {bounds}", written("start")))
        }
        "backoff" => {
            let wrong = match written("backoff").trim() {
                "100%" => "leaves the limit as it is",
                _ => "leaves less than a tenth of the limit after one overload",
            };
            ("backoff", format!("backoff {} {wrong}; use 10% to 99%", written("backoff")))
        }
        "tolerance" => ("tolerance", format!("tolerance {} is too much; use 1 to 10", written("tolerance"))),
        name => {
            let key = match name {
                "timeout" => "slow_after",
                name => name,
            };
            (key, stated.words.error_text(key, error))
        }
    }
}

/// Builds the terms and checks that one request can enter at all.
pub(super) fn place_terms(
    words: &Words<'_>,
    spot: Spot,
    owner: PolicyFacts<'_>,
    findings: &mut Findings,
) -> Option<Terms> {
    let max = words.whole("max")?;
    let written = words.text("ttl").unwrap_or(PLACE_TTL);
    let label = format!("concurrency {max} ttl {}", written.trim());
    let spot_of = |key: &str| words.get(key).map_or(spot, |node| node.spot);
    if let Some(cost) = owner.cost.filter(|cost| *cost > max) {
        let message = format!("a request may cost {cost}, and {label} never grants more than {max} at once");
        findings.error(spot_of("max"), message);
        return None;
    }
    let ttl = span(written).ok()?;
    remark_short_ttl(words, ttl, findings);
    match Quota::concurrency(max, ttl) {
        Ok(quota) => Some(Terms { quota: Some(Arc::new(quota)), label }),
        Err(error) => {
            findings.error(spot_of("ttl"), words.error_text("ttl", &error));
            None
        }
    }
}

/// The time for a place below which a file is warned: no work over a network is shorter, and the server's clock has
/// this resolution under load.
const SHORT_TTL: Duration = Duration::from_millis(1);

/// Warns of a `ttl` so short that each place is free again at once.
fn remark_short_ttl(words: &Words<'_>, ttl: Duration, findings: &mut Findings) {
    if ttl < SHORT_TTL
        && !ttl.is_zero()
        && let Some(node) = words.node.get("ttl")
    {
        let message = format_args!(
            "ttl: a place is free again after {}, before any work has ended, so this limits nothing; use a time longer than any work takes, \
             such as {PLACE_TTL}",
            excerpt(node.text().unwrap_or_default().trim())
        );
        findings.warn(node.spot, message);
    }
}
