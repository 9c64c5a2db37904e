//! Our own commands: what the HTTP door does, for clients that speak RESP.

mod attributes;
mod check;
mod reset;
mod settle;

use std::borrow::Cow;

use tidegate::visible::excerpt;

use super::reply::Replies;
use super::session::{RespDoor, Session};
use super::{redis, throttle};
use crate::spelling::nearest;

/// Every command of ours, to find the one that was probably meant by a misspelt one.
const COMMANDS: [&str; 4] = ["CL.THROTTLE", "TG.CHECK", "TG.SETTLE", "TG.RESET"];

/// Why a command is answered with an error: its code, and what is wrong.
struct Refusal(&'static str, String);

impl Refusal {
    /// The command itself is wrong.
    fn wrong(what: impl Into<String>) -> Self {
        Self("ERR", what.into())
    }
}

/// Runs a command of ours, or says that there is none of that name.
pub(super) async fn run(door: &RespDoor, session: &Session, words: &[&[u8]], replies: &mut Replies) {
    let is = |word: &str| words[0].eq_ignore_ascii_case(word.as_bytes());
    if !session.trusted {
        return replies.error("NOAUTH", "Authentication required: AUTH TOKEN");
    }
    let done = if is("CL.THROTTLE") {
        throttle::run(door, words, replies).await;
        Ok(())
    } else if is("TG.CHECK") {
        check::run(door, session, words, replies).await
    } else if is("TG.SETTLE") {
        settle::run(door, words, replies).await
    } else if is("TG.RESET") {
        reset::run(door, words, replies).await
    } else {
        let name = text(words[0]).to_ascii_uppercase();
        let meant = nearest(&name, COMMANDS);
        let advice = meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
        Err(Refusal::wrong(format!("unknown command '{}'{advice}", excerpt(&name))))
    };
    if let Err(Refusal(code, what)) = done {
        replies.error(code, &what);
    }
}

fn text(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// Quotes a word of a command, escaped and cut to a length that fits a sentence.
fn shown(word: &[u8]) -> String {
    format!("\"{}\"", excerpt(&text(word)))
}

/// Reads the number behind `COST`.
fn cost(word: &[u8], least: u64) -> Result<u64, Refusal> {
    const MOST: u64 = crate::requests::MAX_COST;
    let read = text(word).parse().ok().filter(|units| (least..=MOST).contains(units));
    read.ok_or_else(|| {
        Refusal::wrong(format!("COST: {} is no whole number from {least} to {MOST}", shown(word)))
    })
}

/// Counts the words of a command that has too few.
fn too_few(words: &[&[u8]], replies: &mut Replies) -> Result<(), Refusal> {
    redis::wrong_number(words[0], replies);
    Ok(())
}
