//! Answers in place of work that was refused or failed, with the reason.

use std::borrow::Borrow;
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::{QuotaError, Tick};

use crate::clock::{Clock, SystemClock};

/// A real answer or a stand-in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered<T, E> {
    /// The real answer.
    Real(T),
    /// A stand-in, and the reason for it.
    Fallback {
        /// The stand-in.
        value: T,
        /// Why there is no real answer.
        reason: E,
    },
}

impl<T, E> Answered<T, E> {
    /// Returns the value, real or stand-in.
    pub fn into_value(self) -> T {
        match self {
            Self::Real(value) | Self::Fallback { value, .. } => value,
        }
    }

    /// Returns the reason for the stand-in; `None` for a real answer.
    pub const fn reason(&self) -> Option<&E> {
        match self {
            Self::Real(_) => None,
            Self::Fallback { reason, .. } => Some(reason),
        }
    }
}

/// Replaces an error by a value or by the result of a function.
///
/// # Examples
/// ```
/// use tidegate::breaker::fallback::{Answered, OrFallback};
/// use tidegate::limiter::Denied;
/// use tidegate::{Limiter, Quota};
///
/// let limiter = Limiter::new(Quota::per_hour(1))?;
/// let recommend = || limiter.allow().into_result().map(|_| vec!["a book"]);
///
/// assert_eq!(recommend().or_fallback(vec![]), Answered::Real(vec!["a book"]));
/// let second = recommend().or_fallback_with(|_: &Denied| vec!["what everybody reads"]);
/// assert!(second.reason().is_some());
/// assert_eq!(second.into_value(), ["what everybody reads"]);
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
pub trait OrFallback<T, E>: Sized {
    /// Replaces an error by what a function returns.
    fn or_fallback_with(self, stand_in: impl FnOnce(&E) -> T) -> Answered<T, E>;

    /// Replaces an error by a value.
    fn or_fallback(self, value: T) -> Answered<T, E> {
        self.or_fallback_with(|_| value)
    }
}

impl<T, E> OrFallback<T, E> for Result<T, E> {
    fn or_fallback_with(self, stand_in: impl FnOnce(&E) -> T) -> Answered<T, E> {
        match self {
            Ok(value) => Answered::Real(value),
            Err(reason) => Answered::Fallback { value: stand_in(&reason), reason },
        }
    }
}

/// Keeps the last real answer for each key, to stand in when there is no new one, until it is too old. Clones share the
/// answers. For one answer, the key is `()`.
///
/// **The key has to include everything that the answer depends on**: the user or the tenant, the language, the
/// requested thing. A caller is shown the answer that is kept under its key, even if it was made for another caller.
/// Use a user name that was verified, not one that the caller sent.
///
/// Holds at most `most_keys` answers, and each key twice. The answers may have any size unless
/// [`weighing`](LastAnswers::weighing) bounds their sum. A new key in a full store evicts the answer that was stored
/// longest ago; storing again makes an answer the newest, reading does not. So callers who choose keys freely, such as
/// by a query string, can evict the answers of all others: use keys of which there are few, such as the path.
///
/// Storing an answer costs an allocation, a clone of the key and a short lock that all keys share; returning one costs
/// that lock and a clone of the answer: wrap large answers in an `Arc`. An answer that is too old is never returned. It
/// is dropped when its key is asked for, and each time an answer is stored, up to two others are.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate::breaker::fallback::{Answered, LastAnswers};
/// use tidegate::clock::ManualClock;
///
/// let clock = ManualClock::default();
/// let prices = LastAnswers::new(10_000, Duration::from_secs(300))?.with_clock(clock.clone());
/// assert_eq!(prices.or_last("tea", Ok::<_, &str>(17)), Ok(Answered::Real(17)));
/// assert_eq!(prices.or_last("tea", Err("timed out")), Ok(Answered::Fallback { value: 17, reason: "timed out" }));
/// assert_eq!(prices.or_last("coffee", Err("timed out")), Err("timed out"), "there is none for this key");
/// clock.advance(Duration::from_secs(301));
/// assert_eq!(prices.or_last("tea", Err("timed out")), Err("timed out"), "too old to be shown");
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
pub struct LastAnswers<K, T> {
    clock: Arc<dyn Clock>,
    most_age: Duration,
    most_keys: usize,
    weighing: Option<Weighing<K, T>>,
    table: Arc<Mutex<AnswerTable<K, T>>>,
}

