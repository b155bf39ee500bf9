//! Leases in the Nodes of a Kubernetes cluster: the cluster assigns the subnets, and the daemons publish annotations.
//!
//! A Node differs from a key of etcd: the API offers no compare-and-swap, no time to live and no allocation for Nodes. The API server decides which
//! client may act as a Node.

#[cfg(test)]
mod agreement;
pub mod annotations;
mod api;
mod assigned;
mod change;
mod claims;
mod daemon_pods;
pub mod error;
mod events;
mod follow;
mod holders;
mod lines;
pub mod node;
mod node_client;
pub mod nodes;
mod options;
pub mod patches;
mod publish;
mod request_error;
mod requests;
mod stagger;
mod state;
mod status;
mod token;
mod watching;

use crate::config::NetworkConfig;
use crate::entry::{Entry, Listing};
use crate::lease::{Lease, LeaseAttrs, Term};
use crate::manager::{
    Claim, Counters, Error, Held, LastHeard, LeaseLostError, LeaseStore, Liveness, Nature,
    NodeHealth, NodeInfo, NodeState, SubnetManager, no_lease_acquired,
};
use crate::table::LeaseEvent;
use api::Api;
use assigned::Assigned;
use async_trait::async_trait;
use events::{NodeEvent, PostedEvents};
use follow::Follower;
use futures_util::stream::{self, BoxStream, StreamExt};
use node::Node;
pub use node_client::{Listed, NodeClient};
pub use options::{Identity, KubeOptions, server_url};
use parking_lot::Mutex;
use publish::{Holding, Publisher};
use requests::Extras;
use state::{All, AllSink, Own, OwnSink, OwnState, nodes_watch_ended};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use types::problem::{ConfigPlace, StoreCause};
use types::{DaemonPod, Detail, Dual, Problem, Subnets};
use watching::Watching;

/// Of a request about this node's Node.
const TIMEOUT: Duration = Duration::from_secs(10);

pub struct KubeManager {
    api: Arc<Api>,
    name: String,
    own: watch::Receiver<OwnState>,
    /// Receives the Node from the API server's response to a patch.
    own_out: watch::Sender<OwnState>,
    all: Arc<All>,
    following: Following,
    extras: Arc<Extras>,
    /// Number of changes of all Nodes, including this node's own Node.
    infos: watch::Sender<u64>,
    reported: Reported,
    /// The last lease that this process acquired.
    acquired: Mutex<Option<Lease>>,
    _tasks: [Task; 2],
}

/// The task that follows all Nodes.
#[derive(Default)]
struct Following {
    /// The `alloc` backend does not need the list.
    lists: AtomicBool,
    task: Mutex<Option<Task>>,
}

/// Faults that the daemon already logged or posted as Events.
#[derive(Default)]
struct Reported {
    /// They are not posted again.
    events: Arc<Mutex<PostedEvents>>,
    /// The mistyped annotations that the daemon logged last.
    ignored: Mutex<String>,
}

