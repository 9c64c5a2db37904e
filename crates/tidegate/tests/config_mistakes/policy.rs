//! The mistakes of a single policy.

use super::{policy, yaml};

#[test]
fn mistakes_of_a_policy() {
    for (lines, expected) in [
        (&["limit: { rate: 100/s }"][..], &[][..]),
        (
            &["limit: { rate: 100/M }"][..],
            &["t:5:20  error  policy \"p\": rate: \"M\" could be minute or month; write min or month"][..],
        ),
        (
            &["limit: { rate: 100 }"][..],
            &[
                "t:5:20  error  policy \"p\": rate: \"100\" does not say per what; write 100/s, 100/min or 100/day",
            ][..],
        ),
        (
            &["limit: { rate: 0/s }"][..],
            &[
                "t:5:20  error  policy \"p\": rate: \"0/s\" lets nothing pass; use 1 or more, or access.deny to refuse everyone",
            ][..],
        ),
        (
            &["limit: { rate: 1/fortnight }"][..],
            &[
                "t:5:20  error  policy \"p\": rate: unknown unit \"fortnight\"; use ns, us, ms, s, min, h, day, week, month or year",
            ][..],
        ),
        (
            &["limit: { rate: 1/400year }"][..],
            &["t:5:20  error  policy \"p\": rate: \"1/400year\" is longer than 146 years"][..],
        ),
        (
            &["limit: { rate: [1/s] }"][..],
            &["t:5:20  error  policy \"p\": rate is a rate as 100/s, found a list; write rate: 1/s"][..],
        ),
        (
            &["limit: { burst: 2 }"][..],
            &["t:5:12  error  policy \"p\": limit has no rate; write rate: 10/s"][..],
        ),
        (
            &["limit: { requests: 10, per: minute }"],
            &[
                "t:5:14  error  policy \"p\": unknown key \"requests\" in limit; write limit: { rate: 10/min }",
                "t:5:28  error  policy \"p\": unknown key \"per\" in limit; write limit: { rate: 10/min }",
            ],
        ),
        (
            &["limit: { rate: 1/s, burts: 2 }"][..],
            &["t:5:25  error  policy \"p\": unknown key \"burts\" in limit; did you mean \"burst\"?"][..],
        ),
        (
            &["limit: { rate: 1/s, fnord: 2 }"][..],
            &[
                "t:5:25  error  policy \"p\": unknown key \"fnord\" in limit; possible with gcra are algorithm, rate, burst, max_wait, overrides, replace, keep_for, follows",
            ][..],
        ),
        (
            &["limit: { algorithm: concurrency, max: 2, fnord: 2 }"][..],
            &[
                "t:5:46  error  policy \"p\": unknown key \"fnord\" in limit; possible with concurrency are algorithm, replace, max, ttl, keep_for",
            ][..],
        ),
        (
            &["limit: { rate: 1/s, burst: 0 }"][..],
            &["t:5:32  error  policy \"p\": burst: 0 is out of range; use 1 to 2^60"][..],
        ),
        (
            &["limit: { rate: 1/s, burst: many }"][..],
            &["t:5:32  error  policy \"p\": burst: \"many\" is not a whole number; use 1 to 2^60"][..],
        ),
        (
            &["limit: { rate: 1/s, burst: 1.5 }"][..],
            &["t:5:32  error  policy \"p\": burst: \"1.5\" is not a whole number; use 1 to 2^60"][..],
        ),
        (
            &["limit: { rate: 1/s, burst: -3 }"][..],
            &["t:5:32  error  policy \"p\": burst: \"-3\" is not a whole number; use 1 to 2^60"][..],
        ),
        (
            &["limit: { rate: 1/s, rate: 2/s }"][..],
            &["t:5:25  error  policy \"p\": key \"rate\" is given twice, first in line 5"][..],
        ),
        (
            &["limit: { algorithm: gcar, rate: 1/s }"][..],
            &["t:5:25  error  policy \"p\": algorithm: unknown word \"gcar\"; did you mean \"gcra\"?"][..],
        ),
        (
            &["limit: { algorithm: concurrency, max: 64, adaptive: gradient }"][..],
            &[
                "t:5:57  error  policy \"p\": adaptive is not a key here; write algorithm: adaptive, and its law as law: hill-climb",
            ][..],
        ),
        (
            &["limit: { algorithm: fixed-window, rate: 1/s, burst: 2 }"][..],
            &[
                "t:5:50  error  policy \"p\": burst does not belong to fixed-window; it belongs to gcra, token-bucket, leaky-bucket, warm-up, x-time",
            ][..],
        ),
        (
            &["limit: { rate: 1/s, start: 0 }"][..],
            &[
                "t:5:25  error  policy \"p\": start does not belong to gcra; it belongs to token-bucket, adaptive",
            ][..],
        ),
        (
            &["limit: { algorithm: token-bucket, rate: 1/s, burst: 5, start: 9 }"][..],
            &[
                "t:5:45  error  policy \"p\": start 9 is above the burst, and a bucket holds 5; write start: 5",
            ][..],
        ),
        (
            &["limit: { algorithm: token-bucket, rate: 1/h, refill: hourly }"][..],
            &[
                "t:5:58  error  policy \"p\": refill: unknown word \"hourly\"; possible are continuous, interval, aligned",
            ][..],
        ),
        (
            &["limit: { algorithm: token-bucket, rate: 1/h, refill: INTERVALLY_ALIGNED }"][..],
            &["t:5:58  error  policy \"p\": refill: unknown word \"INTERVALLY_ALIGNED\"; write aligned"][..],
        ),
        (
            &["limit: { rate: 1/h, refill: aligned }"][..],
            &["t:5:25  error  policy \"p\": refill does not belong to gcra; it belongs to token-bucket"][..],
        ),
        (
            &["limit: { rate: 1/s, calendar: UTC }"][..],
            &["t:5:25  error  policy \"p\": calendar does not belong to gcra; it belongs to fixed-window"][..],
        ),
        (
            &["limit: { algorithm: fixed-window, rate: 5/day, calendar: Shanghai }"][..],
            &["t:5:62  error  policy \"p\": unknown time zone \"Shanghai\"; did you mean \"Asia/Shanghai\"?"]
                [..],
        ),
        (
            &["limit: { algorithm: fixed-window, rate: 5/day, calendar: Asia/Shangai }"][..],
            &[
                "t:5:62  error  policy \"p\": unknown time zone \"Asia/Shangai\"; did you mean \"Asia/Shanghai\"?",
            ][..],
        ),
        (
            &["limit: { algorithm: fixed-window, rate: 5/day, calendar: Mars }"][..],
            &[
                "t:5:62  error  policy \"p\": unknown time zone \"Mars\"; use an IANA name as Europe/Vienna, UTC or epoch",
            ][..],
        ),
        (
            &["limit: { algorithm: fixed-window, rate: 5/2day, calendar: UTC }"][..],
            &[
                "t:5:45  error  policy \"p\": a calendar window of 2 day does not exist; use one s, min, h, day, week, month or year",
            ][..],
        ),
        (
            &["limit: { algorithm: fixed-window, rate: 5/ms, calendar: UTC }"][..],
            &[
                "t:5:45  error  policy \"p\": a calendar window of ms does not exist; use one s, min, h, day, week, month or year",
            ][..],
        ),
        (
            &["limit: { algorithm: sliding-window, rate: 5/s, buckets: 5000 }"][..],
            &["t:5:61  error  policy \"p\": buckets: 5000 is out of range; use 1 to 1024"][..],
        ),
        (
            &["limit: { algorithm: sliding-log, rate: 5000k/s }"][..],
            &[
                "t:5:44  error  policy \"p\": count 5000000 is too many for a log, which keeps each arrival; use at most 16384, or `sliding-window`, which costs the same for every limit",
            ][..],
        ),
        (
            &["limit: { algorithm: warm-up, rate: 5/s }"][..],
            &["t:5:12  error  policy \"p\": warm-up needs warm_up; write warm_up: 10s"][..],
        ),
        (
            &["limit: { algorithm: leaky-bucket, rate: 5/s, queue: 10 }"][..],
            &[
                "t:5:57  error  policy \"p\": a queue needs max_wait: how long a request may wait in it; write max_wait: 1s",
            ][..],
        ),
        (
            &["limit: { algorithm: leaky-bucket, rate: 5/s, queue: 10, max_wait: 1s, burst: 3 }"][..],
            &[
                "t:5:75  error  policy \"p\": burst and queue exclude each other; slack says how many unused requests a pause saves up for a queue",
            ][..],
        ),
        (
            &["limit: { algorithm: leaky-bucket, rate: 5/s, slack: 3 }"][..],
            &["t:5:50  error  policy \"p\": slack needs queue: only a queue saves up"][..],
        ),
        (
            &["limit: { algorithm: leaky-bucket, rate: 5/s, queue: 10, max_wait: 1s }", "cost: 12"][..],
            &[
                "t:5:45  error  policy \"p\": a request may cost 12, and leaky-bucket 5/s queue 10 never grants more than 11 at once",
            ][..],
        ),
        (
            &["limit: { rate: 5/s, max_wait: 10M }"][..],
            &["t:5:35  error  policy \"p\": max_wait: \"M\" could be minute or month; write min or month"][..],
        ),
        (
            &["limit: { rate: 5/s, rate_by: user.tier }"][..],
            &[
                "t:5:25  error  policy \"p\": unknown key \"rate_by\" in limit; write rate: { by: user.tier, values: { gold: 100/s }, otherwise: 5/s }",
            ][..],
        ),
        (
            &["limit: { rate: { by: user.tier, values: { a: 1/s } } }"][..],
            &["t:5:20  error  policy \"p\": rate has no otherwise; write otherwise: 10/s for everybody else"]
                [..],
        ),
        (
            &["limit: { rate: { by: user.tier, values: { a: 1/M }, otherwise: 1/s } }"][..],
            &[
                "t:5:50  error  policy \"p\": rate.values.a: \"M\" could be minute or month; write min or month",
            ][..],
        ),
        (
            &["limit: { rate: 5/s }", "cost: 6"][..],
            &[
                "t:5:20  error  policy \"p\": a request may cost 6, and gcra 5/s never grants more than 5 at once",
            ][..],
        ),
        (
            &["limit: { rate: 5/s }", "cost: 0"][..],
            &["t:6:11  error  policy \"p\": cost: 0 is not a whole number of 1 or more"][..],
        ),
        (
            &["limit: { rate: 5/s }", "cost: .nan"][..],
            &["t:6:11  error  policy \"p\": cost: .nan is not a whole number of 1 or more"][..],
        ),
        (
            &["limit: { rate: 5/s }", "cost: -.Inf"][..],
            &["t:6:11  error  policy \"p\": cost: -.inf is not a whole number of 1 or more"][..],
        ),
        (
            &["limit: { algorithm: gcra, rate: 5/s, burst: 9223372036854775807 }"][..],
            &["t:5:49  error  policy \"p\": burst: \"9223372036854775807\" is out of range; use 1 to 2^60"][..],
        ),
        (
            &[
                "limit: { rate: 5/s }",
                "cost: { by: request.method, values: { GET: 1, POST: 50 }, otherwise: 1 }",
            ][..],
            &[
                "t:5:20  error  policy \"p\": a request may cost 50, and gcra 5/s never grants more than 5 at once",
            ][..],
        ),
        (
            &["limit: { rate: 5/s }", "cost: { values: { GET: 0 }, otherwise: 1 }"][..],
            &[
                "t:6:11  error  policy \"p\": cost has no by",
                "t:6:28  error  policy \"p\": cost.values.GET: 0 is out of range; use 1 to 2^60",
            ][..],
        ),
        (
            &["limit: { rate: 50/s }", "cost: { by: request.method, values: { GET: 1, POST: 50 } }"][..],
            &[
                "t:6:11  error  policy \"p\": cost has no otherwise, the cost of requests with another value or without one; \
                 write otherwise: 1, or the largest of its values",
            ][..],
        ),
        (
            &[
                "limit: { rate: 50/s }",
                "cost: { estimate: { by: user.plan, values: { pro: 5 } }, settle: llm.total }",
            ][..],
            &[
                "t:6:23  error  policy \"p\": estimate has no otherwise, the cost of requests with another value or without \
                 one; write otherwise: 1, or the largest of its values",
            ][..],
        ),
        (
            &["limit: { rate: 5/s }", "when: request.header.x-size > 10"][..],
            &[
                "t:6:11  error  policy \"p\": when: request.header.x-size is an attribute of a request, and a condition is on a \
                 number of this process, as cpu above 80%; select requests by match: { attributes: { request.header.x-size: VALUE } \
                 }, or compare in the cost, as cost: 'request.header.x-size > 10 ? 10 : 1'",
            ][..],
        ),
        (
            &["limit: { rate: 5/s }", "when: llm.tokens above 10"][..],
            &[
                "t:6:11  error  policy \"p\": when: llm.tokens is an attribute of a request, and a condition is on a number of \
                 this process, as cpu above 80%; select requests by match: { attributes: { llm.tokens: VALUE } }, or compare in \
                 the cost, as cost: 'llm.tokens > 10 ? 10 : 1'",
            ][..],
        ),
        (
            &["limit: { rate: 5/s }", "when: 'cpu >= 80%'"][..],
            &["t:6:11  error  policy \"p\": when: \"cpu >= 80%\" is not a condition; write cpu above 80%"][..],
        ),
        (
            &["limit: { rate: 5/s }", "by: ['int(user.level) > 3']"][..],
            &[
                "t:6:10  error  policy \"p\": by: \"int(user.level) > 3\" is an expression, which only a cost can be; write the \
                 name of one attribute, as user.level",
            ][..],
        ),
        (
            &["limit: { rate: { by: 'user.level + 1', values: { '3': 5/s }, otherwise: 1/s } }"][..],
            &[
                "t:5:26  error  policy \"p\": rate.by: \"user.level + 1\" is an expression, which only a cost can be; write the \
                 name of one attribute, as user.level",
            ][..],
        ),
        (
            &["limit: { rate: 5/s }", "match: { attributes: { llm.tokens: '> 10' } }"][..],
            &[
                "t:6:40  warn   policy \"p\": match.attributes: \"> 10\" is compared as text: a match has values, as [a, b], \
                 and patterns, as a*, and no comparisons; let the caller send the class of the number, as llm.tokens: high",
            ][..],
        ),
        (
            &["limit: { rate: 5/s }", "by: [user.id, user.id]"][..],
            &["t:6:19  error  policy \"p\": user.id is named twice in by"][..],
        ),
        (
            &["limit: { rate: 5/s, overrides: [{ key: { user.id: vip }, rate: 9/s }] }"][..],
            &["t:5:46  error  policy \"p\": user.id is not part of the key; by is []"][..],
        ),
        (
            &["limit: { rate: 5/s, overrides: [{ key: { a: 1, b: 2 }, rate: 9/s }, { rate: 9/s }] }"][..],
            &[
                "t:5:73  error  policy \"p\": override has no key; name one attribute of `by`, as key: { user.id: vip }",
            ][..],
        ),
        (
            &[
                "by: a",
                "limit: { rate: 5/s, overrides: [{ key: { a: 1 }, rate: 9/s }, { key: { a: 1 }, rate: 8/s }] }",
            ][..],
            &["t:6:74  error  policy \"p\": a=1 is overridden twice"][..],
        ),
        (
            &["mode: shadwo", "limit: { rate: 5/s }"][..],
            &["t:5:11  error  policy \"p\": mode: unknown word \"shadwo\"; did you mean \"shadow\"?"][..],
        ),
        (
            &["mode: on", "limit: { rate: 5/s }"][..],
            &["t:5:11  error  policy \"p\": mode: unknown word \"on\"; write enforce"][..],
        ),
        (
            &["near_limit: 0.8", "limit: { rate: 5/s }"][..],
            &["t:5:17  error  policy \"p\": near_limit: \"0.8\" is not a share; use 1% to 100%"][..],
        ),
        (
            &["deny: { status: 200 }", "limit: { rate: 5/s }"][..],
            &["t:5:21  error  policy \"p\": deny.status: 200 is out of range; use 400 to 599"][..],
        ),
        (
            &["access: { allow: [10.0.0.0/33, nonsense] }", "limit: { rate: 5/s }"][..],
            &[
                "t:5:23  error  policy \"p\": access.allow: \"10.0.0.0/33\" is neither a network such as 10.0.0.0/8 nor an attribute such as user.id=42",
                "t:5:36  error  policy \"p\": access.allow: \"nonsense\" is neither a network such as 10.0.0.0/8 nor an attribute such as user.id=42",
            ][..],
        ),
        (
            &["match: { path: api/** }", "limit: { rate: 5/s }"][..],
            &["t:5:20  error  policy \"p\": match.path: \"api/**\": a path pattern starts with / or **"][..],
        ),
        (
            &["match: { path: [/a**, '/{a'], host: '' }", "limit: { rate: 5/s }"][..],
            &[
                "t:5:21  error  policy \"p\": match.path: \"/a**\": ** stands for whole segments; write /**/ or /** with nothing beside it",
                "t:5:27  error  policy \"p\": match.path: \"/{a\": braces do not pair; write {a,b}, not nested",
                "t:5:41  error  policy \"p\": match.host: an empty pattern matches nothing; leave it out to match everything",
            ][..],
        ),
        (
            &["match: { method: { a: b } }", "limit: { rate: 5/s }"][..],
            &["t:5:22  error  policy \"p\": match.method is a text, found a map"][..],
        ),
        (
            &["match: [/a]", "limit: { rate: 5/s }"][..],
            &["t:5:12  error  policy \"p\": match is a map, found a list; write { path: [/a] }"][..],
        ),
        (
            &["limit: 2/min"][..],
            &["t:5:12  error  policy \"p\": limit is a map, found a text; write { rate: 2/min }"][..],
        ),
        (&["limit: fast"][..], &["t:5:12  error  policy \"p\": limit is a map, found a text"][..]),
        (
            &["limit: []"][..],
            &["t:5:5  error  policy \"p\": limit is an empty list; write limit: { rate: 10/s }"][..],
        ),
        (
            &["limit: { rate: 5/s }", "limits: [{ rate: 1/s }]"][..],
            &[
                "t:6:5  error  policy \"p\": unknown key \"limits\" in policy; write limit: [{ rate: 10/s }, { rate: 100/min }], a list under the same word",
            ][..],
        ),
        (
            &["limit:"][..],
            &["t:5:5  error  policy \"p\": limit has no value; give it one or leave it out"][..],
        ),
        (
            &["by: a"][..],
            &["t:4:5  error  policy \"p\": policy has no limit; write limit: { rate: 10/s }"][..],
        ),
        // Regression: it was told to have no limit too.
        (
            &["limits: [{ rate: 5/s }]"][..],
            &[
                "t:5:5  error  policy \"p\": unknown key \"limits\" in policy; write limit: [{ rate: 10/s }, { rate: 100/min }], a list under the same word",
            ][..],
        ),
        (
            &[
                "breaker: { failure_rate: 50% }",
                "deadline: { respect: true }",
                "share: leased",
                "limit: { rate: 1/s }",
            ][..],
            &[
                "t:5:14  error  policy \"p\": breaker is not a key here; write limit: { algorithm: breaker, ... }",
                "t:6:15  error  policy \"p\": deadline is a span of time as 200ms, found a map",
                "t:7:12  error  policy \"p\": share: leased needs a store that several nodes have in common, and `store.kind: disk` is this process's own; write share: local, or leave it out",
            ][..],
        ),
    ] {
        assert_eq!(policy(lines), expected, "{lines:?}");
    }
}

