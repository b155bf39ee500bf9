//! Tokens: what tells the questions of a peer from those that others write in its name.

use crate::wire::{Echo, NONE};

/// Anybody can write a peer's address into a packet. Who repeats what was sent to that address can read it there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tokens {
    /// What the peer is to repeat.
    pub own: u32,
    /// What it gave us to repeat, in a question that repeated ours.
    sure: Option<u32>,
    /// What was given last in its name.
    last: Option<u32>,
}

impl Tokens {
    /// `random` makes the own one: whoever can guess it can use up the peer's answers.
    pub(super) fn new(random: u64) -> Self {
        // The remainder is less than the divisor, which means none.
        Self {
            own: u32::try_from(random % u64::from(NONE)).unwrap_or(0),
            sure: None,
            last: None,
        }
    }

    /// Takes those of a question. Returns whether it is the peer's, beyond doubt.
    pub(super) fn take(&mut self, body: &Echo) -> bool {
        let sure = body.repeats == Some(self.own);
        self.last = body.token;
        if sure {
            self.sure = body.token;
        }
        sure
    }

    /// Whether the peer has repeated the token once: from then on, what does not repeat it is not the peer's.
    pub(super) fn is_sure(&self) -> bool {
        self.sure.is_some()
    }

    /// What a question repeats: by turns what is sure and what came last, since a peer that has started anew has another one. `random` is the nonce.
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
    fn two_nodes_are_sure_of_each_other_after_three_questions_and_again_after_a_restart() {
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
    fn no_token_is_the_sign_for_none() {
        assert_eq!(Tokens::new(u64::from(NONE)).own, 0);
        let mut tokens = Tokens::new(5);
        assert!(
            !tokens.take(&Echo::default())
                && tokens.repeated(0).is_none()
                && tokens.repeated(1).is_none()
        );
    }
}
