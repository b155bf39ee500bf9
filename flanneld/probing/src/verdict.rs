//! The verdict on a peer: a function of what was asked and what was heard. Who changes its mind needs more than one round.

use types::reachability::{State, Verdict};

/// "Just now": how long ago the peer heard us through the overlay network, in milliseconds. Rounds are a second apart.
const JUST_NOW_MS: u32 = 2_500;
/// Losses among the last sixteen questions that make a peer lose some.
pub(crate) const LOSES: u32 = 2;
/// Slow begins here, in microseconds,
const SLOW_US: u32 = 5_000;
/// and at so many times the median of the other peers.
const SLOW_TIMES: u32 = 5;

/// What came of one kind of question.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProbeResult {
    /// It was not asked.
    #[default]
    NotAsked,
    /// The answer came.
    Answered,
    /// No answer came.
    Lost,
}

/// What was heard in one round of questions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// A question as long as the MTU, through the overlay network.
    pub full: ProbeResult,
    /// A small one.
    pub small: ProbeResult,
    /// Ping, through the overlay network.
    pub ping: ProbeResult,
    /// Ping as long as the MTU.
    pub full_ping: ProbeResult,
    /// A question beside the overlay network.
    pub underlay: ProbeResult,
    /// Ping beside it.
    pub underlay_ping: ProbeResult,
    /// What the peer said beside the overlay network: it heard us through it so many milliseconds ago.
    pub hears_us_ms: Option<u32>,
    /// Whether somebody else answered.
    pub other: bool,
}

impl Evidence {
    /// Whether anything was heard through the overlay network.
    pub fn through(&self) -> bool {
        [self.full, self.small, self.ping, self.full_ping].contains(&ProbeResult::Answered)
    }

    /// Whether anything was asked through the overlay network.
    pub fn asked_through(&self) -> bool {
        [self.full, self.small, self.ping, self.full_ping]
            .iter()
            .any(|heard| *heard != ProbeResult::NotAsked)
    }

    /// The part of it that is about the underlay.
    #[must_use]
    pub fn only_underlay(&self) -> Self {
        Self {
            underlay: self.underlay,
            underlay_ping: self.underlay_ping,
            ..Self::default()
        }
    }
}

/// The verdict on a whole round.
pub fn judge(evidence: &Evidence) -> Verdict {
    use ProbeResult::{Answered, Lost, NotAsked};
    let Evidence {
        full,
        small,
        ping,
        full_ping,
        underlay,
        underlay_ping,
        hears_us_ms,
        other,
    } = *evidence;
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
    // Without an address to ask there, what is beside the overlay network is all there is.
    let cut = if evidence.asked_through() {
        State::OverlayCut
    } else {
        State::Well
    };
    if underlay == Answered {
        let hears_us =
            evidence.asked_through() && hears_us_ms.is_some_and(|age| age <= JUST_NOW_MS);
        return Verdict::of(if hears_us { State::OneWay } else { cut });
    }
    if underlay_ping == Answered {
        return Verdict::by_ping(cut);
    }
    // Without ping a peer that answers ping alone cannot be told from one that is gone.
    let pinged = [ping, full_ping, underlay_ping] != [NotAsked; 3];
    let silent = pinged && (evidence.asked_through() || underlay == Lost || underlay_ping == Lost);
    Verdict::of(if silent {
        State::CutOff
    } else {
        State::Unknown
    })
}

/// The verdict on several rounds at once, of which so many questions got no answer.
pub fn judge_rounds(evidence: &Evidence, lost: u32) -> Verdict {
    let verdict = judge(evidence);
    // Nobody else's round trips are known.
    if verdict.state == State::Well {
        Verdict {
            state: grade(lost, None, None),
            ..verdict
        }
    } else {
        verdict
    }
}

