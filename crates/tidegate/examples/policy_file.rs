//! A gate from a policy file: which requests pass, what clients are told, and why.
//!
//! ```sh
//! cargo run -p tidegate --features config,http --example policy_file                    # the policies below
//! cargo run -p tidegate --features config,http --example policy_file -- tidegate.yaml   # your own
//! ```

use std::error::Error;
use std::path::Path;

use tidegate::Gate;
use tidegate::config::{Config, Format, report};
use tidegate::gate::Check;
use tidegate::http_answer::HttpAnswer;
use tidegate::policy::Descriptor;

const POLICIES: &str = "
version: 1
policies:
  - name: per-client
    match: { path: /api/** }
    by: [client.ip]
    limit: { rate: 3/min }
  - name: exports
    match: { path: /api/export }
    by: [user.id]
    limit: { rate: 1/h }
    deny: { status: 403 }
";

/// Reads policies from a file, or the built-in ones above. Every mistake in a file is reported, with its line and a
/// fix.
fn gate(file: Option<&str>) -> Result<Gate, Box<dyn Error>> {
    let read = match file {
        Some(file) => Config::read(Path::new(file)),
        None => Config::parse(POLICIES, "policies.yaml", Format::Yaml),
    };
    let (config, warnings) = read.map_err(|mistakes| report(&mistakes))?;
    for warning in warnings {
        eprintln!("{warning}");
    }
    let store = config.store.memory(None)?; // with room for as many keys as the file says
    Ok(Gate::new(config.policies, store))
}

/// Checks three requests, and returns what a client and its operator are told about each.
pub(crate) fn demonstrate(file: Option<&str>) -> Result<Vec<String>, Box<dyn Error>> {
    let gate = gate(file)?;
    let mut told = Vec::new();
    for (path, cost) in [("/api/items", 1), ("/api/export", 1), ("/api/export", 5)] {
        let request = Descriptor::from([
            ("client.ip", "203.0.113.9"),
            ("user.id", "ann"),
            ("request.method", "GET"),
            ("request.path", path),
        ]);
        let decision = gate.check(Check::of(&request).cost(cost)).now()?;
        let answer = HttpAnswer::of_gate(&decision, &request);
        let mut lines = vec![format!("{path}: {}", answer.status())];
        lines.extend(answer.pairs().into_iter().map(|(name, value)| format!("{name}: {value}")));
        lines.extend(answer.body());
        if !decision.allowed {
            lines.push(gate.explain(Check::of(&request).cost(cost)).now()?.to_string());
        }
        told.push(lines.join("\n"));
    }
    Ok(told)
}

fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args().nth(1);
    for answer in demonstrate(file.as_deref())? {
        println!("{answer}\n");
    }
    Ok(())
}
