//! A client for a running server.

pub(crate) mod encrypted;
pub(crate) mod policy_key;

use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tidegate_server::Token;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use self::encrypted::Encrypted;
use crate::args::{Trust, WhichServer};
use crate::exit::Mistake;

/// The timeout for connecting and receiving the whole answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest answer, in bytes. The longest of all is a page of breakers with their keys.
const MAX_ANSWER: usize = 10 << 20;

/// The server that is used by default.
pub(crate) const USUAL_SERVER: &str = "http://127.0.0.1:8080";

/// The URL of a server: `http://HOST[:PORT]` or `https://`, optionally with a path before the API's own.
#[derive(Clone, Debug)]
pub(crate) struct ServerUrl {
    url: String,
    /// The TLS settings of an `https://` URL.
    encrypted: Option<Encrypted>,
}

impl ServerUrl {
    /// Reads the server that the options of a verb name, otherwise the default one.
    ///
    /// # Errors
    /// Those of [`Self::read`].
    pub(crate) fn of(asked: &WhichServer) -> Result<Self> {
        Self::read(asked.server.as_deref().unwrap_or(USUAL_SERVER), &asked.trust)
    }

    /// Parses the URL in `--server` or `TIDEGATE_SERVER`, and for `https://` reads the files of `--ca` and the
    /// related options.
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
        Ok(Self { url: text.trim_end_matches('/').to_owned(), encrypted })
    }
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
    /// The problem document of the answer; null if it has none.
    pub(crate) problem: Value,
}

impl fmt::Display for RefusedByServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for RefusedByServer {}

/// Gets a path, or posts JSON to it, and returns the JSON of the answer. An answer that reports a problem becomes
/// the error [`RefusedByServer`].
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

/// Says whether a server is ready for requests. Needs no token. A draining server is not ready.
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

/// Waits for an answer.
fn wait<T>(answer: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(answer)
}

async fn send(server: &ServerUrl, method: Method, path: &str, body: Option<&Value>) -> Result<Value> {
    let url = format!("{server}{path}");
    let (status, text) = exchange(server, &url, request(&url, method, body)?).await?;
    let answer: Value = serde_json::from_slice(&text).unwrap_or_default();
    if !status.is_success() {
        let words = |key| answer.get(key).and_then(Value::as_str);
        let why = words("detail").or_else(|| words("title")).unwrap_or("no reason given");
        let remedy = if status == StatusCode::UNAUTHORIZED {
            "; the token that is sent is that of TIDEGATE_TOKEN"
        } else {
            ""
        };
        let message = format!("{url} answered {status}: {why}{remedy}");
        return Err(RefusedByServer { message, problem: answer }.into());
    }
    Ok(answer)
}

/// Sends a request, and returns the status and the body of its answer.
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

/// Connects and sends a request. Returns the head of the answer, with the body still to be read.
async fn answered(server: &ServerUrl, request: Request<Full<Bytes>>) -> Result<Response<Incoming>> {
    let nobody = || {
        format!("no server answers at {server}; start one with `tidegate serve`, or name it with --server")
    };
    let host = request.uri().host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let usual = if server.encrypted.is_some() { 443 } else { 80 };
    let port = request.uri().port_u16().unwrap_or(usual);
    let stream = TcpStream::connect((&*host, port)).await.with_context(nobody)?;
    match &server.encrypted {
        None => send_over(stream, request).await.with_context(nobody),
        Some(encrypted) => {
            let stream = encrypted.connect(&host, stream).await.with_context(|| {
                format!("{server}: the TLS handshake failed; --ca names the authorities for the server's certificate, --client-cert the client's certificate")
            })?;
            // In TLS 1.3 a server rejects a client's certificate only after the handshake.
            let asked = send_over(stream, request).await;
            asked.with_context(|| format!("{server} closed the connection; it may want another certificate (--client-cert, --client-key)"))
        }
    }
}

/// Sends a request over a connection.
async fn send_over(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    mut request: Request<Full<Bytes>>,
) -> Result<Response<Incoming>> {
    let url = request.uri().clone();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // The task ends with the answer; if it fails, the request fails with the reason.
    drop(tokio::spawn(connection));
    let authority = url.authority().map_or("", |authority| authority.as_str());
    let host = authority.rsplit('@').next().unwrap_or(authority).to_owned();
    request.headers_mut().insert(HOST, host.try_into()?);
    *request.uri_mut() = url.path_and_query().map(ToString::to_string).unwrap_or_default().parse::<Uri>()?;
    Ok(sender.send_request(request).await?)
}
