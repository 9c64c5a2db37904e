//! Dice that fall the same way in every run.

#[path = "../splitmix/mod.rs"]
mod splitmix;

/// One stream of numbers.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn any(&mut self) -> u64 {
        splitmix::next(&mut self.0)
    }

    /// From 0 to `max`, both included.
    pub(crate) fn up_to(&mut self, max: u64) -> u64 {
        let any = self.any();
        max.checked_add(1).map_or(any, |count| any % count)
    }

    /// From 1 to `max`, small ones as often as large ones.
    pub(crate) fn one_to(&mut self, max: u64) -> u64 {
        let bits = self.up_to(u64::from(max.ilog2()));
        (1 + self.up_to((2u64 << bits.min(62)) - 1)).min(max)
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.any() as usize % from.len()]
    }
}

/// Steps that each model is compared for; more with `TIDEGATE_MODEL_STEPS`.
pub(crate) fn steps(default: u64) -> u64 {
    std::env::var("TIDEGATE_MODEL_STEPS").map_or(default, |steps| steps.parse().expect("a number of steps"))
}
