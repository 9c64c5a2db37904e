//! Limits proposed from a log.

use crate::verbs::{Desk, sample};

/// In the sample, one client scrapes at up to 780 a minute where 99 % never ask more than 26, and one guesses
/// passwords at 20 a minute. A limit of 530 a minute would deny nothing.
#[test]
fn the_scraper_and_the_guesser_of_the_sample_are_found_and_nobody_else() {
    let desk = Desk::new();
    let told = desk.run(&["suggest", &sample("access.log"), "-o", "json"]).code(0).json();
    assert_eq!(told["finding"]["kind"], "gap");
    let gap = &told["proposals"][0];
    assert_eq!((&gap["purpose"], gap["keys_hit"].as_u64()), (&"gap".into(), Some(2)), "{told}");
    assert_eq!(
        (&gap["hit"][0]["key"], &gap["hit"][1]["key"]),
        (&"203.0.113.9".into(), &"198.51.100.77".into())
    );
    assert!(gap["denied_share"].as_f64().unwrap() > 0.15 && gap["burst"].as_u64().unwrap() < 26, "{gap}");
    assert_eq!(told["stand_out"][1]["looks"], "refused", "{told}");
    let people = desk.run(&["suggest", &sample("access.log")]).code(0).out;
    for said in [
        "stand out from the crowd",
        "a guesser",
        "100 % refused or not there",
        "recommended",
        "203.0.113.9",
        "Room: each key that is spared could ask for 2 times as much. The least limit that spares them is",
        "a burst of",
        "Judged: found with this room on the first half of the log alone, a limit hits 0 keys",
        "SIGNED IN",
        "agent example-scraper/1.0 (\"no contact\")",
        "NOTE  203.0.113.9, which the recommended limit cuts, looks like a job on a timer or a program",
    ] {
        assert!(people.contains(said), "{said}: {people}");
    }
}

