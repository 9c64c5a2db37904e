//! Server reflection, tested with gRPC's own Python client: it has no file of Limitador's protocol, asks the door for
//! the services and messages, and then uses them.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use tidegate_testkit::python_program;

use super::client::{Client, framed};
use super::limitador::POLICIES;
use super::{started, started_with};

const SCRIPT: &str = "
import sys, grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

channel = grpc.insecure_channel(sys.argv[1])
reflected = ProtoReflectionDescriptorDatabase(channel)
pool = DescriptorPool(reflected)
for name in sorted(reflected.get_services()):
    methods = pool.FindServiceByName(name).methods
    print(name, ' '.join(f'{one.name}({one.input_type.name}) {one.output_type.name}' for one in methods))

def asks(service, name, kind='unary_unary'):
    method = pool.FindServiceByName(service).methods_by_name[name]
    request, answer = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    ask = getattr(channel, kind)(f'/{service}/{name}', request.SerializeToString, answer.FromString)
    return lambda **fields: ask(request(**fields), timeout=20)

def limitador(name, **fields):
    descriptors = [{'entries': [{'key': 'user', 'value': 'ann'}]}]
    return asks('kuadrant.service.ratelimit.v1.RateLimitService', name)(
        domain='shop', descriptors=descriptors, **fields)

def left():
    told = limitador('CheckRateLimit')
    return told.overall_code, told.statuses[0].limit_remaining

print(left(), limitador('Report', hits_addend=30).overall_code, left())
held = limitador('Reserve', amount=50, ttl={'seconds': 60})
print(held.code, len(held.reservation_id) > 20, left())
refused = limitador('Reserve', amount=30)
print(refused.code, refused.reservation_id == '')
for amount in (10, 10):
    print(limitador('Commit', reservation_id=held.reservation_id, actual_amount=amount).reservation_released, left())
print(limitador('Commit', reservation_id='of another node', actual_amount=5).reservation_released, left())

quota = asks('envoy.service.ratelimit.v3.RateLimitService', 'ShouldRateLimit')
told = quota(domain='shop', descriptors=[{'entries': [{'key': 'user', 'value': 'bob'}], 'hits_addend': {'value': 7}}])
print(told.statuses[0].limit_remaining, told.statuses[0].duration_until_reset.seconds > 0)

watch = asks('grpc.health.v1.Health', 'Watch', 'unary_stream')()
print('watching', next(watch).status, flush=True)
print([said.status for said in watch], watch.code().name)
";

#[tokio::test]
async fn a_client_without_files_learns_the_services_and_speaks_limitadors_protocol() {
    let Some(python) = python_program("python3") else { return };
    let (server, grpc) = started(POLICIES).await;
    let mut asking = Command::new(python);
    asking.args(["-c", SCRIPT, &grpc.to_string()]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let handle = server.handle.clone();
    let said = tokio::task::spawn_blocking(move || {
        let mut child = asking.spawn().unwrap();
        let mut lines = Vec::new();
        for line in BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap) {
            if line.starts_with("watching") {
                handle.stop();
            }
            lines.push(line);
        }
        let ended = child.wait_with_output().unwrap();
        (lines, String::from_utf8_lossy(&ended.stderr).into_owned())
    });
    let (lines, errors) = said.await.unwrap();
    let expected = [
        "envoy.service.rate_limit_quota.v3.RateLimitQuotaService StreamRateLimitQuotas(RateLimitQuotaUsageReports) RateLimitQuotaResponse",
        "envoy.service.ratelimit.v3.RateLimitService ShouldRateLimit(RateLimitRequest) RateLimitResponse",
        "grpc.health.v1.Health Check(HealthCheckRequest) HealthCheckResponse Watch(HealthCheckRequest) HealthCheckResponse",
        "grpc.reflection.v1.ServerReflection ServerReflectionInfo(ServerReflectionRequest) ServerReflectionResponse",
        "grpc.reflection.v1alpha.ServerReflection ServerReflectionInfo(ServerReflectionRequest) ServerReflectionResponse",
        "kuadrant.service.ratelimit.v1.RateLimitService CheckRateLimit(RateLimitRequest) RateLimitResponse Report(RateLimitRequest) RateLimitResponse Reserve(ReserveRequest) ReserveResponse Commit(CommitRequest) CommitResponse",
        "(1, 100) 1 (1, 70)",
        "1 True (1, 20)",
        "2 True",
        "True (1, 60)",
        "False (1, 60)",
        "False (1, 55)",
        "93 True",
        "watching 1",
        "[2] OK",
    ];
    assert_eq!(lines, expected, "{errors}");
    server.stopped().await;
}

const PATHS: [&str; 2] = [
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

/// A question with one field: its number, and a string.
fn question(field: u8, text: &str) -> Vec<u8> {
    let mut message = vec![field << 3 | 2, u8::try_from(text.len()).unwrap()];
    message.extend_from_slice(text.as_bytes());
    framed(&message)
}

#[tokio::test]
async fn both_versions_answer_whoever_may_read_and_what_there_is_not_is_an_answer() {
    let (_server, grpc) = started_with(POLICIES, |options| {
        options.token = Some(tidegate_server::Token::new("a-token-of-many-letters").unwrap());
    })
    .await;
    let mut client = Client::connect(grpc).await;
    let token = [("x-tidegate-token", "a-token-of-many-letters")];
    for path in PATHS {
        assert_eq!(client.call(path, &[], question(7, "")).await.unwrap().code, Some(16));
        let listed = client.call(path, &token, question(7, "")).await.unwrap();
        let text = String::from_utf8_lossy(&listed.body).into_owned();
        assert!(listed.code == Some(0) && text.contains("grpc.health.v1.Health"), "{listed:?}");
        for (field, name, says) in [
            (3, "envoy/type/v3/token_bucket.proto", "max_tokens"),
            (3, "nowhere.proto", "there is no such file here"),
            (4, "envoy.service.ratelimit.v3.RateLimitResponse.OVER_LIMIT", "rls.proto"),
            (4, "nothing", "no file here declares this name"),
            (6, "envoy.type.v3.TokenBucket", "envoy.type.v3.TokenBucket"),
            (6, "nothing", "no file here declares this name"),
        ] {
            let told = client.call(path, &token, question(field, name)).await.unwrap();
            let text = String::from_utf8_lossy(&told.body).into_owned();
            assert!(told.code == Some(0) && text.contains(says), "{field} {name}: {told:?}");
        }
        // Several questions in one call are answered in turn; an empty one ends it.
        let several = [question(7, ""), question(7, ""), framed(b"")].concat();
        let told = client.call(path, &token, several).await.unwrap();
        assert_eq!((told.code, told.body.len()), (Some(3), 2 * listed.body.len()), "{told:?}");
    }
}
