//! The contents of asks, in the forms of the protocols and of the gate.

use serde_json::{Map, Value, json};
use tidegate::Cost;
use tidegate::policy::Descriptor;

use crate::args::Asks;
use crate::exit::Mistake;

/// The largest number in CL.THROTTLE, as on the server.
const MOST: u64 = 1 << 60;

/// The attribute that becomes the domain in Envoy's requests.
const DOMAIN: &str = "rls.domain";

/// Except the key.
#[derive(Clone, Debug)]
pub(super) struct Question {
    /// The attributes that hold the key.
    by: Vec<String>,
    attributes: Vec<(String, String)>,
    cost: Option<Cost>,
    pub(super) policy: Option<String>,
    pub(super) throttle: Option<Throttle>,
    /// Different runs use different keys.
    seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Throttle {
    pub(super) max_burst: u64,
    pub(super) count: u64,
    /// The period in seconds.
    pub(super) period: u64,
}

impl Question {
    /// Reads the contents from the flags.
    ///
    /// # Errors
    /// If an attribute is given twice, there is none for the key, the cost is 0, or the numbers of CL.THROTTLE are
    /// invalid.
    pub(super) fn read(asks: &Asks, expect: Option<&String>, seed: u64) -> Result<Self, Mistake> {
        let by = match asks.throttle {
            // CL.THROTTLE has a key and no attributes.
            Some(_) => vec!["key".to_owned()],
            None => asks.by.iter().filter(|name| !name.is_empty()).cloned().collect::<Vec<_>>(),
        };
        if by.is_empty() {
            return Err(Mistake("--by names no attribute; write client.ip, or user.id".to_owned()));
        }
        let names: Vec<&String> = by.iter().chain(asks.attributes.iter().map(|(name, _)| name)).collect();
        if let Some(twice) = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
            return Err(Mistake(format!(
                "{} is given twice, by --by or --attr; a request has one value of it",
                twice.1
            )));
        }
        let no_cost = || Mistake("--cost 0 asks for nothing; use 1 or more".to_owned());
        let cost = asks.cost.map(|cost| Cost::new(cost).ok_or_else(no_cost)).transpose()?;
        Ok(Self {
            by,
            attributes: asks.attributes.clone(),
            cost,
            policy: expect.cloned(),
            throttle: asks.throttle.as_deref().map(Throttle::read).transpose()?,
            seed,
        })
    }

    pub(super) fn by(&self) -> &[String] {
        &self.by
    }

    /// A domain, all policies, and a cost of 32 bits.
    ///
    /// # Errors
    /// If the question cannot be asked that way.
    pub(super) fn as_envoy_asks(&mut self) -> Result<(), Mistake> {
        if self.policy.is_some() {
            let what = "--expect checks a single policy, which Envoy's protocol cannot do; leave it out, or use http:// or resp://";
            return Err(Mistake(what.to_owned()));
        }
        if self.cost.is_some_and(|cost| cost.units() > u64::from(u32::MAX)) {
            return Err(Mistake(format!("--cost: Envoy's protocol has costs of {} at most", u32::MAX)));
        }
        if !self.attributes.iter().any(|(name, _)| name == DOMAIN) {
            self.attributes.push((DOMAIN.to_owned(), "bench".to_owned()));
        }
        Ok(())
    }

    /// The domain, the entries of the descriptor, and the cost; 0 leaves it to the policies.
    #[cfg(feature = "grpc")]
    pub(super) fn envoy(&self, key: u32) -> (&str, Vec<(String, String)>, u32) {
        let domain = self.attributes.iter().find(|(name, _)| name == DOMAIN);
        let domain = domain.map_or("", |(_, value)| value);
        let entries = self.pairs(key).filter(|(name, _)| *name != DOMAIN);
        let entries = entries.map(|(name, value)| (name.to_owned(), value)).collect();
        let cost = self.cost.map_or(0, |cost| u32::try_from(cost.units()).unwrap_or(u32::MAX));
        (domain, entries, cost)
    }

    /// Returns the cost of each ask; `None` leaves it to the policies.
    pub(super) fn cost(&self) -> Option<Cost> {
        self.cost
    }

    /// An address is in a different private 64-bit network (RFC 4193) for each key, so that every policy sees different
    /// keys. Other attributes are names.
    fn value(&self, name: &str, key: u32) -> String {
        let seed = self.seed & 0xff_ffff;
        if name.ends_with(".ip") || name == "ip" {
            return format!("fd{:02x}:{:x}:{:x}:{:x}::1", seed >> 16, seed & 0xffff, key >> 16, key & 0xffff);
        }
        format!("bench-{seed:06x}-{key}")
    }

