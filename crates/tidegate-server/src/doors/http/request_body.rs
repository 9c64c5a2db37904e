//! Parses JSON bodies into descriptors, and reports mistakes precisely.
//!
//! Bodies are parsed in one pass without a tree: names and values are borrowed from the body unless they have
//! escapes. Every bound is checked while reading, so nothing larger is ever held. The first mistake ends it, with
//! the field, the value, what would work, and the position in the body.

mod check;
mod operator;
mod settlement;

use std::borrow::Cow;
use std::cell::Cell;
use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::time::Duration;

use http::header::CONTENT_ENCODING;
use http::{Request, StatusCode};
use hyper::body::{Body as _, Bytes};
use serde::de::{DeserializeSeed, IgnoredAny};
use tidegate::breaker::Forced;
use tidegate::policy::span;
use tidegate::visible;
use tokio::sync::{Semaphore, SemaphorePermit};

use self::check::{BatchSeed, BatchedCheck, CheckVisitor, DryRunVisitor, Object};
pub(crate) use self::check::{CheckBody, DryRunBody};
use self::operator::{
    BlockVisitor, CanaryVisitor, EXAMPLE_CANARY, EXAMPLE_LAB, EXAMPLE_SIGNAL, LabVisitor, SignalVisitor,
    StringsVisitor,
};
pub(crate) use self::operator::{CanaryBody, LabBody};
pub(crate) use self::settlement::SettlementBody;
use self::settlement::SettlementVisitor;
use crate::body::{Body, BodyError};
use crate::connections::TooSlow;
use crate::problem::Problem;
pub(crate) use crate::requests::{MAX_ATTRIBUTES, MAX_COST, MAX_NAME, MAX_VALUE};
use crate::text::quoted;

/// The bytes that bodies may take up over all connections together: those that have come in part, and those of
/// batches that are being answered.
static ROOM: Semaphore = Semaphore::const_new(64 << 20);

/// The shortest body of a check, for error messages.
const EXAMPLE_CHECK: &str = "{\"attributes\": {\"client.ip\": \"203.0.113.9\"}}";

/// Reads the whole body of a request, of at most `limit` bytes.
///
/// # Errors
/// 413 if it is longer, 408 if too slow, 400 if the connection broke off, 415 if compressed.
pub(crate) async fn read(request: Request<Body>, limit: usize) -> Result<Bytes, Problem> {
    let encoding = encoding_of(&request);
    let mut body = request.into_body();
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
    match encoding {
        None => Ok(if all.is_empty() { first } else { all.into() }),
        Some(encoding) => {
            let shown = quoted(&encoding);
            let detail = format!("content-encoding: {shown} is not read here; send the body as it is");
            Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail).with("field", "content-encoding"))
        }
    }
}

/// Returns the encoding of a body that is not sent as it is.
fn encoding_of(request: &Request<Body>) -> Option<String> {
    let encoding = request.headers().get(CONTENT_ENCODING)?;
    let is_plain = encoding.is_empty() || encoding.as_bytes().eq_ignore_ascii_case(b"identity");
    (!is_plain).then(|| String::from_utf8_lossy(encoding.as_bytes()).into_owned())
}

/// Takes room for bytes of a body, until the returned value is dropped.
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

/// Finds an error of this type among the causes of an error.
fn cause<E: std::error::Error + 'static>(error: &BodyError) -> Option<&E> {
    let first: &(dyn std::error::Error + 'static) = &**error;
    std::iter::successors(Some(first), |error| error.source()).find_map(|error| error.downcast_ref())
}

/// Reads the body of a check, a peek or an explain.
///
/// # Errors
/// 400 with the position and what would work.
pub(crate) fn check(bytes: &[u8]) -> Result<CheckBody<'_>, Problem> {
    parse(bytes, EXAMPLE_CHECK, Object(CheckVisitor))
}

/// Reads a batch. If any check is invalid, nothing is charged.
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

/// Reads the next checks of a batch that was read before; `rest` is what [`batch_after`] left of it.
///
/// # Errors
/// None, since it was read before.
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

/// Returns what follows so many checks of a batch that was read before.
pub(crate) fn batch_after(bytes: &[u8], checks: usize) -> &[u8] {
    let mut rest = after_separators(bytes);
    for _ in 0..checks {
        let mut json = serde_json::Deserializer::from_slice(rest).into_iter::<IgnoredAny>();
        let _ = json.next();
        rest = after_separators(&rest[json.byte_offset()..]);
    }
    rest
}

