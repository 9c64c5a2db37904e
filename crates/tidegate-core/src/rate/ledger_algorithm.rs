//! The part that the sliding log and the sliding window share: everything except the division of time into slots.

/// Implements an algorithm for parameters that divide time into slots; the state is a ledger of these slots.
macro_rules! ledger_algorithm {
    ($params:ident, $state:ident) => {
        /// Every decision walks the slots in use, newest first, until it is clear whether the cost fits; an allowed
        /// charge copies them.
        impl Algorithm for $params {
            type State = $state;

            fn fresh(&self, now: Tick) -> $state {
                $state(Ledger::fresh(now))
            }

            fn decide(&self, state: &$state, ask: Ask) -> Transition<$state> {
                state.0.decide(self, ask).map($state)
            }

            fn standing(&self, state: &$state, now: Tick) -> Standing {
                state.0.standing(self, now)
            }

            /// Takes unused units out of the slot in which the charge acts (a tick of the log, a bucket of the
            /// window), as long as that slot counts. Exact, whatever was charged since. Units used beyond the charge
            /// act now, behind all promises.
            fn settle(&self, state: &$state, now: Tick, receipt: &Receipt, used: u64) -> $state {
                $state(state.0.settle(self, now, receipt, used))
            }

            fn carry(&self, old: &Self, state: &$state, now: Tick, how: Replace) -> $state {
                $state(state.0.carry(old, self, now, how))
            }

            fn full_at(&self, state: &$state) -> Option<Tick> {
                state.0.full_at(self)
            }
        }

        impl Storable for $params {
            type State = $state;

            fn last_change(&self, state: &$state) -> Option<Tick> {
                Some(state.0.last())
            }

            fn set_back(&self, state: &$state, to: Tick) -> $state {
                $state(state.0.set_back(self, to))
            }

            fn largest(&self) -> usize {
                Ledger::largest(self)
            }
        }

        impl Bytes for $state {
            fn write(&self, out: &mut Writer) {
                self.0.write(out);
            }

            fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
                Ledger::read(from).map(Self)
            }
        }
    };
}

pub(crate) use ledger_algorithm;
