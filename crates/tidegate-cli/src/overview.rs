//! What `/v1/overview` of a running server says, for `top` and `stat`.
//!
//! Whatever is absent or has another type is read as unknown: an older or newer server is shown as far as it goes.

use serde_json::Value;

use crate::styled::Look;

/// The most policies that are read; a server lists those with traffic.
const MOST_POLICIES: usize = 1000;
/// The most points of a line.
const MOST_POINTS: usize = 512;

/// How things are, in the server's judgement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Level {
    /// As at this hour of other days.
    Usual,
    /// More refusals than usual.
    Unusual,
    /// What is usual is not known yet.
    #[default]
    Unknown,
    /// Something does not work, such as the store.
    Trouble,
}

impl Level {
    fn of(word: &Value) -> Self {
        match word.as_str() {
            Some("usual") => Self::Usual,
            Some("unusual") => Self::Unusual,
            Some("trouble") => Self::Trouble,
            _ => Self::Unknown,
        }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Usual => "usual",
            Self::Unusual => "unusual",
            Self::Unknown => "unknown",
            Self::Trouble => "trouble",
        }
    }

    pub(crate) fn look(self) -> Option<Look> {
        match self {
            Self::Usual => Some(Look::Good),
            Self::Unusual => Some(Look::Doubtful),
            Self::Unknown => None,
            Self::Trouble => Some(Look::Bad),
        }
    }
}

/// Requests a second, of the last ten seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Rates {
    pub(crate) allowed: f64,
    pub(crate) delayed: f64,
    pub(crate) denied: f64,
    pub(crate) unmatched: f64,
    pub(crate) failed: f64,
}

impl Rates {
    fn of(rates: &Value) -> Self {
        let rate = |name: &str| rates[name].as_f64().unwrap_or_default();
        Self {
            allowed: rate("allowed"),
            delayed: rate("delayed"),
            denied: rate("denied"),
            unmatched: rate("unmatched"),
            failed: rate("failed"),
        }
    }

    /// All requests a second.
    pub(crate) fn all(self) -> f64 {
        self.allowed + self.delayed + self.denied + self.unmatched + self.failed
    }

    /// What may pass at once. Requests that no policy is about pass too.
    pub(crate) fn passed(self) -> f64 {
        self.allowed + self.unmatched
    }
}

/// What passed and what was refused, a second, at one point of a line.
pub(crate) type Point = (f64, f64);

/// One policy.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PolicyRow {
    pub(crate) name: String,
    /// Passed a second: allowed, delayed, or let through over the limit.
    pub(crate) passed: f64,
    pub(crate) denied: f64,
    /// Passed near the limit.
    pub(crate) near: f64,
    pub(crate) would_deny: f64,
    /// The share refused in the last minute.
    pub(crate) share: Option<f64>,
    /// The range of that share which is usual at this hour.
    pub(crate) usual: Option<(f64, f64)>,
    pub(crate) is_unusual: bool,
    pub(crate) keys_refused: u64,
    /// The key that was refused most in the last minutes; `None`: none was in the last one.
    pub(crate) most_refused: Option<String>,
    /// The key with the highest rate, its rate, and how much of the limit's rate that is.
    pub(crate) hottest: Option<Hottest>,
    pub(crate) line: Vec<Point>,
}

/// The key of a policy with the highest rate.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Hottest {
    pub(crate) key: String,
    pub(crate) per_second: f64,
    /// How much of the rate of its limit; `None`: the limit has no single rate.
    pub(crate) of_rate: Option<f64>,
}

/// The whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Overview {
    /// When the server said this, RFC 3339.
    pub(crate) at: String,
    pub(crate) configuration: Option<u64>,
    pub(crate) store: String,
    /// Why the store cannot be asked; `None`: it can.
    pub(crate) store_away: Option<String>,
    /// Whether the history is kept on disk; `None`: not known.
    pub(crate) history_on_disk: Option<bool>,
    /// Decisions that were not counted, since the start.
    pub(crate) dropped: u64,
    pub(crate) rates: Rates,
    pub(crate) refused_share: Option<f64>,
    pub(crate) p50_ms: Option<f64>,
    pub(crate) p99_ms: Option<f64>,
    pub(crate) in_flight: Option<u64>,
    pub(crate) level: Level,
    pub(crate) says: String,
    pub(crate) line: Vec<Point>,
    pub(crate) policies: Vec<PolicyRow>,
    /// Policies that saw nothing.
    pub(crate) quiet: u64,
    /// Policies that saw requests and are not listed.
    pub(crate) more: u64,
}

