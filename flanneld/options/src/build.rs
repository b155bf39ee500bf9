//! Converts flags to settings. Each group of flags has its own conversion function. They continue after a mistake, so
//! that flanneld reports all mistakes at once.

mod interface;
mod listen;
mod logging;
mod node;
mod rules;
mod store;

use crate::environment::{Environment, var};
use crate::flags::{DatapathFlags, Flags, LeaseFlags, OtherFlags};
use crate::kube::node_identity;
use crate::reader::Reader;
use crate::settings::Settings;
use crate::store::Store;
use packet_engine::features::Features;
use std::time::Duration;
use types::Problem;

#[derive(Debug)]
pub(crate) enum Asked {
    Run(Box<Settings>),
    Version,
}

impl Flags {
    /// Finds every mistake in the flags and in the environment variables. `backends` are the names of all backends.
    pub(crate) fn read(
        &self,
        mut reader: Reader,
        environment: &Environment,
        backends: &[&str],
    ) -> Result<Asked, Vec<Problem>> {
        let Self {
            store,
            lease,
            interface,
            node,
            health,
            log,
            rules,
            datapath,
            other: OtherFlags { version, help: _, help_all: _ },
        } = self;
        let version = reader.on(version);
        let store = with_node(store.store(&mut reader), environment, &mut reader);
        let interface = interface.read(&store, &mut reader);
        let renew_margin = lease.read(&mut reader);
        let node = node.read(environment, backends, &mut reader);
        let rules = rules.read(&mut reader);
        let features = datapath.read(&mut reader);
        let listen = health.read(&mut reader);
        let logging = log.read(&mut reader);
        // Go flannel also handles --version after it has read all flags and before it reads the environment.
        if version && reader.argv.is_empty() {
            return Ok(Asked::Version);
        }
        // Logging has not started, so the warnings are printed with the mistakes.
        let also: Vec<Problem> = reader
            .warnings
            .iter()
            .map(|warning| Problem { text: format!("also: {warning}"), ..warning.clone() })
            .collect();
        let warnings = reader.end().map_err(|mistakes| [mistakes, also].concat())?;
        Ok(Asked::Run(Box::new(Settings {
            store,
            renew_margin,
            interface,
            node,
            rules,
            features,
            listen,
            logging,
            warnings,
        })))
    }
}

/// Adds the identity of this host's Node to the options of a Kubernetes store. flanneld needs it only to run:
/// `--help` and `--version` work without a Node.
fn with_node(store: Store, environment: &Environment, reader: &mut Reader) -> Store {
    let Store::Kube(mut kube) = store else {
        return store;
    };
    // flannel-rs has no event queue, but the variable of Go flannel must be an integer, as in Go flannel.
    if let Some(depth) = var(environment, "EVENT_QUEUE_DEPTH")
        && let Ok(depth) = depth.into_string()
        && depth.parse::<i64>().is_err()
    {
        reader.wrong(Problem::new(
            "event-queue-depth",
            format!("env EVENT_QUEUE_DEPTH={depth} format error: it is not an integer"),
        ));
    }
    match node_identity(environment) {
        Ok(identity) => kube.identity = identity,
        Err(mistake) => reader.wrong(mistake),
    }
    Store::Kube(kube)
}

impl LeaseFlags {
    /// The minimum remaining time of the lease; below it, the node is not ready.
    fn read(&self, reader: &mut Reader) -> Duration {
        let Self { subnet_lease_renew_margin } = self;
        let minutes = reader.ranged(
            subnet_lease_renew_margin,
            1,
            1439,
            "minutes, less than the lease's 24 hours",
        );
        Duration::from_secs(minutes.saturating_mul(60))
    }
}

impl DatapathFlags {
    fn read(&self, reader: &mut Reader) -> Features {
        let Self { datapath, datapath_queues, datapath_real_time } = self;
        let features =
            Features { real_time: reader.on(datapath_real_time), ..reader.choice(datapath) };
        let queues = reader.ranged(datapath_queues, 0, 16, "0 to follow the number of processors");
        match usize::try_from(queues) {
            Ok(queues) if queues > 0 => Features { queues, ..features },
            _ => features,
        }
    }
}
