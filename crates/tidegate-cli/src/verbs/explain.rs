//! Explains what each policy decides about a request, and why.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde_json::{Map, Value, json};
use tidegate::config::{canonical_attribute, unknown_attribute};
use tidegate::gate::Check;
use tidegate::http_answer::server_parts::wrong_value;
use tidegate::policy::Descriptor;
use tidegate::{Cost, Gate};

use crate::args::{Explain, Typed};
use crate::exit::{Exit, Mistake};
use crate::online::{self, ServerUrl, USUAL_SERVER};
use crate::output::Printer;
use crate::policies;
use crate::styled::{Look, Styled};

#[derive(Debug)]
enum ExplainSource {
    Server(ServerUrl),
    File(PathBuf),
}

impl ExplainSource {
    /// A typed option, otherwise an environment variable, otherwise the policy file in the current folder, otherwise
    /// the default server.
    fn of(explain: &Explain, typed: Typed) -> Result<Self> {
        if typed.server && typed.config {
            return Err(
                Mistake("--server and --config exclude each other; give one of them".to_owned()).into()
            );
        }
        let said = explain.server.server.as_deref();
        let server = |url: Option<&str>| {
            ServerUrl::read(url.unwrap_or(USUAL_SERVER), &explain.server.trust).map(Self::Server)
        };
        // A variable that names a file is meant for all verbs, so the server wins.
        if explain.id.is_some() || typed.server || said.is_some() && !typed.config {
            return server(said);
        }
        Ok(match policies::file(&explain.policies) {
            Some(file) => Self::File(file),
            None => server(None)?,
        })
    }

    /// Returns the last line of the text, which names the source and the question.
    fn line(&self, answers: &Value) -> String {
        match self {
            Self::Server(url) if answers == "then" => format!("  asked: the server at {url}"),
            Self::Server(url) => format!("  asked: the server at {url}, how it would be decided now"),
            Self::File(file) => {
                format!("  asked: {}, how it would be decided with nothing spent yet", file.display())
            }
        }
    }

    fn print(&self, mut answer: Value, text: &str, printer: &Printer) -> Result<Exit> {
        let denied = answer["decision"] == "denied";
        if let Value::Object(answer) = &mut answer {
            let asked = match self {
                Self::Server(url) => json!({ "server": url.to_string() }),
                Self::File(file) => json!({ "file": file }),
            };
            answer.insert("asked".to_owned(), asked);
            answer.entry("answers").or_insert_with(|| "now".into());
        }
        printer.value(&answer, |_| {
            let mut shown = styled(text);
            shown.push(self.line(&answer["answers"]));
            Ok(shown)
        })?;
        Ok(if denied { Exit::No } else { Exit::Done })
    }
}

pub(crate) fn run(explain: &Explain, typed: Typed, printer: &Printer) -> Result<Exit> {
    // A file would use the first value and a server the last.
    for (at, (name, _)) in explain.attributes.iter().enumerate() {
        if explain.attributes[..at].iter().any(|(before, _)| before == name) {
            return Err(
                Mistake(format!("--attr {name} is given twice; a request has one value of it")).into()
            );
        }
    }
    let source = ExplainSource::of(explain, typed)?;
    match &source {
        ExplainSource::Server(url) => {
            let is_named = explain.id.is_some() || explain.server.server.is_some();
            if let Some(beside) = policies::beside().filter(|_| !is_named) {
                printer.remark(&format!(
                    "no policy file is named, so the server at {url} is asked and {beside} is not read; did you mean -c {beside}?"
                ));
            }
            ask_server(&source, url, explain, printer)
        }
        ExplainSource::File(file) => {
            let config = policies::read(file, printer)?;
            // The load of the machine that will serve the file is unknown.
            let gate = Gate::in_memory(config.policies, 1)?
                .with_machine(tidegate::concurrency::signals::Reading::default);
            let mut request = Descriptor::new();
            for (name, value) in &explain.attributes {
                // As the server answers.
                if let Some(instead) = unknown_attribute(name) {
                    return Err(Mistake(format!("--attr {name}: no policy reads it; {instead}")).into());
                }
                if let Some(wrong) = wrong_value(name, value) {
                    return Err(Mistake(format!("--attr {name}: {wrong}")).into());
                }
                request.push(canonical_attribute(name.into()), value.as_str());
            }
            let cost = match explain.cost {
                Some(cost) => Some(
                    Cost::new(cost)
                        .ok_or_else(|| Mistake("--cost 0 asks for nothing; use 1 or more".to_owned()))?,
                ),
                None => None,
            };
            let check = Check::of(&request).maybe_cost(cost).priority(explain.priority.unwrap_or_default());
            let explanation =
                gate.explain(check).now().context("no decision could be made")?.over_fresh_counters();
            source.print(serde_json::to_value(&explanation)?, &explanation.to_string(), printer)
        }
    }
}

/// The decision at the beginning of an explanation.
const DECISIONS: [(&str, Look); 3] =
    [("ALLOWED", Look::Good), ("DELAYED", Look::Doubtful), ("DENIED", Look::Bad)];

/// The words after the name of a policy, if its result is not good.
const RESULTS: [(&str, Look); 2] = [(" DENIED ", Look::Bad), (" would deny ", Look::Doubtful)];

/// The beginning of the line that says how a request on record would be decided now.
const NOW: &str = "now: would be ";

fn styled(text: &str) -> Styled {
    let mut out = Styled::default();
    for (at, line) in text.trim_end().lines().enumerate() {
        let (head, line) = line.split_at(if line.starts_with(NOW) { NOW.len() } else { 0 });
        out.push(head);
        let is_first = at == 0 || !head.is_empty();
        let is_row = line.trim_start().starts_with(|c: char| c.is_ascii_digit());
        let words = match is_first {
            true => &DECISIONS[..],
            false if is_row => &RESULTS[..],
            false => &[],
        };
        let mut found = words.iter().filter_map(|(word, look)| Some((word, look, line.split_once(word)?)));
        // A policy's name may equal a decision.
        match found.find(|(_, _, (before, _))| !is_first || before.is_empty()) {
            Some((word, look, (before, after))) => {
                out.push(before);
                out.push_as(*look, word);
                out.push(after);
            }
            _ => out.push(line),
        }
        out.push("\n");
    }
    out
}

fn ask_server(source: &ExplainSource, url: &ServerUrl, explain: &Explain, printer: &Printer) -> Result<Exit> {
    let answer = match &explain.id {
        Some(id) => {
            let mut query = form_urlencoded::Serializer::new(String::new());
            let query = query.append_pair("id", id).append_pair("reveal", "true").finish();
            online::ask(url, &format!("/v1/explain?{query}"), None)?
        }
        None => {
            let attributes: Map<_, _> =
                explain.attributes.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
            let mut body = json!({ "attributes": attributes });
            if let Some(cost) = explain.cost {
                body["cost"] = cost.into();
            }
            if let Some(priority) = explain.priority {
                body["priority"] = priority.to_string().into();
            }
            online::ask(url, "/v1/explain?reveal=true", Some(&body))?
        }
    };
    let lines = answer["lines"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let text = lines.collect::<Vec<_>>().join("\n");
    source.print(answer, &text, printer)
}
