//! Google's files that the other files import.
//!
//! # Source
//! "Protocol Buffers Well-Known Types".

use prost_types::{DescriptorProto, FileDescriptorProto};

use super::constructors::{Holds, choice, entries, field, file, message, repeated, with_one_of};

pub(super) const DURATION_FILE: &str = "google/protobuf/duration.proto";
pub(super) const STRUCT_FILE: &str = "google/protobuf/struct.proto";
pub(super) const TIMESTAMP_FILE: &str = "google/protobuf/timestamp.proto";
pub(super) const WRAPPERS_FILE: &str = "google/protobuf/wrappers.proto";

pub(super) const DURATION: Holds = Holds::A("google.protobuf.Duration");
pub(super) const STRUCT: Holds = Holds::A("google.protobuf.Struct");
pub(super) const TIMESTAMP: Holds = Holds::A("google.protobuf.Timestamp");
pub(super) const UINT32_VALUE: Holds = Holds::A("google.protobuf.UInt32Value");
pub(super) const UINT64_VALUE: Holds = Holds::A("google.protobuf.UInt64Value");

const PACKAGE: &str = "google.protobuf";

pub(super) fn files() -> Vec<FileDescriptorProto> {
    let instant =
        |name| message(name, vec![field("seconds", 1, Holds::Int64), field("nanos", 2, Holds::Int32)]);
    vec![
        file(DURATION_FILE, PACKAGE, &[], vec![instant("Duration")]),
        file(TIMESTAMP_FILE, PACKAGE, &[], vec![instant("Timestamp")]),
        file(WRAPPERS_FILE, PACKAGE, &[], wrappers()),
        FileDescriptorProto {
            enum_type: vec![choice("NullValue", &[("NULL_VALUE", 0)])],
            ..file(STRUCT_FILE, PACKAGE, &[], structs())
        },
    ]
}

fn wrappers() -> Vec<DescriptorProto> {
    let wrapper = |(name, holds)| message(name, vec![field("value", 1, holds)]);
    let all = [
        ("DoubleValue", Holds::Double),
        ("FloatValue", Holds::Float),
        ("Int64Value", Holds::Int64),
        ("UInt64Value", Holds::Uint64),
        ("Int32Value", Holds::Int32),
        ("UInt32Value", Holds::Uint32),
        ("BoolValue", Holds::Bool),
        ("StringValue", Holds::Text),
        ("BytesValue", Holds::Bytes),
    ];
    all.into_iter().map(wrapper).collect()
}

fn structs() -> Vec<DescriptorProto> {
    let (value, list) = (Holds::A("google.protobuf.Value"), Holds::A("google.protobuf.ListValue"));
    let fields = repeated("fields", 1, Holds::A("google.protobuf.Struct.FieldsEntry"));
    let kinds = vec![
        field("null_value", 1, Holds::OneOf("google.protobuf.NullValue")),
        field("number_value", 2, Holds::Double),
        field("string_value", 3, Holds::Text),
        field("bool_value", 4, Holds::Bool),
        field("struct_value", 5, STRUCT),
        field("list_value", 6, list),
    ];
    vec![
        DescriptorProto {
            nested_type: vec![entries("FieldsEntry", value)],
            ..message("Struct", vec![fields])
        },
        with_one_of(message("Value", Vec::new()), "kind", kinds),
        message("ListValue", vec![repeated("values", 1, value)]),
    ]
}
