//! What is particular to a kind of kernel objects.

use crate::kernel::{ExistingState, FailureKind};
use crate::netlink::NetlinkKernel;
use crate::netlink::watched::Watched;
use crate::object::Op;
use crate::report::survey::Seen;
use crate::scope::Scope;
use netlink::{KernelError, Message, Received};
use types::Problem;

/// What the code that treats all kinds alike asks of one. The keys, values and operations that it
/// passes are of this kind.
pub(crate) trait Kind: Sync {
    /// Adds flannel's objects in the kernel to `found`.
    fn read(
        &self,
        _kernel: &mut NetlinkKernel,
        _scope: &Scope,
        _found: &mut ExistingState,
    ) -> Result<(), KernelError> {
        Ok(())
    }

    /// Adds the objects of any program in flannel's networks and on flannel's devices.
    fn survey(
        &self,
        _kernel: &mut NetlinkKernel,
        _scope: &Scope,
        _found: &mut Vec<Seen>,
    ) -> Result<(), KernelError> {
        Ok(())
    }

    /// True if the notification is about an object of this kind that matters to flannel, and the
    /// reconciler does not know it yet.
    fn concerns(&self, _message: &Received<'_>, _watched: &Watched<'_>) -> bool {
        false
    }

    /// `index` is that of the link, or 0 for a route without one. `None` if the operation needs
    /// other requests.
    fn message(&self, _op: &Op, _index: u32) -> Option<Message> {
        None
    }

    /// What a refusal of an operation means. The text of the problem continues the kernel's.
    fn refusal(&self, _op: &Op, errno: i32) -> (FailureKind, Problem) {
        (failure_kind(errno), Problem::new("kernel-refused", ""))
    }
}

/// A conflict concerns one peer's address. Faults of the host, such as a missing device or no
/// memory, have other errnos.
pub(super) fn failure_kind(errno: i32) -> FailureKind {
    match errno {
        libc::EEXIST
        | libc::EINVAL
        | libc::EADDRNOTAVAIL
        | libc::EAFNOSUPPORT
        | libc::ENETUNREACH
        | libc::EHOSTUNREACH => FailureKind::Conflict,
        _ => FailureKind::Other,
    }
}

/// WireGuard peers and their allowed IPs. The kernel lists them with their interface, changes them
/// by requests about the interface, and announces no changes.
pub(super) struct OfInterfaces;

impl Kind for OfInterfaces {}
