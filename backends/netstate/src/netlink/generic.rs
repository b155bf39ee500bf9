//! Generic netlink (linux/genetlink.h), which the kernel uses for families such as WireGuard.

use super::socket::{Answer, Requests};
use super::uapi::*;
use super::wire::{self, Message, inside};
use crate::error::{KernelError, RequestError};
use types::Errno;

/// A connection for the WireGuard family.
pub(super) struct Generic {
    pub requests: Requests,
    /// The number of the WireGuard family, which the kernel assigns.
    pub family: u16,
}

impl Generic {
    /// `None` if the kernel has no WireGuard.
    pub(super) async fn find() -> Result<Option<Self>, KernelError> {
        let mut requests = Requests::open_generic()?;
        let mut family = None;
        let request = Message::new(GENL_ID_CTRL, 0, &[CTRL_CMD_GETFAMILY, 1, 0, 0])
            .text(CTRL_ATTR_FAMILY_NAME, WG_GENL_NAME);
        let answers = requests.batch(vec![request], 1, |_, message| {
            family = inside(message.body.get(GENLMSG..).unwrap_or_default(), CTRL_ATTR_FAMILY_ID)
                .and_then(|value| wire::u16_at(value, 0));
        });
        let answer = answers.await.pop();
        let failed = |why| KernelError::new("check for WireGuard support", why);
        match (family, answer) {
            (Some(family), _) => Ok(Some(Self { requests, family })),
            (None, Some(Answer::Refused(libc::ENOENT | libc::EOPNOTSUPP, _))) => Ok(None),
            (None, Some(Answer::Refused(code, _))) => {
                Err(failed(RequestError::refused(Errno(code))))
            }
            (None, _) => Err(failed(RequestError::Silent)),
        }
    }

    /// Fails if the kernel has no WireGuard.
    pub(super) async fn open() -> Result<Self, KernelError> {
        let missing = RequestError::NotLoaded { module: crate::link::wireguard::KIND };
        Self::find().await?.ok_or_else(|| KernelError::new("configure WireGuard", missing))
    }
}
