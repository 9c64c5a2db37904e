//! Decisions of calls: descriptors, units, limits that calls bring along.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use envoy_types::pb::google::protobuf::UInt64Value;
use envoy_types::pb::google::protobuf::value::Kind;

use super::client::{Client, call};
use super::running::send;
use super::started;

const POLICIES: &str = "
version: 1
policies:
  - name: per-address
    match: { attributes: { rls.domain: shop } }
    by: [remote_address]
    absent: skip
    limit: { rate: 3/min }
  - name: logins
    match: { attributes: { rls.domain: shop, generic_key: login } }
    limit: { rate: 2/h }
  - name: odd
    match: { attributes: { rls.domain: shop, generic_key: odd } }
    limit: { rate: 10/7s }
";

const OK: i32 = 1;
const OVER: i32 = 2;

/// A descriptor's status: code, name, limit, unit, remaining and seconds.
type Status = (i32, String, u32, i32, u32, i64);

/// The overall code, and the status of each descriptor.
fn told(answer: &RateLimitResponse) -> (i32, Vec<Status>) {
    let each = answer.statuses.iter().map(|status| {
        let limit = status.current_limit.clone().unwrap_or_default();
        let seconds = status.duration_until_reset.unwrap_or_default().seconds;
        (status.code, limit.name, limit.requests_per_unit, limit.unit, status.limit_remaining, seconds)
    });
    (answer.overall_code, each.collect())
}

fn one(code: i32, name: &str, limit: u32, unit: i32, left: u32, seconds: i64) -> Status {
    (code, name.to_owned(), limit, unit, left, seconds)
}

#[tokio::test]
async fn each_descriptor_has_its_status() {
    let (_server, grpc) = started(POLICIES).await;
    let mut client = Client::connect(grpc).await;
    let ask = call(&[&[("remote_address", "192.0.2.1")]]);
    for left in [2, 1, 0] {
        let answer = told(&client.ask(&ask).await);
        assert_eq!(answer, (OK, vec![one(OK, "per-address", 3, 2, left, 60 - 20 * i64::from(left))]));
    }
    let refused = client.ask(&ask).await;
    assert_eq!(told(&refused), (OVER, vec![one(OVER, "per-address", 3, 2, 0, 20)]));
    // A header would also reach the client of a request that the filter lets pass all the same.
    assert_eq!(refused.response_headers_to_add, []);
    let fields = refused.dynamic_metadata.unwrap().fields;
    assert_eq!(fields["retry_after"].kind, Some(Kind::StringValue("20".to_owned())));
    assert!(fields.len() == 1 && refused.raw_body.is_empty(), "nobody asked for more");
    // A request that no policy matches passes, and has no limit.
    assert_eq!(told(&client.ask(&call(&[&[("x", "y")]])).await), (OK, vec![one(OK, "", 0, 0, 0, 0)]));
    let mut elsewhere = ask.clone();
    elsewhere.domain = "another".to_owned();
    assert_eq!(told(&client.ask(&elsewhere).await).0, OK);
    // A window of another length than any unit has no unit.
    let odd = told(&client.ask(&call(&[&[("generic_key", "odd")]])).await);
    assert_eq!(odd.1, [one(OK, "odd", 10, 0, 9, 1)]);
}

#[tokio::test]
async fn all_descriptors_are_charged_or_none() {
    let (_server, grpc) = started(POLICIES).await;
    let mut client = Client::connect(grpc).await;
    let both = call(&[&[("remote_address", "192.0.2.1")], &[("generic_key", "login")]]);
    for _ in 0..2 {
        assert_eq!(client.ask(&both).await.overall_code, OK);
    }
    let refused = told(&client.ask(&both).await);
    assert_eq!((refused.0, refused.1[0].0, refused.1[1].0), (OVER, OK, OVER));
    assert_eq!(&*refused.1[1].1, "logins");
    // The address has one left, as before the refused call.
    let alone = told(&client.ask(&call(&[&[("remote_address", "192.0.2.1")]])).await);
    assert_eq!(alone.1[0].4, 0);
    assert_eq!(alone.0, OK);
}

#[tokio::test]
async fn a_policy_that_two_descriptors_meet_is_charged_for_both() {
    let (_server, grpc) = started(POLICIES).await;
    let mut client = Client::connect(grpc).await;
    let address: &[(&str, &str)] = &[("remote_address", "192.0.2.1")];
    let twice = call(&[address, &[("remote_address", "192.0.2.1"), ("path", "/a")]]);
    assert_eq!(told(&client.ask(&twice).await).1[0].4, 1);
    // Both together exceed the limit.
    assert_eq!(told(&client.ask(&twice).await).0, OVER);
    assert_eq!(told(&client.ask(&call(&[address])).await), (OK, vec![one(OK, "per-address", 3, 2, 0, 60)]));
}

