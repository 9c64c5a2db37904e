//! The memory of a large table, handed out by the system before checks ask for it.
//!
//! A table is blank memory, of which the system hands out a page when that is first written to. On a virtual machine whose host
//! has to find the page in turn, such a write has been seen to take 25 to 50 µs; a million-key table is some 5,700 pages,
//! and a flood of new keys meets them all. Writing to them while the table is made would make that wait instead, 13 ms for
//! a million keys. So a thread does, from the start, and ends when it is through; a check that comes before it finds what
//! it would have found without.

use std::sync::Arc;
use std::thread;

use super::line::Slot;
use super::table::Table;

/// Tables of fewer slots are left to their checks.
const FEW: usize = (1 << 20) / size_of::<Slot>();

/// Pages between two looks at whether the table is still there and others want the core: some ten microseconds.
const STRETCH: usize = 8;

/// Starts the thread, unless the table is small. Where no thread can be had, pages are left to checks, too.
pub(super) fn soon<T: AsRef<Table> + Send + Sync + 'static>(shared: &Arc<T>) {
    if (**shared).as_ref().slots() < FEW {
        return;
    }
    let weak = Arc::downgrade(shared);
    let through = move || {
        let more = |page| {
            // Whoever has work goes first.
            thread::yield_now();
            weak.upgrade().is_some_and(|shared| (*shared).as_ref().prefault(page) > 0)
        };
        (0..).step_by(STRETCH).all(more)
    };
    let _ = thread::Builder::new().name("tidegate-prefault".to_owned()).spawn(through);
}

impl Table {
    /// Has the system hand out a stretch of pages from the given one on, and returns how many there were.
    fn prefault(&self, page: usize) -> usize {
        let pages = page..page + STRETCH;
        let kept = self.full_keys.as_ref().map_or(0, |full_keys| full_keys.prefault(pages.clone()));
        self.lines.pages(pages).map(Slot::prefault).count() + kept
    }
}

#[cfg(test)]
mod tests {
    use super::super::lines::PAGE;
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
