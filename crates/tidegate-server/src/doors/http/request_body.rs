//! Parses JSON bodies into descriptors, and reports mistakes precisely.
//!
//! The hot path parses in one pass without building a tree: names and values are borrowed from the body unless they
//! contain JSON escapes. Every bound is checked while reading, so nothing larger is ever held. The first mistake ends
//! the parsing, with a sentence that names the field, the value and what would work, and with the position in the body.

mod attributes;
mod bounds;
mod check;
mod cost;
mod fields;
mod operator;
mod priority;
mod reason;
mod settlement;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::cell::Cell;
use std::future::poll_fn;
use std::mem;
use std::pin::Pin;

use axum::body::{Body, Bytes};
use http::header::CONTENT_ENCODING;
use http::{Request, StatusCode};
use hyper::body::Body as _;
use serde::de::{DeserializeSeed, IgnoredAny};
use tokio::sync::{Semaphore, SemaphorePermit};

pub(crate) use self::bounds::{
    MAX_ATTRIBUTES, MAX_BATCH_BODY, MAX_BATCH_LIMITS, MAX_BODY, MAX_NAME, MAX_PROPOSED, MAX_PROPOSED_BODY,
    MAX_VALUE,
};
use self::check::{BatchSeed, BatchedCheck, CheckSeed, DryRunSeed};
pub(crate) use self::check::{CheckBody, DryRunBody};
use self::operator::{BlockSeed, EXAMPLE_SIGNAL, SignalSeed, StringsSeed};
pub(crate) use self::reason::reason;
pub(crate) use self::settlement::SettlementBody;
use self::settlement::SettlementSeed;
use crate::connections::TooSlow;
use crate::problem::Problem;
use crate::spelling::quoted;

/// The bytes that bodies may take up over all connections together: those that have come in part, and those of batches
/// that are being answered.
static ROOM: Semaphore = Semaphore::const_new(64 << 20);

/// The shortest body of a check, for error messages.
const EXAMPLE_CHECK: &str = "{\"attributes\": {\"client.ip\": \"203.0.113.9\"}}";

/// Reads the whole body of a request, of at most `limit` bytes.
///
/// # Errors
/// 413 if it is longer, 408 if it is too slow, 400 if the connection broke off, 415 if it is compressed.
pub(crate) async fn read(request: Request<Body>, limit: usize) -> Result<Bytes, Problem> {
    let encoding = encoding_of(&request);
    let read = read_body(request.into_body(), limit).await?;
    match encoding {
        None => Ok(read),
        Some(encoding) => {
            let shown = quoted(&encoding);
            let detail = format!("content-encoding: {shown} is not read here; send the body as it is");
            Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail).with("field", "content-encoding"))
        }
    }
}

/// Returns the encoding of a body that is sent in another form than its own.
fn encoding_of(request: &Request<Body>) -> Option<String> {
    let encoding = request.headers().get(CONTENT_ENCODING)?;
    let is_plain = encoding.is_empty() || encoding.as_bytes().eq_ignore_ascii_case(b"identity");
    (!is_plain).then(|| String::from_utf8_lossy(encoding.as_bytes()).into_owned())
}

/// Reads a whole body, with the errors of [`read`].
async fn read_body(mut body: Body, limit: usize) -> Result<Bytes, Problem> {
    let too_long = || {
        let detail = format!("the body is longer than {limit} bytes; send less, or several requests");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail).with("max_bytes", limit)
    };
    if body.size_hint().exact().is_some_and(|size| size > limit as u64) {
        return Err(too_long());
    }
    // Usually the body came with its head, in one piece, which is not copied.
    let mut first = piece(&mut body).await?.unwrap_or_default();
    let mut all = Vec::new();
    let mut room = None;
    loop {
        if first.len() + all.len() > limit {
            return Err(too_long());
        }
        if room.is_none() && !body.is_end_stream() {
            room = Some(room_for(first.len())?);
        }
        let Some(next) = piece(&mut body).await? else { break };
        if let Some(room) = &mut room {
            room.merge(room_for(next.len())?);
        }
        if all.is_empty() {
            all = mem::take(&mut first).into();
        }
        all.extend_from_slice(&next);
    }
    Ok(if all.is_empty() { first } else { all.into() })
}

