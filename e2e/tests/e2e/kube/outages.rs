//! Checks that packets keep flowing during outages of the API, and that daemons apply the missed changes soon after an outage.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use lab::{Answer, ApiServer, Call, Families, Lab, NodeObject, throughout, until_ok};

use crate::kube::bed::{Bed, Scenario, Server, VXLAN};

/// Event that ends the stream of an expired watch.
const EXPIRED: &str = r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","message":"too old resource version","reason":"Expired","code":410}}"#;

const OUTAGES: &[(&str, Scenario)] = &[
    (
        "a watch that expires, by a status and by an event",
        expired_watches,
    ),
    ("a page of a list that expires", expired_pages),
    ("connections that die without a word", half_open),
    ("a token that is refused", unauthorized),
    ("403, 429, 500, 503 and 504 in turn", statuses),
    (
        "answers that are cut short, no JSON, and too large",
        garbage,
    ),
    ("an API server that restarts", restart),
    ("the first address gone for good", failover),
    ("updates while nobody reads", flood),
];

#[test]
fn api_outages_of_every_kind_lose_no_packet() -> Result<()> {
    outages(Server::Real)
}

pub(crate) fn outages(server: Server) -> Result<()> {
    Lab::run("Node API: outages", |lab| {
        let mut bed = server.populated(lab, 2, VXLAN)?;
        let probes = lab::Probe::start(&bed.pods[0], &bed.pods[1], &lab::ProbeOptions::default())?;
        bed.each(OUTAGES)?;
        probes.finish()?.require_clean()
    })
}

/// API servers before Kubernetes 1.34 refuse to stream lists, so the daemon lists Nodes in pages of 100.
#[test]
fn kubernetes_1_33_is_listed_in_pages_and_outages_are_survived() -> Result<()> {
    const PEERS: u8 = 220;
    Lab::run("Node API: 1.33", |lab| {
        let mut bed = Bed::with(lab, 2, VXLAN, |host| {
            ApiServer::emulate(host, Families::Dual, "1.33")
        })?;
        for number in 10..10 + PEERS {
            let node = NodeObject::new(&format!("peer-{number:03}"))
                .pod_cidr(&format!("10.244.{number}.0/24"));
            bed.admin().create_node(&node.vxlan_peer(
                &format!("192.168.57.{number}"),
                &format!("02:00:00:00:03:{number:02x}"),
            ))?;
        }
        bed.populate()?;
        let calls = bed.proxies[0].calls();
        let answers = |part: &str| {
            calls
                .iter()
                .filter(|call| call.is_of_nodes() && call.path.contains(part))
                .map(|call| call.status)
                .collect::<Vec<_>>()
        };
        let streams = answers("sendInitialEvents");
        ensure!(
            !streams.is_empty() && streams.iter().all(|status| *status == 422),
            "streamed lists: {streams:?}"
        );
        // Each of the two daemons requests two more pages.
        let pages = answers("continue=");
        ensure!(
            pages.len() >= 4 && pages.iter().all(|status| *status == 200),
            "pages: {pages:?}"
        );
        for host in 0..bed.hosts.len() {
            for number in [10, 10 + PEERS - 1] {
                bed.wait_tunnel(
                    host,
                    &format!("10.244.{number}.0/24"),
                    Some(&format!("192.168.57.{number}")),
                )?;
            }
        }
        bed.each(&[
            ("a watch that expires", expired_watches),
            ("a page of a list that expires", expired_pages),
            ("an API server that restarts", restart),
            (
                "a Node that is deleted while nobody watches",
                deleted_meanwhile,
            ),
            ("the first address gone for good", failover),
        ])
    })
}

/// Deletes a Node while the daemons cannot reach the API, so that only the next list shows the deletion.
fn deleted_meanwhile(bed: &mut Bed) -> Result<()> {
    bed.proxies.iter().for_each(lab::Proxy::cut);
    bed.admin().delete_node("peer-010")?;
    bed.proxies.iter().for_each(lab::Proxy::pass);
    (0..bed.hosts.len()).try_for_each(|host| bed.wait_tunnel(host, "10.244.10.0/24", None))
}

