//! Server reflection: describes the services of the door and their messages to tools that have no files of them
//! (`grpcurl`, Postman).
//!
//! The two versions of the protocol have the same messages under two names, so they are one method here. An answer
//! holds one file; tools ask for the files that it imports.
//!
//! | | |
//! |---|---|
//! | [`files`] | the files, by name and by what they declare |
//! | [`constructors`] | functions that make descriptors |
//! | [`envoy`] | Envoy's files, as far as they are served |
//! | [`limitador`] | Limitador's file |
//! | [`well_known`] | Google's files that the others import |
//!
//! | stage | lasts at most | then |
//! |---|---|---|
//! | between two questions | [`SILENCE`] | the call ends |
//! | an answer that the caller does not read | the server's `unread` | the call is reset |
//! | until the server drains | | the call ends |
//!
//! # Source
//! "gRPC Server Reflection Protocol", `grpc.reflection.v1`.

mod constructors;
mod envoy;
mod files;
mod limitador;
mod well_known;

use std::sync::LazyLock;
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use prost::Message as _;
use tokio::time::{Instant, timeout};
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest as Question;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse as Answer;
use tonic_reflection::pb::v1::{
    ErrorResponse, ExtensionNumberResponse, FileDescriptorResponse, ListServiceResponse,
    ServerReflectionRequest, ServerReflectionResponse, ServiceResponse,
};

use self::files::Files;
use super::answers::{Answers, over};
use super::counts::Open;
use super::framing;
use super::reading::Messages;
use super::status::{Code, Status};
use crate::app::App;
use crate::options::Timeouts;

/// The paths of the method.
pub(super) const PATH: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
pub(super) const PATH_ALPHA: &str = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
/// The longest time between two questions. Tools ask them in sequence, and end the call when they know enough.
const SILENCE: Duration = Duration::from_secs(60);
/// The longest question, in bytes. A name has about a hundred bytes, and each answer repeats its question.
const MOST: usize = 4096;

/// Made on the first question, which takes a third of a millisecond.
static FILES: LazyLock<Files> = LazyLock::new(Files::of_all);

/// Answers questions until either side ends the call. `may_go_on` says before each answer whether the caller may still
/// ask.
#[allow(clippy::too_many_arguments, reason = "what the call brings, and how long it may last")]
pub(super) async fn serve(
    app: &App,
    messages: Messages<'_>,
    respond: SendResponse<Bytes>,
    open: Open<'_>,
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

/// Answers questions until the caller ends the call, or is silent for too long; `None` if the caller is gone.
async fn answer_all(
    mut messages: Messages<'_>,
    answers: &mut Answers,
    open: &Open<'_>,
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

/// Answers one question with the body of the answer. An unknown name is an answer too, not an error.
///
/// # Errors
/// [`Code::InvalidArgument`] for a question that is too long or empty, [`Code::Internal`] for bytes that are not a
/// question.
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

#[cfg(test)]
mod tests;