    fn pairs(&self, key: u32) -> impl Iterator<Item = (&str, String)> {
        let of_key = self.by.iter().map(move |name| (name.as_str(), self.value(name, key)));
        of_key.chain(self.attributes.iter().map(|(name, value)| (name.as_str(), value.clone())))
    }

    pub(super) fn descriptor(&self, key: u32) -> Descriptor<'_> {
        self.pairs(key).fold(Descriptor::new(), |request, (name, value)| request.with(name, value))
    }

    pub(super) fn body(&self, key: u32) -> String {
        let attributes: Map<String, Value> =
            self.pairs(key).map(|(name, value)| (name.to_owned(), value.into())).collect();
        let mut body = json!({ "attributes": attributes });
        if let Some(cost) = self.cost {
            body["cost"] = cost.units().into();
        }
        if let Some(policy) = &self.policy {
            body["policies"] = json!([policy]);
        }
        body.to_string()
    }

    /// Returns the words of the `TG.CHECK` or `CL.THROTTLE` command.
    pub(super) fn words(&self, key: u32) -> Vec<String> {
        if let Some(throttle) = self.throttle {
            let key = self.value("key", key);
            let numbers =
                [throttle.max_burst, throttle.count, throttle.period, self.cost.unwrap_or_default().units()];
            let numbers = numbers.iter().map(u64::to_string);
            return ["CL.THROTTLE".to_owned(), key].into_iter().chain(numbers).collect();
        }
        let policy = self.policy.as_deref().unwrap_or("*");
        let mut words = vec!["TG.CHECK".to_owned(), policy.to_owned()];
        words.extend(self.pairs(key).flat_map(|(name, value)| [name.to_owned(), value]));
        if let Some(cost) = self.cost {
            words.extend(["COST".to_owned(), cost.units().to_string()]);
        }
        words
    }
}

impl Throttle {
    fn read(text: &str) -> Result<Self, Mistake> {
        let numbers: Vec<u64> = text.split([' ', ',']).filter_map(|word| word.parse().ok()).collect();
        let count = text.split([' ', ',']).count();
        match numbers[..] {
            [max_burst, count @ 1..=MOST, period @ 1..=MOST] if max_burst < MOST && numbers.len() == 3 => {
                Ok(Self { max_burst, count, period })
            }
            _ => Err(Mistake(format!(
                "--throttle `{text}` has {count} words, and needs three whole numbers: the largest burst after the first request, the count, and the period in \
                 seconds, as '15 30 60'"
            ))),
        }
    }

    pub(super) fn file(self) -> String {
        let Self { max_burst, count, period } = self;
        let burst = max_burst + 1;
        format!(
            "{{version: 1, policies: [{{name: throttle, by: [key], limit: {{algorithm: gcra, rate: {count}/{period}s, burst: {burst}}}}}]}}"
        )
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn question(words: &str) -> Result<Question, Mistake> {
        let words = ["tidegate", "bench", "http://gate"].into_iter().chain(words.split_terminator(';'));
        let crate::args::Verb::Bench(bench) = crate::args::Cli::parse_from(words).verb else {
            unreachable!()
        };
        Question::read(&bench.asks, None, 0x12_3456_789a)
    }

    #[test]
    fn each_key_is_a_network_or_a_name() {
        let asked = question("--by;client.ip,user.id;--attr;request.path=/a;--cost;2").unwrap();
        let body = r#"{"attributes":{"client.ip":"fd56:789a:1:2::1","request.path":"/a","user.id":"bench-56789a-65538"},"cost":2}"#;
        assert_eq!(asked.body(65_538), body);
        let words = "TG.CHECK * client.ip fd56:789a:0:0::1 user.id bench-56789a-0 request.path /a COST 2";
        assert_eq!(asked.words(0).join(" "), words);
        assert!(asked.value("client.ip", 999_999).parse::<std::net::Ipv6Addr>().is_ok());
        let throttled = question("--throttle;15 30 60").unwrap();
        assert_eq!(throttled.words(7).join(" "), "CL.THROTTLE bench-56789a-7 15 30 60 1");
    }

    #[test]
    fn what_makes_no_question_is_told() {
        for (words, says) in [
            ("--by;a;--attr;a=1", "a is given twice"),
            ("--by;,", "--by names no attribute"),
            ("--cost;0", "--cost 0 asks for nothing"),
            ("--throttle;1 2", "--throttle `1 2` has 2 words"),
            ("--throttle;1 0 60", "--throttle `1 0 60` has 3 words, and needs three whole numbers"),
        ] {
            let told = question(words).unwrap_err().to_string();
            assert!(told.starts_with(says), "{words}: {told}");
        }
    }
}
