//! Explains what each policy decides about a request, and why.

use std::io::Read as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde_json::{Map, Value, json};
use tidegate::config::{canonical_attribute, unknown_attribute};
use tidegate::gate::Check;
use tidegate::http_answer::server_parts::wrong_value;
use tidegate::policy::Descriptor;
use tidegate::{Cost, Gate};

use crate::args::{Explain, PolicyFile, Typed, Why};
use crate::exit::{Exit, Mistake};
use crate::online::{self, ServerUrl};
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
        let server = || ServerUrl::of(&explain.server).map(Self::Server);
        // A variable that names a file is meant for all verbs, so the server wins.
        if explain.id.is_some() || typed.server || explain.server.server.is_some() && !typed.config {
            return server();
        }
        match policies::file(&explain.policies) {
            Some(file) => Ok(Self::File(file)),
            None => server(),
        }
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
        printer.value(&answer, |printer| {
            let is_whole = printer.wide() || answer["answers"] != "then";
            let mut shown = styled(&if is_whole { text.into() } else { without_others(text) });
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

/// The most that is read of standard input: a log line, or an answer with its headers.
const MOST_INPUT: u64 = 1 << 20;

/// Finds a decision id in a text, and explains the decision.
pub(crate) fn why(why: &Why, printer: &Printer) -> Result<Exit> {
    let text = if why.text == "-" {
        let mut bytes = Vec::new();
        std::io::stdin().lock().take(MOST_INPUT).read_to_end(&mut bytes)?;
        String::from_utf8_lossy(&bytes).into_owned()
    } else {
        why.text.clone()
    };
    let Some(id) = decision_id(&text) else {
        let wrong = "there is no decision id in it, which has 26 letters and digits; answers to refused requests have one, in \
                     the header x-tidegate-decision-id or in decision_id";
        return Err(Mistake(wrong.to_owned()).into());
    };
    let explain = Explain {
        attributes: Vec::new(),
        id: Some(id.to_owned()),
        digest: digest(&text).map(str::to_owned),
        cost: None,
        priority: None,
        policies: PolicyFile { config: None },
        server: why.server.clone(),
    };
    run(&explain, Typed::default(), printer)
}

/// The words before a decision id in logs, answers and headers.
const LABELS: [&str; 2] = ["decision_id", "decision-id"];

/// Returns the decision id of a text: the first after a word that says so, otherwise the first of all. A line may have
/// ids of the same form that are of something else.
fn decision_id(text: &str) -> Option<&str> {
    let labelled = LABELS.iter().filter_map(|label| {
        let at = text.to_ascii_lowercase().find(label)?;
        Some(at + label.len())
    });
    let after = labelled.min().and_then(|from| ids(&text[from..]).next());
    after.or_else(|| ids(text).next())
}

/// Returns the digest of a key in a text, if there is one: `#` and 16 digits.
fn digest(text: &str) -> Option<&str> {
    const LENGTH: usize = 17;
    text.match_indices('#').find_map(|(at, _)| {
        let digest = text.get(at..at + LENGTH)?;
        let ends = !text[at + LENGTH..].starts_with(|char: char| char.is_ascii_alphanumeric());
        (ends && digest[1..].bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(digest)
    })
}

/// Returns all words of a text that have the form of a ULID.
fn ids(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|char: char| !char.is_ascii_alphanumeric());
    // Crockford's base 32 has no I, L, O and U; 128 bits begin with 7 at most.
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() && !b"ILOUilou".contains(&byte);
    words.filter(move |word| {
        word.len() == 26
            && word.starts_with(|char: char| matches!(char, '0'..='7'))
            && word.bytes().all(is_digit)
    })
}

/// The decision at the beginning of an explanation.
const DECISIONS: [(&str, Look); 3] =
    [("ALLOWED", Look::Good), ("DELAYED", Look::Doubtful), ("DENIED", Look::Bad)];

/// The words after the name of a policy, if its result is not good.
const RESULTS: [(&str, Look); 2] = [(" DENIED ", Look::Bad), (" would deny ", Look::Doubtful)];

/// The beginning of the line that says how a request on record would be decided now.
const NOW: &str = "now: would be ";

/// Leaves out the policies that are not about a request on record: with them, why it was refused would scroll away.
fn without_others(text: &str) -> String {
    let is_other = |line: &str| {
        let mut words = line.split_whitespace();
        words.next().is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
            && words.skip(1).take(2).eq(["not", "charged"])
    };
    text.lines().filter(|line| !is_other(line)).collect::<Vec<_>>().join("\n")
}

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
            query.append_pair("id", id);
            if let Some(digest) = &explain.digest {
                query.append_pair("digest", digest);
            }
            asked(url, &format!("{}&", query.finish()), None, printer)?
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
            asked(url, "", Some(&body), printer)?
        }
    };
    let lines = answer["lines"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let text = lines.collect::<Vec<_>>().join("\n");
    source.print(answer, &text, printer)
}

/// Asks for names, or for digests if the token may not see names. `query` is empty or ends with `&`.
fn asked(url: &ServerUrl, query: &str, body: Option<&Value>, printer: &Printer) -> Result<Value> {
    match online::ask(url, &format!("/v1/explain?{query}reveal=true"), body) {
        Err(error) if online::hides_names(&error) => {
            printer.remark("keys are digests: their names need a token with the scope `keys`");
            online::ask(url, &format!("/v1/explain?{query}reveal=false"), body)
        }
        answered => answered,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_on_record_is_explained_without_policies_that_are_not_about_it() {
        let text = "DENIED by a\n  1 not    allowed     gcra\n  2 a      DENIED      gcra\nnow: would be ALLOWED\n  \
                    1 not    allowed     gcra; not charged, another limit denied\n  4 b      not charged path does not match";
        assert_eq!(without_others(text), text.rsplit_once('\n').unwrap().0);
    }

    #[test]
    fn the_decision_id_is_found_in_whatever_has_it() {
        const ID: &str = "01J9ZQ4M8XT5B0K3W2V7C6D1EF";
        const OTHER: &str = "01J9ZQ4M8XT5B0K3W2V7C6D1EG";
        for text in [
            ID.to_owned(),
            format!("  {ID}\n"),
            format!("x-tidegate-decision-id: {ID}\r\nretry-after: 2"),
            format!("{{\"request_id\":\"{OTHER}\",\"decision_id\":\"{ID}\"}}"),
            format!("203.0.113.9 - - \"GET /é HTTP/1.1\" 429 {ID}"),
            format!("X-Tidegate-Decision-Id: {ID} {OTHER}"),
            format!("decision_id: none, {ID}"),
        ] {
            assert_eq!(decision_id(&text), Some(ID), "{text}");
        }
        for text in ["", "abcdefghijklmnopqrstuvwxyz", "81J9ZQ4M8XT5B0K3W2V7C6D1EF", "decision_id=\u{e9}"] {
            assert_eq!(decision_id(text), None, "{text}");
        }
        let line = format!("decision_id={ID} key=\"#5c1f20cf0b14e7a9\"");
        assert_eq!(digest(&line), Some("#5c1f20cf0b14e7a9"));
        for text in ["", "#", "#5c1f20cf0b14e7a", "#5c1f20cf0b14e7a9f", "#é5c1f20cf0b14e7a9"] {
            assert_eq!(digest(text), None, "{text}");
        }
        assert_eq!(decision_id(&format!("{ID}0")), None, "a longer word");
        assert_eq!(decision_id(&ID.to_ascii_lowercase()), Some(&*ID.to_ascii_lowercase()));
    }
}
