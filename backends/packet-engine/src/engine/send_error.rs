//! What to do about a send that the kernel refuses, and what to say of it.

use std::io;

/// So often a message is tried that fails for a reason that passes.
const TRIES: usize = 3;

/// What comes next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remedy {
    /// The same once more, at once.
    Again,
    /// Once more when there is room.
    Wait,
    /// Each datagram of the message by itself.
    Singly,
    /// It is lost.
    Drop,
}

/// What to do after this error, of a message of one datagram or many, and after so many other tries of it.
pub fn remedy(error: &io::Error, many: bool, tries: usize) -> Remedy {
    match error.raw_os_error() {
        // The error of a packet before, told late by ICMP, is no error of this one.
        Some(libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::ENETUNREACH) if tries == 0 => Remedy::Again,
        Some(libc::EINTR) if tries < TRIES => Remedy::Again,
        Some(libc::EAGAIN) if tries < TRIES => Remedy::Wait,
        Some(libc::EMSGSIZE | libc::EINVAL | libc::EIO | libc::EOPNOTSUPP) if many => Remedy::Singly,
        _ => Remedy::Drop,
    }
}

/// As which kind of trouble it is told: each is told for itself.
pub fn kind(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => "send: forbidden",
        Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ENETDOWN | libc::ECONNREFUSED) => "send: unreachable",
        Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => "send: no room",
        Some(libc::EMSGSIZE) => "send: too long",
        _ => "send",
    }
}

/// What is behind it, and what to do.
pub fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "a firewall of this host refuses it; see its rules for outgoing packets (`nft list ruleset`, `iptables -S OUTPUT`)"
        }
        Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ENETDOWN | libc::ECONNREFUSED) => {
            "this host has no way to that node; see `ip route get` with its address, and the interface"
        }
        Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => {
            "the interface does not keep up, or memory is short; see `ip -s link` and `nstat -az UdpSndbufErrors`"
        }
        Some(libc::EMSGSIZE) => "it is longer than the interface takes; compare the interface's MTU with FLANNEL_MTU",
        _ => "see the kernel's log (`dmesg`)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_pass_is_tried_again_and_never_for_ever() {
        let of = |code, many, tries| remedy(&io::Error::from_raw_os_error(code), many, tries);
        assert_eq!(of(libc::EMSGSIZE, true, 0), Remedy::Singly);
        assert_eq!(of(libc::EMSGSIZE, false, 0), Remedy::Drop);
        assert_eq!(of(libc::ENETUNREACH, true, 0), Remedy::Again);
        assert_eq!(of(libc::EAGAIN, false, 0), Remedy::Wait);
        for code in 1..134 {
            for many in [false, true] {
                assert!(matches!(of(code, many, TRIES), Remedy::Singly | Remedy::Drop), "{code}");
            }
        }
    }
}
