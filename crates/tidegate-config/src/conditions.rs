//! Reads `when` of a policy, `follows` of a limit, and `switches`.

use std::time::Duration;

use tidegate_core::{QuotaError, Rate};

use super::diagnostic::Findings;
use super::limit_spec::LimitSpec;
use super::names::{self, instead};
use super::node::{Name, Node, Spot, Value};
use tidegate_gate::policy::{
    Condition, ConditionError, Follows, GrammarError, Limit, Source, SourceError, Trigger, WrittenRate,
    is_attribute_name, span,
};
use tidegate_limits::visible::excerpt;

/// Reads a condition; the error says what is wrong and suggests the nearest word.
pub(super) fn condition(text: &str) -> Result<Condition, String> {
    text.parse().map_err(|error| match error {
        ConditionError::NoSide { .. } | ConditionError::Source(SourceError::Unknown { .. })
            if let Some(instead) = instead_of_an_expression(text) =>
        {
            instead
        }
        ConditionError::Source(error) => error_text(&error),
        ConditionError::Part { word } => {
            let hint = instead(&word, Condition::PARTS.into_iter());
            format!("unknown word \"{}\" after the value{hint}", excerpt(&word))
        }
        other => other.to_string(),
    })
}

/// Returns what to write in place of an expression: a number with another sign, or an attribute of the request, of
/// which no condition is.
fn instead_of_an_expression(text: &str) -> Option<String> {
    let sides = [(">=", "above"), ("<=", "below"), (">", "above"), ("<", "below")];
    for (sign, word) in sides {
        if let Some((source, value)) = text.split_once(sign)
            && let Ok(condition) = format!("{} {word} {}", source.trim(), value.trim()).parse::<Condition>()
        {
            let source = condition.source().to_string();
            let (shown, value) = (excerpt(text), excerpt(value.trim()));
            return Some(format!("\"{shown}\" is not a condition; write {source} {word} {value}"));
        }
    }
    if let Some(matching) = of_a_request(text) {
        return Some(format!(
            "\"{}\" selects requests, and a condition is on a number of this process, as cpu above 80%; write match: {matching}",
            excerpt(text)
        ));
    }
    let first = || text.split_whitespace().next().filter(|word| is_attribute_name(word));
    let written = names::of_expression(text);
    let name = excerpt(written.or_else(first)?);
    let is_short = text.len() <= 60 && text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    let compared = if written.is_some() && is_short && !text.contains('\'') {
        text.trim().to_owned()
    } else {
        format!("{name} > 10")
    };
    Some(format!(
        "{name} is an attribute of a request, and a condition is on a number of this process, as cpu above 80%; select \
         requests by match: {{ attributes: {{ {name}: VALUE }} }}, or compare in the cost, as cost: '{compared} ? 10 : 1'"
    ))
}

/// Returns the match for a comparison of a request's path, method or host, as `path == /login`.
fn of_a_request(text: &str) -> Option<String> {
    let signs = ["==", "!=", "=~", "=", " is ", " matches "];
    let (name, sign, value) =
        signs.into_iter().find_map(|sign| text.split_once(sign).map(|(name, value)| (name, sign, value)))?;
    let name = name.trim().trim_start_matches("request.");
    let value = value.trim().trim_matches(['"', '\'']);
    let is_one = !value.is_empty() && !value.contains(|c: char| c.is_whitespace() || "&|()=\"'".contains(c));
    let (key, value) = match name {
        _ if !is_one => return None,
        "path" | "uri" | "url" if value.starts_with(['/', '^']) => {
            ("path", names::path_meant(value).unwrap_or_else(|| value.to_owned()))
        }
        "method" if value.bytes().all(|byte| byte.is_ascii_alphabetic()) => ("method", value.to_owned()),
        "host" if value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte)) => {
            ("host", value.to_owned())
        }
        _ => return None,
    };
    // In a map of one line, or in a pattern, these would be something else.
    if value.contains(|char: char| ",{}[]#$\\^".contains(char)) {
        return None;
    }
    let one = format!("{{ {key}: {} }}", excerpt(&value));
    Some(if sign == "!=" { format!("{{ not: {one} }}") } else { one })
}

/// Reads the condition of a switch, and how long it stays off after the last reading (`stale after`).
pub(super) fn of_switch(text: &str) -> Result<(Condition, Option<Duration>), String> {
    let read = condition(text)?;
    let says = text.split(',').any(|part| part.trim().starts_with("stale after"));
    let lasts = says.then(|| read.stale_after());
    let read = read.stale(Condition::STALE_AFTER).map_err(|error| error.to_string())?;
    Ok((read, lasts))
}

/// Returns the condition of a switch with every part that its text leaves out; `None` if the text is none.
pub(super) fn of_switch_in_effect(text: &str) -> Option<String> {
    let (condition, lasts) = of_switch(text).ok()?;
    Some(format!("{condition}, stale after {}s", lasts.unwrap_or(Trigger::LASTING).as_secs_f64()))
}

