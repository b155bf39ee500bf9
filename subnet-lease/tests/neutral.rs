//! Tests the manager trait, the feed and admission on a store without keys. Needs the Cargo feature `managers`, but not those of the key protocol.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "tests say what is wrong by failing"
)]

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt};
use std::collections::BTreeSet;
use std::sync::Arc;
use subnet_lease::admission::Terms;
use subnet_lease::entry::{Entry, Listing};
use subnet_lease::feed::{Feed, Reading};
use subnet_lease::manager::{
    Claim, Counters, Error, Held, HostEvidence, LeaseLostError, LeaseStore, Liveness, NodeState,
    SubnetManager,
};
use subnet_lease::{Lease, LeaseAttrs, LeaseEvent, LeaseTable, NetworkConfig, NodeId, Term};
use tokio::sync::watch;
use types::{Dual, Problem, Subnets};

/// It has already assigned the subnets to the nodes.
struct Assigned;

fn subnets(third: u8) -> Subnets {
    Dual::V4(format!("10.5.{third}.0/24").parse().unwrap())
}

fn lease(third: u8) -> Lease {
    let attrs = LeaseAttrs {
        public_ip: Some([192, 168, 56, third].into()),
        backend: "host-gw".into(),
        ..LeaseAttrs::default()
    };
    Lease { subnets: subnets(third), attrs, term: Term::Reserved, since: i64::from(third) }
}

#[async_trait]
impl LeaseStore for Assigned {
    fn place(&self) -> String {
        "nowhere".to_owned()
    }

    async fn config(&self) -> Result<NetworkConfig, Error> {
        self.network_config().await
    }

    async fn list(&self) -> Result<Listing, Problem> {
        Ok(Listing { revision: 0, entries: Vec::new() })
    }

    async fn liveness(&self, _: &Entry) -> Result<Liveness, Problem> {
        Ok(Liveness::default())
    }

    async fn release(&self, _: &Entry) -> Result<bool, Problem> {
        Ok(false)
    }

    async fn reserve(&self, _: &Subnets, _: String, _: Option<&Entry>) -> Result<bool, Problem> {
        Ok(false)
    }
}

#[async_trait]
impl SubnetManager for Assigned {
    async fn network_config(&self) -> Result<NetworkConfig, Error> {
        Ok(NetworkConfig::parse(r#"{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}"#)
            .unwrap())
    }

    async fn stored(&self, _: &Claim, _: &NetworkConfig) -> Result<Option<LeaseAttrs>, Error> {
        Ok(None)
    }

    async fn acquire(
        &self,
        _: &Claim,
        _: &NetworkConfig,
        attrs: &LeaseAttrs,
        _: &watch::Sender<Held>,
    ) -> Result<Lease, Error> {
        Ok(Lease { attrs: attrs.clone(), ..lease(1) })
    }

    fn watch(&self) -> BoxStream<'_, LeaseEvent> {
        let leases = (1..5).map(lease).collect();
        stream::iter([
            LeaseEvent::Reset { leases, unreadable: BTreeSet::new() },
            LeaseEvent::Put(lease(9)),
        ])
        .chain(stream::pending())
        .boxed()
    }

    async fn hold(
        &self,
        _: &Claim,
        _: &NetworkConfig,
        _: NodeState,
        _: watch::Sender<Held>,
    ) -> LeaseLostError {
        std::future::pending().await
    }

    fn counters(&self) -> Arc<Counters> {
        Arc::default()
    }
}

#[tokio::test]
async fn a_manager_that_knows_no_keys_feeds_the_table() {
    let manager: Arc<dyn SubnetManager> = Arc::new(Assigned);
    let claim = Claim {
        node: NodeId::default(),
        public: Dual::V4([192, 168, 56, 1].into()),
        host: HostEvidence::default(),
    };
    let config = manager.network_config().await.unwrap();
    let (state, _held) = watch::channel(Held::default());
    let own = manager.acquire(&claim, &config, &lease(1).attrs, &state).await.unwrap();
    let terms = Terms {
        config,
        own: Some(own),
        local: vec!["192.168.56.1/24".parse().unwrap()],
        underlay: Vec::new(),
        links: None,
        rules: Arc::new(()),
        history: Arc::default(),
    };
    let (_terms, terms) = watch::channel(Arc::new(terms));
    let (feed, table) = Feed::begin(manager.watch(), terms).await;
    assert_eq!(table.len(), 3);
    let (out, mut published) = watch::channel(Arc::new(LeaseTable::default()));
    let (readings, _readings) = watch::channel(Reading::default());
    let seen =
        async { published.wait_for(|table| table.get(&subnets(9)).is_some()).await.unwrap().len() };
    tokio::select! {
        () = feed.run(out, readings) => panic!("the feed ended"),
        seen = seen => assert_eq!(seen, 4),
    }
}
