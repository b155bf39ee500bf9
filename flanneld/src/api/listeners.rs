//! The TCP ports of the health endpoint and of the status API, and the Unix socket next to subnet.env. If one cannot
//! open, the daemon logs the error and retries.

use super::connections::{self, Times};
use super::health::Server;
use super::listen::{self, HttpServer, Listener};
use super::node::StatusSource;
use super::routes;
use crate::health::Health;
use crate::health::condition::Condition;
use run_dir::api_socket::{Socket, SocketError};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};
use types::Problem;

/// Delay before flanneld tries again to listen on a port that another program holds.
const RETRY: Duration = Duration::from_secs(1);
/// Interval at which flanneld checks that its Unix socket still exists.
const CHECK: Duration = Duration::from_secs(1);
const PORT_TAKEN: &str = "port-taken";

/// Serves until `stop`. Tries again to listen while another program holds the port.
pub async fn status_port(
    address: SocketAddr,
    status_source: StatusSource,
    health: Health,
    stop: CancellationToken,
) {
    let listen = || listen::serving(HttpServer::Api, address);
    let open = listening(listen, |problem| health.notice(PORT_TAKEN, problem));
    let Some(listener) = stop.run_until_cancelled(open).await else {
        return;
    };
    let url = format!("http://{}/", listener.local_addr().unwrap_or(address));
    info!(url, "status API listens");
    health.process(|node| node.page = Some(url.clone()));
    connections::serve(
        Listener::Tcp(listener),
        routes::of_the_status_port(status_source),
        HttpServer::Api.name(),
        Times::default(),
        stop,
    )
    .await;
}

/// Serves until `stop`. While another program holds the port, the node is not ready, and pods work.
pub async fn health_port(address: SocketAddr, health: Health, stop: CancellationToken) {
    let bind = || Server::bind(address, health.clone());
    let open = listening(bind, |problem| {
        health.condition(Condition::HealthPort, problem);
    });
    if let Some(server) = stop.run_until_cancelled(open).await {
        server.serve(stop.clone()).await;
    }
}

/// Tries to listen until it succeeds. Logs each new problem once, and reports each problem and its end.
async fn listening<T, F: Future<Output = Result<T, Problem>>>(
    listen: impl Fn() -> F,
    report: impl Fn(Option<Problem>),
) -> T {
    let mut logged: Option<String> = None;
    loop {
        match listen().await {
            Ok(listener) => {
                report(None);
                return listener;
            }
            Err(problem) => {
                if logged.as_ref() != Some(&problem.text) {
                    warn!(code = %problem.code, error = %problem, "cannot listen on a port, retrying");
                    logged = Some(problem.text.clone());
                }
                report(Some(problem));
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Serves until `stop`, and recreates a deleted socket.
pub async fn socket(
    subnet_file: &Path,
    status_source: StatusSource,
    health: Health,
    stop: CancellationToken,
) {
    let mut socket = Socket::new(subnet_file);
    let mut logged: Option<String> = None;
    let mut serving: Option<(CancellationToken, tokio::task::JoinHandle<()>)> = None;
    let keep = async {
        loop {
            match socket.put().and_then(|listener| {
                listener.map(|listener| adopted(&socket, listener)).transpose()
            }) {
                Ok(None) => {}
                Ok(Some(listener)) => {
                    logged = None;
                    debug!(path = %socket.path().display(), "status API listens on its socket");
                    // The file of the former listener was deleted, so no client can reach it.
                    if let Some((former, _)) = serving.take() {
                        former.cancel();
                    }
                    let end = stop.child_token();
                    let router = routes::of_the_socket(status_source.clone(), health.clone());
                    let served = end.clone();
                    let task = async move {
                        connections::serve(
                            Listener::Unix(listener),
                            router,
                            "the API's socket",
                            Times::default(),
                            served,
                        )
                        .await;
                    };
                    serving = Some((end, tokio::spawn(task)));
                }
                // The claim on subnet.env ends one of the daemons.
                Err(error @ SocketError::Held(_)) => {
                    debug!(error = %error, "another daemon listens on the socket of the status API");
                }
                Err(error) => {
                    let text = error.to_string();
                    if logged.as_ref() != Some(&text) {
                        warn!(error = %text, "cannot serve the socket of the status API, retrying");
                        logged = Some(text);
                    }
                }
            }
            tokio::time::sleep(CHECK).await;
        }
    };
    stop.run_until_cancelled(keep).await;
    socket.remove();
    if let Some((_, task)) = serving {
        let _ = task.await;
    }
}

fn adopted(
    socket: &Socket,
    listener: std::os::unix::net::UnixListener,
) -> Result<UnixListener, SocketError> {
    UnixListener::from_std(listener)
        .map_err(|why| SocketError::System { path: socket.path().to_owned(), why })
}
