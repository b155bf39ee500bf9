//! Limits the requests per second, so that a client's loop of requests leaves the processors to pods.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// Time between two responses. A response takes about 65 µs of processor time, mostly for its connection, so a loop of requests uses 2 % of a processor.
const PERIOD: Duration = Duration::from_millis(4);
/// Number of responses without delay after a pause between requests.
const BURST: u32 = 50;

/// Requests get their responses in the order of their arrival.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    period: Duration,
    next: Arc<Mutex<Instant>>,
}

impl Default for Pace {
    fn default() -> Self {
        Self::new(PERIOD)
    }
}

impl Pace {
    fn new(period: Duration) -> Self {
        Self { period, next: Arc::new(Mutex::new(Instant::now())) }
    }

    /// A client that disconnects while it waits does not use up a permitted response.
    async fn turn(&self) {
        let mut next = self.next.lock().await;
        tokio::time::sleep_until(*next).await;
        let now = Instant::now();
        *next = (*next).max(now.checked_sub(self.period * BURST).unwrap_or(now)) + self.period;
    }
}

/// Middleware that delays requests. kubelet's probes bypass it.
pub(super) async fn paced(State(pace): State<Pace>, request: Request, next: Next) -> Response {
    pace.turn().await;
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn request_loop_is_paced_after_a_burst() {
        let (pace, begun) = (Pace::new(PERIOD), Instant::now());
        let ask = |times: u32| {
            let pace = &pace;
            async move {
                for _ in 0..times {
                    pace.turn().await;
                }
            }
        };
        tokio::time::advance(Duration::from_secs(60)).await;
        ask(BURST).await;
        assert_eq!(begun.elapsed(), Duration::from_secs(60));
        ask(1001).await;
        let took = begun.elapsed() - Duration::from_secs(60);
        assert!(took >= PERIOD * 1000 && took <= PERIOD * 1002, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn cancelled_client_takes_no_turn() {
        let pace = Pace::new(Duration::from_secs(3600));
        for _ in 0..=BURST {
            let _ = tokio::time::timeout(Duration::from_millis(1), pace.turn()).await;
        }
        let begun = Instant::now();
        for _ in 0..10 {
            assert!(tokio::time::timeout(Duration::from_secs(1), pace.turn()).await.is_err());
        }
        tokio::time::timeout(Duration::from_secs(3600), pace.turn()).await.unwrap();
        assert!(begun.elapsed() <= Duration::from_secs(3601));
    }
}
