//! Bounds on what a file may hold, so that its author cannot make reading it take unbounded time or memory.
//!
//! Lengths follow what a request can carry: the doors accept attribute names of 256 bytes and values of 8,192 bytes.

use tidegate_gate::policy::{Descriptor, MAX_EXPRESSION};

/// The largest text, in bytes: ten thousand policies take about three megabytes.
pub(super) const TEXT: usize = 4 << 20;
/// The deepest nesting: the deepest sensible file has nine levels.
pub(super) const DEPTH: usize = 32;
/// Scalars, lists and maps in total, with aliases expanded: 25 for each of ten thousand policies.
pub(super) const NODES: usize = 250_000;
/// Commas, equal signs and line ends of a TOML text. The TOML parser bounds the depth but not the size.
pub(super) const SEPARATORS: usize = 1_000_000;
/// Dots in keys and numbers of a TOML text: each dot in a key creates a table.
pub(super) const DOTS: usize = 100_000;
/// Documents of a file of another rate limiter, and texts in its manifests: one for each domain.
pub(super) const DOCUMENTS: usize = 1_000;
/// YAML aliases: one per policy.
pub(super) const ALIASES: usize = 10_000;
/// The total expansion of all aliases, in events of the parser.
pub(super) const REPLAYED: usize = 100_000;

/// Policies in a file.
pub(super) const POLICIES: usize = 10_000;
/// Canaries in a file: their figures are compared every second.
pub(super) const CANARIES: usize = 1_024;
/// Networks and values in one `allow` or `deny`: public lists of bad addresses have tens of thousands.
pub(super) const ENTRIES: usize = 100_000;
/// Elements of any other list and entries of any other map.
pub(super) const ELEMENTS: usize = 10_000;
/// Limits of one policy, and attributes of one key: each check goes through all of them.
pub(super) const FEW: usize = 16;
/// Methods of one match: there are about forty.
pub(super) const METHODS: usize = 64;
/// Headers of one match, and as many other attributes: a request has at most 64 in total.
pub(super) const MATCHED: usize = 24;
/// Alternatives of all patterns together, with braces multiplied out.
pub(super) const ALTERNATIVES: usize = 100_000;
/// Steps that matching all patterns may take for each byte of a request: one for a pattern such as `*.example.com`, and
/// as many as the pattern has bytes for one such as `/**/x/**/y` or `*a?c*`.
pub(super) const STEPS: usize = 10_000;
/// Segments of a path pattern.
pub(super) const SEGMENTS: usize = 32;

/// Bytes of a policy's name, which appears in headers of every answer.
pub(super) const NAME: usize = 128;
/// Bytes of an attribute's name, as at the doors.
pub(super) const ATTRIBUTE: usize = Descriptor::MAX_NAME;
/// Bytes of a value, as at the doors.
pub(super) const VALUE: usize = Descriptor::MAX_VALUE;
/// Bytes of a pattern or a URI.
pub(super) const PATTERN: usize = 1024;
/// Bytes of a number, a rate, a span, a word, an address or a time zone.
pub(super) const WORD: usize = 64;
/// Bytes of a cost, which may be an expression.
pub(super) const COST: usize = MAX_EXPRESSION;

/// Bytes of all costs together: compiling an expression takes some microseconds per byte.
pub(super) const COSTS: usize = 256 << 10;

/// Errors that are reported, and as many warnings; further ones are only counted.
pub(super) const FINDINGS: usize = 100;
