//! Common faults: faults with a single cause that make many peers fail at once. The node probes only some peers to
//! find one, and applies the verdict to all peers. If a peer replies during a common fault, the node probes other
//! peers again. If any of these also replies, the common fault is over. If none replies, the fault still applies to
//! all silent peers.

use super::message::ANSWER_TIMEOUT;
use super::peer::PeerState;
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::time::Duration;
use types::Family;
use types::reachability::{Impact, State, Verdict};

/// Number of different peers whose scheduled probes have to fail consecutively before the node probes other peers. If
/// half of a cluster is down, five consecutive failures occur by chance within seconds.
const IN_A_ROW: usize = 5;
/// Number of additional peers that the search probes at once.
pub(super) const FRESH: usize = 8;
/// Maximum number of newly probed peers with another verdict. A peer may have a fault of its own.
const MAX_UNLIKE: usize = 1;
/// Number of additional peers that have to fail consecutively after each search without a result. Sequences of
/// failures recur while half of a cluster is down.
const MORE_IN_A_ROW: usize = 2;
/// Time without a failed search after which [`IN_A_ROW`] consecutive failures again start a search for a common fault.
const CAUTION_TIME: Duration = Duration::from_secs(300);
const SEARCH_TIMEOUT: Duration = Duration::from_secs(15);
/// Minimum time between two checks whether a common fault is over.
const RECHECK_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CommonOutage {
    pub verdict: Verdict,
    /// Time at which the first probed peer failed.
    pub began: Duration,
    /// Time from which the verdict on the probed peers applies to the other peers.
    pub since: Duration,
}

#[derive(Debug, Default)]
pub(super) struct Search {
    /// Peers whose scheduled probes failed consecutively.
    row: Vec<IpNet>,
    began: Duration,
    /// Additional peers that the search probes and whose rounds of probes are not over.
    open: BTreeSet<IpNet>,
    asked_at: Duration,
    verdicts: Vec<Verdict>,
    /// Number of recent searches without a result, and the time at which the last of these searches ended.
    in_vain: (usize, Duration),
    found: Option<CommonOutage>,
}

/// Effect of one peer's round of probes on the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    None,
    /// The verdict on the probed peers now applies to the other peers.
    Found,
    /// The common fault ended.
    Over,
}

impl Search {
    /// True if the node has to probe additional peers now.
    pub(super) fn failed(&mut self, now: Duration, key: IpNet) -> bool {
        if self.found.is_some() || self.row.contains(&key) {
            return false;
        }
        if !self.open.is_empty() {
            if now.saturating_sub(self.asked_at) >= SEARCH_TIMEOUT {
                self.give_up(now);
            }
            return false;
        }
        if self.row.is_empty() {
            self.began = now;
        }
        self.row.push(key);
        if now.saturating_sub(self.in_vain.1) >= CAUTION_TIME {
            self.in_vain.0 = 0;
        }
        self.row.len() >= IN_A_ROW + MORE_IN_A_ROW * self.in_vain.0
    }

    /// The scheduled probes of a peer got a reply.
    pub(super) fn passed(&mut self) {
        if self.open.is_empty() {
            self.row.clear();
        }
    }

    /// True if the peer is part of the current sequence of failures, so that another probe would give no new
    /// information.
    pub(super) fn has_failed(&self, key: &IpNet) -> bool {
        self.row.contains(key)
    }

    pub(super) fn awaits(&self, key: &IpNet) -> bool {
        self.open.contains(key)
    }

    /// Records that the node probes the additional peers `peers`. An empty list ends an existing common fault,
    /// because its verdict can apply to no other peer.
    pub(super) fn ask(&mut self, now: Duration, peers: &[IpNet]) -> Progress {
        self.asked_at = now;
        self.verdicts.clear();
        self.open = peers.iter().copied().collect();
        if !peers.is_empty() {
            return Progress::None;
        }
        self.row.clear();
        match self.found.take() {
            Some(_) => Progress::Over,
            None => Progress::None,
        }
    }

    /// Handles the verdict on one of the additional peers.
    pub(super) fn judged(&mut self, now: Duration, key: &IpNet, verdict: Verdict) -> Progress {
        if !self.open.remove(key) {
            return Progress::None;
        }
        let fails = [State::CutOff, State::OverlayCut, State::OneWay].contains(&verdict.state);
        if !fails {
            return self.give_up(now);
        }
        self.verdicts.push(verdict);
        if !self.open.is_empty() {
            return Progress::None;
        }
        let Some(verdict) = self.alike() else {
            return self.give_up(now);
        };
        self.row.clear();
        let before = self.found;
        let found = CommonOutage {
            verdict,
            began: before.map_or(self.began, |fault| fault.began),
            since: before.map_or(now, |fault| fault.since),
        };
        self.found = Some(found);
        if before == self.found { Progress::None } else { Progress::Found }
    }

