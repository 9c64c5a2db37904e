//! Drafts of converted policies, and the policy file that they are written into.

use std::collections::HashSet;
use std::fmt::Write as _;

use super::super::budget;
use super::super::diagnostic::{Diagnostic, Findings};
use super::super::names;
use super::super::node::Spot;
use tidegate_limits::visible::excerpt;

/// What a match demands of one attribute.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum AttributeMatch {
    OneOf(Vec<String>),
    Present,
    #[cfg_attr(not(feature = "cel"), expect(dead_code, reason = "only conditions ask for it"))]
    Absent,
}

pub(super) type Matches = Vec<(String, AttributeMatch)>;

pub(super) type LeftOut = Vec<(String, Vec<String>)>;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Granted {
    Unlimited,
    Nothing,
    /// `count` requests in each window, from multiples of its length since 1970 (`since_epoch`) or from the first
    /// request.
    Window {
        count: u64,
        length: String,
        since_epoch: bool,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub(super) name: String,
    pub(super) domain: String,
    /// Attributes, the most selective first: the index of policies uses the first one with plain values.
    pub(super) matches: Matches,
    pub(super) left_out: LeftOut,
    pub(super) by: Vec<String>,
    pub(super) granted: Granted,
    /// Whether refused requests are charged too.
    pub(super) charges_always: bool,
    pub(super) lenient: Option<&'static str>,
    pub(super) file: usize,
    pub(super) spot: Spot,
}

#[derive(Debug)]
pub(super) struct PolicyFileText {
    pub(super) text: String,
    files: Vec<String>,
    lines: usize,
    /// The first line of each policy in the text, with the file and the place that it comes from.
    origins: Vec<(usize, usize, Spot)>,
    names: HashSet<String>,
}

impl PolicyFileText {
    pub(super) fn new<'n>(files: impl Iterator<Item = &'n str>) -> Self {
        let files: Vec<String> = files.map(excerpt).collect();
        let mut file_text =
            Self { text: String::new(), files, lines: 0, origins: Vec::new(), names: HashSet::new() };
        let from = file_text.files.join(", ");
        file_text.line(&format!("# Converted from {from}."));
        file_text.line("version: 1");
        file_text.line("server: { grpc: 127.0.0.1:8081 }");
        file_text
    }

    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
        self.lines += 1;
    }

    /// Reports whether the text exceeds the bounds of a file; then nothing more is written, and validating it reports
    /// the excess.
    pub(super) fn is_full(&self) -> bool {
        self.text.len() > budget::TEXT || self.origins.len() > budget::POLICIES
    }

    pub(super) fn add(&mut self, draft: &Draft, findings: &mut Findings) {
        if self.is_full() {
            return;
        }
        if self.origins.is_empty() {
            self.line("policies:");
        }
        self.origins.push((self.lines + 1, draft.file, draft.spot));
        let name = self.own_name(&draft.name, draft.spot);
        self.line(&format!("  # {}:{}", self.files[draft.file], draft.spot.line));
        self.line(&format!("  - name: {}", quoted(&name)));
        self.line("    match:");
        let mut bent = false;
        let mut wanted: Vec<String> = Vec::with_capacity(draft.matches.len() + 1);
        for (attribute, want) in &draft.matches {
            let want = match want {
                AttributeMatch::Present => "true".to_owned(),
                AttributeMatch::Absent => "false".to_owned(),
                AttributeMatch::OneOf(patterns) => listed(patterns, &mut bent),
            };
            wanted.push(format!("{}: {want}", quoted(attribute)));
        }
        wanted.push(format!("{DOMAIN}: {}", listed(std::slice::from_ref(&draft.domain), &mut bent)));
        self.line(&format!("      attributes: {{ {} }}", wanted.join(", ")));
        if !draft.left_out.is_empty() {
            let each = draft.left_out.iter().map(|(attribute, values)| {
                format!("{{ attributes: {{ {}: {} }} }}", quoted(attribute), listed(values, &mut bent))
            });
            let each = each.collect::<Vec<_>>().join(", ");
            self.line(&format!("      not: [{each}]"));
        }
        if !draft.by.is_empty() {
            let by: Vec<_> = draft.by.iter().map(|name| quoted(name)).collect();
            self.line(&format!("    by: [{}]", by.join(", ")));
        }
        match &draft.granted {
            Granted::Unlimited => self.line("    limit: { rate: unlimited }"),
            Granted::Nothing => {
                let entry = quoted(&format!("{DOMAIN}={}", draft.domain));
                self.line("    limit: { rate: 1/s }");
                self.line(&format!("    access: {{ deny: [{entry}] }}"));
            }
            Granted::Window { count, length, since_epoch } => {
                let calendar = if *since_epoch { ", calendar: epoch" } else { "" };
                self.line(&format!(
                    "    limit: {{ algorithm: fixed-window, rate: {count}/{length}{calendar} }}"
                ));
                if draft.charges_always {
                    self.line("    charge: always");
                }
            }
        }
        if let Some(lenient) = draft.lenient {
            self.line(&format!("    {lenient}"));
        }
        if bent {
            findings.warn(
                draft.spot,
                "a value has ?, { or }, which patterns here cannot contain: any one character matches in their place",
            );
        }
    }

    pub(super) fn finish(&mut self) {
        if self.origins.is_empty() {
            self.line("policies: []");
        }
    }

    /// Returns a valid policy name that no other policy has.
    fn own_name(&mut self, wished: &str, spot: Spot) -> String {
        let shown = |letter: char| if names::is_control(letter) { '?' } else { letter };
        let mut name: String = wished.trim().chars().map(shown).collect();
        if name.len() > budget::NAME || self.names.contains(&name) {
            let mut end = name.len().min(budget::NAME - 2 * LINE_DIGITS);
            while !name.is_char_boundary(end) {
                end -= 1;
            }
            name.truncate(end);
            let _ = write!(name, "#{}", spot.line);
            // Rules of two files may have the same name and line.
            let mut again = 1;
            let base = name.clone();
            while self.names.contains(&name) {
                again += 1;
                name = format!("{base}.{again}");
            }
        }
        self.names.insert(name.clone());
        name
    }

    pub(super) fn placed(&self, mut one: Diagnostic) -> Diagnostic {
        let at = self.origins.partition_point(|(line, ..)| *line <= one.line);
        if let Some((_, file, spot)) = at.checked_sub(1).and_then(|at| self.origins.get(at)) {
            (one.line, one.column) = (spot.line, spot.column);
            one.path.clone_from(&self.files[*file]);
        }
        one
    }
}

