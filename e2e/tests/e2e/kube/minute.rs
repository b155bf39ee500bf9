//! Tests of faults that last a minute: an API that returns only at its second address, refused tokens,
//! and a peer without flannel's mark. One test covers all faults.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use lab::{
    ANNOTATIONS, Answer, Call, FlanneldOptions, Lab, NodeObject, Probe, ProbeOptions, Proxy,
    throughout, until, until_ok,
};

use crate::kube::bed::{Bed, MOST_OF_A_MINUTE, VXLAN, within_a_minute};

const LEAVER: &str = "10.244.78.0/24";

#[test]
fn api_outage_of_a_minute_loses_no_packet() -> Result<()> {
    Lab::run("Node API: a minute", |lab| {
        // h2's tokens will be refused. h3 has no fault.
        let (mut bed, refusing, _well) = three_nodes(lab)?;
        let pids: Vec<u32> = bed.daemons.iter().map(|daemon| daemon.pid()).collect();
        let pods = &bed.pods;
        let probes = [(0, 1), (1, 2), (2, 0)]
            .map(|(from, to)| Probe::start(&pods[from], &pods[to], &ProbeOptions::default()));
        let probes = probes.into_iter().collect::<Result<Vec<_>>>()?;
        let before = (0..3)
            .map(|host| bed.hosts_of(host))
            .collect::<Result<Vec<_>>>()?;

        let start = Instant::now();
        bed.proxies.iter().for_each(Proxy::cut);
        refusing.on(|_| Answer::status(401, "Unauthorized"));
        refusing.disconnect();
        bed.admin()
            .annotate("leaver", &format!("{ANNOTATIONS}kube-subnet-manager"), None)?;
        let unchanged = |bed: &Bed| require_peers(bed, &before);
        throughout(
            MOST_OF_A_MINUTE,
            "all is as it was, and every node is ready",
            || {
                unchanged(&bed)?;
                within_a_minute(start, || {
                    ensure!(
                        bed.tunnel(2, LEAVER)?.is_some(),
                        "the peer without flannel's mark is gone already: it may return"
                    );
                    ensure!(
                        bed.daemons.iter().all(lab::Flanneld::is_ready),
                        "not ready within the minute"
                    );
                    Ok(())
                })
            },
        )?;
        let refused = || {
            bed.daemons[1]
                .metric("flannel_store_requests_total{kind=\"refused-401\"}")
                .is_ok_and(|count| count > 0.0)
        };
        ensure!(
            refused(),
            "refusals are not counted: {:?}",
            bed.daemons[1].get("/metrics")?
        );
        require_unready_without_the_api(&bed)?;
        until_ok("the peer without flannel's mark is gone", || {
            ensure!(bed.tunnel(2, LEAVER)?.is_none(), "it is still there");
            Ok(())
        })?;
        unchanged(&bed)?;
        ensure!(
            bed.daemons[2].is_ready(),
            "h3 has the API: {:?}",
            bed.daemons[2].get("/readyz")?
        );

        // The first address stays away.
        bed.proxies[1].pass();
        refusing.pass();
        bed.require_alive().context("afterwards")?;
        ensure!(
            bed.proxies[1].calls().iter().any(Call::is_of_nodes),
            "nobody asked the second address"
        );
        for (daemon, pid) in bed.daemons.iter_mut().zip(pids) {
            until("it is ready again", || daemon.is_ready())
                .with_context(|| format!("{:?}", daemon.get("/readyz")))?;
            ensure!(
                daemon.is_running() && daemon.pid() == pid,
                "another process"
            );
        }
        probes
            .into_iter()
            .try_for_each(|probe| probe.finish()?.require_clean())
    })
}

/// Starts three nodes and their pods. h1 has both addresses of --kube-api-url. The returned proxies serve h2 and h3.
fn three_nodes(lab: &Lab) -> Result<(Bed, Proxy, Proxy)> {
    let mut bed = Bed::empty(lab, 3, VXLAN)?;
    let (refusing, well) = (bed.api.proxy(8003)?, bed.api.proxy(8004)?);
    for (host, proxy) in [(1, &refusing), (2, &well)] {
        let options = FlanneldOptions::kube(&format!("h{}", host + 1), &bed.net_conf);
        bed.options[host] = options.arg(&format!("--kube-api-url={}", proxy.url()));
    }
    for number in 1..=3 {
        bed.admin().create_node(&bed.node(number))?;
    }
    let leaver = NodeObject::new("leaver")
        .pod_cidr(LEAVER)
        .vxlan_peer("192.168.57.78", "02:00:00:00:00:78");
    bed.admin().create_node(&leaver)?;
    bed.start_daemons()?;
    bed.start_pods()?;
    bed.reach()?;
    (0..3).try_for_each(|host| bed.wait_tunnel(host, LEAVER, Some("192.168.57.78")))?;
    Ok((bed, refusing, well))
}

/// Checks that each host has the same peers as in `before`.
fn require_peers(bed: &Bed, before: &[String]) -> Result<()> {
    for (host, before) in before.iter().enumerate() {
        let now = bed.hosts_of(host)?;
        ensure!(
            now == *before,
            "h{}, before:\n{before}\nnow:\n{now}",
            host + 1
        );
    }
    Ok(())
}

/// Checks that the first two nodes are not ready. The first node's reason names the API's address. The second node's
/// reason names the refusal and the clock as a possible cause.
fn require_unready_without_the_api(bed: &Bed) -> Result<()> {
    for (host, word) in [(0, "192.168.56.199"), (1, "401"), (1, "this host's clock")] {
        until_ok("a node without the API is not ready after a minute", || {
            let (code, why) = bed.daemons[host].get("/readyz")?;
            ensure!(
                code == 503 && why.contains(word),
                "h{}: {code} {why}",
                host + 1
            );
            Ok(())
        })?;
    }
    Ok(())
}
