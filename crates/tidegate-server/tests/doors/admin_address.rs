//! Operations at their own address: served only there, and nothing else is served there.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use http::{Method, StatusCode};
use tidegate_server::{ServeError, Server, ServerOptions, Source};
use tidegate_testkit::free_address;

use crate::running::wire::{read_until, sent};
use crate::running::{send, start_with};

const FILE: &str = "
version: 1
policies:
  - name: p
    by: [client.ip]
    limit: { rate: 100/min }
";

#[tokio::test]
async fn each_address_serves_its_part() {
    let (admin, resp) = (free_address(), free_address());
    let server = start_with(FILE, |mut options| {
        (options.admin, options.resp) = (Some(admin.into()), Some(resp.into()));
        options
    })
    .await;
    let text = include_str!("../../../../docs/http-api.md");
    let table =
        text.split_once("| path | method | scope | what it does |").unwrap().1.split_once("\n\n").unwrap().0;
    for line in table.lines().skip(2) {
        let cells: Vec<_> = line.split(" | ").collect();
        for path in cells[0].split('`').skip(1).step_by(2) {
            let path = path.replace("NAME", "p").replace("POLICY", "p");
            // The answer goes on for as long as the caller listens.
            if path == "/v1/events" {
                continue;
            }
            let method: Method = cells[1].split(", ").next().unwrap().replace("any", "GET").parse().unwrap();
            let answered = async |addr| {
                let answer = send(addr, method.clone(), &path, &[], "").await;
                !answer.text.contains("is not served here")
            };
            let (public, operators) = (answered(server.addr).await, answered(admin).await);
            let expected = match cells[2] {
                "none" if path == "/ui/" => (false, true),
                "none" => (true, true),
                "check" => (true, false),
                _ => (false, true),
            };
            assert_eq!((public, operators), expected, "{method} {path}");
        }
    }
    let metrics = send(server.addr, Method::GET, "/metrics", &[], "").await;
    assert_eq!(metrics.status, StatusCode::NOT_FOUND);
    assert_eq!(
        metrics.detail(),
        "/metrics is not served here but at the admin address (--admin, server.admin)"
    );
    let checks = async |addr| send(addr, Method::GET, "/readyz?verbose", &[], "").await.text;
    assert_eq!(checks(server.addr).await, "[+] serving\nready\n");
    assert!(checks(admin).await.contains("config #"));
    let original = [("x-original-uri", "/api/thing"), ("x-original-method", "GET")];
    let asked = send(admin, Method::GET, "/v1/forward-auth", &original, "").await;
    assert_eq!(asked.status, StatusCode::NOT_FOUND);
    let told = checks(admin).await;
    assert!(
        told.contains(
            " x sub-requests of a proxy reach the admin address, which does not take them, and none is decided; give \
             the proxy the address where decisions are served (--http, server.http): in nginx"
        ),
        "{told}"
    );

    let mut client =
        sent(resp, b"TG.CHECK p client.ip 192.0.2.1\r\nTG.RESET p client.ip 192.0.2.1\r\nPING\r\n").await;
    let told = read_until(&mut client, "+PONG\r\n").await;
    assert!(told.contains("*8\r\n") && told.contains("-ERR TG.RESET is not served here"), "{told}");
    // A stop ends both addresses.
    server.handle.stop();
    server.stopped().await;
    assert!(tokio::net::TcpStream::connect(admin).await.is_err());
}

#[tokio::test]
async fn an_admin_address_that_others_reach_needs_a_token() {
    let mut options = ServerOptions::default();
    options.http = "127.0.0.1:0".parse().unwrap();
    options.admin = Some("0.0.0.0:0".parse().unwrap());
    let error = Server::bind(options, Source::file("/nowhere")).await.unwrap_err();
    assert!(matches!(error, ServeError::Open { addr } if addr.ip().is_unspecified()), "{error}");
}
