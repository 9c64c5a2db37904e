//! Lines as products write them: the format is told by the line, and the request is found in it.

use super::*;

/// For each product: what it is, its format, a few of its lines, and what is read from each.
static PRODUCTS: &[(&str, Format, &str, &[&str])] = &[
    (
        "Apache with milliseconds",
        Format::Combined,
        "203.0.113.9 - ann [02/Mar/2026:09:14:00.123 +0000] \"GET /api/items?page=0 HTTP/1.1\" 200 1000 \"-\" \"curl/8.5\"\n\
         2001:db8::5 - - [02/Mar/2026:10:14:00.323 +0100] \"POST /login HTTP/1.1\" 401 - \"-\" \"-\"\n",
        &[
            "1772442840.123 203.0.113.9|ann|GET||/api/items|Some(200)|Some(1000)|curl/8.5",
            "1772442840.323 2001:db8::5||POST||/login|Some(401)|None|",
        ],
    ),
    (
        "HAProxy",
        Format::HaProxy,
        "203.0.113.9:50000 [02/Mar/2026:09:14:00.123] https-in~ web/web1 0/0/1/12/13 200 1000 - - ---- 1/1/0/0/0 0/0 \"GET /api?page=0 HTTP/1.1\"\n\
         2001:db8::5:50003 [02/Mar/2026:09:14:00.723] https-in~ web/<NOSRV> -1/-1/-1/-1/5 -1 0 - - CR-- 1/1/0/0/0 0/0 {shop.example} \"<BADREQ>\"\n",
        &[
            "1772442840.123 203.0.113.9||GET||/api|Some(200)|Some(1000)| remote_port=50000 frontend=https-in~ backend=web server=web1 \
             request_ms=0 queue_ms=0 connect_ms=1 response_ms=12 request.duration=13 termination_state=---- connections=1/1/0/0/0 queues=0/0",
            "1772442840.723 2001:db8::5|||||None|Some(0)|",
        ],
    ),
    (
        "HAProxy behind syslog",
        Format::HaProxy,
        "Mar  2 09:14:00 lb1 haproxy[1234]: 203.0.113.9:50000 [02/Mar/2026:09:14:00.123] in web/w 0/0/1/12/13 200 1000 - - ---- 1/1/0/0/0 0/0 \"GET / HTTP/1.1\"\n",
        &["1772442840.123 203.0.113.9||GET||/|Some(200)|Some(1000)|"],
    ),
    (
        "Envoy",
        Format::Envoy,
        "[2026-03-02T09:14:00.123Z] \"GET /api?page=0 HTTP/2\" 200 - 0 1000 12 11 \"192.0.2.1,203.0.113.9\" \"Mozilla/5.0 (X11; Linux)\" \"cc21\" \"shop.example\" \"10.0.0.9:8080\"\n",
        &["1772442840.123 203.0.113.9||GET|shop.example|/api|Some(200)|Some(1000)|Mozilla/5.0 (X11; Linux)"],
    ),
    (
        "Istio",
        Format::Istio,
        "[2026-03-02T09:14:00.123Z] \"GET /api?page=0 HTTP/2\" 200 - via_upstream - \"-\" 0 1000 12 11 \"203.0.113.9\" \"Mozilla/5.0 (X11; Linux)\" \
         \"cc21\" \"shop.example\" \"10.0.0.9:8080\" inbound|8080|| 127.0.0.6:1 10.0.0.9:8080 203.0.113.9:50000 outbound_.8080 default\n",
        &["1772442840.123 203.0.113.9||GET|shop.example|/api|Some(200)|Some(1000)|Mozilla/5.0 (X11; Linux)"],
    ),
    (
        "Istio's JSON",
        Format::Json,
        "{\"authority\":\"shop.example\",\"bytes_sent\":1000,\"downstream_local_address\":\"10.0.0.9:8080\",\"downstream_remote_address\":\"203.0.113.9:50000\",\
         \"duration\":12,\"method\":\"GET\",\"path\":\"/api?page=0\",\"response_code\":200,\"response_flags\":\"-\",\"start_time\":\"2026-03-02T09:14:00.123Z\",\
         \"user_agent\":\"curl\",\"x_forwarded_for\":\"203.0.113.9\"}\n",
        &["1772442840.123 203.0.113.9||GET|shop.example|/api|Some(200)|Some(1000)|curl"],
    ),
    (
        "Envoy Gateway's JSON",
        Format::Json,
        "{\":authority\":\"shop.example\",\"bytes_sent\":1000,\"downstream_remote_address\":\"[2001:db8::7]:50000\",\"duration\":12,\"method\":\"GET\",\
         \"response_code\":200,\"response_flags\":\"-\",\"start_time\":\"2026-03-02T09:14:00.123Z\",\"user-agent\":\"curl\",\"x-envoy-origin-path\":\"/api?page=0\"}\n",
        &["1772442840.123 2001:db8::7||GET|shop.example|/api|Some(200)|Some(1000)|curl"],
    ),
    (
        "IIS",
        Format::W3c,
        "#Software: Microsoft Internet Information Services 10.0\n#Version: 1.0\n#Date: 2026-03-02 09:14:00\n\
         #Fields: date time s-ip cs-method cs-uri-stem cs-uri-query s-port cs-username c-ip cs(User-Agent) cs(Referer) sc-status sc-bytes time-taken\n\
         2026-03-02 09:14:00 10.0.0.4 GET /api page=0 443 ann 203.0.113.9 Mozilla/5.0+(X11;+Linux) - 200 1000 12\n",
        &["1772442840 203.0.113.9|ann|GET||/api|Some(200)|Some(1000)|Mozilla/5.0 (X11; Linux)"],
    ),
    (
        "CloudFront v2 as JSON",
        Format::Json,
        "{\"date\":\"2026-03-02\",\"time\":\"09:14:00\",\"x-edge-location\":\"FRA56-P1\",\"sc-bytes\":\"1000\",\"c-ip\":\"203.0.113.9\",\"cs-method\":\"GET\",\
         \"cs(Host)\":\"d1.cloudfront.net\",\"cs-uri-stem\":\"/api\",\"sc-status\":\"200\",\"cs(User-Agent)\":\"Mozilla/5.0%20(X11)\",\"time-taken\":\"0.250\",\
         \"x-host-header\":\"shop.example\"}\n",
        &["1772442840 203.0.113.9||GET|shop.example|/api|Some(200)|Some(1000)|Mozilla/5.0 (X11)"],
    ),
    (
        "a table with date and time apart",
        Format::Csv,
        "date,time,c-ip,cs-uri-stem\n2026-03-02,09:14:00.5,203.0.113.9,/api\n",
        &["1772442840.5 203.0.113.9||||/api|None|None|"],
    ),
    (
        "Google Cloud's load balancer",
        Format::Json,
        "{\"httpRequest\":{\"requestMethod\":\"GET\",\"requestUrl\":\"https://shop.example/api?page=0\",\"status\":200,\"responseSize\":\"1000\",\"userAgent\":\"curl\",\
         \"remoteIp\":\"203.0.113.9\",\"latency\":\"0.012s\"},\"insertId\":\"1\",\"timestamp\":\"2026-03-02T09:14:00.123456Z\",\"receiveTimestamp\":\"2026-03-02T09:14:01Z\"}\n",
        &["1772442840.123456 203.0.113.9||GET|shop.example|/api|Some(200)|Some(1000)|curl"],
    ),
    (
        "Azure Application Gateway",
        Format::Json,
        "{\"category\":\"ApplicationGatewayAccessLog\",\"operationName\":\"ApplicationGatewayAccess\",\"properties\":{\"clientIP\":\"203.0.113.9\",\"clientPort\":50000,\
         \"httpMethod\":\"GET\",\"requestUri\":\"/api\",\"requestQuery\":\"page=0\",\"userAgent\":\"curl\",\"httpStatus\":200,\"sentBytes\":1000,\"timeTaken\":0.012,\
         \"host\":\"10.0.0.9\",\"originalHost\":\"shop.example\"},\"timeStamp\":\"2026-03-02T09:14:00+00:00\"}\n",
        &["1772442840 203.0.113.9||GET|shop.example|/api|Some(200)|Some(1000)|curl"],
    ),
    (
        "Azure Front Door",
        Format::Json,
        "{\"time\":\"2026-03-02T09:14:00.1230000Z\",\"category\":\"FrontDoorAccessLog\",\"properties\":{\"httpMethod\":\"GET\",\"requestUri\":\"https://shop.example:443/api?page=0\",\
         \"responseBytes\":\"1000\",\"userAgent\":\"curl\",\"clientIp\":\"203.0.113.9\",\"timeTaken\":\"0.012\",\"httpStatusCode\":\"200\"}}\n",
        &["1772442840.123 203.0.113.9||GET|shop.example:443|/api|Some(200)|Some(1000)|curl"],
    ),
    (
        "Cloudflare's Logpush",
        Format::Json,
        "{\"ClientIP\":\"203.0.113.9\",\"ClientRequestHost\":\"shop.example\",\"ClientRequestMethod\":\"GET\",\"ClientRequestURI\":\"/api?page=0\",\"ClientRequestUserAgent\":\"curl\",\
         \"EdgeEndTimestamp\":\"2026-03-02T09:14:01Z\",\"EdgeResponseBytes\":1000,\"EdgeResponseStatus\":200,\"EdgeStartTimestamp\":\"2026-03-02T09:14:00Z\"}\n\
         {\"ClientIP\":\"2001:db8::7\",\"ClientRequestMethod\":\"POST\",\"ClientRequestURI\":\"/login\",\"EdgeResponseStatus\":401,\"EdgeStartTimestamp\":1772442840123456789}\n",
        &[
            "1772442840 203.0.113.9||GET|shop.example|/api|Some(200)|Some(1000)|curl",
            "1772442840.123456 2001:db8::7||POST||/login|Some(401)|None|",
        ],
    ),
    (
        "Kong",
        Format::Json,
        "{\"client_ip\":\"203.0.113.9\",\"consumer\":{\"username\":\"ann\"},\"latencies\":{\"kong\":1,\"proxy\":10,\"request\":12},\"request\":{\"method\":\"GET\",\"uri\":\"/api?page=0\",\
         \"size\":\"75\",\"headers\":{\"host\":\"shop.example\",\"user-agent\":\"curl\"}},\"response\":{\"status\":200,\"size\":\"1000\"},\"started_at\":1772442840123,\"upstream_uri\":\"/\"}\n",
        &["1772442840.123 203.0.113.9|ann|GET|shop.example|/api|Some(200)|Some(1000)|curl"],
    ),
    (
        "API Gateway as JSON",
        Format::Json,
        "{\"requestId\":\"1\",\"ip\":\"203.0.113.9\",\"caller\":\"-\",\"user\":\"-\",\"requestTime\":\"02/Mar/2026:09:14:00 +0000\",\"httpMethod\":\"GET\",\"resourcePath\":\"/api\",\
         \"status\":\"200\",\"protocol\":\"HTTP/1.1\",\"responseLength\":\"1000\"}\n",
        &["1772442840 203.0.113.9||GET||/api|Some(200)|Some(1000)|"],
    ),
    (
        "API Gateway as an access log",
        Format::Combined,
        "203.0.113.9 - - [02/Mar/2026:09:14:00 +0000]\"GET /api HTTP/1.1\" 200 1000 c6af9ac6-7b61\n",
        &["1772442840 203.0.113.9||GET||/api|Some(200)|Some(1000)|"],
    ),
    (
        "kubectl logs --prefix",
        Format::Combined,
        "[pod/web-7d9/nginx] 203.0.113.9 - - [02/Mar/2026:09:14:00 +0000] \"GET /api HTTP/1.1\" 200 1000 \"-\" \"curl\"\n\
         [pod/web-7d9/nginx] 2001:db8::5 - - [02/Mar/2026:09:14:01 +0000] \"GET / HTTP/1.1\" 304 0 \"-\" \"curl\"\n",
        &[
            "1772442840 203.0.113.9||GET||/api|Some(200)|Some(1000)|curl",
            "1772442841 2001:db8::5||GET||/|Some(304)|Some(0)|curl",
        ],
    ),
    (
        "kubelet's time stamps",
        Format::Combined,
        "2026-03-02T09:14:00.123456789Z stdout F 203.0.113.9 - - [02/Mar/2026:09:14:00 +0000] \"GET /api HTTP/1.1\" 200 1000 \"-\" \"curl\"\n",
        &["1772442840 203.0.113.9||GET||/api|Some(200)|Some(1000)|curl"],
    ),
    (
        "Docker Compose",
        Format::Json,
        "web-1  | {\"time\":\"2026-03-02T09:14:00Z\",\"remote_addr\":\"203.0.113.9\",\"method\":\"GET\",\"path\":\"/api\",\"status\":200}\n",
        &["1772442840 203.0.113.9||GET||/api|Some(200)|None|"],
    ),
    (
        "Docker's json-file",
        Format::Combined,
        "{\"log\":\"203.0.113.9 - - [02/Mar/2026:09:14:00 +0000] \\\"GET /api HTTP/1.1\\\" 200 1000 \\\"-\\\" \\\"curl\\\"\\n\",\"stream\":\"stdout\",\"time\":\"2026-03-02T09:14:00.2Z\"}\n\
         {\"log\":\"2001:db8::7 - - [02/Mar/2026:09:14:01 +0000] \\\"GET / HTTP/1.1\\\" 200 1 \\\"-\\\" \\\"-\\\"\\n\",\"stream\":\"stdout\",\"time\":\"2026-03-02T09:14:01.2Z\"}\n",
        &[
            "1772442840 203.0.113.9||GET||/api|Some(200)|Some(1000)|curl",
            "1772442841 2001:db8::7||GET||/|Some(200)|Some(1)|",
        ],
    ),
    (
        "Docker's json-file around JSON",
        Format::Json,
        "{\"log\":\"{\\\"ts\\\":1772442840.5,\\\"request\\\":{\\\"remote_ip\\\":\\\"203.0.113.9\\\",\\\"method\\\":\\\"GET\\\",\\\"uri\\\":\\\"/api\\\"},\\\"status\\\":200}\\n\",\"stream\":\"stderr\"}\n",
        &["1772442840.5 203.0.113.9||GET||/api|Some(200)|None|"],
    ),
    (
        "a virtual host first",
        Format::Vhost,
        "shop.example.com 203.0.113.9 - - [02/Mar/2026:09:14:00 +0000] \"GET /api HTTP/1.1\" 200 1000 \"-\" \"curl\"\n\
         api.example.com 2001:db8::5 - - [02/Mar/2026:09:14:01 +0000] \"GET / HTTP/1.1\" 304 0 \"-\" \"curl\"\n",
        &[
            "1772442840 203.0.113.9||GET|shop.example.com|/api|Some(200)|Some(1000)|curl",
            "1772442841 2001:db8::5||GET|api.example.com|/|Some(304)|Some(0)|curl",
        ],
    ),
    (
        "host names, as old servers write them",
        Format::Common,
        "in24.inetnebr.example - - [01/Aug/1995:00:00:01 -0400] \"GET /shuttle.html HTTP/1.0\" 200 1839\n\
         203.0.113.9 - - [01/Aug/1995:00:00:07 -0400] \"GET / HTTP/1.0\" 304 0\n\
         uplherc - - [01/Aug/1995:00:00:08 -0400] \"GET /a.gif HTTP/1.0\" 304 0\n",
        &[
            "807249601 in24.inetnebr.example||GET||/shuttle.html|Some(200)|Some(1839)|",
            "807249607 203.0.113.9||GET||/|Some(304)|Some(0)|",
            "807249608 uplherc||GET||/a.gif|Some(304)|Some(0)|",
        ],
    ),
];

