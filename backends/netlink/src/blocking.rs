//! Work that may wait for locks of the kernel, threads or a disk.

/// Runs `work` while other tasks leave this worker of the runtime. A runtime with a single thread
/// has no other worker, so its tasks wait. Without a runtime, it only runs `work`.
pub fn run_blocking<T>(work: impl FnOnce() -> T) -> T {
    #[cfg(feature = "tokio")]
    {
        use tokio::runtime::{Handle, RuntimeFlavor};
        let flavor = Handle::try_current().map(|runtime| runtime.runtime_flavor());
        if matches!(flavor, Ok(RuntimeFlavor::MultiThread)) {
            return tokio::task::block_in_place(work);
        }
    }
    work()
}

#[cfg(all(test, feature = "tokio"))]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn tasks_of_the_only_worker_go_on() {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).build().unwrap();
        let (sender, receiver) = mpsc::channel();
        let waiting = runtime.spawn(async move {
            // The queue of this worker.
            tokio::spawn(async move { sender.send(1) });
            run_blocking(|| receiver.recv())
        });
        assert_eq!(runtime.block_on(waiting).unwrap(), Ok(1));
        assert_eq!(run_blocking(|| 2), 2);
    }
}
