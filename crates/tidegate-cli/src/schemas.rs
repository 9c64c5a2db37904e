//! The JSON Schemas of `-o json` output, one per document. Tests check the output of every verb against its schema.
//!
//! They are written by hand: the meaning of a value, and when it is absent, are not in the types.

use std::collections::BTreeMap;

use clap::ValueEnum;
use serde_json::Value;

/// A document that a schema describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Document {
    /// The policy file; `config show` prints one
    PolicyFile,
    /// Output of `replay`
    Replay,
    /// Output of `simulate`
    Simulate,
    /// Output of `suggest`
    Suggest,
    /// Output of `explain`
    Explain,
    /// Output of `bench`
    Bench,
    /// Output of `top`
    Top,
    /// Output of `key`
    Key,
    /// Output of `switch`
    Switch,
    /// Output of `breaker`
    Breaker,
    /// Output of `ready`
    Ready,
    /// Output of `policies put`, `show`, `history`, `rollback` and `nodes`
    Policies,
    /// Output of `config check` and `serve --check`
    ConfigCheck,
    /// Output of `config show --origin`
    ConfigOrigin,
    /// Output of `config fmt`
    ConfigFmt,
    /// Output of `init`
    Init,
    /// Output of `completions`
    Completions,
    /// Output of `man`
    Man,
}

/// Definitions shared by several documents, whose schemas refer to them as `#/$defs/..`.
const SHARED: &str = include_str!("../schemas/shared.json");

impl Document {
    /// Returns the schema, in JSON Schema 2020-12.
    ///
    /// # Errors
    /// Never with the files of this build: a test parses them all.
    pub(crate) fn schema(self) -> serde_json::Result<Value> {
        let own = match self {
            Self::PolicyFile => return Ok(tidegate::config::schema()),
            Self::Replay => include_str!("../schemas/replay.json"),
            Self::Simulate => include_str!("../schemas/simulate.json"),
            Self::Suggest => include_str!("../schemas/suggest.json"),
            Self::Explain => include_str!("../schemas/explain.json"),
            Self::Bench => include_str!("../schemas/bench.json"),
            Self::Top => include_str!("../schemas/top.json"),
            Self::Key => include_str!("../schemas/key.json"),
            Self::Switch => include_str!("../schemas/switch.json"),
            Self::Breaker => include_str!("../schemas/breaker.json"),
            Self::Ready => include_str!("../schemas/ready.json"),
            Self::Policies => include_str!("../schemas/policies.json"),
            Self::ConfigCheck => include_str!("../schemas/config-check.json"),
            Self::ConfigOrigin => include_str!("../schemas/config-origin.json"),
            Self::ConfigFmt => include_str!("../schemas/config-fmt.json"),
            Self::Init => include_str!("../schemas/init.json"),
            Self::Completions => include_str!("../schemas/completions.json"),
            Self::Man => include_str!("../schemas/man.json"),
        };
        let mut schema: Value = serde_json::from_str(own)?;
        let shared: BTreeMap<String, Value> = serde_json::from_str(SHARED)?;
        // Each definition may refer to others.
        while let Some((name, definition)) = shared.iter().find(|(name, _)| lacks(&schema, name)) {
            schema["$defs"][name] = definition.clone();
        }
        Ok(schema)
    }
}

fn lacks(schema: &Value, name: &str) -> bool {
    schema["$defs"].get(name).is_none() && schema.to_string().contains(&format!("\"#/$defs/{name}\""))
}
