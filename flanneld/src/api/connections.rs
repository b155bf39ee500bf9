//! The HTTP server behind every listener: few connections, short request heads, one response per connection.
//!
//! A listener has at most 64 connections. At 64, a new one displaces the oldest that has not sent a whole request. If
//! more than half of the connections have sent a whole request, the new one may also displace the oldest of these. A
//! client gets 5 s to send its request head of at most 8 KiB, and 10 s to read its response. The kernel buffers only
//! a small part of an unread response, and discards it after the 10 s.

use super::listen::Listener;
use super::slots::{CONNECTIONS, Room, Slots};
use super::stream::Stream;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

/// Maximum size of the head of a request, in bytes.
const HEAD: usize = 8 * 1024;
/// Time for open requests to finish once the daemon stops.
const GRACE: Duration = Duration::from_secs(3);
/// A displaced task keeps its file descriptor until the runtime drops it, which takes longer on a busy machine.
const TASKS: usize = CONNECTIONS + CONNECTIONS / 2;
/// Pause after an accept that failed because the process or the system has no file descriptor left.
const EXHAUSTED: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Within it, the client has to send the head of its request.
    pub head: Duration,
    /// Within it, the client has to read the whole response.
    pub answer: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self { head: Duration::from_secs(5), answer: Duration::from_secs(10) }
    }
}

/// Whether the client of a request is on this host.
#[derive(Clone, Copy, Debug)]
pub struct IsLocal(pub bool);

/// The connection slots of one listener, with the tasks that serve them.
#[derive(Debug, Default)]
struct Places {
    slots: Slots,
    tasks: BTreeMap<u64, AbortHandle>,
}

/// A reserved connection slot, which becomes free when its task drops this value.
struct Place {
    number: u64,
    places: Arc<Mutex<Places>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut places = self.places.lock();
        places.slots.close(self.number);
        places.tasks.remove(&self.number);
    }
}

/// Serves requests until `stop`, then waits at most 3 seconds for open requests.
pub async fn serve(
    listener: Listener,
    router: Router,
    what: &str,
    times: Times,
    stop: CancellationToken,
) {
    let places = Arc::new(Mutex::new(Places::default()));
    let mut tasks = JoinSet::new();
    let mut exhausted = false;
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
        while tasks.try_join_next().is_some() {}
        match accepted {
            Ok(stream) => {
                exhausted = false;
                if stop.run_until_cancelled(make_room(&places)).await.is_none() {
                    break;
                }
                while tasks.len() >= TASKS
                    && stop.run_until_cancelled(tasks.join_next()).await.is_some()
                {}
                let number = places.lock().slots.open(Instant::now());
                let place = Place { number, places: places.clone() };
                let task =
                    tasks.spawn(converse(stream, router.clone(), place, times, stop.clone()));
                let mut places = places.lock();
                // The task may have ended already.
                if places.slots.is_open(number) {
                    places.tasks.insert(number, task);
                }
            }
            Err(error) if is_the_clients(&error) => {
                debug!(name = what, error = %error, "a connection ended before it was accepted");
            }
            Err(error) => {
                if !std::mem::replace(&mut exhausted, true) {
                    warn!(
                        name = what,
                        error = %error,
                        remedy = "raise the limit of open files (LimitNOFILE, ulimit -n)",
                        "cannot accept connections"
                    );
                }
                tokio::time::sleep(EXHAUSTED).await;
            }
        }
    }
    drop(listener);
    if !tasks.is_empty()
        && tokio::time::timeout(GRACE, async { while tasks.join_next().await.is_some() {} })
            .await
            .is_err()
    {
        info!(name = what, "closing open requests");
    }
}

/// Waits until a slot is free, and displaces connections if necessary.
async fn make_room(places: &Mutex<Places>) {
    loop {
        let room = places.lock().slots.room(Instant::now());
        match room {
            Room::Free => return,
            Room::Wait(time) => tokio::time::sleep(time).await,
            Room::Displace(number) => {
                let mut places = places.lock();
                places.slots.close(number);
                if let Some(task) = places.tasks.remove(&number) {
                    task.abort();
                }
            }
        }
    }
}

/// Serves the request of one connection.
async fn converse(
    stream: Stream,
    router: Router,
    place: Place,
    times: Times,
    stop: CancellationToken,
) {
    let asked = Arc::new(Notify::new());
    let service = {
        let (asked, number, places) = (asked.clone(), place.number, place.places.clone());
        let is_local = IsLocal(stream.is_local());
        let router = router.layer(axum::middleware::from_fn(
            move |mut request: axum::extract::Request, next: axum::middleware::Next| {
                places.lock().slots.asked(number, Instant::now());
                asked.notify_one();
                request.extensions_mut().insert(is_local);
                next.run(request)
            },
        ));
        TowerToHyperService::new(router)
    };
    let mut server = http1::Builder::new();
    // One request per connection: an idle connection would only hold a slot. A client that closes its half after the request still gets the response.
    server
        .timer(TokioTimer::new())
        .keep_alive(false)
        .half_close(true)
        .max_buf_size(HEAD)
        .max_header_size(HEAD)
        .header_read_timeout(times.head);
    let mut connection = std::pin::pin!(server.serve_connection(TokioIo::new(stream), service));
    let head = async {
        tokio::select! {
            () = asked.notified() => true,
            () = tokio::time::sleep(times.head) => false,
            () = stop.cancelled() => false,
        }
    };
    tokio::select! {
        _ = &mut connection => return,
        whole = head => if !whole { return },
    }
    let _ = tokio::time::timeout(times.answer, connection).await;
    drop(place);
}

/// True if the connection, not this process, caused the error.
fn is_the_clients(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests;
