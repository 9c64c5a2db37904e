//! The law that every store passes.