fn after_separators(bytes: &[u8]) -> &[u8] {
    let is_between = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b'[' | b',');
    &bytes[bytes.iter().position(|byte| !is_between(byte)).unwrap_or(bytes.len())..]
}

/// Reads a dry run, `{check, config?}`.
///
/// # Errors
/// As [`check()`].
pub(crate) fn dry_run(bytes: &[u8]) -> Result<DryRunBody<'_>, Problem> {
    parse(bytes, check::EXAMPLE_DRY_RUN, Object(DryRunVisitor))
}

/// Reads a limit to try, `{policy, limit, w?}`.
///
/// # Errors
/// As [`check()`].
pub(crate) fn lab(bytes: &[u8]) -> Result<LabBody, Problem> {
    parse(bytes, EXAMPLE_LAB, Object(LabVisitor))
}

/// Reads a settlement, `{ticket, cost?, attributes?, status? | outcome?}` or `{ticket, refund}`.
///
/// # Errors
/// As [`check()`].
pub(crate) fn settle(bytes: &[u8]) -> Result<SettlementBody<'_>, Problem> {
    let example = "{\"ticket\": \"TICKET\", \"attributes\": {\"llm.output\": 400}, \"status\": 200}";
    let fields = &["ticket", "cost", "attributes", "status", "outcome", "refund"];
    parse(bytes, example, Object(SettlementVisitor { fields }))
}

/// Reads an extension, `{ticket}`.
///
/// # Errors
/// As [`check()`].
pub(crate) fn extend(bytes: &[u8]) -> Result<SettlementBody<'_>, Problem> {
    parse(bytes, "{\"ticket\": \"TICKET\"}", Object(SettlementVisitor { fields: &["ticket"] }))
}

/// Reads the report of a signal, `{value}`.
///
/// # Errors
/// As [`check()`].
pub(crate) fn signal(bytes: &[u8]) -> Result<f64, Problem> {
    parse(bytes, EXAMPLE_SIGNAL, Object(SignalVisitor))
}

/// Reads the share of a canary, `{share, reason?}`.
///
/// # Errors
/// As [`check()`].
pub(crate) fn canary(bytes: &[u8]) -> Result<CanaryBody, Problem> {
    parse(bytes, EXAMPLE_CANARY, Object(CanaryVisitor))
}

/// Reads an object of strings, in the order of `fields`; absent and null are `None`, except the first, which is
/// required. `example` is a whole body.
///
/// # Errors
/// As [`check()`].
pub(crate) fn strings<const N: usize>(
    bytes: &[u8],
    example: &'static str,
    fields: &'static [&'static str; N],
) -> Result<[Option<String>; N], Problem> {
    parse(bytes, example, Object(StringsVisitor { fields, example }))
}

/// Reads `{block: {for, reason?}}`; `None` for `{block: null}`, which ends one. `example` is a whole body.
///
/// # Errors
/// As [`check()`].
pub(crate) fn block(bytes: &[u8], example: &'static str) -> Result<Option<[Option<String>; 2]>, Problem> {
    parse(bytes, example, Object(BlockVisitor(StringsVisitor { fields: &["for", "reason"], example })))
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

/// Returns the encoding that a mark at the beginning names. JSON between programs is UTF-8 without one (RFC 8259,
/// section 8.1).
fn encoded_otherwise(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0xef, 0xbb, 0xbf, ..] => Some("UTF-8"),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => Some("UTF-16"),
        _ => None,
    }
}

/// Cuts the middle out of a long sentence: serde quotes a caller's string in full, between the subject at its start
/// and what would work at its end.
fn shortened(sentence: &str) -> Cow<'_, str> {
    /// In characters: together longer than any of the server's own sentences, with one quoted word that was cut and
    /// escaped.
    const START: usize = 800;
    const END: usize = 200;
    let at = |char: usize| sentence.char_indices().nth(char).map(|(at, _)| at);
    let from_end = sentence.char_indices().nth_back(END - 1).map(|(at, _)| at);
    match (at(START), at(START + END), from_end) {
        (Some(start), Some(_), Some(end)) => format!("{}…{}", &sentence[..start], &sentence[end..]).into(),
        _ => sentence.into(),
    }
}

/// Takes the position out of a parser's sentence, into members of its own.
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

/// The longest body of a check: 64 attributes of ordinary size fit many times over.
pub(crate) const MAX_BODY: usize = 64 * 1024;

/// The longest body of a batch.
pub(crate) const MAX_BATCH_BODY: usize = 1024 * 1024;

