//! A caller settles decisions, own and others', once, twice and concurrently, with tickets that are cut, forged or
//! kept too long; a file has hundreds of policies.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;

use serde_json::{Value, json};
use tidegate_testkit::free_port;

use crate::attack::grpc::{call_of, passes};
use crate::attack::proxy::Proxy;
use crate::attack::raw::{Answer, JSON, ask, connect};
use crate::attack::rounds;
use crate::attack::seed::Seed;
use crate::attack::serving::{Desk, Serving, ended, words as text_of};
use crate::attack::waiting::{PATIENCE, within};

/// Units return once a day, so that the numbers do not depend on the machine's speed.
const FILE: &str = "version: 1
policies:
  - name: login
    match: { path: /login }
    by: [client.ip, request.header.authorization]
    limit: { algorithm: sliding-log, rate: 3/h }
    charge: on-failure
  - name: stays
    by: [client.ip]
    limit: { rate: 1/day, burst: 1000 }
  - name: export
    match: { path: /export }
    by: [client.ip]
    cost: 10
    limit: { rate: 1/day, burst: 500 }
";

fn post(addr: SocketAddr, path: &str, body: &Value) -> Answer {
    ask(addr, "POST", path, &[JSON], body.to_string().as_bytes())
}

fn check(addr: SocketAddr, ip: &str, path: &str) -> Answer {
    let attributes =
        json!({ "client.ip": ip, "request.path": path, "request.header.authorization": "Basic c2VjcmV0" });
    post(addr, "/v1/check", &json!({ "attributes": attributes, "ticket": true }))
}

fn ticket_of(answer: &Answer) -> String {
    answer.json()["ticket"].as_str().unwrap_or_else(|| panic!("no ticket: {answer:?}")).to_owned()
}

fn report(addr: SocketAddr, ticket: &str, status: u16) -> Answer {
    post(addr, "/v1/settle", &json!({ "ticket": ticket, "status": status }))
}

fn refund(addr: SocketAddr, ticket: &str) -> Answer {
    post(addr, "/v1/settle", &json!({ "ticket": ticket, "refund": "all" }))
}

fn settle(addr: SocketAddr, ticket: &str, cost: u64) -> Answer {
    post(addr, "/v1/settle", &json!({ "ticket": ticket, "cost": cost }))
}

/// Returns what each policy has left for an address, at a path that all policies except `login` match.
fn left(serving: &Serving, ip: &str, path: &str) -> HashMap<String, u64> {
    let body = json!({ "attributes": { "client.ip": ip, "request.path": path } });
    let answer = post(serving.addr, "/v1/peek", &body).json();
    let parts = answer["policies"].as_array().unwrap().iter();
    parts
        .map(|part| (part["name"].as_str().unwrap().to_owned(), part["remaining"].as_u64().unwrap()))
        .collect()
}

