//! The atomics and locks of the shared cells: the usual ones, or loom's where their interleavings are checked.

#[cfg(not(tidegate_loom))]
pub(crate) use parking_lot::Mutex;
#[cfg(not(tidegate_loom))]
pub(crate) use std::hint::spin_loop;
#[cfg(not(tidegate_loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(tidegate_loom))]
pub(crate) use std::thread::yield_now;

#[cfg(tidegate_loom)]
pub(crate) use checked::{AtomicBool, AtomicU32, AtomicU64, Mutex};
#[cfg(tidegate_loom)]
pub(crate) use loom::hint::spin_loop;
#[cfg(tidegate_loom)]
pub(crate) use loom::sync::atomic::{Ordering, fence};
#[cfg(tidegate_loom)]
pub(crate) use loom::thread::yield_now;

/// Loom's atomics behind a `const fn new`, which the statics need and loom does not have. Made at the first look, so a model
/// looks at its cells once before it starts threads.
#[cfg(tidegate_loom)]
mod checked {
    use std::ops::Deref;
    use std::sync::OnceLock;

    macro_rules! atomic {
        ($name:ident, $number:ty) => {
            #[derive(Debug, Default)]
            pub(crate) struct $name($number, OnceLock<loom::sync::atomic::$name>);

            impl $name {
                pub(crate) const fn new(number: $number) -> Self {
                    Self(number, OnceLock::new())
                }
            }

            impl Deref for $name {
                type Target = loom::sync::atomic::$name;

                fn deref(&self) -> &Self::Target {
                    self.1.get_or_init(|| Self::Target::new(self.0))
                }
            }
        };
    }

    atomic!(AtomicBool, bool);
    atomic!(AtomicU32, u32);
    atomic!(AtomicU64, u64);

    /// Loom's lock, taken as ours is.
    #[derive(Debug)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
        }

        pub(crate) fn try_lock(&self) -> Option<loom::sync::MutexGuard<'_, T>> {
            match self.0.try_lock() {
                Ok(guard) => Some(guard),
                Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
                Err(std::sync::TryLockError::WouldBlock) => None,
            }
        }
    }
}

/// The size of a model in the tests, or that of a run by hand with `TIDEGATE_LOOM=long`, which takes minutes.
#[cfg(all(test, tidegate_loom))]
pub(crate) fn short_or_long<T>(short: T, long: T) -> T {
    if std::env::var("TIDEGATE_LOOM").is_ok_and(|size| size == "long") { long } else { short }
}

/// Runs a model through all its interleavings, of at most so many preemptions where a bound is named, and says how many they were.
#[cfg(all(test, tidegate_loom))]
pub(crate) fn explore(preemptions: Option<usize>, model: impl Fn() + Sync + Send + 'static) {
    use std::sync::atomic::AtomicU64 as Count;

    let counted = std::sync::Arc::new(Count::new(0));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    let count = std::sync::Arc::clone(&counted);
    builder.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        model();
    });
    println!("{counted:?} interleavings, preemptions bounded by {preemptions:?}");
}
