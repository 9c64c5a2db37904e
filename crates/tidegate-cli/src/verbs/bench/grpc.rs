//! Asks Envoy's rate limit service, version 3, over an HTTP/2 connection.

use std::io;

use super::client::{Answer, Code, Fate, Stream};
use super::target::Target;
use anyhow::{Context as _, Result};
use bytes::{BufMut as _, Bytes, BytesMut};
use h2::RecvStream;
use h2::client::{self, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue, TE};
use hyper::{HeaderMap, Method, Request, Uri};
use prost::Message;

/// The longest answer that is read, in bytes: far longer than any real one.
const MAX_ANSWER: usize = 1 << 20;

/// The bytes before a message: one tells whether it is compressed, four hold its length.
const FRAME: usize = 5;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

#[derive(Debug)]
pub(super) struct GrpcClient {
    sender: SendRequest<Bytes>,
    path: Uri,
    authorization: Option<HeaderValue>,
    connection: tokio::task::JoinHandle<Result<(), h2::Error>>,
}

impl GrpcClient {
    /// Performs the handshake over a stream.
    ///
    /// # Errors
    /// If the host, the path or the token does not fit a header, or the server does not speak HTTP/2.
    pub(super) async fn over(stream: Box<dyn Stream>, target: &Target, token: Option<&str>) -> Result<Self> {
        let (sender, connection) = client::handshake(stream).await?;
        let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
        let scheme = if target.encrypted { "https" } else { "http" };
        let bearer = token.map(|token| HeaderValue::try_from(format!("Bearer {token}"))).transpose();
        Ok(Self {
            sender,
            path: Uri::try_from(format!("{scheme}://{}{}{path}", target.authority(), target.prefix))?,
            authorization: bearer.context("TIDEGATE_TOKEN")?,
            connection: tokio::spawn(connection),
        })
    }

    pub(super) fn is_open(&self) -> bool {
        !self.connection.is_finished()
    }

    /// Asks about one descriptor, made of these pairs, in a domain.
    ///
    /// # Errors
    /// If the connection broke, or the answer is invalid.
    pub(super) async fn ask(
        &mut self,
        domain: &str,
        pairs: Vec<(String, String)>,
        hits: u32,
    ) -> io::Result<Answer> {
        let entries = pairs.into_iter().map(|(key, value)| Entry { key, value }).collect();
        let message = RateLimitRequest {
            domain: domain.to_owned(),
            descriptors: vec![RateLimitDescriptor { entries }],
            hits_addend: hits,
        };
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.path.clone();
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(TE, HeaderValue::from_static("trailers"));
        if let Some(authorization) = &self.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        let mut sender = self.sender.clone().ready().await.map_err(io::Error::other)?;
        let (response, mut body) = sender.send_request(request, false).map_err(io::Error::other)?;
        body.send_data(framed(&message), true).map_err(io::Error::other)?;
        let (head, body) = response.await.map_err(io::Error::other)?.into_parts();
        let (bytes, trailers) = whole(body).await?;
        let status = trailers.get(GRPC_STATUS).or(head.headers.get(GRPC_STATUS));
        let status = status.and_then(|status| status.to_str().ok()?.parse::<u16>().ok());
        Ok(match status {
            Some(0) => decided(&bytes),
            Some(status) => Answer::word(Fate::Failed, &format!("grpc-status {status}")),
            None => {
                Answer { fate: Fate::Failed, code: Code::Status(head.status.as_u16()), is_unlimited: false }
            }
        })
    }
}

fn framed(message: &RateLimitRequest) -> Bytes {
    let length = message.encoded_len();
    let mut body = BytesMut::with_capacity(FRAME + length);
    body.put_u8(0);
    body.put_u32(u32::try_from(length).expect("64 attributes of 8 KiB at most"));
    message.encode(&mut body).expect("the buffer grows");
    body.freeze()
}

async fn whole(mut body: RecvStream) -> io::Result<(Vec<u8>, HeaderMap)> {
    let mut bytes = Vec::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk.map_err(io::Error::other)?;
        body.flow_control().release_capacity(chunk.len()).map_err(io::Error::other)?;
        bytes.extend_from_slice(&chunk);
        if bytes.len() > MAX_ANSWER {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "too long an answer"));
        }
    }
    let trailers = body.trailers().await.map_err(io::Error::other)?;
    Ok((bytes, trailers.unwrap_or_default()))
}

fn decided(body: &[u8]) -> Answer {
    let response = body.get(FRAME..).and_then(|message| RateLimitResponse::decode(message).ok());
    match response.map(|response| response.overall_code) {
        Some(OK) => Answer::word(Fate::Allowed, "OK"),
        Some(OVER_LIMIT) => Answer::word(Fate::Denied, "OVER_LIMIT"),
        Some(_) | None => Answer::word(Fate::Failed, "not an answer"),
    }
}

// Envoy's messages, as far as they are written and read here.

#[derive(Clone, PartialEq, Eq, Message)]
struct RateLimitRequest {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<RateLimitDescriptor>,
    #[prost(uint32, tag = "3")]
    hits_addend: u32,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct RateLimitDescriptor {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<Entry>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct Entry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct RateLimitResponse {
    /// [`OK`], [`OVER_LIMIT`], or a number that is no answer.
    #[prost(int32, tag = "1")]
    overall_code: i32,
}

const OK: i32 = 1;

const OVER_LIMIT: i32 = 2;

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::extensions::common::ratelimit::v3 as common;
    use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor;
    use envoy_types::pb::envoy::service::ratelimit::v3 as service;
    use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};

    use super::*;

    #[test]
    fn a_request_is_envoys() {
        let (key, value) = ("user".to_owned(), "anna".to_owned());
        let ours = RateLimitRequest {
            domain: "shop".to_owned(),
            descriptors: vec![RateLimitDescriptor {
                entries: vec![Entry { key: key.clone(), value: value.clone() }],
            }],
            hits_addend: 3,
        };
        let theirs = service::RateLimitRequest {
            domain: "shop".to_owned(),
            descriptors: vec![common::RateLimitDescriptor {
                entries: vec![rate_limit_descriptor::Entry { key, value }],
                ..common::RateLimitDescriptor::default()
            }],
            hits_addend: 3,
        };
        assert_eq!(ours.encode_to_vec(), theirs.encode_to_vec());
        assert_eq!(service::RateLimitRequest::decode(&*ours.encode_to_vec()).unwrap(), theirs);
    }

    #[test]
    fn the_code_of_a_response_is_envoys() {
        for (code, ours) in [(Code::Unknown, 0), (Code::Ok, OK), (Code::OverLimit, OVER_LIMIT)] {
            let theirs = service::RateLimitResponse {
                overall_code: code as i32,
                statuses: vec![DescriptorStatus { code: 1, ..DescriptorStatus::default() }],
                ..service::RateLimitResponse::default()
            };
            let read = RateLimitResponse::decode(&*theirs.encode_to_vec()).unwrap();
            assert_eq!(read.overall_code, ours, "{code:?}");
        }
    }
}