/// Returns a condition with every part that its text leaves out.
pub(super) fn in_effect(text: &str) -> Option<String> {
    let condition = condition(text).ok()?;
    let shown = condition.to_string();
    let silent = condition.stale_after() == Condition::STALE_AFTER;
    // A condition on a switch has no such part.
    if !silent || matches!(condition.source(), Source::Switch(_)) {
        return Some(shown);
    }
    Some(format!("{shown}, stale after {}s", Condition::STALE_AFTER.as_secs()))
}

fn error_text(error: &SourceError) -> String {
    match error {
        SourceError::Unknown { word } => {
            let hint = instead(word, Source::WORDS.into_iter());
            format!("unknown word \"{}\"{hint}", excerpt(word))
        }
        other => other.to_string(),
    }
}

#[derive(Debug)]
pub(super) struct Followed<'t> {
    pub(super) source: Source,
    low: &'t str,
    high: &'t str,
    floor: WrittenRate,
}

/// Reads a number, its range and the rate reached there, such as `memory 70%..90% to 100/s`.
pub(super) fn followed(text: &str) -> Result<Followed<'_>, String> {
    let source = |text: &str| text.trim().parse::<Source>().map_err(|error| error_text(&error));
    let (range, floor) = match text.rsplit_once(" to ") {
        Some((range, floor)) => (range, Some(floor.trim())),
        None => (text, None),
    };
    let ends = range.rsplit_once("..").and_then(|(before, high)| {
        let (name, low) = before.trim_end().rsplit_once(char::is_whitespace)?;
        Some((name, low, high.trim()))
    });
    let Some((name, low, high)) = ends.filter(|(_, _, high)| !high.is_empty()) else {
        if !range.contains("..") {
            source(range)?;
        }
        return Err(format!(
            "\"{}\" has no range over which the rate falls; write memory 70%..90% to 10/s, or signal queue-length 100..1000 to 10/s",
            excerpt(text)
        ));
    };
    if let Some(meant) = unit_apart(name, low, high, floor) {
        return Err(format!("\"{}\" has a blank within a value; write {meant}", excerpt(text)));
    }
    let source = source(name)?;
    let Some(floor) = floor else {
        return Err(format!(
            "\"{}\" has no rate at the upper end; write {} to 10/s",
            excerpt(text),
            excerpt(text.trim())
        ));
    };
    let floor = floor.parse().map_err(|error: GrammarError| error.to_string())?;
    Ok(Followed { source, low, high, floor })
}

/// Returns what to write for a lower end whose unit stands apart, as `latency 200 ms..1 s`, which reads as a part of
/// the name.
fn unit_apart(name: &str, low: &str, high: &str, floor: Option<&str>) -> Option<String> {
    if low.starts_with(|first: char| first.is_ascii_digit() || matches!(first, '-' | '.')) {
        return None;
    }
    let (name, number) = name.trim_end().rsplit_once(char::is_whitespace)?;
    let source = name.parse::<Source>().ok()?;
    let low = format!("{number}{low}");
    source.measure(&low).ok()?;
    let high: String = high.split_whitespace().collect();
    let floor = excerpt(floor.unwrap_or("10/s"));
    Some(format!("{source} {}..{} to {floor}", excerpt(&low), excerpt(&high)))
}

pub(super) fn conditions(policy: &Node) -> Vec<Condition> {
    let written = policy.each_of("when");
    written.iter().filter_map(|node| condition(node.text()?).ok()).collect()
}

/// The most conditions of a policy that are compared with each other; nobody writes more by hand.
const COMPARED: usize = 32;

/// Warns of two conditions of a policy that never hold at once.
pub(super) fn check_together(when: &[Condition], policy: &Node, findings: &mut Findings) {
    let Some((name, _)) = policy.entry("when") else { return };
    let when = &when[..when.len().min(COMPARED)];
    let pair = when
        .iter()
        .enumerate()
        .find_map(|(at, one)| Some((one, when[at + 1..].iter().find(|other| one.excludes(other))?)));
    if let Some((one, other)) = pair {
        findings.warn(
            name.spot,
            format_args!(
                "when: `{one}` and `{other}` never hold at once, so the policy is never in force; write a policy for each"
            ),
        );
    }
}

