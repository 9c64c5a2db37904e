//! The quota service: proxies report, and are assigned their parts of limits.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_response::bucket_action::BucketAction as Action;
use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_usage_reports::BucketQuotaUsage;
use envoy_types::pb::envoy::service::rate_limit_quota::v3::{
    BucketId, RateLimitQuotaResponse, RateLimitQuotaUsageReports,
};
use envoy_types::pb::envoy::r#type::v3::TokenBucket;
use envoy_types::pb::envoy::r#type::v3::rate_limit_strategy::{BlanketRule, Strategy};
use h2::{RecvStream, SendStream};
use prost::Message as _;

use super::client::{Client, call, framed};
use super::started;

const QUOTA: &str = "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";
/// Far longer than anything here takes.
const FOREVER: Duration = Duration::from_secs(30);

pub(super) const POLICIES: &str = r#"
version: 1
access: { deny: [plan=banned] }
policies:
  - name: all
    match: { attributes: { rls.domain: shop, plan: true } }
    limit: { rate: 1000/day }
  - name: mine
    match: { attributes: { rls.domain: shop, user: true } }
    by: [user]
    limit: { rate: 100/day }
"#;

/// A proxy that sends the reports it is given.
pub(super) struct Proxy {
    sending: SendStream<Bytes>,
    reading: RecvStream,
    read: BytesMut,
}

/// The pairs of a bucket, and how many requests were allowed and denied in it.
pub(super) type Usage<'a> = (&'a [(&'a str, &'a str)], u64, u64);

impl Proxy {
    pub(super) async fn open(to: SocketAddr, headers: &[(&str, &str)]) -> Self {
        Self::on(Client::connect(to).await, headers).await
    }

    pub(super) async fn on(mut client: Client, headers: &[(&str, &str)]) -> Self {
        let (response, sending) = client.begin(QUOTA, headers).await.unwrap();
        let response = tokio::time::timeout(FOREVER, response).await.expect("an answer").unwrap();
        Self { sending, reading: response.into_body(), read: BytesMut::new() }
    }

    pub(super) fn send(&mut self, body: &[u8]) {
        self.sending.send_data(Bytes::copy_from_slice(body), false).unwrap();
    }

