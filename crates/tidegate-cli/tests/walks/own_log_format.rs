//! A user with a custom nginx log format pastes the directive, and replays a log that nginx wrote with it.

use std::net::SocketAddr;
use std::path::Path;

use serde_json::Value;

use crate::walks::proxy::Proxy;
use crate::walks::raw::ask;
use crate::walks::serving::{Desk, ended, words};
use crate::walks::waiting::{PATIENCE, within};

const FORMATS: [(&str, &str); 3] = [
    (
        "plain",
        r#"log_format plain '$remote_addr $time_iso8601 "$request" $status $request_time '
            '"$http_user_agent"\t$http_x_forwarded_for [$time_local] $msec $host $upstream_status ${request_uri}';"#,
    ),
    (
        "json",
        r#"log_format json escape=json '{"t":"$time_iso8601","a":"$remote_addr","u":"$request_uri","s":$status,' '"agent":"$http_user_agent","for":"$http_x_forwarded_for"}';"#,
    ),
    (
        "bare",
        r#"log_format bare escape=none "$msec|$remote_addr|$request_uri|$status|$http_x_forwarded_for|$http_user_agent";"#,
    ),
];

const AGENT: &str = "says \"hi\" \\ ü";

/// Returns the keys of a replayed log, in order. Every key must have at least two requests, and only the first is
/// allowed.
#[track_caller]
fn keys(desk: &Desk, log: &Path, format: &str, by: &str) -> Vec<String> {
    let log = log.display().to_string();
    let limit = ["--rate", "1/h", "--burst", "1", "-q", "-o", "json", "--hit", "5"];
    let words_of = [&["replay", &log, "--log-format", format, "--by", by][..], &limit].concat();
    let output = ended(desk.command(&words_of));
    let value: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", words(&output)));
    assert_eq!(value["log"]["requests"], 4, "{format}: {value}");
    let hit = value["hit"][0]["keys"].as_array().unwrap_or_else(|| panic!("{value}")).iter();
    let mut keys: Vec<String> = hit.map(|key| key["key"].as_str().unwrap().to_owned()).collect();
    keys.sort_unstable();
    keys
}

#[test]
fn what_a_real_nginx_writes_is_read_by_the_directive_that_it_has() {
    let desk = Desk::with("");
    let file = |name: &str| desk.path(&format!("{name}.log"));
    let directives: String = FORMATS
        .map(|(name, format)| format!("{format}\naccess_log {} {name};\n", file(name).display()))
        .concat();
    let nobody = SocketAddr::from(([127, 0, 0, 1], 9));
    let Some(nginx) = Proxy::nginx_set(&format!("server {nobody};"), &directives) else { return };
    for _ in 0..2 {
        ask(
            nginx.addr,
            "GET",
            "/a%20b?x=1",
            &[("user-agent", AGENT), ("x-forwarded-for", "192.0.2.1, 192.0.2.2")],
            b"",
        );
        ask(nginx.addr, "GET", "/elsewhere", &[("user-agent", "plain/1.0")], b"");
    }
    for (name, format) in FORMATS {
        let lines = || std::fs::read_to_string(file(name)).unwrap_or_default();
        within(PATIENCE, "nginx writes what it answered", || lines().lines().count() == 4);
        let read = |by| keys(&desk, &file(name), format, by);
        assert_eq!(read("client.ip"), ["127.0.0.1"], "{}", lines());
        assert_eq!(read("request.path"), ["/a b", "/elsewhere"], "{}", lines());
        assert_eq!(read("request.header.x-forwarded-for"), ["192.0.2.1, 192.0.2.2"], "{}", lines());
        assert_eq!(read("request.header.user-agent"), ["plain/1.0", AGENT], "{}", lines());
    }
}
