//! Work that goes on after the head of an answer: what layers do until the answer's body ends. And request bodies that can
//! be sent again.
//!
//! An answer that is streamed (server-sent events, a download, a stream of gRPC, the tokens of a language model) has its
//! head long before its end. By default layers are done at the head, which costs nothing. With `until_body_ends` they
//! wrap the body: [`HeldBody`] keeps what a request holds, and judges the call when the body has ended; [`TimedBody`]
//! ends the body at the deadline. Which of the two a layer does is a type parameter of the layer, [`AtHead`] or
//! [`AtBodyEnd`], since it changes the type of the response.

mod ends;

pub(crate) use self::ends::BodyDeadline;
pub use self::ends::{AtBodyEnd, AtHead, BoundsUntil, HeldBody, HoldsUntil, TimedBody};
pub use crate::replay::{ReplayBody, ReplayError, ReplayLayer};