struct Weighing<K, T> {
    most: u64,
    weigh: Arc<Weigh<K, T>>,
}

type Weigh<K, T> = dyn Fn(&K, &T) -> u64 + Send + Sync;

const MAX_KEYS: usize = 1 << 24;

impl<K: Hash + Eq + Clone, T: Clone> LastAnswers<K, T> {
    /// Makes an empty store for the answers of `most_keys` keys, 1 to 16,777,216. An answer may stand in while
    /// it is at most `most_age` old. Memory is taken as answers are stored.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] if `most_keys` is out of range.
    pub fn new(most_keys: usize, most_age: Duration) -> Result<Self, QuotaError> {
        if most_keys == 0 || most_keys > MAX_KEYS {
            let want = "is not a number of keys; use 1 to 16777216";
            return Err(QuotaError::Parameter { name: "most_keys", value: most_keys.to_string(), want });
        }
        Ok(Self {
            clock: Arc::new(SystemClock::new()),
            most_age,
            most_keys,
            weighing: None,
            table: Arc::default(),
        })
    }

    /// Sets the clock that measures ages; the default is the [`SystemClock`]. Call it before any answer is stored.
    #[must_use]
    pub fn with_clock(self, clock: impl Clock + 'static) -> Self {
        Self { clock: Arc::new(clock), ..self }
    }

    /// Bounds the sum of the weights of all answers that are held by `most`; `weigh` computes the weight of one, such
    /// as the bytes of an answer and twice those of its key. The default has no such bound.
    ///
    /// A new answer evicts as many of those stored longest ago as it needs. One that alone weighs more than `most` is
    /// not kept, and the last answer for its key is dropped, since it is no longer the last. An answer is weighed once,
    /// when it is stored, before the lock is taken; what changes its size later is not noticed. The returned store is
    /// empty, and shares its answers with clones made afterwards.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate::breaker::fallback::LastAnswers;
    ///
    /// let bytes = |key: &String, page: &String| 2 * key.len() as u64 + page.len() as u64;
    /// let pages = LastAnswers::new(10_000, Duration::from_secs(300))?.weighing(64 << 20, bytes);
    /// pages.keep("home".to_owned(), "welcome".to_owned());
    /// assert_eq!(pages.weight(), 15);
    /// # Ok::<(), tidegate::QuotaError>(())
    /// ```
    #[must_use]
    pub fn weighing(self, most: u64, weigh: impl Fn(&K, &T) -> u64 + Send + Sync + 'static) -> Self {
        let weighing = Some(Weighing { most, weigh: Arc::new(weigh) });
        Self { weighing, table: Arc::default(), ..self }
    }

    /// Stores a real answer, in place of the last one for this key. Its age counts from now.
    pub fn keep(&self, key: K, answer: T) {
        let now = self.clock.now();
        let weight = self.weighing.as_ref().map_or(0, |weighing| (weighing.weigh)(&key, &answer));
        let most =
            Most { keys: self.most_keys, weight: self.weighing.as_ref().map_or(0, |weighing| weighing.most) };
        if weight > most.weight {
            self.forget(&key);
            return;
        }
        let (turn_key, kept) = (key.clone(), Arc::new((answer, now)));
        let entry = |turn| KeptAnswer { turn, weight, kept };
        let gone = self.table.lock().insert(key, turn_key, entry, most, |kept| self.is_too_old(kept, now));
        drop(gone);
    }

