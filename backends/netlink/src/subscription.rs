//! Notifications of the kernel.

use crate::client::{DATAGRAM, open_socket, receive};
use crate::error::{KernelError, kernel_refusal};
use crate::wire::{self, Received};
use netlink_sys::Socket;
use std::io;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;
use types::backoff::Backoff;

/// Until a closed subscription is opened again. Each opening counts as a change of any object.
const REOPENING: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// What the kernel has announced, in the order of importance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Notified {
    #[default]
    Nothing,
    /// The kernel dropped some notifications.
    Lost,
    /// A notification that the subscriber looks for, or notifications may have been missed while the
    /// subscription was closed.
    Change,
}

/// A subscription that opens itself again after an error of its socket, in the network namespace of
/// the thread that then polls it.
pub struct Subscription {
    protocol: isize,
    /// A mask of notification groups.
    groups: i32,
    /// `None` after an error.
    socket: Option<AsyncFd<Socket>>,
    buffer: Vec<u8>,
    /// Errors since the last notification.
    errors: u32,
    /// When the closed subscription is opened again.
    reopening: Instant,
}

impl Subscription {
    /// `protocol` is one of NETLINK_*. If the kernel refuses, the subscription is closed, and opens
    /// itself later.
    #[must_use]
    pub fn open(protocol: isize, groups: i32) -> Self {
        let mut subscription = Self {
            protocol,
            groups,
            socket: None,
            buffer: Vec::with_capacity(DATAGRAM),
            errors: 0,
            reopening: Instant::now(),
        };
        let _ = subscription.try_open();
        subscription
    }

    /// False while only periodic checks find changes.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.socket.is_some()
    }

    /// Does nothing if the subscription is open.
    pub fn try_open(&mut self) -> Result<(), KernelError> {
        if self.is_open() {
            return Ok(());
        }
        match open_socket(self.protocol, self.groups).and_then(register_socket) {
            Ok(socket) => {
                self.socket = Some(socket);
                Ok(())
            }
            Err(error) => {
                self.close(&error);
                let what = "subscribe to kernel notifications";
                Err(KernelError::new(what, kernel_refusal(error)))
            }
        }
    }

    fn close(&mut self, error: &io::Error) {
        if self.errors == 0 {
            tracing::debug!(error = %error, "cannot receive the kernel's notifications");
        }
        self.socket = None;
        self.reopening = Instant::now() + REOPENING.after(self.errors);
        self.errors = self.errors.saturating_add(1);
    }

    /// Waits for a notification that `concerns` accepts, or until some may have been missed.
    ///
    /// # Cancel safety
    /// Dropping the future loses no datagram, because no await point separates its receipt and its
    /// evaluation.
    pub async fn wait(&mut self, concerns: impl Fn(&Received<'_>) -> bool) {
        loop {
            let Some(socket) = &mut self.socket else {
                tokio::time::sleep_until(self.reopening).await;
                if self.try_open().is_ok() {
                    return;
                }
                continue;
            };
            let buffer = &mut self.buffer;
            let received = match socket.readable_mut().await {
                Ok(mut ready) => ready.try_io(|socket| receive(socket.get_ref(), buffer)),
                Err(error) => Ok(Err(error)),
            };
            match received {
                Ok(Ok(())) => {
                    self.errors = 0;
                    if wire::split_messages(&self.buffer).any(|message| concerns(&message)) {
                        return;
                    }
                }
                Ok(Err(error)) if error.raw_os_error() == Some(libc::ENOBUFS) => return,
                Ok(Err(error)) => self.close(&error),
                // Another read was faster.
                Err(_would_block) => {}
            }
        }
    }

    /// Consumes all queued notifications.
    pub fn take_queued(&mut self, concerns: impl Fn(&Received<'_>) -> bool) -> Notified {
        let mut found = Notified::Nothing;
        if !self.is_open() && self.reopening <= Instant::now() && self.try_open().is_ok() {
            found = Notified::Change;
        }
        while let Some(socket) = &self.socket {
            match receive(socket.get_ref(), &mut self.buffer) {
                Ok(()) => {
                    self.errors = 0;
                    if wire::split_messages(&self.buffer).any(|message| concerns(&message)) {
                        found = Notified::Change;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // Reading continues after the lost notifications.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    found = found.max(Notified::Lost);
                }
                Err(error) => self.close(&error),
            }
        }
        found
    }

    /// For tests: from now on, the kernel drops notifications.
    pub fn shrink_receive_buffer(&mut self) -> io::Result<()> {
        self.socket.as_ref().map_or(Ok(()), |socket| socket.get_ref().set_rx_buf_sz(1u32))
    }
}

#[allow(unsafe_code)]
fn register_socket(socket: Socket) -> io::Result<AsyncFd<Socket>> {
    // SAFETY: the socket owns its descriptor, returns the same one each time, and closes it only when it is dropped with the registration.
    Ok(unsafe { AsyncFd::register(socket) }?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink_sys::SocketAddr;
    use netlink_sys::protocols::NETLINK_USERSOCK;
    use std::os::fd::AsRawFd;

    /// The socket then fails each time it is read.
    #[allow(unsafe_code, reason = "no safe function replaces a descriptor that another value owns")]
    fn break_socket(subscription: &Subscription) {
        let null = std::fs::File::open("/dev/null").unwrap();
        let socket = subscription.socket.as_ref().unwrap().get_ref().as_raw_fd();
        // SAFETY: dup2 touches no memory, and `socket` stays an open descriptor of `subscription`.
        assert_eq!(unsafe { libc::dup2(null.as_raw_fd(), socket) }, socket);
    }

    #[tokio::test(start_paused = true)]
    async fn broken_subscription_is_opened_again_and_is_no_stream_of_changes() {
        let group = 1_u32;
        let announce = || {
            let message = crate::Message::new(16, 0, &[]).finish(0, 0);
            let sender = Socket::new(NETLINK_USERSOCK).unwrap();
            // The group gets the message; the kernel itself has no socket of this protocol, and refuses its copy.
            let _ = sender.send_to(&message, &SocketAddr::new(0, group), 0);
        };
        let mut subscription = Subscription::open(NETLINK_USERSOCK, group.cast_signed());
        announce();
        subscription.wait(|_| true).await;
        break_socket(&subscription);
        // One change at most: what happened until the subscription was open again.
        let began = Instant::now();
        subscription.wait(|_| true).await;
        assert!(began.elapsed() >= Duration::from_secs(1) && subscription.is_open());
        let more = subscription.wait(|_| true);
        assert!(tokio::time::timeout(Duration::from_secs(3600), more).await.is_err());
        announce();
        assert_eq!(subscription.take_queued(|_| true), Notified::Change);
        break_socket(&subscription);
        assert_eq!(subscription.take_queued(|_| true), Notified::Nothing);
        assert!(!subscription.is_open());
    }
}
