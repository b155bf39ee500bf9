//! Decides which rules of other daemons on this host flanneld keeps, and when it removes rules of networks without a
//! daemon.

use ipnet::IpNet;
use run_dir::instance;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;
use traffic_rules::rules::OtherDaemons;

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
    /// Networks that another daemon has served since this daemon's start. Includes stopped daemons, because their
    /// rules stay in force.
    served: BTreeSet<IpNet>,
    /// The slots that other daemons have held since this daemon's start.
    held: BTreeSet<u16>,
    /// Whether rules of a network without a daemon are no longer needed.
    is_settled: bool,
    since: Instant,
}

impl Neighbours {
    /// No other daemon is known yet.
    pub(super) fn new(own: BTreeSet<IpNet>, before: BTreeSet<IpNet>) -> Self {
        Self {
            own,
            before,
            served: BTreeSet::new(),
            held: BTreeSet::new(),
            is_settled: false,
            since: Instant::now(),
        }
    }

    /// Finds the running daemons. `slot` is this daemon's.
    pub(super) fn refresh(&mut self, slot: u16) -> OtherDaemons {
        // Another implementation of flanneld writes rules without a sign of their daemon.
        self.is_settled = self.is_settled
            || is_over(self.since.elapsed()) && !instance::running::foreign_flanneld();
        let served = instance::running::served().into_iter().flatten();
        self.learn(slot, served, instance::taken::slots())
    }

    fn learn(
        &mut self,
        slot: u16,
        served: impl IntoIterator<Item = IpNet>,
        slots: impl IntoIterator<Item = u16>,
    ) -> OtherDaemons {
        self.served.extend(served.into_iter().filter(|network| !self.own.contains(network)));
        self.before.retain(|network| !self.served.contains(network));
        // A guard that no daemon updates would drop the packets of new nodes, so an ended daemon holds no slot.
        let slots: BTreeSet<u16> = slots.into_iter().filter(|other| *other != slot).collect();
        self.held.extend(&slots);
        OtherDaemons {
            own: self.own.union(&self.before).copied().collect(),
            served: self.served.clone(),
            unknown: !self.is_settled,
            slots,
        }
    }

    /// Whether the daemon that had slot 0 is gone for good.
    pub(super) fn may_take_first_slot(&self) -> bool {
        self.is_settled && !self.held.contains(&0)
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
        let mut neighbours = Neighbours::new([ours].into(), [ours, old].into());
        let others = neighbours.learn(1, [], []);
        assert_eq!(
            others.own,
            [ours, old].into(),
            "this daemon owns the previous daemon's network"
        );
        assert!(others.unknown && !neighbours.may_take_first_slot());
        let others = neighbours.learn(1, [ours, theirs], [1, 2]);
        assert_eq!((&others.served, &others.slots), (&[theirs].into(), &[2].into()));
        // The other daemon has stopped: its rules stay in force, and its guard does not.
        neighbours.is_settled = true;
        let others = neighbours.learn(1, [ours], [1]);
        assert_eq!(others.served, [theirs].into());
        assert!(others.slots.is_empty() && !others.unknown);
        assert!(neighbours.may_take_first_slot());
        let others = neighbours.learn(1, [old], [0, 1]);
        assert_eq!(others.own, [ours].into(), "another daemon serves the network now");
        neighbours.learn(1, [old], [1]);
        assert!(!neighbours.may_take_first_slot(), "the daemon of slot 0 may start again");
        assert!(!is_over(GRACE / 2) && is_over(GRACE));
    }
}
