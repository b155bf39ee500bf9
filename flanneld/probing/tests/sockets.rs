//! Probers on real sockets, all on the loopback interface: what is asked at once, and by whom.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, missing_docs, reason = "tests say what is wrong by failing")]

use probing::prober::{Prober, Settings, Surroundings};
use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;
use subnet_lease::{Dual, Kinds, Lease, LeaseAttrs, LeaseTable, NodeId, Subnets, Term};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

fn subnets(number: u8) -> Subnets {
    Dual::V4(format!("127.77.{number}.0/24").parse().unwrap())
}

fn lease(number: u8) -> Lease {
    let node = NodeId { id: format!("id-{number}"), name: format!("node-{number}"), ..NodeId::default() };
    let attrs = LeaseAttrs { public_ip: Some([127, 0, 78, number].into()), backend: "vxlan".into(), node: Some(node), ..LeaseAttrs::default() };
    Lease { subnets: subnets(number), attrs, term: Term::Leased, since: number.into() }
}

/// Starts the prober of a node.
fn start(number: u8, port: u16, leases: &watch::Receiver<Arc<LeaseTable>>, stop: &CancellationToken) -> (Prober, watch::Sender<Surroundings>) {
    let address = std::net::IpAddr::from([127, 0, 78, number]);
    let settings =
        Settings { port, id: format!("id-{number}"), own: subnets(number), kinds: Kinds::Only("vxlan"), device: true, outer_ipv6: None, clear: true };
    let around = Surroundings { addresses: (Some(address), None), local: vec![address], mtu: (1450, 1430), yields_to: None };
    let prober = Prober::new(settings, &around);
    let (out, surroundings) = watch::channel(around);
    tokio::spawn(prober.clone().run(leases.clone(), surroundings, stop.clone()));
    (prober, out)
}

#[tokio::test]
async fn peers_are_asked_at_once() {
    // A port that nobody has: all addresses are this host's.
    let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let leases = watch::channel(Arc::new(LeaseTable::of((1..=3).map(lease), BTreeSet::new()))).1;
    let stop = CancellationToken::new();
    let (first, _around) = start(1, port, &leases, &stop);
    let (_, _second) = start(2, port, &leases, &stop);
    let subnet = |number| subnets(number).nets().next().unwrap();
    let well = async {
        loop {
            // At first it knows no peers.
            match first.ask(subnet(2)).await {
                Some(probe) if probe.small.answered == 5 => return probe,
                Some(_) => {}
                None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    };
    let well = tokio::time::timeout(Duration::from_secs(60), well).await.unwrap();
    assert_eq!((well.small.asked, well.full.asked, well.full.answered, well.beside.answered), (5, 5, 5, 5), "{well:?}");
    assert!(well.peer.hears_us_age_ms.is_some() && well.small.rtt_us.is_some(), "{well:?}");
    assert_eq!(first.source(false), Some([127, 77, 1, 0].into()));
    // Nobody listens there: the host says so, where this test may read that.
    let silent = first.ask(subnet(3)).await.unwrap();
    assert_eq!((silent.small.asked, silent.small.answered, silent.beside.answered), (5, 0, 0), "{silent:?}");
    assert!(silent.beside_ping.asked == 0 || silent.beside_ping.answered == 5 && silent.beside.refused == 5, "{silent:?}");
    assert!(first.ask(subnet(9)).await.is_none(), "no such peer");
    // Whoever stops waiting leaves nothing behind: there is room for eight.
    for _ in 0..20 {
        assert!(tokio::time::timeout(Duration::from_millis(5), first.ask(subnet(2))).await.is_err());
    }
    let (second, third) = tokio::join!(first.ask(subnet(2)), first.ask(subnet(3)));
    assert!(second.is_some_and(|probe| probe.small.answered == 5) && third.is_some_and(|probe| probe.small.answered == 0));
    stop.cancel();
}