fn is_watch_of_nodes(call: &Call) -> bool {
    call.is_of_nodes() && call.is_watch()
}

/// Checks that daemons remove no peer while `fault` lasts, and that the daemons add a new peer afterwards.
fn under(
    bed: &Bed,
    lasts: Duration,
    fault: impl Fn(&Call) -> Answer + Send + Sync + Clone + 'static,
) -> Result<()> {
    let before = bed.hosts_of(0)?;
    ensure!(before.lines().count() >= 3, "h1 has no peer:\n{before}");
    for proxy in &bed.proxies {
        proxy.on(fault.clone());
        proxy.disconnect();
    }
    throughout(lasts, "peers stay as they are", || {
        let now = bed.hosts_of(0)?;
        ensure!(now == before, "before:\n{before}\nnow:\n{now}");
        Ok(())
    })?;
    bed.proxies.iter().for_each(lab::Proxy::pass);
    bed.require_alive()
}

fn expired_watches(bed: &mut Bed) -> Result<()> {
    under(bed, Duration::from_secs(3), |call| {
        if is_watch_of_nodes(call) {
            Answer::status(410, "Expired")
        } else {
            Answer::Pass
        }
    })?;
    under(bed, Duration::from_secs(3), |call| {
        if is_watch_of_nodes(call) {
            Answer::Reply(200, Vec::new(), EXPIRED.to_owned())
        } else {
            Answer::Pass
        }
    })
}

fn expired_pages(bed: &mut Bed) -> Result<()> {
    // Streamed lists are refused, so that the daemon requests pages.
    under(bed, Duration::from_secs(3), |call| {
        if call.path.contains("sendInitialEvents") {
            Answer::status(422, "Invalid")
        } else if call.path.contains("continue=") {
            Answer::status(410, "Expired")
        } else {
            Answer::Pass
        }
    })
}

fn half_open(bed: &mut Bed) -> Result<()> {
    // The API's host drops what it sends on its present connections. New connections work.
    let netns = bed.api.host().netns().clone();
    let open = netns.exec(
        "ss",
        &[
            "--no-header",
            "--tcp",
            "--numeric",
            "state",
            "established",
            "( sport = 8001 or sport = 8002 )",
        ],
    )?;
    let peers: Vec<String> = open
        .lines()
        .filter_map(|line| {
            line.split_whitespace()
                .nth(3)?
                .rsplit_once(':')
                .map(|(_, port)| port.to_owned())
        })
        .collect();
    ensure!(!peers.is_empty(), "nobody is connected: {open}");
    let rules = format!(
        "table inet half_open {{ chain output {{ type filter hook output priority 0; tcp sport {{ 8001, 8002 }} tcp dport {{ {0} }} drop; }}\n\
         chain input {{ type filter hook input priority 0; tcp dport {{ 8001, 8002 }} tcp sport {{ {0} }} drop; }}\n}}",
        peers.join(", ")
    );
    netns.feed("nft", &["-f", "-"], &rules)?;
    let peer = NodeObject::new("late")
        .pod_cidr("10.244.251.0/24")
        .vxlan_peer("192.168.56.251", "02:00:00:00:02:51");
    bed.admin().create_node(&peer)?;
    let found = (0..bed.hosts.len()).try_for_each(|host| {
        // The daemon closes a connection after 15 seconds without a response.
        until_ok("the new peer is there", || {
            ensure!(
                bed.tunnel(host, "10.244.251.0/24")?.is_some(),
                "h{} does not know it",
                host + 1
            );
            Ok(())
        })
    });
    netns.exec("nft", &["delete", "table", "inet", "half_open"])?;
    bed.admin().delete_node("late")?;
    found
}

fn unauthorized(bed: &mut Bed) -> Result<()> {
    under(bed, Duration::from_secs(3), |_| {
        Answer::As("expired".to_owned())
    })
}

/// Returns a handler that replies to each request with the next of `answers`, and repeats the answers in a cycle.
fn in_turn(answers: Vec<Answer>) -> impl Fn(&Call) -> Answer + Send + Sync + Clone + 'static {
    let next = Arc::new(AtomicUsize::new(0));
    move |_| answers[next.fetch_add(1, Ordering::Relaxed) % answers.len()].clone()
}

