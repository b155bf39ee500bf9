//! Tokens, which distinguish the questions of a peer from forged ones.

use crate::wire::{Echo, NONE};

/// Anybody can forge a peer's address. Only a node that receives packets at that address can repeat a token that was sent there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tokens {
    /// The token that the peer is to repeat.
    pub own: u32,
    /// The peer's token, from a question that repeated ours.
    sure: Option<u32>,
    /// The last token in its name, possibly forged.
    last: Option<u32>,
}

impl Tokens {
    /// `random` makes our own token: with a token that can be guessed, others could use up the peer's answers.
    pub(super) fn new(random: u64) -> Self {
        // The remainder is less than the divisor, which means none.
        Self {
            own: u32::try_from(random % u64::from(NONE)).unwrap_or(0),
            sure: None,
            last: None,
        }
    }

    /// Takes the tokens of a question. Returns whether the question is certainly from the peer.
    pub(super) fn take(&mut self, body: &Echo) -> bool {
        let sure = body.repeats == Some(self.own);
        self.last = body.token;
        if sure {
            self.sure = body.token;
        }
        sure
    }

    /// Returns whether the peer has repeated our token once. From then on, a question that does not repeat it is not from the peer.
    pub(super) fn is_sure(&self) -> bool {
        self.sure.is_some()
    }

    /// Returns the token that a question repeats. It alternates between the sure and the last one, since a peer that has restarted has another one.
    /// `random` is the nonce.
    pub(super) fn repeated(&self, random: u64) -> Option<u32> {
        self.sure.filter(|_| random.is_multiple_of(2)).or(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(from: &Tokens, nonce: u64) -> Echo {
        Echo {
            token: Some(from.own),
            repeats: from.repeated(nonce),
            ..Echo::default()
        }
    }

    #[test]
    fn tokens_are_sure_after_three_questions_and_after_a_restart() {
        let (mut a, mut b) = (Tokens::new(1), Tokens::new(2));
        assert!(!b.take(&question(&a, 0)), "nothing was sent to it yet");
        assert!(a.take(&question(&b, 0)) && b.take(&question(&a, 0)));
        // Forged questions come in between, and the peer is still itself.
        let forged = Echo {
            token: Some(7),
            repeats: Some(8),
            ..Echo::default()
        };
        assert!(!a.take(&forged) && b.take(&question(&a, 2)) && a.take(&question(&b, 2)));
        a = Tokens::new(3);
        assert!(!a.take(&forged) && !b.take(&question(&a, 0)));
        // One of two nonces repeats what came last.
        assert!(!a.take(&question(&b, 2)) && a.take(&question(&b, 3)));
        assert!(!a.take(&forged) && b.take(&question(&a, 2)));
    }

    #[test]
    fn token_is_never_the_value_for_none() {
        assert_eq!(Tokens::new(u64::from(NONE)).own, 0);
        let mut tokens = Tokens::new(5);
        assert!(
            !tokens.take(&Echo::default())
                && tokens.repeated(0).is_none()
                && tokens.repeated(1).is_none()
        );
    }
}
