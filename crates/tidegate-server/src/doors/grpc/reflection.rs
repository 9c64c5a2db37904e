//! Server reflection: describes services and messages to tools without files of them (`grpcurl`, Postman).
//!
//! The two versions have the same messages under two names, so they are one method here. An answer holds one file;
//! tools ask for its imports.
//!
//! | stage | lasts at most | then |
//! |---|---|---|
//! | between two questions | [`SILENCE`] | the call ends |
//! | an answer that the caller does not read | the server's `unread` | the call is reset |
//! | until the server drains | | the call ends |
//!
//! # Source
//! "gRPC Server Reflection Protocol", `grpc.reflection.v1`.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use prost::Message as _;
use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorProto, FileDescriptorSet};
use tokio::time::{Instant, timeout};
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest as Question;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse as Answer;
use tonic_reflection::pb::v1::{
    ErrorResponse, ExtensionNumberResponse, FileDescriptorResponse, ListServiceResponse,
    ServerReflectionRequest, ServerReflectionResponse, ServiceResponse,
};

use super::counts::OpenCall;
use super::framing;
use super::reading::{Answers, Messages, over};
use super::status::{Code, Status};
use crate::app::App;
use crate::options::Timeouts;

pub(super) const PATH: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";

pub(super) const PATH_ALPHA: &str = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";

/// The longest time between two questions. Tools ask in sequence, and end the call when they know enough.
const SILENCE: Duration = Duration::from_secs(60);

/// The longest question, in bytes: a name has about a hundred, and each answer repeats its question.
const MOST: usize = 4096;

/// Made on the first question, which takes a third of a millisecond.
static FILES: LazyLock<Files> = LazyLock::new(Files::of_all);

/// Answers questions until either side ends the call; `may_go_on` is asked before each answer.
#[allow(clippy::too_many_arguments, reason = "what the call brings, and how long it may last")]
pub(super) async fn serve(
    app: &App,
    messages: Messages<'_>,
    respond: SendResponse<Bytes>,
    open: OpenCall<'_>,
    deadline: Option<Instant>,
    timeouts: Timeouts,
    may_go_on: impl Fn() -> Result<(), Status>,
) {
    let Some(mut answers) = Answers::begin(respond, timeouts.unread) else { return };
    let ended = tokio::select! {
        biased;
        ended = answer_all(messages, &mut answers, &open, may_go_on) => ended,
        ended = over(app, deadline) => Some(ended),
    };
    if let Some(ended) = ended {
        answers.end(ended);
    }
}

/// Answers until the caller ends the call or is silent too long; `None` if it is gone.
async fn answer_all(
    mut messages: Messages<'_>,
    answers: &mut Answers,
    open: &OpenCall<'_>,
    may_go_on: impl Fn() -> Result<(), Status>,
) -> Option<Result<(), Status>> {
    loop {
        let Ok(next) = open.wait_for(timeout(SILENCE, messages.next())).await else { return Some(Ok(())) };
        let message = match next {
            Ok(Some(message)) => message,
            Ok(None) => return Some(Ok(())),
            Err(status) => return Some(Err(status)),
        };
        match may_go_on().and_then(|()| answer(&message)) {
            Ok(answer) => answers.send(answer).await.ok()?,
            Err(status) => return Some(Err(status)),
        }
    }
}

/// Answers one question. An unknown name is an answer too, not an error.
///
/// # Errors
/// [`Code::InvalidArgument`] for one too long or empty, [`Code::Internal`] for bytes that are no question.
fn answer(message: &[u8]) -> Result<Bytes, Status> {
    if message.len() > MOST {
        let message = format!("the question has {} bytes; ask with at most {MOST}", message.len());
        return Err(Status::new(Code::InvalidArgument, message));
    }
    let asked = ServerReflectionRequest::decode(message).map_err(|error| {
        Status::new(Code::Internal, format!("the message is not a ServerReflectionRequest: {error}"))
    })?;
    let Some(question) = &asked.message_request else {
        let message = "the request asks nothing; set one of its fields other than the host";
        return Err(Status::new(Code::InvalidArgument, message));
    };
    let answer = match question {
        Question::ListServices(_) => {
            let service = FILES.services().map(|name| ServiceResponse { name: name.to_owned() }).collect();
            Answer::ListServicesResponse(ListServiceResponse { service })
        }
        Question::FileByFilename(name) => file(FILES.named(name), "there is no such file here"),
        Question::FileContainingSymbol(name) => {
            file(FILES.that_declares(name), "no file here declares this name")
        }
        Question::FileContainingExtension(_) => not_found("no file here declares an extension"),
        Question::AllExtensionNumbersOfType(name) if FILES.that_declares(name).is_some() => {
            let base_type_name = name.clone();
            let numbers = ExtensionNumberResponse { base_type_name, extension_number: Vec::new() };
            Answer::AllExtensionNumbersResponse(numbers)
        }
        Question::AllExtensionNumbersOfType(_) => not_found("no file here declares this name"),
    };
    let answer = ServerReflectionResponse {
        valid_host: asked.host.clone(),
        original_request: Some(asked),
        message_response: Some(answer),
    };
    Ok(framing::body(&answer))
}

