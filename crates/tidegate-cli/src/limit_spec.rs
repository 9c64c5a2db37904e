use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Result;
use serde_json::{Map, Value, json};
use tidegate::Quota;
use tidegate::config::{Config, Diagnostic, Format, Severity};

use crate::args::LimitArgs;
use crate::exit::Mistake;

/// A limit in the terms of the policy file, from single flags or from `--limit`.
#[derive(Clone, Debug)]
pub(crate) struct LimitSpec {
    words: Map<String, Value>,
    /// The flag that gave each of the keys.
    said_by: BTreeMap<String, String>,
    /// The flag that derived this limit from another one, named in every error message.
    made_by: Option<String>,
}

/// A policy file with a single policy around a limit.
#[derive(Debug)]
pub(crate) struct GeneratedFile {
    text: String,
    name: String,
    /// The flag that each line comes from, empty for none, and the key that the flag sets.
    flags: Vec<(String, String)>,
}

/// Algorithms that grant at most their count at once and therefore take no `burst`.
const WINDOWS: [&str; 4] = ["fixed-window", "sliding-window", "sliding-counter", "sliding-log"];

/// Profiles of other rate limiters that take no `burst` either: they pace, or save up one second's worth.
const PACERS: [&str; 3] = ["uber-pacer", "guava-bursty", "guava-warming"];

/// Algorithms with a cold start, which share its keys.
const WARMING: [&str; 2] = ["warm-up", "guava-warming"];

/// The message of the file's parser for a limit without a rate that is not a guard.
const NO_RATE: &str = "limit has no rate; write rate: 10/s";

impl LimitSpec {
    /// Reads the limit of the command line; `None` if there is none.
    pub(crate) fn of(arguments: &LimitArgs) -> Result<Option<Self>> {
        let mut words = Map::new();
        if let Some(limit) = &arguments.limit {
            words = spelled_out("--limit", limit)?;
        }
        let flags = [("algorithm", arguments.algorithm.as_ref()), ("rate", arguments.rate.as_ref())];
        let mut said_by: BTreeMap<String, String> =
            words.keys().map(|key| (key.clone(), "--limit".to_owned())).collect();
        let mut say = |key: &str, value: Value, flag: String| {
            if let Some(first) = said_by.insert(key.to_owned(), flag.clone()) {
                let before = words.get(key).map_or_else(String::new, plain);
                let after = plain(&value);
                let [first, flag] = [&first, &flag].map(|flag| flag.split(' ').next().unwrap_or_default());
                return Err(Mistake(format!(
                    "{first} says {key} {before} and {flag} says {key} {after}; say it in one of them"
                )));
            }
            words.insert(key.to_owned(), value);
            Ok(())
        };
        for (key, value) in flags.into_iter().filter_map(|(key, value)| Some((key, value?))) {
            say(key, Value::from(value.as_str()), format!("--{key}"))?;
        }
        if let Some(burst) = arguments.burst {
            say("burst", Value::from(burst), "--burst".to_owned())?;
        }
        for (key, value) in &arguments.set {
            // Everything else is text, as in the file.
            let value = value.parse::<u64>().map_or_else(|_| Value::from(value.as_str()), Value::from);
            say(key, value, format!("--set {key}"))?;
        }
        if words.is_empty() {
            return Ok(None);
        }
        // The parser reports what other algorithms lack, since guards have no rate.
        let is_plain = words.get("algorithm").is_none_or(|name| name.as_str() == Some("gcra"));
        if !words.contains_key("rate") && is_plain {
            return Err(Mistake("a limit needs --rate, such as --rate 100/s".to_owned()).into());
        }
        Ok(Some(Self { words, said_by, made_by: None }))
    }

    pub(crate) fn algorithm(&self) -> &str {
        self.words.get("algorithm").and_then(Value::as_str).unwrap_or("gcra")
    }

    /// Returns the limit with another rate and burst, which no flag gave.
    pub(crate) fn changed(&self, rate: Option<&str>, burst: Option<u64>) -> Self {
        let mut changed = self.clone();
        let rate = rate.map(|rate| ("rate", Value::from(rate)));
        for (key, value) in rate.into_iter().chain(burst.map(|burst| ("burst", Value::from(burst)))) {
            changed.words.insert(key.to_owned(), value);
            changed.said_by.remove(key);
        }
        changed
    }

