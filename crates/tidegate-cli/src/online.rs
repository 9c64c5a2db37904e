//! A client for a running server.

mod events;

use std::fmt::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tidegate::config::{DoorName, Server};
use tidegate_server::Token;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::args::{PolicyKey, Trust, WhichServer};
use crate::exit::Mistake;
use crate::output::Printer;
use crate::policies;

pub(crate) use self::events::{Event, listen};
#[cfg(not(feature = "tls"))]
pub(crate) use absent::Encrypted;
#[cfg(feature = "tls")]
pub(crate) use with_rustls::Encrypted;

/// After this many failures in a row a verb that asks again and again ends: the server is gone, and not only restarted.
pub(crate) const FAILURES: u32 = 5;

/// The timeout for connecting and receiving the whole answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest answer, in bytes. The longest of all is a page of breakers with their keys.
const MAX_ANSWER: usize = 10 << 20;

const USUAL_SERVER: &str = "http://127.0.0.1:8080";

/// The variable that names a server.
const VARIABLE: &str = "TIDEGATE_SERVER";

/// The URL of a server: `http://HOST[:PORT]` or `https://`, optionally with a path before the API's own.
#[derive(Clone, Debug)]
pub(crate) struct ServerUrl {
    url: String,
    /// The TLS settings of an `https://` URL.
    encrypted: Option<Encrypted>,
    /// What named it, in the words of an error, such as ` (the default)`; empty if it was typed.
    named_by: &'static str,
}

impl ServerUrl {
    /// Reads the server that the options of a verb name, otherwise that of the policy file in the current folder,
    /// otherwise the default one.
    pub(crate) fn of(asked: &WhichServer) -> Result<Self> {
        if let Some(said) = asked.server.as_deref() {
            let is_variable = std::env::var(VARIABLE).is_ok_and(|value| value == said);
            let named_by = if is_variable { " (of TIDEGATE_SERVER)" } else { "" };
            return Ok(Self { named_by, ..Self::read(said, &asked.trust)? });
        }
        let file = Path::new(policies::DEFAULT_FILE);
        let (url, named_by) = match file.is_file().then(|| policies::load(file)) {
            // A file with mistakes may be what a server of this machine refuses while it goes on.
            None | Some(Err(_)) => (None, " (the default)"),
            Some(Ok(loaded)) => match loaded.outcome {
                Err(_) => (None, " (the default: tidegate.yaml has mistakes)"),
                Ok((config, _)) => url_of(&config.server),
            },
        };
        // Verbs send a token, which whoever wrote a file in the current folder must not get.
        if let Some(url) = url.as_deref().filter(|url| !is_of_this_machine(url)) {
            let wrong =
                format!("the address{named_by} is of another machine; if you trust it, write --server {url}");
            return Err(Mistake(wrong).into());
        }
        let url = url.unwrap_or_else(|| USUAL_SERVER.to_owned());
        Ok(Self { named_by, ..Self::read(&url, &asked.trust)? })
    }

    /// The URL in `--server` or `TIDEGATE_SERVER`, and for `https://` the files of `--ca` and the related options.
    ///
    /// # Errors
    /// A URL that is not HTTP, with a suggestion; files that cannot be used.
    pub(crate) fn read(text: &str, trust: &Trust) -> Result<Self> {
        let refuse =
            |why: &str| Err(Mistake(format!("the server `{text}` (--server, TIDEGATE_SERVER) {why}")).into());
        let Some((scheme, rest)) = text.split_once("://") else {
            let is_address = text.parse::<Uri>().is_ok_and(|uri| uri.host().is_some());
            let write = if is_address { text } else { "127.0.0.1:8080" };
            return refuse(&format!("is not a URL; write http://{write}"));
        };
        let is_encrypted = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            _ => return refuse("is not an HTTP URL; write one as http://127.0.0.1:8080"),
        };
        let is_whole = text
            .parse::<Uri>()
            .is_ok_and(|uri| uri.host().is_some_and(|host| !host.is_empty()) && uri.query().is_none());
        if !is_whole || rest.contains('#') {
            return refuse("is not a URL of a server; write one as http://127.0.0.1:8080");
        }
        let encrypted =
            if is_encrypted { Some(Encrypted::read(text, trust, Some("http/1.1"))?) } else { None };
        Ok(Self { url: text.trim_end_matches('/').to_owned(), encrypted, named_by: "" })
    }
}

