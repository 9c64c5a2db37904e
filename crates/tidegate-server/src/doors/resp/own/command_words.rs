//! Shows and parses words of commands, and makes the errors about them.

use std::borrow::Cow;
use std::str::FromStr;

use tidegate::visible::excerpt;

use super::super::redis;
use super::super::reply::Replies;

/// An error reply: its code, and the message.
pub(super) struct Refusal(pub(super) &'static str, pub(super) String);

impl Refusal {
    /// Makes the error for a wrong command.
    pub(super) fn wrong(what: impl Into<String>) -> Self {
        Self("ERR", what.into())
    }
}

pub(super) fn text(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// Quotes a word of a command, escaped and cut to a length that fits a sentence.
pub(super) fn shown(word: &[u8]) -> String {
    format!("\"{}\"", excerpt(&text(word)))
}

/// Parses the number after `COST`.
pub(super) fn cost(word: &[u8], least: u64) -> Result<u64, Refusal> {
    const MOST: u64 = crate::requests::MAX_COST;
    let read = number(word).filter(|units| (least..=MOST).contains(units));
    read.ok_or_else(|| {
        Refusal::wrong(format!("COST: {} is not a whole number from {least} to {MOST}", shown(word)))
    })
}

/// Parses a whole number in decimal digits, without a sign.
pub(super) fn number<N: FromStr>(word: &[u8]) -> Option<N> {
    // `str::parse` would accept a plus.
    text(word).parse().ok().filter(|_| word.first().is_some_and(u8::is_ascii_digit))
}

/// Sets an option of a command, which may be given once.
pub(super) fn once<T>(option: &mut Option<T>, name: &str, value: T) -> Result<(), Refusal> {
    match option.replace(value) {
        None => Ok(()),
        Some(_) => Err(Refusal::wrong(format!("{name} is given twice; send it once"))),
    }
}

/// Answers a command that has too few words.
pub(super) fn too_few(words: &[&[u8]], replies: &mut Replies) -> Result<(), Refusal> {
    redis::wrong_number(words[0], replies);
    Ok(())
}
