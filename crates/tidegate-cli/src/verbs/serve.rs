//! Runs the decision server.

use std::fmt::Write as _;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tidegate::config::{
    self, Address, Config, DoorName, Format, ForwardAuth, OriginalHeaders, OtlpSettings, Peer, QUICKSTART,
    StoreKind, StoreSettings, TlsSettings,
};
use tidegate_server::{
    OpenStoreError, Ready, Refused, ServeError, Server, ServerOptions, Settings, SharedPolicies, Sight,
    Source, Stopped, TicketKeyError, TicketOptions, Token, TokenError, Tokens, TokensError, check_store,
    check_tls, open_store, otlp_of,
};
use tidegate_sight::{OpenError, Watch};

use crate::args::{MetricsNames, Proxy, Serve, unknown_variables};
use crate::exit::{AlreadyPrinted, Exit, Mistake, no_room};
use crate::features::{self, Feature, Wish};
use crate::log::Log;
use crate::output::Printer;
use crate::policies;

/// How long a stopping server waits until the history is on disk.
const WRITES_WITHIN: Duration = Duration::from_secs(5);

pub(crate) fn run(serve: &Serve, printer: &Printer, log: &Log) -> Result<Exit> {
    let imports = serve.imports.files();
    // Imports replace the default policy file.
    let file = if imports.is_empty() { policies::file(&serve.policies) } else { None };
    if serve.check && !imports.is_empty() {
        let imported = policies::import(&serve.imports, printer)?;
        features::check(wishes(serve), &imported.config)?;
        let has_grpc = serve.grpc.is_some();
        for (_, warning) in policies::as_served(&imported.config, has_grpc) {
            printer.remark(&warning);
        }
        for warning in warnings(serve, &imported.config)? {
            printer.remark(&warning);
        }
        printer.people("The files are fine\n")?;
        return Ok(Exit::Done);
    }
    if serve.check {
        let file = file.unwrap_or_else(|| PathBuf::from(policies::DEFAULT_FILE));
        // The check itself reports the mistakes of an invalid file.
        if let Ok((config, _)) = policies::load(&file)?.outcome {
            features::check(wishes(serve), &config)?;
            store_settings(serve, &config)?;
            for warning in warnings(serve, &config)? {
                printer.remark(&warning);
            }
        }
        return super::config::check(&[file], printer);
    }
    let config = match &file {
        // The server reads the file again, with the same timeout, and logs its warnings.
        Some(file) => read(file, printer, log)?,
        None if !imports.is_empty() => import(serve, printer, log)?,
        None => load(None).map_err(|refused| Mistake(refused.to_string()))?.0,
    };
    features::check(wishes(serve), &config)?;
    let mut options = options(serve, &config)?;
    options.log_lines_dropped = log.dropped();
    let store = store_settings(serve, &config)?;
    log.take_panics();
    let first = imports.first().map(|(_, import)| import.clone());
    let watched = file.clone().or(first).filter(|_| !serve.no_watch);
    let quickstart = file.is_none() && imports.is_empty();
    let proxy = serve.forward_auth;
    let has_grpc = options.grpc.is_some();
    for unknown in unknown_variables() {
        tracing::warn!("{unknown}");
    }
    if quickstart && let Some(beside) = policies::beside() {
        tracing::warn!(
            "no policy file is named, so the quickstart allows each client 5 requests a second and {beside} is not read; \
             did you mean -c {beside}?"
        );
    }
    let load = move |shared: Option<&SharedPolicies>| {
        let loaded = if imports.is_empty() { load(file.as_deref()) } else { load_imports(&imports) };
        let (mut config, mut warnings) = loaded?;
        if let Some(shared) = shared {
            (config, warnings) = shared.over(&config)?;
        }
        warnings.extend(policies::as_served(&config, has_grpc).into_iter().map(|(_, told)| told));
        let mut settings = settings(config, warnings, proxy);
        if quickstart && proxy.is_some() {
            // The quickstart trusts no proxies. With a proxy named, all its callers would then be one client.
            let loopback = ["127.0.0.0/8", "::1/128"].into_iter();
            settings.client_ip.trusted_proxies =
                loopback.filter_map(|network| network.parse().ok()).collect();
        }
        Ok(settings)
    };
    let source = match watched {
        Some(watched) => Source::sharing(load).watching(watched),
        None => Source::sharing(load),
    };
    // This removes inherited sockets from the environment.
    options.check_addresses().map_err(refusal)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let ended = runtime.block_on(async {
        let clock = Arc::clone(&options.clock);
        let opened = open_store(&store, serve.keys, &options.http, clock, options.drain).await;
        let asked = if serve.keys.is_some() { "--keys" } else { "store.keys" };
        let opened = opened.map_err(|error| match error.too_many_keys() {
            Some(keys) => no_room(asked, keys, 1),
            None => unopened(error),
        })?;
        // Its history is kept beside counters on disk, otherwise in memory.
        let watch =
            config.server.sight.then(|| Watch::open(opened.folder(), &config.server.alerts)).transpose();
        let watch = watch.map_err(|error| match error {
            OpenError::Receiver(why) => Mistake(why).into(),
            error => anyhow::Error::from(error),
        })?;
        options.sight = watch.clone().map(|watch| watch as Arc<dyn Sight>);
        options.store = Some(opened);
        let server = Server::bind(options, source).await.map_err(refusal)?;
        if printer.remarks() {
            log.say(greeting(&server, quickstart, watch.is_some()));
        }
        let stopped = server.run().await;
        // Something may still hold the server, and with it the watch, when the process ends.
        let written = tokio::task::spawn_blocking(move || {
            if let Some(watch) = watch {
                watch.close();
            }
        });
        if tokio::time::timeout(WRITES_WITHIN, written).await.is_err() {
            tracing::error!(
                "the last minute of the history was not written within {} s: the disk hangs",
                WRITES_WITHIN.as_secs()
            );
        }
        // A service manager shall not take it for a clean end.
        Ok(if stopped == Stopped::CountersLost { Exit::No } else { Exit::Done })
    });
    // The drain is over, and a task that still runs may never end.
    runtime.shutdown_background();
    ended
}

