//! Lines of standard logs, with and without the `#Fields` line.

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

fn show(log: &mut CloudFront, line: &str) -> String {
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
    let mut log = CloudFront::new(None, &[]);
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
    assert!(CloudFront::is_named(names));
    let mut log = CloudFront::new(Some(names), &[]);
    let line = "1772442869250\t203.0.113.9\tFRA56-P1\tGET\t/";
    assert_eq!(show(&mut log, line), "1772442869 203.0.113.9|GET||/|None|None|None||");
    let wrong = "malformed: not as many fields as the #Fields line has";
    assert_eq!(show(&mut log, &format!("{line}\tmore")), wrong);
    assert_eq!(show(&mut log, "1772442869250\t203.0.113.9"), wrong);
    assert!(log.goes_on_below(b"#Fields: timestamp(ms)  c-ip x-edge-location cs-method cs-uri-stem ", false));
    assert!(!log.goes_on_below(b"#Fields: timestamp(ms) c-ip", true));
    assert!(log.goes_on_below(b"#Version: 1.0", true) && !log.goes_on_below(b"#", false));
    // The fields of another server.
    assert!(!CloudFront::is_named(
        fields_line(b"#Fields: date time s-ip cs-method cs-uri-stem c-ip").unwrap()
    ));
    assert!(fields_line(b"date\ttime\n#Fields: date time").is_none());
}

proptest! {
    #[test]
    fn garbage_is_counted_without_panic(bytes: Vec<u8>, names in "(date|time|c-ip|cs\\(Cookie\\)| |\t){0,20}", text in "(\t|-|%|%2|%20|2026-03-02|09:14:29){0,60}") {
        for named in [None, Some(names.as_bytes()), Some(&bytes[..])] {
            let mut log = CloudFront::new(named, &[]);
            let _ = log.read(&bytes).map(drop);
            let _ = log.read(text.as_bytes()).map(drop);
            let _ = log.goes_on_below(format!("#Fields: {names}").as_bytes(), true);
        }
    }
}
