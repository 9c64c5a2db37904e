//! Somebody on call has a log: asks what to limit, tries it on the log, and writes it into a file that holds.
