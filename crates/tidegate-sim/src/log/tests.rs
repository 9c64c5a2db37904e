//! Whole logs: formats recognised, fields found, order kept, malformed lines counted.

mod products;

use proptest::prelude::*;

use super::*;

/// A temporary file.
struct Temp(tempfile::NamedTempFile);

impl Temp {
    fn new(bytes: &[u8]) -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        Self(file)
    }

    fn input(&self) -> Input {
        Input::File(self.0.path().to_owned())
    }
}

/// Shows each record on a line: seconds, the fields, the extras.
fn show(record: &Record<'_>) -> String {
    let t = |bytes: &[u8]| text(bytes).into_owned();
    let seconds = record.time.since(Tick::EPOCH).as_micros() as f64 / 1e6;
    let mut out = format!(
        "{seconds} {}|{}|{}|{}|{}|{:?}|{:?}|{}",
        t(record.client),
        t(record.user),
        t(record.method),
        t(record.host),
        t(record.path),
        record.status,
        record.bytes,
        t(&record.agent())
    );
    for (name, value) in record.extras() {
        out += &format!(" {name}={}", t(value));
    }
    out
}

fn read(bytes: &[u8], options: LogOptions) -> (Vec<String>, Tally) {
    try_read(bytes, options).unwrap()
}

fn try_read(bytes: &[u8], options: LogOptions) -> Result<(Vec<String>, Tally), LogError> {
    let file = Temp::new(bytes);
    let mut log = Log::open(vec![file.input()], options)?;
    let mut out = Vec::new();
    log.read(|record| {
        out.push(show(record));
        ControlFlow::Continue(())
    })?;
    Ok((out, log.tally().clone()))
}

#[test]
fn json_lines_of_several_servers() {
    let rows = [
        (
            r#"{"time_iso8601":"2015-05-17T10:05:03+00:00","remote_addr":"2001:db8::7","request":"GET /a?b HTTP/1.1","status":"200","body_bytes_sent":12,"http_user_agent":"x \"y\"","request_time":0.003}"#,
            r#"1431857103 2001:db8::7||GET||/a|Some(200)|Some(12)|x "y" request_time=0.003"#,
        ),
        (
            r#"{"level":"info","ts":1431857103.25,"request":{"remote_ip":"203.0.113.9","method":"GET","host":"e.org","uri":"/x?y","headers":{"User-Agent":["curl"]}},"status":404,"size":0}"#,
            "1431857103.25 203.0.113.9||GET|e.org|/x|Some(404)|Some(0)|curl level=info",
        ),
        (
            r#"{"@timestamp":"2015-05-17T10:05:03.5Z","client":{"ip":"h"},"http":{"request":{"method":"POST"},"response":{"status_code":201}},"url":{"path":"/p"},"user":{"id":42},"ok":true,"no":null}"#,
            "1431857103.5 h|42|POST||/p|Some(201)|None| ok=true",
        ),
    ];
    for (line, want) in rows {
        let (out, tally) = read(line.as_bytes(), LogOptions::default());
        assert_eq!(out, [want]);
        assert_eq!(tally.files[0].1, Format::Json);
    }
}

#[test]
fn json_with_latin_1_and_broken_lines() {
    let bytes =
        b"{\"ts\":1,\"path\":\"/gr\xfcn\"}\n{\"ts\":2\n[1]\n{\"ts\":3}x\n{\"path\":\"/\"}\n{\"ts\":4}\n";
    let (out, tally) = read(bytes, LogOptions::default());
    assert_eq!(out, ["1 ||||/grün|None|None|", "4 |||||None|None|"]);
    assert_eq!((tally.lines, tally.records, tally.malformed), (6, 2, 4));
    let why: Vec<_> = tally.first_malformed.iter().map(|m| (m.line, m.why)).collect();
    assert_eq!(
        why,
        [(2, Malformed::Json), (3, Malformed::Json), (4, Malformed::Json), (5, Malformed::NoTime)]
    );
}

