//! Decides which rules of other daemons on this host flanneld keeps, and when it removes rules of networks without a
//! daemon.

use ipnet::IpNet;
use run_dir::instance;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;
use traffic_rules::ownership::OtherDaemons;

/// Time after this daemon's start for which flanneld keeps rules of networks without a daemon, because one may be
/// restarting. A late removal of rules is harmless; an early one loses packets.
const GRACE: Duration = Duration::from_secs(300);

/// The other flannel daemons on this host.
#[derive(Debug)]
pub(super) struct Neighbours {
    /// Networks that this daemon serves.
    own: BTreeSet<IpNet>,
    /// The networks that the previous daemon served and that no other daemon serves.
    before: BTreeSet<IpNet>,
    /// This daemon's encapsulation port rules; `None` without any.
    slot: Option<u16>,
    /// Networks that another daemon has served since this daemon's start. Includes stopped daemons, because their
    /// rules stay in force.
    served: BTreeSet<IpNet>,
    guards: BTreeSet<u16>,
    since: Instant,
}

impl Neighbours {
    /// No other daemon is known yet.
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

    /// Finds the running daemons. The result has what flanneld keeps: the networks, and the numbers of encapsulation
    /// port rules.
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
        self.served.extend(served.into_iter().filter(|network| !self.own.contains(network)));
        // Only guards of running daemons stay: a guard that no daemon updates would drop the packets of new nodes.
        self.guards = guards.into_iter().filter(|slot| Some(*slot) != self.slot).collect();
        self.before.retain(|network| !self.served.contains(network));
        OtherDaemons {
            own: self.own.union(&self.before).copied().collect(),
            served: self.served.clone(),
            unknown: true,
            guards: self.guards.clone(),
        }
    }

    /// Whether this daemon may remove rules of networks without a daemon. It may not during [`GRACE`], nor while
    /// another implementation of flanneld runs on this host.
    pub(super) fn may_remove_unserved(&self) -> bool {
        is_over(self.since.elapsed()) && !instance::running::foreign_flanneld()
    }
}

/// After [`GRACE`], a daemon that was restarting at this daemon's start runs again.
fn is_over(age: Duration) -> bool {
    age >= GRACE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_stay_while_their_daemon_restarts() {
        let (ours, theirs): (IpNet, IpNet) =
            ("10.5.0.0/16".parse().unwrap(), "10.6.0.0/16".parse().unwrap());
        let old: IpNet = "10.4.0.0/16".parse().unwrap();
        let mut neighbours = Neighbours::new([ours].into(), [ours, old].into(), Some(0));
        let others = neighbours.learn([], []);
        assert!(!others.keeps(&old), "this daemon owns the previous daemon's network");
        assert!(
            others.keeps(&theirs) && !others.keeps(&ours),
            "flanneld keeps the rules of a daemon that may be restarting"
        );
        assert!(!neighbours.may_remove_unserved());
        let others = neighbours.learn([ours, theirs], [0, 1]);
        assert_eq!((others.served, others.guards), ([theirs].into(), [1].into()));
        // The other daemon has stopped: its rules stay in force, and its guard does not.
        let others = OtherDaemons { unknown: false, ..neighbours.learn([ours], [0]) };
        assert!(others.keeps(&theirs) && !others.keeps_guard(1));
        assert!(
            !others.keeps(&"10.7.0.0/16".parse().unwrap()),
            "no daemon has served the network since this daemon's start"
        );
        assert!(neighbours.learn([old], []).keeps(&old), "another daemon serves the network now");
        assert!(!is_over(GRACE / 2) && is_over(GRACE));
    }
}
