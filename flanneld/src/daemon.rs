//! The start-up story and the run set, to be read from top to bottom.

mod attrs;
mod vitals;

use crate::checks::{Checks, Subject};
use crate::handover::Inherited;
use crate::health::{Health, Server};
use crate::subnet_env::SubnetEnv;
use crate::traffic::{Keeper, Nodes, PATIENCE};
use crate::underlay::read::{Wish, follow, wait_for};
use crate::underlay::{CONDITION, Found};
use crate::{identity, instance, store, subnet_env, systemd};
use backends::backend::{Announced, Backend, Inputs, Setup, Underlay};
use backends::kernel::netlink::NetlinkKernel;
use backends::traffic::Wanted;
use backends::traffic::rules::Choices;
use backends::traffic::shared::Others;
use ipnet::IpNet;
use options::Settings;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use subnet_lease::feed::{Feed, Reading};
use subnet_lease::manager::{Claim, Error, Held, Lost, SubnetManager};
use subnet_lease::reason::Told;
use subnet_lease::{Dual, Lease, LeaseTable, NetworkConfig};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

/// How long tasks may take to end.
const FAREWELL: Duration = Duration::from_millis(1_500);

/// Why the daemon ends without having been asked to.
#[derive(Debug, thiserror::Error)]
enum End {
    /// Waiting does not mend it.
    #[error("{0}")]
    Failed(String),
    /// The lease is another's: a supervisor starts us anew.
    #[error("{0}")]
    LeaseLost(String),
}

impl End {
    fn failed(error: impl std::fmt::Display) -> Self {
        Self::Failed(error.to_string())
    }

    fn code(&self) -> u8 {
        match self {
            End::Failed(_) => 1,
            End::LeaseLost(_) => 5,
        }
    }
}

/// Runs the daemon to its end; the exit code.
pub async fn run(settings: Settings, inherited: Arc<Inherited>) -> u8 {
    let stop = CancellationToken::new();
    let signals = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()), signal(SignalKind::hangup()));
    let (Ok(mut terminate), Ok(mut interrupt), Ok(hangup)) = signals else {
        error!("cannot install the signal handlers");
        return 1;
    };
    // A log file at the limit of its size costs a line (EFBIG), not the daemon.
    let _file_size = signal(SignalKind::from_raw(libc::SIGXFSZ));
    let mut life = Box::pin(live(settings, inherited, hangup, stop.clone()));
    let ended = tokio::select! {
        ended = &mut life => ended,
        _ = async { tokio::select! { _ = terminate.recv() => (), _ = interrupt.recv() => () } } => {
            info!("asked to stop: the data plane stays in place");
            systemd::stopping("stopping");
            stop.cancel();
            tokio::select! {
                ended = &mut life => ended,
                () = tokio::time::sleep(FAREWELL) => Ok(()),
            }
        }
    };
    match ended {
        Ok(()) => {
            info!("exiting cleanly");
            0
        }
        Err(end) => {
            error!("{end}");
            systemd::stopping(&end.to_string());
            end.code()
        }
    }
}

/// Starts, and runs until `stop` or until something ends that must not.
async fn live(settings: Settings, inherited: Arc<Inherited>, hangup: Signal, stop: CancellationToken) -> Result<(), End> {
    info!("flanneld {} with leases in {}", options::version(), store::place(&settings));
    for warning in &settings.warnings {
        warn!("{warning}");
    }
    let health = Health::new();
    let mut tasks: JoinSet<Result<(), End>> = JoinSet::new();
    if let Some(address) = settings.health {
        let server = insist(|| Server::bind(address, health.clone())).await?;
        tasks.spawn(finish(server.serve(stop.clone())));
    }
    let manager = store::open(&settings);
    tasks.spawn(finish(heed(hangup, manager.clone(), stop.clone())));
    let started = tokio::select! {
        started = start(&settings, manager, &health, &inherited) => started?,
        () = stop.cancelled() => return Ok(()),
    };
    run_set(settings, health, started, inherited, tasks, stop).await
}

/// What the start yields: everything that runs.
struct Started {
    manager: Arc<dyn SubnetManager>,
    config: NetworkConfig,
    claim: Claim,
    found: Found,
    announced: Announced,
    lease: Lease,
    backend: Box<dyn Backend>,
    held: (watch::Sender<Held>, watch::Receiver<Held>),
    rights: Rights,
}

/// What no other daemon on this host can have.
struct Rights {
    _instance: instance::Instance,
    _taken: instance::Taken,
    guard: Option<instance::GuardPlace>,
    devices: Vec<String>,
}