#[test]
fn products_are_told_by_their_lines() {
    for (name, format, lines, wanted) in PRODUCTS {
        let (out, tally) = read(lines.as_bytes(), LogOptions::default());
        assert_eq!(
            (&tally.files[0].1, tally.malformed),
            (format, 0),
            "{name}: {out:#?} {:?}",
            tally.first_malformed
        );
        assert_eq!(out.len(), wanted.len(), "{name}");
        for (line, want) in out.iter().zip(*wanted) {
            // Extras follow; they are compared where they are given.
            assert!(line == want || line.starts_with(&format!("{want} ")), "{name}:\n{line}\n{want}");
        }
        // By name as well, and with scanners' garbage before it.
        let named = LogOptions { format: format.clone(), ..LogOptions::default() };
        assert_eq!(read(lines.as_bytes(), named).0, out, "{name}");
        if !lines.starts_with(['#', 'd']) {
            let (after, tally) = read(format!("\\x16\\x03 junk\n{lines}").as_bytes(), LogOptions::default());
            assert_eq!((after.len(), tally.malformed, &tally.files[0].1), (out.len(), 1, format), "{name}");
        }
    }
}

#[test]
fn durations_are_in_the_unit_of_the_product() {
    let took = |name: &str| {
        let (.., lines, _) = PRODUCTS.iter().find(|(have, ..)| *have == name).unwrap();
        let file = Temp::new(lines.as_bytes());
        let mut log = Log::open(vec![file.input()], LogOptions::default()).unwrap();
        let mut found = None;
        log.read(|record| {
            found = found.or(record.duration);
            ControlFlow::Continue(())
        })
        .unwrap();
        found.map(|took| took.as_millis())
    };
    for name in [
        "HAProxy",
        "Envoy",
        "Istio",
        "Istio's JSON",
        "Envoy Gateway's JSON",
        "IIS",
        "Google Cloud's load balancer",
        "Azure Application Gateway",
        "Azure Front Door",
        "Kong",
    ] {
        let want = if name == "HAProxy" { 13 } else { 12 };
        assert_eq!(took(name), Some(want), "{name}");
    }
    assert_eq!(took("CloudFront v2 as JSON"), Some(250));
}

