//! The file of Limitador's own service, which uses Envoy's messages for checks and reports.

use prost_types::FileDescriptorProto;

use super::constructors::{Holds, field, file, message, method, repeated, service};
use super::envoy::{DESCRIPTOR, DESCRIPTOR_FILE, REQUEST, RESPONSE, SERVICE_FILE};
use super::well_known::{DURATION, DURATION_FILE};

const PACKAGE: &str = "kuadrant.service.ratelimit.v1";
const CODE: Holds = Holds::OneOf("envoy.service.ratelimit.v3.RateLimitResponse.Code");

pub(super) fn files() -> Vec<FileDescriptorProto> {
    let messages = vec![
        message(
            "ReserveRequest",
            vec![
                field("domain", 1, Holds::Text),
                repeated("descriptors", 2, DESCRIPTOR),
                field("amount", 3, Holds::Uint64),
                field("ttl", 4, DURATION),
            ],
        ),
        message("ReserveResponse", vec![field("code", 1, CODE), field("reservation_id", 2, Holds::Text)]),
        message(
            "CommitRequest",
            vec![
                field("domain", 1, Holds::Text),
                repeated("descriptors", 2, DESCRIPTOR),
                field("reservation_id", 3, Holds::Text),
                field("actual_amount", 4, Holds::Uint64),
            ],
        ),
        message("CommitResponse", vec![field("reservation_released", 1, Holds::Bool)]),
    ];
    let own = |name: &str| format!("{PACKAGE}.{name}");
    let methods = vec![
        method("CheckRateLimit", REQUEST, RESPONSE, false),
        method("Report", REQUEST, RESPONSE, false),
        method("Reserve", &own("ReserveRequest"), &own("ReserveResponse"), false),
        method("Commit", &own("CommitRequest"), &own("CommitResponse"), false),
    ];
    let name = "kuadrantrls.proto";
    vec![FileDescriptorProto {
        service: vec![service("RateLimitService", methods)],
        ..file(name, PACKAGE, &[SERVICE_FILE, DESCRIPTOR_FILE, DURATION_FILE], messages)
    }]
}
