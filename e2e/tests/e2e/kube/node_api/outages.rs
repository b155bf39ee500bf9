//! Packets keep flowing during outages of the API, and daemons apply the missed changes soon after.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Result, ensure};
use lab::{Answer, ApiServer, Call, Families, Lab, Proxy, until};

use crate::kube::testbed::{ApiTestbed, VXLAN};

/// The reply to a request in place of the server's, given the number of such replies before.
type Fault = fn(&Call, usize) -> Option<Answer>;

/// Ends the stream of an expired watch.
const EXPIRED: &str = r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","message":"too old resource version","reason":"Expired","code":410}}"#;
const STATUSES: [(u16, &str); 4] = [
    (403, "Forbidden"),
    (429, "TooManyRequests"),
    (500, "InternalError"),
    (503, "ServiceUnavailable"),
];
const BODIES: [&str; 4] = [
    "",
    "null",
    r#"{"kind":"NodeList","items":[{"metadata":null},7,null,{}]}"#,
    "<html>502</html>",
];

const FAULTS: [(&str, Fault); 6] = [
    ("a watch that expires by a status", |call, _| {
        is_node_watch(call).then(|| Answer::failure_status_reply(410, "Expired"))
    }),
    ("a watch that expires by an event", |call, _| {
        is_node_watch(call).then(|| successful_reply(EXPIRED))
    }),
    ("a token that is refused", |_, _| Some(Answer::As("expired".to_owned()))),
    ("errors in turn", |_, before| {
        let (code, reason) = STATUSES[before % STATUSES.len()];
        Some(Answer::failure_status_reply(code, reason))
    }),
    ("replies that are cut short or no JSON", |_, before| {
        Some(successful_reply(BODIES[before % BODIES.len()]))
    }),
    ("replies that are too large", |_, _| Some(successful_reply(&"x".repeat(8 << 20)))),
];

fn is_node_watch(call: &Call) -> bool {
    call.is_for_node_collection() && call.is_watch()
}

fn successful_reply(body: &str) -> Answer {
    Answer::Reply(200, Vec::new(), body.to_owned())
}

/// Daemons remove no peer while they meet a fault, and add a new one afterwards.
fn require_peers_kept_during_fault(bed: &ApiTestbed, fault: Fault) -> Result<()> {
    let (before, met) = (bed.first_host_peer_entries()?, Arc::new(AtomicUsize::new(0)));
    ensure!(before.lines().count() >= 3, "h1 has no peer:\n{before}");
    for proxy in &bed.proxies {
        let met = Arc::clone(&met);
        proxy.set_judge(move |call| {
            let answer = fault(call, met.load(Ordering::Relaxed));
            met.fetch_add(usize::from(answer.is_some()), Ordering::Relaxed);
            answer.unwrap_or_default()
        });
        proxy.close_open_connections();
    }
    until("the daemons meet the fault", || met.load(Ordering::Relaxed) >= BODIES.len())?;
    let now = bed.first_host_peer_entries()?;
    ensure!(now == before, "before:\n{before}\nnow:\n{now}");
    bed.proxies.iter().for_each(Proxy::forward_all_requests);
    bed.require_new_peer_node_is_applied()
}

#[test]
fn api_outages_of_every_kind_lose_no_packet() -> Result<()> {
    Lab::run("Node API: outages", |lab| {
        let mut bed = ApiTestbed::populated_with_fake_api(lab, 2, VXLAN)?;
        let probe = bed.probe_first_to_second_pod()?;
        for (name, fault) in FAULTS {
            bed.require_recovery_after(name, |bed| require_peers_kept_during_fault(bed, fault))?;
        }
        bed.require_recovery_after("a server that restarts", |bed| {
            bed.api.stop()?;
            bed.api.start_after_stop()?;
            bed.require_new_peer_node_is_applied()
        })?;
        bed.require_recovery_after("a Node deleted while nobody watches", |bed| {
            let peer = bed.create_peer_node(10)?;
            bed.wait_tunnel_destinations("10.244.10.0/24", Some("192.168.57.10"))?;
            bed.proxies.iter().for_each(Proxy::close_present_and_new_connections);
            bed.admin().delete_node(&peer)?;
            bed.proxies.iter().for_each(Proxy::forward_all_requests);
            bed.wait_tunnel_destinations("10.244.10.0/24", None)
        })?;
        bed.require_recovery_after("the first address gone for good", |bed| {
            bed.proxies[0].close_present_and_new_connections();
            bed.require_new_peer_node_is_applied()?;
            let calls = bed.proxies[1].calls();
            ensure!(
                calls.iter().any(Call::is_for_node_collection),
                "nobody asked the second address"
            );
            Ok(())
        })?;
        probe.finish()?.require_clean()
    })
}

/// API servers before Kubernetes 1.34, and those without the feature WatchList, refuse to stream lists, so the daemon lists Nodes in pages of 100.
#[test]
fn server_that_streams_no_lists_is_listed_in_pages_and_outages_are_survived() -> Result<()> {
    Lab::run("Node API: no streamed lists", |lab| {
        let mut bed = ApiTestbed::with_api(lab, 2, VXLAN, |host| {
            ApiServer::start_emulating_version(host, Families::Dual, "1.34")
        })?;
        for number in 10..230 {
            bed.create_peer_node(number)?;
        }
        bed.start_nodes_daemons_and_pods()?;
        let calls = bed.proxies[0].calls();
        // Each of the two daemons requests two more pages.
        for (part, status, least) in [("sendInitialEvents", 422, 1), ("continue=", 200, 4)] {
            let of_nodes = calls.iter().filter(|call| call.is_for_node_collection());
            let found: Vec<u16> =
                of_nodes.filter(|call| call.path.contains(part)).map(|call| call.status).collect();
            ensure!(
                found.len() >= least && found.iter().all(|code| *code == status),
                "{part}: {found:?}"
            );
        }
        for number in [10, 229] {
            bed.wait_tunnel_destinations(
                &format!("10.244.{number}.0/24"),
                Some(&format!("192.168.57.{number}")),
            )?;
        }
        bed.require_recovery_after("a page that expires", |bed| {
            // A watch that expires leads to a list.
            require_peers_kept_during_fault(bed, |call, _| {
                let expires = call.path.contains("continue=")
                    || is_node_watch(call) && !call.path.contains("sendInitialEvents");
                expires.then(|| Answer::failure_status_reply(410, "Expired"))
            })
        })
    })
}
