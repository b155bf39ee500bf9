//! Thousands of peers need one pass and few system calls, and the node is idle afterwards.

use crate::bed::*;

/// Room for the subnets of thousands of nodes.
const WIDE: &str = r#"{"Network":"10.240.0.0/12","Backend":BACKEND}"#;

#[test]
fn three_thousand_peers() {
    for (backend, per_peer) in
        [(r#"{"Type":"vxlan"}"#, 3), (r#"{"Type":"vxlan","DirectRouting":true}"#, 1)]
    {
        in_namespace(move || async move {
            sh("ip route add 192.168.0.0/16 dev eth0");
            let peers = (0..=3000).filter(|n| ![101, 255].contains(n));
            let node = Node::start(setup(WIDE, backend), peers).await;
            node.idle().await;
            assert_eq!(count("proto 241"), 2998);
            let tunnelled = if per_peer == 3 { 2998 } else { 0 };
            assert_eq!(
                (count("fdb flannel.1"), count("neighbour flannel.1")),
                (tunnelled, tunnelled)
            );
            let writes = node.writes();
            assert_eq!(writes, 2 + per_peer * 2998);
            node.peers([1]);
            // Listing thousands of objects would take the time in which the node deletes them, so only the node's own number is polled.
            until("all are deleted", || node.writes() >= writes + per_peer * 2998).await;
            node.idle().await;
            assert_eq!(
                (count("fdb flannel.1"), count("neighbour flannel.1"), count("proto 241")),
                (0, 0, 0)
            );
            node.stop().await;
        });
    }
}
