//! The lines of one second, and the memory that goes from second to second.

/// A line as the caller knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    /// Whatever the caller marks it with.
    pub(crate) mark: u64,
    /// Where in it the time stands, for whoever knows, so that it need not be found twice.
    pub(crate) time_at: u32,
    pub(crate) bytes: &'a [u8],
}

/// A line given out in its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held<'a> {
    /// What it counts as.
    pub(crate) time: u64,
    pub(crate) line: Line<'a>,
}

/// The part of the limit that emptied buckets may keep for reuse, and how many parts a single one is of.
const SPARE: usize = 4;
const LARGEST_SPARE: usize = 16;

/// Bytes before each line: its time, the caller's mark, its length and where its time stands.
pub(super) const HEAD: usize = 24;

/// Bytes of lines that lie in the bucket itself: one line of an access log without referer and agent. Of a quiet log every line has a
/// bucket, as far from the last as any other, and a second piece of memory would be one more wait for memory.
const INSIDE: usize = 136;

/// The lines of one second, one after another.
#[derive(Debug)]
pub(super) struct Bucket {
    /// Where they lie as long as they fit.
    inside: [u8; INSIDE],
    used: usize,
    /// Where all of them lie when they no longer do; empty before.
    apart: Vec<u8>,
    lines: u64,
    /// The latest time in it.
    latest: u64,
    /// Whether a line is earlier than one before it.
    is_mixed: bool,
}

impl Default for Bucket {
    fn default() -> Self {
        Self { inside: [0; INSIDE], used: 0, apart: Vec::new(), lines: 0, latest: 0, is_mixed: false }
    }
}

impl Bucket {
    /// Returns its lines, each behind its head.
    fn all(&self) -> &[u8] {
        if self.apart.is_empty() { &self.inside[..self.used] } else { &self.apart }
    }

    /// Returns how many bytes its lines take.
    pub(super) fn bytes(&self) -> usize {
        self.all().len()
    }

    /// Reads from each cache line of the bucket, so that all come from memory at once. The result only keeps the compiler from leaving the
    /// reading out.
    #[inline]
    pub(super) fn touch(&self) -> u64 {
        let [first, .., last] = &self.inside;
        // Without a look at where the lines lie: the processor would wait for the answer before it goes on to the next bucket.
        self.lines ^ self.latest ^ u64::from(first ^ self.inside[INSIDE / 2] ^ last)
    }

    /// Reads the start of what lies apart, for a bucket that was touched.
    #[inline]
    pub(super) fn touch_apart(&self) -> u8 {
        self.apart.first().copied().unwrap_or(0)
    }

    pub(super) fn lines(&self) -> u64 {
        self.lines
    }

    pub(super) fn latest(&self) -> u64 {
        self.latest
    }

    pub(super) fn put(&mut self, time: u64, line: Line<'_>) {
        self.is_mixed |= time < self.latest;
        self.latest = self.latest.max(time);
        self.lines += 1;
        // Lines are at most 64 KiB.
        let place = (line.bytes.len() as u64) << 32 | u64::from(line.time_at);
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(&time.to_le_bytes());
        head[8..16].copy_from_slice(&line.mark.to_le_bytes());
        head[16..].copy_from_slice(&place.to_le_bytes());
        if self.apart.is_empty()
            && let Some(free) = self.inside[self.used..].get_mut(..HEAD + line.bytes.len())
        {
            free[..HEAD].copy_from_slice(&head);
            free[HEAD..].copy_from_slice(line.bytes);
            self.used += free.len();
            return;
        }
        self.apart.reserve(self.used + HEAD + line.bytes.len());
        if self.apart.is_empty() {
            self.apart.extend_from_slice(&self.inside[..self.used]);
        }
        self.apart.extend_from_slice(&head);
        self.apart.extend_from_slice(line.bytes);
    }

    /// Returns the line that begins at a byte, and where the next one begins; `None` at the end.
    pub(super) fn line(&self, at: usize) -> Option<(Held<'_>, usize)> {
        let (head, rest) = self.all().get(at..)?.split_first_chunk::<HEAD>()?;
        let number = |from| u64::from_le_bytes(std::array::from_fn(|byte| head[from + byte]));
        let place = number(16);
        let length = (place >> 32) as usize;
        let line = Line { mark: number(8), time_at: place as u32, bytes: &rest[..length] };
        Some((Held { time: number(0), line }, at + HEAD + length))
    }

    /// Puts its lines into the order of their times; those of one time stay as they came.
    pub(super) fn sort(&mut self) {
        if !self.is_mixed {
            return;
        }
        let (mut places, mut at) = (Vec::with_capacity(self.lines as usize), 0);
        while let Some((held, next)) = self.line(at) {
            places.push((held.time, at..next));
            at = next;
        }
        places.sort_by_key(|(time, _)| *time);
        let mut sorted = Vec::with_capacity(self.bytes());
        places.into_iter().for_each(|(_, place)| sorted.extend_from_slice(&self.all()[place]));
        let all = if self.apart.is_empty() { &mut self.inside[..self.used] } else { &mut self.apart };
        all.copy_from_slice(&sorted);
        self.is_mixed = false;
    }
}

/// All buckets by number, those in use and those to be used again.
#[derive(Debug, Default)]
pub(super) struct Buckets {
    pub(super) all: Vec<Bucket>,
    free: Vec<u32>,
    /// The memory that the free ones have taken beside themselves.
    free_bytes: usize,
}

impl Buckets {
    /// Returns the number of an empty bucket.
    pub(super) fn take(&mut self) -> u32 {
        if let Some(number) = self.free.pop() {
            self.free_bytes -= self.all[number as usize].apart.capacity();
            return number;
        }
        // Each holds a line, and a window has at most 604,800 seconds.
        self.all.push(Bucket::default());
        self.all.len() as u32 - 1
    }

    /// Takes a bucket back that has been given out, and keeps its memory within a part of `limit`.
    pub(super) fn put_back(&mut self, number: u32, limit: usize) {
        let bucket = &mut self.all[number as usize];
        let apart = bucket.apart.capacity();
        if apart > limit / LARGEST_SPARE || self.free_bytes + apart > limit / SPARE {
            bucket.apart = Vec::new();
        }
        bucket.apart.clear();
        (bucket.used, bucket.lines, bucket.latest, bucket.is_mixed) = (0, 0, 0, false);
        self.free_bytes += bucket.apart.capacity();
        self.free.push(number);
    }
}
