//! The results of the rounds: medians, spreads, ratios.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) contenders: Vec<Contender>,
    series: BTreeMap<(String, String, String), Series>,
    pub(crate) failed: BTreeSet<String>,
}

#[derive(Debug, Default)]
struct Series {
    clean: Vec<f64>,
    /// For each round, how many threads did not have their core to themselves.
    unclean: Vec<f64>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Figure {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
    /// Whether any round was undisturbed; if so, the disturbed ones are left out.
    pub(crate) clean: bool,
}

impl Found {
    pub(crate) fn new(contenders: Vec<Contender>) -> Self {
        Self { contenders, series: BTreeMap::new(), failed: BTreeSet::new() }
    }

    pub(crate) fn add(&mut self, line: &Value) -> Result<()> {
        let text = |name: &str| line[name].as_str().with_context(|| format!("no `{name}` in {line}"));
        let (workload, contender) = (text("workload")?, text("contender")?);
        for (figure, value) in line["figures"].as_object().context("no figures")? {
            let key = (workload.to_owned(), contender.to_owned(), figure.clone());
            let series = self.series.entry(key).or_default();
            let unclean =
                line["unclean"].as_array().is_some_and(|names| names.iter().any(|name| name == figure));
            let values = if unclean { &mut series.unclean } else { &mut series.clean };
            values.push(value.as_f64().context("a figure is no number")?);
        }
        Ok(())
    }

    pub(crate) fn failed(&mut self, what: String) {
        self.failed.insert(what);
    }

    pub(crate) fn figure(&self, workload: &str, contender: &str, figure: &str) -> Option<Figure> {
        let series = self.series.get(&(workload.to_owned(), contender.to_owned(), figure.to_owned()))?;
        let clean = !series.clean.is_empty();
        let mut values = if clean { series.clean.clone() } else { series.unclean.clone() };
        values.sort_by(f64::total_cmp);
        let (least, most) = (*values.first()?, *values.last()?);
        Some(Figure { median: values[values.len() / 2], least, most, clean })
    }

    pub(crate) fn median(&self, workload: &str, contender: &str, figure: &str) -> Option<f64> {
        self.figure(workload, contender, figure).map(|figure| figure.median)
    }

    /// Returns how many times as fast `contender` is as `rival`. Figures of two threads are checks per second, all
    /// others are times. A batch is compared with the single checks of a rival that has no batches.
    pub(crate) fn speed(&self, workload: &str, figure: &str, contender: &str, rival: &str) -> Option<f64> {
        let own = self.median(workload, contender, figure)?;
        let rival = self
            .median(workload, rival, figure)
            .or_else(|| self.median(workload, rival, &unbatched(figure)))?;
        Some(if is_rate(figure) { own / rival } else { rival / own })
    }

    pub(crate) fn best(&self, workload: &str, figure: &str, roles: &[Role]) -> Option<&Contender> {
        let figure = unbatched(figure);
        let speed = |contender: &Contender| {
            let median = self.median(workload, &contender.name, &figure)?;
            Some(if is_rate(&figure) { median } else { -median })
        };
        self.of(workload)
            .filter(|contender| roles.contains(&contender.role))
            .filter_map(|contender| Some((contender, speed(contender)?)))
            .max_by(|(_, a), (_, b)| a.total_cmp(b))
            .map(|(contender, _)| contender)
    }

    pub(crate) fn of(&self, workload: &str) -> impl Iterator<Item = &Contender> {
        self.contenders.iter().filter(move |contender| contender.workload == workload)
    }

    pub(crate) fn ours(&self, workload: &str) -> Option<&str> {
        let first = self.of(workload).find(|contender| contender.role == Role::Tidegate);
        first.map(|contender| contender.name.as_str())
    }
}

/// Figures of two threads are millions of checks per second; all others are nanoseconds, bytes or counts.
pub(crate) fn is_rate(figure: &str) -> bool {
    figure.ends_with(".pair")
}

fn unbatched(figure: &str) -> String {
    figure.replace(".batch", "")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Tidegate,
    /// A peer used as in the first example of its documentation.
    Peer,
    /// A peer with settings chosen for speed.
    Tuned,
    /// A peer that does less than the others.
    Less,
    /// The least work that the machine allows.
    Floor,
}

#[derive(Clone, Debug)]
pub(crate) struct Contender {
    pub(crate) workload: String,
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) role: Role,
}

