//! Parses a text in YAML or TOML into the tree.
//!
//! Never panics and never grows without bound: size, depth and the expansion of YAML aliases are limited (see
//! `budget`). A key that is given twice is kept twice.

use std::cell::Cell;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::options::{DuplicateKeyPolicy, NonFiniteFloatPolicy};
use serde_saphyr::{Location, Spanned};
use toml::de::{DeTable, DeValue};

use super::budget;
use super::diagnostic::Findings;
use super::file::Format;
use super::node::{Name, Node, Spot, Value};
use tidegate_limits::visible::excerpt;

/// Parses a text; `None` if that is not possible, with the reason among the findings.
pub(super) fn read(text: &str, format: Format, findings: &mut Findings) -> Option<Node> {
    if text.len() > budget::TEXT {
        findings.error(Spot::default(), format_args!("the file is larger than {} MiB", budget::TEXT >> 20));
        return None;
    }
    findings.in_toml = format == Format::Toml;
    if let Some(how) = of_other_format(text, format) {
        findings.error(Spot { text: 0, line: 1, column: 1 }, how);
        return None;
    }
    let file = match format {
        Format::Yaml => yaml(text, findings),
        Format::Toml => toml(text, findings),
    }?;
    let mut room = budget::NODES;
    match beyond(&file, budget::DEPTH, &mut room) {
        None => Some(file),
        Some((spot, what)) => {
            findings.error(spot, what);
            None
        }
    }
}

/// Says what to call a policy file in the other format.
fn of_other_format(text: &str, format: Format) -> Option<&'static str> {
    // Most files are told by their first line.
    if Format::of_text(text) == format {
        return None;
    }
    let mut unheard = Findings::default();
    let (yaml, toml) = (yaml(text, &mut unheard), toml(text, &mut unheard));
    let (own, other, told) = match format {
        Format::Yaml => (
            yaml,
            toml,
            "the name says that the file is YAML, and its text is TOML; rename it to tidegate.toml",
        ),
        Format::Toml => (
            toml,
            yaml,
            "the name says that the file is TOML, and its text is YAML; rename it to tidegate.yaml",
        ),
    };
    let is_own = own.is_some_and(|file| matches!(file.value, Value::Map(_)));
    let is_other = other.is_some_and(|file| file.get("version").is_some() || file.get("policies").is_some());
    (!is_own && is_other).then_some(told)
}

/// Finds the first place where a tree is larger or deeper than allowed: the TOML parser does not bound the size.
pub(super) fn beyond(node: &Node, depth: usize, room: &mut usize) -> Option<(Spot, String)> {
    if depth == 0 {
        return Some((node.spot, format!("the file is nested deeper than {} levels", budget::DEPTH)));
    }
    if *room == 0 {
        return Some((node.spot, format!("the file has more than {} values", budget::NODES)));
    }
    *room -= 1;
    match &node.value {
        Value::List(nodes) => nodes.iter().find_map(|node| beyond(node, depth - 1, room)),
        Value::Map(entries) => entries.iter().find_map(|(_, node)| beyond(node, depth - 1, room)),
        _ => None,
    }
}

/// Parses a YAML text that may hold several documents; those without content are left out.
pub(super) fn read_documents(text: &str, findings: &mut Findings) -> Option<Vec<Node>> {
    if text.len() > budget::TEXT {
        findings.error(Spot::default(), format_args!("the file is larger than {} MiB", budget::TEXT >> 20));
        return None;
    }
    let raw = serde_saphyr::from_multiple_with_options::<Spanned<Raw>>(text, options(budget::DOCUMENTS));
    let documents = match raw {
        Ok(raw) => raw.into_iter().map(|raw| raw_node(raw, text)).collect::<Vec<_>>(),
        Err(error) if is_several(&error) => {
            let spot = error.location().map_or(Spot { text: 0, line: 1, column: 1 }, spot_of);
            findings.error(spot, format_args!("the file holds more than {} documents", budget::DOCUMENTS));
            return None;
        }
        Err(error) => {
            report(&error, findings);
            return None;
        }
    };
    let mut room = budget::NODES;
    for node in &documents {
        if let Some((spot, what)) = beyond(node, budget::DEPTH, &mut room) {
            findings.error(spot, what);
            return None;
        }
    }
    Some(documents)
}

