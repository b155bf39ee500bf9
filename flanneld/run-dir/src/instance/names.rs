//! The names of abstract sockets in this network namespace, with the users who created the sockets (unix_diag).
//!
//! Any user can bind an abstract socket to any name. A daemon therefore ignores sockets that neither root nor the daemon's own user created.

use super::peer::peer;
use crate::process;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, sendto,
    socket,
};
use nix::sys::time::TimeVal;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;

/// Separator between a name and the random suffix that a process appends if another user holds the plain name. No
/// name of a device, port or network contains it.
const MARK: &str = "//";
/// Number of ignored names that one process logs. It protects the log, because other users can bind any number of
/// names.
const MAX_LOGGED: usize = 16;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST_DUMP: u16 = 0x301;
const UDIAG_SHOW_NAME: u32 = 0x1;
const UDIAG_SHOW_UID: u32 = 0x40;
const UNIX_DIAG_NAME: u16 = 0;
const UNIX_DIAG_UID: u16 = 7;
/// Lengths of `struct nlmsghdr` and `struct unix_diag_msg`.
const HEADER: usize = 16;
const MESSAGE: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name {
    /// As the kernel reports it.
    pub raw: String,
    /// Who created the socket; `None` before Linux 5.3 or without unix_diag.
    uid: Option<u32>,
    pub inode: u32,
}

impl Name {
    /// The name without the random suffix.
    pub(super) fn base(&self) -> &str {
        self.raw.rsplit_once(MARK).map_or(self.raw.as_str(), |(base, _)| base)
    }

    /// Who created the socket, from unix_diag or from its file in /proc. Opens no connection to read the user's
    /// credentials. Daemons never accept connections, so one fails once the backlog is full.
    fn user(&self) -> Option<u32> {
        self.uid
            .or_else(|| std::fs::metadata(open_file(self.inode)?.1).ok().map(|socket| socket.uid()))
    }

    /// True if root or the user of this process created the socket. False for a user that this user namespace does
    /// not map. True if the user is unknown, because two daemons on one network do more harm than a daemon that does
    /// not start.
    fn is_ours(&self) -> bool {
        self.user().is_none_or(|uid| uid == 0 || uid == nix::unistd::geteuid().as_raw())
    }

    /// Logs once that this process ignores a name that another user bound. `effect` describes what the name would
    /// cause otherwise.
    fn ignore(&self, effect: &str) {
        static LOG: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
        let mut logged = LOG.lock();
        if logged.len() >= MAX_LOGGED || !logged.insert(self.raw.clone()) {
            return;
        }
        let pid = peer(self.raw.as_bytes())
            .map(|peer| peer.pid())
            .filter(|pid| *pid > 0)
            .or_else(|| Some(open_file(self.inode)?.0));
        let program = pid.and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).ok());
        let (name, program, uid) =
            (self.raw.as_str(), program.as_deref().map(str::trim), self.user());
        tracing::warn!(
            name,
            pid,
            program,
            uid,
            effect,
            "ignoring an abstract socket of another user"
        );
    }
}

/// A process that has the socket open, and the path of its file in /proc.
fn open_file(inode: u32) -> Option<(i32, PathBuf)> {
    process::pids().find_map(|pid| {
        let (_, file) = process::sockets(pid).find(|(open, _)| *open == u64::from(inode))?;
        Some((pid, file))
    })
}

/// The sockets of root and of this user whose names have a prefix, sorted by name. Logs each other user's socket with
/// the prefix, and the effect that it would have had.
pub(super) fn named(start: &str, effect: &str) -> Vec<Name> {
    let (ours, others): (Vec<Name>, Vec<Name>) = all(start).into_iter().partition(Name::is_ours);
    others.iter().for_each(|name| name.ignore(effect));
    ours
}

#[derive(Debug)]
pub(super) enum HoldError {
    /// Another daemon has bound a socket to the name.
    Held(Name),
    /// This process cannot create a socket.
    Host(io::Error),
}

/// Binds an abstract socket until the caller drops the returned listener. If another user has bound a socket to the
/// plain name, appends a random suffix.
pub(super) fn hold(name: &str, effect: &str) -> Result<UnixListener, HoldError> {
    let listen = |name: &str| UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?);
    let mut raw = name.to_owned();
    let listener = match listen(&raw) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            if let Some(holder) = held_by(name, None, effect) {
                return Err(HoldError::Held(holder));
            }
            raw = format!("{name}{MARK}{:016x}", rand::random::<u64>());
            listen(&raw)
        }
        first => first,
    };
    let listener = listener.map_err(HoldError::Host)?;
    // Claim first, then check: of two daemons that start at once, at most one proceeds.
    match held_by(name, Some(&raw), effect) {
        Some(holder) => Err(HoldError::Held(holder)),
        None => Ok(listener),
    }
}

