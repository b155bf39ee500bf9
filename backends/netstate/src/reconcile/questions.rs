//! Questions to the running loop, answered from a fresh read of the kernel.

use crate::failure::{Failure, KernelError, Request};
use crate::sighting::Sighting;
use tokio::sync::{mpsc, oneshot};

/// The channel of an answer. Its receiver may be gone.
pub(super) type Question = oneshot::Sender<Result<Sighting, KernelError>>;

/// Requests kernel audits from a running reconciler. Clones share its queue.
#[derive(Clone, Debug)]
pub struct KernelAudit(mpsc::Sender<Question>);

/// The questions that wait: one at a time, because each reads everything.
pub(super) fn channel() -> (KernelAudit, mpsc::Receiver<Question>) {
    let (sender, receiver) = mpsc::channel(1);
    (KernelAudit(sender), receiver)
}

impl KernelAudit {
    /// Reads the kernel between two passes, and returns the desired and the actual state.
    ///
    /// # Errors
    /// The kernel cannot be read, or the loop has ended.
    ///
    /// # Cancel safety
    /// A question whose future was dropped is not answered.
    pub async fn look(&self) -> Result<Sighting, KernelError> {
        let ended = || KernelError {
            what: Request::Look,
            why: Failure::Stopping,
        };
        let (sender, answer) = oneshot::channel();
        self.0.send(sender).await.map_err(|_| ended())?;
        answer.await.unwrap_or_else(|_| Err(ended()))
    }
}
