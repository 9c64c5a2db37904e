//! Which requests come next, so that their memory is on its way.

use std::iter;

use smallvec::SmallVec;

use super::Gate;
use crate::policy::Descriptor;
use crate::thread_buffers::{Borrowed, Buffers};

/// Requests whose keys are made before they are looked for.
const TOGETHER: usize = 16;

impl Gate {
    /// Says which requests will be checked next. The gate's own store reads where the states of their keys are, if it keeps them in this
    /// process's memory, so that this memory comes for all of them at once: a check alone waits for it, some 100 ns where keys are too many
    /// for the processor's caches. Decides and changes nothing; checks answer the same with it and without.
    ///
    /// Worth it for some ten requests that are known together and are checked one by one, as those of a log. Makes the keys of the first
    /// four policies, whether they match or not, and hashes them once more than the checks do, which is
    /// for nothing where all keys lie in the processor's caches anyway.
    ///
    /// # Examples
    /// ```
    /// use tidegate::policy::Limit;
    /// use tidegate::{Descriptor, Gate, Policy, PolicySet, Quota};
    ///
    /// let all = Policy::new("all", Limit::new(Quota::per_minute(2).gcra()?, "2/min"));
    /// let gate = Gate::in_memory(PolicySet::new(vec![all])?, 1000)?;
    /// let requests = [Descriptor::new(), Descriptor::new(), Descriptor::new()];
    /// gate.fetch(&requests);
    /// let mut allowed = Vec::new();
    /// for request in &requests {
    ///     allowed.push(gate.check(request)?.allowed);
    /// }
    /// assert_eq!(allowed, [true, true, false]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fetch(&self, requests: &[Descriptor<'_>]) {
        let policies = self.policies.load();
        let mut buffers = Borrowed::take();
        let Buffers { keys, .. } = &mut *buffers;
        for requests in requests.chunks(TOGETHER) {
            keys.clear();
            let mut ends = SmallVec::new();
            requests.iter().for_each(|request| policies.push_likely_keys(request, keys, &mut ends));
            let starts = iter::once(0).chain(ends.iter().copied());
            let keys: SmallVec<[&[u8]; TOGETHER]> =
                starts.zip(&ends).map(|(start, end)| &keys[start..*end]).collect();
            self.routes.own().fetch(&keys);
        }
    }
}
