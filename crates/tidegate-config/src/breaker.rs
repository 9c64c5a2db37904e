//! Builds the terms of a circuit breaker (`algorithm: breaker`).

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::breaker::{BreakerBuilder, CircuitBreaker, Evaluate, Judgement, Window};
use tidegate_core::{Quota, QuotaError};

use super::diagnostic::Findings;
use super::grammars::{
    Failures, WrittenWindow, evaluate, factor, failures, forget, open_for, percent, share, window,
};
use super::keys::Profile;
use super::node::{Node, Spot, Words};
use tidegate_gate::policy::{Terms, span, whole_number};

const OUR_PROFILE: &str = "tidegate";

/// The conditions that trip a breaker. A file that sets one has none of the profile's.
const TRIPS: [&str; 4] = ["failures", "consecutive", "slow_after", "slow_calls"];

struct Stated<'w, 'n> {
    words: &'w Words<'n>,
    profile: &'static Profile,
    trips: bool,
}

impl<'n> Stated<'_, 'n> {
    fn text(&self, key: &str) -> Option<&'n str> {
        self.words.text(key).map(str::trim).or_else(|| self.default(key))
    }

    fn default(&self, key: &str) -> Option<&'static str> {
        if key == "buckets" {
            // A profile with a window of calls sets no buckets for a window of time.
            let has_buckets = matches!(self.window(), Some(WrittenWindow::Time(_)));
            return self.profile.word(key).or(Some("10")).filter(|_| has_buckets);
        }
        let hidden = TRIPS.contains(&key) && self.trips;
        self.profile.word(key).filter(|_| !hidden)
    }

    /// Returns a word about how open times grow: ours, if the file says how long they may become and the profile's do
    /// not grow.
    fn growth(&self, key: &str) -> Option<&'static str> {
        let stays = self.profile.word("growth") == Some("1")
            && self.written_open_for().is_some_and(|open| open.1.is_some());
        if stays { Profile::named(OUR_PROFILE)?.word(key) } else { self.profile.word(key) }
    }

    /// Returns when the thresholds are compared: at most a thousand times in a window.
    fn evaluates(&self) -> Option<Evaluate> {
        Some(match (evaluate(self.profile.word("evaluate")?)?, self.window()?) {
            (Evaluate::Every(span), WrittenWindow::Time(window)) => Evaluate::Every(span.max(window / 1000)),
            (evaluate, _) => evaluate,
        })
    }

    fn judgement(&self) -> Option<Judgement> {
        if let Some(successes) = self.number("close_after") {
            return Some(Judgement::Successes(successes));
        }
        Some(match self.profile.word("risk") {
            Some(risk) => Judgement::Evidence(u32::from(percent(risk)?) * 10_000),
            None => Judgement::Batch(self.number("probes")?),
        })
    }

    fn number(&self, key: &str) -> Option<u32> {
        u32::try_from(whole_number(self.text(key)?).ok()?).ok()
    }

    fn time(&self, key: &str) -> Option<Duration> {
        span(self.text(key)?).ok()
    }

    fn window(&self) -> Option<WrittenWindow> {
        self.text("window").and_then(window)
    }

    /// Returns the least number of calls. The profile's may exceed a shorter window of the file.
    fn min_calls(&self) -> Option<u32> {
        let min_calls = self.number("min_calls")?;
        Some(match (self.window()?, self.words.get("min_calls")) {
            (WrittenWindow::Calls(calls), None) => min_calls.min(calls),
            _ => min_calls,
        })
    }

    fn written_open_for(&self) -> Option<(Duration, Option<Duration>)> {
        self.words.text("open_for").and_then(open_for)
    }

    /// Returns the first open time and the longest. The profile's longest holds unless the file has one, or a longer first
    /// one.
    fn open_times(&self) -> Option<(Duration, Duration)> {
        let (first, longest) = match self.written_open_for() {
            Some(written) => written,
            None => (self.profile_time("open_for")?, None),
        };
        let longest = longest.unwrap_or_else(|| {
            self.profile_time("open_at_most").filter(|longest| *longest > first).unwrap_or(first)
        });
        Some((first, longest))
    }

    fn profile_time(&self, key: &str) -> Option<Duration> {
        span(self.profile.word(key)?).ok()
    }
}

