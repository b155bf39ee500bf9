//! The doctor's findings are correct. Unusual but healthy hosts have none. The doctor names the cause of a fault, on the faulty node and on the
//! others. The commands of the first finding fix it.

mod cluster;
mod fault;
pub(crate) mod odd;
mod rows;

use anyhow::{Context, Result};

use crate::healing::scenarios;
use fault::{Bench, Fault};
pub(crate) use fault::{are_well, get_pod_path_probes};

scenarios! { each_is_found_and_fixed;
    faults_of_pod_packets_are_found_and_fixed => (rows::NETWORK, 3, rows::POD_PACKETS),
    faults_of_the_bridge_are_found_and_fixed => (rows::NETWORK, 3, rows::BRIDGE),
    faults_of_the_tunnel_are_found_and_fixed => (rows::NETWORK, 3, rows::TUNNEL),
    faults_of_the_underlay_are_found_and_fixed => (rows::NETWORK, 3, rows::UNDERLAY),
    faults_of_daemons_are_found_and_fixed => (rows::NETWORK, 3, rows::DAEMON),
    faults_between_two_nodes_are_found_and_fixed => (rows::SMALL, 2, rows::OF_TWO),
    ipv6_faults_are_reported_by_their_cause => (rows::BOTH, 3, rows::OF_IPV6),
}

fn each_is_found_and_fixed((network, nodes, faults): (&str, u8, &[Fault])) -> Result<()> {
    Bench::run_with_nodes_and_pods(network, nodes, |bench| {
        faults.iter().try_for_each(|fault| bench.cause_find_and_mend(&[fault]))
    })
}

#[test]
fn simultaneous_faults_are_found_and_fixed_one_after_the_other() -> Result<()> {
    let all =
        [rows::POD_PACKETS, rows::BRIDGE, rows::TUNNEL, rows::UNDERLAY, rows::DAEMON].concat();
    let named = |name: &str| {
        let found = all.iter().find(|fault| fault.name == name);
        found.with_context(|| format!("no fault {name}"))
    };
    Bench::run_with_nodes_and_pods(rows::NETWORK, 3, |bench| {
        rows::PAIRS.iter().try_for_each(|[first, second]| {
            bench.cause_find_and_mend(&[named(first)?, named(second)?])
        })
    })
}
