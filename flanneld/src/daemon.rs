//! The life of the daemon: read [`Daemon::live`] from top to bottom.

mod attrs;
mod end;
mod host;
mod lease;
mod node;
mod retry;
mod rights;
mod serve;
mod vitals;

use crate::handover::Inherited;
use crate::health::Health;
use crate::health::condition::Condition;
use crate::health::server::Server;
use crate::{status_keeper, store, systemd};
use attrs::Following;
use end::End;
use options::Settings;
use rights::Rights;
use std::sync::Arc;
use std::time::Duration;
use subnet_lease::manager::SubnetManager;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

/// How long tasks may take to end.
const FAREWELL: Duration = Duration::from_millis(1_500);

/// Runs the daemon. Returns its exit code.
pub async fn run(settings: Settings, inherited: Arc<Inherited>) -> u8 {
    let signals = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()), signal(SignalKind::hangup()));
    let (Ok(mut terminate), Ok(mut interrupt), Ok(hangup)) = signals else {
        error!("cannot install the signal handlers");
        return 1;
    };
    // A log file at its size limit costs a line (EFBIG), not the daemon.
    let _file_size = signal(SignalKind::from_raw(libc::SIGXFSZ));
    let daemon =
        Daemon { settings, inherited, health: Health::new(), stop: CancellationToken::new(), rights: Rights::default(), tasks: JoinSet::new() };
    let stop = daemon.stop.clone();
    let mut life = Box::pin(daemon.live(hangup));
    let ended = tokio::select! {
        ended = &mut life => ended,
        _ = async { tokio::select! { _ = terminate.recv() => (), _ = interrupt.recv() => () } } => {
            info!("stopping on request: the data plane stays in place");
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

/// State that lives as long as the process.
struct Daemon {
    settings: Settings,
    inherited: Arc<Inherited>,
    health: Health,
    stop: CancellationToken,
    rights: Rights,
    /// Concurrent tasks; the first failure ends all of them.
    tasks: JoinSet<Result<(), End>>,
}

impl Daemon {
    /// Starts, and runs until it is stopped or an essential task ends.
    async fn live(mut self, hangup: Signal) -> Result<(), End> {
        self.introduce();
        self.serve_health().await?;
        self.spawn(status_keeper::keep(self.settings.subnet_file.clone(), self.health.clone(), self.stop.clone()));
        let stop = self.stop.clone();
        // Each of these waits for somebody else; stopping the daemon ends the wait.
        let Some(manager) = stop.run_until_cancelled(self.open_store(hangup)).await.transpose()? else { return Ok(()) };
        let Some(host) = stop.run_until_cancelled(self.claim_host(&manager)).await.transpose()? else { return Ok(()) };
        let Some(node) = stop.run_until_cancelled(self.take_lease(manager, host)).await.transpose()? else { return Ok(()) };
        let (following, ends) = Following::new(&node, self.settings.ip_masq);
        let Some(leases) = stop.run_until_cancelled(self.follow_leases(&node, &ends)).await else { return Ok(()) };
        self.serve(node, following, ends, leases).await?;
        self.supervise().await
    }

    fn introduce(&self) {
        info!("flanneld {} with leases in {}", options::version(), self.settings.store);
        for warning in &self.settings.warnings {
            warn!("{warning}");
        }
    }

    async fn serve_health(&mut self) -> Result<(), End> {
        if let Some(address) = self.settings.health {
            let server = retry::briefly(|| Server::bind(address, self.health.clone())).await.map_err(End::failed)?;
            self.spawn(server.serve(self.stop.clone()));
        }
        Ok(())
    }

    async fn open_store(&mut self, hangup: Signal) -> Result<Arc<dyn SubnetManager>, End> {
        let manager = retry::until_available(&self.health, Condition::Store, || store::open(&self.settings)).await?;
        self.spawn(reconnect_on_hangup(hangup, manager.clone(), self.stop.clone()));
        Ok(manager)
    }

    /// Starts a task that cannot fail.
    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(async move {
            task.await;
            Ok(())
        });
    }

    /// Waits for the first task that fails, or for the stop, and then ends all tasks.
    async fn supervise(mut self) -> Result<(), End> {
        let outcome = loop {
            let ended = tokio::select! {
                ended = self.tasks.join_next() => ended,
                () = self.stop.cancelled() => break Ok(()),
            };
            match ended {
                None => break Ok(()),
                Some(Ok(Ok(()))) => {}
                Some(Ok(Err(end))) => break Err(end),
                Some(Err(error)) => break Err(End::Failed(format!("a task of the daemon failed: {error}"))),
            }
        };
        self.stop.cancel();
        let _ = tokio::time::timeout(FAREWELL, async { while self.tasks.join_next().await.is_some() {} }).await;
        outcome
    }
}

/// SIGHUP: reconnects to the store with the current TLS files. Everything else that is read at the start needs a restart.
async fn reconnect_on_hangup(mut hangup: Signal, manager: Arc<dyn SubnetManager>, stop: CancellationToken) {
    loop {
        tokio::select! {
            called = hangup.recv() => if called.is_none() { return },
            () = stop.cancelled() => return,
        }
        if manager.renew() {
            info!("SIGHUP: reconnecting to etcd with the TLS files read again; other options need a restart");
        } else {
            info!("SIGHUP ignored: with leases in a directory there is nothing to reload");
        }
    }
}
