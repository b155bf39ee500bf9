//! Why something is not well: a kind, by which reasons are compared, and a text for people.
//!
//! Texts may hold what changes from one try to the next: a time, a count, an address. Whoever tells reasons once compares kinds.

use std::fmt;

/// What a reason is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The words themselves, which hold neither a time nor a count.
    Said(String),
    /// No endpoint of the store can be used; each one's kind, in the order in which they are configured.
    Endpoints(Vec<Kind>),
    /// The network does not lead there, or nothing answers.
    Unreachable,
    /// The server answers that it cannot serve: no leader, overloaded, stopping.
    Unavailable,
    /// The server belongs to another cluster.
    ForeignCluster,
    /// This node refuses the server's certificate, for that cause.
    ServerCertificate(&'static str),
    /// The server refuses this node's certificate.
    ClientCertificate,
    /// The server wants a certificate, and this node has none.
    NoClientCertificate,
    /// The server does not speak TLS, and this node does.
    NoTls,
    /// The server speaks TLS, and this node does not.
    OnlyTls,
    /// TLS fails otherwise.
    Tls,
    /// Name or password is wrong.
    Credentials,
    /// The server wants a user, and was told none.
    NoUser,
    /// The log-in is no longer valid: it is made anew.
    StaleLogIn,
    /// The server wants no user.
    NoAuthentication,
    /// The user may not do this.
    Permission,
    /// The store is full.
    NoSpace,
    /// The answer, or what was sent, is too large.
    TooLarge,
    /// The store refuses for another cause, with that code.
    Refused(i32),
    /// The subnets are all taken.
    Exhausted,
    /// Another instance of this node may hold the lease.
    Contested,
    /// Somebody writes over the own lease.
    Overwritten,
}

impl Kind {
    /// Whether it is that kind, or one of its endpoints' kinds is.
    pub fn has(&self, kind: &Kind) -> bool {
        match self {
            Kind::Endpoints(kinds) => kinds.contains(kind),
            other => other == kind,
        }
    }

    /// The kind that all endpoints have in common, where they have.
    fn simplest(&self) -> &Kind {
        match self {
            Kind::Endpoints(kinds) => match kinds.as_slice() {
                [first, rest @ ..] if rest.iter().all(|kind| kind == first) => first,
                _ => self,
            },
            other => other,
        }
    }

    /// Whether another log-in, or none, mends it.
    pub fn of_log_in(&self) -> bool {
        matches!(self, Kind::NoUser | Kind::StaleLogIn | Kind::NoAuthentication)
    }
}

/// A kind and the words for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// By this it is compared.
    pub kind: Kind,
    /// This is told.
    pub text: String,
}

impl Reason {
    /// A reason of that kind.
    pub fn new(kind: Kind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }
}

impl From<String> for Reason {
    fn from(text: String) -> Self {
        Self { kind: Kind::Said(text.clone()), text }
    }
}

impl From<&str> for Reason {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl std::ops::Deref for Reason {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What was told since all was well.
#[derive(Clone, Debug, Default)]
pub struct Told(Vec<Kind>);

impl Told {
    /// Whether that is news: a kind that was not told since all was well, or the end of it all. Two causes that take turns are told once each.
    pub fn news(&mut self, reason: Option<&Reason>) -> bool {
        /// Of texts that are all different some are told again.
        const KEPT: usize = 32;
        let Some(reason) = reason else { return !std::mem::take(&mut self.0).is_empty() };
        let kind = reason.kind.simplest();
        let news = !self.0.contains(kind);
        if news {
            if self.0.len() >= KEPT {
                self.0.clear();
            }
            self.0.push(kind.clone());
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_told_once_whatever_its_words_count() {
        let mut told = Told::default();
        let expired = |seconds: u32| Reason::new(Kind::ServerCertificate("expired"), format!("it expired {seconds} s ago"));
        assert!(!told.news(None));
        assert!(told.news(Some(&expired(1))));
        assert!(!told.news(Some(&expired(2))));
        assert!(told.news(Some(&Reason::new(Kind::Unreachable, "it expired 2 s ago"))));
        assert!(!told.news(Some(&expired(3))), "two that take turns");
        assert!(told.news(None) && !told.news(None));
        assert!(told.news(Some(&expired(4))), "after it was well");
        assert!(told.news(None));
        assert!(told.news(Some(&"one mistake".into())) && !told.news(Some(&"one mistake".into())) && told.news(Some(&"another".into())));
    }

    #[test]
    fn endpoints_are_compared_one_by_one() {
        let down = |text: &str| Reason::new(Kind::Endpoints(vec![Kind::Unreachable, Kind::Credentials]), text);
        let mut told = Told::default();
        assert!(told.news(Some(&down("refused"))) && !told.news(Some(&down("no answer within 3 s"))));
        let all = Reason::new(Kind::Endpoints(vec![Kind::Unreachable, Kind::Unreachable]), "no answer");
        assert!(told.news(Some(&all)) && !told.news(Some(&Reason::new(Kind::Unreachable, "a call had no answer"))));
        assert!(down("").kind.has(&Kind::Credentials) && !down("").kind.has(&Kind::NoUser) && Kind::NoUser.has(&Kind::NoUser));
    }
}