/// It ends when its handle is dropped.
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl KubeManager {
    /// Finds this node's name and begins to follow its Node. Fails with `Refused` for a mistake in the kubeconfig or the environment, and with
    /// `Unavailable` while the API server does not respond.
    pub async fn open(options: KubeOptions) -> Result<Self, Error> {
        let identity = options.identity.clone();
        let api = Arc::new(Api::new(options));
        api.check().await?;
        let name = match identity {
            Identity::Node(name) => name,
            Identity::Pod { namespace, name } => {
                match requests::node_of_pod(&api, &namespace, &name).await {
                    Ok(Some(node)) => node,
                    Ok(None) => {
                        let text =
                            format!("node name not present in pod spec '{namespace}/{name}'");
                        return Err(Error::Unavailable(Problem::new("pod-without-node", text)));
                    }
                    Err(failure) => {
                        let why = failure.trouble;
                        let text = format!(
                            "error retrieving pod spec for '{namespace}/{name}': {why}; or set NODE_NAME"
                        );
                        return Err(Error::Unavailable(Problem { text, ..why }));
                    }
                }
            }
            Identity::Nobody => {
                let text = "no Node is configured for this daemon";
                return Err(Error::Refused(Problem::new("kubernetes-nobody", text)));
            }
        };
        let (own_out, own) = watch::channel(OwnState::default());
        let infos = watch::Sender::new(0);
        let all = Arc::new(All::new(&name));
        let merging = Task(tokio::spawn(merge(own.clone(), all.changes(), infos.clone())));
        let following = {
            let (api, all, sink) =
                (api.clone(), all.clone(), OwnSink { out: own_out.clone(), name: name.clone() });
            let name = name.clone();
            Task(tokio::spawn(async move {
                Follower::new(&api, Some(&name), &all.stagger, sink).run().await;
            }))
        };
        Ok(Self {
            api,
            name,
            own,
            own_out,
            all,
            following: Following::default(),
            extras: Arc::default(),
            infos,
            reported: Reported::default(),
            acquired: Mutex::default(),
            _tasks: [following, merging],
        })
    }

    /// Starts or stops the task that follows all Nodes, as the configuration requires. Also sets the networks that must contain the Nodes' leases.
    fn follow(&self, config: &NetworkConfig) {
        self.all.serve(config.networks);
        let lists = config.backend != "alloc";
        let mut everybody = self.following.task.lock();
        if lists && everybody.is_none() {
            *everybody = Some(self.follow_everybody(config.networks));
        } else if !lists && everybody.take().is_some() {
            self.all.forget();
        }
        self.following.lists.store(lists, Relaxed);
    }

    fn follow_everybody(&self, networks: Subnets) -> Task {
        let (api, all, sink, mut own) =
            (self.api.clone(), self.all.clone(), AllSink(self.all.clone()), self.own.clone());
        Task(tokio::spawn(async move {
            // The first response about this node's Node shows whether the server streams lists or needs pages, and which place this node has among the
            // others.
            let own = own
                .wait_for(|state| !matches!(state.own, Own::Unknown))
                .await
                .map(|state| state.own.clone());
            if let Ok(Own::Present(own)) = own {
                all.stagger.guess(&own, &networks);
                let delay = stagger::boot_delay(
                    &own,
                    &networks,
                    api.options().up,
                    jiff::Timestamp::now().as_second(),
                );
                if all.stagger.pages() && !delay.is_zero() {
                    tracing::info!(
                        seconds = delay.as_secs_f64(),
                        "this host has just booted, perhaps together with other hosts: delaying the list of all Nodes"
                    );
                    tokio::time::sleep(delay).await;
                }
            }
            Follower::new(&api, None, &all.stagger, sink).run().await;
        }))
    }

    /// Waits until the daemon has read the Node.
    async fn own_node(&self) -> Result<Arc<Node>, Problem> {
        let mut own = self.own.clone();
        let known =
            |state: &OwnState| !matches!(state.own, Own::Unknown) || state.trouble.is_some();
        let not_answered = || {
            let detail = Detail::Store { cause: StoreCause::Silent, status: None, server: None };
            let text = "the Kubernetes API has not responded yet";
            Problem::new("kubernetes-not-answered", text).with(detail)
        };
        let state = match tokio::time::timeout(TIMEOUT, own.wait_for(known)).await {
            Ok(Ok(state)) => state.clone(),
            _ => return Err(not_answered()),
        };
        match (state.own, state.trouble) {
            (Own::Present(node), _) => Ok(node),
            (Own::Absent, _) => Err(self.no_node()),
            (Own::Unknown, trouble) => Err(trouble.unwrap_or_else(not_answered)),
        }
    }

    /// Names an existing Node with a similar name.
    fn no_node(&self) -> Problem {
        let name = &self.name;
        let similar = self.all.with(|nodes| nodes.similar(name).map(str::to_owned));
        let remedy = match similar {
            Some(other) => format!(
                ", but the Node {other} does; set NODE_NAME to {other} (in the pod, from spec.nodeName)"
            ),
            None => ": waiting for its kubelet to register it (the name comes from NODE_NAME or the pod's spec.nodeName)".to_owned(),
        };
        Problem::new("no-node", format!("the Node {name} does not exist{remedy}"))
    }

    /// Waits for the complete list of Nodes if the backend needs it.
    async fn everybody_known(&self) -> Result<(), Problem> {
        if !self.following.lists.load(Relaxed) {
            return Ok(());
        }
        let mut changes = self.all.changes();
        let listed = async {
            loop {
                let look = self.all.look();
                if look.listed {
                    return Ok(());
                }
                if let Some(why) = look.trouble {
                    return Err(why);
                }
                if changes.changed().await.is_err() {
                    return Err(nodes_watch_ended());
                }
            }
        };
        tokio::time::timeout(TIMEOUT, listed).await.unwrap_or_else(|_| {
            let text = "the Kubernetes API has not listed all Nodes yet";
            Err(Problem::new("kubernetes-not-listed", text))
        })
    }

    async fn assigned(&self, config: &NetworkConfig) -> Result<(Arc<Node>, Assigned), Problem> {
        let node = self.own_node().await?;
        self.everybody_known().await?;
        let assigned =
            self.all.with(|nodes| Assigned::of(&node, config, nodes, &self.api.options().net_conf));
        match assigned {
            Ok(assigned) => Ok((node, assigned)),
            Err(why) => {
                self.tell_once(&node, NodeEvent::PodCidr(why.clone()));
                Err(why)
            }
        }
    }

    /// Posts an Event about a new problem, at most one per minute and reason. It does so in the background, because the API server may not respond.
    fn tell_once(&self, node: &Node, event: NodeEvent) {
        if !self.reported.events.lock().take(&event, Instant::now()) {
            return;
        }
        let (api, extras, events, node) =
            (self.api.clone(), self.extras.clone(), self.reported.events.clone(), node.clone());
        tokio::spawn(async move {
            if !extras.event(&api, &node, &event).await {
                events.lock().retract(&event);
            }
        });
    }

    /// Fails if a mistyped annotation selects the interface, because any other interface would be a guess.
    fn refuse_typos(&self, node: &Node) -> Result<(), Problem> {
        let name = &self.name;
        let mut ignored = Vec::new();
        for typo in annotations::typos(&node.annotations) {
            let (key, family) = (self.api.options().prefix.key(typo.name), typo.family);
            let value = crate::json::excerpt(&typo.value);
            let text = format!(
                "the annotation {key} of Node {name} is {value}, which is not an {family} address; correct it (kubectl annotate node {name} --overwrite \
                 {key}=ADDRESS) or remove it (kubectl annotate node {name} {key}-)"
            );
            let trouble = Problem::new("annotation-mistyped", text);
            self.tell_once(node, NodeEvent::Interface(trouble.clone()));
            if typo.names_interface {
                // The caller that waits for this node logs the reason.
                return Err(trouble);
            }
            ignored.push(trouble.text);
        }
        let ignored = ignored.join("; ");
        let mut known = self.reported.ignored.lock();
        if *known != ignored && !ignored.is_empty() {
            tracing::warn!(
                error = ignored,
                "ignoring a mistyped annotation; the node publishes its own address"
            );
        }
        *known = ignored;
        Ok(())
    }
}

