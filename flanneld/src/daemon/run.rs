//! The tasks that serve the network, from the acquisition of the lease until a restart of the network.

use super::end::EndError;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use types::Problem;

/// Time for which the daemon waits until its tasks end, before it aborts them.
pub(super) const FAREWELL: Duration = Duration::from_millis(1_500);

/// If one task fails, the daemon ends all.
pub(super) struct Run {
    pub stop: CancellationToken,
    pub tasks: JoinSet<Result<(), EndError>>,
}

impl Run {
    /// `stop`, which stops the process, also stops the run.
    pub(super) fn until(stop: &CancellationToken) -> Self {
        Self { stop: stop.child_token(), tasks: JoinSet::new() }
    }

    /// The task cannot fail.
    pub(super) fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(async move {
            task.await;
            Ok(())
        });
    }

    /// Waits until a task fails, all tasks end, or the daemon stops the run.
    pub(super) async fn supervise(&mut self) -> Result<(), EndError> {
        loop {
            let ended = tokio::select! {
                ended = self.tasks.join_next() => ended,
                () = self.stop.cancelled() => return Ok(()),
            };
            match ended {
                None => return Ok(()),
                Some(Ok(Ok(()))) => {}
                Some(Ok(Err(end))) => return Err(end),
                Some(Err(error)) => {
                    let text = format!("a task of the daemon failed: {error}");
                    return Err(EndError::failed(Problem::new("task-failed", text)));
                }
            }
        }
    }

    pub(super) async fn end(mut self) {
        self.stop.cancel();
        let _ = tokio::time::timeout(FAREWELL, async {
            while self.tasks.join_next().await.is_some() {}
        })
        .await;
        self.tasks.shutdown().await;
    }
}