/// Whatever stood where the client does was taken for it, and limits counted time stamps and names of pods.
#[test]
fn a_first_field_that_is_no_client_is_an_error_with_flags_that_work() {
    const T: &str = "- ann [02/Mar/2026:09:14:00 +0000] \"GET /api HTTP/1.1\" 200 1000";
    let rows = [
        (format!("203.0.113.9, 198.51.100.7 {T}"), "203.0.113.9,", "198.51.100.7|ann"),
        (format!("203.0.113.9 10.0.0.1 {T}"), "203.0.113.9", "10.0.0.1|ann"),
        (format!("<id> {T}"), "<id>", "<id>|ann"),
        (
            format!("2026-03-02T09:14:00Z h {T} \"-\" \"curl/8.5\""),
            "2026-03-02T09:14:00Z",
            "2026-03-02T09:14:00Z|ann",
        ),
        (
            format!("[pod/web/nginx] h.example {T} \"-\" \"curl\" \"-\""),
            "[pod/web/nginx]",
            "[pod/web/nginx]|ann",
        ),
    ];
    for (line, word, client) in rows {
        for format in [Format::Auto, Format::Combined] {
            let file = Temp::new(format!("{line}\n{line}\n").as_bytes());
            let options = LogOptions { format, ..LogOptions::default() };
            let mut log = Log::open(vec![file.input()], options).unwrap();
            let error = log.read(|_| ControlFlow::Continue(())).unwrap_err().to_string();
            assert!(error.contains(word) && error.ends_with(&line[..line.len().min(120)]), "{error}");
            // The flags that it names read the line.
            let (_, flags) = error.split_once("--log-format '").unwrap();
            let (text, after) = flags.split_once('\'').unwrap();
            let column =
                after.split_once("--column ").map(|(_, column)| column.split([' ', ';']).next().unwrap());
            let columns = column.map(|column| column.split_once('=').unwrap());
            let columns = columns.map(|(a, b)| (a.to_owned(), b.to_owned())).into_iter().collect();
            let format = Format::LogFormat(text.parse().unwrap());
            let (out, tally) = read(line.as_bytes(), LogOptions { format, columns, ..LogOptions::default() });
            assert_eq!(tally.malformed, 0, "{error}\n{:?}", tally.first_malformed);
            assert!(
                out[0].starts_with(&format!("1772442840 {client}|GET||/api|Some(200)|Some(1000)|")),
                "{error}\n{out:?}"
            );
        }
    }
}