impl Contender {
    pub(crate) fn read(line: &str) -> Result<Self> {
        let line: Value = serde_json::from_str(line)?;
        let field = |name: &str| {
            let value = line[name].as_str().with_context(|| format!("no `{name}` in {line}"))?;
            Ok::<_, anyhow::Error>(value.to_owned())
        };
        let role = match field("role")?.as_str() {
            "tidegate" => Role::Tidegate,
            "peer" => Role::Peer,
            "tuned" => Role::Tuned,
            "less" => Role::Less,
            role => {
                ensure!(role == "floor", "nobody is compared as `{role}`");
                Role::Floor
            }
        };
        Ok(Self { workload: field("workload")?, name: field("contender")?, title: field("title")?, role })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(lines: &[Value]) -> Found {
        let contender = |name: &str, role| Contender {
            workload: "keyed".to_owned(),
            name: name.to_owned(),
            title: name.to_owned(),
            role,
        };
        let mut found = Found::new(vec![
            contender("ours", Role::Tidegate),
            contender("fast", Role::Tuned),
            contender("slow", Role::Peer),
        ]);
        for line in lines {
            found.add(line).unwrap();
        }
        found
    }

    fn line(contender: &str, figures: &Value, unclean: &[&str]) -> Value {
        json!({"workload": "keyed", "contender": contender, "figures": figures, "unclean": unclean})
    }

    #[test]
    fn speeds_read_alike_for_times_and_for_rates() {
        let found = found(&[
            line("ours", &json!({"zipf": 10.0, "zipf.pair": 80.0}), &[]),
            line("slow", &json!({"zipf": 40.0, "zipf.pair": 20.0}), &[]),
        ]);
        assert_eq!(found.speed("keyed", "zipf", "ours", "slow"), Some(4.0));
        assert_eq!(found.speed("keyed", "zipf.pair", "ours", "slow"), Some(4.0));
    }

    #[test]
    fn who_has_no_batches_is_compared_by_single_checks() {
        let found = found(&[
            line("ours", &json!({"zipf": 20.0, "zipf.batch": 10.0}), &[]),
            line("slow", &json!({"zipf": 50.0}), &[]),
        ]);
        assert_eq!(found.speed("keyed", "zipf.batch", "ours", "slow"), Some(5.0));
        assert_eq!(found.speed("keyed", "zipf.batch", "slow", "ours"), None);
    }

    #[test]
    fn disturbed_rounds_count_only_when_there_are_no_others() {
        let rounds = [
            line("slow", &json!({"zipf.pair": 5.0}), &["zipf.pair"]),
            line("slow", &json!({"zipf.pair": 20.0}), &[]),
            line("fast", &json!({"zipf.pair": 7.0}), &["zipf.pair"]),
        ];
        let found = found(&rounds);
        assert_eq!(found.median("keyed", "slow", "zipf.pair"), Some(20.0));
        assert!(!found.figure("keyed", "fast", "zipf.pair").unwrap().clean);
    }

    #[test]
    fn the_best_is_the_fastest_of_the_roles_asked_for() {
        let found = found(&[
            line("ours", &json!({"zipf": 1.0}), &[]),
            line("fast", &json!({"zipf": 2.0}), &[]),
            line("slow", &json!({"zipf": 3.0}), &[]),
        ]);
        let best = |roles| found.best("keyed", "zipf", roles).map(|best| best.name.as_str());
        assert_eq!(best(&[Role::Peer, Role::Tuned]), Some("fast"));
        assert_eq!(best(&[Role::Peer]), Some("slow"));
    }
}
