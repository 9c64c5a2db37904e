//! Tidegate's own commands and `CL.THROTTLE`, which do what the HTTP door does.

mod check;

use std::borrow::Cow;
use std::pin::pin;
use std::str::FromStr;

use tidegate::Outcome;
use tidegate::config::{canonical_attribute, unknown_attribute};
use tidegate::gate::Part;
use tidegate::gate::ticket::{Ticket, TicketError};
use tidegate::http_answer::server_parts::wrong_value;
use tidegate::policy::{Descriptor, Usage};
use tidegate::visible::{self, excerpt};

use super::protocol::Replies;
use super::session::{RespDoor, Session};
use super::{redis, throttle};
use crate::auth::Scope;
use crate::decider::{SettleError, Settlement, Spent};
use crate::metrics::Transport;
use crate::otlp::CallEnd;
use crate::requests::{self, MAX_ATTRIBUTES, MAX_NAME, MAX_VALUE, STATUSES, WorkEnd};
use crate::text::nearest;
use crate::uncovered_requests::Misdirected;

/// All commands of this module, to suggest the one that a misspelt name probably meant.
const COMMANDS: [&str; 4] = ["CL.THROTTLE", "TG.CHECK", "TG.SETTLE", "TG.RESET"];

/// Returns the scope that a token must have for a command. An unknown name needs the scope for checks, so that its
/// callers are told about it.
fn required_scope(name: &[u8]) -> Scope {
    if name.eq_ignore_ascii_case(b"TG.RESET") { Scope::Admin } else { Scope::Check }
}

/// Runs a command, or says that there is none of that name.
pub(super) async fn run(door: &RespDoor, session: &mut Session, words: &[&[u8]], replies: &mut Replies) {
    let is = |word: &str| words[0].eq_ignore_ascii_case(word.as_bytes());
    if let Err((code, what)) = session.may(required_scope(words[0])) {
        if session.is_trusted() {
            door.app.decider.metrics.auth_failed(Transport::resp);
            let why = Misdirected::NoToken("the address for Redis clients", what.to_string());
            door.app.decider.live().unmet.note_misdirected(&why, None);
        }
        return replies.error(code, &what);
    }
    let span = door.app.spans.as_ref().and_then(|spans| {
        let decides = ["CL.THROTTLE", "TG.CHECK", "TG.SETTLE"].into_iter().find(|command| is(command));
        spans.resp(decides?)
    });
    let done = {
        let mut running = pin!(decided(door, session, words, replies));
        match span {
            None => running.await,
            Some(span) => span.around(running.as_mut(), |done| CallEnd::Resp { error: done.is_err() }).await,
        }
    };
    if let Err(Refusal(code, what)) = done {
        replies.error(code, &what);
    }
}

async fn decided(
    door: &RespDoor,
    session: &mut Session,
    words: &[&[u8]],
    replies: &mut Replies,
) -> Result<(), Refusal> {
    let is = |word: &str| words[0].eq_ignore_ascii_case(word.as_bytes());
    // The usual spelling first, as a whole.
    if words[0] == b"CL.THROTTLE" || is("CL.THROTTLE") {
        throttle::run(door, session, words, replies).await;
        Ok(())
    } else if is("TG.CHECK") {
        check::run(door, session, words, replies).await
    } else if is("TG.SETTLE") {
        settle(door, words, replies).await
    } else if is("TG.RESET") && door.decides_only {
        let where_else = "TG.RESET is not served here; DELETE /v1/keys/POLICY at the admin address does it";
        Err(Refusal::wrong(where_else))
    } else if is("TG.RESET") {
        reset(door, session.token().unwrap_or_default(), words, replies).await?;
        tracing::info!(token = session.token(), command = "TG.RESET", "a change through the API");
        Ok(())
    } else {
        let name = text(words[0]).to_ascii_uppercase();
        let meant = nearest(&name, COMMANDS);
        let advice = meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
        Err(Refusal::wrong(format!("unknown command '{}'{advice}", excerpt(&name))))
    }
}