/// Returns which flags ask for a feature of the program.
fn wishes(serve: &Serve) -> Vec<Wish> {
    let grpc = serve.grpc.as_ref();
    let grpc = grpc.map(|addr| Wish::of_flag(Feature::Grpc, "--grpc", "TIDEGATE_GRPC", addr));
    let cert = serve.tls.tls_cert.as_ref();
    let tls =
        cert.map(|file| Wish::of_flag(Feature::Tls, "--tls-cert", "TIDEGATE_TLS_CERT", &file.display()));
    grpc.into_iter().chain(tls).collect()
}

/// Reads the policy file. Mistakes are printed and end the verb; in a log of JSON they are one line.
fn read(file: &Path, printer: &Printer, log: &Log) -> Result<Config> {
    if !log.is_json() {
        return policies::read(file, &printer.silent());
    }
    policies::load(file)?.outcome.map(|(config, _)| config).map_err(|mistakes| mistaken(&mistakes, log))
}

/// Reads files of other rate limiters, as [`read`] does.
fn import(serve: &Serve, printer: &Printer, log: &Log) -> Result<Config> {
    if !log.is_json() {
        return Ok(policies::import(&serve.imports, &printer.silent())?.config);
    }
    let files = serve.imports.files();
    let first = files.first().map(|(_, file)| file.clone()).unwrap_or_default();
    let imported = policies::patiently(&first, move |_| policies::imported(&files))?;
    imported.map(|imported| imported.config).map_err(|mistakes| mistaken(&mistakes, log))
}

fn mistaken(mistakes: &[config::Diagnostic], log: &Log) -> anyhow::Error {
    log.error(&config::report(mistakes));
    AlreadyPrinted.into()
}

/// The flag wins over the file.
fn store_settings(serve: &Serve, config: &Config) -> Result<StoreSettings> {
    let mut store = config.store.clone();
    if let Some(path) = &serve.store_path {
        let kind = store.word();
        let StoreKind::Disk(disk) = &mut store.kind else {
            let wrong = format!(
                "--store-path does not apply to `store.kind: {kind}`; leave it out (and TIDEGATE_STORE_PATH), or write store.kind: disk"
            );
            return Err(Mistake(wrong).into());
        };
        disk.path = Some(path.clone());
    }
    check_store(&store).map_err(unopened)?;
    Ok(store)
}

