//! Sends requests over a netlink socket. Interrupted dumps are repeated. Every request of a batch
//! has its own acknowledgement, and all requests have deadlines.

use super::uapi::*;
use super::wire::{self, Message, Received};
use crate::error::{KernelError, kernel_refusal, kernel_silence};
use netlink_sys::protocols::{NETLINK_GENERIC, NETLINK_ROUTE};
use netlink_sys::{AsyncSocket, SocketAddr, TokioSocket};
use std::future::poll_fn;
use std::io;
use std::time::Duration;
use tokio::time::timeout;
use types::{Errno, Problem};
use zeroize::{Zeroize, Zeroizing};

/// Requests in one sendto call. The kernel queues acknowledgements while sendmsg still runs, and
/// silently drops those that do not fit into the receive buffer.
pub(super) const BATCH: usize = 128;
/// Route lookups in one sendto call. The kernel allocates a page for each reply.
pub(super) const LOOKUPS: usize = 48;
/// A reply usually takes milliseconds, but other programs may hold the routing lock for seconds.
const DEADLINE: Duration = Duration::from_secs(15);
/// How often a dump that the kernel interrupts is tried.
const DUMP_TRIES: u32 = 8;
const RECEIVE_BUFFER: usize = 16 << 20;
const DATAGRAM: usize = 64 << 10;

/// The kernel's reply to one request of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Done,
    /// The errno and the kernel's message.
    Refused(i32, String),
    /// No reply before the deadline. The request may have taken effect.
    Lost,
}

/// Of a request that was not done.
pub(super) fn answer_problem(answer: Option<&Answer>) -> Problem {
    match answer {
        Some(Answer::Refused(code, _)) => kernel_refusal(Errno(*code)),
        _ => kernel_silence(),
    }
}

pub(super) struct Requests {
    socket: TokioSocket,
    sequence: u32,
    buffer: Zeroizing<Vec<u8>>,
}

impl Requests {
    /// Opens a socket in the network namespace of the calling thread.
    pub(super) fn open() -> Result<Self, KernelError> {
        Self::of(NETLINK_ROUTE)
    }

    /// Opens a generic netlink socket in the network namespace of the calling thread.
    pub(super) fn open_generic() -> Result<Self, KernelError> {
        Self::of(NETLINK_GENERIC)
    }

    /// Opens a socket of a netlink protocol in the network namespace of the calling thread.
    pub(super) fn of(protocol: isize) -> Result<Self, KernelError> {
        let socket = open(protocol, 0).map_err(|error| failed("open a netlink socket", error))?;
        Ok(Self { socket, sequence: 0, buffer: Zeroizing::new(Vec::with_capacity(DATAGRAM)) })
    }

    /// Erases the last received datagram, because it contained secrets.
    pub(super) fn forget(&mut self) {
        self.buffer.zeroize();
    }

    /// Passes every message of a dump to `each`. Each attempt starts with a new result from
    /// `begin`, so that no object of an interrupted dump remains.
    ///
    /// Fails if the kernel refuses the dump, does not answer, or keeps interrupting it.
    pub(super) async fn dump<S>(
        &mut self,
        what: &str,
        request: impl Fn() -> Message,
        begin: impl Fn() -> S,
        each: impl Fn(&mut S, &Received<'_>),
    ) -> Result<S, KernelError> {
        for attempt in 0..DUMP_TRIES {
            let mut state = begin();
            match timeout(DEADLINE, self.dump_once(request(), |message| each(&mut state, message)))
                .await
            {
                Ok(Ok(true)) => return Ok(state),
                Ok(Ok(false)) => tokio::time::sleep(Duration::from_millis(1 << attempt)).await,
                // Without the link or table, there is nothing to dump.
                Ok(Err(error))
                    if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) =>
                {
                    return Ok(begin());
                }
                // The socket buffer overflowed. The dump is repeated.
                Ok(Err(error)) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Ok(Err(error)) => return Err(failed(format!("list {what}"), error)),
                Err(_) => return Err(KernelError::new(format!("list {what}"), kernel_silence())),
            }
        }
        let text =
            format!("changes of the kernel's objects interrupted {DUMP_TRIES} consecutive reads");
        Err(KernelError::new(format!("list {what}"), Problem::new("kernel-changing", text)))
    }