/// Takes room for so many bytes of a body, until the returned value is dropped.
///
/// # Errors
/// 503 if the bodies of all callers take up all room.
pub(crate) fn room_for(bytes: usize) -> Result<SemaphorePermit<'static>, Problem> {
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    ROOM.try_acquire_many(bytes)
        .map_err(|_| Problem::unavailable("the bodies of all callers together take up all room; ask again"))
}

/// Reads the next piece of a body; `None` at its end.
///
/// # Errors
/// As [`read`].
async fn piece(body: &mut Body) -> Result<Option<Bytes>, Problem> {
    loop {
        match poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await {
            None => return Ok(None),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => return Ok(Some(data)),
                // Trailers are skipped.
                Err(_) => continue,
            },
            Some(Err(error)) => {
                return Err(match cause::<TooSlow>(&error) {
                    Some(slow) => Problem::new(StatusCode::REQUEST_TIMEOUT, slow.to_string()),
                    None => Problem::bad_request(format!("the body could not be read: {error}")),
                });
            }
        }
    }
}

/// Finds an error of this type among an error's causes.
fn cause<E: std::error::Error + 'static>(error: &axum::Error) -> Option<&E> {
    let first: &(dyn std::error::Error + 'static) = error;
    std::iter::successors(Some(first), |error| error.source()).find_map(|error| error.downcast_ref())
}

/// Reads the body of a check, a peek or an explain.
///
/// # Errors
/// 400 with the position and what would work.
pub(crate) fn check(bytes: &[u8]) -> Result<CheckBody<'_>, Problem> {
    parse(bytes, EXAMPLE_CHECK, CheckSeed)
}

/// Reads the body of a batch. If any check in it is invalid, nothing is charged.
///
/// # Errors
/// 400 with the position, the index of the check, and what would work.
pub(crate) fn batch(bytes: &[u8]) -> Result<Vec<CheckBody<'_>>, Problem> {
    let wrong = Cell::new(None);
    let read =
        parse(bytes, "[{\"attributes\": {\"client.ip\": \"203.0.113.9\"}}]", BatchSeed { wrong: &wrong });
    read.map_err(|problem| match wrong.get() {
        Some(at) => problem.with("index", at),
        None => problem,
    })
}

/// Reads the next checks of a batch, `most` at most. `rest` is what [`batch_after`] left of a batch that was read before.
///
/// # Errors
/// None, since the batch was read before.
pub(crate) fn batch_slice(rest: &[u8], most: usize) -> Result<Vec<CheckBody<'_>>, Problem> {
    let mut checks = Vec::with_capacity(most);
    let mut rest = after_separators(rest);
    while checks.len() < most && rest.first() == Some(&b'{') {
        let mut json = serde_json::Deserializer::from_slice(rest).into_iter::<BatchedCheck<'_>>();
        let Some(read) = json.next() else { break };
        checks.push(read.map_err(|error| explain(&error))?.0);
        rest = after_separators(&rest[json.byte_offset()..]);
    }
    Ok(checks)
}

/// Returns the part of a batch after so many checks. `bytes` is a batch that was read before, or a part of one.
pub(crate) fn batch_after(bytes: &[u8], checks: usize) -> &[u8] {
    let mut rest = after_separators(bytes);
    for _ in 0..checks {
        let mut json = serde_json::Deserializer::from_slice(rest).into_iter::<IgnoredAny>();
        let _ = json.next();
        rest = after_separators(&rest[json.byte_offset()..]);
    }
    rest
}

/// Skips what stands before a check of a batch.
fn after_separators(bytes: &[u8]) -> &[u8] {
    let is_between = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b'[' | b',');
    &bytes[bytes.iter().position(|byte| !is_between(byte)).unwrap_or(bytes.len())..]
}

/// Reads the body of a dry run: `{check, config?}`.
///
/// # Errors
/// 400 with the position and what would work.
pub(crate) fn dry_run(bytes: &[u8]) -> Result<DryRunBody<'_>, Problem> {
    parse(bytes, check::EXAMPLE_DRY_RUN, DryRunSeed)
}