/// Up to the lease: configuration, underlay, backend, announcement, acquisition. What can be waited for is.
async fn start(settings: &Settings, manager: Arc<dyn SubnetManager>, health: &Health, inherited: &Arc<Inherited>) -> Result<Started, End> {
    let config = patiently(health, "config", || manager.network_config()).await?;
    info!("network {}, backend {}", config.networks, if config.backend.is_empty() { "(none)" } else { config.backend.as_str() });
    let node = identity::node(settings.node_id.as_deref());
    health.fact("node_id", node.id.clone());
    let previous = subnet_env::read(&settings.subnet_file);
    let setup = Setup {
        config: config.clone(),
        node_id: node.id.clone(),
        route_protocol: settings.route_protocol,
        audit: settings.audit,
        blackhole: settings.blackhole,
        files: inherited.files(),
        former: (previous.network, previous.v6_network),
        features: settings.features,
    };
    let mut backend = backends::create(&setup).map_err(End::failed)?;
    let rights = claim_host(settings, &config).await?;
    subnet_env::clear(&settings.subnet_file);

    let wish = Wish::of(settings, config.networks.map(|_| (), |_| ()));
    let found = wait_for(&wish, |why| health.condition(CONDITION, Some(why))).await.map_err(End::failed)?;
    health.condition(CONDITION, None);
    let underlay = found.chosen.underlay.clone();
    info!(
        "packets between nodes use {} ({}, MTU {}), public {}: {}",
        underlay.name, underlay.addresses, underlay.mtu, underlay.public, found.chosen.why
    );
    for warning in found.chosen.warnings.iter().cloned().chain(found.trap_hint()) {
        warn!("{warning}");
    }
    health.fact("interface", underlay.name.clone());

    let claim = claim(settings, &config, node, &found).await;
    let stored = patiently(health, "store", || manager.stored(&claim, &config)).await?;
    let announced = backend.announce(&underlay, stored.as_ref()).await.map_err(End::failed)?;
    let attrs = attrs::of(&announced, &underlay);
    let held = watch::channel(Held::default());
    let lease = {
        let _telling = vitals::tell_trouble(held.1.clone(), health.clone());
        manager.acquire(&claim, &config, &attrs, &held.0).await.map_err(End::failed)?
    };
    health.condition("lease", None);
    info!("this node's subnet is {}{}", lease.subnets, if lease.term == subnet_lease::Term::Reserved { " (no expiry)" } else { "" });
    health.fact("subnet", lease.subnets.to_string());
    Ok(Started { manager, config, claim, found, announced, lease, backend, held, rights })
}

/// Claims the network and what it takes of the host, before anything of the host is changed.
async fn claim_host(settings: &Settings, config: &NetworkConfig) -> Result<Rights, End> {
    let takes = match NetlinkKernel::open() {
        // Only who leaves the choice to the kernel has to know.
        Ok(mut kernel) if backends::takes(config, true) != backends::takes(config, false) => {
            backends::takes(config, kernel.knows_vxlan().await.unwrap_or(true))
        }
        _ => backends::takes(config, true),
    };
    let guarded = settings.rules.guard.is_some() && backends::encapsulation_port(config).is_some();
    let network = config.networks.to_string();
    insist(|| async {
        let _instance = instance::claim(&network, &config.backend, &settings.subnet_file)?;
        let _taken = instance::take(&config.networks, &takes)?;
        let guard = if guarded { Some(instance::take_guard_place()?) } else { None };
        Ok::<_, instance::InstanceError>(Rights { _instance, _taken, guard, devices: takes.devices.clone() })
    })
    .await
}

/// The networks that this daemon's predecessor served, as subnet.env tells.
fn previous_networks(settings: &Settings) -> BTreeSet<IpNet> {
    let previous = subnet_env::read(&settings.subnet_file);
    previous.network.map(IpNet::V4).into_iter().chain(previous.v6_network.map(IpNet::V6)).collect()
}

