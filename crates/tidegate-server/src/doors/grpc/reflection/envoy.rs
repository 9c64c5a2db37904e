//! Envoy's files, as far as their messages are served, without Envoy's validation rules and comments.
//!
//! The crate with Envoy's messages has no descriptors, so they are written down here. A test compares each with the
//! descriptors from which that crate was built.

use prost_types::{DescriptorProto, FileDescriptorProto};

use super::files::{
    DURATION, DURATION_FILE, Holds, STRUCT, STRUCT_FILE, TIMESTAMP, TIMESTAMP_FILE, UINT32_VALUE,
    UINT64_VALUE, WRAPPERS_FILE, choice, entries, field, file, message, method, repeated, service,
    with_one_of,
};

pub(super) const SERVICE_FILE: &str = "envoy/service/ratelimit/v3/rls.proto";

pub(super) const DESCRIPTOR_FILE: &str = "envoy/extensions/common/ratelimit/v3/ratelimit.proto";

const QUOTA_FILE: &str = "envoy/service/rate_limit_quota/v3/rlqs.proto";

const HEADER_FILE: &str = "envoy/config/core/v3/base.proto";

const STRATEGY_FILE: &str = "envoy/type/v3/ratelimit_strategy.proto";

const UNIT_FILE: &str = "envoy/type/v3/ratelimit_unit.proto";

const BUCKET_FILE: &str = "envoy/type/v3/token_bucket.proto";

pub(super) const REQUEST: &str = "envoy.service.ratelimit.v3.RateLimitRequest";

pub(super) const RESPONSE: &str = "envoy.service.ratelimit.v3.RateLimitResponse";

pub(super) const DESCRIPTOR: Holds = Holds::A("envoy.extensions.common.ratelimit.v3.RateLimitDescriptor");

const TOKEN_BUCKET: Holds = Holds::A("envoy.type.v3.TokenBucket");

const UNIT: Holds = Holds::OneOf("envoy.type.v3.RateLimitUnit");

pub(super) fn files() -> Vec<FileDescriptorProto> {
    let imports = [HEADER_FILE, DESCRIPTOR_FILE, DURATION_FILE, STRUCT_FILE, TIMESTAMP_FILE];
    let limits = "envoy.service.ratelimit.v3";
    let quotas = "envoy.service.rate_limit_quota.v3";
    let descriptors = "envoy.extensions.common.ratelimit.v3";
    let (reports, told) =
        (format!("{quotas}.RateLimitQuotaUsageReports"), format!("{quotas}.RateLimitQuotaResponse"));
    let types = "envoy.type.v3";
    let asks = method("ShouldRateLimit", REQUEST, RESPONSE, false);
    let streams = method("StreamRateLimitQuotas", &reports, &told, true);
    let units =
        [("UNKNOWN", 0), ("SECOND", 1), ("MINUTE", 2), ("HOUR", 3), ("DAY", 4), ("MONTH", 5), ("YEAR", 6)];
    vec![
        FileDescriptorProto {
            service: vec![service("RateLimitService", vec![asks])],
            ..file(SERVICE_FILE, limits, &imports, vec![request(), response()])
        },
        file(DESCRIPTOR_FILE, descriptors, &[UNIT_FILE, WRAPPERS_FILE], vec![descriptor()]),
        FileDescriptorProto {
            service: vec![service("RateLimitQuotaService", vec![streams])],
            ..file(QUOTA_FILE, quotas, &[STRATEGY_FILE, DURATION_FILE], vec![usage(), actions(), bucket_id()])
        },
        file(HEADER_FILE, "envoy.config.core.v3", &[], vec![header()]),
        file(STRATEGY_FILE, types, &[UNIT_FILE, BUCKET_FILE], vec![strategy()]),
        FileDescriptorProto {
            enum_type: vec![choice("RateLimitUnit", &units)],
            ..file(UNIT_FILE, types, &[], Vec::new())
        },
        file(BUCKET_FILE, types, &[DURATION_FILE, WRAPPERS_FILE], vec![token_bucket()]),
    ]
}

fn request() -> DescriptorProto {
    let fields = vec![
        field("domain", 1, Holds::Text),
        repeated("descriptors", 2, DESCRIPTOR),
        field("hits_addend", 3, Holds::Uint32),
    ];
    message("RateLimitRequest", fields)
}

fn response() -> DescriptorProto {
    let header = Holds::A("envoy.config.core.v3.HeaderValue");
    let code = Holds::OneOf("envoy.service.ratelimit.v3.RateLimitResponse.Code");
    let status = Holds::A("envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus");
    let limit = Holds::A("envoy.service.ratelimit.v3.RateLimitResponse.RateLimit");
    let unit = Holds::OneOf("envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit");
    let quota = Holds::A("envoy.service.ratelimit.v3.RateLimitResponse.Quota");
    let units = [
        ("UNKNOWN", 0),
        ("SECOND", 1),
        ("MINUTE", 2),
        ("HOUR", 3),
        ("DAY", 4),
        ("WEEK", 7),
        ("MONTH", 5),
        ("YEAR", 6),
    ];
    let limits = vec![
        field("name", 3, Holds::Text),
        field("requests_per_unit", 1, Holds::Uint32),
        field("unit", 2, unit),
    ];
    let quotas = vec![field("requests", 1, Holds::Uint32), field("id", 3, Holds::Text)];
    let statuses = vec![
        field("code", 1, code),
        field("current_limit", 2, limit),
        field("limit_remaining", 3, Holds::Uint32),
        field("duration_until_reset", 4, DURATION),
        field("quota", 5, quota),
    ];
    let until = vec![field("valid_until", 2, TIMESTAMP)];
    let fields = vec![
        field("overall_code", 1, code),
        repeated("statuses", 2, status),
        repeated("response_headers_to_add", 3, header),
        repeated("request_headers_to_add", 4, header),
        field("raw_body", 5, Holds::Bytes),
        field("dynamic_metadata", 6, STRUCT),
        field("quota", 7, quota),
    ];
    DescriptorProto {
        enum_type: vec![choice("Code", &[("UNKNOWN", 0), ("OK", 1), ("OVER_LIMIT", 2)])],
        nested_type: vec![
            DescriptorProto { enum_type: vec![choice("Unit", &units)], ..message("RateLimit", limits) },
            with_one_of(message("Quota", quotas), "expiration_specifier", until),
            message("DescriptorStatus", statuses),
        ],
        ..message("RateLimitResponse", fields)
    }
}

