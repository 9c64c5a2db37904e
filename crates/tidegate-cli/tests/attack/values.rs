//! A caller writes its address, or the path that it asks for, in another way. Behind a careless program or proxy that hands
//! such texts on as they come, each way of writing would be a key of its own, and be on no list.

use std::net::SocketAddr;

use serde_json::json;
use tidegate_testkit::free_port;

use crate::attack::grpc::{passes, serve};
use crate::attack::raw::JSON;
use crate::attack::redis_clients::said;
use crate::attack::serving::{Desk, Serving};

const FILE: &str = "version: 1
client_ip: { trusted_proxies: [] }
access: { deny: [203.0.113.66] }
policies:
  - name: api
    match: { path: /api/** }
    by: [client.ip]
    limit: { rate: 1/day }
  - name: everyone
    limit: { rate: 1000000/s }
";

/// Ways of writing an address.
fn written(address: &str) -> Vec<String> {
    let zeros = address.split('.').map(|part| format!("{part:0>3}")).collect::<Vec<_>>().join(".");
    let around = [
        ("", ", 10.0.0.1"),
        ("", ",10.0.0.1"),
        ("10.0.0.1, ", ""),
        ("198.51.100.1, ", ", 10.0.0.1"),
        ("for=", ""),
        ("for=\"", ":4711\""),
        (" ", ""),
        ("", " "),
        ("\t", ""),
        ("", "\n"),
        ("", "/32"),
        ("", "/24"),
        ("\"", "\""),
        ("ip:", ""),
        ("http://", ""),
        ("", "."),
        ("", "\u{200b}"),
        ("[", "]"),
        ("", ":4711"),
        ("", ":4712"),
        ("::ffff:", ""),
        ("[::ffff:", "]:4711"),
        ("64:ff9b::", ""),
    ];
    let mut all: Vec<String> =
        around.iter().map(|(before, after)| format!("{before}{address}{after}")).collect();
    all.extend([zeros, String::new(), "unknown".to_owned(), "localhost".to_owned(), "0x7f.1".to_owned()]);
    all
}

/// Ways of writing the path `/api/x`.
const PATHS: [&str; 9] = [
    "http://example.org/api/x",
    "HTTPS://example.org/api/x?q",
    "GET /api/x HTTP/1.1",
    "GET http://example.org/api/x HTTP/1.0",
    "api/x",
    " /api/x",
    "//api/x",
    "/./%61pi/x",
    "",
];

/// A server with all its doors.
struct Doors {
    http: Serving,
    resp: SocketAddr,
    grpc: SocketAddr,
}

impl Doors {
    /// Returns which doors let this request pass.
    fn that_pass(&self, address: &str, path: &str) -> Vec<&'static str> {
        let body = json!({ "attributes": { "client.ip": address, "request.path": path } }).to_string();
        let status = self.http.ask("POST", "/v1/check", &[JSON], &body).status;
        assert!([200, 400, 403, 429].contains(&status), "{address:?} {path:?}: {status}");
        let mut command = b"*6\r\n".to_vec();
        for word in ["TG.CHECK", "*", "client.ip", address, "request.path", path] {
            command.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
        }
        command.extend(b"*1\r\n$4\r\nQUIT\r\n");
        let over_resp = said(self.resp, &command).starts_with(b"*8\r\n:1");
        let over_grpc = passes(self.grpc, &call(&[("client.ip", address), ("request.path", path)]));
        let each = [("http", status == 200), ("resp", over_resp), ("grpc", over_grpc)];
        each.into_iter().filter(|(_, passes)| *passes).map(|(door, _)| door).collect()
    }
}

/// A call of the domain `d` with one descriptor of these entries.
fn call(entries: &[(&str, &str)]) -> Vec<u8> {
    let field = |tag: u8, bytes: &[u8]| {
        // Shorter than 128 bytes, so that a length is one byte.
        [&[tag, u8::try_from(bytes.len()).unwrap()], bytes].concat()
    };
    let entries = entries.iter().map(|(key, value)| {
        field(0x0a, &[field(0x0a, key.as_bytes()), field(0x12, value.as_bytes())].concat())
    });
    let message = [field(0x0a, b"d"), field(0x12, &entries.collect::<Vec<_>>().concat())].concat();
    [&[0, 0, 0, 0, u8::try_from(message.len()).unwrap()], &message[..]].concat()
}

#[test]
fn no_way_of_writing_an_address_or_a_path_walks_around_a_limit_or_a_list() {
    let desk = Desk::with(FILE);
    let resp = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let (http, grpc) = serve(&desk, &["--resp", &resp.to_string()]);
    let mut doors = Doors { http, resp, grpc };
    assert_eq!(doors.that_pass("203.0.113.9", "/api/x"), ["http"], "its one request of the day");
    for address in written("203.0.113.9") {
        assert_eq!(doors.that_pass(&address, "/api/x"), [""; 0], "{address:?}");
    }
    for address in written("203.0.113.66") {
        assert_eq!(doors.that_pass(&address, "/elsewhere"), [""; 0], "{address:?}");
    }
    for path in PATHS {
        // Envoy sends paths of its own writing, so the gRPC door only tells.
        let passed = doors.that_pass("203.0.113.9", path);
        assert!(passed.iter().all(|door| *door == "grpc"), "{path:?}: {passed:?}");
    }
    doors.http.hears("request.path is a URL");
    doors.http.is_well();
}
