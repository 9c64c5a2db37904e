//! Client certificates.

use std::net::SocketAddr;

use rustls::HandshakeKind;
use tidegate_server::{ServeError, Server, ServerOptions, Source};

use super::caller::{connect, connect_as, lives, said, somebody};
use super::made::{Authority, Folder};
use super::started_with;

#[tokio::test(flavor = "multi_thread")]
async fn who_shows_no_certificate_or_a_foreign_one_is_refused() {
    let folder = Folder::new();
    let doors = started_with(&folder, |options| {
        options.tls.as_mut().unwrap().client_ca = Some(folder.path("ca.pem"));
    })
    .await;
    // Any host name is served: browsers verify the certificate.
    let mut known = connect(doors.http, &folder.ca, Some(&folder.caller)).await.unwrap();
    assert!(lives(&mut known).await.unwrap().starts_with("HTTP/1.1 200"));
    let stranger = Authority::new().sign(2999);
    let ended = folder.ca.sign(2002);
    for (shows, why) in [(None, "none"), (Some(&stranger), "foreign"), (Some(&ended), "ended")] {
        // With TLS 1.3, a client learns of the refusal when it reads.
        let asked = async { lives(&mut connect(doors.http, &folder.ca, shows).await?).await };
        assert!(asked.await.is_err(), "{why}");
        let asked =
            async { said(&mut connect(doors.resp, &folder.ca, shows).await?, b"PING\r\n", "\r\n").await };
        assert!(asked.await.is_err(), "{why}");
    }
    for transport in ["http", "resp"] {
        let series = format!(
            "tidegate_tls_handshake_failures_total{{transport=\"{transport}\",reason=\"certificate\"}}"
        );
        doors.until_metric(&series, 3.0).await;
    }
    // The plain door is for callers on this machine without a certificate.
    assert!(
        super::running::send(doors.admin, http::Method::GET, "/livez", &[], "").await.status.is_success()
    );
    let mut redis = connect(doors.resp, &folder.ca, Some(&folder.caller)).await.unwrap();
    assert!(said(&mut redis, b"PING\r\n", "\r\n").await.unwrap().starts_with("+PONG"));
}

/// A resumed session would let an expired client certificate pass.
#[tokio::test(flavor = "multi_thread")]
async fn certificates_of_callers_are_looked_at_each_time() {
    let folder = Folder::new();
    for (mutual, again) in [(false, HandshakeKind::Resumed), (true, HandshakeKind::Full)] {
        let doors = started_with(&folder, |options| {
            options.tls.as_mut().unwrap().client_ca = mutual.then(|| folder.path("ca.pem"));
        })
        .await;
        let somebody = somebody(&folder.ca, Some(&folder.caller));
        for expected in [HandshakeKind::Full, again] {
            let mut connection = connect_as(&somebody, doors.http).await.unwrap();
            lives(&mut connection).await.unwrap();
            assert_eq!(connection.get_ref().1.handshake_kind(), Some(expected), "{mutual}");
        }
    }
}

/// Client certificates keep strangers out like a token, at each door that requires them.
#[tokio::test]
async fn beyond_loopback_certificates_of_callers_do_for_a_token() {
    let folder = Folder::new();
    let everywhere = SocketAddr::from(([0, 0, 0, 0], 0));
    let bind = async |mutual: bool, plain: &[&str]| {
        let mut options = ServerOptions::default();
        (options.http, options.resp) = (everywhere.into(), Some(everywhere.into()));
        options.signals = false;
        let mut tls =
            tidegate::config::TlsSettings::new(folder.path("server.pem"), folder.path("server.key"));
        tls.client_ca = mutual.then(|| folder.path("ca.pem"));
        tls.plain = plain.iter().map(|door| door.parse().unwrap()).collect();
        options.tls = Some(tls);
        Server::bind(options, Source::new(|| Ok(tidegate_server::Settings::default()))).await.map(drop)
    };
    bind(true, &[]).await.unwrap();
    for refused in [bind(false, &[]).await, bind(true, &["resp"]).await] {
        let error = refused.unwrap_err();
        assert!(matches!(error, ServeError::Open { .. }), "{error}");
        assert!(error.to_string().contains("--tls-client-ca"), "{error}");
    }
    let error = bind(true, &["admin"]).await.unwrap_err().to_string();
    assert!(error.contains("names admin, which has no address of its own"), "{error}");
}
