//! One file per verb.

pub(crate) mod bench;
pub(crate) mod breaker;
pub(crate) mod config;
pub(crate) mod explain;
pub(crate) mod init;
pub(crate) mod key;
pub(crate) mod policies;
pub(crate) mod ready;
pub(crate) mod replay;
pub(crate) mod serve;
pub(crate) mod shell;
pub(crate) mod simulate;
pub(crate) mod suggest;
pub(crate) mod switch;
pub(crate) mod top;
