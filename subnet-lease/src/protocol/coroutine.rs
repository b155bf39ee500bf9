//! Runs straight-line async code as a state machine, without a runtime, I/O or a clock.
//!
//! The code in the coroutine can await only two things: the reply to one request ([`Io::ask`]), and the next notice or point in time
//! ([`Io::wait`]). [`Coroutine::step`] runs the code until the code needs a reply or a notice, and returns which of the two the code needs.

use super::news::News;
use super::registry::{Answer, NoReplyError, Notice, Request};
use crate::manager::Held;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;

/// The next input that a coroutine needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<T> {
    /// A reply to the given request.
    Ask(Request),
    /// A notice or the given time; `None` if only a notice ends the wait.
    Wait(Option<Duration>),
    /// Result of the coroutine, which has returned.
    Done(T),
}

/// A log line about a change of the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// Whether the log line is a warning.
    pub warning: bool,
    /// Change of the lease, and the node's reaction.
    pub news: News,
}

#[derive(Default)]
struct Mailbox {
    now: Duration,
    request: Option<Request>,
    answer: Option<Result<Answer, NoReplyError>>,
    notices: VecDeque<Notice>,
    until: Option<Duration>,
    held: Held,
    log: Vec<LogLine>,
}

/// Operations that the code of a coroutine can use.
#[derive(Clone, Default)]
pub struct Io(Arc<Mutex<Mailbox>>);

impl Io {
    /// Returns the time of the current step, on the boot-time clock.
    pub fn now(&self) -> Duration {
        self.0.lock().now
    }

    /// Sends one request to the store and waits for the reply. The mailbox keeps notices that arrive before the reply.
    ///
    /// # Errors
    /// Returns an error if the store did not reply. If no reply arrives, the store may still have executed the request.
    pub async fn ask(&self, request: Request) -> Result<Answer, NoReplyError> {
        self.0.lock().request = Some(request);
        std::future::poll_fn(|_| match self.0.lock().answer.take() {
            Some(answer) => Poll::Ready(answer),
            None => Poll::Pending,
        })
        .await
    }

    /// Waits for the next notice. The function returns `None` if no notice arrives before the time `until`.
    pub async fn wait(&self, until: Option<Duration>) -> Option<Notice> {
        std::future::poll_fn(|_| {
            let mut mailbox = self.0.lock();
            if let Some(notice) = mailbox.notices.pop_front() {
                return Poll::Ready(Some(notice));
            }
            if until.is_some_and(|until| until <= mailbox.now) {
                return Poll::Ready(None);
            }
            mailbox.until = until;
            Poll::Pending
        })
        .await
    }

    /// Waits for the given time. Notices stay in the mailbox for the next `wait`.
    pub async fn sleep(&self, time: Duration) {
        let until = self.now() + time;
        std::future::poll_fn(|_| {
            let mut mailbox = self.0.lock();
            if until <= mailbox.now {
                return Poll::Ready(());
            }
            mailbox.until = Some(until);
            Poll::Pending
        })
        .await;
    }

    /// Adds a warning to the log.
    pub fn warn(&self, news: News) {
        self.0.lock().log.push(LogLine { warning: true, news });
    }

    /// Adds an informational line to the log.
    pub(crate) fn inform(&self, news: News) {
        self.0.lock().log.push(LogLine { warning: false, news });
    }

    /// Changes the lease's state, which the status API shows.
    pub fn show(&self, change: impl FnOnce(&mut Held)) {
        change(&mut self.0.lock().held);
    }
}

/// State machine that runs async code step by step for a driver.
pub struct Coroutine<T> {
    future: Pin<Box<dyn Future<Output = T> + Send>>,
    io: Io,
}

impl<T> Coroutine<T> {
    /// Creates a state machine from the code that `run` returns. The function does not run the code.
    pub fn new<F: Future<Output = T> + Send + 'static>(run: impl FnOnce(Io) -> F) -> Self {
        let io = Io::default();
        Self { future: Box::pin(run(io.clone())), io }
    }

    /// Runs the code of the coroutine at the given time until the code needs the next input.
    pub fn step(&mut self, now: Duration) -> Step<T> {
        {
            let mut mailbox = self.io.0.lock();
            mailbox.now = now;
            mailbox.until = None;
        }
        let mut context = Context::from_waker(Waker::noop());
        match self.future.as_mut().poll(&mut context) {
            Poll::Ready(result) => Step::Done(result),
            Poll::Pending => {
                let mut mailbox = self.io.0.lock();
                match mailbox.request.take() {
                    Some(request) => Step::Ask(request),
                    None => Step::Wait(mailbox.until),
                }
            }
        }
    }

    /// Delivers the reply to the last [`Step::Ask`].
    pub fn answer(&mut self, answer: Result<Answer, NoReplyError>) {
        self.io.0.lock().answer = Some(answer);
    }

    /// Queues a notice for the coroutine.
    pub fn notify(&mut self, notice: Notice) {
        self.io.0.lock().notices.push_back(notice);
    }

    /// Returns and removes the log lines since the last call.
    pub fn take_log(&mut self) -> Vec<LogLine> {
        std::mem::take(&mut self.io.0.lock().log)
    }

    /// Returns a copy of the lease's state.
    pub fn held(&self) -> Held {
        self.with_held(Held::clone)
    }

    /// Passes a reference to the lease's state to `look`.
    pub fn with_held<R>(&self, look: impl FnOnce(&Held) -> R) -> R {
        look(&self.io.0.lock().held)
    }
}
