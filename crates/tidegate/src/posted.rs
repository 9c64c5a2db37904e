//! A few numbers that are written seldom, read on every check, and belong together.

use crate::sync::{AtomicU64, Ordering, fence};

/// `N` numbers that are read without a lock and never torn: a sequence lock, made of atomics only.
///
/// One writer at a time: whoever calls [`Posted::post`] holds a lock of its own. Reading costs `N + 2` plain loads, and fails while
/// a post is being made or while none holds; readers then go the long way, which the writer's lock leads them to.
#[derive(Debug)]
pub(crate) struct Posted<const N: usize> {
    /// Odd while the numbers are being written or do not hold.
    version: AtomicU64,
    numbers: [AtomicU64; N],
}

impl<const N: usize> Posted<N> {
    /// Makes a board with nothing on it.
    pub(crate) const fn nothing() -> Self {
        Self { version: AtomicU64::new(1), numbers: [const { AtomicU64::new(0) }; N] }
    }

    /// Hands the numbers to `with`, and returns its result if they held until it was done. Where they did not, they may be of two
    /// posts or of none, and `with` must bear that.
    #[inline]
    pub(crate) fn read<R>(&self, with: impl FnOnce([u64; N]) -> R) -> Option<R> {
        // Acquire, with the Release at the end of `post`: the numbers below are of this version or of a later one ...
        let version = self.version.load(Ordering::Acquire);
        let result = with(self.unchecked());
        // ... and the fence, with the one in `post`, makes sure that a later one does not go unnoticed here. An odd version is
        // no version that holds, so one comparison asks both.
        fence(Ordering::Acquire);
        (self.version.load(Ordering::Relaxed) == version & !1).then_some(result)
    }

    /// Returns the numbers as they are, of two posts or of none perhaps: for whoever has another way to find that out, after a
    /// fence of Acquire.
    #[inline]
    pub(crate) fn unchecked(&self) -> [u64; N] {
        std::array::from_fn(|at| self.numbers[at].load(Ordering::Relaxed))
    }

    /// Returns a number that changes with every post.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Puts other numbers up; `None` takes them down.
    pub(crate) fn post(&self, numbers: Option<[u64; N]>) {
        // Only one writes, so the version stands still meanwhile.
        let odd = self.version.load(Ordering::Relaxed) | 1;
        self.version.store(odd, Ordering::Relaxed);
        // Release: whoever reads one of the numbers below reads the odd version after its fence.
        fence(Ordering::Release);
        let Some(numbers) = numbers else {
            // Another odd one, so that a post taken down and put up again is another post.
            self.version.store(odd.wrapping_add(2), Ordering::Relaxed);
            return;
        };
        for (posted, number) in self.numbers.iter().zip(numbers) {
            posted.store(number, Ordering::Relaxed);
        }
        self.version.store(odd.wrapping_add(1), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_together_or_not_at_all() {
        let board = Posted::<2>::nothing();
        assert_eq!(board.read(|numbers| numbers), None);
        std::thread::scope(|scope| {
            scope.spawn(|| (1..100_000).for_each(|n| board.post((n % 7 != 0).then_some([n, 3 * n]))));
            for _ in 0..100_000 {
                if let Some([n, thrice]) = board.read(|numbers| numbers) {
                    assert_eq!(thrice, 3 * n);
                }
            }
        });
        assert!(board.read(|numbers| numbers).is_some());
    }

    #[test]
    fn what_is_taken_down_and_put_up_again_is_another_post() {
        let board = Posted::<1>::nothing();
        board.post(Some([5]));
        let before = board.version();
        assert_eq!(board.read(|_| board.post(Some([5]))), None, "posted anew while it was read");
        board.post(None);
        board.post(Some([5]));
        assert_ne!(board.version(), before);
    }
}

#[cfg(all(test, tidegate_loom))]
mod loom_model {
    use loom::sync::Arc;
    use loom::thread::spawn;

    use super::*;
    use crate::sync::explore;

    #[test]
    fn a_reader_never_sees_numbers_of_two_posts() {
        explore(None, || {
            let board = Arc::new(Posted::<2>::nothing());
            board.post(Some([1, 10]));
            let posts = Arc::clone(&board);
            let writer = spawn(move || posts.post(Some([2, 20])));
            if let Some([one, ten]) = board.read(|numbers| numbers) {
                assert_eq!(ten, 10 * one);
            }
            writer.join().unwrap();
            assert_eq!(board.read(|numbers| numbers), Some([2, 20]));
        });
    }

    #[test]
    fn numbers_taken_down_and_put_up_again_are_told_by_their_version() {
        explore(Some(3), || {
            let board = Arc::new(Posted::<2>::nothing());
            board.post(Some([1, 10]));
            let posts = Arc::clone(&board);
            let writer = spawn(move || {
                posts.post(None);
                posts.post(Some([3, 30]));
            });
            let version = board.version();
            if let Some([one, ten]) = board.read(|numbers| numbers) {
                assert_eq!(ten, 10 * one);
                assert!(board.version() != version || version == [2, 0, 6][one as usize - 1]);
            }
            writer.join().unwrap();
        });
    }
}
