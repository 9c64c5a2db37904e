//! Bodies that a real server sends.

use super::*;

/// Over a real connection of axum: a body whose length the head tells is dropped by the server once it is sent, and that
/// is no broken stream; one whose reader hangs up is.
#[tokio::test]
async fn a_server_of_axum_tells_ended_bodies_from_readers_that_hang_up() {
    use axum::Router;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    let (ends, places) = (Ends::default(), Bulkhead::new(8).unwrap());
    let layer =
        ConcurrencyLayer::new("streams", places.clone()).with_observer(ends.clone()).until_body_ends();
    let deadline = DeadlineLayer::within(60 * SECOND, 60 * SECOND).unwrap().until_body_ends();
    let sized = get(async || {
        let script = Script::of([Says::Data(b"12345"), Says::Data(b"67890"), Says::Waits]);
        Response::builder().header("content-length", "10").body(axum::body::Body::new(script)).unwrap()
    });
    let endless = get(async || axum::body::Body::new(Script::of([Says::Data(b"1"), Says::Waits])));
    let app = Router::new().route("/sized", sized).route("/endless", endless);
    let app = app.layer(ServerStack::new().deadline(deadline).concurrency(layer));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move { axum::serve(listener, app).await });

    let answer = crate::layers::over_the_wire::ask(server, "/sized", "").await;
    assert!(answer.ends_with("1234567890"), "{answer}");
    let mut hangs_up = TcpStream::connect(server).await.unwrap();
    hangs_up.write_all(b"GET /endless HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut begun = [0; 12];
    hangs_up.read_exact(&mut begun).await.unwrap();
    assert_eq!(places.standing().remaining, 7, "its stream goes on");
    drop(hangs_up);
    while places.standing().remaining < 8 {
        tokio::task::yield_now().await;
    }
    assert_eq!(ends.all(), [Outcome::Success, Outcome::Ignored]);
    serving.abort();
}
