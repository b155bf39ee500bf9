//! Generic netlink (linux/genetlink.h), which the kernel uses for families such as WireGuard.

use crate::object::link::wireguard::KIND;
use netlink::uapi::*;
use netlink::wire::{self, Message, read_nested};
use netlink::{Client, KernelError};
use types::{Detail, Problem};

/// A connection for the WireGuard family.
pub(crate) struct Generic {
    pub client: Client,
    /// The number of the WireGuard family, which the kernel assigns.
    pub family: u16,
}

impl Generic {
    /// `None` if the kernel has no WireGuard.
    pub(super) fn find() -> Result<Option<Self>, KernelError> {
        let mut client = Client::open_protocol(NETLINK_GENERIC)?;
        let request = Message::new(GENL_ID_CTRL, 0, &[CTRL_CMD_GETFAMILY, 1, 0, 0])
            .text(CTRL_ATTR_FAMILY_NAME, WG_GENL_NAME);
        let found = client.look_up(vec![request], |message| {
            wire::u16_at(read_nested(message.body.get(GENLMSG..)?, CTRL_ATTR_FAMILY_ID)?, 0)
        });
        let failed = |why| Err(KernelError::new("check for WireGuard support", why));
        match found.into_iter().next() {
            Some(Ok(Some(family))) => Ok(Some(Self { client, family })),
            Some(Err(error)) if matches!(error.errno(), Some(libc::ENOENT | libc::EOPNOTSUPP)) => {
                Ok(None)
            }
            Some(Err(error)) => failed(error.into()),
            Some(Ok(None)) | None => failed(netlink::kernel_silence()),
        }
    }

    /// Fails if the kernel has no WireGuard.
    pub(super) fn open() -> Result<Self, KernelError> {
        Self::find()?.ok_or_else(|| {
            let text = format!("the kernel module {KIND} is not loaded; run modprobe {KIND}");
            let detail = Detail::ModuleMissing { name: KIND.to_owned() };
            let why = Problem::new("module-missing", text).with(detail);
            KernelError::new("configure WireGuard", why)
        })
    }
}
