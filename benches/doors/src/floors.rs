//! Servers that decide nothing, each with the usual code for its library: the cost of a protocol before any decision.

use anyhow::{Result, bail};
use axum::Json;
use axum::routing::{any, post};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// Serves until it is stopped.
pub(crate) fn serve(which: &str, port: u16) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        match which {
            "tonic" => tonic(listener).await,
            "axum" => axum(listener).await,
            other => bail!("there is no floor called {other}; tonic and axum are"),
        }
    })
}

async fn tonic(listener: TcpListener) -> Result<()> {
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let service = RateLimitServiceServer::new(Nothing);
    Ok(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming).await?)
}

/// Allows every descriptor of a call.
struct Nothing;

#[tonic::async_trait]
impl RateLimitService for Nothing {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let allowed = DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() };
        let statuses = vec![allowed; request.into_inner().descriptors.len()];
        let answer =
            RateLimitResponse { overall_code: Code::Ok.into(), statuses, ..RateLimitResponse::default() };
        Ok(Response::new(answer))
    }
}

/// Answers checks with the fields of Tidegate's answers, and sub-requests with an empty body.
async fn axum(listener: TcpListener) -> Result<()> {
    let router =
        axum::Router::new().route("/v1/check", post(check)).route("/v1/forward-auth", any(|| async {}));
    let listener = axum::serve::ListenerExt::tap_io(listener, |stream| {
        let _ = stream.set_nodelay(true);
    });
    Ok(axum::serve(listener, router).await?)
}

#[derive(Deserialize)]
struct Asked {
    attributes: Attributes,
}

#[derive(Deserialize)]
struct Attributes {
    user: String,
}

/// The fields of Tidegate's answer to a check.
#[derive(Serialize)]
struct Answered {
    decision: &'static str,
    policy: &'static str,
    remaining: u64,
    limit: u64,
    retry: Option<&'static str>,
    retry_after_ms: Option<u64>,
    reset_at: &'static str,
    delay_ms: u64,
    decision_id: &'static str,
    policies: [Policy; 1],
}

#[derive(Serialize)]
struct Policy {
    name: &'static str,
    mode: &'static str,
    shadow: bool,
    decision: &'static str,
    remaining: u64,
    limit: u64,
    debt: u64,
    retry: Option<&'static str>,
    retry_after_ms: Option<u64>,
    reset_after_ms: u64,
    cost: u64,
    charged: bool,
}

async fn check(Json(asked): Json<Asked>) -> Json<Answered> {
    let remaining = asked.attributes.user.len() as u64;
    let policy = Policy {
        name: "per-user",
        mode: "enforce",
        shadow: false,
        decision: "allowed",
        remaining,
        limit: 1_000_000,
        debt: 0,
        retry: None,
        retry_after_ms: None,
        reset_after_ms: 1,
        cost: 1,
        charged: true,
    };
    Json(Answered {
        decision: "allowed",
        policy: "per-user",
        remaining,
        limit: 1_000_000,
        retry: None,
        retry_after_ms: None,
        reset_at: "2026-11-22T06:14:21.163Z",
        delay_ms: 0,
        decision_id: "01M80Y7EDTXSF3GTNBNVC2F1C5",
        policies: [policy],
    })
}
