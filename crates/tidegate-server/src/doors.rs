//! Where requests enter: protocols know the gate, the gate knows no protocol.

pub(crate) mod http;
pub(crate) mod resp;