const LINE_DIGITS: usize = 8;

/// The attribute with the domain, as the gRPC door sets it.
pub(super) const DOMAIN: &str = "rls.domain";

fn listed(values: &[String], bent: &mut bool) -> String {
    let mut each = values.iter().map(|value| {
        let plain: String = value
            .chars()
            .map(|letter| match letter {
                '?' | '{' | '}' => {
                    *bent = true;
                    '?'
                }
                letter => letter,
            })
            .collect();
        quoted(&plain)
    });
    match values {
        [_] => each.next().unwrap_or_default(),
        _ => format!("[{}]", each.collect::<Vec<_>>().join(", ")),
    }
}

fn quoted(text: &str) -> String {
    const WORDS: [&str; 11] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan", "inf"];
    let mut bytes = text.bytes();
    let starts = bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic());
    let plain = starts
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'))
        && !WORDS.iter().any(|word| text.eq_ignore_ascii_case(word));
    // A string in JSON is also a string in YAML.
    if plain { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_mean_something_are_quoted() {
        let told = ["a.b-c_d", "true", "No", "1", "", "a b", "\"", "é", "a:", "*"].map(quoted);
        let expected = [
            "a.b-c_d", "\"true\"", "\"No\"", "\"1\"", "\"\"", "\"a b\"", "\"\\\"\"", "\"é\"", "\"a:\"",
            "\"*\"",
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn names_are_distinct_and_short() {
        let mut file_text = PolicyFileText::new(["f"].into_iter());
        let spot = Spot { text: 0, line: 7, column: 1 };
        let names =
            ["a", "a", "a", "b\u{1b}[2J", &"é".repeat(100)].map(|name| file_text.own_name(name, spot));
        assert_eq!(names[..4], ["a", "a#7", "a#7.2", "b?[2J"]);
        assert!(names[4].len() <= budget::NAME && names[4].ends_with("é#7"), "{}", names[4]);
    }
}
