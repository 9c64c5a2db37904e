//! Our own commands: what the HTTP door does, for clients that speak RESP.

use std::borrow::Cow;

use smallvec::SmallVec;
use tidegate::gate::Part;
use tidegate::gate::ticket::{Ticket, TicketError};
use tidegate::http_answer::server_parts::millis_up;
use tidegate::policy::{Descriptor, Usage};
use tidegate::visible::excerpt;
use tidegate::{Check, Cost, Outcome, Retry};

use super::reply::Replies;
use super::session::{RespDoor, Session};
use super::{redis, throttle};
use crate::engine::{Conclusion, Held, SettleError, Settlement, Spent, TicketFor, Want};
use crate::live::Live;
use crate::spelling::nearest;

/// The most attributes of one command.
const MAX_ATTRIBUTES: usize = 64;

/// Every command of ours, to find the one that was probably meant by a misspelt one.
const COMMANDS: [&str; 4] = ["CL.THROTTLE", "TG.CHECK", "TG.SETTLE", "TG.RESET"];

/// What ends a command with an error: its code, and what is wrong.
struct Wrong(&'static str, String);

impl Wrong {
    fn here(what: impl Into<String>) -> Self {
        Self("ERR", what.into())
    }
}

/// Runs a command of ours, or says that there is none of that name.
pub(super) async fn run(door: &RespDoor, session: &Session, words: &[&[u8]], replies: &mut Replies) {
    let is = |word: &str| words[0].eq_ignore_ascii_case(word.as_bytes());
    if !session.trusted {
        return replies.error("NOAUTH", "Authentication required: AUTH TOKEN");
    }
    let wrong = if is("CL.THROTTLE") {
        throttle::run(door, words, replies).await;
        Ok(())
    } else if is("TG.CHECK") {
        check(door, session, words, replies).await
    } else if is("TG.SETTLE") {
        settle(door, words, replies).await
    } else if is("TG.RESET") {
        reset(door, words, replies).await
    } else {
        let name = text(words[0]).to_ascii_uppercase();
        let meant = nearest(&name, COMMANDS);
        let advice = meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
        Err(Wrong::here(format!("unknown command '{}'{advice}", excerpt(&name))))
    };
    if let Err(Wrong(code, what)) = wrong {
        replies.error(code, &what);
    }
}

fn text(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// What stands behind the attributes of a `TG.CHECK`.
#[derive(Debug, Default)]
struct Options {
    cost: Option<Cost>,
    peek: bool,
    ticket: bool,
}

/// `TG.CHECK policy name value [name value ...] [COST n] [PEEK] [TICKET]`
async fn check(
    door: &RespDoor,
    session: &Session,
    words: &[&[u8]],
    replies: &mut Replies,
) -> Result<(), Wrong> {
    let [_, policy, rest @ ..] = words else {
        redis::wrong_number(words[0], replies);
        return Ok(());
    };
    let (request, options) = read(rest)?;
    let live = door.app.engine.live();
    let only: Option<SmallVec<[usize; 1]>> = match *policy {
        b"*" => None,
        name => Some(SmallVec::from_slice(&[find(&live, name)?])),
    };
    let only = only.as_deref();
    let check = Check::of(&request).maybe_cost(options.cost);
    let want = if options.peek { Want::Peek } else { Want::Take };
    let wanted = if options.peek { TicketFor::Nobody } else { TicketFor::Caller(Some(options.ticket)) };
    let mut held = Held::default();
    let keep = wanted.keeps(&live).then_some(&mut held);
    let engine = &door.app.engine;
    let conclusion = engine.decide(&live, check, only, want, keep).await;
    let id = (want == Want::Take).then(|| engine.name(&live, &check, only, &conclusion));
    let ticket = id.and_then(|id| engine.ticket(&request, &conclusion, &held, wanted, id));
    if let Some(none) = ticket.as_ref().and_then(|ticket| ticket.error.as_ref())
        && none.keeps_place
    {
        engine.undo(&held).await;
        return Err(Wrong::here(format!(
            "refused, since nobody could return the place that it takes: {none}"
        )));
    }
    answer(&live, &conclusion, session, replies);
    match id {
        Some(id) => replies.bulk(id.to_string().as_bytes()),
        None => replies.null(session.resp3),
    }
    match ticket.and_then(|ticket| ticket.ticket) {
        Some(ticket) => replies.bulk(ticket.to_string().as_bytes()),
        None => replies.null(session.resp3),
    }
    Ok(())
}

/// The first five of the seven parts of an answer: whether it is allowed, the policy that binds, what remains, after how many milliseconds
/// to ask again (0 where it is allowed, -1 where nobody knows, -2 for never), and in how many the limit is full.
fn answer(live: &Live, conclusion: &Conclusion, session: &Session, replies: &mut Replies) {
    replies.list(7);
    let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let named = |name: Option<&str>, replies: &mut Replies| match name {
        Some(name) => replies.bulk(name.as_bytes()),
        None => replies.null(session.resp3),
    };
    let decision = match conclusion {
        Conclusion::Decided(decision) => decision,
        Conclusion::Unsettled { allowed, policy, .. } => {
            replies.integer(i64::from(*allowed));
            named(policy.as_deref(), replies);
            replies.integer(-1);
            replies.integer(if *allowed { 0 } else { -1 });
            return replies.integer(-1);
        }
    };
    replies.integer(i64::from(decision.allowed));
    let at = decision.policy();
    named(at.and_then(|at| live.set.policies().get(at)).map(|policy| &*policy.name), replies);
    let binding = decision.binding.map(|at| &decision.limits[at]);
    replies.integer(binding.map_or(-1, |limit| whole(limit.remaining())));
    replies.integer(match decision.retry() {
        _ if decision.allowed => whole(millis_up(decision.wait)),
        Retry::After(wait) => whole(millis_up(wait)),
        Retry::Unknown => -1,
        Retry::Never => -2,
    });
    replies.integer(binding.map_or(-1, |limit| whole(millis_up(limit.decision.standing.reset_after))));
}

/// Reads attributes, and what stands behind them. The words of options are in capitals, as no attribute's name is.
fn read<'w>(words: &[&'w [u8]]) -> Result<(Descriptor<'w>, Options), Wrong> {
    let mut request = Descriptor::new();
    let mut options = Options::default();
    let mut rest = words;
    loop {
        rest = match rest {
            [] => return Ok((request, options)),
            [b"PEEK", rest @ ..] => {
                options.peek = true;
                rest
            }
            [b"TICKET", rest @ ..] => {
                options.ticket = true;
                rest
            }
            [b"COST", cost, rest @ ..] => {
                let read = text(cost).parse().ok().and_then(Cost::new);
                let shown = excerpt(&text(cost));
                options.cost =
                    Some(read.ok_or_else(|| Wrong::here(format!("COST: \"{shown}\" is no number from 1")))?);
                rest
            }
            [name] => {
                let name = excerpt(&text(name));
                return Err(Wrong::here(format!(
                    "\"{name}\" has no value; write name value [name value ...] [COST n] [PEEK] [TICKET]"
                )));
            }
            [name, value, rest @ ..] => {
                attribute(&mut request, name, value)?;
                rest
            }
        };
    }
}

