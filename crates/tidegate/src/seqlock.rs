//! A few numbers that are written seldom, read on every check, and belong together.

use crate::sync::{AtomicU64, Ordering, fence};

/// `N` numbers that are read without a lock and never torn: a sequence lock, made of atomics only.
///
/// One writer at a time: whoever calls [`SeqLock::write`] holds a lock of its own. Reading costs `N + 2` plain loads, and fails while
/// the numbers are being written or while there are none; a reader then asks under the writer's lock.
#[derive(Debug)]
pub(crate) struct SeqLock<const N: usize> {
    /// Odd while the numbers are being written or do not hold.
    version: AtomicU64,
    numbers: [AtomicU64; N],
}

impl<const N: usize> SeqLock<N> {
    /// Makes a lock without numbers: reading fails until the first write.
    pub(crate) const fn empty() -> Self {
        Self { version: AtomicU64::new(1), numbers: [const { AtomicU64::new(0) }; N] }
    }

    /// Hands the numbers to `with`, and returns its result if they held until it was done. Where they did not, they may be of two
    /// different writes, and `with` must bear that.
    #[inline]
    pub(crate) fn read<R>(&self, with: impl FnOnce([u64; N]) -> R) -> Option<R> {
        // Acquire, with the Release at the end of `write`: the numbers below are of this version or of a later one ...
        let version = self.version.load(Ordering::Acquire);
        let result = with(self.unchecked());
        // ... and the fence, with the one in `write`, makes sure that a later one does not go unnoticed here. An odd version is
        // no version that holds, so one comparison asks both.
        fence(Ordering::Acquire);
        (self.version.load(Ordering::Relaxed) == version & !1).then_some(result)
    }

    /// Returns the numbers as they are, perhaps of two different writes: for a caller that finds that out in another way, after a
    /// fence of Acquire.
    #[inline]
    pub(crate) fn unchecked(&self) -> [u64; N] {
        std::array::from_fn(|at| self.numbers[at].load(Ordering::Relaxed))
    }

    /// Returns a number that changes with every write.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Replaces the numbers; with `None` there are none from now on.
    pub(crate) fn write(&self, numbers: Option<[u64; N]>) {
        // Only one writes, so the version stands still meanwhile.
        let odd = self.version.load(Ordering::Relaxed) | 1;
        self.version.store(odd, Ordering::Relaxed);
        // Release: whoever reads one of the numbers below reads the odd version after its fence.
        fence(Ordering::Release);
        let Some(numbers) = numbers else {
            // Another odd version, so that the same numbers removed and written again have another version.
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
