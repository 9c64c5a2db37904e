//! Strangers may send tickets: any text and bytes are refused. A ticket sealed with a key of the deployment may be of
//! another version, so its content is fuzzed too: it is refused or read, encodes to the same bytes, and its charges
//! settle, whatever they contain.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use tidegate::clock::ManualClock;
use tidegate::gate::Part;
use tidegate::gate::ticket::{Ticket, TicketKeys};
use tidegate::policy::PolicySet;
use tidegate::{Gate, Outcome, Tick};

fuzz_target!(|input: (u64, u64, bool, &[u8])| {
    let (now, used, fails, bytes) = input;
    let (keys, now) = (TicketKeys::new([7; 32]), Tick::from_nanos(now));
    if let Ok(ticket) = std::str::from_utf8(bytes).unwrap_or_default().parse::<Ticket>() {
        assert_eq!(ticket.to_string().parse(), Ok(ticket));
    }
    if let Ok(ticket) = Ticket::from_bytes(bytes) {
        assert!(keys.open(&ticket, now).is_err(), "nobody has sealed this");
    }
    let Ok(open) =
        keys.seal_bytes(bytes).map_err(drop).and_then(|ticket| keys.open(&ticket, now).map_err(drop))
    else {
        return;
    };
    let Ok(set) = PolicySet::new(Vec::new()) else { return };
    let clock = ManualClock::at(now);
    let gate = Gate::in_memory(set, 100)
        .expect("room for few keys")
        .with_clock(clock.clone())
        .with_issuer(open.issuer());
    let outcome = if fails { Outcome::CallersFault } else { Outcome::Success };
    for _ in 0..3 {
        // The ticket is of another store, and so is not settled; its charges by themselves are.
        assert!(gate.tickets().settle(&open, Part::All, outcome, |_| Some(used)).now().is_err());
        let _ = gate.finish(open.charged(), Part::All, outcome, |_| Some(used)).now();
        clock.advance(Duration::from_secs(1));
    }
});
