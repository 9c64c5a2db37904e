//! A client over plain HTTP/2, which sends any bytes.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use h2::client::{ResponseFuture, SendRequest};
use http::{Method, Request, StatusCode};
use prost::Message;
use tokio::net::TcpStream;

pub(crate) const RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Far longer than anything here takes.
const FOREVER: Duration = Duration::from_secs(30);

/// A complete answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) http: StatusCode,
    /// `grpc-status`, from headers or trailers.
    pub(crate) code: Option<u16>,
    pub(crate) message: String,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    /// Decodes the message of a successful call.
    #[track_caller]
    pub(crate) fn answer(&self) -> RateLimitResponse {
        assert_eq!(self.code, Some(0), "{self:?}");
        RateLimitResponse::decode(&self.body[5..]).unwrap()
    }
}

/// A connection.
#[derive(Clone)]
pub(crate) struct Client(SendRequest<Bytes>);

impl Client {
    pub(crate) async fn connect(to: SocketAddr) -> Self {
        let stream = TcpStream::connect(to).await.unwrap();
        let (client, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(async move { drop(connection.await) });
        Self(client)
    }

    /// Sends the head of a call. Returns the stream for its body.
    pub(crate) async fn begin(
        &mut self,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Result<(ResponseFuture, h2::SendStream<Bytes>), h2::Error> {
        let mut request = Request::builder().method(Method::POST).uri(format!("http://localhost{path}"));
        if !headers.iter().any(|(name, _)| *name == "content-type") {
            request = request.header("content-type", "application/grpc");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut ready = tokio::time::timeout(FOREVER, self.0.clone().ready()).await.expect("ready")?;
        ready.send_request(request.body(()).unwrap(), false)
    }

    /// Makes a call with these bytes as the body.
    pub(crate) async fn call(
        &mut self,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Reply, h2::Error> {
        let (response, mut stream) = self.begin(path, headers).await?;
        // Ignores errors: a body that the server does not read to its end need not arrive.
        let _ = stream.send_data(body.into(), true);
        reply(response).await
    }

    /// Makes a rate limit call.
    #[track_caller]
    pub(crate) fn ask<'c>(
        &'c mut self,
        request: &RateLimitRequest,
    ) -> impl Future<Output = RateLimitResponse> + 'c {
        let body = framed(&request.encode_to_vec());
        async move { self.call(RATE_LIMIT, &[], body).await.unwrap().answer() }
    }
}

/// Reads a complete answer.
pub(crate) async fn reply(response: ResponseFuture) -> Result<Reply, h2::Error> {
    let response = tokio::time::timeout(FOREVER, response).await.expect("an answer")?;
    let (head, mut stream) = response.into_parts();
    let mut body = Vec::new();
    while let Some(chunk) = tokio::time::timeout(FOREVER, stream.data()).await.expect("more") {
        let chunk = chunk?;
        let _ = stream.flow_control().release_capacity(chunk.len());
        body.extend_from_slice(&chunk);
    }
    let trailers = stream.trailers().await?.unwrap_or_default();
    let said = |name: &str| {
        let value = trailers.get(name).or(head.headers.get(name))?;
        Some(value.to_str().unwrap().to_owned())
    };
    Ok(Reply {
        http: head.status,
        code: said("grpc-status").map(|code| code.parse().unwrap()),
        message: said("grpc-message").unwrap_or_default(),
        body,
    })
}

/// Frames a message as a body.
pub(crate) fn framed(message: &[u8]) -> Vec<u8> {
    let mut body = vec![0];
    body.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
    body.extend_from_slice(message);
    body
}

/// A call in the domain `shop` with these descriptors, each a list of (key, value) entries.
pub(crate) fn call(descriptors: &[&[(&str, &str)]]) -> RateLimitRequest {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).to_owned(), value: (*value).to_owned() };
    let descriptor = |entries: &&[(&str, &str)]| RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        ..RateLimitDescriptor::default()
    };
    RateLimitRequest {
        domain: "shop".to_owned(),
        descriptors: descriptors.iter().map(descriptor).collect(),
        hits_addend: 0,
    }
}
