//! `flannelctl doctor`: diagnoses this node or all nodes and prints the commands that fix problems. Works without a running daemon.

mod cluster;
mod show;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use doctor::look::{Look, alone};
use doctor::{Finding, Report, Severity, table};
use terminal::out;

use crate::ask::{self, AskError};
use crate::form::{self, Form};
use crate::place::Place;

/// Options of `flannelctl doctor`: the nodes to diagnose, and the output.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Also prints findings that other findings explain, and each check with an unknown result.
    #[arg(long)]
    all: bool,
    /// Exits with status 3 for any finding, not only for findings of the severity broken.
    #[arg(long)]
    strict: bool,
    /// Repeats the diagnosis every two seconds, until Ctrl-C.
    #[arg(long)]
    watch: bool,
    /// Format of the output.
    #[arg(long, short, value_enum, default_value_t = Form::Text)]
    output: Form,
    #[command(flatten)]
    cluster: cluster::ClusterArgs,
    #[command(flatten)]
    place: Place,
}

/// A finding of severity `broken` or, with `--strict`, any finding is a fault. It is an error if all checks have an
/// unknown result.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let Some(code) = args.cluster.run_on_node()? {
        return Ok(code);
    }
    if args.cluster.is_cluster() {
        return run_cluster(args);
    }
    let report = form::watched(
        args.watch,
        args.output,
        || report(args),
        |report, wide, screen| show::text(report, args.all || wide, screen),
    )?;
    Ok(code(args, report.causes()))
}

/// The daemon's report, or this process's own if no daemon responds.
fn report(args: &Args) -> Result<Report> {
    let asked = jiff::Timestamp::now();
    let report = match ask::findings(&args.place.subnet_file) {
        Ok(report) => {
            if report.at < asked {
                out::complain(format!(
                    "flanneld has not finished its checks in time; this is its report of {:.0}; repeat flannelctl doctor",
                    report.at
                ));
            }
            report
        }
        // If the daemon does not run, hangs, or is another program, this process makes the checks.
        Err(AskError::Stopped(_) | AskError::Hangs(..)) => look(args, None)?,
        Err(AskError::Foreign { who, .. }) => look(args, Some(&who.join("; ")))?,
        Err(why) => return Err(why.into()),
    };
    if report.unknown.len() == report.checks {
        let why = report.unknown.first().map(|unknown| unknown.why.as_str()).unwrap_or_default();
        bail!("no check could run: {why}; run flannelctl doctor as root");
    }
    Ok(report)
}

/// The findings of all nodes. The exit code has the same meaning as for one.
fn run_cluster(args: &Args) -> Result<ExitCode> {
    let cluster = form::watched(
        args.watch,
        args.output,
        || cluster::look(&args.cluster, &args.place),
        |cluster, wide, screen| cluster::text(cluster, args.all || wide, screen),
    )?;
    Ok(code(args, cluster.findings.iter().map(|shared| &shared.finding)))
}

fn code<'a>(args: &Args, mut causes: impl Iterator<Item = &'a Finding>) -> ExitCode {
    form::exit_code(causes.any(|finding| args.strict || finding.severity == Severity::Broken))
}

/// Runs the checks without a daemon. `other` describes a daemon without a socket on this node.
fn look(args: &Args, other: Option<&str>) -> Result<Report> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    let facts = runtime.block_on(alone::facts(
        &mut Look::default(),
        &args.place.subnet_file,
        backends::profiles(),
        other,
    ));
    Ok(table::judge(&facts, jiff::Timestamp::now()))
}