fn descriptor() -> DescriptorProto {
    let entry = Holds::A("envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry");
    let brought = Holds::A("envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.RateLimitOverride");
    let pair = vec![field("key", 1, Holds::Text), field("value", 2, Holds::Text)];
    let limit = vec![field("requests_per_unit", 1, Holds::Uint32), field("unit", 2, UNIT)];
    let fields = vec![
        repeated("entries", 1, entry),
        field("limit", 2, brought),
        field("hits_addend", 3, UINT64_VALUE),
        field("is_negative_hits", 4, Holds::Bool),
    ];
    DescriptorProto {
        nested_type: vec![message("Entry", pair), message("RateLimitOverride", limit)],
        ..message("RateLimitDescriptor", fields)
    }
}

fn header() -> DescriptorProto {
    let fields = vec![
        field("key", 1, Holds::Text),
        field("value", 2, Holds::Text),
        field("raw_value", 3, Holds::Bytes),
    ];
    message("HeaderValue", fields)
}

fn usage() -> DescriptorProto {
    let usage = Holds::A("envoy.service.rate_limit_quota.v3.RateLimitQuotaUsageReports.BucketQuotaUsage");
    let counts = vec![
        field("bucket_id", 1, Holds::A("envoy.service.rate_limit_quota.v3.BucketId")),
        field("time_elapsed", 2, DURATION),
        field("num_requests_allowed", 3, Holds::Uint64),
        field("num_requests_denied", 4, Holds::Uint64),
    ];
    let fields = vec![field("domain", 1, Holds::Text), repeated("bucket_quota_usages", 2, usage)];
    DescriptorProto {
        nested_type: vec![message("BucketQuotaUsage", counts)],
        ..message("RateLimitQuotaUsageReports", fields)
    }
}

fn actions() -> DescriptorProto {
    let action = "envoy.service.rate_limit_quota.v3.RateLimitQuotaResponse.BucketAction";
    let assigned =
        "envoy.service.rate_limit_quota.v3.RateLimitQuotaResponse.BucketAction.QuotaAssignmentAction";
    let abandoned = "envoy.service.rate_limit_quota.v3.RateLimitQuotaResponse.BucketAction.AbandonAction";
    let assignment = vec![
        field("assignment_time_to_live", 2, DURATION),
        field("rate_limit_strategy", 3, Holds::A("envoy.type.v3.RateLimitStrategy")),
    ];
    let kinds = vec![
        field("quota_assignment_action", 2, Holds::A(assigned)),
        field("abandon_action", 3, Holds::A(abandoned)),
    ];
    let bucket = vec![field("bucket_id", 1, Holds::A("envoy.service.rate_limit_quota.v3.BucketId"))];
    let actions = DescriptorProto {
        nested_type: vec![message("QuotaAssignmentAction", assignment), message("AbandonAction", Vec::new())],
        ..with_one_of(message("BucketAction", bucket), "bucket_action", kinds)
    };
    DescriptorProto {
        nested_type: vec![actions],
        ..message("RateLimitQuotaResponse", vec![repeated("bucket_action", 1, Holds::A(action))])
    }
}

fn bucket_id() -> DescriptorProto {
    let pairs = Holds::A("envoy.service.rate_limit_quota.v3.BucketId.BucketEntry");
    DescriptorProto {
        nested_type: vec![entries("BucketEntry", Holds::Text)],
        ..message("BucketId", vec![repeated("bucket", 1, pairs)])
    }
}

fn strategy() -> DescriptorProto {
    let requests = vec![field("requests_per_time_unit", 1, Holds::Uint64), field("time_unit", 2, UNIT)];
    let kinds = vec![
        field("blanket_rule", 1, Holds::OneOf("envoy.type.v3.RateLimitStrategy.BlanketRule")),
        field("requests_per_time_unit", 2, Holds::A("envoy.type.v3.RateLimitStrategy.RequestsPerTimeUnit")),
        field("token_bucket", 3, TOKEN_BUCKET),
    ];
    DescriptorProto {
        enum_type: vec![choice("BlanketRule", &[("ALLOW_ALL", 0), ("DENY_ALL", 1)])],
        nested_type: vec![message("RequestsPerTimeUnit", requests)],
        ..with_one_of(message("RateLimitStrategy", Vec::new()), "strategy", kinds)
    }
}

fn token_bucket() -> DescriptorProto {
    let fields = vec![
        field("max_tokens", 1, Holds::Uint32),
        field("tokens_per_fill", 2, UINT32_VALUE),
        field("fill_interval", 3, DURATION),
    ];
    message("TokenBucket", fields)
}

// The file of Limitador's own service, which uses Envoy's messages for checks and reports.

const PACKAGE: &str = "kuadrant.service.ratelimit.v1";

const CODE: Holds = Holds::OneOf("envoy.service.ratelimit.v3.RateLimitResponse.Code");

pub(super) fn limitador_file() -> Vec<FileDescriptorProto> {
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
