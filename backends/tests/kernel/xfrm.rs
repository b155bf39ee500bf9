//! Policies of IPsec: what the kernel keeps is what was asked for, as `ip xfrm` shows it.

use crate::bed::{in_namespace, sh};
use netstate::netlink::xfrm::Policies;
use netstate::xfrm::{Action, Direction, Policy, Selector};
use std::time::Duration;
use tokio::time::timeout;

/// Go flannel's three policies for a peer, and the one that keeps packets for others from leaving in the clear.
const GO: &str = "src 10.244.74.0/24 dst 10.244.44.0/24 \n\tdir out priority 0 \n\ttmpl src 192.168.56.101 dst 192.168.56.102\n\t\tproto esp reqid 11 mode tunnel\n";

fn selector(direction: Direction, from: &str, to: &str) -> Selector {
    Selector {
        direction,
        from: from.parse().unwrap(),
        to: to.parse().unwrap(),
    }
}

fn tunnel(from: &str, to: &str) -> Policy {
    Policy {
        action: Action::Tunnel {
            from: from.parse().unwrap(),
            to: to.parse().unwrap(),
            reqid: 11,
        },
        priority: 0,
    }
}

#[test]
fn policies_are_set_listed_changed_and_deleted() {
    in_namespace(async || {
        let mut policies = Policies::open().unwrap();
        assert_eq!(policies.list().await.unwrap().len(), 0);
        let (own, peer) = ("10.244.74.0/24", "10.244.44.0/24");
        let (ours, theirs) = ("192.168.56.101", "192.168.56.102");
        let out = selector(Direction::Out, own, peer);
        policies.set(&out, &tunnel(ours, theirs)).await.unwrap();
        let shown = sh("ip xfrm policy").replace("ptype main ", "");
        assert_eq!(shown, GO);
        for direction in [Direction::In, Direction::Forward] {
            policies
                .set(&selector(direction, peer, own), &tunnel(theirs, ours))
                .await
                .unwrap();
        }
        let wall = selector(Direction::Out, own, "10.244.0.0/16");
        policies
            .set(
                &wall,
                &Policy {
                    action: Action::Block,
                    priority: 1000,
                },
            )
            .await
            .unwrap();
        let v6 = selector(Direction::Out, "fd00:1::/64", "fd00:2::/64");
        policies
            .set(&v6, &tunnel("fd00:56::101", "fd00:56::102"))
            .await
            .unwrap();
        let listed = policies.list().await.unwrap();
        assert_eq!(
            (listed.len(), listed[&out], listed[&v6]),
            (
                5,
                tunnel(ours, theirs),
                tunnel("fd00:56::101", "fd00:56::102")
            )
        );
        assert_eq!(
            listed[&wall],
            Policy {
                action: Action::Block,
                priority: 1000
            }
        );
        let shown = sh("ip xfrm policy");
        assert!(
            shown.contains("dir out action block priority 1000"),
            "{shown}"
        );

        // The same again is no error, and another end replaces it.
        policies.set(&out, &tunnel(ours, theirs)).await.unwrap();
        policies
            .set(&out, &tunnel(ours, "192.168.56.103"))
            .await
            .unwrap();
        assert_eq!(
            policies.list().await.unwrap()[&out],
            tunnel(ours, "192.168.56.103")
        );
        // Of an operator's that selects by more than networks, nothing is seen.
        sh(
            "ip xfrm policy add src 10.244.74.0/24 dst 10.244.44.0/24 proto tcp dport 443 dir out action allow",
        );
        sh("ip xfrm policy add src 10.97.0.0/24 dst 10.96.0.0/24 dir out action allow mark 5");
        // Where the tunnel need not be used, packets may come in the clear: that is no tunnel of ours.
        sh(
            "ip xfrm policy add src 10.95.0.0/24 dst 10.94.0.0/24 dir in tmpl src 192.168.56.101 dst 192.168.56.102 proto esp reqid 11 mode tunnel level use",
        );
        sh("ip xfrm policy add src 10.99.0.0/24 dst 10.98.0.0/24 dir out action allow priority 7");
        let listed = policies.list().await.unwrap();
        let allowed = selector(Direction::Out, "10.99.0.0/24", "10.98.0.0/24");
        assert_eq!(
            (listed.len(), listed[&allowed]),
            (
                6,
                Policy {
                    action: Action::Pass,
                    priority: 7
                }
            )
        );

        policies.delete(&out).await.unwrap();
        policies.delete(&out).await.unwrap();
        let listed = policies.list().await.unwrap();
        assert!(listed.len() == 5 && !listed.contains_key(&out));
        assert!(
            sh("ip xfrm policy").contains("dport 443"),
            "the operator's stays"
        );
    });
}

#[test]
fn a_flush_is_noticed() {
    in_namespace(async || {
        let mut policies = Policies::open().unwrap();
        policies
            .set(
                &selector(Direction::Out, "10.1.0.0/24", "10.2.0.0/24"),
                &tunnel("192.168.56.101", "192.168.56.102"),
            )
            .await
            .unwrap();
        // Our own is announced, too.
        timeout(Duration::from_secs(20), policies.changed())
            .await
            .unwrap();
        assert!(
            timeout(Duration::from_millis(50), policies.changed())
                .await
                .is_err(),
            "nothing else changed"
        );
        sh("ip xfrm policy flush");
        timeout(Duration::from_secs(20), policies.changed())
            .await
            .unwrap();
        assert_eq!(policies.list().await.unwrap().len(), 0);
    });
}
