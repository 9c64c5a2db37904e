//! A virtual clock and traffic, synthetic or recorded; drives a real gate; curves out.
