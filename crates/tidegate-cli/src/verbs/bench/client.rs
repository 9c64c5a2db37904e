//! One connection to the server, in any of the protocols. Envoy's rate limit service is asked by `grpc`.

use std::fmt::{self, Debug};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use anyhow::{Context as _, Result};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use redis_protocol::resp2::decode::decode;
use redis_protocol::resp2::encode::encode;
use redis_protocol::resp2::types::{OwnedFrame, Resp2Frame as _};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tidegate_server::Token;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;

#[cfg(feature = "grpc")]
use super::grpc::GrpcClient;
use super::question::Question;
use super::target::{Protocol, Target};
use crate::args::Trust;
use crate::exit::Mistake;
use crate::online::Encrypted;

#[derive(Debug)]
pub(super) struct Dial {
    pub(super) target: Target,
    pub(super) question: Question,
    token: Option<Token>,
    encrypted: Option<Encrypted>,
}

#[derive(Debug)]
pub(super) enum Client {
    Http(HttpClient),
    #[cfg(feature = "grpc")]
    Grpc(GrpcClient),
    Resp(RespClient),
}

impl Dial {
    /// The token is in the environment.
    ///
    /// # Errors
    /// A token or a file that cannot be used.
    pub(super) fn new(target: Target, question: Question, trust: &Trust) -> Result<Self> {
        let protocol = match target.protocol {
            Protocol::Http => Some("http/1.1"),
            Protocol::Grpc => Some("h2"),
            Protocol::Resp => None,
        };
        let encrypted = target.encrypted.then(|| Encrypted::read(&target.to_string(), trust, protocol));
        let encrypted = encrypted.transpose()?;
        let token = Token::from_env().map_err(|error| Mistake(error.to_string()))?;
        Ok(Self { target, question, token, encrypted })
    }

    /// Connects.
    ///
    /// # Errors
    /// Why the connection could not be made.
    pub(super) async fn connect(&self) -> Result<Client> {
        let stream = TcpStream::connect((self.target.host.as_str(), self.target.port)).await?;
        stream.set_nodelay(true)?;
        let stream: Box<dyn Stream> = match &self.encrypted {
            None => Box::new(stream),
            Some(encrypted) => {
                let shaken = encrypted.connect(&self.target.host, stream).await;
                Box::new(shaken.context(
                    "the TLS handshake failed; --ca names the authorities for the server's certificate",
                )?)
            }
        };
        let token = self.token.as_ref().map(Token::secret);
        Ok(match self.target.protocol {
            Protocol::Http => Client::Http(HttpClient::over(stream, &self.target, token).await?),
            #[cfg(feature = "grpc")]
            Protocol::Grpc => Client::Grpc(GrpcClient::over(stream, &self.target, token).await?),
            #[cfg(not(feature = "grpc"))]
            Protocol::Grpc => anyhow::bail!("built without gRPC"),
            Protocol::Resp => Client::Resp(RespClient::over(stream, token).await.context("AUTH")?),
        })
    }
}

impl Client {
    /// A server may close an idle connection; asks must not be sent over it then.
    pub(super) fn is_open(&mut self) -> bool {
        match self {
            Self::Http(client) => client.is_open(),
            #[cfg(feature = "grpc")]
            Self::Grpc(client) => client.is_open(),
            Self::Resp(client) => client.is_open(),
        }
    }

    /// Asks for a key.
    ///
    /// # Errors
    /// If the connection cannot be used any more.
    ///
    /// # Cancel safety
    /// Not cancel safe: after cancelling, drop the connection.
    pub(super) async fn ask(&mut self, question: &Question, key: u32) -> io::Result<Answer> {
        match self {
            Self::Http(client) => client.ask(question.body(key)).await,
            #[cfg(feature = "grpc")]
            Self::Grpc(client) => {
                let (domain, entries, cost) = question.envoy(key);
                client.ask(domain, entries, cost).await
            }
            Self::Resp(client) => client.ask(&question.words(key), question.throttle.is_some()).await,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) fate: Fate,
    /// The status, or a word for the error.
    pub(super) code: Code,
    /// No policy limits the ask; only answers over HTTP tell.
    pub(super) is_unlimited: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Allowed,
    Denied,
    /// Answered without a decision.
    Failed,
    /// Sent, but unknown whether it was decided.
    Lost,
    Unsent,
}

/// An HTTP status, or a word.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Code {
    Status(u16),
    Word(Arc<str>),
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "{status}"),
            Self::Word(word) => f.write_str(word),
        }
    }
}

