//! State that the threads of a proxy share.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustls::ClientConfig;

use crate::kube::proxy::call::{Answer, Call};
use crate::net::netns::Netns;

pub(super) type Judge = Arc<dyn Fn(&Call) -> Answer + Send + Sync>;

pub(super) struct State {
    pub(super) judge: Judge,
    pub(super) calls: Vec<Call>,
    pub(super) stalled: bool,
    pub(super) sockets: Vec<TcpStream>,
}

pub(super) struct Shared {
    pub(super) netns: Netns,
    pub(super) upstream: SocketAddr,
    pub(super) tls: Arc<ClientConfig>,
    pub(super) state: Mutex<State>,
    pub(super) changed: Condvar,
    pub(super) over: AtomicBool,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the proxy's stall ends, if any. Returns an error if the proxy has ended.
    pub(super) fn gate(&self) -> std::io::Result<()> {
        let mut state = self.lock();
        while state.stalled && !self.over.load(Ordering::Relaxed) {
            state = self
                .changed
                .wait_timeout(state, Duration::from_secs(1))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        if self.over.load(Ordering::Relaxed) {
            Err(ErrorKind::ConnectionAborted.into())
        } else {
            Ok(())
        }
    }
}