/// Reads the body of a settlement: `{ticket, cost?, attributes?, status? | outcome?}`, or `{ticket, refund}`.
///
/// # Errors
/// 400 with the position and what would work.
pub(crate) fn settle(bytes: &[u8]) -> Result<SettlementBody<'_>, Problem> {
    let example = "{\"ticket\": \"TICKET\", \"attributes\": {\"llm.output\": 400}, \"status\": 200}";
    let fields = &["ticket", "cost", "attributes", "status", "outcome", "refund"];
    parse(bytes, example, SettlementSeed { fields })
}

/// Reads the body of an extension: `{ticket}`.
///
/// # Errors
/// 400 with the position and what would work.
pub(crate) fn extend(bytes: &[u8]) -> Result<SettlementBody<'_>, Problem> {
    parse(bytes, "{\"ticket\": \"TICKET\"}", SettlementSeed { fields: &["ticket"] })
}

/// Reads the body of a signal report: `{value}`.
///
/// # Errors
/// 400 with the position and what would work.
pub(crate) fn signal(bytes: &[u8]) -> Result<f64, Problem> {
    parse(bytes, EXAMPLE_SIGNAL, SignalSeed)
}

/// Reads an object whose fields are all strings, in the order of `fields`; those that are left out or null are `None`.
/// The first one is required. `example` is a whole body, for error messages.
///
/// # Errors
/// 400 with the position and what would work.
pub(crate) fn strings<const N: usize>(
    bytes: &[u8],
    example: &'static str,
    fields: &'static [&'static str; N],
) -> Result<[Option<String>; N], Problem> {
    parse(bytes, example, StringsSeed { fields, example })
}

/// Reads the body of a block, `{block: {for, reason?}}`; `None` for `{block: null}`, which ends one. `example` is a whole
/// body, for error messages.
///
/// # Errors
/// 400 with the position and what would work.
pub(crate) fn block(bytes: &[u8], example: &'static str) -> Result<Option<[Option<String>; 2]>, Problem> {
    parse(bytes, example, BlockSeed(StringsSeed { fields: &["for", "reason"], example }))
}

fn parse<'a, S: DeserializeSeed<'a>>(bytes: &'a [u8], example: &str, seed: S) -> Result<S::Value, Problem> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(Problem::bad_request(format!("the body is empty; send JSON such as {example}")));
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    seed.deserialize(&mut json).and_then(|value| json.end().map(|()| value)).map_err(|error| {
        match encoded_otherwise(bytes) {
            Some(encoding) => Problem::bad_request(format!(
                "the body begins with the mark of {encoding}; send UTF-8 without a mark"
            )),
            None => explain(&error),
        }
    })
}

/// Returns the encoding that the mark at the beginning of a body names. JSON between programs is UTF-8 without a mark
/// (RFC 8259, section 8.1).
fn encoded_otherwise(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0xef, 0xbb, 0xbf, ..] => Some("UTF-8"),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => Some("UTF-16"),
        _ => None,
    }
}

/// Cuts the middle out of a sentence that is too long. serde quotes an unexpected string in full, and the string comes
/// from the caller. The subject is at the start of the sentence, and what would work is at its end.
fn shortened(sentence: &str) -> Cow<'_, str> {
    /// In characters: together longer than any of the server's own sentences, including one quoted word that was cut
    /// and escaped.
    const START: usize = 800;
    const END: usize = 200;
    let at = |char: usize| sentence.char_indices().nth(char).map(|(at, _)| at);
    let from_end = sentence.char_indices().nth_back(END - 1).map(|(at, _)| at);
    match (at(START), at(START + END), from_end) {
        (Some(start), Some(_), Some(end)) => format!("{}…{}", &sentence[..start], &sentence[end..]).into(),
        _ => sentence.into(),
    }
}

/// Turns a parser's error into a problem. The position is taken out of the sentence, into members of its own.
fn explain(error: &serde_json::Error) -> Problem {
    let text = error.to_string();
    let sentence = shortened(text.rfind(" at line ").map_or(text.as_str(), |end| &text[..end]));
    // A wrong type of the whole body is found before anything is read, at column 0.
    let (line, column) = (error.line(), error.column().max(1));
    let detail = if error.is_data() {
        format!("{sentence} (line {line}, column {column})")
    } else {
        format!("the body is not JSON: {sentence} (line {line}, column {column})")
    };
    Problem::bad_request(detail).with("line", line).with("column", column)
}
