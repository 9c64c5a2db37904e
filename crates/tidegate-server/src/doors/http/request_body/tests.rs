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
        (r#"{"attributes": {"request.size": 5}}"#, "there are client.ip, request.direction, request.host"),
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
    assert!(problem.detail().contains("`request.header.x-tenant` is given twice"), "{}", problem.detail());
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
        let problem = settle(format!(r#"{{"ticket": "x", "{field}": "{long}"}}"#).as_bytes()).unwrap_err();
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
    let told =
        settle(br#"{"ticket": "x", "attributes": {"llm.input": 900, "llm.model": "m", "llm.cached": null}}"#)
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
        (r#"{"ticket": "x", "attributes": {"a": -1}}"#, "attribute `a`: -1 is not an amount that was spent"),
        (
            r#"{"ticket": "x", "attributes": {"a": true}}"#,
            "attribute `a`: true is not an amount that was spent",
        ),
        (r#"{"ticket": "x", "attributes": {"a": [1, 2]}}"#, "attribute `a`: an array is not an amount"),
        (r#"{"ticket": "x", "attributes": {"a": 1, "a": 2}}"#, "attribute `a` is given twice"),
        (r#"{"ticket": "x", "ticket": "y", "cost": 1}"#, "`ticket` is given twice"),
        (r#"{"ticket": 5, "cost": 1}"#, "integer `5`, expected `ticket` as the string that a check answered"),
        (r#"{"tickt": "x", "cost": 1}"#, "unknown field `tickt`; did you mean `ticket`?"),
        (r#"{"decision_id": "x", "cost": 1}"#, "send the `ticket` in the answer to the check"),
    ] {
        let problem = settle(body.as_bytes()).expect_err(body);
        assert!(problem.detail().contains(expected), "{body}: {}", problem.detail());
    }
    let refund = |body: &str| {
        settle(body.as_bytes()).map(|body| body.refund).map_err(|problem| problem.detail().to_owned())
    };
    assert!(refund(r#"{"ticket": "x", "refund": 1, "status": 200}"#).unwrap_err().contains("stands alone"));
    assert!(refund(r#"{"ticket": "x", "refund": 1, "cost": 2}"#).unwrap_err().contains("stands alone"));
    for none in ["0", "-1", "1.0", "\"some\"", "true"] {
        assert!(refund(&format!(r#"{{"ticket": "x", "refund": {none}}}"#)).is_err(), "{none}");
    }
    assert_eq!(refund(r#"{"ticket": "x", "refund": 2}"#), Ok(Some(Refund::Units(2))));
    assert_eq!(refund(r#"{"ticket": "x", "refund": "all"}"#), Ok(Some(Refund::All)));
    let asked = |ticket: &str| {
        check(format!(r#"{{"attributes": {{}}, "ticket": {ticket}}}"#).as_bytes()).map(|asked| asked.ticket)
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