impl Answer {
    pub(super) fn word(fate: Fate, word: &str) -> Self {
        Self { fate, code: Code::Word(word.into()), is_unlimited: false }
    }
}

pub(super) trait Stream: AsyncRead + AsyncWrite + Debug + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Debug + Send + Unpin> Stream for S {}

// Asks `POST /v1/check` over an HTTP/1.1 connection.

/// The longest answer that is read, in bytes: far longer than a check of 64 policies gives, or any other answer.
const MAX_ANSWER: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct HttpClient {
    sender: SendRequest<Full<Bytes>>,
    host: HeaderValue,
    path: Uri,
    authorization: Option<HeaderValue>,
}

/// What distinguishes a decision from a failure.
#[derive(Debug, Deserialize)]
struct Decided {
    decision: Option<String>,
    policies: Option<Vec<IgnoredAny>>,
}

impl HttpClient {
    /// Performs the handshake over a stream.
    ///
    /// # Errors
    /// If the host, the path or the token does not fit a header.
    async fn over(stream: Box<dyn Stream>, target: &Target, token: Option<&str>) -> Result<Self> {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // If it fails, the request fails with the reason.
        drop(tokio::spawn(connection));
        let bearer = token.map(|token| HeaderValue::try_from(format!("Bearer {token}"))).transpose();
        Ok(Self {
            sender,
            host: HeaderValue::try_from(target.authority())?,
            path: Uri::try_from(format!("{}/v1/check", target.prefix))?,
            authorization: bearer.context("TIDEGATE_TOKEN")?,
        })
    }

    fn is_open(&self) -> bool {
        !self.sender.is_closed()
    }

    /// Sends an ask with this body.
    ///
    /// # Errors
    /// If the connection broke.
    async fn ask(&mut self, body: String) -> io::Result<Answer> {
        let mut request = Request::new(Full::new(Bytes::from(body)));
        *request.method_mut() = hyper::Method::POST;
        *request.uri_mut() = self.path.clone();
        let headers = request.headers_mut();
        headers.insert(HOST, self.host.clone());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(authorization) = &self.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        self.sender.ready().await.map_err(io::Error::other)?;
        let response = self.sender.send_request(request).await.map_err(io::Error::other)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
        let body = body.map_err(io::Error::other)?.to_bytes();
        Ok(http_answer(status, &body))
    }
}

/// A denial and an error may have any status from 400 on, but only a denial contains its decision.
fn http_answer(status: StatusCode, body: &[u8]) -> Answer {
    let decided = serde_json::from_slice::<Decided>(body).ok();
    let is_unlimited =
        decided.as_ref().is_some_and(|decided| decided.policies.as_ref().is_some_and(Vec::is_empty));
    let decision = decided.and_then(|decided| decided.decision);
    let fate = match decision.as_deref() {
        Some("allowed" | "delayed") if status == StatusCode::OK => Fate::Allowed,
        Some("denied") if status.as_u16() >= 400 => Fate::Denied,
        _ => Fate::Failed,
    };
    Answer { fate, code: Code::Status(status.as_u16()), is_unlimited }
}

// Asks `TG.CHECK` or `CL.THROTTLE` over a connection with the Redis protocol.

/// The longest word of an error that counts as its code.
const MAX_WORD: usize = 24;

#[derive(Debug)]
pub(super) struct RespClient {
    stream: Box<dyn Stream>,
    /// The bytes read that do not form a whole answer yet.
    read: Vec<u8>,
}

impl RespClient {
    /// Authenticates with the token, if there is one.
    ///
    /// # Errors
    /// If the server rejects it.
    async fn over(stream: Box<dyn Stream>, token: Option<&str>) -> io::Result<Self> {
        let mut client = Self { stream, read: Vec::new() };
        if let Some(token) = token {
            let said = client.exchange(&["AUTH".to_owned(), token.to_owned()]).await?;
            if let OwnedFrame::Error(error) = said {
                return Err(io::Error::other(error));
            }
        }
        Ok(client)
    }

    /// Says whether the connection is open. Between two asks, the only thing to read is its end.
    fn is_open(&mut self) -> bool {
        let (mut byte, mut nobody) = ([0], Context::from_waker(Waker::noop()));
        Pin::new(&mut self.stream).poll_read(&mut nobody, &mut ReadBuf::new(&mut byte)).is_pending()
    }

