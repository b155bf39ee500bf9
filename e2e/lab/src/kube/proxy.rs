//! A proxy before the API server that counts what comes, and fails as a test wants.
//!
//! It is plain HTTP to its clients and TLS to the server. Requests without a token go on as the user of flannel's manifest.

use std::io::ErrorKind;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustls::ClientConfig;

use crate::kube::proxy::exchange::serve;
use crate::net::netns::Netns;

mod exchange;

/// A request that came, and how it was answered.
#[derive(Debug, Clone)]
pub struct Call {
    /// The host that asks.
    pub from: IpAddr,
    /// `GET`, `PATCH`, …
    pub method: String,
    /// The path with its query.
    pub path: String,
    /// The field `User-Agent`.
    pub agent: String,
    /// The field `Authorization`.
    pub authorization: Option<String>,
    /// The status of the answer; 0 as long as there is none.
    pub status: u16,
    /// When it came.
    pub at: Instant,
}

impl Call {
    /// Whether it is a watch, a streamed list included.
    pub fn is_watch(&self) -> bool {
        self.path.contains("watch=true") || self.path.contains("watch=1")
    }

    /// Whether it is about the collection of Nodes, not about one of them.
    pub fn is_of_nodes(&self) -> bool {
        self.path == "/api/v1/nodes" || self.path.starts_with("/api/v1/nodes?")
    }
}

/// What becomes of a request.
#[derive(Debug, Clone, Default)]
pub enum Answer {
    /// The server's answer.
    #[default]
    Pass,
    /// The server's, for the holder of this token instead of the client's own.
    As(String),
    /// This status, with fields such as `Retry-After: 1`, and a body.
    Reply(u16, Vec<(String, String)>, String),
    /// No answer, and the connection stays.
    Silence,
    /// The connection ends.
    Cut,
}

impl Answer {
    /// A failure as the API server words it.
    pub fn status(code: u16, reason: &str) -> Answer {
        let body = serde_json::json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": format!("{reason}, says the lab's proxy"), "reason": reason, "code": code });
        Answer::Reply(code, Vec::new(), body.to_string())
    }
}

type Judge = Arc<dyn Fn(&Call) -> Answer + Send + Sync>;

struct State {
    judge: Judge,
    calls: Vec<Call>,
    stalled: bool,
    sockets: Vec<TcpStream>,
}

struct Shared {
    netns: Netns,
    upstream: SocketAddr,
    tls: Arc<ClientConfig>,
    state: Mutex<State>,
    changed: Condvar,
    over: AtomicBool,
}

/// A proxy; it ends when it is dropped.
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
    pub(crate) fn start(netns: &Netns, address: SocketAddr, upstream: SocketAddr, tls: &Arc<ClientConfig>) -> Result<Proxy> {
        let listener = netns.run(|| TcpListener::bind(address))?.with_context(|| format!("listening on {address}"))?;
        let listener = Arc::new(listener);
        let state = State { judge: Arc::new(|_| Answer::Pass), calls: Vec::new(), stalled: false, sockets: Vec::new() };
        let shared = Shared {
            netns: netns.clone(),
            upstream,
            tls: Arc::clone(tls),
            state: Mutex::new(state),
            changed: Condvar::new(),
            over: AtomicBool::new(false),
        };
        let shared = Arc::new(shared);
        let (accepting, accepted) = (Arc::clone(&listener), Arc::clone(&shared));
        std::thread::spawn(move || {
            while let Ok((socket, from)) = accepting.accept() {
                if accepted.over.load(Ordering::Relaxed) {
                    return;
                }
                let shared = Arc::clone(&accepted);
                std::thread::spawn(move || drop(serve(&shared, &socket, from.ip().to_canonical())));
            }
        });
        Ok(Proxy { shared, address, listener })
    }

    /// What a daemon is told: `--kube-api-url`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Decides on each request from now on; connections that are open stay.
    pub fn on(&self, judge: impl Fn(&Call) -> Answer + Send + Sync + 'static) {
        self.shared.lock().judge = Arc::new(judge);
    }

    /// Passes everything again.
    pub fn pass(&self) {
        self.on(|_| Answer::Pass);
        self.stall(false);
    }

    /// Lets no more byte of any answer through, and no new request; connections stay open. Or ends that.
    pub fn stall(&self, stalled: bool) {
        self.shared.lock().stalled = stalled;
        self.shared.changed.notify_all();
    }

    /// Ends all connections.
    pub fn disconnect(&self) {
        for socket in self.shared.lock().sockets.drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Ends all connections and refuses new ones until [`Proxy::pass`].
    pub fn cut(&self) {
        self.on(|_| Answer::Cut);
        self.disconnect();
    }

    /// The requests that came, in order.
    pub fn calls(&self) -> Vec<Call> {
        self.shared.lock().calls.clone()
    }

    /// Those of a host.
    pub fn calls_of(&self, host: impl Into<IpAddr>) -> Vec<Call> {
        let host = host.into();
        self.calls().into_iter().filter(|call| call.from == host).collect()
    }

    /// Forgets the requests that came so far.
    pub fn forget(&self) {
        self.shared.lock().calls.clear();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        self.stall(false);
        self.disconnect();
        // Wakes the thread that accepts.
        let _ = nix::sys::socket::shutdown(std::os::fd::AsRawFd::as_raw_fd(&*self.listener), nix::sys::socket::Shutdown::Both);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while the proxy is stalled.
    fn gate(&self) -> std::io::Result<()> {
        let mut state = self.lock();
        while state.stalled && !self.over.load(Ordering::Relaxed) {
            state = self.changed.wait_timeout(state, Duration::from_secs(1)).unwrap_or_else(PoisonError::into_inner).0;
        }
        if self.over.load(Ordering::Relaxed) { Err(ErrorKind::ConnectionAborted.into()) } else { Ok(()) }
    }
}
