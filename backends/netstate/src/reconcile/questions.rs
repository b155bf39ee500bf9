//! Kernel audits that other tasks request from the running loop. For each request, the reconciler's loop reads the kernel state again.

use crate::error::{KernelError, RequestError};
use crate::sighting::Sighting;
use tokio::sync::{mpsc, oneshot};

/// The channel for the result of an audit. The task that requested the audit may have ended.
pub(super) type Question = oneshot::Sender<Result<Sighting, KernelError>>;

/// Requests kernel audits from a running reconciler. Clones of a [`KernelAudit`] share one queue.
#[derive(Clone, Debug)]
pub struct KernelAudit(mpsc::Sender<Question>);

/// Creates the queue of audit requests. The queue holds one request at a time, because each request reads the whole kernel state.
pub(super) fn channel() -> (KernelAudit, mpsc::Receiver<Question>) {
    let (sender, receiver) = mpsc::channel(1);
    (KernelAudit(sender), receiver)
}

impl KernelAudit {
    /// Reads the kernel between two passes, and returns the desired and the actual state.
    ///
    /// # Errors
    /// Returns an error if the read of the kernel's state fails or the loop has ended.
    ///
    /// # Cancel safety
    /// The loop does not answer a request whose caller dropped the future.
    pub async fn look(&self) -> Result<Sighting, KernelError> {
        let ended = || KernelError::new("read the kernel's state", RequestError::Stopping);
        let (sender, answer) = oneshot::channel();
        self.0.send(sender).await.map_err(|_| ended())?;
        answer.await.unwrap_or_else(|_| Err(ended()))
    }
}
