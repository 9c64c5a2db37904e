//! The program of the README.

include!("readme/program.rs");