/// An hour's log in nginx's format: fifty readers, and the other requests as (second, client, path, agent).
fn log_with(others: impl IntoIterator<Item = (u32, String, String, &'static str)>) -> String {
    let mut requests: Vec<(u32, String, String, String)> =
        others.into_iter().map(|(at, client, path, agent)| (at, client, path, agent.to_owned())).collect();
    for reader in 0..50 {
        for page in 0..6 {
            let at = reader * 60 + page * (9 + reader % 20);
            let (client, agent) =
                (format!("192.0.2.{reader}"), format!("Mozilla/5.0 (browser {})", reader % 9));
            requests.push((
                at,
                client.clone(),
                format!("/item/{}", (reader * 31 + page * 7) % 300),
                agent.clone(),
            ));
            requests.push((at + 1, client, "/static/site.css".to_owned(), agent));
        }
    }
    requests.sort();
    let line = |(at, client, path, agent): (u32, String, String, String)| {
        let at = format!("{:02}:{:02}:{:02}", 9 + at / 3_600, at / 60 % 60, at % 60);
        format!("{client} - - [02/Mar/2026:{at} +0000] \"GET {path} HTTP/1.1\" 200 1 \"-\" \"{agent}\"\n")
    };
    requests.into_iter().map(line).collect()
}

/// A crawler that changes its address after every eight pages, with an agent that is also a pattern.
pub(crate) fn rotating() -> String {
    let asks =
        |n: u32| (n * 2, format!("203.0.113.{}", n / 8), format!("/item/{n}"), "harvest/2.1 {\u{202e}}");
    log_with((0..1_600).map(asks))
}

/// Two hundred addresses look like two hundred modest clients; the crawler must be found by its agent.
#[test]
fn a_crawler_that_changes_its_address_is_told_apart_by_its_agent() {
    let desk = Desk::new();
    desk.write("rotating.log", rotating());
    let told = desk.run(&["suggest", "rotating.log"]).code(0).out;
    for said in [
        "are no faster than others",
        "200 keys together look like a crawler",
        "matches 1,600 requests of 200 keys",
    ] {
        assert!(told.contains(said), "{said}: {told}");
    }
    assert!(!told.contains('\u{202e}'), "{told}");
    desk.write("apart.yaml", apart(&told));
    let json = desk.run(&["suggest", "rotating.log", "-o", "json"]).code(0).json();
    let replayed = desk.run(&["replay", "rotating.log", "-c", "apart.yaml", "-o", "json"]).code(0).json();
    let row = &replayed["runs"][0]["policies"][0];
    assert_eq!(
        (&row["shadow_denied"], &json["narrower"][0]["requests"]),
        (&json["narrower"][0]["denied"], &1_600.into())
    );
    assert!(row["shadow_denied"].as_u64() > Some(1_000), "{row}");
}

/// Returns the proposed policy for a crawler with many addresses, as a file.
fn apart(told: &str) -> String {
    let policy: Vec<&str> =
        told.lines().skip_while(|line| !line.starts_with("  - name: suggested-apart")).collect();
    let policy = policy.split(|line| line.is_empty()).next().unwrap().join("\n");
    format!("version: 1\nclient_ip: {{ trusted_proxies: [] }}\npolicies:\n{policy}\n")
}

/// A guesser of passwords is slower than readers of pages, so no limit for all requests cuts it: the line that is printed
/// asks about its path alone, and run as told it cuts the guesser and nobody else.
#[test]
fn a_flood_of_logins_below_the_pace_of_readers_is_cut_by_the_question_that_is_printed() {
    const GUESSER: &str = "203.0.113.77";
    let desk = Desk::new();
    let mut requests: Vec<(u32, String)> = Vec::new();
    let mut ask = |at: u32, client: &str, line: String| {
        let time = format!("{:02}:{:02}:{:02}", 9 + at / 3_600, at / 60 % 60, at % 60);
        requests
            .push((at, format!("{client} - - [02/Mar/2026:{time} +0000] {line} 1 \"-\" \"Mozilla/5.0\"\n")));
    };
    for reader in 0..40 {
        let client = format!("192.0.2.{reader}");
        ask(reader * 60, &client, "\"POST /login HTTP/1.1\" 200".to_owned());
        for page in 0..90 {
            let path = format!("\"GET /item/{} HTTP/1.1\" 200", (reader * 31 + page * 7) % 300);
            ask(reader * 60 + 5 + page * 2, &client, path);
        }
    }
    for guess in 0..200 {
        ask(100 + guess * 10, GUESSER, "\"POST /login HTTP/1.1\" 401".to_owned());
    }
    requests.sort();
    desk.write("logins.log", requests.into_iter().map(|(_, line)| line).collect::<String>());
    let told = desk.run(&["suggest", "logins.log"]).code(0).out;
    assert!(told.contains("no limit by client.ip is recommended"), "{told}");
    let printed = told.lines().find(|line| line.contains("by a limit for some requests alone")).unwrap();
    assert!(printed.starts_with(&format!("{GUESSER}, which is not cut here")), "{printed}");
    // As a shell reads it.
    let (_, rest) = printed.split_once("--match '").unwrap();
    let (word, found) = rest.split_once("' finds ").unwrap();
    let (limit, denies) = found.split_once(", which denies ").unwrap();
    let asked = desk.run(&["suggest", "logins.log", "--match", word, "-o", "json"]).code(0).json();
    let gap = &asked["proposals"][0];
    assert_eq!(asked["finding"]["kind"], "gap", "{asked}");
    assert_eq!(format!("{} burst {}", gap["rate"].as_str().unwrap(), gap["burst"]), limit);
    assert_eq!((&gap["keys_hit"], &gap["hit"][0]["key"]), (&1.into(), &GUESSER.into()), "{gap}");
    assert_eq!(denies, format!("{} requests of 1 key, signed in 0.", gap["denied"]));
    // What it proposes, pasted and replayed, cuts the guesser and spares everybody else.
    let people = desk.run(&["suggest", "logins.log", "--match", word]).code(0).out;
    let policy: Vec<&str> =
        people.lines().skip_while(|line| !line.starts_with("  - name: suggested")).collect();
    let policy = policy.split(|line| line.is_empty()).next().unwrap().join("\n");
    desk.write("p.yaml", format!("version: 1\nclient_ip: {{ trusted_proxies: [] }}\npolicies:\n{policy}\n"));
    let replayed = desk.run(&["replay", "logins.log", "-c", "p.yaml", "-o", "json"]).code(0).json();
    let row = &replayed["runs"][0]["policies"][0];
    assert_eq!((&row["shadow_denied"], &row["keys_hit"]), (&gap["denied"], &1.into()), "{row}");
    assert_eq!(row["worst"]["key"], GUESSER, "{row}");
}

/// The policy must contain the agent as it was sent, not as the log escapes it.
#[test]
fn a_policy_by_an_agent_with_quotes_matches_it() {
    let desk = Desk::new();
    let asks =
        |n: u32| (n * 2, format!("203.0.113.{}", n / 8), format!("/item/{n}"), r#"Mega/2.0 (\"e.org\")"#);
    desk.write("quoted.log", log_with((0..1_600).map(asks)));
    let told = desk.run(&["suggest", "quoted.log"]).code(0).out;
    desk.write("apart.yaml", apart(&told));
    let agent = r#"request.header.user-agent=Mega/2.0 ("e.org")"#;
    let explained =
        desk.run(&["explain", "-c", "apart.yaml", "--attr", agent, "--attr", "client.ip=192.0.2.1"]);
    let explained = explained.code(0).out;
    assert!(!explained.contains("do not match"), "{told}\n{explained}");
}

/// If keys are users, the advice must not be to limit by user.
#[test]
fn users_are_not_advised_to_be_limited_by_user() {
    let desk = Desk::new();
    let line =
        |second: u64, user: &str, n: u64| format!("{},{user},200,/{}\n", 1_772_442_000 + second, n % 3);
    let mut lines: Vec<(u64, String)> = Vec::new();
    for user in 0..40 {
        lines.extend((0..30).map(|n| (n * 110 + user, line(n * 110 + user, &format!("u{user}"), n))));
    }
    lines.extend((0..1_200).map(|n| (n * 3, line(n * 3, "heavy", n))));
    // A third of the users were never served.
    for user in 0..20 {
        lines.extend((0..5).map(|n| {
            (n * 600 + user, line(n * 600 + user, &format!("w{user}"), n).replace(",200,", ",500,"))
        }));
    }
    lines.sort();
    let text: String = lines.into_iter().map(|(_, line)| line).collect();
    desk.write("users.csv", format!("time,user,status,path\n{text}"));
    let told = desk.run(&["suggest", "users.csv", "--by", "user.id"]).code(0).out;
    assert!(told.contains("An override for them may fit better."), "{told}");
    assert!(!told.contains("A limit by user"), "{told}");
}

/// A job of thirty requests every five minutes must be spared.
#[test]
fn a_job_on_a_timer_is_spared_and_said_to_be_one() {
    let desk = Desk::new();
    let job = (0..360u32)
        .map(|n| (n / 30 * 300 + n % 3, "198.51.100.9".to_owned(), format!("/export/{}", n % 30), "curl/8"));
    desk.write("job.log", log_with(job));
    let told = desk.run(&["suggest", "job.log"]).code(0).out;
    assert!(told.contains("no limit is recommended") && told.contains("a timer"), "{told}");
    assert!(told.contains("30 paths, every 4 min 58 s, agent curl/8"), "{told}");
}

/// A limit in tokens is proposed in tokens, with the cost rule that the policy needs.
#[test]
fn a_cost_is_the_unit_of_what_is_proposed() {
    let desk = Desk::new();
    let log = sample("llm-calls.csv");
    let cost = ["suggest", &log, "--by", "tenant", "--cost", "int(total_tokens)"];
    let told = desk.run(&cost).code(0).out;
    assert!(
        told.contains("units of int(total_tokens)") && told.contains("    cost: \"int(total_tokens)\"\n"),
        "{told}"
    );
    let policy: Vec<&str> =
        told.lines().skip_while(|line| !line.starts_with("  - name: suggested")).collect();
    let policy = policy.split(|line| line.is_empty()).next().unwrap().join("\n");
    desk.write(
        "tokens.yaml",
        format!("version: 1\nclient_ip: {{ trusted_proxies: [] }}\npolicies:\n{policy}\n"),
    );
    let json = desk.run(&[&cost[..], &["-o", "json"]].concat()).code(0).json();
    assert!(json["units"].as_u64() > Some(100_000), "{json}");
    let replayed = desk.run(&["replay", &log, "-c", "tokens.yaml", "-o", "json"]).code(0).json();
    assert_eq!(
        replayed["runs"][0]["policies"][0]["shadow_denied"], 0,
        "the limit that hits nobody hits nobody"
    );
    // A mistake is reported with its flag; a log without costs gives no proposal.
    assert!(desk.run(&["suggest", &log, "--by", "tenant", "--cost", "0"]).code(2).err.contains("--cost"));
    let guessed = desk.run(&["suggest", &log, "--by", "tenant", "--cost", "int(tokns)"]).code(2).err;
    assert!(guessed.contains("none of 1486 requests has a cost: the request has no tokns"), "{guessed}");
}

#[test]
fn a_log_of_one_time_says_so() {
    let desk = Desk::new();
    let line = |n: u32| format!("2026-03-02T09:00:00Z,192.0.2.{}\n", n % 20);
    desk.write("once.csv", format!("time,client_ip\n{}", (0..200).map(line).collect::<String>()));
    let told = desk.run(&["suggest", "once.csv"]).code(1).out;
    assert!(told.contains("All requests have the same time") && !told.contains("--per"), "{told}");
}

#[test]
fn what_is_proposed_passes_the_check_and_denies_what_it_says() {
    let desk = Desk::new();
    let log = sample("access.log");
    let told = desk.run(&["suggest", &log]).code(0).out;
    let policy: Vec<&str> =
        told.lines().skip_while(|line| !line.starts_with("  - name: suggested")).collect();
    let policy = policy.split(|line| line.is_empty()).next().unwrap().join("\n");
    let file = format!("version: 1\nclient_ip: {{ trusted_proxies: [] }}\npolicies:\n{policy}\n");
    desk.write("suggested.yaml", &file);
    let checked = desk.run(&["config", "check", "suggested.yaml"]).code(0).out;
    let told = checked.lines().map(|line| line.split(';').next().unwrap_or_default()).collect::<Vec<_>>();
    let shadow = "suggested.yaml  warn   nothing is enforced: all policies are in shadow mode";
    assert_eq!(told, [shadow, "1 problem (0 errors, 1 warning). Nothing was changed."], "{file}");

    // Replayed in shadow mode, as proposed, it would deny as many requests as the evidence states.
    let evidence = desk.run(&["suggest", &log, "-o", "json"]).code(0).json();
    let replayed = desk.run(&["replay", &log, "-c", "suggested.yaml", "-o", "json"]).code(0).json();
    let row = &replayed["runs"][0]["policies"][0];
    assert_eq!(row["shadow_denied"], evidence["proposals"][0]["denied"], "{file}");
    assert_eq!(row["keys_hit"], evidence["proposals"][0]["keys_hit"]);
    assert_eq!(row["keys_hit_signed_in"], evidence["proposals"][0]["keys_hit_signed_in"]);
}

/// Returns the policy that is printed to be pasted, as a file, and the numbers in its comment: requests, denied, keys
/// hit, keys. `None` if no policy is printed.
fn pasted(told: &str) -> Option<(String, [u64; 4])> {
    let policy: Vec<&str> =
        told.lines().skip_while(|line| !line.starts_with("  - name: suggested")).collect();
    let policy = policy.split(|line| line.is_empty()).next().filter(|lines| !lines.is_empty())?.join("\n");
    let comment = policy.lines().find(|line| line.contains("# Replayed on"))?.replace(',', "");
    let share = comment.find('(')?..=comment.find(')')?;
    let comment = comment.replacen(&comment[share], "", 1);
    let mut numbers = comment.split(|char: char| !char.is_ascii_digit()).filter_map(|word| word.parse().ok());
    let numbers = std::array::from_fn(|_| numbers.next().unwrap());
    Some((format!("version: 1\nclient_ip: {{ trusted_proxies: [] }}\npolicies:\n{policy}\n"), numbers))
}

/// Whatever narrowed the evidence must narrow the policy: pasted into a file and replayed on the whole log, it gives
/// the numbers printed above it. A limit found for one path that holds for all would hit most keys.
#[test]
fn what_is_pasted_gives_the_numbers_above_it_whatever_narrowed_the_evidence() {
    let desk = Desk::new();
    let log = sample("access.log");
    let narrowed: [&[&str]; 12] = [
        &[],
        &["path=/login"],
        &["not.path=/login"],
        &["path=/login", "path=/api/**"],
        &["method=GET"],
        &["method=post", "path=/**"],
        &["header.user-agent=*Mozilla*"],
        &["not.header.user-agent=*scraper*", "not.user.id=true"],
        &["user.id=false"],
        &["user.id=true"],
        &["client.ip=203.0.113.*", "client.ip=198.51.100.*"],
        &["request.path=/**", "not.method=HEAD", "not.path=/login"],
    ];
    let flags: [&[&str]; 7] = [
        &[],
        &["--by", "client.ip,request.method"],
        &["--per", "10s"],
        &["--keep", "95%"],
        &["--by", "request.header.user-agent"],
        &["--cost", "size(request.path)"],
        &["--order", "clamp", "--max-late", "5%", "--format", "combined"],
    ];
    let mut hit = 0;
    for (place, words) in narrowed.iter().enumerate() {
        for flags in [flags[0], flags[1 + place % 6]] {
            let mut asked = vec!["suggest", &log];
            asked.extend(words.iter().flat_map(|word| ["--match", word]).chain(flags.iter().copied()));
            let told = desk.run(&asked).code(0).out;
            // A policy for one crawler alone may be the only one.
            let Some((file, numbers)) = pasted(&told) else {
                assert!(told.contains("suggested-apart"), "{asked:?}: {told}");
                continue;
            };
            desk.write("pasted.yaml", &file);
            let mut replay = vec!["replay", &log, "-c", "pasted.yaml", "-o", "json"];
            if flags.contains(&"--order") {
                replay.extend(flags);
            }
            let row = &desk.run(&replay).code(0).json()["runs"][0]["policies"][0];
            let again =
                ["matched", "shadow_denied", "keys_hit", "keys"].map(|name| row[name].as_u64().unwrap());
            assert_eq!(again, numbers, "{asked:?}: {file}");
            hit += numbers[2];
        }
    }
    assert!(hit > 0, "some of these limits deny something");
}

/// What a policy cannot select by is said, and no policy is printed that would claim it.
#[test]
fn what_no_policy_can_select_is_said_and_no_policy_printed() {
    let desk = Desk::new();
    let log = sample("access.log");
    let long = format!("path=/{}**", "*/".repeat(600));
    for (word, why) in [
        ("response.status=4*", "response.status is known only after the answer"),
        ("not.response.status=500", "response.status is known only after the answer"),
        ("not.path=/**/**/x", ""),
        (&*long, ""),
    ] {
        let told = desk.run(&["suggest", &log, "--match", word]);
        if why.is_empty() {
            assert!(!told.out.contains("limit:") || told.out.contains("match:"), "{told:?}");
            continue;
        }
        assert!(told.out.contains(why) && !told.out.contains("limit: {"), "{told:?}");
    }
}

/// The same of the report: its policies count what was replayed, with the file's own match and cost.
#[test]
fn the_reports_policies_count_what_was_replayed() {
    let desk = Desk::new();
    let log = sample("access.log");
    desk.write(
        "own.yaml",
        "version: 1\nclient_ip: { trusted_proxies: [] }\npolicies:\n  - name: own\n    by: [client.ip]\n    match: { method: [GET, POST] }\n    cost: size(request.path)\n    limit: { rate: 100/min, burst: 100 }\n",
    );
    for (words, reads) in [
        (&["-c", "own.yaml", "--match", "not.path=/login"][..], "match: {"),
        (&["--rate", "5/min", "--match", "path=/login"], "match: { path: \"/login\" }"),
        (&["--rate", "5/min", "--match", "response.status=401"], ""),
    ] {
        let told =
            desk.run(&[&["replay", &log, "--plot", "report", "-o", "json"], words].concat()).code(0).json();
        let page = std::fs::read_to_string(desk.path("report/report.html")).unwrap();
        let Some((_, yaml)) = page.split_once("<code data-yaml>") else {
            assert!(reads.is_empty() && page.contains("known only after the answer"), "{words:?}");
            continue;
        };
        let yaml = yaml.split_once("</code>").unwrap().0.replace("&quot;", "\"").replace("&amp;", "&");
        assert!(yaml.contains(reads), "{yaml}");
        desk.write(
            "pasted.yaml",
            format!("version: 1\nclient_ip: {{ trusted_proxies: [] }}\npolicies:\n{yaml}"),
        );
        let again = desk.run(&["replay", &log, "-c", "pasted.yaml", "-o", "json"]).code(0).json();
        let row = |told: &serde_json::Value| {
            let row = &told["runs"][0]["policies"][0];
            let denied = row["denied"].as_u64().unwrap() + row["shadow_denied"].as_u64().unwrap();
            (row["matched"].as_u64(), denied, row["keys_hit"].as_u64())
        };
        assert_eq!(row(&again), row(&told), "{yaml}");
    }
}

#[test]
fn a_share_to_keep_is_kept_and_one_that_is_every_key_is_said_to_be() {
    let desk = Desk::new();
    let log = sample("access.log");
    let kept = desk.run(&["suggest", &log, "--keep", "98%", "-o", "json"]).code(0).json();
    assert_eq!(kept["proposals"][0]["purpose"], "kept");
    assert!(kept["proposals"][0]["keys_hit"].as_u64().unwrap() <= 2, "{kept}");
    let every = desk.run(&["suggest", &log, "--keep", "99.9%"]).code(0).out;
    assert!(every.contains("99.9 % of 122 keys is every key") && every.contains("recommended"), "{every}");
}

#[test]
fn another_period_is_the_period_of_the_rate() {
    let desk = Desk::new();
    let log = sample("access.log");
    let told = desk.run(&["suggest", &log, "--per", "10s", "-o", "json"]).code(0).json();
    assert_eq!((&told["per_ms"], &told["finding"]["kind"]), (&10_000.into(), &"gap".into()), "{told}");
    let rates: Vec<&str> = told["proposals"]
        .as_array()
        .unwrap()
        .iter()
        .map(|proposal| proposal["rate"].as_str().unwrap())
        .collect();
    assert!(!rates.is_empty() && rates.iter().all(|rate| rate.ends_with("/10s")), "{rates:?}");
    // An hour of log does not show what is usual in an hour.
    assert!(desk.run(&["suggest", &log, "--per", "1h"]).code(1).out.contains("too short"));
}

#[test]
fn what_cannot_be_answered_says_why() {
    let desk = Desk::new();
    let log = sample("access.log");
    let unknown = desk.run(&["suggest", &log, "--by", "cliet.ip"]).code(2);
    assert!(unknown.err.contains("cliet.ip") && unknown.err.contains("client.ip"), "{unknown:?}");
    for (by, meant) in [("user", "user.id"), ("ip", "client.ip")] {
        let told = desk.run(&["suggest", &log, "--by", by]).code(2).err;
        assert!(told.contains(&format!("; did you mean {meant}?")), "{told}");
        assert!(told.contains("user.id"), "what only some requests have is listed: {told}");
    }
    assert!(desk.run(&["suggest", &log, "--keep", "140%"]).code(2).err.contains("140%"));
    assert!(desk.run(&["suggest", &log, "--of-requests"]).code(2).err.contains("--keep"));
    assert!(desk.run(&["suggest", "gone.log"]).code(1).err.contains("gone.log"));
    desk.write("empty.log", "");
    let empty = desk.run(&["suggest", "empty.log"]).code(2);
    assert!(empty.err.contains("nothing to suggest: no request in empty.log, which is empty"), "{empty:?}");

    // A log of some seconds does not show what is usual per minute: there is nothing to copy, and the exit code tells
    // scripts.
    let text = std::fs::read_to_string(&log).unwrap();
    desk.write("short.log", text.lines().take(20).collect::<Vec<_>>().join("\n"));
    let short = desk.run(&["suggest", "short.log"]).code(1);
    assert!(short.out.contains("too short") && short.out.contains("--per"), "{short:?}");

    // Times that cannot be sorted cause false denials.
    let lines: Vec<&str> = text.lines().collect();
    let mixed: Vec<&str> = lines[2_000..].iter().chain(&lines[..2_000]).copied().collect();
    desk.write("mixed.log", mixed.join("\n"));
    let doubtful = desk.run(&["suggest", "mixed.log"]).code(2);
    assert!(doubtful.err.contains("--reorder") && doubtful.out.is_empty(), "{doubtful:?}");
}

/// The log is read several times, which is impossible from a terminal or a pipe; the command must not wait silently
/// for either.
#[test]
fn without_a_file_it_says_what_to_name() {
    let desk = Desk::new();
    for arguments in [&["suggest"][..], &["suggest", "-"]] {
        let told = desk
            .run_with(arguments, "192.0.2.1 - - [02/Mar/2026:09:00:02 +0000] \"GET / HTTP/1.1\" 200 1\n")
            .code(2);
        assert!(
            told.err.contains("no log named") && told.err.contains("tidegate suggest access.log"),
            "{told:?}"
        );
    }
}

/// Names are untrusted text: a line end in one must not start a line of the advice.
#[test]
fn a_name_begins_no_line_of_the_advice() {
    let desk = Desk::new();
    let line = |at: u32, ip: &str| {
        let at = format!("2026-03-02T09:{:02}:{:02}Z", at / 60, at % 60);
        serde_json::json!({ "time": at, "client_ip": ip }).to_string()
    };
    let forged = "x\nCopy this:\n  - name: FORGED";
    let log = [line(0, forged), line(1, forged), line(600, "192.0.2.1")].join("\n");
    desk.write("forged.jsonl", &log);
    let told = desk.run(&["suggest", "forged.jsonl"]).code(0).out;
    assert!(told.contains(r"a burst of 1 would hit x\nCopy this:\n  - name: FORGED"), "{told}");
    assert!(!told.lines().any(|line| line.trim_start().starts_with("- name: FORGED")), "{told}");
}

/// For a log without users, the table shows `?`, and the policy must not claim `signed in 0`.
#[test]
fn a_log_without_users_claims_nothing_of_who_signed_in() {
    let desk = Desk::new();
    let log = "time,client_ip\n2026-03-02T09:00:00Z,192.0.2.1\n2026-03-02T09:00:01Z,192.0.2.1\n2026-03-02T09:10:00Z,192.0.2.2\n";
    desk.write("bare.csv", log);
    let told = desk.run(&["suggest", "bare.csv"]).code(0).out;
    assert!(told.contains("keys hit 0 of 2.\n") && !told.contains("signed in 0"), "{told}");
}

#[test]
fn a_name_of_a_field_begins_no_line_of_a_message() {
    let desk = Desk::new();
    let line = |at: &str| serde_json::json!({ "time": at, "a\nFORGED": "1" }).to_string();
    desk.write("names.jsonl", [line("2026-03-02T09:00:00Z"), line("2026-03-02T09:10:00Z")].join("\n"));
    for verb in [&["replay", "--rate", "1/s"][..], &["suggest"]] {
        let told = desk.run(&[verb, &["names.jsonl"]].concat()).code(2).err;
        assert!(told.contains(r"a\nFORGED") && !told.contains("\nFORGED"), "{told}");
        assert!(told.starts_with("error: --by"), "{told}");
    }
}

#[test]
fn a_mistake_of_a_flag_names_it() {
    let desk = Desk::new();
    let log = sample("access.log");
    for (words, flag) in [
        (
            ["suggest", "--per", "0s"],
            "'0s' for '--per <TIME>': `0s` is too short for the period of a rate; use 1ms or more",
        ),
        (
            ["suggest", "--per", "1ns"],
            "`1ns` is too short for the period of a rate; use 1ms or more, such as 1s, 1min or 1h",
        ),
        (["suggest", "--keep", "0%"], "--keep"),
        (["suggest", "--by", "client.ip,client.ip"], "--by"),
        (["replay", "--max-late", "-1"], "--max-late"),
        (["replay", "--max-malformed", "-1"], "--max-malformed"),
        (["replay", "--hit", "-1"], "--hit"),
    ] {
        let told = desk.run(&[&words[..], &[&log]].concat()).code(2).err;
        assert!(told.contains(flag), "{words:?}: {told}");
    }
}

#[test]
fn a_log_of_times_alone_is_told_as_such() {
    let desk = Desk::new();
    let line = |at: &str| serde_json::json!({ "time": at, "client_ip": null }).to_string();
    desk.write("times.jsonl", [line("2026-03-02T09:00:00Z"), line("2026-03-02T09:10:00Z")].join("\n"));
    let replayed = desk.run(&["replay", "times.jsonl", "--rate", "1/s"]).code(2).err;
    assert!(replayed.contains("the log has times and nothing else"), "{replayed}");
    let suggested = desk.run(&["suggest", "times.jsonl"]).code(2).err;
    assert!(suggested.contains("the log has times and nothing else"), "{suggested}");
}