    /// A peer replied in spite of the common fault. True if the node has to probe additional peers now.
    pub(super) fn refuted(&mut self, now: Duration) -> bool {
        let is_over = now.saturating_sub(self.asked_at) >= SEARCH_TIMEOUT;
        self.found.is_some()
            && (self.open.is_empty() || is_over)
            && now.saturating_sub(self.asked_at) >= RECHECK_INTERVAL
    }

    /// The common verdict on the probed peers. Up to [`MAX_UNLIKE`] peers may have another one.
    fn alike(&self) -> Option<Verdict> {
        // A peer that received a probe shortly before the cut still reports that probe for a moment. So this check treats `one-way` like `overlay-cut`.
        let is_cut_off = |verdict: &Verdict| verdict.state == State::CutOff;
        let count = |is: &dyn Fn(&Verdict) -> bool| {
            self.verdicts.iter().filter(|verdict| is(verdict)).count()
        };
        let cut_off = count(&is_cut_off);
        let one_way = count(&|verdict| verdict.state == State::OneWay);
        let overlay_cut = self.verdicts.len() - cut_off - one_way;
        let unlike = cut_off.min(self.verdicts.len() - cut_off);
        let state = if cut_off > unlike {
            State::CutOff
        } else if one_way > overlay_cut {
            State::OneWay
        } else {
            State::OverlayCut
        };
        let ping_only = |verdict: &Verdict| verdict.state != state || verdict.ping_only;
        (unlike <= MAX_UNLIKE && unlike * 4 <= self.verdicts.len())
            .then(|| Verdict { state, ping_only: self.verdicts.iter().all(ping_only) })
    }

    fn give_up(&mut self, now: Duration) -> Progress {
        self.open.clear();
        self.row.clear();
        if self.found.take().is_some() {
            return Progress::Over;
        }
        self.in_vain = (self.in_vain.0.saturating_add(1), now);
        Progress::None
    }

    pub(super) fn found(&self) -> Option<CommonOutage> {
        self.found
    }

    pub(super) fn retain(&mut self, stays: impl Fn(&IpNet) -> bool) {
        self.row.retain(&stays);
        self.open.retain(&stays);
    }
}

/// The searches in both address families. One family may fail while the other works.
#[derive(Debug, Default)]
pub(super) struct CommonFaults {
    v4: Search,
    v6: Search,
}

impl CommonFaults {
    pub(super) fn of(&self, family: Family) -> &Search {
        family.pick(&self.v4, &self.v6)
    }

    pub(super) fn of_mut(&mut self, family: Family) -> &mut Search {
        family.pick(&mut self.v4, &mut self.v6)
    }

    pub(super) fn retain(&mut self, stays: impl Fn(&IpNet) -> bool) {
        self.v4.retain(&stays);
        self.v6.retain(&stays);
    }
}

impl PeerState {
    /// True if the peer's own verdict shows no fault and the peer has not replied during the common fault.
    pub(super) fn is_covered(&self) -> bool {
        !self.exempt && self.standing.present.state.impact() != Impact::All
    }

    /// The verdict in force: that of the common fault, or the peer's own.
    pub(super) fn verdict(&self, fault: Option<CommonOutage>) -> Verdict {
        match fault.filter(|_| self.is_covered()) {
            Some(fault) => fault.verdict,
            None => self.standing.present,
        }
    }

