//! The progress of a sweep: a search for numbers of limits that no slot carries any more; see [`super::reclaim`].

use super::name::Class;

/// A sweep under way; by default, none.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    pub(super) phase: Phase,
    /// One bit for each number that a slot carries.
    pub(super) seen: Vec<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Phase {
    #[default]
    Idle,
    /// Retires numbers; continues with this number.
    Retire(usize),
    /// Looks at lines; continues with this line.
    Look(usize),
    /// Frees numbers; continues with this number.
    GiveUp(usize),
}

impl Sweep {
    /// Notes that a slot carries a number.
    pub(super) fn see(&mut self, class: Class) {
        let number = usize::from(class.number());
        if let Some(bits) = self.seen.get_mut(number / 64) {
            *bits |= 1 << (number % 64);
        }
    }

    /// Returns whether a slot was seen to carry a number.
    pub(super) fn has_seen(&self, number: usize) -> bool {
        self.seen.get(number / 64).is_none_or(|bits| bits >> (number % 64) & 1 > 0)
    }
}