    pub(super) fn send_report(&mut self, domain: &str, usages: &[Usage<'_>]) {
        self.send(&framed(&reports(domain, usages).encode_to_vec()));
    }

    /// Sends a report. Returns the assignment of each bucket, in order.
    pub(super) async fn report(&mut self, domain: &str, usages: &[Usage<'_>]) -> Vec<Strategy> {
        self.send_report(domain, usages);
        let (reports, answer) = (reports(domain, usages), self.answer().await);
        let of = |bucket: &BucketQuotaUsage| {
            let told = answer.bucket_action.iter().find(|told| told.bucket_id == bucket.bucket_id).unwrap();
            match told.bucket_action {
                Some(Action::QuotaAssignmentAction(assigned)) => {
                    assert!(assigned.assignment_time_to_live.unwrap().seconds > 0);
                    assigned.rate_limit_strategy.unwrap().strategy.unwrap()
                }
                other => panic!("{other:?}"),
            }
        };
        reports.bucket_quota_usages.iter().map(of).collect()
    }

    async fn answer(&mut self) -> RateLimitQuotaResponse {
        loop {
            if self.read.len() >= 5 {
                let length = 5 + u32::from_be_bytes(self.read[1..5].try_into().unwrap()) as usize;
                if self.read.len() >= length {
                    return RateLimitQuotaResponse::decode(&self.read.split_to(length)[5..]).unwrap();
                }
            }
            let chunk = tokio::time::timeout(FOREVER, self.reading.data()).await.expect("more");
            let chunk = chunk.expect("the call goes on").unwrap();
            self.reading.flow_control().release_capacity(chunk.len()).unwrap();
            self.read.extend_from_slice(&chunk);
        }
    }

    /// Waits for the end of the call. Returns its status and message.
    pub(super) async fn ended(&mut self) -> (String, String) {
        while let Some(chunk) = tokio::time::timeout(FOREVER, self.reading.data()).await.expect("an end") {
            drop(chunk.unwrap());
        }
        let trailers = self.reading.trailers().await.unwrap().unwrap();
        let said = |name: &str| trailers.get(name).map_or("", |value| value.to_str().unwrap()).to_owned();
        (said("grpc-status"), said("grpc-message"))
    }
}

fn reports(domain: &str, usages: &[Usage<'_>]) -> RateLimitQuotaUsageReports {
    let usage = |(pairs, allowed, denied): &Usage<'_>| {
        let bucket: HashMap<String, String> =
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        BucketQuotaUsage {
            bucket_id: Some(BucketId { bucket }),
            num_requests_allowed: *allowed,
            num_requests_denied: *denied,
            ..BucketQuotaUsage::default()
        }
    };
    RateLimitQuotaUsageReports {
        domain: domain.to_owned(),
        bucket_quota_usages: usages.iter().map(usage).collect(),
    }
}

#[track_caller]
pub(super) fn bucket(told: Strategy) -> TokenBucket {
    match told {
        Strategy::TokenBucket(bucket) => bucket,
        other => panic!("{other:?}"),
    }
}

pub(super) fn per_fill(bucket: &TokenBucket) -> u32 {
    bucket.tokens_per_fill.unwrap().value
}

pub(super) const FREE: &[(&str, &str)] = &[("plan", "free")];

#[tokio::test]
async fn a_proxy_is_told_its_part_and_what_it_allowed_counts_for_other_doors() {
    let (server, grpc) = started(POLICIES).await;
    let mut proxy = Proxy::open(grpc, &[]).await;
    let told = bucket(proxy.report("shop", &[(FREE, 1, 0)]).await[0]);
    // 1000 a day, less a sixteenth.
    assert_eq!(told.max_tokens, 937);
    let fill = told.fill_interval.unwrap();
    let per_day = f64::from(per_fill(&told)) / fill.seconds as f64 * 86_400.0;
    assert!((937.0..=938.0).contains(&per_day), "{told:?}");
    let again = bucket(proxy.report("", &[(FREE, 299, 0)]).await[0]);
    assert_eq!(again, told, "the same part again, so the proxy goes on with its bucket");
    let left = Client::connect(grpc).await.ask(&call(&[&[("plan", "free")]])).await;
    assert_eq!(left.statuses[0].limit_remaining, 699);
    let metrics = server.get("/metrics").await.text;
    for line in [
        "tidegate_quota_streams 1",
        "tidegate_quota_buckets 1",
        "tidegate_quota_reports_total 2",
        "tidegate_quota_allowed_requests_total 300",
        "tidegate_quota_assignments_total{assigned=\"changed\"} 1",
        "tidegate_quota_assignments_total{assigned=\"renewed\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
}

#[tokio::test]
async fn two_proxies_never_have_more_than_the_limit() {
    let (_server, grpc) = started(POLICIES).await;
    let (mut one, mut two) = (Proxy::open(grpc, &[]).await, Proxy::open(grpc, &[]).await);
    let first = bucket(one.report("shop", &[(FREE, 1, 0)]).await[0]);
    let second = bucket(two.report("shop", &[(FREE, 1, 0)]).await[0]);
    assert!(first.max_tokens + second.max_tokens <= 1002, "{first:?} {second:?}");
    assert_eq!(first.fill_interval, second.fill_interval);
    let whole = f64::from(per_fill(&first)) * 16.0 / 15.0;
    assert!(f64::from(per_fill(&first) + per_fill(&second)) <= whole + 1.0, "{first:?} {second:?}");
    // Two limits: the tighter one binds.
    let both: &[(&str, &str)] = &[("plan", "free"), ("user", "ann")];
    let tight = bucket(two.report("shop", &[(both, 1, 0)]).await[0]);
    assert!(tight.max_tokens <= 100 && per_fill(&tight) < per_fill(&first), "{tight:?}");
}

#[tokio::test]
async fn where_no_limit_holds_all_may_pass_and_where_a_list_refuses_nothing_may() {
    let (_server, grpc) = started(POLICIES).await;
    let mut proxy = Proxy::open(grpc, &[("x-tidegate-assignment-ttl", "600")]).await;
    let long = "k".repeat(9000);
    let usages: [Usage<'_>; 3] =
        [(&[("other", "a")], 1, 0), (&[("plan", "banned")], 1, 0), (&[("user", &long)], u64::MAX, u64::MAX)];
    let told = proxy.report("shop", &usages).await;
    let (allow, deny) = (BlanketRule::AllowAll as i32, BlanketRule::DenyAll as i32);
    assert_eq!(told, [allow, deny, deny].map(Strategy::BlanketRule));
    let told = proxy.report("shop", &[(&[("user", "x")], u64::MAX, u64::MAX)]).await;
    assert!(matches!(told[0], Strategy::TokenBucket(_)), "{told:?}");
}

#[tokio::test]
async fn a_proxy_has_so_many_buckets_and_no_more() {
    let (_server, grpc) = started(POLICIES).await;
    let mut proxy = Proxy::open(grpc, &[]).await;
    let users: Vec<String> = (0..4200).map(|user| format!("u{user}")).collect();
    let pairs: Vec<[(&str, &str); 1]> = users.iter().map(|user| [("user", user.as_str())]).collect();
    let usages: Vec<Usage<'_>> = pairs.iter().map(|pairs| (&pairs[..], 1, 0)).collect();
    let told = proxy.report("shop", &usages).await;
    let parts = told.iter().filter(|told| matches!(told, Strategy::TokenBucket(_))).count();
    assert_eq!((told.len(), parts), (4200, 4096));
}

#[tokio::test]
async fn a_proxy_has_room_for_so_many_bytes_of_pairs_and_a_connection_for_so_many_of_answers() {
    let (server, grpc) = started(POLICIES).await;
    // Almost half a megabyte in each bucket: eight fit, a ninth does not, and then a small one does.
    let (names, long) = ((0..60).map(|at| format!("k{at}")), "x".repeat(8100));
    let names: Vec<String> = names.collect();
    let mut proxy = Proxy::open(grpc, &[]).await;
    for at in 0..9 {
        let name = at.to_string();
        let mut pairs: Vec<(&str, &str)> = names.iter().map(|name| (&**name, &*long)).collect();
        pairs.push(("name", &name));
        let told = proxy.report("shop", &[(&pairs, 1, 0)]).await;
        let expected = if at < 8 { BlanketRule::AllowAll } else { BlanketRule::DenyAll };
        assert_eq!(told[0], Strategy::BlanketRule(expected as i32), "{at}");
    }
    assert!(server.get("/metrics").await.text.contains("tidegate_quota_buckets 8"));
    let told = proxy.report("shop", &[(FREE, 1, 0)]).await;
    assert!(matches!(told[0], Strategy::TokenBucket(_)), "{told:?}");
    // A hundred thousand buckets in a message, twice: together the answers are longer than a connection may have
    // waiting.
    let small = reports("", &[(&[("", "")], 1, 0)]).encode_to_vec();
    let domain = reports("shop", &[]).encode_to_vec();
    let many = framed(&[&domain[..], &small.repeat(((1 << 20) - 10) / small.len())].concat());
    let client = Client::connect(grpc).await;
    let mut first = Proxy::on(client.clone(), &[]).await;
    first.send(&many);
    let begins = tokio::time::timeout(FOREVER, first.reading.data()).await.expect("an answer");
    assert!(begins.is_some_and(|chunk| chunk.is_ok()));
    let mut second = Proxy::on(client, &[]).await;
    second.send(&many);
    let (status, message) = second.ended().await;
    assert_eq!(status, "8", "{message}");
    assert!(message.contains("too long together"), "{message}");
}

#[tokio::test]
async fn bad_reports_end_the_call_and_say_why() {
    let (server, grpc) = started(POLICIES).await;
    let nameless = RateLimitQuotaUsageReports {
        domain: "shop".to_owned(),
        bucket_quota_usages: vec![BucketQuotaUsage::default()],
    };
    let long = [0, 0xff, 0xff, 0xff, 0xff];
    for (bytes, code, why) in [
        (framed(b"\xff\xff\xff"), "13", "is not a RateLimitQuotaUsageReports"),
        (framed(&reports("", &[(FREE, 1, 0)]).encode_to_vec()), "3", "no domain"),
        (framed(&nameless.encode_to_vec()), "3", "without bucket_id"),
        (long.to_vec(), "8", "too long"),
        (b"\x01\0\0\0\x01a".to_vec(), "12", "compressed"),
    ] {
        let mut proxy = Proxy::open(grpc, &[]).await;
        proxy.send(&bytes);
        let (status, message) = proxy.ended().await;
        assert_eq!(status, code, "{message}");
        assert!(message.contains(why), "{message}");
    }
    let mut two = Proxy::open(grpc, &[]).await;
    two.report("shop", &[(FREE, 1, 0)]).await;
    two.send(&framed(&reports("pub", &[]).encode_to_vec()));
    assert_eq!(two.ended().await.0, "3");
    let mut client = Client::connect(grpc).await;
    let refused = client.call(QUOTA, &[("x-tidegate-assignment-ttl", "soon")], Bytes::new()).await.unwrap();
    assert_eq!(refused.code, Some(3), "{refused:?}");
    assert!(refused.message.contains("write seconds, 1 to 600"), "{refused:?}");
    // A drain ends the calls, so that proxies reconnect elsewhere.
    let mut last = Proxy::open(grpc, &[]).await;
    last.report("shop", &[(FREE, 1, 0)]).await;
    server.handle.stop();
    assert_eq!(last.ended().await.0, "0");
    server.stopped().await;
}
