//! Decides which rules of other networks' daemons on this host stay, and when flanneld removes rules without an owner.

use ipnet::IpNet;
use run_dir::instance;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;
use traffic_rules::ownership::OtherDaemons;

/// Time after this daemon's start for which rules of an unserved network may still belong to a daemon that is restarting. Rules that stay too long
/// are harmless; rules removed too early cost packets.
const GRACE: Duration = Duration::from_secs(300);

/// Facts about the other daemons.
#[derive(Debug)]
pub(super) struct Neighbours {
    /// Networks of this daemon.
    own: BTreeSet<IpNet>,
    /// The networks of the previous daemon, unless another daemon serves them.
    before: BTreeSet<IpNet>,
    /// Guard slot of this daemon.
    slot: Option<u16>,
    /// Networks served at any time since this daemon's start. A daemon that stops leaves its rules in force.
    served: BTreeSet<IpNet>,
    guards: BTreeSet<u16>,
    since: Instant,
}

impl Neighbours {
    /// Creates the facts. The facts contain no other daemon yet.
    pub(super) fn new(own: BTreeSet<IpNet>, before: BTreeSet<IpNet>, slot: Option<u16>) -> Self {
        Self {
            own,
            before,
            slot,
            served: BTreeSet::new(),
            guards: BTreeSet::new(),
            since: Instant::now(),
        }
    }

    /// Finds the running daemons. Returns the daemons whose rules stay.
    pub(super) fn refresh(&mut self) -> OtherDaemons {
        self.learn(
            instance::running::served().into_iter().flatten(),
            instance::taken::guard_slots(),
        )
    }

    fn learn(
        &mut self,
        served: impl IntoIterator<Item = IpNet>,
        guards: impl IntoIterator<Item = u16>,
    ) -> OtherDaemons {
        self.served.extend(
            served
                .into_iter()
                .filter(|network| !self.own.contains(network)),
        );
        // Only guards of running daemons stay: a guard that no daemon updates would drop the packets of new nodes.
        self.guards = guards
            .into_iter()
            .filter(|slot| Some(*slot) != self.slot)
            .collect();
        self.before.retain(|network| !self.served.contains(network));
        OtherDaemons {
            own: self.own.union(&self.before).copied().collect(),
            served: self.served.clone(),
            unknown: true,
            guards: self.guards.clone(),
        }
    }

    /// Returns whether this daemon may remove rules of unserved networks. Removal is forbidden soon after this daemon's
    /// start, and while another implementation of flanneld runs on this host.
    pub(super) fn may_remove_unserved(&self) -> bool {
        is_over(self.since.elapsed()) && !instance::running::foreign_flanneld()
    }
}

/// Returns whether a daemon that was restarting when this daemon started would be running again.
fn is_over(age: Duration) -> bool {
    age >= GRACE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_stay_while_their_daemon_restarts() {
        let (ours, theirs): (IpNet, IpNet) = (
            "10.5.0.0/16".parse().unwrap(),
            "10.6.0.0/16".parse().unwrap(),
        );
        let old: IpNet = "10.4.0.0/16".parse().unwrap();
        let mut neighbours = Neighbours::new([ours].into(), [ours, old].into(), Some(0));
        let others = neighbours.learn([], []);
        assert!(!others.keeps(&old), "the predecessor's network is ours");
        assert!(
            others.keeps(&theirs) && !others.keeps(&ours),
            "a daemon that is restarting comes back"
        );
        assert!(!neighbours.may_remove_unserved());
        let others = neighbours.learn([ours, theirs], [0, 1]);
        assert_eq!(
            (others.served, others.guards),
            ([theirs].into(), [1].into())
        );
        // The other daemon has stopped: its rules stay in force, and its guard does not.
        let others = OtherDaemons {
            unknown: false,
            ..neighbours.learn([ours], [0])
        };
        assert!(others.keeps(&theirs) && !others.keeps_guard(1));
        assert!(
            !others.keeps(&"10.7.0.0/16".parse().unwrap()),
            "not served since our start"
        );
        assert!(
            neighbours.learn([old], []).keeps(&old),
            "another daemon serves it now"
        );
        assert!(!is_over(GRACE / 2) && is_over(GRACE));
    }
}
