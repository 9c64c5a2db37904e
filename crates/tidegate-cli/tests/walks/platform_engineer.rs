//! A platform engineer starts with `init`, puts the server behind a proxy, finds that all callers share one limit,
//! follows the log's advice, and sees each caller limited separately; then breaks the file, fixes it, and stops the
//! server.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;

use crate::walks::proxy::{FAILS_OPEN, NAMES_THE_POLICY, Proxy};
use crate::walks::run;
use crate::walks::serving::{Desk, Serving, end_of};

/// An answer as a caller sees it.
#[derive(Debug)]
struct Answer {
    status: u16,
    text: String,
}

/// Requests the site's limited page from another loopback address, as a separate caller.
fn get_from(client: u8, proxy: SocketAddr) -> Answer {
    let ask = async {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from(([127, 0, 0, client], 0)))?;
        let mut stream = socket.connect(proxy).await?;
        stream
            .write_all(b"GET /api/thing HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\n\r\n")
            .await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let answer = runtime.block_on(ask).unwrap();
    let text = String::from_utf8_lossy(&answer).into_owned();
    Answer { status: text.get(9..12).and_then(|status| status.parse().ok()).unwrap_or_default(), text }
}

fn statuses(clients: &[u8], proxy: SocketAddr) -> Vec<u16> {
    clients.iter().map(|client| get_from(*client, proxy).status).collect()
}

/// Replaces a text in the policy file, which must contain it.
#[track_caller]
fn edit(desk: &Desk, from: &str, to: &str) {
    let path = desk.path("tidegate.yaml");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "the file of `init` no longer says `{from}`:\n{text}");
    std::fs::write(path, text.replacen(from, to, 1)).unwrap();
}

/// The first hour up to the stop of the server, which differs by proxy.
fn first_hour(
    proxy_name: &str,
    start_proxy: impl FnOnce(SocketAddr) -> Option<Proxy>,
) -> Option<(Desk, Serving, Proxy)> {
    let desk = Desk::with("");
    let (code, told) = run(&desk, "init");
    assert_eq!(code, 0, "{told}");
    assert!(told.contains("tidegate config check tidegate.yaml"), "it says what to do next: {told}");
    let (code, told) = run(&desk, "config check");
    assert_eq!(code, 0, "what `init` writes is right: {told}");

    edit(&desk, "rate: 100/s, burst: 200", "rate: 3/day");
    edit(&desk, "# forward_auth: { proxy: nginx }", &format!("forward_auth: {{ proxy: {proxy_name} }}"));
    let serving = Serving::start(desk.command(&["serve", "--http", "127.0.0.1:0"]));
    let proxy = start_proxy(serving.addr)?;

    // No proxy is trusted yet: the three callers share the proxy's limit, and the log says so.
    assert_eq!(statuses(&[2, 3, 4, 4], proxy.addr), [200, 200, 200, 429]);
    let line = serving.hears("all callers share one key");
    assert!(line.contains("trusted_proxies: ['127.0.0.1']"), "the line says what to write: {line}");
    edit(&desk, "# trusted_proxies: [10.0.0.0/8]", "trusted_proxies: ['127.0.0.1']");
    serving.hears("configuration reloaded");
    assert_eq!(statuses(&[2, 2, 2, 3], proxy.addr), [200; 4], "each has a limit of his own");
    let denied = get_from(2, proxy.addr);
    assert_eq!(denied.status, 429, "{denied:?}");
    let head = denied.text.to_ascii_lowercase();
    assert!(head.contains("retry-after: ") && head.contains("\"per-ip\";r=0;t="), "{denied:?}");
    assert!(
        denied.text.contains("\"violated-policies\":[\"per-ip\"]"),
        "the body names the policy: {denied:?}"
    );
    assert!(!denied.text.contains("127.0.0."), "no address of anybody: {denied:?}");
    assert_eq!(get_from(3, proxy.addr).status, 200, "and nobody else is refused");

    // A policy file lies in this folder, but the named server is asked.
    let server = format!("--server http://{}", serving.addr);
    let (code, told) =
        run(&desk, &format!("explain {server} --attr client.ip=127.0.0.2 --attr request.path=/api/thing"));
    assert_eq!(code, 1, "{told}");
    assert!(told.starts_with("DENIED by per-ip") && told.contains(&serving.addr.to_string()), "{told}");

    // A mistake: the old policies stay in force, and the check suggests a valid rate.
    edit(&desk, "rate: 3/day", "rate: 10rps");
    serving.hears("the old one stays in force");
    let (code, told) = run(&desk, "config check");
    assert!(code == 2 && told.contains("10/s"), "{code}: {told}");
    assert_eq!(statuses(&[2, 5], proxy.addr), [429, 200]);
    edit(&desk, "rate: 10rps", "rate: 5/day");
    serving.hears("configuration reloaded");
    assert_eq!(
        statuses(&[2, 2, 2], proxy.addr),
        [200, 200, 429],
        "what was spent counts under the new limit"
    );
    Some((desk, serving, proxy))
}

fn stop(mut serving: Serving) {
    serving.signal("TERM");
    assert!(end_of(&mut serving.child).success(), "it ends in order");
}

#[test]
fn beside_nginx() {
    let recipes = [FAILS_OPEN, NAMES_THE_POLICY];
    let Some((_desk, serving, nginx)) = first_hour("nginx", |addr| Proxy::nginx_by_recipes(addr, &recipes))
    else {
        return;
    };
    stop(serving);
    assert_eq!(get_from(2, nginx.addr).status, 200, "by the recipe that lets requests pass");
}

#[test]
fn beside_caddy() {
    let Some((_desk, serving, caddy)) = first_hour("caddy", Proxy::caddy) else { return };
    stop(serving);
    assert_eq!(get_from(2, caddy.addr).status, 502, "as the manual says of Caddy");
}