#[tokio::test]
async fn hits_are_those_of_the_descriptor_else_of_the_call_else_one() {
    let (_server, grpc) = started(POLICIES).await;
    let mut client = Client::connect(grpc).await;
    let mut of = async |of_call: u32, own: Option<u64>, negative: bool| {
        let mut ask = call(&[&[("remote_address", "192.0.2.1")]]);
        ask.hits_addend = of_call;
        ask.descriptors[0].hits_addend = own.map(|value| UInt64Value { value });
        ask.descriptors[0].is_negative_hits = negative;
        let answer = told(&client.ask(&ask).await);
        (answer.0, answer.1[0].4)
    };
    assert_eq!(of(0, Some(0), false).await, (OK, 3), "a look");
    assert_eq!(of(2, None, false).await, (OK, 1));
    assert_eq!(of(2, Some(1), false).await, (OK, 0));
    assert_eq!(of(0, Some(0), false).await, (OVER, 0), "a look says whether one would pass");
    assert_eq!(of(1, None, true).await, (OK, 1), "one back");
    assert_eq!(of(0, Some(u64::MAX), true).await, (OK, 3), "never fuller than full");
    assert_eq!(of(u32::MAX, None, false).await, (OVER, 3));
    assert_eq!(of(0, Some(u64::MAX), false).await, (OVER, 3), "neither wraps nor is let pass");
    assert_eq!(of(0, None, false).await, (OK, 2));
}

/// A proxy asks for 0 units, and reports what was used when the stream ends. Regression: a report of more than is left
/// was charged nowhere, and every look passed: 1000, 712, 424, 136, 136 and so on, and of 5 an hour nothing was taken.
#[tokio::test]
async fn what_a_proxy_reports_is_charged_as_the_policy_says() {
    let tokens = |more: &str, rate: &str| {
        format!(
            "version: 1\npolicies:\n  - name: tokens\n    by: [tenant]\n    limit: {{ algorithm: fixed-window, rate: {rate} }}\n{more}"
        )
    };
    for (more, rate, expected) in [
        (
            "    charge: always\n",
            "1000/h",
            &[(OK, 1000), (OK, 712), (OK, 424), (OK, 136), (OVER, 0), (OVER, 0)][..],
        ),
        ("    charge: always\n", "5/h", &[(OK, 5), (OVER, 0)]),
        ("    charge: always\n    mode: shadow\n", "5/h", &[(OK, 5), (OK, 0)]),
        ("", "5/h", &[(OK, 5), (OK, 5)]),
    ] {
        let (server, grpc) = started(&tokens(more, rate)).await;
        let mut client = Client::connect(grpc).await;
        let mut call = call(&[&[("tenant", "a")]]);
        let mut told = Vec::new();
        for _ in expected {
            call.descriptors[0].hits_addend = Some(UInt64Value { value: 0 });
            let answer = client.ask(&call).await;
            told.push((answer.overall_code, answer.statuses[0].limit_remaining));
            // Its answer is ignored.
            call.descriptors[0].hits_addend = Some(UInt64Value { value: 288 });
            let reported = client.ask(&call).await;
            let reset = reported.statuses[0].duration_until_reset.unwrap().seconds;
            assert_eq!((1..=3600).contains(&reset), !more.is_empty(), "{reset}");
        }
        assert_eq!(told, expected, "{more}{rate}");
        let metrics = server.get("/metrics").await.text;
        if more == "    charge: always\n" {
            // Refused looks are refused requests. The reports that met no room are refused too.
            let looks = expected.iter().filter(|(code, _)| *code == OVER).count() as u64;
            let denied = looks + if rate == "5/h" { 2 } else { 3 };
            let line = "tidegate_decisions_total{policy=\"tokens\",decision=\"denied\",mode=\"enforce\"}";
            assert!(metrics.contains(&format!("{line} {denied}\n")), "{denied}: {metrics}");
        }
        let owed = metrics.lines().find(|line| line.contains("fate=\"owed\"")).unwrap();
        let owed: u64 = owed.rsplit(' ').next().unwrap().parse().unwrap();
        let refused = expected.len() as u64 - if rate == "1000/h" { 3 } else { 0 };
        assert_eq!(owed, if more.is_empty() { 0 } else { 288 * refused });
        // What was booked can be given back.
        call.descriptors[0].hits_addend = Some(UInt64Value { value: 1 << 40 });
        call.descriptors[0].is_negative_hits = true;
        let back = client.ask(&call).await;
        assert_eq!(
            u64::from(back.statuses[0].limit_remaining),
            rate[..rate.len() - 2].parse::<u64>().unwrap()
        );
    }
}

