//! Formats as in nginx configuration files, lines written by them, and invalid formats.

use proptest::prelude::*;

use super::super::record::Record;
use super::super::text;
use super::*;

fn show(record: &Record<'_>) -> String {
    let t = |bytes: &[u8]| text(bytes).into_owned();
    let mut out = format!(
        "{} {}|{}|{}|{}|{}|{:?}|{:?}|{:?}|{}|{}",
        record.time.as_nanos() / 1_000_000,
        t(record.client),
        t(record.user),
        t(record.method),
        t(record.host),
        t(record.path),
        record.status,
        record.bytes,
        record.duration.map(|took| took.as_millis()),
        t(&record.referer()),
        t(&record.agent())
    );
    for (name, value) in record.extras() {
        out += &format!(" {name}={}", t(value));
    }
    out
}

/// Reads a line by a format; reading its time alone must give the same time.
fn read(format: &str, line: &str) -> String {
    let format: LogFormat = format.parse().unwrap();
    let mut cutter = format.cutter(&[]);
    let time = cutter.time(line.as_bytes());
    match cutter.read(line.as_bytes()) {
        Ok(record) => {
            assert_eq!(time, Ok(record.time.as_nanos()), "{line}");
            show(&record)
        }
        Err(why) => format!("malformed: {why}"),
    }
}

const COMBINED: &str = r#"log_format  combined  '$remote_addr - $remote_user [$time_local] '
                    '"$request" $status $body_bytes_sent '
                    '"$http_referer" "$http_user_agent"';
"#;

#[test]
fn lines() {
    const BEHIND_PROXIES: &str = r#"$remote_addr $upstream_response_time $upstream_addr $http_x_forwarded_for "$request" $status $msec"#;
    let rows = [
        (
            COMBINED,
            r#"2001:db8::7 - Ann Lee [17/May/2015:10:05:03 +0000] "GET /a?b HTTP/1.1" 200 12 "-" "x \x22y\x22 \xC3\xBC""#,
            r#"1431857103000 2001:db8::7|Ann Lee|GET||/a|Some(200)|Some(12)|None||x "y" ü"#,
        ),
        (
            "$time_iso8601 $remote_addr $request $status $request_time $host",
            "2015-05-17T12:05:03+02:00 203.0.113.9 GET /a b HTTP/1.1 404 0.250 shop.example",
            "1431857103000 203.0.113.9||GET|shop.example|/a b|Some(404)|None|Some(250)|| request_time=0.250",
        ),
        (
            "$remote_addr $time_local $request_method ${request_uri}|$uri|$status",
            "h 17/May/2015:10:05:03 +0000 GET /a?b|/index.php|200",
            "1431857103000 h||GET||/a|Some(200)|None|None|| uri=/index.php",
        ),
        (
            "$msec\\t$time_iso8601\\t$remote_addr\\t$uri",
            "1431857103.250\t2015-05-17T12:05:03+02:00\th\t/a",
            "1431857103250 h||||/a|None|None|None||",
        ),
        (
            BEHIND_PROXIES,
            r#"10.0.0.1 0.001, 0.002 : 0.003 10.0.0.7:80, 10.0.0.8:80 : 10.0.0.9:80 203.0.113.9, 10.0.0.3 "GET / HTTP/2.0" 200 1431857103.000"#,
            "1431857103000 10.0.0.1||GET||/|Some(200)|None|None|| upstream_response_time=0.001, 0.002 : 0.003 \
             upstream_addr=10.0.0.7:80, 10.0.0.8:80 : 10.0.0.9:80 request.header.x-forwarded-for=203.0.113.9, 10.0.0.3",
        ),
        (
            BEHIND_PROXIES,
            r#"10.0.0.1 - - - "" 400 1431857103.000"#,
            "1431857103000 10.0.0.1|||||Some(400)|None|None||",
        ),
        (
            r#"log_format j escape=json '{"t":"$time_iso8601","a":"$remote_addr",' "\"u\":\"$request_uri\",\"s\":$status,\"c\":\"$cookie_session\",\"x\":\"$http_x_plan\"}";"#,
            r#"{"t":"2015-05-17T10:05:03+00:00","a":"203.0.113.9","u":"/a\"b\\\u0001?q","s":200,"c":"","x":"pro"}"#,
            "1431857103000 203.0.113.9||||/a\"b\\\u{1}|Some(200)|None|None|| request.header.x-plan=pro",
        ),
        (
            "escape=none [$time_local] $remote_addr \"$http_user_agent\"",
            r#"[17/May/2015:10:05:03 +0000] h "a "b" \x22c""#,
            r#"1431857103000 h|||||None|None|None||a "b" \x22c"#,
        ),
        (COMBINED, "", "malformed: no readable time"),
        (COMBINED, "h - - [x] \"GET / HTTP/1.1\" 200 1 \"-\" \"-\"", "malformed: no readable time"),
        (
            COMBINED,
            "h - - [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200",
            "malformed: does not match the log format: variable 5 and the text after it are missing",
        ),
        (
            "$msec $uri $request_uri",
            "1431857103.000 /a b /a%20b",
            "malformed: does not match the log format: variable 3 and the text after it are missing",
        ),
        (
            "$msec \"$request_uri\" $host",
            "1431857103.000 \"/a b\" e.org",
            "1431857103000 |||e.org|/a b|None|None|None||",
        ),
        ("<$msec>", "1431857103", "malformed: does not match the log format: it begins otherwise"),
    ];
    for (format, line, want) in rows {
        let have = read(format, line);
        let misfit =
            want.starts_with("malformed") && have.starts_with("malformed: does not match the log format");
        assert!(have == want || line.is_empty() && misfit, "{line}\n{have}\n{want}");
    }
}