/// From the lease on: the leases of the others, the first pass, subnet.env, and then everything at once until something ends.
async fn run_set(
    settings: Settings,
    health: Health,
    started: Started,
    inherited: Arc<Inherited>,
    mut tasks: JoinSet<Result<(), End>>,
    stop: CancellationToken,
) -> Result<(), End> {
    let Started { manager, config, claim, found, announced, lease, backend, held, rights } = started;
    let (underlay_out, underlay) = watch::channel(found.chosen.underlay.clone());
    let (announced_out, announced_in) = watch::channel(announced.clone());
    let (attrs_out, attrs_in) = watch::channel(attrs::of(&announced, &found.chosen.underlay));
    let terms = attrs::terms(&config, &lease, &found.chosen.underlay, backend.accepts());
    let (terms_out, terms_in) = watch::channel(Arc::new(terms));
    let accepts = backend.accepts();

    // The first complete list, before anything is compared with it: an unknown world is no empty one.
    let watched = manager.clone();
    let (feed_out, leases) = watch::channel(Arc::new(LeaseTable::default()));
    let (readings_out, readings) = watch::channel(Reading::default());
    let (first_out, first) = oneshot::channel();
    tasks.spawn(finish(async move {
        let (feed, table) = Feed::begin(watched.watch(), terms_in).await;
        feed_out.send_replace(table);
        let _ = first_out.send(());
        feed.run(feed_out, readings_out).await;
    }));
    tokio::select! {
        _ = first => {}
        () = stop.cancelled() => return Ok(()),
    }
    let table = leases.borrow().clone();
    let present = underlay.borrow().clone();
    if !backend.hands_over() {
        // A device or socket that is kept for nobody would be in the way.
        inherited.release();
    }
    let network = backend.join(lease.clone(), &present, &table).await.map_err(End::failed)?;
    inherited.release();
    let peers = table.iter().filter(|other| other.subnets != lease.subnets).count();
    info!("{peers} other nodes have leases");

    // Rules before subnet.env: pods start with it, and shall find them.
    let wanted = Wanted {
        networks: config.networks,
        own: lease.subnets,
        choices: Choices {
            non_masquerade: [config.non_masquerade.clone(), settings.rules.non_masquerade.clone()].concat(),
            ..settings.rules.clone()
        },
        nftables: config.nftables,
        resync: settings.rules_resync,
        port: backends::encapsulation_port(&config),
        hosts: BTreeSet::new(),
        peers: BTreeSet::new(),
        place: rights.guard.as_ref().map_or(0, |place| place.number),
        others: Others::default(),
    };
    if wanted.choices.guard.is_some() && wanted.port.is_none() {
        warn!("the backend {} has no encapsulation port to guard: --encap-notrack, --encap-peers and --encap-bar-pods do nothing", config.backend);
    }
    let nodes = Nodes { leases: leases.clone(), underlay: underlay.clone() };
    let keeper = Keeper::new(wanted, nodes, previous_networks(&settings), rights.devices.clone(), health.clone());
    let written = keeper.written();
    let (applied_out, applied) = oneshot::channel();
    tasks.spawn(finish(keeper.keep(applied_out, stop.clone())));
    // What holds the rules up is told by readiness, and holds up nothing else.
    let _ = tokio::time::timeout(PATIENCE, applied).await;
    let subject = Subject {
        networks: config.networks,
        port: backends::encapsulation_port(&config),
        own: lease.subnets,
        nftables: config.nftables,
        forward: settings.rules.forward,
        set: settings.set_sysctls,
    };
    let mut checks = Checks::new(subject, underlay.clone(), leases.clone(), claim.via_underlay.clone(), health.clone(), written);
    checks.begin();

    let env = SubnetEnv { networks: config.networks, subnets: lease.subnets, mtu: announced.mtu, ip_masq: settings.ip_masq };
    let (env_out, env_in) = watch::channel(env.clone());
    if let Err(error) = subnet_env::write(&settings.subnet_file, &env) {
        // The keeper tries again at once, and tells.
        health.condition(subnet_env::keep::CONDITION, Some(&error.to_string()));
    }
    health.condition("start", None);
    systemd::ready(&format!("subnet {}, {} peers", lease.subnets, table.len()));

    let status = network.status();
    tasks.spawn(finish(subnet_env::keep(settings.subnet_file.clone(), env_in, health.clone(), stop.clone())));
    let told = health.clone();
    let tell = move |trouble: Option<&str>| told.condition(CONDITION, trouble);
    tasks.spawn(finish(follow(found.chosen.clone(), underlay_out, tell, stop.clone())));
    tasks.spawn(finish(checks.keep(stop.clone())));
    tasks.spawn(finish(tell_addresses(manager.clone(), underlay.clone(), stop.clone())));
    tasks.spawn(finish(systemd::watchdog(health.clone(), stop.clone())));
    let inputs = Inputs { leases: leases.clone(), underlay: underlay.clone(), stop: stop.clone() };
    tasks.spawn(async move { network.run(inputs, announced_out).await.map_err(End::failed) });
    let vitals = vitals::Vitals {
        held: held.1.clone(),
        readings,
        leases,
        status,
        manager: manager.clone(),
        mtu: env_out.subscribe(),
        audits: settings.audit.is_some_and(|audit| audit <= Duration::from_secs(20)),
        margin: settings.renew_margin,
        health: health.clone(),
    };
    tasks.spawn(finish(vitals.watch(stop.clone())));
    let following = attrs::Following {
        config: config.clone(),
        announced: announced_in,
        underlay,
        held: held.1,
        attrs: attrs_out,
        terms: terms_out,
        env: env_out,
        accepts,
    };
    tasks.spawn(finish(following.run(stop.clone())));
    let halt = stop.clone();
    tasks.spawn(async move {
        tokio::select! {
            lost = manager.hold(&claim, &config, attrs_in, held.0) => Err(match lost {
                Lost::Taken(text) => End::LeaseLost(text),
                Lost::Displaced(text) => End::Failed(text),
            }),
            () = halt.cancelled() => Ok(()),
        }
    });

    // The first to end with an error ends all; after `stop` they all end.
    let mut outcome = Ok(());
    loop {
        let ended = tokio::select! {
            ended = tasks.join_next() => ended,
            () = stop.cancelled() => break,
        };
        match ended {
            None => break,
            Some(Ok(Ok(()))) => {}
            Some(Ok(Err(end))) => {
                outcome = Err(end);
                break;
            }
            Some(Err(error)) => {
                outcome = Err(End::Failed(format!("a task of the daemon ended badly: {error}")));
                break;
            }
        }
    }
    stop.cancel();
    let _ = tokio::time::timeout(FAREWELL, async { while tasks.join_next().await.is_some() {} }).await;
    outcome
}

