//! Tokens, which distinguish probes of a peer from forged probes.

use crate::wire::{Echo, NONE};

/// The tokens of one peer. Any host can forge a peer's address, but only a node that receives packets at this address can repeat this node's token.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tokens {
    /// This node's token, which the peer has to repeat.
    pub own: u32,
    /// The peer's token, from a probe that repeated this node's token.
    sure: Option<u32>,
    /// The token in the last probe from the peer's address; another host may have forged it.
    last: Option<u32>,
}

impl Tokens {
    /// `random` generates this node's own token. Other hosts that guess it could exhaust the rate limit of replies to
    /// the peer.
    pub(super) fn new(random: u64) -> Self {
        // Neither `NONE`, which stands for no token, nor 0, which versions without tokens send.
        Self {
            own: u32::try_from(random % u64::from(NONE - 1)).unwrap_or(0) + 1,
            sure: None,
            last: None,
        }
    }

    /// True if a message with this repeated token is certainly from the peer.
    pub(super) fn prove(&self, repeats: Option<u32>) -> bool {
        repeats == Some(self.own)
    }

    /// True if the probe is certainly from the peer.
    pub(super) fn take(&mut self, body: &Echo) -> bool {
        let sure = self.prove(body.repeats);
        self.last = body.token;
        if sure {
            self.sure = body.token;
        }
        sure
    }

    /// True if the peer has repeated this node's token. Afterwards, a probe without it is not from the peer.
    pub(super) fn is_sure(&self) -> bool {
        self.sure.is_some()
    }

    /// The peer's token, which a new probe has to repeat. It alternates between the confirmed token and the last one,
    /// because a restarted peer has a new token. `random` is the nonce of the probe.
    pub(super) fn repeated(&self, random: u64) -> Option<u32> {
        self.sure.filter(|_| random.is_multiple_of(2)).or(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(from: &Tokens, nonce: u64) -> Echo {
        Echo { token: Some(from.own), repeats: from.repeated(nonce), ..Echo::default() }
    }

    #[test]
    fn tokens_are_sure_after_three_questions_and_after_a_restart() {
        let (mut a, mut b) = (Tokens::new(1), Tokens::new(2));
        assert!(!b.take(&question(&a, 0)), "b has not sent a token yet");
        assert!(a.take(&question(&b, 0)) && b.take(&question(&a, 0)));
        // Forged probes arrive in between, and the peer is still recognized.
        let forged = Echo { token: Some(7), repeats: Some(8), ..Echo::default() };
        assert!(!a.take(&forged) && b.take(&question(&a, 2)) && a.take(&question(&b, 2)));
        a = Tokens::new(3);
        assert!(!a.take(&forged) && !b.take(&question(&a, 0)));
        // Every other nonce repeats the token that arrived last.
        assert!(!a.take(&question(&b, 2)) && a.take(&question(&b, 3)));
        assert!(!a.take(&forged) && b.take(&question(&a, 2)));
    }

    #[test]
    fn token_is_never_a_value_for_none() {
        for random in [0, u64::from(NONE) - 2, u64::from(NONE) - 1, u64::from(NONE), u64::MAX] {
            assert!(![0, NONE].contains(&Tokens::new(random).own), "{random}");
        }
        let mut tokens = Tokens::new(5);
        assert!(
            !tokens.take(&Echo::default())
                && tokens.repeated(0).is_none()
                && tokens.repeated(1).is_none()
        );
    }
}
