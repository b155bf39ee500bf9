//! Logs a problem that lasts for many attempts only once.

use types::problem::StoreCause;
use types::{Detail, Problem};

/// Two problems have the same topic if one line in the log is enough for both until the next success. What a server says may differ with every attempt
/// (a time, a request's number); what flanneld says names what an operator wrote.
fn topic(problem: &Problem) -> String {
    use StoreCause::{Name, NoRoute, Other, Refused, Silent};
    let Problem { code, text, detail, parts } = problem;
    match (&**code, detail) {
        (_, Detail::Store { .. }) if !parts.is_empty() => {
            let mut topics: Vec<String> = parts.iter().map(topic).collect();
            // What all endpoints have in common is the trouble of the store as a whole.
            if topics.windows(2).all(|pair| pair.first() == pair.last()) {
                topics.truncate(1);
            }
            topics.join("; ")
        }
        // One after the other, while a cluster elects a leader.
        ("etcd-unavailable" | "etcd-no-leader" | "etcd-timed-out", _) => "unavailable".to_owned(),
        // Refused connections alternate with timeouts and resets.
        (
            "etcd-connection-cut"
            | "etcd-readdressed"
            | "etcd-watch-closed"
            | "kubernetes-not-answered",
            _,
        )
        | ("etcd-unreachable" | "kubernetes-unreachable", Detail::Store { cause: Other, .. })
        | (_, Detail::Store { cause: Name | NoRoute | Refused | Silent, .. }) => {
            "unreachable".to_owned()
        }
        ("etcd-client" | "etcd-no-address" | "kubernetes-token" | "kubernetes-connection", _) => {
            text.clone()
        }
        ("kubernetes-refused", Detail::Store { status, .. }) => format!("{code} {status:?}"),
        (server, _) if server.starts_with("etcd-") || server.starts_with("kubernetes-") => {
            server.to_owned()
        }
        _ => text.clone(),
    }
}

/// The error's text, followed by those of its causes. Without them, the texts of many external errors contain only the failed operation.
#[cfg(any(feature = "etcd", feature = "kube"))]
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
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

/// Topics of the problems that the daemon has logged since the last success.
#[derive(Clone, Debug, Default)]
pub struct LogOnce(Vec<String>);

impl LogOnce {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if no problem with this topic was logged since the last success. `None` means success, which is logged only after a failure. If two
    /// problems alternate, each is logged only once.
    pub fn news(&mut self, problem: Option<&Problem>) -> bool {
        /// Beyond this number, all topics are forgotten, and a problem may be logged again.
        const KEPT: usize = 32;
        let Some(topic) = problem.map(topic) else {
            return !std::mem::take(&mut self.0).is_empty();
        };
        let news = !self.0.contains(&topic);
        if news {
            if self.0.len() >= KEPT {
                self.0.clear();
            }
            self.0.push(topic);
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A store's answer.
    fn store(code: &'static str, cause: StoreCause, text: &str) -> Problem {
        Problem::new(code, text).with(Detail::Store { cause, status: None, server: None })
    }

    #[test]
    fn reason_is_logged_once_when_only_the_servers_words_change() {
        let mut log = LogOnce::default();
        let refused = |words: &str| store("kubernetes-refused", StoreCause::Other, words);
        let mistake = |which: &str| Problem::new("config-invalid", which);
        assert!(!log.news(None));
        assert!(log.news(Some(&refused("request 1a2f failed on Monday"))));
        assert!(!log.news(Some(&refused("request b7c1 failed on Tuesday"))));
        assert!(log.news(Some(&mistake("10.244.0.0/29 is too small"))));
        assert!(!log.news(Some(&refused("no"))), "a repeated problem after another problem");
        assert!(
            log.news(Some(&mistake("10.244.0.0/30 is too small"))),
            "another number is another mistake"
        );
        assert!(!log.news(Some(&mistake("10.244.0.0/29 is too small"))));
        assert!(log.news(None) && !log.news(None));
        assert!(log.news(Some(&refused("no"))), "a problem after a success");
    }

    #[test]
    fn election_of_a_leader_is_one_reason() {
        let mut log = LogOnce::default();
        let news = |log: &mut LogOnce, code, cause| log.news(Some(&store(code, cause, "no")));
        assert!(news(&mut log, "etcd-no-leader", StoreCause::NoQuorum));
        assert!(!news(&mut log, "etcd-timed-out", StoreCause::Silent));
        assert!(!news(&mut log, "etcd-unavailable", StoreCause::Other));
        assert!(news(&mut log, "etcd-watch-silent", StoreCause::Silent));
        assert!(!news(&mut log, "etcd-watch-closed", StoreCause::Other));
        assert!(!news(&mut log, "kubernetes-unreachable", StoreCause::Other));
    }
}
