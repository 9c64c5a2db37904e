//! What is happening now, as one JSON object: for `/v1/overview`, and each second for all listeners of `/v1/live`.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use foldhash::fast::RandomState;
use serde_json::{Value, json};
use tidegate::clock::SystemClock;

use crate::board::Sum;
use crate::busiest::Named;
use crate::history::Step;
use crate::numbers::{Counts, Refused, Series, ServerSeries};
use crate::usual::Usual;
use crate::watch::{State, Watch};

/// Policies with a row of their own, those with the most refusals first. The number of the others is told.
const ROWS: usize = 256;

/// Policies with a line.
const LINES: usize = 64;

/// Points of a line.
const POINTS: u64 = 90;

/// Lines that are kept: of four windows, about 3 MiB.
const KEPT_LINES: usize = 4 * (LINES + 1);

/// Lines of minutes and hours, with the time to which they reach, by the seconds of the window and the policy. They change
/// once a minute at most, and each takes a reading of the history's file; pages ask every two seconds.
pub(crate) type Lines = HashMap<(u64, Option<u16>), (u64, Value), RandomState>;

/// Returns what is happening. Rates are of the last 10 seconds, shares of the last minute, and refused keys of the last
/// five; lines, and which policies are quiet, of `window`. Names of keys only if `reveal`.
///
/// Without lines it takes the watch's lock once, and does not ask the history's file.
pub(crate) fn overview(watch: &Watch, window: Duration, reveal: bool, with_lines: bool) -> Value {
    let history = watch.history.state();
    let (canaries, unguarded) = watch.canaries.shown();
    let (mut overview, mut rows, now) = {
        let state = watch.state.lock();
        let (ten, minute) = (state.recent.ten_seconds(), state.recent.minute());
        let shown = Shown { state: &state, ten: &ten, minute: &minute, reveal };
        let (rows, quiet, more) = shown.rows(window);
        let mut overview = shown.server();
        overview["quiet"] = json!(quiet);
        overview["more"] = json!(more);
        (overview, rows, state.second)
    };
    overview["window_s"] = json!(window.as_secs());
    overview["dropped"] = json!(watch.feed.dropped());
    overview["history"] =
        json!({ "on_disk": history.on_disk, "up": history.up, "from": history.oldest.and_then(rfc3339) });
    overview["canaries"] = canaries.into();
    overview["canaries_unguarded"] = json!(unguarded);
    if with_lines {
        let span = LineSpan::new(window, now);
        overview["requests"]["line"] = line(watch, &span, None, || {
            let counts = watch.history.server(span.step, span.from, span.to);
            span.line(counts.iter().map(|(at, one)| (*at, one.passed(), one.of(ServerSeries::Denied))))
        });
        for (at, (policy, row)) in rows.iter_mut().enumerate() {
            let name = row["name"].as_str().filter(|_| at < LINES).map(str::to_owned);
            row["line"] = name.map_or(json!([]), |name| {
                line(watch, &span, Some(*policy), || {
                    let counts = watch.history.policy(&name, span.step, span.from, span.to);
                    span.line(counts.iter().map(|(at, one)| (*at, one.passed(), one.of(Series::Denied))))
                })
            });
        }
    }
    overview["policies"] = rows.into_iter().map(|(_, row)| row).collect();
    overview
}

/// Returns a line: one of seconds is made, others only if they reach further than the one that is kept.
fn line(watch: &Watch, span: &LineSpan, policy: Option<u16>, make: impl FnOnce() -> Value) -> Value {
    if span.step == Step::Second {
        return make();
    }
    let key = (span.window, policy);
    let kept = watch.lines.lock().get(&key).filter(|(to, _)| *to == span.to).map(|(_, line)| line.clone());
    kept.unwrap_or_else(|| {
        let line = make();
        let mut lines = watch.lines.lock();
        if lines.len() >= KEPT_LINES {
            lines.clear();
        }
        lines.insert(key, (span.to, line.clone()));
        line
    })
}

/// The state, summed.
struct Shown<'s> {
    state: &'s State,
    ten: &'s Sum,
    minute: &'s Sum,
    reveal: bool,
}

