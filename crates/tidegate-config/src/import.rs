//! Converts files of other rate limiters into a policy file.
//!
//! Each file is read into policies by the attributes that the gRPC door sets for a descriptor (`rls.domain`,
//! `rls.keys`, `rls.index`), and written as a policy file. That text is validated like any other; a mistake is reported
//! at the line of the original.

mod draft;
mod envoy;
#[cfg(feature = "cel")]
mod limitador;

use std::path::Path;

use tidegate_gate::policy::BUILT_IN;
use tidegate_limits::visible::excerpt;

use self::draft::PolicyFileText;
use super::diagnostic::{Findings, Severity};
use super::file::{Format, read_text};
use super::names::{self, instead};
use super::node::{Name, Node, Spot, Value};
use super::{Config, Diagnostic, MAX_BYTES, budget, read};

/// The rate limiter that a file is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Peer {
    /// envoyproxy/ratelimit: a domain and a tree of descriptors.
    Envoy,
    /// Limitador: a list of limits. Needs the feature `cel`, since its conditions are CEL expressions.
    Limitador,
}

/// Files of other rate limiters, converted into one policy file.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Imported {
    /// The policy file, YAML with comments that name the original lines.
    pub text: String,
    /// The configuration that the text yields.
    pub config: Config,
    /// What works differently from the original or not at all, each at its line of the original.
    pub notes: Vec<Diagnostic>,
}

impl Imported {
    /// Reads and converts files; see [`Imported::of`].
    ///
    /// # Errors
    /// As [`Imported::of`], and if a file cannot be read.
    pub fn read(files: &[(Peer, &Path)]) -> Result<Self, Vec<Diagnostic>> {
        let mut texts = Vec::with_capacity(files.len());
        for (peer, path) in files {
            let name = path.display().to_string();
            match read_text(path, MAX_BYTES as u64) {
                Ok(text) => texts.push((*peer, name, text)),
                Err(error) => {
                    let mut findings = Findings::of(&name);
                    findings.error(Spot::default(), format_args!("the file {error}"));
                    return Err(findings.finish());
                }
            }
        }
        let texts: Vec<_> = texts.iter().map(|(peer, name, text)| (*peer, &**name, &**text)).collect();
        Self::of(&texts)
    }

    /// Converts texts, each with its name for diagnostics. Descriptors of one domain may be spread over several files.
    /// A text may have several documents, and each may be a Kubernetes manifest around the configuration: a ConfigMap,
    /// a `Limitador`, or a list of these.
    ///
    /// Never panics, whatever the texts, and does a bounded amount of work.
    ///
    /// # Errors
    /// All mistakes, and everything that a policy cannot express, with the place and what would work.
    ///
    /// # Examples
    /// ```
    /// use tidegate::config::{Imported, Peer};
    /// let text = "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: { unit: minute, requests_per_unit: 5 }\n";
    /// let imported = Imported::of(&[(Peer::Envoy, "ratelimit.yaml", text)]).unwrap();
    /// assert_eq!(imported.config.policies.policies()[0].name, "shop.user");
    ///
    /// let wrong = Imported::of(&[(Peer::Envoy, "ratelimit.yaml", &text.replace("minute", "minutes"))]).unwrap_err();
    /// assert_eq!(
    ///     wrong[0].to_string(),
    ///     "ratelimit.yaml:4:25  error  rate_limit: unknown unit \"minutes\"; did you mean \"minute\"?"
    /// );
    /// ```
    pub fn of(files: &[(Peer, &str, &str)]) -> Result<Self, Vec<Diagnostic>> {
        let mut all: Vec<Findings> = files.iter().map(|(_, name, _)| Findings::of(name)).collect();
        let mut file_text = PolicyFileText::new(files.iter().map(|(_, name, _)| *name));
        let mut domains = envoy::Domains::default();
        for (at, ((peer, _, text), findings)) in files.iter().zip(&mut all).enumerate() {
            for file in configurations(*peer == Peer::Limitador, text, findings) {
                match peer {
                    Peer::Envoy => domains.add(at, &file, findings),
                    #[cfg(feature = "cel")]
                    Peer::Limitador => limitador::convert(at, &file, &mut file_text, findings),
                    #[cfg(not(feature = "cel"))]
                    Peer::Limitador => findings
                        .error(file.spot, "conditions of Limitador need a build with the feature `cel`"),
                }
            }
        }
        domains.write(&mut file_text, &mut all);
        file_text.finish();
        let refused = all.iter().any(Findings::refused);
        let found: Vec<Diagnostic> = all.into_iter().flat_map(Findings::finish).collect();
        if refused {
            // Notes about differences matter only for files that can be converted.
            return Err(found.into_iter().filter(|one| one.severity == Severity::Error).collect());
        }
        let placed = |one: Diagnostic| file_text.placed(one);
        match Config::parse_to_serve(&file_text.text, CONVERTED, Format::Yaml) {
            Ok((config, warnings)) => {
                let notes = found.into_iter().chain(warnings.into_iter().map(placed)).collect();
                Ok(Self { config, notes, text: file_text.text })
            }
            Err(mistakes) => Err(mistakes.into_iter().map(placed).collect()),
        }
    }
}