    /// Returns this limit and those in the lists of `--compare`, each with a name for its run. Of runs with the same
    /// name, the second has a 2 behind it, and so on.
    pub(crate) fn runs(&self, lists: &[String]) -> Result<Vec<(String, Self)>> {
        let mut runs = vec![(self.algorithm().to_owned(), self.clone())];
        runs.extend(self.compared(lists)?);
        let mut counts: BTreeMap<String, u32> = BTreeMap::new();
        for (name, _) in &mut runs {
            let count = counts.entry(name.clone()).or_default();
            *count += 1;
            if *count > 1 {
                *name = format!("{name} ({count})");
            }
        }
        Ok(runs)
    }

    /// An item is the name of an algorithm, or a limit as in `--limit`.
    fn compared(&self, lists: &[String]) -> Result<Vec<(String, Self)>> {
        let items = lists.iter().flat_map(|list| listed(list));
        let limit = |item: &str| -> Result<(String, Self)> {
            if !item.starts_with('{') {
                return Ok((item.to_owned(), self.as_algorithm(item)));
            }
            let words = spelled_out("--compare", item)?;
            let made_by = Some(format!("--compare {item}"));
            let limit = Self { words, said_by: BTreeMap::new(), made_by };
            Ok((limit.summary(), limit))
        };
        items.map(limit).collect()
    }

    /// The algorithm first: `adaptive, law vegas`.
    fn summary(&self) -> String {
        let others = self.words.iter().filter(|(key, _)| *key != "algorithm");
        let others = others.map(|(key, value)| format!("{key} {}", plain(value)));
        [self.algorithm().to_owned()].into_iter().chain(others).collect::<Vec<_>>().join(", ")
    }

    /// Returns another algorithm with the same rate and burst. The other keys of this limit would not fit it and are
    /// left out, except those of a cold start if both algorithms have one.
    fn as_algorithm(&self, name: &str) -> Self {
        let kept = |key: &str| match key {
            "rate" => true,
            "burst" => !WINDOWS.contains(&name) && !PACERS.contains(&name),
            "warm_up" => WARMING.contains(&name),
            _ => false,
        };
        let kept = self.words.iter().filter(|(key, _)| kept(key));
        let mut words: Map<String, Value> = kept.map(|(key, value)| (key.clone(), value.clone())).collect();
        words.insert("algorithm".to_owned(), Value::from(name));
        Self { words, said_by: BTreeMap::new(), made_by: Some(format!("--compare {name}")) }
    }

    pub(crate) fn file(&self, by: &[String], cost: Option<&str>) -> GeneratedFile {
        // Not valid for a policy, so not an algorithm either; one error is enough.
        let algorithm = self.algorithm();
        let is_name = algorithm.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        let name = if is_name && !algorithm.is_empty() { algorithm } else { "limit" };
        let flag =
            |key: &str| self.made_by.as_ref().or_else(|| self.said_by.get(key)).map_or("", String::as_str);
        let whole = ["algorithm", "rate"].into_iter().map(flag).find(|flag| !flag.is_empty());
        let whole = whole.or_else(|| self.said_by.values().next().map(String::as_str)).unwrap_or_default();

        let mut file = GeneratedFile { text: String::new(), name: name.to_owned(), flags: Vec::new() };
        // JSON is valid YAML. One key per line, so that the line of an error tells the flag.
        file.line("{\"version\":1,\"client_ip\":{\"trusted_proxies\":[]},\"policies\":[{", "", whole);
        file.line(&format!("\"name\":{},", Value::from(name)), "", whole);
        // A single limit for all requests.
        let by: Vec<&String> = by.iter().filter(|name| !name.is_empty()).collect();
        if !by.is_empty() {
            file.line(&format!("\"by\":{},", json!(by)), "by", "--by");
        }
        if let Some(cost) = cost {
            let cost = cost.parse::<i64>().map_or_else(|_| Value::from(cost), Value::from);
            file.line(&format!("\"cost\":{cost},"), "cost", "--cost");
        }
        file.line("\"limit\":{", "", whole);
        for (at, (key, value)) in self.words.iter().enumerate() {
            let comma = if at + 1 < self.words.len() { "," } else { "" };
            // A flag that sets several keys does not tell which one is wrong.
            let is_one = self.made_by.is_none() && flag(key) != "--limit";
            let told = if is_one { key } else { "" };
            file.line(&format!("{}:{value}{comma}", Value::from(key.as_str())), told, flag(key));
        }
        file.line("}}]}", "", whole);
        file
    }