/// Tells the store's client which addresses this host has: it is faster than waiting for answers to one that is gone.
async fn tell_addresses(manager: Arc<dyn SubnetManager>, mut underlay: watch::Receiver<Underlay>, stop: CancellationToken) {
    let follow = async {
        while underlay.changed().await.is_ok() {
            let local: Vec<_> = underlay.borrow_and_update().local.iter().map(IpNet::addr).collect();
            manager.readdressed(&local);
        }
        std::future::pending::<()>().await;
    };
    stop.run_until_cancelled(follow).await;
}

/// SIGHUP: the store is connected to anew, with the TLS files of now. Anything else that is read at the start needs a restart.
async fn heed(mut hangup: Signal, manager: Arc<dyn SubnetManager>, stop: CancellationToken) {
    loop {
        tokio::select! {
            called = hangup.recv() => if called.is_none() { return },
            () = stop.cancelled() => return,
        }
        if manager.renew() {
            info!("SIGHUP: the connection to etcd is made anew, and its TLS files are read again; other options need a restart");
        } else {
            info!("SIGHUP is ignored: with leases in a directory there is nothing to read again");
        }
    }
}

/// A task that has no error of its own.
async fn finish(task: impl Future<Output = ()>) -> Result<(), End> {
    task.await;
    Ok(())
}

/// Tries for a moment what a predecessor that is just ending may still hold.
async fn insist<T, E: std::fmt::Display, F: Future<Output = Result<T, E>>>(attempt: impl Fn() -> F) -> Result<T, End> {
    const PATIENCE: Duration = Duration::from_secs(2);
    let begun = tokio::time::Instant::now();
    loop {
        match attempt().await {
            Ok(done) => return Ok(done),
            Err(error) if begun.elapsed() > PATIENCE => return Err(End::failed(error)),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Asks the store until it answers; says why it waits, once for each reason.
async fn patiently<T, F: Future<Output = Result<T, Error>>>(health: &Health, name: &str, ask: impl Fn() -> F) -> Result<T, End> {
    let mut told = Told::default();
    let mut pause = Duration::from_millis(100);
    loop {
        match ask().await {
            Ok(answer) => {
                health.condition(name, None);
                return Ok(answer);
            }
            Err(Error::Refused(text)) => return Err(End::Failed(text)),
            Err(Error::Unavailable(why)) => {
                health.condition(name, Some(&why));
                if told.news(Some(&why)) {
                    warn!("waiting: {why}");
                    systemd::status(&format!("waiting: {why}"));
                }
            }
        }
        tokio::time::sleep(pause.mul_f64(1.0 + rand::random::<f64>() / 2.0)).await;
        pause = (pause * 2).min(Duration::from_secs(2));
    }
}

/// What this host knows that tells its own lease from another's.
async fn claim(settings: &Settings, config: &NetworkConfig, node: subnet_lease::NodeId, found: &Found) -> Claim {
    let underlay = &found.chosen.underlay;
    let previous = subnet_env::read(&settings.subnet_file);
    for warning in &previous.warnings {
        warn!("{}: {warning}", settings.subnet_file.display());
    }
    let leading = found.clone();
    Claim {
        node,
        public: underlay.public,
        previous: Dual::from_options(previous.subnet, previous.v6_subnet),
        macs: identity::flannel_macs().await,
        named: found.chosen.named,
        store_via_underlay: found.store_via_underlay(),
        via_underlay: Arc::new(move |target| leading.leads_to(target)),
        underlay: attrs::underlay_networks(config, underlay),
        shared_address: config.backend == "wireguard",
        advice: format!(
            "This node chose {}: {}. Its interfaces:\n{}Start it with --iface=NAME of the one that reaches the other nodes.",
            underlay.name,
            found.chosen.why,
            found.advice()
        ),
    }
}
