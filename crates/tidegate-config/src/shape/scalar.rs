//! Checks single values of the file: numbers, rates, spans, names, patterns and words.

use ipnet::IpNet;
use tidegate_core::Rate;
use tidegate_core::rate::{CalendarUnit, FixedWindow, zone_meant};

use super::super::diagnostic::Findings;
use super::super::kind::Kind;
use super::super::names::{self, instead, is_control};
use super::super::node::Node;
use super::super::removed_keys;
use super::super::shares::{kept, percent};
use super::super::{budget, conditions, foreign_words};
use tidegate_gate::policy::{AccessEntry, Glob, PathGlob, WrittenRate, span, whole_number};
use tidegate_limits::priority::Kept;
use tidegate_limits::visible::excerpt;

/// Checks a value that is no list and no map; messages call it `name`.
pub(super) fn check_scalar(node: &Node, kind: &Kind, name: &str, findings: &mut Findings) {
    let Some(text) = node.text() else {
        let hint = match (kind, name) {
            (Kind::Attribute, "by") => format!("; write by: {}", foreign_words::attribute(node)),
            (Kind::Rate, "rate") => foreign_words::several_rates(node),
            _ => String::new(),
        };
        findings.error(node.spot, format_args!("{name} is {}, found {}{hint}", expected(kind), node.kind()));
        return;
    };
    if let Err(reason) = scalar(text, kind, findings) {
        let reason = match (kind, name, &*names::names_in(text)) {
            (Kind::Attribute, "by", within @ [_, _, ..]) if reason.contains(" names in one") => {
                format!(
                    "\"{}\" is {} names in one; write by: [{}]",
                    excerpt(text),
                    within.len(),
                    within.join(", ")
                )
            }
            _ => reason,
        };
        // A message about a time zone says what the value is; every other message needs the name of the key.
        let plain = matches!(kind, Kind::Zone);
        let message = if plain { reason } else { format!("{name}: {reason}") };
        findings.error(node.spot, message);
    }
}

fn expected(kind: &Kind) -> &'static str {
    match kind {
        Kind::Whole(..) => "a whole number",
        Kind::Rate => "a rate as 100/s",
        Kind::Span => "a span of time as 200ms",
        Kind::Percent(..) => "a share as 80%",
        Kind::Kept => "a share as 20% or a number of units",
        Kind::Condition => "a condition as cpu above 80%",
        Kind::Source => "a number, its range and a rate as memory 70%..90% to 10/s",
        Kind::Socket => "an address such as 127.0.0.1:8080",
        Kind::Network => "a network such as 10.0.0.0/8",
        Kind::Word(..) => "one word",
        _ => "a text",
    }
}

/// Returns the most bytes that a scalar may have.
fn most_bytes(kind: &Kind) -> usize {
    match kind {
        Kind::Name => budget::NAME,
        Kind::Attribute | Kind::Usage | Kind::Condition | Kind::Source => budget::ATTRIBUTE,
        Kind::Header => budget::ATTRIBUTE - names::HEADER.len(),
        Kind::Path | Kind::Host | Kind::Glob | Kind::Problem => budget::PATTERN,
        Kind::Entry => budget::ATTRIBUTE + 1 + budget::VALUE,
        Kind::Cost | Kind::Settle => budget::COST,
        Kind::Text => budget::VALUE,
        // The longest is the name of a set of servers.
        Kind::Read(_) => "sentinel ".len() + budget::NAME,
        _ => budget::WORD,
    }
}

