//! TUN device. It is not persistent: the kernel deletes it as soon as no process has it open
//! (linux/if_tun.h).

#![allow(unsafe_code)]

use crate::features::Features;
use crate::packet::virtio;
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use types::Problem;

/// Queue length in packets. At 50 000 packets per second, the kernel's default of 500 is full after ten
/// milliseconds. The reading thread may wait so long for a processor that other programs use.
const QUEUE: libc::c_int = 2000;

/// What the engine's threads need of a TUN device, so that tests can inject errors.
pub(crate) trait Device: AsFd {
    /// What the kernel granted (TUNSETOFFLOAD).
    fn offload(&self) -> Offload;
    /// Reads a packet, with its virtio header if the device has them, and returns the length in bytes.
    /// `WouldBlock` means that no packet waits.
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize>;
    /// Writes the parts as one packet, in one system call.
    fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize>;
}

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
    pub fn open_queues(name: &str, features: &Features) -> Result<Vec<Self>, Problem> {
        let queues = if features.tun_tap {
            Self::open_with_tun_tap_crate(name, features).map(|tun| vec![tun])
        } else {
            (0..features.queues.max(1)).map(|_| Self::open_queue(name, features)).collect()
        };
        queues.map_err(|error| device_setup_error(name, &error))
    }

    fn open_queue(name: &str, features: &Features) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open("/dev/net/tun")?;
        let flags = libc::IFF_TUN
            | libc::IFF_NO_PI
            | if features.vnet { libc::IFF_VNET_HDR } else { 0 }
            | if features.queues > 1 { libc::IFF_MULTI_QUEUE } else { 0 };
        let mut request = interface_request(name);
        request.ifr_ifru.ifru_flags = flags as libc::c_short;
        call_ioctl(&file, libc::TUNSETIFF, std::ptr::from_mut(&mut request) as libc::c_ulong)?;
        Self::configure(file, name, features, features.vnet)
    }

    /// With the `tun-tap` crate: no offloads, one packet per call.
    fn open_with_tun_tap_crate(name: &str, features: &Features) -> io::Result<Self> {
        use std::os::fd::IntoRawFd;
        let device = tun_tap::Iface::without_packet_info(name, tun_tap::Mode::Tun)?;
        // SAFETY: into_raw_fd gives up the descriptor, which is open and owned only here.
        let fd = unsafe { OwnedFd::from_raw_fd(device.into_raw_fd()) };
        Self::configure(fd.into(), name, features, false)
    }

    /// Adopts a queue of a previous process, which must belong to a device with this name.
    pub fn inherit(fd: OwnedFd, name: &str, features: &Features) -> Result<Self, Problem> {
        let file = File::from(fd);
        let (found, vnet) = device_name_and_vnet(&file).map_err(|error| {
            let text = format!("the inherited file for {name} is not a TUN device: {error}");
            Problem::new("inherited-tun-unusable", text)
        })?;
        if found != name {
            let text = format!("the inherited file for {name} belongs to {found}");
            return Err(Problem::new("inherited-tun-unusable", text));
        }
        Self::configure(file, name, features, vnet)
            .map_err(|error| device_setup_error(name, &error))
    }

    /// Makes the file non-blocking and close-on-exec and the device not persistent, and sets its queue length
    /// and offloads.
    fn configure(file: File, name: &str, features: &Features, vnet: bool) -> io::Result<Self> {
        use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
        fcntl(&file, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        fcntl(&file, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
        call_ioctl(&file, libc::TUNSETPERSIST, 0)?;
        // A shorter queue also works.
        let _ = lengthen_queue(name);
        let set_offload =
            |flags: libc::c_uint| call_ioctl(&file, libc::TUNSETOFFLOAD, flags.into());
        let mut offload = Offload { vnet, ..Offload::default() };
        if vnet {
            let size = virtio::LEN as libc::c_int;
            let place = std::ptr::from_ref(&size) as libc::c_ulong;
            call_ioctl(&file, libc::TUNSETVNETHDRSZ, place)?;
            let tcp = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
            let udp = libc::TUN_F_USO4 | libc::TUN_F_USO6;
            offload.udp = features.vnet && set_offload(tcp | udp).is_ok();
            offload.tcp = offload.udp || features.vnet && set_offload(tcp).is_ok();
        }
        // Offloads are a property of the device, so an existing device may still have them enabled.
        if !offload.tcp {
            set_offload(0).or_else(|error| if vnet { Err(error) } else { Ok(()) })?;
        }
        Ok(Self { file, name: name.to_owned(), offload })
    }

    /// `None` if the device was deleted or renamed.
    #[must_use]
    pub fn index_unless_renamed(&self) -> Option<u32> {
        let (name, _) = device_name_and_vnet(&self.file).ok()?;
        let index = || nix::net::if_::if_nametoindex(self.name.as_str()).ok();
        (name == self.name).then(index).flatten()
    }
}

impl Device for Tun {
    fn offload(&self) -> Offload {
        self.offload
    }

    #[inline]
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        (&self.file).read(buffer)
    }

    #[inline]
    fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        (&self.file).write_vectored(parts)
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Sets the queue length to [`QUEUE`] packets (netdevice(7)). The kernel accepts SIOCSIFTXQLEN on any socket of
/// the network namespace.
fn lengthen_queue(name: &str) -> io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    let mut request = interface_request(name);
    request.ifr_ifru.ifru_metric = QUEUE;
    let request = std::ptr::from_mut(&mut request) as libc::c_ulong;
    call_ioctl(&socket, libc::SIOCSIFTXQLEN as libc::Ioctl, request)
}

