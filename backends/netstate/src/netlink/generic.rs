//! Generic netlink (linux/genetlink.h), which the kernel uses for families such as WireGuard.

use super::socket::{Answer, Requests, answer_problem};
use super::uapi::*;
use super::wire::{self, Message, inside};
use crate::error::KernelError;
use crate::link::wireguard::KIND;
use types::{Detail, Problem};

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
        match (family, answer) {
            (Some(family), _) => Ok(Some(Self { requests, family })),
            (None, Some(Answer::Refused(libc::ENOENT | libc::EOPNOTSUPP, _))) => Ok(None),
            (None, answer) => {
                let why = answer_problem(answer.as_ref());
                Err(KernelError::new("check for WireGuard support", why))
            }
        }
    }

    /// Fails if the kernel has no WireGuard.
    pub(super) async fn open() -> Result<Self, KernelError> {
        Self::find().await?.ok_or_else(|| {
            let text = format!("the kernel module {KIND} is not loaded; run modprobe {KIND}");
            let detail = Detail::ModuleMissing { name: KIND.to_owned() };
            let why = Problem::new("module-missing", text).with(detail);
            KernelError::new("configure WireGuard", why)
        })
    }
}