    /// Returns the last real answer for the key and its age; `None` if there is none that is recent enough.
    #[must_use]
    pub fn last<Q>(&self, key: &Q) -> Option<(T, Duration)>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let now = self.clock.now();
        let mut table = self.table.lock();
        let kept = Arc::clone(&table.by_key.get(key)?.kept);
        let gone = if self.is_too_old(&kept, now) { table.remove(key) } else { None };
        drop(table);
        // Cloned and dropped outside the lock, because that runs foreign code.
        if gone.is_some() { None } else { Some((kept.0.clone(), now.since(kept.1))) }
    }

    /// Stores a real answer for the key, or replaces an error by the last one. Return errors for which nothing should
    /// stand in before, such as the caller's own mistakes.
    ///
    /// # Errors
    /// The given error, if there is no answer for the key that is recent enough.
    pub fn or_last<E>(&self, key: K, result: Result<T, E>) -> Result<Answered<T, E>, E> {
        match result {
            Ok(value) => {
                self.keep(key, value.clone());
                Ok(Answered::Real(value))
            }
            Err(reason) => match self.last(&key) {
                Some((value, _)) => Ok(Answered::Fallback { value, reason }),
                None => Err(reason),
            },
        }
    }

    /// Forgets the answer for the key, for example when its user may no longer see it.
    pub fn forget<Q>(&self, key: &Q)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let gone = self.table.lock().remove(key);
        drop(gone);
    }

    /// Returns how many answers are held, those included that are too old and not yet dropped.
    #[must_use]
    pub fn held(&self) -> usize {
        self.table.lock().by_key.len()
    }

    /// Returns the sum of the weights of the answers that are held; 0 unless they are [weighed](LastAnswers::weighing).
    #[must_use]
    pub fn weight(&self) -> u64 {
        self.table.lock().weight
    }

    fn is_too_old(&self, kept: &TimedAnswer<T>, now: Tick) -> bool {
        now.since(kept.1) > self.most_age
    }
}

/// The answers by key, and the keys in the order in which answers were stored. Both maps hold the same keys. All
/// answers may stand in for the same time, so the one stored longest ago is the first that becomes too old. It is also
/// the one that is evicted, which needs no count of reads.
struct AnswerTable<K, T> {
    by_key: HashMap<K, KeptAnswer<T>, RandomState>,
    by_turn: BTreeMap<u64, K>,
    stored: u64,
    weight: u64,
}

struct KeptAnswer<T> {
    turn: u64,
    weight: u64,
    kept: TimedAnswer<T>,
}

/// An answer and its time. Cloned and dropped outside the lock, because that runs foreign code.
type TimedAnswer<T> = Arc<(T, Tick)>;

#[derive(Clone, Copy)]
struct Most {
    keys: usize,
    weight: u64,
}

/// What was taken out of a table, to be dropped after the lock is released.
type TakenOut<K, T> = Option<(K, KeptAnswer<T>, K)>;

type AllGone<K, T> = (TakenOut<K, T>, [TakenOut<K, T>; TAKEN_OUT], Vec<TakenOut<K, T>>);

/// How many answers are taken out when one is stored, besides those that make room for its weight: one for its key, and
/// one that is too old, so that a store whose keys change holds fewer with time. The number bounds the time that the
/// lock is held.
const TAKEN_OUT: usize = 2;

impl<K: Hash + Eq, T> AnswerTable<K, T> {
    /// Stores the answer that `entry` makes with its turn, and takes out the oldest that are too many, too heavy or too
    /// old. The answer itself weighs at most `most.weight`.
    fn insert(
        &mut self,
        key: K,
        turn_key: K,
        entry: impl FnOnce(u64) -> KeptAnswer<T>,
        most: Most,
        is_too_old: impl Fn(&TimedAnswer<T>) -> bool,
    ) -> AllGone<K, T> {
        let replaced = self.remove(&key);
        let entry = entry(self.stored);
        self.stored += 1;
        let mut too_heavy = Vec::new();
        while self.weight > most.weight - entry.weight && !self.by_key.is_empty() {
            too_heavy.push(self.take_oldest());
        }
        self.weight += entry.weight;
        self.by_turn.insert(entry.turn, turn_key);
        self.by_key.insert(key, entry);
        let taken_out = [(); TAKEN_OUT].map(|()| {
            let (_, oldest) = self.by_turn.first_key_value()?;
            let is_over = self.by_key.len() > most.keys;
            if !is_over && !self.by_key.get(oldest).is_some_and(|entry| is_too_old(&entry.kept)) {
                return None;
            }
            self.take_oldest()
        });
        (replaced, taken_out, too_heavy)
    }