fn interface_request(name: &str) -> libc::ifreq {
    // SAFETY: ifreq is plain data for which all zeros is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request
        .ifr_name
        .iter_mut()
        .zip(name.bytes().take(libc::IFNAMSIZ - 1))
        .for_each(|(to, from)| *to = libc::c_char::from_ne_bytes([from]));
    request
}

/// The name of the device to which a file refers, and whether its packets have virtio headers.
fn device_name_and_vnet(file: &File) -> io::Result<(String, bool)> {
    let mut request = interface_request("");
    call_ioctl(file, libc::TUNGETIFF, std::ptr::from_mut(&mut request) as libc::c_ulong)?;
    let bytes: Vec<u8> =
        request.ifr_name.iter().take_while(|c| **c != 0).map(|c| c.to_ne_bytes()[0]).collect();
    // SAFETY: TUNGETIFF has filled in the flags.
    let flags = libc::c_int::from(unsafe { request.ifr_ifru.ifru_flags });
    Ok((String::from_utf8_lossy(&bytes).into_owned(), flags & libc::IFF_VNET_HDR != 0))
}

fn call_ioctl(file: &impl AsRawFd, what: libc::Ioctl, argument: libc::c_ulong) -> io::Result<()> {
    // SAFETY: callers pass a number, or the address of a live ifreq or int, as the request demands.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), what, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn device_setup_error(name: &str, error: &io::Error) -> Problem {
    let (code, text) = match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => (
            "tun-missing",
            format!(
                "{error} (/dev/net/tun); load the kernel module tun (modprobe tun), or give the container the device /dev/net/tun"
            ),
        ),
        Some(libc::EPERM | libc::EACCES) => (
            "tun-forbidden",
            format!("{error}; give flanneld CAP_NET_ADMIN and access to /dev/net/tun"),
        ),
        Some(libc::EBUSY) => (
            "tun-busy",
            format!(
                "{error}: another process uses {name}, maybe another flanneld; find the process with `ip -d tuntap show` and stop it"
            ),
        ),
        Some(libc::EINVAL) => (
            "interface-name-taken",
            format!(
                "{error}: an interface {name} of another kind exists; check `ip -d link show {name}`, and rename or delete the interface"
            ),
        ),
        _ => ("tun-unusable", error.to_string()),
    };
    Problem::new(code, text)
}
