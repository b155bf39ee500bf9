//! The address conflict of Vagrant hosts: the daemons start with the interface of the default route, and the doctor prints the remedy.

use anyhow::{Result, bail, ensure};
use lab::{Flanneld, FlanneldOptions, Host, stdout_text, until_ok};
use terminal::screen::Screen;

/// Reports the address conflict on a host whose daemon ended.
const ENDED: &str = "wrong-interface";
/// Reports the address conflict on a host whose daemon runs.
const RUNS: &str = "nat-interface";

/// Starts a daemon without `--iface` on each host, prints the doctor's finding, and stops the daemons.
pub(crate) fn demonstrate_address_conflict(
    hosts: &[Host],
    options: &FlanneldOptions,
    screen: Screen,
) -> Result<()> {
    let mut daemons =
        hosts.iter().map(|host| host.start_flanneld(options)).collect::<Result<Vec<_>>>()?;
    let finding = screen.step("flanneld without --iface: in the trap", || {
        let ended = wait_one_ready_others_ended(&mut daemons)?;
        let finding = wait_finding(&daemons, if ended > 0 { ENDED } else { RUNS })?;
        Ok((
            finding,
            format!("{ended} of {} daemons end, because every host has 10.0.2.15", daemons.len()),
        ))
    })?;
    screen.heading(format!("{}: flannelctl doctor", finding.host));
    screen.block(&finding.text);
    screen.print("\n  The command is typed on every host:");
    for daemon in &mut daemons {
        if daemon.is_running() {
            daemon.terminate()?;
        }
    }
    Ok(())
}

/// Waits until one daemon is ready and all others have ended, because only one node can use the address that all hosts have. The result is the number
/// of ended daemons.
fn wait_one_ready_others_ended(daemons: &mut [Flanneld]) -> Result<usize> {
    until_ok("one daemon is ready", || {
        let running = daemons
            .iter_mut()
            .filter_map(|daemon| daemon.is_running().then(|| daemon.is_ready()))
            .collect::<Vec<_>>();
        ensure!(running == [true], "{} daemons run", running.len());
        Ok(daemons.len() - 1)
    })
}

struct Found {
    host: String,
    text: String,
}

/// Waits until the doctor reports the finding on one of the hosts.
fn wait_finding(daemons: &[Flanneld], check: &str) -> Result<Found> {
    until_ok("a doctor names the trap", || {
        let mut last = String::new();
        for (number, daemon) in (1..).zip(daemons) {
            last = stdout_text(&daemon.flannelctl(&["doctor"])?);
            if let Some(text) = first_finding_text(&last, check) {
                return Ok(Found { host: format!("h{number}"), text });
            }
        }
        bail!("{last}")
    })
}

/// Its headline and the indented lines below it, from the doctor's text.
fn first_finding_text(text: &str, check: &str) -> Option<String> {
    let lines: Vec<&str> = text.lines().collect();
    let at = lines.iter().position(|line| !line.starts_with(' ') && line.ends_with(check))?;
    let details = lines.iter().skip(at + 1).take_while(|line| line.starts_with(' '));
    let whole: Vec<&str> = lines.get(at).into_iter().chain(details).copied().collect();
    Some(whole.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finding_of_the_trap_is_cut_out() {
        let text = "risk: other   clock\n    why x\nbroken: flannel uses enp0s3     wrong-interface\n    why  NAT\n    do   x\n5 checks: 1 broken\n";
        assert_eq!(
            first_finding_text(text, ENDED).unwrap(),
            "broken: flannel uses enp0s3     wrong-interface\n    why  NAT\n    do   x"
        );
        assert_eq!(first_finding_text("5 checks: 0 broken\n", ENDED), None);
    }
}