/// The socket that another daemon bound to this name.
fn held_by(name: &str, own: Option<&str>, effect: &str) -> Option<Name> {
    let is = |held: &Name| held.base() == name && Some(held.raw.as_str()) != own;
    let (ours, others): (Vec<Name>, Vec<Name>) =
        all(name).into_iter().filter(is).partition(Name::is_ours);
    // Only the plain name is logged: a unique name of another user stops no daemon.
    others.iter().filter(|held| held.raw == name).for_each(|held| held.ignore(effect));
    ours.into_iter().next()
}

/// All sockets whose names have a prefix, sorted by name.
pub(super) fn all(start: &str) -> Vec<Name> {
    let mut names = dump(start).unwrap_or_else(|_| table(start));
    names.sort_by(|a, b| a.raw.cmp(&b.raw));
    names.dedup_by(|a, b| a.raw == b.raw);
    names
}

/// Requests a dump of all sockets (sock_diag(7)) and keeps those whose names have a prefix.
fn dump(start: &str) -> io::Result<Vec<Name>> {
    let socket = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkSockDiag,
    )?;
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
    // The kernel replies immediately or not at all.
    nix::sys::socket::setsockopt(
        &socket,
        nix::sys::socket::sockopt::ReceiveTimeout,
        &TimeVal::new(2, 0),
    )?;
    let mut request = Vec::with_capacity(40);
    request.extend(40u32.to_ne_bytes());
    request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request.extend(NLM_F_REQUEST_DUMP.to_ne_bytes());
    request.extend([0; 8]);
    // Family, protocol and padding; then all states, any inode, the attributes to report, and any cookie.
    request.extend([1, 0, 0, 0]);
    for word in [u32::MAX, 0, UDIAG_SHOW_NAME | UDIAG_SHOW_UID, u32::MAX, u32::MAX] {
        request.extend(word.to_ne_bytes());
    }
    sendto(socket.as_raw_fd(), &request, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
    let mut names = Vec::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let length = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
        let mut rest = buffer.get(..length).unwrap_or_default();
        while let Some((kind, body, after)) = item(rest, 4, HEADER) {
            match kind {
                NLMSG_DONE => return Ok(names),
                NLMSG_ERROR => return Err(io::Error::from(io::ErrorKind::Unsupported)),
                _ => names.extend(name_in(body, start)),
            }
            rest = after;
        }
    }
}

/// Parses a unix_diag message about a socket. `None` unless its name has the prefix.
fn name_in(message: &[u8], start: &str) -> Option<Name> {
    let inode = u32::from_ne_bytes(message.get(4..8)?.try_into().ok()?);
    let (mut raw, mut uid) = (None, None);
    let mut rest = message.get(MESSAGE..)?;
    while let Some((kind, body, after)) = item(rest, 2, 4) {
        match kind {
            // Abstract names begin with a zero byte; paths do not.
            UNIX_DIAG_NAME => {
                raw = body
                    .strip_prefix(&[0])
                    .and_then(|name| std::str::from_utf8(name).ok())
                    .filter(|name| name.starts_with(start));
            }
            UNIX_DIAG_UID => uid = body.try_into().ok().map(u32::from_ne_bytes),
            _ => {}
        }
        rest = after;
    }
    Some(Name { raw: raw?.to_owned(), uid, inode })
}

/// Splits off the first message (`width` 4) or attribute (`width` 2), and returns its kind, its body and the rest.
/// `width` is the size of the length field in bytes.
fn item(bytes: &[u8], width: usize, header: usize) -> Option<(u16, &[u8], &[u8])> {
    let length = match width {
        4 => usize::try_from(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?)).ok()?,
        _ => usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?)),
    };
    let kind = u16::from_ne_bytes(bytes.get(width..width + 2)?.try_into().ok()?);
    let after = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((kind, bytes.get(header..length)?, after))
}

