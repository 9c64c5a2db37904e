//! Reads what callers send: JSON bodies into descriptors, with every mistake named.
//!
//! The hot path parses in one pass without building a tree: names and values are borrowed from the body where JSON has no
//! escapes in them. Every bound is checked while reading, so nothing larger is ever held. A mistake ends the reading with a
//! sentence that names the field, the value and what would work, and with the position in the body.

mod asked;
mod attributes;
mod cost;
mod settled;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt;

use axum::body::{Body, Bytes};
use http::StatusCode;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, Visitor};
use tidegate::Rate;
use tidegate::policy::Descriptor;

pub(crate) use self::asked::Asked;
use self::asked::{AskedSeed, BatchSeed};
use self::settled::SettledSeed;
pub(crate) use self::settled::{Ended, OUTCOMES, Settled};
use super::problem::{Problem, nearest, quoted};
use crate::connections::TooSlow;

/// The longest body of one check: 64 attributes of ordinary size fit many times over.
pub(crate) const MAX_BODY: usize = 64 * 1024;
/// The longest body of a batch.
pub(crate) const MAX_BATCH_BODY: usize = 1024 * 1024;
/// The most checks in one batch.
pub(crate) const MAX_BATCH: usize = 1000;
/// How many limits the answer to a batch tells of before no more of its checks are decided: some 5 MB.
pub(crate) const MAX_BATCH_LIMITS: usize = 20_000;
/// The most attributes of one check: policies name a handful; a linear look-up stays cheap.
pub(crate) const MAX_ATTRIBUTES: usize = 64;
/// The longest attribute name, in bytes.
pub(crate) const MAX_NAME: usize = Descriptor::MAX_NAME;
/// The longest attribute value, in bytes: a long URL or token fits.
pub(crate) const MAX_VALUE: usize = Descriptor::MAX_VALUE;
/// The most policy names in `policies`.
const MAX_POLICIES: usize = 256;
/// The largest cost: the largest burst there can be. A larger one could never be allowed.
pub(crate) const MAX_COST: u64 = Rate::MAX_COUNT;

/// The least that a check says.
const A_CHECK: &str = "{\"attributes\": {\"client.ip\": \"203.0.113.9\"}}";

/// Reads a whole body of at most `limit` bytes.
///
/// # Errors
/// 413 when it is longer, 408 when it is too slow, 400 when the connection broke off.
pub(crate) async fn read(body: Body, limit: usize) -> Result<Bytes, Problem> {
    let too_long = || {
        let detail = format!("the body is longer than {limit} bytes; send less, or several requests");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail).with("max_bytes", limit)
    };
    if http_body_size(&body).is_some_and(|size| size > limit as u64) {
        return Err(too_long());
    }
    match axum::body::to_bytes(body, limit).await {
        Ok(bytes) => Ok(bytes),
        Err(error) if is_length(&error) => Err(too_long()),
        Err(error) => Err(match cause::<TooSlow>(&error) {
            Some(slow) => Problem::new(StatusCode::REQUEST_TIMEOUT, slow.to_string()),
            None => Problem::bad_request(format!("the body could not be read: {error}")),
        }),
    }
}

/// Finds an error of this type among an error's causes.
fn cause<E: std::error::Error + 'static>(error: &axum::Error) -> Option<&E> {
    let first: &(dyn std::error::Error + 'static) = error;
    std::iter::successors(Some(first), |error| error.source()).find_map(|error| error.downcast_ref())
}

fn http_body_size(body: &Body) -> Option<u64> {
    hyper::body::Body::size_hint(body).exact()
}

fn is_length(error: &axum::Error) -> bool {
    // The limiter hands on the connection's errors too; only its own says so in these words.
    std::error::Error::source(error).is_some_and(|source| source.to_string().contains("length limit"))
}

/// Reads the body of a check, a peek or an explain.
///
/// # Errors
/// 400 with the position and what would work.
pub(crate) fn check(bytes: &[u8]) -> Result<Asked<'_>, Problem> {
    parse(bytes, A_CHECK, AskedSeed)
}

