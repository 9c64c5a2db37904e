//! The RESP door, over real sockets, and with real Redis clients.

use crate::running;

mod clients;
mod connections;
mod tickets;

use std::net::SocketAddr;
use std::time::Duration;

use running::wire::exchange;
use running::{Running, start_with};

const POLICIES: &str = "
version: 1
policies:
  - name: per-user
    by: [user.id]
    limit: { rate: 3/min }
  - name: jobs
    match: { attributes: { kind: job } }
    limit: { algorithm: concurrency, max: 1, ttl: 1min }
";

/// Starts a server with a RESP door; returns its address.
async fn started() -> (Running, SocketAddr) {
    started_with(POLICIES).await
}

/// Starts a server with a RESP door and these policies; returns its address.
async fn started_with(policies: &str) -> (Running, SocketAddr) {
    let mut resp = None;
    let free = tidegate_testkit::free_address();
    let server = start_with(policies, |mut options| {
        options.resp = Some(free.into());
        resp = Some(free);
        options
    })
    .await;
    (server, resp.unwrap())
}

/// Sends lines, then `QUIT`; returns all replies.
async fn say(to: SocketAddr, lines: &str) -> String {
    exchange(to, format!("{lines}\r\nQUIT\r\n").as_bytes()).await
}

#[tokio::test]
async fn words_that_are_no_attributes_and_values_that_are_none_are_errors() {
    let (_server, resp) = started_with(
        "version: 1\npolicies:\n  - { name: all, limit: { rate: 9/min } }\n  - { name: per-ip, by: [client.ip], limit: { rate: 9/min } }\n",
    )
    .await;
    for (words, says) in [
        (
            "client.ip 1.2.3.4 request.path /x QUANTITY 3",
            "\"QUANTITY\" is not an attribute here; the option is COST",
        ),
        ("client.ip 1.2.3.4 COUNT 3", "\"COUNT\" is not an attribute here; the option is COST"),
        ("HITS 3 client.ip 1.2.3.4", "\"HITS\" is not an attribute here; the option is COST"),
        (
            "client.ip 9.9.9.9,10.0.0.1",
            "client.ip is not an address: \"9.9.9.9,10.0.0.1\"; send the last address alone",
        ),
        ("request.path http://a.example/x", "request.path is a URL: \"http://a.example/x\"; send /x"),
    ] {
        let replies = say(resp, &format!("TG.CHECK * {words}\r\n")).await;
        assert!(replies.starts_with(&format!("-ERR {says}")), "{replies}");
    }
    let replies = say(resp, "TG.RESET per-ip client.ip 9.9.9.0/24\r\n").await;
    assert!(replies.starts_with("-ERR `9.9.9.0/24` is not one address"), "{replies}");
}

#[tokio::test]
async fn a_throttle_is_answered_as_redis_cell_does() {
    let (server, resp) = started().await;
    // Sixteen at once, and thirty a minute: after sixteen, the next is refused for two seconds.
    let replies = say(resp, &"CL.THROTTLE user123 15 30 60\r\n".repeat(17)).await;
    let lines: Vec<&str> = replies.split("*5\r\n").collect();
    assert_eq!(lines[1], ":0\r\n:16\r\n:15\r\n:-1\r\n:2\r\n");
    assert_eq!(lines[16], ":0\r\n:16\r\n:0\r\n:-1\r\n:32\r\n");
    assert_eq!(lines[17], ":1\r\n:16\r\n:0\r\n:2\r\n:32\r\n+OK\r\n");
    // Seconds are rounded up, so a caller that returns then is let through.
    server.clock.advance(Duration::from_millis(1));
    assert_eq!(
        say(resp, "CL.THROTTLE user123 15 30 60").await,
        "*5\r\n:1\r\n:16\r\n:0\r\n:2\r\n:32\r\n+OK\r\n"
    );
    server.clock.advance(Duration::from_millis(1999));
    assert!(say(resp, "CL.THROTTLE user123 15 30 60").await.starts_with("*5\r\n:0\r\n"));
    // A look costs nothing, and another key has its own limit.
    assert_eq!(
        say(resp, "CL.THROTTLE user123 15 30 60 0").await,
        "*5\r\n:0\r\n:16\r\n:0\r\n:-1\r\n:32\r\n+OK\r\n"
    );
    assert_eq!(
        say(resp, "CL.THROTTLE other 15 30 60 16").await,
        "*5\r\n:0\r\n:16\r\n:0\r\n:-1\r\n:32\r\n+OK\r\n"
    );
    // Each command is decided by its own words, however similar they are to the last limit of the connection.
    let bursts = ["15", "7", "x", "7", "00007", "000000000000000000000007", "7", "15"];
    let asks: String =
        bursts.iter().zip(1..).map(|(burst, key)| format!("CL.THROTTLE {key} {burst} 30 60\r\n")).collect();
    let replies = say(resp, &asks).await;
    let limits: Vec<&str> =
        replies.split("\r\n").filter(|line| [":16", ":8"].contains(line) || line.starts_with('-')).collect();
    let wrong = "-ERR max_burst: \"x\" is not a whole number from 0 to 1152921504606846976";
    assert_eq!(limits, [":16", ":8", wrong, ":8", ":8", ":8", ":8", ":16"]);
}

