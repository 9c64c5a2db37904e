//! Encrypted doors on the command line: flags, checks, and asking a server at https://.

use crate::verbs::Desk;
use crate::verbs::made::{Authority, Folder};
use crate::verbs::serve::Serving;

const NONE: &str = "version: 1\npolicies: []\n";

#[test]
fn a_certificate_and_its_key_go_together() {
    let desk = Desk::new();
    desk.write("p.yaml", NONE);
    let folder = Folder::new();
    let check = |more: &[&str]| desk.run(&[&["serve", "-c", "p.yaml", "--check"], more].concat());
    let [cert, key, ca] = ["server.pem", "server.key", "ca.pem"].map(|name| folder.name(name));
    check(&["--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &ca]).code(0);
    for (words, told) in [
        (&["--tls-cert", &cert][..], "--tls-key is missing"),
        (&["--tls-key", &key], "--tls-cert is missing"),
        (&["--tls-client-ca", &ca], "--tls-cert is missing"),
        (
            &["--tls-cert", &cert, "--tls-key", &key, "--tls-plain", "https"],
            "`https` is not a door; write http, admin, grpc or resp",
        ),
        (&["--tls-cert", &key, "--tls-key", &key], "holds no certificate in PEM"),
        (
            &["--tls-cert", &cert, "--tls-key", &folder.name("caller.key")],
            "is not that of the first certificate in",
        ),
    ] {
        let refused = check(words).code(2);
        assert!(refused.err.contains(told), "{words:?}: {refused:?}");
    }
    let missing = check(&["--tls-cert", "none.pem", "--tls-key", &key]).code(1);
    assert!(missing.err.contains("the certificate's file none.pem cannot be read"), "{missing:?}");
    let words =
        ["serve", "--http", "127.0.0.1:0", "--tls-cert", &cert, "--tls-key", &key, "--tls-plain", "admin"];
    let refused = desk.run(&words).code(2);
    assert!(refused.err.contains("names admin, which has no address of its own"), "{refused:?}");
}

#[test]
fn the_file_names_them_too_and_a_flag_wins() {
    let desk = Desk::new();
    let folder = Folder::new();
    let text = format!(
        "version: 1\nserver: {{ tls: {{ cert_file: '{}', key_file: '{}' }} }}\npolicies: []\n",
        folder.name("server.pem"),
        folder.name("caller.key")
    );
    desk.write("p.yaml", text);
    desk.run(&["config", "check", "p.yaml"]).code(0);
    desk.run(&["serve", "-c", "p.yaml", "--check"]).code(2);
    desk.run(&["serve", "-c", "p.yaml", "--check", "--tls-key", &folder.name("server.key")]).code(0);
    let shown = desk.run(&["config", "show", "-c", "p.yaml"]).code(0);
    assert!(shown.out.contains("caller.key") && !shown.out.contains("PRIVATE"), "{shown:?}");
}

#[test]
fn a_server_at_https_is_asked_by_who_knows_it() {
    let (desk, folder) = (Desk::new(), Folder::new());
    desk.write("p.yaml", NONE);
    let [cert, key, ca] = ["server.pem", "server.key", "ca.pem"].map(|name| folder.name(name));
    let [shown, its_key] = ["caller.pem", "caller.key"].map(|name| folder.name(name));
    let flags = ["-c", "p.yaml", "--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &ca];
    let serving = Serving::start(&desk, &flags);
    let url = serving.url().to_owned();
    assert!(url.starts_with("https://127.0.0.1:"), "{url}");
    let ready = |more: &[&str]| desk.run(&[&["ready", "--server", &url], more].concat());
    let known = ["--ca", &ca, "--client-cert", &shown, "--client-key", &its_key];
    assert_eq!(ready(&known).code(0).out, "ready\n");
    desk.run(&[&["explain", "--server", &url, "--attr", "client.ip=203.0.113.9"], &known[..]].concat())
        .code(0);
    let nothing = ready(&[]).code(2);
    assert!(
        nothing
            .err
            .contains("cannot be checked without --ca FILE (TIDEGATE_CA); name a file with that certificate"),
        "{nothing:?}"
    );
    let nameless = ready(&["--ca", &ca]).code(1);
    assert!(nameless.err.contains("--client-cert"), "{nameless:?}");
    folder.write("other.pem", Authority::new().pem());
    let unknown = ready(&["--ca", &folder.name("other.pem")]).code(1);
    assert!(unknown.err.contains("the TLS handshake failed"), "{unknown:?}");
    let half = ready(&["--ca", &ca, "--client-cert", &shown]).code(2);
    assert!(half.err.contains("go together"), "{half:?}");
    let plain = ready(&["--ca", &its_key]).code(2);
    assert!(plain.err.contains("holds no certificate in PEM"), "{plain:?}");
    let http = desk.run(&["ready", "--server", &url.replace("https", "http")]).code(1);
    assert!(http.err.contains("400"), "{http:?}");
    assert_eq!(serving.stop(), Some(0));
}

#[test]
fn load_is_put_on_every_encrypted_door() {
    let (desk, folder) = (Desk::new(), Folder::new());
    desk.write("p.yaml", "version: 1\npolicies:\n  - { name: all, limit: { rate: 1000000/s } }\n");
    let [cert, key, ca] = ["server.pem", "server.key", "ca.pem"].map(|name| folder.name(name));
    let [shown, its_key] = ["caller.pem", "caller.key"].map(|name| folder.name(name));
    let flags = ["-c", "p.yaml", "--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &ca];
    let doors = ["--resp", "127.0.0.1:0", "--grpc", "127.0.0.1:0"];
    let serving = Serving::start(&desk, &[&flags[..], &doors].concat());
    let http = serving.url().to_owned();
    let after = |said: String, words: &str| {
        let rest = said.split(words).nth(1).unwrap();
        rest.split([' ', '\n']).next().unwrap().trim_end_matches(':').to_owned()
    };
    let grpc = format!("grpcs://{}", after(serving.hears("over gRPC on "), "over gRPC on "));
    let resp = format!("rediss://{}", after(serving.hears("Redis clients on "), "Redis clients on "));
    folder.write("other.pem", Authority::new().pem());
    let other = folder.name("other.pem");
    let bench = |url: &str, more: &[&str]| desk.run(&[&["bench", url, "-z", "1s", "-c", "2"], more].concat());
    let known = ["--ca", &ca, "--client-cert", &shown, "--client-key", &its_key];
    for url in [&http, &grpc, &resp] {
        let told = bench(url, &[&known[..], &["-o", "json", "--max-failed", "0"]].concat()).code(0).json();
        assert!(told["allowed"].as_u64().unwrap() > 0, "{told:#}");
        let refused = bench(url, &[]).code(2);
        assert!(refused.err.contains("--ca FILE"), "{refused:?}");
        let stranger = bench(url, &["--ca", &other]).code(1);
        assert!(stranger.err.contains("the TLS handshake failed"), "{stranger:?}");
    }
    let plain = bench(&http.replace("https://", "http://"), &["--max-failed", "0"]);
    assert_ne!(plain.code, 0, "{plain:?}");
    assert_eq!(serving.stop(), Some(0));
}
