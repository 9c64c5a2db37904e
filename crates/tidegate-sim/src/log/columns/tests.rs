//! Lines of load balancers, of CloudFront with and without the `#Fields` line, and of IIS.

use proptest::prelude::*;

use super::*;

/// A line with all fields, with spaces in place of tabs.
const LINE: &str = "2026-03-02 09:14:29 FRA56-P1 2390 2001:db8::7 GET d111111abcdef8.cloudfront.net /view/a%20b.html 200 \
    https://www.example/a%2520b Mozilla/5.0%20(X11;%20Linux) q=1 - Hit SOX4xwn4XV6Q4rgb7XiVGOHms_BGlTAC4KyHmureZmBNrjGdRLiNIQ== \
    shop.example https 23 0.250 203.0.113.9 TLSv1.2 ECDHE-RSA-AES128-GCM-SHA256 Hit HTTP/2.0 - - 11040 0.001 Hit text/html 78 - -";

const SHOWN: &str = "1772442869 2001:db8::7|GET|shop.example|/view/a%20b.html|Some(200)|Some(2390)|Some(250ms)|\
    https://www.example/a%20b|Mozilla/5.0 (X11; Linux)";

fn tabs(line: &str) -> String {
    line.replace(' ', "\t")
}

fn show(log: &mut Columns, line: &str) -> String {
    match log.read(line.as_bytes()) {
        Err(error) => format!("malformed: {error}"),
        Ok(r) => {
            let t = |bytes: &[u8]| crate::log::text(bytes).into_owned();
            format!(
                "{} {}|{}|{}|{}|{:?}|{:?}|{:?}|{}|{}",
                r.time.as_nanos() / 1_000_000_000,
                t(r.client),
                t(r.method),
                t(r.host),
                t(r.path),
                r.status,
                r.bytes,
                r.duration,
                t(&r.referer()),
                t(&r.agent())
            )
        }
    }
}

#[test]
fn lines_without_their_names_are_read_in_the_documented_order() {
    let mut log = Columns::new(&CLOUDFRONT, None, &[]);
    let line = tabs(LINE);
    assert_eq!(show(&mut log, &line), SHOWN);
    let record = log.read(line.as_bytes()).unwrap();
    assert_eq!(record.extra("request.header.x-forwarded-for"), Some(&b"203.0.113.9"[..]));
    assert_eq!(record.extra("x-edge-result-type"), Some(&b"Hit"[..]));
    assert!(record.extra("fle-status").is_none() && record.extra("date").is_none());
    let few: Vec<&str> = line.split('\t').take(12).collect();
    let want = "1772442869 2001:db8::7|GET|d111111abcdef8.cloudfront.net|/view/a%20b.html|Some(200)|Some(2390)|None|\
                https://www.example/a%20b|Mozilla/5.0 (X11; Linux)";
    assert_eq!(show(&mut log, &few.join("\t")), want);
    let wrong = "malformed: not as many fields as the #Fields line has";
    assert_eq!(show(&mut log, &few[..11].join("\t")), wrong);
    assert_eq!(show(&mut log, ""), wrong);
    assert_eq!(show(&mut log, &line.replace("2026-03-02", "yesterday")), "malformed: no readable time");
}

#[test]
fn the_fields_line_says_what_comes() {
    let names =
        fields_line(b"#Version: 1.0\n#Fields: timestamp(ms) c-ip x-edge-location cs-method cs-uri-stem\r\nx")
            .unwrap();
    assert!(is_of_cloudfront(names));
    let mut log = Columns::new(&CLOUDFRONT, Some(names), &[]);
    let line = "1772442869250\t203.0.113.9\tFRA56-P1\tGET\t/";
    assert_eq!(show(&mut log, line), "1772442869 203.0.113.9|GET||/|None|None|None||");
    let wrong = "malformed: not as many fields as the #Fields line has";
    assert_eq!(show(&mut log, &format!("{line}\tmore")), wrong);
    assert_eq!(show(&mut log, "1772442869250\t203.0.113.9"), wrong);
    assert!(log.goes_on_below(b"#Fields: timestamp(ms)  c-ip x-edge-location cs-method cs-uri-stem ", false));
    assert!(!log.goes_on_below(b"#Fields: timestamp(ms) c-ip", true));
    assert!(log.goes_on_below(b"#Version: 1.0", true) && !log.goes_on_below(b"#", false));
    // The fields of another server.
    assert!(!is_of_cloudfront(fields_line(b"#Fields: date time s-ip cs-method cs-uri-stem c-ip").unwrap()));
    assert!(fields_line(b"date\ttime\n#Fields: date time").is_none());
}

/// A line of IIS: date and time in two fields, spaces in the agent as plus signs.
#[test]
fn w3c_lines_are_read_by_their_names() {
    let names = b"date time s-ip cs-method cs-uri-stem cs-uri-query s-port cs-username c-ip cs(User-Agent) cs(Referer) sc-status sc-substatus sc-win32-status time-taken cs(X-Plan)";
    let mut log = Columns::new(&W3C, Some(names), &[]);
    let line = "2026-03-02 09:14:29 10.0.0.4 GET /api/items page=0 443 ann 2001:db8::7 Mozilla/5.0+(X11;+Linux) - 200 0 0 12 pro";
    assert_eq!(
        show(&mut log, line),
        "1772442869 2001:db8::7|GET||/api/items|Some(200)|None|Some(12ms)||Mozilla/5.0 (X11; Linux)"
    );
    let record = log.read(line.as_bytes()).unwrap();
    assert_eq!((record.user, record.extra("s-ip")), (&b"ann"[..], Some(&b"10.0.0.4"[..])));
    assert_eq!(record.extra("request.header.x-plan"), Some(&b"pro"[..]));
    let wrong = "malformed: not as many fields as the #Fields line has";
    assert_eq!(show(&mut log, "2026-03-02 09:14:29 10.0.0.4 GET /"), wrong);
    assert_eq!(show(&mut log, &format!("{line} more")), wrong);
    assert_eq!(show(&mut Columns::new(&W3C, None, &[]), line), wrong);
    // With tabs between the fields, a space belongs to its value.
    let mut log = Columns::new(&W3C, Some(b"date time c-ip cs(User-Agent)"), &[]);
    assert_eq!(show(&mut log, "2026-03-02\t09:14:29.5\th\ta+b c"), "1772442869 h||||None|None|None||a+b c");
}