    /// True if this node probed the peer after `began` or shortly before it. The node probes the first failing peers
    /// shortly before the common fault begins.
    pub(super) fn is_asked_since(&self, began: Duration) -> bool {
        let from = began.saturating_sub(ANSWER_TIMEOUT);
        self.times.asked.is_some_and(|at| Duration::from(at) >= from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn key(number: u8) -> IpNet {
        IpNet::new([10, 5, number, 0].into(), 24).unwrap()
    }

    fn fail(search: &mut Search, at: Duration, numbers: std::ops::Range<u8>) -> Vec<bool> {
        numbers.map(|number| search.failed(at, key(number))).collect()
    }

    fn judge(search: &mut Search, at: Duration, verdicts: &[Verdict]) -> Progress {
        let peers: Vec<IpNet> = (100..).map(key).take(verdicts.len()).collect();
        search.ask(at, &peers);
        let judged = (100..).zip(verdicts);
        judged.map(|(number, verdict)| search.judged(at, &key(number), *verdict)).last().unwrap()
    }

    const OFF: Verdict = Verdict::of(State::CutOff);
    const CUT: Verdict = Verdict::of(State::OverlayCut);
    const ONE_WAY: Verdict = Verdict::of(State::OneWay);
    const WELL: Verdict = Verdict::of(State::Well);

    #[test]
    fn five_in_a_row_and_eight_others_are_a_common_fault() {
        let mut search = Search::default();
        assert_eq!(fail(&mut search, S, 0..4), [false; 4]);
        assert!(!search.failed(S, key(2)), "it counts once");
        search.passed();
        assert_eq!(fail(&mut search, 2 * S, 0..4), [false; 4]);
        assert!(search.failed(3 * S, key(4)));
        assert_eq!(judge(&mut search, 4 * S, &[CUT; 8]), Progress::Found);
        let found = search.found().unwrap();
        assert_eq!((found.verdict, found.began, found.since), (CUT, 2 * S, 4 * S));
        assert_eq!(fail(&mut search, 5 * S, 10..30), [false; 20]);
    }

    #[test]
    fn fault_is_over_when_others_answer_too() {
        let mut search = Search::default();
        fail(&mut search, S, 0..5);
        judge(&mut search, 2 * S, &[OFF; 8]);
        assert!(!search.refuted(3 * S), "the last check is too recent");
        assert!(search.refuted(9 * S));
        assert_eq!(judge(&mut search, 9 * S, &[OFF; 8]), Progress::None, "it stays");
        assert!(!search.refuted(10 * S));
        assert_eq!(
            judge(&mut search, 15 * S, &[CUT; 8]),
            Progress::Found,
            "a different fault replaces the first fault"
        );
        let found = search.found().unwrap();
        assert_eq!((found.verdict, found.began, found.since), (CUT, S, 2 * S));
        assert_eq!(judge(&mut search, 25 * S, &[CUT, CUT, WELL]), Progress::Over);
        assert!(search.found().is_none() && !search.refuted(99 * S));
        fail(&mut search, 100 * S, 0..5);
        judge(&mut search, 100 * S, &[OFF; 8]);
        assert_eq!(search.ask(110 * S, &[]), Progress::Over, "no other peer is left");
    }

    #[test]
    fn others_have_to_fail_alike() {
        let mut one_off = [CUT; 8];
        one_off[3] = OFF;
        let mut one_well = [CUT; 8];
        one_well[7] = WELL;
        for (verdicts, found) in [
            (&[OFF; 8][..], Some(OFF)),
            (&one_off, Some(CUT)),
            (&[CUT, OFF, CUT, OFF, CUT, OFF, CUT, OFF], None),
            (&one_well, None),
            (&[CUT, OFF], None),
            (&[OFF], Some(OFF)),
            (&[CUT, CUT, ONE_WAY, CUT], Some(CUT)),
            (&[ONE_WAY, CUT, ONE_WAY], Some(ONE_WAY)),
            (&[Verdict::of(State::WrongNode); 8], None),
            (&[Verdict::by_ping(State::OverlayCut); 8], Some(Verdict::by_ping(State::OverlayCut))),
            (&[CUT, Verdict::by_ping(State::OverlayCut)], Some(CUT)),
        ] {
            let mut search = Search::default();
            fail(&mut search, S, 0..5);
            let progress = judge(&mut search, S, verdicts);
            assert_eq!(progress == Progress::Found, found.is_some(), "{verdicts:?}");
            assert_eq!(search.found().map(|fault| fault.verdict), found, "{verdicts:?}");
        }
    }

    #[test]
    fn search_in_vain_makes_the_next_one_rarer_for_a_while() {
        let mut search = Search::default();
        let mut wanted = |at: Duration| {
            let all = fail(&mut search, at, 0..20);
            let needed = all.iter().position(|asks| *asks).unwrap() + 1;
            judge(&mut search, at, &[CUT, WELL]);
            needed
        };
        assert_eq!([S, 2 * S, 3 * S, 4 * S].map(&mut wanted), [5, 7, 9, 11]);
        assert_eq!(wanted(400 * S), 5);
    }

    #[test]
    fn search_without_answers_ends() {
        let mut search = Search::default();
        fail(&mut search, S, 0..5);
        search.ask(S, &[key(50)]);
        assert!(!search.failed(20 * S, key(7)));
        assert_eq!(fail(&mut search, 21 * S, 0..7).iter().filter(|asks| **asks).count(), 1);
        // The search does not wait for peers that are gone.
        search.ask(22 * S, &[key(50)]);
        search.retain(|_| false);
        assert!(!search.has_failed(&key(1)));
        assert_eq!(fail(&mut search, 23 * S, 0..7).iter().filter(|asks| **asks).count(), 1);
        search.ask(24 * S, &[]);
        assert!(!search.failed(24 * S, key(9)), "the sequence restarts");
    }
}