/// As redis-cell. Regression: the wait of a quantity that never fits was 2^63 - 1 seconds.
#[tokio::test]
async fn no_wait_is_told_for_more_than_the_limit_ever_grants() {
    let (_server, resp) = started().await;
    let told = say(resp, "CL.THROTTLE never 1 1 60 3").await;
    assert_eq!(told, "*5\r\n:1\r\n:2\r\n:2\r\n:-1\r\n:0\r\n+OK\r\n");
}

#[tokio::test]
async fn numbers_that_are_none_are_named_and_the_connection_goes_on() {
    let (_server, resp) = started().await;
    for (line, said) in [
        ("CL.THROTTLE k 15 30", "-ERR wrong number of arguments for 'cl.throttle' command"),
        ("CL.THROTTLE k -1 30 60", "-ERR max_burst: \"-1\" is not a whole number from 0 to "),
        ("CL.THROTTLE k 1 0 60", "-ERR count: \"0\" is not a whole number from 1 to "),
        ("CL.THROTTLE k 1 1 99999999999999999999", "-ERR period: \"99999999999999999999\" is not a whole"),
        ("CL.THROTTLE k 9223372036854775807 1 1", "-ERR max_burst"),
        ("CL.THROTTLE k 1 1 1 -1", "-ERR quantity: \"-1\" is not a whole number from 0 to "),
        ("TG.CHEK * a b", "-ERR unknown command 'TG.CHEK'; did you mean TG.CHECK?"),
        ("TG.CHECK per-usr user.id 1", "-ERR there is no policy `per-usr`; did you mean \"per-user\"?"),
        ("TG.CHECK * user.id", "-ERR \"user.id\" has no value"),
        ("TG.CHECK * user.id 1 COST +1", "-ERR COST: \"+1\" is not a whole number from 1 to "),
        (
            "TG.CHECK * request.paht /login",
            "-ERR attribute \"request.paht\": no policy reads it; write request.path",
        ),
        (
            "TG.CHECK * request.header.x-a 1 request.header.X-A 2",
            "-ERR attribute \"request.header.X-A\" is given twice",
        ),
        ("TG.CHECK * user.id 1 COST 1 PEEK COST 2", "-ERR COST is given twice; send it once"),
        (
            "TG.CHECK * user.id 1 PRIORITY sheddable PRIORITY critical",
            "-ERR PRIORITY is given twice; send it once",
        ),
        ("TG.CHECK * user.id 1 COST 0", "-ERR COST: \"0\" is not a whole number from 1 to "),
        (
            "TG.CHECK * user.id 1 COST 99999999999999999999",
            "-ERR COST: \"99999999999999999999\" is not a whole",
        ),
        (
            "TG.CHECK * user.id 1 COST 18446744073709551615",
            "-ERR COST: \"18446744073709551615\" is not a whole number from 1 to ",
        ),
        // Regression: passed as attributes, so the options were ignored.
        ("TG.CHECK * user.id 1 cost 50", "-ERR \"cost\" is not an attribute here; the option is COST"),
        ("TG.CHECK * user.id 1 peek", "-ERR \"peek\" is not an attribute here; the option is PEEK"),
        ("TG.CHECK * user.id 1 PRIORITY high", "-ERR PRIORITY: \"high\" "),
        ("TG.RESET per-user user 1", "-ERR `user` is not part of the key; the key is made of `user.id`"),
        ("TG.SETTLE nonsense", "-TICKET "),
        ("SET a b", "-ERR unknown command 'SET'"),
        (&format!("CLIENT SETNAME {}", "x".repeat(257)), "-ERR the name has 257 bytes; use at most 256"),
        (&format!("HELLO 2 SETNAME {}", "x".repeat(257)), "-ERR the name has 257 bytes; use at most 256"),
        ("SELECT 1", "-ERR DB index is out of range"),
    ] {
        let replies = say(resp, &format!("{line}\r\nPING")).await;
        assert!(replies.starts_with(said) && replies.ends_with("\r\n+PONG\r\n+OK\r\n"), "{line}: {replies}");
    }
}

