use tidegate::Cost;

use super::*;

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
        (r#"{"zzz": {}}"#, "the fields are `attributes`, `cost`, `policies`"),
        (r#"{"attributes": {}, "cost": 0}"#, "`cost` 0 asks for nothing"),
        (r#"{"attributes": {}, "cost": -4}"#, "`cost` -4 is negative"),
        (r#"{"attributes": {}, "cost": 1.5}"#, "`cost` 1.5 is not a cost"),
        (r#"{"attributes": {}, "cost": "7"}"#, "`cost` \"7\" is not a cost"),
        (r#"{"attributes": {}, "cost": 18446744073709551615}"#, "is not a cost; use a whole number"),
        (r#"{"attributes": {}, "cost": 1e99}"#, "is not a cost; use a whole number"),
        (r#"{"attributes": {"a": null}}"#, "attribute `a`: null is not a value"),
        (r#"{"attributes": {"a": [1]}}"#, "attribute `a`: an array is not a value"),
        (r#"{"attributes": {"a": {}}}"#, "attribute `a`: an object is not a value"),
        (r#"{"attributes": {"a": 1, "a": 2}}"#, "attribute `a` is given twice"),
        (r#"{"attributes": {"": 1}}"#, "attribute name ``: use 1 to 256 bytes"),
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

#[test]
fn reports_and_refunds_want_an_id() {
    assert_eq!(report(br#"{"decision_id": "x", "status": 401}"#).unwrap().status, Some(401));
    let table: [(&str, &str); 3] = [
        (r#"{"status": 200}"#, "`decision_id` is missing"),
        (r#"{"decision_id": "x"}"#, "`status` is missing"),
        (r#"{"decision_id": "x", "status": 99}"#, "`status` 99 is no HTTP status"),
    ];
    for (body, expected) in table {
        let problem = report(body.as_bytes()).expect_err(body);
        assert!(problem.detail().contains(expected), "{body}: {}", problem.detail());
    }
    assert!(refund(br#"{"decision_id": "x", "status": 200}"#).is_err());
    assert_eq!(refund(br#"{"decision_id": "x", "cost": 2}"#).unwrap().cost, Cost::new(2));
}

proptest::proptest! {
    #[test]
    fn no_body_makes_it_panic(bytes: Vec<u8>, text in r#"[\{\}\[\]":,a-z0-9\.\-\\ ]{0,80}"#) {
        let _ = (check(&bytes), batch(&bytes), report(&bytes), refund(&bytes));
        let text = text.as_bytes();
        let _ = (check(text), batch(text), report(text), refund(text));
    }
}