impl Shown<'_> {
    fn server(&self) -> Value {
        let (state, ten) = (self.state, self.ten);
        let vitals = &state.vitals;
        let (number, since) = vitals.configuration;
        let since = SystemClock::wall_time(since).as_nanos() / 1_000_000_000;
        let rate = |series: ServerSeries| rounded(ten.rate(ten.server.of(series)));
        let (level, text) = self.verdict();
        json!({
            "at": rfc3339(state.second),
            "started": rfc3339(state.started),
            "configuration": { "number": number, "since": rfc3339(since) },
            "store": { "kind": vitals.store, "away": vitals.store_away.as_deref(), "fleet": vitals.fleet },
            "requests": {
                "per_second": {
                    "allowed": rate(ServerSeries::Allowed),
                    "delayed": rate(ServerSeries::Delayed),
                    "denied": rate(ServerSeries::Denied),
                    "unmatched": rate(ServerSeries::Unmatched),
                    "failed": rate(ServerSeries::Failed),
                },
                "refused_share": share(self.minute.server.refused()),
                "usual": state.usual(None).map(usual),
                "unusual": state.unusual_since(None).is_some(),
            },
            "deciding": {
                "p50_ns": state.took(0.5),
                "p99_ns": state.took(0.99),
                "in_flight": vitals.in_flight,
            },
            "verdict": { "level": level, "text": text },
        })
    }

    /// Returns the rows of the policies that saw something in the window, by number, how many saw nothing, and how many
    /// rows are left out.
    fn rows(&self, window: Duration) -> (Vec<(u16, Value)>, usize, usize) {
        let from = self.state.second.saturating_sub(window.as_secs());
        let mut quiet = 0;
        let mut active = Vec::new();
        for (policy, last) in self.state.board.policies() {
            if last == 0 || last < from {
                quiet += 1;
            } else {
                let refused = self.minute.policies.get(&policy).map(Counts::refused).unwrap_or_default();
                active.push((Reverse(refused), policy));
            }
        }
        active.sort_unstable();
        let more = active.len().saturating_sub(ROWS);
        active.truncate(ROWS);
        (active.into_iter().map(|(_, policy)| (policy, self.row(policy))).collect(), quiet, more)
    }

    fn row(&self, policy: u16) -> Value {
        let (board, busiest) = (&self.state.board, &self.state.busiest);
        let ten = self.ten.policies.get(&policy).copied().unwrap_or_default();
        let minute = self.minute.policies.get(&policy).copied().unwrap_or_default();
        let rate = |series: Series| rounded(self.ten.rate(ten.of(series)));
        let hottest = busiest.hottest(policy).map(|(key, units)| {
            json!({
                "key": shown_key(busiest.name_of(policy, key).as_ref(), key, self.reveal),
                "per_second": rounded(units),
                "of_rate": board.share_of_rate(policy, units).map(rounded),
            })
        });
        // A list of a minute or two; without a refusal in the last minute it is of the past.
        let most_refused = (minute.of(Series::Denied) > 0).then(|| busiest.most_refused(policy)).flatten();
        let most_refused = most_refused
            .map(|(first, _)| shown_key(busiest.name_of(policy, first.key).as_ref(), first.key, self.reveal));
        json!({
            "name": board.name_of(policy).as_deref(),
            "per_second": {
                "allowed": rate(Series::Allowed),
                "delayed": rate(Series::Delayed),
                "denied": rate(Series::Denied),
                "over": rate(Series::Over),
                "near": rate(Series::Near),
                "would_deny": rate(Series::WouldDeny),
                "errors": rate(Series::Errors),
            },
            "denied_share": share(minute.refused()),
            "usual": self.state.usual(Some(policy)).map(usual),
            "unusual": self.state.unusual_since(Some(policy)).is_some(),
            "keys_refused": board.keys_refused(policy),
            "most_refused": most_refused,
            "hottest": hottest,
        })
    }

    /// Says in one sentence whether all is well, and who is to blame if not.
    fn verdict(&self) -> (&'static str, String) {
        let refused = self.minute.server.refused();
        let known = self.state.usual(None);
        let mut text = match refused.share() {
            None => "no requests in the last minute".to_owned(),
            Some(share) => format!("{} % of requests refused", percent(share)),
        };
        match known {
            Some(usual) => text.push_str(&format!("; {}", range(usual))),
            None => text.push_str("; no baseline yet"),
        }
        let since = self.state.unusual_since(None);
        let (cause, cause_since) = self.cause(since.is_some());
        if let Some(since) = since.or(cause_since).and_then(time_of_day) {
            text.push_str(&format!("; since {since} UTC"));
        }
        if let Some(cause) = cause {
            text.push_str(&format!("; {cause}"));
        }
        if let Some(trouble) = self.trouble() {
            return ("trouble", format!("{trouble}; {text}"));
        }
        let level = match (since.or(cause_since), known) {
            (Some(_), _) => "unusual",
            (None, Some(_)) => "usual",
            (None, None) => "unknown",
        };
        (level, text)
    }

    /// Says what keeps requests from being decided, if anything does.
    fn trouble(&self) -> Option<String> {
        if let Some(why) = &self.state.vitals.store_away {
            let why: String = why.chars().take(200).collect();
            return Some(format!("the store cannot be asked: {why}"));
        }
        let (all, failed) =
            (self.minute.server.refused().requests, self.minute.server.of(ServerSeries::Failed));
        let failing = failed as f64 / all.max(1) as f64;
        (failing >= 0.01).then(|| format!("{} % of requests could not be decided", percent(failing)))
    }

    /// Names the policy that refused most in the last minute, of those that refuse more than usual if there are any, and
    /// its key if one has most of the refusals. The second: since when it refuses more than usual. `is_unusual`: whether
    /// the whole server does; otherwise policies as usual are not named.
    fn cause(&self, is_unusual: bool) -> (Option<String>, Option<u64>) {
        let since = |policy: u16| self.state.unusual_since(Some(policy));
        let refusing = self.minute.policies.iter().map(|(policy, counts)| (*policy, counts.refused()));
        let refusing = refusing.filter(|(_, refused)| refused.denied > 0);
        let most = refusing
            .max_by_key(|(policy, refused)| (since(*policy).is_some(), refused.denied, Reverse(*policy)));
        let Some((policy, refused)) = most.filter(|(policy, _)| is_unusual || since(*policy).is_some())
        else {
            return (None, None);
        };
        let name = self.state.board.name_of(policy).unwrap_or_default();
        let mut text = format!("`{name}` refused {} %", percent(refused.share().unwrap_or(0.0)));
        if since(policy).is_some()
            && let Some(usual) = self.state.usual(Some(policy))
        {
            text.push_str(&format!(" ({})", range(usual)));
        }
        match self.state.busiest.most_refused(policy) {
            Some((busy, share)) if share > 0.5 => {
                let key = shown_key(busy.name.as_ref(), busy.key, self.reveal);
                text.push_str(&format!(", {} % of it to one key, {key}", percent(share)));
            }
            _ => match self.state.board.keys_refused(policy) {
                0 => {}
                1 => text.push_str(", to one key"),
                keys => text.push_str(&format!(", to {keys} keys")),
            },
        }
        (Some(text), since(policy))
    }
}

