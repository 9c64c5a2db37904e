//! Certificates that are renewed while connections are open, and files that cannot be used.

use http::Method;

use super::caller::{connect, greeted_with, lives, said};
use super::made::{Authority, Folder};
use super::running::{send, until};
use super::{started, started_with};

const GOOD: &str = "tidegate_tls_last_renewal_successful";
const ENDS: &str = "tidegate_tls_certificate_expiry_timestamp_seconds";

#[tokio::test(flavor = "multi_thread")]
async fn open_connections_go_on_and_new_ones_see_the_new_certificate() {
    let folder = Folder::new();
    let doors = started(&folder).await;
    let mut http = connect(doors.http, &folder.ca, None).await.unwrap();
    let mut redis = connect(doors.resp, &folder.ca, None).await.unwrap();
    lives(&mut http).await.unwrap();
    assert_eq!(greeted_with(&http), folder.server.cert());
    let ends = doors.metric(ENDS).await;

    // No reload is needed: the files are watched.
    let next = folder.ca.sign(2998);
    folder.put("server", &next);
    let renewed = async || {
        let new = connect(doors.http, &folder.ca, None).await.unwrap();
        greeted_with(&new) == next.cert()
    };
    until("the new certificate", renewed).await;
    for door in [doors.grpc, doors.resp] {
        assert_eq!(greeted_with(&connect(door, &folder.ca, None).await.unwrap()), next.cert());
    }
    assert!(lives(&mut http).await.unwrap().starts_with("HTTP/1.1 200"), "the old connection goes on");
    assert!(said(&mut redis, b"PING\r\n", "\r\n").await.unwrap().starts_with("+PONG"));
    assert!((ends - doors.metric(ENDS).await - 365.0 * 86_400.0).abs() < 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_cannot_be_used_change_nothing_and_are_told_of() {
    let folder = Folder::new();
    let doors = started(&folder).await;
    let verbose = async || send(doors.admin, Method::GET, "/readyz?verbose", &[], "").await.text;
    assert!(verbose().await.contains("[+] tls: the certificate is valid until 2999-12-31T00:00:00Z"));
    let other = folder.ca.sign(2998);
    for (name, text) in [
        ("server.pem", other.cert.as_str()),
        ("server.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n"),
        ("server.pem", ""),
        ("server.key", "nothing"),
    ] {
        folder.write(name, text);
        doors.server.handle.reload().await.unwrap();
        assert!(doors.metric(GOOD).await < 0.5, "{name}: {text}");
        let told = verbose().await;
        assert!(
            told.contains("[!] tls: the certificate is valid until 2999-12-31") && told.contains(name),
            "{told}"
        );
        let new = connect(doors.http, &folder.ca, None).await.unwrap();
        assert_eq!(greeted_with(&new), folder.server.cert());
        folder.put("server", &folder.server);
        doors.server.handle.reload().await.unwrap();
        assert!(doors.metric(GOOD).await > 0.5);
    }
    std::fs::remove_file(folder.path("server.key")).unwrap();
    doors.server.handle.reload().await.unwrap();
    assert!(doors.metric(GOOD).await < 0.5);
    lives(&mut connect(doors.http, &folder.ca, None).await.unwrap()).await.unwrap();
}

/// Sessions made under the old authority are not resumed under the new one.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_authority_of_callers_holds_for_new_connections() {
    let folder = Folder::new();
    folder.write("clients.pem", folder.ca.pem());
    let doors = started_with(&folder, |options| {
        options.tls.as_mut().unwrap().client_ca = Some(folder.path("clients.pem"));
    })
    .await;
    let mut known = connect(doors.http, &folder.ca, Some(&folder.caller)).await.unwrap();
    lives(&mut known).await.unwrap();
    let next = Authority::new();
    folder.write("clients.pem", next.pem());
    doors.server.handle.reload().await.unwrap();
    let shown = next.sign(2999);
    lives(&mut connect(doors.http, &folder.ca, Some(&shown)).await.unwrap()).await.unwrap();
    let old = async { lives(&mut connect(doors.http, &folder.ca, Some(&folder.caller)).await?).await };
    assert!(old.await.is_err());
    lives(&mut known).await.unwrap();
}