/// Regression: the status of a descriptor that only shadow limits meet had no limit, 0 left and no time.
#[tokio::test]
async fn shadow_limits_are_told() {
    let (_server, grpc) =
        started(&POLICIES.replace("rate: 3/min }", "rate: 3/min }\n    mode: shadow")).await;
    let mut client = Client::connect(grpc).await;
    let ask = call(&[&[("remote_address", "192.0.2.1")]]);
    for left in [2, 1, 0] {
        let answer = told(&client.ask(&ask).await);
        assert_eq!(answer, (OK, vec![one(OK, "per-address", 3, 2, left, 60 - 20 * i64::from(left))]));
    }
    let over = client.ask(&ask).await;
    assert_eq!(told(&over), (OK, vec![one(OK, "per-address", 3, 2, 0, 20)]));
    assert!(over.response_headers_to_add.is_empty() && over.dynamic_metadata.is_none());
}

#[tokio::test]
async fn what_is_given_back_comes_back_only_if_the_call_passes() {
    let (_server, grpc) = started(POLICIES).await;
    let mut client = Client::connect(grpc).await;
    let mut ask = call(&[&[("remote_address", "192.0.2.1")], &[("generic_key", "login")]]);
    ask.hits_addend = 2;
    assert_eq!(client.ask(&ask).await.overall_code, OK);
    ask.descriptors[0].is_negative_hits = true;
    let refused = told(&client.ask(&ask).await);
    assert_eq!((refused.0, refused.1[0].0, refused.1[0].4, refused.1[1].0), (OVER, OK, 1, OVER));
}

#[tokio::test]
async fn a_limit_that_a_call_brings_holds_in_place_of_the_policys() {
    let (_server, grpc) = started(POLICIES).await;
    let mut client = Client::connect(grpc).await;
    let bring = |requests_per_unit: u32, unit: i32| {
        let mut ask = call(&[&[("remote_address", "192.0.2.9")]]);
        ask.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit, unit });
        ask
    };
    let answer = told(&client.ask(&bring(100, 3)).await);
    assert_eq!(answer, (OK, vec![one(OK, "per-address", 100, 3, 99, 36)]));
    assert_eq!(told(&client.ask(&bring(5, 7)).await).1[0].3, 7, "weeks");
    let nothing = told(&client.ask(&bring(0, 1)).await);
    assert_eq!(nothing, (OVER, vec![one(OVER, "", 0, 0, 0, 0)]), "a limit of nothing");
    // Two different limits for one key are an error.
    let mut two = bring(100, 3);
    two.descriptors.push(two.descriptors[0].clone());
    two.descriptors[1].limit = Some(RateLimitOverride { requests_per_unit: 5, unit: 3 });
    let body = super::client::framed(&prost::Message::encode_to_vec(&two));
    let refused = client.call(super::client::RATE_LIMIT, &[], body).await.unwrap();
    assert_eq!(refused.code, Some(3), "{refused:?}");
    assert!(refused.message.contains("per-address"), "{refused:?}");
}

#[tokio::test]
async fn entries_are_attributes() {
    let (_server, grpc) = started(
        "
version: 1
policies:
  - name: both-keys
    by: [generic_key, generic_key.2]
    absent: skip
    limit: { rate: 1/h }
  - name: everywhere
    by: [client.ip]
    absent: skip
    limit: { rate: 2/h }
",
    )
    .await;
    let mut client = Client::connect(grpc).await;
    let keys = |second| call(&[&[("generic_key", "a"), ("generic_key", second)]]);
    assert_eq!(client.ask(&keys("b")).await.overall_code, OK);
    assert_eq!(client.ask(&keys("c")).await.overall_code, OK);
    assert_eq!(client.ask(&keys("b")).await.overall_code, OVER);
    // The address that Envoy sends is the attribute that the other doors use.
    let address = call(&[&[("remote_address", "192.0.2.1")]]);
    for expected in [OK, OK, OVER] {
        assert_eq!(client.ask(&address).await.overall_code, expected);
    }
    // An entry named like the domain does not replace the domain.
    let (_server, grpc) = started(POLICIES).await;
    let mut client = Client::connect(grpc).await;
    let forged = call(&[&[("rls.domain", "elsewhere"), ("generic_key", "login")]]);
    assert_eq!(&*told(&client.ask(&forged).await).1[0].1, "logins");
}

#[tokio::test]
async fn a_blocked_key_is_over_its_limit() {
    let (server, grpc) = started(POLICIES).await;
    let mut client = Client::connect(grpc).await;
    let block = r#"{"block": {"for": "10min", "reason": "abuse"}}"#;
    let path = "/v1/keys/per-address?remote_address=192.0.2.1";
    let put = server.put(path, block).await;
    assert_eq!(put.status, 200, "{put:?}");
    let refused = client.ask(&call(&[&[("remote_address", "192.0.2.1")]])).await;
    assert_eq!(refused.overall_code, OVER, "{refused:?}");
    assert_eq!(client.ask(&call(&[&[("remote_address", "192.0.2.2")]])).await.overall_code, OK);
    send(server.addr, http::Method::DELETE, path, &[], "").await;
    assert_eq!(client.ask(&call(&[&[("remote_address", "192.0.2.1")]])).await.overall_code, OK);
}
