//! Logs in unusual formats, and parts of logs.

use crate::verbs::{Desk, sample};

const RATE: [&str; 4] = ["--rate", "1/s", "--burst", "1"];

fn replay<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    [&["replay", "-q", "-o", "json"][..], &RATE, arguments].concat()
}

const PASTED: &str = r#"
log_format timed escape=json
    '$time_iso8601 $remote_addr '   # who
    '"$request" $status $request_time $http_x_plan';
"#;

#[test]
fn a_log_format_is_given_as_nginx_writes_it() {
    let desk = Desk::new();
    let line = |second: u32, client: &str, plan: &str| {
        format!(
            "2026-03-02T09:14:{second:02}+00:00 {client} \"GET /api/search?q=1 HTTP/1.1\" 200 0.250 {plan}\n"
        )
    };
    desk.write(
        "api.log",
        [line(1, "203.0.113.9", "pro"), line(1, "203.0.113.9", "free"), line(1, "h", "")].concat(),
    );
    let alone = r#"$time_iso8601 $remote_addr "$request" $status $request_time $http_x_plan"#;
    for format in [alone, PASTED] {
        let value = desk.run(&replay(&["api.log", "--log-format", format])).code(0).json();
        assert_eq!(
            (&value["log"]["requests"], &value["log"]["malformed"]),
            (&3.into(), &0.into()),
            "{value}"
        );
        assert_eq!(value["log"]["files"][0]["format"], "log_format");
        let run = &value["runs"][0];
        assert_eq!((&run["denied"], &run["policies"][0]["worst"]["key"]), (&1.into(), &"203.0.113.9".into()));
    }
    let by = ["api.log", "--log-format", alone, "--by", "request.header.x-plan"];
    assert_eq!(desk.run(&replay(&by)).code(0).json()["runs"][0]["policies"][0]["keys"], 2);
    // Places are held for $request_time.
    let held = [
        "replay",
        "-q",
        "-o",
        "json",
        "api.log",
        "--log-format",
        alone,
        "--limit",
        "{algorithm: concurrency, max: 1}",
    ];
    assert_eq!(desk.run(&held).code(0).json()["runs"][0]["denied"], 1);
}

#[test]
fn a_wrong_log_format_is_told_with_its_place() {
    let desk = Desk::new();
    desk.write("api.log", "x\n");
    for (flags, says) in [
        (&["--log-format", "$msec $"][..], "column 7: a $ without a variable's name behind it"),
        (
            &["--log-format", "$remote_addr $status"],
            "--log-format: no variable has the time; the format needs $time_iso8601",
        ),
        (&["--log-format", "$msec", "--format", "json"], "cannot be used with"),
        (&["--log-format", "  "], "column 3: the format is missing"),
    ] {
        let ran = desk.run(&replay(&[&["api.log"], flags].concat())).code(2);
        assert!(ran.err.contains(says) && ran.err.contains("--log-format"), "{ran:?}");
    }
    let ran = desk.run(&replay(&["api.log", "--log-format", "$remote_addr [$msec]"])).code(2);
    assert!(
        ran.err.contains(
            "api.log:1: does not match the log format: variable 1 and the text after it are missing"
        ),
        "{ran:?}"
    );
}

#[test]
fn logs_of_load_balancers_and_of_cloudfront_are_told_by_their_lines() {
    let desk = Desk::new();
    let alb = |second: u32| {
        format!(
            "https 2026-03-02T09:14:{second:02}.186641Z app/shop/50dc6c495c0c9188 192.0.2.7:2817 10.0.0.1:80 0.086 0.048 0.037 200 200 57 1024 \
             \"GET https://shop.example:443/cart?item=4 HTTP/1.1\" \"curl/8.5\" ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 arn:tg \"Root=1-58337281\" \
             \"shop.example\" \"arn:cert\" 1 2026-03-02T09:14:{second:02}.000000Z \"forward\" \"-\" \"-\" \"10.0.0.1:80\" \"200\" \"-\" \"-\" TID_1\n"
        )
    };
    desk.write("alb.log", [alb(1), alb(2), alb(2)].concat());
    let front = |second: u32| {
        format!(
            "2026-03-02\t09:14:{second:02}\tFRA56-P1\t2390\t192.0.2.7\tGET\td1.cloudfront.net\t/cart\t200\t-\tcurl/8.5\t-\n"
        )
    };
    let names = "#Version: 1.0\n#Fields: date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status cs(Referer) cs(User-Agent) cs-uri-query\n";
    desk.write("front.log", [names, &front(1), &front(2), &front(2)].concat());
    for (file, format) in [("alb.log", "alb"), ("front.log", "cloudfront")] {
        for flags in [&[][..], &["--format", format]] {
            let value = desk.run(&replay(&[&[file, "--match", "path=/cart"], flags].concat())).code(0).json();
            assert_eq!(value["log"]["files"][0]["format"], *format);
            let run = &value["runs"][0];
            assert_eq!((&run["requests"], &run["denied"]), (&3.into(), &1.into()), "{value}");
            assert_eq!(run["policies"][0]["worst"]["key"], "192.0.2.7");
        }
    }
}

