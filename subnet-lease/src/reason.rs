//! Problems that may last for many attempts, each with a topic that identifies repetitions of the problem.
//!
//! The text of a problem may contain parts that change with each attempt, such as a time or a count. A topic omits them.

use thiserror::Error;
use types::{Coded, Problem};

/// A problem that may last for many attempts.
pub trait Lasting: Coded {
    /// The part of the text that stays the same while the problem lasts.
    fn topic(&self) -> String {
        self.to_string()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{problem}")]
pub struct Reason {
    pub problem: Problem,
    topic: String,
}

impl<E: Lasting> From<E> for Reason {
    fn from(problem: E) -> Self {
        Self { problem: Problem::of(&problem), topic: problem.topic() }
    }
}

impl From<Reason> for Problem {
    fn from(reason: Reason) -> Self {
        reason.problem
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

/// Of the problems that the daemon has logged since the last success.
#[derive(Clone, Debug, Default)]
pub struct LogOnce(Vec<String>);

impl LogOnce {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if no problem with this topic was logged since the last success. `None` means success, which is logged only after a failure. If two
    /// problems alternate, each is logged only once.
    pub fn news(&mut self, reason: Option<&Reason>) -> bool {
        /// Beyond this number, all topics are forgotten, and a problem may be logged again.
        const KEPT: usize = 32;
        let Some(reason) = reason else {
            return !std::mem::take(&mut self.0).is_empty();
        };
        let news = !self.0.contains(&reason.topic);
        if news {
            if self.0.len() >= KEPT {
                self.0.clear();
            }
            self.0.push(reason.topic.clone());
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Error, Coded)]
    enum TestError {
        #[error("it expired {0} s ago")]
        Expired(u32),
        #[error("{0}")]
        #[code(*_0)]
        Mistake(&'static str),
    }

    impl Lasting for TestError {
        fn topic(&self) -> String {
            match self {
                TestError::Expired(_) => self.code().to_owned(),
                TestError::Mistake(_) => self.to_string(),
            }
        }
    }

    #[test]
    fn reason_is_logged_once_when_only_a_number_in_its_text_changes() {
        let mut log = LogOnce::default();
        let expired = |seconds: u32| Reason::from(TestError::Expired(seconds));
        let mistake = |which: &'static str| Reason::from(TestError::Mistake(which));
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
