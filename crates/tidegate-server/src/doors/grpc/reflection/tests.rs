//! The descriptors written down here match Envoy's own, and no imported file is missing.

use std::path::Path;
use std::process::Command;

use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorProto, FileDescriptorSet};

use super::*;

/// Reads the descriptors from which the crate of Envoy's messages was built. They are in its sources, but not in its
/// API.
fn originals() -> FileDescriptorSet {
    let mut metadata = Command::new(std::env::var_os("CARGO").unwrap());
    metadata.args(["metadata", "--format-version=1", "--offline"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    let said = metadata.output().unwrap();
    let said: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
    let packages = said["packages"].as_array().unwrap();
    let package = packages.iter().find(|package| package["name"] == "envoy-types").unwrap();
    let folder = Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap();
    let bytes = std::fs::read(folder.join("src/generated/types.bin")).unwrap();
    FileDescriptorSet::decode(&*bytes).unwrap()
}

/// Compares a message with its original by what is sent and what tools show; options and comments affect neither.
fn is_like(ours: &DescriptorProto, theirs: &DescriptorProto) {
    assert_eq!(ours.field.len(), theirs.field.len(), "{}", ours.name());
    for field in &ours.field {
        let mut original = theirs.field.iter().find(|original| original.name == field.name).unwrap().clone();
        let group = |message: &DescriptorProto, index: Option<i32>| {
            index.map(|index| message.oneof_decl[index as usize].name().to_owned())
        };
        let (own, other) = (group(ours, field.oneof_index), group(theirs, original.oneof_index));
        assert_eq!(own, other, "{}", field.name());
        (original.options, original.json_name, original.oneof_index) = (None, None, field.oneof_index);
        assert_eq!(*field, original, "{}", ours.name());
    }
    let is_map = |message: &DescriptorProto| {
        message.options.as_ref().is_some_and(prost_types::MessageOptions::map_entry)
    };
    assert_eq!(is_map(ours), is_map(theirs), "{}", ours.name());
    assert_eq!(ours.nested_type.len(), theirs.nested_type.len(), "{}", ours.name());
    for (nested, original) in ours.nested_type.iter().zip(&theirs.nested_type) {
        assert_eq!(nested.name, original.name);
        is_like(nested, original);
    }
    assert_eq!(ours.enum_type.len(), theirs.enum_type.len(), "{}", ours.name());
    ours.enum_type.iter().zip(&theirs.enum_type).for_each(|(choice, original)| is_choice(choice, original));
}

fn is_choice(ours: &EnumDescriptorProto, theirs: &EnumDescriptorProto) {
    assert_eq!(ours.name, theirs.name);
    let values = |choice: &EnumDescriptorProto| {
        choice.value.iter().map(|value| (value.name().to_owned(), value.number())).collect::<Vec<_>>()
    };
    assert_eq!(values(ours), values(theirs), "{}", ours.name());
}

#[test]
fn what_is_written_down_is_what_envoys_files_say() {
    let originals = originals();
    let ours = envoy::files().into_iter().chain(well_known::files());
    for file in ours {
        let original = originals.file.iter().find(|original| original.name == file.name).unwrap();
        assert_eq!((&file.package, &file.syntax), (&original.package, &original.syntax));
        for message in &file.message_type {
            let theirs = original.message_type.iter().find(|theirs| theirs.name == message.name);
            is_like(message, theirs.unwrap());
        }
        for choice in &file.enum_type {
            let theirs = original.enum_type.iter().find(|theirs| theirs.name == choice.name);
            is_choice(choice, theirs.unwrap());
        }
        assert_eq!(file.service.len(), original.service.len(), "{}", file.name());
        for (service, theirs) in file.service.iter().zip(&original.service) {
            assert_eq!(service.name, theirs.name);
            let mut methods = theirs.method.clone();
            methods.iter_mut().for_each(|method| method.options = None);
            assert_eq!(service.method, methods);
        }
    }
}

#[test]
fn every_import_and_every_type_is_there() {
    let files = Files::of_all();
    let all: Vec<&str> = files.services().collect();
    let expected = [
        "envoy.service.ratelimit.v3.RateLimitService",
        "envoy.service.rate_limit_quota.v3.RateLimitQuotaService",
        "kuadrant.service.ratelimit.v1.RateLimitService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    ];
    assert_eq!(all, expected);
    let mut to_read: Vec<&[u8]> = all.iter().map(|name| files.that_declares(name).unwrap()).collect();
    while let Some(file) = to_read.pop() {
        let file = FileDescriptorProto::decode(file).unwrap();
        to_read.extend(file.dependency.iter().map(|import| files.named(import).unwrap()));
        let mut messages: Vec<&DescriptorProto> = file.message_type.iter().collect();
        while let Some(message) = messages.pop() {
            messages.extend(&message.nested_type);
            for name in message.field.iter().filter_map(|field| field.type_name.as_deref()) {
                let declaring = files.that_declares(name.strip_prefix('.').unwrap()).unwrap();
                let declaring = FileDescriptorProto::decode(declaring).unwrap();
                let imported = file.dependency.contains(&declaring.name().to_owned());
                assert!(imported || declaring.name == file.name, "{name} in {}", file.name());
            }
        }
    }
}

#[test]
fn a_question_that_asks_nothing_or_too_much_is_an_error() {
    let code = |message: &[u8]| answer(message).unwrap_err().code;
    assert_eq!(code(b""), Code::InvalidArgument);
    assert_eq!(code(b"\x22\xff"), Code::Internal);
    let long = Question::FileContainingSymbol("x".repeat(MOST));
    let long = ServerReflectionRequest { host: String::new(), message_request: Some(long) };
    assert_eq!(code(&long.encode_to_vec()), Code::InvalidArgument);
}