/// Returns what is wrong with a text of this kind. Patterns count towards the bound of `findings`.
pub(super) fn scalar(text: &str, kind: &Kind, findings: &mut Findings) -> Result<(), String> {
    let most = most_bytes(kind);
    if text.len() > most {
        return Err(format!("\"{}\" has {} bytes; use at most {most}", excerpt(text), text.len()));
    }
    // An expression may have several lines: unlike names, it does not appear in answers or logs.
    let broken =
        |letter: char| !(matches!(kind, Kind::Cost | Kind::Settle) && matches!(letter, '\n' | '\r' | '\t'));
    if let Some(letter) = text.chars().find(|letter| is_control(*letter) && broken(*letter)) {
        let why = "it would break the headers, logs and terminals that show it";
        return Err(format!(
            "\"{}\" has the control character {}; {why}",
            excerpt(text),
            letter.escape_unicode()
        ));
    }
    let shown = excerpt(text);
    match kind {
        Kind::Whole(least, most) => match whole_number(text) {
            Ok(number) if (*least..=*most).contains(&number) => Ok(()),
            Ok(number) => Err(format!("{number} is out of range; use {}", range(*least, *most))),
            Err(_) => {
                // All digits: a number larger than any that is valid here.
                let is_number = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty();
                let wrong = if is_number { "is out of range" } else { "is not a whole number" };
                Err(format!("\"{shown}\" {wrong}; use {}", range(*least, *most)))
            }
        },
        Kind::Rate => text.parse::<WrittenRate>().map(drop).map_err(|error| error.to_string()),
        Kind::Span => span(text).map(drop).map_err(|error| error.to_string()),
        Kind::Percent(least, most) => percent(text)
            .map(drop)
            .ok_or_else(|| format!("\"{shown}\" is not a share; use {least}% to {most}%")),
        Kind::Read(grammar) => {
            if (grammar.reads)(text) {
                Ok(())
            } else {
                Err(format!("\"{shown}\" {}", grammar.expected))
            }
        }
        Kind::Kept => match kept(text) {
            Some(Kept::Units(units)) if units > Rate::MAX_COUNT => {
                Err(format!("{units} is out of range; use {}", range(0, Rate::MAX_COUNT)))
            }
            Some(_) => Ok(()),
            None => {
                Err(format!("\"{shown}\" is neither a share nor a number of units; use 0% to 100%, or 20"))
            }
        },
        Kind::Condition => conditions::condition(text).map(drop),
        Kind::Source => conditions::followed(text).map(drop),
        Kind::Socket => {
            text.parse::<super::super::Address>().map(drop).map_err(|why| format!("\"{shown}\" {why}"))
        }
        Kind::Network => match network(text) {
            Some(network) => names::network(network),
            None => Err(format!("\"{shown}\" is not a network, such as 10.0.0.0/8")),
        },
        Kind::Zone => zone(text),
        Kind::Path => {
            if let Some(foreign) = names::foreign_path(text) {
                return Err(foreign);
            }
            let glob = PathGlob::new(text).map_err(|error| error.to_string())?;
            findings.patterns(glob.alternatives().count(), glob.walked());
            names::path_pattern(&glob)
        }
        Kind::Host => {
            let glob = Glob::new(&text.to_ascii_lowercase()).map_err(|error| error.to_string())?;
            findings.patterns(glob.alternatives().count(), glob.walked());
            names::host_pattern(&glob)
        }
        Kind::Glob => {
            let glob = Glob::new(text).map_err(|error| error.to_string())?;
            findings.patterns(glob.alternatives().count(), glob.walked());
            Ok(())
        }
        Kind::Entry => match text.parse::<AccessEntry>().map_err(|error| error.to_string())? {
            AccessEntry::Network(network) => names::network(network),
            AccessEntry::Attribute { name, value } => {
                names::attribute(&name)?;
                names::value(&name, &value)
            }
        },
        Kind::Name => filled(text).and_then(|()| names::policy(text)),
        Kind::Attribute => filled(text).and_then(|()| names::attribute(text)),
        Kind::Usage => filled(text).and_then(|()| names::usage(text)),
        Kind::Header => filled(text).and_then(|()| names::header_name(text)),
        Kind::Method => filled(text).and_then(|()| names::method(text)),
        Kind::Problem => filled(text).and_then(|()| names::problem(text)),
        Kind::Word(words, later) => {
            if words.contains(&text) {
                Ok(())
            } else if later.contains(&text) {
                Err(format!("{text} is not available in this version; use {}", words.join(", ")))
            } else if let Some(line) = removed_keys::word(text, words) {
                Err(format!("\"{shown}\" is a word of the library alone; write {line}"))
            } else if let Some(same) = foreign_words::same_word(text).filter(|same| words.contains(same)) {
                Err(format!("unknown word \"{shown}\"; write {same}"))
            } else {
                Err(format!("unknown word \"{shown}\"{}", instead(text, words.iter().copied())))
            }
        }
        _ => filled(text),
    }
}

fn filled(text: &str) -> Result<(), String> {
    if text.is_empty() { Err("the text is empty; leave it out".to_owned()) } else { Ok(()) }
}

fn range(least: u64, most: u64) -> String {
    match most {
        most if most == least => least.to_string(),
        Rate::MAX_COUNT => format!("{least} to 2^60"),
        most => format!("{least} to {most}"),
    }
}

/// Parses a network; an address counts as a network of one.
pub(in super::super) fn network(text: &str) -> Option<IpNet> {
    text.parse().ok().or_else(|| text.parse::<std::net::IpAddr>().ok().map(IpNet::from))
}

fn zone(text: &str) -> Result<(), String> {
    if FixedWindow::calendar(1, CalendarUnit::Day, text).is_ok() {
        return Ok(());
    }
    if matches!(&*text.to_ascii_lowercase(), "true" | "false" | "yes" | "no" | "on" | "off") {
        return Err(format!("calendar is a time zone, found {text}; write calendar: UTC, or leave it out"));
    }
    if cfg!(not(feature = "tz")) {
        return Err(format!("time zone \"{}\" needs a build with the feature `tz`; use UTC", excerpt(text)));
    }
    let hint = match zone_meant(text) {
        Some(name) => format!("; did you mean \"{name}\"?"),
        None => "; use an IANA name as Europe/Vienna, UTC or epoch".to_owned(),
    };
    Err(format!("unknown time zone \"{}\"{hint}", excerpt(text)))
}
