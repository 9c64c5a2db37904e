//! One connection to the server, in any of the protocols.

use std::fmt::{self, Debug};
use std::io;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use tidegate_server::Token;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::http::HttpClient;
use super::question::Question;
use super::resp::RespClient;
use super::target::{Protocol, Target};
use crate::args::Trust;
use crate::exit::Mistake;
use crate::online::Encrypted;

#[cfg(feature = "grpc")]
use super::grpc::GrpcClient;

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