/// The URL for operators of a server with these settings, and which of them names it; `None` if that is a socket or an
/// unknown port.
fn url_of(server: &Server) -> (Option<String>, &'static str) {
    let (address, door, named_by) = match &server.admin {
        Some(admin) => (admin, DoorName::Admin, " (server.admin of tidegate.yaml)"),
        None => (&server.http, DoorName::Http, " (server.http of tidegate.yaml)"),
    };
    let Some(address) = address.tcp().filter(|address| address.port() != 0) else {
        return (None, " (the default: the address of tidegate.yaml cannot be asked)");
    };
    // A server that listens on all addresses is asked on that of this machine alone.
    let host = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let is_encrypted = server.tls.as_ref().is_some_and(|tls| !tls.plain.contains(&door));
    let scheme = if is_encrypted { "https" } else { "http" };
    (Some(format!("{scheme}://{}", SocketAddr::new(host, address.port()))), named_by)
}

/// Whether the host of a URL is an address at which this machine can listen.
fn is_of_this_machine(url: &str) -> bool {
    let host = url.parse::<Uri>().ok().and_then(|uri| uri.host().map(str::to_owned)).unwrap_or_default();
    let ip = host.trim_matches(['[', ']']).parse::<IpAddr>();
    // Nothing is sent.
    ip.is_ok_and(|ip| ip.is_loopback() || UdpSocket::bind((ip, 0)).is_ok())
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

/// The server refused a request.
#[derive(Debug)]
pub(crate) struct RefusedByServer {
    message: String,
    pub(crate) problem: Value,
}

impl fmt::Display for RefusedByServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for RefusedByServer {}

/// Gets a path, or posts JSON to it. An answer that reports a problem becomes the error [`RefusedByServer`].
pub(crate) fn ask(server: &ServerUrl, path: &str, body: Option<&Value>) -> Result<Value> {
    let method = if body.is_some() { Method::POST } else { Method::GET };
    wait(send(server, method, path, body))
}

/// Gets a path; otherwise like [`ask`]. For verbs that can be interrupted while they wait.
pub(crate) async fn get(server: &ServerUrl, path: &str) -> Result<Value> {
    send(server, Method::GET, path, None).await
}

/// Puts JSON to a path; otherwise like [`ask`].
pub(crate) fn put(server: &ServerUrl, path: &str, body: &Value) -> Result<Value> {
    wait(send(server, Method::PUT, path, Some(body)))
}

/// Deletes a path; otherwise like [`ask`].
pub(crate) fn delete(server: &ServerUrl, path: &str) -> Result<Value> {
    wait(send(server, Method::DELETE, path, None))
}

/// Needs no token. A draining server is not ready.
///
/// # Errors
/// If no server answers there, or something else does.
pub(crate) fn is_ready(server: &ServerUrl) -> Result<bool> {
    let url = format!("{server}/readyz");
    let (status, _) = wait(exchange(server, &url, Request::get(&url).body(Full::default())?))?;
    match status.as_u16() {
        200 => Ok(true),
        503 => Ok(false),
        status => bail!("{url} answered {status}, which a Tidegate server never does"),
    }
}

fn wait<T>(answer: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(answer)
}

async fn send(server: &ServerUrl, method: Method, path: &str, body: Option<&Value>) -> Result<Value> {
    let url = format!("{server}{path}");
    let (status, text) = exchange(server, &url, request(&url, method, body)?).await?;
    let answer: Value = serde_json::from_slice(&text).unwrap_or_default();
    if !status.is_success() {
        return Err(refused(&url, status, answer));
    }
    Ok(answer)
}

fn refused(url: &str, status: StatusCode, problem: Value) -> anyhow::Error {
    let words = |key| problem.get(key).and_then(Value::as_str);
    let why = words("detail").or_else(|| words("title")).unwrap_or("no reason given");
    let remedy = if status == StatusCode::UNAUTHORIZED {
        "; the token that is sent is that of TIDEGATE_TOKEN"
    } else {
        ""
    };
    let message = format!("{url} answered {status}: {why}{remedy}");
    RefusedByServer { message, problem }.into()
}

/// Whether asking again would be refused again, such as without a token. A server that answers 503 may be restarting or
/// have too much to do.
pub(crate) fn is_final(error: &anyhow::Error) -> bool {
    error.downcast_ref::<RefusedByServer>().is_some_and(|refused| refused.problem["status"] != 503)
}

/// Asks a path until Ctrl-C is pressed, or as often as wanted, and hands over each answer.
///
/// # Errors
/// Several failures in a row: the server may only be restarting, or have too much to do. A failure before the first answer,
/// the last one, and one that stays ([`is_final`]) end it at once; so does an error of `each`.
pub(crate) fn again(
    server: &ServerUrl,
    path: &str,
    every: Duration,
    times: Option<u64>,
    printer: &Printer,
    mut each: impl FnMut(&Value) -> Result<()>,
) -> Result<()> {
    wait(async {
        let mut turns = interval(every);
        // A late answer does not bring the next one forward.
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // A listener made anew in each turn would miss a Ctrl-C pressed in between.
        let mut pressed = pin!(tokio::signal::ctrl_c());
        let (mut turn, mut failed, mut was_answered) = (0_u64, 0_u32, false);
        loop {
            let answer = tokio::select! {
                answer = async { turns.tick().await; get(server, path).await } => answer,
                _ = &mut pressed => return Ok(()),
            };
            turn += 1;
            let is_last = times.is_some_and(|times| turn >= times);
            match answer {
                Ok(answer) => {
                    (failed, was_answered) = (0, true);
                    each(&answer)?;
                }
                Err(error) => {
                    failed += 1;
                    if is_last || failed == FAILURES || is_final(&error) || !was_answered {
                        return Err(error);
                    }
                    printer.error(&format!("{error:#}"));
                }
            }
            if is_last {
                return Ok(());
            }
        }
    })
}

/// Asks a path until what it answers is as wanted, or the time is over. Returns the last answer.
///
/// # Errors
/// As [`get`].
pub(crate) fn until(
    server: &ServerUrl,
    path: &str,
    every: Duration,
    within: Duration,
    is_wanted: impl Fn(&Value) -> bool,
) -> Result<Value> {
    wait(async {
        let (mut turns, mut over) = (interval(every), pin!(sleep(within)));
        loop {
            let answer = get(server, path).await?;
            if is_wanted(&answer) || over.is_elapsed() {
                return Ok(answer);
            }
            tokio::select! {
                _ = turns.tick() => {}
                () = &mut over => {}
            }
        }
    })
}

/// Whether the server refused the request because the token may not see the names of keys.
pub(crate) fn hides_names(error: &anyhow::Error) -> bool {
    error.downcast_ref::<RefusedByServer>().is_some_and(|refused| refused.problem["status"] == 403)
}

async fn exchange(
    server: &ServerUrl,
    url: &str,
    request: Request<Full<Bytes>>,
) -> Result<(StatusCode, Bytes)> {
    let asked = async {
        let response = answered(server, request).await?;
        let status = response.status();
        let read = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
        let read =
            read.map_err(|error| anyhow!(error)).with_context(|| format!("{url} broke off its answer"))?;
        anyhow::Ok((status, read.to_bytes()))
    };
    let late = || anyhow!("{url} did not answer within {} s", PATIENCE.as_secs());
    timeout(PATIENCE, asked).await.map_err(|_| late())?
}

/// Builds a request; its URI is the whole URL.
fn request(url: &str, method: Method, body: Option<&Value>) -> Result<Request<Full<Bytes>>> {
    let mut request = Request::builder().method(method).uri(url);
    if let Some(token) = Token::from_env().map_err(|error| Mistake(error.to_string()))? {
        request = request.header(AUTHORIZATION, format!("Bearer {}", token.secret()));
    }
    if body.is_some() {
        request = request.header(CONTENT_TYPE, "application/json");
    }
    let body = body.map(ToString::to_string).unwrap_or_default();
    Ok(request.body(Full::new(Bytes::from(body)))?)
}

/// Returns the head of the answer, with the body still to be read.
async fn answered(server: &ServerUrl, request: Request<Full<Bytes>>) -> Result<Response<Incoming>> {
    let nobody = || {
        let by = server.named_by;
        format!(
            "no server answers at {server}{by}; start one with `tidegate serve`, or name it with --server"
        )
    };
    let host = request.uri().host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let usual = if server.encrypted.is_some() { 443 } else { 80 };
    let port = request.uri().port_u16().unwrap_or(usual);
    let stream = TcpStream::connect((&*host, port)).await.with_context(nobody)?;
    match &server.encrypted {
        None => send_over(stream, request).await.map_err(|error| {
            if error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse) {
                return anyhow!(
                    "what answers at {server} does not speak HTTP; name the address of the server's --http or --admin, \
                     with https:// if it uses TLS"
                );
            }
            error.context(nobody())
        }),
        Some(encrypted) => {
            let stream = encrypted.connect(&host, stream).await.map_err(|error| {
                if is_unencrypted(&error) {
                    let plain = server.url.replacen("https://", "http://", 1);
                    return anyhow!("what answers at {server} does not speak TLS; write {plain}");
                }
                error.context(format!("{server}: the TLS handshake failed; --ca names the authorities for the server's certificate, --client-cert the client's certificate"))
            })?;
            // In TLS 1.3 a server rejects a client's certificate only after the handshake.
            let asked = send_over(stream, request).await;
            asked.with_context(|| format!("{server} closed the connection; it may want another certificate (--client-cert, --client-key)"))
        }
    }
}