/// Converts an error. Wrong settings are the caller's mistake; a folder in use, or an engine that refuses, is not.
pub(super) fn unopened(error: OpenStoreError) -> anyhow::Error {
    let in_the_file = error.is_in_the_file();
    let error = anyhow::Error::from(error);
    if in_the_file { Mistake(format!("{error:#}")).into() } else { error }
}

/// A wrong file, or an address that needs a token, is the caller's mistake; a taken port is not.
fn refusal(error: ServeError) -> anyhow::Error {
    match error {
        ServeError::Tls(ref error) if !error.is_a_mistake() => error.clone().into(),
        ServeError::Config(_)
        | ServeError::Open { .. }
        | ServeError::NoGrpc { .. }
        | ServeError::Otlp(_)
        | ServeError::Tls(_)
        | ServeError::Tokens(TokensError::Mistakes { .. }) => Mistake(error.to_string()).into(),
        ServeError::Listen { ref addr, ref source } => {
            let advice = match source.kind() {
                ErrorKind::AddrInUse if addr.tcp().is_none() => {
                    "another program listens there, or a file that is not a socket has that name; end it or remove it, or take another path"
                }
                ErrorKind::NotFound if addr.tcp().is_none() => "there is no such folder; make it first",
                ErrorKind::PermissionDenied if addr.tcp().is_none() => {
                    "this user may not create it; take a folder that this user may write to"
                }
                ErrorKind::AddrInUse => {
                    "another program listens there; end it, or take another port (--http, --admin, --grpc, --resp, or in the file under server), as --http 127.0.0.1:8081"
                }
                ErrorKind::AddrNotAvailable => {
                    "this machine has no such address; take one that it has, such as 127.0.0.1"
                }
                ErrorKind::PermissionDenied => "this user may not use this port; take a port from 1024 on",
                _ => return error.into(),
            };
            let said = format!("{addr}: {advice}");
            anyhow::Error::from(error).context(said)
        }
        error => error.into(),
    }
}

/// Reads the file, or the quickstart without one.
fn load(file: Option<&Path>) -> Result<(Config, Vec<String>), Refused> {
    let outcome = match file {
        Some(file) => Config::read_to_serve(file),
        None => Config::parse_to_serve(QUICKSTART, "quickstart", Format::Yaml),
    };
    match outcome {
        Ok((config, warnings)) => Ok((config, lines(&warnings))),
        Err(mistakes) => Err(Refused { diagnostics: lines(&mistakes) }),
    }
}

fn load_imports(files: &[(Peer, PathBuf)]) -> Result<(Config, Vec<String>), Refused> {
    match policies::imported(files) {
        Ok(imported) => Ok((imported.config, lines(&imported.notes))),
        Err(mistakes) => Err(Refused { diagnostics: lines(&mistakes) }),
    }
}

fn lines(diagnostics: &[config::Diagnostic]) -> Vec<String> {
    diagnostics.iter().map(ToString::to_string).collect()
}

fn settings(config: Config, warnings: Vec<String>, proxy: Option<Proxy>) -> Settings {
    let mut settings = Settings::from(config);
    settings.warnings = warnings;
    if let Some(proxy) = proxy {
        let original = match proxy {
            Proxy::Nginx => OriginalHeaders::Nginx,
            Proxy::Caddy => OriginalHeaders::Caddy,
            Proxy::Traefik => OriginalHeaders::Traefik,
        };
        // The file's other settings stay.
        let mut door = settings.forward_auth.unwrap_or_else(|| ForwardAuth::of(original.clone()));
        door.original = original;
        settings.forward_auth = Some(door);
    }
    settings
}

