//! Decides how the engine handles and logs a send that the kernel refuses.

use std::io;

/// Maximum number of retries after a temporary error.
const TRIES: usize = 3;

/// What to do after a failed send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SendAction {
    Retry,
    /// Wait until the socket has room, then retry.
    Wait,
    /// Send each datagram of the message on its own.
    SendSingly,
    Drop,
}

/// `many`: the message has several datagrams. `tries` is the number of retries so far.
pub(super) fn action_for(error: &io::Error, many: bool, tries: usize) -> SendAction {
    match error.raw_os_error() {
        // The kernel may report an ICMP error about an earlier packet in reply to this send.
        Some(libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::ENETUNREACH) if tries == 0 => {
            SendAction::Retry
        }
        Some(libc::EINTR) if tries < TRIES => SendAction::Retry,
        Some(libc::EAGAIN) if tries < TRIES => SendAction::Wait,
        Some(libc::EMSGSIZE | libc::EINVAL | libc::EIO | libc::EOPNOTSUPP) if many => {
            SendAction::SendSingly
        }
        _ => SendAction::Drop,
    }
}

/// The kind of a send error, whose log lines are limited apart from those of other kinds, and the remedy for
/// its likely cause.
pub(super) fn log_kind_and_remedy(error: &io::Error) -> (&'static str, &'static str) {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => (
            "send: forbidden",
            "a firewall on this host drops the packets; check the firewall's rules for outgoing packets (`nft list ruleset`, `iptables -S OUTPUT`)",
        ),
        Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ENETDOWN | libc::ECONNREFUSED) => (
            "send: unreachable",
            "this host has no route to the peer; check `ip route get` with the peer's address, and the interface",
        ),
        Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => (
            "send: no room",
            "the interface cannot keep up, or memory is short; check `ip -s link` and `nstat -az UdpSndbufErrors`",
        ),
        Some(libc::EMSGSIZE) => (
            "send: too long",
            "a packet exceeds the interface's MTU; compare the MTU with FLANNEL_MTU",
        ),
        _ => ("send", "check the kernel log (`dmesg`)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_errors_are_retried_a_limited_number_of_times() {
        let of = |code, many, tries| action_for(&io::Error::from_raw_os_error(code), many, tries);
        assert_eq!(of(libc::EMSGSIZE, true, 0), SendAction::SendSingly);
        assert_eq!(of(libc::EMSGSIZE, false, 0), SendAction::Drop);
        assert_eq!(of(libc::ENETUNREACH, true, 0), SendAction::Retry);
        assert_eq!(of(libc::EAGAIN, false, 0), SendAction::Wait);
        for code in 1..134 {
            for many in [false, true] {
                assert!(
                    matches!(of(code, many, TRIES), SendAction::SendSingly | SendAction::Drop),
                    "{code}"
                );
            }
        }
    }
}
