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
//! "gRPC Server Reflection Protocol", `grpc.reflection.v1`; `reflection/reflection_v1.proto`.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use prost::{Message, Oneof};
use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorProto, FileDescriptorSet};
use tokio::time::{Instant, timeout};

use super::counts::OpenCall;
use super::framing::{self, Code, Status};
use super::reading::{Answers, Messages, over};
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

#[derive(Clone, PartialEq, Eq, Message)]
struct ServerReflectionRequest {
    #[prost(string, tag = "1")]
    host: String,
    #[prost(oneof = "Question", tags = "3, 4, 5, 6, 7")]
    message_request: Option<Question>,
}

/// `ServerReflectionRequest.message_request`
#[derive(Clone, PartialEq, Eq, Oneof)]
enum Question {
    #[prost(string, tag = "3")]
    FileByFilename(String),
    #[prost(string, tag = "4")]
    FileContainingSymbol(String),
    #[prost(message, tag = "5")]
    FileContainingExtension(ExtensionRequest),
    #[prost(string, tag = "6")]
    AllExtensionNumbersOfType(String),
    #[prost(string, tag = "7")]
    ListServices(String),
}

/// Each answer repeats its question, so the fields are kept.
#[derive(Clone, PartialEq, Eq, Message)]
struct ExtensionRequest {
    #[prost(string, tag = "1")]
    containing_type: String,
    #[prost(int32, tag = "2")]
    extension_number: i32,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct ServerReflectionResponse {
    #[prost(string, tag = "1")]
    valid_host: String,
    #[prost(message, optional, tag = "2")]
    original_request: Option<ServerReflectionRequest>,
    #[prost(oneof = "Answer", tags = "4, 5, 6, 7")]
    message_response: Option<Answer>,
}

/// `ServerReflectionResponse.message_response`
#[derive(Clone, PartialEq, Eq, Oneof)]
enum Answer {
    #[prost(message, tag = "4")]
    Files(FileDescriptorResponse),
    #[prost(message, tag = "5")]
    ExtensionNumbers(ExtensionNumberResponse),
    #[prost(message, tag = "6")]
    Services(ListServiceResponse),
    #[prost(message, tag = "7")]
    Error(ErrorResponse),
}

#[derive(Clone, PartialEq, Eq, Message)]
struct FileDescriptorResponse {
    /// Encoded files.
    #[prost(bytes = "vec", repeated, tag = "1")]
    file_descriptor_proto: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct ExtensionNumberResponse {
    #[prost(string, tag = "1")]
    base_type_name: String,
    #[prost(int32, repeated, tag = "2")]
    extension_number: Vec<i32>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct ListServiceResponse {
    #[prost(message, repeated, tag = "1")]
    service: Vec<ServiceResponse>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct ServiceResponse {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct ErrorResponse {
    /// A [`Code`].
    #[prost(int32, tag = "1")]
    error_code: i32,
    #[prost(string, tag = "2")]
    error_message: String,
}

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
            Answer::Services(ListServiceResponse { service })
        }
        Question::FileByFilename(name) => file(FILES.named(name), "there is no such file here"),
        Question::FileContainingSymbol(name) => {
            file(FILES.that_declares(name), "no file here declares this name")
        }
        Question::FileContainingExtension(_) => not_found("no file here declares an extension"),
        Question::AllExtensionNumbersOfType(name) if FILES.that_declares(name).is_some() => {
            let base_type_name = name.clone();
            let numbers = ExtensionNumberResponse { base_type_name, extension_number: Vec::new() };
            Answer::ExtensionNumbers(numbers)
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
            Answer::Files(FileDescriptorResponse { file_descriptor_proto })
        }
        None => not_found(otherwise),
    }
}

fn not_found(message: &str) -> Answer {
    let (error_code, error_message) = (Code::NotFound as i32, message.to_owned());
    Answer::Error(ErrorResponse { error_code, error_message })
}

/// Envoy's files as far as they are served, Limitador's, gRPC's, and Google's that they import. Compiled in
/// `reflection/` by `protoc -I . --include_imports --descriptor_set_out=services.binpb
/// envoy/service/ratelimit/v3/rls.proto envoy/service/rate_limit_quota/v3/rlqs.proto kuadrantrls.proto health.proto
/// reflection_v1.proto reflection_v1alpha.proto`.
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
        // Fixed; a test decodes it.
        let set = FileDescriptorSet::decode(SERVICES).unwrap_or_default();
        let mut all = Self::default();
        set.file.iter().for_each(|file| all.add(file));
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
    use tonic_reflection::pb::{v1, v1alpha};

    use super::*;

    /// The files that are not Envoy's, nor imported by those.
    const OTHERS: [&str; 4] =
        ["kuadrantrls.proto", "health.proto", "reflection_v1.proto", "reflection_v1alpha.proto"];

