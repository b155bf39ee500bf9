//! Life cycle of the daemon. `Daemon::live` contains the steps of the life cycle in order.

mod attrs;
mod bridge;
mod end;
mod host;
mod keepers;
mod lease;
mod left;
mod left_behind;
mod node;
mod node_info;
mod readiness_monitor;
mod reconfigured;
mod reconsider;
mod requirement;
mod retry;
mod rights;
mod run;
mod serve;
mod silence;
mod tunnel;

use crate::api::health::Server;
use crate::api::listeners;
use crate::api::node::StatusSource;
use crate::checks::Checks;
use crate::checks::known::Known;
use crate::checks::sysctls::SysctlWriter;
use crate::error::report_restart;
use crate::handover::Inherited;
use crate::health::Health;
use crate::health::condition::Condition;
use crate::{sampler, status_keeper, systemd};
use attrs::Following;
use backends::KeyRequests;
use end::EndError;
use left::Left;
use options::Settings;
use reconfigured::another_configuration;
use rights::Rights;
use run::Run;
use run_dir::exit_report::{self, ExitReport};
use run_dir::process::port_holder;
use run_dir::{status_file, subnet_env};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use subnet_lease::manager::SubnetManager;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};
use types::Problem;

/// The result is the exit code.
pub async fn run(settings: Settings, inherited: Arc<Inherited>) -> u8 {
    let signals = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
        signal(SignalKind::hangup()),
    );
    let (Ok(mut terminate), Ok(mut interrupt), Ok(hangup)) = signals else {
        error!("cannot install the signal handlers");
        return 1;
    };
    // With a handler, a log file at its size limit costs a line (EFBIG), not the daemon.
    let _file_size = signal(SignalKind::from_raw(libc::SIGXFSZ));
    let stop = CancellationToken::new();
    let health = Health::new();
    let subnet_file = settings.node.subnet_file.clone();
    let daemon = Daemon {
        known: watch::channel(Known {
            id_given: settings.node.id.is_some(),
            ..Known::of(&settings.store)
        })
        .0,
        sysctls: Arc::default(),
        key_requests: KeyRequests::default(),
        status_source: StatusSource::new(health.clone(), subnet_file.clone()),
        settings,
        inherited,
        health,
        run: Run::until(&stop),
        stop,
        rights: Rights::default(),
        left: Left::default(),
        tasks: JoinSet::new(),
    };
    let (stop, known) = (daemon.stop.clone(), daemon.known.subscribe());
    let mut life = Box::pin(daemon.live(hangup));
    let ended = tokio::select! {
        ended = &mut life => ended,
        _ = async { tokio::select! { _ = terminate.recv() => (), _ = interrupt.recv() => () } } => {
            info!("stopping on request: the data plane stays in place");
            systemd::stopping("stopping");
            stop.cancel();
            tokio::select! {
                ended = &mut life => ended,
                () = tokio::time::sleep(run::FAREWELL) => Ok(()),
            }
        }
    };
    // Releases the claims on files before the exit report is written.
    drop(life);
    let (code, problem) = match ended {
        Ok(()) => {
            info!("exiting cleanly");
            (0, None)
        }
        Err(end) => {
            error!(code = %end.problem().code, error = %end, "flanneld ends");
            systemd::stopping(&end.to_string());
            (end.code(), Some(end.problem().clone()))
        }
    };
    let text =
        problem.as_ref().map_or_else(|| "stopped on request".to_owned(), ToString::to_string);
    let choice = known.borrow().choice.clone();
    leave_exit_report(
        &subnet_file,
        ExitReport {
            at: jiff::Timestamp::now(),
            code,
            text,
            version: options::version(),
            problem,
            choice,
        },
    )
    .await;
    code
}

/// Waits at most a minute: who holds the port of another address may look like the one in the way.
async fn wait_until_free(port: u16) {
    const LOOK: Duration = Duration::from_millis(500);
    let any = [IpAddr::from(Ipv4Addr::UNSPECIFIED), Ipv6Addr::UNSPECIFIED.into()];
    for _ in 0..120 {
        tokio::time::sleep(LOOK).await;
        let held = |ip: &IpAddr| {
            UdpSocket::bind((*ip, port)).is_err_and(|error| error.kind() == ErrorKind::AddrInUse)
        };
        if !any.iter().any(held) {
            return;
        }
    }
}

