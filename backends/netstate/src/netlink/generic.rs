//! Generic netlink: families that are not the network's core, of which WireGuard is one (linux/genetlink.h).

use super::socket::{Answer, Requests};
use super::uapi::*;
use super::wire::{self, Message, inside};
use crate::kernel::KernelError;

/// A connection to WireGuard's part of the kernel.
pub(super) struct Generic {
    pub requests: Requests,
    /// The number of the family.
    pub family: u16,
}

impl Generic {
    /// Asks for the number of the family; none if the kernel has no WireGuard.
    pub async fn find() -> Result<Option<Self>, KernelError> {
        let mut requests = Requests::open_generic()?;
        let mut family = None;
        let request = Message::new(GENL_ID_CTRL, 0, &[CTRL_CMD_GETFAMILY, 1, 0, 0]).text(CTRL_ATTR_FAMILY_NAME, WG_GENL_NAME);
        let answers = requests.batch(vec![request], 1, |_, message| {
            family = inside(message.body.get(GENLMSG..).unwrap_or_default(), CTRL_ATTR_FAMILY_ID).and_then(|value| wire::u16_at(value, 0));
        });
        let answer = answers.await.pop();
        let failed = |why: String| KernelError { what: "ask for WireGuard".to_owned(), why };
        match (family, answer) {
            (Some(family), _) => Ok(Some(Self { requests, family })),
            (None, Some(Answer::Refused(libc::ENOENT | libc::EOPNOTSUPP, _))) => Ok(None),
            (None, Some(Answer::Refused(code, _))) => Err(failed(std::io::Error::from_raw_os_error(code).to_string())),
            (None, _) => Err(failed("the kernel does not answer".to_owned())),
        }
    }

    /// The same, where there has to be one.
    pub async fn open() -> Result<Self, KernelError> {
        Self::find().await?.ok_or_else(|| KernelError {
            what: "configure WireGuard".to_owned(),
            why: "the kernel module wireguard is not loaded (modprobe wireguard)".to_owned(),
        })
    }
}