/// `TG.RESET policy name value [name value ...]`: resets what a key has spent, and ends its block.
async fn reset(door: &RespDoor, token: &str, words: &[&[u8]], replies: &mut Replies) -> Result<(), Refusal> {
    let [_, policy, rest @ ..] = words else { return too_few(words, replies) };
    let live = door.app.decider.live();
    let at = requests::find(&live.set, &text(policy)).map_err(|none| Refusal::wrong(none.to_string()))?;
    let pairs = rest.chunks(2).map(|pair| match pair {
        [name, value] => read_pair(name, value),
        _ => Err(Refusal::wrong(format!("{} has no value", shown(pair[0])))),
    });
    let pairs = pairs.collect::<Result<Vec<_>, _>>()?;
    let key = requests::key_of(&live.set, at, pairs);
    let key = key.map_err(|wrong| Refusal::wrong(wrong.to_string()))?;
    let let_go = door.app.decider.keys.let_go(&live, at, &key).await;
    let_go.map_err(|error| Refusal("UNAVAILABLE", error.to_string()))?;
    door.app.decider.tell_change("key", token, "", || {
        let words = &live.set.policies()[at];
        let digest = door.app.redact.key(&live.set, words, &key, false);
        format!("{}: {digest} is reset", visible::name(&words.name))
    });
    replies.simple("OK");
    Ok(())
}

fn read_pair<'w>(name: &'w [u8], value: &'w [u8]) -> Result<(Cow<'w, str>, Cow<'w, str>), Refusal> {
    match (std::str::from_utf8(name), std::str::from_utf8(value)) {
        (Ok(name), Ok(value)) => Ok((name.into(), value.into())),
        _ => Err(Refusal::wrong(format!("attribute {}: names and values are UTF-8", shown(name)))),
    }
}

fn add<'w>(request: &mut Descriptor<'w>, name: &'w [u8], value: &'w [u8]) -> Result<(), Refusal> {
    let (text, value) = read_pair(name, value)?;
    let shown = shown(name);
    if text.is_empty() || text.len() > MAX_NAME {
        return Err(Refusal::wrong(format!("{shown} is not a name; it has 1 to {MAX_NAME} bytes")));
    }
    if let Some(instead) = unknown_attribute(&text) {
        return Err(Refusal::wrong(format!("attribute {shown}: no policy reads it; {instead}")));
    }
    if value.len() > MAX_VALUE {
        let bytes = value.len();
        let what = format!("the value of {shown} has {bytes} bytes; use at most {MAX_VALUE}");
        return Err(Refusal::wrong(what));
    }
    let text = canonical_attribute(text);
    if let Some(wrong) = wrong_value(&text, &value) {
        return Err(Refusal::wrong(wrong));
    }
    if request.value(&text).is_some() {
        return Err(Refusal::wrong(format!("attribute {shown} is given twice")));
    }
    if request.pairs().count() >= MAX_ATTRIBUTES {
        return Err(Refusal::wrong(format!("more than {MAX_ATTRIBUTES} attributes")));
    }
    request.push(text, value);
    Ok(())
}

/// An error reply: code and message.
struct Refusal(&'static str, String);

impl Refusal {
    fn wrong(what: impl Into<String>) -> Self {
        Self("ERR", what.into())
    }
}

fn text(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// Quotes a word, escaped and cut.
fn shown(word: &[u8]) -> String {
    format!("\"{}\"", excerpt(&text(word)))
}

/// Parses the number after `COST`.
fn cost(word: &[u8], least: u64) -> Result<u64, Refusal> {
    const MOST: u64 = requests::MAX_COST;
    let read = number(word).filter(|units| (least..=MOST).contains(units));
    read.ok_or_else(|| {
        Refusal::wrong(format!("COST: {} is not a whole number from {least} to {MOST}", shown(word)))
    })
}

/// Parses decimal digits, without a sign.
fn number<N: FromStr>(word: &[u8]) -> Option<N> {
    // `str::parse` would accept a plus.
    text(word).parse().ok().filter(|_| word.first().is_some_and(u8::is_ascii_digit))
}

/// Sets an option, which may be given once.
fn once<T>(option: &mut Option<T>, name: &str, value: T) -> Result<(), Refusal> {
    match option.replace(value) {
        None => Ok(()),
        Some(_) => Err(Refusal::wrong(format!("{name} is given twice; send it once"))),
    }
}

fn too_few(words: &[&[u8]], replies: &mut Replies) -> Result<(), Refusal> {
    redis::wrong_number(words[0], replies);
    Ok(())
}

/// How to write the command, for error messages.
const USAGE: &str = "write TG.SETTLE ticket [COST n] [STATUS n | OUTCOME word | FAILED]";

/// `TG.SETTLE ticket [COST n] [STATUS n | OUTCOME word | FAILED]`: the charge stands or is corrected, places are
/// returned. Without an outcome, the work was a success.
async fn settle(door: &RespDoor, words: &[&[u8]], replies: &mut Replies) -> Result<(), Refusal> {
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
    let live = door.app.decider.live();
    let settled =
        door.app.decider.tickets.settle(&live, &ticket, &settlement, |told| told.charges.len()).await;
    let charges = settled.map_err(|error| refused(&error))?;
    replies.integer(i64::try_from(charges).unwrap_or(i64::MAX));
    Ok(())
}

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
