//! Lines come out in order, within the bounds, and the same whether taken one by one or together.

use proptest::prelude::*;

use super::*;

fn run(window: u64, limit: usize, lines: &[(u64, &[u8])]) -> (Vec<(u64, u64)>, OrderTally, usize) {
    run_by(1, window, limit, lines)
}

/// Takes lines as soon as `together` of them are ready.
fn run_by(
    together: usize,
    window: u64,
    limit: usize,
    lines: &[(u64, &[u8])],
) -> (Vec<(u64, u64)>, OrderTally, usize) {
    let mut order = Reorder::new(Duration::from_nanos(window), limit);
    let (mut out, mut most) = (Vec::new(), 0);
    for (number, (time, line)) in lines.iter().enumerate() {
        order.push(*time, OrderedLine { mark: number as u64, time_at: number as u32, bytes: line });
        most = most.max(order.waiting + order.ready_bytes);
        while order.are_ready(together) {
            for held in order.ready().take(together) {
                assert_eq!(held.line.bytes, lines[held.line.mark as usize].1);
                assert_eq!(u64::from(held.line.time_at), held.line.mark);
                out.push((held.time, held.line.mark));
            }
            order.drop_first(together);
        }
    }
    order.finish();
    out.extend(order.ready().map(|held| (held.time, held.line.mark)));
    order.drop_first(usize::MAX);
    assert_eq!((order.waiting, order.ready_bytes, order.ready.len()), (0, 0, 0));
    (out, order.tally, most)
}

#[test]
fn lines_within_the_window_find_their_place() {
    let at = |tenths: u64| tenths * SECOND / 10;
    let lines: Vec<(u64, &[u8])> = [10, 30, 25, 12, 200, 195].map(|t| (at(t), &b"x"[..])).to_vec();
    let (out, tally, _) = run(5 * SECOND, 1 << 20, &lines);
    assert_eq!(out, [(at(10), 0), (at(12), 3), (at(25), 2), (at(30), 1), (at(195), 5), (at(200), 4)]);
    assert_eq!((tally.back, tally.ordered, tally.clamped), (3, 3, 0));
    assert_eq!(tally.largest_step, Duration::from_millis(1_800));
}

#[test]
fn a_line_later_than_the_window_counts_as_the_latest_given_out() {
    let lines: Vec<(u64, &[u8])> = [10, 100, 200, 20].map(|t| (t * SECOND, &b"x"[..])).to_vec();
    let (out, tally, _) = run(5 * SECOND, 1 << 20, &lines);
    assert_eq!(out, [(10 * SECOND, 0), (100 * SECOND, 1), (100 * SECOND, 3), (200 * SECOND, 2)]);
    assert_eq!((tally.ordered, tally.clamped), (0, 1));
}

/// One corrupt date far in the future must not drag every later line there.
#[test]
fn one_line_from_the_future_does_not_take_the_rest_along() {
    let lines: Vec<(u64, &[u8])> = [10, 1_000_000, 11, 12, 13].map(|t| (t * SECOND, &b"x"[..])).to_vec();
    let (out, tally, _) = run(5 * SECOND, 1 << 20, &lines);
    assert_eq!(out.iter().map(|(_, mark)| *mark).collect::<Vec<_>>(), [0, 2, 3, 4, 1]);
    assert_eq!(tally.clamped, 0);
}

/// Each line is a run of its own, and the runs are dropped once their lines are gone.
#[test]
fn a_log_that_runs_backwards_is_turned_round() {
    let backwards = (1..=1_000).rev();
    let lines: Vec<(u64, &[u8])> = backwards.chain(2_000..3_000).map(|t| (t * SECOND, &b"x"[..])).collect();
    let (out, tally, _) = run(1_000 * SECOND, 1 << 20, &lines);
    let times: Vec<u64> = out.iter().map(|(time, _)| time / SECOND).collect();
    assert!(times.into_iter().eq((1..=1_000).chain(2_000..3_000)));
    assert_eq!((tally.ordered, tally.clamped, tally.early), (999, 0, 0));
}

/// The last possible second is like any other: its lines are released when room is scarce.
#[test]
fn lines_of_the_last_tick_are_let_go() {
    let lines: Vec<(u64, &[u8])> = [u64::MAX, 5, u64::MAX, u64::MAX - 1].map(|t| (t, &b"x"[..])).to_vec();
    for limit in [1, 1 << 20] {
        let (out, _, _) = run(5 * SECOND, limit, &lines);
        assert_eq!(out.len(), 4);
        assert!(out.is_sorted_by_key(|(time, _)| *time));
    }
}

proptest! {
    #[test]
    fn equals_a_full_sort_when_the_window_suffices(
        steps in prop::collection::vec((0u64..3 * SECOND, 0u64..20 * SECOND), 0..200),
    ) {
        let mut now = 100 * SECOND;
        let mut lines = Vec::new();
        for (step, back) in steps {
            now += step;
            lines.push((now - back, &b"line"[..]));
        }
        let (out, tally, _) = run(20 * SECOND, 1 << 20, &lines);
        let mut want: Vec<_> = lines.iter().enumerate().map(|(n, (t, _))| (*t, n as u64)).collect();
        want.sort_by_key(|(time, _)| *time);
        prop_assert_eq!(out, want);
        prop_assert_eq!(tally.clamped, 0);
    }

    #[test]
    fn never_holds_more_than_its_bound_and_one_line_and_never_goes_back(
        times in prop::collection::vec(0u64..2_000_000 * SECOND, 0..300),
        limit in 100usize..2_000,
        window in 0u64..100 * SECOND,
    ) {
        let lines: Vec<_> = times.iter().map(|t| (*t % (300 * SECOND), &b"0123456789"[..])).collect();
        let (out, _, most) = run(window, limit, &lines);
        prop_assert_eq!(out.len(), lines.len());
        prop_assert!(out.is_sorted_by_key(|(time, _)| *time));
        prop_assert!(most <= limit + 34, "{} over {}", most, limit);
    }

    #[test]
    fn lines_taken_together_are_those_taken_one_by_one(
        times in prop::collection::vec(0u64..300 * SECOND, 0..300),
        limit in 100usize..2_000,
        window in 0u64..100 * SECOND,
        together in 2usize..20,
    ) {
        let lines: Vec<_> = times.iter().map(|time| (*time, &b"0123456789"[..])).collect();
        let (out, tally, _) = run_by(together, window, limit, &lines);
        let (alone, alone_tally, _) = run(window, limit, &lines);
        prop_assert_eq!((out, tally), (alone, alone_tally));
    }
}
