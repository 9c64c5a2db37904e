//! Serves a gate over HTTP.
