//! The headers of forward-auth. The library writes those of rate limits ([`tidegate::http_answer`]).

mod forward_auth;

pub(crate) use self::forward_auth::{write_decision, write_refusing_policy};