#[async_trait]
impl LeaseStore for KubeManager {
    fn place(&self) -> String {
        NodeClient::over(&self.api).place()
    }

    fn nature(&self) -> Nature {
        NodeClient::over(&self.api).nature()
    }

    async fn config(&self) -> Result<NetworkConfig, Error> {
        LeaseStore::config(&NodeClient::over(&self.api)).await
    }

    async fn list(&self) -> Result<Listing, Problem> {
        LeaseStore::list(&NodeClient::over(&self.api)).await
    }

    async fn liveness(&self, entry: &Entry) -> Result<Liveness, Problem> {
        NodeClient::over(&self.api).liveness(entry).await
    }

    async fn release(&self, entry: &Entry) -> Result<bool, Problem> {
        NodeClient::over(&self.api).release(entry).await
    }

    async fn reserve(
        &self,
        subnets: &Subnets,
        value: String,
        present: Option<&Entry>,
    ) -> Result<bool, Problem> {
        NodeClient::over(&self.api).reserve(subnets, value, present).await
    }
}

#[async_trait]
impl SubnetManager for KubeManager {
    async fn network_config(&self) -> Result<NetworkConfig, Error> {
        let config = self.next_config().await?;
        self.follow(&config);
        Ok(config)
    }

    async fn next_config(&self) -> Result<NetworkConfig, Error> {
        let path = &self.api.options().net_conf;
        let detail = || Detail::ConfigInvalid { place: Some(ConfigPlace::Mounted(path.clone())) };
        let text = crate::file::read(path).await.map_err(|error| {
            let text = format!(
                "failed to read net conf: {}: {error}; the file comes from the ConfigMap kube-flannel-cfg, key net-conf.json, which the pod mounts \
                 (another path: --net-config-path)",
                path.display()
            );
            Error::Unavailable(Problem::new("net-conf-unreadable", text).with(detail()))
        })?;
        NetworkConfig::parse_assigned(&String::from_utf8_lossy(&text)).map_err(|why| {
            let text = format!("error parsing subnet config: {}: {why}", path.display());
            Error::Unavailable(Problem { text, detail: detail(), ..why })
        })
    }