/// The answer was no TLS.
fn is_unencrypted(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|io| io.to_string().contains("InvalidContentType"))
}

async fn send_over(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    mut request: Request<Full<Bytes>>,
) -> Result<Response<Incoming>> {
    let url = request.uri().clone();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // If it fails, the request fails with the reason.
    drop(tokio::spawn(connection));
    let authority = url.authority().map_or("", |authority| authority.as_str());
    let host = authority.rsplit('@').next().unwrap_or(authority).to_owned();
    request.headers_mut().insert(HOST, host.try_into()?);
    *request.uri_mut() = url.path_and_query().map(ToString::to_string).unwrap_or_default().parse::<Uri>()?;
    Ok(sender.send_request(request).await?)
}

/// The attributes of a key; empty if there are none.
pub(crate) fn query(which: &PolicyKey) -> String {
    let mut query = String::new();
    for (at, (name, value)) in which.key.iter().enumerate() {
        let sign = if at == 0 { '?' } else { '&' };
        let _ = write!(query, "{sign}{}={}", encoded(name), encoded(value));
    }
    query
}

/// Encodes a text for any part of a URL. Outside the query a plus would not mean a space.
pub(crate) fn encoded(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>().replace('+', "%20")
}

/// Adds how long a change lasts, and why it was made, as far as the options say so.
pub(crate) fn with_end(mut body: Value, lasts: Option<&str>, reason: Option<&str>) -> Value {
    for (name, said) in [("for", lasts), ("reason", reason)] {
        if let Some(said) = said {
            body[name] = said.into();
        }
    }
    body
}