#[tokio::test]
async fn a_request_over_a_limit_is_told_with_three_more_parts() {
    let (_server, resp) = started_with(
        "
version: 1
policies:
  - { name: soft, by: [user], limit: { rate: 2/h }, over: mark }
  - { name: heavy, by: [user], limit: { rate: 1/h }, over: demote }
  - { name: hard, by: [user], limit: { rate: 3/h } }
",
    )
    .await;
    let ask = async || say(resp, "TG.CHECK * user ann").await;
    assert!(ask().await.starts_with("*8\r\n:1\r\n"));
    let demoted = ask().await;
    assert!(demoted.starts_with("*11\r\n:1\r\n"), "{demoted}");
    let names = "*0\r\n*1\r\n$5\r\nheavy\r\n$14\r\nsheddable-plus\r\n+OK\r\n";
    assert!(demoted.ends_with(names), "{demoted}");
    let both = ask().await;
    assert!(
        both.ends_with("*1\r\n$4\r\nsoft\r\n*1\r\n$5\r\nheavy\r\n$14\r\nsheddable-plus\r\n+OK\r\n"),
        "{both}"
    );
    let marked = say(resp, "TG.CHECK soft user ann").await;
    assert!(marked.ends_with("*1\r\n$4\r\nsoft\r\n*0\r\n$-1\r\n+OK\r\n"), "{marked}");
    let refused = ask().await;
    assert!(refused.starts_with("*8\r\n:0\r\n$4\r\nhard\r\n"), "a refused request goes nowhere: {refused}");
}

/// Many clients put these two around a pipeline by default. Regression: `MULTI` was refused, but the commands were
/// charged, and the caller saw an error.
#[tokio::test]
async fn commands_between_multi_and_exec_are_run_together_or_not_at_all() {
    let (_server, resp) = started().await;
    let ask = "CL.THROTTLE k 0 1 60";
    assert_eq!(
        say(resp, &format!("multi\r\n{ask}\r\nPING\r\nSELECT 1\r\n{ask}\r\nEXEC")).await,
        "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*4\r\n*5\r\n:0\r\n:1\r\n:0\r\n:-1\r\n:60\r\n+PONG\r\n\
         -ERR DB index is out of range; there is only database 0\r\n*5\r\n:1\r\n:1\r\n:0\r\n:60\r\n:60\r\n+OK\r\n"
    );
    let look = "CL.THROTTLE other 0 1 60 0";
    let unspent = "*5\r\n:0\r\n:1\r\n:1\r\n:-1\r\n:0\r\n+OK\r\n";
    let many = "PING\r\n".repeat(513);
    for (commands, said) in [
        ("MULTI\r\nCL.THROTTLE other 0 1 60\r\nDISCARD", "+QUEUED\r\n+OK\r\n"),
        ("MULTI\r\nCL.THROTTLE other 0 1 60\r\nSET a b\r\nEXEC", "-EXECABORT "),
        ("MULTI\r\nMULTI\r\nDISCARD", "-ERR MULTI calls can not be nested"),
        ("EXEC", "-ERR EXEC without MULTI"),
        ("DISCARD", "-ERR DISCARD without MULTI"),
        ("EXEC now", "-ERR wrong number of arguments for 'exec' command"),
        ("MULTI\r\nEXEC", "*0\r\n"),
        (
            &format!("MULTI\r\nCL.THROTTLE other 0 1 60\r\n{many}EXEC"),
            "at most 512 commands with 65536 bytes",
        ),
    ] {
        let replies = say(resp, &format!("{commands}\r\n{look}")).await;
        assert!(replies.contains(said) && replies.ends_with(unspent), "{commands:.60}: {replies}");
    }
    // More than is sent at a time, and a command after it.
    let info = say(resp, &format!("MULTI\r\n{}EXEC\r\nPING", "INFO\r\n".repeat(512))).await;
    let (queued, list) = info.split_once("*512\r\n").unwrap();
    assert_eq!(queued.matches("+QUEUED\r\n").count(), 512);
    assert!(list.len() > 1 << 16 && list.matches("\r\n# Server").count() == 512, "{} bytes", list.len());
    assert!(list.ends_with("\r\n+PONG\r\n+OK\r\n"), "{}", &list[list.len() - 40..]);
    // A client that disconnects inside a transaction leaves nothing behind.
    say(resp, "MULTI\r\nCL.THROTTLE other 0 1 60").await;
    assert_eq!(say(resp, look).await, unspent);
}