#[test]
fn a_store_without_a_disk_is_never_strict() {
    let text = "version: 1\ndefaults: { durable: strict }\npolicies: [{ name: p, limit: { rate: 1/s }, durable: interval }]\n";
    assert_eq!(
        yaml(text),
        [
            "t:2:22  error  defaults.durable: strict needs a store that is on disk for certain; write store.kind: disk"
        ]
    );
    assert_eq!(
        yaml(&format!("{text}store: {{ kind: memory }}\n")),
        [
            "t:2:22  error  defaults.durable: strict needs a store on disk, and `store.kind: memory` is none; write durable: interval, or leave it out"
        ]
    );
    assert!(yaml(&format!("{text}store: {{ kind: disk }}\n")).is_empty());
    assert_eq!(
        yaml(&text.replace("strict", "interval").replace("durable: interval }]", "durable: twice }]")),
        ["t:3:54  error  policy \"p\": durable: unknown word \"twice\"; possible are interval, strict"]
    );
}

#[test]
fn a_store_of_one_process_shares_nothing() {
    let own = "needs a store that several nodes have in common, and `store.kind: disk` is this process's own; write share: local, or leave it out";
    for word in ["split", "central", "leased"] {
        let text = format!(
            "version: 1\ndefaults: {{ share: {word} }}\npolicies: [{{ name: p, limit: {{ rate: 1/s }} }}]\n"
        );
        assert_eq!(yaml(&text), [format!("t:2:20  error  defaults.share: {word} {own}")]);
    }
    let text = "version: 1\npolicies: [{ name: p, limit: { rate: 1/s }, share: shared }]\n";
    assert_eq!(
        yaml(text),
        [
            "t:2:52  error  policy \"p\": share: unknown word \"shared\"; possible are local, split, central, leased"
        ]
    );
}
