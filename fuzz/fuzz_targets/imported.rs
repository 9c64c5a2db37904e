//! Any text is a valid file of another rate limiter or gives errors, and the policy file written for it can be used.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::Gate;
use tidegate::config::{Config, Format, Imported, Peer};
use tidegate::policy::Descriptor;

fuzz_target!(|input: (bool, &str)| {
    let peer = if input.0 { Peer::Envoy } else { Peer::Limitador };
    let Ok(imported) = Imported::of(&[(peer, "fuzz", input.1)]) else { return };
    let (again, _) = Config::parse(&imported.text, "fuzz", Format::Yaml).expect("it was validated");
    assert_eq!(again.policies.len(), imported.config.policies.len());
    let gate = Gate::in_memory(again.policies, 16).expect("room for few keys");
    let request = Descriptor::new().with("rls.domain", "d").with("rls.keys", "a").with("a", input.1);
    let _ = gate.check(&request).now();
});