/// A line of another kind in the middle is counted and left out, and takes nothing from the others.
#[test]
fn a_line_of_another_kind_in_the_middle_is_malformed() {
    const T: &str = "- - [02/Mar/2026:09:14:00 +0000] \"GET / HTTP/1.1\" 200 1";
    let middle = |usual: &str, other: &str| {
        let usual = format!("{usual} {T}\n");
        let (out, tally) =
            read([&usual, &usual, other, "\n", &usual].concat().as_bytes(), LogOptions::default());
        assert_eq!((out.len(), tally.malformed), (3, 1), "{other}: {out:?}");
        tally.first_malformed[0].why
    };
    assert_eq!(middle("203.0.113.9", &format!("[pod/web/nginx] 203.0.113.9 {T}")), Malformed::NoAddress);
    assert_eq!(middle("203.0.113.9", &format!("shop.example 203.0.113.9 {T}")), Malformed::NoAddress);
    assert_eq!(middle("203.0.113.9", &format!("h {T}")), Malformed::NoAddress);
    assert_eq!(middle("203.0.113.9", &format!("203.0.113.9, 10.0.0.1 {T}")), Malformed::NoAddress);
    assert_eq!(middle("203.0.113.9", &format!("203.0.113.9 10.0.0.1 {T}")), Malformed::TwoAddresses);
    assert_eq!(middle("h", &format!("shop.example 203.0.113.9 {T}")), Malformed::TwoAddresses);
    assert_eq!(middle("[pod/web/nginx] 203.0.113.9", &format!("203.0.113.9 {T}")), Malformed::Otherwise);
    assert_eq!(middle("shop.example 203.0.113.9", &format!("203.0.113.9 {T}")), Malformed::Otherwise);
    let (_, tally) = read(
        b"{\"log\":\"203.0.113.9 - - [02/Mar/2026:09:14:00 +0000] \\\"GET / HTTP/1.1\\\" 200 1\"}\n{\"log\":1}\nx\n{\"log\":{}}\n",
        LogOptions { format: Format::Combined, ..LogOptions::default() },
    );
    assert_eq!((tally.records, tally.malformed), (0, 4), "most of the lines hold no text");
    let (_, tally) = read(
        b"{\"log\":\"203.0.113.9 - - [02/Mar/2026:09:14:00 +0000] \\\"GET / HTTP/1.1\\\" 200 1\"}\n{\"log\":\"x\"}\n{\"log\":1}\n",
        LogOptions::default(),
    );
    assert_eq!((tally.records, tally.malformed, tally.first_malformed[1].why), (1, 2, Malformed::Otherwise));
    assert!(tally.surrounded[0].1.contains("field log"), "{:?}", tally.surrounded);
}