/// Returns the options: flag before environment before file before default. Clap handles the first two.
fn options(serve: &Serve, config: &Config) -> Result<ServerOptions> {
    let mut options = ServerOptions::default();
    options.http = serve.http.clone().unwrap_or_else(|| config.server.http.clone());
    options.admin = serve.admin.clone().or_else(|| config.server.admin.clone());
    options.grpc = serve.grpc.clone().or_else(|| config.server.grpc.clone());
    options.resp = serve.resp.clone().or_else(|| config.server.resp.clone());
    let doors = [
        ("http", Some(&options.http)),
        ("admin", options.admin.as_ref()),
        ("grpc", options.grpc.as_ref()),
        ("resp", options.resp.as_ref()),
    ];
    for (at, (name, door)) in doors.iter().enumerate() {
        let is_free = door.is_none_or(|door| door.tcp().is_some_and(|addr| addr.port() == 0));
        let other = doors[..at].iter().find(|(_, other)| !is_free && other == door);
        if let (Some((other, _)), Some(door)) = (other, door) {
            let instead = match *name {
                "admin" => "give each its own, or leave --admin out to answer operators there too",
                _ => "give each its own",
            };
            let wrong = format!(
                "{door}: --{other} and --{name} are the same address (flags, variables or the file's server); {instead}"
            );
            return Err(Mistake(wrong).into());
        }
    }
    options.drain = serve.drain;
    options.connections = serve.connections;
    options.metrics_names = serve.metrics_names.map(MetricsNames::peer);
    (options.tickets, options.token) = secrets(serve, config)?;
    options.tokens_file.clone_from(&serve.tokens_file);
    (options.tls, _) = encryption(serve, config)?;
    options.otlp = collected(config)?;
    Ok(options)
}

/// What `serve --check` checks besides the policies.
fn warnings(serve: &Serve, config: &Config) -> Result<Vec<String>> {
    let mut warnings = secrets(serve, config)?.0.warnings;
    warnings.extend(unknown_variables());
    warnings.extend(encryption(serve, config)?.1);
    collected(config)?;
    Ok(warnings)
}

/// The environment wins over the file.
fn collected(config: &Config) -> Result<Option<OtlpSettings>> {
    otlp_of(config.server.otlp.as_ref()).map_err(|error| Mistake(error.to_string()).into())
}

/// Returns the TLS settings of the doors, flag before file, with warnings about them. Files are only checked for use.
fn encryption(serve: &Serve, config: &Config) -> Result<(Option<TlsSettings>, Vec<String>)> {
    let (flags, file) = (&serve.tls, config.server.tls.as_ref());
    let cert = flags.tls_cert.as_ref().or(file.map(|file| &file.cert));
    let key = flags.tls_key.as_ref().or(file.map(|file| &file.key));
    let (Some(cert), Some(key)) = (cert, key) else {
        if cert.is_none() && key.is_none() && flags.tls_client_ca.is_none() && flags.tls_plain.is_empty() {
            return Ok((None, Vec::new()));
        }
        let lacks = if cert.is_none() { "--tls-cert" } else { "--tls-key" };
        let wrong = format!(
            "{lacks} is missing: TLS needs a certificate and its key; name both (--tls-cert, --tls-key), or write them in \
             the file under server.tls"
        );
        return Err(Mistake(wrong).into());
    };
    let mut settings = TlsSettings::new(cert, key);
    settings.client_ca = flags.tls_client_ca.clone().or_else(|| file?.client_ca.clone());
    settings.plain.clone_from(&flags.tls_plain);
    if settings.plain.is_empty() {
        settings.plain = file.map(|file| file.plain.clone()).unwrap_or_default();
    }
    let read = settings.clone();
    let warnings = policies::patiently(cert, move |_| check_tls(&read))?.map_err(|error| {
        if error.is_a_mistake() { Mistake(error.to_string()).into() } else { anyhow::Error::from(error) }
    })?;
    Ok((Some(settings), warnings))
}

/// A tokens file is only checked for use.
fn secrets(serve: &Serve, config: &Config) -> Result<(TicketOptions, Option<Token>)> {
    let said = config.tickets.clone();
    let file = said.key_file.clone().unwrap_or_else(|| PathBuf::from("TIDEGATE_TICKET_KEY_FILE"));
    let tickets = policies::patiently(&file, move |_| TicketOptions::of(&said))?;
    let tickets = tickets.map_err(|error| match error {
        TicketKeyError::File { .. } => anyhow::Error::from(error),
        wrong => Mistake(wrong.to_string()).into(),
    })?;
    let token = match &serve.token_file {
        Some(file) => policies::patiently(file, Token::from_file)?.map(Some),
        None => Token::from_env(),
    };
    let token = token.map_err(|error| match error {
        TokenError::File { .. } => anyhow::Error::from(error),
        wrong => Mistake(wrong.to_string()).into(),
    })?;
    if let Some(file) = &serve.tokens_file {
        policies::patiently(file, Tokens::from_file)?.map_err(|error| match error {
            TokensError::File { .. } => anyhow::Error::from(error),
            wrong => Mistake(wrong.to_string()).into(),
        })?;
    }
    Ok((tickets, token))
}

