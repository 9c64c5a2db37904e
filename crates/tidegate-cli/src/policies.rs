//! Where verbs get their policies: a file, or a limit spelled out on the command line.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use anyhow::Result;
use serde_json::{Map, Value, json};
use tidegate::Quota;
use tidegate::config::{Config, Diagnostic, Format, Severity, report};

use crate::args::{LimitArgs, PolicyFile};
use crate::exit::Mistake;
use crate::output::Printer;

/// The file looked for when none is named.
pub(crate) const DEFAULT_FILE: &str = "tidegate.yaml";

/// Returns the file that was named, or the usual one if it is there.
pub(crate) fn file(named: &PolicyFile) -> Option<PathBuf> {
    named.config.clone().or_else(|| {
        let usual = PathBuf::from(DEFAULT_FILE);
        usual.exists().then_some(usual)
    })
}

/// The longest wait for a file that is read whole: far longer than a disk takes.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reads a file by a function that may never return, as on a file system that does not answer: on a thread of its own, which
/// is left behind then.
///
/// # Errors
/// When it takes longer than 10 s.
pub(crate) fn patiently<T: Send + 'static>(
    path: &Path,
    read: impl FnOnce(&Path) -> T + Send + 'static,
) -> Result<T> {
    let (tell, told) = sync_channel(1);
    let own = path.to_owned();
    std::thread::Builder::new().spawn(move || drop(tell.send(read(&own))))?;
    told.recv_timeout(PATIENCE).map_err(|error| {
        let (name, most) = (path.display(), PATIENCE.as_secs());
        match error {
            RecvTimeoutError::Timeout => {
                anyhow::anyhow!("{name}: reading it takes longer than {most} s and was given up")
            }
            RecvTimeoutError::Disconnected => anyhow::anyhow!("{name}: reading it failed by a panic"),
        }
    })
}

/// What reading a policy file comes to: the configuration with its warnings, or its mistakes.
type Outcome = Result<(Config, Vec<Diagnostic>), Vec<Diagnostic>>;

/// Reads a policy file.
///
/// # Errors
/// When it takes longer than 10 s.
pub(crate) fn load(path: &Path) -> Result<Outcome> {
    patiently(path, Config::read)
}

/// Reads a policy file; warnings are remarks, mistakes end the verb.
pub(crate) fn read(path: &Path, printer: &Printer) -> Result<Config> {
    accept(load(path)?, printer)
}

/// Reads a policy file from text, in the words of YAML.
pub(crate) fn parse(text: &str, name: &str, printer: &Printer) -> Result<Config> {
    accept(Config::parse(text, name, Format::Yaml), printer)
}

/// Reads a file that was made of flags: its mistakes have no place, its warnings nobody to read them.
pub(crate) fn parse_quietly(text: &str) -> Result<Config, String> {
    match Config::parse(text, "limit", Format::Yaml) {
        Ok((config, _)) => Ok(config),
        Err(mistakes) => Err(messages(&mistakes)),
    }
}

fn accept(outcome: Outcome, printer: &Printer) -> Result<Config> {
    match outcome {
        Ok((config, warnings)) => {
            for warning in warnings {
                printer.remark(&warning.to_string());
            }
            Ok(config)
        }
        Err(diagnostics) => Err(Mistake(report(&diagnostics)).into()),
    }
}

/// A limit in the words of the policy file, from flags or from `--limit`.
#[derive(Clone, Debug)]
pub(crate) struct LimitWords(Map<String, Value>);

/// Algorithms whose count is all they grant at once: a burst is not one of their words.
const WINDOWS: [&str; 4] = ["fixed-window", "sliding-window", "sliding-counter", "sliding-log"];

/// Profiles of peers that take no burst either: they pace, or save up a second's worth.
const PACERS: [&str; 3] = ["uber-pacer", "guava-bursty", "guava-warming"];

/// Algorithms that know a cold start, and share its words.
const WARMING: [&str; 2] = ["warm-up", "guava-warming"];