#[test]
fn columns_go_before_what_nginx_means() {
    let format: LogFormat = "$my_time $remote_addr $http_x_real_ip $jwt_sub".parse().unwrap();
    let columns = [("time", "my_time"), ("client.ip", "http_x_real_ip"), ("user.id", "jwt_sub")];
    let columns = columns.map(|(a, b)| (a.to_owned(), b.to_owned()));
    assert!(format.tells_time(&columns) && !format.tells_time(&[]));
    let mut cutter = format.cutter(&columns);
    assert_eq!(cutter.time(b"1431857103 10.0.0.1 203.0.113.9 ann"), Ok(1_431_857_103_000_000_000));
    let record = cutter.read(b"1431857103 10.0.0.1 203.0.113.9 ann").unwrap();
    assert_eq!(show(&record), "1431857103000 203.0.113.9|ann||||None|None|None||");
}

#[test]
fn mistakes_name_their_place() {
    let rows = [
        ("$remote_addr $", "column 14: a $ without a variable's name behind it"),
        ("ü $remote_addr ${msec", "column 16: ${msec has no closing brace"),
        (
            "log_format x '$remote_addr'\n  '$msec';",
            "line 2, column 4: there is no text between $remote_addr and $msec, so it is unclear where one ends",
        ),
        ("log_format x '$remote_addr", "column 14: this quote is never closed"),
        ("log_format x;", "column 14: the format is missing: log_format NAME '…';"),
        (
            "log_format x escape=jason '$msec';",
            "column 14: escape=jason is none that nginx has; possible are default, json, none",
        ),
        (
            "log_format x '$msec'; access_log a x;",
            "column 23: something follows the `;`; give one log_format",
        ),
        ("", "column 1: the format is missing; write it as nginx does: '$time_iso8601 $remote_addr …'"),
        (
            " -  []",
            "the format has no variable; write it as nginx does: '$time_iso8601 $remote_addr …' (in single quotes, or the shell replaces the \
             variables)",
        ),
        (
            "# $msec",
            "column 8: the format is missing; write it as nginx does: '$time_iso8601 $remote_addr …'",
        ),
        (
            "escape=none # $msec",
            "column 20: the format is missing; write it as nginx does: '$time_iso8601 $remote_addr …'",
        ),
    ];
    for (format, want) in rows {
        assert_eq!(format.parse::<LogFormat>().unwrap_err().to_string(), want, "{format}");
    }
    let long = "$a ".repeat(6_000);
    let error = long.parse::<LogFormat>().unwrap_err().to_string();
    assert_eq!(error, "the format is longer than 16 KiB; give one log_format, not the whole file");
    let error = "$a ".repeat(300).parse::<LogFormat>().unwrap_err().to_string();
    assert_eq!(error, "column 769: more than 256 variables");
}

#[test]
fn a_format_is_the_same_however_it_is_given() {
    let whole: LogFormat = COMBINED.parse().unwrap();
    let alone = r#"$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent""#;
    assert_eq!(alone.parse(), Ok(whole.clone()));
    assert_eq!(whole.to_string().parse(), Ok(whole));
    let commented = "log_format x # old\n  '$msec ' # when\n  '$status';";
    assert_eq!(commented.parse::<LogFormat>(), "$msec $status".parse());
}

proptest! {
    #[test]
    fn arbitrary_formats_and_lines_never_panic(
        format in "(log_format|escape=json|[ '\";$\\\\{}#]|msec|time_local|request|upstream_addr|x|,|:|ü){0,40}",
        line in "(17/May/2015:10:05:03 \\+0000|HTTP/1|[ '\";,:x\\\\]|\\\\x4|\\\\u00|1431857103){0,40}",
        bytes: Vec<u8>,
    ) {
        if let Ok(format) = format.parse::<LogFormat>() {
            let mut cutter = format.cutter(&[]);
            for line in [line.as_bytes(), &bytes] {
                let time = cutter.time(line);
                if let Ok(record) = cutter.read(line) {
                    prop_assert_eq!(time, Ok(record.time.as_nanos()));
                }
            }
        }
    }
}