/// Names of pods, virtual hosts and lists of proxies were taken for clients, with exit code 0 and no remark.
#[test]
fn what_precedes_the_client_is_told_and_never_taken_for_it() {
    let desk = Desk::new();
    let line =
        |before: &str| format!("{before} - - [02/Mar/2026:09:14:00 +0000] \"GET /cart HTTP/1.1\" 200 1\n");
    desk.write("pods.log", line("[pod/web-7d9/nginx] 192.0.2.7").repeat(3));
    desk.write("hosts.log", line("shop.example.com 192.0.2.7").repeat(3));
    for (file, format) in [("pods.log", "common"), ("hosts.log", "vhost")] {
        let ran = desk.run(&["replay", "-o", "json", file, "--rate", "1/s", "--burst", "1"]).code(0);
        let value = ran.json();
        assert_eq!(value["log"]["files"][0]["format"], *format);
        assert_eq!(
            (&value["runs"][0]["denied"], &value["runs"][0]["policies"][0]["worst"]["key"]),
            (&2.into(), &"192.0.2.7".into())
        );
        let told = "pods.log: what precedes each line is left out, such as [pod/web-7d9/nginx]";
        assert_eq!(ran.err.contains(told), file == "pods.log", "{ran:?}");
    }
    desk.write("lists.log", line("203.0.113.9, 192.0.2.7").repeat(3));
    for verb in [&["replay", "lists.log", "--rate", "1/s"][..], &["suggest", "lists.log"]] {
        let ran = desk.run(verb).code(2);
        for says in [
            "is neither an address nor a host name: 203.0.113.9,;",
            "--log-format '$http_x_forwarded_for ",
            "the line: 203.0.113.9, 192.0.2.7 - -",
        ] {
            assert!(ran.err.contains(says), "{says}: {ran:?}");
        }
    }
    desk.write("fields.jsonl", "{\"when\":1772442840,\"who\":\"192.0.2.7\"}\n");
    let ran = desk.run(&replay(&["fields.jsonl"])).code(2);
    assert!(ran.err.contains("no field is known as the time; name it with --column time=NAME"), "{ran:?}");
    let ran = desk.run(&replay(&["fields.jsonl", "--column", "time=when"])).code(2);
    assert!(
        ran.err.contains("no request has client.ip; the log has who")
            && ran.err.contains("--column client.ip=NAME"),
        "{ran:?}"
    );
    desk.run(&replay(&["fields.jsonl", "--column", "time=when", "--column", "client.ip=who"])).code(0);
    desk.write("paths.jsonl", "{\"time\":1772442840,\"uri\":\"/api/items\"}\n");
    let column = ["--column", "client.ip=uri"];
    let told = "the field taken for the client is no address; name another with --column client.ip=NAME";
    for verb in [replay(&["paths.jsonl"]), vec!["suggest", "paths.jsonl"]] {
        let ran = desk.run(&[&verb[..], &column].concat()).code(2);
        assert!(ran.err.contains(told), "{ran:?}");
    }
}

#[test]
fn a_part_of_a_log_is_replayed() {
    let desk = Desk::new();
    let log = sample("access.log");
    let whole = desk.run(&replay(&[&log])).code(0).json();
    let part = desk.run(&replay(&[&log, "--match", "path=/api/**"])).code(0).json();
    let rest = desk.run(&replay(&[&log, "--match", "not.path=/api/**"])).code(0).json();
    let requests = |value: &serde_json::Value| value["log"]["requests"].as_u64().unwrap();
    assert!(requests(&part) > 0 && requests(&rest) > 0);
    assert_eq!(requests(&part) + requests(&rest), requests(&whole));
    assert_eq!(part["log"]["unmatched"], rest["log"]["requests"]);
    assert_eq!(part["runs"][0]["requests"], part["log"]["requests"]);
    // The same result as for a policy that matches only these requests.
    desk.write(
        "p.yaml",
        "version: 1\nclient_ip: { trusted_proxies: [] }\npolicies:\n  - name: gcra\n    match: { path: /api/** }\n    by: [client.ip]\n    limit: { rate: 1/s, burst: 1 }\n",
    );
    let policy = desk.run(&["replay", "-q", "-o", "json", &log, "-c", "p.yaml"]).code(0).json();
    let row = |value: &serde_json::Value| value["runs"][0]["policies"][0].clone();
    assert_eq!(row(&policy)["denied"], row(&part)["denied"]);
    assert_eq!(row(&policy)["worst"], row(&part)["worst"]);

    let told = desk.run(&["replay", &log, "--rate", "1/s", "--match", "path=/api/**"]).code(0).err;
    let left_out = format!("left out by --match: {} requests", grouped(requests(&rest)));
    assert!(told.contains(&left_out), "{told}");
    // A misspelt name must be reported, since it excludes nothing.
    let told = desk.run(&["replay", &log, "--rate", "1/s", "--match", "not.pth=/api/**"]).code(0).err;
    assert!(told.contains("--match pth: no request has pth"), "{told}");
    let ran = desk.run(&replay(&[&log, "--match", "status=5*"])).code(2);
    assert!(ran.err.contains("matches --match status=5*; no request has status"), "{ran:?}");
    let ran = desk.run(&replay(&[&log, "--match", "path=/nowhere", "--match", "method=PUT"])).code(2);
    let says =
        "nothing to replay: none of the 4,478 requests matches --match path=/nowhere --match method=PUT";
    assert!(ran.err.contains(says), "{ran:?}");
    let ran = desk.run(&replay(&[&log, "--match", "path=api"])).code(2);
    assert!(ran.err.contains("--match path: \"api\": a path pattern starts with / or **"), "{ran:?}");
    let ran = desk.run(&["suggest", &log, "--match", "path=/nowhere"]).code(2);
    let says = "nothing to suggest: none of the 4,478 requests matches --match path=/nowhere";
    assert!(ran.err.contains(says), "{ran:?}");
    let suggested = ["suggest", "-q", "-o", "json", &log, "--match", "path=/api/**"];
    assert_eq!(desk.run(&suggested).code(0).json()["requests"], part["log"]["requests"]);
}