#[test]
fn tables_with_a_header() {
    let tsv = b"host\tlogname\ttime\tmethod\turl\tresponse\tbytes\treferer\tuseragent\r\n\
        h.example\t-\t807256800\tGET\t/a\"b.html\t200\t1713\t\t\r\nh2\t-\t807256801\tGET\t/\t304\t-\t\t\nshort\tline\n";
    let (out, tally) = read(tsv, LogOptions::default());
    assert_eq!(
        out,
        [
            "807256800 h.example||GET||/a\"b.html|Some(200)|Some(1713)| logname=-",
            "807256801 h2||GET||/|Some(304)|None| logname=-",
        ]
    );
    assert_eq!((&tally.files[0].1, tally.malformed), (&Format::Csv, 1));

    let csv = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5,374,44\n";
    let (out, _) = read(csv, LogOptions::default());
    assert_eq!(out, ["1700158546.5 |||||None|None| ContextTokens=374 GeneratedTokens=44"]);

    let csv =
        b"when,who,host,what\n5,192.0.2.7,e.org,\"x, \"\"y\"\"\"\n6,/a,e.org,x\n7,200,e.org,x\n8,-,e.org,x\n";
    let columns = [("time", "when"), ("client.ip", "who"), ("tokens", "what")];
    let columns = columns.map(|(a, b)| (a.to_owned(), b.to_owned())).to_vec();
    let (out, tally) = read(csv, LogOptions { columns, ..LogOptions::default() });
    assert_eq!(out, ["5 192.0.2.7|||e.org||None|None| tokens=x, \"y\"", "8 |||e.org||None|None| tokens=x"]);
    // Regression: paths and statuses became keys without a word.
    let why: Vec<_> = tally.first_malformed.iter().map(|m| (m.line, m.why)).collect();
    assert_eq!(why, [(3, Malformed::NoAddress), (4, Malformed::NoAddress)]);
}

#[test]
fn formats_are_told_by_the_first_lines() {
    const T: &str = "[17/May/2015:10:05:03 +0000]";
    let rows = [
        (format!("h - - {T} \"GET / HTTP/1.0\" 200 1"), Format::Common),
        (
            format!("# comment\n\n\\x16 junk\nh - - {T} \"GET / HTTP/1.0\" 200 1 \"-\" \"a\""),
            Format::Combined,
        ),
        (format!("e.org:80 h - - {T} \"GET / HTTP/1.0\" 200 1 \"-\" \"a\""), Format::Vhost),
        (format!("::1 - - {T} \"GET / HTTP/1.0\" 200 1 \"-\" \"a\""), Format::Combined),
        (
            "h2 2015-05-17T10:05:03.000000Z app/x/1 192.0.2.7:2817 - 0.1 0.1 0.1 200 - 1 1 \"GET / HTTP/2.0\" \"a\"".to_owned(),
            Format::Alb,
        ),
        (
            "#Version: 1.0\n#Fields: date time c-ip x-edge-location\n2015-05-17\t10:05:03\th\tFRA1".to_owned(),
            Format::CloudFront,
        ),
        (
            "2015-05-17\t10:05:03\tFRA1\t1\th\tGET\te.org\t/\t200\t-\t-\t-".to_owned(),
            Format::CloudFront,
        ),
    ];
    for (bytes, want) in rows {
        let (out, tally) = read(bytes.as_bytes(), LogOptions::default());
        assert_eq!((out.len(), &tally.files[0].1), (1, &want), "{bytes}");
    }
    let file = Temp::new(b"Nov 20 22:53:01 host sshd[1]: hello\nx\n");
    let mut log = Log::open(vec![file.input()], LogOptions::default()).unwrap();
    let error = log.read(|_| ControlFlow::Continue(())).unwrap_err().to_string();
    assert!(error.contains("--format") && error.ends_with("Nov 20 22:53:01 host sshd[1]: hello"), "{error}");
}

/// In concatenated CloudFront files, lines after a `#Fields` line with other fields must not be misread.
#[test]
fn lines_below_other_names_are_told_and_not_misread() {
    const NAMES: &str = "#Fields: date time c-ip cs-method x-edge-location\n";
    let line = |second: u32, rest: &str| format!("2015-05-17\t10:05:{second:02}\t{rest}\tGET\tFRA1\n");
    let text = format!(
        "#Version: 1.0\n{NAMES}{}#Version: 1.0\n{NAMES}{}#Fields: date time x-edge-location cs-method c-ip\n{}#Version: 1.0\n{NAMES}{}",
        line(3, "a"),
        line(4, "b"),
        line(5, "FRA1"),
        line(6, "c")
    );
    let (out, tally) = read(text.as_bytes(), LogOptions::default());
    assert_eq!(
        out.iter().map(|line| line.split(['|', ' ']).nth(1).unwrap()).collect::<Vec<_>>(),
        ["a", "b", "c"]
    );
    assert_eq!((tally.malformed, tally.first_malformed[0].why), (1, Malformed::OtherFields));
}

#[test]
fn only_requests_that_match_are_handed_out() {
    let line = |second: u32, path: &str| {
        format!("h - - [17/May/2015:10:05:{second:02} +0000] \"GET {path} HTTP/1.0\" 200 1\n")
    };
    let bytes = [line(1, "/"), line(3, "/api/a?b"), line(2, "//api/b"), line(4, "/api"), "junk\n".to_owned()]
        .concat();
    let matching = Match::any().path("/api/*").unwrap();
    for order in [Order::default(), Order::Clamp] {
        let (out, tally) =
            read(bytes.as_bytes(), LogOptions { matching: matching.clone(), order, ..LogOptions::default() });
        assert_eq!(out.len(), 2, "{out:?}");
        assert_eq!((tally.records, tally.unmatched, tally.malformed, tally.lines), (2, 2, 1, 5));
        let first = tally.first.unwrap().as_nanos() / 1_000_000_000;
        assert_eq!(first, if order == Order::Clamp { 1_431_857_103 } else { 1_431_857_102 });
    }
}

