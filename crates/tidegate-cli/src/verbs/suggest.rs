//! Proposes limits from recorded traffic, each with its price.

mod evidence;
mod text;

use anyhow::Result;
use tidegate_sim::replay::Trust;
use tidegate_sim::source::Input;
use tidegate_sim::suggest::{self, Step, SuggestError, SuggestOptions, WrittenCost};

use crate::args::{LimitArgs, Suggest};
use crate::exit::{Exit, Mistake};
use crate::limit_spec::LimitSpec;
use crate::output::Printer;
use crate::reading::{self, Progress};
use crate::verbs::replay::judgement;

/// The message without a file: the log is read several times, which is impossible from a terminal or a pipe.
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
    let suggestion = match suggest::suggest(&inputs, &log, &options, watch) {
        Ok(suggestion) => suggestion,
        Err(SuggestError::Log(error)) => return Err(error.into()),
        Err(SuggestError::Doubtful { doubts, tally }) => {
            reading::remark(&tally, printer);
            judgement::trusted(&doubts, &tally, arguments.reading.order)?;
            return Ok(Exit::Bad);
        }
        Err(mistake) => {
            let text = mistake.to_string();
            return Err(Mistake(
                flag(&mistake).map_or_else(|| text.clone(), |flag| format!("{flag}: {text}")),
            )
            .into());
        }
    };
    printer.value(&suggestion, |printer| Ok(text::text(&suggestion, printer.wide())))?;
    reading::remark_begins(&inputs, &log, printer);
    Ok(if suggestion.proposals.is_empty() { Exit::No } else { Exit::Done })
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

/// Returns the flag that an error is about, if any.
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