/// Reads the body of a batch: all of it, or nothing is charged.
///
/// # Errors
/// 400 with the position and what would work.
pub(crate) fn batch(bytes: &[u8]) -> Result<Vec<Asked<'_>>, Problem> {
    parse(bytes, "[{\"attributes\": {\"client.ip\": \"203.0.113.9\"}}]", BatchSeed)
}

/// Reads the body of a settlement: `{ticket, cost?, attributes?, status? | outcome?}`.
///
/// # Errors
/// 400 with the position and what would work.
pub(crate) fn settle(bytes: &[u8]) -> Result<Settled<'_>, Problem> {
    let example = "{\"ticket\": \"TICKET\", \"attributes\": {\"llm.output\": 400}, \"status\": 200}";
    let fields = &["ticket", "cost", "attributes", "status", "outcome"];
    parse(bytes, example, SettledSeed { fields, least: 0 })
}

/// Reads the body of a report: `{ticket, status}`.
///
/// # Errors
/// 400 with the position and what would work.
pub(crate) fn report(bytes: &[u8]) -> Result<Settled<'_>, Problem> {
    let example = "{\"ticket\": \"TICKET\", \"status\": 200}";
    parse(bytes, example, SettledSeed { fields: &["ticket", "status"], least: 0 })
}

/// Reads the body of a refund: `{ticket, cost?}`.
///
/// # Errors
/// 400 with the position and what would work.
pub(crate) fn refund(bytes: &[u8]) -> Result<Settled<'_>, Problem> {
    let example = "{\"ticket\": \"TICKET\"}";
    parse(bytes, example, SettledSeed { fields: &["ticket", "cost"], least: 1 })
}

fn parse<'a, S: DeserializeSeed<'a>>(bytes: &'a [u8], example: &str, seed: S) -> Result<S::Value, Problem> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(Problem::bad_request(format!("the body is empty; send JSON such as {example}")));
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    seed.deserialize(&mut json).and_then(|value| json.end().map(|()| value)).map_err(|error| explain(&error))
}

/// Turns a parser's error into a problem: its sentence without the position, which goes into members of its own.
fn explain(error: &serde_json::Error) -> Problem {
    let text = error.to_string();
    let sentence = text.rfind(" at line ").map_or(text.as_str(), |end| &text[..end]);
    let (line, column) = (error.line(), error.column());
    let detail = if error.is_data() {
        format!("{sentence} (line {line}, column {column})")
    } else {
        format!("the body is not JSON: {sentence} (line {line}, column {column})")
    };
    Problem::bad_request(detail).with("line", line).with("column", column)
}

/// A string of the body, borrowed where it has no escapes.
#[derive(Debug)]
struct Text<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        TextSeed("a string").deserialize(from)
    }
}

/// Reads a string; what else is there is told apart from what it was to be.
struct TextSeed(&'static str);

impl<'de> DeserializeSeed<'de> for TextSeed {
    type Value = Text<'de>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Text<'de>, D::Error> {
        from.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for TextSeed {
    type Value = Text<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
        Ok(Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
        Ok(Text(Cow::Owned(text.to_owned())))
    }
}

fn once<T, E: Error>(slot: &mut Option<T>, name: &'static str, value: T) -> Result<(), E> {
    if slot.replace(value).is_some() {
        return Err(E::custom(format_args!("`{name}` is given twice")));
    }
    Ok(())
}

fn missing<E: Error>(name: &str, what: &str) -> E {
    E::custom(format_args!("`{name}` is missing; it is {what}"))
}

fn unknown<E: Error>(name: &str, names: &[&'static str]) -> E {
    let known = names.join("`, `");
    match nearest(name, names.iter().copied()) {
        Some(meant) => E::custom(format_args!("unknown field {}; did you mean `{meant}`?", quoted(name))),
        None => E::custom(format_args!("unknown field {}; the fields are `{known}`", quoted(name))),
    }
}
