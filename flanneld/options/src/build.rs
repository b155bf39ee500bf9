//! From flags to settings. Each group of flags reads itself; every mistake is collected, and none ends the reading.

mod interface;
mod listen;
mod logging;
mod node;
mod rules;
mod store;

use crate::flags::{DatapathFlags, Flags, LeaseFlags, OtherFlags};
use crate::kube::{check_variables, node_identity};
use crate::mistake::Mistake;
use crate::reader::Reader;
use crate::settings::Settings;
use crate::store::Store;
use packet_engine::features::Features;
use std::time::Duration;

/// What the flags ask for.
#[derive(Debug)]
pub(crate) enum Asked {
    /// To run with these settings.
    Run(Box<Settings>),
    /// To print the version.
    Version,
}

impl Flags {
    /// Reads all flags. `backends` are the names of all backends.
    ///
    /// # Errors
    /// Every mistake in the flags and in the environment.
    pub(crate) fn read(
        &self,
        mut reader: Reader,
        backends: &[&str],
    ) -> Result<Asked, Vec<Mistake>> {
        let Self {
            store,
            lease,
            interface,
            node,
            health,
            log,
            rules,
            datapath,
            other: OtherFlags { version, help: _ },
        } = self;
        let version = reader.on(version);
        let store = with_node(store.store(&mut reader), &mut reader);
        let interface = interface.read(&store, &mut reader);
        let renew_margin = lease.read(&mut reader);
        let node = node.read(backends, &mut reader);
        let rules = rules.read(&mut reader);
        let features = datapath.read(&mut reader);
        let listen = health.read(&mut reader);
        let logging = log.read(&mut reader);
        // Go looks at --version before it looks at the environment, but after it has read all flags.
        if version && reader.argv.is_empty() {
            return Ok(Asked::Version);
        }
        let also: Vec<Mistake> = reader.warnings.iter().cloned().map(Mistake::Also).collect();
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

/// Adds which Node this is to a store of Kubernetes. Only a start needs it: help and version work without a Node.
fn with_node(store: Store, reader: &mut Reader) -> Store {
    let Store::Kube(mut kube) = store else {
        return store;
    };
    check_variables().unwrap_or_else(|mistake| reader.wrong(mistake));
    match node_identity() {
        Ok(identity) => kube.identity = identity,
        Err(mistake) => reader.wrong(mistake),
    }
    Store::Kube(kube)
}

impl LeaseFlags {
    /// Returns how long a lease has to last for the node to be ready.
    fn read(&self, reader: &mut Reader) -> Duration {
        let Self {
            subnet_lease_renew_margin,
        } = self;
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
    /// Returns how packets are moved in userspace.
    fn read(&self, reader: &mut Reader) -> Features {
        let Self {
            datapath,
            datapath_queues,
            datapath_real_time,
        } = self;
        let features = Features {
            real_time: reader.on(datapath_real_time),
            ..reader.choice(datapath)
        };
        let queues = reader.ranged(
            datapath_queues,
            0,
            16,
            "0 to follow the number of processors",
        );
        match usize::try_from(queues) {
            Ok(queues) if queues > 0 => Features { queues, ..features },
            _ => features,
        }
    }
}
