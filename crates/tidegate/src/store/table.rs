//! A set-associative table.