#[test]
fn files_are_read_in_the_order_of_their_first_times() {
    let line = |second: u32| {
        format!("h - - [17/May/2015:10:05:{second:02} +0000] \"GET /{second} HTTP/1.0\" 200 1\n")
    };
    let (new, old) = (Temp::new(line(30).as_bytes()), Temp::new(line(10).as_bytes()));
    let mut log = Log::open(vec![new.input(), old.input()], LogOptions::default()).unwrap();
    let watch = log.watch();
    let mut out = Vec::new();
    log.read(|record| {
        out.push(text(record.path).into_owned());
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(out, ["/10", "/30"]);
    assert!(log.tally().files_sorted && log.tally().order.back == 0);
    assert_eq!(watch.progress().total, Some(watch.progress().read));
}

#[test]
fn lines_that_go_back_are_sorted_or_clamped() {
    let line = |second: u32| {
        format!("h - - [17/May/2015:10:05:{second:02} +0000] \"GET /{second} HTTP/1.0\" 200 1\n")
    };
    let bytes: String = [10, 12, 11, 12].map(line).concat();
    let (out, tally) = read(bytes.as_bytes(), LogOptions::default());
    assert_eq!(out.iter().map(|l| l[7..10].to_owned()).collect::<Vec<_>>(), ["110", "111", "112", "112"]);
    assert_eq!((tally.order.back, tally.order.ordered, tally.order.clamped), (1, 1, 0));
    let (out, tally) = read(bytes.as_bytes(), LogOptions { order: Order::Clamp, ..LogOptions::default() });
    assert_eq!(out.iter().map(|l| l[7..10].to_owned()).collect::<Vec<_>>(), ["110", "112", "112", "112"]);
    assert_eq!((tally.order.back, tally.order.ordered, tally.order.clamped), (1, 0, 1));
}

#[test]
fn a_reader_may_stop_early() {
    let line = "h - - [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.0\" 200 1\n".repeat(10);
    for order in [Order::Clamp, Order::Sort { window: std::time::Duration::ZERO, bytes: 100 }] {
        let file = Temp::new(line.as_bytes());
        let mut log = Log::open(vec![file.input()], LogOptions { order, ..LogOptions::default() }).unwrap();
        log.read(|_| ControlFlow::Break(())).unwrap();
        assert_eq!(log.tally().records, 1);
    }
}

/// Includes malformed lines among good ones, and a log whose records borrow from their reader, which must come one by
/// one.
#[test]
fn records_come_together_as_they_come_alone() {
    let clf: String = (0..100)
        .map(|n| match n % 9 {
            7 => "h - - [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.0\" x 1\n".to_owned(),
            _ => format!("h{n} - - [17/May/2015:10:05:{:02} +0000] \"GET / HTTP/1.0\" 200 1\n", n * 17 % 60),
        })
        .collect();
    let json: String = (0..50)
        .map(|n| format!("{{\"time\":{},\"client\":\"h{n}\"}}\n", 1_431_857_100 + n * 17 % 60))
        .collect();
    for (bytes, most) in [(clf, 16), (json, 1)] {
        let file = Temp::new(bytes.as_bytes());
        let open = || Log::open(vec![file.input()], LogOptions::default()).unwrap();
        let (mut alone, mut together, mut largest) = (Vec::new(), Vec::new(), 0);
        let (mut one, mut other) = (open(), open());
        one.read(|record| {
            alone.push((record.time, record.client.to_vec()));
            ControlFlow::Continue(())
        })
        .unwrap();
        other
            .read_together(|records| {
                largest = largest.max(records.len());
                together.extend(records.iter().map(|record| (record.time, record.client.to_vec())));
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!((&together, largest), (&alone, most));
        assert!(alone.is_sorted_by_key(|(time, _)| *time) && alone.len() >= 50);
        assert_eq!(format!("{:?}", one.tally()), format!("{:?}", other.tally()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn arbitrary_bytes_never_panic(bytes: Vec<u8>, text in "(\\{|\\}|\"ts\"|:|1|,|\n|\\[|\\]|time|\t|a|\"){0,60}") {
        for format in [Format::Combined, Format::Vhost, Format::Json, Format::Csv, Format::Alb, Format::CloudFront, Format::W3c, Format::Envoy, Format::Istio, Format::HaProxy, Format::Auto] {
            for bytes in [&bytes[..], text.as_bytes()] {
                // Bytes that begin like UTF-16 or a compressed file are refused by name.
                let options = LogOptions { format: format.clone(), ..LogOptions::default() };
                let Ok((_, tally)) = try_read(bytes, options) else { continue };
                prop_assert!(tally.records + tally.malformed <= tally.lines);
            }
        }
    }
}
