//! Proposes a limit from recorded traffic, with the evidence.

use anyhow::Result;
use tidegate_sim::log::LogOptions;
use tidegate_sim::source::Input;
use tidegate_sim::suggest::{self, Evidence, KeepOf, SuggestError, SuggestOptions, Suggestion};
use tidegate_sim::thousands::grouped;

use crate::args::Suggest;
use crate::exit::{Exit, Mistake};
use crate::output::Printer;
use crate::styled::Styled;
use crate::table::table;

pub(crate) fn run(arguments: &Suggest, printer: &Printer) -> Result<Exit> {
    let inputs: Vec<Input> =
        arguments.reading.logs.iter().map(|log| Input::from_arg(log.as_os_str())).collect();
    if inputs.is_empty() {
        return Err(Mistake("no log named: it is read several times, so it must be a file".to_owned()).into());
    }
    let options = SuggestOptions {
        by: arguments.by.clone(),
        per: arguments.per,
        keep: arguments.keep,
        of: if arguments.of_requests { KeepOf::Requests } else { KeepOf::Keys },
        ..SuggestOptions::default()
    };
    let suggestion = suggest::suggest(&inputs, &LogOptions::from(&arguments.reading), &options, |_| {});
    let suggestion = suggestion.map_err(|error| match error {
        SuggestError::Log(error) => anyhow::Error::from(error),
        mistake => Mistake(mistake.to_string()).into(),
    })?;
    printer.value(&suggestion, |_| Ok(text(&suggestion, arguments)))?;
    Ok(Exit::Done)
}

fn text(suggestion: &Suggestion, arguments: &Suggest) -> Styled {
    let by = suggestion.by.join(", ");
    let kept = if arguments.of_requests { "requests" } else { "keys" };
    let mut text = Styled::from(format!(
        "{} requests of {} keys ({by})\n\nPeaks of the keys in one window: that share of them never went above.\n\n",
        grouped(suggestion.requests),
        suggestion.keys
    ));
    let peaks = suggestion.percentiles.iter().map(|(share, peak)| vec![format!("{share} %"), grouped(*peak)]);
    text.push(table(&["KEYS", "PEAK"], &[0, 1], peaks));
    let row = |name: &str, evidence: &Evidence| {
        vec![
            name.to_owned(),
            grouped(evidence.count),
            grouped(evidence.denied),
            format!("{:.3}", 100.0 * evidence.denied_share),
            grouped(evidence.keys_hit),
            format!("{:.3}", 100.0 * evidence.keys_hit_share),
        ]
    };
    let rows = [
        row("half", &suggestion.half),
        row("proposed", &suggestion.proposed),
        row("double", &suggestion.double),
    ];
    text.push("\n\nWhat a limit would have done, replayed on this log.\n\n");
    text.push(table(&["LIMIT", "PER WINDOW", "DENIED", "%", "KEYS HIT", "%"], &[1, 2, 3, 4, 5], rows));
    let verdict = if suggestion.keeps { "keeps" } else { "comes nearest to keeping" };
    text.push(format!("\n\n{} {verdict} {} % of the {kept}:\n\n", suggestion.rate, 100.0 * arguments.keep));
    text.push(suggestion.yaml("suggested"));
    text
}
