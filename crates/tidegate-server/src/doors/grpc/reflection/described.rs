//! Descriptors, in short: what a file, a message, a field, an enum and a method are.

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
    FileDescriptorProto, MessageOptions, MethodDescriptorProto, OneofDescriptorProto, ServiceDescriptorProto,
};

/// What a field holds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Holds {
    Bool,
    Int32,
    Int64,
    Uint32,
    Uint64,
    Float,
    Double,
    Text,
    Bytes,
    /// A message of this full name.
    A(&'static str),
    /// A value of the enum of this full name.
    OneOf(&'static str),
}

/// Makes a file in the third version of the language.
pub(super) fn file(
    name: &str,
    package: &str,
    imports: &[&str],
    message_type: Vec<DescriptorProto>,
) -> FileDescriptorProto {
    FileDescriptorProto {
        name: Some(name.to_owned()),
        package: Some(package.to_owned()),
        dependency: imports.iter().map(|&import| import.to_owned()).collect(),
        message_type,
        syntax: Some("proto3".to_owned()),
        ..FileDescriptorProto::default()
    }
}

pub(super) fn message(name: &str, field: Vec<FieldDescriptorProto>) -> DescriptorProto {
    DescriptorProto { name: Some(name.to_owned()), field, ..DescriptorProto::default() }
}

pub(super) fn field(name: &str, number: i32, holds: Holds) -> FieldDescriptorProto {
    let (kind, of) = match holds {
        Holds::Bool => (Type::Bool, None),
        Holds::Int32 => (Type::Int32, None),
        Holds::Int64 => (Type::Int64, None),
        Holds::Uint32 => (Type::Uint32, None),
        Holds::Uint64 => (Type::Uint64, None),
        Holds::Float => (Type::Float, None),
        Holds::Double => (Type::Double, None),
        Holds::Text => (Type::String, None),
        Holds::Bytes => (Type::Bytes, None),
        Holds::A(name) => (Type::Message, Some(name)),
        Holds::OneOf(name) => (Type::Enum, Some(name)),
    };
    FieldDescriptorProto {
        name: Some(name.to_owned()),
        number: Some(number),
        label: Some(Label::Optional as i32),
        r#type: Some(kind as i32),
        type_name: of.map(|name| format!(".{name}")),
        ..FieldDescriptorProto::default()
    }
}

pub(super) fn repeated(name: &str, number: i32, holds: Holds) -> FieldDescriptorProto {
    FieldDescriptorProto { label: Some(Label::Repeated as i32), ..field(name, number, holds) }
}

/// Gives a message this group of fields, one of which is set at a time.
pub(super) fn with_one_of(
    mut message: DescriptorProto,
    name: &str,
    fields: Vec<FieldDescriptorProto>,
) -> DescriptorProto {
    let index = Some(message.oneof_decl.len() as i32);
    message.oneof_decl.push(OneofDescriptorProto { name: Some(name.to_owned()), options: None });
    message
        .field
        .extend(fields.into_iter().map(|field| FieldDescriptorProto { oneof_index: index, ..field }));
    message
}

/// Makes the message of the pairs of a map with these values, whose keys are texts.
pub(super) fn entries(name: &str, value: Holds) -> DescriptorProto {
    let options = MessageOptions { map_entry: Some(true), ..MessageOptions::default() };
    let fields = vec![field("key", 1, Holds::Text), field("value", 2, value)];
    DescriptorProto { options: Some(options), ..message(name, fields) }
}

pub(super) fn choice(name: &str, values: &[(&str, i32)]) -> EnumDescriptorProto {
    let value = |(name, number): &(&str, i32)| EnumValueDescriptorProto {
        name: Some((*name).to_owned()),
        number: Some(*number),
        options: None,
    };
    EnumDescriptorProto {
        name: Some(name.to_owned()),
        value: values.iter().map(value).collect(),
        ..EnumDescriptorProto::default()
    }
}

pub(super) fn service(name: &str, method: Vec<MethodDescriptorProto>) -> ServiceDescriptorProto {
    ServiceDescriptorProto { name: Some(name.to_owned()), method, options: None }
}

/// Makes a method from messages of these full names; `streams` where many of the one are answered by many of the other.
pub(super) fn method(name: &str, takes: &str, answers: &str, streams: bool) -> MethodDescriptorProto {
    MethodDescriptorProto {
        name: Some(name.to_owned()),
        input_type: Some(format!(".{takes}")),
        output_type: Some(format!(".{answers}")),
        client_streaming: streams.then_some(true),
        server_streaming: streams.then_some(true),
        options: None,
    }
}