pub(super) fn in_effect(node: &Node, key: &str) -> Option<String> {
    let words = &Words { node, base: None };
    let profile = Profile::named(words.text("profile").unwrap_or(OUR_PROFILE))?;
    let trips = TRIPS.iter().any(|key| words.get(key).is_some());
    let stated = Stated { words, profile, trips };
    match key {
        "min_calls" => stated.min_calls().map(|calls| calls.to_string()),
        "open_for" => {
            let first = stated.profile.word("open_for")?;
            Some(match stated.profile.word("open_at_most") {
                Some(longest) => format!("{first}..{longest}"),
                None => first.to_owned(),
            })
        }
        key => stated.default(key).map(str::to_owned),
    }
}

pub(super) fn terms(words: &Words<'_>, spot: Spot, findings: &mut Findings) -> Option<Terms> {
    let spot_of = |key: &str| words.get(key).map_or(spot, |node| node.spot);
    for (one, other) in [("slow_after", "slow_calls"), ("slow_calls", "slow_after")] {
        if words.get(one).is_some() && words.get(other).is_none() {
            findings.error(spot_of(one), format_args!("{one} needs {other} too"));
            return None;
        }
    }
    if words.text("window").and_then(window).is_some_and(|window| matches!(window, WrittenWindow::Calls(_)))
        && let Some(buckets) = words.get("buckets")
    {
        findings.error(buckets.spot, "buckets are parts of a time; a window of calls has none");
        return None;
    }
    let profile = Profile::named(words.text("profile").unwrap_or(OUR_PROFILE))?;
    let stated = Stated { words, profile, trips: TRIPS.iter().any(|key| words.get(key).is_some()) };
    let built = builder(&stated).map(BreakerBuilder::build)?;
    match built {
        Ok(breaker) => {
            remark_unopened(&stated, findings);
            Some(Terms { quota: Some(Arc::new(Quota::Breaker(breaker))), label: label(&stated) })
        }
        Err(error) => {
            findings.error(
                spot_of(key_of(&error)),
                error_text(&error, words, stated.text("shed_at_most").is_some()),
            );
            None
        }
    }
}

/// Warns of open times of a breaker that sheds: it opens only if it was forced open and its probes then fail.
fn remark_unopened(stated: &Stated<'_, '_>, findings: &mut Findings) {
    if stated.text("shed_at_most").is_none() {
        return;
    }
    if let Some(node) = stated.words.node.get("open_for") {
        findings.warn(
            node.spot,
            "open_for: a breaker with shed_at_most refuses a share and does not open by itself; this counts only after it was \
             forced open",
        );
    }
}

/// Describes the breaker to the builder; `None` if a word is invalid, which the shape check reported.
fn builder(stated: &Stated<'_, '_>) -> Option<BreakerBuilder> {
    let text = |key: &str| stated.text(key);
    let time = |key: &str| stated.time(key);
    let mut builder = CircuitBreaker::builder().without_failure_ratio();
    let window = match stated.window()? {
        WrittenWindow::Calls(calls) => Window::Calls(calls),
        WrittenWindow::Time(span) => Window::Time { span, buckets: stated.number("buckets")? },
    };
    builder = builder.window(window).min_calls(stated.min_calls()?);
    match text("failures").map(failures) {
        Some(Some(Failures::Share(share))) => builder = builder.failure_ratio(share),
        Some(Some(Failures::Count(count))) => builder = builder.failures(count),
        Some(None) => return None,
        None => {}
    }
    if let Some(most) = text("shed_at_most") {
        builder = builder.shed_at_most(f64::from(percent(most)?) / 100.0);
    }
    if let (Some(after), Some(slow)) = (time("slow_after"), text("slow_calls")) {
        builder = builder.slow_calls(after, share(slow)?);
    }
    if let Some(failures) = stated.number("consecutive") {
        builder = builder.consecutive(failures);
    }
    if stated.profile.word("trips") == Some("above") {
        builder = builder.above();
    }
    if stated.profile.strictly_after {
        builder = builder.strictly_after();
    }
    let (first, longest) = stated.open_times()?;
    builder = builder.open_for(first).open_at_most(longest);
    builder = builder
        .evaluate(stated.evaluates()?)
        .growth(factor(stated.growth("growth")?)?)
        .jitter(share(stated.profile.word("jitter")?)?)
        .probes(u64::from(stated.number("probes")?))
        .ttl(time("ttl")?)
        .steps(u8::try_from(whole_number(stated.profile.word("steps")?).ok()?).ok()?)
        .judgement(stated.judgement()?);
    let after = forget(stated.growth("forget_after")?)?;
    Some(builder.forget_after(after.unwrap_or(Duration::MAX)))
}