/// Returns what stands for a key: its name, or its digest, or a number with `~` as long as neither is known.
pub(crate) fn shown_key(named: Option<&Named>, key: u64, reveal: bool) -> String {
    match named {
        Some(named) if reveal => (*named.name).to_owned(),
        Some(named) => (*named.digest).to_owned(),
        None => format!("~{key:016x}"),
    }
}

/// Rounds a rate to thousandths.
pub(crate) fn rounded(rate: f64) -> f64 {
    (rate * 1_000.0).round() / 1_000.0
}

/// A share with five digits after the point; `None`: there was no request.
fn share(refused: Refused) -> Option<f64> {
    refused.share().map(|share| (share * 1e5).round() / 1e5)
}

fn usual(usual: &Usual) -> Value {
    json!({ "low": usual.low, "high": usual.high, "days": usual.days })
}

/// `usual at this hour 0.4 to 1.2 %`.
fn range(usual: &Usual) -> String {
    let when = if usual.from_last_day { "in the last 24 hours" } else { "at this hour" };
    let (low, high) = (percent(usual.low), percent(usual.high));
    if low == high { format!("usual {when} {low} %") } else { format!("usual {when} {low} to {high} %") }
}

/// A share in percent, with one digit after the point, or two below one percent: `17.1`, `0.42`, `0`.
fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent > 0.0 && percent < 0.005 {
        return "under 0.01".to_owned();
    }
    let text = if percent < 0.995 { format!("{percent:.2}") } else { format!("{percent:.1}") };
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats seconds since 1970. `None` after the year 9999.
fn rfc3339(seconds: u64) -> Option<String> {
    let seconds = i64::try_from(seconds).ok()?;
    jiff::Timestamp::from_second(seconds).ok().map(|at| at.to_string())
}