/// The sockets in /proc/net/unix whose names have a prefix, for kernels without unix_diag. That file does not contain
/// the users of the sockets.
fn table(start: &str) -> Vec<Name> {
    let table = std::fs::read_to_string("/proc/thread-self/net/unix").unwrap_or_default();
    // A name may contain blanks: two networks are joined by " and ".
    let name = |line: &str| {
        let (head, rest) = line.split_once(&format!(" @{start}"))?;
        // A connection that was not accepted has inode 0: no process has it open yet.
        let inode =
            head.split_whitespace().next_back()?.parse().ok().filter(|inode| *inode != 0)?;
        Some(Name { raw: format!("{start}{rest}"), uid: None, inode })
    };
    table.lines().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_of_a_unique_name_is_the_plain_name_with_a_backend_and_without() {
        for plain in ["flannel-rs/10.244.0.0/16/vxlan", "flannel-rs/10.244.0.0/16/"] {
            for raw in [plain.to_owned(), format!("{plain}{MARK}0123456789abcdef")] {
                assert_eq!(Name { raw, uid: None, inode: 0 }.base(), plain);
            }
        }
    }

    #[test]
    fn names_are_the_same_by_both_tables() {
        let start = format!("flannel-rs.test/{}/", std::process::id());
        let _held: Vec<UnixListener> = ["a", "b and c"]
            .iter()
            .map(|name| hold(&format!("{start}{name}"), "x").unwrap())
            .collect();
        let (by_dump, by_table) = (dump(&start).unwrap(), table(&start));
        let raw = |names: &[Name]| {
            names.iter().map(|name| (name.raw.clone(), name.inode)).collect::<BTreeSet<_>>()
        };
        assert_eq!(raw(&by_dump), raw(&by_table));
        assert_eq!(by_dump.len(), 2);
        assert!(by_dump.iter().chain(&by_table).all(Name::is_ours), "{by_dump:?}");
    }

    /// A read of /proc/net/unix opens no connection to a socket. No process accepts connections to the daemons' sockets, so connections would fill the backlog.
    #[test]
    fn table_names_stay_ours_after_many_reads() {
        let name = format!("flannel-rs.test/looks/{}", std::process::id());
        let held = hold(&name, "x").unwrap();
        nix::sys::socket::listen(&held, nix::sys::socket::Backlog::new(4).unwrap()).unwrap();
        for look in 0..40 {
            assert!(matches!(table(&name).as_slice(), [only] if only.is_ours()), "look {look}");
        }
        held.set_nonblocking(true).unwrap();
        assert_eq!(
            held.accept().unwrap_err().kind(),
            io::ErrorKind::WouldBlock,
            "a look connected"
        );
    }

    #[test]
    fn table_name_of_another_user_is_not_ours() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let name = format!("flannel-rs.test/nobody/{}", std::process::id());
        let _squat = super::super::tests::held_by_nobody(&[&name]);
        let found = table(&name);
        assert!(
            matches!(found.as_slice(), [only] if only.user() == Some(65534) && !only.is_ours()),
            "{found:?}"
        );
    }

    /// Before the listener accepts a connection, the server end of the connection has the listener's name, but no user.
    #[test]
    fn unaccepted_names_of_another_user_are_not_ours() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let start = format!("flannel-rs.test/queued/{}/", std::process::id());
        let names: Vec<String> = (0..40).map(|number| format!("{start}{number}")).collect();
        let _squat = super::super::tests::held_by_nobody(
            &names.iter().map(String::as_str).collect::<Vec<_>>(),
        );
        let connect = |name: &String| {
            std::os::unix::net::UnixStream::connect_addr(
                &SocketAddr::from_abstract_name(name).unwrap(),
            )
            .unwrap()
        };
        let _queued: Vec<_> = names.iter().map(connect).collect();
        for found in [dump(&start).unwrap(), table(&start)] {
            assert!(found.len() == names.len() && !found.iter().any(Name::is_ours), "{found:?}");
        }
    }

    #[test]
    fn name_of_an_unknown_user_is_ours() {
        // No process has this socket open.
        let untold = Name { raw: "flannel-rs.test/untold".to_owned(), uid: None, inode: u32::MAX };
        assert!(untold.is_ours());
    }

    #[test]
    fn kernel_answers_of_any_length_are_read_without_panic() {
        let answer: Vec<u8> = [
            36u32.to_ne_bytes().as_slice(),
            &20u16.to_ne_bytes(),
            &[0; 10],
            &[1; 16],
            &[8, 0, 7, 0, 1, 0, 0, 0],
        ]
        .concat();
        for length in 0..answer.len() {
            for value in [0, 1, 3, 255] {
                let mut damaged = answer.get(..length).unwrap().to_vec();
                damaged.push(value);
                let _ = item(&damaged, 4, HEADER).map(|(_, body, _)| name_in(body, ""));
                let _ = item(&damaged, 2, 4);
            }
        }
    }
}