#[tokio::test]
async fn policies_are_asked_settled_and_reset() {
    let (_server, resp) = started().await;
    let ask = "TG.CHECK per-user user.id 7";
    let first = say(resp, ask).await;
    assert!(first.starts_with("*8\r\n:1\r\n$8\r\nper-user\r\n:2\r\n:0\r\n:20000\r\n$26\r\n"), "{first}");
    assert!(first.ends_with("$-1\r\n$-1\r\n+OK\r\n"), "no ticket unless it is asked for: {first}");
    let rest = say(resp, &format!("{ask} COST 2\r\n{ask}\r\n{ask} PEEK")).await;
    assert!(rest.contains("\r\n*8\r\n:0\r\n$8\r\nper-user\r\n:0\r\n:20000\r\n:60000\r\n"), "{rest}");
    assert!(rest.ends_with("$-1\r\n$-1\r\n$-1\r\n+OK\r\n"), "a look has neither name nor ticket: {rest}");
    assert_eq!(say(resp, "TG.RESET per-user user.id 7").await, "+OK\r\n+OK\r\n");

    let ticketed = say(resp, &format!("{ask} COST 3 TICKET")).await;
    let ticket = ticketed.split("\r\n").nth(10).unwrap();
    assert_eq!(say(resp, &format!("TG.SETTLE {ticket} COST 1")).await, ":1\r\n+OK\r\n");
    assert!(say(resp, &format!("TG.SETTLE {ticket}")).await.starts_with("-TICKET "), "once");
    assert!(say(resp, ask).await.starts_with("*8\r\n:1\r\n$8\r\nper-user\r\n:1\r\n"), "two came back");

    // A place is returned by its ticket.
    let job = "TG.CHECK jobs kind job TICKET";
    let taken = say(resp, job).await;
    assert!(say(resp, job).await.starts_with("*8\r\n:0\r\n$4\r\njobs\r\n:0\r\n:-1\r\n"));
    let ticket = taken.split("\r\n").nth(10).unwrap();
    assert_eq!(say(resp, &format!("TG.SETTLE {ticket} FAILED")).await, ":1\r\n+OK\r\n");
    assert!(say(resp, job).await.starts_with("*8\r\n:1\r\n"));
}

#[tokio::test]
async fn bytes_that_are_no_command_end_their_connection_alone() {
    let (_server, resp) = started().await;
    for (bytes, said) in [
        (b"*1\r\n*1\r\n*1\r\n$4\r\nPING\r\n".to_vec(), "-ERR Protocol error: expected '$'\r\n"),
        (b"*1\r\n".repeat(10_000), "-ERR Protocol error: expected '$'\r\n"),
        (b"*x\r\n".to_vec(), "-ERR Protocol error: invalid multibulk length\r\n"),
        (vec![b'x'; 70_000], "-ERR Protocol error: too long a command\r\n"),
        (
            b"*2\r\n$4\r\nECHO\r\n$70000\r\n".iter().copied().chain([b'x'; 70_000]).collect(),
            "-ERR Protocol error: too long a command\r\n",
        ),
        (b"POST / HTTP/1.1\r\nHost: a\r\n\r\nPING\r\n".to_vec(), "-ERR this is not an HTTP server\r\n"),
    ] {
        assert_eq!(exchange(resp, &bytes).await, said, "{}", bytes[..bytes.len().min(30)].escape_ascii());
    }
    assert_eq!(say(resp, "PING").await, "+PONG\r\n+OK\r\n");
}

