//! Tests of how goodput is counted by work.

use super::super::controllers::{Controller, DEFAULT, NONE, fixed};
use super::super::meter::STEP;
use super::*;

fn sum(measured: &Measured) -> (f64, f64) {
    (measured.worked.iter().sum(), measured.good.iter().map(|good| f64::from(*good)).sum())
}

/// A worker that is always busy does the same work in each step, however few answers fall into it.
#[test]
fn an_answer_counts_when_its_work_was_done() {
    for sharing in [Sharing::Queued(1), Sharing::Shared(1)] {
        let backend = Backend { deadline: secs(600), ..service(sharing, Work::Even(ms(100), ms(100))) };
        let measured = unprotected(backend, 100.0, secs(2), 3);
        let (from, to) = (ms(200), ms(220));
        let idle = measured.goodput_by_work(ms(0), ms(20));
        assert!(
            idle < 10.0,
            "{sharing:?}: the worker was idle until the first request, but did {idle} a second"
        );
        for step in 0..80 {
            let (from, to) = (from + STEP * step, to + STEP * step);
            let rate = measured.goodput_by_work(from, to);
            assert!((rate - 10.0).abs() < 1e-3, "{sharing:?}: {rate} a second from {from:?} on");
        }
    }
}

/// With the speed of a service, and work on attempts that failed beside it.
#[test]
fn every_good_answer_counts_once_in_all_and_no_other_counts() {
    let until = secs(8);
    for backend in backend::table().into_iter().chain(backend::held_back()) {
        let load = Load {
            rates: vec![(Duration::ZERO, backend.capacity() * 1.3), (secs(4), backend.capacity() * 0.2)],
            ..Load::steady(0.0, until)
        };
        for law in [DEFAULT, NONE] {
            let front = (law.protect)(&backend);
            let (worked, good) = sum(&run(vec![Service { backend: backend.clone(), front }], &load, 4));
            // What is answered after the last step is not counted.
            let rest = (good * 0.01).max(1.0);
            assert!((worked - good).abs() <= rest, "{}: {worked} of {good}", backend.name);
            assert!(good > 100.0 || law.name == NONE.name, "{}: {good}", backend.name);
        }
    }
    let chain = Chain::of_three();
    let load = Load { rates: vec![(Duration::ZERO, 1200.0), (secs(4), 0.1)], ..Load::steady(0.0, until) };
    let (worked, good) = sum(&chain.run(&DEFAULT, &load, 4));
    assert!(good > 100.0 && (worked - good).abs() < 1e-6 * good, "{worked} of {good}");
}

/// Sixteen places suffice, and ten times as many do no harm. At the end of the measured time more requests are inside,
/// half done: they count with that half, so both limits have the same goodput.
#[test]
fn a_limit_with_more_requests_inside_at_the_end_has_the_same_goodput() {
    const ENOUGH: Controller = with_places(|_| Front::behind(fixed(16).with_short_queue()));
    const MORE: Controller = with_places(|_| Front::behind(fixed(160).with_short_queue()));
    let backend = Backend { deadline: ms(500), ..service(Sharing::Shared(16), Work::Even(ms(20), ms(20))) };
    for law in [ENOUGH, MORE] {
        let goodput = scenario::overload(&backend, &law, 2.0, 1..=1).goodput;
        assert!((goodput - 1.0).abs() < 1e-3, "{goodput}");
        let load = scenario::overload_load(backend.capacity(), 2.0);
        let measured =
            run(vec![Service { backend: backend.clone(), front: (law.protect)(&backend) }], &load, 1);
        let (from, to) = scenario::OVERLOAD;
        let answered = measured.goodput(from, to) / backend.capacity();
        assert!(answered < goodput, "{answered}, by the time of the answer");
    }
}

const fn with_places(protect: fn(&Backend) -> Front) -> Controller {
    Controller { name: "", about: "", protect }
}