    fn take_oldest(&mut self) -> TakenOut<K, T> {
        let (_, oldest) = self.by_turn.pop_first()?;
        let (key, entry) = self.by_key.remove_entry(&oldest)?;
        self.weight -= entry.weight;
        Some((key, entry, oldest))
    }

    fn remove<Q>(&mut self, key: &Q) -> TakenOut<K, T>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (key, entry) = self.by_key.remove_entry(key)?;
        let turn_key = self.by_turn.remove(&entry.turn)?;
        self.weight -= entry.weight;
        Some((key, entry, turn_key))
    }
}

impl<K, T> Default for AnswerTable<K, T> {
    fn default() -> Self {
        Self { by_key: HashMap::default(), by_turn: BTreeMap::new(), stored: 0, weight: 0 }
    }
}

impl<K, T> Clone for LastAnswers<K, T> {
    fn clone(&self) -> Self {
        let Self { clock, most_age, most_keys, weighing, table } = self;
        let (clock, table) = (Arc::clone(clock), Arc::clone(table));
        Self { clock, most_age: *most_age, most_keys: *most_keys, weighing: weighing.clone(), table }
    }
}

impl<K, T> Clone for Weighing<K, T> {
    fn clone(&self) -> Self {
        Self { most: self.most, weigh: Arc::clone(&self.weigh) }
    }
}

