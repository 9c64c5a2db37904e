//! Prefetches the memory of the requests that are checked next.

use std::iter;

use smallvec::SmallVec;

use super::Gate;
use crate::policy::Descriptor;
use tidegate_limits::{Borrowed, Buffers};

/// The number of requests whose keys are made before they are looked up.
const TOGETHER: usize = 16;

impl Gate {
    /// Announces the requests that will be checked next. If the gate's own store keeps its keys in this process's
    /// memory, it prefetches the states of their keys, all at the same time: a single check waits about 100 ns for that
    /// memory if the keys exceed the processor's caches. Decides and changes nothing; checks give the same answers with
    /// and without it.
    ///
    /// Worth it for about ten or more requests that are known together and checked one by one, such as those of a log.
    /// Makes the keys of the first four policies, whether they match or not, and hashes them in addition to the checks;
    /// that is wasted if all keys are in the processor's caches anyway.
    ///
    /// # Examples
    /// ```
    /// use tidegate::policy::{Descriptor, Limit, Policy, PolicySet};
    /// use tidegate::{Gate, Quota};
    ///
    /// let all = Policy::new("all", Limit::new(Quota::per_minute(2).gcra()?, "2/min"));
    /// let gate = Gate::in_memory(PolicySet::new(vec![all])?, 1000)?;
    /// let requests = [Descriptor::new(), Descriptor::new(), Descriptor::new()];
    /// gate.fetch(&requests);
    /// let mut allowed = Vec::new();
    /// for request in &requests {
    ///     allowed.push(gate.check(request).now()?.allowed);
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
