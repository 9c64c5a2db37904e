//! The labels of all series: names from the configuration and the words here, never anything from a request.

/// Defines lists of words, written as they are named.
macro_rules! words {
    ($($(#[$doc:meta])* $visible:vis enum $name:ident { $($(#[$of:meta])* $word:ident,)+ })+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, prometheus_client::encoding::EncodeLabelValue)]
        #[allow(non_camel_case_types, reason = "labels are written as they are named")]
        $visible enum $name { $($(#[$of])* $word,)+ }

        #[allow(dead_code, reason = "not every list is walked, nor every word written elsewhere")]
        impl $name {
            pub(crate) const ALL: [Self; [$(stringify!($word)),+].len()] = [$(Self::$word),+];

            pub(crate) const fn as_str(self) -> &'static str {
                match self { $(Self::$word => stringify!($word)),+ }
            }
        }
    )+};
}
pub(super) use words;

/// Defines the labels of series.
macro_rules! label_sets {
    ($($visible:vis struct $name:ident { $($label:ident: $kind:ty),+ })+) => {$(
        #[derive(Clone, Debug, PartialEq, Eq, Hash, prometheus_client::encoding::EncodeLabelSet)]
        $visible struct $name { $($visible $label: $kind),+ }
    )+};
}
pub(super) use label_sets;

label_sets! {
    pub(super) struct DecisionLabels { policy: String, decision: Decided, mode: ModeLabel }
    pub(super) struct PolicyLabel { policy: String }
    pub(super) struct StoreLabel { store: &'static str }
    pub(super) struct StoreChangeLabels { store: &'static str, state: StoreStateLabel }
    pub(super) struct BreakerLabels { policy: String, state: BreakerStateLabel }
    pub(super) struct OverLabels { policy: String, action: OverAction }
    pub(super) struct CutLabel { reason: CutReason }
    pub(super) struct TransportLabel { transport: Transport }
    pub(super) struct RequestLabels { transport: Transport, outcome: RequestOutcome }
    pub(super) struct ThrottleLabel { decision: Decided }
    pub(super) struct BuildLabels { version: &'static str, commit: &'static str }
    pub(super) struct SettlementLabel { result: SettlementResult }
    pub(super) struct ExtensionLabel { result: ExtensionResult }
    pub(super) struct UnitsLabels { policy: String, fate: UnitsFate }
    pub(super) struct CostErrorLabels { policy: String, at: CostErrorAt }
    pub(super) struct AlertLabels { rule: &'static str, policy: String }
    pub(super) struct AlertMessageLabels { receiver: &'static str, fate: &'static str }
    pub(super) struct SwitchLabel { switch: String }
    pub(super) struct SwitchChangeLabels { switch: String, by: SwitchedByLabel }
}

words! {
    /// The outcome of a request under one policy.
    pub(crate) enum Decided {
        allowed,
        denied,
        delayed,
        error,
    }

    /// Whether a decision is enforced, only measured, or enforced by the limit of a canary.
    pub(crate) enum ModeLabel {
        enforce,
        shadow,
        canary,
    }

    /// The state of a store after a change.
    pub(super) enum StoreStateLabel {
        up,
        down,
    }

    /// The state of a breaker.
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

    /// What is done with a request over a limit in place of a refusal.
    pub(super) enum OverAction {
        marked,
        demoted,
    }

    /// Why the server ended a connection.
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

    /// The protocol of a request.
    pub(crate) enum Transport {
        http,
        grpc,
        resp,
    }

    /// How a request of a door ended.
    pub(crate) enum RequestOutcome {
        allowed,
        /// Allowed after a wait.
        delayed,
        denied,
        /// Allowed, since no policy is about it.
        unmatched,
        /// `on_store_error` let it pass.
        failed_open,
        /// The store did not decide, and `on_store_error` refused it.
        failed_closed,
        /// It could not be read, or came to the wrong door.
        invalid,
    }

    /// The result of settling a ticket.
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

    /// The result of extending a ticket.
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

    /// When the cost of a request was needed.
    pub(super) enum CostErrorAt {
        check,
        settlement,
    }

    /// How a settlement changed the units charged.
    pub(super) enum UnitsFate {
        returned,
        owed,
    }

    /// What changed a switch.
    pub(crate) enum SwitchedByLabel {
        hand,
        /// A signal, a trigger of the file, or a file that no longer has it.
        signal,
        /// The time for which it was set is over.
        time,
    }
}

impl BreakerStateLabel {
    /// Returns the label of a state's name.
    pub(crate) fn of(word: &str) -> Self {
        let of_word = |state: &Self| word.split('-').eq(state.as_str().split('_'));
        Self::ALL.into_iter().find(of_word).unwrap_or(Self::closed)
    }
}

impl Transport {
    /// Returns the name of the protocol for people.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::http => "HTTP",
            Self::grpc => "gRPC",
            Self::resp => "Redis",
        }
    }
}