fn statuses(bed: &mut Bed) -> Result<()> {
    let plain = [
        (403, "Forbidden"),
        (500, "InternalError"),
        (503, "ServiceUnavailable"),
        (504, "Timeout"),
    ];
    let mut answers: Vec<Answer> = plain
        .map(|(code, reason)| Answer::status(code, reason))
        .to_vec();
    if let Answer::Reply(code, _, body) = Answer::status(429, "TooManyRequests") {
        answers.push(Answer::Reply(
            code,
            vec![("Retry-After".to_owned(), "1".to_owned())],
            body,
        ));
    }
    under(bed, Duration::from_secs(6), in_turn(answers))
}

fn garbage(bed: &mut Bed) -> Result<()> {
    let endless = format!(
        r#"{{"type":"ADDED","object":{{"metadata":{{"name":"{}"}}}}}}"#,
        "x".repeat(8 << 20)
    );
    let bodies = [
        "",
        "{",
        "[]",
        "null",
        r#"{"kind":"NodeList","items":[{"metadata":null},7,null,{}]}"#,
        "<html>502</html>",
        &endless,
    ];
    under(
        bed,
        Duration::from_secs(6),
        in_turn(
            bodies
                .map(|body| Answer::Reply(200, Vec::new(), body.to_owned()))
                .to_vec(),
        ),
    )
}

fn restart(bed: &mut Bed) -> Result<()> {
    bed.api.stop()?;
    bed.api.restart()?;
    bed.require_alive()
}

fn failover(bed: &mut Bed) -> Result<()> {
    bed.proxies[0].cut();
    bed.require_alive()?;
    ensure!(
        bed.proxies[1].calls().iter().any(Call::is_of_nodes),
        "nobody asked the second address"
    );
    Ok(())
}

fn flood(bed: &mut Bed) -> Result<()> {
    let peer = |last: u8| {
        NodeObject::new("busy")
            .pod_cidr("10.244.252.0/24")
            .vxlan_peer(&format!("192.168.56.{last}"), "02:00:00:00:02:52")
    };
    bed.admin().create_node(&peer(2))?;
    bed.daemons[0].stop()?;
    for last in 3..=250 {
        bed.admin().annotate(
            "busy",
            &format!("{}public-ip", lab::ANNOTATIONS),
            Some(&format!("192.168.56.{last}")),
        )?;
    }
    bed.daemons[0].cont()?;
    (0..bed.hosts.len())
        .try_for_each(|host| bed.wait_tunnel(host, "10.244.252.0/24", Some("192.168.56.250")))?;
    bed.admin().delete_node("busy")
}

#[test]
fn daemon_started_without_the_api_waits_and_becomes_ready() -> Result<()> {
    Lab::run("Node API: away at the start", |lab| {
        let bed = Bed::empty(lab, 1, VXLAN)?;
        for cut in [true, false] {
            if cut {
                bed.proxies.iter().for_each(lab::Proxy::cut);
            } else {
                bed.proxies
                    .iter()
                    .for_each(|proxy| proxy.on(|_| Answer::status(403, "Forbidden")));
            }
            let mut daemon = bed.hosts[0].start_flanneld(&bed.options[0])?;
            throughout(Duration::from_secs(2), "it waits", || {
                ensure!(
                    daemon.is_running() && !daemon.is_ready(),
                    "{}",
                    daemon.log()
                );
                Ok(())
            })?;
            until_ok("it says that it is not ready", || {
                let (code, why) = daemon.get("/readyz")?;
                ensure!(code == 503, "{code} {why}");
                Ok(())
            })?;
            if cut {
                bed.admin().create_node(&bed.node(1))?;
            }
            bed.proxies.iter().for_each(lab::Proxy::pass);
            daemon.wait_ready()?;
            ensure!(daemon.terminate()?.success(), "{}", daemon.log());
            std::fs::remove_file(daemon.subnet_file()).ok();
        }
        Ok(())
    })
}
