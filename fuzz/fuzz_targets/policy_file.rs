//! Any text is a valid policy file or gives errors, and an accepted file can be used.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::Gate;
use tidegate::config::{Config, Format};
use tidegate::policy::Descriptor;

fuzz_target!(|input: (bool, &str)| {
    let format = if input.0 { Format::Yaml } else { Format::Toml };
    if let Ok((config, _)) = Config::parse(input.1, "fuzz", format) {
        let gate = Gate::in_memory(config.policies, 16).expect("room for few keys");
        let request = Descriptor::new()
            .with("client.ip", "203.0.113.9")
            .with("request.method", "GET")
            .with("request.path", input.1)
            .with("request.host", input.1);
        let _ = gate.check(&request).now();
        let _ = gate.explain(&request).now();
    }
});
