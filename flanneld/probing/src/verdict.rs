//! Computes the verdict on a peer from probe results. A verdict changes only after several rounds agree.

use types::reachability::{State, Verdict};

/// Maximum time in milliseconds since a peer with the verdict `one-way` received a probe over the overlay. Rounds are
/// a second apart, so the time covers at least two rounds.
const JUST_NOW_MS: u32 = 2_500;
/// Minimum number of losses among the last sixteen probes of a lossy peer. A worse verdict on it needs more rounds,
/// because further losses may be chance.
pub(crate) const MIN_LOSSES: u32 = 2;
/// Minimum round trip of a slow peer in microseconds.
const SLOW_US: u32 = 5_000;
/// Minimum ratio of a slow peer's round trip to the usual one between the two nodes.
const SLOW_TIMES: u32 = 5;
/// Minimum loss for the verdict that a node loses packets to all peers: one lost probe per this number of probes.
const NODE_LOSS: u32 = 100;
/// Minimum number of peers with lost probes for the verdict that a node loses packets to all peers.
const NODE_LOSERS: u32 = 5;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProbeResult {
    #[default]
    NotAsked,
    /// A reply arrived in time.
    Answered,
    /// No reply arrived in time.
    Lost,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// A probe of the MTU's length, over the overlay.
    pub full: ProbeResult,
    /// A short probe, over the overlay.
    pub small: ProbeResult,
    /// A short ping, over the overlay.
    pub ping: ProbeResult,
    /// A ping of the MTU's length, over the overlay.
    pub full_ping: ProbeResult,
    /// A probe over the underlay.
    pub underlay: ProbeResult,
    /// A short ping, over the underlay.
    pub underlay_ping: ProbeResult,
    /// Time since the peer received a probe over the overlay, in milliseconds. The peer reports it over the underlay.
    pub hears_us_ms: Option<u32>,
    /// Whether a node with another number replied in the peer's place.
    pub other: bool,
}

impl Evidence {
    /// True if any reply arrived over the overlay.
    pub fn through(&self) -> bool {
        [self.full, self.small, self.ping, self.full_ping].contains(&ProbeResult::Answered)
    }

    /// True if this node sent any probe or ping over the overlay.
    pub fn asked_through(&self) -> bool {
        [self.full, self.small, self.ping, self.full_ping]
            .iter()
            .any(|result| *result != ProbeResult::NotAsked)
    }

    #[must_use]
    pub fn only_underlay(&self) -> Self {
        Self { underlay: self.underlay, underlay_ping: self.underlay_ping, ..Self::default() }
    }
}

/// From a whole round of probes.
///
/// ```
/// use probing::verdict::{Evidence, ProbeResult, judge};
/// use types::reachability::{State, Verdict};
///
/// let (small, full) = (ProbeResult::Answered, ProbeResult::Lost);
/// let evidence = Evidence { small, full, ..Evidence::default() };
/// assert_eq!(judge(&evidence), Verdict::of(State::SmallMtu));
///
/// let evidence = Evidence { ping: ProbeResult::Answered, ..Evidence::default() };
/// assert_eq!(judge(&evidence), Verdict::by_ping(State::Well));
/// ```
pub fn judge(evidence: &Evidence) -> Verdict {
    use ProbeResult::{Answered, Lost, NotAsked};
    let Evidence { full, small, ping, full_ping, underlay, underlay_ping, hears_us_ms, other } =
        *evidence;
    if other {
        return Verdict::of(State::WrongNode);
    }
    match (full, small) {
        (Answered, _) | (NotAsked, Answered) => return Verdict::of(State::Well),
        (Lost, Answered) => return Verdict::of(State::SmallMtu),
        _ => {}
    }
    match (full_ping, ping) {
        (Answered, _) | (NotAsked, Answered) => return Verdict::by_ping(State::Well),
        (Lost, Answered) => return Verdict::by_ping(State::SmallMtu),
        _ => {}
    }
    // Without an address in the overlay, the underlay decides.
    let cut = if evidence.asked_through() { State::OverlayCut } else { State::Well };
    if underlay == Answered {
        let hears_us =
            evidence.asked_through() && hears_us_ms.is_some_and(|age| age <= JUST_NOW_MS);
        return Verdict::of(if hears_us { State::OneWay } else { cut });
    }
    if underlay_ping == Answered {
        return Verdict::by_ping(cut);
    }
    // Without ping, a peer that replies only to ping cannot be distinguished from one that is gone.
    let pinged = [ping, full_ping, underlay_ping] != [NotAsked; 3];
    let silent = pinged && (evidence.asked_through() || underlay == Lost || underlay_ping == Lost);
    Verdict::of(if silent { State::CutOff } else { State::Unknown })
}

