//! The labels of all series: names from the configuration and the words listed here, never anything from a request.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};

/// The outcome of a request under one policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "labels are written as they are named")]
pub(crate) enum Decided {
    allowed,
    denied,
    delayed,
    error,
}

impl Decided {
    pub(super) const ALL: [Self; 4] = [Self::allowed, Self::denied, Self::delayed, Self::error];
}

/// Whether a decision is enforced, or only measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "labels are written as they are named")]
pub(crate) enum ModeLabel {
    enforce,
    shadow,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct DecisionLabels {
    pub(super) policy: String,
    pub(super) decision: Decided,
    pub(super) mode: ModeLabel,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct PolicyLabel {
    pub(super) policy: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct StoreLabel {
    pub(super) store: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct StoreChangeLabels {
    pub(super) store: &'static str,
    pub(super) state: StoreStateLabel,
}

/// The state of a store after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "labels are written as they are named")]
pub(super) enum StoreStateLabel {
    up,
    down,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct BreakerLabels {
    pub(super) policy: String,
    pub(super) state: BreakerStateLabel,
}

/// The state of a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "labels are written as they are named")]
pub(crate) enum BreakerStateLabel {
    closed,
    shedding,
    open,
    half_open,
    forced_open,
    forced_closed,
    metrics_only,
    disabled,
}

impl BreakerStateLabel {
    pub(crate) const ALL: [Self; 8] = [
        Self::closed,
        Self::shedding,
        Self::open,
        Self::half_open,
        Self::forced_open,
        Self::forced_closed,
        Self::metrics_only,
        Self::disabled,
    ];

    /// Returns the label of a state's name.
    pub(crate) fn of(word: &str) -> Self {
        match word {
            "shedding" => Self::shedding,
            "open" => Self::open,
            "half-open" => Self::half_open,
            "forced-open" => Self::forced_open,
            "forced-closed" => Self::forced_closed,
            "metrics-only" => Self::metrics_only,
            "disabled" => Self::disabled,
            _ => Self::closed,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OverLabels {
    pub(super) policy: String,
    pub(super) action: OverAction,
}

/// The action taken, in place of a refusal, for a request that is over a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "labels are written as they are named")]
pub(super) enum OverAction {
    marked,
    demoted,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct CutLabel {
    pub(super) reason: CutReason,
}

/// Why the server ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "labels are written as they are named")]
pub(crate) enum CutReason {
    /// All places were taken and none could be vacated.
    full,
    /// Its place was given to another connection.
    vacated,
    /// Its request head took too long.
    head,
    /// It did not read its answers.
    unread,
    /// Its TLS handshake took too long.
    handshake,
}

impl CutReason {
    pub(super) const ALL: [Self; 5] = [Self::full, Self::vacated, Self::head, Self::unread, Self::handshake];
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct TransportLabel {
    pub(super) transport: Transport,
}

/// The protocol of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "labels are written as they are named")]
pub(crate) enum Transport {
    http,
    grpc,
    resp,
}

impl Transport {
    pub(crate) const ALL: [Self; 3] = [Self::http, Self::grpc, Self::resp];

    /// Returns the name of the protocol for people.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::http => "HTTP",
            Self::grpc => "gRPC",
            Self::resp => "Redis",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RequestLabels {
    pub(super) transport: Transport,
    pub(super) outcome: RequestOutcome,
}

/// How a request of a door ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "labels are written as they are named")]
pub(crate) enum RequestOutcome {
    allowed,
    /// Allowed after a wait.
    delayed,
    denied,
    /// Allowed, since no policy is about it.
    unmatched,
    /// The store did not decide, and `on_store_error` let it pass.
    failed_open,
    /// The store did not decide, and `on_store_error` refused it.
    failed_closed,
    /// Not decided: it could not be read, or came to the wrong door.
    invalid,
}

impl RequestOutcome {
    pub(super) const ALL: [Self; 7] = [
        Self::allowed,
        Self::delayed,
        Self::denied,
        Self::unmatched,
        Self::failed_open,
        Self::failed_closed,
        Self::invalid,
    ];
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ThrottleLabel {
    pub(super) decision: Decided,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct BuildLabels {
    pub(super) version: &'static str,
    pub(super) commit: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct SettlementLabel {
    pub(super) result: SettlementResult,
}

/// The result of settling a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "labels are written as they are named")]
pub(crate) enum SettlementResult {
    settled,
    /// A reservation that nobody committed; its units were returned.
    lapsed,
    /// The ticket was settled before.
    repeated,
    expired,
    /// The ticket belongs to another node.
    elsewhere,
    /// No key opens it, or it is not a ticket.
    refused,
    /// The store did not settle it.
    error,
}

impl SettlementResult {
    pub(super) const ALL: [Self; 7] = [
        Self::settled,
        Self::lapsed,
        Self::repeated,
        Self::expired,
        Self::elsewhere,
        Self::refused,
        Self::error,
    ];
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ExtensionLabel {
    pub(super) result: ExtensionResult,
}

/// The result of extending a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "labels are written as they are named")]
pub(crate) enum ExtensionResult {
    extended,
    /// The ticket was settled or extended before.
    repeated,
    /// Its places have lapsed, or it has none that can be held longer.
    not_held,
    expired,
    /// The ticket belongs to another node.
    elsewhere,
    /// No key opens it, or it is not a ticket.
    refused,
    /// The store did not extend it, or no other ticket could be made.
    error,
}

impl ExtensionResult {
    pub(super) const ALL: [Self; 7] = [
        Self::extended,
        Self::repeated,
        Self::not_held,
        Self::expired,
        Self::elsewhere,
        Self::refused,
        Self::error,
    ];
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct UnitsLabels {
    pub(super) policy: String,
    pub(super) fate: UnitsFate,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct CostErrorLabels {
    pub(super) policy: String,
    pub(super) at: CostErrorAt,
}

/// When the cost of a request was needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "labels are written as they are named")]
pub(super) enum CostErrorAt {
    check,
    settlement,
}

/// How a settlement changed the units charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "labels are written as they are named")]
pub(super) enum UnitsFate {
    returned,
    owed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct SwitchLabel {
    pub(super) switch: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct SwitchChangeLabels {
    pub(super) switch: String,
    pub(super) by: SwitchedByLabel,
}

/// What changed a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "labels are written as they are named")]
pub(crate) enum SwitchedByLabel {
    hand,
    /// A signal that somebody sends, a trigger of the file, or a file that no longer has the trigger.
    signal,
    /// The time for which it was set is over.
    time,
}

impl SwitchedByLabel {
    pub(super) const ALL: [Self; 3] = [Self::hand, Self::signal, Self::time];

    /// Returns the label as a word.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::hand => "hand",
            Self::signal => "signal",
            Self::time => "time",
        }
    }
}
