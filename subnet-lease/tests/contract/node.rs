//! A node of the tests: its claim, its lease, and its view of the other nodes.

use futures_util::StreamExt;
use std::net::Ipv4Addr;
use std::sync::Arc;
use subnet_lease::manager::{
    Choice, Claim, Error, Held, HostEvidence, LeaseLostError, NodeState, SubnetManager,
};
use subnet_lease::{
    Lease, LeaseAttrs, LeaseEvent, LeaseTable, NetworkConfig, NodeId, RawJson, wire,
};
use tokio::sync::watch;
use types::{Dual, Subnets};

pub(crate) const CONFIG: &str = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#;

pub(crate) const DUAL: &str = r#"{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"vxlan"}}"#;

pub(crate) fn claim(name: &str, last: u8) -> Claim {
    Claim {
        node: NodeId {
            id: format!("id-{name}").into(),
            name: name.into(),
            instance: format!("{name}-{:x}", rand::random::<u64>()),
            ..NodeId::default()
        },
        public: Dual::V4(Ipv4Addr::new(192, 168, 56, last)),
        host: HostEvidence {
            choice: Some(Choice {
                interface: "enp0s3".to_owned(),
                why: "it has the default route".to_owned(),
                interfaces: "  enp0s8 192.168.56.101  <- reaches the store: --iface=enp0s8\n"
                    .to_owned(),
            }),
            ..HostEvidence::default()
        },
    }
}

pub(crate) fn attrs(claim: &Claim) -> LeaseAttrs {
    LeaseAttrs {
        public_ip: claim.public.v4().copied(),
        public_ipv6: claim.public.v6().copied(),
        backend: "vxlan".into(),
        data: Some(
            RawJson::parse(&format!(
                r#"{{"VNI":1,"VtepMAC":"0a:00:00:00:00:{:02x}"}}"#,
                claim.public.v4().map_or(1, |ip| ip.octets()[3])
            ))
            .unwrap(),
        ),
        ..LeaseAttrs::default()
    }
}

pub(crate) async fn config(manager: &Arc<dyn SubnetManager>) -> NetworkConfig {
    manager.network_config().await.unwrap()
}

pub(crate) async fn acquire(
    manager: &Arc<dyn SubnetManager>,
    claim: &Claim,
) -> Result<Lease, Error> {
    let config = config(manager).await;
    let (state, _keep) = watch::channel(Held::default());
    let attrs = attrs(claim);
    let lease = manager.acquire(claim, &config, &attrs, &state);
    wait::complete("the node has a lease", lease).await.unwrap()
}

/// The node holds it until the test drops `Holding`.
pub(crate) struct Holding {
    pub task: tokio::task::JoinHandle<LeaseLostError>,
    pub attrs: watch::Sender<LeaseAttrs>,
    pub held: watch::Receiver<Held>,
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(crate) async fn hold(manager: &Arc<dyn SubnetManager>, claim: &Claim) -> Holding {
    let config = config(manager).await;
    let (attrs_out, attrs_in) = watch::channel(attrs(claim));
    let (state, held) = watch::channel(Held::default());
    let (manager, claim) = (manager.clone(), claim.clone());
    let task = tokio::spawn(async move {
        let (_kernel, programmed) = watch::channel(true);
        manager.hold(&claim, &config, NodeState { attrs: attrs_in, programmed }, state).await
    });
    Holding { task, attrs: attrs_out, held }
}

pub(crate) async fn eventually(what: &str, condition: impl FnMut() -> bool) {
    wait::until_async(what, condition).await.unwrap();
}

/// The table that results from a watch, the number of complete lists, and the number of interruptions.
type Followed = (LeaseTable, usize, usize);

pub(crate) struct Follower {
    table: Arc<std::sync::Mutex<Followed>>,
    task: tokio::task::JoinHandle<()>,
}

impl Follower {
    pub(crate) fn of(manager: Arc<dyn SubnetManager>) -> Self {
        let table = Arc::new(std::sync::Mutex::new((LeaseTable::default(), 0, 0)));
        let shared = table.clone();
        let task = tokio::spawn(async move {
            let mut events = manager.watch();
            while let Some(event) = events.next().await {
                let mut table = shared.lock().unwrap();
                table.1 += usize::from(matches!(event, LeaseEvent::Reset { .. }));
                table.2 += usize::from(matches!(event, LeaseEvent::Interrupted));
                table.0.apply(event);
            }
        });
        Self { table, task }
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.table.lock().unwrap().0.get(&wire::parse_key(key).unwrap()).is_some()
    }

    pub(crate) fn public_ip(&self, key: &str) -> Option<Ipv4Addr> {
        self.table
            .lock()
            .unwrap()
            .0
            .get(&wire::parse_key(key).unwrap())
            .and_then(|lease| lease.attrs.public_ip)
    }

    pub(crate) fn interruptions(&self) -> usize {
        self.table.lock().unwrap().2
    }

    pub(crate) fn len(&self) -> usize {
        self.table.lock().unwrap().0.len()
    }

    pub(crate) fn resets(&self) -> usize {
        self.table.lock().unwrap().1
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(crate) fn key(lease: &Lease) -> String {
    wire::render_key(&lease.subnets)
}

pub(crate) fn subnets(text: &str) -> Subnets {
    wire::parse_key(text).unwrap()
}
