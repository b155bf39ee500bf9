//! A document that the daemon renders once for many clients.

use axum::body::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// Pause between two renderings of a document about the node and its peers. In large clusters, one takes
/// milliseconds.
pub(super) const DOCUMENT: Duration = Duration::from_secs(1);
/// Pause between two renderings of the metrics, which name no peer.
pub(super) const METRICS: Duration = Duration::from_millis(100);

/// A document that clients share. A client gets a text that the daemon rendered after its request. One that arrives
/// too soon after the last rendering waits, and shares the next with all other waiting clients. A loop of requests
/// causes at most one rendering per pause.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    pause: Duration,
    last: Arc<Mutex<Option<(Instant, Bytes)>>>,
}

impl Shared {
    /// At most one rendering per `pause`.
    pub(super) fn new(pause: Duration) -> Self {
        Self { pause, last: Arc::default() }
    }

    /// A text that `render` made after this call began. After an error, the next request calls `render` again.
    pub(super) async fn get<E>(
        &self,
        render: impl FnOnce() -> Result<String, E>,
    ) -> Result<Bytes, E> {
        let asked = Instant::now();
        // The lock is fair: clients that wait for a rendering get its result.
        let mut last = self.last.lock().await;
        if let Some((began, text)) = last.as_ref() {
            if *began >= asked {
                return Ok(text.clone());
            }
            tokio::time::sleep_until(*began + self.pause).await;
        }
        rendered(&mut last, render)
    }

    /// A text at once, because waiting clients would hold slots that others need. It may be up to `pause` older than
    /// the request. After an error, the next request calls `render` again.
    pub(super) async fn latest<E>(
        &self,
        render: impl FnOnce() -> Result<String, E>,
    ) -> Result<Bytes, E> {
        let asked = Instant::now();
        let mut last = self.last.lock().await;
        match last.as_ref() {
            Some((began, text)) if *began + self.pause > asked => Ok(text.clone()),
            _ => rendered(&mut last, render),
        }
    }
}

fn rendered<E>(
    last: &mut Option<(Instant, Bytes)>,
    render: impl FnOnce() -> Result<String, E>,
) -> Result<Bytes, E> {
    let began = Instant::now();
    let text = Bytes::from(render()?);
    *last = Some((began, text.clone()));
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[tokio::test]
    async fn request_loop_renders_once_per_interval_and_never_stale() {
        const PAUSE: Duration = Duration::from_millis(20);
        let (shared, rendered) = (Shared::new(PAUSE), AtomicU32::new(0));
        let render = || Ok::<_, Infallible>(rendered.fetch_add(1, Ordering::SeqCst).to_string());
        let begun = Instant::now();
        let ask = || async {
            let before = rendered.load(Ordering::SeqCst);
            let text = shared.get(render).await.unwrap();
            assert!(std::str::from_utf8(&text).unwrap().parse::<u32>().unwrap() >= before);
            text
        };
        assert_eq!(ask().await, "0");
        for _ in 0..10 {
            let (a, b, c) = tokio::join!(ask(), ask(), ask());
            assert!(a == b && b == c && a.as_ptr() == c.as_ptr());
        }
        assert_eq!(rendered.load(Ordering::SeqCst), 11);
        assert!(begun.elapsed() >= 10 * PAUSE);
    }

    #[tokio::test]
    async fn latest_document_is_served_at_once_and_rendered_once_per_interval() {
        let (shared, rendered) = (Shared::new(Duration::from_secs(3600)), AtomicU32::new(0));
        for _ in 0..100 {
            let latest = shared.latest(|| {
                Ok::<_, Infallible>(rendered.fetch_add(1, Ordering::SeqCst).to_string())
            });
            assert_eq!(tokio::time::timeout(60 * DOCUMENT, latest).await.unwrap().unwrap(), "0");
        }
        let shared = Shared::new(Duration::from_millis(1));
        let latest = || {
            shared
                .latest(|| Ok::<_, Infallible>(rendered.fetch_add(1, Ordering::SeqCst).to_string()))
        };
        let first = latest().await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_ne!(latest().await.unwrap(), first);
    }

    #[tokio::test]
    async fn cancelled_reader_leaves_the_document_to_the_next() {
        let shared = Shared::new(DOCUMENT);
        let get = || shared.get(|| Ok::<_, Infallible>("text".to_owned()));
        get().await.unwrap();
        assert!(tokio::time::timeout(DOCUMENT / 100, get()).await.is_err());
        assert_eq!(tokio::time::timeout(60 * DOCUMENT, get()).await.unwrap().unwrap(), "text");
    }
}
