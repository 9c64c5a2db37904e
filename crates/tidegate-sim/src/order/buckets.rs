//! The lines of one second, and the memory that goes from second to second.

/// The part of the limit that emptied buckets may keep for reuse, and how many parts a single one is of.
const SPARE: usize = 4;
const LARGEST_SPARE: usize = 16;

/// One line held: its time, a mark of the caller, and where its bytes lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) time: u64,
    pub(super) mark: u64,
    pub(super) start: u32,
    pub(super) end: u32,
}

/// The lines of one second.
#[derive(Debug, Default)]
pub(super) struct Bucket {
    pub(super) text: Vec<u8>,
    pub(super) entries: Vec<Entry>,
    /// Whether an entry is earlier than the one before it.
    pub(super) is_mixed: bool,
}

impl Bucket {
    pub(super) fn bytes(&self) -> usize {
        self.text.len() + self.entries.len() * size_of::<Entry>()
    }

    /// The memory it has taken.
    fn capacity(&self) -> usize {
        self.text.capacity() + self.entries.capacity() * size_of::<Entry>()
    }

    pub(super) fn put(&mut self, time: u64, mark: u64, line: &[u8]) {
        let start = self.text.len() as u32;
        self.text.extend_from_slice(line);
        self.is_mixed |= self.entries.last().is_some_and(|last| time < last.time);
        self.entries.push(Entry { time, mark, start, end: self.text.len() as u32 });
    }
}

/// All buckets by number, those in use and those to be used again.
#[derive(Debug, Default)]
pub(super) struct Buckets {
    pub(super) all: Vec<Bucket>,
    free: Vec<u32>,
    /// The memory of the free ones.
    free_bytes: usize,
}

impl Buckets {
    /// Returns the number of an empty bucket.
    pub(super) fn take(&mut self) -> u32 {
        if let Some(number) = self.free.pop() {
            self.free_bytes -= self.all[number as usize].capacity();
            return number;
        }
        // Each holds a line, and a window has at most 604,800 seconds.
        self.all.push(Bucket::default());
        self.all.len() as u32 - 1
    }

    /// Takes a bucket back that has been given out, and keeps its memory within `limit`.
    pub(super) fn put_back(&mut self, number: u32, limit: usize) {
        let bucket = &mut self.all[number as usize];
        let capacity = bucket.capacity();
        if capacity > limit / LARGEST_SPARE || self.free_bytes + capacity > limit / SPARE {
            *bucket = Bucket::default();
        } else {
            bucket.text.clear();
            bucket.entries.clear();
            bucket.is_mixed = false;
        }
        self.free_bytes += bucket.capacity();
        self.free.push(number);
    }
}
