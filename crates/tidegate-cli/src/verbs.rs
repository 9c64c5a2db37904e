//! The verbs; small ones share a file.

pub(crate) mod bench;
pub(crate) mod config;
pub(crate) mod explain;
pub(crate) mod init;
pub(crate) mod key;
pub(crate) mod operate;
pub(crate) mod policies;
pub(crate) mod replay;
pub(crate) mod serve;
pub(crate) mod simulate;
pub(crate) mod suggest;
pub(crate) mod top;