/// Returns the address of a door for display.
fn url(ready: &Ready, door: DoorName, address: &Address) -> String {
    let scheme = if ready.encrypted.contains(&door) { "https" } else { "http" };
    address.tcp().map_or_else(|| address.to_string(), |addr| format!("{scheme}://{addr}"))
}

fn greeting(server: &Server, quickstart: bool, has_pages: bool) -> String {
    let ready = server.ready();
    let at = url(&ready, DoorName::Http, &ready.addr);
    let operations =
        ready.admin.as_ref().map_or_else(|| at.clone(), |admin| url(&ready, DoorName::Admin, admin));
    let policies = match ready.policies {
        1 => "1 policy".to_owned(),
        count => format!("{count} policies"),
    };
    let mut text = format!("tidegate serves {policies} on {at}\n");
    if ready.admin.is_some() {
        let _ = writeln!(text, "and answers operators on {operations}");
    }
    if has_pages && ready.admin.as_ref().unwrap_or(&ready.addr).tcp().is_some() {
        let _ = writeln!(text, "with pages at {operations}/ui/");
    }
    if let Some(grpc) = &ready.grpc {
        let _ = writeln!(text, "and answers Envoy's rate limit service over gRPC on {grpc}");
    }
    if let Some(resp) = &ready.resp {
        let there = match resp {
            Address::Tcp(addr) if ready.encrypted.contains(&DoorName::Resp) => {
                format!("--tls --cacert FILE -p {}", addr.port())
            }
            Address::Tcp(addr) => format!("-p {}", addr.port()),
            Address::Unix { path, .. } => format!("-s {}", path.display()),
        };
        let _ = writeln!(
            text,
            "and answers Redis clients on {resp}: redis-cli {there} TG.CHECK '*' client.ip 203.0.113.9"
        );
    }
    if cfg!(debug_assertions) {
        text.push_str(
            "This build is not optimised; for real load: cargo install --path crates/tidegate-cli\n",
        );
    }
    // Over TLS the commands would also need the server's certificate.
    if quickstart && ready.addr.tcp().is_some() && ready.encrypted.is_empty() {
        let _ = write!(
            text,
            "\nNo policy file: the quickstart allows each client 5 requests a second, 10 at once. Try it:\n\n  \
             curl -i {at}/v1/check -d '{{\"attributes\": {{\"client.ip\": \"203.0.113.9\"}}}}'\n  \
             for i in $(seq 15); do curl -s -o /dev/null -w '%{{http_code}} ' {at}/v1/check -d '{{\"attributes\": {{\"client.ip\": \"203.0.113.9\"}}}}'; done; echo\n  \
             curl {operations}/v1/explain -d '{{\"attributes\": {{\"client.ip\": \"203.0.113.9\"}}}}'\n  \
             curl {operations}/metrics\n\n\
             Then write your own: tidegate init && tidegate serve -c tidegate.yaml\n"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Cli, Verb};

    #[test]
    fn a_flag_is_told_with_its_variable() {
        let words = ["tidegate", "serve", "--grpc", "127.0.0.1:8081", "--tls-cert", "server.pem"];
        let Verb::Serve(serve) = Cli::try_parse_from(words).unwrap().verb else { panic!("it serves") };
        let lacking = features::lacked(wishes(&serve), |_| false);
        let build = "build it with `cargo install --path crates/tidegate-cli`";
        assert_eq!(
            lacking.iter().map(ToString::to_string).collect::<Vec<_>>(),
            [
                format!(
                    "--grpc 127.0.0.1:8081 (TIDEGATE_GRPC): this program was built without gRPC; {build}"
                ),
                format!(
                    "--tls-cert server.pem (TIDEGATE_TLS_CERT): this program was built without TLS; {build}"
                ),
            ]
        );
        assert!(features::lacked(wishes(&serve), |_| true).is_empty());
    }
}
