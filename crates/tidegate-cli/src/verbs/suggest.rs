//! Proposes limits from recorded traffic, each with its price.

use std::ops::ControlFlow;

use anyhow::Result;
use tidegate::visible;
use tidegate_sim::grouped;
use tidegate_sim::log::Input;
use tidegate_sim::replay::{PeakRate, Trust};
use tidegate_sim::suggest::{
    self, Caution, ClientKind, Fate, Finding, Instead, Proposal, Purpose, Signs, Spared, StandsOut, Step,
    SuggestError, SuggestOptions, Suggestion, WrittenCost,
};

use crate::args::{LimitArgs, Reading, Suggest};
use crate::exit::{Exit, Mistake};
use crate::limit_spec::LimitSpec;
use crate::outcome::span;
use crate::output::Printer;
use crate::reading::{self, Progress};
use crate::styled::{Look, Styled, table};
use crate::verbs::replay;

/// The log is read several times, which is impossible from a terminal or a pipe.
const NO_FILE: &str = "no log named; name files, such as `tidegate suggest access.log`: a log is read several times, so it cannot come \
     through a pipe (write what comes through one to a file first)";

pub(crate) fn run(arguments: &Suggest, printer: &Printer) -> Result<Exit> {
    if arguments.of_requests {
        let what = "--of-requests is gone: each proposal says what share of the requests it denies; --keep chooses by the share of keys";
        return Err(Mistake(what.to_owned()).into());
    }
    let inputs: Vec<Input> =
        arguments.reading.logs.iter().map(|log| Input::from_arg(log.as_os_str())).collect();
    if inputs.is_empty() || inputs.contains(&Input::Stdin) {
        return Err(Mistake(NO_FILE.to_owned()).into());
    }
    let options = SuggestOptions {
        by: arguments.by.clone(),
        per: arguments.per,
        keep: arguments.keep,
        cost: arguments.cost.as_deref().map(cost).transpose()?,
        trust: Trust { max_malformed: arguments.max_malformed, max_late: arguments.max_late },
        keys: arguments.keys,
        ..SuggestOptions::default()
    };
    let mut progress: Option<Progress> = None;
    let watch = |step| match step {
        Step::Begins { reading, purpose, watch } => {
            progress = Some(Progress::of(format!("reading {reading}, {purpose}  "), watch, printer));
        }
        Step::Request => progress.iter().for_each(Progress::tick),
        Step::Ends => progress.iter().for_each(Progress::finish),
    };
    let log = reading::options(&arguments.reading)?;
    if !(log.columns.is_empty() && arguments.reading.matching.is_empty()) {
        read(&arguments.reading, printer)?;
    }
    let suggestion = match suggest::suggest(&inputs, &log, &options, watch) {
        Ok(suggestion) => suggestion,
        Err(SuggestError::Log(error)) => return Err(error.into()),
        Err(SuggestError::Doubtful { doubts, tally }) => {
            reading::remark(&tally, printer);
            replay::trusted(&doubts, &tally, arguments.reading.order)?;
            return Ok(Exit::Bad);
        }
        Err(mistake) => {
            if matches!(mistake, SuggestError::NoKey { requests: 0, .. }) {
                read(&arguments.reading, printer)?;
            }
            let text = format!("{mistake}{}", hint(&mistake));
            return Err(Mistake(
                flag(&mistake).map_or_else(|| text.clone(), |flag| format!("{flag}: {text}")),
            )
            .into());
        }
    };
    printer.value(&suggestion, |printer| Ok(text(&suggestion, printer.wide())))?;
    reading::remark_begins(&inputs, &log, printer);
    Ok(if suggestion.proposals.is_empty() { Exit::No } else { Exit::Done })
}

