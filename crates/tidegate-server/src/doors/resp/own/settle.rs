//! `TG.SETTLE`: settles a decision with what its work spent and how it ended.

use tidegate::Outcome;
use tidegate::gate::Part;
use tidegate::gate::ticket::{Ticket, TicketError};
use tidegate::policy::Usage;

use super::super::reply::Replies;
use super::super::session::RespDoor;
use super::command_words::{Refusal, cost, number, once, shown, text, too_few};
use crate::engine::{SettleError, Settlement, Spent};
use crate::requests::{STATUSES, WorkEnd};

/// How to write the command, for error messages.
const USAGE: &str = "write TG.SETTLE ticket [COST n] [STATUS n | OUTCOME word | FAILED]";

/// `TG.SETTLE ticket [COST n] [STATUS n | OUTCOME word | FAILED]`: the charge stands, or is corrected to the real cost.
/// Places are returned. Without an outcome, the work was a success.
pub(super) async fn run(door: &RespDoor, words: &[&[u8]], replies: &mut Replies) -> Result<(), Refusal> {
    let [_, ticket, rest @ ..] = words else { return too_few(words, replies) };
    let Options { units, ended } = read(rest)?;
    let spent = units.map_or(Spent::AsCharged, |units| Spent::Usage(Usage::cost(units)));
    let (outcome, spent) = match ended {
        None => (Outcome::Success, spent),
        Some(WorkEnd::With(outcome)) => (outcome, spent),
        Some(WorkEnd::Undone) if units.is_some() => {
            return Err(Refusal::wrong("work that was undone has spent nothing; leave COST out"));
        }
        Some(WorkEnd::Undone) => (Outcome::Ignored, Spent::Undone),
    };
    let settlement = Settlement { part: Part::All, outcome, spent };
    let ticket: Ticket = text(ticket).parse().map_err(|error: TicketError| refused(&error.into()))?;
    let live = door.app.engine.live();
    let settled =
        door.app.engine.tickets.settle(&live, &ticket, &settlement, |told| told.charges.len()).await;
    let charges = settled.map_err(|error| refused(&error))?;
    replies.integer(i64::try_from(charges).unwrap_or(i64::MAX));
    Ok(())
}

/// The options after the ticket.
#[derive(Debug, Default)]
struct Options {
    /// The real cost.
    units: Option<u64>,
    ended: Option<WorkEnd>,
}

fn read(words: &[&[u8]]) -> Result<Options, Refusal> {
    let mut options = Options::default();
    let mut rest = words;
    loop {
        let (ended, after) = match rest {
            [] => return Ok(options),
            [b"COST", units, after @ ..] => {
                once(&mut options.units, "COST", cost(units, 0)?)?;
                rest = after;
                continue;
            }
            [b"FAILED", after @ ..] => (WorkEnd::With(Outcome::Failure), after),
            [b"STATUS", status, after @ ..] => (status_of(status)?, after),
            [b"OUTCOME", word, after @ ..] => (outcome_of(word)?, after),
            [word @ (b"COST" | b"STATUS" | b"OUTCOME")] => {
                return Err(Refusal::wrong(format!("{} has no value; {USAGE}", text(word))));
            }
            [word, ..] => return Err(Refusal::wrong(format!("{} is unknown; {USAGE}", shown(word)))),
        };
        if options.ended.replace(ended).is_some() {
            let twice = "STATUS, OUTCOME and FAILED say the same; send one of them, once";
            return Err(Refusal::wrong(twice));
        }
        rest = after;
    }
}

fn status_of(word: &[u8]) -> Result<WorkEnd, Refusal> {
    number(word).and_then(WorkEnd::of_status).ok_or_else(|| {
        let (least, most) = (STATUSES.start(), STATUSES.end());
        let what = format!("STATUS: {} is not an HTTP status; use a number, {least} to {most}", shown(word));
        Refusal::wrong(what)
    })
}

fn outcome_of(word: &[u8]) -> Result<WorkEnd, Refusal> {
    WorkEnd::of_word(&text(word)).ok_or_else(|| {
        let known = WorkEnd::known_words();
        Refusal::wrong(format!("OUTCOME: {} does not exist; there are {known}", shown(word)))
    })
}

fn refused(error: &SettleError) -> Refusal {
    match error {
        SettleError::Ticket(TicketError::Store(error)) => Refusal("UNAVAILABLE", error.to_string()),
        SettleError::Ticket(error) => Refusal("TICKET", error.to_string()),
        SettleError::Unknown(unknown) => Refusal::wrong(unknown.to_string()),
        SettleError::AwaitsReport(_) | SettleError::TooMuch { .. } => Refusal(
            "TICKET",
            "the ticket cannot be settled in this way; POST /v1/settle gives the reason".to_owned(),
        ),
    }
}
