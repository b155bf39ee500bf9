//! Traffic between pods: connectivity, throughput, and the effect of killing a daemon.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lab::{
    PingMatrix, PingOptions, Pod, Probe, ProbeOptions, Transfer, TransferOptions, ping_address,
};

use crate::build::Network;
use terminal::screen::{Screen, Style};

const CONVERGENCE: Duration = Duration::from_secs(15);
const BULK: u64 = 500_000_000;

/// True if every pod reaches every other pod.
pub(crate) fn demonstrate_traffic_and_restart(
    network: &mut Network,
    pods: &[Pod],
    time: u64,
    screen: Screen,
) -> Result<bool> {
    screen.heading("Who reaches whom");
    let mut complete =
        print_ping_matrix(&ping_pods_until_converged(PingMatrix::of_main_addresses, pods)?, screen);
    if pods.iter().all(|pod| pod.v6().is_ok()) {
        screen.heading("Who reaches whom by IPv6");
        complete &= print_ping_matrix(
            &ping_pods_until_converged(PingMatrix::of_v6_addresses, pods)?,
            screen,
        );
    }
    let [from, to, ..] = pods else {
        return Ok(complete);
    };
    if !complete {
        return Ok(false);
    }
    screen.heading("Traffic");
    screen.step("the largest packet, unfragmented", || {
        let answer = ping_address(
            from.netns(),
            to.address()?,
            &PingOptions::default().packet_length(from.mtu()),
        )?;
        Ok((
            (),
            format!(
                "{} bytes, {}",
                from.mtu(),
                if answer.is_some() { "answered" } else { "NOT answered" }
            ),
        ))
    })?;
    screen.step("a transfer over TCP", || {
        let transfer = Transfer::run(from, to, BULK, &TransferOptions::default())?;
        let rate = transfer.megabits_per_second() / 1000.0;
        Ok((
            (),
            format!(
                "{} MB, every byte checked, {rate:.1} Gbit/s, segments of {} bytes",
                transfer.bytes / 1_000_000,
                transfer.segment
            ),
        ))
    })?;
    restart_daemon_under_traffic(network, from, to, time, screen)?;
    Ok(complete)
}

/// Kills and restarts the receiving host's daemon while packets flow.
fn restart_daemon_under_traffic(
    network: &mut Network,
    from: &Pod,
    to: &Pod,
    time: u64,
    screen: Screen,
) -> Result<()> {
    let host = to.host().clone();
    let number = network
        .hosts
        .iter()
        .position(|known| known.name() == host.name())
        .context("the pod's host is unknown")?;
    screen.step(
        &format!("flanneld on {} is killed and restarted under traffic", host.name()),
        || {
            let end = Instant::now() + Duration::from_secs(time);
            let probe = Probe::start(from, to, &ProbeOptions::default())?;
            std::thread::sleep(Duration::from_secs(time) / 4);
            network.daemons.get_mut(number).context("no daemon")?.kill()?;
            std::thread::sleep(Duration::from_secs(time) / 4);
            let daemon = host.start_flanneld_and_wait_ready(&network.options)?;
            if let Some(slot) = network.daemons.get_mut(number) {
                *slot = daemon;
            }
            std::thread::sleep(end.saturating_duration_since(Instant::now()));
            let report = probe.finish()?;
            Ok(((), format!("{} of {} packets arrived", report.received, report.sent)))
        },
    )
}

/// Pings until all pods reach each other or [`CONVERGENCE`] has passed: daemons become ready before they know all peers.
fn ping_pods_until_converged(
    matrix: impl Fn(&[Pod]) -> Result<PingMatrix>,
    pods: &[Pod],
) -> Result<PingMatrix> {
    let end = Instant::now() + CONVERGENCE;
    loop {
        let found = matrix(pods)?;
        if found.unanswered_pairs().is_empty() || Instant::now() >= end {
            return Ok(found);
        }
    }
}

fn print_ping_matrix(matrix: &PingMatrix, screen: Screen) -> bool {
    let heading = |text: &str| (text.to_owned(), Style::Strong);
    let mut rows = vec![
        std::iter::once(heading("from \\ to"))
            .chain(matrix.names().iter().map(|name| heading(name)))
            .collect::<Vec<_>>(),
    ];
    for (from, name) in matrix.names().iter().enumerate() {
        let cell = |to: usize| match matrix.round_trip_time(from, to) {
            _ if from == to => ("-".to_owned(), Style::Faint),
            Some(time) => (format!("{:.2} ms", time.as_secs_f64() * 1000.0), Style::Good),
            None => ("no".to_owned(), Style::Bad),
        };
        rows.push(
            std::iter::once(heading(name)).chain((0..matrix.names().len()).map(cell)).collect(),
        );
    }
    screen.table(&rows);
    matrix.unanswered_pairs().is_empty()
}
