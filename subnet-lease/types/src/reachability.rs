//! Whether packets reach a peer: the verdict of the prober, the probe, the doctor, the API and the metrics, under the same names.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The state of the path to a peer, for one address family. Later ones are worse.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Never asked, or it cannot be asked.
    #[default]
    Unknown,
    /// Packets of every size arrive there, and answers come back.
    Well,
    /// As well, but much slower than usual.
    Slow,
    /// Some questions got no answer.
    LosesSome,
    /// Small packets pass, packets as large as the MTU of pods do not.
    SmallMtu,
    /// The peer hears us through the overlay network, but its answers do not arrive.
    OneWay,
    /// What we send through the overlay network does not arrive there; beside it the peer answers.
    OverlayCut,
    /// No answer of any kind.
    CutOff,
    /// Another node answers at the peer's address.
    WrongNode,
}

/// What a state means for the packets of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Impact {
    /// Nothing is known.
    Unknown,
    /// None.
    None,
    /// Some are lost, or all are slow.
    Some,
    /// They are lost.
    All,
}

impl State {
    /// All states; a state's place is its number on the wire.
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

    /// The name in JSON, metrics, tables, logs and documentation.
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

    /// What it means for the packets of pods.
    pub const fn impact(self) -> Impact {
        match self {
            State::Unknown => Impact::Unknown,
            State::Well => Impact::None,
            State::Slow | State::LosesSome | State::SmallMtu => Impact::Some,
            State::OneWay | State::OverlayCut | State::CutOff | State::WrongNode => Impact::All,
        }
    }

    /// Whether packets of pods arrive there and back, some of them at least.
    pub const fn passes(self) -> bool {
        matches!(self.impact(), Impact::None | Impact::Some)
    }

    /// The number on the wire.
    pub fn number(self) -> u8 {
        let place = State::ALL
            .iter()
            .position(|state| *state == self)
            .unwrap_or(0);
        u8::try_from(place).unwrap_or(0)
    }

    /// The state of a number; unknown numbers are states of later versions, of which nothing is known.
    pub fn of_number(number: u8) -> State {
        State::ALL
            .get(usize::from(number))
            .copied()
            .unwrap_or(State::Unknown)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The verdict on the path to a peer, for one address family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The state.
    pub state: State,
    /// Whether the peer answers ping only.
    pub ping_only: bool,
}

impl Verdict {
    /// A verdict by answers to questions.
    pub const fn of(state: State) -> Self {
        Self {
            state,
            ping_only: false,
        }
    }

    /// A verdict by answers to ping.
    pub const fn by_ping(state: State) -> Self {
        Self {
            state,
            ping_only: true,
        }
    }

    /// The verdict without the grade that statistics give to "well".
    #[must_use]
    pub const fn ungraded(self) -> Self {
        match self.state {
            State::Slow | State::LosesSome => Self {
                state: State::Well,
                ..self
            },
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
        let pass: Vec<&str> = State::ALL
            .iter()
            .filter(|state| state.passes())
            .map(|state| state.name())
            .collect();
        assert_eq!(pass, ["well", "slow", "loses-some", "small-mtu"]);
    }
}