/// Refuses a log without requests, without any that match, or without a column that a flag names.
fn read(reading: &Reading, printer: &Printer) -> Result<()> {
    let mut log = reading::open(reading, printer)?;
    let progress = Progress::start(log.watch(), printer);
    let outcome = log.read(|_| {
        progress.tick();
        ControlFlow::Continue(())
    });
    progress.finish();
    outcome.map(drop)?;
    replay::parsed(log.tally(), reading, "suggest")?;
    replay::columns(&log, printer)
}

/// Parses the cost of a request, as in a policy file.
fn cost(written: &str) -> Result<WrittenCost> {
    let any = LimitArgs { rate: Some("1/s".to_owned()), ..LimitArgs::default() };
    let read = LimitSpec::of(&any)?.map(|words| words.file(&[], Some(written)).read());
    let config = read.transpose().map_err(Mistake)?;
    let policy = config.as_ref().and_then(|config| config.policies.policies().first());
    let rule = policy.and_then(|policy| policy.cost.clone());
    let rule = rule.ok_or_else(|| Mistake(format!("--cost: {written} is not a cost")))?;
    Ok(WrittenCost { rule, written: written.to_owned() })
}

/// Returns which attributes are probably meant by those that no request has.
fn hint(mistake: &SuggestError) -> String {
    let SuggestError::NoKey { by, has, .. } = mistake else { return String::new() };
    let has: Vec<&str> = has.split(", ").collect();
    let missing = by.split(", ").filter(|name| !has.contains(name));
    let meant: Vec<&str> = missing.filter_map(|name| reading::meant(name, &has)).collect();
    if meant.is_empty() { String::new() } else { format!("; did you mean {}?", meant.join(", ")) }
}

fn flag(mistake: &SuggestError) -> Option<&'static str> {
    match mistake {
        SuggestError::Quota(_) => Some("--per"),
        SuggestError::NoCost { .. } => Some("--cost"),
        SuggestError::Keep { .. } => Some("--keep"),
        SuggestError::NoKey { requests: 1.., .. } | SuggestError::Repeated { .. } | SuggestError::Unnamed => {
            Some("--by")
        }
        _ => None,
    }
}

/// Keys shown of each fate, unless all columns are wanted.
const SHOWN: usize = 3;
/// The longest agent shown, in characters.
const AGENT: usize = 40;

fn evidence(found: &Suggestion, wide: bool) -> Option<Styled> {
    let shown = if wide { usize::MAX } else { SHOWN };
    let of = |fate| found.stand_out.iter().filter(move |key| key.fate == fate).take(shown);
    let rows: Vec<Vec<String>> =
        [Fate::Cut, Fate::Missed, Fate::Spared].into_iter().flat_map(of).map(evidence_row).collect();
    let header = ["WHO STANDS OUT", "IS", "LOOKS LIKE", "REQUESTS", "BECAUSE"];
    (!rows.is_empty()).then(|| table(&header, &[3], rows))
}

