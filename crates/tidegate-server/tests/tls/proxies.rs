//! Real proxies that ask over TLS, with the configuration blocks from the manual.

use http::Method;

use super::made::Folder;
use super::running::send;
use super::started_with;
use crate::proxy::Proxy;

/// The page with the blocks.
const PAGE: &str = include_str!("../../../../docs/forward-auth.md");

#[tokio::test(flavor = "multi_thread")]
async fn nginx_asks_over_tls_and_shows_its_certificate() {
    let folder = Folder::new();
    let doors = started_with(&folder, |options| {
        options.tls.as_mut().unwrap().client_ca = Some(folder.path("ca.pem"));
    })
    .await;
    doors
        .server
        .write(&super::POLICIES.replace("by: [user.id]", "by: [client.ip]\n    match: { path: /api/** }"));
    doors.server.handle.reload().await.unwrap();
    let from = PAGE.find("proxy_pass https://tidegate/v1/forward-auth;").unwrap();
    let mut lines = PAGE[from..].split("```").next().unwrap().to_owned();
    for (manuals, ours) in [
        ("/etc/nginx/tidegate-ca.pem", "ca.pem"),
        ("/etc/nginx/caller.pem", "caller.pem"),
        ("/etc/nginx/caller.key", "caller.key"),
    ] {
        assert!(lines.contains(manuals), "{manuals}");
        lines = lines.replace(manuals, &folder.name(ours));
    }
    let Some(nginx) = Proxy::nginx_over_tls(doors.http, lines.clone()) else { return };
    let get = async |addr| send(addr, Method::GET, "/api/thing", &[("host", "example.org")], "").await;
    for expected in [200, 200, 200, 429] {
        assert_eq!(get(nginx.addr).await.status.as_u16(), expected);
    }
    // With another server name, or without a client certificate, nginx gets no answer and reports an error.
    let other = lines.replace("proxy_ssl_name tidegate.example;", "proxy_ssl_name other.example;");
    let nameless: String = lines.lines().filter(|line| !line.contains("caller.")).collect();
    for lines in [other, nameless] {
        let Some(nginx) = Proxy::nginx_over_tls(doors.http, lines) else { return };
        assert_eq!(get(nginx.addr).await.status.as_u16(), 500);
    }
}
