//! Reachability of a peer. The prober, the probe, the doctor, the status API and the metrics use the same names for the verdicts.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The path to a peer, for one address family. The states are in the order of their severity.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// This node has not probed the peer or cannot probe it.
    #[default]
    Unknown,
    /// Packets of every size arrive, with replies.
    Well,
    /// Packets of every size arrive, but replies take much longer than usual.
    Slow,
    /// Some probes get no reply.
    LosesSome,
    /// Packets as large as the MTU of pods get lost, but small ones arrive.
    SmallMtu,
    /// The peer's replies get lost, but it receives this node's packets over the overlay.
    OneWay,
    /// This node's packets over the overlay get lost, but the peer replies over the underlay.
    OverlayCut,
    /// No reply at all.
    CutOff,
    /// Another node replies at the peer's address.
    WrongNode,
}

/// Effect of a path's state on the packets of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Impact {
    Unknown,
    None,
    /// Some packets get lost, or all are delayed.
    Some,
    /// All packets get lost.
    All,
}

impl State {
    /// The index of a state is its number on the wire.
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

    /// Used in JSON, metrics, tables, logs and documentation.
    #[must_use]
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

    #[must_use]
    pub const fn impact(self) -> Impact {
        match self {
            State::Unknown => Impact::Unknown,
            State::Well => Impact::None,
            State::Slow | State::LosesSome | State::SmallMtu => Impact::Some,
            State::OneWay | State::OverlayCut | State::CutOff | State::WrongNode => Impact::All,
        }
    }

    /// True if at least some packets of pods arrive in both directions.
    #[must_use]
    pub const fn passes(self) -> bool {
        matches!(self.impact(), Impact::None | Impact::Some)
    }

    /// On the wire.
    #[must_use]
    pub fn number(self) -> u8 {
        let place = State::ALL.iter().position(|state| *state == self).unwrap_or(0);
        u8::try_from(place).unwrap_or(0)
    }

    /// Unknown numbers belong to states of later versions and yield [`State::Unknown`].
    #[must_use]
    pub fn of_number(number: u8) -> State {
        State::ALL.get(usize::from(number)).copied().unwrap_or(State::Unknown)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// On the path to a peer, for one address family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    pub state: State,
    /// The peer replies only to ping.
    pub ping_only: bool,
}

impl Verdict {
    /// From replies to probes.
    #[must_use]
    pub const fn of(state: State) -> Self {
        Self { state, ping_only: false }
    }

    /// From replies to ping.
    #[must_use]
    pub const fn by_ping(state: State) -> Self {
        Self { state, ping_only: true }
    }

    /// With the state `well` instead of `slow` or `loses-some`, which depend on statistics.
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
