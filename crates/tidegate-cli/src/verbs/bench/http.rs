//! Asks `POST /v1/check` over an HTTP/1.1 connection.

use std::io;

use super::client::{Answer, Code, Fate, Stream};
use super::target::Target;
use anyhow::{Context as _, Result};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde::de::IgnoredAny;

/// The longest answer that is read, in bytes: far longer than a check of 64 policies gives.
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
    pub(super) async fn over(stream: Box<dyn Stream>, target: &Target, token: Option<&str>) -> Result<Self> {
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

    pub(super) fn is_open(&self) -> bool {
        !self.sender.is_closed()
    }

    /// Sends an ask with this body.
    ///
    /// # Errors
    /// If the connection broke.
    pub(super) async fn ask(&mut self, body: String) -> io::Result<Answer> {
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
        Ok(answer(status, &body))
    }
}

/// A denial and an error may have any status from 400 on, but only a denial contains its decision.
fn answer(status: StatusCode, body: &[u8]) -> Answer {
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
            assert_eq!(answer(StatusCode::from_u16(status).unwrap(), body).fate, wanted, "{status}");
        }
        let is_unlimited = |body: &[u8]| answer(StatusCode::OK, body).is_unlimited;
        assert!(is_unlimited(br#"{"decision":"allowed","policies":[]}"#));
        assert!(!is_unlimited(br#"{"decision":"allowed","policies":[{}]}"#) && !is_unlimited(b"{}"));
    }
}