fn options(documents: usize) -> serde_saphyr::Options {
    serde_saphyr::options! {
        // The rest is bounded by the size of the text. The default of ten aliases per anchor is off: a hundred policies
        // may share one limit.
        budget: serde_saphyr::budget! {
            max_depth: budget::DEPTH,
            max_documents: documents,
            max_nodes: 2 * budget::NODES,
            max_events: 4 * budget::NODES,
            max_aliases: budget::ALIASES,
            max_anchors: budget::ALIASES,
            max_merge_keys: budget::ALIASES,
            max_recorded_anchor_events: budget::REPLAYED,
            max_recorded_anchor_bytes: budget::TEXT,
            max_total_scalar_bytes: budget::TEXT,
            enforce_alias_anchor_ratio: false
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: budget::REPLAYED,
            max_replay_stack_depth: budget::DEPTH
        },
        duplicate_keys: DuplicateKeyPolicy::LastWins,
        non_finite_float_policy: NonFiniteFloatPolicy::AsString,
        strict_booleans: true,
        with_snippet: false,
    }
}

fn yaml(text: &str, findings: &mut Findings) -> Option<Node> {
    match serde_saphyr::from_str_with_options::<Spanned<Raw>>(text, options(1)) {
        Ok(raw) => Some(raw_node(raw, text)),
        Err(error) => {
            let mut unheard = Findings::default();
            let whose = is_several(&error)
                .then(|| read_documents(text, &mut unheard))
                .flatten()
                .and_then(|documents| documents.iter().find_map(foreign_file));
            match whose {
                Some((spot, whose)) => findings.error(spot, whose),
                None => match indented(text, &error) {
                    Some((spot, how)) => findings.error(spot, format_args!("cannot be read as YAML: {how}")),
                    None => report(&error, findings),
                },
            }
            None
        }
    }
}

/// Returns the line whose indentation is at fault, and how to write it.
fn indented(text: &str, error: &serde_saphyr::Error) -> Option<(Spot, String)> {
    let wrong = spot_of(error.location()?).line;
    // The levels above a line, each with the line that began it, and whether the line before may begin another.
    let mut above: Vec<(usize, usize)> = Vec::new();
    let mut opens = true;
    // The parser names the line at fault or one beside it.
    for (number, line) in (1..=wrong.saturating_add(1)).zip(text.lines()) {
        let body = line.trim();
        if body.is_empty() || body.starts_with('#') {
            continue;
        }
        let own = line.len() - line.trim_start_matches(' ').len();
        if line[own..].starts_with('\t') {
            let spot = Spot { text: 0, line: number, column: own + 1 };
            return Some((
                spot,
                "the line is indented by a tab; indent with blanks, two for each level".to_owned(),
            ));
        }
        let deepest = above.last().map_or(0, |(column, _)| *column);
        above.retain(|(column, _)| *column <= own);
        let (column, of) = above.last().copied().unwrap_or_default();
        if column < own && !(opens && deepest == column) && number + 1 >= wrong {
            let spot = Spot { text: 0, line: number, column: own + 1 };
            let how = format!(
                "the line is indented by {own} blanks, and no line above it is; line {of} has {column}: write the same, or a key with a colon above"
            );
            return Some((spot, how));
        }
        if column < own || above.is_empty() {
            above.push((own, number));
        }
        // What follows a dash is a level of its own.
        let (mut column, mut rest) = (own, body);
        while let Some(after) = rest.strip_prefix("- ").map(str::trim_start) {
            column += rest.len() - after.len();
            rest = after;
            above.push((column, number));
        }
        opens = body.ends_with([':', '|', '>', '-', '{', '[', ',']);
    }
    None
}

fn report(error: &serde_saphyr::Error, findings: &mut Findings) {
    let spot = error.location().map_or(Spot { text: 0, line: 1, column: 1 }, spot_of);
    let words = error.to_string();
    findings.error(spot, format_args!("cannot be read as YAML: {}", plain_words(&words)));
}

fn is_several(error: &serde_saphyr::Error) -> bool {
    plain_words(&error.to_string()) == SEVERAL
}

const SEVERAL: &str = "the file holds more than one document";

fn plain_words(words: &str) -> &str {
    match words {
        words if words.contains("Documents") => SEVERAL,
        words if words.starts_with("budget breached") => "the file is too large or nested too deep",
        words => tidy(words),
    }
}

fn tidy(words: &str) -> &str {
    let line = words.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("unknown reason");
    let line = line.strip_prefix("error: ").unwrap_or(line);
    line.find(" at line ").map_or(line, |at| &line[..at]).trim_end_matches('.')
}

fn spot_of(location: Location) -> Spot {
    let number = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
    Spot { text: 0, line: number(location.line()), column: number(location.column()) }
}

