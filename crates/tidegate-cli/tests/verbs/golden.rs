//! Text for people, in golden files; `TRYCMD=overwrite cargo test -p tidegate-cli golden` updates them.

#[test]
fn what_people_see() {
    trycmd::TestCases::new()
        .register_bin("tidegate", std::path::Path::new(env!("CARGO_BIN_EXE_tidegate")))
        .env("TIDEGATE_LOG", "error")
        .env("COLUMNS", "100")
        .case("tests/cmd/*.trycmd");
}