/// Returns the key of the file that an error of the core crate is about.
fn key_of(error: &QuotaError) -> &'static str {
    match error {
        QuotaError::Parameter { name, .. } => match *name {
            "slow_ratio" => "slow_calls",
            "failure_ratio" => "failures",
            "open_at_most" => "open_for",
            // Of a profile that compares at other times than a breaker that sheds.
            "evaluate" => "profile",
            name => name,
        },
        _ => "algorithm",
    }
}

fn error_text(error: &QuotaError, words: &Words<'_>, sheds: bool) -> String {
    match error {
        QuotaError::Parameter { name: "failures" | "consecutive", .. } if sheds => format!(
            "{} opens a breaker, and shed_at_most keeps it from opening; use a share, as failures: 50%",
            key_of(error)
        ),
        QuotaError::Parameter { name: "failure_ratio" | "slow_ratio", value, .. }
            if sheds && value == "1" =>
        {
            format!("{}: 100% allows all calls, so nothing would be shed; use less", key_of(error))
        }
        QuotaError::Parameter { name: "shed_at_most", .. } => {
            "shed_at_most: 100% would let in no call to see whether the service recovers; use 1% to 99%"
                .to_owned()
        }
        QuotaError::Parameter { name: "open_at_most", .. } => {
            "open_for: the longest time is shorter than the first, or longer than 146 years; write open_for: 5s..60s"
                .to_owned()
        }
        QuotaError::Parameter { name: "evaluate", .. } if sheds => {
            "shed_at_most: the breaker of this profile does not compare at each call; use profile: sre"
                .to_owned()
        }
        QuotaError::Parameter { name: "slow_ratio", .. } => {
            "slow_calls: 0% of all calls are always slow; use 1% to 100%".to_owned()
        }
        // Its value names the calls of the window too.
        QuotaError::Parameter { name: "min_calls" | "failures", .. } => error.to_string(),
        error => words.error_text(key_of(error), error),
    }
}

/// Returns the breaker in short form, such as `breaker failures 50% in 10s open 5s`, or `breaker failures 5% in 30s
/// shed 80% at most`.
fn label(stated: &Stated<'_, '_>) -> String {
    let text = |key: &str| stated.text(key).unwrap_or_default();
    let mut label = "breaker".to_owned();
    let mut sign = ' ';
    if let Some(failures) = stated.text("failures") {
        let _ = write!(label, "{sign}failures {failures}");
        sign = '/';
    }
    if let Some(share) = stated.text("slow_calls") {
        let _ = write!(label, "{sign}slow {share} after {}", text("slow_after"));
        sign = '/';
    }
    if let Some(failures) = stated.text("consecutive") {
        let _ = write!(label, "{sign}consecutive {failures}");
    }
    let _ = match stated.text("shed_at_most") {
        Some(most) => write!(label, " in {} shed {most} at most", text("window")),
        None => {
            let first = text("open_for").split("..").next().unwrap_or_default();
            write!(label, " in {} open {}", text("window"), first.trim())
        }
    };
    label
}
