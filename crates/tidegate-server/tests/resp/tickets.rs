//! Tickets of decisions made through the RESP door.

use ulid::Ulid;

use super::running::wire::exchange;
use super::{say, started, started_with};

/// Returns the strings in a reply.
fn texts(reply: &str) -> Vec<&str> {
    let lines: Vec<&str> = reply.split("\r\n").collect();
    let length = |line: &str| line.strip_prefix('$').is_some_and(|length| length != "-1");
    lines.windows(2).filter(|pair| length(pair[0])).map(|pair| pair[1]).collect()
}

/// Regression: callers that asked for no ticket took places that nobody could return before their time to live was
/// over.
#[tokio::test]
async fn a_place_comes_with_a_ticket_although_nobody_asked_for_one() {
    let (_server, resp) = started().await;
    for policy in ["*", "jobs"] {
        let taken = say(resp, &format!("TG.CHECK {policy} kind job")).await;
        assert!(taken.starts_with("*8\r\n:1\r\n$4\r\njobs\r\n"), "{taken}");
        let ticket = texts(&taken)[2];
        assert_eq!(say(resp, &format!("TG.SETTLE {ticket}")).await, ":1\r\n+OK\r\n");
    }
}

/// Regression: callers' keys began like the marks of settled tickets. A caller that knew a decision's id could
/// invalidate its ticket with a limit of that key or, by letting the limit expire, have the ticket settled twice.
#[tokio::test]
async fn no_key_of_a_caller_is_the_mark_of_a_settled_ticket() {
    let (_server, resp) = started().await;
    let taken = say(resp, "TG.CHECK jobs kind job TICKET").await;
    let [_, name, ticket] = texts(&taken)[..] else { panic!("{taken}") };
    let id = name.parse::<Ulid>().unwrap().0.to_le_bytes();
    for half in [0, 1] {
        let mut key = vec![b't', half];
        key.extend_from_slice(&id);
        let mut command = b"*5\r\n$11\r\nCL.THROTTLE\r\n$18\r\n".to_vec();
        command.extend_from_slice(&key);
        command.extend_from_slice(b"\r\n$1\r\n0\r\n$1\r\n1\r\n$3\r\n600\r\nQUIT\r\n");
        assert!(exchange(resp, &command).await.starts_with("*5\r\n:0\r\n"));
    }
    assert_eq!(say(resp, &format!("TG.SETTLE {ticket}")).await, ":1\r\n+OK\r\n", "it is still good");
}

const LOGIN: &str = "
version: 1
policies:
  - { name: login, by: [user], limit: { algorithm: sliding-log, rate: 2/h }, charge: on-failure }
";

/// Failed logins are limited, whatever the client's protocol.
#[tokio::test]
async fn a_settlement_says_how_the_work_ended() {
    let (_server, resp) = started_with(LOGIN).await;
    let left = async || {
        let peeked = say(resp, "TG.CHECK login user ann PEEK").await;
        peeked.split("\r\n").nth(4).unwrap().to_owned()
    };
    let attempt = async |ending: &str| {
        let checked = say(resp, "TG.CHECK login user ann").await;
        let ticket = texts(&checked)[2].to_owned();
        (say(resp, &format!("TG.SETTLE {ticket} {ending}")).await, ticket)
    };
    for (ending, then) in [
        ("STATUS 401", ":1"),
        ("STATUS 503", ":1"),
        ("FAILED", ":1"),
        ("OUTCOME ignored", ":1"),
        ("OUTCOME undone", ":1"),
        ("OUTCOME overloaded", ":1"),
        ("STATUS 200", ":2"),
        ("OUTCOME callers-fault", ":1"),
        ("OUTCOME success", ":2"),
        ("STATUS 403", ":1"),
        ("", ":2"),
    ] {
        assert_eq!(attempt(ending).await.0, ":1\r\n+OK\r\n", "{ending}");
        assert_eq!(left().await, then, "after {ending}");
    }
    for (ending, said) in [
        ("STATUS 600", "-ERR STATUS: \"600\" is not an HTTP status; use a number, 100 to 599"),
        ("STATUS", "-ERR STATUS has no value; write TG.SETTLE ticket [COST n] [STATUS n"),
        (
            "OUTCOME failed",
            "-ERR OUTCOME: \"failed\" does not exist; there are success, callers-fault, failure",
        ),
        ("STATUS 200 FAILED", "-ERR STATUS, OUTCOME and FAILED say the same; send one of them"),
        ("COST 1 COST 2", "-ERR COST is given twice; send it once"),
        ("STATUS +200", "-ERR STATUS: \"+200\" is not an HTTP status; use a number, 100 to 599"),
        ("OUTCOME undone COST 1", "-ERR work that was undone has spent nothing; leave COST out"),
        ("status 401", "-ERR \"status\" is unknown; write TG.SETTLE ticket"),
    ] {
        let (answer, ticket) = attempt(ending).await;
        assert!(answer.starts_with(said), "{ending}: {answer}");
        assert_eq!(say(resp, &format!("TG.SETTLE {ticket}")).await, ":1\r\n+OK\r\n", "nothing was settled");
    }
}
