use super::*;
use crate::bytes::{Bytes, Reader, Writer};

fn at(millis: u64) -> Tick {
    Tick::EPOCH.after(Duration::from_millis(millis))
}

/// Adds `each` samples at the start of every 100 ms from `from` to `to`, in milliseconds.
fn serve(law: &Bbr, state: &mut BbrState, (from, to): (u64, u64), each: u64, micros: u64, outcome: Outcome) {
    for millis in (from..to).step_by(100) {
        for _ in 0..each {
            let latency = Duration::from_micros(micros);
            law.learn(
                state,
                &Sample {
                    at: at(millis),
                    latency,
                    held: latency,
                    in_flight: each,
                    places: 1,
                    time_left: None,
                    outcome,
                },
            );
        }
    }
}

/// Repeats a reading until the smoothed value reaches it; a single reading if nothing is smoothed.
fn read(law: &Bbr, state: &mut BbrState, millis: u64, thousandths: u16) {
    for _ in 0..500 {
        law.sense(state, at(millis), Signal::Cpu(thousandths));
    }
}

const FREE: u64 = Bounds::MOST;

/// 50 in each tenth of a second, of 20 ms: 50 · 20 · 10 / 1000 = 10 inside.
#[test]
fn the_published_numbers() {
    for (law, limit) in [(Bbr::default(), 10), (Bbr::aegis(), 11)] {
        let mut state = law.start(at(0));
        serve(&law, &mut state, (0, 1000), 50, 20_000, Outcome::Success);
        // A bucket that is not over does not count, however much was served in it.
        serve(&law, &mut state, (1000, 1100), 500, 20_000, Outcome::Success);
        read(&law, &mut state, 1050, 799);
        assert_eq!(law.limit(&state), FREE);
        read(&law, &mut state, 1060, 1000);
        assert_eq!(law.limit(&state), limit);
        // The best second is forgotten after ten.
        serve(&law, &mut state, (2000, 11_600), 5, 20_000, Outcome::Success);
        read(&law, &mut state, 11_600, 1000);
        assert_eq!(law.limit(&state), limit / 10 + u64::from(limit == 11));
    }
}

#[test]
fn the_least_average_is_rounded_up_by_aegis_and_kept_by_ours() {
    // 50 of 20.3 ms: 10.15 inside; aegis reads 21 ms, so 10.5, and adds its half only after rounding that down.
    for (law, limit) in [(Bbr::default(), 10), (Bbr::aegis(), 11)] {
        let mut state = law.start(at(0));
        serve(&law, &mut state, (0, 1000), 50, 20_300, Outcome::Success);
        read(&law, &mut state, 1000, 1000);
        assert_eq!(law.limit(&state), limit);
    }
}

/// A service of 0.1 ms that serves 10,000 a second has one request inside. The other libraries count it as ten.
#[test]
fn whole_milliseconds_are_ten_times_too_long_for_quick_work() {
    for (law, limit) in [(Bbr::default(), 1), (Bbr::aegis(), 11)] {
        let mut state = law.start(at(0));
        serve(&law, &mut state, (0, 1000), 1000, 100, Outcome::Success);
        read(&law, &mut state, 1000, 1000);
        assert_eq!(law.limit(&state), limit);
    }
}

#[test]
fn full_load_meets_a_threshold_of_1000_in_ours_alone() -> Result<(), QuotaError> {
    for (law, limited) in [(Bbr::default(), true), (Bbr::aegis(), false)] {
        let law = law.threshold(1000)?;
        let mut state = law.start(at(0));
        serve(&law, &mut state, (0, 1000), 50, 20_000, Outcome::Success);
        read(&law, &mut state, 1000, 1000);
        assert_eq!(law.limit(&state) < FREE, limited, "{} of 1000", law.cpu(&state));
    }
    Ok(())
}

