//! Logs a problem that lasts for many attempts only once.

use types::problem::StoreCause;
use types::{Detail, Problem};

/// Two problems have the same topic if one line in the log is enough for both until the next success. Times and counts change with every attempt, and
/// refused connections alternate with timeouts.
fn topic(problem: &Problem) -> String {
    use StoreCause::{Name, NoRoute, Refused, Silent};
    match problem.detail {
        Detail::Store { cause: Name | NoRoute | Refused | Silent, .. } => "unreachable".to_owned(),
        _ => {
            let mut topic = format!("{} {}", problem.code, problem.text);
            topic.retain(|c| !c.is_ascii_digit());
            topic
        }
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

    #[test]
    fn reason_is_logged_once_when_only_a_number_in_its_text_changes() {
        let mut log = LogOnce::default();
        let expired = |seconds: u32| Problem::new("expired", format!("it expired {seconds} s ago"));
        let mistake = |which: &str| Problem::new("mistake", which);
        assert!(!log.news(None));
        assert!(log.news(Some(&expired(1))));
        assert!(!log.news(Some(&expired(2))));
        assert!(log.news(Some(&mistake("it expired 2 s ago"))));
        assert!(!log.news(Some(&expired(3))), "a repeated problem after another problem");
        assert!(log.news(None) && !log.news(None));
        assert!(log.news(Some(&expired(4))), "a problem after a success");
        assert!(log.news(None));
        assert!(
            log.news(Some(&mistake("one")))
                && !log.news(Some(&mistake("one")))
                && log.news(Some(&mistake("another")))
        );
    }
}
