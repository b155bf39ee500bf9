//! TUN device. It is not persistent: the kernel deletes it as soon as no process has it open
//! (linux/if_tun.h).

#![allow(unsafe_code)]

use crate::error::EngineError;
use crate::features::Features;
use crate::packet::virtio;
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use types::Errno;

const IFF_TUN: libc::c_short = 0x0001;
const IFF_MULTI_QUEUE: libc::c_short = 0x0100;
const IFF_NO_PI: libc::c_short = 0x1000;
const IFF_VNET_HDR: libc::c_short = 0x4000;

// _IOW('T', n, int), and _IOR for TUNGETIFF. The type of the request differs between the ioctl of musl and that of glibc.
const TUNGETIFF: u32 = 0x8004_54d2;
const TUNSETIFF: u32 = 0x4004_54ca;
const TUNSETPERSIST: u32 = 0x4004_54cb;
const TUNSETOFFLOAD: u32 = 0x4004_54d0;
const TUNSETVNETHDRSZ: u32 = 0x4004_54d8;
const SIOCSIFTXQLEN: u32 = libc::SIOCSIFTXQLEN as u32;

/// Queue length in packets. At 50 000 packets per second, the kernel's default of 500 is full after ten
/// milliseconds. The reading thread may wait so long for a processor that other programs use.
const QUEUE: libc::c_int = 2000;

const TUN_F_CSUM: libc::c_ulong = 0x01;
const TUN_F_TSO4: libc::c_ulong = 0x02;
const TUN_F_TSO6: libc::c_ulong = 0x04;
const TUN_F_USO4: libc::c_ulong = 0x20;
const TUN_F_USO6: libc::c_ulong = 0x40;

/// One queue of a TUN device.
pub struct Tun {
    file: File,
    name: String,
    offload: Offload,
}

/// The offloads that the kernel granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offload {
    /// Whether each packet has a virtio header.
    pub vnet: bool,
    /// TCP GSO packets.
    pub tcp: bool,
    /// UDP GSO packets too (Linux 6.2 and later).
    pub udp: bool,
}

impl Tun {
    /// Creates the device, or attaches to one that no other process has open.
    pub fn open_queues(name: &str, features: &Features) -> Result<Vec<Self>, EngineError> {
        if features.tun_tap {
            return Self::open_with_tun_tap_crate(name).map(|tun| vec![tun]);
        }
        let multi = features.queues > 1;
        let flags = IFF_TUN
            | IFF_NO_PI
            | if features.vnet { IFF_VNET_HDR } else { 0 }
            | if multi { IFF_MULTI_QUEUE } else { 0 };
        (0..features.queues.max(1)).map(|_| Self::queue(name, flags, features)).collect()
    }

    fn queue(name: &str, flags: libc::c_short, features: &Features) -> Result<Self, EngineError> {
        let file = File::options()
            .read(true)
            .write(true)
            .open("/dev/net/tun")
            .map_err(|error| device_setup_error(name, &error))?;
        let mut request = interface_request(name, flags);
        call_ioctl(file.as_fd(), TUNSETIFF, std::ptr::from_mut(&mut request) as libc::c_ulong)
            .map_err(|error| device_setup_error(name, &error))?;
        Self::adopt(file.into(), name, features, features.vnet)
    }

    /// With the `tun-tap` crate: no offloads, one packet per call.
    fn open_with_tun_tap_crate(name: &str) -> Result<Self, EngineError> {
        use std::os::fd::IntoRawFd;
        let device = tun_tap::Iface::without_packet_info(name, tun_tap::Mode::Tun)
            .map_err(|error| device_setup_error(name, &error))?;
        // SAFETY: into_raw_fd gives up the descriptor, which is open and owned only here.
        let fd = unsafe { OwnedFd::from_raw_fd(device.into_raw_fd()) };
        let tun = Self { file: fd.into(), name: name.to_owned(), offload: Offload::default() };
        tun.configure_file_and_device().map_err(|error| device_setup_error(name, &error))?;
        // Offloads are a property of the device, so an existing device may still have them enabled.
        let _ = call_ioctl(tun.file.as_fd(), TUNSETOFFLOAD, 0);
        Ok(tun)
    }

    /// Adopts a queue of a previous process, which must belong to a device with this name.
    pub fn inherit(fd: OwnedFd, name: &str, features: &Features) -> Result<Self, EngineError> {
        let (found, flags) = device_name_and_flags(fd.as_fd()).map_err(|error| {
            EngineError::NotTun { device: name.to_owned(), errno: error.into() }
        })?;
        if found != name {
            return Err(EngineError::OtherTun { device: name.to_owned(), found });
        }
        Self::adopt(fd, name, features, flags & IFF_VNET_HDR != 0)
    }