/// Smoothed again, the first reading above the threshold would be noticed only after many more.
#[test]
fn a_reading_that_is_averaged_already_is_taken_as_it_is() {
    for law in [Bbr::default(), Bbr::aegis(), Bbr::go_zero()] {
        let mut state = law.start(at(0));
        law.sense(&mut state, at(0), Signal::CpuAveraged(100));
        law.sense(&mut state, at(250), Signal::CpuAveraged(950));
        assert_eq!(law.cpu(&state), 950, "{:?}", law.arithmetic);
        law.sense(&mut state, at(500), Signal::CpuAveraged(u16::MAX));
        assert_eq!(law.cpu(&state), 1000, "{:?}", law.arithmetic);
        law.sense(&mut state, at(750), Signal::Cpu(0));
        assert!(
            law.cpu(&state) >= 950,
            "a single reading is averaged with those before: {:?}",
            law.arithmetic
        );
    }
}

/// An overload of five seconds, then a moment's rest. aegis' cool-off began with the overload and is long over, so
/// everything is admitted at once, the processor is busy again, and so on: the limit flaps with each reading.
#[test]
fn a_long_overload_has_no_cool_off_in_aegis_and_has_one_in_ours() -> Result<(), QuotaError> {
    for (law, limited) in [(Bbr::default(), true), (Bbr::aegis(), false)] {
        let law = law.smoothing(0.0)?;
        let mut state = law.start(at(0));
        serve(&law, &mut state, (0, 1000), 50, 20_000, Outcome::Success);
        for millis in (1000..6000).step_by(500) {
            read(&law, &mut state, millis, 1000);
            serve(&law, &mut state, (millis, millis + 500), 50, 20_000, Outcome::Success);
        }
        read(&law, &mut state, 6000, 500);
        assert_eq!(law.limit(&state) < FREE, limited, "{:?}", law.arithmetic);
        read(&law, &mut state, 7000, 500);
        assert_eq!(law.limit(&state), FREE, "{:?}", law.arithmetic);
    }
    Ok(())
}

#[test]
fn a_short_overload_cools_off_for_a_second_in_all() -> Result<(), QuotaError> {
    for law in [Bbr::default(), Bbr::aegis(), Bbr::go_zero()] {
        let law = law.smoothing(0.0)?;
        let mut state = law.start(at(0));
        serve(&law, &mut state, (0, 1000), 50, 20_000, Outcome::Success);
        read(&law, &mut state, 1000, 1000);
        serve(&law, &mut state, (1000, 1100), 50, 20_000, Outcome::Success);
        read(&law, &mut state, 1500, 500);
        assert!(law.limit(&state) < FREE, "{:?}", law.arithmetic);
        read(&law, &mut state, 2101, 500);
        assert_eq!(law.limit(&state), FREE, "{:?}", law.arithmetic);
    }
    Ok(())
}

#[test]
fn quick_failures_are_the_peers_best_moment_and_not_ours() {
    for (law, limit) in [(Bbr::default(), 10), (Bbr::aegis(), 6)] {
        let mut state = law.start(at(0));
        serve(&law, &mut state, (0, 1000), 50, 20_000, Outcome::Success);
        serve(&law, &mut state, (1000, 2000), 20, 10_000, Outcome::Failure);
        read(&law, &mut state, 2000, 1000);
        assert_eq!(law.limit(&state), limit);
    }
}

/// Regression: one faulty request of 10 µs in a tenth of a second without other work was the least latency for the whole
/// window, and the limit was 1.
#[test]
fn a_quick_refusal_of_a_faulty_request_is_the_peers_best_moment_and_not_ours() {
    for (law, limited_to) in [(Bbr::default(), 10), (Bbr::aegis(), 2)] {
        let mut state = law.start(at(0));
        serve(&law, &mut state, (0, 1000), 50, 20_000, Outcome::Success);
        serve(&law, &mut state, (1000, 1100), 1, 10, Outcome::CallersFault);
        serve(&law, &mut state, (1100, 2000), 50, 20_000, Outcome::Success);
        read(&law, &mut state, 2000, 1000);
        assert_eq!(law.limit(&state), limited_to, "{:?}", law.arithmetic);
    }
}