    /// Sends a command; `is_throttle` tells whether it is `CL.THROTTLE` or `TG.CHECK`.
    ///
    /// # Errors
    /// If the connection broke, or the answer is invalid.
    async fn ask(&mut self, words: &[String], is_throttle: bool) -> io::Result<Answer> {
        Ok(resp_answer(&self.exchange(words).await?, is_throttle))
    }

    async fn exchange(&mut self, words: &[String]) -> io::Result<OwnedFrame> {
        let words = words.iter().map(|word| OwnedFrame::BulkString(word.clone().into_bytes()));
        let command = OwnedFrame::Array(words.collect());
        let mut bytes = vec![0; command.encode_len(false)];
        let length = encode(&mut bytes, &command, false).map_err(io::Error::other)?;
        self.stream.write_all(&bytes[..length]).await?;
        loop {
            if let Some((frame, took)) = decode(&self.read).map_err(io::Error::other)? {
                self.read.drain(..took);
                return Ok(frame);
            }
            if self.read.len() > MAX_ANSWER {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "too long an answer"));
            }
            if self.stream.read_buf(&mut self.read).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

/// The first number of `TG.CHECK` tells whether the ask is allowed, that of `CL.THROTTLE` whether it is denied.
fn resp_answer(frame: &OwnedFrame, is_throttle: bool) -> Answer {
    let first = match frame {
        OwnedFrame::Array(parts) => parts.first(),
        other => Some(other),
    };
    match (frame, first) {
        (OwnedFrame::Array(_), Some(OwnedFrame::Integer(number @ (0 | 1)))) => {
            let allowed = (*number == 1) != is_throttle;
            let (fate, word) = if allowed { (Fate::Allowed, "allowed") } else { (Fate::Denied, "denied") };
            Answer::word(fate, word)
        }
        (OwnedFrame::Error(text), _) => {
            // The first word is the code, as in `NOAUTH Authentication required`.
            let word = text.split(' ').next().unwrap_or_default();
            let is_name = word.len() <= MAX_WORD && word.bytes().all(|byte| byte.is_ascii_alphanumeric());
            Answer::word(Fate::Failed, if is_name { word } else { "ERR" })
        }
        _ => Answer::word(Fate::Failed, "not an answer"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_from_an_error_by_its_decision() {
        let problem = br#"{"type":"about:blank","status":503,"detail":"too many connections"}"#;
        for (status, body, wanted) in [
            (200, &br#"{"decision":"allowed","policies":[{}]}"#[..], Fate::Allowed),
            (200, br#"{"decision":"delayed"}"#, Fate::Allowed),
            (429, br#"{"title":"Quota exceeded","decision":"denied"}"#, Fate::Denied),
            (503, br#"{"decision":"denied"}"#, Fate::Denied),
            (503, problem, Fate::Failed),
            (429, b"", Fate::Failed),
            (200, b"<html>", Fate::Failed),
            (200, br#"{"decision":"denied"}"#, Fate::Failed),
        ] {
            assert_eq!(http_answer(StatusCode::from_u16(status).unwrap(), body).fate, wanted, "{status}");
        }
        let is_unlimited = |body: &[u8]| http_answer(StatusCode::OK, body).is_unlimited;
        assert!(is_unlimited(br#"{"decision":"allowed","policies":[]}"#));
        assert!(!is_unlimited(br#"{"decision":"allowed","policies":[{}]}"#) && !is_unlimited(b"{}"));
    }

    #[test]
    fn the_two_commands_say_opposite_things() {
        let parts = |number| OwnedFrame::Array(vec![OwnedFrame::Integer(number), OwnedFrame::Integer(5)]);
        assert_eq!(resp_answer(&parts(1), false).fate, Fate::Allowed);
        assert_eq!(resp_answer(&parts(0), false).fate, Fate::Denied);
        assert_eq!(resp_answer(&parts(0), true).fate, Fate::Allowed);
        assert_eq!(resp_answer(&parts(1), true).fate, Fate::Denied);
        assert_eq!(resp_answer(&parts(7), true).fate, Fate::Failed);
        let error = OwnedFrame::Error("NOAUTH Authentication required".to_owned());
        assert_eq!(resp_answer(&error, false), Answer::word(Fate::Failed, "NOAUTH"));
        assert_eq!(resp_answer(&OwnedFrame::Error("\u{1b}[2J x".to_owned()), false).code.to_string(), "ERR");
        assert_eq!(resp_answer(&OwnedFrame::Null, false).fate, Fate::Failed);
    }
}
