//! Envoy over mutual TLS, with the configuration block from the manual.

use tidegate::config::TlsSettings;
use tidegate_testkit::python_program;

use super::made::Folder;
use super::real::{Envoy, status};
use super::started_with;

/// The page with the block.
const PAGE: &str = include_str!("../../../../docs/running.md");

#[tokio::test]
async fn envoy_asks_over_tls_and_shows_its_certificate() {
    let Some(program) = python_program("envoy") else { return };
    let folder = Folder::new();
    let policies = "version: 1\npolicies: [{ name: two, limit: { rate: 2/day } }]\n";
    let (_server, grpc) = started_with(policies, |options| {
        let mut tls = TlsSettings::new(folder.path("server.pem"), folder.path("server.key"));
        tls.client_ca = Some(folder.path("ca.pem"));
        options.tls = Some(tls);
    })
    .await;
    let from = PAGE.find("      transport_socket:\n").unwrap();
    let mut socket = PAGE[from..].split("```").next().unwrap().to_owned();
    for (manuals, ours) in [
        ("/etc/envoy/tidegate-ca.pem", "ca.pem"),
        ("/etc/envoy/caller.pem", "caller.pem"),
        ("/etc/envoy/caller.key", "caller.key"),
    ] {
        assert!(socket.contains(manuals), "{manuals}");
        socket = socket.replace(manuals, &folder.name(ours));
    }
    let cluster = "    - name: tidegate\n      type: STATIC\n      connect_timeout: 1s\n";
    let over_tls = |text: String| {
        assert!(text.contains(cluster), "the manual's cluster begins otherwise");
        let denying = text.replace("failure_mode_deny: false", "failure_mode_deny: true");
        denying.replace(cluster, &format!("{cluster}{socket}"))
    };
    let envoy = Envoy::start(program, grpc, over_tls).await;
    for expected in ["200", "200", "429"] {
        let answer = envoy.get("").await;
        assert_eq!(status(&answer), expected, "{answer}");
    }
}