/// go-zero: 10 inside in the best moments; half of that at 950 thousandths, and never less than a tenth. No limit
/// while fewer are inside on average.
#[test]
fn the_published_numbers_of_go_zero() -> Result<(), QuotaError> {
    let law = Bbr::go_zero().smoothing(0.0)?;
    let mut state = law.start(at(0));
    read(&law, &mut state, 0, 950);
    assert_eq!(law.limit(&state), FREE, "nobody is inside");
    serve(&law, &mut state, (0, 1000), 50, 20_000, Outcome::Success);
    for (cpu, limit) in [(900, 11), (950, 6), (990, 2), (1000, 2), (899, 11)] {
        read(&law, &mut state, 1000, cpu);
        if cpu == 899 {
            let latency = Duration::from_millis(20);
            law.learn(
                &mut state,
                &Sample {
                    at: at(1000),
                    latency,
                    held: latency,
                    in_flight: 50,
                    places: 1,
                    time_left: None,
                    outcome: Outcome::Success,
                },
            );
        }
        assert_eq!(law.limit(&state), limit, "at {cpu}");
    }
    // A busy machine that has served nothing for five seconds: one request in a tenth of a second, taking one second,
    // is ten inside.
    read(&law, &mut state, 9000, 900);
    assert_eq!(law.limit(&state), 11);
    // A 503 is not service.
    let before = state.served.clone();
    serve(&law, &mut state, (9000, 9001), 5, 1, Outcome::Overloaded);
    assert_eq!(state.served, before);
    Ok(())
}

/// 5 in each tenth of a second, of 3 s: 150 inside. go-zero takes no latency above its assumption of one second.
#[test]
fn go_zero_knows_no_latency_above_a_second() -> Result<(), QuotaError> {
    for (law, limit) in [(Bbr::default(), 150), (Bbr::go_zero().smoothing(0.0)?, 51)] {
        let mut state = law.start(at(0));
        serve(&law, &mut state, (0, 1000), 5, 3_000_000, Outcome::Success);
        serve(&law, &mut state, (1000, 4000), 100, 3_000_000, Outcome::Overloaded);
        read(&law, &mut state, 4000, 900);
        assert_eq!(law.limit(&state), limit, "{:?}", law.arithmetic);
    }
    Ok(())
}

/// The bucket in progress is one of a hundred in aegis, so the first one is forgotten at 10 s, and here a tenth later.
#[test]
fn the_best_moment_lasts_as_long_as_the_window() {
    for (law, best) in [(Bbr::default(), 10_099), (Bbr::aegis(), 9_999)] {
        let law = law.smoothing(0.0).unwrap();
        let mut state = law.start(at(0));
        serve(&law, &mut state, (0, 100), 50, 20_000, Outcome::Success);
        serve(&law, &mut state, (9_000, 9_100), 5, 20_000, Outcome::Success);
        let mut limit = |millis| {
            read(&law, &mut state, millis, 1000);
            law.limit(&state)
        };
        assert!(limit(best) >= 10, "{:?}", law.arithmetic);
        assert!(limit(best + 1) < 10, "{:?}", law.arithmetic);
    }
}

#[test]
fn cancelled_work_changes_nothing() {
    for law in [Bbr::default(), Bbr::aegis(), Bbr::go_zero()] {
        let mut state = law.start(at(0));
        serve(&law, &mut state, (0, 1000), 50, 20_000, Outcome::Success);
        let before = state.clone();
        serve(&law, &mut state, (1000, 2000), 500, 20_000, Outcome::Ignored);
        assert_eq!(state, before, "{:?}", law.arithmetic);
    }
}

