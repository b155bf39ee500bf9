//! A single thread for all file system access: a hanging file system blocks only this thread.

use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;
use thiserror::Error;
use tokio::sync::{Semaphore, oneshot};

type Job = Box<dyn FnOnce() + Send>;

/// Maximum time until an operation completes, including the wait for the thread.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum WorkerError {
    /// The operation may still complete when the file system responds.
    #[error("no answer")]
    Late,
    #[error("the thread that accesses the directory ended")]
    Stopped,
    #[error(
        "cannot start the thread that accesses the directory: {0}; raise the limits (ulimit -u; TasksMax)"
    )]
    NotStarted(String),
}

/// Runs one operation at a time on a thread, which starts with the first one and ends with the `Worker` or the process.
pub(super) struct Worker {
    jobs: OnceLock<Result<mpsc::Sender<Job>, WorkerError>>,
    /// Permit to use the thread. A hanging job keeps it, so that further jobs do not queue up.
    turn: Arc<Semaphore>,
    patience: Duration,
}

impl Worker {
    pub(super) fn new(patience: Duration) -> Self {
        Self { jobs: OnceLock::new(), turn: Arc::new(Semaphore::new(1)), patience }
    }

    /// An operation that has started runs to its end, even if the future is dropped.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, WorkerError> {
        let answered = async {
            let permit =
                self.turn.clone().acquire_owned().await.map_err(|_| WorkerError::Stopped)?;
            let (answer, answered) = oneshot::channel();
            let job = move || {
                let done = work();
                // The next operation may start as soon as this caller has its reply.
                drop(permit);
                let _ = answer.send(done);
            };
            let jobs = self.jobs.get_or_init(start).as_ref().map_err(Clone::clone)?;
            jobs.send(Box::new(job)).map_err(|_| WorkerError::Stopped)?;
            answered.await.map_err(|_| WorkerError::Stopped)
        };
        tokio::time::timeout(self.patience, answered).await.unwrap_or(Err(WorkerError::Late))
    }
}

fn start() -> Result<mpsc::Sender<Job>, WorkerError> {
    let (jobs, inbox) = mpsc::channel::<Job>();
    let work = move || inbox.into_iter().for_each(|job| job());
    let thread = std::thread::Builder::new().name("lease-files".to_owned()).spawn(work);
    thread.map(|_| jobs).map_err(|error| WorkerError::NotStarted(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn hanging_job_blocks_one_thread_only() {
        // Only an operation that hangs may be late, however busy the machine is.
        const LONG: Duration = Duration::from_secs(3600);
        let mut worker = Worker::new(LONG);
        assert_eq!(worker.run(|| 7).await, Ok(7));
        worker.patience = Duration::from_millis(50);
        let (release, hung) = mpsc::channel::<()>();
        let done = Arc::new(std::sync::atomic::AtomicU32::new(0));
        assert_eq!(worker.run(move || hung.recv().is_ok()).await, Err(WorkerError::Late));
        // The next caller times out, and its operation is not run later.
        for _ in 0..3 {
            let done = done.clone();
            assert_eq!(
                worker.run(move || done.fetch_add(1, std::sync::atomic::Ordering::Relaxed)).await,
                Err(WorkerError::Late)
            );
        }
        release.send(()).unwrap();
        worker.patience = LONG;
        assert_eq!(worker.run(|| ()).await, Ok(()));
        assert_eq!(done.load(std::sync::atomic::Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_job_that_panics_is_an_error_not_a_hang() {
        let worker = Worker::new(Duration::from_secs(10));
        assert!(matches!(
            worker.run(|| panic!("on purpose")).await,
            Err::<(), _>(WorkerError::Stopped)
        ));
        assert!(matches!(worker.run(|| ()).await, Err(WorkerError::Stopped)));
    }
}
