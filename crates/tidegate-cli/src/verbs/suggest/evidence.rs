//! The table of keys that stand out, each with its evidence and its fate.

use tidegate::visible;
use tidegate_sim::suggest::{ClientKind, Fate, Signs, StandsOut, Suggestion};
use tidegate_sim::thousands::grouped;

use crate::outcome::span;
use crate::styled::Styled;
use crate::table::table;

/// Keys shown of each fate, unless all columns are wanted.
const SHOWN: usize = 3;
/// The longest agent shown, in characters.
const AGENT: usize = 40;

/// Returns the table of the keys that stand out; `None` if there are none.
pub(super) fn evidence(found: &Suggestion, wide: bool) -> Option<Styled> {
    let shown = if wide { usize::MAX } else { SHOWN };
    let of = |fate| found.stand_out.iter().filter(move |key| key.fate == fate).take(shown);
    let rows: Vec<Vec<String>> =
        [Fate::Cut, Fate::Missed, Fate::Spared].into_iter().flat_map(of).map(row).collect();
    let header = ["WHO STANDS OUT", "IS", "LOOKS LIKE", "REQUESTS", "BECAUSE"];
    (!rows.is_empty()).then(|| table(&header, &[3], rows))
}

fn row(key: &StandsOut) -> Vec<String> {
    let fate = match key.fate {
        Fate::Cut => "cut",
        Fate::Missed => "not caught",
        Fate::Spared => "spared",
    };
    vec![
        visible::name(&key.key).into_owned(),
        fate.to_owned(),
        looks(key.looks).to_owned(),
        grouped(key.requests),
        because(key),
    ]
}

const fn looks(looks: ClientKind) -> &'static str {
    match looks {
        ClientKind::Crawler => "a crawler",
        ClientKind::Refused => "a guesser",
        ClientKind::Shared => "a crawler or guesser among people",
        ClientKind::People => "people",
        ClientKind::Timer => "a timer",
        ClientKind::Program => "a program",
        _ => "anybody",
    }
}

/// Returns the evidence in words, the most telling part first.
fn because(key: &StandsOut) -> String {
    let texts = EvidenceTexts::of(&key.signs);
    let signed_in = key.signed_in.then(|| "signed in".to_owned());
    let parts = match key.looks {
        ClientKind::Crawler => [texts.pages, texts.parts, texts.agents],
        ClientKind::Refused => [texts.refused, texts.paths, texts.agents],
        ClientKind::Shared => [texts.agents, texts.pages, texts.refused],
        ClientKind::People => [texts.agents, texts.parts, texts.pages],
        ClientKind::Timer => [texts.paths, texts.every, texts.agents],
        ClientKind::Program => [texts.paths, texts.agents, Some(format!("peak {}", grouped(key.peak)))],
        _ => [Some(format!("peak {}", grouped(key.peak))), texts.paths, texts.agents.or(texts.every)],
    };
    parts.into_iter().chain([signed_in]).flatten().collect::<Vec<_>>().join(", ")
}

/// Returns the evidence about a crawler or a guesser in words.
pub(super) fn seen(signs: &Signs) -> String {
    let texts = EvidenceTexts::of(signs);
    let parts = if signs.refused_share >= Some(0.5) {
        [texts.refused, texts.paths, texts.agents]
    } else {
        [texts.pages, texts.parts, texts.agents]
    };
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// The evidence in words; `None` where the log lacks it.
struct EvidenceTexts {
    paths: Option<String>,
    pages: Option<String>,
    parts: Option<String>,
    refused: Option<String>,
    agents: Option<String>,
    every: Option<String>,
}

impl EvidenceTexts {
    fn of(signs: &Signs) -> Self {
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        let path = |paths| if paths == 1 { "1 path".to_owned() } else { format!("{} paths", grouped(paths)) };
        Self {
            paths: signs.paths.map(path),
            pages: signs.pages_different.zip(signs.pages).map(|(different, pages)| {
                format!("{} different pages in {} requests for pages", grouped(different), grouped(pages))
            }),
            parts: signs.parts_share.map(|share| match share {
                0.0 => "no images or scripts".to_owned(),
                share => format!("{} images and scripts", percent(share)),
            }),
            refused: signs
                .refused_share
                .filter(|share| *share > 0.0)
                .map(|share| format!("{} refused or not there", percent(share))),
            agents: match (&signs.agent, signs.agents) {
                (Some(agent), _) => Some(format!("agent {}", short(agent))),
                (None, Some(8)) => Some("8 agents or more".to_owned()),
                (None, Some(agents)) => Some(format!("{agents} agents")),
                (None, None) => None,
            },
            every: signs.every.map(|every| format!("every {}", span(every))),
        }
    }
}

/// Formats an agent, which is untrusted text, in one short line.
fn short(agent: &str) -> String {
    let name = visible::name(agent);
    if name.chars().count() <= AGENT {
        return name.into_owned();
    }
    format!("{}…", name.chars().take(AGENT).collect::<String>())
}
