//! Short constructors for descriptors of files, messages, fields, enums and methods.

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
    FileDescriptorProto, MessageOptions, MethodDescriptorProto, OneofDescriptorProto, ServiceDescriptorProto,
};

/// The type of a field.
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
    /// A message with this full name.
    A(&'static str),
    /// A value of the enum with this full name.
    OneOf(&'static str),
}

/// Makes a proto3 file.
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

/// Adds a oneof with these fields to a message.
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

/// Makes the entry message of a map with text keys and these values.
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

/// Makes a method with messages of these full names. `streams`: both sides send many messages.
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
