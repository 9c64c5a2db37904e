//! Tests of delivery, against a small server on this machine.

use std::convert::Infallible;
use std::net::SocketAddr;

use http::Response;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

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

/// Short pauses, and time enough for a busy machine to answer.
const PATIENCE: Patience =
    Patience { first_pause: Duration::from_millis(1), answers_within: Duration::from_secs(60) };

/// A delivery with short pauses that has begun.
fn begun(settings: &AlertSettings) -> Delivery {
    begun_with(settings, PATIENCE)
}

fn begun_with(settings: &AlertSettings, patience: Patience) -> Delivery {
    let delivery = Delivery::with(settings, patience).unwrap();
    delivery.begin();
    delivery
}

fn message(body: &str) -> Message {
    Message { receiver: 0, body: body.to_owned(), replaces: false }
}

fn shown(delivery: &Delivery, receiver: usize, field: &str) -> u64 {
    delivery.shown()[receiver][field].as_u64().unwrap()
}

/// RFC 4231, test case 2.
#[test]
fn a_signature_is_hmac_sha256_of_the_time_and_the_body() {
    let digits = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
    assert_eq!(hmac_sha256(b"Jefe", &[b"what do ya want ", b"for nothing?"]), digits);
    let signed = signature(SECRET.as_bytes(), 1_800_000_000, b"{}");
    let digits = hmac_sha256(SECRET.as_bytes(), &[b"1800000000.{}"]);
    assert_eq!(signed, format!("t=1800000000,v1={digits}"));
}

/// Returns the time of a signature.
fn time_of(signature: &str) -> u64 {
    let (time, _) = signature.strip_prefix("t=").unwrap().split_once(",v1=").unwrap();
    time.parse().unwrap()
}

#[tokio::test]
async fn a_webhook_gets_signed_messages_and_its_address_is_not_shown_whole() {
    let (addr, mut told) = receiver(Vec::new()).await;
    let (_file, settings) = webhook(format!("http://{addr}/services/t0p-secret"), SECRET);
    let delivery = begun(&settings);
    delivery.send(message("{\"a\":1}"));
    let asked = told.recv().await.unwrap();
    assert_eq!((asked.path.as_str(), asked.body.as_str()), ("/services/t0p-secret", "{\"a\":1}"));
    let signed = asked.signature.unwrap();
    assert_eq!(signed, signature(SECRET.as_bytes(), time_of(&signed), b"{\"a\":1}"));
    assert!(now() - time_of(&signed) < 60, "{signed}: of the time at which it was sent");
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
    let receiver = &delivery.receivers[0];
    let waiting = || receiver.queue.lock().waiting.iter().map(|one| one.body.clone()).collect::<Vec<_>>();
    for (body, replaces) in [("a", true), ("b", false), ("c", true)] {
        delivery.send(Message { replaces, ..message(body) });
    }
    assert_eq!(waiting(), ["b", "c"]);
    (0..QUEUE + 42).for_each(|number| delivery.send(message(&number.to_string())));
    assert_eq!((shown(&delivery, 0, "waiting"), shown(&delivery, 0, "dropped")), (QUEUE as u64, 44));
    assert_eq!((waiting()[0].as_str(), waiting().len()), ("42", QUEUE), "the oldest have gone");
    // One that is being sent counts too, and comes back before the others.
    let first = receiver.queue.lock().waiting.pop_front().unwrap();
    receiver.queue.lock().is_sending = true;
    delivery.send(message("last"));
    assert_eq!((waiting().len(), shown(&delivery, 0, "waiting")), (QUEUE - 1, QUEUE as u64));
    assert!(receiver.put_back(first) && waiting()[0] == "42" && waiting().len() == QUEUE);
    receiver.queue.lock().is_closed = true;
    let list = Message { replaces: true, ..message("old") };
    delivery.send(Message { replaces: true, ..message("new") });
    assert!(!receiver.put_back(list) && !waiting().contains(&"old".to_owned()));
}

/// A listener that takes connections and never answers is as one whose network swallows packets.
#[tokio::test]
async fn a_receiver_that_hangs_has_a_full_queue_and_holds_up_no_other() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (addr, mut told) = receiver(Vec::new()).await;
    let (_file, mut settings) = webhook(format!("http://{}/", silent.local_addr().unwrap()), SECRET);
    settings.to.push(AlertReceiver::Alertmanager { url: format!("http://{addr}") });
    let delivery = begun(&settings);
    (0..QUEUE + 44).for_each(|_| delivery.send(message("x")));
    assert_eq!((shown(&delivery, 0, "waiting"), shown(&delivery, 0, "dropped")), (QUEUE as u64, 44));
    for turn in 0..5 {
        delivery.send(Message { receiver: 1, ..message(&turn.to_string()) });
        assert_eq!(told.recv().await.unwrap().body, turn.to_string());
    }
    assert_eq!((shown(&delivery, 0, "waiting"), shown(&delivery, 0, "sent")), (QUEUE as u64, 0));
    let counts = delivery.counts();
    assert_eq!((counts[0].kind, counts[0].dropped, counts[1].kind), (Kind::Webhook, 44, Kind::Alertmanager));
}

#[tokio::test]
async fn a_receiver_that_answers_byte_by_byte_and_a_name_that_is_gone_are_given_up_and_tried_again() {
    let slow = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (_file, mut settings) = webhook(format!("http://{}/", slow.local_addr().unwrap()), SECRET);
    // No part of a name is so long, so nobody is asked for it.
    let gone = format!("http://{}.invalid", "x".repeat(64));
    settings.to.push(AlertReceiver::Alertmanager { url: gone });
    let delivery = begun_with(&settings, Patience { answers_within: Duration::from_millis(30), ..PATIENCE });
    delivery.send(Message { receiver: 1, ..message("[]") });
    delivery.send(message("x"));
    let mut held = Vec::new();
    // The next attempt is made after the one before was counted.
    for attempt in 0..3 {
        let (stream, _) = slow.accept().await.unwrap();
        stream.writable().await.unwrap();
        assert!(stream.try_write(b"HTTP/1.1 2").is_ok());
        held.push(stream);
        assert!(shown(&delivery, 0, "failed") >= attempt);
    }
    assert_eq!(shown(&delivery, 0, "waiting"), 1, "the one that is being sent");
    while shown(&delivery, 1, "failed") < 2 {
        tokio::task::yield_now().await;
    }
    assert!(!delivery.shown()[1]["error"].as_str().unwrap().is_empty());
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
