//! Requests over a netlink socket. Interrupted dumps are repeated, and every request of a batch has
//! its own answer.

use crate::blocking::run_blocking;
use crate::error::{KernelError, kernel_refusal, kernel_silence};
use crate::uapi::*;
use crate::wire::{self, Message, Received};
use netlink_sys::{Socket, SocketAddr};
use std::io;
use std::time::Duration;
use thiserror::Error;
use types::{Errno, Problem};

/// Requests in one send. The kernel queues the answers meanwhile, and silently drops those that do
/// not fit into the receive buffer.
const BATCH: usize = 128;
/// The same for look-ups: the kernel allocates a page for each of their answers.
const LOOK_UPS: usize = 48;
/// In bytes, of the requests in one send: well below the socket's send buffer.
const SENT: usize = 64 << 10;
/// How often a dump that the kernel interrupts is tried.
const DUMP_TRIES: u32 = 8;
const RECEIVE_BUFFER: usize = 16 << 20;
pub(crate) const DATAGRAM: usize = 64 << 10;

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RequestError {
    /// `words` are the kernel's, and usually empty.
    #[error("{}", Errno(*.errno))]
    Refused { errno: i32, words: String },
    /// The kernel's answer is missing. The request may have taken effect.
    #[error("the kernel does not respond")]
    Lost,
}

impl RequestError {
    /// `None` without an answer.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Refused { errno, .. } => Some(*errno),
            Self::Lost => None,
        }
    }
}

impl From<RequestError> for Problem {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Refused { errno, .. } => kernel_refusal(Errno(errno)),
            RequestError::Lost => kernel_silence(),
        }
    }
}

/// To a request that changes something.
pub type Answer = Result<(), RequestError>;

/// A dump's request.
#[derive(Clone)]
pub struct Query {
    /// For errors, such as `network interfaces`.
    objects: &'static str,
    message: Message,
    /// The errnos that mean that there is nothing to dump.
    pub absent: &'static [i32],
}

impl Query {
    #[must_use]
    pub fn new(objects: &'static str, message: Message) -> Self {
        // The link or table does not exist.
        Self { objects, message, absent: &[libc::ENOENT, libc::ENODEV] }
    }
}

/// A connection in the network namespace of the thread that opened it.
pub struct Client {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Client {
    /// For links, addresses, routes and neighbours.
    pub fn open() -> Result<Self, KernelError> {
        Self::open_protocol(NETLINK_ROUTE)
    }

    /// `protocol` is one of NETLINK_*.
    pub fn open_protocol(protocol: isize) -> Result<Self, KernelError> {
        let socket = open_socket(protocol, 0)
            .map_err(|error| KernelError::new("open a netlink socket", kernel_refusal(error)))?;
        Ok(Self { socket, sequence: 0, buffer: Vec::with_capacity(DATAGRAM) })
    }