/// From several rounds together. `lost` is the number of probes without a reply in all rounds.
pub fn judge_rounds(evidence: &Evidence, lost: u32) -> Verdict {
    let verdict = judge(evidence);
    // This function does not know the usual round trip of the pair.
    if verdict.state == State::Well {
        Verdict { state: grade(lost >= MIN_LOSSES, false), ..verdict }
    } else {
        verdict
    }
}

/// True if the results of one scheduled probe confirm the current verdict. Otherwise, the node sends a whole round of
/// probes.
pub fn expected(present: Verdict, evidence: &Evidence) -> bool {
    use ProbeResult::{Answered, Lost, NotAsked};
    if evidence.other {
        return present.state == State::WrongNode;
    }
    let lost = |result| result != Answered;
    let kept = |result| result != Lost;
    let Evidence { full, small, ping, full_ping, underlay, underlay_ping, .. } = *evidence;
    match (present.ungraded().state, present.ping_only) {
        (State::Unknown, _) => false,
        (State::Well, false) => kept(full) && kept(small) && kept(underlay),
        (State::SmallMtu, false) => lost(full) && full != NotAsked && kept(small) && kept(underlay),
        // A firewall may reject the port on only one of the devices.
        (State::Well, true) => {
            kept(ping)
                && kept(full_ping)
                && (evidence.through() || !evidence.asked_through())
                && lost(full)
                && lost(small)
        }
        (State::SmallMtu, true) => kept(ping) && full_ping == Lost && lost(full) && lost(small),
        (State::OverlayCut, true) => !evidence.through() && kept(underlay_ping) && lost(underlay),
        (State::OneWay | State::OverlayCut, _) => !evidence.through() && kept(underlay),
        (State::CutOff, _) => !evidence.through() && lost(underlay) && lost(underlay_ping),
        (State::WrongNode, _) => false,
        (State::Slow | State::LosesSome, _) => true,
    }
}

/// The state of a peer whose packets arrive: `well`, `slow` or `loses-some`.
pub fn grade(lossy: bool, slow: bool) -> State {
    match (lossy, slow) {
        (true, _) => State::LosesSome,
        (false, true) => State::Slow,
        (false, false) => State::Well,
    }
}

/// Compares a round trip with the usual one between the two nodes. Both are in microseconds.
pub(crate) fn is_slow(rtt_us: u32, usual_us: u32) -> bool {
    rtt_us > SLOW_US && rtt_us > usual_us.saturating_mul(SLOW_TIMES)
}

/// True if a node loses packets to and from all peers. Lost probes to a single peer are not a fault of the node.
///
/// The arguments count the probes to all peers in the last minutes. The node sent `asked` probes, and got no reply to
/// `lost` of them. `losers` is the number of peers that did not reply to at least one probe.
pub fn loses_everywhere(asked: u32, lost: u32, losers: u32) -> bool {
    losers >= NODE_LOSERS && lost.saturating_mul(NODE_LOSS) >= asked
}

/// A verdict that changes only after several consecutive rounds agree on another verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DebouncedVerdict {
    pub present: Verdict,
    next: Option<(Verdict, u8)>,
}

/// Number of rounds that have to agree on a change.
const AGREE: u8 = 2;
/// The same if some replies arrive. Chance may explain the missing ones.
const AGREE_PARTLY: u8 = 3;
/// The same for a worse verdict while probes get lost by chance.
const AGREE_LOSSY: u8 = 4;

impl DebouncedVerdict {
    /// True if the current verdict changes.
    pub(crate) fn take(&mut self, verdict: Verdict, lossy: bool) -> bool {
        if verdict == self.present.ungraded() {
            self.next = None;
            return false;
        }
        let rounds = match self.next {
            Some((next, rounds)) if next == verdict => rounds.saturating_add(1),
            _ => 1,
        };
        // The first good verdict needs no confirmation.
        let at_once = self.present.state == State::Unknown && verdict == Verdict::of(State::Well);
        let needed = match verdict.state {
            State::Well if !verdict.ping_only => AGREE,
            _ if lossy => AGREE_LOSSY,
            State::Well | State::SmallMtu => AGREE_PARTLY,
            _ => AGREE,
        };
        if rounds >= needed || at_once {
            *self = Self { present: verdict, next: None };
            return true;
        }
        self.next = Some((verdict, rounds));
        false
    }

