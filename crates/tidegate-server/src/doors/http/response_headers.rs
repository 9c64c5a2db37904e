//! The headers of forward-auth; those of rate limits are the library's ([`tidegate::http_answer`]).

mod forward_auth;
mod names;
mod over;

pub(crate) use self::forward_auth::{write_decision, write_refusing_policy};
pub(crate) use self::over::write_over;