#[tokio::test]
async fn http_at_this_address_is_told() {
    let (server, resp) = started().await;
    for bytes in ["GET /livez HTTP/1.1\r\nHost: a\r\n\r\n", "POST /v1/check HTTP/1.1\r\nHost: a\r\n\r\n{}"] {
        assert_eq!(exchange(resp, bytes.as_bytes()).await, "-ERR this is not an HTTP server\r\n", "{bytes}");
    }
    assert_eq!(exchange(resp, b"GET a b\r\n").await, "-ERR this is not an HTTP server\r\n");
    let told = server.get("/readyz?verbose").await.text;
    assert!(told.contains("      2 x HTTP/1 reaches the address for Redis clients (server.resp)"), "{told}");
    assert!(told.contains("; HTTP is served on server.http (--http): give"), "{told}");
}

#[tokio::test]
async fn without_the_token_nothing_is_told() {
    let free = tidegate_testkit::free_address();
    let _server = start_with(POLICIES, |mut options| {
        options.resp = Some(free.into());
        options.token = Some(tidegate_server::Token::new("a-token-of-many-letters").unwrap());
        options
    })
    .await;
    let denied = "-NOAUTH Authentication required: AUTH TOKEN\r\n";
    let line = "PING\r\nINFO\r\nTG.CHECK * a b\r\nCL.THROTTLE k 1 1 1";
    assert_eq!(say(free, line).await, format!("{}+OK\r\n", denied.repeat(4)));
    assert!(say(free, "AUTH wrong").await.starts_with("-WRONGPASS"));
    assert!(say(free, "HELLO 3").await.starts_with("-NOAUTH"));
    // Sent as clients do: as a list.
    let auth = b"*5\r\n$5\r\nHELLO\r\n$1\r\n3\r\n$4\r\nAUTH\r\n$7\r\ndefault\r\n$23\r\na-token-of-many-letters\r\nPING\r\nQUIT\r\n";
    let replies = exchange(free, auth).await;
    assert!(
        replies.starts_with("%7\r\n$6\r\nserver\r\n$8\r\ntidegate\r\n")
            && replies.contains("\r\n$2\r\nid\r\n:1\r\n")
            && replies.contains("+PONG"),
        "{replies}"
    );
}

#[tokio::test]
async fn a_blocked_key_is_refused_to_redis_clients_too() {
    let (server, resp) = started().await;
    let block = r#"{"block": {"for": "10min", "reason": "abuse"}}"#;
    let path = "/v1/keys/per-user?user.id=1";
    let put = server.put(path, block).await;
    assert_eq!(put.status, 200, "{put:?}");
    let refused = say(resp, "TG.CHECK per-user user.id 1").await;
    assert!(refused.starts_with("*8\r\n:0\r\n$8\r\nper-user\r\n:-1\r\n:600000\r\n"), "{refused}");
    assert!(say(resp, "TG.CHECK per-user user.id 2").await.starts_with("*8\r\n:1\r\n"));
    running::send(server.addr, http::Method::DELETE, path, &[], "").await;
    assert!(say(resp, "TG.CHECK per-user user.id 1").await.starts_with("*8\r\n:1\r\n"));
    // Such a token can release the key too.
    let put = server.put(path, block).await;
    assert_eq!(put.status, 200, "{put:?}");
    assert!(say(resp, "TG.CHECK per-user user.id 1").await.starts_with("*8\r\n:0\r\n"));
    assert_eq!(say(resp, "TG.RESET per-user user.id 1").await, "+OK\r\n+OK\r\n");
    assert!(
        say(resp, "TG.CHECK per-user user.id 1").await.starts_with("*8\r\n:1\r\n$8\r\nper-user\r\n:2\r\n")
    );
}