/// Makes the rate of a limit follow a number, if its words say so. `None`: the words do not fit together, which is
/// reported.
pub(super) fn follow(node: &Node, spec: &LimitSpec, limit: Limit, findings: &mut Findings) -> Option<Limit> {
    let Some(range) = node.get("follows") else { return Some(limit) };
    if let Some(rate) = node.get("rate").filter(|rate| matches!(rate.value, Value::Map(_))) {
        findings.error(
            rate.spot,
            "a table of rates and follows exclude each other; write a policy for each rate",
        );
        return None;
    }
    for key in ["overrides", "calendar"] {
        if let Some((Name { spot, .. }, _)) = node.entry(key) {
            findings
                .error(*spot, format_args!("{key} and follows exclude each other; write a policy for each"));
            return None;
        }
    }
    let Followed { source, low, high, floor: written } = followed(range.text()?).ok()?;
    let mut marks = [0.0; 2];
    for (mark, text) in marks.iter_mut().zip([low, high]) {
        match source.measure(text) {
            Ok(value) => *mark = value,
            Err(error) => {
                findings.error(range.spot, format_args!("follows: {error}"));
                return None;
            }
        }
    }
    let (WrittenRate::Per { count: most, times, unit }, WrittenRate::Per { count: least, .. }) =
        (spec.rate, written)
    else {
        findings
            .error(range.spot, "follows: a rate that follows a number has two ends; neither is unlimited");
        return None;
    };
    let period = spec.rate.period()?;
    if written.period() != Some(period) {
        findings.error(
            range.spot,
            format_args!(
                "follows: {written} is over another time than {}; write both over the same",
                spec.rate
            ),
        );
        return None;
    }
    if least > most {
        findings.error(
            range.spot,
            format_args!("follows: {written} is above the rate {}, from which it is to fall", spec.rate),
        );
        return None;
    }
    if least == most {
        findings.warn(
            range.spot,
            format_args!("follows: {written} is the rate itself, so nothing follows {source}; use less"),
        );
    }
    let at = |count| LimitSpec { rate: WrittenRate::Per { count, times, unit }, ..spec.clone() };
    let rates = Rate::new(least, period).ok()?..=Rate::new(most, period).ok()?;
    let quota = |rate: Rate| {
        let unlimited = || QuotaError::Parameter {
            name: "rate",
            value: rate.count().to_string(),
            want: "limits nothing",
        };
        at(rate.count()).quota()?.ok_or_else(unlimited)
    };
    let words = format!("{} floor {written} follows {source} {low}..{high}", limit.terms.label);
    match Follows::new(source, rates, marks[0]..=marks[1], quota) {
        Ok(follows) => Some(Limit::following(follows, words)),
        Err(QuotaError::Parameter { name: "marks", want, .. }) => {
            findings.error(range.spot, format_args!("follows: {low} and {high} {want}"));
            None
        }
        Err(error) => {
            findings.error(range.spot, format_args!("follows: {error}"));
            None
        }
    }
}

/// Returns the limit with its rate at the floor, if the rate follows a number: the floor too must let one request
/// pass.
pub(super) fn at_floor(node: &Node, spec: &LimitSpec) -> Option<(LimitSpec, Spot)> {
    let follows = node.get("follows")?;
    Some((LimitSpec { rate: followed(follows.text()?).ok()?.floor, ..spec.clone() }, follows.spot))
}

fn switches(file: &Node) -> impl Iterator<Item = (&Name, &[Node])> {
    let switches = file.entries_of("switches").iter();
    switches.map(|(name, triggers)| (name, triggers.each()))
}

pub(super) fn written_triggers(file: &Node) -> impl Iterator<Item = (&Name, &Node)> {
    switches(file).flat_map(|(name, triggers)| triggers.iter().map(move |one| (name, one)))
}

/// Builds the triggers that have no mistake; the mistakes of the others are among the findings.
pub(super) fn triggers(file: &Node, findings: &mut Findings) -> Vec<Trigger> {
    let mut built = Vec::new();
    for (name, _) in switches(file).filter(|(_, triggers)| triggers.is_empty()) {
        let shown = excerpt(&name.text);
        findings.error(
            name.spot,
            format_args!(
                "switch \"{shown}\": nothing turns it off; write `off_when: cpu above 80%`, or leave the switch out"
            ),
        );
    }
    for (name, node) in written_triggers(file) {
        findings.subject = format!("switch \"{}\": ", excerpt(&name.text));
        built.extend(trigger(name, node, findings));
    }
    findings.subject.clear();
    built
}

/// Builds a trigger; `None` if it is invalid, which is reported here or was by the shape check.
fn trigger(name: &Name, node: &Node, findings: &mut Findings) -> Option<Trigger> {
    let off_when = node.get("off_when")?;
    let (condition, lasting) = of_switch(off_when.text()?).ok()?;
    let mut said = |spot: Spot, key: &str, error: &dyn std::fmt::Display| {
        findings.error(spot, format_args!("{key}: {error}"));
    };
    let mut trigger =
        Trigger::new(&name.text, condition).map_err(|error| said(off_when.spot, "off_when", &error)).ok()?;
    if let Some(below) = node.get("below") {
        let level = below.text()?.parse().ok()?;
        trigger = trigger.below(level).map_err(|error| said(below.spot, "below", &error)).ok()?;
    }
    if let Some(hold) = node.get("hold") {
        let time = span(hold.text()?).ok()?;
        trigger = trigger.hold(time).map_err(|error| said(hold.spot, "hold", &error)).ok()?;
    }
    if let Some(lasting) = lasting {
        trigger = trigger.lasting(lasting).map_err(|error| said(off_when.spot, "off_when", &error)).ok()?;
    }
    Some(trigger)
}
