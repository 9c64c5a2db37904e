//! What the sliding log and the sliding window have in common as algorithms: all but how they cut time.

/// Makes an algorithm of parameters that cut time into slots: what it remembers is a ledger of theirs.
macro_rules! ledger_algorithm {
    ($params:ident, $state:ident) => {
        /// Walks the slots in use on every decision, newest first, until the cost is seen to fit or not; an allowed charge copies them.
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

            /// Takes what was not used out of the slot in which the charge acts (a tick of the log, a bucket of the window), as long as
            /// that counts: exact, whatever was charged since. What was used beyond the charge acts now, behind all promises, and
            /// counts for one window like everything else: the next ask waits until the limit has room again, and no later window
            /// is filled.
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

        impl Kept for $params {
            type State = $state;

            fn last_change(state: &$state) -> Option<Tick> {
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
