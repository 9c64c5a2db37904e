//! The contenders that are measured, and their roles.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The role of a contender in comparisons.
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

/// One contender in one workload.
#[derive(Clone, Debug)]
pub(crate) struct Contender {
    pub(crate) workload: String,
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) role: Role,
}

impl Contender {
    /// Decodes the program's description of a contender.
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