impl Overview {
    pub(crate) fn of(answer: &Value) -> Self {
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (requests, deciding) = (&answer["requests"], &answer["deciding"]);
        let millis = |value: &Value| value.as_f64().map(|nanos| nanos / 1e6);
        Self {
            at: word(&answer["at"]),
            configuration: answer["configuration"]["number"].as_u64(),
            store: word(&answer["store"]["kind"]),
            store_away: answer["store"]["away"].as_str().map(str::to_owned),
            history_on_disk: answer["history"]["on_disk"].as_bool(),
            dropped: answer["dropped"].as_u64().unwrap_or_default(),
            rates: Rates::of(&requests["per_second"]),
            refused_share: requests["refused_share"].as_f64(),
            p50_ms: millis(&deciding["p50_ns"]),
            p99_ms: millis(&deciding["p99_ns"]),
            in_flight: deciding["in_flight"].as_u64(),
            level: Level::of(&answer["verdict"]["level"]),
            says: word(&answer["verdict"]["text"]),
            line: line(&requests["line"]),
            policies: rows(&answer["policies"]).iter().take(MOST_POLICIES).map(policy).collect(),
            quiet: answer["quiet"].as_u64().unwrap_or_default(),
            more: answer["more"].as_u64().unwrap_or_default(),
        }
    }
}

fn policy(row: &Value) -> PolicyRow {
    let rate = |name: &str| row["per_second"][name].as_f64().unwrap_or_default();
    let range = |usual: &Value| Some((usual["low"].as_f64()?, usual["high"].as_f64()?));
    let hottest = &row["hottest"];
    PolicyRow {
        name: row["name"].as_str().unwrap_or_default().to_owned(),
        passed: rate("allowed") + rate("delayed") + rate("over"),
        denied: rate("denied"),
        near: rate("near"),
        would_deny: rate("would_deny"),
        share: row["denied_share"].as_f64(),
        usual: range(&row["usual"]),
        is_unusual: row["unusual"] == true,
        keys_refused: row["keys_refused"].as_u64().unwrap_or_default(),
        most_refused: row["most_refused"].as_str().map(str::to_owned),
        hottest: hottest["key"].as_str().map(|key| Hottest {
            key: key.to_owned(),
            per_second: hottest["per_second"].as_f64().unwrap_or_default(),
            of_rate: hottest["of_rate"].as_f64(),
        }),
        line: line(&row["line"]),
    }
}

/// The elements of a list; none if the value is none.
pub(crate) fn rows(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}

fn line(points: &Value) -> Vec<Point> {
    let point =
        |point: &Value| (point[0].as_f64().unwrap_or_default(), point[1].as_f64().unwrap_or_default());
    rows(points).iter().take(MOST_POINTS).map(point).collect()
}

/// A rate with as many digits as say something: `0`, `0.05`, `1.5`, `73`, `1240`.
pub(crate) fn rate(per_second: f64) -> String {
    match per_second {
        0.0 => "0".to_owned(),
        rate if rate < 1.0 => format!("{rate:.2}"),
        rate if rate < 100.0 => format!("{rate:.1}"),
        rate => format!("{rate:.0}"),
    }
}

/// A share in percent, without the sign: `17.1`.
pub(crate) fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    if percent > 0.0 && percent < 1.0 { format!("{percent:.2}") } else { format!("{percent:.1}") }
}

/// A time in the unit that suits: `2 µs`, `1.25 ms`, `3.1 s`.
pub(crate) fn brief(millis: f64) -> String {
    match millis {
        millis if millis < 1.0 => format!("{:.0} µs", millis * 1e3),
        millis if millis < 1000.0 => format!("{millis:.3} ms").replace(".000", ""),
        millis => format!("{:.1} s", millis / 1e3),
    }
}

