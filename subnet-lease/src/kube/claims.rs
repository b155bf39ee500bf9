//! Determines the addresses that Nodes claim. Pure.

use super::annotations::{self, Annotations};
use super::node::Node;
use crate::manager::Claimant;
use std::collections::BTreeMap;
use std::net::IpAddr;
use types::{Addresses, Dual};

/// The addresses that one Node claims, and what shows whether the claims are valid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Claims {
    /// Whether the kubelet reports the Node's status. If not, the machine may be gone, or an operator may have created the Node manually.
    alive: bool,
    /// Boot id of the Node's machine.
    boot: Option<String>,
    /// Flannel runs on the Node.
    served: bool,
    published: Vec<IpAddr>,
    /// The Node's InternalIPs. Empty if peers reach the Node at another address, behind a NAT.
    reported: Vec<IpAddr>,
}

impl Claims {
    pub(super) fn of(node: &Node) -> Self {
        let reported =
            if is_overwritten(&node.annotations) { Vec::new() } else { node.internal.clone() };
        Self {
            alive: node.alive,
            boot: node.boot.clone(),
            served: annotations::managed(&node.annotations),
            published: published(&node.annotations),
            reported,
        }
    }

    /// Adds the Node's claims to those of others. A Node with the boot id `boot` is skipped, because it is the local machine under another name.
    pub(super) fn add(&self, name: &str, boot: Option<&str>, to: &mut BTreeMap<IpAddr, Claimant>) {
        if !self.alive || boot.is_some() && self.boot.as_deref() == boot {
            return;
        }
        let both = self
            .published
            .iter()
            .map(|ip| (ip, true))
            .chain(self.reported.iter().map(|ip| (ip, false)));
        for (ip, publishes) in both {
            let publishes = publishes && self.served;
            let claimant = to.entry(*ip).or_insert_with(|| Claimant {
                node: name.to_owned(),
                served: false,
                publishes: false,
            });
            // The most relevant Node names the claimant.
            if (publishes, self.served) > (claimant.publishes, claimant.served) {
                name.clone_into(&mut claimant.node);
            }
            claimant.served |= self.served;
            claimant.publishes |= publishes;
        }
    }
}

pub(super) fn published(annotations: &Annotations) -> Vec<IpAddr> {
    let v4 = annotations::v4(annotations, annotations::PUBLIC_IP);
    let v6 = annotations::v6(annotations, annotations::PUBLIC_IPV6);
    let public = Dual::from_options(v4.ok().flatten(), v6.ok().flatten());
    public.iter().flat_map(Addresses::ips).collect()
}

/// True if an operator chose the address at which peers reach the Node.
pub(super) fn is_overwritten(annotations: &Annotations) -> bool {
    annotations::v4(annotations, annotations::OVERWRITE).is_ok_and(|ip| ip.is_some())
        || annotations::v6(annotations, annotations::OVERWRITE_V6).is_ok_and(|ip| ip.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::annotations::Prefix;

    fn node(ready: &str, boot: &str, internal: &str, annotations: &[(&str, &str)]) -> Claims {
        let text = format!(
            r#"{{"metadata":{{"name":"n"}},"status":{{"conditions":[{{"type":"Ready","status":"{ready}"}}],"nodeInfo":{{"bootID":"{boot}"}},
               "addresses":[{{"type":"InternalIP","address":"{internal}"}}]}}}}"#
        );
        let mut node = Node::read(&text, &Prefix::parse("a.b").unwrap()).unwrap();
        node.annotations = annotations
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        Claims::of(&node)
    }

    fn claims(nodes: &[(&str, Claims)]) -> Vec<String> {
        let mut all = BTreeMap::new();
        nodes.iter().for_each(|(name, claims)| claims.add(name, Some("here"), &mut all));
        all.iter()
            .map(|(ip, claimant)| {
                format!("{ip} {} {} {}", claimant.node, claimant.served, claimant.publishes)
            })
            .collect()
    }

    const SERVED: (&str, &str) = ("kube-subnet-manager", "true");
    const PUBLISHES: (&str, &str) = ("public-ip", "10.0.0.2");

    #[test]
    fn dead_and_renamed_nodes_claim_nothing() {
        for (ready, boot, want) in [
            ("True", "there", 1),
            ("False", "", 1),
            ("Unknown", "there", 0),
            ("", "there", 0),
            ("True", "here", 0),
        ] {
            assert_eq!(
                claims(&[("n2", node(ready, boot, "10.0.0.1", &[]))]).len(),
                want,
                "{ready} {boot}"
            );
        }
    }

    #[test]
    fn node_with_an_overwrite_claims_only_what_it_publishes() {
        let overwritten =
            node("True", "", "10.0.0.1", &[SERVED, PUBLISHES, ("public-ip-overwrite", "10.0.0.2")]);
        assert_eq!(claims(&[("n2", overwritten)]), ["10.0.0.2 n2 true true"]);
        let typo = node(
            "True",
            "",
            "10.0.0.1",
            &[SERVED, PUBLISHES, ("public-ip-overwrite", "10.0.0.2:80")],
        );
        assert_eq!(claims(&[("n2", typo)]), ["10.0.0.1 n2 true false", "10.0.0.2 n2 true true"]);
    }

    #[test]
    fn claim_of_several_nodes_names_the_one_that_flannel_serves() {
        let (plain, served) =
            (node("True", "", "10.0.0.2", &[]), node("True", "", "10.0.0.3", &[SERVED, PUBLISHES]));
        assert_eq!(
            claims(&[("a", plain), ("b", served)]),
            ["10.0.0.2 b true true", "10.0.0.3 b true false"]
        );
        // Without flannel's mark, an annotation may be a leftover.
        assert_eq!(
            claims(&[("a", node("True", "", "10.0.0.2", &[PUBLISHES]))]),
            ["10.0.0.2 a false false"]
        );
    }
}