    fn adopt(
        fd: OwnedFd,
        name: &str,
        features: &Features,
        vnet: bool,
    ) -> Result<Self, EngineError> {
        let mut tun = Self {
            file: fd.into(),
            name: name.to_owned(),
            offload: Offload { vnet, ..Offload::default() },
        };
        tun.configure_file_and_device().map_err(|error| device_setup_error(name, &error))?;
        let fd = tun.file.as_fd();
        if vnet {
            let size: libc::c_int = virtio::LEN as libc::c_int;
            call_ioctl(fd, TUNSETVNETHDRSZ, std::ptr::from_ref(&size) as libc::c_ulong)
                .map_err(|error| device_setup_error(name, &error))?;
            let tcp = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6;
            if !features.vnet {
                call_ioctl(fd, TUNSETOFFLOAD, 0)
                    .map_err(|error| device_setup_error(name, &error))?;
            } else if features.uso
                && call_ioctl(fd, TUNSETOFFLOAD, tcp | TUN_F_USO4 | TUN_F_USO6).is_ok()
            {
                tun.offload = Offload { vnet, tcp: true, udp: true };
            } else if call_ioctl(fd, TUNSETOFFLOAD, tcp).is_ok() {
                tun.offload = Offload { vnet, tcp: true, udp: false };
            } else {
                call_ioctl(fd, TUNSETOFFLOAD, 0)
                    .map_err(|error| device_setup_error(name, &error))?;
            }
        } else {
            let _ = call_ioctl(fd, TUNSETOFFLOAD, 0);
        }
        Ok(tun)
    }

    /// Makes the file non-blocking and close-on-exec and the device not persistent, and sets its queue
    /// length.
    fn configure_file_and_device(&self) -> io::Result<()> {
        use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
        fcntl(&self.file, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        fcntl(&self.file, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
        call_ioctl(self.file.as_fd(), TUNSETPERSIST, 0)?;
        // A shorter queue also works.
        let _ = self.lengthen();
        Ok(())
    }

    /// Sets the queue length to [`QUEUE`] packets (netdevice(7)). The kernel accepts SIOCSIFTXQLEN on any
    /// socket of the network namespace.
    fn lengthen(&self) -> io::Result<()> {
        use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
        let socket = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
        let mut request = interface_request(&self.name, 0);
        request.ifr_ifru.ifru_metric = QUEUE;
        call_ioctl(socket.as_fd(), SIOCSIFTXQLEN, std::ptr::from_mut(&mut request) as libc::c_ulong)
    }

    /// What the kernel granted (TUNSETOFFLOAD).
    #[must_use]
    pub fn offload(&self) -> Offload {
        self.offload
    }

    /// `None` if the device was deleted or renamed.
    #[must_use]
    pub fn index_unless_renamed(&self) -> Option<u32> {
        let (name, _) = device_name_and_flags(self.file.as_fd()).ok()?;
        let index = || nix::net::if_::if_nametoindex(self.name.as_str()).ok();
        (name == self.name).then(index).flatten()
    }

    /// Reads a packet, with its virtio header if the device has them, and returns the length in bytes.
    /// `WouldBlock` means that no packet waits.
    #[inline]
    pub fn read_frame(&self, buffer: &mut [u8]) -> io::Result<usize> {
        (&self.file).read(buffer)
    }

    /// Writes the buffers as one packet, and returns the number of written bytes.
    #[inline]
    pub fn write_frame(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        (&self.file).write_vectored(parts)
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn interface_request(name: &str, flags: libc::c_short) -> libc::ifreq {
    // SAFETY: ifreq is plain data for which all zeros is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request
        .ifr_name
        .iter_mut()
        .zip(name.bytes().take(libc::IFNAMSIZ - 1))
        .for_each(|(to, from)| *to = libc::c_char::from_ne_bytes([from]));
    request.ifr_ifru.ifru_flags = flags;
    request
}

/// The name and the flags of the device to which a file refers.
fn device_name_and_flags(fd: BorrowedFd<'_>) -> io::Result<(String, libc::c_short)> {
    let mut request = interface_request("", 0);
    call_ioctl(fd, TUNGETIFF, std::ptr::from_mut(&mut request) as libc::c_ulong)?;
    let bytes: Vec<u8> =
        request.ifr_name.iter().take_while(|c| **c != 0).map(|c| c.to_ne_bytes()[0]).collect();
    let name = String::from_utf8_lossy(&bytes).into_owned();
    // SAFETY: TUNGETIFF has filled in the flags.
    Ok((name, unsafe { request.ifr_ifru.ifru_flags }))
}

fn call_ioctl(fd: BorrowedFd<'_>, what: u32, argument: libc::c_ulong) -> io::Result<()> {
    // SAFETY: callers pass a number, or the address of a live ifreq or int, as the request demands.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), what as libc::Ioctl, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn device_setup_error(name: &str, error: &io::Error) -> EngineError {
    let (device, errno) = (name.to_owned(), Errno::from(error));
    match errno.0 {
        libc::ENOENT | libc::ENODEV | libc::ENXIO => EngineError::TunMissing { errno },
        libc::EPERM | libc::EACCES => EngineError::TunForbidden { errno },
        libc::EBUSY => EngineError::TunBusy { device, errno },
        libc::EINVAL => EngineError::TunNameTaken { device, errno },
        _ => EngineError::Tun { errno },
    }
}
