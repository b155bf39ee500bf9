//! Kernel audits that other tasks request from the running loop, which reads the kernel state again
//! for each.

use netstate::KernelError;
use netstate::report::sighting::Sighting;
use tokio::sync::{mpsc, oneshot};
use types::Problem;

/// The task that requested the audit may have ended.
pub(super) type Question = oneshot::Sender<Result<Sighting, KernelError>>;

/// Clones share one queue.
#[derive(Clone, Debug)]
pub struct KernelAudit(mpsc::Sender<Question>);

/// The queue holds one request at a time, because each reads the whole kernel state.
pub(super) fn question_channel() -> (KernelAudit, mpsc::Receiver<Question>) {
    let (sender, receiver) = mpsc::channel(1);
    (KernelAudit(sender), receiver)
}

impl KernelAudit {
    /// Reads the kernel between two passes. Fails if the loop has ended.
    ///
    /// # Cancel safety
    /// The loop does not answer a request whose caller dropped the future.
    pub async fn look(&self) -> Result<Sighting, KernelError> {
        let ended = || {
            let why = Problem::new("network-stopping", "flanneld is stopping the network");
            KernelError::new("read the kernel's state", why)
        };
        let (sender, answer) = oneshot::channel();
        self.0.send(sender).await.map_err(|_| ended())?;
        answer.await.unwrap_or_else(|_| Err(ended()))
    }
}
