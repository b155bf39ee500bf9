//! A proxy in front of the API server. It records requests, and a test decides which ones fail and how.
//!
//! Clients use plain HTTP, but the proxy uses TLS to a real server. To a request without a token, it adds one with the rights of flannel-rs'
//! manifest.

use std::net::{Shutdown, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use parking_lot::Mutex;

use crate::kube::client::Endpoint;
use crate::kube::proxy::exchange::serve_client_connection;
use crate::kube::proxy::shared::{Shared, State};

mod call;
mod exchange;
mod shared;

pub use call::{Answer, Call};

/// A drop ends it.
pub struct Proxy {
    shared: Arc<Shared>,
    address: SocketAddr,
    listener: Arc<TcpListener>,
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Proxy({})", self.address)
    }
}

impl Proxy {
    pub(crate) fn start(listener: TcpListener, upstream: Endpoint) -> Result<Proxy> {
        let address = listener.local_addr()?;
        let listener = Arc::new(listener);
        let state =
            State { judge: Arc::new(|_| Answer::Pass), calls: Vec::new(), sockets: Vec::new() };
        let shared = Shared { upstream, state: Mutex::new(state), over: AtomicBool::new(false) };
        let shared = Arc::new(shared);
        let (accepting, accepted) = (Arc::clone(&listener), Arc::clone(&shared));
        std::thread::spawn(move || {
            while let Ok((socket, from)) = accepting.accept() {
                if accepted.over.load(Ordering::Relaxed) {
                    return;
                }
                let shared = Arc::clone(&accepted);
                std::thread::spawn(move || {
                    drop(serve_client_connection(&shared, &Arc::new(socket), from));
                });
            }
        });
        Ok(Proxy { shared, address, listener })
    }

    /// The value of `--kube-api-url` for daemons.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Calls `judge` for each request from now on. Open connections stay open.
    pub fn set_judge(&self, judge: impl Fn(&Call) -> Answer + Send + Sync + 'static) {
        self.shared.lock().judge = Arc::new(judge);
    }

    /// Forwards all requests again.
    pub fn forward_all_requests(&self) {
        self.set_judge(|_| Answer::Pass);
    }

    /// Clients may connect again.
    pub fn close_open_connections(&self) {
        for socket in self.shared.lock().sockets.drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Closes all connections, and new ones at their first request, until [`Proxy::forward_all_requests`].
    pub fn close_present_and_new_connections(&self) {
        self.set_judge(|_| Answer::Cut);
        self.close_open_connections();
    }

    /// The recorded requests, in order of arrival.
    pub fn calls(&self) -> Vec<Call> {
        self.shared.lock().calls.clone()
    }

    /// Clears the list of recorded requests.
    pub fn clear_recorded_calls(&self) {
        self.shared.lock().calls.clear();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        self.close_open_connections();
        // Wake the thread that accepts connections.
        let _ = nix::sys::socket::shutdown(
            std::os::fd::AsRawFd::as_raw_fd(&*self.listener),
            nix::sys::socket::Shutdown::Both,
        );
    }
}