impl<K, T> fmt::Debug for LastAnswers<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { most_age, most_keys, .. } = self;
        f.debug_struct("LastAnswers")
            .field("most_age", most_age)
            .field("most_keys", most_keys)
            .field("most_weight", &self.weighing.as_ref().map(|weighing| weighing.most))
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    const AGE: Duration = Duration::from_secs(10);

    fn store<T: Clone>(most_keys: usize) -> (LastAnswers<String, T>, ManualClock) {
        let clock = ManualClock::default();
        let kept = LastAnswers::new(most_keys, AGE).expect("a number of keys in range");
        (kept.with_clock(clock.clone()), clock)
    }

    #[test]
    fn an_answer_is_shown_under_its_own_key_until_it_is_too_old() {
        let (kept, clock) = store(10);
        kept.keep("ann".into(), 1);
        clock.advance(Duration::from_secs(6));
        kept.clone().keep("bob".into(), 2);
        clock.advance(Duration::from_secs(4));
        assert_eq!(kept.last("ann"), Some((1, AGE)), "exactly as old as it may be");
        assert_eq!(kept.last("bob"), Some((2, Duration::from_secs(4))));
        assert_eq!(kept.last("eve"), None);
        clock.advance(Duration::from_nanos(1));
        assert_eq!(kept.last("ann"), None);
        assert_eq!((kept.last("bob").map(|(answer, _)| answer), kept.held()), (Some(2), 1));
    }

    #[test]
    fn a_new_answer_replaces_the_last_and_counts_from_its_own_time() {
        let (kept, clock) = store(10);
        kept.keep("ann".into(), 1);
        clock.advance(AGE);
        kept.keep("ann".into(), 2);
        clock.advance(AGE);
        assert_eq!((kept.last("ann"), kept.held()), (Some((2, AGE)), 1));
    }

    #[test]
    fn an_error_is_replaced_and_never_kept() {
        let (kept, _) = store(10);
        assert_eq!(kept.or_last("ann".into(), Err("down")), Err("down"));
        assert_eq!(kept.held(), 0);
        assert_eq!(kept.or_last("ann".into(), Ok::<_, &str>(1)), Ok(Answered::Real(1)));
        let shown = kept.or_last("ann".into(), Err("down"));
        assert_eq!(shown, Ok(Answered::Fallback { value: 1, reason: "down" }));
        kept.forget("ann");
        assert_eq!(kept.or_last("ann".into(), Err("down")), Err("down"));
    }

    /// The oldest goes, whether it was read or not; stored again, it is no longer the oldest.
    #[test]
    fn a_full_store_evicts_the_answer_that_was_stored_longest_ago() {
        let (kept, _) = store(3);
        for key in ["a", "b", "c", "a", "d"] {
            let _ = kept.last("b");
            kept.keep(key.into(), ());
        }
        let held = ["a", "b", "c", "d"].map(|key| kept.last(key).is_some());
        assert_eq!(held, [true, false, true, true]);
        for number in 0..1000 {
            kept.keep(number.to_string(), ());
            assert_eq!((kept.held(), kept.table.lock().by_turn.len()), (3, 3));
        }
    }

    #[test]
    fn weighed_answers_evict_the_oldest_until_they_weigh_no_more_than_they_may() {
        let (kept, clock) = store::<String>(100);
        let kept = kept.weighing(10, |key, answer| (key.len() + answer.len()) as u64);
        for (key, length) in [("a", 2), ("b", 2), ("c", 2)] {
            kept.keep(key.into(), "x".repeat(length));
        }
        assert_eq!((kept.held(), kept.weight()), (3, 9));
        kept.clone().keep("a".into(), "xxx".into());
        assert_eq!((kept.held(), kept.weight()), (3, 10), "what it replaces weighs nothing");
        kept.keep("d".into(), "xxxx".into());
        let held = ["a", "b", "c", "d"].map(|key| kept.last(key).is_some());
        assert_eq!((held, kept.weight()), ([true, false, false, true], 9), "the two oldest made room for it");
        kept.keep("e".into(), "x".repeat(9));
        assert_eq!((kept.held(), kept.weight(), kept.last("e").is_some()), (1, 10, true), "all others");
        kept.keep("e".into(), "x".repeat(10));
        assert_eq!((kept.last("e"), kept.weight()), (None, 0), "too heavy, and what it replaces is outdated");
        kept.keep("f".into(), String::new());
        clock.advance(AGE * 2);
        assert_eq!((kept.last("f"), kept.weight()), (None, 0), "too old");
        kept.keep("g".into(), String::new());
        kept.forget("g");
        assert_eq!((kept.held(), kept.weight()), (0, 0));
    }

    #[test]
    fn answers_that_are_too_old_leave_as_others_are_stored() {
        let (kept, clock) = store(1000);
        (0..100).for_each(|number| kept.keep(number.to_string(), ()));
        clock.advance(AGE + Duration::from_nanos(1));
        for _ in 0..60 {
            kept.keep("now".into(), ());
        }
        assert_eq!((kept.held(), kept.table.lock().by_turn.len()), (1, 1));
    }

    #[test]
    fn a_number_of_keys_out_of_range_is_named() {
        let most = MAX_KEYS;
        assert!(LastAnswers::<u32, u32>::new(most, AGE).is_ok());
        for out_of_range in [0, most + 1] {
            let error = LastAnswers::<u32, u32>::new(out_of_range, AGE).unwrap_err().to_string();
            assert_eq!(error, format!("most_keys {out_of_range} is not a number of keys; use 1 to 16777216"));
        }
    }

    /// Dropping or cloning an answer runs its type's own code, which may use the store: under the lock it deadlocked.
    #[test]
    fn an_answer_may_use_what_keeps_it_while_it_is_copied_and_dropped() {
        struct Asks(Option<LastAnswers<String, Asks>>);

        impl Asks {
            fn ask(&self) {
                if let Some(kept) = &self.0 {
                    let _ = kept.held();
                }
            }
        }

        impl Clone for Asks {
            fn clone(&self) -> Self {
                self.ask();
                Self(None)
            }
        }

        impl Drop for Asks {
            fn drop(&mut self) {
                self.ask();
            }
        }

        let (kept, clock) = store(1);
        let asking = || Asks(Some(kept.clone()));
        kept.keep("a".into(), asking());
        assert!(kept.last("a").is_some());
        kept.keep("a".into(), asking());
        kept.keep("b".into(), asking());
        kept.forget("b");
        kept.keep("b".into(), asking());
        clock.advance(AGE * 2);
        assert!(kept.last("b").is_none());
        assert_eq!(kept.held(), 0);
    }
}
