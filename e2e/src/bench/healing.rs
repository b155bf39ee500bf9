//! How soon the daemon repairs a kernel object that another program changed or deleted. Audits are disabled.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::scale::{Fleet, NET_CONF, vxlan_lease_value};
use crate::table::Table;

pub(crate) const PEERS: u32 = 1000;
/// Daemon starts, with [`ROUNDS`] repairs each: after five repairs within a minute, the daemon assumes a conflict and repairs more slowly.
const LIVES: usize = 3;
const ROUNDS: usize = 3;
const DEADLINE: Duration = Duration::from_secs(60);

/// Prints a hash of the daemon's kernel objects. Each result includes the script's run time of about 20 ms.
const LOOK: &str = "{ ip -o -d link show dev flannel.1 | sed 's/^[0-9]*: //'; ip -o -4 address show dev flannel.1 | sed 's/^[0-9]*: //'; \
    ip route show proto 241; ip neighbour show dev flannel.1 nud permanent; bridge fdb show dev flannel.1; nft -s list table ip flannel-ipv4; } | sort | sha256sum";

/// The damage's name, the command that causes it, and the goal for the repair time.
const DAMAGES: [(&str, &str, &str); 10] = [
    ("a deletion of the device", "ip link del flannel.1", "2000 ms"),
    ("`ip link set down` of the device", "ip link set flannel.1 down", "1000 ms"),
    ("a flush of all routes", "ip route flush proto 241", "1000 ms"),
    ("a flush of the FDB", "bridge fdb flush dev flannel.1", "1000 ms"),
    ("a flush of the neighbours", "ip neighbour flush dev flannel.1 nud permanent", "1000 ms"),
    ("a removal of the device's address", "ip address flush dev flannel.1 scope global", "1000 ms"),
    ("a change of the device's MTU", "ip link set flannel.1 mtu 1300", "1000 ms"),
    ("a change of the device's MAC", "ip link set flannel.1 address 02:00:00:00:00:99", "1000 ms"),
    (
        "the underlay interface goes down and up",
        "ip link set enp0s8 down; ip link set enp0s8 up",
        "2000 ms",
    ),
    ("a deletion of the nftables table", "nft delete table ip flannel-ipv4", "1000 ms"),
];

/// Damages the objects of a node with many peers.
pub(crate) fn measure_repair_times(table: &mut Table) -> Result<()> {
    let net_conf = NET_CONF.replacen('{', r#"{"EnableNFTables":true,"#, 1);
    let fleet = Fleet::build_with_leases(PEERS, &net_conf, vxlan_lease_value)?;
    let netns = fleet.node.netns();
    let mut wanted = None;
    for (what, damage, goal) in DAMAGES {
        let mut times = Vec::new();
        for _ in 0..LIVES {
            let mut daemon = fleet.node.start_flanneld_and_wait_ready(&fleet.options)?;
            let wanted: &String = wanted.get_or_insert(netns.sh(LOOK)?);
            for _ in 0..ROUNDS {
                // Sleep past the pause after the previous repair. A MAC needs longer: the daemon accepts one that is rewritten often.
                std::thread::sleep(Duration::from_secs(if what.contains("MAC") { 5 } else { 1 }));
                let start = Instant::now();
                netns.sh(damage)?;
                while netns.sh(LOOK).map_or(true, |found| found != *wanted) {
                    ensure!(
                        start.elapsed() < DEADLINE,
                        "not repaired after {what}\n{}",
                        fleet.lab.log_tails()
                    );
                }
                times.push(start.elapsed());
            }
            ensure!(daemon.is_running() && daemon.errors().is_empty(), "{:?}", daemon.errors());
            daemon.kill()?;
        }
        table.add_times_row(
            &format!("{PEERS} peers: repair time after {what}"),
            &times,
            goal,
            "never, or on restart",
        );
    }
    Ok(())
}