#[test]
fn a_busy_machine_of_which_nothing_is_known_starts_where_it_is_told() -> Result<(), QuotaError> {
    let law = Bbr::default().bounds(Bounds::new(4, 100)?.start_at(30)?);
    let mut state = law.start(at(0));
    assert_eq!(law.limit(&state), 100);
    law.sense(&mut state, at(1), Signal::Memory(1000));
    assert_eq!(law.limit(&state), 100, "memory says nothing of the processor");
    law.sense(&mut state, at(1), Signal::Cpu(u16::MAX));
    assert_eq!((law.cpu(&state), law.limit(&state)), (1000, 30));
    // The first bucket counts once it is over: one request of a microsecond, raised by the bounds.
    serve(&law, &mut state, (1, 300), 1, 1, Outcome::Success);
    assert_eq!(law.limit(&state), 4);
    Ok(())
}

/// The limit applies for the cool-off after each reading of full memory, although the processor idles.
#[test]
fn full_memory_limits_while_the_processor_idles() -> Result<(), QuotaError> {
    for (law, limit) in
        [(Bbr::default().memory(900)?, 10), (Bbr::default(), FREE), (Bbr::aegis().memory(900)?, FREE)]
    {
        let mut state = law.start(at(0));
        serve(&law, &mut state, (0, 1000), 50, 20_000, Outcome::Success);
        law.sense(&mut state, at(1000), Signal::Memory(899));
        assert_eq!(law.limit(&state), FREE);
        law.sense(&mut state, at(1000), Signal::Memory(900));
        law.sense(&mut state, at(1250), Signal::Cpu(10));
        assert_eq!(law.limit(&state), limit, "{:?}", law.arithmetic);
        law.sense(&mut state, at(1999), Signal::Memory(100));
        assert_eq!(law.limit(&state), limit, "{:?}", law.arithmetic);
        law.sense(&mut state, at(2000), Signal::Memory(100));
        assert_eq!(law.limit(&state), FREE);
    }
    Ok(())
}

#[test]
fn a_law_with_a_memory_knob_is_read_as_it_was_written() -> Result<(), QuotaError> {
    for law in [Bbr::default(), Bbr::default().memory(850)?, Bbr::aegis(), Bbr::go_zero()] {
        let mut out = Writer::new(0);
        law.write(&mut out);
        let bytes = out.finish();
        let (_, mut from) = Reader::open(&bytes).unwrap();
        assert_eq!(Bbr::read(&mut from).ok(), Some(law));
        assert!(from.close().is_ok());
    }
    Ok(())
}

#[test]
fn knobs_out_of_range_are_refused() {
    let law = Bbr::default();
    assert!(law.memory(0).is_err() && law.memory(1001).is_err());
    assert!(law.threshold(0).is_err() && law.threshold(1001).is_err());
    assert!(law.smoothing(1.0).is_err() && law.smoothing(f64::NAN).is_err());
    assert!(law.cool_off(Duration::from_secs(3601)).is_err());
}

#[test]
fn the_peers_full_load_reads_as_981_and_takes_33_readings_to_800() {
    let mut cpu = Cpu::default();
    let readings: Vec<u16> = std::iter::repeat_with(|| {
        cpu.read_whole(1000, 0.95);
        cpu.thousandths()
    })
    .take(10_000)
    .collect();
    assert_eq!(readings.iter().position(|&reading| reading >= 800), Some(32));
    assert_eq!(readings.iter().max(), Some(&981));
}

#[test]
fn ours_reaches_full_load_and_idleness() {
    let mut cpu = Cpu::default();
    cpu.read(300, 0.95);
    assert_eq!(cpu.thousandths(), 300, "the first reading counts whole");
    for (reading, reached) in [(1000, 1000), (0, 0), (1000, 1000)] {
        (0..200).for_each(|_| cpu.read(reading, 0.95));
        assert_eq!(cpu.thousandths(), reached);
    }
}
