//! Runs straight-line async code as a state machine, without a runtime, I/O or a clock.
//!
//! The code can await only two things: the reply to one request ([`Io::ask`]), and the next notice or point in time ([`Io::wait`]).
//! [`Coroutine::step`] runs it until it needs one of the two, and tells which.

use super::news::News;
use super::registry::{Answer, Notice, Request};
use crate::manager::Held;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use types::Problem;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<T> {
    Ask(Request),
    /// `None` if only a notice ends the wait.
    Wait(Option<Duration>),
    /// The coroutine has returned.
    Done(T),
}

/// About a change of the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    pub warning: bool,
    /// Change of the lease, and the node's reaction.
    pub news: News,
}

#[derive(Default)]
struct Mailbox {
    now: Duration,
    request: Option<Request>,
    answer: Option<Result<Answer, Problem>>,
    notices: VecDeque<Notice>,
    until: Option<Duration>,
    held: Held,
    log: Vec<LogLine>,
}

/// What the code of a coroutine can use.
#[derive(Clone, Default)]
pub struct Io(Arc<Mutex<Mailbox>>);

impl Io {
    /// Time of the current step, on the boot-time clock.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.0.lock().now
    }

    /// Sends one request and waits for the reply. Notices that arrive before it are kept. After an error, the store may still have executed the
    /// request.
    pub async fn ask(&self, request: Request) -> Result<Answer, Problem> {
        self.0.lock().request = Some(request);
        std::future::poll_fn(|_| match self.0.lock().answer.take() {
            Some(answer) => Poll::Ready(answer),
            None => Poll::Pending,
        })
        .await
    }

    /// `None` if no notice arrives before the time `until`.
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

    /// Notices stay in the mailbox for the next `wait`.
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

    pub fn warn(&self, news: News) {
        self.0.lock().log.push(LogLine { warning: true, news });
    }

    pub(crate) fn inform(&self, news: News) {
        self.0.lock().log.push(LogLine { warning: false, news });
    }

    /// The status API shows it.
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
    /// Does not run the code yet.
    pub fn new<F: Future<Output = T> + Send + 'static>(run: impl FnOnce(Io) -> F) -> Self {
        let io = Io::default();
        Self { future: Box::pin(run(io.clone())), io }
    }

    /// Runs the code until it needs the next input.
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

    /// To the last [`Step::Ask`].
    pub fn answer(&mut self, answer: Result<Answer, Problem>) {
        self.io.0.lock().answer = Some(answer);
    }

    pub fn notify(&mut self, notice: Notice) {
        self.io.0.lock().notices.push_back(notice);
    }

    /// The log lines since the last call.
    pub fn take_log(&mut self) -> Vec<LogLine> {
        std::mem::take(&mut self.io.0.lock().log)
    }

    pub fn held(&self) -> Held {
        self.with_held(Held::clone)
    }

    pub fn with_held<R>(&self, look: impl FnOnce(&Held) -> R) -> R {
        look(&self.io.0.lock().held)
    }
}