/// A line of an HTTPS listener, with all fields.
const BALANCED: &str = "https 2026-03-02T09:14:30.186641Z app/shop/50dc6c495c0c9188 192.0.2.7:2817 10.0.0.1:80 0.086 0.048 0.037 200 503 \
    57 1024 \"GET https://shop.example:443/cart?item=4 HTTP/1.1\" \"curl/8.5 \\\"x\\\"\" ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 \
    arn:aws:elasticloadbalancing:eu-west-1:123456789012:targetgroup/shop/73e2d6bc24d8a067 \
    \"Root=1-58337281-1d84f3d73c47ec4e58577259\" \"shop.example\" \"arn:aws:acm:eu-west-1:123456789012:certificate/1\" 1 \
    2026-03-02T09:14:29.500000Z \"forward\" \"-\" \"-\" \"10.0.0.1:80\" \"503\" \"-\" \"-\" TID_1234abcd5678ef90";

fn balanced(line: &str) -> String {
    match Columns::new(&ALB, None, &[]).read(line.as_bytes()) {
        Err(error) => format!("malformed: {error}"),
        Ok(r) => {
            let t = |bytes: &[u8]| crate::log::text(bytes).into_owned();
            let at = r.time.as_nanos() / 1_000_000;
            format!(
                "{at} {}|{}|{}|{}|{:?}|{:?}|{:?}|{}",
                t(r.client),
                t(r.method),
                t(r.host),
                t(r.path),
                r.status,
                r.bytes,
                r.duration,
                t(&r.agent())
            )
        }
    }
}

#[test]
fn lines_of_load_balancers() {
    const FEW: &str = "malformed: fewer fields than a line of an Application Load Balancer has";
    let old = "http 2018-07-02T22:23:00.186641Z app/x/1 [2001:db8::7]:2817 - -1 -1 -1 460 - 34 366 \"- http://x.example:80- -\" \"-\" - - \
               arn \"Root=1\"";
    let rows = [
        (
            BALANCED,
            "1772442869500 192.0.2.7|GET|shop.example:443|/cart|Some(200)|Some(1024)|Some(171ms)|curl/8.5 \\\"x\\\"",
        ),
        (old, "1530570180186 2001:db8::7||||Some(460)|Some(366)|None|"),
        (
            &BALANCED[..BALANCED.find(" ECDHE").unwrap()],
            "1772442870186 192.0.2.7|GET|shop.example:443|/cart|Some(200)|Some(1024)|Some(171ms)|curl/8.5 \\\"x\\\"",
        ),
        (&BALANCED[..BALANCED.find(" \"curl").unwrap()], FEW),
        ("ftp 2018-07-02T22:23:00Z a b c d e f g h i j k l", FEW),
        ("http x a b c d e f 200 h i j k l", "malformed: no readable time"),
        ("http", FEW),
        ("", FEW),
    ];
    for (line, want) in rows {
        assert_eq!(balanced(line), want, "{line}");
    }
}

#[test]
fn what_has_no_role_is_an_extra_and_columns_rename() {
    let columns = [("request.host".to_owned(), "domain_name".to_owned())];
    let mut alb = Columns::new(&ALB, None, &columns);
    let record = alb.read(BALANCED.as_bytes()).unwrap();
    assert_eq!((record.host, record.extra("target")), (&b"shop.example"[..], Some(&b"10.0.0.1:80"[..])));
    assert_eq!(record.extra("trace_id"), Some(&b"Root=1-58337281-1d84f3d73c47ec4e58577259"[..]));
    assert!(record.extra("redirect_url").is_none() && record.extra("request_creation_time").is_none());
}

proptest! {
    #[test]
    fn garbage_of_load_balancers_is_counted_without_panic(bytes: Vec<u8>, text in "(http|\"|\\\\| |:|\\]|-1|1e400|\\[|2018-07-02T22:23:00Z){0,60}") {
        let _ = Columns::new(&ALB, None, &[]).read(&bytes).map(drop);
        let _ = Columns::new(&ALB, None, &[]).read(format!("http {text}").as_bytes()).map(drop);
    }
}

proptest! {
    #[test]
    fn garbage_is_counted_without_panic(bytes: Vec<u8>, names in "(date|time|c-ip|cs\\(Cookie\\)| |\t){0,20}", text in "(\t|-|%|%2|%20|2026-03-02|09:14:29){0,60}") {
        for (named, layout) in [(None, &CLOUDFRONT), (Some(names.as_bytes()), &W3C), (Some(&bytes[..]), &CLOUDFRONT)] {
            let mut log = Columns::new(layout, named, &[]);
            let _ = log.read(&bytes).map(drop);
            let _ = log.read(text.as_bytes()).map(drop);
            let _ = log.goes_on_below(format!("#Fields: {names}").as_bytes(), true);
        }
    }
}