    /// True if a change of the verdict waits for confirmation by another round.
    pub(crate) fn is_undecided(&self) -> bool {
        self.next.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::ProbeResult::{Answered, Lost, NotAsked};
    use super::*;
    use proptest::prelude::*;

    /// The order of `results` is: full, small, ping, underlay, underlay ping.
    fn round(results: [ProbeResult; 5], hears_us_ms: Option<u32>) -> Evidence {
        let [full, small, ping, underlay, underlay_ping] = results;
        Evidence { full, small, ping, underlay, underlay_ping, hears_us_ms, ..Evidence::default() }
    }

    #[test]
    fn verdict_follows_from_the_probe_results() {
        let (a, l, n) = (Answered, Lost, NotAsked);
        let old = Some(180_000);
        for (results, hears_us, want) in [
            ([a, a, a, a, a], old, Verdict::of(State::Well)),
            ([a, n, n, n, n], None, Verdict::of(State::Well)),
            ([n, a, n, n, n], None, Verdict::of(State::Well)),
            ([a, l, l, l, l], None, Verdict::of(State::Well)),
            ([n, a, l, n, l], None, Verdict::of(State::Well)),
            ([l, a, a, a, a], Some(1), Verdict::of(State::SmallMtu)),
            ([l, l, a, a, a], Some(1), Verdict::by_ping(State::Well)),
            ([l, l, a, l, l], None, Verdict::by_ping(State::Well)),
            ([l, l, l, a, a], Some(900), Verdict::of(State::OneWay)),
            ([l, l, l, a, a], old, Verdict::of(State::OverlayCut)),
            ([l, l, l, a, l], None, Verdict::of(State::OverlayCut)),
            ([l, l, l, l, a], None, Verdict::by_ping(State::OverlayCut)),
            ([l, l, l, l, l], None, Verdict::of(State::CutOff)),
            // host-gw without a pod at one of the ends, or wireguard, which sends no probe in the clear.
            ([n, n, n, a, a], Some(1), Verdict::of(State::Well)),
            ([n, n, n, l, a], None, Verdict::by_ping(State::Well)),
            ([n, n, n, l, l], None, Verdict::of(State::CutOff)),
            ([l, l, l, n, a], None, Verdict::by_ping(State::OverlayCut)),
            ([n, n, n, n, n], None, Verdict::of(State::Unknown)),
        ] {
            assert_eq!(judge(&round(results, hears_us)), want, "{results:?} {hears_us:?}");
            let other = Evidence { other: true, ..round(results, hears_us) };
            assert_eq!(judge(&other), Verdict::of(State::WrongNode));
        }
        let pings =
            |ping, full_ping| judge(&Evidence { ping, full_ping, small: l, ..Evidence::default() });
        assert_eq!(pings(a, l), Verdict::by_ping(State::SmallMtu));
        assert_eq!(pings(l, a), Verdict::by_ping(State::Well));
    }

    #[test]
    fn rounds_that_lose_questions_are_graded() {
        let (a, l, n) = (Answered, Lost, NotAsked);
        for (results, lost, want) in [
            ([a, a, a, a, a], 1, State::Well),
            ([a, a, a, a, a], 2, State::LosesSome),
            ([l, a, a, a, a], 5, State::SmallMtu),
            ([l, l, l, a, a], 10, State::OverlayCut),
            ([n, n, n, n, n], 2, State::Unknown),
        ] {
            assert_eq!(judge_rounds(&round(results, None), lost), Verdict::of(want), "{results:?}");
        }
        let evidence = round([l, l, l, a, a], Some(1));
        assert_eq!(judge(&evidence).state, State::OneWay);
        assert_eq!(judge(&evidence.only_underlay()).state, State::Well);
    }

    #[test]
    fn verdict_expects_its_own_results() {
        let of = Verdict::of;
        let turn =
            |full, small, underlay| Evidence { full, small, underlay, ..Evidence::default() };
        for (present, evidence, is) in [
            (of(State::Well), turn(Answered, NotAsked, Answered), true),
            (of(State::LosesSome), turn(NotAsked, Answered, NotAsked), true),
            (of(State::Slow), turn(Lost, NotAsked, NotAsked), false),
            (of(State::Well), turn(NotAsked, NotAsked, Lost), false),
            (
                of(State::Well),
                Evidence { other: true, ..turn(Answered, NotAsked, NotAsked) },
                false,
            ),
            (of(State::Unknown), turn(Answered, NotAsked, NotAsked), false),
            (of(State::SmallMtu), turn(Lost, Answered, NotAsked), true),
            (of(State::SmallMtu), turn(Answered, Answered, NotAsked), false),
            (of(State::CutOff), turn(Lost, Lost, Lost), true),
            (of(State::CutOff), turn(Lost, Lost, Answered), false),
            (of(State::OverlayCut), turn(Lost, NotAsked, Answered), true),
            (of(State::OneWay), turn(NotAsked, Answered, Answered), false),
            (
                Verdict::by_ping(State::Well),
                Evidence { ping: Answered, ..Evidence::default() },
                true,
            ),
            (Verdict::by_ping(State::Well), Evidence { ping: Lost, ..Evidence::default() }, false),
            (
                Verdict::by_ping(State::Well),
                Evidence { ping: Answered, small: Answered, ..Evidence::default() },
                false,
            ),
            (
                Verdict::by_ping(State::OverlayCut),
                Evidence { ping: Lost, underlay_ping: Answered, ..Evidence::default() },
                true,
            ),
        ] {
            assert_eq!(expected(present, &evidence), is, "{present:?} {evidence:?}");
        }
    }

    #[test]
    fn verdict_changes_after_rounds_that_agree() {
        let (well, cut, off) =
            (Verdict::of(State::Well), Verdict::of(State::OverlayCut), Verdict::of(State::CutOff));
        let mut standing = DebouncedVerdict::default();
        assert!(standing.take(well, false), "the first good verdict applies at once");
        assert!(!standing.take(cut, false) && standing.is_undecided());
        assert!(!standing.take(off, false), "two rounds with different verdicts change nothing");
        assert!(!standing.take(well, false) && !standing.is_undecided(), "one bad round");
        assert!(!standing.take(cut, false) && standing.take(cut, false));
        assert!(!standing.take(well, false) && standing.take(well, false), "mended, likewise");
        let small = Verdict::of(State::SmallMtu);
        assert_eq!(
            (0..4).map(|_| standing.take(small, true)).collect::<Vec<_>>(),
            [false, false, false, true]
        );
        // Another grade is not another verdict.
        let mut graded = DebouncedVerdict { present: Verdict::of(State::LosesSome), next: None };
        assert!(!graded.take(well, false) && !graded.is_undecided());
    }

    #[test]
    fn slow_is_measured_by_what_is_usual() {
        for (rtt, usual, want) in
            [(400, 400, false), (4_900, 10, false), (6_000, 1_000, true), (60_000, 30_000, false)]
        {
            assert_eq!(is_slow(rtt, usual), want, "{rtt} {usual}");
        }
        assert_eq!(grade(true, true), State::LosesSome);
        assert_eq!([grade(false, true), grade(false, false)], [State::Slow, State::Well]);
    }

    #[test]
    fn node_loses_everywhere_what_many_peers_lose() {
        for (asked, lost, losers, want) in [
            (1200, 12, 12, true),
            (1200, 11, 11, false),
            (1200, 60, 1, false),
            (1200, 60, 4, false),
            (60, 5, 5, true),
            (0, 0, 0, false),
        ] {
            assert_eq!(loses_everywhere(asked, lost, losers), want, "{asked} {lost} {losers}");
        }
    }

    fn results() -> impl Strategy<Value = ProbeResult> {
        prop_oneof![Just(NotAsked), Just(Answered), Just(Lost)]
    }

    proptest! {
        /// Any reply over the overlay, from the right node, means that packets arrive.
        #[test]
        fn answer_over_the_overlay_is_never_a_cut(results in proptest::array::uniform5(results()), age in proptest::option::of(0u32..100_000)) {
            let evidence = round(results, age);
            let state = judge(&evidence).state;
            prop_assert_eq!(evidence.through(), evidence.asked_through() && matches!(state, State::Well | State::SmallMtu));
        }

        /// The results of a whole round confirm the verdict of this round, so rounds do not repeat forever.
        #[test]
        fn verdict_expects_the_evidence_of_its_round(results in proptest::array::uniform5(any::<bool>()), age in proptest::option::of(0u32..100_000)) {
            let evidence = round(results.map(|results| if results { Answered } else { Lost }), age);
            let verdict = judge(&evidence);
            // If a peer replies to probes over the overlay, a lost probe starts another round. Such results are left out.
            let sizes = [evidence.full, evidence.small, evidence.underlay];
            prop_assume!(verdict.ping_only || !evidence.through() || verdict.state == State::Well && sizes == [Answered; 3]);
            prop_assert!(expected(verdict, &evidence), "{:?}", verdict);
        }
    }
}
