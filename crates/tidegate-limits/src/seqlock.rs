//! A sequence lock for a few numbers that are written seldom, read on every check, and must be consistent.

use crate::sync::{AtomicU64, Ordering, fence};

/// `N` numbers that are read without a lock and never torn: a sequence lock, made of atomics only.
///
/// One writer at a time: callers of [`SeqLock::write`] must hold a lock of their own. A read costs `N + 2` plain loads.
/// It fails while the numbers are being written or are absent; the reader then has to take the writer's lock.
#[derive(Debug)]
pub(crate) struct SeqLock<const N: usize> {
    /// Odd while the numbers are being written or are absent.
    version: AtomicU64,
    numbers: [AtomicU64; N],
}

impl<const N: usize> SeqLock<N> {
    /// Makes a lock without numbers: reading fails until the first write.
    pub(crate) const fn empty() -> Self {
        Self { version: AtomicU64::new(1), numbers: [const { AtomicU64::new(0) }; N] }
    }

    /// Passes the numbers to `with`, and returns its result if they stayed unchanged until it returned. Otherwise
    /// `with` may have seen numbers of two different writes, which it must tolerate.
    #[inline]
    pub(crate) fn read<R>(&self, with: impl FnOnce([u64; N]) -> R) -> Option<R> {
        // Acquire, paired with the Release at the end of `write`: the numbers below are of this version or of a later
        // one ...
        let version = self.version.load(Ordering::Acquire);
        let result = with(self.unchecked());
        // ... and the fence, paired with the one in `write`, makes sure that a later one is noticed here. An odd
        // version is never valid. It differs from `version & !1`, so one comparison covers both cases.
        fence(Ordering::Acquire);
        (self.version.load(Ordering::Relaxed) == version & !1).then_some(result)
    }

    /// Returns the numbers, perhaps of two different writes: for a caller that detects this in another way, after an
    /// Acquire fence.
    #[inline]
    pub(crate) fn unchecked(&self) -> [u64; N] {
        std::array::from_fn(|at| self.numbers[at].load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Writes the numbers, or removes them. Nothing is written where none are to be removed.
    pub(crate) fn write(&self, numbers: Option<[u64; N]>) {
        // There is only one writer, so no one else changes the version.
        let seen = self.version.load(Ordering::Relaxed);
        let odd = seen | 1;
        if numbers.is_none() && seen == odd {
            return;
        }
        self.version.store(odd, Ordering::Relaxed);
        // Release: a reader that sees one of the numbers below also sees the odd version after its own fence.
        fence(Ordering::Release);
        let Some(numbers) = numbers else {
            // Another odd version, so that removing and rewriting the same numbers still changes the version.
            self.version.store(odd.wrapping_add(2), Ordering::Relaxed);
            return;
        };
        for (kept, number) in self.numbers.iter().zip(numbers) {
            kept.store(number, Ordering::Relaxed);
        }
        self.version.store(odd.wrapping_add(1), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_together_or_not_at_all() {
        let lock = SeqLock::<2>::empty();
        assert_eq!(lock.read(|numbers| numbers), None);
        std::thread::scope(|scope| {
            scope.spawn(|| (1..100_000).for_each(|n| lock.write((n % 7 != 0).then_some([n, 3 * n]))));
            for _ in 0..100_000 {
                if let Some([n, thrice]) = lock.read(|numbers| numbers) {
                    assert_eq!(thrice, 3 * n);
                }
            }
        });
        assert!(lock.read(|numbers| numbers).is_some());
    }

    #[test]
    fn numbers_removed_and_written_again_have_another_version() {
        let lock = SeqLock::<1>::empty();
        lock.write(Some([5]));
        let before = lock.version();
        assert_eq!(lock.read(|_| lock.write(Some([5]))), None, "written anew while it was read");
        lock.write(None);
        let absent = lock.version();
        lock.write(None);
        assert_eq!(lock.version(), absent, "there was nothing to remove");
        lock.write(Some([5]));
        assert_ne!(lock.version(), before);
    }
}

#[cfg(all(test, tidegate_loom))]
mod loom_model {
    use loom::sync::Arc;
    use loom::thread::spawn;

    use super::*;
    use crate::sync::explore;

    #[test]
    fn a_reader_never_sees_numbers_of_two_writes() {
        explore(None, || {
            let lock = Arc::new(SeqLock::<2>::empty());
            lock.write(Some([1, 10]));
            let written = Arc::clone(&lock);
            let writer = spawn(move || written.write(Some([2, 20])));
            if let Some([one, ten]) = lock.read(|numbers| numbers) {
                assert_eq!(ten, 10 * one);
            }
            writer.join().unwrap();
            assert_eq!(lock.read(|numbers| numbers), Some([2, 20]));
        });
    }

    #[test]
    fn numbers_removed_and_written_again_are_told_by_their_version() {
        explore(Some(3), || {
            let lock = Arc::new(SeqLock::<2>::empty());
            lock.write(Some([1, 10]));
            let written = Arc::clone(&lock);
            let writer = spawn(move || {
                written.write(None);
                written.write(Some([3, 30]));
            });
            let version = lock.version();
            if let Some([one, ten]) = lock.read(|numbers| numbers) {
                assert_eq!(ten, 10 * one);
                assert!(lock.version() != version || version == [2, 0, 6][one as usize - 1]);
            }
            writer.join().unwrap();
        });
    }
}