    /// Makes the quota.
    ///
    /// # Errors
    /// All errors in the limit.
    pub(crate) fn quota(&self) -> Result<Arc<Quota>, String> {
        let config = self.file(&[], None).read()?;
        let limit = config.policies.policies().first().and_then(|policy| policy.limits.first());
        let quota = limit.and_then(|limit| limit.terms.quota.clone());
        quota.ok_or_else(|| {
            let flag = self.said_by.get("rate").map_or("rate", String::as_str);
            format!("{flag}: unlimited is not a limit to run")
        })
    }
}

impl GeneratedFile {
    fn line(&mut self, text: &str, key: &str, flag: &str) {
        self.text.push_str(text);
        self.text.push('\n');
        self.flags.push((flag.to_owned(), key.to_owned()));
    }

    /// Warnings are ignored.
    ///
    /// # Errors
    /// All errors, each preceded by the flag that caused it.
    pub(crate) fn read(&self) -> Result<Config, String> {
        match Config::parse(&self.text, "limit", Format::Yaml) {
            Ok((config, _)) => Ok(config),
            Err(mistakes) => {
                let errors = mistakes.iter().filter(|one| one.severity == Severity::Error);
                Err(errors.map(|one| self.error_text(one)).collect::<Vec<_>>().join("; "))
            }
        }
    }

    /// Returns an error with its flag, without place and policy: the user did not write that file.
    fn error_text(&self, mistake: &Diagnostic) -> String {
        let policy = format!("policy \"{}\": ", self.name);
        let what = mistake.message.strip_prefix(&policy).unwrap_or(&mistake.message);
        let what = if what == NO_RATE { "it needs a rate, such as --rate 100/s" } else { what };
        match mistake.line.checked_sub(1).and_then(|line| self.flags.get(line)) {
            Some((flag, key)) if !flag.is_empty() => {
                let what = what.strip_prefix(key).and_then(|what| what.strip_prefix(": ")).unwrap_or(what);
                format!("{flag}: {what}")
            }
            _ => what.to_owned(),
        }
    }
}

fn spelled_out(flag: &str, limit: &str) -> Result<Map<String, Value>, Mistake> {
    let read: Value = serde_saphyr::from_str(limit).map_err(|error| {
        // The other lines show the text, which the user has just typed.
        let error = error.to_string();
        let error = error.lines().next().unwrap_or_default();
        let error = error.strip_prefix("error: ").unwrap_or(error);
        Mistake(format!("{flag}: {error}; write '{{algorithm: gcra, rate: 100/s}}'"))
    })?;
    match read {
        Value::Object(read) => Ok(read),
        _ => Err(Mistake(format!("{flag}: it has no keys; write '{{algorithm: gcra, rate: 100/s}}'"))),
    }
}

