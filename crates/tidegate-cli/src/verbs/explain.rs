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
        return online_explain(server, None, &format!("/v1/explain?id={id}&reveal=true"), printer);
    }
    // The file would be asked about the first of the two, and the server about the last.
    for (at, (name, _)) in explain.attributes.iter().enumerate() {
        if explain.attributes[..at].iter().any(|(before, _)| before == name) {
            return Err(
                Mistake(format!("--attr {name} is given twice; a request has one value of it")).into()
            );
        }
    }
    let Some(file) = policies::file(&explain.policies) else {
        let attributes: serde_json::Map<_, _> =
            explain.attributes.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
        let mut body = serde_json::json!({ "attributes": attributes });
        if let Some(cost) = explain.cost {
            body["cost"] = cost.into();
        }
        return online_explain(server, Some(&body), "/v1/explain?reveal=true", printer);
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
    Ok(if explanation.decision == "denied" { Exit::No } else { Exit::Done })
}

fn online_explain(
    server: &str,
    body: Option<&serde_json::Value>,
    path: &str,
    printer: &Printer,
) -> Result<Exit> {
    let answer = online::ask(server, path, body)?;
    let denied = answer["decision"] == "denied";
    printer.value(&answer, |_| {
        let lines = answer["lines"].as_array().into_iter().flatten().filter_map(serde_json::Value::as_str);
        Ok(lines.collect::<Vec<_>>().join("\n"))
    })?;
    Ok(if denied { Exit::No } else { Exit::Done })
}