/// The most checks in one batch.
pub(crate) const MAX_BATCH: usize = 1000;

/// After how many limits no more checks of a batch are decided: an answer of about 5 MB.
pub(crate) const MAX_BATCH_LIMITS: usize = 20_000;

/// The longest text of proposed policies, some eight hundred; `tidegate replay` tries longer ones.
pub(crate) const MAX_PROPOSED: usize = 256 * 1024;

/// The longest body of a dry run: a check, and a text in which each line end and each quote is escaped.
pub(crate) const MAX_PROPOSED_BODY: usize = MAX_BODY + 2 * MAX_PROPOSED;

/// The most policy names in `policies`.
const MAX_POLICIES: usize = 256;

/// The longest body of an operator's request, in bytes: room for a reason of 255 bytes.
pub(crate) const MAX_OPERATOR_BODY: usize = 4096;

/// The longest `for`. Whoever is to be kept out for longer belongs on a deny-list.
const LONGEST: Duration = Duration::from_secs(30 * 86_400);

/// Reads `for`, how long something that an operator sets lasts. `not`: what a time out of range is not, and what to
/// do.
///
/// # Errors
/// 400 for zero, more than 30 days, or what is no time.
pub(crate) fn lasts(text: &str, not: &str) -> Result<Duration, Problem> {
    let refuse = |detail: String| Err(Problem::bad_request(detail).with("field", "for"));
    match span(text) {
        Ok(lasts) if lasts > Duration::ZERO && lasts <= LONGEST => Ok(lasts),
        Ok(_) => refuse(format!("{} is not {not}", quoted(text))),
        Err(error) => refuse(error.to_string()),
    }
}

// The `reason` of a forced breaker, a switch or a block is shown to others later, in answers, logs and terminals. So
// it must read as it is written.

/// The longest reason, in bytes.
const MAX_REASON: usize = Forced::MAX_REASON;

/// Returns the reason; empty if there is none.
///
/// # Errors
/// 400 if it is longer than [`MAX_REASON`], or has a character that is not drawn: a control character, one that
/// changes the direction of the text, or an invisible one.
pub(crate) fn reason(text: Option<String>) -> Result<String, Problem> {
    let text = text.unwrap_or_default();
    let refuse = |detail: String| Err(Problem::bad_request(detail).with("field", "reason"));
    if text.len() > MAX_REASON {
        return refuse(format!("the reason has {} bytes; at most {MAX_REASON} are kept", text.len()));
    }
    match hidden(&text) {
        None => Ok(text),
        Some(char) if char.is_control() => {
            refuse("the reason has a control character; write one line of text".to_owned())
        }
        Some(char) => refuse(format!(
            "the reason has the character U+{:04X}, which is invisible or changes the direction of the text; leave it out",
            u32::from(char)
        )),
    }
}

/// Returns the first character that is replaced when the text is shown.
fn hidden(text: &str) -> Option<char> {
    let shown = visible::line(text);
    text.chars().zip(shown.chars()).find(|(char, shown)| char != shown).map(|(char, _)| char)
}

#[cfg(test)]
mod tests {
    use tidegate::{Cost, Outcome};

    use super::settlement::Refund;
    use super::*;
    use crate::requests::WorkEnd;

    #[test]
    fn values_are_strings_numbers_and_booleans() {
        let body =
            br#"{"attributes": {"a": "x\ty", "b": 42, "c": -1.5, "d": true}, "cost": 3, "policies": ["p"]}"#;
        let asked = check(body).unwrap();
        let pairs: Vec<_> = asked.request.pairs().collect();
        assert_eq!(pairs, [("a", "x\ty"), ("b", "42"), ("c", "-1.5"), ("d", "true")]);
        assert_eq!(asked.cost, Cost::new(3));
        assert_eq!(asked.policies.unwrap().as_slice(), ["p"]);
    }

