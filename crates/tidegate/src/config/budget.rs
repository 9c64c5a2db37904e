//! How much a file may hold. Beyond each of these a file is refused, so that its author decides neither how long reading it
//! takes nor how much memory it needs.
//!
//! The lengths follow what a request can carry: the doors take attribute names of 256 bytes and values of 8,192, so that a
//! longer word in the file would match nothing.

use crate::policy::Descriptor;
use crate::policy::MAX_EXPRESSION;

/// The largest text, in bytes: ten thousand policies take about three megabytes.
pub(super) const TEXT: usize = 4 << 20;
/// The deepest nesting: the deepest sensible file has nine levels.
pub(super) const DEPTH: usize = 32;
/// Scalars, lists and maps in all, those that aliases stand for included: 25 for each of ten thousand policies.
pub(super) const NODES: usize = 250_000;
/// Commas, equal signs and line ends of a text in TOML, whose parser bounds its depth and not its size.
pub(super) const SEPARATORS: usize = 1_000_000;
/// Dots of keys and numbers of a text in TOML: each dot of a key makes a table.
pub(super) const DOTS: usize = 100_000;
/// Aliases of YAML: one in each policy.
pub(super) const ALIASES: usize = 10_000;
/// What aliases may stand for in all, in events of the parser.
pub(super) const REPLAYED: usize = 100_000;

/// Policies in a file.
pub(super) const POLICIES: usize = 10_000;
/// Networks and values in one `allow` or `deny`: public lists of bad addresses have tens of thousands.
pub(super) const ENTRIES: usize = 100_000;
/// Elements of any other list, and entries of any map.
pub(super) const ELEMENTS: usize = 10_000;
/// Limits of one policy, attributes of one key: each check goes through all of them.
pub(super) const FEW: usize = 16;
/// Methods of one match: there are some forty.
pub(super) const METHODS: usize = 64;
/// Headers of one match, and as many other attributes: a request has at most 64 in all.
pub(super) const MATCHED: usize = 24;
/// Patterns in all, braces multiplied out.
pub(super) const ALTERNATIVES: usize = 100_000;
/// Steps that matching all patterns may take for each byte of a request: one for a pattern as `*.example.com`, as many as it
/// has bytes for one as `/**/x/**/y` or `*a?c*`.
pub(super) const STEPS: usize = 10_000;
/// Segments of a path pattern.
pub(super) const SEGMENTS: usize = 32;

/// Bytes of a policy's name: it stands in headers of every answer.
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

/// Bytes of all costs together: to compile an expression takes some microseconds for each of its bytes.
pub(super) const COSTS: usize = 256 << 10;

/// Mistakes that are told, and as many warnings; more of them are counted.
pub(super) const FINDINGS: usize = 100;
