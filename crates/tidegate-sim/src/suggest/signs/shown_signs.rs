//! The evidence as it is output: as numbers, and as a line of text.

use std::time::Duration;

use serde::Serialize;

use super::{Evidence, share};
use crate::json_units;

/// The evidence from the requests of a key. `None`: the log does not have the field.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Signs {
    /// Distinct paths. Above 127 an estimate, with a standard error of 9 %.
    pub paths: Option<u64>,
    /// The path that most requests have.
    pub path: Option<String>,
    /// Requests for pages, as opposed to their parts, such as images and scripts.
    pub pages: Option<u64>,
    /// Distinct pages; above 127 an estimate, and never more than `pages`.
    pub pages_different: Option<u64>,
    /// The share of requests for parts of pages, such as images and scripts, 0 to 1.
    pub parts_share: Option<f64>,
    /// The share of requests that were refused or not found (400, 401, 403, 404, 407, 410), 0 to 1.
    pub refused_share: Option<f64>,
    /// Distinct agents; 8 means 8 or more.
    pub agents: Option<u64>,
    /// The agent of nine requests in ten, cut after 120 bytes.
    pub agent: Option<String>,
    /// The pause between two rounds of requests, if they come at an even pace.
    #[serde(rename = "every_ms", serialize_with = "maybe_millis")]
    pub every: Option<Duration>,
}

fn maybe_millis<S: serde::Serializer>(span: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    span.map(json_units::millis).serialize(to)
}

impl Evidence {
    /// Returns the evidence as numbers.
    pub(in crate::suggest) fn signs(&self) -> Signs {
        let asked = self.loads.pages + self.loads.parts;
        let known = |is_known: bool, value: u64| is_known.then_some(value);
        Signs {
            paths: known(
                asked > 0,
                if self.paths.is_exact() { self.paths.about() } else { self.paths.about().min(asked) },
            ),
            path: self.main_path().map(str::to_owned),
            pages: known(asked > 0, self.loads.pages),
            pages_different: known(asked > 0, self.pages.about().min(self.loads.pages)),
            parts_share: (asked > 0).then(|| self.loads.share()),
            refused_share: (self.statuses > 0)
                .then(|| share(self.unauthorized + self.missing, self.statuses)),
            agents: known(!self.agents.is_empty(), self.agents.len() as u64),
            agent: self.only_agent().map(str::to_owned),
            every: self.rhythm.pace(),
        }
    }
}