/// If the error is about the key, adds the options that select one.
pub(crate) fn with_options(error: anyhow::Error) -> anyhow::Error {
    let problem = error.downcast_ref::<RefusedByServer>().map_or(&Value::Null, |refused| &refused.problem);
    match options(&problem["key"]) {
        Some(options) => anyhow!("{error}; write {options}"),
        None => error,
    }
}

/// A key which is made of these attributes.
pub(crate) fn options(attributes: &Value) -> Option<String> {
    let names = attributes.as_array()?.iter().filter_map(Value::as_str);
    let words: Vec<String> = names.map(|name| format!("--key {name}=...")).collect();
    (!words.is_empty()).then(|| words.join(" "))
}

// How the server's certificate is checked, and which certificate is sent to it.

#[cfg(feature = "tls")]
mod with_rustls {
    use std::path::Path;
    use std::sync::Arc;

    use anyhow::{Context as _, Result};
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    use rustls::{ClientConfig, RootCertStore};
    use tidegate::config::read_file;
    use tokio::net::TcpStream;
    use tokio_rustls::TlsConnector;
    use tokio_rustls::client::TlsStream;

    use crate::args::Trust;
    use crate::exit::Mistake;
    use crate::policies;

    /// A system's public certificates take a quarter of a megabyte.
    const MOST: u64 = 4 << 20;

    #[derive(Clone, Debug)]
    pub(crate) struct Encrypted(Arc<ClientConfig>);