fn file(found: Option<&[u8]>, otherwise: &str) -> Answer {
    match found {
        Some(file) => {
            let file_descriptor_proto = vec![file.to_vec()];
            Answer::FileDescriptorResponse(FileDescriptorResponse { file_descriptor_proto })
        }
        None => not_found(otherwise),
    }
}

fn not_found(message: &str) -> Answer {
    let (error_code, error_message) = (Code::NotFound as i32, message.to_owned());
    Answer::ErrorResponse(ErrorResponse { error_code, error_message })
}

/// Envoy's files as far as they are served, Limitador's, and Google's that they import. Compiled in `reflection/` by
/// `protoc -I . --include_imports --descriptor_set_out=services.binpb envoy/service/ratelimit/v3/rls.proto
/// envoy/service/rate_limit_quota/v3/rlqs.proto kuadrantrls.proto`.
const SERVICES: &[u8] = include_bytes!("reflection/services.binpb");

/// All files, encoded, with the names that they declare.
#[derive(Debug, Default)]
struct Files {
    files: Vec<(String, Vec<u8>)>,
    /// The index of the file that declares a full name.
    declared: HashMap<String, usize>,
    services: Vec<String>,
}

impl Files {
    fn of_all() -> Self {
        let sets = [
            SERVICES,
            tonic_health::pb::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
        ];
        let mut all = Self::default();
        // Encoded when they were built; a test decodes all of them.
        for set in sets.into_iter().filter_map(|set| FileDescriptorSet::decode(set).ok()) {
            set.file.iter().for_each(|file| all.add(file));
        }
        all
    }

    fn services(&self) -> impl Iterator<Item = &str> {
        self.services.iter().map(String::as_str)
    }

    fn named(&self, name: &str) -> Option<&[u8]> {
        let found = self.files.iter().find(|(have, _)| have == name);
        found.map(|(_, file)| file.as_slice())
    }

    /// Returns the file that declares a service, method, message, field, enum or enum value.
    fn that_declares(&self, name: &str) -> Option<&[u8]> {
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

    /// Records a name of the file being added. Returns it in full.
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
        // The recursion is as deep as the files nest messages, and those are fixed.
        for nested in &message.nested_type {
            self.declare_message(&name, nested);
        }
    }

    /// Values are declared in the scope of the enum itself, as the language demands.
    fn declare_enum(&mut self, within: &str, choice: &EnumDescriptorProto) {
        self.declare(within, choice.name());
        for value in &choice.value {
            self.declare(within, value.name());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use prost_types::FieldDescriptorProto;

    use super::*;

    /// Reads the descriptors from which the crate of Envoy's messages was built. They are in its sources, but not in its
    /// API.
    fn originals() -> FileDescriptorSet {
        let mut metadata = Command::new(std::env::var_os("CARGO").unwrap());
        metadata
            .args(["metadata", "--format-version=1", "--offline"])
            .current_dir(env!("CARGO_MANIFEST_DIR"));
        let said = metadata.output().unwrap();
        let said: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
        let packages = said["packages"].as_array().unwrap();
        let package = packages.iter().find(|package| package["name"] == "envoy-types").unwrap();
        let folder = Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap();
        let bytes = std::fs::read(folder.join("src/generated/types.bin")).unwrap();
        FileDescriptorSet::decode(&*bytes).unwrap()
    }

    /// Compares a message with its original by what is sent and what tools show; options affect neither.
    fn is_like(ours: &DescriptorProto, theirs: &DescriptorProto) {
        assert_eq!(ours.field.len(), theirs.field.len(), "{}", ours.name());
        for field in &ours.field {
            let original = theirs.field.iter().find(|original| original.name == field.name).unwrap();
            let group = |message: &DescriptorProto, field: &FieldDescriptorProto| {
                field.oneof_index.map(|index| message.oneof_decl[index as usize].name().to_owned())
            };
            assert_eq!(group(ours, field), group(theirs, original), "{}", field.name());
            let sent = |field: &FieldDescriptorProto| FieldDescriptorProto {
                options: None,
                oneof_index: None,
                ..field.clone()
            };
            assert_eq!(sent(field), sent(original), "{}", ours.name());
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
        ours.enum_type
            .iter()
            .zip(&theirs.enum_type)
            .for_each(|(choice, original)| is_choice(choice, original));
    }

    fn is_choice(ours: &EnumDescriptorProto, theirs: &EnumDescriptorProto) {
        assert_eq!(ours.name, theirs.name);
        let values = |choice: &EnumDescriptorProto| {
            choice.value.iter().map(|value| (value.name().to_owned(), value.number())).collect::<Vec<_>>()
        };
        assert_eq!(values(ours), values(theirs), "{}", ours.name());
    }

    #[test]
    fn the_files_kept_here_say_what_envoys_say() {
        let originals = originals();
        let ours = FileDescriptorSet::decode(SERVICES).unwrap().file;
        // Limitador's file is not among Envoy's.
        for file in ours.iter().filter(|file| file.name() != "kuadrantrls.proto") {
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
}
