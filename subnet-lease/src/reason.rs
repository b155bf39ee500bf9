//! Why something failed: a kind, by which reasons are compared, and a text.
//!
//! A text may contain what changes with each attempt: a time, a count, an address. To log a reason once, compare kinds.

use std::fmt;

/// What a reason is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The text itself, which contains neither a time nor a count.
    Said(String),
    /// No endpoint of the store can be used; the kind of each, in the configured order.
    Endpoints(Vec<Kind>),
    /// There is no route, or no answer.
    Unreachable,
    /// The server cannot serve: it has no leader, is overloaded or is stopping.
    Unavailable,
    /// The server belongs to another cluster.
    ForeignCluster,
    /// This node refuses the server's certificate, for this cause.
    ServerCertificate(&'static str),
    /// The server refuses this node's certificate.
    ClientCertificate,
    /// The server requires a client certificate, and none is configured.
    NoClientCertificate,
    /// The server does not speak TLS, and this node does.
    NoTls,
    /// The server speaks TLS, and this node does not.
    OnlyTls,
    /// Another TLS failure.
    Tls,
    /// Name or password is wrong.
    Credentials,
    /// The server requires a user, and none is configured.
    NoUser,
    /// The log-in is no longer valid; the next request logs in again.
    StaleLogIn,
    /// The server has authentication switched off.
    NoAuthentication,
    /// The user lacks the permission.
    Permission,
    /// The store is full.
    NoSpace,
    /// The request or the answer is too large.
    TooLarge,
    /// The store refuses for another cause, with this code.
    Refused(i32),
    /// The pool is exhausted.
    Exhausted,
    /// Another instance of this node may hold the lease.
    Contested,
    /// Somebody overwrites this node's lease.
    Overwritten,
}

impl Kind {
    /// Whether it is this kind, or the kind of one of its endpoints.
    pub fn has(&self, kind: &Kind) -> bool {
        match self {
            Kind::Endpoints(kinds) => kinds.contains(kind),
            other => other == kind,
        }
    }

    /// The kind that all endpoints share, if they do; else the kind itself.
    fn simplest(&self) -> &Kind {
        match self {
            Kind::Endpoints(kinds) => match kinds.as_slice() {
                [first, rest @ ..] if rest.iter().all(|kind| kind == first) => first,
                _ => self,
            },
            other => other,
        }
    }

    /// Whether another log-in, or none, would help.
    pub fn of_log_in(&self) -> bool {
        matches!(self, Kind::NoUser | Kind::StaleLogIn | Kind::NoAuthentication)
    }
}

/// A kind, and the text for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// What is compared.
    pub kind: Kind,
    /// What is logged.
    pub text: String,
}

impl Reason {
    /// A reason of this kind.
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

/// An error with its causes: the text of many says only what was attempted.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// The kinds that were logged since the last success.
#[derive(Clone, Debug, Default)]
pub struct Told(Vec<Kind>);

impl Told {
    /// Whether all is well.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether to log this: a kind that was not logged since the last success, or (for none) the first success after a failure. Two causes that
    /// alternate are logged once each.
    pub fn news(&mut self, reason: Option<&Reason>) -> bool {
        /// If every text differs, some are logged again.
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