    /// What `decode` makes of the kernel's objects.
    ///
    /// Fails if the kernel refuses the dump, does not answer, or keeps interrupting it.
    pub fn dump<T>(
        &mut self,
        query: &Query,
        decode: impl Fn(&Received<'_>) -> Option<T>,
    ) -> Result<Vec<T>, KernelError> {
        self.fold_dump(query, Vec::new, |list: &mut Vec<T>, message| list.extend(decode(message)))
    }

    /// Passes every message of a dump to `each`. Each attempt starts with a new result from
    /// `begin`, so that no object of an interrupted dump remains.
    pub fn fold_dump<S>(
        &mut self,
        query: &Query,
        begin: impl Fn() -> S,
        each: impl Fn(&mut S, &Received<'_>),
    ) -> Result<S, KernelError> {
        let failed = |why| KernelError::new(format!("list {}", query.objects), why);
        run_blocking(|| {
            for attempt in 0..DUMP_TRIES {
                let mut state = begin();
                let dumped =
                    self.dump_once(query.message.clone(), |message| each(&mut state, message));
                if dumped.is_err() {
                    self.drain();
                }
                match dumped {
                    Ok(true) => return Ok(state),
                    Ok(false) => std::thread::sleep(Duration::from_millis(1 << attempt)),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        return Err(failed(kernel_silence()));
                    }
                    Err(error) => match error.raw_os_error() {
                        Some(errno) if query.absent.contains(&errno) => return Ok(begin()),
                        // The socket buffer overflowed. The dump is repeated.
                        Some(libc::ENOBUFS) => {}
                        _ => return Err(failed(kernel_refusal(error))),
                    },
                }
            }
            let text = format!(
                "changes of the kernel's objects interrupted {DUMP_TRIES} consecutive reads"
            );
            Err(failed(Problem::new("kernel-changing", text)))
        })
    }

    /// False if the kernel did not complete the dump.
    fn dump_once(
        &mut self,
        request: Message,
        mut each: impl FnMut(&Received<'_>),
    ) -> io::Result<bool> {
        self.sequence = self.sequence.wrapping_add(1);
        let sequence = self.sequence;
        self.socket.send(&request.finish(sequence, NLM_F_REQUEST | NLM_F_DUMP), 0)?;
        let mut whole = true;
        loop {
            self.receive()?;
            for message in
                wire::split_messages(&self.buffer).filter(|message| message.sequence == sequence)
            {
                whole &= message.flags & NLM_F_DUMP_INTR == 0;
                match message.kind {
                    // The kernel reports an error in the middle of a dump in the last message.
                    NLMSG_DONE | NLMSG_ERROR => {
                        return match wire::decode_verdict(message.body) {
                            (0, _) => Ok(whole),
                            (errno, _) => Err(io::Error::from_raw_os_error(errno)),
                        };
                    }
                    NLMSG_NOOP => {}
                    _ => each(&message),
                }
            }
        }
    }

    pub fn request(&mut self, message: Message) -> Answer {
        self.batch(vec![message]).pop().unwrap_or(Err(RequestError::Lost))
    }

    /// The answers are in the order of the messages.
    pub fn batch(&mut self, messages: Vec<Message>) -> Vec<Answer> {
        self.send_in_parts(messages, BATCH, |_, _| ())
    }

    /// What `decode` makes of the kernel's last message about each request; `None` if it sent none.
    pub fn look_up<T>(
        &mut self,
        messages: Vec<Message>,
        decode: impl Fn(&Received<'_>) -> Option<T>,
    ) -> Vec<Result<Option<T>, RequestError>> {
        let mut found: Vec<Option<T>> = messages.iter().map(|_| None).collect();
        let answers = self.send_in_parts(messages, LOOK_UPS, |index, message| {
            if let (Some(place), Some(object)) = (found.get_mut(index), decode(message)) {
                *place = Some(object);
            }
        });
        found.into_iter().zip(answers).map(|(found, answer)| answer.map(|()| found)).collect()
    }

    /// `each` receives the index of a request and a message of the kernel about it other than the
    /// acknowledgement.
    fn send_in_parts(
        &mut self,
        messages: Vec<Message>,
        most: usize,
        mut each: impl FnMut(usize, &Received<'_>),
    ) -> Vec<Answer> {
        let mut answers = vec![Err(RequestError::Lost); messages.len()];
        let (mut rest, mut begun) = (answers.as_mut_slice(), 0);
        let mut messages = messages.into_iter().peekable();
        while messages.peek().is_some() {
            let first = self.sequence.wrapping_add(1);
            let (mut bytes, mut count) = (Vec::new(), 0);
            while let Some(message) = messages.next_if(|message| {
                count == 0 || count < most && bytes.len() + message.len() <= SENT
            }) {
                self.sequence = self.sequence.wrapping_add(1);
                bytes.extend(message.finish(self.sequence, NLM_F_REQUEST | NLM_F_ACK));
                count += 1;
            }
            let Some((part, later)) = std::mem::take(&mut rest).split_at_mut_checked(count) else {
                break;
            };
            let exchanged = run_blocking(|| {
                self.exchange(&bytes, first, part, |index, message| each(begun + index, message))
            });
            if let Err(error) = exchanged {
                self.drain();
                // Requests without an answer are never resent: the next pass reads the actual state.
                let Some(errno) =
                    error.raw_os_error().filter(|_| error.kind() != io::ErrorKind::WouldBlock)
                else {
                    break;
                };
                for answer in part.iter_mut().filter(|answer| **answer == Err(RequestError::Lost)) {
                    *answer = Err(RequestError::Refused { errno, words: String::new() });
                }
            }
            (rest, begun) = (later, begun + count);
        }
        answers
    }

    fn exchange(
        &mut self,
        bytes: &[u8],
        first: u32,
        answers: &mut [Answer],
        mut each: impl FnMut(usize, &Received<'_>),
    ) -> io::Result<()> {
        self.socket.send(bytes, 0)?;
        let mut open = answers.len();
        while open > 0 {
            self.receive()?;
            for message in wire::split_messages(&self.buffer) {
                let index = message.sequence.wrapping_sub(first) as usize;
                let Some(answer) = answers.get_mut(index) else {
                    continue;
                };
                if message.kind != NLMSG_ERROR {
                    each(index, &message);
                    continue;
                }
                if *answer == Err(RequestError::Lost) {
                    open -= 1;
                }
                *answer = match wire::decode_verdict(message.body) {
                    (0, _) => Ok(()),
                    (errno, words) => Err(RequestError::Refused { errno, words }),
                };
            }
        }
        Ok(())
    }

    /// Fails with EAGAIN if the kernel has not answered.
    fn receive(&mut self) -> io::Result<()> {
        receive(&self.socket, &mut self.buffer)
    }

    /// Late answers fill the buffer, and the kernel drops others until it is empty.
    fn drain(&mut self) {
        while self.receive().is_ok() {}
    }

    /// For tests: from now on, the kernel cannot deliver a whole answer, and look-ups fail with
    /// ENOBUFS.
    pub fn shrink_receive_buffer(&mut self) -> io::Result<()> {
        self.socket.set_rx_buf_sz(1u32)
    }
}

/// Does not wait.
pub(crate) fn receive(socket: &Socket, buffer: &mut Vec<u8>) -> io::Result<()> {
    buffer.clear();
    socket.recv(buffer, libc::MSG_DONTWAIT).map(drop)
}

/// `groups` is a mask of notification groups.
pub(crate) fn open_socket(protocol: isize, groups: i32) -> io::Result<Socket> {
    let mut socket = Socket::new(protocol)?;
    if nix::sys::socket::setsockopt(
        &socket,
        nix::sys::socket::sockopt::RcvBufForce,
        &RECEIVE_BUFFER,
    )
    .is_err()
    {
        // Without CAP_NET_ADMIN the limit net.core.rmem_max applies.
        socket.set_rx_buf_sz(RECEIVE_BUFFER as u32)?;
    }
    // Older kernels lack these options. Answers are then longer, and the decoders filter dumps.
    let _ = (
        socket.set_cap_ack(true),
        socket.set_ext_ack(true),
        socket.set_netlink_get_strict_chk(true),
    );
    socket.bind(&SocketAddr::new(0, groups.cast_unsigned()))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{Link, all_links, link_of_index};

    #[test]
    fn answers_are_those_of_their_requests() {
        let mut client = Client::open().unwrap();
        let all = client.dump(&all_links(), |message| Some(Link::decode(message)?.index)).unwrap();
        let lo = *all.iter().min().unwrap();
        // More than fit into one send.
        let indices: Vec<u32> = (0..300).map(|n| if n % 2 == 0 { lo } else { 1 << 30 }).collect();
        let requests = indices.iter().map(|index| link_of_index(*index)).collect();
        let found = client.look_up(requests, |message| Some(Link::decode(message)?.index));
        for (index, found) in indices.into_iter().zip(found) {
            match found {
                Ok(found) => assert_eq!((found, index), (Some(lo), lo)),
                Err(error) => assert_eq!((error.errno(), index), (Some(libc::ENODEV), 1 << 30)),
            }
        }
    }

    #[test]
    fn lost_answer_is_an_error_at_once() {
        let mut client = Client::open().unwrap();
        client.shrink_receive_buffer().unwrap();
        for _ in 0..3 {
            let found = client
                .look_up(vec![link_of_index(1)], |message| Some(Link::decode(message)?.index));
            assert_eq!(found[0].as_ref().unwrap_err().errno(), Some(libc::ENOBUFS));
        }
    }
}