/// A number in words, or `-` if it is not known.
pub(crate) fn or_dash(number: Option<f64>, words: fn(f64) -> String) -> String {
    number.map_or_else(|| "-".to_owned(), words)
}

/// The time of day of a moment in RFC 3339, or the moment as it is.
pub(crate) fn clock(at: &str) -> &str {
    at.get(11..19).unwrap_or(at)
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    /// An answer of the server with two policies.
    pub(crate) fn answer() -> Value {
        json!({
            "at": "2026-03-02T02:51:07Z", "started": "2026-03-01T00:00:00Z",
            "configuration": { "number": 18, "since": "2026-03-01T14:01:00Z" },
            "store": { "kind": "disk", "away": null },
            "history": { "on_disk": true, "up": true, "from": "2026-02-01T00:00:00Z" },
            "dropped": 0, "window_s": 900,
            "requests": {
                "per_second": { "allowed": 73.0, "delayed": 0.0, "denied": 15.0, "unmatched": 0.0, "failed": 0.0 },
                "refused_share": 0.171, "usual": { "low": 0.004, "high": 0.012, "days": 9 }, "unusual": true,
                "line": [[73.0, 0.0], [73.0, 15.0]],
            },
            "deciding": { "p50_ns": 2000, "p99_ns": 9000, "in_flight": 3 },
            "verdict": { "level": "unusual", "text": "17.1 % of requests refused; usual at this hour 0.4 to 1.2 %" },
            "policies": [
                {
                    "name": "per-ip",
                    "per_second": { "allowed": 61.0, "delayed": 0.0, "denied": 1.5, "over": 0.0, "near": 0.1, "would_deny": 0.2, "errors": 0.0 },
                    "denied_share": 0.024, "usual": null, "unusual": false, "keys_refused": 1,
                    "hottest": { "key": "#8f3a", "per_second": 25.0, "of_rate": 2.5 }, "line": [[61.0, 1.5]],
                },
                {
                    "name": "per-tenant",
                    "per_second": { "allowed": 58.0, "delayed": 0.0, "denied": 12.3, "over": 0.0, "near": 0.0, "would_deny": 0.0, "errors": 0.0 },
                    "denied_share": 0.175, "usual": { "low": 0.0, "high": 0.002, "days": 9 }, "unusual": true,
                    "keys_refused": 1, "most_refused": "tenant.id=t1", "hottest": null, "line": [],
                },
            ],
            "quiet": 12,
        })
    }

    #[test]
    fn an_answer_is_read_and_whatever_it_lacks_is_unknown() {
        let read = Overview::of(&answer());
        assert_eq!((read.configuration, read.level, read.quiet), (Some(18), Level::Unusual, 12));
        assert_eq!((read.p50_ms, read.p99_ms, read.in_flight), (Some(0.002), Some(0.009), Some(3)));
        assert!((read.rates.all() - 88.0).abs() < 1e-9);
        assert_eq!(read.policies[0].hottest.as_ref().unwrap().of_rate, Some(2.5));
        assert_eq!((read.policies[1].usual, &read.policies[1].hottest), (Some((0.0, 0.002)), &None));
        assert_eq!(Overview::of(&Value::Null), Overview::default());
        assert_eq!(Overview::of(&json!([1, "x"])), Overview::default());
    }

    #[test]
    fn numbers_have_the_digits_that_say_something() {
        assert_eq!([0.0, 0.05, 1.5, 73.0, 1240.4].map(rate), ["0", "0.05", "1.5", "73.0", "1240"]);
        assert_eq!([0.0, 0.004, 0.171, 1.0].map(percent), ["0.0", "0.40", "17.1", "100.0"]);
        assert_eq!([0.002, 1.0, 1.25, 3100.0].map(brief), ["2 µs", "1 ms", "1.250 ms", "3.1 s"]);
        assert_eq!((clock("2026-03-02T02:51:07Z"), clock("x")), ("02:51:07", "x"));
    }
}
