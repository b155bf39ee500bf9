//! State that the threads of a proxy share.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::{Mutex, MutexGuard};

use crate::kube::client::Endpoint;
use crate::kube::proxy::call::{Answer, Call};

pub(super) type Judge = Arc<dyn Fn(&Call) -> Answer + Send + Sync>;

pub(super) struct State {
    pub(super) judge: Judge,
    pub(super) calls: Vec<Call>,
    pub(super) sockets: Vec<Arc<TcpStream>>,
}

pub(super) struct Shared {
    pub(super) upstream: Endpoint,
    pub(super) state: Mutex<State>,
    pub(super) over: AtomicBool,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}
