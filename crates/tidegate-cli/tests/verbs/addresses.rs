//! The addresses of doors: how they are written, which are in use, and which need a token.

use crate::verbs::Desk;

#[test]
fn an_address_that_is_no_address_is_told_how_to_write_it() {
    let desk = Desk::new();
    for (http, says) in [(":8080", "0.0.0.0:8080"), ("localhost", ""), ("web.example:80", "127.0.0.1:80")] {
        let told = desk.run(&["serve", "--check", "--http", http]).code(2);
        assert!(told.err.contains(says), "{told:?}");
    }
    // A port alone. It is in use, so that the server ends.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    for http in [port.to_string(), format!("localhost:{port}")] {
        let told = desk.run(&["serve", "--http", &http]).code(1);
        assert!(told.err.contains(&format!("127.0.0.1:{port}: another program listens there")), "{told:?}");
        assert!(told.err.contains("--http"), "{told:?}");
    }
    let taken = format!("127.0.0.1:{port}");
    for door in if cfg!(feature = "grpc") { &["--grpc", "--resp"][..] } else { &["--resp"] } {
        let told = desk.run(&["serve", "--http", "127.0.0.1:0", door, &taken]).code(1);
        assert!(told.err.contains(&format!("{taken}: another program listens there")), "{door}: {told:?}");
        assert!(told.err.contains(door), "{told:?}");
    }
}

#[cfg(unix)]
#[test]
fn a_socket_is_named_by_its_whole_path_and_takes_no_file_away() {
    let desk = Desk::new();
    let told = desk.run(&["serve", "--check", "--http", "unix:t.sock"]).code(2);
    assert!(told.err.contains("write the whole path, as unix:/run/tidegate.sock"), "{told:?}");
    let file = desk.write("file", "mine");
    let told = desk.run(&["serve", "--http", &format!("unix:{}", file.display())]).code(1);
    assert!(told.err.contains("a file that is not a socket has that name"), "{told:?}");
    assert_eq!(desk.read("file"), "mine");
    let nowhere = format!("unix:{}", desk.path("no/such").display());
    let told = desk.run(&["serve", "--http", "127.0.0.1:0", "--resp", &nowhere]).code(1);
    assert!(told.err.contains("there is no such folder"), "{told:?}");
}

#[test]
fn beyond_loopback_a_token_is_needed() {
    let desk = Desk::new();
    let doors: &[&str] = if cfg!(feature = "grpc") { &["http", "grpc", "resp"] } else { &["http", "resp"] };
    for door in doors {
        let others = if *door == "http" { "" } else { "http: '127.0.0.1:0', " };
        desk.write(
            "open.yaml",
            format!("version: 1\nserver: {{ {others}{door}: '0.0.0.0:0' }}\npolicies: []\n"),
        );
        let flag = format!("--{door}");
        let flags = ["serve", &flag, "0.0.0.0:0", "--store-path", "counters"];
        for words in [&flags[..], &["serve", "-c", "open.yaml", "--store-path", "counters"]] {
            let refused = desk.run(words).code(2);
            assert!(
                refused.err.contains("0.0.0.0:0") && refused.err.contains("TIDEGATE_TOKEN"),
                "{words:?}: {refused:?}"
            );
        }
    }
    desk.write("short", "abc\n");
    desk.run(&["serve", "--http", "0.0.0.0:0", "--token-file", "short"]).code(2);
    let gone = desk.run(&["serve", "--token-file", "gone"]).code(1);
    assert!(gone.err.contains("gone"), "{gone:?}");
}
