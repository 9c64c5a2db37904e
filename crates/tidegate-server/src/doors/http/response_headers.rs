//! The headers of forward-auth; those of rate limits are the library's ([`tidegate::http_answer`]).

mod forward_auth;

pub(crate) use self::forward_auth::{write_decision, write_refusing_policy};
