//! `TG.SETTLE`: settles a decision with what its work spent.

use tidegate::Outcome;
use tidegate::gate::Part;
use tidegate::gate::ticket::{Ticket, TicketError};
use tidegate::policy::Usage;

use super::super::reply::Replies;
use super::super::session::RespDoor;
use super::words::{Refusal, cost, shown, text, too_few};
use crate::engine::{SettleError, Settlement, Spent};

/// `TG.SETTLE ticket [COST n] [FAILED]`: the charge stands, or is corrected to the real cost. Places are returned.
pub(super) async fn run(door: &RespDoor, words: &[&[u8]], replies: &mut Replies) -> Result<(), Refusal> {
    let [_, ticket, rest @ ..] = words else { return too_few(words, replies) };
    let (mut spent, mut outcome) = (Spent::AsCharged, Outcome::Success);
    let mut rest = rest;
    loop {
        rest = match rest {
            [] => break,
            [b"FAILED", rest @ ..] => {
                outcome = Outcome::Failure;
                rest
            }
            [b"COST", units, rest @ ..] => {
                spent = Spent::Usage(Usage::cost(cost(units, 0)?));
                rest
            }
            [word, ..] => {
                let what = format!("{} is unknown; write TG.SETTLE ticket [COST n] [FAILED]", shown(word));
                return Err(Refusal::wrong(what));
            }
        };
    }
    let settlement = Settlement { part: Part::All, outcome, spent };
    let ticket: Ticket = text(ticket).parse().map_err(|error: TicketError| refused(&error.into()))?;
    let live = door.app.engine.live();
    let settled = door.app.engine.settle(&live, &ticket, &settlement, |told| told.charges.len()).await;
    let charges = settled.map_err(|error| refused(&error))?;
    replies.integer(i64::try_from(charges).unwrap_or(i64::MAX));
    Ok(())
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
