//! The atomics and locks of the shared cells: the usual ones, or loom's in builds that explore their interleavings.

#[cfg(not(tidegate_loom))]
pub(crate) use parking_lot::Condvar;
#[cfg(not(tidegate_loom))]
pub(crate) use std::hint::spin_loop;
#[cfg(not(tidegate_loom))]
pub(crate) use std::sync::atomic::{Ordering, fence};
#[cfg(not(tidegate_loom))]
pub(crate) use std::thread::{self, yield_now};

#[cfg(not(tidegate_loom))]
pub use unexplored::Mutex;
#[cfg(not(tidegate_loom))]
pub(crate) use unexplored::{AtomicBool, AtomicU32, AtomicU64};

/// For cells that loom does not explore: the usual atomics and lock also in its builds. Unit tests count their writes.
pub(crate) mod unexplored {
    #[cfg(tidegate_loom)]
    pub(crate) use parking_lot::Mutex;
    #[cfg(not(any(test, tidegate_loom)))]
    pub use parking_lot::Mutex;
    #[cfg(not(any(test, tidegate_loom)))]
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32};
    #[cfg(any(not(test), tidegate_loom))]
    pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize};

    #[cfg(all(test, not(tidegate_loom)))]
    pub use super::counted::Mutex;
    #[cfg(all(test, not(tidegate_loom)))]
    pub(crate) use super::counted::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
}

#[cfg(tidegate_loom)]
pub use checked::Mutex;
#[cfg(tidegate_loom)]
pub(crate) use checked::{AtomicBool, AtomicU32, AtomicU64, Condvar};
#[cfg(tidegate_loom)]
pub(crate) use loom::hint::spin_loop;
#[cfg(tidegate_loom)]
pub(crate) use loom::sync::atomic::{Ordering, fence};
#[cfg(tidegate_loom)]
pub(crate) use loom::thread::{self, yield_now};

/// The usual atomics and lock, which count what a thread writes to shared memory: for tests that allow nothing to be written.
#[cfg(all(test, not(tidegate_loom)))]
pub(crate) mod counted {
    use std::cell::Cell;
    use std::ops::Deref;
    use std::sync::atomic::Ordering;

    thread_local! {
        static WRITES: Cell<u64> = const { Cell::new(0) };
    }

    fn count() {
        WRITES.set(WRITES.get() + 1);
    }

    /// Returns how often `run` writes to shared memory on this thread: stores, read-modify-writes and locks.
    pub(crate) fn writes<R>(run: impl FnOnce() -> R) -> (R, u64) {
        let before = WRITES.get();
        let result = run();
        (result, WRITES.get() - before)
    }

    macro_rules! atomic {
        ($name:ident, $number:ty, $($write:ident)*) => {
            #[derive(Debug, Default, bytemuck::Zeroable)]
            #[repr(transparent)]
            pub(crate) struct $name(std::sync::atomic::$name);

            #[allow(dead_code, reason = "not each number is written in each of these ways")]
            impl $name {
                pub(crate) const fn new(number: $number) -> Self {
                    Self(std::sync::atomic::$name::new(number))
                }

                pub(crate) fn store(&self, number: $number, order: Ordering) {
                    count();
                    self.0.store(number, order);
                }

                pub(crate) fn compare_exchange(
                    &self,
                    current: $number,
                    new: $number,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$number, $number> {
                    count();
                    self.0.compare_exchange(current, new, success, failure)
                }

                pub(crate) fn compare_exchange_weak(
                    &self,
                    current: $number,
                    new: $number,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$number, $number> {
                    count();
                    self.0.compare_exchange_weak(current, new, success, failure)
                }

                $(
                    pub(crate) fn $write(&self, number: $number, order: Ordering) -> $number {
                        count();
                        self.0.$write(number, order)
                    }
                )*
            }

            impl Deref for $name {
                type Target = std::sync::atomic::$name;

                fn deref(&self) -> &Self::Target {
                    &self.0
                }
            }
        };
    }

    atomic!(AtomicBool, bool, swap);
    atomic!(AtomicU32, u32, fetch_add);
    atomic!(AtomicU64, u64, swap fetch_add fetch_sub fetch_max fetch_or fetch_and);
    atomic!(AtomicUsize, usize, fetch_add fetch_sub);

    /// A lock of the usual kind; locking counts as a write.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(parking_lot::Mutex<T>);

    impl<T> Mutex<T> {
        pub const fn new(value: T) -> Self {
            Self(parking_lot::Mutex::new(value))
        }

        pub fn lock(&self) -> parking_lot::MutexGuard<'_, T> {
            count();
            self.0.lock()
        }

        pub(crate) fn try_lock(&self) -> Option<parking_lot::MutexGuard<'_, T>> {
            count();
            self.0.try_lock()
        }
    }
}

/// Loom's atomics with a `const fn new`, which statics need and loom lacks. They are created at the first access, so a
/// model accesses its cells once before it starts threads.
#[cfg(tidegate_loom)]
mod checked {
    use std::ops::{Deref, DerefMut};
    use std::sync::{OnceLock, PoisonError};

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

    /// Loom's lock with the interface of the usual one.
    #[derive(Debug)]
    pub struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub fn lock(&self) -> Guard<'_, T> {
            Guard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
        }

        pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
            match self.0.try_lock() {
                Ok(guard) => Some(Guard(Some(guard))),
                Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(Guard(Some(poisoned.into_inner()))),
                Err(std::sync::TryLockError::WouldBlock) => None,
            }
        }
    }

    /// A locked [`Mutex`]. Empty only while [`Condvar::wait`] waits.
    #[derive(Debug)]
    pub struct Guard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

    impl<T> Deref for Guard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_ref().expect("locked")
        }
    }

    impl<T> DerefMut for Guard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect("locked")
        }
    }

    /// Loom's condition variable with the interface of the usual one.
    #[derive(Debug)]
    pub(crate) struct Condvar(loom::sync::Condvar);

    impl Condvar {
        pub(crate) fn new() -> Self {
            Self(loom::sync::Condvar::new())
        }

        pub(crate) fn wait<T>(&self, guard: &mut Guard<'_, T>) {
            let locked = guard.0.take().map(|locked| self.0.wait(locked));
            guard.0 = locked.map(|locked| locked.unwrap_or_else(PoisonError::into_inner));
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

/// Returns the size of a model: `short` in the tests, `long` in a manual run, which takes minutes: with
/// `TIDEGATE_LOOM=long` for the models of loom, with any `TIDEGATE_MODEL_STEPS` for the others.
#[must_use]
pub fn short_or_long<T>(short: T, long: T) -> T {
    let is_long = if cfg!(tidegate_loom) {
        std::env::var("TIDEGATE_LOOM").is_ok_and(|size| size == "long")
    } else {
        std::env::var_os("TIDEGATE_MODEL_STEPS").is_some()
    };
    if is_long { long } else { short }
}

/// Explores all interleavings of a model, with at most `preemptions` preemptions if given, and prints their number.
#[cfg(tidegate_loom)]
pub fn explore(preemptions: Option<usize>, model: impl Fn() + Sync + Send + 'static) {
    use std::sync::atomic::AtomicU64 as Count;

    let counted = std::sync::Arc::new(Count::new(0));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    // A step of the memory table reads more cells than loom's default of 1,000 branches lets a model of several steps read.
    builder.max_branches = 5_000;
    let count = std::sync::Arc::clone(&counted);
    builder.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        model();
    });
    println!("{counted:?} interleavings, preemptions bounded by {preemptions:?}");
}