    async fn node_info(&self, config: &NetworkConfig) -> Result<Option<NodeInfo>, Error> {
        let (node, assigned) = self.assigned(config).await.map_err(Error::Unavailable)?;
        self.refuse_typos(&node).map_err(Error::Unavailable)?;
        let public = Dual::from_options(
            annotations::v4(&node.annotations, annotations::NODE_PUBLIC_IP).ok().flatten(),
            annotations::v6(&node.annotations, annotations::NODE_PUBLIC_IPV6).ok().flatten(),
        );
        Ok(Some(NodeInfo {
            id: self.name.clone(),
            subnets: Some(assigned.subnets),
            public,
            published: claims::published(&node.annotations),
            internal: node.internal.clone(),
            overwritten: claims::is_overwritten(&node.annotations),
            taken: self.all.with(|nodes| nodes.taken(node.boot.as_deref())),
        }))
    }

    async fn daemon_pods(&self, namespace: &str) -> Option<Result<Vec<DaemonPod>, Problem>> {
        Some(daemon_pods::list(&self.api, namespace, &self.name).await)
    }

    fn node_info_changes(&self) -> Option<watch::Receiver<u64>> {
        Some(self.infos.subscribe())
    }

    /// From the Nodes already read, without a request.
    async fn last_heard(&self, lease: &Subnets) -> Option<LastHeard> {
        let report = self.all.with(|nodes| nodes.report(lease))?;
        let since = jiff::Timestamp::now().as_second().saturating_sub(report.since);
        let ago = match report.ready {
            true => Duration::ZERO,
            false => Duration::from_secs(u64::try_from(since).unwrap_or_default()),
        };
        Some(LastHeard {
            ago,
            node: Some(NodeHealth { ready: report.ready, cordoned: report.cordoned }),
        })
    }

    async fn servers(&self) -> Vec<IpAddr> {
        self.extras.servers(&self.api).await
    }

    async fn withdraw(&self, local: &[IpAddr]) {
        let Own::Present(node) = self.own.borrow().own.clone() else {
            return;
        };
        let mut publisher = Publisher::new(self.api.clone(), self.own_out.clone());
        if let Err(failure) = publisher.withdraw(&node, local).await {
            tracing::debug!(error = %failure.trouble, "cannot withdraw this node's former address");
        }
    }

    async fn tell_operator(&self, problem: &Problem) {
        let Own::Present(node) = self.own.borrow().own.clone() else {
            return;
        };
        self.tell_once(&node, NodeEvent::Interface(problem.clone()));
    }

    async fn stored(&self, _: &Claim, config: &NetworkConfig) -> Result<Option<LeaseAttrs>, Error> {
        let (node, _) = self.assigned(config).await.map_err(Error::Unavailable)?;
        Ok(annotations::read(&node.annotations).ok())
    }