impl LimitWords {
    /// Reads the limit of the command line; `None` when it has none.
    pub(crate) fn of(arguments: &LimitArgs) -> Result<Option<Self>> {
        let mut words = Map::new();
        if let Some(limit) = &arguments.limit {
            let read: Value = serde_saphyr::from_str(limit).map_err(|error| {
                // Only the first line: the parser's others show the text, which the caller has just typed.
                let error = error.to_string().lines().next().unwrap_or_default().to_owned();
                Mistake(format!("--limit cannot be read: {error}; write '{{algorithm: gcra, rate: 100/s}}'"))
            })?;
            let Value::Object(read) = read else {
                return Err(
                    Mistake("--limit is no map; write '{algorithm: gcra, rate: 100/s}'".to_owned()).into()
                );
            };
            words = read;
        }
        let flags = [("algorithm", arguments.algorithm.as_ref()), ("rate", arguments.rate.as_ref())];
        let mut said_by: HashMap<String, String> =
            words.keys().map(|key| (key.clone(), "--limit".to_owned())).collect();
        let mut say = |key: &str, value: Value, flag: String| {
            if let Some(first) = said_by.insert(key.to_owned(), flag.clone()) {
                let before = words.get(key).map_or_else(String::new, plain);
                let after = plain(&value);
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
            // A number stays one; everything else is text, as in the file.
            let value = value.parse::<u64>().map_or_else(|_| Value::from(value.as_str()), Value::from);
            say(key, value, "--set".to_owned())?;
        }
        if words.is_empty() {
            return Ok(None);
        }
        let guards = words.get("algorithm").and_then(Value::as_str) == Some("concurrency");
        if !words.contains_key("rate") && !guards {
            return Err(Mistake("a limit needs --rate, such as --rate 100/s".to_owned()).into());
        }
        Ok(Some(Self(words)))
    }

    /// Returns the name of its algorithm.
    pub(crate) fn algorithm(&self) -> &str {
        self.0.get("algorithm").and_then(Value::as_str).unwrap_or("gcra")
    }

    /// Returns the limit with another rate and burst.
    pub(crate) fn changed(&self, rate: Option<&str>, burst: Option<u64>) -> Self {
        let mut words = self.0.clone();
        if let Some(rate) = rate {
            words.insert("rate".to_owned(), Value::from(rate));
        }
        if let Some(burst) = burst {
            words.insert("burst".to_owned(), Value::from(burst));
        }
        Self(words)
    }

    /// Returns another algorithm at the same rate and burst: its other words are those of this one and would not fit,
    /// but for those of a cold start between two that know one.
    pub(crate) fn as_algorithm(&self, name: &str) -> Self {
        let kept = |key: &str| match key {
            "rate" => true,
            "burst" => !WINDOWS.contains(&name) && !PACERS.contains(&name),
            "warm_up" | "cold_factor" => WARMING.contains(&name),
            _ => false,
        };
        let mut words: Map<String, Value> = self
            .0
            .iter()
            .filter(|(key, _)| kept(key))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        words.insert("algorithm".to_owned(), Value::from(name));
        Self(words)
    }

    /// Returns a policy file of one policy around the limit.
    pub(crate) fn file(&self, by: &[String], cost: Option<&str>) -> String {
        let mut policy = json!({ "name": self.algorithm(), "limit": self.0 });
        // `--by ''` is one limit for everyone.
        let by: Vec<&String> = by.iter().filter(|name| !name.is_empty()).collect();
        if !by.is_empty() {
            policy["by"] = json!(by);
        }
        if let Some(cost) = cost {
            policy["cost"] = cost.parse::<u64>().map_or_else(|_| Value::from(cost), Value::from);
        }
        // JSON is YAML, and quotes what needs it.
        json!({ "version": 1, "client_ip": { "trusted_proxies": [] }, "policies": [policy] }).to_string()
    }

    /// Makes the quota.
    ///
    /// # Errors
    /// Every mistake in its words.
    pub(crate) fn quota(&self) -> Result<Arc<Quota>, String> {
        let config = parse_quietly(&self.file(&[], None))?;
        let limit = config.policies.policies().first().and_then(|policy| policy.limits.first());
        let quota = limit.and_then(|limit| limit.terms.quota.clone());
        quota.ok_or_else(|| "unlimited is no limit to run".to_owned())
    }
}

/// Returns a value as it is typed.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Mistakes without their places, which would be those of a file that nobody wrote.
fn messages(diagnostics: &[Diagnostic]) -> String {
    let errors = diagnostics.iter().filter(|one| one.severity == Severity::Error);
    errors.map(|one| one.message.as_str()).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(algorithm: &str, set: &[(&str, &str)]) -> LimitWords {
        let arguments = LimitArgs {
            algorithm: Some(algorithm.to_owned()),
            rate: Some("10/s".to_owned()),
            burst: Some(5),
            set: set.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            ..LimitArgs::default()
        };
        LimitWords::of(&arguments).unwrap().unwrap()
    }

    #[test]
    fn flags_make_limits_of_every_algorithm() {
        let gcra = words("gcra", &[]);
        assert!(gcra.quota().is_ok());
        for name in ["token-bucket", "leaky-bucket", "x-time"].into_iter().chain(WINDOWS) {
            assert_eq!(gcra.as_algorithm(name).quota().map(drop), Ok(()), "{name}");
        }
        assert!(words("leaky-bucket", &[("refill", "interval")]).quota().unwrap_err().contains("refill"));
        assert!(words("gcro", &[]).quota().unwrap_err().contains("gcra"));
    }

    #[test]
    fn another_algorithm_takes_over_the_words_it_knows() {
        let warm = words("warm-up", &[("warm_up", "2s")]);
        let kept = |name: &str| warm.as_algorithm(name).0.keys().cloned().collect::<Vec<_>>();
        assert_eq!(kept("gcra"), ["algorithm", "burst", "rate"]);
        assert_eq!(kept("fixed-window"), ["algorithm", "rate"]);
        assert_eq!(kept("uber-pacer"), ["algorithm", "rate"]);
        assert_eq!(kept("guava-warming"), ["algorithm", "rate", "warm_up"]);
    }

    #[test]
    fn a_limit_needs_a_rate() {
        assert!(LimitWords::of(&LimitArgs { burst: Some(1), ..LimitArgs::default() }).is_err());
        assert!(LimitWords::of(&LimitArgs::default()).unwrap().is_none());
    }
}