/// Clients that are host names are read by default where most are, and anywhere if the format is named.
#[test]
fn host_names_are_clients_where_most_are_or_the_format_is_named() {
    let line = |client: &str| format!("{client} - - [02/Mar/2026:09:14:00 +0000] \"GET / HTTP/1.1\" 200 1\n");
    let log = [line("203.0.113.9"), line("203.0.113.8"), line("pc.example")].concat();
    let read = |log: &str, format| {
        let (out, tally) = read(log.as_bytes(), LogOptions { format, ..LogOptions::default() });
        (out.len(), tally.malformed)
    };
    assert_eq!(read(&log, Format::Auto), (2, 1));
    assert_eq!(read(&log, Format::Common), (3, 0));
    assert_eq!(read(&(log + &line("pc-2").repeat(3)), Format::Auto), (6, 0));
}

/// What syslog writes first is no client, whatever the day and the tag look like: a month was one, of every request.
#[test]
fn words_of_syslog_before_a_line_are_left_out() {
    let request = "203.0.113.9 - - [02/Mar/2026:09:14:00 +0000] \"GET / HTTP/1.1\" 200 1\n";
    for before in [
        "Nov 29 09:00:02 web1 nginx:",
        "Nov 29 09:00:02 web1 nginx[822]:",
        "Nov 29 09:00:02 web1.example nginx:",
        "Nov 29 09:00:02 10.0.0.5 nginx:",
        "Nov 29 09:00:02 web1 nginx",
        "Mar  2 09:00:02 web1 nginx:",
        "<190>Nov 29 09:00:02 web1 nginx:",
        "2026-11-29T09:00:02+00:00 web1 nginx:",
        "web1 nginx:",
    ] {
        for format in [Format::Auto, Format::Common] {
            let log = format!("{before} {request}").repeat(2);
            let (out, tally) = read(log.as_bytes(), LogOptions { format, ..LogOptions::default() });
            assert_eq!((out.len(), tally.malformed), (2, 0), "{before}");
            assert!(out[0].starts_with("1772442840 203.0.113.9||GET||/|"), "{before}: {out:?}");
            let said = &tally.surrounded[0].1;
            assert!(said.starts_with("what precedes each line is left out"), "{said}");
        }
    }
    // A user may have blanks, and an address without a tag before it.
    for user in ["Ann Lee", "10.0.0.1 - -"] {
        let log = format!("203.0.113.9 - {user} [02/Mar/2026:09:14:00 +0000] \"GET / HTTP/1.1\" 200 1\n");
        let (out, _) = read(log.as_bytes(), LogOptions::default());
        assert!(out[0].starts_with(&format!("1772442840 203.0.113.9|{user}|")), "{out:?}");
    }
}
