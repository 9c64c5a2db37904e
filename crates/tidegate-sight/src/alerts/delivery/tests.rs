//! Tests of delivery, against a small server on this machine.

use std::convert::Infallible;
use std::net::SocketAddr;

use http::Response;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use super::*;

const SECRET: &str = "0123456789abcdef0123";

/// What a receiver was asked.
#[derive(Debug)]
struct Asked {
    path: String,
    signature: Option<String>,
    body: String,
}

/// A receiver that answers with these statuses, and then with 200.
async fn receiver(statuses: Vec<u16>) -> (SocketAddr, mpsc::UnboundedReceiver<Asked>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (asked, told) = mpsc::unbounded_channel();
    let statuses = Arc::new(Mutex::new(VecDeque::from(statuses)));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (asked, statuses) = (asked.clone(), Arc::clone(&statuses));
            let service = service_fn(move |request: Request<Incoming>| {
                let (asked, statuses) = (asked.clone(), Arc::clone(&statuses));
                async move {
                    let path = request.uri().path().to_owned();
                    let signature = request.headers().get(SIGNATURE);
                    let signature = signature.map(|value| value.to_str().unwrap().to_owned());
                    let bytes = request.into_body().collect().await.unwrap().to_bytes();
                    let body = String::from_utf8(bytes.to_vec()).unwrap();
                    // The test may have seen enough.
                    let _ = asked.send(Asked { path, signature, body });
                    let status = statuses.lock().pop_front().unwrap_or(200);
                    let answer = Response::builder().status(status).header("location", "/elsewhere");
                    Ok::<_, Infallible>(answer.body(Full::new(Bytes::new())).unwrap())
                }
            });
            tokio::spawn(async move {
                let connection = hyper::server::conn::http1::Builder::new();
                drop(connection.serve_connection(TokioIo::new(stream), service).await);
            });
        }
    });
    (addr, told)
}

fn webhook(url: String, secret: &str) -> (tempfile::NamedTempFile, AlertSettings) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{secret}\n")).unwrap();
    let mut settings = AlertSettings::default();
    settings.to = vec![AlertReceiver::Webhook { url, secret_file: file.path().to_owned() }];
    (file, settings)
}

/// A delivery with short pauses that has begun.
fn begun(settings: &AlertSettings) -> Delivery {
    let delivery = Delivery::with(settings, Duration::from_millis(1)).unwrap();
    delivery.begin();
    delivery
}

fn message(body: &str) -> Message {
    Message { receiver: 0, body: body.to_owned(), replaces: false }
}

/// RFC 4231, test case 2.
#[test]
fn a_signature_is_hmac_sha256() {
    assert_eq!(
        signature(b"Jefe", b"what do ya want for nothing?"),
        "sha256=5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    );
}

#[tokio::test]
async fn a_webhook_gets_signed_messages_and_its_address_is_not_shown_whole() {
    let (addr, mut told) = receiver(Vec::new()).await;
    let (_file, settings) = webhook(format!("http://{addr}/services/t0p-secret"), SECRET);
    let delivery = begun(&settings);
    delivery.send(message("{\"a\":1}"));
    let asked = told.recv().await.unwrap();
    assert_eq!((asked.path.as_str(), asked.body.as_str()), ("/services/t0p-secret", "{\"a\":1}"));
    assert_eq!(asked.signature, Some(signature(SECRET.as_bytes(), b"{\"a\":1}")));
    let shown = delivery.shown();
    assert_eq!(shown[0]["address"], format!("http://{addr}"));
    assert!(!format!("{shown:?} {delivery:?}").contains("t0p-secret"));
}

#[tokio::test]
async fn a_receiver_that_fails_is_tried_again_and_one_that_refuses_is_not() {
    let (addr, mut told) = receiver(vec![503, 429, 200, 302, 400]).await;
    let (_file, settings) = webhook(format!("http://{addr}/hook"), SECRET);
    let delivery = begun(&settings);
    ["one", "two", "three", "four"].into_iter().for_each(|body| delivery.send(message(body)));
    let mut bodies = Vec::new();
    for _ in 0..6 {
        let asked = told.recv().await.unwrap();
        assert_eq!(asked.path, "/hook", "a redirect is not followed");
        bodies.push(asked.body);
    }
    assert_eq!(bodies, ["one", "one", "one", "two", "three", "four"]);
    // The next is asked after the one before is counted.
    delivery.send(message("five"));
    assert_eq!(told.recv().await.unwrap().body, "five");
    let shown = &delivery.shown()[0];
    assert_eq!((&shown["sent"], &shown["failed"], &shown["refused"]), (&json!(2), &json!(2), &json!(2)));
}

#[tokio::test]
async fn an_alertmanager_is_asked_at_its_path() {
    let (addr, mut told) = receiver(Vec::new()).await;
    let mut settings = AlertSettings::default();
    settings.to = vec![AlertReceiver::Alertmanager { url: format!("http://{addr}/") }];
    let delivery = begun(&settings);
    delivery.send(Message { receiver: 0, body: "[]".to_owned(), replaces: true });
    let asked = told.recv().await.unwrap();
    assert_eq!((asked.path.as_str(), asked.signature), ("/api/v2/alerts", None));
}

#[test]
fn a_queue_has_so_many_messages_and_a_newer_list_replaces_an_older_one() {
    let (_file, settings) = webhook("http://127.0.0.1:9/".to_owned(), SECRET);
    let delivery = Delivery::new(&settings).unwrap();
    // Without a runtime nothing is sent.
    delivery.begin();
    (0..QUEUE + 44).for_each(|_| delivery.send(message("x")));
    let shown = &delivery.shown()[0];
    assert_eq!((&shown["waiting"], &shown["dropped"]), (&json!(QUEUE), &json!(44)));
    let (receiver, mut waiting) = (&delivery.receivers[0].receiver, VecDeque::new());
    for (body, replaces) in [("a", true), ("b", false), ("c", true)] {
        receiver.wait(&mut waiting, Message { replaces, ..message(body) });
    }
    assert_eq!(waiting.iter().map(|one| &*one.body).collect::<Vec<_>>(), ["b", "c"]);
    (0..2 * QUEUE).for_each(|_| receiver.wait(&mut waiting, message("x")));
    assert_eq!(waiting.len(), QUEUE);
}

#[test]
fn a_secret_that_cannot_be_one_is_told_with_its_file() {
    let (file, settings) = webhook("http://127.0.0.1:9/".to_owned(), "short");
    let why = Delivery::new(&settings).unwrap_err().to_string();
    assert!(why.contains("at least 16 bytes") && why.contains(&file.path().display().to_string()), "{why}");
    assert!(!why.contains("short"));
    drop(file);
    assert!(Delivery::new(&settings).is_err(), "it is gone");
}
