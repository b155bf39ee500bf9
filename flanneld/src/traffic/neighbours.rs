//! The daemons of other networks on this host: what of theirs stays, and when what nobody serves any more goes.

use ipnet::IpNet;
use run_dir::instance;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;
use traffic_rules::ownership::OtherDaemons;

/// So long after our start, rules of a network that nobody serves may be those of a daemon that is restarted, too. Rules that stay too long
/// harm nobody; rules that go too soon cost packets.
const GRACE: Duration = Duration::from_secs(300);

/// What is known of them.
#[derive(Debug)]
pub struct Neighbours {
    /// Our networks.
    own: BTreeSet<IpNet>,
    /// Those of our predecessor, unless somebody else serves them now.
    before: BTreeSet<IpNet>,
    /// The place of our guard.
    place: Option<u16>,
    /// Networks that were served at any time since our start: a daemon that stops leaves its rules in force.
    served: BTreeSet<IpNet>,
    guards: BTreeSet<u16>,
    since: Instant,
}

impl Neighbours {
    /// Nobody is known yet.
    pub fn new(own: BTreeSet<IpNet>, before: BTreeSet<IpNet>, place: Option<u16>) -> Self {
        Self { own, before, place, served: BTreeSet::new(), guards: BTreeSet::new(), since: Instant::now() }
    }

    /// Looks who is there, and tells what stays.
    pub fn look(&mut self) -> OtherDaemons {
        self.learn(instance::running::served().into_iter().flatten(), instance::taken::guard_places())
    }

    fn learn(&mut self, served: impl IntoIterator<Item = IpNet>, guards: impl IntoIterator<Item = u16>) -> OtherDaemons {
        self.served.extend(served.into_iter().filter(|network| !self.own.contains(network)));
        // Of those that run alone: what nobody keeps up to date would drop a new node's packets.
        self.guards = guards.into_iter().filter(|place| Some(*place) != self.place).collect();
        self.before.retain(|network| !self.served.contains(network));
        OtherDaemons { own: self.own.union(&self.before).copied().collect(), served: self.served.clone(), unknown: true, guards: self.guards.clone() }
    }

    /// Whether what nobody of us serves belongs to nobody: not soon after our start, and not while a flanneld of another make runs here.
    pub fn is_nobodys(&self) -> bool {
        is_over(self.since.elapsed()) && !instance::running::others_make()
    }
}

/// Whether a daemon that was restarted beside us would be back.
fn is_over(age: Duration) -> bool {
    age >= GRACE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_stay_while_a_daemon_is_away() {
        let (ours, theirs): (IpNet, IpNet) = ("10.5.0.0/16".parse().unwrap(), "10.6.0.0/16".parse().unwrap());
        let old: IpNet = "10.4.0.0/16".parse().unwrap();
        let mut neighbours = Neighbours::new([ours].into(), [ours, old].into(), Some(0));
        let others = neighbours.learn([], []);
        assert!(!others.keeps(&old), "ours it was");
        assert!(others.keeps(&theirs) && !others.keeps(&ours), "who is restarted beside us comes back");
        assert!(!neighbours.is_nobodys());
        let others = neighbours.learn([ours, theirs], [0, 1]);
        assert_eq!((others.served, others.guards), ([theirs].into(), [1].into()));
        // It stopped: its rules stay in force, its guard does not.
        let others = OtherDaemons { unknown: false, ..neighbours.learn([ours], [0]) };
        assert!(others.keeps(&theirs) && !others.keeps_guard(1));
        assert!(!others.keeps(&"10.7.0.0/16".parse().unwrap()), "nobody has served that since our start");
        assert!(neighbours.learn([old], []).keeps(&old), "somebody else has it now");
        assert!(!is_over(GRACE / 2) && is_over(GRACE));
    }
}
