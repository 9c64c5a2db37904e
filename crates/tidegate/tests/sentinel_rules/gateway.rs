//! A gate built from a policy file, with a clock and machine readings that a test sets.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::clock::ManualClock;
use tidegate::concurrency::signals::Reading;
use tidegate::config::{Config, Format};
use tidegate::policy::Descriptor;
use tidegate::{Gate, Tick};

/// A gate built from a policy file, with a clock and machine readings that a test sets.
pub(crate) struct Gateway {
    pub(crate) gate: Gate,
    clock: ManualClock,
    machine: Arc<Mutex<Reading>>,
}

impl Gateway {
    pub(crate) fn of(policies: &str) -> Self {
        let text = format!("version: 1\nclient_ip: {{ trusted_proxies: [] }}\npolicies:\n{policies}");
        let (config, warnings) = Config::parse(&text, "t", Format::Yaml).unwrap();
        assert!(warnings.is_empty(), "{warnings:?}");
        let clock = ManualClock::at(Tick::from_secs(1000));
        let machine = Arc::new(Mutex::new(Reading::default()));
        let read = Arc::clone(&machine);
        let gate = Gate::in_memory(config.policies, 1000).unwrap().with_clock(clock.clone());
        Self { gate: gate.with_machine(move || *read.lock().unwrap()), clock, machine }
    }

    pub(crate) fn allows(&self, request: &[(&str, &str)]) -> bool {
        self.gate.check(&descriptor(request)).now().unwrap().allowed
    }

    /// Returns how many of `of` requests pass at the same time.
    pub(crate) fn passing(&self, of: usize, request: &[(&str, &str)]) -> usize {
        (0..of).filter(|_| self.allows(request)).count()
    }

    /// Sets the readings of the machine, in thousandths, for the next check.
    pub(crate) fn machine(&self, set: impl FnOnce(&mut Reading)) {
        set(&mut self.machine.lock().unwrap());
        self.wait(100);
    }

    pub(crate) fn wait(&self, millis: u64) {
        self.clock.advance(Duration::from_millis(millis));
    }

    pub(crate) fn why(&self, request: &[(&str, &str)], policy: usize) -> String {
        self.gate.explain(&descriptor(request)).now().unwrap().reasons[policy].why.clone()
    }
}

pub(crate) fn descriptor<'a>(request: &[(&'a str, &'a str)]) -> Descriptor<'a> {
    request.iter().fold(Descriptor::new(), |descriptor, (name, value)| descriptor.with(*name, *value))
}

pub(crate) const READ: &[(&str, &str)] = &[("resource", "read")];
pub(crate) const WRITE: &[(&str, &str)] = &[("resource", "write")];
