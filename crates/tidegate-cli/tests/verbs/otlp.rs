//! Export of spans, configured by the standard OpenTelemetry variables, to a collector that speaks OTLP over HTTP.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use crate::verbs::Desk;
use crate::verbs::made::Folder;
use crate::verbs::serve::{PATIENCE, Serving};

const POLICIES: &str = "version: 1\npolicies: [{ name: per-ip, by: [client.ip], limit: { rate: 5/day } }]\n";

/// A collector that receives batches on a port.
struct Collector(TcpListener);

impl Collector {
    fn new() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").unwrap())
    }

    fn addr(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }

    fn accept(&self) -> TcpStream {
        let (stream, _) = self.0.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }
}

/// Answers one batch. Returns its head and its body as text.
fn batch(stream: &mut (impl Read + Write)) -> (String, String) {
    let mut read = BufReader::new(&mut *stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(read.read_line(&mut head).unwrap() > 0, "{head}");
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    read.read_exact(&mut body).unwrap();
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
    (head, String::from_utf8_lossy(&body).into_owned())
}

#[test]
fn the_variables_say_where_spans_go_and_how() {
    let (desk, collector) = (Desk::new(), Collector::new());
    desk.write("tidegate.yaml", POLICIES);
    let endpoint = format!("http://{}", collector.addr());
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &*endpoint),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=shop%20one"),
        ("OTEL_SERVICE_NAME", "limits-of-the-shop"),
        ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=testing"),
    ];
    let serving = Serving::with_variables(&desk, &["-c", "tidegate.yaml"], &variables);
    serving.check("203.0.113.9");
    let (head, body) = batch(&mut collector.accept());
    assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
    assert!(
        head.contains("content-type: application/x-protobuf") && head.contains("x-tenant: shop one"),
        "{head}"
    );
    for word in ["limits-of-the-shop", "testing", "POST /v1/check", "tidegate.policy", "per-ip", "allowed"] {
        assert!(body.contains(word), "{word}: {body}");
    }
    assert!(!body.contains("203.0.113.9"), "keys are digests: {body}");
}

#[test]
fn a_sampler_and_what_turns_spans_off_are_obeyed() {
    let (desk, collector) = (Desk::new(), Collector::new());
    desk.write("tidegate.yaml", POLICIES);
    let endpoint = format!("http://{}", collector.addr());
    let to = [("OTEL_EXPORTER_OTLP_ENDPOINT", &*endpoint), ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")];
    for off in [
        ("OTEL_TRACES_SAMPLER", "always_off"),
        ("OTEL_TRACES_SAMPLER", "parentbased_always_off"),
        ("OTEL_SDK_DISABLED", "true"),
        ("OTEL_TRACES_EXPORTER", "none"),
    ] {
        let serving = Serving::with_variables(&desk, &["-c", "tidegate.yaml"], &[&to[..], &[off]].concat());
        serving.check("203.0.113.9");
        // Stopping the server would send spans that are waiting.
        serving.stop();
        collector.0.set_nonblocking(true).unwrap();
        assert!(collector.0.accept().is_err(), "{off:?}");
    }
}

#[test]
fn the_collector_is_known_by_its_certificate_and_shown_ours() {
    let (desk, folder, collector) = (Desk::new(), Folder::new(), Collector::new());
    desk.write("tidegate.yaml", POLICIES);
    let [ca, cert, key] = ["ca.pem", "caller.pem", "caller.key"].map(|name| folder.name(name));
    let endpoint = format!("https://{}/v1/traces", collector.addr());
    let variables = [
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &*endpoint),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", &ca),
        ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", &cert),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", &key),
    ];
    let serving = Serving::with_variables(&desk, &["-c", "tidegate.yaml"], &variables);
    serving.check("203.0.113.9");
    let mut roots = RootCertStore::empty();
    roots.add(folder.ca.root()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let callers = WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider));
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(callers.build().unwrap())
        .with_single_cert(vec![folder.server.cert()], folder.server.key())
        .unwrap();
    let connection = ServerConnection::new(Arc::new(config)).unwrap();
    let mut stream = StreamOwned::new(connection, collector.accept());
    assert!(batch(&mut stream).1.contains("POST /v1/check"));
    assert_eq!(stream.conn.peer_certificates().unwrap()[0], folder.caller.cert());
    drop(serving);

    let missing = folder.name("none.pem");
    for protocol in ["grpc", "http/protobuf"] {
        for (variable, value, told) in [
            (
                "OTEL_EXPORTER_OTLP_CLIENT_KEY",
                "",
                "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE is set and OTEL_EXPORTER_OTLP_CLIENT_KEY is not",
            ),
            ("OTEL_EXPORTER_OTLP_CLIENT_KEY", &*cert, "holds no private key in PEM"),
            ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", &key, "holds no certificate in PEM"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", &missing, "none.pem"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json", "use grpc or http/protobuf"),
        ] {
            let mut variables = variables.to_vec();
            variables[1].1 = protocol;
            variables.push((variable, value));
            let refused = Serving::spawn_with(&desk, &["-c", "tidegate.yaml"], &variables);
            assert!(refused.hears("ERROR").contains(told), "{protocol} {variable}={value}");
        }
    }
}
