//! The logs of the table.

use crate::planted::held_out::*;
use crate::planted::plants::*;
use crate::planted::traffic::{Plant, Planted};

macro_rules! both {
    ($($plant:expr),+) => { |log: &mut Planted| { $($plant(log);)+ } };
}

/// The logs, each with the clients planted in it.
pub(crate) static SCENARIOS: &[(&str, Plant)] = &[
    ("people only", nothing),
    ("scrapers", scrapers),
    ("a slow crawler", slow_crawler),
    ("a slow crawler and scrapers", both!(slow_crawler, scrapers)),
    ("thirty addresses that scrape together", many_scrapers),
    ("one who guesses passwords, 20 a minute", guesser),
    ("offices, signed in", offices),
    ("offices, signed in, and scrapers", both!(offices, scrapers)),
    ("offices, in a log without users", both!(offices, Planted::without_users)),
    ("offices and scrapers, in a log without users", both!(offices, scrapers, Planted::without_users)),
    ("offices, signed in, and a crawler no faster than they", both!(offices, slow_crawler)),
    ("the same in a log without users", both!(offices, slow_crawler, Planted::without_users)),
    ("many cron jobs in the same second", cron_together),
    ("one cron job: 40 to 80 requests on the hour", cron_hourly),
    ("one cron job: 30 requests every 5 minutes", cron_often),
    ("that cron job, and scrapers", both!(cron_often, scrapers)),
    ("apps that poll", polling),
    ("apps that poll, and scrapers", both!(polling, scrapers)),
    ("a flash crowd", flash_crowd),
    ("a flash crowd and scrapers", both!(flash_crowd, scrapers)),
    ("customers whose load falls by a power law", power_law),
    ("such customers, and scrapers", both!(power_law, scrapers)),
    ("a scraper that changes its address every ten requests, within two networks", rotating_in_networks),
    ("the same, with an agent that people have", rotating_as_a_browser),
    ("times and addresses alone: scrapers", both!(scrapers, Planted::bare)),
    ("times and addresses alone: a slow crawler", both!(slow_crawler, Planted::bare)),
    ("times and addresses alone: offices", both!(offices, Planted::bare)),
    ("times and addresses alone: apps that poll", both!(polling, Planted::bare)),
    ("times and addresses alone: the cron job of every 5 minutes", both!(cron_often, Planted::bare)),
    ("times and addresses alone: the customers", both!(power_law, Planted::bare)),
    ("an office of two hundred, in a log without users", large_office),
    ("the same, times and addresses alone", both!(large_office, Planted::bare)),
    ("apps that poll three paths every 5 seconds or so, and scrapers", both!(polling_unevenly, scrapers)),
    ("one who looks for holes, once a second", scanner),
    (
        "offices and scrapers, without users, images or scripts",
        both!(offices, scrapers, Planted::without_users, Planted::without_parts),
    ),
    ("a scraper that changes its address, each of another network", rotating_everywhere),
    ("the same, with an agent that people have", rotating_unseen),
    ("one who searches 20 times a minute for hours", searcher),
    ("an app of three hundred people that asks for things of their own", app_with_ids),
    ("a crawler that loads images and scripts as a browser does", crawler_as_a_browser),
    ("a partner that imports forty new things every ten minutes", importer),
    ("a server that sends events as they happen, up to sixty at once", webhooks),
    // These two were written after the method was final, and have not influenced it.
    ("health checks, one a second", health_checks),
    ("a backup that fetches two thousand pages once", backup),
    // These were written after others had tried the method on logs of their own, and the method was corrected for
    // them.
    (
        "heavy pages and scrapers at 5 to 8 a second, times in whole seconds",
        both!(heavy_pages, fast_scrapers, Planted::in_whole_seconds),
    ),
    ("the same with milliseconds", both!(heavy_pages, fast_scrapers)),
    (
        "heavy pages and one who looks for holes at 8 a second, times in whole seconds",
        both!(heavy_pages, fast_scanner, Planted::in_whole_seconds),
    ),
    (
        "everybody signs in, and one customer runs wild",
        both!(power_law, runaway, Planted::everybody_signs_in),
    ),
    ("everybody signs in, and nobody runs wild", both!(power_law, Planted::everybody_signs_in)),
    ("a partner that asks for two hundred different things every half hour", partner),
    ("an office of a hundred with a scraper inside, in a log without users", office_with_a_scraper),
    // These were written after the method had been corrected for all above, and have not influenced it.
    ("a home of three with a scraper inside", home_with_a_scraper),
    (
        "an office of thirty with a scraper inside, whose browser others there have",
        office_with_a_disguised_scraper,
    ),
    ("an office of sixty with one inside who looks for holes", office_with_a_scanner),
    ("an office of eighty with one browser", office_of_one_browser),
    ("a partner that asks for eight hundred different things every hour", hourly_partner),
    ("one who asks for a thing three hundred times at once every 10 seconds", flood_on_a_timer),
    ("the same, and the partner", both!(flood_on_a_timer, hourly_partner)),
    ("a crawler that loads images and scripts, a page every 10 to 25 seconds", slow_crawler_as_a_browser),
    ("the same, times in whole seconds", both!(slow_crawler_as_a_browser, Planted::in_whole_seconds)),
    ("a screen that shows sixty pages in turn", screen),
    ("one who reads all day", all_day_reader),
    ("the partner of every half hour, and scrapers", both!(partner, scrapers)),
];
