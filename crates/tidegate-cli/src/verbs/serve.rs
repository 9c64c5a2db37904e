//! Runs the decision server.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use tidegate::policy::QUICKSTART;
use tidegate::policy::config::{self, Config, Format};
use tidegate_server::{Refused, ServeError, Server, ServerOptions, Settings, Source, Token};

use crate::args::Serve;
use crate::exit::{Exit, Mistake};
use crate::output::Printer;
use crate::policies;

pub(crate) fn run(serve: &Serve, printer: &Printer) -> Result<Exit> {
    let file = policies::file(&serve.policies);
    if serve.check {
        let file = file.unwrap_or_else(|| PathBuf::from(policies::DEFAULT_FILE));
        return super::config::check(&[file], printer);
    }
    let (config, _) = load(file.as_deref()).map_err(|refused| Mistake(refused.to_string()))?;
    let options = options(serve, &config)?;
    let watched = file.clone().filter(|_| !serve.no_watch);
    let quickstart = file.is_none();
    let load = move || load(file.as_deref()).map(|(config, warnings)| settings(config, warnings));
    let source = match watched {
        Some(watched) => Source::new(load).watching(watched),
        None => Source::new(load),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let server = Server::bind(options, source).await.map_err(refusal)?;
        printer.remark(&greeting(&server, quickstart));
        server.run().await;
        Ok(Exit::Done)
    })
}

/// A wrong file or an address that needs a token is the caller's mistake; a taken port is not.
fn refusal(error: ServeError) -> anyhow::Error {
    match error {
        ServeError::Config(_) | ServeError::Open { .. } => Mistake(error.to_string()).into(),
        error => error.into(),
    }
}

/// Reads the file, or the quickstart where there is none.
fn load(file: Option<&Path>) -> Result<(Config, Vec<String>), Refused> {
    let outcome = match file {
        Some(file) => Config::read(file),
        None => Config::parse(QUICKSTART, "quickstart", Format::Yaml),
    };
    let lines = |diagnostics: Vec<config::Diagnostic>| diagnostics.iter().map(ToString::to_string).collect();
    match outcome {
        Ok((config, warnings)) => Ok((config, lines(warnings))),
        Err(mistakes) => Err(Refused::new(lines(mistakes))),
    }
}

fn settings(config: Config, warnings: Vec<String>) -> Settings {
    let mut settings = Settings::from(config);
    settings.warnings = warnings;
    settings
}

/// Flag before environment before file before default; the first two are clap's.
fn options(serve: &Serve, config: &Config) -> Result<ServerOptions> {
    let mut options = ServerOptions::default();
    options.http = serve.http.unwrap_or(config.server.http);
    options.drain = serve.drain;
    options.connections = serve.connections;
    options.store = Arc::new(config.store.memory(serve.keys));
    let token = match &serve.token_file {
        Some(file) => {
            Some(std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?)
        }
        None => std::env::var("TIDEGATE_TOKEN").ok(),
    };
    options.token = match token {
        Some(token) => Some(Token::new(token.trim()).map_err(|error| Mistake(error.to_string()))?),
        None => None,
    };
    Ok(options)
}

/// What a person who just started it wants next: commands that work as they stand.
fn greeting(server: &Server, quickstart: bool) -> String {
    let at = server.ready().addr;
    let policies = match server.ready().policies {
        1 => "1 policy".to_owned(),
        count => format!("{count} policies"),
    };
    let mut text = format!("tidegate serves {policies} on http://{at}\n");
    // Writing to a string does not fail.
    if quickstart {
        let _ = write!(
            text,
            "\nNo policy file: the quickstart allows each client 5 requests a second, 10 at once. Try it:\n\n  \
             curl -i http://{at}/v1/check -d '{{\"attributes\": {{\"client.ip\": \"203.0.113.9\"}}}}'\n  \
             for i in $(seq 15); do curl -s -o /dev/null -w '%{{http_code}} ' http://{at}/v1/check -d '{{\"attributes\": {{\"client.ip\": \"203.0.113.9\"}}}}'; done; echo\n  \
             curl http://{at}/v1/explain -d '{{\"attributes\": {{\"client.ip\": \"203.0.113.9\"}}}}'\n  \
             curl http://{at}/metrics\n\n\
             Then write your own: tidegate init && tidegate serve -c tidegate.yaml\n"
        );
    }
    text
}
