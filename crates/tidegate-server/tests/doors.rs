//! The doors of a running server: who may come in, what hostile callers get, and how it starts, goes on and stops.

mod admin_address;
mod forward_auth;
mod hostile;
mod meant_otherwise;
mod operations;
mod outages;
mod refusals;
mod restarts;
mod stopping;
mod unix_sockets;
mod without_store;
