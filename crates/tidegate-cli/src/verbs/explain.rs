//! Says what each policy thinks of a request, and why.

use anyhow::{Context as _, Result};
use tidegate::policy::Descriptor;
use tidegate::{Cost, Gate};

use crate::args::Explain;
use crate::exit::{Exit, Mistake};
use crate::output::Printer;
use crate::{online, policies};

pub(crate) fn run(explain: &Explain, server: &str, printer: &Printer) -> Result<Exit> {
    if let Some(id) = &explain.id {
        return online_explain(server, &serde_json::json!({ "decision_id": id }), printer);
    }
    let Some(file) = policies::file(&explain.policies) else {
        let attributes: serde_json::Map<_, _> =
            explain.attributes.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
        let mut body = serde_json::json!({ "attributes": attributes });
        if let Some(cost) = explain.cost {
            body["cost"] = cost.into();
        }
        return online_explain(server, &body, printer);
    };
    let config = policies::read(&file, printer)?;
    let gate = Gate::in_memory(config.policies, 1);
    let mut request = Descriptor::new();
    for (name, value) in &explain.attributes {
        request.push(name.as_str(), value.as_str());
    }
    let cost = match explain.cost {
        Some(cost) => Some(
            Cost::new(cost).ok_or_else(|| Mistake("--cost 0 asks for nothing; use 1 or more".to_owned()))?,
        ),
        None => None,
    };
    let explanation = gate.explain(&request, cost).context("no decision could be made")?;
    printer.value(&explanation, |_| Ok(explanation.to_string()))?;
    Ok(if explanation.allowed { Exit::Done } else { Exit::No })
}

fn online_explain(server: &str, body: &serde_json::Value, printer: &Printer) -> Result<Exit> {
    let answer = online::post(server, "/v1/explain", body)?;
    let allowed = answer.get("allowed").and_then(serde_json::Value::as_bool).unwrap_or(false);
    printer.value(&answer, |_| {
        let text = answer.get("text").and_then(serde_json::Value::as_str);
        text.map_or_else(|| Ok(serde_json::to_string_pretty(&answer)?), |text| Ok(text.to_owned()))
    })?;
    Ok(if allowed { Exit::Done } else { Exit::No })
}