enum Raw {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<Raw>, Spanned<Raw>)>),
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_none<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Raw, D::Error> {
        Raw::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Raw, E> {
        Ok(Raw::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Raw, E> {
        Ok(Raw::Number(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Raw, E> {
        Ok(Raw::Number(value.to_string()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Raw, E> {
        Ok(Raw::Number(value.to_string()))
    }

    fn visit_u128<E>(self, value: u128) -> Result<Raw, E> {
        Ok(Raw::Number(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Raw, E> {
        Ok(Raw::Number(value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Raw, E> {
        Ok(Raw::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Raw, A::Error> {
        let mut list = Vec::new();
        while let Some(element) = access.next_element()? {
            list.push(element);
        }
        Ok(Raw::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Raw, A::Error> {
        let mut map = Vec::new();
        while let Some(entry) = access.next_entry()? {
            map.push(entry);
        }
        Ok(Raw::Map(map))
    }
}

fn raw_node(raw: Spanned<Raw>, source: &str) -> Node {
    let spot = spot_of(raw.referenced);
    let value = match raw.value {
        Raw::Null => Value::Null,
        Raw::Bool(value) => Value::Bool(value),
        Raw::Number(value) => Value::Number(as_written(raw.defined, source).unwrap_or(value)),
        Raw::Text(text) => Value::Text(text),
        Raw::List(list) => Value::List(list.into_iter().map(|raw| raw_node(raw, source)).collect()),
        Raw::Map(map) => Value::Map(
            map.into_iter().map(|(key, raw)| (raw_name(key, source), raw_node(raw, source))).collect(),
        ),
    };
    Node { spot, value }
}

fn raw_name(raw: Spanned<Raw>, source: &str) -> Name {
    let node = raw_node(raw, source);
    // A key that is a list or a map gets the name of its kind, which the validator refuses.
    let text = node.text().map_or_else(|| format!("<{}>", node.kind()), str::to_owned);
    Name { spot: node.spot, text }
}

/// Returns the text of a number, if the parser tells its bytes.
fn as_written(location: Location, source: &str) -> Option<String> {
    let span = location.span();
    let start = usize::try_from(span.byte_offset()?).ok()?;
    let end = start.checked_add(usize::try_from(span.byte_len()?).ok()?)?;
    let text = source.get(start..end)?.trim();
    let is_number = text.bytes().any(|byte| byte.is_ascii_digit()) && !text.contains(char::is_whitespace);
    is_number.then(|| text.to_owned())
}

/// Counts the dots of a TOML text outside quotes; of a multi-line string, those from its second line on may count.
fn dots(text: &str) -> usize {
    let (mut dots, mut quote, mut escaped) = (0, None, false);
    for byte in text.bytes() {
        match (byte, quote) {
            (b'\n', _) => (quote, escaped) = (None, false),
            _ if escaped => escaped = false,
            (b'\\', Some(b'"')) => escaped = true,
            (b'"' | b'\'', None) => quote = Some(byte),
            (byte, Some(open)) if byte == open => quote = None,
            (b'.', None) => dots += 1,
            _ => {}
        }
    }
    dots
}

fn toml(text: &str, findings: &mut Findings) -> Option<Node> {
    let separators = text.bytes().filter(|byte| matches!(byte, b',' | b'=' | b'\n')).count();
    if separators > budget::SEPARATORS {
        let most = budget::SEPARATORS;
        findings.error(
            Spot::default(),
            format_args!("the file has more than {most} commas, equal signs and lines"),
        );
        return None;
    }
    if dots(text) > budget::DOTS {
        let most = budget::DOTS;
        findings
            .error(Spot::default(), format_args!("the file has more than {most} dots in keys and numbers"));
        return None;
    }
    let lines = Lines::of(text);
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let spot = error.span().map_or(Spot { text: 0, line: 1, column: 1 }, |span| lines.spot(span.start));
        findings.error(spot, format_args!("cannot be read as TOML: {}", tidy(error.message())));
    }
    if !errors.is_empty() {
        return None;
    }
    let spot = lines.spot(table.span().start);
    Some(Node { spot, value: toml_map(table.into_inner(), &lines) })
}

fn toml_map(table: DeTable<'_>, lines: &Lines<'_>) -> Value {
    let mut entries: Vec<_> = table.into_iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    let entries = entries.into_iter().map(|(key, value)| {
        let name = Name { spot: lines.spot(key.span().start), text: key.get_ref().to_string() };
        let spot = lines.spot(value.span().start);
        (name, Node { spot, value: toml_value(value.into_inner(), lines) })
    });
    Value::Map(entries.collect())
}

fn toml_value(value: DeValue<'_>, lines: &Lines<'_>) -> Value {
    match value {
        DeValue::Boolean(value) => Value::Bool(value),
        DeValue::Integer(number) => match number.radix() {
            10 => Value::Number(number.as_str().to_owned()),
            radix => match i128::from_str_radix(number.as_str(), radix) {
                Ok(value) => Value::Number(value.to_string()),
                Err(_) => Value::Text(number.as_str().to_owned()),
            },
        },
        DeValue::Float(number) => Value::Number(number.as_str().to_owned()),
        DeValue::String(text) => Value::Text(text.into_owned()),
        DeValue::Datetime(time) => Value::Text(time.to_string()),
        DeValue::Array(array) => {
            let nodes = array.into_iter().map(|element| {
                let spot = lines.spot(element.span().start);
                Node { spot, value: toml_value(element.into_inner(), lines) }
            });
            Value::List(nodes.collect())
        }
        DeValue::Table(table) => toml_map(table, lines),
    }
}

struct Lines<'t> {
    text: &'t str,
    starts: Vec<usize>,
    /// A byte and the characters before it in its line: values come in order, and a line may be as long as the file.
    last: Cell<(usize, usize)>,
}

impl<'t> Lines<'t> {
    fn of(text: &'t str) -> Self {
        let breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Self { text, starts: std::iter::once(0).chain(breaks).collect(), last: Cell::new((0, 0)) }
    }

    fn spot(&self, byte: usize) -> Spot {
        let line = self.starts.partition_point(|start| *start <= byte).max(1);
        let start = self.starts[line - 1];
        let (from, before) = match self.last.get() {
            (last, before) if (start..=byte).contains(&last) => (last, before),
            _ => (start, 0),
        };
        // `None` within a character: then the count would be wrong for what follows.
        let Some(between) = self.text.get(from..byte) else {
            return Spot { text: 0, line, column: before + 1 };
        };
        let before = before + between.chars().count();
        self.last.set((byte, before));
        Spot { text: 0, line, column: before + 1 }
    }
}

// Recognises files that are none of ours: other rate limiters' configurations, and Kubernetes manifests.

pub(super) fn manifest_kind(node: &Node) -> Option<&str> {
    node.get("apiVersion")?;
    node.text_of("kind")
}

/// Says what a file is instead of a policy file, and what to do with it.
pub(super) fn foreign_file(node: &Node) -> Option<(Spot, String)> {
    let told = match &node.value {
        Value::List(limits) if limits.first().is_some_and(is_limitador) => LIMITADOR.to_owned(),
        _ if node.get("descriptors").is_some() && node.get("domain").is_some() => ENVOY.to_owned(),
        _ => manifest(node, manifest_kind(node)?),
    };
    Some((node.spot, told))
}

fn is_limitador(limit: &Node) -> bool {
    limit.get("namespace").is_some() && limit.get("max_value").is_some()
}

fn manifest(node: &Node, kind: &str) -> String {
    let texts = node.entries_of("data");
    match (kind, texts.first()) {
        ("Limitador", _) => LIMITADOR.to_owned(),
        ("ConfigMap", Some((_, text))) if has_line(text, "domain:") => ENVOY.to_owned(),
        ("ConfigMap", Some((_, text))) if has_line(text, "- namespace:") => LIMITADOR.to_owned(),
        ("ConfigMap", Some((key, _))) => {
            let key = plain(&key.text).map_or_else(|| "KEY".to_owned(), |key| key.replace('.', "\\."));
            let name = node.get("metadata").and_then(|metadata| metadata.text_of("name"));
            let name = name.and_then(plain).unwrap_or("NAME");
            format!(
                "the file is a Kubernetes ConfigMap, and the policy file is the text under `data`; write it out with \
                 kubectl get configmap {name} -o jsonpath='{{.data.{key}}}' > tidegate.yaml"
            )
        }
        (kind, _) => format!(
            "the file is a Kubernetes manifest of kind {}; name the policy file itself",
            excerpt(kind)
        ),
    }
}

fn has_line(text: &Node, begin: &str) -> bool {
    text.text().is_some_and(|text| text.lines().any(|line| line.starts_with(begin)))
}

/// Returns a name that a shell reads as one word.
fn plain(name: &str) -> Option<&str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    (!name.is_empty() && name.len() <= 253 && name.bytes().all(is_plain)).then_some(name)
}

const ENVOY: &str = "the file is a configuration of envoyproxy/ratelimit; read it with --from-envoy";

const LIMITADOR: &str = "the file holds limits of Limitador; read it with --from-limitador";
