//! A connection whose unread response uses little memory. The kernel discards it when the connection closes.

// One ioctl, for which nix has no safe wrapper.
#![allow(unsafe_code)]

use socket2::SockRef;
use std::future::Future;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Sleep;
use tokio_util::either::Either;

/// In bytes; the kernel doubles it. On loopback, the default is several megabytes.
const SEND_BUFFER: usize = 32 * 1024;
/// Interval at which the stream checks whether the client has acknowledged the whole response.
const CHECK: Duration = Duration::from_millis(5);

nix::ioctl_read_bad!(outstanding, libc::TIOCOUTQ, libc::c_int);

/// If the daemon closes the stream before the client has acknowledged the whole response, the kernel resets the
/// connection. Otherwise it would keep the responses of any number of clients for minutes.
#[derive(Debug)]
pub struct Stream {
    inner: Either<TcpStream, UnixStream>,
    check: Option<Pin<Box<Sleep>>>,
}

impl Stream {
    pub fn new(inner: Either<TcpStream, UnixStream>) -> Self {
        if let Either::Left(tcp) = &inner {
            let socket = SockRef::from(tcp);
            // Without these options an unread response costs more memory.
            let _ = socket.set_send_buffer_size(SEND_BUFFER);
            let _ = socket.set_linger(Some(Duration::ZERO));
        }
        Self { inner, check: None }
    }

    /// The client uses the Unix socket, or connects between two loopback addresses. A pod that reaches 127.0.0.1
    /// through a route does not connect from a loopback address.
    pub fn is_local(&self) -> bool {
        match &self.inner {
            Either::Left(tcp) => [tcp.local_addr(), tcp.peer_addr()]
                .into_iter()
                .all(|end| end.is_ok_and(|end| end.ip().to_canonical().is_loopback())),
            Either::Right(_) => true,
        }
    }

    /// True if the client still has to acknowledge written bytes.
    fn is_owed(&self) -> bool {
        match &self.inner {
            Either::Left(tcp) => {
                owed(tcp.as_raw_fd()) > 0 && !matches!(tcp.take_error(), Ok(Some(_)) | Err(_))
            }
            Either::Right(_) => false,
        }
    }
}

/// The written bytes that the client has not acknowledged.
fn owed(socket: RawFd) -> libc::c_int {
    let mut count = 0;
    // SAFETY: the descriptor is open, and the kernel writes one c_int to a valid place.
    match unsafe { outstanding(socket, &raw mut count) } {
        Ok(_) => count,
        Err(_) => 0,
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Either::Left(tcp) = &self.inner
            && !self.is_owed()
        {
            // No data can be lost, so the connection ends normally.
            let _ = SockRef::from(tcp).set_linger(None);
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    /// Meanwhile, the connection keeps its slot.
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.is_owed() {
            let check = self.check.get_or_insert_with(|| Box::pin(tokio::time::sleep(CHECK)));
            ready!(check.as_mut().poll(context));
            self.check = None;
        }
        Pin::new(&mut self.inner).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}