/// Runs a function on several threads at once. Returns all results.
fn at_once<T: Send>(threads: usize, run: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let (run, start) = (&run, &std::sync::Barrier::new(threads));
    std::thread::scope(|scope| {
        let each = (0..threads).map(|thread| {
            scope.spawn(move || {
                start.wait();
                run(thread)
            })
        });
        let each: Vec<_> = each.collect();
        each.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

#[test]
fn forty_logins_at_once_do_not_pass_three_failures_an_hour() {
    let desk = Desk::with(FILE);
    let mut serving = desk.serve(&[]);
    let addr = serving.addr;
    for round in 0..rounds(2, 50) {
        let ip = format!("192.0.2.{round}");
        let answers = at_once(40, |_| {
            let answer = check(addr, &ip, "/login");
            (answer.status == 200).then(|| (report(addr, &ticket_of(&answer), 401), answer))
        });
        let passed: Vec<_> = answers.into_iter().flatten().collect();
        assert_eq!(passed.len(), 3, "round {round}");
        for (reported, answer) in passed {
            let told = reported.json();
            assert_eq!(told["policies"].as_array().map(Vec::len), Some(1), "{told}");
            let part = &told["policies"][0];
            assert_eq!(
                (&part["name"], &part["charged"], &part["effect"]),
                (&json!("login"), &json!(1), &json!("kept"))
            );
            assert_eq!(answer.json()["policies"][0]["awaits_report"], true);
        }
        // No further request passes, whatever is reported again about those that passed.
        assert_eq!(check(addr, &ip, "/login").status, 429);
    }
    serving.is_well();
}

#[test]
fn a_success_forgets_and_our_own_fault_gives_the_place_back() {
    let desk = Desk::with(FILE);
    let serving = desk.serve(&[]);
    let addr = serving.addr;
    let ids: Vec<_> = (0..3).map(|_| ticket_of(&check(addr, "192.0.2.1", "/login"))).collect();
    assert_eq!(check(addr, "192.0.2.1", "/login").status, 429);
    assert_eq!(report(addr, &ids[0], 500).json()["policies"][0]["effect"], "returned");
    let again = ticket_of(&check(addr, "192.0.2.1", "/login"));
    assert_eq!(check(addr, "192.0.2.1", "/login").status, 429);
    assert_eq!(report(addr, &again, 302).json()["policies"][0]["effect"], "forgotten");
    // The two attempts under way at the time of forgetting fail after all, and are charged.
    assert_eq!(report(addr, &ids[1], 401).status, 200);
    assert_eq!(report(addr, &ids[2], 401).status, 200);
    assert_eq!(check(addr, "192.0.2.1", "/login").status, 200);
    assert_eq!(check(addr, "192.0.2.1", "/login").status, 429);
    // A report that changes nothing is answered with a note.
    let other = ticket_of(&check(addr, "192.0.2.1", "/free"));
    let told = report(addr, &other, 401).json();
    assert!(told["note"].as_str().unwrap().contains("changes no limit"), "{told}");
}

#[test]
fn fifty_refunds_of_one_decision_give_back_once() {
    let desk = Desk::with(FILE);
    let serving = desk.serve(&[]);
    let addr = serving.addr;
    for round in 0..rounds(2, 50) {
        let ip = format!("198.51.100.{round}");
        let id = ticket_of(&check(addr, &ip, "/export"));
        assert_eq!(check(addr, &ip, "/export").status, 200);
        let answers =
            at_once(50, |thread| if thread % 2 == 0 { refund(addr, &id) } else { report(addr, &id, 503) });
        assert_eq!(answers.iter().filter(|answer| answer.status == 200).count(), 2, "one of each kind");
        assert!(answers.iter().all(|answer| matches!(answer.status, 200 | 409)));
        let left = left(&serving, &ip, "/export");
        assert_eq!((left["stays"], left["export"]), (999, 490), "each limit its own");
    }
}

#[test]
fn after_a_reload_only_what_was_charged_is_settled() {
    let desk = Desk::with(FILE);
    let serving = desk.serve(&[]);
    let addr = serving.addr;
    let exported = ticket_of(&check(addr, "192.0.2.1", "/export"));
    let attempt = ticket_of(&check(addr, "192.0.2.1", "/login"));
    let changed = FILE.replace("burst: 500", "burst: 600").replace("3/h", "2/h")
        + "  - { name: comes, by: [client.ip], limit: { rate: 1/day, burst: 700 } }\n";
    std::fs::write(desk.path("p.yaml"), changed).unwrap();
    assert_eq!(serving.ask("POST", "/v1/reload", &[], "").status, 200);
    assert_eq!(check(addr, "192.0.2.1", "/export").status, 200);
    let before = left(&serving, "192.0.2.1", "/export");
    let told = refund(addr, &exported).json();
    let parts: Vec<_> = told["policies"].as_array().unwrap().iter().collect();
    let returned = |at: usize| (&parts[at]["name"], &parts[at]["charged"], &parts[at]["returned"]);
    assert_eq!(parts.len(), 2, "{told}");
    assert_eq!(returned(0), (&json!("stays"), &json!(1), &json!(1)));
    assert_eq!(returned(1), (&json!("export"), &json!(10), &json!(0)));
    let after = left(&serving, "192.0.2.1", "/export");
    assert_eq!(
        (after["stays"], after["export"], after["comes"]),
        (before["stays"] + 1, before["export"], 699)
    );
    // The attempt is found under the limit it was made under; its success forgets failures under the limit in force.
    assert_eq!(report(addr, &attempt, 200).json()["policies"][0]["effect"], "forgotten");
}

/// Texts that are not, or no longer, tickets of this server get a clear answer and change no limit.
#[test]
fn tickets_that_are_forged_foreign_or_cut_settle_nothing() {
    let (desk, elsewhere) = (Desk::with(FILE), Desk::with(FILE));
    let (mut serving, other) = (desk.serve(&[]), elsewhere.serve(&[]));
    let addr = serving.addr;
    let ticket = ticket_of(&check(addr, "192.0.2.1", "/export"));
    let mut seed = Seed::printed("forged tickets");
    let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let foreign = ticket_of(&check(other.addr, "192.0.2.1", "/export"));
    let mut forged = vec![foreign, "0".repeat(26), "A".repeat(400), ticket.repeat(2)];
    // Tickets cut at every place, and tickets with a few changed letters.
    forged.extend((1..ticket.len()).map(|end| ticket[..end].to_owned()));
    for _ in 0..rounds(300, 20_000) {
        let mut bytes = ticket.clone().into_bytes();
        for _ in 0..=seed.below(3) {
            let at = seed.below(bytes.len());
            bytes[at] = *seed.one_of(letters);
        }
        let one = String::from_utf8(bytes).unwrap();
        // The last letter has unused bits, so another letter there may spell the same ticket.
        if one[..one.len() - 1] != ticket[..ticket.len() - 1] {
            forged.push(one);
        }
    }
    for odd in ["", "x", "é", "../../v1/settle", "AQ==", "\u{0}", "{}", " "] {
        forged.push(odd.to_owned());
    }
    forged.push("B".repeat(60_000));
    for one in &forged {
        for answer in [refund(addr, one), report(addr, one, 401), settle(addr, one, 0)] {
            assert_eq!(answer.status, 400, "{one:.60}: {answer:?}");
            let detail = answer.json()["detail"].as_str().unwrap().to_owned();
            assert!(detail.contains("ticket"), "{one:.60}: {detail}");
        }
    }
    for status in ["0", "99", "600", "-1", "401.5", "\"401\"", "null", "1e3", "18446744073709551616", "[401]"]
    {
        let body = format!("{{\"ticket\":\"{ticket}\",\"status\":{status}}}");
        assert_eq!(serving.ask("POST", "/v1/settle", &[JSON], &body).status, 400, "{status}");
    }
    for cost in ["0", "-1", "11", "1.5", "\"1\"", "18446744073709551615"] {
        let body = format!("{{\"ticket\":\"{ticket}\",\"refund\":{cost}}}");
        assert_eq!(serving.ask("POST", "/v1/settle", &[JSON], &body).status, 400, "{cost}");
    }
    for told in
        ["\"cost\":-1", "\"cost\":18446744073709551615", "\"attributes\":{\"nobody.asks\":1}", "\"x\":1"]
    {
        let body = format!("{{\"ticket\":\"{ticket}\",{told}}}");
        assert_eq!(serving.ask("POST", "/v1/settle", &[JSON], &body).status, 400, "{told}");
    }
    // None of these has changed the decision itself.
    assert_eq!(left(&serving, "192.0.2.1", "/export")["export"], 490);
    assert_eq!(refund(addr, &ticket).status, 200);
    assert_eq!(left(&serving, "192.0.2.1", "/export")["export"], 500);
    serving.is_well();
}

/// A ticket settled forty times at once, in three ways, returns its charge once.
#[test]
fn a_ticket_replayed_in_parallel_settles_once() {
    let desk = Desk::with(FILE);
    let mut serving = desk.serve(&[]);
    let addr = serving.addr;
    for round in 0..rounds(3, 50) {
        let ip = format!("203.0.113.{round}");
        let ticket = ticket_of(&check(addr, &ip, "/export"));
        assert_eq!(check(addr, &ip, "/export").status, 200);
        let answers = at_once(40, |thread| match thread % 3 {
            0 => settle(addr, &ticket, 0),
            1 => refund(addr, &ticket),
            _ => post(addr, "/v1/settle", &json!({ "ticket": ticket, "outcome": "undone" })),
        });
        assert_eq!(answers.iter().filter(|answer| answer.status == 200).count(), 1, "round {round}");
        assert!(answers.iter().all(|answer| matches!(answer.status, 200 | 409)), "round {round}");
        let left = left(&serving, &ip, "/export");
        assert!((998..=999).contains(&left["stays"]) && (480..=490).contains(&left["export"]), "{left:?}");
    }
    serving.is_well();
}

/// An hour after it could be settled, a ticket is invalid on every server.
#[test]
fn an_expired_ticket_settles_nothing() {
    let desk = Desk::with(&format!("{FILE}tickets: {{ ttl: 1ms }}\n"));
    let serving = desk.serve(&[]);
    let addr = serving.addr;
    let ticket = ticket_of(&check(addr, "192.0.2.1", "/export"));
    let mut answer = refund(addr, &ticket);
    if answer.status == 200 {
        // On a fast machine the other ticket's millisecond is over by now.
        let late = ticket_of(&check(addr, "192.0.2.1", "/export"));
        within(PATIENCE, "a millisecond", || {
            answer = report(addr, &late, 200);
            answer.status == 410
        });
    }
    assert_eq!(answer.status, 410, "{answer:?}");
    assert!(answer.json()["detail"].as_str().unwrap().starts_with("this ticket expired "), "{answer:?}");
}

/// Two servers with one key read each other's tickets. Their counters are separate, so each names the issuer of a
/// foreign ticket and credits nothing. A restarted server has forgotten earlier charges, and says so.
#[test]
fn servers_that_share_a_key_send_a_ticket_to_its_issuer() {
    let file = format!("{FILE}tickets: {{ key_file: keys, name: NAME }}\n");
    let (one, two) = (Desk::with(&file.replace("NAME", "one")), Desk::with(&file.replace("NAME", "two")));
    let (current, older) = ("5a".repeat(32), "6b".repeat(32));
    std::fs::write(one.path("keys"), format!("{current}\n{older}\n")).unwrap();
    // The other server still seals with the older key, as during a change of keys.
    std::fs::write(two.path("keys"), format!("{older}\n{current}\n")).unwrap();
    let (first, second) = (one.serve(&[]), two.serve(&[]));
    for (from, to, name) in [(&first, &second, "one"), (&second, &first, "two")] {
        let ticket = ticket_of(&check(from.addr, "192.0.2.1", "/export"));
        check(to.addr, "192.0.2.1", "/export");
        for answer in [refund(to.addr, &ticket), report(to.addr, &ticket, 200), settle(to.addr, &ticket, 0)] {
            assert_eq!((answer.status, &answer.json()["issuer"]), (421, &json!(name)), "{answer:?}");
        }
        assert_eq!(left(to, "192.0.2.1", "/export")["export"], 490, "{name}: nothing was credited");
        assert_eq!(refund(from.addr, &ticket).status, 200, "{name}");
    }
    let ticket = ticket_of(&check(first.addr, "192.0.2.1", "/export"));
    drop(first);
    let again = one.serve(&[]);
    check(again.addr, "192.0.2.1", "/export");
    let answer = refund(again.addr, &ticket);
    assert_eq!(answer.status, 421, "{answer:?}");
    assert!(
        answer.json()["detail"].as_str().unwrap().contains("if that has not restarted since"),
        "{answer:?}"
    );
    assert_eq!(left(&again, "192.0.2.1", "/export")["export"], 490);
}

/// An invalid key must not be treated as a missing one: the server would make tickets that no other can settle.
#[test]
fn a_key_that_is_none_is_refused_and_not_printed() {
    let desk = Desk::with(FILE);
    for (key, words) in [
        ("", "there is no ticket key"),
        ("hunter2", "line 1 is not a ticket key"),
        (&"zz".repeat(32), "line 1 is not a ticket key"),
    ] {
        let mut command = desk.command(&["serve", "--http", "127.0.0.1:0", "-c", "p.yaml"]);
        command.env("TIDEGATE_TICKET_KEY", key);
        let output = ended(command);
        assert_eq!(output.status.code(), Some(2), "{key}");
        let said = text_of(&output);
        assert!(said.contains(words) && !said.contains("hunter2") && !said.contains("zzzz"), "{said}");
    }
}

/// A flood of other decisions does not displace an attempt under way: neither is kept in memory.
#[test]
fn a_flood_does_not_wash_out_an_attempt() {
    let desk = Desk::with(FILE);
    let serving = desk.serve(&[]);
    let addr = serving.addr;
    let attempt = ticket_of(&check(addr, "192.0.2.1", "/login"));
    let batch: Vec<_> = (0..1000)
        .map(|_| json!({ "attributes": { "client.ip": "192.0.2.9", "request.path": "/" } }))
        .collect();
    for _ in 0..70 {
        assert_eq!(post(addr, "/v1/check/batch", &json!(batch)).status, 200);
    }
    assert_eq!(report(addr, &attempt, 500).json()["policies"][0]["effect"], "returned");
}

/// The head for ninety matching policies must stay below 4 KiB: nginx would answer 500 to all.
#[test]
fn hundreds_of_matching_policies_are_no_error_behind_a_proxy() {
    for form in ["draft-11", "draft-03", "x-ratelimit", "none"] {
        let many: String = (0..rounds(100, 400))
            .map(|at| {
                let name = format!("{at:03}-{}", "long".repeat(27));
                let rate = if at == 57 { 2 } else { 1000 + at };
                format!("  - {{ name: {name}, by: [client.ip], limit: {{ rate: {rate}/day }} }}\n")
            })
            .collect();
        let file = format!(
            "version: 1\nclient_ip: {{ trusted_proxies: [127.0.0.0/8] }}\ndefaults: {{ headers: {form} }}\npolicies:\n{many}"
        );
        let desk = Desk::with(&file);
        let serving = desk.serve(&["--forward-auth", "nginx"]);
        let direct = check(serving.addr, "203.0.113.1", "/api/thing");
        assert!(direct.head_bytes() < 3 * 1024, "{form}: {} bytes", direct.head_bytes());
        if form == "draft-11" {
            let list = direct.header("ratelimit").unwrap();
            assert!(list.starts_with("\"057-"), "the binding policy comes first: {list}");
        }
        if form.starts_with("draft") {
            assert!(direct.header("x-tidegate-policies-left-out").is_some_and(|left| left != "0"));
        }
        if let Some(nginx) = Proxy::nginx(serving.addr) {
            let statuses: Vec<_> =
                (0..4).map(|_| ask(nginx.addr, "GET", "/api/thing", &[], b"").status).collect();
            assert_eq!(statuses, [200, 200, 429, 429], "{form}: two a day, and never a 500");
        }
        let serving = desk.serve(&["--forward-auth", "caddy"]);
        if let Some(caddy) = Proxy::caddy(serving.addr) {
            let answer = ask(caddy.addr, "GET", "/api/thing", &[("host", "example.org")], b"");
            assert_eq!(answer.status, 200, "{form}: {answer:?}");
        }
    }
}

/// Formerly each of these was charged 1 of the limit, so whoever sent no number paid least.
#[test]
fn a_cost_that_is_left_out_or_is_no_number_buys_nothing() {
    let desk = Desk::with(
        "version: 1
client_ip: { trusted_proxies: [127.0.0.0/8] }
forward_auth: { proxy: nginx }
policies:
  - name: calls
    match: { attributes: { rls.domain: d } }
    by: [a]
    cost: 2 * llm.n
    limit: { rate: 1/day, burst: 2000 }
  - name: sum
    match: { path: /sum }
    by: [client.ip]
    cost: llm.prompt_tokens + llm.max_tokens
    limit: { rate: 1/day, burst: 2000 }
  - name: header
    match: { path: /header }
    by: [client.ip]
    cost: int(request.header.x-cost)
    limit: { rate: 1/day, burst: 2000 }
",
    );
    let resp = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let (mut serving, grpc) = crate::attack::grpc::serve(&desk, &["--resp", &resp.to_string()]);
    let doors = (resp, grpc);
    let check = |path: &str, more: &[(&str, &str)]| {
        let mut attributes = json!({ "client.ip": "192.0.2.1", "request.path": path });
        for (name, value) in more {
            attributes[*name] = json!(value);
        }
        post(serving.addr, "/v1/check", &json!({ "attributes": attributes })).status
    };
    for bad in ["", "many", "-5", " 5", "0x5", "NaN", "5 000", "\u{661}"] {
        assert_eq!(check("/header", &[("request.header.x-cost", bad)]), 429, "{bad:?}");
        assert_eq!(check("/sum", &[("llm.prompt_tokens", "1"), ("llm.max_tokens", bad)]), 429, "{bad:?}");
    }
    assert_eq!((check("/header", &[]), check("/sum", &[("llm.prompt_tokens", "1")])), (429, 429));
    serving.hears("the cost of requests cannot be worked out");
    // Every door refuses what costs nobody knows what, and takes nothing.
    let (resp, grpc) = doors;
    let forwarded = |cost: &[(&str, &str)]| {
        let of_proxy = [
            ("x-original-method", "GET"),
            ("x-original-uri", "/header"),
            ("x-original-host", "a.example"),
            ("x-forwarded-for", "192.0.2.1"),
        ];
        ask(serving.addr, "GET", "/v1/forward-auth", &[&of_proxy, cost].concat(), b"")
    };
    for cost in [&[][..], &[("x-cost", "many")], &[("x-cost", "-1")]] {
        let refused = forwarded(cost);
        assert_eq!(refused.status, 403, "{refused:?}");
        assert!(refused.body.contains("cannot work out what this request costs"), "{refused:?}");
    }
    for more in ["", " request.header.x-cost many", " request.header.x-cost -1 COST 1"] {
        let mut redis = connect(resp);
        let command = format!("TG.CHECK header request.path /header client.ip 192.0.2.1{more}\r\nQUIT\r\n");
        redis.write_all(command.as_bytes()).unwrap();
        let mut said = String::new();
        redis.read_to_string(&mut said).unwrap();
        assert!(said.starts_with("*8\r\n:0\r\n$6\r\nheader\r\n:2000\r\n:-2\r\n"), "{said:?}");
    }
    for (cost, is_served) in [("", false), ("many", false), ("-1", false), ("1000", true), ("1", false)] {
        assert_eq!(passes(grpc, &call_of(&[("a", "b"), ("llm.n", cost)])), is_served, "{cost:?}");
    }
    assert!(!passes(grpc, &call_of(&[("a", "c")])));
    // None of them took anything, and the numbers are added.
    let sum = [("llm.prompt_tokens", "1400"), ("llm.max_tokens", "500")];
    assert_eq!([0; 4].map(|_| check("/sum", &sum)), [200, 429, 429, 429]);
    assert_eq!([0; 2].map(|_| check("/header", &[("request.header.x-cost", "1900")])), [200, 429]);
    serving.is_well();
}
