//! Prefaults the memory of a large table: a background thread makes the system provide it before checks need it.
//!
//! A new table is blank memory: the system provides each page at the first write to it. On a virtual machine whose host
//! has to find the page in turn, such a write has been measured at 25 to 50 µs; a table of a million keys has some
//! 5,700 pages, and a flood of new keys touches them all. Touching them while the table is made would delay the caller
//! instead, by 13 ms for a million keys. So a background thread touches them as soon as the table is made, and then
//! ends. A check that reaches a page before it pays the same cost as without the thread.

use std::sync::Arc;
use std::thread;

use super::cache_line::Slot;
use super::table::Table;

/// Tables of fewer slots are not prefaulted.
const FEW: usize = (1 << 20) / size_of::<Slot>();

/// The number of pages, about ten microseconds' worth, after which the thread yields the core and checks whether the
/// table still exists.
const STRETCH: usize = 8;

/// Starts the thread, unless the table is small. If no thread can be started, checks touch the pages.
pub(super) fn start<T: AsRef<Table> + Send + Sync + 'static>(shared: &Arc<T>) {
    if (**shared).as_ref().slots() < FEW {
        return;
    }
    let weak = Arc::downgrade(shared);
    let through = move || {
        let more = |page| {
            // Threads with other work run first.
            thread::yield_now();
            weak.upgrade().is_some_and(|shared| (*shared).as_ref().prefault(page) > 0)
        };
        (0..).step_by(STRETCH).all(more)
    };
    let _ = thread::Builder::new().name("tidegate-prefault".to_owned()).spawn(through);
}

impl Table {
    /// Touches a stretch of pages, beginning with the given one, and returns how many there were.
    fn prefault(&self, page: usize) -> usize {
        let pages = page..page + STRETCH;
        let kept = self.full_keys.as_ref().map_or(0, |full_keys| full_keys.prefault(pages.clone()));
        self.lines.pages(pages).map(Slot::prefault).count() + kept
    }
}

#[cfg(test)]
mod tests {
    use super::super::cache_lines::PAGE;
    use super::super::table::Keep;
    use super::*;

    #[test]
    fn each_page_is_met_once() {
        for (keep, sorts) in [(Keep::Fingerprints, 1), (Keep::Keys, 2)] {
            let table = Table::new(1_000_000, keep).unwrap();
            let met: usize =
                (0..).step_by(STRETCH).map(|page| table.prefault(page)).take_while(|n| *n > 0).sum();
            let pages = sorts * table.slots() * size_of::<Slot>() / PAGE;
            assert!((pages..=pages + 4).contains(&met), "{met} of {pages}");
        }
    }
}
