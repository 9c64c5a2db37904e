//! Runs the fuzz targets on the stable compiler: their unchanged files, with their seeds and a few more inputs.
//!
//! The targets belong to another workspace, which needs a nightly compiler and libFuzzer, so nothing else builds
//! them. Here the macro that makes a target a program makes it a function instead, with the same argument from the
//! same bytes.

use std::collections::BTreeSet;
use std::path::Path;

/// Declares the targets, and lists their names.
macro_rules! targets {
    ($($name:ident $path:literal),* $(,)?) => {
        $(
            #[allow(unused_attributes, reason = "the file is a program without a main function")]
            #[path = $path]
            mod $name;
        )*

        const TARGETS: &[(&str, fn(&[u8]))] = &[$((stringify!($name), $name::run)),*];
    };
}

targets! {
    access_log "../../../../fuzz/fuzz_targets/access_log.rs",
    cell "../../../../fuzz/fuzz_targets/cell.rs",
    export "../../../../fuzz/fuzz_targets/export.rs",
    forward_auth "../../../../fuzz/fuzz_targets/forward_auth.rs",
    http_api "../../../../fuzz/fuzz_targets/http_api.rs",
    imported "../../../../fuzz/fuzz_targets/imported.rs",
    limitador "../../../../fuzz/fuzz_targets/limitador.rs",
    matching "../../../../fuzz/fuzz_targets/matching.rs",
    policy_file "../../../../fuzz/fuzz_targets/policy_file.rs",
    quota "../../../../fuzz/fuzz_targets/quota.rs",
    rate_limit "../../../../fuzz/fuzz_targets/rate_limit.rs",
    resp_command "../../../../fuzz/fuzz_targets/resp_command.rs",
    resp_session "../../../../fuzz/fuzz_targets/resp_session.rs",
    signals "../../../../fuzz/fuzz_targets/signals.rs",
    ticket "../../../../fuzz/fuzz_targets/ticket.rs",
    trace "../../../../fuzz/fuzz_targets/trace.rs",
}

/// Replaces `libfuzzer_sys::fuzz_target`. It is defined after the targets, so that they use it by that path, as
/// elsewhere.
#[macro_export]
macro_rules! fuzz_target {
    (|$input:ident: $kind:ty| $body:expr) => {
        pub(crate) fn run(bytes: &[u8]) {
            let bytes = arbitrary::Unstructured::new(bytes);
            let Ok($input) = <$kind as arbitrary::Arbitrary<'_>>::arbitrary_take_rest(bytes) else { return };
            $body;
        }
    };
}

/// Returns the names of the files in a folder of `fuzz/`, without extensions; empty if the folder does not exist.
fn names(folder: &str) -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz").join(folder);
    let Ok(files) = folder.read_dir() else { return BTreeSet::new() };
    let stem = |path: &Path| path.file_stem().unwrap().to_str().unwrap().to_owned();
    files.map(|file| stem(&file.unwrap().path())).collect()
}

#[test]
fn every_fuzz_target_runs_over_the_seeds_of_all_and_a_few_inputs_more() {
    let mut inputs: Vec<Vec<u8>> = vec![Vec::new(), b"\0".to_vec(), vec![0xff; 64], (0..=255).collect()];
    let mut word = 1_u64;
    for length in [9, 40, 200] {
        // Bytes without a pattern, the same in each run: xorshift.
        let mut next = || {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            word.to_le_bytes()[0]
        };
        inputs.push((0..length).map(|_| next()).collect());
    }
    for target in names("seeds") {
        for seed in names(&format!("seeds/{target}")) {
            let file = format!("{}/../../fuzz/seeds/{target}/{seed}", env!("CARGO_MANIFEST_DIR"));
            inputs.push(std::fs::read(file).unwrap());
        }
    }
    assert!(inputs.len() > 30, "the seeds are found");
    for (name, run) in TARGETS {
        for input in &inputs {
            let ran = std::panic::catch_unwind(|| run(input));
            assert!(ran.is_ok(), "fuzz target {name} fails with {input:?}");
        }
    }
}

#[test]
fn every_fuzz_target_is_listed() {
    let listed: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names("fuzz_targets"), listed, "a file of fuzz/fuzz_targets is in the list above");
    let manifest = include_str!("../../../../fuzz/Cargo.toml");
    for name in &listed {
        let path = format!("path = \"fuzz_targets/{name}.rs\"");
        assert!(manifest.contains(&path), "fuzz/Cargo.toml has no program {name}");
    }
    let extra: Vec<String> = names("seeds").difference(&listed).cloned().collect();
    assert!(extra.is_empty(), "seeds of no target: {extra:?}");
}