    /// False if the kernel did not complete the dump.
    async fn dump_once(
        &mut self,
        request: Message,
        mut each: impl FnMut(&Received<'_>),
    ) -> io::Result<bool> {
        self.sequence = self.sequence.wrapping_add(1);
        let sequence = self.sequence;
        let mut bytes = request.finish(sequence);
        set_flags(&mut bytes, NLM_F_REQUEST | NLM_F_DUMP);
        send(&self.socket, &bytes).await?;
        let mut whole = true;
        loop {
            receive(&self.socket, &mut self.buffer).await?;
            for message in
                wire::messages(&self.buffer).filter(|message| message.sequence == sequence)
            {
                whole &= message.flags & NLM_F_DUMP_INTR == 0;
                match message.kind {
                    NLMSG_DONE => {
                        // The kernel reports an error in the middle of a dump in this message.
                        let code = message
                            .body
                            .get(..4)
                            .and_then(|b| b.try_into().ok())
                            .map_or(0, i32::from_ne_bytes);
                        return if code < 0 {
                            Err(io::Error::from_raw_os_error(-code))
                        } else {
                            Ok(whole)
                        };
                    }
                    NLMSG_ERROR => {
                        let (code, _) =
                            wire::verdict(message.body).unwrap_or((libc::EPROTO, String::new()));
                        return Err(io::Error::from_raw_os_error(code));
                    }
                    NLMSG_NOOP => {}
                    _ => each(&message),
                }
            }
        }
    }

    /// Sends the requests in chunks of `chunk`. `each` receives the kernel's messages other than
    /// acknowledgements.
    pub(super) async fn batch(
        &mut self,
        messages: Vec<Message>,
        chunk: usize,
        mut each: impl FnMut(usize, &Received<'_>),
    ) -> Vec<Answer> {
        let mut answers = vec![Answer::Lost; messages.len()];
        let mut messages = messages.into_iter();
        let mut done = 0;
        loop {
            let first = self.sequence.wrapping_add(1);
            let finish = |message: Message| {
                self.sequence = self.sequence.wrapping_add(1);
                let mut message = message.finish(self.sequence);
                set_flags(&mut message, NLM_F_REQUEST | NLM_F_ACK);
                message
            };
            let finished: Vec<_> = messages.by_ref().take(chunk).map(finish).collect();
            let count = finished.len();
            if count == 0 {
                return answers;
            }
            // Allocated with the final size: a vector that grows leaves copies of secrets behind.
            let mut bytes = Zeroizing::new(Vec::with_capacity(
                finished.iter().map(|message| message.len()).sum(),
            ));
            finished.iter().for_each(|message| bytes.extend_from_slice(message));
            drop(finished);
            let part = answers.get_mut(done..done + count).unwrap_or_default();
            let offset = done;
            done += count;
            match timeout(
                DEADLINE,
                self.batch_once(&bytes, first, part, |index, message| {
                    each(offset + index, message);
                }),
            )
            .await
            {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    let code = error.raw_os_error().unwrap_or(libc::EIO);
                    part.iter_mut()
                        .filter(|answer| **answer == Answer::Lost)
                        .for_each(|answer| *answer = Answer::Refused(code, String::new()));
                }
                // Requests are never resent blindly: the next pass reads the actual state.
                Err(_) => return answers,
            }
        }
    }

    async fn batch_once(
        &mut self,
        bytes: &[u8],
        first: u32,
        answers: &mut [Answer],
        mut each: impl FnMut(usize, &Received<'_>),
    ) -> io::Result<()> {
        send(&self.socket, bytes).await?;
        let mut open = answers.len();
        while open > 0 {
            receive(&self.socket, &mut self.buffer).await?;
            for message in wire::messages(&self.buffer) {
                let Ok(index) = usize::try_from(message.sequence.wrapping_sub(first)) else {
                    continue;
                };
                let Some(answer) = answers.get_mut(index) else {
                    continue;
                };
                if message.kind != NLMSG_ERROR {
                    each(index, &message);
                    continue;
                }
                if *answer == Answer::Lost {
                    open -= 1;
                }
                *answer = match wire::verdict(message.body) {
                    Some((0, _)) => Answer::Done,
                    Some((code, words)) => Answer::Refused(code, words),
                    None => Answer::Refused(libc::EPROTO, String::new()),
                };
            }
        }
        Ok(())
    }
}

pub(super) struct Notices {
    socket: TokioSocket,
    buffer: Vec<u8>,
}

impl Notices {
    /// `groups` is a mask of RTMGRP_*.
    pub(super) fn open(groups: u32) -> Result<Self, KernelError> {
        Self::of(NETLINK_ROUTE, groups)
    }

    /// Joins multicast groups of any netlink protocol.
    pub(super) fn of(protocol: isize, groups: u32) -> Result<Self, KernelError> {
        let socket = open(protocol, groups)
            .map_err(|error| failed("subscribe to kernel notifications", error))?;
        Ok(Self { socket, buffer: Vec::with_capacity(DATAGRAM) })
    }

    /// Waits for a notification that `concerns` accepts, or until the kernel has dropped
    /// notifications.
    ///
    /// # Cancel safety
    /// Dropping the future loses no datagram, because no await point separates its receipt and its
    /// evaluation.
    pub(super) async fn until(&mut self, concerns: impl Fn(&Received<'_>) -> bool) {
        loop {
            match receive(&self.socket, &mut self.buffer).await {
                Ok(()) if wire::messages(&self.buffer).any(|message| concerns(&message)) => return,
                Ok(()) => {}
                // ENOBUFS: notifications were lost, so anything may have changed. No other error is expected; the pause avoids a busy loop.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => return,
                Err(_) => return tokio::time::sleep(Duration::from_secs(1)).await,
            }
        }
    }

    /// Consumes all queued notifications. True if `concerns` accepted one or the kernel dropped
    /// some.
    pub(super) fn queued(&mut self, concerns: impl Fn(&Received<'_>) -> bool) -> bool {
        let mut any = false;
        loop {
            self.buffer.clear();
            match self.socket.socket_ref().recv(&mut self.buffer, libc::MSG_DONTWAIT) {
                Ok(_) => any |= wire::messages(&self.buffer).any(|message| concerns(&message)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => any = true,
                Err(_) => return any,
            }
        }
    }
}

fn open(protocol: isize, groups: u32) -> io::Result<TokioSocket> {
    let mut socket = TokioSocket::new(protocol)?;
    let inner = socket.socket_mut();
    if nix::sys::socket::setsockopt(inner, nix::sys::socket::sockopt::RcvBufForce, &RECEIVE_BUFFER)
        .is_err()
    {
        // Without CAP_NET_ADMIN the limit net.core.rmem_max applies.
        inner.set_rx_buf_sz(RECEIVE_BUFFER as u32)?;
    }
    // Older kernels lack these options. Answers are then longer, and the decoders filter dumps.
    let _ =
        (inner.set_cap_ack(true), inner.set_ext_ack(true), inner.set_netlink_get_strict_chk(true));
    inner.bind(&SocketAddr::new(0, groups))?;
    Ok(socket)
}

async fn send(socket: &TokioSocket, bytes: &[u8]) -> io::Result<()> {
    poll_fn(|context| socket.poll_send(context, bytes)).await.map(|_| ())
}

async fn receive(socket: &TokioSocket, buffer: &mut Vec<u8>) -> io::Result<()> {
    buffer.clear();
    poll_fn(|context| socket.poll_recv(context, buffer)).await
}

fn set_flags(message: &mut [u8], more: u16) {
    if let Some(place) = message.get_mut(6..8) {
        let old = wire::u16_at(place, 0).unwrap_or(0);
        place.copy_from_slice(&(old | more).to_ne_bytes());
    }
}

fn failed(what: impl Into<String>, error: io::Error) -> KernelError {
    KernelError::new(what, kernel_refusal(error))
}