    async fn acquire(
        &self,
        claim: &Claim,
        config: &NetworkConfig,
        attrs: &LeaseAttrs,
        state: &watch::Sender<Held>,
    ) -> Result<Lease, Error> {
        let mut changes = self.node_info_changes();
        let mut publisher = Publisher::new(self.api.clone(), self.own_out.clone());
        let mut failures = 0;
        loop {
            let (trouble, pause) = match self.assigned(config).await {
                Ok((node, assigned)) => match publisher.annotations(&node, attrs).await {
                    Ok(()) => {
                        let lease = Lease {
                            subnets: assigned.subnets,
                            attrs: attrs.clone(),
                            term: Term::Reserved,
                            since: node.created,
                        };
                        state.send_replace(Held { lease: Some(lease.clone()), ..Held::default() });
                        self.tell_of_another_subnet(&node, claim, &lease);
                        return Ok(lease);
                    }
                    // Applies whatever changes meanwhile: the server's Retry-After is always respected.
                    Err(failure) => {
                        failures += 1;
                        let pause =
                            publish::RETRY.after(failures - 1).mul_f64(1.0 + rand::random::<f64>());
                        (failure.trouble, Some(pause.max(failure.retry_after.unwrap_or_default())))
                    }
                },
                Err(why) => (why, None),
            };
            state.send_modify(|held| held.trouble = Some(trouble));
            match (pause, &mut changes) {
                (None, Some(changes)) => tokio::select! {
                    () = tokio::time::sleep(Duration::from_secs(2)) => {}
                    _ = changes.changed() => {}
                },
                (pause, _) => tokio::time::sleep(pause.unwrap_or(Duration::from_secs(2))).await,
            }
        }
    }

    fn watch(&self) -> BoxStream<'_, LeaseEvent> {
        if !self.following.lists.load(Relaxed) {
            // This backend needs no other nodes.
            let nobody = LeaseEvent::Reset { leases: Vec::new(), unreadable: BTreeSet::new() };
            return stream::iter([nobody]).chain(stream::pending()).boxed();
        }
        let watching = Watching::of(&self.all, &self.api.counters);
        stream::unfold(
            watching,
            |mut watching| async move { Some((watching.next().await, watching)) },
        )
        .boxed()
    }

    async fn hold(
        &self,
        _: &Claim,
        config: &NetworkConfig,
        node: NodeState,
        state: watch::Sender<Held>,
    ) -> LeaseLostError {
        let acquired = self.acquired.lock().clone();
        let Some(lease) = acquired else {
            return no_lease_acquired();
        };
        let holding = Holding {
            api: &self.api,
            name: &self.name,
            own: self.own.clone(),
            own_out: &self.own_out,
            all: &self.all,
            lists: self.following.lists.load(Relaxed),
            config,
            lease,
        };
        holding.run(node, state).await
    }

    fn counters(&self) -> Arc<Counters> {
        self.api.counters.clone()
    }

    fn renew(&self) -> bool {
        self.api.renew();
        true
    }
}

impl KubeManager {
    /// Logs and posts an Event if this node's subnet has changed, because an operator must delete the pods with addresses of the previous one.
    fn tell_of_another_subnet(&self, node: &Node, claim: &Claim, lease: &Lease) {
        let before = self.acquired.lock().replace(lease.clone());
        let before = before.map(|before| before.subnets).or(claim.host.previous);
        let Some(before) = before.filter(|before| {
            before.nets().any(|net| {
                !lease.subnets.nets().any(|now| now == net) && has_family(&lease.subnets, &net)
            })
        }) else {
            return;
        };
        let (node_name, released) = (self.name.to_string(), claim.host.released.clone());
        let event =
            NodeEvent::PodCidrChanged { node: node_name, now: lease.subnets, before, released };
        tracing::warn!(node = self.name, reason = %event, "this node's subnet has changed");
        self.tell_once(node, event);
    }
}

fn has_family(subnets: &Subnets, net: &ipnet::IpNet) -> bool {
    subnets.nets().any(|other| other.max_prefix_len() == net.max_prefix_len())
}

/// A change of any Node may change the information about this node.
async fn merge(
    mut own: watch::Receiver<OwnState>,
    mut all: watch::Receiver<u64>,
    out: watch::Sender<u64>,
) {
    loop {
        let ended = tokio::select! {
            changed = own.changed() => changed.is_err(),
            changed = all.changed() => changed.is_err(),
        };
        if ended {
            return;
        }
        out.send_modify(|count| *count += 1);
    }
}
