//! Without the feature `wireguard`: the same names, and no device can exist.

use crate::counters::Counters;
use crate::endpoint::Endpoint;
use crate::packet::Header;
use crate::reason::Reason;
use crate::verdict::Icmp;
use std::sync::Arc;
use std::time::Instant;

/// A device that does not exist.
pub enum Device {}

/// What it would publish.
pub struct Snapshot(());

/// What its thread would keep.
#[derive(Default)]
pub struct Worker(());

/// How datagrams would be sent.
pub type Transmit<'s> = &'s mut dyn FnMut(Endpoint, &[u8]) -> Result<(), Reason>;

/// How packets would leave.
pub enum SendState {
    /// Sealed.
    Ready(Endpoint),
    /// Later.
    AwaitingSession,
}

/// Would seal packets.
pub struct Sealer<'s>(&'s Device);

/// Would open them.
pub struct Opener<'s>(&'s Device);

#[allow(missing_docs, clippy::unused_self, reason = "never called")]
impl Device {
    pub(crate) fn create(_: &Arc<Counters>) -> Option<Arc<Self>> {
        None
    }

    pub fn snapshot(&self) -> Box<Snapshot> {
        match *self {}
    }

    pub fn work(&self, _: &mut Worker, _: Transmit<'_>) -> Option<Instant> {
        match *self {}
    }

    pub fn wait(&self, _: Option<Instant>) {
        match *self {}
    }

    pub fn ring(&self) {
        match *self {}
    }

    pub fn forget_sources(&self, _: &[Endpoint]) {
        match *self {}
    }
}

#[allow(missing_docs, reason = "never called")]
impl<'s> Sealer<'s> {
    pub fn new(device: &'s Device, _: &'s Snapshot, _: Instant) -> Self {
        Self(device)
    }

    pub fn route(&self, _: &Header, _: usize) -> Result<u32, (Option<Icmp>, Reason)> {
        match *self.0 {}
    }

    pub fn is_nested(&self, _: &Header, _: &[u8]) -> bool {
        match *self.0 {}
    }

    pub fn padded(&self, _: usize) -> usize {
        match *self.0 {}
    }

    pub fn room(plain: usize) -> usize {
        plain
    }

    pub fn hold(&mut self, _: u32) -> Result<SendState, Reason> {
        match *self.0 {}
    }

    pub fn seal(&mut self, _: &[u8], _: &mut [u8]) -> Option<usize> {
        match *self.0 {}
    }

    pub fn park(&mut self, _: &[u8]) -> usize {
        match *self.0 {}
    }

    pub fn release(&mut self) {
        match *self.0 {}
    }
}

#[allow(missing_docs, reason = "never called")]
impl<'s> Opener<'s> {
    pub fn new(device: &'s Device, _: &'s Snapshot, _: Instant) -> Self {
        Self(device)
    }

    pub fn open(
        &mut self,
        _: &mut [u8],
        _: Endpoint,
        _: &mut Vec<u8>,
    ) -> Result<Option<Header>, Reason> {
        match *self.0 {}
    }

    pub fn release(&mut self) {
        match *self.0 {}
    }
}
