//! Tests of byte forms of the state, those included that nobody wrote.

use proptest::prelude::*;

use super::*;

fn form(state: &HillClimbState) -> Vec<u8> {
    let mut out = Writer::new(0);
    state.write(&mut out);
    out.finish()
}

fn read(form: &[u8]) -> Result<HillClimbState, DecodeError> {
    let (_, mut reader) = Reader::open(form)?;
    let state = HillClimbState::read(&mut reader)?;
    reader.close().map(|()| state)
}

/// What a service does for a while.
#[derive(Clone, Copy, Debug)]
enum Weather {
    Places(u64),
    Fails,
    Late,
    Stands,
}

fn weather() -> impl Strategy<Value = Weather> {
    prop_oneof![
        4 => (1..200_u64).prop_map(Weather::Places),
        1 => Just(Weather::Fails),
        1 => Just(Weather::Late),
        1 => Just(Weather::Stands),
    ]
}

impl Service {
    fn endure(&mut self, weather: Weather) {
        match weather {
            Weather::Places(places) => {
                self.run(300, |inside| 10.0 * (inside / places as f64).max(1.0), never);
            }
            Weather::Fails => {
                self.run(100, |_| 1.0, |_, _| true);
            }
            Weather::Late => {
                self.run(100, |_| 600.0, never);
            }
            Weather::Stands => self.now = self.now.after(Duration::from_secs(3)),
        }
    }
}

proptest! {
    #[test]
    fn a_state_comes_back_from_its_form_and_goes_on_as_it_was(all in prop::collection::vec(weather(), 1..20)) {
        let mut service = Service::with_patience([500, 500]);
        for weather in all {
            service.endure(weather);
            let again = read(&form(&service.state)).unwrap();
            prop_assert_eq!(again, service.state);
            service.state = again;
        }
    }

    /// A form with a few bytes that nobody wrote is refused, or is a state from which the law finds back.
    #[test]
    fn a_form_that_nobody_wrote_is_refused_or_goes_on(
        all in prop::collection::vec(weather(), 1..6),
        wrong in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut service = Service::with_patience([500, 500]);
        all.into_iter().for_each(|weather| service.endure(weather));
        let mut form = form(&service.state);
        for (at, byte) in wrong {
            let at = 1 + at.index(form.len() - 1);
            form[at] = byte;
        }
        if let Ok(state) = read(&form) {
            service.law = service.law.bounds(Bounds::known(2, 50));
            service.state = state;
            for _ in 0..2_000 {
                prop_assert!((2..=50).contains(&service.limit()), "{} after {:?}", service.limit(), service.state);
                service.run(1, knee, never);
            }
            prop_assert!(service.state.limit.is_finite() && service.state.base.is_finite());
        }
    }
}

/// No number of places, latency or count takes it out of finite numbers.
#[test]
fn the_longest_work_and_the_most_inside_leave_numbers() {
    let law = HillClimb::default();
    let mut state = law.start(Tick::EPOCH);
    for (number, held) in
        [Duration::MAX, Duration::ZERO, Duration::from_secs(1)].into_iter().cycle().take(900).enumerate()
    {
        let sample = Sample {
            at: Tick::from_secs(number as u64),
            latency: held,
            held,
            in_flight: u64::MAX,
            places: u64::MAX,
            time_left: Some(held),
            outcome: Outcome::Success,
        };
        law.learn(&mut state, &sample);
        assert_eq!(read(&form(&state)), Ok(state));
    }
    assert_eq!(law.limit(&state), Bounds::MOST);
}