/// Splits a list at its commas, except those inside brackets.
fn listed(list: &str) -> Vec<&str> {
    let mut depth = 0_u32;
    let at_comma = |letter: char| {
        match letter {
            '{' | '[' => depth += 1,
            '}' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ',' && depth == 0
    };
    list.split(at_comma).map(str::trim).collect()
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(algorithm: &str, set: &[(&str, &str)]) -> LimitSpec {
        let arguments = LimitArgs {
            algorithm: Some(algorithm.to_owned()),
            rate: Some("10/s".to_owned()),
            burst: Some(5),
            set: set.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            ..LimitArgs::default()
        };
        LimitSpec::of(&arguments).unwrap().unwrap()
    }

    #[test]
    fn flags_make_limits_of_every_algorithm() {
        let gcra = words("gcra", &[]);
        assert!(gcra.quota().is_ok());
        for name in ["token-bucket", "leaky-bucket", "x-time"].into_iter().chain(WINDOWS) {
            assert_eq!(gcra.as_algorithm(name).quota().map(drop), Ok(()), "{name}");
        }
    }

    /// Errors must name the flag, not the generated policy, as in `policy "gcra": rate: ..`.
    #[test]
    fn a_mistake_names_its_flag() {
        let says = |words: &LimitSpec| words.quota().unwrap_err();
        let refill = words("leaky-bucket", &[("refill", "interval")]);
        assert!(
            says(&refill).starts_with("--set refill: refill does not belong to leaky-bucket"),
            "{}",
            says(&refill)
        );
        assert!(says(&words("gcro", &[])).starts_with("--algorithm: unknown word \"gcro\""));
        assert!(says(&words("g c", &[])).starts_with("--algorithm: unknown word \"g c\""));
        assert!(says(&words("gcra", &[("bukets", "3")])).starts_with("--set bukets: unknown key \"bukets\""));
        let window = says(&words("gcra", &[]).as_algorithm("sliding-log2"));
        assert!(window.starts_with("--compare sliding-log2: algorithm: unknown word"), "{window}");
        let rate = LimitArgs { rate: Some("10rps".to_owned()), ..LimitArgs::default() };
        let rate = LimitSpec::of(&rate).unwrap().unwrap();
        assert_eq!(says(&rate), "--rate: \"10rps\" is not how a rate is written here; write 10/s");
        assert_eq!(
            says(&rate.changed(Some("5rps"), None)),
            "rate: \"5rps\" is not how a rate is written here; write 5/s"
        );
        let whole = LimitArgs { limit: Some("{rate: 1/s, burst: many}".to_owned()), ..LimitArgs::default() };
        let whole = says(&LimitSpec::of(&whole).unwrap().unwrap());
        assert!(whole.starts_with("--limit: burst: \"many\" is not a whole number"), "{whole}");
        let places = LimitArgs { algorithm: Some("concurrency".to_owned()), ..LimitArgs::default() };
        assert_eq!(
            says(&LimitSpec::of(&places).unwrap().unwrap()),
            "--algorithm: concurrency needs max; write max: 10"
        );
        // Guards have no rate, and other limits report themselves that they need one; `a limit needs --rate` must not
        // appear for a breaker.
        let whole = |limit: &str| {
            let limit = LimitArgs { limit: Some(limit.to_owned()), ..LimitArgs::default() };
            LimitSpec::of(&limit).map(|words| words.unwrap().quota().map(drop))
        };
        let breaker = "{algorithm: breaker, failures: 50%, window: 20 calls, open_for: 5s}";
        assert_eq!(whole(breaker).unwrap(), Ok(()));
        assert_eq!(
            whole("{algorithm: token-bucket}").unwrap(),
            Err("--limit: it needs a rate, such as --rate 100/s".to_owned())
        );
        assert!(whole("{burst: 3}").is_err());
        let file = rate.changed(Some("1/s"), None).file(&["clientip".to_owned()], Some("tokens"));
        let both = file.read().unwrap_err();
        assert!(
            both.starts_with(
                "--by: no request has \"clientip\"; write client.ip; --cost: \"tokens\" is one word"
            ),
            "{both}"
        );
    }

    #[test]
    fn another_algorithm_takes_over_the_words_it_knows() {
        let warm = words("warm-up", &[("warm_up", "2s")]);
        let kept = |name: &str| warm.as_algorithm(name).words.keys().cloned().collect::<Vec<_>>();
        assert_eq!(kept("gcra"), ["algorithm", "burst", "rate"]);
        assert_eq!(kept("fixed-window"), ["algorithm", "rate"]);
        assert_eq!(kept("uber-pacer"), ["algorithm", "rate"]);
        assert_eq!(kept("guava-warming"), ["algorithm", "rate", "warm_up"]);
    }

    #[test]
    fn limits_are_compared_by_name_or_spelled_out() {
        let all = |lists: &[&str]| {
            let lists: Vec<String> = lists.iter().map(|list| (*list).to_owned()).collect();
            words("gcra", &[]).compared(&lists)
        };
        let guards =
            ["{algorithm: adaptive, law: vegas}, sliding-log,{algorithm: concurrency, max: 9}", "x-time"];
        let compared = all(&guards).unwrap();
        let names: Vec<&str> = compared.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["adaptive, law vegas", "sliding-log", "concurrency, max 9", "x-time"]);
        assert!(compared.iter().all(|(_, limit)| limit.quota().is_ok()));

        let said = all(&["{algorithm: concurrency}"]).unwrap()[0].1.quota().unwrap_err();
        assert_eq!(said, "--compare {algorithm: concurrency}: concurrency needs max; write max: 10");
        let said = |list: &str| all(&[list]).unwrap_err().to_string();
        assert!(said("{algorithm: gcra").starts_with("--compare: "), "{}", said("{algorithm: gcra"));
        assert!(said("{}x").starts_with("--compare: "), "{}", said("{}x"));
        assert_eq!(listed("a,{b: [c, d], e: f},}g,"), ["a", "{b: [c, d], e: f}", "}g", ""]);
    }

    #[test]
    fn a_limit_needs_a_rate() {
        assert!(LimitSpec::of(&LimitArgs { burst: Some(1), ..LimitArgs::default() }).is_err());
        assert!(LimitSpec::of(&LimitArgs::default()).unwrap().is_none());
    }
}
