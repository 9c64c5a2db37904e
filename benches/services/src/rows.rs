//! The rows: a service, its load, and the bars for Tidegate's default.

use std::time::Duration;

use crate::load::Manners;
use crate::service::{Protection, Work, turns_of};

/// An answer that comes later than this after the arrival is of no use.
pub(crate) const IN_TIME: Duration = Duration::from_secs(1);

/// The number that people guess for a limit, with which the default starts too.
const GUESS: usize = 20;

/// How long a request hangs.
const HANG: Duration = Duration::from_secs(5);

/// How long callers wait that do not say for how long, where some requests hang: so long that no caller ends a hang by
/// hanging up.
const LONG: Duration = Duration::from_secs(6);

/// A service under its load.
#[derive(Debug)]
pub(crate) struct Row {
    /// Words of the command line select rows by this name. Rows with one name run at the same time.
    pub(crate) name: &'static str,
    pub(crate) title: String,
    pub(crate) work: Work,
    /// Requests per second.
    pub(crate) rate: f64,
    /// One in so many requests is odd; zero for none.
    pub(crate) odd: u64,
    /// When the first of them comes.
    pub(crate) odd_from: Duration,
    pub(crate) seconds: u64,
    pub(crate) manners: Manners,
    /// The requests that the service can work on at once, if it has more to do than it can.
    pub(crate) overloaded: Option<usize>,
    /// The contenders run one after the other, since they need much of the processors.
    pub(crate) in_turns: bool,
    /// The protection is in the client.
    pub(crate) in_client: bool,
    pub(crate) contenders: Vec<Contender>,
    /// The least share of Tidegate's default.
    pub(crate) bars: Bars,
}

/// A protection under a row's load.
#[derive(Clone, Debug)]
pub(crate) struct Contender {
    pub(crate) name: String,
    pub(crate) protection: Protection,
    /// Its callers say how long they wait, whatever those of the row do.
    pub(crate) told: bool,
}

/// The least shares that count as good, where there is a bar.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bars {
    pub(crate) in_all: Option<f64>,
    pub(crate) worst_second: Option<f64>,
}

impl Row {
    /// A row of the usual contenders, of which one has the number that is right for the service.
    fn of(name: &'static str, title: impl Into<String>, work: Work, rate: f64, right: usize) -> Self {
        let contender = |name: &str, protection| Contender { name: name.to_owned(), protection, told: false };
        let contenders = vec![
            contender("none", Protection::None),
            contender(&format!("tower, {GUESS}: a guess"), Protection::Tower(GUESS)),
            contender(&format!("tower, {right}: by hindsight"), Protection::Tower(right)),
            contender("Tidegate, default", Protection::Tidegate),
        ];
        Self {
            name,
            title: title.into(),
            work,
            rate,
            odd: 0,
            odd_from: Duration::ZERO,
            seconds: 6,
            manners: Manners { patience: IN_TIME, told: false, rest: IN_TIME },
            overloaded: None,
            in_turns: false,
            in_client: false,
            contenders,
            bars: Bars::default(),
        }
    }

    /// Adds one more contender.
    fn and(mut self, name: &str, protection: Protection, told: bool) -> Self {
        self.contenders.push(Contender { name: name.to_owned(), protection, told });
        self
    }
}

/// All rows, in the order of the table.
pub(crate) fn all() -> Vec<Row> {
    let ms = Duration::from_millis;
    let pool = |places, takes| Work::Pool { places, takes, odd: HANG };
    let mut rows = Vec::new();
    let from_start = ("hang", Duration::ZERO, "");
    let later = ("hang-later", ms(4000), ", from the fifth second on");
    for (odd, places, (name, odd_from, when)) in
        [(10, 204, from_start), (50, 44, from_start), (10, 204, later)]
    {
        for (patience, told, how) in
            [(LONG, false, "no deadline is told"), (IN_TIME, true, "callers say that they wait for 1 s")]
        {
            let title = format!(
                "Half of the capacity: a pool of {places}, 10 ms each, and one request in {odd} hangs for 5 s{when}; {how}"
            );
            rows.push(Row {
                odd,
                odd_from,
                seconds: 12,
                manners: Manners { patience, told, rest: IN_TIME },
                bars: Bars { in_all: Some(0.97), worst_second: Some(0.97) },
                ..Row::of(name, title, pool(places, ms(10)), 200.0, places)
            });
        }
    }
    let most = Bars { in_all: Some(0.99), worst_second: None };
    rows.push(Row {
        seconds: 8,
        bars: most,
        ..Row::of("below-pool", "0.8 of the capacity: a pool of 16, 40 ms each", pool(16, ms(40)), 320.0, 40)
    });
    let blocks = "0.8 of the capacity: 10 ms each, and one request in ten blocks one of the server's two threads for 40 ms";
    rows.push(Row {
        odd: 10,
        seconds: 15,
        bars: most,
        ..Row::of("below-blocking", blocks, Work::Blocks { takes: ms(10), blocks: ms(40) }, 400.0, 256)
    });
    rows.push(
        Row {
            seconds: 10,
            overloaded: Some(8),
            ..Row::of(
                "pool-double",
                "2 times the capacity: a pool of 8, 40 ms each",
                pool(8, ms(40)),
                400.0,
                16,
            )
        }
        .and("Tidegate, default, told 1 s", Protection::Tidegate, true),
    );
    rows.push(Row {
        overloaded: Some(8),
        in_turns: true,
        ..Row::of(
            "pool-tenfold",
            "10 times the capacity: a pool of 8, 40 ms each",
            pool(8, ms(40)),
            2000.0,
            16,
        )
    });
    let computes = Work::Computes { turns: turns_of(ms(4)) };
    rows.push(Row {
        seconds: 8,
        overloaded: Some(1),
        in_turns: true,
        ..Row::of(
            "computing",
            "2 times the capacity: one thread that computes for 4 ms each",
            computes,
            500.0,
            8,
        )
    });
    let client = "2 times the capacity: a client before a remote service of 16 places, 80 ms each";
    rows.push(
        Row {
            seconds: 10,
            overloaded: Some(16),
            in_client: true,
            ..Row::of("client", client, pool(16, ms(80)), 400.0, 32)
        }
        .and("Tidegate, with a deadline of 1 s", Protection::TidegateAndDeadline, false),
    );
    rows
}
