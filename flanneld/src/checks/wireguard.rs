//! Facts about WireGuard peers, for the doctor. Matches the kernel's WireGuard sessions with the leases by the peers' public keys.

use super::known::name;
use crate::network::RunningNetwork;
use backends::identity_of;
use backends::wireguard::KIND;
use backends::wireguard::sessions::{self, TunnelPeers};
use doctor::fact::Fact;
use doctor::facts::wireguard::{Holder, Silent, Wireguard};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use subnet_lease::{Kinds, Lease, LeaseTable};
use types::{Family, Subnets};

pub(super) fn is_used(running: &RunningNetwork) -> bool {
    running.network.backend.is_some_and(|backend| backend.name == KIND)
}

/// Absent if the backend is not WireGuard.
pub(super) fn wireguard(running: Option<&RunningNetwork>) -> Fact<Wireguard> {
    let Some(running) = running else {
        return Fact::unavailable("the network of this node is not known yet");
    };
    if !is_used(running) {
        return Fact::Absent;
    }
    let TunnelPeers { peers, silent } = running.observer.status().tunnels;
    let holders = if silent.is_empty() {
        BTreeMap::new()
    } else {
        holders(&running.leases.borrow(), &running.network.own)
    };
    let silent = silent.iter().map(|peer| shown(peer, &running.listens, &holders)).collect();
    Fact::Known(Wireguard { peers, silent, has_tool: has_program("wg") })
}

/// The silent WireGuard peers, so that the caller can detect changes.
pub(super) fn silent(running: &RunningNetwork) -> BTreeSet<String> {
    if !is_used(running) {
        return BTreeSet::new();
    }
    running
        .observer
        .status()
        .tunnels
        .silent
        .iter()
        .map(|peer| format!("{} {}", peer.link, peer.key))
        .collect()
}

fn shown(
    peer: &sessions::Silent,
    listens: &BTreeMap<String, u16>,
    holders: &BTreeMap<String, Holder>,
) -> Silent {
    let (key, device) = (peer.key.to_string(), peer.link.to_string());
    Silent {
        port: listens.get(&device).copied(),
        endpoint: peer.endpoint,
        handshake: peer.handshake.map(|ago| ago.as_secs()),
        silence: peer.silence.as_secs(),
        initiates: peer.initiates,
        holder: holders.get(&key).cloned(),
        device,
        key,
    }
}

/// Maps public keys to the nodes whose leases publish them.
fn holders(leases: &LeaseTable, own: &Subnets) -> BTreeMap<String, Holder> {
    let holder = |lease: &Lease| Holder {
        name: name(lease).to_string(),
        subnets: lease.subnets,
        public: lease.attrs.addresses().collect(),
    };
    let of = |lease: &Lease| {
        Family::ALL.map(|family| identity_of(&lease.attrs, family).map(|key| (key, holder(lease))))
    };
    leases.others(own, Kinds::Only(KIND)).flat_map(of).flatten().collect()
}

fn has_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| Path::new(&folder).join(name).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstate::names::LinkName;
    use netstate::object::wireguard_peer::PublicKey;
    use std::time::Duration;
    use subnet_lease::{LeaseAttrs, RawJson, Term};

    #[test]
    fn wireguard_key_is_matched_to_its_lease() {
        let key = PublicKey([7; 32]);
        let subnets = Subnets::V4("10.244.2.0/24".parse().unwrap());
        let attrs = LeaseAttrs {
            public_ip: Some("192.0.2.2".parse().unwrap()),
            backend: KIND.to_owned(),
            data: RawJson::parse(&format!(r#"{{"PublicKey":"{key}"}}"#)).ok(),
            ..LeaseAttrs::default()
        };
        let leases = LeaseTable::of(
            [Lease { subnets, attrs, term: Term::Leased, since: 1 }],
            BTreeSet::new(),
        );
        let holders = holders(&leases, &Subnets::V4("10.244.1.0/24".parse().unwrap()));
        let peer = sessions::Silent {
            link: LinkName::parse("flannel-wg").unwrap(),
            key,
            endpoint: None,
            handshake: Some(Duration::from_secs(300)),
            silence: Duration::from_secs(31),
            initiates: true,
        };
        let listens = BTreeMap::from([("flannel-wg".to_owned(), 51820)]);
        let silent = shown(&peer, &listens, &holders);
        assert_eq!(
            (silent.port, silent.handshake, silent.silence, silent.initiates),
            (Some(51820), Some(300), 31, true)
        );
        assert_eq!(silent.holder.as_ref().map(|holder| holder.subnets), Some(subnets));
        let other = sessions::Silent { key: PublicKey([8; 32]), ..peer };
        assert_eq!(shown(&other, &listens, &holders).holder, None);
    }
}