fn attribute<'w>(request: &mut Descriptor<'w>, name: &'w [u8], value: &'w [u8]) -> Result<(), Wrong> {
    let (Ok(name), Ok(value)) = (std::str::from_utf8(name), std::str::from_utf8(value)) else {
        return Err(Wrong::here(format!(
            "attribute \"{}\": names and values are UTF-8",
            excerpt(&text(name))
        )));
    };
    let shown = excerpt(name);
    if name.is_empty() || name.len() > Descriptor::MAX_NAME {
        return Err(Wrong::here(format!(
            "\"{shown}\" is no name; it has 1 to {} bytes",
            Descriptor::MAX_NAME
        )));
    }
    if value.len() > Descriptor::MAX_VALUE {
        let (bytes, most) = (value.len(), Descriptor::MAX_VALUE);
        return Err(Wrong::here(format!("the value of \"{shown}\" has {bytes} bytes; use at most {most}")));
    }
    if request.value(name).is_some() {
        return Err(Wrong::here(format!("attribute \"{shown}\" is given twice")));
    }
    if request.pairs().count() >= MAX_ATTRIBUTES {
        return Err(Wrong::here(format!("more than {MAX_ATTRIBUTES} attributes")));
    }
    request.push(name, value);
    Ok(())
}

/// Finds a policy by its name.
fn find(live: &Live, name: &[u8]) -> Result<usize, Wrong> {
    let name = text(name);
    live.set.find(&name).map(|(at, _)| at).ok_or_else(|| {
        let meant = nearest(&name, live.set.policies().iter().map(|policy| policy.name.as_str()));
        let advice = meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
        Wrong::here(format!("there is no policy \"{}\"{advice}", excerpt(&name)))
    })
}

