//! Keyed state in memory.