/// Whether what a single turn brought is what the present verdict leads to expect. A surprise is looked into.
pub fn expected(present: Verdict, evidence: &Evidence) -> bool {
    use ProbeResult::{Answered, Lost, NotAsked};
    if evidence.other {
        return present.state == State::WrongNode;
    }
    let lost = |heard| heard != Answered;
    let kept = |heard| heard != Lost;
    let Evidence {
        full,
        small,
        ping,
        full_ping,
        underlay,
        underlay_ping,
        ..
    } = *evidence;
    match (present.ungraded().state, present.ping_only) {
        (State::Unknown, _) => false,
        (State::Well, false) => kept(full) && kept(small) && kept(underlay),
        (State::SmallMtu, false) => lost(full) && full != NotAsked && kept(small) && kept(underlay),
        // Firewalls may refuse the port on one of the devices only.
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

/// The grade of "well": by the losses among the last questions, and by the fastest of the last round trips, against the median of all peers.
pub fn grade(lost: u32, rtt_us: Option<u32>, others_us: Option<u32>) -> State {
    if lost >= LOSES {
        return State::LosesSome;
    }
    let slow = rtt_us
        .zip(others_us)
        .is_some_and(|(rtt, others)| rtt > SLOW_US && rtt > others.saturating_mul(SLOW_TIMES));
    if slow { State::Slow } else { State::Well }
}

/// A verdict that stands until several rounds in a row say the same of another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DebouncedVerdict {
    /// What stands.
    pub present: Verdict,
    next: Option<(Verdict, u8)>,
}

/// Rounds that must agree.
const AGREE: u8 = 2;
/// Rounds that must agree where some answers came: the others may have been lost by chance.
const AGREE_PARTLY: u8 = 3;
/// Rounds that must agree on anything worse where questions get lost by chance.
const AGREE_LOSSY: u8 = 4;

impl DebouncedVerdict {
    /// Takes the verdict of one round. Returns whether the present one changed.
    pub(crate) fn take(&mut self, verdict: Verdict, lossy: bool) -> bool {
        if verdict == self.present.ungraded() {
            self.next = None;
            return false;
        }
        let rounds = match self.next {
            Some((next, rounds)) if next == verdict => rounds.saturating_add(1),
            _ => 1,
        };
        // There was nothing to be sure of.
        let at_once = self.present.state == State::Unknown && verdict == Verdict::of(State::Well);
        let needed = match verdict.state {
            State::Well if !verdict.ping_only => AGREE,
            _ if lossy => AGREE_LOSSY,
            State::Well | State::SmallMtu => AGREE_PARTLY,
            _ => AGREE,
        };
        if rounds >= needed || at_once {
            *self = Self {
                present: verdict,
                next: None,
            };
            return true;
        }
        self.next = Some((verdict, rounds));
        false
    }

    /// Whether another round is wanted, to make sure.
    pub(crate) fn is_undecided(&self) -> bool {
        self.next.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::ProbeResult::{Answered, Lost, NotAsked};
    use super::*;
    use proptest::prelude::*;

    /// A whole round: full, small, ping, beside, ping beside.
    fn round(heard: [ProbeResult; 5], hears_us_ms: Option<u32>) -> Evidence {
        let [full, small, ping, underlay, underlay_ping] = heard;
        Evidence {
            full,
            small,
            ping,
            underlay,
            underlay_ping,
            hears_us_ms,
            ..Evidence::default()
        }
    }

    #[test]
    fn what_was_heard_makes_the_verdict() {
        let (a, l, n) = (Answered, Lost, NotAsked);
        let old = Some(180_000);
        for (heard, hears_us, want) in [
            ([a, a, a, a, a], old, Verdict::of(State::Well)),
            ([a, n, n, n, n], None, Verdict::of(State::Well)),
            ([n, a, n, n, n], None, Verdict::of(State::Well)),
            ([a, l, l, l, l], None, Verdict::of(State::Well)),
            ([l, a, a, a, a], Some(1), Verdict::of(State::SmallMtu)),
            ([l, l, a, a, a], Some(1), Verdict::by_ping(State::Well)),
            ([l, l, a, l, l], None, Verdict::by_ping(State::Well)),
            ([l, l, l, a, a], Some(900), Verdict::of(State::OneWay)),
            ([l, l, l, a, a], old, Verdict::of(State::OverlayCut)),
            ([l, l, l, a, l], None, Verdict::of(State::OverlayCut)),
            ([l, l, l, l, a], None, Verdict::by_ping(State::OverlayCut)),
            ([l, l, l, l, l], None, Verdict::of(State::CutOff)),
            // host-gw without a pod at one of the ends, or wireguard without a question in the clear.
            ([n, n, n, a, a], Some(1), Verdict::of(State::Well)),
            ([n, n, n, l, a], None, Verdict::by_ping(State::Well)),
            ([n, n, n, l, l], None, Verdict::of(State::CutOff)),
            ([l, l, l, n, a], None, Verdict::by_ping(State::OverlayCut)),
            ([n, n, n, n, n], None, Verdict::of(State::Unknown)),
        ] {
            assert_eq!(
                judge(&round(heard, hears_us)),
                want,
                "{heard:?} {hears_us:?}"
            );
            let other = Evidence {
                other: true,
                ..round(heard, hears_us)
            };
            assert_eq!(judge(&other), Verdict::of(State::WrongNode));
        }
        let pings = |ping, full_ping| {
            judge(&Evidence {
                ping,
                full_ping,
                small: l,
                ..Evidence::default()
            })
        };
        assert_eq!(pings(a, l), Verdict::by_ping(State::SmallMtu));
        assert_eq!(pings(l, a), Verdict::by_ping(State::Well));
    }

    #[test]
    fn rounds_that_lose_questions_are_graded() {
        let (a, l, n) = (Answered, Lost, NotAsked);
        for (heard, lost, want) in [
            ([a, a, a, a, a], 1, State::Well),
            ([a, a, a, a, a], 2, State::LosesSome),
            ([l, a, a, a, a], 5, State::SmallMtu),
            ([l, l, l, a, a], 10, State::OverlayCut),
            ([n, n, n, n, n], 2, State::Unknown),
        ] {
            assert_eq!(
                judge_rounds(&round(heard, None), lost),
                Verdict::of(want),
                "{heard:?}"
            );
        }
        let evidence = round([l, l, l, a, a], Some(1));
        assert_eq!(judge(&evidence).state, State::OneWay);
        assert_eq!(judge(&evidence.only_underlay()).state, State::Well);
    }

    #[test]
    fn silence_of_ping_alone_is_no_fault() {
        for heard in [
            [Answered, Answered, Lost, Answered, Lost],
            [NotAsked, Answered, Lost, NotAsked, Lost],
        ] {
            assert_eq!(judge(&round(heard, None)), Verdict::of(State::Well));
        }
    }

    #[test]
    fn what_a_verdict_leads_to_expect() {
        let of = Verdict::of;
        let turn = |full, small, underlay| Evidence {
            full,
            small,
            underlay,
            ..Evidence::default()
        };
        for (present, evidence, is) in [
            (of(State::Well), turn(Answered, NotAsked, Answered), true),
            (
                of(State::LosesSome),
                turn(NotAsked, Answered, NotAsked),
                true,
            ),
            (of(State::Slow), turn(Lost, NotAsked, NotAsked), false),
            (of(State::Well), turn(NotAsked, NotAsked, Lost), false),
            (
                of(State::Well),
                Evidence {
                    other: true,
                    ..turn(Answered, NotAsked, NotAsked)
                },
                false,
            ),
            (
                of(State::Unknown),
                turn(Answered, NotAsked, NotAsked),
                false,
            ),
            (of(State::SmallMtu), turn(Lost, Answered, NotAsked), true),
            (
                of(State::SmallMtu),
                turn(Answered, Answered, NotAsked),
                false,
            ),
            (of(State::CutOff), turn(Lost, Lost, Lost), true),
            (of(State::CutOff), turn(Lost, Lost, Answered), false),
            (of(State::OverlayCut), turn(Lost, NotAsked, Answered), true),
            (of(State::OneWay), turn(NotAsked, Answered, Answered), false),
            (
                Verdict::by_ping(State::Well),
                Evidence {
                    ping: Answered,
                    ..Evidence::default()
                },
                true,
            ),
            (
                Verdict::by_ping(State::Well),
                Evidence {
                    ping: Lost,
                    ..Evidence::default()
                },
                false,
            ),
            (
                Verdict::by_ping(State::Well),
                Evidence {
                    ping: Answered,
                    small: Answered,
                    ..Evidence::default()
                },
                false,
            ),
            (
                Verdict::by_ping(State::OverlayCut),
                Evidence {
                    ping: Lost,
                    underlay_ping: Answered,
                    ..Evidence::default()
                },
                true,
            ),
        ] {
            assert_eq!(expected(present, &evidence), is, "{present:?} {evidence:?}");
        }
    }

    #[test]
    fn two_rounds_make_a_verdict() {
        let (well, cut, off) = (
            Verdict::of(State::Well),
            Verdict::of(State::OverlayCut),
            Verdict::of(State::CutOff),
        );
        let mut standing = DebouncedVerdict::default();
        assert!(standing.take(well, false), "the first good news counts");
        assert!(!standing.take(cut, false) && standing.is_undecided());
        assert!(!standing.take(off, false), "two rounds that differ");
        assert!(
            !standing.take(well, false) && !standing.is_undecided(),
            "one bad round"
        );
        assert!(!standing.take(cut, false) && standing.take(cut, false));
        assert!(
            !standing.take(well, false) && standing.take(well, false),
            "mended, likewise"
        );
        let small = Verdict::of(State::SmallMtu);
        assert_eq!(
            (0..4)
                .map(|_| standing.take(small, true))
                .collect::<Vec<_>>(),
            [false, false, false, true]
        );
        // A grade is no other verdict.
        let mut graded = DebouncedVerdict {
            present: Verdict::of(State::LosesSome),
            next: None,
        };
        assert!(!graded.take(well, false) && !graded.is_undecided());
    }

    #[test]
    fn grades_of_well() {
        for (lost, rtt, others, want) in [
            (0, Some(400), Some(400), State::Well),
            (1, Some(4_900), Some(10), State::Well),
            (1, Some(6_000), Some(1_000), State::Slow),
            (1, Some(60_000), Some(30_000), State::Well),
            (1, Some(60_000), None, State::Well),
            (2, Some(60_000), Some(1_000), State::LosesSome),
        ] {
            assert_eq!(grade(lost, rtt, others), want);
        }
    }

    fn heard() -> impl Strategy<Value = ProbeResult> {
        prop_oneof![Just(NotAsked), Just(Answered), Just(Lost)]
    }

    proptest! {
        /// Any answer through the overlay network, from the right node, means that packets arrive.
        #[test]
        fn an_answer_is_never_called_a_cut(heard in proptest::array::uniform5(heard()), age in proptest::option::of(0u32..100_000)) {
            let evidence = round(heard, age);
            let state = judge(&evidence).state;
            prop_assert_eq!(evidence.through(), evidence.asked_through() && matches!(state, State::Well | State::SmallMtu));
        }

        /// What a whole round says is what the next one leads to expect: no endless looking into.
        #[test]
        fn a_verdict_expects_its_own_evidence(heard in proptest::array::uniform5(any::<bool>()), age in proptest::option::of(0u32..100_000)) {
            let evidence = round(heard.map(|heard| if heard { Answered } else { Lost }), age);
            let verdict = judge(&evidence);
            // Where questions are answered, one that is not is looked into.
            let sizes = [evidence.full, evidence.small, evidence.underlay];
            prop_assume!(verdict.ping_only || !evidence.through() || verdict.state == State::Well && sizes == [Answered; 3]);
            prop_assert!(expected(verdict, &evidence), "{:?}", verdict);
        }
    }
}
