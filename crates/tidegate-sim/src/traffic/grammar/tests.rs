//! Mistakes in lines of traffic.

use crate::traffic::Traffic;

#[test]
fn mistakes_name_their_place_and_the_nearest_word() {
    let rows = [
        ("", "traffic, column 1: a segment (steady, burst, ramp, poisson or idle) is missing"),
        (
            "stedy 1/s 1s",
            "traffic, column 1: `stedy` is not a kind of traffic; did you mean `steady`? use steady, burst, ramp, poisson, idle",
        ),
        ("idle 1s, steady 1/s", "traffic, column 20: a length of time, such as 1min, is missing"),
        (
            "steady 100 1s",
            "traffic, column 8: \"100\" does not say per what; write 100/s, 100/min or 100/day",
        ),
        (
            "steady 1/s 1x",
            "traffic, column 12: unknown unit \"x\"; use ns, us, ms, s, min, h, day, week, month or year",
        ),
        (
            "burst 5,steady 1000000000/s 366d",
            "traffic, column 9: with this segment it is 31622400000000005 requests; use at most 1000000000",
        ),
        ("burst 0", "traffic, column 7: count `0` is not a whole number from 1 to 1000000000"),
        (
            "burst 5 keys zip:1:2",
            "traffic, column 14: `zip:1:2` is not a choice of keys; did you mean `zipf`? use uniform:N or zipf:S:N",
        ),
        (
            "burst 5 kyes uniform:3",
            "traffic, column 9: `kyes` is not an option; did you mean `keys`? use keys, key, cost, taking, failing, with, priority",
        ),
        (
            "burst 5 takng 20ms",
            "traffic, column 9: `takng` is not an option; did you mean `taking`? use keys, key, cost, taking, failing, with, priority",
        ),
        ("burst 5 taking", "traffic, column 15: a time, such as 20ms, is missing"),
        (
            "burst 5 taking 20ms..40x",
            "traffic, column 22: unknown unit \"x\"; use ns, us, ms, s, min, h, day, week, month or year",
        ),
        (
            "burst 5 taking 40ms..20ms",
            "traffic, column 16: `40ms..20ms` begins with the longer time; write the shorter one first",
        ),
        (
            "burst 5 taking exponentail:20ms",
            "traffic, column 16: `exponentail` is not a spread of times; did you mean `exponential`? use 20ms, 20ms..400ms or exponential:50ms",
        ),
        (
            "burst 5 taking exponential:0s",
            "traffic, column 28: `0s` is not a span to simulate; use 1ns to 366d",
        ),
        (
            "burst 5 taking 5ms failing 1% taking 6ms",
            "traffic, column 31: `taking` is in this segment twice; write it once",
        ),
        (
            "burst 5 failing 1% failing 2%",
            "traffic, column 20: `failing` is in this segment twice; write it once",
        ),
        ("burst 5 cost 1 cost 2", "traffic, column 16: `cost` is in this segment twice; write it once"),
        ("burst 5 key a key a", "traffic, column 15: `key` is in this segment twice; write it once"),
        (
            "burst 5 keys uniform:3 key a",
            "traffic, column 24: this segment has `keys` and `key`; write one of them",
        ),
        (
            "burst 5 wiht request.path=/",
            "traffic, column 9: `wiht` is not an option; did you mean `with`? use keys, key, cost, taking, failing, with, priority",
        ),
        ("burst 5 with", "traffic, column 13: an attribute, such as request.path=/login, is missing"),
        (
            "burst 5 with /login",
            "traffic, column 14: `/login` is not an attribute; write NAME=VALUE, such as request.path=/login",
        ),
        (
            "burst 5 with =a",
            "traffic, column 14: `=a` is not an attribute; write NAME=VALUE, such as request.path=/login",
        ),
        (
            "burst 5 with request.paht=/",
            "traffic, column 14: no policy reads `request.paht`; write request.path",
        ),
        (
            "burst 5 with a=1 cost 2 with a=2",
            "traffic, column 30: `a` is in this segment twice; write it once",
        ),
        (
            "burst 5 priority high",
            "traffic, column 18: `high` is not a priority; use critical-plus, critical, sheddable-plus or sheddable",
        ),
        (
            "burst 5 priority critical priority critical",
            "traffic, column 27: `priority` is in this segment twice; write it once",
        ),
        (
            "burst 5 failing 130%",
            "traffic, column 17: `130%` is not a share of requests; use 0% to 100%, such as 30% or 0.5%, with four decimals at most",
        ),
        (
            "burst 5 failing 0.3",
            "traffic, column 17: `0.3` is not a share of requests; use 0% to 100%, such as 30% or 0.5%, with four decimals at most",
        ),
    ];
    for (text, want) in rows {
        assert_eq!(text.parse::<Traffic>().unwrap_err().to_string(), want, "{text}");
    }
}
