//! Reachability of a peer. The prober, the probe, the doctor, the status API and the metrics use the same names for the verdicts.

use serde::{Deserialize, Serialize};
use std::fmt;

/// State of the path to a peer, for one address family. The states are in the order of their severity.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Peer that this node has not probed or cannot probe.
    #[default]
    Unknown,
    /// Arrival of packets of every size, with replies.
    Well,
    /// Arrival of packets of every size, with replies that take much longer than usual.
    Slow,
    /// Lack of replies to some probes.
    LosesSome,
    /// Loss of packets as large as the MTU of pods, although small packets arrive.
    SmallMtu,
    /// Loss of the peer's replies, although the peer receives this node's packets over the overlay.
    OneWay,
    /// Loss of this node's packets over the overlay, although the peer replies over the underlay.
    OverlayCut,
    /// Lack of any reply.
    CutOff,
    /// Another node that replies at the peer's address.
    WrongNode,
}

/// Effect of a path's state on the packets of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Impact {
    /// The effect is unknown.
    Unknown,
    /// No effect on packets of pods.
    None,
    /// Loss of some packets, or delay of all packets.
    Some,
    /// All packets get lost.
    All,
}

impl State {
    /// All states. The index of a state is its number on the wire.
    pub const ALL: [State; 9] = [
        State::Unknown,
        State::Well,
        State::Slow,
        State::LosesSome,
        State::SmallMtu,
        State::OneWay,
        State::OverlayCut,
        State::CutOff,
        State::WrongNode,
    ];

    /// Returns the state's name in JSON, metrics, tables, logs and documentation.
    pub const fn name(self) -> &'static str {
        match self {
            State::Unknown => "unknown",
            State::Well => "well",
            State::Slow => "slow",
            State::LosesSome => "loses-some",
            State::SmallMtu => "small-mtu",
            State::OneWay => "one-way",
            State::OverlayCut => "overlay-cut",
            State::CutOff => "cut-off",
            State::WrongNode => "wrong-node",
        }
    }

    /// Returns the state's effect on the packets of pods.
    pub const fn impact(self) -> Impact {
        match self {
            State::Unknown => Impact::Unknown,
            State::Well => Impact::None,
            State::Slow | State::LosesSome | State::SmallMtu => Impact::Some,
            State::OneWay | State::OverlayCut | State::CutOff | State::WrongNode => Impact::All,
        }
    }

    /// Returns whether at least some packets of pods arrive in both directions.
    pub const fn passes(self) -> bool {
        matches!(self.impact(), Impact::None | Impact::Some)
    }

    /// Returns the state's number on the wire.
    pub fn number(self) -> u8 {
        let place = State::ALL.iter().position(|state| *state == self).unwrap_or(0);
        u8::try_from(place).unwrap_or(0)
    }

    /// Returns the state for a number on the wire. Unknown numbers belong to states of later versions and yield [`State::Unknown`].
    pub fn of_number(number: u8) -> State {
        State::ALL.get(usize::from(number)).copied().unwrap_or(State::Unknown)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Verdict on the path to a peer, for one address family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// State of the path.
    pub state: State,
    /// Whether the peer replies only to ping.
    pub ping_only: bool,
}

impl Verdict {
    /// Creates a verdict from replies to probes.
    pub const fn of(state: State) -> Self {
        Self { state, ping_only: false }
    }

    /// Creates a verdict from replies to ping.
    pub const fn by_ping(state: State) -> Self {
        Self { state, ping_only: true }
    }

    /// Returns the verdict with the state `well` instead of `slow` or `loses-some`, which depend on statistics.
    #[must_use]
    pub const fn ungraded(self) -> Self {
        match self.state {
            State::Slow | State::LosesSome => Self { state: State::Well, ..self },
            _ => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_lead_back() {
        for state in State::ALL {
            assert_eq!(State::of_number(state.number()), state);
            assert_eq!(serde_json::to_value(state).unwrap(), state.name());
            assert_eq!(state.to_string(), state.name());
        }
        assert_eq!(State::of_number(200), State::Unknown);
    }

    #[test]
    fn states_are_ordered_by_severity() {
        assert!(State::ALL.is_sorted());
        assert!(State::ALL.is_sorted_by_key(|state| state.impact()));
    }

    #[test]
    fn packets_pass_where_not_all_are_lost() {
        let pass: Vec<&str> =
            State::ALL.iter().filter(|state| state.passes()).map(|state| state.name()).collect();
        assert_eq!(pass, ["well", "slow", "loses-some", "small-mtu"]);
    }
}
