//! State derived from the backend and the underlay: the published attributes, the criteria for leases, and subnet.env.

use super::node::{Leased, Node};
use backends::{Announced, Underlay};
use ipnet::IpNet;
use probing::pods::last_of_pods;
use run_dir::subnet_env::SubnetEnv;
use std::sync::Arc;
use subnet_lease::admission::{History, Terms};
use subnet_lease::manager::Held;
use subnet_lease::{Lease, LeaseAttrs, NetworkConfig, PeerRules};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use types::barred_by;

/// The attributes that this node publishes in its lease. The lease protocol signs them.
pub(super) fn of(announced: &Announced, underlay: &Underlay) -> LeaseAttrs {
    LeaseAttrs {
        public_ip: underlay.public.v4().copied(),
        public_ipv6: underlay.public.v6().copied(),
        backend: announced.backend.clone(),
        data: announced.data.clone(),
        v6_data: announced.v6_data.clone(),
        ..LeaseAttrs::default()
    }
}

/// The underlay's networks that no subnet may overlap.
pub(super) fn underlay_networks(config: &NetworkConfig, underlay: &Underlay) -> Vec<IpNet> {
    let own = |net: &&IpNet| underlay.addresses.ips().any(|ip| ip == net.addr());
    let nets = underlay.local.iter().filter(own);
    nets.map(|net| barred_by(net, &config.networks)).collect()
}

/// Criteria for the leases that the backend can use.
#[derive(Clone)]
pub(super) struct Whose {
    pub rules: Arc<dyn PeerRules>,
    /// Who had which MAC or key before this run.
    pub history: Arc<History>,
    /// Whether nodes may share one public address.
    pub shared_address: bool,
    /// Whether this node must reach its peers over the underlay without a gateway.
    pub needs_links: bool,
}

pub(super) fn terms(
    config: &NetworkConfig,
    own: &Lease,
    underlay: &Underlay,
    whose: &Whose,
) -> Terms {
    Terms {
        config: config.clone(),
        own: Some(own.clone()),
        // The published address is also ours, even if another host translates it, unless nodes may share it.
        local: underlay
            .local
            .iter()
            .copied()
            .chain(underlay.public.ips().filter(|_| !whose.shared_address).map(IpNet::from))
            .collect(),
        underlay: underlay_networks(config, underlay),
        links: whose.needs_links.then(|| underlay.links.clone()),
        rules: whose.rules.clone(),
        history: whose.history.clone(),
    }
}

/// Keeps the published attributes, the lease criteria and subnet.env in sync with the backend and the underlay.
pub(super) struct Following {
    pub config: NetworkConfig,
    pub announced: watch::Receiver<Announced>,
    pub underlay: watch::Receiver<Underlay>,
    pub held: watch::Receiver<Held>,
    /// Input of `hold`.
    pub attrs: watch::Sender<LeaseAttrs>,
    /// Input of the lease feed.
    pub terms: watch::Sender<Arc<Terms>>,
    /// Input of the keeper of subnet.env.
    pub env: watch::Sender<SubnetEnv>,
    pub whose: Whose,
}

/// The ends of [`Following`]'s channels that other tasks use.
pub(super) struct Ends {
    /// Takes the current underlay.
    pub underlay: watch::Sender<Underlay>,
    /// Takes the backend's announcement.
    pub announced: watch::Sender<Announced>,
    pub attrs: watch::Receiver<LeaseAttrs>,
    pub terms: watch::Receiver<Arc<Terms>>,
    pub env: watch::Receiver<SubnetEnv>,
}

impl Following {
    /// Begins with the state at the acquisition of the lease.
    pub(super) fn new(node: &Node, ip_masq: bool, probe_pods: bool) -> (Self, Ends) {
        let Node { backend, leased } = node;
        let Leased { config, announced, lease, found, history, held, .. } = leased;
        let present = &found.chosen.underlay;
        let whose = Whose {
            rules: backend.rules(),
            history: history.clone(),
            shared_address: backend.profile().shares_address,
            needs_links: backend.profile().needs_links,
        };
        let (underlay_out, underlay) = watch::channel(present.clone());
        let (announced_out, announced_in) = watch::channel(announced.clone());
        let (attrs, attrs_in) = watch::channel(of(announced, present));
        let (terms, terms_in) = watch::channel(Arc::new(terms(config, lease, present, &whose)));
        let (env, env_in) = watch::channel(SubnetEnv {
            networks: config.networks,
            subnets: lease.subnets,
            mtu: announced.mtu,
            ip_masq,
            range_ends: if probe_pods {
                lease.subnets.nets().filter_map(|subnet| last_of_pods(&subnet)).collect()
            } else {
                Vec::new()
            },
        });
        let following = Self {
            config: config.clone(),
            announced: announced_in,
            underlay,
            held: held.1.clone(),
            attrs,
            terms,
            env,
            whose,
        };
        (
            following,
            Ends {
                underlay: underlay_out,
                announced: announced_out,
                attrs: attrs_in,
                terms: terms_in,
                env: env_in,
            },
        )
    }

    pub(super) async fn run(mut self, stop: CancellationToken) {
        loop {
            let announced = self.announced.borrow_and_update().clone();
            let underlay = self.underlay.borrow_and_update().clone();
            let own = self.held.borrow_and_update().lease.clone();
            replace(&self.attrs, of(&announced, &underlay));
            let mut env = self.env.borrow().clone();
            env.mtu = announced.mtu;
            replace(&self.env, env);
            if let Some(own) = own {
                let now = terms(&self.config, &own, &underlay, &self.whose);
                self.terms.send_if_modified(|present| {
                    let same = present.own == now.own
                        && present.local == now.local
                        && present.underlay == now.underlay
                        && present.links == now.links;
                    if !same {
                        *present = Arc::new(now);
                    }
                    !same
                });
            }
            tokio::select! {
                changed = self.announced.changed() => if changed.is_err() { return stop.cancelled().await },
                changed = self.underlay.changed() => if changed.is_err() { return stop.cancelled().await },
                changed = self.held.changed() => if changed.is_err() { return stop.cancelled().await },
                () = stop.cancelled() => return,
            }
        }
    }
}

fn replace<T: PartialEq>(sender: &watch::Sender<T>, value: T) {
    sender.send_if_modified(|present| {
        let news = *present != value;
        if news {
            *present = value;
        }
        news
    });
}
