//! Transmit checksum offload of a device, by the ethtool ioctl: ethtool's netlink interface has no
//! stable name for it.
#![allow(unsafe_code)]

use crate::names::LinkName;
use std::io;
use std::os::fd::AsRawFd;

const SIOCETHTOOL: libc::Ioctl = 0x8946;
const ETHTOOL_GTXCSUM: u32 = 0x16;
const ETHTOOL_STXCSUM: u32 = 0x17;

/// struct ethtool_value
#[repr(C)]
struct EthtoolValue {
    cmd: u32,
    data: u32,
}

pub(crate) fn tx_checksum(name: LinkName) -> io::Result<bool> {
    call_ethtool(name, ETHTOOL_GTXCSUM, 0).map(|value| value != 0)
}

pub(crate) fn set_tx_checksum(name: LinkName, on: bool) -> io::Result<()> {
    call_ethtool(name, ETHTOOL_STXCSUM, u32::from(on)).map(|_| ())
}

fn call_ethtool(name: LinkName, cmd: u32, data: u32) -> io::Result<u32> {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0")
        .or_else(|_| std::net::UdpSocket::bind("[::]:0"))?;
    let mut value = EthtoolValue { cmd, data };
    // SAFETY: ifreq is plain old data, for which zero is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request
        .ifr_name
        .iter_mut()
        .zip(name.as_str().bytes().take(LinkName::LONGEST))
        .for_each(|(to, from)| *to = from as libc::c_char);
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: the kernel reads the name and reads and writes one ethtool_value behind ifru_data; both live until the call returns.
    if unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(value.data)
}
