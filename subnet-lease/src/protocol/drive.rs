//! Drives a protocol coroutine: sends its requests to the store, and passes replies, notices and the time to it.

use super::coroutine::{Coroutine, Step};
use super::registry::{Answer, Notice, Request};
use crate::lease::LeaseAttrs;
use crate::manager::{Held, boot_time};
use async_trait::async_trait;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use types::{Coded, Problem};

/// It replies to each request within a deadline. After an error, the store may still have executed the request.
#[async_trait]
pub trait Registry: Send + Sync {
    async fn request(&self, request: Request) -> Result<Answer, Problem>;
}

/// Passes every change of the desired attributes to the coroutine. Never returns.
pub(crate) async fn forward(
    mut wanted: watch::Receiver<LeaseAttrs>,
    notices: &mpsc::UnboundedSender<Notice>,
) {
    while wanted.changed().await.is_ok() {
        let wanted = wanted.borrow_and_update().clone();
        let _ = notices.send(Notice::Publish(Box::new(wanted)));
    }
    std::future::pending::<()>().await;
}

/// Dropping the future abandons the coroutine. The store may still execute the pending request.
pub(crate) async fn drive<T>(
    mut coroutine: Coroutine<T>,
    registry: &dyn Registry,
    notices: &mut mpsc::UnboundedReceiver<Notice>,
    state: Option<&watch::Sender<Held>>,
) -> T {
    let mut open = true;
    loop {
        while let Ok(notice) = notices.try_recv() {
            coroutine.notify(notice);
        }
        let step = coroutine.step(boot_time());
        for line in coroutine.take_log() {
            if line.warning {
                tracing::warn!(code = line.news.code(), reason = %line.news, "this node's lease was changed in the store");
            } else {
                tracing::info!(code = line.news.code(), reason = %line.news, "this node's lease has changed");
            }
        }
        if let Some(state) = state {
            state.send_if_modified(|present| {
                coroutine.with_held(|held| {
                    let news = present != held;
                    if news {
                        present.clone_from(held);
                    }
                    news
                })
            });
        }
        match step {
            Step::Done(result) => return result,
            Step::Ask(request) => {
                let answer = registry.request(request).await;
                coroutine.answer(answer);
            }
            Step::Wait(until) => {
                // tokio's clock stops while the machine sleeps, so the boot-time clock is checked every 30 s.
                let nap = until.map_or(Duration::from_secs(30), |until| {
                    until.saturating_sub(boot_time()).min(Duration::from_secs(30))
                });
                tokio::select! {
                    notice = notices.recv(), if open => match notice {
                        Some(notice) => coroutine.notify(notice),
                        None => open = false,
                    },
                    () = tokio::time::sleep(nap) => {}
                }
            }
        }
    }
}