/// `TG.SETTLE ticket [COST n] [FAILED]`: what was charged stands, or becomes what was really spent; places are given back.
async fn settle(door: &RespDoor, words: &[&[u8]], replies: &mut Replies) -> Result<(), Wrong> {
    let [_, ticket, rest @ ..] = words else {
        redis::wrong_number(words[0], replies);
        return Ok(());
    };
    let (mut spent, mut outcome) = (Spent::AsCharged, Outcome::Success);
    let mut rest = rest;
    loop {
        rest = match rest {
            [] => break,
            [b"FAILED", rest @ ..] => {
                outcome = Outcome::Failure;
                rest
            }
            [b"COST", cost, rest @ ..] => {
                let shown = excerpt(&text(cost));
                let units = text(cost).parse::<u64>();
                let units =
                    units.map_err(|_| Wrong::here(format!("COST: \"{shown}\" is no number from 0")))?;
                spent = Spent::Usage(Usage::cost(units));
                rest
            }
            [word, ..] => {
                let word = excerpt(&text(word));
                return Err(Wrong::here(format!(
                    "\"{word}\" is unknown; write TG.SETTLE ticket [COST n] [FAILED]"
                )));
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

fn refused(error: &SettleError) -> Wrong {
    match error {
        SettleError::Ticket(TicketError::Store(error)) => Wrong("UNAVAILABLE", error.to_string()),
        SettleError::Ticket(error) => Wrong("TICKET", error.to_string()),
        SettleError::Unknown(unknown) => Wrong::here(unknown.to_string()),
        SettleError::AwaitsReport(_) | SettleError::TooMuch { .. } => {
            Wrong("TICKET", "the ticket cannot be settled so; POST /v1/settle says why".to_owned())
        }
    }
}

/// `TG.RESET policy name value [name value ...]`
async fn reset(door: &RespDoor, words: &[&[u8]], replies: &mut Replies) -> Result<(), Wrong> {
    let [_, policy, rest @ ..] = words else {
        redis::wrong_number(words[0], replies);
        return Ok(());
    };
    let live = door.app.engine.live();
    let at = find(&live, policy)?;
    let by = &live.set.policies()[at].by;
    let mut key = Descriptor::new();
    for pair in rest.chunks(2) {
        let [name, value] = pair else {
            return Err(Wrong::here(format!("\"{}\" has no value", excerpt(&text(pair[0])))));
        };
        if !by.iter().any(|have| have.as_bytes() == *name) {
            let (name, by) = (excerpt(&text(name)), by.join(", "));
            return Err(Wrong::here(format!("\"{name}\" is no part of the key; the key is made of {by}")));
        }
        attribute(&mut key, name, value)?;
    }
    if let Some(missing) = by.iter().find(|name| key.value(name).is_none()) {
        return Err(Wrong::here(format!("{missing} is missing; the key is made of {}", by.join(", "))));
    }
    let reset = door.app.engine.reset(&live, at, &key).await;
    reset.map_err(|error| Wrong("UNAVAILABLE", error.to_string()))?;
    replies.simple("OK");
    Ok(())
}
