//! Buffers that a thread keeps from check to check, so that a check does not allocate them.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

use crate::store::Executed;

/// The most bytes of keys that a thread keeps: a usual check has a few hundred. Keys made from callers' input may be
/// longer, and that memory must not stay with every thread that has seen one.
const KEPT: usize = 16 * 1024;

thread_local! {
    static KEEPER: Cell<Option<Box<Buffers>>> = const { Cell::new(None) };
}

/// The buffers of a check that are not returned to its caller.
#[derive(Debug, Default)]
pub struct Buffers {
    /// For the bytes of keys.
    pub keys: Vec<u8>,
    /// For the store's answer.
    pub executed: Executed,
}

/// A thread's buffers while a check uses them. Returned to the thread when dropped.
///
/// A nested check, and the first one of a thread, allocate their own.
#[derive(Debug)]
pub struct Borrowed(Option<Box<Buffers>>);

impl Borrowed {
    /// Takes the buffers of this thread.
    #[inline]
    pub fn take() -> Self {
        // The thread-local no longer exists while the thread's destructors run.
        Self(Some(KEEPER.try_with(Cell::take).ok().flatten().unwrap_or_default()))
    }
}

impl Deref for Borrowed {
    type Target = Buffers;

    #[inline]
    fn deref(&self) -> &Buffers {
        self.0.as_deref().expect("there until it is dropped")
    }
}

impl DerefMut for Borrowed {
    #[inline]
    fn deref_mut(&mut self) -> &mut Buffers {
        self.0.as_deref_mut().expect("there until it is dropped")
    }
}

impl Drop for Borrowed {
    #[inline]
    fn drop(&mut self) {
        let kept = self.0.take().filter(|buffers| buffers.keys.capacity() <= KEPT);
        if kept.is_some() {
            // If the thread-local no longer exists, the buffers are freed.
            let _ = KEEPER.try_with(|keeper| keeper.set(kept));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_its_memory_and_a_check_within_a_check_has_its_own() {
        let mut outer = Borrowed::take();
        outer.keys.reserve_exact(100);
        let inner = Borrowed::take();
        assert_eq!(inner.keys.capacity(), 0);
        drop(inner);
        drop(outer);
        assert!(Borrowed::take().keys.capacity() >= 100);
    }

    #[test]
    fn what_one_long_key_took_is_given_back() {
        let mut buffers = Borrowed::take();
        buffers.keys.reserve_exact(KEPT + 1);
        drop(buffers);
        assert_eq!(Borrowed::take().keys.capacity(), 0);
    }
}