/// For programs that report why no daemon runs on this node.
async fn leave_exit_report(subnet_file: &Path, words: ExitReport) {
    // A task that had to be aborted releases its files a moment later.
    for _ in 0..10 {
        if !status_file::lives(subnet_file) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    if let Err(error) = exit_report::write(subnet_file, &words) {
        debug!(
            path = %exit_report::path(subnet_file).display(),
            error = %error,
            "cannot write the exit report"
        );
    }
}

/// State that lasts until the process ends.
struct Daemon {
    settings: Settings,
    inherited: Arc<Inherited>,
    health: Health,
    status_source: StatusSource,
    stop: CancellationToken,
    rights: Rights,
    left: Left,
    /// For the doctor.
    known: watch::Sender<Known>,
    sysctls: Arc<SysctlWriter>,
    key_requests: KeyRequests,
    tasks: JoinSet<()>,
    /// Tasks of the network, which end when the daemon restarts it.
    run: Run,
}

impl Daemon {
    /// Ends at a stop request or the end of an essential task.
    async fn live(mut self, hangup: Signal) -> Result<(), EndError> {
        self.introduce();
        self.serve_health().await?;
        self.open_listeners();
        // These tasks also run while the network restarts, which may wait for the store or an operator.
        self.spawn(systemd::watchdog(self.health.clone(), self.stop.clone()));
        self.spawn(status_keeper::keep(
            self.settings.node.subnet_file.clone(),
            self.health.clone(),
            self.stop.clone(),
        ));
        let checks = Checks::new(
            self.known.subscribe(),
            self.settings.node.subnet_file.clone(),
            self.health.clone(),
            self.sysctls.clone(),
        );
        self.spawn(checks.keep(self.stop.clone()));
        self.spawn(sampler::keep(self.health.clone(), self.stop.clone()));
        if self.settings.listen.metrics_per_peer {
            self.health.add_metrics_per_peer();
        }
        // The store may not respond for a long time; stopping the daemon ends the wait.
        let stop = self.stop.clone();
        let Some(manager) = stop.run_until_cancelled(self.open_store(hangup)).await.transpose()?
        else {
            return Ok(());
        };
        let outcome = loop {
            match Box::pin(self.serve_network(&manager)).await {
                Err(EndError::StartOver(why)) => self.start_over(*why).await,
                Err(EndError::Moved(why)) => {
                    self.start_over(*why).await;
                    // No pod may get an address of the former subnet.
                    if let Err(error) = subnet_env::set_aside(&self.settings.node.subnet_file) {
                        warn!(code = &*error.code, error = %error, "cannot set subnet.env aside");
                    }
                }
                outcome => break outcome,
            }
        };
        self.farewell(outcome).await
    }

    /// From the first request to the store until the lease ends.
    async fn serve_network(&mut self, manager: &Arc<dyn SubnetManager>) -> Result<(), EndError> {
        let stop = self.stop.clone();
        let Some(host) = stop.run_until_cancelled(self.claim_host(manager)).await.transpose()?
        else {
            return Ok(());
        };
        let config = host.config.clone();
        let node = stop.run_until_cancelled(Box::pin(async {
            tokio::select! {
                node = self.take_lease(manager.clone(), host) => node,
                end = another_configuration(manager, &config) => Err(end),
            }
        }));
        let Some(node) = node.await.transpose()? else {
            return Ok(());
        };
        let (following, ends) = Following::new(
            &node,
            self.settings.rules.options.masquerade,
            self.settings.listen.probe_pods,
        );
        let Some(leases) = stop.run_until_cancelled(self.follow_leases(&node.leased, &ends)).await
        else {
            return Ok(());
        };
        self.serve(node, following, ends, leases).await?;
        self.run.supervise().await
    }

    /// Ends the network's tasks, so that the daemon can restart the network. Kernel objects stay until flanneld
    /// compares them with the new network. After a refusal for a taken port, waits until it is free.
    async fn start_over(&mut self, mut why: Problem) {
        let port = end::taken_port(&why);
        if let Some(holder) = port.and_then(|port| port_holder(port, true)) {
            why.text = format!("{holder} holds the port: {}", why.text);
        }
        warn!(code = %why.code, error = %why, "restarting this node's network");
        // The daemon is not ready from this point. The other state is cleared once no task writes it.
        self.health.fail(Condition::Start, report_restart(&why));
        std::mem::replace(&mut self.run, Run::until(&self.stop)).end().await;
        self.known.send_modify(|known| known.choice = None);
        self.health.start_over(&why);
        self.rights = Rights::default();
        if let Some(port) = port {
            let _ = self.stop.run_until_cancelled(wait_until_free(port)).await;
        }
    }

    /// Ends all tasks.
    async fn farewell(mut self, outcome: Result<(), EndError>) -> Result<(), EndError> {
        self.stop.cancel();
        self.run.end().await;
        let _ = tokio::time::timeout(run::FAREWELL, async {
            while self.tasks.join_next().await.is_some() {}
        })
        .await;
        outcome
    }

    fn introduce(&self) {
        info!(
            version = options::version(),
            store = %self.settings.store,
            "flanneld starts"
        );
        for warning in &self.settings.warnings {
            warn!(error = %warning, "an option has a problem");
        }
    }

    async fn serve_health(&mut self) -> Result<(), EndError> {
        if let Some(address) = self.settings.listen.health {
            match retry::briefly(|| Server::bind(address, self.health.clone())).await {
                Ok(server) => self.spawn(server.serve(self.stop.clone())),
                Err(problem) if end::taken_port(&problem).is_some() => {
                    let (health, stop) = (self.health.clone(), self.stop.clone());
                    self.spawn(listeners::health_port(address, health, stop));
                }
                Err(problem) => return Err(EndError::failed(problem)),
            }
        }
        Ok(())
    }

    /// The Unix socket next to subnet.env, and the TCP port of the status API.
    fn open_listeners(&mut self) {
        let store = node_api::Store {
            what: self.settings.store.to_string(),
            kind: Some(match self.settings.store {
                options::Store::Etcd(_) => node_api::StoreKind::Etcd,
                options::Store::Dir(_) => node_api::StoreKind::Directory,
                options::Store::Kube(_) => node_api::StoreKind::Kubernetes,
            }),
            ..node_api::Store::default()
        };
        let name = nix::unistd::gethostname()
            .ok()
            .and_then(|name| name.into_string().ok())
            .unwrap_or_default();
        self.health.process(|node| {
            node.store = Some(store.clone());
            node.node.clone_from(&name);
        });
        let (status_source, health, stop) =
            (self.status_source.clone(), self.health.clone(), self.stop.clone());
        let subnet_file = self.settings.node.subnet_file.clone();
        self.spawn(
            async move { listeners::socket(&subnet_file, status_source, health, stop).await },
        );
        if let Some(address) = self.settings.listen.status {
            self.spawn(listeners::status_port(
                address,
                self.status_source.clone(),
                self.health.clone(),
                self.stop.clone(),
            ));
        }
    }

    async fn open_store(&mut self, hangup: Signal) -> Result<Arc<dyn SubnetManager>, EndError> {
        let manager =
            retry::until_available(&self.health, Condition::Store, || self.settings.store.open())
                .await?;
        let requests = self.key_requests.clone();
        self.spawn(read_files_on_hangup(hangup, manager.clone(), requests, self.stop.clone()));
        self.health.stores(manager.counters());
        self.known.send_modify(|known| known.manager = Some(manager.clone()));
        Ok(manager)
    }

    /// The task runs as long as the process.
    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }
}

/// At each SIGHUP, reconnects with the current TLS files and reads WireGuard's key files again. All other files and
/// settings that the daemon reads at the start require a restart.
async fn read_files_on_hangup(
    mut hangup: Signal,
    manager: Arc<dyn SubnetManager>,
    requests: KeyRequests,
    stop: CancellationToken,
) {
    loop {
        tokio::select! {
            called = hangup.recv() => if called.is_none() { return },
            () = stop.cancelled() => return,
        }
        requests.read_again();
        let reconnects = manager.renew();
        info!(
            reconnects,
            "SIGHUP: reading the credential files of the store and WireGuard's key files again; other options need a restart"
        );
    }
}
