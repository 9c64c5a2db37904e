use super::*;

/// Values that make the same key must be counted as one key: a host with and without its port, a path in two
/// spellings, an IPv4 address written as IPv6.
#[test]
fn a_key_has_one_name_however_the_log_writes_it() {
    let lines = "time,client_ip,host,path\n\
        2026-03-02T09:00:00Z,::ffff:192.0.2.1,Example.com:443,/a/../b?x=1\n\
        2026-03-02T09:00:01Z,192.0.2.1,example.com,/b\n\
        2026-03-02T09:00:02Z,192.0.2.1,example.com.,//b\n";
    for (by, name) in [
        ("[client.ip]", "192.0.2.1"),
        ("[request.host]", "example.com"),
        ("[request.path]", "/b"),
        ("[request.host, request.path]", "example.com · /b"),
    ] {
        let outcome = log(lines, &format!("  - {{ name: p, by: {by}, limit: {{ rate: 1/day }} }}\n"));
        let [policy] = &outcome.policies[..] else { panic!() };
        assert_eq!((policy.denied, policy.keys.about(), policy.keys_hit), (2, 1, 1), "{by}");
        let worst = policy.worst.as_ref().unwrap();
        assert_eq!((&*worst.key, worst.denied, worst.total), (name, 2, 3), "{by}");
    }
}
