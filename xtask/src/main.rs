//! What CI runs, anyone can run.
fn main() {}
