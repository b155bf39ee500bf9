//! What a node says of one of its peers.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The verdict on a peer, for one address family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Never asked, or it cannot be asked.
    #[default]
    Unknown,
    /// Packets of every size arrive there, and answers come back.
    Well,
    /// As well, but much slower than the other peers.
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
pub enum Harm {
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

    /// The name in JSON and in metrics.
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

    /// The words for a reader.
    pub const fn words(self) -> &'static str {
        match self {
            State::Unknown => "unknown",
            State::Well => "well",
            State::Slow => "slow",
            State::LosesSome => "loses some",
            State::SmallMtu => "small MTU",
            State::OneWay => "one way",
            State::OverlayCut => "overlay cut",
            State::CutOff => "cut off",
            State::WrongNode => "wrong node",
        }
    }

    /// What it means for the packets of pods.
    pub const fn harm(self) -> Harm {
        match self {
            State::Unknown => Harm::Unknown,
            State::Well => Harm::None,
            State::Slow | State::LosesSome | State::SmallMtu => Harm::Some,
            State::OneWay | State::OverlayCut | State::CutOff | State::WrongNode => Harm::All,
        }
    }

    /// The number on the wire.
    pub fn number(self) -> u8 {
        let place = State::ALL.iter().position(|state| *state == self).unwrap_or(0);
        u8::try_from(place).unwrap_or(0)
    }

    /// The state of a number; unknown numbers are states of later versions, of which nothing is known.
    pub fn of_number(number: u8) -> State {
        State::ALL.get(usize::from(number)).copied().unwrap_or(State::Unknown)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words())
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
            assert_eq!(state.words(), state.name().replace('-', " ").replace("mtu", "MTU"));
        }
        assert_eq!(State::of_number(200), State::Unknown);
    }

    #[test]
    fn of_two_states_the_later_is_the_worse() {
        assert!(State::ALL.is_sorted());
        assert!(State::ALL.is_sorted_by_key(|state| state.harm()));
    }
}
