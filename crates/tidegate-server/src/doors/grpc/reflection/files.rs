//! The files of reflection, by name and by the names that they declare.

use std::collections::HashMap;

use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
    FileDescriptorProto, FileDescriptorSet, MessageOptions, MethodDescriptorProto, OneofDescriptorProto,
    ServiceDescriptorProto,
};

use super::envoy;

/// All files, encoded.
#[derive(Debug, Default)]
pub(super) struct Files {
    files: Vec<(String, Vec<u8>)>,
    /// The index of the file that declares a full name.
    declared: HashMap<String, usize>,
    services: Vec<String>,
}

impl Files {
    /// Collects the files of all services of the door.
    pub(super) fn of_all() -> Self {
        let mut all = Self::default();
        let ours = envoy::files().into_iter().chain(envoy::limitador_file()).chain(well_known_files());
        let theirs = [
            tonic_health::pb::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
        ];
        // Encoded when their crates were built; a test decodes all of them.
        let theirs = theirs.into_iter().filter_map(|set| FileDescriptorSet::decode(set).ok());
        for file in ours.chain(theirs.flat_map(|set| set.file)) {
            all.add(&file);
        }
        all
    }

    /// Returns the full names of the services.
    pub(super) fn services(&self) -> impl Iterator<Item = &str> {
        self.services.iter().map(String::as_str)
    }

    /// Returns the file with this name.
    pub(super) fn named(&self, name: &str) -> Option<&[u8]> {
        let found = self.files.iter().find(|(have, _)| have == name);
        found.map(|(_, file)| file.as_slice())
    }

    /// Returns the file that declares a full name: of a service, method, message, field, enum or enum value.
    pub(super) fn that_declares(&self, name: &str) -> Option<&[u8]> {
        let index = self.declared.get(name)?;
        self.files.get(*index).map(|(_, file)| file.as_slice())
    }

    fn add(&mut self, file: &FileDescriptorProto) {
        let package = file.package();
        for message in &file.message_type {
            self.declare_message(package, message);
        }
        for choice in &file.enum_type {
            self.declare_enum(package, choice);
        }
        for service in &file.service {
            let name = self.declare(package, service.name());
            for method in &service.method {
                self.declare(&name, method.name());
            }
            self.services.push(name);
        }
        self.files.push((file.name().to_owned(), file.encode_to_vec()));
    }

    /// Records that the file being added declares this name. Returns the full name.
    fn declare(&mut self, within: &str, name: &str) -> String {
        let full = format!("{within}.{name}");
        self.declared.insert(full.clone(), self.files.len());
        full
    }

    fn declare_message(&mut self, within: &str, message: &DescriptorProto) {
        let name = self.declare(within, message.name());
        for field in &message.field {
            self.declare(&name, field.name());
        }
        for choice in &message.enum_type {
            self.declare_enum(&name, choice);
        }
        // The recursion is as deep as the files nest messages, and those files are fixed.
        for nested in &message.nested_type {
            self.declare_message(&name, nested);
        }
    }

    /// Values of an enum are declared in the scope of the enum itself, as the language demands.
    fn declare_enum(&mut self, within: &str, choice: &EnumDescriptorProto) {
        self.declare(within, choice.name());
        for value in &choice.value {
            self.declare(within, value.name());
        }
    }
}

// Short constructors for descriptors of files, messages, fields, enums and methods.

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

// Google's files that the other files import.
//
// # Source
// "Protocol Buffers Well-Known Types".

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

pub(super) fn well_known_files() -> Vec<FileDescriptorProto> {
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