const CONVERTED: &str = "the converted file";

// Finds the configurations in a file: each of its documents, and what manifests hold, as a ConfigMap with the text
// under `data`, or a `kind: Limitador` with the limits under `spec.limits`.

/// Returns the configurations in a text. Reports manifests that hold none.
fn configurations(is_limitador: bool, text: &str, findings: &mut Findings) -> Vec<Node> {
    let Some(documents) = read::read_documents(text, findings) else { return Vec::new() };
    if documents.is_empty() {
        findings.error(Spot { text: 0, line: 1, column: 1 }, "the file is empty");
    }
    let mut finder = Finder { is_limitador, text, findings, found: Vec::new(), room: budget::NODES };
    let mut skipped = Vec::new();
    for node in documents {
        finder.document(node, &mut skipped);
    }
    let Finder { findings, found, .. } = finder;
    for (spot, kind) in skipped {
        let what = format!("kind: {kind} holds no configuration of a rate limiter; it is left out");
        if found.is_empty() && !findings.refused() {
            findings.error(
                spot,
                format_args!(
                    "{what}, and there is nothing else; give a ConfigMap, a Limitador, or the text itself"
                ),
            );
        } else {
            findings.warn(spot, what);
        }
    }
    found
}

struct Finder<'f> {
    is_limitador: bool,
    text: &'f str,
    findings: &'f mut Findings,
    found: Vec<Node>,
    /// How many values the texts in manifests may still have.
    room: usize,
}

impl Finder<'_> {
    fn document(&mut self, node: Node, skipped: &mut Vec<(Spot, String)>) {
        let Some(kind) = read::manifest_kind(&node) else {
            self.found.push(node);
            return;
        };
        let found = self.found.len();
        match (kind, self.is_limitador) {
            ("ConfigMap", _) => {
                for (key, text) in node.entries_of("data") {
                    self.held(key, text);
                }
                if self.found.len() == found {
                    skipped.push((node.spot, excerpt(kind)));
                }
            }
            ("Limitador", true) => match node.get("spec").and_then(|spec| spec.get("limits")) {
                Some(limits) => self.found.push(limits.clone()),
                None => self.findings.error(node.spot, "kind: Limitador has no limits under spec.limits"),
            },
            ("Limitador", false) => {
                self.findings.error(node.spot, "this is a file of Limitador; read it with --from-limitador");
            }
            ("List", _) => {
                let spot = node.spot;
                let Value::Map(entries) = node.value else { return };
                let items = entries.into_iter().find(|(name, _)| name.text == "items");
                let items = items.map_or_else(Vec::new, |(_, items)| match items.value {
                    Value::List(items) => items,
                    _ => Vec::new(),
                });
                if items.is_empty() {
                    skipped.push((spot, excerpt("List")));
                }
                for item in items {
                    self.document(item, skipped);
                }
            }
            (kind, _) => skipped.push((node.spot, excerpt(kind))),
        }
    }

    fn held(&mut self, key: &Name, value: &Node) {
        if self.findings.beyond {
            return;
        }
        let Some(text) = value.text() else {
            self.findings.error(
                value.spot,
                format_args!("data.{} is a text, found {}", excerpt(&key.text), value.kind()),
            );
            return;
        };
        let block = Block::at(key.spot, self.text);
        let place = |spot: Spot| block.map_or(value.spot, |block| block.place(spot));
        let mut inner = Findings::default();
        let documents = read::read_documents(text, &mut inner);
        for one in inner.finish() {
            let spot = place(Spot { text: 0, line: one.line, column: one.column });
            self.findings.error(spot, format_args!("data.{}: {}", excerpt(&key.text), one.message));
        }
        for mut node in documents.unwrap_or_default() {
            if read::beyond(&node, budget::DEPTH, &mut self.room).is_some()
                || self.found.len() >= budget::DOCUMENTS
            {
                let (nodes, documents) = (budget::NODES, budget::DOCUMENTS);
                self.findings.beyond(
                    key.spot,
                    format_args!("the file has more than {nodes} values or {documents} texts"),
                );
                return;
            }
            node.move_to(&place);
            self.found.push(node);
        }
    }
}

/// A block of literal text (`|`), whose lines are lines of the file.
#[derive(Clone, Copy)]
struct Block {
    above: usize,
    indent: usize,
}

