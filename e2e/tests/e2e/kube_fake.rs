//! Tests of the daemon on the fake API server. The same tests run on a real one in `kube`.

use anyhow::Result;

use crate::kube::{Server, nodes, outages, start};

#[test]
fn hostile_nodes_and_a_restored_store_remove_no_peer() -> Result<()> {
    nodes::masses(Server::Fake)
}

#[test]
fn node_changes_apply_soon_and_touch_no_other_peer() -> Result<()> {
    nodes::one_by_one(Server::Fake)
}

#[test]
fn changed_own_pod_cidr_restarts_the_network_in_process() -> Result<()> {
    nodes::changed_own_pod_cidr(Server::Fake)
}

#[test]
fn api_outages_of_every_kind_lose_no_packet() -> Result<()> {
    outages::outages(Server::Fake)
}

#[test]
fn start_waits_and_reports_what_is_missing() -> Result<()> {
    start::waits(Server::Fake)
}

#[test]
fn start_needs_eight_api_calls_and_the_rights_of_each_manifest() -> Result<()> {
    start::calls_and_rights(Server::Fake)
}
