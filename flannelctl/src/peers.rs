//! `flannelctl peers`: the other nodes, and whether packets reach them.

mod text;

pub(crate) use text::is_fresh;

use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use node_api::{Node, PEERS, Peers, Probed};
use types::reachability::Impact;

use crate::ask;
use crate::form::WatchArgs;

/// Base of the time limit for the reports of other nodes. The daemon requests a hundred reports per second,
/// so each node adds [`ROW_TIMEOUT`].
const ROWS_TIMEOUT: Duration = Duration::from_secs(3);
const ROW_TIMEOUT: Duration = Duration::from_millis(20);
/// Between two requests to the daemon for the reports.
const ROWS_INTERVAL: Duration = Duration::from_millis(200);
/// After this time, a terminal shows how many reports are missing.
const PROGRESS_AFTER: Duration = Duration::from_secs(1);

/// Options of `flannelctl peers`: scope and format of the list.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Also fetches every other node's report about its peers.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    watch: WatchArgs,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    args.watch.run(
        |subnet_file| {
            if args.all {
                with_rows(subnet_file)
            } else {
                Ok(document(ask::node(subnet_file, false)?, false))
            }
        },
        |peers, wide, screen| text::text(peers, args.all, wide, screen),
        is_broken,
    )
}

/// The daemon's document with the reports of other nodes about themselves and their peers.
///
/// Waits until every node that replies to probes has reported, up to a time limit that depends on the number
/// of nodes.
pub(crate) fn with_rows(subnet_file: &Path) -> Result<Peers> {
    let begun = Instant::now();
    let mut told = false;
    loop {
        let peers = document(ask::node(subnet_file, true)?, true);
        let (wanted, missing) = (peers.answering, peers.missing);
        let nodes = u32::try_from(wanted).unwrap_or(u32::MAX);
        let end = ROWS_TIMEOUT.saturating_add(ROW_TIMEOUT.saturating_mul(nodes));
        if missing == 0 || begun.elapsed() >= end {
            return Ok(peers);
        }
        if !told && begun.elapsed() >= PROGRESS_AFTER && std::io::stderr().is_terminal() {
            told = true;
            terminal::out::note(format!("waiting for {missing} of {wanted} nodes"));
        }
        std::thread::sleep(ROWS_INTERVAL);
    }
}

/// Extracts the peers from the node's document.
fn document(node: Node, all: bool) -> Peers {
    let probed = node.mesh.is_some();
    let mesh = node.mesh.unwrap_or_default();
    let verdicts = |peer: &node_api::Peer| {
        mesh.peers
            .iter()
            .filter(|verdict| peer.subnets.contains(&verdict.subnet))
            .cloned()
            .collect()
    };
    let peers =
        node.peers.into_iter().map(|peer| Probed { verdicts: verdicts(&peer), peer }).collect();
    let mut peers = Peers {
        schema: PEERS.to_owned(),
        node: node.node,
        probed,
        peers,
        rows: if all { mesh.rows } else { Vec::new() },
        answering: 0,
        missing: 0,
    };
    peers.answering = text::wanted(&peers);
    if all {
        peers.missing = text::missing(&peers);
    }
    peers
}

/// True if all packets to at least one peer get lost.
fn is_broken(peers: &Peers) -> bool {
    peers
        .peers
        .iter()
        .flat_map(|peer| &peer.verdicts)
        .any(|verdict| verdict.state.impact() == Impact::All)
}