    /// Reads the descriptors from which the crate of Envoy's messages was built. They are in its sources, but not in its
    /// API.
    fn originals() -> FileDescriptorSet {
        let mut metadata = Command::new(std::env::var_os("CARGO").unwrap());
        metadata
            // Packages of other systems were perhaps never fetched.
            .args(["metadata", "--format-version=1", "--offline", "--filter-platform=host-tuple"])
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
        for file in ours.iter().filter(|file| !OTHERS.contains(&file.name())) {
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
    fn the_files_kept_here_are_grpcs() {
        let ours = FileDescriptorSet::decode(SERVICES).unwrap().file;
        for theirs in
            [tonic_health::pb::FILE_DESCRIPTOR_SET, v1::FILE_DESCRIPTOR_SET, v1alpha::FILE_DESCRIPTOR_SET]
        {
            let theirs = FileDescriptorSet::decode(theirs).unwrap().file;
            let [theirs] = &*theirs else { panic!("{} files", theirs.len()) };
            assert_eq!(ours.iter().find(|ours| ours.name == theirs.name), Some(theirs));
        }
    }

    #[test]
    fn both_versions_have_the_same_messages() {
        let [new, old] = ["reflection_v1.proto", "reflection_v1alpha.proto"].map(|name| {
            let file = Files::of_all().named(name).map(FileDescriptorProto::decode);
            format!("{:?}", file.unwrap().unwrap().message_type)
        });
        assert_eq!(old.replace(".v1alpha.", ".v1."), new);
    }

    #[test]
    fn a_question_is_theirs() {
        use v1::server_reflection_request::MessageRequest as Theirs;

        let name = || "envoy.type.v3.TokenBucket".to_owned();
        let (containing_type, extension_number) = (name(), -7);
        let ours = ExtensionRequest { containing_type: name(), extension_number };
        let theirs = v1::ExtensionRequest { containing_type, extension_number };
        for (ours, theirs) in [
            (Question::FileByFilename(name()), Theirs::FileByFilename(name())),
            (Question::FileContainingSymbol(name()), Theirs::FileContainingSymbol(name())),
            (Question::FileContainingExtension(ours), Theirs::FileContainingExtension(theirs)),
            (Question::AllExtensionNumbersOfType(name()), Theirs::AllExtensionNumbersOfType(name())),
            (Question::ListServices(String::new()), Theirs::ListServices(String::new())),
        ] {
            let host = "gate.example".to_owned();
            let ours = ServerReflectionRequest { host: host.clone(), message_request: Some(ours) };
            framing::are_one(&ours, &v1::ServerReflectionRequest { host, message_request: Some(theirs) });
        }
    }

    /// All kinds of answers.
    fn answers() -> [(Answer, v1::server_reflection_response::MessageResponse); 4] {
        use v1::server_reflection_response::MessageResponse as Theirs;

        let file_descriptor_proto = vec![b"a file".to_vec(), Vec::new()];
        let their_files = v1::FileDescriptorResponse { file_descriptor_proto: file_descriptor_proto.clone() };
        let files = FileDescriptorResponse { file_descriptor_proto };
        let (base_type_name, extension_number) = ("a.Type".to_owned(), vec![1, -2, i32::MAX]);
        let their_numbers = v1::ExtensionNumberResponse {
            base_type_name: base_type_name.clone(),
            extension_number: extension_number.clone(),
        };
        let numbers = ExtensionNumberResponse { base_type_name, extension_number };
        let names = ["a.Service", ""].map(str::to_owned);
        let theirs = names.iter().map(|name| v1::ServiceResponse { name: name.clone() });
        let their_list = v1::ListServiceResponse { service: theirs.collect() };
        let list = ListServiceResponse { service: names.map(|name| ServiceResponse { name }).into() };
        let (error_code, error_message) = (5, "no file".to_owned());
        let their_error = v1::ErrorResponse { error_code, error_message: error_message.clone() };
        let error = ErrorResponse { error_code, error_message };
        [
            (Answer::Files(files), Theirs::FileDescriptorResponse(their_files)),
            (Answer::ExtensionNumbers(numbers), Theirs::AllExtensionNumbersResponse(their_numbers)),
            (Answer::Services(list), Theirs::ListServicesResponse(their_list)),
            (Answer::Error(error), Theirs::ErrorResponse(their_error)),
        ]
    }

    #[test]
    fn an_answer_is_theirs() {
        for (ours, theirs) in answers() {
            let host = "gate.example".to_owned();
            let ours = ServerReflectionResponse {
                valid_host: host.clone(),
                original_request: Some(ServerReflectionRequest { host: host.clone(), message_request: None }),
                message_response: Some(ours),
            };
            let theirs = v1::ServerReflectionResponse {
                valid_host: host.clone(),
                original_request: Some(v1::ServerReflectionRequest { host, message_request: None }),
                message_response: Some(theirs),
            };
            framing::are_one(&ours, &theirs);
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