fn evidence_row(key: &StandsOut) -> Vec<String> {
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

/// The most telling part first.
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
fn seen(signs: &Signs) -> String {
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

// Formats a suggestion for a person on call: what stands out, which line to copy, which keys it hits, how certain it
// is.

/// Names shown in a row of the table, unless all columns are wanted.
const NAMES: usize = 3;
/// The name of the policy in the text to copy.
const NAME: &str = "suggested";
/// The name of a policy for only some requests.
const APART: &str = "suggested-apart";

fn text(found: &Suggestion, wide: bool) -> Styled {
    let mut text = Styled::from(heading(found));
    text.push_as(look(found.finding), &finding(found));
    text.push("\n");
    if let Some(table) = evidence(found, wide) {
        text.push("\n");
        text.push(table);
        text.push("\n");
    }
    let names_users = !found.cautions.contains(&Caution::NoUsers);
    if !found.proposals.is_empty() {
        let header =
            ["LIMIT", "RATE", "BURST", "DENIED", "%", "KEYS HIT", "SIGNED IN", "HIT FIRST (DENIED OF ASKED)"];
        let rows = found.proposals.iter().map(|proposal| row(found, proposal, names_users, wide));
        text.push("\n");
        text.push(table(&header, &[1, 2, 3, 4, 5, 6], rows));
        text.push("\n\n");
    }
    if let Some(proposal) = copied(found) {
        if let Some(yaml) = found.yaml(proposal, NAME) {
            text.push(format!("{}\n\n{yaml}\n", lead(found, proposal)));
        }
        text.push(certainty(found, proposal));
        if !found.narrower.is_empty() {
            text.push("\n");
        }
    }
    if !found.narrower.is_empty() {
        text.push(apart(found));
    }
    for instead in &found.instead {
        text.push(other_question(instead));
    }
    for caution in &found.cautions {
        text.push_as(Look::Doubtful, "NOTE");
        text.push(format!("  {caution}\n"));
    }
    text
}

fn heading(found: &Suggestion) -> String {
    let mut text = format!(
        "{} requests of {} {} ({}) over {}",
        grouped(found.requests),
        found.keys,
        if found.keys.to_string() == "1" { "key" } else { "keys" },
        found.by.join(", "),
        span(found.span)
    );
    if let (Some(cost), Some(units)) = (&found.cost, found.units) {
        text.push_str(&format!(", {} units of {}", grouped(units), visible::name(cost)));
    }
    if found.keys_signed_in > 0 {
        text.push_str(&format!(", {} of which signed in", grouped(found.keys_signed_in)));
    }
    let rate = PeakRate { count: 1, window: found.per }.to_string();
    let period = rate.trim_start_matches("1/");
    let units = if found.cost.is_some() { " units" } else { "" };
    let mut peaks = found.peaks.iter().map(|peak| {
        let share =
            if peak.keys_share >= 1.0 { "all".to_owned() } else { format!("{} %", peak.keys_share * 100.0) };
        (share, grouped(peak.peak))
    });
    if let Some((share, peak)) = peaks.next() {
        let others: String = peaks.map(|(share, peak)| format!(", {share} {peak}")).collect();
        text.push_str(&format!(
            ".\nOf the keys, {share} never asked more than {peak}{units} per {period}{others}.\n\n"
        ));
    }
    text
}

fn apart(found: &Suggestion) -> String {
    let mut text = String::new();
    for (place, narrower) in found.narrower.iter().enumerate() {
        let name = if place == 0 { APART.to_owned() } else { format!("{APART}-{}", place + 1) };
        let (who, them) = match narrower.keys {
            1 => ("1 key looks".to_owned(), "it"),
            keys => (format!("{} keys together look", grouped(keys)), "them"),
        };
        text.push_str(&format!(
            "{who} like a crawler or a guesser ({}), and no limit by {} catches {them} without hitting others. A limit for {} requests only does, here at \
             a quarter of their pace:\n\n{}\n",
            seen(&narrower.signs),
            found.by.join(", "),
            if narrower.keys == 1 { "its" } else { "their" },
            narrower.yaml(&name),
        ));
    }
    text
}

/// Describes a narrower question whose answer cuts what is spared here.
fn other_question(instead: &Instead) -> String {
    let Instead { key, name, pattern, proposal } = instead;
    let word = visible::name(&format!("{name}={pattern}")).replace('\'', "?");
    format!(
        "{}, which is not cut here, is cut by a limit for some requests alone: --match '{word}' finds {} burst {}, which denies {} requests of {} {}, \
         signed in {}.\n",
        visible::name(key),
        proposal.rate,
        grouped(proposal.burst),
        grouped(proposal.evidence.denied),
        grouped(proposal.evidence.keys_hit),
        if proposal.evidence.keys_hit == 1 { "key" } else { "keys" },
        grouped(proposal.evidence.keys_hit_signed_in),
    )
}

const fn look(finding: Finding) -> Look {
    if matches!(finding, Finding::Gap) { Look::Good } else { Look::Doubtful }
}

fn finding(found: &Suggestion) -> String {
    let hit = |purpose| found.proposals.iter().find(|proposal| proposal.purpose == purpose);
    match found.finding {
        Finding::Gap => {
            let count = hit(Purpose::Gap).map_or(0, |gap| gap.evidence.keys_hit);
            let (stand, those) = if count == 1 { ("1 key stands", "it") } else { ("keys stand", "them") };
            let count = if count == 1 { String::new() } else { format!("{} ", grouped(count)) };
            format!("{count}{stand} out from the crowd: a limit can cut {those} and spare all others.")
        }
        Finding::SignedIn => {
            let better =
                if found.by.iter().any(|name| name == "user.id") { "An" } else { "A limit by user, or an" };
            format!(
                "The keys that stand out from the crowd have signed in: no limit is recommended. {better} override for them may fit better."
            )
        }
        Finding::Ordinary => "The keys that stand out look like people behind one address, jobs on a timer or programs that use an API: no limit is \
             recommended."
            .to_owned(),
        Finding::Unclear => "Some keys stand out, but the log does not show what they are: no limit is recommended. The stricter proposal \
             shows the effect of cutting them."
            .to_owned(),
        Finding::NoFaster => format!(
            "Some keys look like crawlers or guessers, but are no faster than others: no limit by {} is recommended.",
            found.by.join(", ")
        ),
        Finding::Shared => format!(
            "Some keys look like crawlers or guessers, but people share the same {}: a limit would cut them too, so none is recommended.{}",
            if found.by == ["client.ip"] { "address" } else { "key" },
            if found.narrower.is_empty() { " Nothing in the log distinguishes their requests." } else { "" }
        ),
        Finding::Bursts => "The keys that stand out come in bursts and over time make no more requests than others, as jobs on a timer do: no limit is \
             recommended."
            .to_owned(),
        Finding::NotWorthIt { denied_share } => format!(
            "Some keys stand out from the crowd, but a limit that cuts them would deny only {:.2} % of the requests: no limit is recommended.",
            100.0 * denied_share
        ),
        Finding::Smooth => "The needs of the keys fall smoothly from the first to the last: no limit separates some keys from the others, so none is recommended."
            .to_owned(),
        Finding::FewKeys => "There are too few keys to say what is usual: no limit is recommended.".to_owned(),
        Finding::OneKey => "There is only one key, and none to compare it with: no limit is recommended.".to_owned(),
        Finding::TooShort if found.span.is_zero() => "All requests have the same time, so the log shows no rates. If their \
             times are in another column, name it: --column time=NAME."
            .to_owned(),
        Finding::TooShort => {
            let period = PeakRate { count: 1, window: found.per };
            format!(
                "{} of log are too short to propose a rate such as {period}: take a longer log, or a shorter period with --per.",
                span(found.span)
            )
        }
        other => format!("{other:?}: no limit is recommended."),
    }
}

fn row(found: &Suggestion, proposal: &Proposal, names_users: bool, wide: bool) -> Vec<String> {
    let evidence = &proposal.evidence;
    let shown = if wide { proposal.hit.len() } else { NAMES };
    let mut names: Vec<String> = proposal
        .hit
        .iter()
        .take(shown)
        .map(|hit| {
            let signed_in = if hit.signed_in { ", signed in" } else { "" };
            format!(
                "{} ({} of {}{signed_in})",
                visible::name(&hit.key),
                grouped(hit.denied),
                grouped(hit.requests)
            )
        })
        .collect();
    let more = evidence.keys_hit.saturating_sub(names.len() as u64);
    if more > 0 {
        names.push(format!("and {} more", grouped(more)));
    }
    vec![
        purpose(found, proposal),
        proposal.rate.to_string(),
        grouped(proposal.burst),
        grouped(evidence.denied),
        format!("{:.2}", 100.0 * evidence.denied_share),
        grouped(evidence.keys_hit),
        if names_users { grouped(evidence.keys_hit_signed_in) } else { "?".to_owned() },
        if names.is_empty() { "-".to_owned() } else { names.join(", ") },
    ]
}

fn purpose(found: &Suggestion, proposal: &Proposal) -> String {
    match proposal.purpose {
        Purpose::Gap => "recommended".to_owned(),
        Purpose::Lenient => "lenient".to_owned(),
        Purpose::Stricter => "stricter".to_owned(),
        Purpose::Hundredth => "hits at most 1 % of keys".to_owned(),
        Purpose::Kept => {
            let kept = found.keys.about().saturating_sub(proposal.evidence.keys_hit);
            format!("keeps {} keys", grouped(kept))
        }
        Purpose::Ceiling => "hits nobody, has room".to_owned(),
    }
}

/// The recommended proposal, otherwise the one that hits no key, unless there is a policy for the culprit alone.
fn copied(found: &Suggestion) -> Option<&Proposal> {
    let is_ceiling = |proposal: &&Proposal| proposal.purpose == Purpose::Ceiling && found.narrower.is_empty();
    let ceiling = || found.proposals.iter().find(is_ceiling);
    found.recommended().or_else(ceiling)
}

fn lead(found: &Suggestion, proposal: &Proposal) -> &'static str {
    match (proposal.purpose, found.recommended()) {
        (Purpose::Kept, _) => {
            "The limit that keeps the share of --keep; in shadow mode it only measures and denies nothing:"
        }
        (_, Some(_)) => "Copy this; in shadow mode it only measures and denies nothing:",
        (_, None) => {
            "A bound against traffic that this log does not contain; it hits no key in the log, and grants twice what the busiest needed:"
        }
    }
}

fn certainty(found: &Suggestion, proposal: &Proposal) -> String {
    // It would let the log's author add a line.
    let who = |spared: &Spared| {
        format!("{}{}", visible::name(&spared.key), if spared.signed_in { " (signed in)" } else { "" })
    };
    let mut less = Vec::new();
    let least = &proposal.least;
    if let Some(spared) = &least.burst_for {
        less.push(format!("a burst of {} would hit {}", grouped(least.burst - 1), who(spared)));
    }
    if let Some(spared) = &least.rate_for {
        let rate = PeakRate { count: least.rate.count - 1, ..least.rate };
        less.push(format!("{rate} would hit {}", who(spared)));
    }
    let mut text = String::new();
    let has_room = proposal.room > 1.0;
    if has_room {
        text.push_str(&format!(
            "Room: each key that is spared could ask for {} times as much. The least limit that spares them is {}, burst {}",
            proposal.room,
            least.rate,
            grouped(least.burst)
        ));
        if !less.is_empty() {
            text.push_str(&format!(": {}", less.join(", ")));
        }
        text.push_str(".\n");
    } else if !less.is_empty() {
        text.push_str(&format!(
            "Least: {}. There is no room for more: other days will hit some.\n",
            less.join(", ")
        ));
    }
    if proposal.purpose == Purpose::Gap {
        let doubled = PeakRate { count: proposal.rate.count.saturating_mul(2), ..proposal.rate };
        text.push_str(&format!(
            "Twice the limit ({doubled}, burst {}) would still deny {} requests of {} {}.\n",
            grouped(proposal.burst.saturating_mul(2)),
            grouped(proposal.doubled.denied),
            grouped(proposal.doubled.keys_hit),
            if proposal.doubled.keys_hit == 1 { "key" } else { "keys" },
        ));
    }
    if let Some(hit) = proposal.hit_on_another_half {
        let keys = if hit == 1 { "key" } else { "keys" };
        text.push_str(&format!(
            "Judged: found with this room on the first half of the log alone, a limit hits {} {keys} of the second half that it should spare.\n",
            grouped(hit)
        ));
    }
    if proposal.purpose != Purpose::Ceiling {
        text.push_str(&format!(
            "Seen: {} of log. Other days differ: run the limit in shadow mode before you enforce it.\n",
            span(found.span)
        ));
    }
    text
}