/// `02:51`.
fn time_of_day(seconds: u64) -> Option<String> {
    rfc3339(seconds)?.get(11..16).map(str::to_owned)
}

/// The time of a line, in equal parts: one for each point.
struct LineSpan {
    /// In seconds.
    window: u64,
    step: Step,
    /// In seconds since 1970.
    from: u64,
    to: u64,
    /// The seconds of a point: a multiple of the step.
    each: u64,
}

impl LineSpan {
    fn new(window: Duration, now: u64) -> Self {
        let window = window.as_secs();
        let step = Step::for_last(window);
        let steps = step.seconds();
        let each = window.div_ceil(POINTS).next_multiple_of(steps).max(1);
        let points = (window / each).max(1);
        // Up to the last step that is over.
        let to = now - now % steps;
        Self { window, step, from: to.saturating_sub(points * each), to, each }
    }

    /// Returns `[passed, denied]` a second for each point; times without counts are 0.
    fn line(&self, counts: impl Iterator<Item = (u64, u64, u64)>) -> Value {
        let mut points = vec![(0_u64, 0_u64); ((self.to - self.from) / self.each) as usize];
        for (at, passed, denied) in counts {
            let index = at.checked_sub(self.from).map(|after| (after / self.each) as usize);
            if let Some(point) = index.and_then(|index| points.get_mut(index)) {
                *point = (point.0.saturating_add(passed), point.1.saturating_add(denied));
            }
        }
        let rate = |count: u64| rounded(count as f64 / self.each as f64);
        points.into_iter().map(|(passed, denied)| json!([rate(passed), rate(denied)])).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_have_digits_that_say_something() {
        let table = [
            (0.0, "0"),
            (0.00004, "under 0.01"),
            (0.0042, "0.42"),
            (0.004, "0.4"),
            (0.00996, "1"),
            (0.171, "17.1"),
            (0.2, "20"),
            (1.0, "100"),
        ];
        for (share, text) in table {
            assert_eq!(percent(share), text);
        }
    }

    #[test]
    fn a_line_has_at_most_ninety_points_of_whole_steps() {
        for (window, points, each) in
            [(60, 60, 1), (900, 90, 10), (3_600, 60, 60), (86_400, 90, 960), (90 * 86_400, 90, 86_400)]
        {
            let span = LineSpan::new(Duration::from_secs(window), 1_800_000_123);
            assert_eq!((span.to - span.from, span.each), (points * each, each), "{window}");
            let line =
                span.line([(span.from, each, 0), (span.to - 1, 0, 2 * each), (span.to, 9, 9)].into_iter());
            let line = line.as_array().unwrap();
            assert_eq!(line.len() as u64, points);
            assert_eq!((&line[0], &line[line.len() - 1]), (&json!([1.0, 0.0]), &json!([0.0, 2.0])));
        }
        let early = LineSpan::new(Duration::from_secs(900), 5);
        assert_eq!(early.line([(4, 1, 1)].into_iter()), json!([]), "less than a point");
    }
}