    impl Encrypted {
        /// The files for the server at this URL. `protocol` is the ALPN name of the protocol spoken with it.
        ///
        /// # Errors
        /// Files that are not named, cannot be read, or lack the expected contents.
        pub(crate) fn read(url: &str, trust: &Trust, protocol: Option<&str>) -> Result<Self> {
            let Some(ca) = &trust.ca else {
                let wrong = format!(
                    "the server `{url}` uses TLS, and its certificate cannot be checked without --ca FILE (TIDEGATE_CA); name \
                     a file with that certificate, or with its authority's"
                );
                return Err(Mistake(wrong).into());
            };
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(all::<CertificateDer<'_>>(ca, "--ca", "certificate")?);
            if roots.is_empty() {
                let wrong = format!("--ca: {} holds no certificate that can be used", ca.display());
                return Err(Mistake(wrong).into());
            }
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let builder = ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()?
                .with_root_certificates(roots);
            let mut config = match (&trust.client_cert, &trust.client_key) {
                (None, None) => builder.with_no_client_auth(),
                (Some(cert), Some(key)) => {
                    let chain = all::<CertificateDer<'_>>(cert, "--client-cert", "certificate")?;
                    let key = all::<PrivateKeyDer<'_>>(key, "--client-key", "private key")?.remove(0);
                    builder.with_client_auth_cert(chain, key).map_err(|error| {
                        Mistake(format!("--client-cert {} and --client-key: {error}", cert.display()))
                    })?
                }
                _ => {
                    let wrong = "--client-cert and --client-key go together; name both";
                    return Err(Mistake(wrong.to_owned()).into());
                }
            };
            config.alpn_protocols = protocol.into_iter().map(|name| name.as_bytes().to_vec()).collect();
            Ok(Self(Arc::new(config)))
        }

        /// Performs the handshake with a server of this name.
        ///
        /// # Errors
        /// The reason why the server's certificate, or this client's own, was rejected.
        pub(crate) async fn connect(&self, host: &str, stream: TcpStream) -> Result<TlsStream<TcpStream>> {
            let name = ServerName::try_from(host.to_owned()).context("no name that a certificate has")?;
            Ok(TlsConnector::from(Arc::clone(&self.0)).connect(name, stream).await?)
        }
    }

    /// Reads all PEM sections of one kind from a file, at least one. Errors never quote the file.
    fn all<T: PemObject>(path: &Path, flag: &str, what: &str) -> Result<Vec<T>> {
        let read = policies::patiently(path, |path| read_file(path, MOST))?;
        let text = read.map_err(|why| anyhow::anyhow!("{flag}: {} {why}", path.display()))?;
        let found: Vec<T> = T::pem_slice_iter(&text).filter_map(Result::ok).collect();
        if found.is_empty() {
            return Err(Mistake(format!("{flag}: {} holds no {what} in PEM", path.display())).into());
        }
        Ok(found)
    }
}

#[cfg(not(feature = "tls"))]
mod absent {
    use anyhow::Result;
    use tokio::net::TcpStream;

    use crate::args::Trust;
    use crate::exit::Mistake;
    use crate::features::Feature;

    /// None exist in a build without TLS.
    #[derive(Clone, Debug)]
    pub(crate) enum Encrypted {}

    impl Encrypted {
        pub(crate) fn read(url: &str, _: &Trust, _: Option<&str>) -> Result<Self> {
            let wrong = format!(
                "the server `{url}` uses TLS; {}, or use an http:// address on the server's own machine",
                Feature::Tls.lacking()
            );
            Err(Mistake(wrong).into())
        }

        pub(crate) async fn connect(&self, _: &str, _: TcpStream) -> Result<TcpStream> {
            match *self {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_names_the_address_for_operators() {
        let settings = |http: &str, admin: Option<&str>| {
            let admin = admin.map(|admin| admin.parse().unwrap());
            // The settings cannot be built from outside of their crate.
            let mut server = Server::default();
            (server.http, server.admin) = (http.parse().unwrap(), admin);
            server
        };
        for (http, admin, url) in [
            ("127.0.0.1:8080", None, Some("http://127.0.0.1:8080")),
            ("0.0.0.0:80", Some("10.0.0.5:9090"), Some("http://10.0.0.5:9090")),
            ("0.0.0.0:80", None, Some("http://127.0.0.1:80")),
            ("[::]:80", None, Some("http://[::1]:80")),
            ("127.0.0.1:0", None, None),
            ("127.0.0.1:80", Some("unix:/run/t.sock"), None),
        ] {
            assert_eq!(url_of(&settings(http, admin)).0.as_deref(), url, "{http} {admin:?}");
        }
        let mut server = settings("127.0.0.1:80", Some("127.0.0.1:81"));
        let mut tls = tidegate::config::TlsSettings::new("cert.pem", "key.pem");
        server.tls = Some(tls.clone());
        assert_eq!(url_of(&server).0.as_deref(), Some("https://127.0.0.1:81"));
        tls.plain.push(DoorName::Admin);
        server.tls = Some(tls);
        assert_eq!(url_of(&server).0.as_deref(), Some("http://127.0.0.1:81"));
    }

    #[test]
    fn a_file_names_no_server_of_another_machine() {
        for (url, is_own) in [
            ("http://127.0.0.1:80", true),
            ("http://127.9.9.9:80", true),
            ("https://[::1]:80", true),
            ("http://192.0.2.5:80", false),
            ("http://[2001:db8::5]:80", false),
            ("http://tidegate.example", false),
        ] {
            assert_eq!(is_of_this_machine(url), is_own, "{url}");
        }
    }
}