    #[test]
    fn every_mistake_is_named_with_its_place() {
        let long = format!(r#"{{"attributes": {{"a": "{}"}}}}"#, "x".repeat(MAX_VALUE + 1));
        let many: String = (0..65).map(|at| format!("\"a{at}\": 1,")).collect();
        let many = format!(r#"{{"attributes": {{{}}}}}"#, many.trim_end_matches(','));
        let table = [
            ("", "the body is empty"),
            ("{", "the body is not JSON: EOF while parsing an object (line 1, column 1)"),
            ("{\n \"attributes\": {]", "line 2, column"),
            ("[]", "invalid type: sequence, expected an object such as"),
            ("{}", "`attributes` is missing"),
            (r#"{"atributes": {}}"#, "unknown field `atributes`; did you mean `attributes`?"),
            (
                r#"{"client.ip": "203.0.113.9"}"#,
                "write attributes into `attributes`, as {\"attributes\": {\"client.ip\":",
            ),
            (r#"{"zzz": {}}"#, "the fields are `attributes`, `cost`, `priority`, `policies`, `ticket`"),
            (r#"{"attributes": {}, "cost": 0}"#, "`cost` 0 asks for nothing"),
            (r#"{"attributes": {}, "cost": -4}"#, "`cost` -4 is negative"),
            (r#"{"attributes": {}, "cost": 1.5}"#, "`cost` 1.5 is not a cost"),
            (r#"{"attributes": {}, "cost": 1000.0}"#, "`cost` 1000.0 is not a cost"),
            (r#"{"attributes": {}, "cost": "7"}"#, "`cost` \"7\" is not a cost"),
            (r#"{"attributes": {}, "cost": 18446744073709551615}"#, "is not a cost; use a whole number"),
            (r#"{"attributes": {}, "cost": 1e99}"#, "is not a cost; use a whole number"),
            (r#"{"attributes": {"a": null}}"#, "attribute `a`: null is not a value"),
            (r#"{"attributes": {"a": [1]}}"#, "attribute `a`: an array is not a value"),
            (r#"{"attributes": {"a": {}}}"#, "attribute `a`: an object is not a value"),
            (r#"{"attributes": {"a": 1, "a": 2}}"#, "attribute `a` is given twice"),
            (r#"{"attributes": {"": 1}}"#, "attribute name ``: use 1 to 256 bytes"),
            (
                r#"{"attributes": {"request.paht": "/"}}"#,
                "attribute `request.paht`: no policy reads it; write request.path",
            ),
            (
                r#"{"attributes": {"request.url": "/"}}"#,
                "attribute `request.url`: no policy reads it; write request.path",
            ),
            (
                r#"{"attributes": {"request.size": 5}}"#,
                "there are client.ip, request.direction, request.host",
            ),
            (r#"{"attributes": {}, "attributes": {}}"#, "`attributes` is given twice"),
            (r#"{"attributes": {}, "policies": []}"#, "`policies` is empty"),
            (r#"{"attributes": {}, "policies": "p"}"#, "expected `policies` as an array"),
            (r#"{"attributes": {}} x"#, "the body is not JSON: trailing characters"),
            (&long, "attribute `a`: 8193 bytes are too long; use at most 8192"),
            (&many, "more than 64 attributes"),
        ];
        for (body, expected) in table {
            let problem = check(body.as_bytes()).expect_err(body);
            assert!(problem.detail().contains(expected), "{body}: {}", problem.detail());
        }
    }

    /// A name that no policy can read would pass without a limit, and nobody would notice.
    #[test]
    fn a_batch_with_an_unknown_attribute_names_the_check_and_the_attribute() {
        let body = br#"[{"attributes": {"request.path": "/"}}, {"attributes": {"request.paht": "/"}}]"#;
        let problem = batch(body).unwrap_err();
        assert!(problem.detail().contains("attribute `request.paht`"), "{}", problem.detail());
        // Names of headers come from strangers, and other names are the callers' own.
        let body = br#"{"attributes": {"request.header.X-Plan": "a", "requests": 1, "form.paht": "b"}}"#;
        assert_eq!(check(body).unwrap().request.pairs().count(), 3);
    }

    /// HTTP compares the names of headers without regard to case, and a program hands them on as it received them. If the
    /// case counted, a stranger would avoid a limit by header, or a deny list, by writing `X-TENANT`.
    #[test]
    fn a_header_is_known_by_its_name_in_any_case() {
        let body = br#"{"attributes": {"request.header.X-TENANT": "a", "user.ID": "b"}}"#;
        let request = check(body).unwrap().request;
        assert_eq!(request.value("request.header.x-tenant"), Some("a"));
        assert_eq!(
            (request.value("user.ID"), request.value("user.id")),
            (Some("b"), None),
            "the caller's own name"
        );
        let twice = br#"{"attributes": {"request.header.x-tenant": "a", "request.header.X-Tenant": "b"}}"#;
        let problem = check(twice).unwrap_err();
        assert!(
            problem.detail().contains("`request.header.x-tenant` is given twice"),
            "{}",
            problem.detail()
        );
    }

    #[test]
    fn a_body_in_another_encoding_is_told_so() {
        let utf16: Vec<u8> = "\u{feff}{}".encode_utf16().flat_map(u16::to_le_bytes).collect();
        for (body, encoding) in [(&b"\xef\xbb\xbf{\"attributes\": {}}"[..], "UTF-8"), (&utf16, "UTF-16")] {
            let problem = check(body).unwrap_err();
            let expected = format!("the body begins with the mark of {encoding}; send UTF-8 without a mark");
            assert_eq!(problem.detail(), expected);
        }
        // The first column is 1.
        assert!(check(b"[1]").unwrap_err().detail().ends_with("(line 1, column 1)"));
    }

    /// Regression: a string of 60 KB in place of a number was returned in full, because a precision does not cut `Debug`
    /// output.
    #[test]
    fn what_a_caller_sent_is_cut_where_it_is_told() {
        let long = "x".repeat(60_000);
        for (field, advice) in [
            ("cost", "use a whole number, 1 to"),
            ("priority", "use critical-plus, critical, sheddable-plus or sheddable"),
            ("policies", "`policies` as an array"),
            ("ticket", "expected `ticket` as"),
        ] {
            let problem =
                check(format!(r#"{{"attributes": {{}}, "{field}": "{long}"}}"#).as_bytes()).unwrap_err();
            let detail = problem.detail();
            assert!(
                detail.len() < 1_200 && detail.contains(advice),
                "{field}: {} bytes: {detail:.900}",
                detail.len()
            );
        }
        for (field, advice) in
            [("cost", "use a whole number, 0 to"), ("status", "HTTP status"), ("attributes", "")]
        {
            let problem =
                settle(format!(r#"{{"ticket": "x", "{field}": "{long}"}}"#).as_bytes()).unwrap_err();
            let detail = problem.detail();
            assert!(
                detail.len() < 1_200 && detail.contains(advice),
                "{field}: {} bytes: {detail:.900}",
                detail.len()
            );
        }
    }

    #[test]
    fn a_settlement_says_what_it_is_of_and_something_about_it() {
        let told = settle(
            br#"{"ticket": "x", "attributes": {"llm.input": 900, "llm.model": "m", "llm.cached": null}}"#,
        )
        .unwrap();
        assert_eq!(told.usage.unwrap().names().collect::<Vec<_>>(), ["llm.input", "llm.model"]);
        assert_eq!(settle(br#"{"ticket": "x", "cost": 0}"#).unwrap().usage.unwrap().cost, Some(0));
        assert_eq!(
            settle(br#"{"ticket": "x", "status": 503}"#).unwrap().ended,
            Some(WorkEnd::With(Outcome::Overloaded))
        );
        assert_eq!(settle(br#"{"ticket": "x", "outcome": "undone"}"#).unwrap().ended, Some(WorkEnd::Undone));
        for (body, expected) in [
            (r#"{"cost": 1}"#, "`ticket` is missing; it is the `ticket` in the answer to a check"),
            (r#"{"ticket": "x"}"#, "the settlement says nothing about the work; send `attributes` or `cost`"),
            (r#"{"ticket": "x", "status": 200, "outcome": "success"}"#, "say the same; send one of them"),
            (r#"{"ticket": "x", "status": 99}"#, "`status` 99 is not an HTTP status"),
            (
                r#"{"ticket": "x", "status": "200"}"#,
                "`status` \"200\" is not an HTTP status; use a number, 100 to 599",
            ),
            (r#"{"ticket": "x", "status": -1}"#, "`status` -1 is not an HTTP status"),
            (r#"{"ticket": "x", "status": null}"#, "expected `status` as a number such as 200"),
            (r#"{"ticket": "x", "cost": 1000.0}"#, "`cost` 1000.0 is not a cost"),
            (" ", r#"the body is empty; send JSON such as {"ticket": "TICKET", "attributes""#),
            (
                r#"{"ticket": "x", "outcome": "succes"}"#,
                "`outcome` `succes` does not exist; there are success, callers-fault",
            ),
            (r#"{"ticket": "x", "outcome": null}"#, "expected `outcome` as a string such as \"success\""),
            (r#"{"ticket": "x", "outcome": "undone", "cost": 1}"#, "has spent nothing"),
            (r#"{"ticket": "x", "cost": -1}"#, "`cost` -1 is not a cost; use a whole number, 0 to"),
            (r#"{"ticket": "x", "cost": 1152921504606846977}"#, "is not a cost"),
            (
                r#"{"ticket": "x", "attributes": {"a": 1.5}}"#,
                "attribute `a`: 1.5 is not an amount that was spent; use a whole number",
            ),
            (
                r#"{"ticket": "x", "attributes": {"a": -1}}"#,
                "attribute `a`: -1 is not an amount that was spent",
            ),
            (
                r#"{"ticket": "x", "attributes": {"a": true}}"#,
                "attribute `a`: true is not an amount that was spent",
            ),
            (r#"{"ticket": "x", "attributes": {"a": [1, 2]}}"#, "attribute `a`: an array is not an amount"),
            (r#"{"ticket": "x", "attributes": {"a": 1, "a": 2}}"#, "attribute `a` is given twice"),
            (r#"{"ticket": "x", "ticket": "y", "cost": 1}"#, "`ticket` is given twice"),
            (
                r#"{"ticket": 5, "cost": 1}"#,
                "integer `5`, expected `ticket` as the string that a check answered",
            ),
            (r#"{"tickt": "x", "cost": 1}"#, "unknown field `tickt`; did you mean `ticket`?"),
            (r#"{"decision_id": "x", "cost": 1}"#, "send the `ticket` in the answer to the check"),
        ] {
            let problem = settle(body.as_bytes()).expect_err(body);
            assert!(problem.detail().contains(expected), "{body}: {}", problem.detail());
        }
        let refund = |body: &str| {
            settle(body.as_bytes()).map(|body| body.refund).map_err(|problem| problem.detail().to_owned())
        };
        assert!(
            refund(r#"{"ticket": "x", "refund": 1, "status": 200}"#).unwrap_err().contains("stands alone")
        );
        assert!(refund(r#"{"ticket": "x", "refund": 1, "cost": 2}"#).unwrap_err().contains("stands alone"));
        for none in ["0", "-1", "1.0", "\"some\"", "true"] {
            assert!(refund(&format!(r#"{{"ticket": "x", "refund": {none}}}"#)).is_err(), "{none}");
        }
        assert_eq!(refund(r#"{"ticket": "x", "refund": 2}"#), Ok(Some(Refund::Units(2))));
        assert_eq!(refund(r#"{"ticket": "x", "refund": "all"}"#), Ok(Some(Refund::All)));
        let asked = |ticket: &str| {
            check(format!(r#"{{"attributes": {{}}, "ticket": {ticket}}}"#).as_bytes())
                .map(|asked| asked.ticket)
        };
        assert_eq!(
            (asked("true").unwrap(), asked("false").unwrap(), asked("null").unwrap()),
            (Some(true), Some(false), None)
        );
        assert!(asked("1").unwrap_err().detail().contains("`ticket` as true or false"));
    }

    proptest::proptest! {
        #[test]
        fn no_body_makes_it_panic(bytes: Vec<u8>, text in r#"[\{\}\[\]":,a-z0-9\.\-\\ ]{0,80}"#) {
            let _ = (check(&bytes), batch(&bytes), settle(&bytes));
            let text = text.as_bytes();
            let _ = (check(text), batch(text), settle(text));
        }
    }

    fn detail(text: &str) -> Option<String> {
        reason(Some(text.to_owned())).err().map(|problem| problem.detail().to_owned())
    }

    #[test]
    fn a_reason_that_reads_as_it_is_written_is_taken() {
        for text in [
            "",
            "upgrade",
            "C:\\temp \\u{202e}",
            "Wartung für Zürich",
            "می\u{200c}خواهم",
            "🏳\u{fe0f}\u{200d}🌈",
        ] {
            assert_eq!(detail(text), None, "{text:?}");
        }
        assert_eq!(reason(None).unwrap(), "");
        assert_eq!(detail(&"é".repeat(127)), None);
    }

    #[test]
    fn a_reason_that_reads_as_something_else_is_refused() {
        for (text, says) in [
            ("a\nb", "the reason has a control character; write one line of text"),
            ("\u{9b}2J", "the reason has a control character"),
            ("upgrade \u{202e}kcatta", "U+202E, which is invisible or changes the direction"),
            ("\u{2066}x", "U+2066"),
            ("pass\u{200b}word", "U+200B"),
            ("x\u{2028}y", "U+2028"),
            ("\u{feff}", "U+FEFF"),
        ] {
            assert!(detail(text).is_some_and(|detail| detail.contains(says)), "{text:?}: {:?}", detail(text));
        }
        assert_eq!(detail(&"é".repeat(128)).unwrap(), "the reason has 256 bytes; at most 255 are kept");
    }
}