fn grouped(count: u64) -> String {
    if count < 1000 { count.to_string() } else { format!("{},{:03}", count / 1000, count % 1000) }
}

/// A status that is none, and a duration of three million years, were taken as they were without a word.
#[test]
fn statuses_and_durations_that_cannot_be_are_counted_and_told() {
    let desk = Desk::new();
    let line = |second: u32, took: &str, status: u16| {
        format!(
            "{{\"time\": \"2026-01-01T00:00:0{second}Z\", \"request_time\": \"{took}\", \"status\": {status}}}\n"
        )
    };
    let arguments = ["replay", "--limit", "{algorithm: concurrency, max: 1}", "--by", "", "-o", "json"];
    let odd = [line(0, "99999999999999", 999), line(1, "1.500", 200), line(2, "1.500", 99)].concat();
    let ran = desk.run_with(&arguments, odd).code(0);
    let status = "2 requests have a status outside 100 to 599, such as 999: 600 and above count as failed";
    assert!(ran.err.contains(status), "{ran:?}");
    assert!(
        ran.err.contains("1 request has a duration of more than 366 d, which counts as unknown"),
        "{ran:?}"
    );
    let value = ran.json();
    assert_eq!((&value["log"]["odd_statuses"], &value["log"]["overlong"]), (&2.into(), &1.into()));
    assert_eq!(value["runs"][0]["denied"], 1, "the first leaves at once, the second holds the place");
    let plain = desk.run_with(&arguments, line(0, "1.500", 503)).code(0);
    assert!(!plain.err.contains("outside") && !plain.err.contains("duration"), "{plain:?}");
}

/// Behind a proxy, the first field of each line is the proxy, and all clients together would be one key.
#[test]
fn a_log_whose_client_is_always_the_proxy_says_which_field_has_the_clients() {
    let desk = Desk::new();
    let line = |second: u32| {
        format!(
            "10.0.0.1 - - [02/Mar/2026:09:14:{second:02} +0000] \"GET /a HTTP/1.1\" 200 5 \"-\" \"curl/8\" \"203.0.113.{second}\"\n"
        )
    };
    desk.write("proxied.log", (10..40).map(line).collect::<String>());
    let ran = desk.run(&["replay", "proxied.log", "--rate", "5/min", "--by", "client.ip"]).code(0);
    let told = "proxied.log: all of the first requests come from 10.0.0.1, which looks like a proxy";
    assert!(ran.err.contains(told), "{ran:?}");
    let suggested = desk.run(&["suggest", "proxied.log"]);
    assert!(suggested.err.contains(told) && suggested.err.contains("client.ip=http_x_"), "{suggested:?}");
    let format = "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \"$http_referer\" \
                  \"$http_user_agent\" \"$http_x_forwarded_for\"";
    assert!(
        ran.err.contains(&format!("--log-format '{format}' --column client.ip=http_x_forwarded_for")),
        "{ran:?}"
    );
    let by_format = ["replay", "proxied.log", "--rate", "5/min", "--by", "client.ip", "--log-format", format];
    let ran = desk.run(&by_format).code(0);
    assert!(
        ran.err.contains("looks like a proxy") && ran.err.contains(": --column client.ip=http_x_"),
        "{ran:?}"
    );
    let named = ["--column", "client.ip=http_x_forwarded_for", "-o", "json"];
    let ran = desk.run(&[&by_format[..], &named].concat()).code(0);
    assert_eq!(ran.json()["runs"][0]["policies"][0]["keys"], 30, "{ran:?}");
    assert!(!ran.err.contains("proxy"), "{ran:?}");
}
