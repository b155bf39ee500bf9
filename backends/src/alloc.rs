//! The `alloc` backend: a lease and nothing else; somebody else carries the packets.

use crate::backend::{Accepts, Announced, Backend, Error, Inputs, Network, Setup, Status, Underlay};
use crate::reconcile::{changed, publish};
use async_trait::async_trait;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use subnet_lease::{Lease, LeaseAttrs, LeaseTable};
use tokio::sync::watch;

/// The name in the configuration; on the wire it is empty.
pub const KIND: &str = "alloc";

/// The backend, which has neither keys nor state.
pub struct Alloc;

impl Alloc {
    /// Takes what it needs: nothing.
    pub fn new(_setup: &Setup) -> Self {
        Self
    }
}

#[async_trait]
impl Backend for Alloc {
    async fn announce(&mut self, underlay: &Underlay, _stored: Option<&LeaseAttrs>) -> Result<Announced, Error> {
        Ok(announced(underlay))
    }

    fn accepts(&self) -> Accepts {
        Arc::new(|_| Ok(()))
    }

    async fn join(self: Box<Self>, _own: Lease, _underlay: &Underlay, _leases: &LeaseTable) -> Result<Box<dyn Network>, Error> {
        let status = Status::default();
        status.in_step.store(true, Relaxed);
        Ok(Box::new(Waiting { status: Arc::new(status) }))
    }
}

fn announced(underlay: &Underlay) -> Announced {
    Announced { backend: String::new(), data: None, v6_data: None, mtu: underlay.mtu }
}

/// The network that only passes on the underlay's MTU.
struct Waiting {
    status: Arc<Status>,
}

#[async_trait]
impl Network for Waiting {
    async fn run(self: Box<Self>, mut inputs: Inputs, out: watch::Sender<Announced>) -> Result<(), Error> {
        loop {
            let now = announced(&inputs.underlay.borrow_and_update());
            publish(&out, now);
            tokio::select! {
                () = inputs.stop.cancelled() => return Ok(()),
                () = changed(&mut inputs.underlay) => {}
            }
        }
    }

    fn status(&self) -> Arc<Status> {
        self.status.clone()
    }
}