impl Block {
    /// Returns the block that follows a key; `None` if the text is written otherwise.
    fn at(key: Spot, text: &str) -> Option<Self> {
        let mut lines = text.lines().skip(key.line.checked_sub(1)?);
        let head = lines.next()?.split(" #").next()?.trim_end();
        let head = head.trim_end_matches(|sign: char| sign.is_ascii_digit() || matches!(sign, '+' | '-'));
        if !head.ends_with('|') {
            return None;
        }
        let first = lines.find(|line| !line.trim().is_empty())?;
        Some(Self { above: key.line, indent: first.len() - first.trim_start_matches(' ').len() })
    }

    fn place(self, spot: Spot) -> Spot {
        Spot { line: spot.line.max(1) + self.above, column: spot.column.max(1) + self.indent, ..spot }
    }
}

/// Returns the attribute of an entry: its key, or `rls.entry.` and its key if that means something else. `before`
/// counts earlier entries with the same key.
fn attribute(key: &str, before: usize) -> String {
    let name = if before == 0 { key.to_owned() } else { format!("{key}.{}", before + 1) };
    let is_ours = BUILT_IN.contains(&&*name) || name.starts_with("rls.") || names::attribute(&name).is_err();
    if is_ours { format!("rls.entry.{name}") } else { name }
}

/// Reports unknown and repeated keys of a map. `elsewhere` lists known words with the place where they belong.
fn check(node: &Node, what: &str, known: &[&str], elsewhere: &[(&str, &str)], findings: &mut Findings) {
    for (at, (name, _)) in node.entries().iter().enumerate() {
        let key = excerpt(&name.text);
        if let Some((first, _)) = node.entries()[..at].iter().find(|(first, _)| first.text == name.text) {
            let line = first.spot.line;
            findings.error(name.spot, format_args!("key \"{key}\" is given twice, first in line {line}"));
        } else if let Some((_, place)) = elsewhere.iter().find(|(word, _)| *word == name.text) {
            findings.error(name.spot, format_args!("{key} has no effect in {what}; it belongs {place}"));
        } else if !known.contains(&&*name.text) {
            let hint = instead(&name.text, known.iter().copied());
            findings.error(name.spot, format_args!("unknown key \"{key}\" in {what}{hint}"));
        }
        if at >= 64 {
            // A map with free keys: comparing all pairs would take too long.
            break;
        }
    }
}

fn is_map(node: &Node, what: &str, findings: &mut Findings) -> bool {
    let is_map = matches!(node.value, Value::Map(_));
    if !is_map {
        findings.error(node.spot, format_args!("{what} is a map, found {}", node.kind()));
    }
    is_map
}

/// Returns the elements of a list; reports any other value.
fn list<'n>(node: Option<&'n Node>, what: &str, findings: &mut Findings) -> &'n [Node] {
    match node {
        None => &[],
        Some(Node { value: Value::List(nodes), .. }) => nodes,
        Some(node) => {
            findings.error(node.spot, format_args!("{what} is a list, found {}", node.kind()));
            &[]
        }
    }
}

fn text<'n>(node: &'n Node, key: &str, findings: &mut Findings) -> Option<&'n str> {
    let value = node.get(key)?;
    if value.text().is_none() {
        findings.error(value.spot, format_args!("{key} is a text, found {}", value.kind()));
    }
    value.text()
}

/// Returns the place of a flag that is `true`; reports any value but a flag.
fn flag(node: &Node, key: &str, findings: &mut Findings) -> Option<Spot> {
    let (name, value) = node.entry(key)?;
    match value.value {
        Value::Bool(true) => Some(name.spot),
        Value::Bool(false) => None,
        _ => {
            findings.error(value.spot, format_args!("{key} is true or false, found {}", value.kind()));
            None
        }
    }
}

fn whole(node: &Node, key: &str, most: u64, findings: &mut Findings) -> Option<u64> {
    let value = node.get(key)?;
    let number = value.text().and_then(|text| text.parse().ok()).filter(|number| *number <= most);
    if number.is_none() {
        let found =
            value.text().map_or_else(|| value.kind().to_owned(), |text| format!("\"{}\"", excerpt(text)));
        findings.error(value.spot, format_args!("{key} is a whole number from 0 to {most}, found {found}"));
    }
    number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_mean_something_else_here_have_a_name_of_their_own() {
        let told = ["user", "remote_address", "client_ip", "request.path", "rls.keys", "PATH"]
            .map(|key| attribute(key, 0));
        let expected = [
            "user",
            "remote_address",
            "rls.entry.client_ip",
            "rls.entry.request.path",
            "rls.entry.rls.keys",
            "PATH",
        ];
        assert_eq!(told, expected);
        assert_eq!(attribute("user", 1), "user.2");
    }
}
